#!/usr/bin/env python3
"""Measures the baseline table of docs/DESIGN.md again.

usage: baseline.py [KEY…] [--write]

Without KEY: every line that this machine can measure, and what moved beyond its threshold; exit 1 if something did. With KEYs: their
values alone. --write puts what was measured into the table, with today's date and this machine. Needs build/lattice and
all-MiniLM-L6-v2 (`make model`); the lines about rivals are read from bench/results (`make bench-peers`, `make bench-texts`)."""

import functools
import json
import os
import platform
import re
import subprocess
import sys
import time

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
DESIGN = os.path.join(ROOT, "docs", "DESIGN.md")
LATTICE = os.environ.get("LATTICE", os.path.join(ROOT, "build", "lattice"))
MODEL = os.environ.get("MODEL", "all-minilm-l6-v2")
QWEN3 = os.environ.get("QWEN3")  # a checkpoint of Qwen3-Embedding-0.6B's size: tools/make_checkpoint.py makes one around a tokenizer
SHAPES = ("1x8", "1x32", "1x128", "1x512", "32x32", "32x128", "8x512")


class Absent(Exception):
    """What cannot be measured here, and why."""


def run(*command, **options):
    result = subprocess.run(command, capture_output=True, **options)
    if result.returncode != 0:
        raise Absent(f"{' '.join(command[:2])}: {result.stderr.decode(errors='replace').strip()}")
    return result.stdout


@functools.lru_cache(None)
def bench():
    return json.loads(run(LATTICE, "bench", "-m", MODEL, "--json", "--seconds", "1", "--shapes", ",".join(SHAPES)))


def shape(name):
    return next(result for result in bench()["results"] if result["shape"] == name)


def forward(name):
    return shape(name)["tok_per_s"]


def peak_share():
    return shape("32x128")["peak_share"]


def open_ms():
    """The least of three: the page cache is warm after the first."""
    return min(json.loads(run(LATTICE, "bench", "-m", MODEL, "--json", "--seconds", "0.01", "--shapes", "1x8"))["open_ms"] for _ in range(3))


def extra_mb():
    """What a process takes at its peak beyond the weights (the packed copy replaces what it was packed from) and the workspace touched."""
    memory = bench()["memory"]
    return (memory["peak_resident_bytes"] - memory["weight_bytes"] - memory["workspace_touched_bytes"]) / 1e6


def results(name):
    path = os.path.join(ROOT, "bench", "results", name)
    try:
        with open(path) as file:
            return json.load(file)
    except FileNotFoundError:
        raise Absent(f"no bench/results/{name}") from None


def least(name, *rivals):
    """Against the fastest of the rivals, all of them unless named, whatever their arithmetic."""
    shapes = results(name)["shapes"].values()
    return min(row["ratio"] for rows in shapes for rival, row in rows.items() if "ratio" in row and (not rivals or rival in rivals))


def texts_ratio():
    return results("texts.json")["ratios"]["sentence-transformers"][0]


def rerank_ratio():
    """Against the best of the back ends that could be started."""
    return min(ratio[0] for name, ratio in results("rerank.json")["ratios"].items() if name != "lattice")


@functools.lru_cache(None)
def cache():
    lines = run(os.path.join(os.path.dirname(LATTICE), "bench_cache"), "--json", "10000").splitlines()
    return {row["what"]: row for row in map(json.loads, lines)}


def cache_hit():
    return cache()["hit"]["p50_ns"]


def cache_policies():
    return cache()["hit rate"]["sieve"] / cache()["hit rate"]["flush"]


def decoders_ratio(length):
    """Against the better of llama.cpp and PyTorch, bfloat16 weights."""
    return results("decoders.json")["lengths"][str(length)]["to_best"]


def qwen3(*arguments):
    if not QWEN3:
        raise Absent("QWEN3 names no checkpoint of Qwen3-Embedding-0.6B's size")
    return json.loads(run(LATTICE, "bench", "-m", QWEN3, "--json", *arguments))


def qwen3_forward():
    return qwen3("--seconds", "2", "--shapes", "1x512")["results"][0]["tok_per_s"]


def qwen3_open_ms():
    return min(qwen3("--seconds", "0.01", "--shapes", "1x8")["open_ms"] for _ in range(3))


def qwen3_length_cost():
    """Cost of a token at 4096 relative to one at 512."""
    short, long = (result["tok_per_s"] for result in qwen3("--seconds", "1", "--shapes", "1x512,1x4096")["results"])
    return short / long


def tokenizers(worst, *keys):
    return worst(rows[key] for rows in results("tokenizer.json").values() for key in keys)


def largest_difference():
    with open(os.path.join(ROOT, "tests", "fixtures", "real", "all-minilm-l6-v2.json")) as file:
        cases = json.load(file)["cases"]
    lines = "".join(json.dumps(case["text"]) + "\n" for case in cases)
    output = run(LATTICE, "embed", "-m", MODEL, "--jsonl", input=lines.encode()).splitlines()
    if len(output) != len(cases):
        raise Absent(f"embed printed {len(output)} lines for {len(cases)} texts")
    return max(abs(a - b) for line, case in zip(output, cases) for a, b in zip(json.loads(line)["embedding"], case["embedding"]))


