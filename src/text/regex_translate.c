/* Translating expressions. PCRE2's own Unicode has another version than the one that made the published token ids, and which one
 * depends on the machine. So each property an expression names is asked of PCRE2 once, for every code point of the planes in
 * use, and compared with unicode.h:
 *   PCRE2 knows all of it                     \p{L} stays
 *   some characters are missing there         [\p{L}\x{1C89}-\x{1C8A}…]: the property and the missing ones
 *   it has characters that should not match   the whole set is written out as ranges
 * The comparison takes a few milliseconds a property and is made for expressions without a matcher of their own only. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/regex_translate.h"

#include <pcre2.h>
#include <stdio.h>

#include "base/utf8.h"
#include "text/unicode.h"

/* A set of characters: by general categories, or by one flag. */
typedef struct set {
    uint32_t categories; /* bit k: category k */
    uint32_t flags;
    const char *pcre2; /* what PCRE2 calls it outside brackets */
    const char *not_pcre2;
} set;

static bool in_set(const set *s, uint32_t c)
{
    uint32_t flags = lt_unicode(c);
    return (flags & s->flags) || (s->categories >> (flags >> LT_U_CATEGORY_SHIFT) & 1);
}

static const struct {
    const char *name;
    uint32_t categories;
} properties[] = {
#define ONE(name, k)                                                                                                             \
    {                                                                                                                            \
        name, 1u << (k)                                                                                                          \
    }
    ONE("Lu", LT_U_LU),
    ONE("Ll", LT_U_LL),
    ONE("Lt", LT_U_LT),
    ONE("Lm", LT_U_LM),
    ONE("Lo", LT_U_LO),
    ONE("Mn", LT_U_MN),
    ONE("Mc", LT_U_MC),
    ONE("Me", LT_U_ME),
    ONE("Nd", LT_U_ND),
    ONE("Nl", LT_U_NL),
    ONE("No", LT_U_NO),
    ONE("Pc", LT_U_PC),
    ONE("Pd", LT_U_PD),
    ONE("Ps", LT_U_PS),
    ONE("Pe", LT_U_PE),
    ONE("Pi", LT_U_PI),
    ONE("Pf", LT_U_PF),
    ONE("Po", LT_U_PO),
    ONE("Sm", LT_U_SM),
    ONE("Sc", LT_U_SC),
    ONE("Sk", LT_U_SK),
    ONE("So", LT_U_SO),
    ONE("Zs", LT_U_ZS),
    ONE("Zl", LT_U_ZL),
    ONE("Zp", LT_U_ZP),
    ONE("Cc", LT_U_CC),
    ONE("Cf", LT_U_CF),
    ONE("Co", LT_U_CO),
#undef ONE
    { "L", 1u << LT_U_LU | 1u << LT_U_LL | 1u << LT_U_LT | 1u << LT_U_LM | 1u << LT_U_LO },
    { "M", 1u << LT_U_MN | 1u << LT_U_MC | 1u << LT_U_ME },
    { "N", 1u << LT_U_ND | 1u << LT_U_NL | 1u << LT_U_NO },
    { "P", 1u << LT_U_PC | 1u << LT_U_PD | 1u << LT_U_PS | 1u << LT_U_PE | 1u << LT_U_PI | 1u << LT_U_PF | 1u << LT_U_PO },
    { "S", 1u << LT_U_SM | 1u << LT_U_SC | 1u << LT_U_SK | 1u << LT_U_SO },
    { "Cn", 1u },
    { "C", 1u | 1u << LT_U_CC | 1u << LT_U_CF | 1u << LT_U_CO },
    { "Z", 1u << LT_U_ZS | 1u << LT_U_ZL | 1u << LT_U_ZP },
};

/* ------------------------------------------------------------------ what PCRE2 knows */

/* Asking PCRE2 about a set takes a few milliseconds, so no set is asked for twice: there are fewer than this many. */
#define MOST_SETS 256

/* An expression that became longer than this has no use; PCRE2 itself takes far less. */
#define LONGEST ((size_t)4 << 20)

/* A set that the output holds already. */
typedef struct written {
    uint32_t categories, flags;
    bool negated, in_class;
    size_t start, length;
} written;

typedef struct translator {
    pcre2_general_context *memory;
    lt_str pattern;
    const char *where;
    lt_buf *out;
    lattice_error *err;
    written written[MOST_SETS];
    size_t n_written;
    bool ignores_case, folds; /* an option (?i) was met; letters that fold together were met */
    lt_buf all;               /* every code point that may be assigned, as UTF-8 */
    lt_buf known;             /* per code point 0x0 to LAST: 1 where PCRE2 matches the set asked last */
} translator;

