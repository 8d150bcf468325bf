#!/usr/bin/env python3
"""Write a checkpoint of random weights with the dimensions of a published model, to measure time and memory with.

usage: make_checkpoint.py MODEL OUT [--dtype bf16] [--layers N] [--vocab N] [--labels N] [--shard-mb N] [--tokenizer FOLDER] [--seed N]

The vectors and texts of such a model mean nothing; its shapes, types, names and files are those of the real one. Weights are
scaled so that activations stay finite through every layer. Needs nothing beyond Python itself: a tensor is filled from a pool of
normal deviates, made once for each scale, read from random places.

--dtype q8_0 writes matrices whose input dimension divides by 32 as Q8_0 blocks and everything else as F32."""

import argparse
import json
import os
import random
import shutil
import struct

BERT, XLMR, XLMR_RERANKER, QWEN3, QWEN3_5 = "bert", "xlm-roberta", "xlm-roberta classifier", "qwen3", "qwen3_5_text"

# family, hidden, layers, heads, key/value heads, head dimension, intermediate, vocabulary, and what else differs
MODELS = {
    "minilm-l6": (BERT, 384, 6, 12, 12, 32, 1536, 30522, {"pooling": "mean", "max": 256}),
    "minilm-l12": (BERT, 384, 12, 12, 12, 32, 1536, 30522, {"pooling": "mean", "max": 128}),
    "bge-small": (BERT, 384, 12, 12, 12, 32, 1536, 30522, {"pooling": "cls", "max": 512}),
    "bge-base": (BERT, 768, 12, 12, 12, 64, 3072, 30522, {"pooling": "cls", "max": 512}),
    "bge-large": (BERT, 1024, 24, 16, 16, 64, 4096, 30522, {"pooling": "cls", "max": 512}),
    "bge-m3": (XLMR, 1024, 24, 16, 16, 64, 4096, 250002, {"pooling": "cls", "max": 8192}),
    "bge-reranker-v2-m3": (XLMR_RERANKER, 1024, 24, 16, 16, 64, 4096, 250002, {}),
    "qwen3-embedding-0.6b": (QWEN3, 1024, 28, 16, 8, 128, 3072, 151669, {"pooling": "lasttoken"}),
    "qwen3-reranker-0.6b": (QWEN3, 1024, 28, 16, 8, 128, 3072, 151669, {}),
    "qwen3-embedding-4b": (QWEN3, 2560, 36, 32, 8, 128, 9728, 151665, {"pooling": "lasttoken"}),
    "qwen3-embedding-8b": (QWEN3, 4096, 36, 32, 8, 128, 12288, 151665, {"pooling": "lasttoken"}),
    "qwen3.5-0.8b": (QWEN3_5, 1024, 24, 8, 2, 256, 3584, 248320, {"key_heads": 16, "value_heads": 16}),
    "qwen3.5-2b": (QWEN3_5, 2048, 24, 8, 2, 256, 6144, 248320, {"key_heads": 16, "value_heads": 16}),
    "qwen3.5-4b": (QWEN3_5, 2560, 32, 16, 4, 256, 9216, 248320, {"key_heads": 16, "value_heads": 32}),
}

LINEAR_DIM, CONV_KERNEL, FULL_EVERY = 128, 4, 4  # of Qwen3.5's linear attention; every fourth layer is full


class Shape:
    def __init__(self, name, layers, vocab, labels):
        (self.family, self.hidden, self.layers, self.heads, self.kv_heads, self.head_dim, self.intermediate, self.vocab,
         self.extra) = MODELS[name]
        self.layers = layers or self.layers
        self.vocab = vocab or self.vocab
        self.labels = labels  # of a BERT cross-encoder; 0: an embedder
        self.is_bert = self.family in (BERT, XLMR, XLMR_RERANKER)
        self.is_xlmr = self.family in (XLMR, XLMR_RERANKER)

    def is_full(self, layer):
        return self.family != QWEN3_5 or layer % FULL_EVERY == FULL_EVERY - 1


def matrix(name, rows, cols, scale=None):
    return name, (rows, cols), scale or 0.7 / cols**0.5


def linear(name, rows, cols):
    yield matrix(name + ".weight", rows, cols)
    yield name + ".bias", (rows,), 0.0


def layer_norm(name, width):
    yield name + ".weight", (width,), 1
    yield name + ".bias", (width,), 0.0


