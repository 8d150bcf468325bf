/* lattice: embeddings, reranking and small-model generation from Hugging Face checkpoints.
 *
 * Everything a user of liblattice sees. Rules that hold for every function here:
 *   - A function that can fail returns lattice_status (LATTICE_OK is 0) and, when `err` is not NULL, fills the caller's
 *     lattice_error with a message that names the file, tensor, field or byte offset at fault. On failure no output is kept.
 *   - Strings in are UTF-8; lengths are in bytes. Invalid UTF-8 in a text is read as U+FFFD (WHATWG, maximal subparts).
 *   - Nothing in the library prints, exits, aborts or touches global state; messages go to the runtime's log callback.
 *   - Objects are created by *_create / *_open and released by *_free / *_close, which accept NULL.
 *   - An options struct starts from its *_default() function; new fields are only ever added at the end. */
#ifndef LATTICE_H
#define LATTICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(_WIN32) || !defined(__GNUC__)
#define LATTICE_API
#else
#define LATTICE_API __attribute__((visibility("default")))
#endif

#define LATTICE_VERSION "0.1.0"

/* ------------------------------------------------------------------ status and errors */

/* X(name, value, text) */
#define LATTICE_STATUS_LIST(X)                                                   \
    X(OK, 0, "ok")                                                               \
    X(ERR_NO_MEMORY, 1, "out of memory")                                         \
    X(ERR_INVALID_ARGUMENT, 2, "invalid argument")                               \
    X(ERR_IO, 3, "input/output error")                                           \
    X(ERR_NOT_FOUND, 4, "not found")                                             \
    X(ERR_FORMAT, 5, "malformed file")                                           \
    X(ERR_UNSUPPORTED, 6, "not supported")                                       \
    X(ERR_TOO_LONG, 7, "text too long")                                          \
    X(ERR_NOT_FINITE, 8, "result is not finite")                                 \
    X(ERR_DEVICE, 9, "device failed")                                            \
    X(ERR_CANCELLED, 10, "cancelled")                                            \
    X(ERR_INTERNAL, 11, "internal error")                                        \
    X(ERR_BUSY, 12, "queue is full")

typedef enum lattice_status {
#define X(name, value, text) LATTICE_##name = (value),
    LATTICE_STATUS_LIST(X)
#undef X
} lattice_status;

typedef struct lattice_error {
    lattice_status code;
    char message[512]; /* UTF-8, NUL-terminated, one line */
} lattice_error;

/* The text of a status ("out of memory"); "unknown status" for a value outside the list. */
LATTICE_API const char *lattice_status_text(lattice_status status);

/* Version of the library that runs, e.g. "0.1.0". */
LATTICE_API const char *lattice_version(void);

/* ------------------------------------------------------------------ runtime */

/* malloc-like hooks, called from any thread. `allocate` and `resize` return NULL when there is no memory; `resize` with
 * ptr NULL allocates; `release` accepts NULL. Blocks are aligned as malloc's. */
typedef struct lattice_allocator {
    void *user;
    void *(*allocate)(void *user, size_t size);
    void *(*resize)(void *user, void *ptr, size_t size);
    void (*release)(void *user, void *ptr);
} lattice_allocator;

typedef enum lattice_log_level {
    LATTICE_LOG_ERROR = 0,
    LATTICE_LOG_WARNING = 1,
    LATTICE_LOG_INFO = 2,
    LATTICE_LOG_DEBUG = 3,
} lattice_log_level;

/* Called from any thread with one line without a newline. */
typedef void (*lattice_log_fn)(void *user, lattice_log_level level, const char *message);

typedef struct lattice_runtime lattice_runtime;

typedef struct lattice_runtime_options {
    int n_threads;                       /* compute threads, the calling one included; 0: one per available CPU */
    const lattice_allocator *allocator;  /* copied; NULL: malloc, realloc, free */
    lattice_log_fn log;                  /* NULL: silent */
    void *log_user;
    lattice_log_level log_level;         /* messages above it are dropped; default LATTICE_LOG_WARNING */
    const char *cache_dir;               /* compiled kernels and the like; copied; NULL: nothing is kept on disk */
} lattice_runtime_options;

LATTICE_API lattice_runtime_options lattice_runtime_options_default(void);

/* Creates the object that owns threads, allocator, log and folders. Models borrow it and must be closed before it is freed;
 * several models share one, so that the machine is never oversubscribed. Safe to use from several threads. */
LATTICE_API lattice_status lattice_runtime_create(const lattice_runtime_options *options, lattice_runtime **runtime, lattice_error *err);
LATTICE_API void lattice_runtime_free(lattice_runtime *runtime);

/* Compute threads of the runtime. */
LATTICE_API int lattice_runtime_threads(const lattice_runtime *runtime);

/* Writes what the machine offers as one JSON object {"version","build","isa":[names found],"isa_chosen","devices":[{"name",
 * "used","reason"}]} into out[capacity], NUL-terminated; *length is the whole length without NUL, even if it did not fit. */
LATTICE_API lattice_status lattice_describe_system(char *out, size_t capacity, size_t *length);

/* ------------------------------------------------------------------ tokenizer */

typedef struct lattice_text {
    const char *data; /* UTF-8, need not end in NUL, may contain NUL */
    size_t length;    /* bytes */
} lattice_text;