#define LAST 0xEFFFFu /* what follows is for private use */

static bool asked(uint32_t c)
{
    return c < 0xD800 || (c >= 0xE000 && c < 0x40000) || c >= 0xE0000;
}

static lattice_status list_all(translator *t)
{
    if (t->all.len) return LATTICE_OK;
    for (uint32_t c = 0; c <= LAST; c++) {
        uint8_t bytes[4];
        if (asked(c)) lt_buf_append(&t->all, bytes, lt_utf8_encode(c, bytes));
    }
    if (!lt_buf_reserve(&t->known, LAST + 1)) t->all.failed = true;
    return t->all.failed ? lt_no_memory(t->err, LAST, "a regular expression") : LATTICE_OK;
}

/* Fills t->known for one set. */
static lattice_status ask(translator *t, const set *s)
{
    LT_TRY(list_all(t));
    uint8_t *known = (uint8_t *)t->known.data;
    memset(known, 0, LAST + 1);
    int code;
    PCRE2_SIZE at;
    char expression[32];
    size_t length = (size_t)snprintf(expression, sizeof expression, "%s+", s->pcre2);
    pcre2_compile_context *context = pcre2_compile_context_create(t->memory);
    pcre2_code *compiled =
        context ? pcre2_compile((PCRE2_SPTR)expression, length, PCRE2_UTF | PCRE2_UCP, &code, &at, context) : NULL;
    pcre2_compile_context_free(context);
    pcre2_match_data *match = compiled ? pcre2_match_data_create(1, t->memory) : NULL;
    if (!match) {
        pcre2_code_free(compiled);
        return lt_no_memory(t->err, length, "a regular expression");
    }
    (void)pcre2_jit_compile(compiled, PCRE2_JIT_COMPLETE);
    const uint8_t *text = (const uint8_t *)t->all.data;
    const PCRE2_SIZE *pair = pcre2_get_ovector_pointer(match);
    for (size_t from = 0; pcre2_match(compiled, text, t->all.len, from, PCRE2_NO_UTF_CHECK, match, NULL) >= 0; from = pair[1]) {
        for (size_t i = pair[0], size; i < pair[1]; i += size) known[lt_utf8_at(text, i, &size)] = 1;
    }
    pcre2_match_data_free(match);
    pcre2_code_free(compiled);
    return LATTICE_OK;
}

/* ------------------------------------------------------------------ sets in PCRE2's words */

typedef enum range_kind { MISSING, INSIDE, OUTSIDE } range_kind;

/* Appends, as ranges, what of the set PCRE2 is missing, the whole set, or its complement. */
static void append_ranges(translator *t, const set *s, range_kind kind)
{
    const uint8_t *known = (const uint8_t *)t->known.data;
    uint32_t start = UINT32_MAX;
    for (uint32_t c = 0; c <= 0x110000; c++) {
        bool take = false;
        if (c < 0x110000 && !(c >= 0xD800 && c < 0xE000)) {
            bool inside = in_set(s, c);
            take = kind == OUTSIDE ? !inside : inside;
            if (kind == MISSING) take = inside && c <= LAST && asked(c) && !known[c];
        }
        if (take == (start != UINT32_MAX)) continue;
        if (take) {
            start = c;
            continue;
        }
        if (c - 1 == start) {
            lt_buf_printf(t->out, "\\x{%x}", (unsigned)start);
        } else {
            lt_buf_printf(t->out, "\\x{%x}-\\x{%x}", (unsigned)start, (unsigned)(c - 1));
        }
        start = UINT32_MAX;
    }
}

/* Writes the set, or its complement, as an item of a class or as one of its own. */
static lattice_status write_set(translator *t, const set *s, bool negated, bool in_class)
{
    LT_TRY(ask(t, s));
    const uint8_t *known = (const uint8_t *)t->known.data;
    bool missing = false, excess = false;
    for (uint32_t c = 0; c <= LAST; c++) {
        if (!asked(c)) continue;
        bool inside = in_set(s, c);
        missing = missing || (inside && !known[c]);
        excess = excess || (!inside && known[c]);
    }
    if (!missing && !excess) {
        lt_buf_append_z(t->out, negated ? s->not_pcre2 : s->pcre2);
        return LATTICE_OK;
    }
    if (in_class) {
        if (negated) {
            append_ranges(t, s, OUTSIDE);
        } else {
            if (!excess) lt_buf_append_z(t->out, s->pcre2);
            append_ranges(t, s, excess ? INSIDE : MISSING);
        }
        return LATTICE_OK;
    }
    lt_buf_append_z(t->out, negated ? "[^" : "[");
    if (!excess) lt_buf_append_z(t->out, s->pcre2);
    append_ranges(t, s, excess ? INSIDE : MISSING);
    lt_buf_append_z(t->out, "]");
    return LATTICE_OK;
}

