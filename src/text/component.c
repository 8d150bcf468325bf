/* Reading normalisers and pre-tokenizers member by member. */
#include "text/component.h"

#define MAX_NESTING 16

static lattice_status copy(lt_arena *arena, lt_json *json, lt_str *out)
{
    lt_str s;
    LT_TRY(lt_json_string(json, &s));
    char *data = lt_arena_copy(arena, s.data, s.len);
    if (!data) return lt_no_memory(json->err, s.len, "a part of the tokenizer");
    *out = (lt_str){ data, s.len };
    return LATTICE_OK;
}

/* A string, or null for absent. */
static lattice_status copy_or_null(lt_arena *arena, lt_json *json, lt_str *out)
{
    if (lt_json_peek(json) == LT_JSON_NULL) return lt_json_null(json);
    return copy(arena, json, out);
}

static lattice_status maybe(lt_json *json, lt_maybe *out)
{
    if (lt_json_peek(json) == LT_JSON_NULL) return lt_json_null(json);
    bool value;
    LT_TRY(lt_json_bool(json, &value));
    *out = value ? LT_TRUE : LT_FALSE;
    return LATTICE_OK;
}

/* {"String": s} or {"Regex": s}. */
static lattice_status pattern(lt_arena *arena, lt_json *json, lt_component *c)
{
    if (lt_json_peek(json) == LT_JSON_STRING) { /* files of old versions: a plain string */
        c->has_pattern = true;
        return copy(arena, json, &c->pattern);
    }
    LT_TRY(lt_json_begin_object(json));
    for (lt_str key;;) {
        bool more;
        LT_TRY(lt_json_next_member(json, &key, &more));
        if (!more) break;
        bool regex = lt_str_is(key, "Regex");
        if (!regex && !lt_str_is(key, "String"))
            return lt_json_fail(json, "a pattern is a String or a Regex, not '%.*s'", LT_STR_ARG(key));
        if (c->has_pattern) return lt_json_fail(json, "a pattern has one value");
        c->pattern_is_regex = regex;
        c->has_pattern = true;
        LT_TRY(copy(arena, json, &c->pattern));
    }
    return LATTICE_OK;
}

static lattice_status read(lt_arena *arena, lt_json *json, const char *list, int depth, lt_component **component);

static lattice_status children(lt_arena *arena, lt_json *json, const char *list, int depth, lt_component *c)
{
    if (depth >= MAX_NESTING) return lt_json_fail(json, "sequences are nested more than %d deep", MAX_NESTING);
    LT_TRY(lt_json_begin_array(json));
    lt_component **last = &c->children;
    c->has_children = true;
    for (;;) {
        bool more;
        LT_TRY(lt_json_next_element(json, &more));
        if (!more) return LATTICE_OK;
        LT_TRY(read(arena, json, list, depth + 1, last));
        last = &(*last)->next;
    }
}

static lattice_status member(lt_arena *arena, lt_json *json, const char *list, int depth, lt_str key, lt_component *c)
{
    const struct {
        const char *name;
        lt_maybe *value;
    } switches[] = {
        { "clean_text", &c->clean_text },
        { "handle_chinese_chars", &c->handle_chinese_chars },
        { "strip_accents", &c->strip_accents },
        { "lowercase", &c->lowercase },
        { "strip_left", &c->left },
        { "strip_right", &c->right },
        { "add_prefix_space", &c->add_prefix_space },
        { "trim_offsets", &c->trim_offsets },
        { "use_regex", &c->use_regex },
        { "split", &c->split },
        { "individual_digits", &c->individual_digits },
        { "invert", &c->invert },
    };
    const struct {
        const char *name;
        lt_str *value;
    } strings[] = {
        { "type", &c->type },
        { "content", &c->content },
        { "prepend", &c->prepend },
        { "replacement", &c->replacement },
        { "prepend_scheme", &c->prepend_scheme },
        { "behavior", &c->behavior },
        { "precompiled_charsmap", &c->charsmap },
        { "delimiter", &c->delimiter },
    };
    for (size_t i = 0; i < sizeof switches / sizeof *switches; i++) {
        if (lt_str_is(key, switches[i].name)) return maybe(json, switches[i].value);
    }
    for (size_t i = 0; i < sizeof strings / sizeof *strings; i++) {
        if (lt_str_is(key, strings[i].name)) return copy_or_null(arena, json, strings[i].value);
    }
    if (lt_str_is(key, "pattern")) return pattern(arena, json, c);
    if (lt_str_is(key, list)) return children(arena, json, list, depth, c);
    return lt_json_skip(json);
}

static lattice_status read(lt_arena *arena, lt_json *json, const char *list, int depth, lt_component **component)
{
    lt_component *c = lt_arena_alloc(arena, sizeof *c);
    if (!c) return lt_no_memory(json->err, sizeof *c, "a part of the tokenizer");
    *c = (lt_component){
        .clean_text = LT_ABSENT,
        .handle_chinese_chars = LT_ABSENT,
        .strip_accents = LT_ABSENT,
        .lowercase = LT_ABSENT,
        .left = LT_ABSENT,
        .right = LT_ABSENT,
        .add_prefix_space = LT_ABSENT,
        .trim_offsets = LT_ABSENT,
        .use_regex = LT_ABSENT,
        .split = LT_ABSENT,
        .individual_digits = LT_ABSENT,
        .invert = LT_ABSENT,
    };
    *component = c;
    LT_TRY(lt_json_begin_object(json));
    for (lt_str key;;) {
        bool more;
        LT_TRY(lt_json_next_member(json, &key, &more));
        if (!more) break;
        LT_TRY(member(arena, json, list, depth, key, c));
    }
    if (!c->type.data) return lt_json_fail(json, "a part of the tokenizer without a type");
    return LATTICE_OK;
}

lattice_status lt_component_read(lt_arena *arena, lt_json *json, const char *list, lt_component **component)
{
    return read(arena, json, list, 0, component);
}