typedef struct lattice_tokenizer lattice_tokenizer;

/* Loads a tokenizer from a folder with tokenizer.json, or vocab.txt and tokenizer_config.json. Serves many threads at once
 * without locks. A component that is not supported is LATTICE_ERR_UNSUPPORTED naming it. */
LATTICE_API lattice_status lattice_tokenizer_open(lattice_runtime *runtime, const char *folder, lattice_tokenizer **tokenizer, lattice_error *err);
LATTICE_API void lattice_tokenizer_close(lattice_tokenizer *tokenizer);

/* What offsets count. Hugging Face tokenizers gives bytes in Rust and code points in Python. */
typedef enum lattice_offset_unit {
    LATTICE_OFFSET_BYTES = 0,
    LATTICE_OFFSET_CODE_POINTS = 1, /* an invalid subpart of UTF-8, which is read as U+FFFD, is one */
} lattice_offset_unit;

typedef struct lattice_encode_options {
    bool add_special;   /* add the post-processor's tokens (default true) */
    bool literal;       /* recognise no special tokens inside the text (default false) */
    size_t max_length;  /* tokens at most, specials counted; 0: no limit */
    bool truncate_left; /* cut from the start instead of the end */
    lattice_offset_unit offset_unit; /* default LATTICE_OFFSET_BYTES */
} lattice_encode_options;

LATTICE_API lattice_encode_options lattice_encode_options_default(void);

typedef struct lattice_offset {
    size_t start, end; /* range in the text the token came from, in the options' offset_unit; 0,0 for added specials */
} lattice_offset;

typedef struct lattice_encoding {
    size_t n;               /* tokens */
    uint32_t *ids;          /* [n] */
    uint32_t *type_ids;     /* [n] 0: first text, 1: second where the template says so */
    lattice_offset *offsets;/* [n] */
    uint8_t *special;       /* [n] 1 where the post-processor added the token */
    lattice_tokenizer *owner;
} lattice_encoding;

/* Encodes `text`, or the pair (`text`, `pair`) when pair is not NULL. *out is released by lattice_encoding_free. */
LATTICE_API lattice_status lattice_encode(lattice_tokenizer *tokenizer, lattice_text text, const lattice_text *pair,
                                          const lattice_encode_options *options, lattice_encoding *out, lattice_error *err);
LATTICE_API void lattice_encoding_free(lattice_encoding *encoding);

/* The vocabulary's spelling of a token (bytes, not NUL-terminated), or a NULL data when the id is unknown. Lives as long as
 * the tokenizer. */
LATTICE_API lattice_text lattice_token_text(const lattice_tokenizer *tokenizer, uint32_t id);

/* Number of ids: one more than the largest id that has a token. */
LATTICE_API size_t lattice_vocabulary_size(const lattice_tokenizer *tokenizer);

/* Turns ids into text through the checkpoint's decoder. skip_special drops special tokens. *out is NUL-terminated besides its
 * length and released by lattice_text_free. */
LATTICE_API lattice_status lattice_decode(lattice_tokenizer *tokenizer, const uint32_t *ids, size_t n, bool skip_special,
                                          lattice_text *out, lattice_error *err);
LATTICE_API void lattice_text_free(lattice_tokenizer *tokenizer, lattice_text *text);

/* ------------------------------------------------------------------ model */

typedef struct lattice_model lattice_model;

/* Arithmetic of the matrix products, attention included. */
typedef enum lattice_compute {
    /* int8 for weights in 8 bits; bf16 for weights that are all bfloat16 on a GPU and on CPUs with AMX; else f32 */
    LATTICE_COMPUTE_AUTO = 0,
    LATTICE_COMPUTE_F32 = 1,  /* the reference */
    LATTICE_COMPUTE_BF16 = 2, /* operands rounded to bfloat16, sums in float32; LATTICE_ERR_UNSUPPORTED where the set has none */
    LATTICE_COMPUTE_INT8 = 3, /* bytes: Q8_0 as it is, an encoder's other weights by rows; LATTICE_ERR_UNSUPPORTED where are neither */
} lattice_compute;

typedef struct lattice_model_options {
    lattice_compute compute;
    const char *device;      /* "auto", "cpu", "cuda", "cuda:N", "cuda:N,M" or "cuda:all" (several GPUs share the batches), "metal"; NULL: auto.
                                A GPU that cannot be used leaves the others, or the CPU, with a warning */
    const char *isa;         /* "auto", "scalar", "avx2", "avx512", "avx512bf16", "avx512amx", "neon", "neonbf16"; NULL: auto */
    bool no_mmap;            /* read files into memory instead of mapping them */
    size_t batch_tokens;     /* token budget of one batch; 0: 16384 */
    bool tokenizer_optional; /* open without tokenizer files; only ids can then be embedded */
} lattice_model_options;

LATTICE_API lattice_model_options lattice_model_options_default(void);

/* Opens a checkpoint folder in the Hugging Face layout. The model is immutable and may be used from several threads; callers
 * beyond its workspaces wait. */
LATTICE_API lattice_status lattice_model_open(lattice_runtime *runtime, const char *folder, const lattice_model_options *options,
                                              lattice_model **model, lattice_error *err);
