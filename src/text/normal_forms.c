/* Normal forms. A text without characters that the form may touch (one flag each) is in the form already, which is nearly every
 * text. Otherwise only the segments around such characters are worked on: from the last untouchable starter before them to the
 * next one after them, since nothing composes or reorders across those.
 *
 * Which character of the result is aligned to which of the source follows Hugging Face tokenizers: of a decomposed character
 * the first part replaces it and the others are inserted; marks keep what they are when they are reordered; a composed
 * character adds up what its parts are, less one for each part it swallowed. */
#include "text/normal_forms.h"

void lt_form_scratch_free(lt_form_scratch *s)
{
    if (!s->mem) return;
    lt_free(s->mem, s->chars);
    lt_free(s->mem, s->sorted);
    lt_free(s->mem, s->held);
    *s = (lt_form_scratch){ .mem = s->mem };
}

static uint32_t slow_flag(lt_form form)
{
    switch (form) {
    case LT_NFC: return LT_U_NFC_SLOW;
    case LT_NFD: return LT_U_NFD_SLOW;
    case LT_NFKC: return LT_U_NFKC_SLOW;
    default: return LT_U_NFKD_SLOW;
    }
}

/* Offset of the first character from i on that has the flag, n if there is none; *last is the start of the character before
 * it, or left alone if there is none. */
static size_t find_slow(const uint8_t *s, size_t i, size_t n, uint32_t flag, size_t *last)
{
    while (i < n) {
        uint64_t word;
        while (n - i >= 8) {
            memcpy(&word, s + i, 8);
            if (word & 0x8080808080808080u) break;
            *last = i + 7;
            i += 8;
        }
        if (i >= n) break;
        size_t size;
        uint32_t c = lt_utf8_at(s, i, &size);
        if (c >= 0x80 && (lt_unicode(c) & flag)) return i;
        *last = i;
        i += size;
    }
    return n;
}

/* Decomposes s[start, end) into scratch->chars; returns their number, or SIZE_MAX without memory. */
static size_t decompose(lt_form_scratch *scratch, const uint8_t *s, size_t start, size_t end, bool compatibility)
{
    size_t n = 0;
    for (size_t i = start, size; i < end; i += size) {
        uint32_t parts[LT_DECOMPOSED_MAX];
        size_t k = lt_unicode_decompose(lt_utf8_at(s, i, &size), compatibility, parts);
        if (n + k > scratch->chars_capacity && !LT_GROW(scratch->mem, scratch->chars, scratch->chars_capacity, n + k))
            return SIZE_MAX;
        for (size_t j = 0; j < k; j++) scratch->chars[n++] = (lt_form_char){ parts[j], lt_unicode_ccc(parts[j]), j > 0 };
    }
    return n;
}

/* Sorts one run of marks by combining class, keeping the order of equal ones: insertion for short runs, counting for long. */
static bool sort_marks(lt_form_scratch *scratch, lt_form_char *run, size_t n)
{
    if (n <= 24) {
        for (size_t i = 1; i < n; i++) {
            lt_form_char x = run[i];
            size_t j = i;
            for (; j > 0 && run[j - 1].ccc > x.ccc; j--) run[j] = run[j - 1];
            run[j] = x;
        }
        return true;
    }
    if (n > scratch->sorted_capacity && !LT_GROW(scratch->mem, scratch->sorted, scratch->sorted_capacity, n)) return false;
    size_t count[257] = { 0 };
    for (size_t i = 0; i < n; i++) count[run[i].ccc + 1]++;
    for (size_t i = 1; i < 257; i++) count[i] += count[i - 1];
    for (size_t i = 0; i < n; i++) scratch->sorted[count[run[i].ccc]++] = run[i];
    memcpy(run, scratch->sorted, n * sizeof *run);
    return true;
}

