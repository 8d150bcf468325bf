/* Unicode as Hugging Face tokenizers sees it: one table of properties, one of mappings, for every code point.
 *
 * The data was asked of that library itself (tools/make_unicode_tables.py), because its parts carry different Unicode versions;
 * no installed library is consulted, so the answers do not change with the machine.
 * Properties: stage1[c >> 7] is a block of 128 classes in stage2, a class is a set of flags. Mappings: the same two stages lead
 * to a record of strings in a pool of code points. Hangul syllables (de)compose by arithmetic and have no records. */
#ifndef LT_TEXT_UNICODE_H
#define LT_TEXT_UNICODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define LT_U_LETTER (1u << 0)             /* \p{L}, \p{N}, \p{M}, \s, \w of splitting expressions */
#define LT_U_NUMBER (1u << 1)
#define LT_U_MARK (1u << 2)
#define LT_U_SPACE (1u << 3)
#define LT_U_REGEX_WORD (1u << 4)
#define LT_U_WHITE (1u << 5)              /* White_Space: pre-tokenizers, stripping, added tokens */
#define LT_U_CONTROL (1u << 6)            /* dropped by BertNormalizer's clean_text */
#define LT_U_CHINESE (1u << 7)            /* surrounded by spaces by BertNormalizer */
#define LT_U_NONSPACING (1u << 8)         /* dropped by BertNormalizer's strip_accents */
#define LT_U_COMBINING (1u << 9)          /* dropped by StripAccents */
#define LT_U_LOWER (1u << 10)             /* has another lower case */
#define LT_U_NFD_SLOW (1u << 11)          /* may change in, or change its neighbours in, that normal form; text without */
#define LT_U_NFKD_SLOW (1u << 12)         /* such characters is in the form already */
#define LT_U_NFC_SLOW (1u << 13)
#define LT_U_NFKC_SLOW (1u << 14)
#define LT_U_PUNCTUATION (1u << 15)       /* BertPreTokenizer and Punctuation */
#define LT_U_NUMERIC (1u << 16)           /* the pre-tokenizer Digits */
#define LT_U_WORD (1u << 17)              /* \w of the pre-tokenizer Whitespace and of single_word */
#define LT_U_G_EXTENDS (1u << 18)         /* grapheme clusters: joins the character before it */
#define LT_U_G_PREPENDS (1u << 19)
#define LT_U_G_CONTROL (1u << 20)
#define LT_U_G_PICTURE (1u << 21)
#define LT_U_G_CONSONANT (1u << 22)       /* Indic conjuncts */
#define LT_U_G_LINKER (1u << 23)
#define LT_U_G_CONJUNCT_EXTEND (1u << 24)

/* General categories, by the same regular expressions, in the flags' upper bits; 0: unassigned. */
#define LT_U_CATEGORY_SHIFT 27
// clang-format off
enum {
    LT_U_LU = 1, LT_U_LL, LT_U_LT, LT_U_LM, LT_U_LO, LT_U_MN, LT_U_MC, LT_U_ME, LT_U_ND, LT_U_NL, LT_U_NO, LT_U_PC, LT_U_PD, LT_U_PS,
    LT_U_PE, LT_U_PI, LT_U_PF, LT_U_PO, LT_U_SM, LT_U_SC, LT_U_SK, LT_U_SO, LT_U_ZS, LT_U_ZL, LT_U_ZP, LT_U_CC, LT_U_CF, LT_U_CO,
};
// clang-format on

typedef struct lt_unicode_record {
    uint16_t nfd, nfkd, lower;      /* places in the pool */
    uint8_t n_nfd, n_nfkd, n_lower; /* code points; 0: maps to itself */
    uint8_t ccc;                    /* canonical combining class */
} lt_unicode_record;

typedef struct lt_unicode_pair {
    uint32_t first, second, composed;
} lt_unicode_pair;

extern const uint32_t lt_unicode_flags[256];
extern const uint16_t lt_unicode_stage1[];
extern const uint8_t lt_unicode_stage2[];
extern const uint16_t lt_unicode_map1[];
extern const uint16_t lt_unicode_map2[];
extern const lt_unicode_record lt_unicode_records[];
extern const uint32_t lt_unicode_pool[];
extern const lt_unicode_pair lt_unicode_pairs[]; /* sorted by first, second */
extern const size_t lt_unicode_n_pairs;

/* Flags of a code point, at most U+10FFFF. */
static inline uint32_t lt_unicode(uint32_t c)
{
    return lt_unicode_flags[lt_unicode_stage2[(size_t)lt_unicode_stage1[c >> 7] << 7 | (c & 127)]];
}

static inline const lt_unicode_record *lt_unicode_mapping(uint32_t c)
{
    return &lt_unicode_records[lt_unicode_map2[(size_t)lt_unicode_map1[c >> 7] << 7 | (c & 127)]];
}

static inline uint8_t lt_unicode_ccc(uint32_t c)
{
    return lt_unicode_mapping(c)->ccc;
}

/* The canonical (or compatibility) decomposition of c, at most LT_DECOMPOSED_MAX code points; c itself if it has none. */
#define LT_DECOMPOSED_MAX 20
size_t lt_unicode_decompose(uint32_t c, bool compatibility, uint32_t out[LT_DECOMPOSED_MAX]);

/* The primary composite of two code points, 0 if there is none. */
uint32_t lt_unicode_compose(uint32_t first, uint32_t second);

/* Lower case, at most 3 code points; c itself if it has no other. */
size_t lt_unicode_lower(uint32_t c, uint32_t out[3]);

/* Extended grapheme clusters (UAX 29) over decoded code points, one after the other. */
typedef struct lt_grapheme {
    uint32_t previous, flags; /* last code point and its flags */
    bool started;
    bool odd_indicator; /* an odd number of regional indicators ends here */
    bool picture;       /* a picture and its extenders end here */
    int conjunct;       /* 1: a consonant and extenders end here, 2: with a linker among them */
} lt_grapheme;

/* Whether a cluster starts before `c`, which has these flags. */
bool lt_grapheme_break(lt_grapheme *state, uint32_t c, uint32_t flags);

/* Decodes the character at s[i], which must be valid UTF-8, and sets *size. */
static inline uint32_t lt_utf8_at(const uint8_t *s, size_t i, size_t *size)
{
    uint32_t c = s[i];
    if (c < 0x80) {
        *size = 1;
        return c;
    }
    if (c < 0xE0) {
        *size = 2;
        return (c & 0x1F) << 6 | (s[i + 1] & 0x3Fu);
    }
    if (c < 0xF0) {
        *size = 3;
        return (c & 0x0F) << 12 | (s[i + 1] & 0x3Fu) << 6 | (s[i + 2] & 0x3Fu);
    }
    *size = 4;
    return (c & 0x07) << 18 | (s[i + 1] & 0x3Fu) << 12 | (s[i + 2] & 0x3Fu) << 6 | (s[i + 3] & 0x3Fu);
}

/* Start of the character before offset i > 0 in valid UTF-8. */
static inline size_t lt_utf8_before(const uint8_t *s, size_t i)
{
    do i--;
    while (i > 0 && (s[i] & 0xC0) == 0x80);
    return i;
}

#endif