LATTICE_API void lattice_model_close(lattice_model *model);

/* The model's tokenizer, owned by the model; NULL when it was opened without one. */
LATTICE_API lattice_tokenizer *lattice_model_tokenizer(lattice_model *model);

/* What a checkpoint's head gives. */
typedef enum lattice_head {
    LATTICE_HEAD_EMBEDDING = 0,  /* vectors of texts */
    LATTICE_HEAD_CLASSIFIER = 1, /* cross-encoder: a logit for each label of a pair of query and document */
    LATTICE_HEAD_RERANKER = 2,   /* causal language model that judges a document by its next token, "no" or "yes" */
    LATTICE_HEAD_GENERATOR = 3,  /* causal language model that is neither meant for vectors nor for scores */
} lattice_head;

typedef struct lattice_model_info {
    const char *family;        /* "bert", "qwen3", … */
    size_t hidden_size;
    size_t n_layers;
    size_t embedding_dim;      /* floats of a vector before `dim` cuts it */
    size_t max_length;         /* tokens of one text, specials counted, unless the caller asks for another limit */
    size_t max_positions;      /* tokens that the model's positions admit: the largest limit, and that of token ids */
    size_t batch_tokens;       /* tokens of one batch */
    bool normalizes;           /* the checkpoint's vectors have unit length */
    const char *compute;       /* arithmetic in use: "f32", "bf16" or "int8" */
    const char *device;        /* "cpu", "cuda" or "metal" */
    const char *isa;           /* instruction set in use */
    uint64_t n_parameters;
    uint64_t weight_bytes;     /* bytes of the tensors in use, as stored */
    uint64_t packed_bytes;     /* anonymous memory that packed copies take, or will when first used */
    uint64_t workspace_bytes;  /* address space reserved for activations; touched as far as used */
    uint64_t workspace_touched_bytes; /* of it, resident now */
    lattice_head head;
    size_t vocab_size;         /* rows of the embedding table: ids are below it, and a logit each is what lattice_logits gives */
    size_t n_labels;           /* logits of a pair: a classifier's labels; 2 (no, yes) for a reranker; 0: lattice_rerank is refused */
    const char *const *labels; /* [n_labels] their names: id2label of the checkpoint */
    size_t n_scores;           /* scores of a pair: 1 for one label and for a reranker, else n_labels */
    size_t n_devices;          /* that share the batches: 1, or the number of GPUs */
} lattice_model_info;

/* Strings live as long as the model. */
LATTICE_API void lattice_model_get_info(const lattice_model *model, lattice_model_info *info);

/* Everything `lattice inspect --json` prints, as one JSON object; the conventions of lattice_describe_system. `plan` adds the
 * recorded operations, `tensors` the list of tensors. */
LATTICE_API lattice_status lattice_model_describe(const lattice_model *model, bool tensors, bool plan, char *out, size_t capacity,
                                                  size_t *length, lattice_error *err);

/* Reads every weight and reports the first value that is NaN or infinite as LATTICE_ERR_NOT_FINITE naming tensor and index; then
 * compares the checksum that files by lattice_quantize carry: LATTICE_ERR_FORMAT names a file that is damaged. */
LATTICE_API lattice_status lattice_model_check(lattice_model *model, lattice_error *err);

/* ------------------------------------------------------------------ embedding */

typedef enum lattice_pooling {
    LATTICE_POOLING_DEFAULT = 0, /* as the checkpoint says */
    LATTICE_POOLING_CLS = 1,
    LATTICE_POOLING_MAX = 2,
    LATTICE_POOLING_MEAN = 4,
    LATTICE_POOLING_MEAN_SQRT_LEN = 8,
    LATTICE_POOLING_WEIGHTEDMEAN = 16,
    LATTICE_POOLING_LASTTOKEN = 32, /* bits: several are concatenated in this order */
} lattice_pooling;

/* Vectors kept for texts that come again; see "embedding cache" below. */
typedef struct lattice_cache lattice_cache;

typedef struct lattice_embed_options {
    const char *prompt;      /* put before every text; NULL: prompt_name, else the checkpoint's default */
    const char *prompt_name; /* one of the checkpoint's prompts; NULL: its default; "" : none */
    size_t dim;              /* keep the first dim values and normalise again (Matryoshka); 0: all */
    unsigned pooling;        /* lattice_pooling bits */
    bool no_normalize;
    bool literal;            /* recognise no special tokens in the texts */
    bool truncate;           /* default true; false: a longer text is LATTICE_ERR_TOO_LONG */
    size_t max_length;       /* 0: the model's; more than its positions admit is an error */
    size_t batch_tokens;     /* 0: the model's; larger than the model's is an error */
    /* Called between batches with texts done so far; returning false cancels (LATTICE_ERR_CANCELLED). NULL: none. */
    bool (*progress)(void *user, size_t done, size_t total);
    void *progress_user;
    size_t first_index;      /* number that errors give to the first text: for callers that embed a long list in pieces */
    bool truncate_left;      /* a text that is cut loses its beginning */
    lattice_cache *cache;    /* looked in before a text is computed, and told its vector after; NULL: none */
    bool cache_unverified;   /* besides, serve vectors that lattice_cache_import has read */
} lattice_embed_options;