/* As write_set; what was written before is copied. */
static lattice_status put_set(translator *t, const set *s, bool negated, bool in_class)
{
    if (t->out->len > LONGEST)
        return lt_fail(t->err, LATTICE_ERR_UNSUPPORTED, "%s: an expression of %zu bytes is too long", t->where, t->pattern.len);
    for (size_t k = 0; k < t->n_written; k++) {
        const written *w = &t->written[k];
        if (w->categories != s->categories || w->flags != s->flags || w->negated != negated || w->in_class != in_class) continue;
        if (lt_buf_reserve(t->out, w->length)) lt_buf_append(t->out, t->out->data + w->start, w->length);
        return LATTICE_OK;
    }
    size_t start = t->out->len;
    LT_TRY(write_set(t, s, negated, in_class));
    if (t->n_written < MOST_SETS)
        t->written[t->n_written++] = (written){ s->categories, s->flags, negated, in_class, start, t->out->len - start };
    return LATTICE_OK;
}

static lattice_status put_flag(translator *t, uint32_t flags, const char *name, const char *not_name, bool negated, bool in_class)
{
    set s = { 0, flags, name, not_name };
    return put_set(t, &s, negated, in_class);
}

static lattice_status unsupported(const translator *t, const char *what)
{
    return lt_fail(t->err, LATTICE_ERR_UNSUPPORTED, "%s: %s in the expression '%.*s' is not supported", t->where, what,
                   LT_STR_ARG(t->pattern));
}

/* ------------------------------------------------------------------ escapes, classes, groups */

/* \p{…} or \P{…} at i, which points behind the p; *i is moved behind it. Scripts and other properties are left to PCRE2. */
static lattice_status put_property(translator *t, size_t *i, bool negated, bool in_class)
{
    const char *p = t->pattern.data;
    size_t n = t->pattern.len, start = *i, end;
    if (start >= n || p[start] != '{') return unsupported(t, "\\p without braces");
    const char *close = memchr(p + start, '}', n - start);
    if (!close) return unsupported(t, "\\p without an end");
    end = (size_t)(close - p);
    *i = end + 1;
    lt_str name = { p + start + 1, end - start - 1 };
    if (name.len && name.data[0] == '^') {
        negated = !negated;
        name = (lt_str){ name.data + 1, name.len - 1 };
    }
    for (size_t k = 0; k < sizeof properties / sizeof *properties; k++) {
        if (!lt_str_is(name, properties[k].name)) continue;
        char positive[16], negative[16];
        snprintf(positive, sizeof positive, "\\p{%s}", properties[k].name);
        snprintf(negative, sizeof negative, "\\P{%s}", properties[k].name);
        set s = { properties[k].categories, 0, positive, negative };
        return put_set(t, &s, negated, in_class);
    }
    lt_buf_append_z(t->out, negated ? "\\P{" : "\\p{");
    lt_buf_append(t->out, name.data, name.len);
    lt_buf_append_z(t->out, "}");
    return LATTICE_OK;
}

/* A place between a word character and another one, or none of the two; what is a word character PCRE2 sees otherwise. */
static lattice_status put_boundary(translator *t, bool negated)
{
    static const char *const looks[2][5] = { { "(?:(?<=", ")(?!", ")|(?<!", ")(?=", "))" },
                                             { "(?:(?<=", ")(?=", ")|(?<!", ")(?!", "))" } };
    for (int k = 0; k < 4; k++) {
        lt_buf_append_z(t->out, looks[negated][k]);
        LT_TRY(put_flag(t, LT_U_REGEX_WORD, "\\w", "\\W", false, false));
    }
    lt_buf_append_z(t->out, looks[negated][4]);
    return LATTICE_OK;
}

