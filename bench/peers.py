#!/usr/bin/env python3
"""Times lattice in turns with ONNX Runtime, OpenVINO and PyTorch: one checkpoint, the same token ids, the same threads.

usage: peers.py MODEL [--threads N] [--engines lattice,ort,ov,torch] [--shapes 1x8,…] [--rounds 9] [--seconds 0.25] [--out DIR]

MODEL is a BERT-family checkpoint in the Hugging Face layout. Engines: lattice, lattice-bf16, lattice-int8, ort, ort-int8, ov, ov-bf16,
torch, torch-bf16. A shape is BATCHxLENGTH. Rivals compute the last hidden states; lattice computes them, pools and normalises.
Before anything is timed, all vectors (mean pooled, unit length) are compared. Writes peers.json, peers.md and peers.svg to DIR."""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from turns import Engine, bars, cpu_name, interval, processors, save

SHAPES = "1x8,1x32,1x128,1x512,32x32,32x128,8x512"
EXACT = ("lattice", "ort", "ov", "torch")  # float32 engines: compared strictly


def export(model, folder):
    """ONNX files of the encoder, made once: as exported, with fused attention and layer norms, and int8."""
    plain, fused, int8 = (os.path.join(folder, name) for name in ("plain.onnx", "fused.onnx", "int8.onnx"))
    if os.path.exists(int8):
        return
    import torch
    from onnxruntime.quantization import QuantType, quantize_dynamic
    from onnxruntime.transformers.optimizer import optimize_model
    from transformers import AutoModel

    os.makedirs(folder, exist_ok=True)
    encoder = AutoModel.from_pretrained(model, attn_implementation="eager").eval()

    class Hidden(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = encoder

        def forward(self, input_ids, attention_mask, token_type_ids):
            return self.encoder(input_ids=input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids).last_hidden_state

    names = ["input_ids", "attention_mask", "token_type_ids"]
    x = torch.ones(2, 16, dtype=torch.long)
    axes = {name: {0: "batch", 1: "length"} for name in [*names, "hidden"]}
    torch.onnx.export(Hidden(), (x, x, x * 0), plain, dynamo=False, opset_version=14, input_names=names, output_names=["hidden"], dynamic_axes=axes)
    config = encoder.config
    optimized = optimize_model(plain, model_type="bert", num_heads=config.num_attention_heads, hidden_size=config.hidden_size, opt_level=1)
    optimized.save_model_to_file(fused)
    quantize_dynamic(plain, int8, weight_type=QuantType.QInt8, per_channel=True)


class Timed:
    """What a process answers to: prepare(ids), vectors(), measure(seconds)."""

    def prepare(self, ids):
        import numpy as np

        self.run = self.bind(np.asarray(ids, np.int64))
        self.run()

    def vectors(self):
        import numpy as np

        out = np.asarray(self.run())
        if out.ndim == 3:  # hidden states
            out = out.mean(axis=1)
        return out / np.linalg.norm(out, axis=1, keepdims=True)

    def measure(self, seconds):
        """Seconds of each run. The first one wakes the threads: it counts only where it alone takes longer than a turn should."""
        begin = time.perf_counter()
        self.run()
        first = time.perf_counter() - begin
        if first > 2 * seconds:
            return [first]
        times, begin = [], time.perf_counter()
        while len(times) < 3 or time.perf_counter() - begin < seconds:
            start = time.perf_counter()
            self.run()
            times.append(time.perf_counter() - start)
        return times


class Lattice(Timed):
    def __init__(self, model, threads, compute):
        from lattice import Model

        self.model = Model(model, threads, compute)
        self.bind = self.model.prepare_ids

    def peak(self, seconds):
        return self.model.peak(seconds)


class Torch(Timed):
    def __init__(self, model, threads, bf16):
        import torch
        from transformers import AutoModel

        torch.set_num_threads(threads)
        torch.set_grad_enabled(False)
        self.torch = torch
        self.encoder = AutoModel.from_pretrained(model, attn_implementation="sdpa", dtype=torch.bfloat16 if bf16 else torch.float32).eval()

    def bind(self, ids):
        x = self.torch.from_numpy(ids)
        mask = self.torch.ones(x.shape, dtype=self.torch.long)
        return lambda: self.encoder(input_ids=x, attention_mask=mask).last_hidden_state.float().numpy()


def feed(ids):
    import numpy as np

    return {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}


class OnnxRuntime(Timed):
    def __init__(self, path, threads):
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        self.session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])

    def bind(self, ids):
        inputs = feed(ids)
        return lambda: self.session.run(None, inputs)[0]


