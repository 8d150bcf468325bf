"""liblattice by ctypes, as far as the benches need it: the structures of include/lattice.h, a runtime, a model, vectors as numpy
arrays. The library is LATTICE_LIBRARY, else build/liblattice.so beside this folder."""

import ctypes as c
import os

import numpy as np

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
COMPUTE = {"auto": 0, "f32": 1, "bf16": 2, "int8": 3}


class Error(c.Structure):
    _fields_ = [("code", c.c_int), ("message", c.c_char * 512)]


class RuntimeOptions(c.Structure):
    _fields_ = [
        ("n_threads", c.c_int), ("allocator", c.c_void_p), ("log", c.c_void_p), ("log_user", c.c_void_p), ("log_level", c.c_int),
        ("cache_dir", c.c_char_p),
    ]


class ModelOptions(c.Structure):
    _fields_ = [
        ("compute", c.c_int), ("device", c.c_char_p), ("isa", c.c_char_p), ("no_mmap", c.c_bool), ("batch_tokens", c.c_size_t),
        ("tokenizer_optional", c.c_bool),
    ]


class ModelInfo(c.Structure):
    _fields_ = [
        ("family", c.c_char_p), ("hidden_size", c.c_size_t), ("n_layers", c.c_size_t), ("embedding_dim", c.c_size_t),
        ("max_length", c.c_size_t), ("max_positions", c.c_size_t), ("batch_tokens", c.c_size_t), ("normalizes", c.c_bool),
        ("compute", c.c_char_p), ("device", c.c_char_p), ("isa", c.c_char_p), ("n_parameters", c.c_uint64),
        ("weight_bytes", c.c_uint64), ("packed_bytes", c.c_uint64), ("workspace_bytes", c.c_uint64),
        ("workspace_touched_bytes", c.c_uint64), ("head", c.c_int), ("vocab_size", c.c_size_t), ("n_labels", c.c_size_t),
        ("labels", c.c_void_p), ("n_scores", c.c_size_t), ("n_devices", c.c_size_t),
    ]


class EmbedOptions(c.Structure):
    _fields_ = [
        ("prompt", c.c_char_p), ("prompt_name", c.c_char_p), ("dim", c.c_size_t), ("pooling", c.c_uint), ("no_normalize", c.c_bool),
        ("literal", c.c_bool), ("truncate", c.c_bool), ("max_length", c.c_size_t), ("batch_tokens", c.c_size_t), ("progress", c.c_void_p),
        ("progress_user", c.c_void_p), ("first_index", c.c_size_t), ("truncate_left", c.c_bool), ("cache", c.c_void_p), ("cache_unverified", c.c_bool),
    ]


class RerankOptions(c.Structure):
    _fields_ = [
        ("instruction", c.c_char_p), ("raw", c.c_bool), ("literal", c.c_bool), ("truncate", c.c_bool), ("max_length", c.c_size_t),
        ("batch_tokens", c.c_size_t), ("progress", c.c_void_p), ("progress_user", c.c_void_p),
    ]


class Usage(c.Structure):
    _fields_ = [("n_tokens", c.c_uint64), ("n_truncated", c.c_uint64), ("text_tokens", c.c_void_p), ("n_cached", c.c_uint64)]


class Text(c.Structure):
    _fields_ = [("data", c.c_char_p), ("length", c.c_size_t)]


class Ids(c.Structure):
    _fields_ = [("ids", c.c_void_p), ("n", c.c_size_t)]


class Peak(c.Structure):
    _fields_ = [("gflops_f32", c.c_double), ("gflops_bf16", c.c_double), ("read_gb_s", c.c_double), ("gops_int8", c.c_double)]


