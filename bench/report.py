#!/usr/bin/env python3
"""docs/benchmarks.md out of what the benches left: their tables, their plots, and the command that makes each again.

usage: report.py RESULTS DOCS

RESULTS (bench/results) holds NAME.md and, of some, NAME.svg, each written by the last run of its bench; plots are copied into
DOCS/benchmarks. A bench that was not run here is left out, so the page always says what one machine measured."""

import os
import shutil
import sys

SECTIONS = [
    ("peers", "Encoders, shape by shape: all-MiniLM-L6-v2", "make bench-peers"),
    ("peers-bf16", "all-MiniLM-L6-v2 in bfloat16", "make bench-peers BF16=1"),
    ("peers-int8", "all-MiniLM-L6-v2 in int8, against every arithmetic", "make bench-peers INT8=1"),
    ("peers-bge-base", "Encoders, shape by shape: bge-base's dimensions", "make bench-peers BGE=base"),
    ("peers-bge-base-bf16", "bge-base's dimensions in bfloat16", "make bench-peers BGE=base BF16=1"),
    ("peers-bge-base-int8", "bge-base's dimensions in int8, against every arithmetic", "make bench-peers BGE=base INT8=1"),
    ("peers-bge-large", "Encoders, shape by shape: bge-large's dimensions", "make bench-peers BGE=large"),
    ("peers-bge-large-bf16", "bge-large's dimensions in bfloat16", "make bench-peers BGE=large BF16=1"),
    ("peers-bge-large-int8", "bge-large's dimensions in int8, against every arithmetic", "make bench-peers BGE=large INT8=1"),
    ("texts", "Text to vectors", "make bench-texts"),
    ("texts-int8", "Text to vectors in int8", "make bench-texts INT8=1"),
    ("rerank", "A query against a hundred documents", "make bench-rerank"),
    ("decoders", "Qwen3-Embedding-0.6B", "make bench-decoders"),
    ("tokenizer", "Text to tokens", "make bench-tokenizers"),
    ("serving", "Requests over HTTP", "make bench-serving"),
]

HEAD = """# Benchmarks

Written by `bench/report.py` from the results of the benches named below; every figure comes from one machine, every comparison from
engines that took turns in one run. A ratio above 1 says that lattice is faster; in brackets is the 95% interval over the rounds.
How to read them, and where the time goes, is in [performance.md](performance.md).
"""


def section(results, docs, name, title, command):
    with open(os.path.join(results, f"{name}.md")) as file:
        parts = [f"\n## {title}\n\n`{command}`\n\n{file.read().strip()}\n"]
    plot = os.path.join(results, f"{name}.svg")
    if os.path.exists(plot):
        os.makedirs(os.path.join(docs, "benchmarks"), exist_ok=True)
        shutil.copy(plot, os.path.join(docs, "benchmarks", f"{name}.svg"))
        parts.append(f"\n![{title}](benchmarks/{name}.svg)\n")
    return "".join(parts)


def main():
    if len(sys.argv) != 3 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    results, docs = sys.argv[1:]
    there = [row for row in SECTIONS if os.path.exists(os.path.join(results, f"{row[0]}.md"))]
    if not there:
        sys.exit(f"report: no results in {results}: run `make bench-peers` first")
    with open(os.path.join(docs, "benchmarks.md"), "w") as file:
        file.write(HEAD + "".join(section(results, docs, *row) for row in there))
    print(f"{docs}/benchmarks.md: {', '.join(name for name, *_ in there)}")


if __name__ == "__main__":
    main()