class OpenVino(Timed):
    def __init__(self, path, threads, precision):
        import openvino

        self.request = openvino.Core().compile_model(path, "CPU", {
            "INFERENCE_PRECISION_HINT": precision, "INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY",
        }).create_infer_request()

    def bind(self, ids):
        inputs = feed(ids)
        return lambda: self.request.infer(inputs)[0]


def make(name, model, threads, onnx):
    kind, _, variant = name.partition("-")
    if kind == "lattice":
        return Lattice(model, threads, variant or "f32")
    if kind == "torch":
        return Torch(model, threads, variant == "bf16")
    if kind == "ort":
        return OnnxRuntime(os.path.join(onnx, "int8.onnx" if variant == "int8" else "fused.onnx"), threads)
    if kind == "ov":
        return OpenVino(os.path.join(onnx, "plain.onnx"), threads, variant or "f32")
    raise ValueError(f"no engine '{name}'")


def with_all_positions(model, folder):
    """The checkpoint by links, its texts' limit raised to the stored positions: shapes up to 512 tokens are timed as ids. And its pooling
    is the mean, which is what the rivals' hidden states are pooled to."""
    with open(os.path.join(model, "config.json")) as file:
        positions = json.load(file)["max_position_embeddings"]
    for name in os.listdir(model):
        if name not in ("sentence_bert_config.json", "1_Pooling"):
            os.symlink(os.path.abspath(os.path.join(model, name)), os.path.join(folder, name))
    with open(os.path.join(folder, "sentence_bert_config.json"), "w") as file:
        json.dump({"max_seq_length": positions, "do_lower_case": False}, file)
    os.mkdir(os.path.join(folder, "1_Pooling"))
    with open(os.path.join(folder, "1_Pooling", "config.json"), "w") as file:
        json.dump({"pooling_mode_mean_tokens": True}, file)
    return folder


