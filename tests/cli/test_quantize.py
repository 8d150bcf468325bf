#!/usr/bin/env python3
"""quantize as a user runs it: every family's fixture, a small trained model's likelihood, and what must go wrong cleanly."""

import hashlib
import json
import math
import os
import resource
import shutil
import signal
import struct
import subprocess
import tempfile
import unittest

LATTICE = os.environ["LATTICE"]
FIXTURES = os.path.join(os.environ.get("LATTICE_SOURCE", os.path.join(os.path.dirname(__file__), "..", "..")), "tests", "fixtures")


def fixture(name):
    return os.path.join(FIXTURES, name)


def golden(name):
    with open(os.path.join(fixture(name), "golden.json"), encoding="utf-8") as f:
        return json.load(f)


def run(*args, stdin="", **more):
    r = subprocess.run([LATTICE, *args], input=stdin.encode(), capture_output=True, timeout=300, **more)
    r.stdout, r.stderr = r.stdout.decode(), r.stderr.decode()
    return r


def lines_of(values, key):
    return "".join(json.dumps({key: v}) + "\n" for v in values)


def cosine(a, b):
    return sum(x * y for x, y in zip(a, b)) / math.sqrt(sum(x * x for x in a) * sum(y * y for y in b))


def header(folder):
    with open(os.path.join(folder, "model.safetensors"), "rb") as f:
        (n,) = struct.unpack("<Q", f.read(8))
        return json.loads(f.read(n)), f.read()


