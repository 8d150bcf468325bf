#!/usr/bin/env python3
"""Times lattice in turns with llama.cpp and PyTorch on one Qwen3 embedder: the same weights, the same lengths, the same threads.

usage: decoders.py MODEL --llama-bench PROGRAM --gguf FILE [--threads N] [--engines lattice,llama,torch-bf16] [--lengths 128,512]
       [--rounds 5] [--seconds 1] [--out DIR]

MODEL is a checkpoint in the Hugging Face layout (tools/make_checkpoint.py qwen3-embedding-0.6b OUT makes one of that size); FILE is made
from it with llama.cpp's convert_hf_to_gguf.py --outtype bf16. Engines: lattice, lattice-bf16, llama, torch-bf16, torch. One sequence at a
time. PyTorch computes the last hidden states, llama-bench fills its context (-p LENGTH -n 0), lattice also pools and normalises. Vectors of
lattice and PyTorch are compared before anything is timed; llama-bench gives none. Writes decoders.json and decoders.md to DIR."""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from peers import Lattice, Timed, Torch
from turns import Engine, cpu_name, interval, processors, save

LEAST_COSINE = {"lattice": 0.9999, "torch": 0.9999}  # float32; those that round to bfloat16: 0.98


class Long(Timed):
    """Runs that take long enough for threads that sleep at first not to matter: one is enough for a turn."""

    def measure(self, seconds):
        times, begin = [], time.perf_counter()
        while not times or time.perf_counter() - begin < seconds:
            start = time.perf_counter()
            self.run()
            times.append(time.perf_counter() - start)
        return times


class LongLattice(Long, Lattice):
    pass


class LastToken(Long, Torch):
    """The last position's hidden state, which is what lattice gives."""

    def bind(self, ids):
        x = self.torch.from_numpy(ids)
        return lambda: self.encoder(input_ids=x, use_cache=False).last_hidden_state[:, -1].float().numpy()


class LlamaBench(Timed):
    """A process a turn. It maps the file, warms up and repeats by itself; opening is not in its times."""

    def __init__(self, program, gguf, threads):
        self.command = [program, "-m", gguf, "-t", str(threads), "-n", "0", "-ngl", "0", "-o", "json"]
        self.seconds_a_run = 0.0

    def prepare(self, ids):
        self.length = len(ids[0])
        self.seconds_a_run = self.runs(1)[0]

    def runs(self, n):
        done = subprocess.run([*self.command, "-p", str(self.length), "-r", str(n)], check=True, capture_output=True, text=True)
        return [nanoseconds * 1e-9 for nanoseconds in json.loads(done.stdout)[0]["samples_ns"]]

    def measure(self, seconds):
        return self.runs(max(1, round(seconds / self.seconds_a_run)))


def make(name, model, threads, program, gguf):
    kind, _, variant = name.partition("-")
    if kind == "lattice":
        return LongLattice(model, threads, variant or "auto")
    if kind == "torch":
        return LastToken(model, threads, variant == "bf16")
    if kind == "llama":
        return LlamaBench(program, gguf, threads)
    raise ValueError(f"no engine '{name}'")


