/* Lower case. See lower_case.h.
 *
 * Characters are mapped one by one, but for the Greek capital sigma, which is ς at the end of a word and σ elsewhere
 * (Unicode 3.13, Final_Sigma): a letter before it, none behind it, marks and the like passed over. Every letter counts as cased
 * here; the standard means letters of scripts that have cases, which matters only where Greek touches another script within a
 * word. */
#include "engine/lower_case.h"

#include "base/utf8.h"
#include "text/unicode.h"

enum { CAPITAL_SIGMA = 0x3A3, SMALL_SIGMA = 0x3C3, FINAL_SIGMA = 0x3C2 };

static bool is_letter(uint32_t c)
{
    return (lt_unicode(c) & LT_U_LETTER) != 0;
}

static bool is_passed_over(uint32_t c)
{
    return (lt_unicode(c) & LT_U_MARK) || c == '\'' || c == '.' || c == ':' || c == 0xAD || c == 0xB7 ||
           (c >= 0x200B && c <= 0x200F) || c == 0x2018 || c == 0x2019 || c == 0x2060 || c == 0xFEFF;
}

static bool letter_follows(const uint8_t *s, size_t n)
{
    while (n > 0) {
        uint32_t c;
        size_t size = lt_utf8_decode(s, n, &c);
        if (!is_passed_over(c)) return is_letter(c);
        s += size;
        n -= size;
    }
    return false;
}

static void append_code(lt_buf *out, uint32_t c)
{
    uint8_t bytes[4];
    lt_buf_append(out, bytes, lt_utf8_encode(c, bytes));
}

void lt_lower_case_append(lt_buf *out, lt_str text)
{
    const uint8_t *s = (const uint8_t *)text.data;
    bool after_letter = false;
    for (size_t i = 0; i < text.len;) {
        uint32_t c, lower[3];
        i += lt_utf8_decode(s + i, text.len - i, &c);
        if (c == CAPITAL_SIGMA) {
            append_code(out, after_letter && !letter_follows(s + i, text.len - i) ? FINAL_SIGMA : SMALL_SIGMA);
        } else {
            size_t n = lt_unicode_lower(c, lower);
            for (size_t k = 0; k < n; k++) append_code(out, lower[k]);
        }
        if (!is_passed_over(c)) after_letter = is_letter(c);
    }
}
