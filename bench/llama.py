#!/usr/bin/env python3
"""Prompts and tokens of a language model against llama.cpp, on the same weights, in turns.

usage: bench/llama.py --llama-bench PROGRAM --model FOLDER --gguf FILE [--quantised FOLDER --gguf-quantised FILE] [--rounds N]
                      [--threads N] [--prefill 128,512] [--decode N] [--json FILE]

FOLDER is a checkpoint in BF16, FILE what llama.cpp's convert_hf_to_gguf.py makes of it; the second pair the same in Q8_0, by `lattice
quantize` and `--outtype q8_0`. Each round runs every program once, one after the other; what is printed are medians over the rounds,
and of the rounds' ratios. The share is of the read bandwidth that the same run of lattice measured between pieces of its decoding."""

import argparse
import json
import os
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from turns import interval

LATTICE = os.environ.get("LATTICE", os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "build", "lattice"))


def output(*command):
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout)


def run_lattice(model, o):
    """Tokens a second by measure, and the share of the read bandwidth."""
    result = {}
    for n in o.prefill:
        r = output(LATTICE, "bench", "-m", model, "--threads", str(o.threads), "--prefill", str(n), "--seconds", "0.5", "--json")
        result[f"prefill {n}"] = r["prefill"]["tok_per_s"]
    r = output(LATTICE, "bench", "-m", model, "--threads", str(o.threads), "--decode", str(o.decode), "--json")
    result["decode"] = r["decode"]["tok_per_s"]
    result["share"] = r["decode"]["read_share"]
    return result


def run_llama(model, o):
    rows = output(o.llama_bench, "-m", model, "-t", str(o.threads), "-p", ",".join(map(str, o.prefill)), "-n", str(o.decode), "-r", "2", "-o", "json")
    return {f"prefill {r['n_prompt']}" if r["n_prompt"] else "decode": r["avg_ts"] for r in rows}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--llama-bench", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--gguf", required=True)
    parser.add_argument("--quantised")
    parser.add_argument("--gguf-quantised")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--prefill", type=lambda s: [int(n) for n in s.split(",")], default=[128, 512])
    parser.add_argument("--decode", type=int, default=32)
    parser.add_argument("--json")
    o = parser.parse_args()
    pairs = {"bf16": (o.model, o.gguf)}
    if o.quantised and o.gguf_quantised:
        pairs["q8_0"] = (o.quantised, o.gguf_quantised)
    rounds = []
    for _ in range(o.rounds):
        rounds.append({kind: (run_lattice(ours, o), run_llama(theirs, o)) for kind, (ours, theirs) in pairs.items()})
    results = {}
    for measure in [f"prefill {n}" for n in o.prefill] + ["decode"]:
        for kind in pairs:
            ours = [r[kind][0][measure] for r in rounds]
            # A prompt is compared with llama.cpp's better type, a token with the same type.
            better = max if measure != "decode" else lambda *a: a[0]
            theirs = [better(r[kind][1][measure], *(x[1][measure] for x in r.values())) for r in rounds]
            ratio, low, high = interval([a / b for a, b in zip(ours, theirs)])
            row = {"lattice": interval(ours)[0], "llama.cpp": interval(theirs)[0], "ratio": ratio, "low": low, "high": high}
            line = f"{measure:12} {kind:5} lattice {row['lattice']:8.1f}  llama.cpp {row['llama.cpp']:8.1f} tokens/s  ratio {ratio:.2f} ({low:.2f} to {high:.2f})"
            if measure == "decode":
                row["share"] = interval([r[kind][0]["share"] for r in rounds])[0]
                line += f"  {100 * row['share']:.0f}% of the read bandwidth"
            results[f"{measure} {kind}"] = row
            print(line, flush=True)
    if o.json:
        with open(o.json, "w") as f:
            json.dump(results, f, indent=1)


if __name__ == "__main__":
    main()