LATTICE_API lattice_embed_options lattice_embed_options_default(void);

typedef struct lattice_usage {
    uint64_t n_tokens;    /* tokens of the texts, specials and prompts counted, whether computed or found in a cache */
    uint64_t n_truncated; /* texts that were cut */
    uint32_t *text_tokens;/* if not NULL on entry: [n], filled with each text's tokens */
    uint64_t n_cached;    /* texts whose vectors came from the cache */
} lattice_usage;

/* Floats of one vector under these options (dim, pooling, Dense modules). 0 when the options do not fit the model. */
LATTICE_API size_t lattice_embed_dim(const lattice_model *model, const lattice_embed_options *options);

/* Embeds `n` texts into out[n][dim] (row-major, float32, unit length if the model normalises), dim = lattice_embed_dim().
 * Vectors do not depend on the other texts, their order or the batch size, bit for bit on one build and instruction set.
 * A text whose vector is not finite is LATTICE_ERR_NOT_FINITE naming model and text index. Safe from several threads.
 * `usage` may be NULL. */
LATTICE_API lattice_status lattice_embed(lattice_model *model, const lattice_text *texts, size_t n,
                                         const lattice_embed_options *options, float *out, lattice_usage *usage, lattice_error *err);

typedef struct lattice_ids {
    const uint32_t *ids;
    size_t n;
} lattice_ids;

/* As lattice_embed, from token ids that are used as given (no prompt, nothing added). An id outside the vocabulary is an error
 * naming it; an empty list is one too. */
LATTICE_API lattice_status lattice_embed_ids(lattice_model *model, const lattice_ids *inputs, size_t n,
                                             const lattice_embed_options *options, float *out, lattice_usage *usage, lattice_error *err);

/* ------------------------------------------------------------------ embedding cache */

/* Vectors by token ids. A vector is found when the ids and everything else that shapes it are those it was stored with: the
 * model's weights and configuration, pooling, prompt, dimensions, arithmetic, device, instruction set and version of the library;
 * the ids are stored and compared, so two texts never share a vector. What is found is bit for bit what would be computed.
 *
 * Vectors lie in memory within a budget, and, when a path is given, in a file under it (LMDB; PATH-lock lies beside it) that
 * processes share: what one computes, another finds. A process that is killed at any instant loses at most what it had not yet
 * written. The file must be on a local disk, and a process must not open it twice at a time. When it cannot be written or the
 * disk is full, the runtime's log is warned once and the cache goes on without. Running out of memory while a vector is being
 * stored only loses that vector for the cache.
 *
 * The first use with a model reads its weights once, to know them again. One cache serves any number of models and threads; it
 * is closed after the last call that uses it, before its runtime. */

/* What makes room when the budget is used up. */
typedef enum lattice_cache_policy {
    LATTICE_CACHE_SIEVE = 0, /* the oldest vectors that were not found again since last looked at (Zhang and others, 2024) */
    LATTICE_CACHE_FLUSH = 1, /* all vectors at once */
} lattice_cache_policy;

typedef struct lattice_cache_options {
    const char *path;         /* file under the memory, created when it does not exist; NULL: memory only */
    size_t max_bytes;         /* of memory for vectors, ids and what keeps them; 0: no limit in bytes */
    size_t max_entries;       /* vectors in memory; 0: 10 000 when max_bytes is 0 too, else no limit */
    lattice_cache_policy policy;
    size_t max_disk_bytes;    /* of vectors in the file, past which arbitrary ones make room; 0: 1 GiB */
    bool read_only;           /* the file is neither created nor written */
} lattice_cache_options;

LATTICE_API lattice_cache_options lattice_cache_options_default(void);

/* options NULL: the default. A file that is damaged is renamed to PATH.damaged-N, reported to the log, and a new one begun; one
 * that is no cache of lattice's is LATTICE_ERR_FORMAT and stays as it is. Opening checks the file, which reads it through once. In a build without
 * LMDB a path is LATTICE_ERR_UNSUPPORTED. */
LATTICE_API lattice_status lattice_cache_open(lattice_runtime *runtime, const lattice_cache_options *options, lattice_cache **cache,
                                              lattice_error *err);
/* Writes what waits to be written. */
LATTICE_API void lattice_cache_close(lattice_cache *cache);

typedef struct lattice_cache_stats {
    uint64_t entries, bytes;         /* in memory */
    uint64_t max_entries, max_bytes; /* 0: no limit */
    uint64_t hits, misses;           /* texts found anywhere, and not found, since opening */
    uint64_t disk_hits;              /* of the hits, those found in the file alone */
    uint64_t unverified_hits;        /* of the hits, imported vectors */
    uint64_t stores;                 /* vectors stored since opening */
    uint64_t evictions;              /* vectors that made room for others, in memory */
    uint64_t lost;                   /* vectors that could not be kept: out of memory, or the disk too slow or failing */
    uint64_t disk_entries;           /* vectors in the file, imported ones not counted */
    uint64_t disk_bytes;             /* that the file takes on the disk */
    uint64_t unverified_entries;     /* imported vectors */
    bool disk;                       /* the file is in use: read, and unless it is read-only or has failed, written */
} lattice_cache_stats;

LATTICE_API void lattice_cache_get_stats(lattice_cache *cache, lattice_cache_stats *stats);

