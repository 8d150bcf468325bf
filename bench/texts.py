#!/usr/bin/env python3
"""Text to vectors: lattice in turns with sentence-transformers and fastembed over real texts of mixed length, tokenising included.

usage: texts.py MODEL [--compute f32] [--threads N] [--texts FILE] [--rounds 9] [--limit N]
       [--backends torch,onnx,openvino,fastembed] [--python BACKEND=PROGRAM …] [--onnx FOLDER] [--name texts] [--out DIR]

FILE (bench/data/mixed-10k.jsonl.gz) holds a JSON string, or an object with "text", a line. Round i embeds every rounds-th text from
the i-th on, so that all rounds see the same mixture and together the whole file, once by each engine. Vectors are compared.

torch, onnx and openvino are the back ends of sentence-transformers; onnx and openvino ask for other versions of transformers than
each other: --python names the interpreter of an environment for one (scripts/bench-venv onnx, scripts/bench-venv openvino).
fastembed runs the ONNX file of the same weights that bench/peers.py makes, too. What cannot be started here is named and left out.

All of these compute in float32. onnx-int8 is the back end with weights and activations in int8, as its documentation quantises them
for this CPU, and openvino-auto the back end as it starts by itself: in bfloat16, where the CPU has it. With --compute int8 or bf16
lattice computes in that, and vectors need only be near each other."""

import argparse
import gzip
import json
import os
import platform
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from turns import Engine, bars, cpu_name, in_float32, interval, processors, save


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
    def __init__(self, model, threads, compute):
        from lattice import Model

        self.model = Model(model, threads, compute)

    def embed(self, texts):
        begin = time.perf_counter()
        vectors = self.model.embed(texts)
        return time.perf_counter() - begin, vectors, self.model.n_tokens


class SentenceTransformers:
    def __init__(self, model, threads, backend):
        import torch
        from sentence_transformers import SentenceTransformer

        torch.set_num_threads(threads)
        if backend == "onnx-int8":
            self.model = SentenceTransformer(model, device="cpu", backend="onnx")
            with tempfile.TemporaryDirectory() as folder:
                self.quantise(folder)
        else:
            self.model = SentenceTransformer(model, device="cpu", backend=backend.removesuffix("-auto"), **in_float32(backend))

    def quantise(self, folder):
        from sentence_transformers import SentenceTransformer
        from sentence_transformers.backend import export_dynamic_quantized_onnx_model

        kind = "arm64" if platform.machine() in ("aarch64", "arm64") else "avx2"
        if os.path.exists("/proc/cpuinfo"):
            with open("/proc/cpuinfo") as file:
                kind = "avx512_vnni" if "avx512_vnni" in file.read() else kind
        self.model.save_pretrained(folder)
        export_dynamic_quantized_onnx_model(self.model, kind, folder)
        names = [name for name in os.listdir(os.path.join(folder, "onnx")) if "qint8" in name or "quint8" in name]
        self.model = SentenceTransformer(folder, device="cpu", backend="onnx", model_kwargs={"file_name": os.path.join("onnx", names[0])})

    def embed(self, texts):
        begin = time.perf_counter()
        vectors = self.model.encode(texts, show_progress_bar=False)
        return time.perf_counter() - begin, vectors, None


class FastEmbed:
    """Of a folder with its plain.onnx: as fastembed's own all-MiniLM-L6-v2, mean pooling and vectors of length one; texts are cut where
    sentence-transformers cuts them."""

    def __init__(self, model, threads, onnx):
        from fastembed import TextEmbedding
        from fastembed.common.model_description import ModelSource, PoolingType
        from peers import export

        export(model, onnx)
        with open(os.path.join(model, "config.json")) as file:
            dim = json.load(file)["hidden_size"]
        with open(os.path.join(model, "tokenizer_config.json")) as file:
            tokenizer = json.load(file)
        with open(os.path.join(model, "sentence_bert_config.json")) as file:
            tokenizer["model_max_length"] = tokenizer["max_length"] = json.load(file)["max_seq_length"]
        folder = tempfile.mkdtemp()
        for name in os.listdir(model):
            if name != "tokenizer_config.json":
                os.symlink(os.path.abspath(os.path.join(model, name)), os.path.join(folder, name))
        with open(os.path.join(folder, "tokenizer_config.json"), "w") as file:
            json.dump(tokenizer, file)
        os.symlink(os.path.abspath(os.path.join(onnx, "plain.onnx")), os.path.join(folder, "plain.onnx"))
        TextEmbedding.add_custom_model("bench/model", PoolingType.MEAN, True, ModelSource(hf="bench/model"), dim, model_file="plain.onnx")
        self.model = TextEmbedding("bench/model", threads=threads, specific_model_path=folder)

    def embed(self, texts):
        import numpy as np

        begin = time.perf_counter()
        vectors = np.stack(list(self.model.embed(texts)))
        return time.perf_counter() - begin, vectors, None


