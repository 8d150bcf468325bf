#!/usr/bin/env python3
"""Text to tokens: lattice in turns with Hugging Face tokenizers, on the same texts in one run.

usage: tokenizer.py FOLDER… [--program build/bench_tokenizer] [--texts FILE] [--rounds 5] [--out DIR]

FOLDER holds a tokenizer.json; FILE (bench/data/mixed-10k.jsonl.gz) a JSON string, or an object with "text", a line. Each round loads the
file and encodes all texts, and the same joined and cut into pieces of 4 kB, once with either on one thread, spans included; the token
counts must agree. lattice also runs on two threads, and over a megabyte of prose and one of its letters as a single word. Prints the
medians of the rounds and keeps them in DIR/tokenizer.json, by the name of the folder."""

import argparse
import gzip
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
import tokenizers  # noqa: E402: reads the setting above

from turns import cpu_name, save  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
PIECE, WORD = 4096, 1_000_000


def read_texts(path):
    opened = gzip.open(path, "rt", encoding="utf-8") if path.endswith(".gz") else open(path, encoding="utf-8")
    with opened as file:
        values = [json.loads(line) for line in file]
    return [v if isinstance(v, str) else v["text"] for v in values]


def cut(texts):
    """Pieces of at most PIECE bytes, whole characters."""
    data, pieces, at = "\n".join(texts).encode(), [], 0
    while at < len(data):
        end = min(at + PIECE, len(data))
        while end < len(data) and data[end] & 0xC0 == 0x80:
            end -= 1
        pieces.append(data[at:end].decode())
        at = end
    return pieces


def megabytes(texts):
    return sum(len(t.encode()) for t in texts) * 1e-6


def repeated(text):
    return (text * (WORD // len(text) + 1))[:WORD]


class Workload:
    def __init__(self, folder, texts):
        self.texts, self.path = texts, os.path.join(folder, f"{id(self)}.jsonl")
        with open(self.path, "w", encoding="utf-8") as file:
            file.writelines(json.dumps(t, ensure_ascii=False) + "\n" for t in texts)

    def lattice(self, program, model, threads=1):
        command = [program, model, self.path, "--rounds", "1", "--threads", str(threads)]
        return json.loads(subprocess.run(command, check=True, capture_output=True).stdout)

    def huggingface(self, tokenizer):
        start, count = time.perf_counter(), 0
        for i in range(0, len(self.texts), 500):
            count += sum(len(e.ids) for e in tokenizer.encode_batch(self.texts[i : i + 500]))
        return {"mb_s": megabytes(self.texts) / (time.perf_counter() - start), "tokens": count}


def load(model):
    start = time.perf_counter()
    tokenizer = tokenizers.Tokenizer.from_file(os.path.join(model, "tokenizer.json"))
    seconds = time.perf_counter() - start
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer, seconds * 1e3


def measure(program, model, work, rounds):
    median, rows = statistics.median, []
    for _ in range(rounds):
        tokenizer, their_load = load(model)
        row = {"their_load_ms": their_load}
        for name in ("mixed", "pieces"):
            ours, theirs = work[name].lattice(program, model), work[name].huggingface(tokenizer)
            if ours["tokens"] != theirs["tokens"]:
                sys.exit(f"{model}: {ours['tokens']} tokens, {theirs['tokens']} of tokenizers")
            row |= {f"{name}_mb_s": ours["mb_s"], f"{name}_their_mb_s": theirs["mb_s"], f"{name}_ratio": ours["mb_s"] / theirs["mb_s"]}
        row |= {"load_ms": ours["load_ms"], "resident_mb": ours["resident_kb"] / 1e3}
        row["threads_ratio"] = work["mixed"].lattice(program, model, 2)["mb_s"] / row["mixed_mb_s"]
        row["word_ratio"] = work["prose"].lattice(program, model)["mb_s"] / work["word"].lattice(program, model)["mb_s"]
        rows.append(row)
    return {key: median(row[key] for row in rows) for key in rows[0]}


def table(results, texts):
    lines = [
        f"{cpu_name()}, {len(texts)} texts, {megabytes(texts):.2f} MB, beside tokenizers {tokenizers.__version__}, {time.strftime('%Y-%m-%d')}.",
        "", "| tokenizer | MB/s | in pieces of 4 kB | two threads to one | load, ms |", "|---|---:|---:|---:|---:|",
    ]
    for name, r in results.items():
        mixed, pieces = (f"{r[w + '_mb_s']:.1f} ({r[w + '_ratio']:.1f} times as fast)" for w in ("mixed", "pieces"))
        lines.append(f"| {name} | {mixed} | {pieces} | {r['threads_ratio']:.2f} | {r['load_ms']:.1f} ({r['their_load_ms']:.1f}) |")
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+")
    parser.add_argument("--program", default=os.path.join(HERE, "..", "build", "bench_tokenizer"))
    parser.add_argument("--texts", default=os.path.join(HERE, "data", "mixed-10k.jsonl.gz"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out")
    options = parser.parse_args()
    texts = read_texts(options.texts)
    print(f"{len(texts)} texts, {megabytes(texts):.2f} MB; tokenizers {tokenizers.__version__}")
    kept = os.path.join(options.out, "tokenizer.json") if options.out else None
    results = {}
    if kept and os.path.exists(kept):
        with open(kept) as file:
            results = json.load(file)
    english = " ".join(t for t in texts if t.isascii())
    with tempfile.TemporaryDirectory() as folder:
        work = {"mixed": texts, "pieces": cut(texts), "prose": [repeated(english)], "word": [repeated(re.sub("[^a-zA-Z]", "", english))]}
        work = {name: Workload(folder, t) for name, t in work.items()}
        for model in options.folders:
            r = results[os.path.basename(model.rstrip("/"))] = measure(options.program, model, work, options.rounds)
            print(f"{model}\n  load {r['load_ms']:.1f} ms ({r['their_load_ms']:.1f}), {r['resident_mb']:.1f} MB resident")
            for name in ("mixed", "pieces"):
                print(f"  {name:7} {r[name + '_mb_s']:6.2f} MB/s ({r[name + '_their_mb_s']:.2f}): {r[name + '_ratio']:.1f} times as fast")
            print(f"  two threads {r['threads_ratio']:.2f} times one; a word of a megabyte takes {r['word_ratio']:.1f} times as long as prose")
    save(options.out, "tokenizer", results, table(results, texts))


if __name__ == "__main__":
    main()
