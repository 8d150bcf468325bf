/* Precompiled: the file is a byte count, the units of a darts-clone double array (little-endian) and the replacement strings.
 *
 * A unit packs: bit 31 a value (the rest is it), else label in bits 0..7, "has a leaf" in bit 8, offset in bits 10.. (shifted
 * by another 8 if bit 9 is set); child = position ^ offset ^ byte. Positions are checked against the array at every step, so
 * that a hostile file can do nothing but answer "no match".
 *
 * Hugging Face tokenizers asks for the whole of a grapheme cluster of fewer than six bytes, and takes the *shortest* key that
 * begins it; if there is none, each character is asked alone. Both are kept: published models were converted with it. */
#include "text/charsmap.h"

static int base64_value(uint8_t c)
{
    if (c >= 'A' && c <= 'Z') return c - 'A';
    if (c >= 'a' && c <= 'z') return c - 'a' + 26;
    if (c >= '0' && c <= '9') return c - '0' + 52;
    if (c == '+') return 62;
    return c == '/' ? 63 : -1;
}

/* Standard alphabet with padding; returns the bytes written, or SIZE_MAX if the text is malformed. */
static size_t base64_decode(lt_str text, uint8_t *out)
{
    size_t n = 0, length = text.len;
    if (length % 4 != 0) return SIZE_MAX;
    for (size_t k = 0; k < 2 && length > 0 && text.data[length - 1] == '='; k++) length--;
    uint32_t bits = 0;
    int have = 0;
    for (size_t i = 0; i < length; i++) {
        int value = base64_value((uint8_t)text.data[i]);
        if (value < 0) return SIZE_MAX;
        bits = bits << 6 | (uint32_t)value;
        have += 6;
        if (have >= 8) {
            have -= 8;
            out[n++] = (uint8_t)(bits >> have);
        }
    }
    return n;
}

