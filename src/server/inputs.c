/* Reading texts and ids; see inputs.h. */
#include "server/inputs.h"

#include <string.h>

void lt_inputs_init(lt_inputs *inputs, const lattice_allocator *mem)
{
    *inputs = (lt_inputs){ 0 };
    lt_arena_init(&inputs->arena, mem);
}

void lt_inputs_free(lt_inputs *inputs)
{
    const lattice_allocator *mem = inputs->arena.mem;
    lt_free(mem, inputs->texts);
    lt_free(mem, inputs->ids);
    lt_free(mem, inputs->ends);
    lt_arena_free(&inputs->arena);
}

lattice_status lt_read_string(lt_json *json, lt_inputs *inputs, lt_str *out)
{
    LT_TRY(lt_json_string(json, out));
    const char *begin = (const char *)json->text;
    if (out->len == 0) {
        *out = (lt_str){ "", 0 };
    } else if (out->data < begin || out->data >= begin + json->size) {
        char *copy = lt_arena_copy(&inputs->arena, out->data, out->len);
        if (!copy) return lt_no_memory(json->err, out->len, "a text");
        out->data = copy;
    }
    return LATTICE_OK;
}

lattice_status lt_read_name(lt_json *json, lt_inputs *inputs, const char **out)
{
    if (lt_json_peek(json) == LT_JSON_NULL) return lt_json_null(json);
    lt_str name;
    LT_TRY(lt_json_string(json, &name));
    if (name.len > 0 && memchr(name.data, 0, name.len)) return lt_json_fail(json, "a name with a NUL");
    char *copy = lt_arena_copy(&inputs->arena, name.len ? name.data : "", name.len);
    if (!copy) return lt_no_memory(json->err, name.len, "a name");
    *out = copy;
    return LATTICE_OK;
}

lattice_status lt_read_text(lt_json *json, lt_inputs *inputs)
{
    lt_str text;
    LT_TRY(lt_read_string(json, inputs, &text));
    if (!LT_GROW(inputs->arena.mem, inputs->texts, inputs->capacity, inputs->n + 1))
        return lt_no_memory(json->err, inputs->n * sizeof *inputs->texts, "a list of texts");
    inputs->texts[inputs->n++] = (lattice_text){ text.data, text.len };
    return LATTICE_OK;
}

/* ------------------------------------------------------------------ ids */

static lattice_status read_id(lt_json *json, lt_inputs *inputs)
{
    uint32_t id;
    LT_TRY(lt_json_uint32(json, &id));
    if (!LT_GROW(inputs->arena.mem, inputs->ids, inputs->ids_capacity, inputs->n_ids + 1))
        return lt_no_memory(json->err, inputs->n_ids * sizeof id, "token ids");
    inputs->ids[inputs->n_ids++] = id;
    return LATTICE_OK;
}

static lattice_status end_list(lt_json *json, lt_inputs *inputs)
{
    if (!LT_GROW(inputs->arena.mem, inputs->ends, inputs->ends_capacity, inputs->n + 1))
        return lt_no_memory(json->err, inputs->n * sizeof *inputs->ends, "a list of token ids");
    inputs->ends[inputs->n++] = inputs->n_ids;
    return LATTICE_OK;
}

static lattice_status read_id_list(lt_json *json, lt_inputs *inputs)
{
    LT_TRY(lt_json_begin_array(json));
    for (bool more;;) {
        LT_TRY(lt_json_next_element(json, &more));
        if (!more) return end_list(json, inputs);
        LT_TRY(read_id(json, inputs));
    }
}

/* ------------------------------------------------------------------ any of them */

lattice_status lt_read_inputs(lt_json *json, lt_inputs *inputs, bool ids)
{
    inputs->n = inputs->n_ids = 0;
    lt_json_type type = lt_json_peek(json);
    if (type == LT_JSON_STRING) {
        inputs->single = true;
        return lt_read_text(json, inputs);
    }
    if (type != LT_JSON_ARRAY) {
        lt_json_skip(json);
        return lt_json_fail(json, ids ? "expected a text, a list of texts, a list of token ids or a list of such lists"
                                      : "expected a text or a list of texts");
    }
    LT_TRY(lt_json_begin_array(json));
    lt_json_type first = LT_JSON_NULL;
    for (bool more, begun = false;; begun = true) {
        LT_TRY(lt_json_next_element(json, &more));
        if (!more) break;
        type = lt_json_peek(json);
        if (!begun) first = type;
        if (type == LT_JSON_INVALID || type == LT_JSON_END) return lt_json_skip(json);
        if (type != first) return lt_json_fail(json, "a list of texts and token ids mixed");
        if (type == LT_JSON_STRING)
            LT_TRY(lt_read_text(json, inputs));
        else if (ids && type == LT_JSON_NUMBER)
            LT_TRY(read_id(json, inputs));
        else if (ids && type == LT_JSON_ARRAY)
            LT_TRY(read_id_list(json, inputs));
        else
            return lt_json_fail(json, ids ? "expected texts or token ids" : "expected texts");
    }
    inputs->by_ids = first == LT_JSON_NUMBER || first == LT_JSON_ARRAY;
    if (first == LT_JSON_NUMBER) {
        inputs->single = true;
        return end_list(json, inputs);
    }
    return LATTICE_OK;
}

/* ------------------------------------------------------------------ options */

lattice_status lt_read_bool(lt_json *json, bool *out)
{
    return lt_json_peek(json) == LT_JSON_NULL ? lt_json_null(json) : lt_json_bool(json, out);
}

lattice_status lt_read_size(lt_json *json, size_t *out)
{
    return lt_json_peek(json) == LT_JSON_NULL ? lt_json_null(json) : lt_json_size(json, out);
}

lattice_status lt_read_double(lt_json *json, double *out)
{
    return lt_json_peek(json) == LT_JSON_NULL ? lt_json_null(json) : lt_json_double(json, out);
}

lattice_status lt_read_members(lt_json *json, lt_read_member_fn *member, void *request)
{
    LT_TRY(lt_json_begin_object(json));
    for (lt_str key;;) {
        bool more;
        LT_TRY(lt_json_next_member(json, &key, &more));
        if (!more) return LATTICE_OK;
        LT_TRY(member(json, request, key));
    }
}

lattice_status lt_read_dimensions(lt_json *json, size_t *out)
{
    if (lt_json_peek(json) == LT_JSON_NULL) return lt_json_null(json);
    int64_t value;
    LT_TRY(lt_json_int64(json, &value));
    if (value < 1) return lt_json_fail(json, "'dimensions' must be at least 1, not %lld", (long long)value);
    *out = (size_t)value;
    return LATTICE_OK;
}
