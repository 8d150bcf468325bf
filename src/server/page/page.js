/* The page at /: tries the server's API and draws its /metrics. Nothing is loaded from elsewhere, nothing is kept. */
"use strict";

const $ = (id) => document.getElementById(id);

/* An element with properties (class, text, data) and children. */
function element(name, properties = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (key === "text") node.textContent = value;
    else if (key === "class") node.className = value;
    else if (key === "share") node.style.setProperty("--share", value);
    else node.setAttribute(key, value);
  }
  node.append(...children);
  return node;
}

function shape(name, attributes, text) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text !== undefined) node.textContent = text;
  return node;
}

function say(output, text, bad = false) {
  output.textContent = text;
  output.classList.toggle("bad", bad);
}

const linesOf = (text) => text.split("\n").map((line) => line.trim()).filter((line) => line);
const plural = (n, word) => `${n} ${word}${n === 1 ? "" : "s"}`;

/* ---------------------------------------------------------------- requests */

function headers() {
  const key = $("key").value.trim();
  return key ? { Authorization: `Bearer ${key}` } : {};
}

/* The answer, or an Error with the message that the API's own shape has. */
async function ask(path, body, signal) {
  const options = { headers: headers(), signal };
  if (body) {
    options.method = "POST";
    options.headers["Content-Type"] = "application/json";
    options.body = JSON.stringify(body);
  }
  let response;
  try {
    response = await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("the server does not answer");
  }
  if (response.ok) return response;
  let message = `status ${response.status}`;
  try {
    const answer = await response.json();
    message = answer.error?.message ?? answer.message ?? answer.error ?? message;
  } catch {}
  if (response.status === 401) $("access").open = true;
  throw new Error(message);
}

/* Runs what a form asks for, its button disabled meanwhile. */
function onSubmit(form, output, work) {
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const button = form.querySelector("[type=submit]");
    if (button.disabled) return;
    button.disabled = true;
    say(output, "computing…");
    try {
      say(output, await work());
    } catch (error) {
      say(output, error.message, true);
    }
    button.disabled = false;
  });
}

/* ---------------------------------------------------------------- models */

const kinds = { embed: ["embedding"], rerank: ["reranker", "classifier"], chat: ["generator"] };
const words = { embed: "gives vectors", rerank: "scores documents", chat: "generates text" };

function kindOf(model) {
  return Object.keys(model.model_type)[0];
}

async function loadModels() {
  let info;
  try {
    info = await (await ask("/info")).json();
  } catch (error) {
    say($("served"), error.message, true);
    return;
  }
  say($("served"), info.models.map((m) => m.model_id).join(", ") + ` · ${info.device}, ${info.isa} · version ${info.version}`);
  for (const [panel, accepted] of Object.entries(kinds)) {
    const names = info.models.filter((m) => accepted.includes(kindOf(m))).map((m) => m.model_id);
    $(`${panel}-model`).replaceChildren(...names.map((name) => element("option", { text: name })));
    for (const control of $(`${panel}-form`).elements) if (control.id !== "chat-stop") control.disabled = names.length === 0;
    say($(`${panel}-said`), names.length ? "" : `No model that ${words[panel]} is being served.`);
  }
}

/* ---------------------------------------------------------------- tabs */

const tabs = [...document.querySelectorAll("[role=tab]")];

function choose(tab, focus = false) {
  for (const other of tabs) {
    const chosen = other === tab;
    other.setAttribute("aria-selected", chosen);
    other.tabIndex = chosen ? 0 : -1;
    $(other.getAttribute("aria-controls")).hidden = !chosen;
  }
  if (focus) tab.focus();
  history.replaceState(null, "", `#${tab.id.slice(4)}`);
  watch(tab.id === "tab-live");
}

