/* A loaded tokenizer: text to ids and back, equal to Hugging Face tokenizers on every input.
 *
 * The pipeline of tokenizer.json: added tokens are cut out (before normalising, or after), each piece between them is normalised
 * with an alignment back to the input, pre-tokenised into spans, and each span is handed to the model (WordPiece, BPE, Unigram);
 * the post-processor adds special tokens. vocab.txt with tokenizer_config.json stands in for tokenizer.json for BERT.
 * Immutable once loaded: many threads use it at once, each with a scratch of its own. */
#ifndef LT_TEXT_TOKENIZER_H
#define LT_TEXT_TOKENIZER_H

#include "base/bytes.h"

typedef struct lt_tokenizer lt_tokenizer;
typedef struct lt_scratch lt_scratch; /* working memory of one thread, kept between calls */

/* Loads from a folder; LATTICE_ERR_NOT_FOUND when neither file is there. `mem` is borrowed. */
lattice_status lt_tokenizer_open(const lattice_allocator *mem, const char *folder, lt_tokenizer **tokenizer, lattice_error *err);
/* The same from the text of a tokenizer.json, or of a vocab.txt and a tokenizer_config.json (NULL: none), in memory; `name` is for
 * messages. */
lattice_status lt_tokenizer_parse(const lattice_allocator *mem, const char *name, lt_str json, lt_tokenizer **tokenizer, lattice_error *err);
lattice_status lt_tokenizer_parse_vocab(const lattice_allocator *mem, const char *name, lt_str vocab, const lt_str *config,
                                        lt_tokenizer **tokenizer, lattice_error *err);
void lt_tokenizer_close(lt_tokenizer *tokenizer);

lattice_status lt_scratch_create(const lt_tokenizer *tokenizer, lt_scratch **scratch, lattice_error *err);
void lt_scratch_free(lt_scratch *scratch);

/* Encoded tokens; arrays grow and are kept between calls. */
typedef struct lt_tokens {
    const lattice_allocator *mem;
    size_t n, capacity;
    uint32_t *ids, *type_ids;
    struct lt_span {
        uint32_t start, end; /* bytes of the text (for the second of a pair: of that text) */
    } *spans;
    uint8_t *special;      /* 1: added by the post-processor */
    uint8_t *sequence;     /* 0: first text, 1: second, 255: added */
    bool truncated;
} lt_tokens;

void lt_tokens_init(lt_tokens *tokens, const lattice_allocator *mem);
void lt_tokens_free(lt_tokens *tokens);
/* Makes room for n tokens in all arrays, keeping the first tokens->n; false without memory. */
bool lt_tokens_reserve(lt_tokens *tokens, size_t n);
/* Counts the spans in code points instead of bytes, as Hugging Face tokenizers does in Python; an invalid subpart of UTF-8 is one.
 * `second`: the second text of a pair, else NULL. */
void lt_tokens_count_code_points(lt_tokens *tokens, lt_str first, const lt_str *second);

typedef struct lt_encode_options {
    bool add_special;    /* run the post-processor */
    bool literal;        /* recognise no special (`special: true`) added tokens in the text */
    size_t max_length;   /* 0: none. The file's own `truncation` is not applied: callers decide */
    bool truncate_left;
    bool no_spans;       /* the caller does not need spans: they are left zero, which is faster */
    size_t section;      /* bytes of a text that are worked on at a time, where the tokenizer allows it; 0: 1 MB */
} lt_encode_options;

/* Encodes into *tokens (cleared first). Truncation keeps the special tokens; pairs are cut longest first. max_length below the
 * number of special tokens is LATTICE_ERR_INVALID_ARGUMENT. pair may be NULL. */
lattice_status lt_tokenizer_encode(const lt_tokenizer *tokenizer, lt_scratch *scratch, lt_str text, const lt_str *pair,
                                   const lt_encode_options *options, lt_tokens *tokens, lattice_error *err);

/* Appends the text of ids[0..n). Unknown ids are skipped, as Hugging Face does. */
lattice_status lt_tokenizer_decode(const lt_tokenizer *tokenizer, const uint32_t *ids, size_t n, bool skip_special, lt_buf *out,
                                   lattice_error *err);

/* The stored spelling of a token, data NULL for an unknown id; the id of a spelling (added tokens included), false if none. */
lt_str lt_tokenizer_token(const lt_tokenizer *tokenizer, uint32_t id);
bool lt_tokenizer_find(const lt_tokenizer *tokenizer, lt_str token, uint32_t *id);
size_t lt_tokenizer_size(const lt_tokenizer *tokenizer); /* largest id + 1 */
const char *lt_tokenizer_kind(const lt_tokenizer *tokenizer); /* "WordPiece", "BPE", "Unigram" */
/* Tokens that the post-processor adds to a single text and to a pair. */
size_t lt_tokenizer_added(const lt_tokenizer *tokenizer, bool pair);

#endif