def make_rival(model, threads, backend, onnx):
    return FastEmbed(model, threads, onnx) if backend == "fastembed" else SentenceTransformers(model, threads, backend)


def name_of(backend):
    return backend if backend == "fastembed" else "sentence-transformers" if backend == "torch" else f"sentence-transformers {backend}"


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--compute", default="f32", choices=("f32", "bf16", "int8"), help="of lattice")
    parser.add_argument("--threads", type=int, default=processors())
    parser.add_argument("--texts", default=os.path.join(here, "data", "mixed-10k.jsonl.gz"))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--limit", type=int, help="only the first N texts")
    parser.add_argument("--backends", default="torch")
    parser.add_argument("--python", action="append", default=[], metavar="BACKEND=PROGRAM", help="the interpreter that runs it")
    parser.add_argument("--onnx", help="folder of the ONNX files (default: build/onnx/MODEL)")
    parser.add_argument("--name", default="texts", help="of the files in DIR")
    parser.add_argument("--out", help="folder for NAME.json, NAME.md, NAME.svg")
    a = parser.parse_args()
    import numpy as np

    os.environ["OMP_NUM_THREADS"] = str(a.threads)
    os.environ["TOKENIZERS_PARALLELISM"] = "true"
    texts = read_texts(a.texts, a.limit)
    name = os.path.basename(os.path.normpath(a.model))
    onnx, pythons = a.onnx or os.path.join(here, "..", "build", "onnx", name), dict(pair.split("=", 1) for pair in a.python)
    engines = [Engine("lattice", Lattice, a.model, a.threads, a.compute)]
    engines += [Engine(name_of(b), make_rival, a.model, a.threads, b, onnx, python=pythons.get(b.split("-")[0])) for b in a.backends.split(",")]
    try:
        if engines[0].failure:
            sys.exit(f"texts: lattice: {engines[0].failure}")
        for engine in engines:
            if engine.failure:
                print(f"left out: {engine.name}: {engine.failure.splitlines()[0]}", file=sys.stderr)
        running = [engine for engine in engines if not engine.failure]
        if len(running) == 1:
            sys.exit("texts: no rival left")
        for engine in running:
            engine.turn("embed", texts[:8])  # warm
        seconds, lowest = {engine.name: [] for engine in running}, {engine.name: 1.0 for engine in running[1:]}
        tokens = 0
        for i in range(a.rounds):
            part, vectors = texts[i :: a.rounds], {}
            for engine in running:
                elapsed, vectors[engine.name], n_tokens = engine.turn("embed", part)
                seconds[engine.name].append(elapsed)
                tokens += n_tokens or 0
            for rival in lowest:
                lowest[rival] = min(lowest[rival], float((vectors["lattice"] * vectors[rival]).sum(axis=1).min()))
            print(f"round {i + 1}: " + "  ".join(f"{name} {len(part) / s[-1]:.0f} texts/s" for name, s in seconds.items()), file=sys.stderr, flush=True)
    finally:
        for engine in engines:
            engine.close()
    for rival, cosine in lowest.items():
        if not cosine > (0.9999 if a.compute == "f32" else 0.9):
            sys.exit(f"texts: {rival} computes something else than lattice: lowest cosine {cosine:.6f}")

    ratios = {rival: interval([t / o for o, t in zip(seconds["lattice"], seconds[rival])]) for rival in lowest}
    report = {
        "date": time.strftime("%Y-%m-%d"), "cpu": cpu_name(), "threads": a.threads, "model": name, "texts": len(texts), "tokens": tokens,
        "seconds": {name: sum(s) for name, s in seconds.items()}, "ratios": ratios, "lowest_cosines": lowest,
    }
    lines = [
        f"{report['cpu']}, {a.threads} threads, {len(texts)} texts ({tokens} tokens), {a.rounds} rounds in turns, {report['date']}, lattice in {a.compute}.",
        "", "| engine | texts/s | tokens/s | lattice is so many times as fast | lowest cosine |", "|---|---:|---:|---:|---:|",
    ]
    for name, s in seconds.items():
        row = f"| {name} | {len(texts) / sum(s):,.0f} | {tokens / sum(s):,.0f} | "
        if name in ratios:
            ratio, low, high = ratios[name]
            row += f"{ratio:.2f} ({low:.2f}–{high:.2f}) | {lowest[name]:.7f} |"
        lines.append(row if name in ratios else row + "| |")
    print("\n".join(lines))
    save(a.out, a.name, report, "\n".join(lines) + "\n")
    if a.out:
        bars(os.path.join(a.out, a.name + ".svg"), f"{len(texts)} texts, {a.threads} threads", [("", [(n, len(texts) / sum(s)) for n, s in seconds.items()])], "texts a second")


if __name__ == "__main__":
    main()