def load(path=None):
    lib = c.CDLL(path or os.environ.get("LATTICE_LIBRARY") or os.path.join(ROOT, "build", "liblattice.so"))
    for name, result in (("runtime", RuntimeOptions), ("model", ModelOptions), ("embed", EmbedOptions), ("rerank", RerankOptions)):
        getattr(lib, f"lattice_{name}_options_default").restype = result
    lib.lattice_embed_dim.restype = c.c_size_t
    lib.lattice_version.restype = c.c_char_p
    return lib


class Model:
    """One runtime with one model. Vectors are float32 [n, dim]."""

    def __init__(self, folder, threads, compute="f32", library=None):
        self.lib = load(library)
        self.lib.lattice_rerank.argtypes = [c.c_void_p, Text, c.c_void_p, c.c_size_t, *[c.c_void_p] * 5]
        self.error = Error()
        self.runtime, self.model = c.c_void_p(), c.c_void_p()
        options = self.lib.lattice_runtime_options_default()
        options.n_threads = threads
        self.check(self.lib.lattice_runtime_create(c.byref(options), c.byref(self.runtime), c.byref(self.error)))
        options = self.lib.lattice_model_options_default()
        options.compute = COMPUTE[compute]
        options.tokenizer_optional = True  # checkpoints of random weights may have none, and are timed by ids
        self.check(self.lib.lattice_model_open(self.runtime, folder.encode(), c.byref(options), c.byref(self.model), c.byref(self.error)))
        self.options = self.lib.lattice_embed_options_default()
        self.dim = self.lib.lattice_embed_dim(self.model, c.byref(self.options))

    def check(self, status):
        if status != 0:
            raise RuntimeError(self.error.message.decode())

    def info(self):
        info = ModelInfo()
        self.lib.lattice_model_get_info(self.model, c.byref(info))
        return {name: value.decode() if isinstance(value := getattr(info, name), bytes) else value for name, _ in ModelInfo._fields_}

    def embed(self, texts):
        data = [text.encode() for text in texts]
        inputs = (Text * len(data))(*((d, len(d)) for d in data))
        out = np.empty((len(data), self.dim), np.float32)
        usage = Usage()
        self.check(self.lib.lattice_embed(self.model, inputs, c.c_size_t(len(data)), c.byref(self.options), c.c_void_p(out.ctypes.data), c.byref(usage), c.byref(self.error)))
        self.n_tokens = usage.n_tokens
        return out

    def rerank(self, query, documents):
        """Logits [n, labels] of documents for a query."""
        query, data = query.encode(), [document.encode() for document in documents]
        inputs = (Text * len(data))(*((d, len(d)) for d in data))
        out = np.empty((len(data), self.info()["n_labels"]), np.float32)
        usage = Usage()
        self.check(self.lib.lattice_rerank(self.model, Text(query, len(query)), c.addressof(inputs), len(data), None, None, out.ctypes.data, c.addressof(usage), c.addressof(self.error)))
        self.n_tokens = usage.n_tokens
        return out

    def prepare_ids(self, ids):
        """Rows of ids [n, length] as a call that can be made again and again: it returns the vectors."""
        ids = np.ascontiguousarray(ids, np.uint32)
        n, length = ids.shape
        inputs = (Ids * n)(*((ids.ctypes.data + 4 * length * i, length) for i in range(n)))
        out = np.empty((n, self.dim), np.float32)
        arguments = (self.model, inputs, c.c_size_t(n), c.byref(self.options), c.c_void_p(out.ctypes.data), None, c.byref(self.error))

        def run(keep=(ids, inputs)):
            self.check(self.lib.lattice_embed_ids(*arguments))
            return out

        return run

    def peak(self, seconds):
        peak = Peak()
        self.check(self.lib.lattice_measure_peak(self.runtime, None, c.c_double(seconds), c.byref(peak), c.byref(self.error)))
        return {"gflops_f32": peak.gflops_f32, "gflops_bf16": peak.gflops_bf16, "read_gb_s": peak.read_gb_s}

    def close(self):
        self.lib.lattice_model_close(self.model)
        self.lib.lattice_runtime_free(self.runtime)
