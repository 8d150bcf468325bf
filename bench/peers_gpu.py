#!/usr/bin/env python3
"""PyTorch on a GPU with Qwen3-Embedding's dimensions and random weights, as fast as it goes: packed sequences, torch's own varlen
attention, eager and compiled.

usage: peers_gpu.py [OUT.json]        needs torch >= 2.10 with CUDA

Prints milliseconds and tokens/s for each shape (sequences x tokens), and for 4096 sequences of mixed lengths in batches of at most
32768 tokens. Beside it: `lattice bench --device cuda --batch-tokens 32768` with the same shapes, and bench_mixed."""
import json
import sys

import numpy as np
import torch
import torch.nn.functional as F
from torch.nn.attention.varlen import varlen_attn

DEVICE, DTYPE = "cuda", torch.bfloat16
SHAPES = ((1, 16), (1, 128), (1, 512), (256, 128), (64, 512), (4, 8192))
HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD_DIM, INTERMEDIATE, VOCABULARY = 1024, 28, 16, 8, 128, 3072, 151669


def timed(run, n=7, warm=3):
    """The median of n runs in seconds, by the device's own events."""
    for _ in range(warm):
        run()
    torch.cuda.synchronize()
    seconds = []
    for _ in range(n):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        run()
        end.record()
        torch.cuda.synchronize()
        seconds.append(begin.elapsed_time(end) / 1e3)
    return float(np.median(seconds))


def weight(rows, columns):
    return torch.nn.Parameter(torch.randn(rows, columns, device=DEVICE, dtype=DTYPE) * 0.7 / columns**0.5, requires_grad=False)


def ones(n):
    return torch.nn.Parameter(torch.ones(n, device=DEVICE, dtype=DTYPE), requires_grad=False)


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        layers = lambda make: torch.nn.ParameterList([make() for _ in range(LAYERS)])
        self.embedding = weight(VOCABULARY, HIDDEN)
        self.qkv = layers(lambda: weight((HEADS + 2 * KV_HEADS) * HEAD_DIM, HIDDEN))
        self.out = layers(lambda: weight(HIDDEN, HEADS * HEAD_DIM))
        self.gate_up = layers(lambda: weight(2 * INTERMEDIATE, HIDDEN))
        self.down = layers(lambda: weight(HIDDEN, INTERMEDIATE))
        self.norm1, self.norm2 = layers(lambda: ones(HIDDEN)), layers(lambda: ones(HIDDEN))
        self.q_norm, self.k_norm = layers(lambda: ones(HEAD_DIM)), layers(lambda: ones(HEAD_DIM))
        self.norm = ones(HIDDEN)

    def forward(self, ids, cos, sin, starts, longest: int):
        def rope(t):
            a, b = t[..., : HEAD_DIM // 2], t[..., HEAD_DIM // 2 :]
            return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)

        x = F.embedding(ids, self.embedding)
        n, q_dim, kv_dim = x.shape[0], HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
        for l in range(LAYERS):
            q, k, v = F.linear(F.rms_norm(x, (HIDDEN,), self.norm1[l], 1e-6), self.qkv[l]).split((q_dim, kv_dim, kv_dim), -1)
            q = rope(F.rms_norm(q.view(n, HEADS, HEAD_DIM), (HEAD_DIM,), self.q_norm[l], 1e-6))
            k = rope(F.rms_norm(k.view(n, KV_HEADS, HEAD_DIM), (HEAD_DIM,), self.k_norm[l], 1e-6))
            k = k.repeat_interleave(HEADS // KV_HEADS, 1).contiguous()
            v = v.reshape(n, KV_HEADS, HEAD_DIM).repeat_interleave(HEADS // KV_HEADS, 1).contiguous()
            a = attention(q.contiguous(), k, v, starts, longest)
            x = x + F.linear(a.reshape(n, q_dim), self.out[l])
            gate, up = F.linear(F.rms_norm(x, (HIDDEN,), self.norm2[l], 1e-6), self.gate_up[l]).chunk(2, -1)
            x = x + F.linear(F.silu(gate) * up, self.down[l])
        return F.rms_norm(x[(starts[1:] - 1).long()], (HIDDEN,), self.norm, 1e-6)


def attention(q, k, v, starts, longest):
    try:
        return varlen_attn(q, k, v, starts, starts, longest, longest, is_causal=True)
    except TypeError:  # newer versions say it by a window
        return varlen_attn(q, k, v, starts, starts, longest, longest, window_size=(-1, 0))


def prepared(model, lengths):
    lengths = [int(n) for n in lengths]
    ids = torch.randint(0, 150000, (sum(lengths),), device=DEVICE)
    positions = torch.cat([torch.arange(n, device=DEVICE) for n in lengths]).float()
    angles = positions[:, None] * 1e6 ** (-torch.arange(0, HEAD_DIM // 2, device=DEVICE).float() / (HEAD_DIM // 2))
    cos, sin = angles.cos()[:, None].to(DTYPE), angles.sin()[:, None].to(DTYPE)
    starts = torch.tensor([0, *np.cumsum(lengths)], device=DEVICE, dtype=torch.int32)
    return lambda: model(ids, cos, sin, starts, max(lengths))


def mixed_batches():
    lengths = np.clip(np.exp(np.random.default_rng(1).normal(4.6, 0.9, 4096)).astype(int), 4, 2048)
    lengths.sort()
    batches, batch = [], []
    for n in lengths:
        if sum(batch) + n > 32768:
            batches.append(batch)
            batch = []
        batch.append(int(n))
    return batches + [batch], int(lengths.sum())


def main():
    torch.set_grad_enabled(False)
    result = {"torch": torch.__version__, "device": torch.cuda.get_device_name()}
    model = Model()
    for name, forward in (("eager", model), ("compiled", torch.compile(model, dynamic=True))):
        for n, length in SHAPES:
            seconds = timed(prepared(forward, [length] * n))
            result[f"{name} {n}x{length}"] = {"ms": seconds * 1e3, "tokens_per_s": n * length / seconds}
            print(f"torch {name:8} {n}x{length}: {seconds * 1e3:8.3f} ms {n * length / seconds:10.0f} tokens/s", flush=True)
        batches, tokens = mixed_batches()
        runs = [prepared(forward, b) for b in batches]
        seconds = timed(lambda: [run() for run in runs], 3, 2)
        result[f"{name} mixed"] = {"ms": seconds * 1e3, "tokens_per_s": tokens / seconds}
        print(f"torch {name:8} mixed: {seconds * 1e3:8.1f} ms {tokens / seconds:10.0f} tokens/s", flush=True)
    if len(sys.argv) > 1:
        json.dump(result, open(sys.argv[1], "w"), indent=1)


if __name__ == "__main__":
    main()