def compare(engines, vocabulary, generator):
    """All vectors of one batch against the first float32 rival's (else the first engine's)."""
    ids = generator.integers(min(1000, vocabulary // 2), vocabulary - 1, (3, 24)).tolist()
    vectors = {}
    for engine in engines:
        engine.turn("prepare", ids)
        vectors[engine.name] = engine.turn("vectors")
    reference = next((n for n in ("torch", "ort", "ov") if n in vectors), engines[0].name)
    cosines = {}
    for name, v in vectors.items():
        cosines[name] = float((v * vectors[reference]).sum(axis=1).min())
        if cosines[name] < (0.99999 if name in EXACT else 0.95):
            sys.exit(f"peers: {name} computes something else than {reference}: cosine {cosines[name]:.6f}")
    return cosines


def time_shape(engines, batch, length, vocabulary, generator, rounds, seconds):
    ids = generator.integers(min(1000, vocabulary // 2), vocabulary - 1, (batch, length)).tolist()
    for engine in engines:
        engine.turn("prepare", ids)
    times = {engine.name: [] for engine in engines}
    for _ in range(rounds):
        for engine in engines:
            times[engine.name].append(statistics.median(engine.turn("measure", seconds)))
    tokens = batch * length
    result = {}
    for name, values in times.items():
        result[name] = {"ms": statistics.median(values) * 1e3, "tok_per_s": tokens / statistics.median(values), "rounds_ms": [v * 1e3 for v in values]}
    base = engines[0].name
    for name in times:
        if name != base:
            ratio, low, high = interval([theirs / ours for ours, theirs in zip(times[base], times[name])])
            result[name] |= {"ratio": ratio, "ratio_low": low, "ratio_high": high}
    return result


def table(report):
    engines, base = report["engines"], report["engines"][0]
    rivals = engines[1:]
    lines = [
        f"{report['cpu']}, {report['threads']} threads, {report['rounds']} rounds in turns, {report['date']}.",
        f"Tokens a second; in brackets {base}'s speed relative to it, with the 95% interval over the rounds.",
        "",
        "| shape | " + " | ".join(engines) + " | to the fastest other |",
        "|---|" + "---:|" * (len(engines) + 1),
    ]
    for shape, rows in report["shapes"].items():
        cells = [f"{rows[base]['tok_per_s']:,.0f}"]
        for name in rivals:
            r = rows[name]
            cells.append(f"{r['tok_per_s']:,.0f} ({r['ratio']:.2f}, {r['ratio_low']:.2f}–{r['ratio_high']:.2f})")
        lines.append(f"| {shape} | " + " | ".join(cells) + f" | {min((rows[name]['ratio'] for name in rivals), default=1):.2f} |")
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, default=processors())
    parser.add_argument("--engines", default="lattice,ort,ov,torch")
    parser.add_argument("--shapes", default=SHAPES)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=0.25, help="of one turn")
    parser.add_argument("--onnx", help="folder of the ONNX files, made once (default: build/onnx/MODEL)")
    parser.add_argument("--out", help="folder for NAME.json, NAME.md, NAME.svg")
    parser.add_argument("--name", default="peers", help="of the results (peers)")
    a = parser.parse_args()
    import numpy as np

    os.environ["OMP_NUM_THREADS"] = str(a.threads)
    name = os.path.basename(os.path.normpath(a.model))
    onnx = a.onnx or os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "build", "onnx", name)
    names = a.engines.split(",")
    if any(n.startswith(("ort", "ov")) for n in names):
        export(a.model, onnx)
    with open(os.path.join(a.model, "config.json")) as file:
        vocabulary = json.load(file)["vocab_size"]
    generator = np.random.default_rng(0)
    report = {
        "date": time.strftime("%Y-%m-%d"), "cpu": cpu_name(), "threads": a.threads, "rounds": a.rounds, "model": name, "engines": [],
        "cosines": {}, "peaks": [], "shapes": {},
    }

    with tempfile.TemporaryDirectory() as folder:
        model = with_all_positions(a.model, folder)
        engines = []
        for n in names:
            engine = Engine(n, make, n, model if n.startswith("lattice") else a.model, a.threads, onnx)
            if engine.failure:
                print(f"peers: without {n}: {engine.failure}", file=sys.stderr)
                engine.close()
            else:
                engines.append(engine)
        try:
            if [engine.name for engine in engines][:1] != names[:1]:  # ratios are its: another's would be read as its
                sys.exit(f"peers: nothing to compare without {names[0]}")
            report["engines"] = [engine.name for engine in engines]
            report["cosines"] = compare(engines, vocabulary, generator)
            for shape in a.shapes.split(","):
                batch, length = map(int, shape.split("x"))
                if engines[0].name.startswith("lattice"):  # the machine itself swings: its peak beside what is compared with it
                    report["peaks"].append(engines[0].turn("peak", 0.3))
                report["shapes"][shape] = rows = time_shape(engines, batch, length, vocabulary, generator, a.rounds, a.seconds)
                print(f"{shape:8s} " + "  ".join(f"{n} {r['tok_per_s']:,.0f}" + (f" ({r['ratio']:.2f})" if "ratio" in r else "") for n, r in rows.items()), file=sys.stderr, flush=True)
        finally:
            for engine in engines:
                engine.close()

    print(table(report), end="")
    save(a.out, a.name, report, table(report))
    if a.out:
        groups = [(shape, [(n, rows[n]["tok_per_s"]) for n in report["engines"]]) for shape, rows in report["shapes"].items()]
        bars(os.path.join(a.out, f"{a.name}.svg"), f"{name}, {a.threads} threads", groups, "tokens a second")


if __name__ == "__main__":
    main()