/* Removes every vector, imported ones too, from memory and from the file. */
LATTICE_API lattice_status lattice_cache_clear(lattice_cache *cache, lattice_error *err);

/* The flat file holds {hash u64, dim u32, dim float32} an entry, little-endian, nothing else; hash is the 64-bit FNV-1a of the
 * token ids as little-endian u32. It tells neither the model nor the ids, so what is imported is served only where
 * lattice_embed_options.cache_unverified asks for it, by hash and dimensions. Imported vectors go to the cache's file, or without one stay
 * in memory beside its budget; of two with the same hash and dimensions the later one counts. *n: vectors imported. A file that is
 * cut short, with a dimension of 0 or over 65536 or a value that is not finite, is LATTICE_ERR_FORMAT naming the byte, and nothing
 * of it is imported. */
LATTICE_API lattice_status lattice_cache_import(lattice_cache *cache, const char *path, uint64_t *n, lattice_error *err);

/* Writes the vectors of the cache's file, or without one those in memory, as such a file, which replaces what `path` was: those of `model` under `options` (NULL: the default), or with model
 * NULL all that are not imported; vectors of different models or options are then LATTICE_ERR_INVALID_ARGUMENT, as the file could
 * not tell them apart. *n: vectors written. */
LATTICE_API lattice_status lattice_cache_export(lattice_cache *cache, const char *path, lattice_model *model,
                                                const lattice_embed_options *options, uint64_t *n, lattice_error *err);

/* ------------------------------------------------------------------ reranking */

typedef struct lattice_rerank_options {
    const char *instruction; /* rerankers: the task, put into the prompt; NULL: LATTICE_DEFAULT_INSTRUCTION. Classifiers: NULL */
    bool raw;                /* scores are logits: of each label; of a reranker, that of "yes" less that of "no" */
    bool literal;            /* classifiers: recognise no special tokens in the texts. A reranker never recognises them there */
    bool truncate;           /* default true; false: a longer pair is LATTICE_ERR_TOO_LONG */
    bool truncate_left;      /* what is cut loses its beginning; of a reranker's prompt, the document does */
    size_t max_length;       /* tokens of a pair, specials and prompt counted; 0: the model's */
    size_t batch_tokens;     /* 0: the model's; larger than the model's is an error */
    /* Called between batches with documents done so far; returning false cancels (LATTICE_ERR_CANCELLED). NULL: none. */
    bool (*progress)(void *user, size_t done, size_t total);
    void *progress_user;
} lattice_rerank_options;

#define LATTICE_DEFAULT_INSTRUCTION "Given a web search query, retrieve relevant passages that answer the query"

LATTICE_API lattice_rerank_options lattice_rerank_options_default(void);

/* Scores n documents, at least one, against a query; either may be empty.
 * scores[n][n_scores] and logits[n][n_labels] (sizes: lattice_model_info; either may be NULL) are in the order of the documents.
 *   one label        score = sigmoid(logit)
 *   several labels   scores = softmax(logits)
 *   reranker         score = softmax(logits of "no", "yes"), the part of "yes"
 * A pair over max_length is cut: for a classifier longest first, as Hugging Face tokenizers does it; for a reranker the end of
 * instruction, query and document, so that the prompt's own words stay whole, or with truncate_left the document's beginning. A score does not depend on the other documents,
 * bit for bit on one build and instruction set. A score that is not finite is LATTICE_ERR_NOT_FINITE naming model and document.
 * usage->n_tokens counts what was computed: a reranker's prompt and query once for all documents; text_tokens each whole pair.
 * A model without such a head is LATTICE_ERR_UNSUPPORTED. Safe from several threads. */
LATTICE_API lattice_status lattice_rerank(lattice_model *model, lattice_text query, const lattice_text *documents, size_t n,
                                          const lattice_rerank_options *options, float *scores, float *logits,
                                          lattice_usage *usage, lattice_error *err);

/* ------------------------------------------------------------------ logits */

/* Logits of the token that follows each input: out[n][vocab_size], for models with a language model's head (else
 * LATTICE_ERR_UNSUPPORTED). Ids are used as given; lattice_encode without add_special makes those of a prompt. An empty input, an
 * id outside the vocabulary and more tokens than the positions admit are errors naming the input; a row that is not finite is
 * LATTICE_ERR_NOT_FINITE naming model and input. Rows do not depend on the other inputs. Safe from several threads. */
LATTICE_API lattice_status lattice_logits(lattice_model *model, const lattice_ids *inputs, size_t n, float *out,
                                          lattice_usage *usage, lattice_error *err);

/* Negative log-likelihood of each input's own tokens: nll[i] = Σ −ln p(token | those before it), in natural logarithms, over its
 * n − 1 tokens after the first (0 for one token). Logits exist for a few rows at a time only. Errors, conventions and threads as
 * of lattice_logits. */
LATTICE_API lattice_status lattice_nll(lattice_model *model, const lattice_ids *inputs, size_t n, double *nll, lattice_usage *usage,
                                       lattice_error *err);

/* ------------------------------------------------------------------ generation */

/* One sequence of tokens that a language model goes on with: its ids, their state, and the logits of the token that follows.
 * Used by one thread at a time, but for lattice_session_cancel; several sessions of one model take turns. Freed before its
 * model. */
