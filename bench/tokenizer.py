#!/usr/bin/env python3
"""Text to tokens: lattice in turns with Hugging Face tokenizers, one thread each, on the same texts.

usage: tokenizer.py FOLDER… [--program build/bench_tokenizer] [--texts FILE] [--rounds 5]

FOLDER holds a tokenizer.json; FILE (bench/data/mixed-10k.jsonl.gz) a JSON string, or an object with "text", a line. Each round loads
the file and encodes all texts once with either, spans included; the token counts must agree. Prints best and median of the
rounds, in wall time and the ratio of the two in each round's turn."""

import argparse
import gzip
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
import tokenizers  # noqa: E402: reads the setting above

HERE = os.path.dirname(os.path.abspath(__file__))


def read_texts(path):
    opened = gzip.open(path, "rt", encoding="utf-8") if path.endswith(".gz") else open(path, encoding="utf-8")
    with opened as file:
        values = [json.loads(line) for line in file]
    return [v if isinstance(v, str) else v["text"] for v in values]


def huggingface(folder, texts, megabytes):
    start = time.perf_counter()
    tokenizer = tokenizers.Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))
    load = time.perf_counter() - start
    tokenizer.no_truncation()
    tokenizer.no_padding()
    start, count = time.perf_counter(), 0
    for i in range(0, len(texts), 500):
        count += sum(len(e.ids) for e in tokenizer.encode_batch(texts[i : i + 500]))
    return {"load_ms": load * 1e3, "mb_s": megabytes / (time.perf_counter() - start), "tokens": count}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+")
    parser.add_argument("--program", default=os.path.join(HERE, "..", "build", "bench_tokenizer"))
    parser.add_argument("--texts", default=os.path.join(HERE, "data", "mixed-10k.jsonl.gz"))
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    texts = read_texts(options.texts)
    megabytes = sum(len(t.encode()) for t in texts) * 1e-6
    print(f"{len(texts)} texts, {megabytes:.2f} MB; tokenizers {tokenizers.__version__}")
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl", encoding="utf-8") as lines:
        lines.writelines(json.dumps(t, ensure_ascii=False) + "\n" for t in texts)
        lines.flush()
        for folder in options.folders:
            ours, theirs = [], []
            for _ in range(options.rounds):
                command = [options.program, folder, lines.name, "--rounds", "1"]
                ours.append(json.loads(subprocess.run(command, check=True, capture_output=True).stdout))
                theirs.append(huggingface(folder, texts, megabytes))
            counts = {r["tokens"] for r in ours + theirs}
            if len(counts) != 1:
                sys.exit(f"{folder}: token counts differ: {sorted(counts)}")
            print(folder)
            for name, rounds in (("lattice", ours), ("tokenizers", theirs)):
                load, speed = [r["load_ms"] for r in rounds], [r["mb_s"] for r in rounds]
                print(f"  {name:11} load {min(load):7.1f} ms (median {statistics.median(load):.1f})"
                      f"   {max(speed):6.2f} MB/s (median {statistics.median(speed):.2f})")
            ratios = sorted(o["mb_s"] / t["mb_s"] for o, t in zip(ours, theirs))
            loads = sorted(t["load_ms"] / o["load_ms"] for o, t in zip(ours, theirs))
            print(f"  encodes {statistics.median(ratios):.1f} times as fast ({ratios[0]:.1f} to {ratios[-1]:.1f}), "
                  f"loads {statistics.median(loads):.1f} times ({loads[0]:.1f} to {loads[-1]:.1f})")


if __name__ == "__main__":
    main()
