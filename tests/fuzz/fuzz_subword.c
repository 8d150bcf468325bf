/* A `model` object and a text: reading never crashes, and what reads encodes every text into tokens of the vocabulary whose
 * ranges lie in the text, the same the second time (from the cache of words) and on a fresh scratch with small windows.
 *
 * Input: the first byte's lowest bit is byte_level; then JSON, a byte 0xFF (which UTF-8 never has), and the text. */
#include <stdlib.h>

#include "base/utf8.h"
#include "text/subword.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool condition)
{
    if (!condition) abort();
}

static void encode(const lt_subword *model, lt_subword_scratch *scratch, lt_str text, lt_pieces *pieces, lattice_status *status)
{
    lattice_error err;
    pieces->n = 0;
    *status = lt_subword_encode(model, scratch, (const uint8_t *)text.data, text.len, pieces, &err);
    for (size_t i = 0; *status == LATTICE_OK && i < pieces->n; i++) {
        const lt_piece *p = &pieces->data[i];
        require(p->start <= p->end && p->end <= text.len);
        require(lt_subword_token(model, p->id).data != NULL);
    }
}

static void check_text(const lt_subword *model, lt_str text)
{
    lattice_error err;
    lattice_status status[3];
    lt_subword_scratch *scratch = NULL;
    lt_pieces pieces[3] = { { .mem = &lt_malloc_allocator }, { .mem = &lt_malloc_allocator }, { .mem = &lt_malloc_allocator } };
    require(lt_subword_scratch_create(model, &scratch, &err) == LATTICE_OK);
    encode(model, scratch, text, &pieces[0], &status[0]);
    encode(model, scratch, text, &pieces[1], &status[1]);
    lt_subword_scratch_free(scratch);
    require(lt_subword_scratch_create(model, &scratch, &err) == LATTICE_OK);
    scratch->window = 4 + text.len % 13;
    encode(model, scratch, text, &pieces[2], &status[2]);
    lt_subword_scratch_free(scratch);
    for (size_t i = 1; i < 3; i++) {
        require(status[i] == status[0]);
        if (status[0] == LATTICE_OK) {
            require(pieces[i].n == pieces[0].n);
            require(pieces[0].n == 0 || memcmp(pieces[i].data, pieces[0].data, pieces[0].n * sizeof(lt_piece)) == 0);
        }
    }
    for (size_t i = 0; i < 3; i++) free(pieces[i].data);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2) return 0;
    bool byte_level = data[0] & 1;
    const uint8_t *json_text = data + 1, *end = memchr(json_text, 0xFF, size - 1);
    size_t json_size = end != NULL ? (size_t)(end - json_text) : size - 1;
    lt_buf text;
    lt_buf_init(&text, &lt_malloc_allocator);
    if (end != NULL) {
        const uint8_t *rest = end + 1;
        size_t n = (size_t)(data + size - rest);
        if (byte_level)
            lt_buf_append(&text, rest, n);
        else
            lt_utf8_append_repaired(&text, rest, n);
    }
    lattice_error err;
    lt_json json;
    lt_subword *model = NULL;
    lt_json_open(&json, &lt_malloc_allocator, "model", json_text, json_size, &err);
    lattice_status status = lt_subword_read(&lt_malloc_allocator, &json, &model, &err);
    lt_json_close(&json);
    if (status == LATTICE_OK && lt_subword_prepare(model, byte_level, &err) == LATTICE_OK) {
        for (size_t id = 0; id < lt_subword_size(model) && id < 4096; id++) {
            lt_str token = lt_subword_token(model, (uint32_t)id);
            uint32_t found;
            if (token.data != NULL) require(lt_subword_find(model, token, &found));
        }
        if (text.len > 0) check_text(model, lt_buf_str(&text));
    }
    lt_subword_free(model);
    lt_buf_free(&text);
    return 0;
}