typedef struct lattice_session lattice_session;

typedef struct lattice_session_options {
    size_t max_length; /* tokens that it may hold; 0: as many as the model's positions admit, which is the most */
} lattice_session_options;

LATTICE_API lattice_session_options lattice_session_options_default(void);

/* options NULL: the default. A model without a language model's head is LATTICE_ERR_UNSUPPORTED. */
LATTICE_API lattice_status lattice_session_create(lattice_model *model, const lattice_session_options *options,
                                                  lattice_session **session, lattice_error *err);
LATTICE_API void lattice_session_free(lattice_session *session);

/* Forgets all tokens. */
LATTICE_API void lattice_session_reset(lattice_session *session);

/* The tokens that it holds, *n of them; valid until the session changes. */
LATTICE_API const uint32_t *lattice_session_ids(const lattice_session *session, size_t *n);

/* A session with the same tokens, that goes its own way from here. What was computed is shared, not copied, so a prefix that many
 * prompts have in common is computed once. The session must not be in use meanwhile. */
LATTICE_API lattice_status lattice_session_fork(const lattice_session *session, lattice_session **copy, lattice_error *err);

/* A snapshot: tokens, state and logits of a session, with a checksum. It is for the same weights, arithmetic, instruction set and
 * version of the library, where the session that comes of it goes on bit for bit as the saved one would. */
typedef struct lattice_snapshot {
    unsigned char *data;
    size_t size;
    lattice_model *owner;
} lattice_snapshot;

/* Writes one to a file, which is replaced when all is written; or into memory, released by lattice_snapshot_free before the model is
 * closed. The first snapshot of a model reads all of its weights, for their fingerprint. */
LATTICE_API lattice_status lattice_session_save(const lattice_session *session, const char *path, lattice_error *err);
LATTICE_API lattice_status lattice_session_save_bytes(const lattice_session *session, lattice_snapshot *snapshot,
                                                      lattice_error *err);
LATTICE_API void lattice_snapshot_free(lattice_snapshot *snapshot);

/* A session from a snapshot. One that is cut short or damaged is LATTICE_ERR_FORMAT, one of another model, arithmetic, instruction
 * set or version LATTICE_ERR_UNSUPPORTED saying which, one of more tokens than the session is to hold LATTICE_ERR_TOO_LONG. */
LATTICE_API lattice_status lattice_session_load(lattice_model *model, const char *path, const lattice_session_options *options,
                                                lattice_session **session, lattice_error *err);
LATTICE_API lattice_status lattice_session_load_bytes(lattice_model *model, const void *data, size_t size,
                                                      const lattice_session_options *options, lattice_session **session,
                                                      lattice_error *err);

/* Appends n >= 1 tokens of a prompt. More than max_length in all is LATTICE_ERR_TOO_LONG, an id outside the vocabulary is an
 * error; after any failure the session is as it was. */
LATTICE_API lattice_status lattice_session_prefill(lattice_session *session, const uint32_t *ids, size_t n, lattice_error *err);

/* Appends one token that was generated; otherwise as lattice_session_prefill. */
LATTICE_API lattice_status lattice_session_step(lattice_session *session, uint32_t id, lattice_error *err);

/* One session's part of a run. */
typedef struct lattice_piece {
    lattice_session *session;
    const uint32_t *ids; /* [n] n >= 1 */
    size_t n;
    bool generated; /* not tokens of a prompt */
    bool no_logits; /* what follows is not asked for, as inside of a prompt: the session has no logits then */
} lattice_piece;

/* Appends to n sessions of one model, each named once, in one run: prompts, parts of prompts and single tokens side by side.
 * Together at most batch_tokens tokens (lattice_model_info) and 1024 sessions. What a session gets does not depend on the others,
 * bit for bit; parts of a prompt give the same bits as the whole where they are cut at multiples of 64 tokens, else the same to
 * rounding. All succeed or, after any failure, all are as they were. Only a session that is alone can be cancelled meanwhile. */
LATTICE_API lattice_status lattice_sessions_append(const lattice_piece *pieces, size_t n, lattice_error *err);

/* Logits of the token that follows, [vocab_size]; NULL while the session is empty or they were not asked for, and when the GPU
 * that still had them is lost: they are brought from there when they are asked for. Valid until the session changes. */
LATTICE_API const float *lattice_session_logits(const lattice_session *session);

/* A token and the natural logarithm of its probability under the logits as they are: no temperature, no penalties. */
typedef struct lattice_logprob {
    uint32_t id;
    float logprob;
} lattice_logprob;

/* Of token `id` as the one that follows; and the n_top most likely ones, likeliest first, of equals the lowest id first. Either of
 * logprob and top may be NULL. n_top over the vocabulary, an id outside it and a session without logits are
 * LATTICE_ERR_INVALID_ARGUMENT. */
LATTICE_API lattice_status lattice_session_logprobs(const lattice_session *session, uint32_t id, float *logprob,
                                                    lattice_logprob *top, size_t n_top, lattice_error *err);

/* Makes the call that runs on this session stop, or, when none does, the next one: within one token. From any thread. */
LATTICE_API void lattice_session_cancel(lattice_session *session);