for (const [i, tab] of tabs.entries()) {
  tab.addEventListener("click", () => choose(tab));
  tab.addEventListener("keydown", (event) => {
    const to = { ArrowRight: i + 1, ArrowLeft: i - 1 + tabs.length, Home: 0, End: tabs.length - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    choose(tabs[to % tabs.length], true);
  });
}

/* ---------------------------------------------------------------- embedding */

function dot(a, b) {
  let sum = 0;
  for (let i = 0; i < a.length; i++) sum += a[i] * b[i];
  return sum;
}

function unit(v) {
  const norm = Math.sqrt(dot(v, v)) || 1;
  return v.map((x) => x / norm);
}

/* Coordinates on the two principal axes: the eigenvectors of the centred Gram matrix with the largest eigenvalues, by power
 * iteration, the first one's part taken off for the second. */
function project(vectors) {
  const n = vectors.length;
  const mean = vectors[0].map((_, k) => vectors.reduce((sum, v) => sum + v[k], 0) / n);
  const centred = vectors.map((v) => v.map((x, k) => x - mean[k]));
  const gram = centred.map((a) => centred.map((b) => dot(a, b)));
  const axes = [];
  for (let axis = 0; axis < 2; axis++) {
    let v = unit(centred.map((_, i) => Math.sin(1 + i * (axis + 1))));
    for (let step = 0; step < 200; step++) v = unit(gram.map((row) => dot(row, v)));
    const value = Math.max(0, dot(v, gram.map((row) => dot(row, v))));
    axes.push(v.map((x) => x * Math.sqrt(value)));
    for (let i = 0; i < n; i++) for (let j = 0; j < n; j++) gram[i][j] -= value * v[i] * v[j];
  }
  return centred.map((_, i) => [axes[0][i], axes[1][i]]);
}

function drawHeat(texts, vectors) {
  const similar = vectors.map((a) => vectors.map((b) => dot(a, b)));
  const low = Math.min(...similar.flat(), 1 - 1e-6);
  $("heat-scale").textContent = `From ${low.toFixed(2)}, the lightest, to 1.`;
  const rows = similar.map((row, i) =>
    element("tr", {}, element("th", { scope: "row", text: i + 1, title: texts[i] }), ...row.map((value, j) => {
      const share = Math.max(0, Math.min(1, (value - low) / (1 - low)));
      return element("td", { text: value.toFixed(2), share, class: share > 0.62 ? "strong" : "", title: `${i + 1} and ${j + 1}: ${value.toFixed(4)}` });
    })));
  const head = element("tr", {}, element("td", { share: 0 }), ...texts.map((text, i) => element("th", { scope: "col", text: i + 1, title: text })));
  head.firstChild.replaceWith(element("th", { "aria-label": "text" }));
  $("heat").classList.toggle("many", texts.length > 16);
  $("heat").replaceChildren(element("thead", {}, head), element("tbody", {}, ...rows));
}

function drawPlot(texts, vectors) {
  const points = project(vectors), width = 480, height = 360, margin = 34;
  const reach = Math.max(1e-9, ...points.flat().map(Math.abs));
  const scale = Math.min((width / 2 - margin) / reach, (height / 2 - margin) / reach);
  const svg = shape("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-labelledby": "plot-title" });
  svg.append(shape("line", { x1: 0, x2: width, y1: height / 2, y2: height / 2 }), shape("line", { x1: width / 2, x2: width / 2, y1: 0, y2: height }));
  for (const [i, [x, y]] of points.entries()) {
    const cx = width / 2 + x * scale, cy = height / 2 - y * scale;
    const dotShape = shape("circle", { cx, cy, r: 5 });
    dotShape.append(shape("title", {}, texts[i]));
    svg.append(dotShape, shape("text", { x: cx + 8, y: cy - 6 }, i + 1));
  }
  $("plot").replaceChildren(svg);
}

onSubmit($("embed-form"), $("embed-said"), async () => {
  const texts = linesOf($("embed-texts").value);
  if (texts.length < 2) throw new Error("Two texts at least, please.");
  if (texts.length > 200) throw new Error("At most 200 texts can be drawn.");
  const begun = performance.now();
  const answer = await (await ask("/v1/embeddings", { model: $("embed-model").value, input: texts })).json();
  const seconds = (performance.now() - begun) / 1000;
  const vectors = answer.data.map((item) => unit(item.embedding));
  $("embed-results").hidden = false;
  drawHeat(texts, vectors);
  drawPlot(texts, vectors);
  $("embed-key").replaceChildren(...texts.map((text) => element("li", { text })));
  return `${plural(texts.length, "vector")} of ${vectors[0].length} values, ${plural(answer.usage.prompt_tokens, "token")}, ${(seconds * 1000).toFixed(0)} ms`;
});

/* ---------------------------------------------------------------- reranking */

onSubmit($("rerank-form"), $("rerank-said"), async () => {
  const documents = linesOf($("rerank-documents").value);
  if (documents.length === 0) throw new Error("One document at least, please.");
  const begun = performance.now();
  const answer = await (await ask("/v1/rerank", { model: $("rerank-model").value, query: $("rerank-query").value, documents })).json();
  const seconds = (performance.now() - begun) / 1000;
  const scores = answer.results.map((result) => result.relevance_score);
  const top = Math.max(1, ...scores), low = Math.min(0, ...scores);
  $("rerank-results").replaceChildren(...answer.results.map((result) =>
    element("li", {}, element("p", { text: documents[result.index] }),
      element("div", { class: "bar" }, element("span", { "aria-hidden": "true" }, element("i", { share: (result.relevance_score - low) / (top - low) })),
        element("span", { text: result.relevance_score.toFixed(4) })))));
  $("rerank-results").hidden = false;
  return `${plural(documents.length, "document")}, ${(seconds * 1000).toFixed(0)} ms`;
});

