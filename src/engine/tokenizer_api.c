/* The public tokenizer: an lt_tokenizer, the allocator of its runtime, and scratches for whoever calls.
 *
 * Scratches wait on a small array of slots; a caller takes one by exchanging a slot with NULL, without a lock, and puts it back
 * the same way. Callers beyond the slots make one of their own and drop it afterwards. */
#include "engine/tokenizer_api.h"

#include <stdatomic.h>

#include "base/runtime.h"

#define N_SLOTS 32

struct lattice_tokenizer {
    const lattice_allocator *mem; /* the runtime's */
    lt_tokenizer *tokenizer;
    _Atomic(lt_scratch *) slots[N_SLOTS];
};

const lt_tokenizer *lt_tokenizer_of(const lattice_tokenizer *tokenizer)
{
    return tokenizer->tokenizer;
}

lattice_status lattice_tokenizer_open(lattice_runtime *runtime, const char *folder, lattice_tokenizer **tokenizer,
                                      lattice_error *err)
{
    *tokenizer = NULL;
    lattice_tokenizer *t = lt_alloc_zero(&runtime->mem, sizeof *t);
    if (!t) return lt_no_memory(err, sizeof *t, "a tokenizer");
    t->mem = &runtime->mem;
    for (int k = 0; k < N_SLOTS; k++) atomic_init(&t->slots[k], NULL);
    lattice_status status = lt_tokenizer_open(t->mem, folder, &t->tokenizer, err);
    if (status != LATTICE_OK) {
        lt_free(t->mem, t);
        return status;
    }
    *tokenizer = t;
    return LATTICE_OK;
}

void lattice_tokenizer_close(lattice_tokenizer *t)
{
    if (!t) return;
    for (int k = 0; k < N_SLOTS; k++) lt_scratch_free(atomic_load(&t->slots[k]));
    lt_tokenizer_close(t->tokenizer);
    lt_free(t->mem, t);
}

lattice_status lt_take_scratch(lattice_tokenizer *t, lt_scratch **scratch, lattice_error *err)
{
    for (int k = 0; k < N_SLOTS; k++) {
        *scratch = atomic_exchange(&t->slots[k], NULL);
        if (*scratch) return LATTICE_OK;
    }
    return lt_scratch_create(t->tokenizer, scratch, err);
}

void lt_give_back_scratch(lattice_tokenizer *t, lt_scratch *scratch)
{
    for (int k = 0; k < N_SLOTS; k++) {
        lt_scratch *empty = NULL;
        if (atomic_compare_exchange_strong(&t->slots[k], &empty, scratch)) return;
    }
    lt_scratch_free(scratch);
}

lattice_encode_options lattice_encode_options_default(void)
{
    return (lattice_encode_options){ .add_special = true };
}

/* Turns the spans into what the caller gets, in their own memory: of a giant text there are tens of millions. */
static lattice_offset *export_spans(const lattice_allocator *mem, lt_tokens *tokens)
{
    lattice_offset *offsets = lt_resize_array(mem, tokens->spans, tokens->n ? tokens->n : 1, sizeof *offsets);
    if (!offsets) return NULL;
    tokens->spans = NULL;
    for (size_t i = tokens->n; i-- > 0;) {
        struct lt_span span;
        memcpy(&span, (const char *)offsets + i * sizeof span, sizeof span);
        offsets[i] = (lattice_offset){ span.start, span.end };
    }
    return offsets;
}

/* Hands the arrays over to the caller; released by lattice_encoding_free. */
static lattice_status export_tokens(lattice_tokenizer *t, lt_tokens *tokens, lattice_encoding *out, lattice_error *err)
{
    size_t n = tokens->n;
    if (!lt_tokens_reserve(tokens, 1)) return lt_no_memory(err, sizeof *out, "an encoding");
    lattice_offset *offsets = export_spans(t->mem, tokens);
    if (!offsets) return lt_no_memory(err, n * sizeof *offsets, "an encoding");
    *out = (lattice_encoding){ n, tokens->ids, tokens->type_ids, offsets, tokens->special, t };
    tokens->ids = tokens->type_ids = NULL;
    tokens->special = NULL;
    return LATTICE_OK;
}