def dequantize(folder, out):
    """A copy of the checkpoint with its Q8_0 tensors in F32, by docs/quantised.md."""
    head, data = header(folder)
    head.pop("__metadata__")
    new, parts, end = {}, [], 0
    for name, t in head.items():
        begin, stop = t["data_offsets"]
        part = data[begin:stop]
        if t["dtype"] == "Q8_0":
            rows, cols = t["shape"]
            padded = -(-rows // 16) * 16
            scales = struct.unpack_from(f"<{padded * cols // 32}e", part, padded * cols)
            values = []
            for row in range(rows):
                panel, r = row // 16, row % 16
                for col in range(cols):
                    q = part[panel * 16 * cols + (col // 4 * 16 + r) * 4 + col % 4] - 128
                    values.append(q * scales[(panel * (cols // 32) + col // 32) * 16 + r])
            part = struct.pack(f"<{len(values)}f", *values)
        new[name] = {"dtype": "F32" if t["dtype"] == "Q8_0" else t["dtype"], "shape": t["shape"], "data_offsets": [end, end + len(part)]}
        parts.append(part)
        end += len(part)
    shutil.copytree(folder, out)
    text = json.dumps(new).encode()
    with open(os.path.join(out, "model.safetensors"), "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + b"".join(parts))


def change_floats(folder, name, offset, value):
    """Overwrites one float32 of a tensor's bytes."""
    head, _ = header(folder)
    with open(os.path.join(folder, "model.safetensors"), "r+b") as f:
        (n,) = struct.unpack("<Q", f.read(8))
        f.seek(8 + n + head[name]["data_offsets"][0] + offset)
        f.write(struct.pack("<f", value))


class Case(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = temporary.name

    def done(self, *args, stdin=""):
        r = run(*args, stdin=stdin)
        self.assertEqual(r.returncode, 0, r.stderr)
        return r.stdout

    def fails(self, code, message, *args, **more):
        r = run(*args, **more)
        self.assertEqual(r.returncode, code, r.stderr)
        self.assertIn(message, r.stderr)
        self.assertEqual(len(r.stderr.splitlines()), 1, r.stderr)

    def quantize(self, source, *args):
        out = os.path.join(self.folder, "q8")
        self.printed = self.done("quantize", source, out, *args)
        return out


class Families(Case):
    def embeddings(self, name, least):
        q8, cases = self.quantize(fixture(name)), golden(name)["cases"]
        stdin = lines_of([c["ids"] for c in cases], "ids")
        for compute in ("auto", "int8", "f32"):
            got = [json.loads(l)["embedding"] for l in self.done("embed", "-m", q8, "--jsonl", "--compute", compute, stdin=stdin).splitlines()]
            for vector, c in zip(got, cases, strict=True):
                self.assertGreater(cosine(vector, c["embedding"]), least, (compute, c["text"]))
        self.assertEqual(json.loads(self.done("inspect", q8, "--json", "--check"))["compute"], "int8")
        return q8

    def test_bert(self):
        # The rows of most of its matrices, 48 wide, do not divide into blocks: they stay as they are beside those that do.
        q8 = self.embeddings("bert-cls", 0.999)
        tensors = {t["name"]: t for t in json.loads(self.done("inspect", q8, "--json", "--tensors"))["tensors"]}
        types = {t["shape"][-1]: t["type"] for t in tensors.values() if len(t["shape"]) == 2}
        self.assertEqual(types, {48: "F32", 96: "Q8_0"})

    def test_bert_from_halves_with_vocab_txt(self):
        q8 = self.embeddings("bert-mean-f16", 0.999)
        self.assertTrue(os.path.exists(os.path.join(q8, "vocab.txt")))
        self.assertTrue(os.path.exists(os.path.join(q8, "1_Pooling", "config.json")))

    def test_xlm_roberta(self):
        self.embeddings("xlmr-mean", 0.999)

    def test_int8_by_rows_stored(self):
        for name in ("bert-cls", "bert-mean-f16", "roberta-max", "xlmr-mean"):
            self.quantize(fixture(name), "--type", "int8")
            q8, cases = os.path.join(self.folder, "q8"), golden(name)["cases"]
            head, _ = header(q8)
            self.assertEqual(head["__metadata__"]["lattice.quantization"], "int8")
            (query,) = [t for n, t in head.items() if n.endswith("layer.0.attention.self.query.weight")]
            self.assertEqual(query["dtype"], "INT8_ROWS")
            self.assertEqual(json.loads(self.done("inspect", q8, "--json", "--check"))["compute"], "int8")
            stdin = lines_of([c["ids"] for c in cases], "ids")
            for compute in ("auto", "int8", "f32"):
                out = self.done("embed", "-m", q8, "--jsonl", "--compute", compute, stdin=stdin)
                for line, c in zip(out.splitlines(), cases, strict=True):
                    self.assertGreater(cosine(json.loads(line)["embedding"], c["embedding"]), 0.9995, (name, compute, c["text"]))
            shutil.rmtree(q8)

    def test_int8_cross_encoders(self):
        for name in ("cross-encoder-1", "cross-encoder-3", "xlmr-cross-encoder"):
            q8 = self.quantize(fixture(name), "--type", "int8")
            for case in golden(name)["cases"]:
                pair = json.dumps({"query": case["query"], "documents": [case["document"]]}) + "\n"
                logits = json.loads(self.done("rerank", "-m", q8, "--jsonl", stdin=pair))["results"][0]["logits"]
                for got, want in zip(logits, case["logits"], strict=True): # as far off as in Q8_0: 0.019 at most, of logits up to 1.2
                    self.assertLess(abs(got - want), 0.03, (name, case["query"]))
            shutil.rmtree(q8)

    def test_int8_numbers_that_are_not_sound(self):
        q8 = self.quantize(fixture("bert-cls"), "--type", "int8")
        head, _ = header(q8)
        (name,) = [n for n in head if n.endswith("layer.0.attention.self.key.weight")]
        rows, cols = head[name]["shape"]
        padded_rows, padded = -(-rows // 16) * 16, -(-cols // 8) * 8
        scales, inputs = padded_rows * padded, padded_rows * (padded + 8)
        for offset, value, message in (
            (scales + 4 * 3, math.nan, "a scale that is negative or not finite, of row 3"),
            (scales, math.inf, "a scale that is negative or not finite, of row 0"),
            (scales + 4 * padded_rows, -math.inf, "a sum that is not finite, of row 0"),
            (inputs + 4 * 2, 0.0, "an input factor that is not positive and finite, of column 2"),
            (inputs, 77.0, "has other input factors than"),
        ):
            bad = os.path.join(self.folder, "bad")
            shutil.copytree(q8, bad)
            change_floats(bad, name, offset, value)
            self.fails(1, message, "embed", "-m", bad, "x")
            shutil.rmtree(bad)
        with open(os.path.join(q8, "model.safetensors"), "r+b") as f:
            f.truncate(os.path.getsize(f.name) - 64)
        self.fails(1, "model.safetensors", "embed", "-m", q8, "x")

    def test_int8_is_for_encoders(self):
        out = os.path.join(self.folder, "out")
        self.fails(1, "int8 by rows is for encoders", "quantize", "--type", "int8", fixture("qwen3-embedding"), out)
        self.assertFalse(os.path.exists(out))

    def test_int8_by_rows_of_encoders(self):
        for name in ("bert-cls", "bert-mean-f16", "roberta-max", "xlmr-mean"):
            cases = golden(name)["cases"]
            stdin = lines_of([c["ids"] for c in cases], "ids")
            for isa in ("auto", "scalar"):
                out = self.done("embed", "-m", fixture(name), "--jsonl", "--compute", "int8", "--isa", isa, stdin=stdin)
                for line, c in zip(out.splitlines(), cases, strict=True):
                    self.assertGreater(cosine(json.loads(line)["embedding"], c["embedding"]), 0.9995, (name, isa, c["text"]))

    def test_qwen3(self):
        self.embeddings("qwen3-embedding", 0.997)

    def test_qwen3_from_shards(self):
        self.embeddings("qwen3-embedding-hd80-sharded-bf16", 0.997)

    def test_cross_encoder(self):
        q8 = self.quantize(fixture("cross-encoder-3"))
        for c in golden("cross-encoder-3")["cases"]:
            stdin = json.dumps({"query": c["query"], "documents": [c["document"]]}) + "\n"
            got = json.loads(self.done("rerank", "-m", q8, "--jsonl", "--raw", stdin=stdin))["results"][0]["logits"]
            for a, b in zip(got, c["logits"], strict=True):
                self.assertAlmostEqual(a, b, delta=0.05 * max(abs(x) for x in c["logits"]))

    def test_reranker(self):
        q8 = self.quantize(fixture("qwen3-reranker"))
        for p in golden("qwen3-reranker")["pairs"][:3]:
            stdin = json.dumps({"query": p["query"], "documents": [p["document"]]}) + "\n"
            args = ["--instruction", p["instruction"]] if p.get("instruction") else []
            got = json.loads(self.done("rerank", "-m", q8, "--jsonl", *args, stdin=stdin))["results"][0]["score"]
            self.assertAlmostEqual(got, p["score"], delta=0.05)

    def logits(self, folder, ids, *args):
        out = self.done("logits", "-m", folder, "--jsonl", *args, stdin=lines_of(ids, "ids"))
        return [json.loads(line)["logits"] for line in out.splitlines()]

    def test_generators(self):
        # Rounding is felt more in random weights than in trained ones: what is compared is the model with its weights rounded.
        for name in ("qwen3.5-text", "qwen3.5-vl-layout-bf16"):
            with self.subTest(name):
                q8, rounded = os.path.join(self.folder, name), os.path.join(self.folder, name + "-rounded")
                self.done("quantize", fixture(name), q8)
                dequantize(q8, rounded)
                ids = [c["ids"] for c in golden(name)["cases"]]
                want = self.logits(rounded, ids)
                for got, w in zip(self.logits(q8, ids, "--compute", "f32"), want, strict=True):
                    self.assertLessEqual(max(abs(a - b) for a, b in zip(got, w, strict=True)), 5e-5 * max(map(abs, w)))
                for n, got, w in zip(map(len, ids), self.logits(q8, ids), want, strict=True):
                    if n <= 300:
                        self.assertGreater(cosine(got, w), 0.97)


# The other tests send sanitizers the same ways.
@unittest.skipIf(os.environ.get("LATTICE_TEST_LIGHT") == "1", "minutes under sanitizers")
class Likelihood(Case):
    def test_of_the_trained_model_is_within_half_a_percent(self):
        q8, want = self.quantize(fixture("tiny-dictionary")), golden("tiny-dictionary")["eval"]
        stdin = lines_of(want["texts"], "text")
        last = json.loads(self.done("perplexity", "-m", q8, "--jsonl", stdin=stdin).splitlines()[-1])
        self.assertEqual(last["tokens"], want["tokens"])
        self.assertAlmostEqual(last["mean_nll"], want["mean_nll"], delta=0.005 * want["mean_nll"])
        self.assertAlmostEqual(last["mean_nll"], want["mean_nll_q8_0_weights_and_activations"], delta=1e-3)
        exact = json.loads(self.done("perplexity", "-m", q8, "--jsonl", "--compute", "f32", stdin=stdin).splitlines()[-1])
        self.assertAlmostEqual(exact["mean_nll"], want["mean_nll_q8_0_weights"], delta=1e-4)


MINILM = os.environ.get("LATTICE_MINILM") or os.path.join(
    os.environ.get("XDG_DATA_HOME") or os.path.expanduser("~/.local/share"), "lattice", "models", "all-minilm-l6-v2"
)


@unittest.skipUnless(os.path.exists(os.path.join(MINILM, "model.safetensors")), "all-minilm-l6-v2 is not installed (scripts/fetch-model)")
@unittest.skipIf(os.environ.get("LATTICE_TEST_LIGHT") == "1", "minutes under sanitizers")
class Published(Case):
    def test_minilm_stays_close_to_its_vectors(self):
        with open(fixture("real/all-minilm-l6-v2.json"), encoding="utf-8") as f:
            cases = json.load(f)["cases"]
        q8 = self.quantize(MINILM)
        got = self.done("embed", "-m", q8, "--jsonl", stdin=lines_of([c["ids"] for c in cases], "ids")).splitlines()
        cosines = [cosine(json.loads(line)["embedding"], c["embedding"]) for line, c in zip(got, cases, strict=True)]
        self.assertEqual(len(cosines), 159)
        self.assertGreaterEqual(sum(cosines) / len(cosines), 0.9993)
        self.assertGreaterEqual(min(cosines), 0.9975)


class Files(Case):
    def test_header_tells_how_the_weights_are_kept(self):
        q8 = self.quantize(fixture("qwen3.5-text"), "--json")
        head, data = header(q8)
        meta = head.pop("__metadata__")
        self.assertEqual(meta["lattice.quantization"], "q8_0")
        self.assertEqual(meta["lattice.layout"], "1")
        self.assertEqual(meta["lattice.source"], "qwen3.5-text")
        self.assertEqual(meta["lattice.sha256"], hashlib.sha256(data).hexdigest())
        for name, t in head.items():
            self.assertEqual(t["dtype"] == "Q8_0", len(t["shape"]) == 2, name)
        report = json.loads(self.printed)
        self.assertLess(report["bytes_after"], report["bytes_before"] / 2)
        self.assertEqual(sorted(os.listdir(self.folder)), ["q8"])

    def test_documented_layout_gives_the_weights_back(self):
        q8, rounded = self.quantize(fixture("qwen3.5-text")), os.path.join(self.folder, "rounded")
        dequantize(q8, rounded)
        (head, data), (old, old_data), quantised = header(rounded), header(fixture("qwen3.5-text")), header(q8)[0]
        for name, t in head.items():
            n = (t["data_offsets"][1] - t["data_offsets"][0]) // 4
            new = struct.unpack_from(f"<{n}f", data, t["data_offsets"][0])
            was = struct.unpack_from(f"<{n}f", old_data, old[name]["data_offsets"][0])
            if quantised[name]["dtype"] != "Q8_0":
                self.assertEqual(new, was)
                continue
            for first in range(0, n, 32):
                half = 0.502 * max(map(abs, was[first : first + 32])) / 127
                self.assertTrue(all(abs(a - b) <= half for a, b in zip(new[first : first + 32], was[first : first + 32])), name)

    def test_a_folder_that_exists_is_refused(self):
        self.fails(1, "exists already", "quantize", fixture("bert-cls"), self.folder)

    def test_unknown_type_is_refused(self):
        self.fails(1, "quantisation 'q3_x' is not known; q8_0 and int8 are", "quantize", fixture("bert-cls"), self.folder + "/x", "--type", "q3_x")
        self.assertEqual(os.listdir(self.folder), [])

    def test_quantised_twice_is_refused(self):
        q8 = self.quantize(fixture("qwen3-embedding"))
        self.fails(1, "is quantised already", "quantize", q8, self.folder + "/again")

    def test_int8_needs_such_weights_or_an_encoder(self):
        self.fails(1, "compute int8 needs an encoder, or weights in Q8_0", "embed", "-m", fixture("qwen3-embedding"), "--compute", "int8", "x")

    def test_a_full_disk_leaves_nothing(self):
        def limit():
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (100000, 100000))

        self.fails(1, "cannot write", "quantize", fixture("qwen3-embedding"), self.folder + "/deep/q8", preexec_fn=limit)
        self.assertEqual(os.listdir(self.folder + "/deep"), [])

    def test_a_truncated_file_is_refused(self):
        q8 = self.quantize(fixture("qwen3-embedding"))
        path = os.path.join(q8, "model.safetensors")
        os.truncate(path, os.path.getsize(path) - 100)
        self.fails(1, "past the file's", "embed", "-m", q8, "x")

    def test_a_spoiled_scale_is_found(self):
        q8 = self.quantize(fixture("qwen3-embedding"))
        head, _ = header(q8)
        name, t = next((n, t) for n, t in head.items() if t.get("dtype") == "Q8_0")
        path = os.path.join(q8, "model.safetensors")
        (rows, cols), begin = t["shape"], t["data_offsets"][0]
        with open(path, "r+b") as f:
            (n,) = struct.unpack("<Q", f.read(8))
            f.seek(8 + n + begin + -(-rows // 16) * 16 * cols)
            f.write(b"\x00\x7e")
        self.fails(1, f"tensor '{name}' has a scale that is NaN at [0, 0]", "inspect", q8, "--check")

    def test_damaged_weights_are_found_by_their_checksum(self):
        q8 = self.quantize(fixture("qwen3-embedding"))
        self.done("inspect", q8, "--check")
        path = os.path.join(q8, "model.safetensors")
        with open(path, "r+b") as f:
            (n,) = struct.unpack("<Q", f.read(8))
            f.seek(8 + n + 1000)
            (byte,) = f.read(1)
            f.seek(8 + n + 1000)
            f.write(bytes([byte ^ 1]))
        self.done("inspect", q8)
        self.fails(1, "model.safetensors: the data are damaged: their SHA-256 is ", "inspect", q8, "--check")


if __name__ == "__main__":
    unittest.main()
