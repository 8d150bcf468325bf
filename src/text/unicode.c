/* Look-ups beyond the flags: decomposition, composition, lower case, grapheme clusters. */
#include "text/unicode.h"

#include <string.h>

enum { S_BASE = 0xAC00, L_BASE = 0x1100, V_BASE = 0x1161, T_BASE = 0x11A7, L_COUNT = 19, V_COUNT = 21, T_COUNT = 28 };
enum { N_COUNT = V_COUNT * T_COUNT, S_COUNT = L_COUNT * N_COUNT };

size_t lt_unicode_decompose(uint32_t c, bool compatibility, uint32_t out[LT_DECOMPOSED_MAX])
{
    if (c - S_BASE < S_COUNT) {
        uint32_t s = c - S_BASE;
        out[0] = L_BASE + s / N_COUNT;
        out[1] = V_BASE + s % N_COUNT / T_COUNT;
        if (s % T_COUNT == 0) return 2;
        out[2] = T_BASE + s % T_COUNT;
        return 3;
    }
    const lt_unicode_record *r = lt_unicode_mapping(c);
    size_t n = compatibility ? r->n_nfkd : r->n_nfd;
    if (n == 0) {
        out[0] = c;
        return 1;
    }
    memcpy(out, lt_unicode_pool + (compatibility ? r->nfkd : r->nfd), n * sizeof *out);
    return n;
}

uint32_t lt_unicode_compose(uint32_t first, uint32_t second)
{
    if (first - L_BASE < L_COUNT && second - V_BASE < V_COUNT)
        return S_BASE + ((first - L_BASE) * V_COUNT + (second - V_BASE)) * T_COUNT;
    if (first - S_BASE < S_COUNT && (first - S_BASE) % T_COUNT == 0 && second - (T_BASE + 1) < T_COUNT - 1)
        return first + (second - T_BASE);
    size_t low = 0, high = lt_unicode_n_pairs;
    while (low < high) {
        size_t middle = (low + high) / 2;
        const lt_unicode_pair *p = &lt_unicode_pairs[middle];
        if (p->first == first && p->second == second) return p->composed;
        if (p->first < first || (p->first == first && p->second < second)) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return 0;
}

size_t lt_unicode_lower(uint32_t c, uint32_t out[3])
{
    const lt_unicode_record *r = lt_unicode_mapping(c);
    if (r->n_lower == 0) {
        out[0] = c;
        return 1;
    }
    memcpy(out, lt_unicode_pool + r->lower, r->n_lower * sizeof *out);
    return r->n_lower;
}

/* ------------------------------------------------------------------ grapheme clusters */

static bool hangul_l(uint32_t c)
{
    return (c >= 0x1100 && c <= 0x115F) || (c >= 0xA960 && c <= 0xA97C);
}
static bool hangul_v(uint32_t c)
{
    return (c >= 0x1160 && c <= 0x11A7) || (c >= 0xD7B0 && c <= 0xD7C6);
}
static bool hangul_t(uint32_t c)
{
    return (c >= 0x11A8 && c <= 0x11FF) || (c >= 0xD7CB && c <= 0xD7FB);
}
static bool hangul_s(uint32_t c)
{
    return c - S_BASE < S_COUNT;
}
static bool indicator(uint32_t c)
{
    return c >= 0x1F1E6 && c <= 0x1F1FF;
}

/* The rules GB3 to GB13 in order; GB1 when nothing came before. */
static bool breaks(const lt_grapheme *g, uint32_t c, uint32_t flags)
{
    uint32_t p = g->previous;
    if (!g->started) return true;
    if (p == '\r' && c == '\n') return false;
    if ((g->flags | flags) & LT_U_G_CONTROL) return true;
    if (hangul_l(p) && (hangul_l(c) || hangul_v(c) || hangul_s(c))) return false;
    if ((hangul_v(p) || (hangul_s(p) && (p - S_BASE) % T_COUNT == 0)) && (hangul_v(c) || hangul_t(c))) return false;
    if ((hangul_t(p) || hangul_s(p)) && hangul_t(c)) return false;
    if (flags & LT_U_G_EXTENDS) return false;
    if (g->flags & LT_U_G_PREPENDS) return false;
    if (g->conjunct == 2 && (flags & LT_U_G_CONSONANT)) return false;
    if (p == 0x200D && g->picture && (flags & LT_U_G_PICTURE)) return false;
    return !(g->odd_indicator && indicator(c));
}

bool lt_grapheme_break(lt_grapheme *g, uint32_t c, uint32_t flags)
{
    bool broken = breaks(g, c, flags);
    g->odd_indicator = indicator(c) && !(g->odd_indicator && !broken);
    g->picture = (flags & LT_U_G_PICTURE) || (g->picture && !broken && (flags & LT_U_G_EXTENDS));
    if (flags & LT_U_G_CONSONANT) {
        g->conjunct = 1;
    } else if (g->conjunct && (flags & LT_U_G_LINKER)) {
        g->conjunct = 2;
    } else if (!(g->conjunct && (flags & LT_U_G_CONJUNCT_EXTEND))) {
        g->conjunct = 0;
    }
    g->previous = c;
    g->flags = flags;
    g->started = true;
    return broken;
}