/* ---------------------------------------------------------------- chat */

let conversation = [];
let stopping = null;

function addMessage(role, text) {
  const content = element("span", { text });
  $("chat-log").append(element("p", { class: `said ${role}` }, element("b", { text: role === "user" ? "You" : "Model" }), content));
  $("chat-log").scrollTop = $("chat-log").scrollHeight;
  return content;
}

/* Calls `on` with each event's data of a server-sent stream. */
async function readEvents(response, on) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) if (line.startsWith("data:")) on(line.slice(5).trim());
  }
}

async function answer() {
  const content = addMessage("assistant", "");
  const request = {
    model: $("chat-model").value,
    messages: conversation,
    max_tokens: Number($("chat-tokens").value) || 512,
    stream: true,
    stream_options: { include_usage: true },
  };
  const begun = performance.now();
  let text = "", usage = null, said = "";
  stopping = new AbortController();
  $("chat-stop").disabled = false;
  try {
    await readEvents(await ask("/v1/chat/completions", request, stopping.signal), (data) => {
      if (data === "[DONE]") return;
      const event = JSON.parse(data);
      if (event.error) throw new Error(event.error.message);
      usage = event.usage ?? usage;
      text += event.choices?.[0]?.delta?.content ?? "";
      content.textContent = text;
      $("chat-log").scrollTop = $("chat-log").scrollHeight;
    });
    const seconds = (performance.now() - begun) / 1000;
    said = usage ? `${plural(usage.completion_tokens, "token")}, ${(usage.completion_tokens / seconds).toFixed(1)} a second` : "";
  } catch (error) {
    if (error.name !== "AbortError") {
      content.closest("p").remove();
      conversation.pop();
      throw error;
    }
    said = "stopped";
  } finally {
    stopping = null;
    $("chat-stop").disabled = true;
  }
  conversation.push({ role: "assistant", content: text });
  return said;
}

onSubmit($("chat-form"), $("chat-said"), () => {
  const text = $("chat-text").value.trim();
  if (!text) return "";
  $("chat-text").value = "";
  conversation.push({ role: "user", content: text });
  addMessage("user", text);
  return answer();
});

$("chat-stop").addEventListener("click", () => stopping?.abort());
$("chat-new").addEventListener("click", () => {
  stopping?.abort();
  conversation = [];
  $("chat-log").replaceChildren();
  say($("chat-said"), "");
  $("chat-text").focus();
});
$("chat-text").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  $("chat-form").requestSubmit();
});

/* ---------------------------------------------------------------- live */

const PERIOD = 2000, KEPT = 90;
const charts = [
  { name: "Tokens", unit: "/s", of: (now, was, s) => rate(now, was, s, "lattice_tokens_total") },
  { name: "Requests", unit: "/s", of: (now, was, s) => rate(now, was, s, "lattice_requests_total") },
  { name: "Latency, median", unit: "ms", of: (now, was) => quantile(now, was, 0.5) },
  { name: "Latency, 95 %", unit: "ms", of: (now, was) => quantile(now, was, 0.95) },
  { name: "Tokens that wait", unit: "", of: (now) => sum(now, "lattice_queue_tokens") },
  { name: "Cache hits", unit: "%", of: hitShare },
  { name: "Engine busy", unit: "%", of: (now, was, s) => percent(rate(now, was, s, "lattice_engine_busy_seconds_total")) },
  { name: "Memory", unit: "MB", of: (now) => (sum(now, "process_resident_memory_bytes") ?? NaN) / 1e6 },
];
let timer = null, previous = null;

/* {name: [{labels, value}]} of Prometheus' text. */
function parseMetrics(text) {
  const all = {};
  for (const line of text.split("\n")) {
    const match = /^(\w+)(?:\{(.*)\})? (\S+)/.exec(line);
    if (!match) continue;
    const labels = {};
    for (const [, key, value] of (match[2] ?? "").matchAll(/(\w+)="([^"]*)"/g)) labels[key] = value;
    (all[match[1]] ??= []).push({ labels, value: match[3] === "+Inf" ? Infinity : Number(match[3]) });
  }
  return all;
}

/* Over all labels but those of what this page itself reads; undefined where there is no such metric. */
function sum(metrics, name) {
  return metrics[name]?.filter((m) => m.labels.route !== "/metrics").reduce((total, m) => total + m.value, 0);
}