lattice_status lattice_encode(lattice_tokenizer *t, lattice_text text, const lattice_text *pair,
                              const lattice_encode_options *options, lattice_encoding *out, lattice_error *err)
{
    *out = (lattice_encoding){ 0 };
    lattice_encode_options o = options ? *options : lattice_encode_options_default();
    if ((!text.data && text.length) || (pair && !pair->data && pair->length))
        return lt_fail(err, LATTICE_ERR_INVALID_ARGUMENT, "a text without data");
    if (o.offset_unit != LATTICE_OFFSET_BYTES && o.offset_unit != LATTICE_OFFSET_CODE_POINTS)
        return lt_fail(err, LATTICE_ERR_INVALID_ARGUMENT, "offset unit %d", (int)o.offset_unit);
    lt_scratch *scratch;
    LT_TRY(lt_take_scratch(t, &scratch, err));
    lt_tokens tokens;
    lt_tokens_init(&tokens, t->mem);
    lt_encode_options inner = {
        .add_special = o.add_special, .literal = o.literal, .max_length = o.max_length, .truncate_left = o.truncate_left
    };
    lt_str second = pair ? (lt_str){ pair->data, pair->length } : (lt_str){ NULL, 0 };
    lattice_status status = lt_tokenizer_encode(t->tokenizer, scratch, (lt_str){ text.data, text.length }, pair ? &second : NULL,
                                                &inner, &tokens, err);
    if (status == LATTICE_OK && o.offset_unit == LATTICE_OFFSET_CODE_POINTS)
        lt_tokens_count_code_points(&tokens, (lt_str){ text.data, text.length }, pair ? &second : NULL);
    if (status == LATTICE_OK) status = export_tokens(t, &tokens, out, err);
    lt_tokens_free(&tokens);
    lt_give_back_scratch(t, scratch);
    return status;
}

void lattice_encoding_free(lattice_encoding *encoding)
{
    if (!encoding || !encoding->owner) return;
    const lattice_allocator *mem = encoding->owner->mem;
    lt_free(mem, encoding->ids);
    lt_free(mem, encoding->type_ids);
    lt_free(mem, encoding->offsets);
    lt_free(mem, encoding->special);
    *encoding = (lattice_encoding){ 0 };
}

lattice_text lattice_token_text(const lattice_tokenizer *t, uint32_t id)
{
    lt_str token = lt_tokenizer_token(t->tokenizer, id);
    return (lattice_text){ token.data, token.len };
}

size_t lattice_vocabulary_size(const lattice_tokenizer *t)
{
    return lt_tokenizer_size(t->tokenizer);
}

lattice_status lattice_decode(lattice_tokenizer *t, const uint32_t *ids, size_t n, bool skip_special, lattice_text *out,
                              lattice_error *err)
{
    *out = (lattice_text){ 0 };
    lt_buf text;
    lt_buf_init(&text, t->mem);
    lt_buf_append(&text, "", 0);
    lattice_status status = lt_tokenizer_decode(t->tokenizer, ids, n, skip_special, &text, err);
    if (status == LATTICE_OK && (text.failed || !lt_buf_reserve(&text, 1))) status = lt_no_memory(err, text.len, "a text");
    if (status != LATTICE_OK) {
        lt_buf_free(&text);
        return status;
    }
    text.data[text.len] = '\0';
    *out = (lattice_text){ text.data, text.len };
    return LATTICE_OK;
}

void lattice_text_free(lattice_tokenizer *t, lattice_text *text)
{
    if (!t || !text) return;
    union {
        const char *in;
        char *out;
    } data = { .in = text->data }; /* allocated by lattice_decode */
    lt_free(t->mem, data.out);
    *text = (lattice_text){ 0 };
}