def compare(engines, vocabulary, generator):
    ids = generator.integers(min(1000, vocabulary // 2), vocabulary - 1, (1, 48)).tolist()
    vectors = {}
    for engine in engines:
        if not engine.name.startswith("llama"):
            engine.turn("prepare", ids)
            vectors[engine.name] = engine.turn("vectors")
    cosines = {name: float((v * vectors["lattice"]).sum()) for name, v in vectors.items()} if "lattice" in vectors else {}
    for name, cosine in cosines.items():
        if cosine < LEAST_COSINE.get(name, 0.98):
            sys.exit(f"decoders: {name} computes something else than lattice: cosine {cosine:.6f}")
    return cosines


def table(report):
    base, *rivals = report["engines"]
    lines = [
        f"{report['cpu']}, {report['threads']} threads, {report['rounds']} rounds in turns, {report['date']}.",
        f"Tokens a second; in brackets {base}'s speed relative to it, with the 95% interval over the rounds.", "",
        "| length | " + " | ".join([base, *rivals]) + " | to the best rival | share of the float32 peak |", "|---|" + "---:|" * (len(rivals) + 3),
    ]
    for length, row in report["lengths"].items():
        cells = [f"{row['tok_per_s'][base]:,.0f}"]
        cells += [f"{row['tok_per_s'][n]:,.0f} ({row['ratios'][n][0]:.2f}, {row['ratios'][n][1]:.2f}–{row['ratios'][n][2]:.2f})" for n in rivals]
        lines.append(f"| {length} | " + " | ".join(cells) + f" | {row['to_best']:.2f} | {100 * row['peak_share']:.0f}% |" if rivals else f"| {length} | " + " | ".join(cells) + f" | | {100 * row['peak_share']:.0f}% |")
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--llama-bench", help="the program")
    parser.add_argument("--gguf", help="the same checkpoint as GGUF")
    parser.add_argument("--threads", type=int, default=processors())
    parser.add_argument("--engines", default="lattice,llama,torch-bf16")
    parser.add_argument("--lengths", default="128,512")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1, help="of one turn")
    parser.add_argument("--out", help="folder for decoders.json and decoders.md")
    a = parser.parse_args()
    import numpy as np

    os.environ["OMP_NUM_THREADS"] = str(a.threads)
    with open(os.path.join(a.model, "config.json")) as file:
        config = json.load(file)
    generator = np.random.default_rng(0)
    report = {
        "date": time.strftime("%Y-%m-%d"), "cpu": cpu_name(), "threads": a.threads, "rounds": a.rounds, "model": os.path.basename(os.path.normpath(a.model)),
        "engines": [], "cosines": {}, "lengths": {},
    }
    engines = []
    try:
        for name in a.engines.split(","):
            engine = Engine(name, make, name, a.model, a.threads, a.llama_bench, a.gguf)
            engines.append(engine)
            if engine.failure:
                sys.exit(f"decoders: {name}: {engine.failure}")
        report["engines"] = [engine.name for engine in engines]
        report["cosines"] = compare(engines, config["vocab_size"], generator)
        for length in map(int, a.lengths.split(",")):
            report["lengths"][length] = row = measure(engines, config, length, generator, a.rounds, a.seconds)
            print(f"{length}: " + "  ".join(f"{n} {t:,.0f}" for n, t in row["tok_per_s"].items()), file=sys.stderr, flush=True)
    finally:
        for engine in engines:
            engine.close()
    print(table(report), end="")
    save(a.out, "decoders", report, table(report))


def flop(config, length):
    """Multiplications and additions of one sequence: products, and attention over the keys that each query sees."""
    hidden, heads, kv, d = (config[k] for k in ("hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim"))
    weights = hidden * d * (heads + 2 * kv) + heads * d * hidden + 3 * hidden * config["intermediate_size"]
    return config["num_hidden_layers"] * (2 * weights * length + 2 * heads * d * length * (length + 1))


def measure(engines, config, length, generator, rounds, seconds):
    ids = generator.integers(1000, config["vocab_size"] - 1, (1, length)).tolist()
    for engine in engines:
        engine.turn("prepare", ids)
    base, peaks = engines[0], []
    times = {engine.name: [] for engine in engines}
    for _ in range(rounds):
        if base.name.startswith("lattice"):  # the machine itself swings: its peak beside what is compared with it
            peaks.append(base.turn("peak", 0.2)["gflops_f32"])
        for engine in engines:
            times[engine.name].append(statistics.median(engine.turn("measure", seconds)))
    ratios = {n: interval([theirs / ours for ours, theirs in zip(times[base.name], t)]) for n, t in times.items() if n != base.name}
    share = [flop(config, length) / t / (1e9 * peak) for t, peak in zip(times[base.name], peaks)]
    return {
        "seconds": times, "tok_per_s": {n: length / statistics.median(t) for n, t in times.items()}, "ratios": ratios,
        "to_best": min((r[0] for r in ratios.values()), default=None), "peak_gflops": peaks, "peak_share": statistics.median(share) if share else 0,
    }


if __name__ == "__main__":
    main()