static uint32_t u32_at(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static size_t unit_offset(uint32_t unit)
{
    return (size_t)(unit >> 10) << ((unit & (1u << 9)) >> 6);
}

/* The replacement of the shortest key that begins key[0, n); false if none does. */
static bool find(const lt_charsmap *map, const uint8_t *key, size_t n, lt_str *out)
{
    if (map->n_units == 0) return false;
    size_t at = unit_offset(map->units[0]);
    for (size_t i = 0; i < n; i++) {
        if (key[i] == 0) return false;
        at ^= key[i];
        if (at >= map->n_units) return false;
        uint32_t unit = map->units[at];
        if ((unit & (0x80000000u | 0xFF)) != key[i]) return false;
        at ^= unit_offset(unit);
        if (unit & 0x100) {
            if (at >= map->n_units) return false;
            size_t place = map->units[at] & 0x7FFFFFFFu;
            if (place >= map->n_strings) return false;
            const char *text = map->strings + place;
            const char *end = memchr(text, 0, map->n_strings - place);
            *out = (lt_str){ text, end ? (size_t)(end - text) : map->n_strings - place };
            return true;
        }
    }
    return false;
}

lattice_status lt_charsmap_read(lt_arena *arena, lt_str base64, const char *where, lt_charsmap *map, lattice_error *err)
{
    uint8_t *bytes = lt_arena_alloc(arena, base64.len / 4 * 3 + 1);
    if (!bytes) return lt_no_memory(err, base64.len, "a precompiled charsmap");
    size_t n = base64_decode(base64, bytes);
    if (n == SIZE_MAX) return lt_fail(err, LATTICE_ERR_FORMAT, "%s: precompiled_charsmap is not base64", where);
    if (n < 4) return lt_fail(err, LATTICE_ERR_FORMAT, "%s: precompiled_charsmap is cut short", where);
    size_t size = u32_at(bytes);
    if (size > n - 4 || size % 4 != 0)
        return lt_fail(err, LATTICE_ERR_FORMAT, "%s: precompiled_charsmap holds %zu bytes, its trie says %zu", where, n, size);
    *map = (lt_charsmap){ .n_units = size / 4, .strings = (const char *)bytes + 4 + size, .n_strings = n - 4 - size };
    uint32_t *units = lt_arena_array(arena, map->n_units + 1, sizeof *units);
    if (!units) return lt_no_memory(err, size, "a precompiled charsmap");
    for (size_t i = 0; i < map->n_units; i++) units[i] = u32_at(bytes + 4 + 4 * i);
    map->units = units;
    for (size_t i = 0; i < map->n_strings;) {
        size_t length = strnlen(map->strings + i, map->n_strings - i);
        for (size_t k = 0; k < length;) {
            size_t step = 1;
            uint8_t c = (uint8_t)map->strings[i + k];
            if (c >= 0x80) {
                step = c < 0xC2 || c > 0xF4 ? 0 : c < 0xE0 ? 2 : c < 0xF0 ? 3 : 4;
                for (size_t j = 1; j < step; j++) {
                    if (k + j >= length || ((uint8_t)map->strings[i + k + j] & 0xC0) != 0x80) step = 0;
                }
            }
            if (step == 0)
                return lt_fail(err, LATTICE_ERR_FORMAT, "%s: precompiled_charsmap has a replacement that is not UTF-8", where);
            k += step;
        }
        i += length + 1;
    }
    for (uint8_t c = 0; c < 128; c++) {
        lt_str unused;
        map->ascii[c] = find(map, &c, 1, &unused);
    }
    return LATTICE_OK;
}

/* A rewriting that holds its last character back: a replacement that removes characters is charged to the one before. */
typedef struct writer {
    lt_rewrite r;
    bool held;
    uint32_t c;
    long change;
} writer;

static void flush(writer *w)
{
    if (w->held) lt_rewrite_put(&w->r, w->c, w->change);
    w->held = false;
}

static void put(writer *w, uint32_t c, long change)
{
    flush(w);
    w->held = true;
    w->c = c;
    w->change = change;
}

static long count_characters(const uint8_t *s, size_t n)
{
    long count = 0;
    for (size_t i = 0; i < n; i++) count += (s[i] & 0xC0) != 0x80;
    return count;
}

static void replace(writer *w, const uint8_t *old, size_t n_old, lt_str text)
{
    const uint8_t *fresh = (const uint8_t *)text.data;
    long before = count_characters(old, n_old), after = count_characters(fresh, text.len), k = 0;
    for (size_t i = 0, size; i < text.len; i += size, k++) {
        uint32_t c = lt_utf8_at(fresh, i, &size);
        put(w, c, k >= before ? 1 : 0);
    }
    if (after < before && w->held) w->change += after - before;
}

/* One cluster s[0, n). */
static void cluster(const lt_charsmap *map, writer *w, const uint8_t *s, size_t n)
{
    lt_str text;
    if (n < 6 && find(map, s, n, &text)) {
        replace(w, s, n, text);
        return;
    }
    for (size_t i = 0, size; i < n; i += size) {
        uint32_t c = lt_utf8_at(s, i, &size);
        if (find(map, s + i, size, &text)) {
            replace(w, s + i, size, text);
        } else {
            put(w, c, 0);
        }
    }
}

/* Characters that are always a cluster of their own when the next one is such, too. */
static bool plain(uint32_t c, uint32_t flags)
{
    const uint32_t special =
        LT_U_G_EXTENDS | LT_U_G_PREPENDS | LT_U_G_CONTROL | LT_U_G_PICTURE | LT_U_G_CONSONANT | LT_U_G_LINKER;
    return !(flags & special) &&
           (c < 0x1100 || (c > 0x11FF && c < 0xA960) || (c > 0xA97C && c < 0xAC00) || (c > 0xD7FB && c < 0x1F1E6) || c > 0x1F1FF);
}

/* End of the run of characters from i on that need no rewriting: each is a cluster of its own without a replacement. */
static size_t skip_unchanged(const lt_charsmap *map, const uint8_t *s, size_t i, size_t n)
{
    size_t last = i; /* the last character may still be joined by what follows the run */
    while (i < n) {
        if (s[i] < 0x80) {
            if (map->ascii[s[i]] || s[i] == '\r') return i;
            last = i++;
            continue;
        }
        size_t size;
        uint32_t c = lt_utf8_at(s, i, &size), flags = lt_unicode(c);
        lt_str unused;
        if (!plain(c, flags)) return last;
        if (find(map, s + i, size, &unused)) return i;
        last = i;
        i += size;
    }
    return n;
}

lattice_status lt_charsmap_apply(const lt_charsmap *map, lt_view *view, lt_work *out, bool track, lattice_error *err)
{
    size_t start = skip_unchanged(map, view->data, 0, view->n);
    if (start == view->n) return LATTICE_OK;
    lt_view in = *view;
    writer w = { .r = lt_rewrite_begin(&in, out, track) };
    for (size_t i = 0; i < in.n;) {
        if (start > i) {
            flush(&w);
            /* the last character stays held, in case that what follows is charged to it */
            size_t last = lt_utf8_before(in.data, start), size;
            if (w.r.at == i) {
                lt_rewrite_copy(&w.r, last - i);
                i = last;
            }
            for (; i < start; i += size)
                put(&w, lt_utf8_at(in.data, i, &size), 0); /* more than one only behind a removed start */
            if (i == in.n) break;
        }
        lt_grapheme g = { 0 };
        size_t size, end = i;
        do {
            uint32_t c = lt_utf8_at(in.data, end, &size);
            if (lt_grapheme_break(&g, c, lt_unicode(c)) && end > i) break;
            end += size;
        } while (end < in.n);
        cluster(map, &w, in.data + i, end - i);
        i = end;
        start = skip_unchanged(map, in.data, i, in.n);
    }
    flush(&w);
    return lt_rewrite_end(&w.r, view, err);
}