/* The escape whose backslash stands at *i. */
static lattice_status put_escape(translator *t, size_t *i, bool in_class)
{
    const char *p = t->pattern.data;
    if (*i + 1 >= t->pattern.len) { /* PCRE2 says what is wrong with it */
        lt_buf_byte(t->out, p[(*i)++]);
        return LATTICE_OK;
    }
    char c = p[*i + 1];
    *i += 2;
    set digits = { 1u << LT_U_ND, 0, "\\d", "\\D" };
    switch (c) {
    case 'p':
    case 'P': return put_property(t, i, c == 'P', in_class);
    case 's':
    case 'S': return put_flag(t, LT_U_SPACE, "\\s", "\\S", c == 'S', in_class);
    case 'w':
    case 'W': return put_flag(t, LT_U_REGEX_WORD, "\\w", "\\W", c == 'W', in_class);
    case 'd':
    case 'D': return put_set(t, &digits, c == 'D', in_class);
    case 'b':
    case 'B':
        if (!in_class) return put_boundary(t, c == 'B');
        lt_buf_append_z(t->out, c == 'b' ? "\\b" : "\\B");
        return LATTICE_OK;
    case 'h': lt_buf_append_z(t->out, in_class ? "0-9a-fA-F" : "[0-9a-fA-F]"); return LATTICE_OK;
    case 'H':
        if (in_class) return unsupported(t, "\\H in a class");
        lt_buf_append_z(t->out, "[^0-9a-fA-F]");
        return LATTICE_OK;
    default:
        lt_buf_byte(t->out, '\\');
        lt_buf_byte(t->out, c);
        return LATTICE_OK;
    }
}

/* The class whose bracket stands at *i. */
static lattice_status put_class(translator *t, size_t *i)
{
    const char *p = t->pattern.data;
    size_t n = t->pattern.len;
    lt_buf_byte(t->out, p[(*i)++]);
    if (*i < n && p[*i] == '^') lt_buf_byte(t->out, p[(*i)++]);
    if (*i < n && p[*i] == ']') return unsupported(t, "a class that begins with ']'");
    while (*i < n && p[*i] != ']') {
        if (p[*i] == '\\') {
            LT_TRY(put_escape(t, i, true));
        } else if (p[*i] == '[' || (p[*i] == '&' && *i + 1 < n && p[*i + 1] == '&')) {
            return unsupported(t, "a class inside a class or an intersection");
        } else {
            lt_buf_byte(t->out, p[(*i)++]);
        }
    }
    if (*i < n) lt_buf_byte(t->out, p[(*i)++]);
    return LATTICE_OK;
}

/* Options of a group, "(?imx-imx": Ruby's m is PCRE2's s. Where case is ignored, Oniguruma also lets "ss" match one sharp s, and
 * so with the letters of ligatures; expressions in which that could happen are refused. */
static void put_group(translator *t, size_t *i)
{
    const char *p = t->pattern.data;
    size_t n = t->pattern.len;
    lt_buf_byte(t->out, p[(*i)++]);
    if (*i >= n || p[*i] != '?') return;
    size_t k = *i + 1;
    while (k < n && (p[k] == 'i' || p[k] == 'm' || p[k] == 'x' || p[k] == '-')) k++;
    if (k >= n || (p[k] != ':' && p[k] != ')')) return;
    for (; *i < k; (*i)++) {
        t->ignores_case = t->ignores_case || p[*i] == 'i';
        lt_buf_byte(t->out, p[*i] == 'm' ? 's' : p[*i]);
    }
}

/* Two literal letters of the expression that fold to one character. */
static bool folds_together(char a, char b)
{
    static const char pairs[][3] = { "ss", "ff", "fi", "fl", "st" };
    for (size_t k = 0; k < sizeof pairs / sizeof *pairs; k++) {
        if ((a | 32) == pairs[k][0] && (b | 32) == pairs[k][1]) return true;
    }
    return false;
}

lattice_status lt_regex_translate(const lattice_allocator *mem, void *memory, lt_str pattern, const char *where, lt_buf *out,
                                  lattice_error *err)
{
    translator t = { .memory = memory, .pattern = pattern, .where = where, .out = out, .err = err };
    lt_buf_init(&t.all, mem);
    lt_buf_init(&t.known, mem);
    lattice_status status = LATTICE_OK;
    for (size_t i = 0; i < pattern.len;) {
        char c = pattern.data[i];
        if (c == '\\') {
            LT_GO(put_escape(&t, &i, false));
        } else if (c == '[') {
            LT_GO(put_class(&t, &i));
        } else if (c == '(') {
            put_group(&t, &i);
        } else if (c == '}' && i + 1 < pattern.len && pattern.data[i + 1] == '+') {
            LT_GO(unsupported(&t, "{n,m}+"));
        } else {
            t.folds = t.folds || (i + 1 < pattern.len && folds_together(c, pattern.data[i + 1]));
            lt_buf_byte(out, c);
            i++;
        }
    }
    if (t.ignores_case && t.folds) LT_GO(unsupported(&t, "ignoring the case of letters that fold to one character"));
    if (out->failed) status = lt_no_memory(err, out->len, "a regular expression");
done:
    lt_buf_free(&t.all);
    lt_buf_free(&t.known);
    return status;
}
