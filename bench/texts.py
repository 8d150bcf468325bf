#!/usr/bin/env python3
"""Text to vectors: lattice in turns with sentence-transformers over real texts of mixed length, tokenising included.

usage: texts.py MODEL [--threads N] [--texts FILE] [--rounds 9] [--limit N] [--out DIR]

FILE (bench/data/mixed-10k.jsonl.gz) holds a JSON string, or an object with "text", a line. Round i embeds every rounds-th text from
the i-th on, so that all rounds see the same mixture and together the whole file, once by each engine. Vectors are compared."""

import argparse
import gzip
import json
import os
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from turns import Engine, cpu_name, interval, processors, save


def read_texts(path, limit):
    texts = []
    with gzip.open(path, "rt", encoding="utf-8") if path.endswith(".gz") else open(path, encoding="utf-8") as file:
        for line in file:
            value = json.loads(line)
            texts.append(value if isinstance(value, str) else value["text"])
            if len(texts) == limit:
                break
    return texts


class Lattice:
    def __init__(self, model, threads):
        from lattice import Model

        self.model = Model(model, threads)

    def embed(self, texts):
        begin = time.perf_counter()
        vectors = self.model.embed(texts)
        return time.perf_counter() - begin, vectors, self.model.n_tokens


class SentenceTransformers:
    def __init__(self, model, threads):
        import torch
        from sentence_transformers import SentenceTransformer

        torch.set_num_threads(threads)
        self.model = SentenceTransformer(model, device="cpu")

    def embed(self, texts):
        begin = time.perf_counter()
        vectors = self.model.encode(texts, show_progress_bar=False)
        return time.perf_counter() - begin, vectors, None


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, default=processors())
    parser.add_argument("--texts", default=os.path.join(here, "data", "mixed-10k.jsonl.gz"))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--limit", type=int, help="only the first N texts")
    parser.add_argument("--out", help="folder for texts.json and texts.md")
    a = parser.parse_args()
    import numpy as np

    os.environ["OMP_NUM_THREADS"] = str(a.threads)
    os.environ["TOKENIZERS_PARALLELISM"] = "true"
    texts = read_texts(a.texts, a.limit)
    engines = [Engine("lattice", Lattice, a.model, a.threads), Engine("sentence-transformers", SentenceTransformers, a.model, a.threads)]
    try:
        for engine in engines:
            if engine.failure:
                sys.exit(f"texts: {engine.name}: {engine.failure}")
            engine.turn("embed", texts[:8])  # warm
        seconds = {engine.name: [] for engine in engines}
        tokens, worst = 0, 1.0
        for i in range(a.rounds):
            part, vectors = texts[i :: a.rounds], {}
            for engine in engines:
                elapsed, vectors[engine.name], n_tokens = engine.turn("embed", part)
                seconds[engine.name].append(elapsed)
                tokens += n_tokens or 0
            worst = min(worst, float((vectors["lattice"] * vectors["sentence-transformers"]).sum(axis=1).min()))
            print(f"round {i + 1}: " + "  ".join(f"{name} {len(part) / s[-1]:.0f} texts/s" for name, s in seconds.items()), file=sys.stderr, flush=True)
    finally:
        for engine in engines:
            engine.close()
    if not np.isfinite(worst) or worst < 0.9999:
        sys.exit(f"texts: the engines disagree: lowest cosine {worst:.6f}")

    ours, theirs = seconds["lattice"], seconds["sentence-transformers"]
    ratio, low, high = interval([t / o for o, t in zip(ours, theirs)])
    report = {
        "date": time.strftime("%Y-%m-%d"), "cpu": cpu_name(), "threads": a.threads, "texts": len(texts), "tokens": tokens,
        "seconds": {name: sum(s) for name, s in seconds.items()}, "ratio": ratio, "ratio_low": low, "ratio_high": high, "lowest_cosine": worst,
    }
    lines = [
        f"{report['cpu']}, {a.threads} threads, {len(texts)} texts ({tokens} tokens), {a.rounds} rounds in turns, {report['date']}.",
        "", "| engine | texts/s | tokens/s |", "|---|---:|---:|",
    ]
    lines += [f"| {name} | {len(texts) / sum(s):,.0f} | {tokens / sum(s):,.0f} |" for name, s in seconds.items()]
    lines += ["", f"lattice is {ratio:.2f} times as fast ({low:.2f}–{high:.2f}); lowest cosine between the two {worst:.7f}."]
    print("\n".join(lines))
    save(a.out, "texts", report, "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