/* How the next token is chosen. First the penalties change the logits, then, in this order: logits are divided by the
 * temperature; the top_k most likely tokens are kept, of them the fewest whose probabilities together reach top_p, of them those
 * at least min_p times as likely as the first. */
typedef struct lattice_sampling {
    double temperature;        /* 0: the most likely token, of equals the one with the lowest id */
    size_t top_k;              /* 0: all */
    double top_p;              /* 1: all */
    double min_p;              /* 0: all */
    double repetition_penalty; /* > 0: logits of tokens that the session holds are divided by it, negative ones multiplied; 1: none */
    double presence_penalty;   /* subtracted from the logits of tokens generated since the last prefill */
    double frequency_penalty;  /* subtracted once for each time */
    uint64_t seed;             /* the same seed gives the same tokens on one build and instruction set */
} lattice_sampling;

/* As the checkpoint's generation_config.json says: greedy unless it has do_sample. Seed 0. */
LATTICE_API lattice_sampling lattice_sampling_default(const lattice_model *model);

/* Chooses the token that follows; the session stays as it is. The choice depends on seed and position only, not on earlier calls.
 * A session without logits and parameters out of range are LATTICE_ERR_INVALID_ARGUMENT. */
LATTICE_API lattice_status lattice_session_sample(const lattice_session *session, const lattice_sampling *sampling, uint32_t *id,
                                                  lattice_error *err);

typedef enum lattice_finish {
    LATTICE_FINISH_LENGTH = 0,    /* max_tokens */
    LATTICE_FINISH_END = 1,       /* an end token of the checkpoint */
    LATTICE_FINISH_STOP = 2,      /* a stop string */
    LATTICE_FINISH_CONTEXT = 3,   /* the session is full */
    LATTICE_FINISH_CANCELLED = 4, /* lattice_session_cancel, or the callback said so */
} lattice_finish;

/* A token that was generated. */
typedef struct lattice_token {
    uint32_t id;
    float logprob;              /* with options.logprobs, else 0 */
    const lattice_logprob *top; /* [n_top] the likeliest at its place; valid during the call */
    size_t n_top;
} lattice_token;

typedef struct lattice_generate_options {
    lattice_sampling sampling;
    size_t max_tokens;        /* 0: until the session is full */
    const lattice_text *stop; /* [n_stop] the text ends before the first of these, wherever the borders of tokens are */
    size_t n_stop;
    bool ignore_end;          /* end tokens are tokens as any other */
    /* Receives the text as it comes, in whole characters; returning false stops. NULL: none. */
    bool (*on_text)(void *user, const char *text, size_t length);
    void *user;
    bool logprobs;            /* report the logarithms of probabilities */
    size_t top_logprobs;      /* and of so many alternatives at each place; implies logprobs */
    /* Receives every new token, the end token included, before its text; returning false stops. NULL: none. */
    bool (*on_token)(void *user, const lattice_token *token);
} lattice_generate_options;

LATTICE_API lattice_generate_options lattice_generate_options_default(const lattice_model *model);

typedef struct lattice_generation {
    size_t n;
    uint32_t *ids;  /* [n] the new tokens, the end token included */
    char *text;     /* their text, NUL-terminated besides its length; special tokens have none. Empty without a tokenizer */
    size_t length;
    lattice_finish finish;
    lattice_session *owner;
    float *logprobs;      /* [n] with options.logprobs, else NULL */
    lattice_logprob *top; /* [n][n_top] */
    size_t n_top;
} lattice_generation;

/* Generates from where a prefilled session stands. The session then holds the new tokens too, but for an end token. *out is
 * released by lattice_generation_free, before its session. */
LATTICE_API lattice_status lattice_generate(lattice_session *session, const lattice_generate_options *options,
                                            lattice_generation *out, lattice_error *err);
LATTICE_API void lattice_generation_free(lattice_generation *generation);

/* A generation that is taken forward step by step, beside others: what lattice_generate does at one go. */
typedef struct lattice_generator lattice_generator;

/* On a session that nothing else changes until the generator is freed; freed before it. n ids of a prompt are appended first, in
 * pieces; 0 where the session has been prefilled. Ids and stop strings are copied. Errors of the prompt are those of
 * lattice_session_prefill. */
LATTICE_API lattice_status lattice_generator_create(lattice_session *session, const uint32_t *ids, size_t n,
                                                    const lattice_generate_options *options, lattice_generator **generator,
                                                    lattice_error *err);
LATTICE_API void lattice_generator_free(lattice_generator *generator);

/* Takes n generators of one model forward in one run, but those that are done: a token each, and the next pieces of prompts, the
 * first generators' first, while they fit max_tokens (0: the model's batch_tokens). Pieces are cut at multiples of 64 tokens. Calls
 * back from the calling thread. A cancelled session ends its own generation before the run. After a failure all are as they were
 * and the call may be repeated; but a generation that found no memory for its text is done. */
LATTICE_API lattice_status lattice_generators_advance(lattice_generator *const *generators, size_t n, size_t max_tokens,
                                                      lattice_error *err);

/* Tokens of the prompt that are still to be appended. */
LATTICE_API size_t lattice_generator_pending(const lattice_generator *generator);
LATTICE_API bool lattice_generator_done(const lattice_generator *generator);