def bert_tensors(s):
    """(name, shape, fill): a float is a standard deviation (0.0: zeros), an integer the constant itself."""
    prefix = "roberta." if s.family == XLMR_RERANKER else "bert." if s.labels else ""
    embeddings = prefix + "embeddings."
    yield matrix(embeddings + "word_embeddings.weight", s.vocab, s.hidden, 0.05)
    yield matrix(embeddings + "position_embeddings.weight", 8194 if s.is_xlmr else 512, s.hidden, 0.05)
    yield matrix(embeddings + "token_type_embeddings.weight", 1 if s.is_xlmr else 2, s.hidden, 0.05)
    yield from layer_norm(embeddings + "LayerNorm", s.hidden)
    for i in range(s.layers):
        layer = f"{prefix}encoder.layer.{i}."
        for part in ("self.query", "self.key", "self.value", "output.dense"):
            yield from linear(layer + "attention." + part, s.hidden, s.hidden)
        yield from layer_norm(layer + "attention.output.LayerNorm", s.hidden)
        yield from linear(layer + "intermediate.dense", s.intermediate, s.hidden)
        yield from linear(layer + "output.dense", s.hidden, s.intermediate)
        yield from layer_norm(layer + "output.LayerNorm", s.hidden)
    if s.family == XLMR_RERANKER:
        yield from linear("classifier.dense", s.hidden, s.hidden)
        yield from linear("classifier.out_proj", 1, s.hidden)
    else:
        yield from linear(prefix + "pooler.dense", s.hidden, s.hidden)
    if s.labels:
        yield from linear("classifier", s.labels, s.hidden)


def qwen_tensors(s):
    prefix = "" if "pooling" in s.extra else "model."  # the published embedders carry no prefix
    one = 0.0 if s.family == QWEN3_5 else 1  # Qwen3.5 multiplies by 1 + w
    yield matrix(prefix + "embed_tokens.weight", s.vocab, s.hidden, 0.02)
    for i in range(s.layers):
        layer = f"{prefix}layers.{i}."
        yield layer + "input_layernorm.weight", (s.hidden,), one
        if s.is_full(i):
            gate = 2 if s.family == QWEN3_5 else 1
            attention = layer + "self_attn."
            yield matrix(attention + "q_proj.weight", gate * s.heads * s.head_dim, s.hidden)
            yield matrix(attention + "k_proj.weight", s.kv_heads * s.head_dim, s.hidden)
            yield matrix(attention + "v_proj.weight", s.kv_heads * s.head_dim, s.hidden)
            yield matrix(attention + "o_proj.weight", s.hidden, s.heads * s.head_dim)
            yield attention + "q_norm.weight", (s.head_dim,), one
            yield attention + "k_norm.weight", (s.head_dim,), one
        else:
            mixer = layer + "linear_attn."
            value = s.extra["value_heads"] * LINEAR_DIM
            joined = 2 * s.extra["key_heads"] * LINEAR_DIM + value
            yield matrix(mixer + "in_proj_qkv.weight", joined, s.hidden)
            yield matrix(mixer + "in_proj_z.weight", value, s.hidden)
            yield matrix(mixer + "in_proj_b.weight", s.extra["value_heads"], s.hidden)
            yield matrix(mixer + "in_proj_a.weight", s.extra["value_heads"], s.hidden)
            yield mixer + "conv1d.weight", (joined, 1, CONV_KERNEL), 0.3
            yield mixer + "A_log", (s.extra["value_heads"],), 0.0
            yield mixer + "dt_bias", (s.extra["value_heads"],), 1
            yield mixer + "norm.weight", (LINEAR_DIM,), 1
            yield matrix(mixer + "out_proj.weight", s.hidden, value)
        yield layer + "post_attention_layernorm.weight", (s.hidden,), one
        yield matrix(layer + "mlp.gate_proj.weight", s.intermediate, s.hidden)
        yield matrix(layer + "mlp.up_proj.weight", s.intermediate, s.hidden)
        yield matrix(layer + "mlp.down_proj.weight", s.hidden, s.intermediate)
    yield prefix + "norm.weight", (s.hidden,), one