def raw_casts():
    """Casts to a pointer type, and vector intrinsics, in src/ outside the kernels. Comments do not count."""
    cast = re.compile(r"\((?:const |unsigned |struct )*\w+ (?:const )?\*+(?:const)?\)\s*[\w(&*]")
    intrinsic = re.compile(r"\b_mm\d*_\w+\(|\bv[a-z]+q?_[fsu](?:8|16|32|64)\(")
    count = 0
    for folder, _, names in os.walk(os.path.join(ROOT, "src")):
        if os.path.join("backend", "cpu") in folder:
            continue
        for name in names:
            with open(os.path.join(folder, name), encoding="utf-8") as file:
                text = re.sub(r"/\*.*?\*/|//[^\n]*", "", file.read(), flags=re.S)
            count += len(cast.findall(text)) + len(intrinsic.findall(text))
    return count


MEASURES = {f"forward-{name}": functools.partial(forward, name) for name in SHAPES} | {
    "peak-share": peak_share,
    "open-ms": open_ms,
    "extra-mb": extra_mb,
    "peers-least": functools.partial(least, "peers.json", "ort", "ov"),
    "bf16-least": functools.partial(least, "peers-bf16.json"),
    "int8-least": functools.partial(least, "peers-int8.json"),
    **{f"bge-{name}-least": functools.partial(least, f"peers-bge-{name}.json")
       for name in ("base", "base-bf16", "base-int8")},
    "texts-ratio": texts_ratio,
    "rerank-ratio": rerank_ratio,
    "cache-hit": cache_hit,
    "cache-policies": cache_policies,
    "decoders-128": functools.partial(decoders_ratio, 128),
    "decoders-512": functools.partial(decoders_ratio, 512),
    "qwen3-forward": qwen3_forward,
    "qwen3-open-ms": qwen3_open_ms,
    "qwen3-length-cost": qwen3_length_cost,
    "tokenizer-ratio": functools.partial(tokenizers, min, "mixed_ratio", "pieces_ratio"),
    "tokenizer-threads": functools.partial(tokenizers, min, "threads_ratio"),
    "tokenizer-word": functools.partial(tokenizers, max, "word_ratio"),
    "tokenizer-load-ms": functools.partial(tokenizers, max, "load_ms"),
    "tokenizer-mb": functools.partial(tokenizers, max, "resident_mb"),
    "largest-difference": largest_difference,
    "raw-casts": raw_casts,
}


def text_of(value):
    if isinstance(value, int):
        return str(value)
    if value >= 1000:
        return f"{value:.0f}"
    return f"{value:.2e}" if value < 1e-3 else f"{value:.3g}"


def moved(old, new, threshold):
    """In words, when `new` is past the threshold: "-10%" and "+5" bound the change from the old value, "5e-6" the value itself."""
    sign, number, percent = re.fullmatch(r"([+-]?)([\d.e-]+)(%?)", threshold).groups()
    limit = float(number)
    if not sign:
        return f"over {threshold}" if new > limit else None
    if old is None:
        return None
    change = (new - old) / old * 100 if percent else new - old
    if (change > limit) if sign == "+" else (change < -limit):
        return f"{change:+.3g}{percent} (threshold {threshold})"
    return None


def machine():
    name = platform.machine()
    try:
        with open("/proc/cpuinfo") as file:
            name = re.search(r"model name\s*: (.*)", file.read()).group(1)
    except (OSError, AttributeError):
        pass
    return f"{name}, {bench()['peak']['threads']} threads, {bench()['peak']['isa']}, {bench()['peak']['gflops_f32']:.0f} GFLOP/s and {bench()['peak']['read_gb_s']:.0f} GB/s measured"


def read_table(text):
    """(key, cells, line) of the rows that a command of ours measures."""
    rows = []
    for line in text.splitlines():
        key = re.search(r"`[^`]*scripts/baseline\.py ([\w-]+)` \|$", line)
        if line.startswith("| ") and key:
            rows.append((key.group(1), [cell.strip() for cell in line.strip("|").split("|")], line))
    return rows


def main():
    keys = [argument for argument in sys.argv[1:] if not argument.startswith("-")]
    write = "--write" in sys.argv[1:]
    if set(sys.argv[1:]) - set(keys) - {"--write"} or set(keys) - set(MEASURES):
        sys.exit(__doc__ + "\nKEYs: " + " ".join(MEASURES))
    with open(DESIGN, encoding="utf-8") as file:
        text = file.read()
    rows = read_table(text)
    missing = set(MEASURES) - {key for key, _, _ in rows}
    if missing:
        sys.exit(f"baseline: docs/DESIGN.md has no line for {', '.join(sorted(missing))}")

    any_moved = failed = False
    for key, cells, line in rows:
        if keys and key not in keys:
            continue
        try:
            value = MEASURES[key]()
        except Absent as reason:
            print(f"{key:20s} not measured: {reason}", file=sys.stderr)
            failed = bool(keys)
            continue
        if keys and not write:
            print(text_of(value))
            continue
        old = float(cells[2]) if re.fullmatch(r"[\d.e+-]+", cells[2]) else None
        words = moved(old, value, cells[4])
        any_moved |= words is not None
        print(f"{key:20s} {text_of(value):>12s}   was {cells[2]} ({cells[3]})" + (f"   MOVED {words}" if words else ""))
        if write:
            text = text.replace(line, "| " + " | ".join([*cells[:2], text_of(value), time.strftime("%Y-%m-%d"), *cells[4:]]) + " |")
    if write:
        text = re.sub(r"^Machine of the figures: .*$", lambda _: f"Machine of the figures: {machine()}.", text, flags=re.M)
        with open(DESIGN, "w", encoding="utf-8") as file:
            file.write(text)
    sys.exit(1 if failed or (any_moved and not write) else 0)


if __name__ == "__main__":
    main()