/* What there is so far; `finish` is meaningful once it is done. Owned by the generator, valid until it is taken forward. */
LATTICE_API const lattice_generation *lattice_generator_result(const lattice_generator *generator);

/* "length", "end", "stop", "context" or "cancelled". */
LATTICE_API const char *lattice_finish_text(lattice_finish finish);

/* ------------------------------------------------------------------ conversations */

typedef struct lattice_message {
    const char *role; /* "system", "user" or "assistant" */
    lattice_text content;
} lattice_message;

typedef struct lattice_chat_options {
    bool think;     /* let the model think first, where its chat template knows thinking */
    bool no_prompt; /* end after the last message rather than where the assistant's answer begins */
} lattice_chat_options;

LATTICE_API lattice_chat_options lattice_chat_options_default(void);

/* The ids of a conversation in ChatML. Special tokens inside contents are plain text. Where the chat template knows thinking, what
 * an assistant's content has up to its last </think> is left out. *out has ids only (zeros else); released by
 * lattice_encoding_free. Other roles are LATTICE_ERR_INVALID_ARGUMENT, a vocabulary without ChatML's tokens
 * LATTICE_ERR_UNSUPPORTED. options NULL: the default. */
LATTICE_API lattice_status lattice_chat_encode(lattice_model *model, const lattice_message *messages, size_t n,
                                               const lattice_chat_options *options, lattice_encoding *out, lattice_error *err);

/* ------------------------------------------------------------------ quantising */

typedef struct lattice_quantize_options {
    const char *type; /* "q8_0": blocks of 32 signed bytes with a half-precision scale; "int8": of encoders, a scale an output */
    /* Called with bytes of weights read so far; returning false cancels (LATTICE_ERR_CANCELLED). NULL: none. */
    bool (*progress)(void *user, uint64_t done, uint64_t total);
    void *progress_user;
} lattice_quantize_options;

LATTICE_API lattice_quantize_options lattice_quantize_options_default(void);

typedef struct lattice_quantize_report {
    size_t n_quantized, n_kept, n_left_out; /* tensors; those left out are used by no part of the model */
    uint64_t bytes_before, bytes_after;     /* of the first two */
} lattice_quantize_report;

/* Writes the checkpoint in `folder` as out_folder, which must not exist, with its matrices and tables quantised where their rows
 * divide into blocks; other tensors in use, tokenizer and configuration are copied. lattice_model_open takes the result as any
 * checkpoint; compute AUTO multiplies it in integers, F32 dequantises. out_folder appears when all of it is written: after a
 * failure, such as a full disk, nothing is left. A weight that is not finite, or too large for a block's scale, is
 * LATTICE_ERR_NOT_FINITE naming the tensor. options NULL: the default; report may be NULL. Memory does not grow with the
 * checkpoint, but for a sixteenth of its largest tensor. */
LATTICE_API lattice_status lattice_quantize(lattice_runtime *runtime, const char *folder, const char *out_folder,
                                            const lattice_quantize_options *options, lattice_quantize_report *report,
                                            lattice_error *err);

/* ------------------------------------------------------------------ measuring */

/* One forward pass over n_seqs sequences of length seq_len of arbitrary ids, without tokenising; for benchmarks.
 * When `profile` is not NULL it receives up to capacity rows, *n_rows says how many there are. */
typedef struct lattice_profile_row {
    const char *operation; /* "linear", "attention", … */
    const char *detail;    /* weight name or shape, may be "" */
    double seconds;        /* thread-seconds spent */
    double flop, bytes;    /* counted from shapes */
} lattice_profile_row;

LATTICE_API lattice_status lattice_bench_forward(lattice_model *model, size_t n_seqs, size_t seq_len, lattice_profile_row *profile,
                                                 size_t capacity, size_t *n_rows, lattice_error *err);

/* Bytes that a language model must at least move to compute one token's logits: every weight in use once, as stored, and what the
 * operations read and write. 0 without such a head. */
LATTICE_API double lattice_token_bytes(const lattice_model *model);

typedef struct lattice_machine_peak {
    double gflops_f32;  /* fused multiply-adds of the instruction set in use, all threads, registers only; 2 FLOP each */
    double gflops_bf16; /* the same of bfloat16 products; 0 where the set has none */
    double read_gb_s;   /* streaming reads of 512 MB, all threads */
    double gops_int8;   /* products of bytes as weights in 8 bits use them; 2 operations each */
} lattice_machine_peak;

/* Measures the machine (takes about `seconds`). isa NULL: the best set. */
LATTICE_API lattice_status lattice_measure_peak(lattice_runtime *runtime, const char *isa, double seconds, lattice_machine_peak *peak,
                                                lattice_error *err);

/* Decoding beside the memory that limits it: after each of n steps of the session with ids[i], which took token_seconds[i], the same
 * threads read as many bytes as lattice_token_bytes says from memory of their own, which took read_seconds[i]. Both in turns, since
 * what memory gives swings on shared machines. Needs that much memory. Errors: those of lattice_session_step. */
LATTICE_API lattice_status lattice_bench_decode(lattice_session *session, const uint32_t *ids, size_t n, double *token_seconds,
                                                double *read_seconds, lattice_error *err);

#ifdef __cplusplus
}
#endif
#endif
