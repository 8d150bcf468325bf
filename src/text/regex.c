/* PCRE2 behind two calls. The expressions were written for Oniguruma in its Ruby syntax: lines are separated by LF alone, ^ and $
 * match at every line; regex_translate.c does the rest. Limits bound backtracking, and reaching one is an error. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/regex.h"

#include <pcre2.h>

#include "text/regex_translate.h"
#include "text/unicode.h"

#define MATCH_LIMIT 10000000u
#define HEAP_LIMIT_KIB (64u * 1024u)

struct lt_regex {
    const lattice_allocator *mem;
    pcre2_general_context *general;
    pcre2_code *code;
    char *pattern;
    size_t length;
};

struct lt_regex_scratch {
    const lattice_allocator *mem;
    pcre2_general_context *general;
    pcre2_match_data *data;
    pcre2_match_context *context;
};

static void *allocate(size_t size, void *mem)
{
    return lt_alloc(mem, size);
}
static void release(void *ptr, void *mem)
{
    lt_free(mem, ptr);
}

static pcre2_general_context *general_context(const lattice_allocator *mem)
{
    union {
        const void *in;
        void *out;
    } user = { .in = mem }; /* PCRE2 hands it back untouched */
    return pcre2_general_context_create(allocate, release, user.out);
}

lattice_status lt_regex_compile(const lattice_allocator *mem, lt_str pattern, const char *where, lt_regex **regex,
                                lattice_error *err)
{
    lattice_status status = LATTICE_OK;
    pcre2_compile_context *context = NULL;
    lt_buf translated;
    lt_buf_init(&translated, mem);
    lt_regex *r = lt_alloc_zero(mem, sizeof *r);
    if (!r) return lt_no_memory(err, sizeof *r, "a regular expression");
    r->mem = mem;
    r->general = general_context(mem);
    r->pattern = lt_alloc(mem, pattern.len + 1);
    if (r->general) context = pcre2_compile_context_create(r->general);
    if (!r->general || !r->pattern || !context) {
        status = lt_no_memory(err, pattern.len, "a regular expression");
        goto done;
    }
    if (pattern.len) memcpy(r->pattern, pattern.data, pattern.len);
    r->pattern[pattern.len] = '\0';
    r->length = pattern.len;
    LT_GO(lt_regex_translate(mem, r->general, pattern, where, &translated, err));
    pcre2_set_newline(context, PCRE2_NEWLINE_LF);
    int code;
    PCRE2_SIZE offset;
    uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C;
    r->code =
        pcre2_compile((PCRE2_SPTR)(translated.data ? translated.data : ""), translated.len, options, &code, &offset, context);
    if (!r->code) {
        PCRE2_UCHAR message[128];
        if (code == PCRE2_ERROR_NOMEMORY || code == 121) {
            status = lt_no_memory(err, pattern.len, "a regular expression");
            goto done;
        }
        if (pcre2_get_error_message(code, message, sizeof message) < 0) message[0] = '\0';
        status = lt_fail(err, LATTICE_ERR_FORMAT, "%s: the expression '%.*s' does not compile: %s", where, LT_STR_ARG(pattern),
                         (const char *)message);
        goto done;
    }
    (void)pcre2_jit_compile(r->code, PCRE2_JIT_COMPLETE); /* without it the expression is interpreted */
done:
    pcre2_compile_context_free(context);
    lt_buf_free(&translated);
    if (status != LATTICE_OK) {
        lt_regex_free(r);
        r = NULL;
    }
    *regex = r;
    return status;
}

void lt_regex_free(lt_regex *regex)
{
    if (!regex) return;
    pcre2_code_free(regex->code);
    pcre2_general_context_free(regex->general);
    lt_free(regex->mem, regex->pattern);
    lt_free(regex->mem, regex);
}

lt_str lt_regex_pattern(const lt_regex *regex)
{
    return (lt_str){ regex->pattern, regex->length };
}

lattice_status lt_regex_scratch_create(const lattice_allocator *mem, lt_regex_scratch **scratch, lattice_error *err)
{
    lt_regex_scratch *s = lt_alloc_zero(mem, sizeof *s);
    if (!s) return lt_no_memory(err, sizeof *s, "a regular expression");
    s->mem = mem;
    s->general = general_context(mem);
    if (s->general) s->data = pcre2_match_data_create(1, s->general);
    if (s->data) s->context = pcre2_match_context_create(s->general);
    if (!s->context) {
        lt_regex_scratch_free(s);
        return lt_no_memory(err, sizeof *s, "a regular expression");
    }
    pcre2_set_match_limit(s->context, MATCH_LIMIT);
    pcre2_set_heap_limit(s->context, HEAP_LIMIT_KIB);
    *scratch = s;
    return LATTICE_OK;
}

void lt_regex_scratch_free(lt_regex_scratch *scratch)
{
    if (!scratch) return;
    pcre2_match_context_free(scratch->context);
    pcre2_match_data_free(scratch->data);
    pcre2_general_context_free(scratch->general);
    lt_free(scratch->mem, scratch);
}

lt_regex_matches lt_regex_begin(const lt_regex *regex, lt_regex_scratch *scratch, const uint8_t *text, size_t n)
{
    return (lt_regex_matches){ regex, scratch, text, n, 0, SIZE_MAX };
}

lattice_status lt_regex_next(lt_regex_matches *m, bool *found, size_t *start, size_t *end, lattice_error *err)
{
    *found = false;
    while (m->at <= m->n) {
        int count = pcre2_match(m->regex->code, m->text, m->n, m->at, PCRE2_NO_UTF_CHECK, m->scratch->data, m->scratch->context);
        if (count == PCRE2_ERROR_JIT_STACKLIMIT)
            count = pcre2_match(m->regex->code, m->text, m->n, m->at, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, m->scratch->data,
                                m->scratch->context);
        if (count == PCRE2_ERROR_NOMATCH) return LATTICE_OK;
        if (count == PCRE2_ERROR_NOMEMORY) return lt_no_memory(err, m->n, "a search by regular expression");
        if (count < 0) {
            PCRE2_UCHAR message[128];
            if (pcre2_get_error_message(count, message, sizeof message) < 0) message[0] = '\0';
            return lt_fail(err, LATTICE_ERR_INVALID_ARGUMENT, "searching for '%.*s' at byte %zu of the text: %s",
                           LT_STR_ARG(lt_regex_pattern(m->regex)), m->at, (const char *)message);
        }
        const PCRE2_SIZE *pair = pcre2_get_ovector_pointer(m->scratch->data);
        if (pair[0] > pair[1]) /* \K inside a lookahead */
            return lt_fail(err, LATTICE_ERR_INVALID_ARGUMENT, "the expression '%.*s' ends a match before it starts",
                           LT_STR_ARG(lt_regex_pattern(m->regex)));
        if (pair[0] == pair[1] && m->last_end == pair[1]) {
            size_t size = 1;
            if (m->at < m->n) lt_utf8_at(m->text, m->at, &size);
            m->at += size;
            continue;
        }
        *found = true;
        *start = pair[0];
        *end = m->at = m->last_end = pair[1];
        return LATTICE_OK;
    }
    return LATTICE_OK;
}