static bool reorder(lt_form_scratch *scratch, size_t n)
{
    lt_form_char *chars = scratch->chars;
    for (size_t i = 0; i < n;) {
        if (chars[i].ccc == 0) {
            i++;
            continue;
        }
        size_t j = i;
        while (j < n && chars[j].ccc != 0) j++;
        if (j - i > 1 && !sort_marks(scratch, chars + i, j - i)) return false;
        i = j;
    }
    return true;
}

static void flush_held(lt_rewrite *r, const lt_form_char *held, size_t *n)
{
    for (size_t i = 0; i < *n; i++) lt_rewrite_put(r, held[i].c, held[i].change);
    *n = 0;
}

/* Canonical composition of chars[0, n), written out as it becomes certain. Marks that found no partner are held until the
 * starter before them is complete. */
static bool compose(lt_form_scratch *scratch, size_t n, lt_rewrite *r)
{
    lt_form_char starter = { 0, 0, 0 };
    bool have_starter = false, have_last = false;
    uint8_t last = 0;
    size_t n_held = 0;
    for (size_t i = 0; i < n; i++) {
        lt_form_char x = scratch->chars[i];
        if (!have_starter) {
            if (x.ccc != 0) {
                lt_rewrite_put(r, x.c, x.change);
            } else {
                starter = x;
                have_starter = true;
            }
            continue;
        }
        if (have_last && last >= x.ccc) { /* x is blocked from the starter */
            if (x.ccc == 0) {
                lt_rewrite_put(r, starter.c, starter.change);
                flush_held(r, scratch->held, &n_held);
                starter = x;
                have_last = false;
                continue;
            }
        } else {
            uint32_t whole = lt_unicode_compose(starter.c, x.c);
            if (whole) {
                starter.c = whole;
                starter.change += x.change - 1;
                continue;
            }
            if (!have_last && x.ccc == 0) {
                lt_rewrite_put(r, starter.c, starter.change);
                starter = x;
                continue;
            }
        }
        if (n_held == scratch->held_capacity && !LT_GROW(scratch->mem, scratch->held, scratch->held_capacity, n_held + 1))
            return false;
        scratch->held[n_held++] = x;
        last = x.ccc;
        have_last = true;
    }
    if (have_starter) lt_rewrite_put(r, starter.c, starter.change);
    flush_held(r, scratch->held, &n_held);
    return true;
}

lattice_status lt_normal_form(lt_form form, lt_form_scratch *scratch, lt_view *view, lt_work *out, bool track, lattice_error *err)
{
    uint32_t flag = slow_flag(form);
    size_t last = SIZE_MAX, slow = find_slow(view->data, 0, view->n, flag, &last);
    if (slow == view->n) return LATTICE_OK;

    lt_view in = *view;
    lt_rewrite r = lt_rewrite_begin(&in, out, track);
    while (r.at < in.n) {
        size_t start = slow < in.n && last != SIZE_MAX && last >= r.at ? last : slow;
        lt_rewrite_copy(&r, start - r.at);
        if (slow == in.n) break;
        size_t end = slow;
        while (end < in.n) {
            size_t size;
            if (!(lt_unicode(lt_utf8_at(in.data, end, &size)) & flag)) break;
            end += size;
        }
        size_t n = decompose(scratch, in.data, start, end, form == LT_NFKC || form == LT_NFKD);
        if (n == SIZE_MAX || !reorder(scratch, n)) return lt_no_memory(err, in.n, "a normalised text");
        if (form == LT_NFC || form == LT_NFKC) {
            if (!compose(scratch, n, &r)) return lt_no_memory(err, in.n, "a normalised text");
        } else {
            for (size_t i = 0; i < n; i++) lt_rewrite_put(&r, scratch->chars[i].c, scratch->chars[i].change);
        }
        r.at = end;
        last = SIZE_MAX;
        slow = find_slow(in.data, end, in.n, flag, &last);
    }
    return lt_rewrite_end(&r, view, err);
}