function rate(now, was, seconds, name) {
  return was ? Math.max(0, (sum(now, name) ?? 0) - (sum(was, name) ?? 0)) / seconds : NaN;
}

const percent = (share) => Math.min(100, share * 100);

/* Of the requests since the last look: the bound of the bucket that the quantile falls in, with a share of its width. */
function quantile(now, was, q) {
  if (!was) return NaN;
  const name = "lattice_request_duration_seconds_bucket", counts = new Map();
  for (const [metrics, sign] of [[now, 1], [was, -1]])
    for (const m of metrics[name] ?? []) {
      if (m.labels.route === "/metrics") continue;
      const bound = m.labels.le === "+Inf" ? Infinity : Number(m.labels.le);
      counts.set(bound, (counts.get(bound) ?? 0) + sign * m.value);
    }
  const bounds = [...counts.keys()].sort((a, b) => a - b);
  const total = counts.get(Infinity) ?? 0;
  let below = 0, lower = 0;
  for (const bound of bounds) {
    const count = counts.get(bound);
    if (total > 0 && count >= total * q) return (bound === Infinity ? lower : lower + (bound - lower) * (total * q - below) / (count - below)) * 1000;
    below = count;
    lower = bound;
  }
  return NaN;
}

function hitShare(now, was) {
  const hits = sum(now, "lattice_cache_hits_total"), misses = sum(now, "lattice_cache_misses_total");
  if (hits === undefined || !was) return NaN;
  const newHits = hits - (sum(was, "lattice_cache_hits_total") ?? 0), newMisses = misses - (sum(was, "lattice_cache_misses_total") ?? 0);
  return newHits + newMisses > 0 ? percent(newHits / (newHits + newMisses)) : NaN;
}

function readable(value) {
  if (!Number.isFinite(value)) return "–";
  if (value >= 1000) return Math.round(value).toLocaleString("en");
  return value.toFixed(value >= 100 || Number.isInteger(value) ? 0 : 1);
}

function drawChart(chart) {
  const values = chart.values, width = 300, height = 90;
  const top = Math.max(1e-9, ...values.filter(Number.isFinite)) * 1.1, span = Math.max(15, values.length);
  let line = "", last = null;
  values.forEach((value, i) => {
    if (!Number.isFinite(value)) {
      last = null;
      return;
    }
    const x = (4 + (width - 8) * (i + span - values.length) / (span - 1)).toFixed(1);
    line += `${last === null ? "M" : "L"}${x} ${(height - 2 - (height - 2) * value / top).toFixed(1)}`;
    if (last === null) line += "h0"; /* a value alone is a dot */
    last = value;
  });
  chart.line.setAttribute("d", line);
  const now = values.at(-1);
  chart.value.textContent = `${readable(now)}${Number.isFinite(now) && chart.unit ? " " + chart.unit : ""}`;
  const seen = values.filter(Number.isFinite);
  chart.note.textContent = seen.length ? `largest ${readable(Math.max(...seen))}` : "nothing yet";
}

function makeCharts() {
  for (const chart of charts) {
    chart.values = [];
    chart.value = element("span", { text: "–" });
    chart.note = element("p", { text: "nothing yet" });
    chart.line = shape("path", { d: "" });
    const svg = shape("svg", { viewBox: "0 0 300 90", preserveAspectRatio: "none", "aria-hidden": "true" });
    svg.append(chart.line);
    $("live").append(element("section", { class: "chart", "aria-label": chart.name }, element("h2", {}, element("span", { text: chart.name }), chart.value), svg, chart.note));
  }
}

async function look() {
  try {
    const now = parseMetrics(await (await ask("/metrics")).text()), at = performance.now();
    const seconds = previous ? (at - previous.at) / 1000 : 0;
    for (const chart of charts) {
      chart.values.push(chart.of(now, previous?.metrics, seconds) ?? NaN);
      if (chart.values.length > KEPT) chart.values.shift();
      drawChart(chart);
    }
    previous = { metrics: now, at };
    say($("live-said"), `Read from /metrics every two seconds while this is open; the last ${KEPT * PERIOD / 60000} minutes are drawn.`);
  } catch (error) {
    say($("live-said"), error.message, true);
  }
}

function watch(on) {
  clearInterval(timer);
  timer = on ? setInterval(look, PERIOD) : null;
  if (on) look();
}

/* ---------------------------------------------------------------- start */

makeCharts();
$("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  loadModels();
});
choose($(`tab-${location.hash.slice(1)}`) ?? tabs[0]);
loadModels();