def config(s, dtype):
    c = {
        "hidden_size": s.hidden, "num_hidden_layers": s.layers, "num_attention_heads": s.heads,
        "intermediate_size": s.intermediate, "vocab_size": s.vocab,
        "torch_dtype": {"f32": "float32", "f16": "float16", "bf16": "bfloat16", "q8_0": "float32"}[dtype],
    }
    if s.is_bert:
        c.update(model_type="xlm-roberta" if s.is_xlmr else "bert", hidden_act="gelu", layer_norm_eps=1e-5 if s.is_xlmr else 1e-12,
                 max_position_embeddings=8194 if s.is_xlmr else 512, type_vocab_size=1 if s.is_xlmr else 2,
                 pad_token_id=1 if s.is_xlmr else 0)
        c["architectures"] = [{BERT: "BertModel", XLMR: "XLMRobertaModel"}.get(s.family, "XLMRobertaForSequenceClassification")]
        if s.labels:
            c["architectures"] = ["BertForSequenceClassification"]
        if s.labels or s.family == XLMR_RERANKER:
            c["id2label"] = {str(i): f"LABEL_{i}" for i in range(s.labels or 1)}
        return c
    c.update(model_type=s.family, hidden_act="silu", rms_norm_eps=1e-6, num_key_value_heads=s.kv_heads, head_dim=s.head_dim,
             attention_bias=False, tie_word_embeddings=True, eos_token_id=min(151643 if s.family == QWEN3 else 248044, s.vocab - 1))
    if s.family == QWEN3:
        c.update(architectures=["Qwen3ForCausalLM"], max_position_embeddings=32768, rope_theta=1000000, rope_scaling=None)
        return c
    c.update(architectures=["Qwen3_5ForCausalLM"], max_position_embeddings=262144, full_attention_interval=FULL_EVERY,
             layer_types=["full_attention" if s.is_full(i) else "linear_attention" for i in range(s.layers)],
             linear_conv_kernel_dim=CONV_KERNEL, linear_key_head_dim=LINEAR_DIM, linear_value_head_dim=LINEAR_DIM,
             linear_num_key_heads=s.extra["key_heads"], linear_num_value_heads=s.extra["value_heads"],
             rope_parameters={"rope_type": "default", "rope_theta": 10000000, "partial_rotary_factor": 0.25,
                              "mrope_interleaved": True, "mrope_section": [11, 11, 10]})
    return c


