#!/usr/bin/env python3
"""One query against many documents: lattice in turns with sentence-transformers' CrossEncoder, tokenising included.

usage: rerank.py MODEL [--threads N] [--texts FILE] [--documents 100] [--tokens 200] [--rounds 7] [--backends torch,onnx,openvino]
       [--python BACKEND=PROGRAM …] [--out DIR]

MODEL is a cross-encoder of one label (tools/make_checkpoint.py bge-base OUT --labels 1 --tokenizer FOLDER makes one of bge-base's
dimensions). Documents are cut from the texts of FILE (bench/data/mixed-10k.jsonl.gz), joined, at about so many tokens of 4.4 bytes;
their lengths vary by a quarter, as passages do. Back ends that cannot be started here are named and left out. onnx and openvino ask for other versions of transformers than each other:
--python names the interpreter of an environment for one (scripts/bench-venv onnx, scripts/bench-venv openvino). Logits are compared."""

import argparse
import os
import random
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from texts import read_texts
from turns import Engine, cpu_name, in_float32, interval, processors, save

QUERY = "which of the passages explains how the results were obtained and what they mean"
BYTES_A_TOKEN = 4.4


class Lattice:
    def __init__(self, model, threads):
        from lattice import Model

        self.model = Model(model, threads)

    def rerank(self, query, documents):
        begin = time.perf_counter()
        logits = self.model.rerank(query, documents)
        return time.perf_counter() - begin, logits[:, 0], self.model.n_tokens


class CrossEncoder:
    def __init__(self, model, threads, backend):
        import torch
        from sentence_transformers import CrossEncoder

        torch.set_num_threads(threads)
        self.identity = torch.nn.Identity()
        self.model = CrossEncoder(model, device="cpu", backend=backend, max_length=512, **in_float32(backend))

    def rerank(self, query, documents):
        begin = time.perf_counter()
        logits = self.model.predict([(query, document) for document in documents], activation_fn=self.identity, show_progress_bar=False)
        return time.perf_counter() - begin, logits, None


def make_documents(texts, count, tokens):
    generator, joined = random.Random(1), " ".join(texts)
    documents, at = [], 0
    for _ in range(count):
        size = int(BYTES_A_TOKEN * tokens * generator.uniform(0.75, 1.25))
        documents.append(joined[at : at + size].strip())
        at = (at + size) % max(1, len(joined) - 2 * size)
    return documents


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, default=processors())
    parser.add_argument("--texts", default=os.path.join(here, "data", "mixed-10k.jsonl.gz"))
    parser.add_argument("--documents", type=int, default=100)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--backends", default="torch,onnx,openvino")
    parser.add_argument("--python", action="append", default=[], metavar="BACKEND=PROGRAM", help="the interpreter that runs it")
    parser.add_argument("--out", help="folder for rerank.json and rerank.md")
    a = parser.parse_args()
    import numpy as np

    os.environ["OMP_NUM_THREADS"] = str(a.threads)
    os.environ["TOKENIZERS_PARALLELISM"] = "true"
    documents = make_documents(read_texts(a.texts, 20 * a.documents), a.documents, a.tokens)
    engines = [Engine("lattice", Lattice, a.model, a.threads)]
    pythons = dict(pair.split("=", 1) for pair in a.python)
    engines += [Engine(f"CrossEncoder {b}", CrossEncoder, a.model, a.threads, b, python=pythons.get(b)) for b in a.backends.split(",")]
    try:
        if engines[0].failure:
            sys.exit(f"rerank: lattice: {engines[0].failure}")
        for engine in engines:
            if engine.failure:
                print(f"left out: {engine.name}: {engine.failure.splitlines()[0]}", file=sys.stderr)
        running = [engine for engine in engines if not engine.failure]
        seconds, logits, tokens = {engine.name: [] for engine in running}, {}, 0
        for engine in running:
            engine.turn("rerank", QUERY, documents[:4])  # warm
        for i in range(a.rounds):
            for engine in running:
                elapsed, logits[engine.name], n_tokens = engine.turn("rerank", QUERY, documents)
                seconds[engine.name].append(elapsed)
                tokens = n_tokens or tokens
            print(f"round {i + 1}: " + "  ".join(f"{name} {s[-1]:.3f} s" for name, s in seconds.items()), file=sys.stderr, flush=True)
    finally:
        for engine in engines:
            engine.close()
    worst = max((float(np.abs(logits[name] - logits["lattice"]).max()) for name in logits), default=0.0)
    if worst > 1e-3 * max(1.0, float(np.abs(logits["lattice"]).max())):
        sys.exit(f"rerank: the engines disagree: logits differ by {worst:g}")

    ours = seconds["lattice"]
    report = {
        "date": time.strftime("%Y-%m-%d"), "cpu": cpu_name(), "threads": a.threads, "documents": len(documents), "tokens": tokens,
        "seconds": seconds, "ratios": {}, "largest_difference": worst,
    }
    lines = [
        f"{report['cpu']}, {a.threads} threads, one query against {len(documents)} documents ({tokens} tokens in all pairs), {a.rounds} rounds in turns, {report['date']}.",
        "", "| engine | ms | tokens/s | lattice is so many times as fast |", "|---|---:|---:|---:|",
    ]
    for name, s in seconds.items():
        middle = interval(s)[0]
        ratio, low, high = report["ratios"][name] = interval([t / o for o, t in zip(ours, s)])
        lines.append(f"| {name} | {1000 * middle:.0f} | {tokens / middle:,.0f} | " + ("" if name == "lattice" else f"{ratio:.2f} ({low:.2f}–{high:.2f})") + " |")
    lines += ["", f"Largest difference of a logit {worst:.1e}."]
    print("\n".join(lines))
    save(a.out, "rerank", report, "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
