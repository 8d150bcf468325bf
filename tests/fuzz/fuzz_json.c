/* JSON from hostile bytes: walks any value with every typed reader and writes it again. What was accepted and written must be
 * accepted again, and written the third time as the second: the first may write 44444444444444444.4 as 4.444444444444445e16, which
 * is an integer and written as one from then on. */
#include <math.h>
#include <stdlib.h>

#include "format/json.h"

static lattice_status copy_value(lt_json *json, lt_json_writer *w);

static lattice_status copy_number(lt_json *json, lt_json_writer *w)
{
    int64_t i;
    uint32_t u;
    size_t size;
    double d;
    float f;
    /* A refused type leaves the number unread; the same text cannot be an integer here and none there. */
    lt_json before = *json;
    if (lt_json_uint32(json, &u) == LATTICE_OK) {
        json->pos = before.pos;
        json->value_due = true;
        if (lt_json_size(json, &size) != LATTICE_OK || size != u) abort();
        lt_json_write_uint(w, u);
        return LATTICE_OK;
    }
    if (lt_json_int64(json, &i) == LATTICE_OK) {
        lt_json_write_int(w, i);
        return LATTICE_OK;
    }
    if (lt_json_float(json, &f) == LATTICE_OK) {
        json->pos = before.pos;
        json->value_due = true;
        if (lt_json_double(json, &d) != LATTICE_OK || !isfinite(f)) abort();
        lt_json_write_double(w, d);
        return LATTICE_OK;
    }
    LT_TRY(lt_json_double(json, &d));
    lt_json_write_double(w, d);
    return LATTICE_OK;
}

static lattice_status copy_object(lt_json *json, lt_json_writer *w)
{
    LT_TRY(lt_json_begin_object(json));
    lt_json_write_begin(w, '{');
    for (;;) {
        lt_str key;
        bool more;
        LT_TRY(lt_json_next_member(json, &key, &more));
        if (!more) break;
        lt_json_write_key_str(w, key);
        LT_TRY(copy_value(json, w));
    }
    lt_json_write_end(w, '}');
    return LATTICE_OK;
}

static lattice_status copy_array(lt_json *json, lt_json_writer *w)
{
    LT_TRY(lt_json_begin_array(json));
    lt_json_write_begin(w, '[');
    for (;;) {
        bool more;
        LT_TRY(lt_json_next_element(json, &more));
        if (!more) break;
        LT_TRY(copy_value(json, w));
    }
    lt_json_write_end(w, ']');
    return LATTICE_OK;
}

static lattice_status copy_value(lt_json *json, lt_json_writer *w)
{
    lt_str s;
    bool b;
    switch (lt_json_peek(json)) {
    case LT_JSON_NULL:
        LT_TRY(lt_json_null(json));
        lt_json_write_null(w);
        return LATTICE_OK;
    case LT_JSON_BOOL:
        LT_TRY(lt_json_bool(json, &b));
        lt_json_write_bool(w, b);
        return LATTICE_OK;
    case LT_JSON_STRING:
        LT_TRY(lt_json_string(json, &s));
        lt_json_write_str(w, s);
        return LATTICE_OK;
    case LT_JSON_NUMBER: return copy_number(json, w);
    case LT_JSON_OBJECT: return copy_object(json, w);
    case LT_JSON_ARRAY: return copy_array(json, w);
    case LT_JSON_END:
    case LT_JSON_INVALID: break;
    }
    return lt_json_skip(json);
}

static lattice_status copy_text(const void *text, size_t size, lt_buf *out)
{
    lattice_error err;
    lt_json json;
    lt_buf_init(out, &lt_malloc_allocator);
    lt_json_writer w = lt_json_writer_on(out);
    lt_json_open(&json, &lt_malloc_allocator, "fuzz", text, size, &err);
    lattice_status status = copy_value(&json, &w);
    if (status == LATTICE_OK) status = lt_json_end(&json);
    lt_json_close(&json);
    return status;
}

/* Calls in an order that the bytes choose: errors are welcome, other things are not. */
static void call_at_random(const uint8_t *data, size_t size)
{
    lattice_error err;
    lt_json json;
    lt_str s;
    lt_json_open(&json, &lt_malloc_allocator, "fuzz", data, size, &err);
    for (size_t i = 0; i < size && i < 50; i++) {
        bool flag;
        double d;
        size_t n;
        switch (data[i] % 12) {
        case 0: lt_json_begin_object(&json); break;
        case 1:
        case 2: lt_json_next_member(&json, &s, &flag); break;
        case 3: lt_json_begin_array(&json); break;
        case 4:
        case 5: lt_json_next_element(&json, &flag); break;
        case 6: lt_json_string(&json, &s); break;
        case 7: lt_json_double(&json, &d); break;
        case 8: lt_json_size(&json, &n); break;
        case 9: lt_json_raw(&json, &s); break;
        case 10: lt_json_skip(&json); break;
        default: lt_json_end(&json); break;
        }
        if (json.pos > size || json.depth < 0 || json.depth > LT_JSON_MAX_DEPTH) abort();
    }
    lt_json_close(&json);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    lt_buf first, second, third;
    call_at_random(data, size);
    if (copy_text(data, size, &first) == LATTICE_OK && !first.failed) {
        if (copy_text(first.data, first.len, &second) != LATTICE_OK || second.failed) abort();
        if (copy_text(second.data, second.len, &third) != LATTICE_OK || third.failed) abort();
        if (!lt_str_eq(lt_buf_str(&second), lt_buf_str(&third))) abort();
        lt_buf_free(&second);
        lt_buf_free(&third);
    }
    lt_buf_free(&first);
    return 0;
}
