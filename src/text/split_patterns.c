/* Matchers equal to the published splitting expressions. Alternatives are tried in their order; what backtracking would find is
 * worked out beforehand:
 *
 *   'contraction         s t re ve m ll d; where it ignores case, s is also U+017F
 *   [^\r\n\p{L}\p{N}]?\p{L}+   letters, with one character of anything else before them but line ends and numbers
 *   \p{N}{1,k}           numbers, k at a time
 *    ?[^\s\p{L}\p{N}]+[\r\n]*  other characters, a space before, line ends after
 *   \s*[\r\n]+           white space up to its last line end
 *   \s+(?!\S)            white space but its last character, or all of it at the end of the text
 *   \s+                  that last character
 *
 * Letters may include marks (Qwen3.5). ASCII is classified by a table, the rest by unicode.h. */
#include "text/split_patterns.h"

#include "text/unicode.h"

#define LETTER LT_U_LETTER
#define NUMBER LT_U_NUMBER
#define MARK LT_U_MARK
#define SPACE LT_U_SPACE
#define ANY (LETTER | NUMBER | MARK | SPACE)

// clang-format off
/* Of the ASCII characters; the same as lt_unicode() says, without its two look-ups. */
static const uint8_t ascii[128] = {
#define S SPACE
#define N NUMBER
#define L LETTER
    0, 0, 0, 0, 0, 0, 0, 0, 0, S, S, S, S, S, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    S, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, N, N, N, N, N, N, N, N, N, N, 0, 0, 0, 0, 0, 0,
    0, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, 0, 0, 0, 0, 0,
    0, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, 0, 0, 0, 0, 0,
#undef S
#undef N
#undef L
};
// clang-format on

static inline uint32_t class_at(const uint8_t *s, size_t i, size_t *size)
{
    if (s[i] < 0x80) {
        *size = 1;
        return ascii[s[i]];
    }
    return lt_unicode(lt_utf8_at(s, i, size)) & ANY;
}

/* End of the run of characters from i on that have one of the flags, or none of them. */
static inline size_t run_of(const uint8_t *s, size_t i, size_t n, uint32_t flags)
{
    size_t size;
    while (i < n && (class_at(s, i, &size) & flags)) i += size;
    return i;
}

static inline size_t run_without(const uint8_t *s, size_t i, size_t n, uint32_t flags)
{
    size_t size;
    while (i < n && !(class_at(s, i, &size) & flags)) i += size;
    return i;
}

/* End of the contraction at s[i] == '\'', 0 if there is none. */
static inline size_t contraction(const uint8_t *s, size_t i, size_t n, bool any_case)
{
    if (n - i < 2) return 0;
    uint8_t fold = any_case ? 0x20 : 0;
    uint8_t a = s[i + 1] | fold, b = n - i > 2 ? s[i + 2] | fold : 0;
    if (s[i + 1] < 0x80) {
        if (a == 's' || a == 't' || a == 'm' || a == 'd') return i + 2;
        if (n - i > 2 && s[i + 2] < 0x80 && (((a == 'r' || a == 'v') && b == 'e') || (a == 'l' && b == 'l'))) return i + 3;
        return 0;
    }
    return any_case && n - i > 2 && s[i + 1] == 0xC5 && s[i + 2] == 0xBF ? i + 3 : 0;
}

/* End of \s+(?!\S)|\s+ at white space: the run without its last character, unless it is that character or the text ends. */
static inline size_t white_space(const uint8_t *s, size_t i, size_t end, size_t n)
{
    if (end == n) return end;
    size_t last = lt_utf8_before(s, end);
    return last > i ? last : end;
}

/* The family of cl100k: letters are the flags `letters`, numbers come `digits` at a time. */
static inline size_t match_family(const uint8_t *s, size_t i, size_t n, uint32_t letters, int digits)
{
    size_t size, next = 0;
    uint32_t class = class_at(s, i, &size);
    if (class & letters) {
        size_t end = run_of(s, i + size, n, letters);
        return end;
    }
    uint8_t c = s[i];
    if (c == '\'') {
        size_t end = contraction(s, i, n, true);
        if (end) return end;
    }
    if (class & NUMBER) {
        size_t end = i + size;
        for (int k = 1; k < digits && end < n && (class_at(s, end, &size) & NUMBER); k++) end += size;
        return end;
    }
    size_t after = i + size;
    uint32_t following = after < n ? class_at(s, after, &next) : SPACE;
    if (c != '\r' && c != '\n' && (following & letters)) return run_of(s, after + next, n, letters);
    const uint32_t named = SPACE | NUMBER | letters;
    if (!(class & SPACE) || (c == ' ' && !(following & named))) {
        size_t end = run_without(s, after, n, named);
        while (end < n && (s[end] == '\r' || s[end] == '\n')) end++;
        return end;
    }
    size_t end = i, line = 0;
    while (end < n && (class_at(s, end, &size) & SPACE)) {
        if (s[end] == '\r' || s[end] == '\n') line = end + 1;
        end += size;
    }
    return line ? line : white_space(s, i, end, n);
}

static size_t qwen2(const uint8_t *s, size_t i, size_t n)
{
    return match_family(s, i, n, LETTER, 1);
}
static size_t qwen35(const uint8_t *s, size_t i, size_t n)
{
    return match_family(s, i, n, LETTER | MARK, 1);
}
static size_t llama3(const uint8_t *s, size_t i, size_t n)
{
    return match_family(s, i, n, LETTER, 3);
}

size_t lt_split_gpt2(const uint8_t *s, size_t i, size_t n)
{
    if (s[i] == '\'') {
        size_t end = contraction(s, i, n, false);
        if (end) return end;
    }
    size_t size, at = i;
    uint32_t class = class_at(s, i, &size);
    if (s[i] == ' ' && i + 1 < n) { /* the optional space belongs to what follows, unless that is white space */
        uint32_t following = class_at(s, i + 1, &size);
        if (!(following & SPACE)) {
            class = following;
            at = i + 1;
        }
    }
    if (class & LETTER) return run_of(s, at, n, LETTER);
    if (class & NUMBER) return run_of(s, at, n, NUMBER);
    if (!(class & SPACE)) return run_without(s, at, n, SPACE | LETTER | NUMBER);
    return white_space(s, i, run_of(s, i, n, SPACE), n);
}

#define GPT2 "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
#define QWEN2                                                                                                                    \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| "                                                        \
    "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define QWEN35                                                                                                                   \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| "                                                \
    "?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|"                                                                         \
    "\\s+(?!\\S)|\\s+"
#define LLAMA3                                                                                                                   \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|"       \
    "\\s+(?!\\S)|\\s+"

const char *const lt_split_expressions[] = { GPT2, QWEN2, QWEN35, LLAMA3, NULL };

lt_split_matcher lt_split_matcher_for(lt_str expression)
{
    static const lt_split_matcher matchers[] = { lt_split_gpt2, qwen2, qwen35, llama3 };
    for (size_t k = 0; lt_split_expressions[k]; k++) {
        if (lt_str_is(expression, lt_split_expressions[k])) return matchers[k];
    }
    return NULL;
}
