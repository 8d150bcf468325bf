/* Streaming detokenisation; see stream.h. */
#include "text/stream.h"

#include "base/utf8.h"
#include "text/tokenizer_parts.h"

/* Tokens that may wait for a character to become whole. No character needs more than four; a stream of nothing but invalid
 * bytes is let through in pieces of this many rather than held for ever. */
#define HELD_MAX 64

struct lt_stream {
    const lattice_allocator *mem;
    const lt_decoder *decoder;
    const lt_tokenizer *tokenizer; /* NULL: tokens come by their spelling only */
    bool skip_special;
    lt_buf bytes; /* byte decoder: what is held back. Else: the spellings of the window, one after the other */
    lt_str *tokens;
    size_t *ends;
    size_t n, tokens_capacity, ends_capacity;
    size_t n_before; /* leading tokens of the window whose text is out; the rest is held */
    lt_buf before, text;
};

lattice_status lt_stream_create(const lattice_allocator *mem, const lt_decoder *decoder, lt_stream **out, lattice_error *err)
{
    lt_stream *stream = lt_alloc_zero(mem, sizeof *stream);
    if (stream == NULL) return lt_no_memory(err, sizeof *stream, "a stream");
    stream->mem = mem;
    stream->decoder = decoder;
    lt_buf_init(&stream->bytes, mem);
    lt_buf_init(&stream->before, mem);
    lt_buf_init(&stream->text, mem);
    *out = stream;
    return LATTICE_OK;
}

lattice_status lt_stream_create_for(const lt_tokenizer *tokenizer, bool skip_special, lt_stream **out, lattice_error *err)
{
    LT_TRY(lt_stream_create(tokenizer->mem, tokenizer->decoder, out, err));
    (*out)->tokenizer = tokenizer;
    (*out)->skip_special = skip_special;
    return LATTICE_OK;
}

void lt_stream_free(lt_stream *stream)
{
    if (stream == NULL) return;
    lt_buf_free(&stream->bytes);
    lt_buf_free(&stream->before);
    lt_buf_free(&stream->text);
    lt_free(stream->mem, stream->tokens);
    lt_free(stream->mem, stream->ends);
    lt_free(stream->mem, stream);
}

static lattice_status no_memory(lattice_error *err)
{
    return lt_no_memory(err, 0, "a stream");
}

static lattice_status push_bytes(lt_stream *stream, lt_str token, lt_buf *out, lattice_error *err)
{
    lt_decoder_bytes(token, &stream->bytes);
    if (stream->bytes.failed) return no_memory(err);
    const uint8_t *bytes = (const uint8_t *)stream->bytes.data;
    size_t held = lt_utf8_incomplete_suffix(bytes, stream->bytes.len), whole = stream->bytes.len - held;
    lt_utf8_append_repaired(out, bytes, whole);
    if (out->failed) return no_memory(err);
    memmove(stream->bytes.data, stream->bytes.data + whole, held);
    stream->bytes.len = held;
    return LATTICE_OK;
}

/* Decodes the first n tokens of the window. */
static lattice_status decode(lt_stream *stream, size_t n, lt_buf *out, lattice_error *err)
{
    lt_buf_clear(out);
    for (size_t i = 0; i < n; i++) {
        size_t start = i == 0 ? 0 : stream->ends[i - 1];
        stream->tokens[i] = (lt_str){ stream->bytes.data + start, stream->ends[i] - start };
    }
    return lt_decoder_decode(stream->decoder, stream->tokens, n, out, err);
}

/* Forgets the tokens before the held ones, which are out now. */
static void advance(lt_stream *stream)
{
    size_t gone = stream->n_before, start = gone == 0 ? 0 : stream->ends[gone - 1];
    for (size_t i = gone; i < stream->n; i++) stream->ends[i - gone] = stream->ends[i] - start;
    if (start > 0) memmove(stream->bytes.data, stream->bytes.data + start, stream->bytes.len - start);
    stream->bytes.len -= start;
    stream->n -= gone;
    stream->n_before = stream->n;
}

static bool extends(lt_str text, lt_str before)
{
    return text.len > before.len && (before.len == 0 || memcmp(text.data, before.data, before.len) == 0);
}

static lattice_status push_window(lt_stream *stream, lt_str token, lt_buf *out, lattice_error *err)
{
    size_t n = stream->n + 1;
    if (!LT_GROW(stream->mem, stream->tokens, stream->tokens_capacity, n) ||
        !LT_GROW(stream->mem, stream->ends, stream->ends_capacity, n))
        return no_memory(err);
    size_t before = stream->bytes.len;
    lt_buf_append(&stream->bytes, token.data, token.len);
    lt_buf_reserve(&stream->bytes, 1);
    if (stream->bytes.failed) {
        stream->bytes.failed = false;
        stream->bytes.len = before;
        return no_memory(err);
    }
    stream->ends[stream->n++] = stream->bytes.len;
    LT_TRY(decode(stream, stream->n_before, &stream->before, err));
    LT_TRY(decode(stream, stream->n, &stream->text, err));
    lt_str text = lt_buf_str(&stream->text), shown = lt_buf_str(&stream->before);
    bool waits = lt_str_ends(text, "\xEF\xBF\xBD") && stream->n - stream->n_before < HELD_MAX;
    if (waits || !extends(text, shown)) return LATTICE_OK;
    lt_buf_append(out, text.data + shown.len, text.len - shown.len);
    if (out->failed) return no_memory(err);
    advance(stream);
    return LATTICE_OK;
}

lattice_status lt_stream_push(lt_stream *stream, lt_str token, lt_buf *out, lattice_error *err)
{
    if (token.len == 0) return LATTICE_OK;
    return lt_decoder_is_bytes(stream->decoder) ? push_bytes(stream, token, out, err) : push_window(stream, token, out, err);
}

lattice_status lt_stream_push_id(lt_stream *stream, uint32_t id, lt_buf *out, lattice_error *err)
{
    lt_str token = lt_tokenizer_token(stream->tokenizer, id);
    if (token.data == NULL) return LATTICE_OK;
    if (stream->skip_special) {
        const lt_added_token *added = lt_added_by_content(stream->tokenizer->added, token);
        if (added != NULL && added->special) return LATTICE_OK;
    }
    return lt_stream_push(stream, token, out, err);
}

lattice_status lt_stream_flush(lt_stream *stream, lt_buf *out, lattice_error *err)
{
    lattice_status status = LATTICE_OK;
    if (lt_decoder_is_bytes(stream->decoder)) {
        lt_utf8_append_repaired(out, (const uint8_t *)stream->bytes.data, stream->bytes.len);
    } else if (stream->n > stream->n_before) {
        LT_GO(decode(stream, stream->n_before, &stream->before, err));
        LT_GO(decode(stream, stream->n, &stream->text, err));
        /* A run of byte tokens that turned out invalid reads otherwise than what was shown of it: go on at a whole character. */
        size_t shown = stream->before.len;
        while (shown < stream->text.len && ((uint8_t)stream->text.data[shown] & 0xC0) == 0x80) shown++;
        if (stream->text.len > shown) lt_buf_append(out, stream->text.data + shown, stream->text.len - shown);
    }
    if (out->failed) status = no_memory(err);
done:
    lt_buf_clear(&stream->bytes);
    stream->n = stream->n_before = 0;
    return status;
}