def sentence_files(s):
    """The Sentence-Transformers files of an embedder, by path."""
    if "pooling" not in s.extra or s.labels:
        return {}
    kinds = [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")]
    modules = [{"idx": i, "name": str(i), "path": path, "type": "sentence_transformers.models." + kind}
               for i, (path, kind) in enumerate(kinds)]
    flags = {"cls": "cls_token", "mean": "mean_tokens", "lasttoken": "lasttoken"}
    pooling = {"word_embedding_dimension": s.hidden}
    pooling.update({"pooling_mode_" + flag: mode == s.extra["pooling"] for mode, flag in flags.items()})
    files = {"modules.json": modules, "1_Pooling/config.json": pooling}
    if "max" in s.extra:
        files["sentence_bert_config.json"] = {"max_seq_length": s.extra["max"], "do_lower_case": False}
    return files


def bf16(values):
    """Rounded to nearest, ties to even."""
    bits = struct.unpack(f"<{len(values)}I", struct.pack(f"<{len(values)}f", *values))
    return struct.pack(f"<{len(values)}H", *((b + 0x7FFF + (b >> 16 & 1)) >> 16 for b in bits))


def q8_0(values):
    """Blocks of 32: the scale as a half, then 32 signed bytes."""
    out = bytearray()
    for i in range(0, len(values), 32):
        block = values[i:i + 32]
        half = struct.pack("<e", max(map(abs, block)) / 127)
        scale = struct.unpack("<e", half)[0]
        quants = [max(-127, min(127, round(v / scale))) if scale else 0 for v in block]
        out += half + struct.pack("<32b", *quants)
    return bytes(out)


ENCODERS = {
    # values to bytes, values a unit, bytes a unit
    "F32": (lambda values: struct.pack(f"<{len(values)}f", *values), 1, 4),
    "F16": (lambda values: struct.pack(f"<{len(values)}e", *values), 1, 2),
    "BF16": (bf16, 1, 2),
    "Q8_0": (q8_0, 32, 34),
}


class Filler:
    """Writes tensors from pools of encoded values."""

    POOL = 1 << 16

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.normal = [self.random.gauss(0, 1) for _ in range(self.POOL)]
        self.pools = {}

    def pool(self, dtype, fill):
        key = dtype, fill, type(fill)
        if key not in self.pools:
            values = [float(fill)] * self.POOL if isinstance(fill, int) else [fill * v for v in self.normal]
            self.pools[key] = ENCODERS[dtype][0](values) * 2  # twice, so that a run may begin anywhere in the first half
        return self.pools[key]

    def write(self, file, dtype, count, fill):
        _, unit, size = ENCODERS[dtype]
        pool, left = memoryview(self.pool(dtype, fill)), count // unit * size
        half = len(pool) // 2
        while left:
            begin = self.random.randrange(half // size) * size
            n = min(left, half)
            file.write(pool[begin:begin + n])
            left -= n


def stored_type(name, shape, dtype):
    """Tables of embeddings stay as they are, unless the table is the output matrix too (embed_tokens)."""
    if dtype != "q8_0":
        return dtype.upper()
    if "_embeddings." in name:
        return "F32"
    return "Q8_0" if len(shape) == 2 and shape[1] % 32 == 0 else "F32"


def count(shape):
    n = 1
    for d in shape:
        n *= d
    return n


def bytes_of(shape, dtype):
    _, unit, size = ENCODERS[dtype]
    return count(shape) // unit * size


def split(tensors, limit):
    """Shards of at most `limit` bytes each (one tensor may exceed it); 0: one shard."""
    shards, size = [[]], 0
    for tensor in tensors:
        n = bytes_of(tensor[1], tensor[3])
        if limit and size and size + n > limit:
            shards.append([])
            size = 0
        shards[-1].append(tensor)
        size += n
    return shards


def write_shard(path, tensors, filler):
    header, end = {"__metadata__": {"format": "pt"}}, 0
    for name, shape, _, dtype in tensors:
        begin, end = end, end + bytes_of(shape, dtype)
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name, shape, fill, dtype in tensors:
            filler.write(file, dtype, count(shape), fill)
    return end


def write_json(folder, name, value):
    path = os.path.join(folder, name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        json.dump(value, file, indent=1)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", choices=sorted(MODELS), metavar="MODEL", help=", ".join(sorted(MODELS)))
    parser.add_argument("out", metavar="OUT", help="folder, made if need be")
    parser.add_argument("--dtype", choices=("f32", "f16", "bf16", "q8_0"), help="default: f32 for BERT and XLM-R, bf16 for Qwen")
    parser.add_argument("--layers", type=int, help="instead of the published number")
    parser.add_argument("--vocab", type=int, help="instead of the published size")
    parser.add_argument("--labels", type=int, default=0, help="make a BERT model a cross-encoder of so many labels")
    parser.add_argument("--shard-mb", type=int, default=0, help="megabytes of a shard at most; default: one file")
    parser.add_argument("--tokenizer", metavar="FOLDER", help="copy its tokenizer files along")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()

    shape = Shape(args.model, args.layers, args.vocab, args.labels)
    if args.labels and shape.family != BERT:
        parser.error("--labels is for BERT models")
    dtype = args.dtype or ("f32" if shape.is_bert else "bf16")
    tensors = [(name, dims, fill, stored_type(name, dims, dtype))
               for name, dims, fill in (bert_tensors(shape) if shape.is_bert else qwen_tensors(shape))]
    shards = split(tensors, args.shard_mb * 1000000)
    filler = Filler(args.seed)

    write_json(args.out, "config.json", config(shape, dtype))
    for name, value in sentence_files(shape).items():
        write_json(args.out, name, value)
    for name in ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "chat_template.jinja"):
        if args.tokenizer and os.path.exists(os.path.join(args.tokenizer, name)):
            shutil.copy(os.path.join(args.tokenizer, name), args.out)

    total, weight_map = 0, {}
    for i, shard in enumerate(shards):
        name = "model.safetensors" if len(shards) == 1 else f"model-{i + 1:05d}-of-{len(shards):05d}.safetensors"
        total += write_shard(os.path.join(args.out, name), shard, filler)
        weight_map.update({tensor[0]: name for tensor in shard})
    if len(shards) > 1:
        write_json(args.out, "model.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": weight_map})
    print(f"{args.out}: {args.model}, {len(tensors)} tensors, {total / 1e6:.0f} MB in {len(shards)} file(s)")


if __name__ == "__main__":
    main()
