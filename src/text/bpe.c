/* Byte-pair encoding (Sennrich et al. 2016): of all adjacent pairs that may merge, the one of lowest rank is merged first, the
 * leftmost on a tie, until none is left.
 *
 * Merges are a hash table from the pair of ids to (rank, new id), sixteen bytes a slot, so that a look-up is one cache line.
 * A short word keeps the rank of every adjacent pair in an array that is scanned for its minimum; a longer one sorts (rank,
 * place) of its pairs once and puts those that merging makes into a heap, where an entry whose pair has since changed is dropped
 * when it comes up: n symbols take O(n log n).
 *
 * A word of more symbols than a window is merged window by window, in memory that stays in the cache. Windows overlap, and are
 * joined where both have the same token. That is exact: a sequence of tokens is what merging makes of its text if and only if
 * each two neighbours are what merging makes of theirs, because up to the first merge across a border either side goes through
 * the same merges as it would alone. Windows without a token in common make the whole word start again with larger ones.
 * With byte-level spans the units are raw bytes, looked up by a table of 256 ids: texts are never put into GPT-2's alphabet. */
#include "base/utf8.h"
#include "text/byte_alphabet.h"
#include "text/subword.h"

#define SHORT_WORD 48 /* symbols up to which scanning beats the heap; measured on English, German and Chinese text */
#define NONE UINT32_MAX

/* ------------------------------------------------------------------ the table of merges */

static inline size_t slot_of(uint32_t shift, uint32_t left, uint32_t right)
{
    return (size_t)(((uint64_t)left << 32 | right) * UINT64_C(0x9E3779B97F4A7C15) >> shift);
}

static inline lt_pair find_merge(const lt_bpe *bpe, uint32_t left, uint32_t right)
{
    if (bpe->n_slots == 0) return (lt_pair){ NONE, NONE };
    for (size_t i = slot_of(bpe->shift, left, right);; i = (i + 1) & (bpe->n_slots - 1)) {
        const lt_merge *merge = &bpe->merges[i];
        if (merge->left == left && merge->right == right) return (lt_pair){ merge->rank, merge->id };
        if (merge->left == NONE) return (lt_pair){ NONE, NONE };
    }
}

/* Keeps at least 3/8 of the slots empty. */
static bool reserve_merges(lt_bpe *bpe, const lattice_allocator *mem, size_t n)
{
    size_t slots = bpe->n_slots == 0 ? 64 : bpe->n_slots;
    while (slots / 8 * 5 < n) slots *= 2;
    if (slots == bpe->n_slots) return true;
    lt_merge *merges = lt_alloc_array(mem, slots, sizeof *merges);
    if (merges == NULL) return false;
    memset(merges, 0xff, slots * sizeof *merges);
    uint32_t shift = 64 - (uint32_t)__builtin_ctzll(slots);
    for (size_t i = 0; i < bpe->n_slots; i++) {
        if (bpe->merges[i].left == NONE) continue;
        size_t at = slot_of(shift, bpe->merges[i].left, bpe->merges[i].right);
        while (merges[at].left != NONE) at = (at + 1) & (slots - 1);
        merges[at] = bpe->merges[i];
    }
    lt_free(mem, bpe->merges);
    bpe->merges = merges;
    bpe->n_slots = slots;
    bpe->shift = shift;
    return true;
}

/* A pair that is listed twice has its later rank, as Hugging Face reads it. */
static bool add_merge(lt_bpe *bpe, const lattice_allocator *mem, lt_merge merge)
{
    if (!reserve_merges(bpe, mem, bpe->n_merges + 1)) return false;
    size_t i = slot_of(bpe->shift, merge.left, merge.right);
    while (bpe->merges[i].left != NONE && (bpe->merges[i].left != merge.left || bpe->merges[i].right != merge.right))
        i = (i + 1) & (bpe->n_slots - 1);
    bpe->n_merges += bpe->merges[i].left == NONE;
    bpe->merges[i] = merge;
    return true;
}

/* Reading the list. A published one has hundreds of thousands of merges, and each looks up three spellings in tables larger than
 * a core's cache. So merges go through a short queue: when one enters, the slots of its tokens are asked for; later what the
 * slots point to; it is resolved when it leaves. The token a merge makes is nearly always the one after the last merge's. */

#define QUEUE 16

typedef struct listed {
    lt_str left, right;
    uint32_t left_hash, right_hash;
} listed;

typedef struct merges_reading {
    lt_subword *model;
    lt_json *json;
    bool *unresolved; /* NULL: a merge that makes no token is an error */
    lt_buf joined;
    listed queue[QUEUE];
    size_t entered, left;    /* merges that entered the queue, and that left it */
    uint32_t last;           /* the token the last merge made */
    lt_merge waiting[QUEUE]; /* resolved merges whose slots in the table of merges are on their way */
    size_t n_waiting;        /* that ever waited; all but the last QUEUE are in the table */
} merges_reading;

static lattice_status find_token(const merges_reading *r, uint32_t hash, lt_str spelling, uint32_t *id)
{
    *id = lt_vocab_find_hashed(&r->model->vocab, hash, spelling.data, spelling.len);
    if (*id != LT_VOCAB_NO_ID) return LATTICE_OK;
    return lt_json_fail(r->json, "merge %zu: token '%.*s' is not in the vocabulary", r->left, LT_STR_ARG(spelling));
}

/* The id of left‖right, the continuing prefix of the right one dropped; LT_VOCAB_NO_ID where that may be settled later. */
static lattice_status find_merged(merges_reading *r, lt_str left, lt_str right, uint32_t *id)
{
    const lt_subword *model = r->model;
    if (right.len < model->prefix.len)
        return lt_json_fail(r->json, "merge %zu: token '%.*s' is shorter than the continuing prefix", r->left, LT_STR_ARG(right));
    right.data += model->prefix.len;
    right.len -= model->prefix.len;
    lt_str next = lt_vocab_token(&model->vocab, r->last + 1);
    if (next.data != NULL && next.len == left.len + right.len && memcmp(next.data, left.data, left.len) == 0 &&
        memcmp(next.data + left.len, right.data, right.len) == 0) {
        *id = r->last = r->last + 1;
        return LATTICE_OK;
    }
    lt_buf_clear(&r->joined);
    lt_buf_append(&r->joined, left.data, left.len);
    lt_buf_append(&r->joined, right.data, right.len);
    if (r->joined.failed) return lt_no_memory(r->json->err, left.len + right.len, "merges");
    *id = lt_vocab_find(&model->vocab, r->joined.data, r->joined.len);
    if (*id == LT_VOCAB_NO_ID && r->unresolved == NULL)
        return lt_json_fail(r->json, "merge %zu makes '%.*s', which is not in the vocabulary", r->left,
                            LT_STR_ARG(lt_buf_str(&r->joined)));
    r->last = *id;
    return LATTICE_OK;
}

static lattice_status add_listed(merges_reading *r, lt_str left, uint32_t left_id, lt_str right, uint32_t right_id)
{
    lt_merge merge = { .left = left_id, .right = right_id, .rank = (uint32_t)r->left };
    LT_TRY(find_merged(r, left, right, &merge.id));
    r->left++;
    if (merge.id == LT_VOCAB_NO_ID) {
        *r->unresolved = true;
        return LATTICE_OK;
    }
    lt_bpe *bpe = &r->model->bpe;
    lt_merge *place = &r->waiting[r->n_waiting % QUEUE];
    if (r->n_waiting >= QUEUE && !add_merge(bpe, r->model->mem, *place))
        return lt_no_memory(r->json->err, bpe->n_merges * sizeof merge, "merges");
    *place = merge;
    r->n_waiting++;
    __builtin_prefetch(&bpe->merges[slot_of(bpe->shift, left_id, right_id)], 1);
    return LATTICE_OK;
}

static lattice_status add_waiting(merges_reading *r)
{
    lt_bpe *bpe = &r->model->bpe;
    for (size_t i = r->n_waiting < QUEUE ? 0 : r->n_waiting - QUEUE; i < r->n_waiting; i++) {
        if (!add_merge(bpe, r->model->mem, r->waiting[i % QUEUE]))
            return lt_no_memory(r->json->err, bpe->n_merges * sizeof(lt_merge), "merges");
    }
    return LATTICE_OK;
}

/* Resolves the merge at the head of the queue. */
static lattice_status leave_queue(merges_reading *r)
{
    const listed *m = &r->queue[r->left % QUEUE];
    uint32_t left, right;
    LT_TRY(find_token(r, m->left_hash, m->left, &left));
    LT_TRY(find_token(r, m->right_hash, m->right, &right));
    return add_listed(r, m->left, left, m->right, right);
}

static lattice_status empty_queue(merges_reading *r)
{
    while (r->left < r->entered) LT_TRY(leave_queue(r));
    return LATTICE_OK;
}

static lattice_status enter_queue(merges_reading *r, lt_str left, lt_str right)
{
    const lt_vocab *vocab = &r->model->vocab;
    listed *m = &r->queue[r->entered % QUEUE];
    *m = (listed){ left, right, lt_vocab_hash(left.data, left.len), lt_vocab_hash(right.data, right.len) };
    lt_vocab_fetch_slot(vocab, m->left_hash);
    lt_vocab_fetch_slot(vocab, m->right_hash);
    if (r->entered >= r->left + QUEUE / 3) {
        m = &r->queue[(r->entered - QUEUE / 3) % QUEUE];
        lt_vocab_fetch_entry(vocab, m->left_hash);
        lt_vocab_fetch_entry(vocab, m->right_hash);
    }
    if (r->entered >= r->left + 2 * QUEUE / 3) {
        m = &r->queue[(r->entered - 2 * QUEUE / 3) % QUEUE];
        lt_vocab_fetch_spelling(vocab, m->left_hash);
        lt_vocab_fetch_spelling(vocab, m->right_hash);
    }
    r->entered++;
    return r->entered - r->left == QUEUE ? leave_queue(r) : LATTICE_OK;
}

/* A string that is a slice of the text stays; one that was decoded gives way to the next. */
static bool stays(const lt_json *json, lt_str s)
{
    return (uintptr_t)s.data >= (uintptr_t)json->text && (uintptr_t)s.data < (uintptr_t)(json->text + json->size);
}

static lattice_status read_right(lt_json *json, size_t index, lt_str *right)
{
    bool more;
    LT_TRY(lt_json_next_element(json, &more));
    if (!more) return lt_json_fail(json, "merge %zu is not a list of two tokens", index);
    LT_TRY(lt_json_string(json, right));
    LT_TRY(lt_json_next_element(json, &more));
    return more ? lt_json_fail(json, "merge %zu is not a list of two tokens", index) : LATTICE_OK;
}

/* ["left", "right"] */
static lattice_status read_pair(merges_reading *r)
{
    lt_json *json = r->json;
    lt_str left, right;
    bool more;
    LT_TRY(lt_json_begin_array(json));
    LT_TRY(lt_json_next_element(json, &more));
    if (!more) return lt_json_fail(json, "merge %zu is not a list of two tokens", r->entered);
    LT_TRY(lt_json_string(json, &left));
    if (stays(json, left)) {
        LT_TRY(read_right(json, r->entered, &right));
        if (stays(json, right)) return enter_queue(r, left, right);
    }
    /* One of them was decoded: the queue is emptied, and left is known by its id before right takes its place. */
    uint32_t left_id, right_id;
    bool right_read = stays(json, left);
    LT_TRY(empty_queue(r));
    LT_TRY(find_token(r, lt_vocab_hash(left.data, left.len), left, &left_id));
    if (!right_read) LT_TRY(read_right(json, r->entered, &right));
    LT_TRY(find_token(r, lt_vocab_hash(right.data, right.len), right, &right_id));
    r->entered++;
    return add_listed(r, lt_vocab_token(&r->model->vocab, left_id), left_id, right, right_id);
}

/* "left right"; a "#version" line counts for nothing. */
static lattice_status read_line(merges_reading *r)
{
    lt_str both;
    LT_TRY(lt_json_string(r->json, &both));
    if (lt_str_starts(both, "#version")) return LATTICE_OK;
    const char *space = both.len > 0 ? memchr(both.data, ' ', both.len) : NULL;
    size_t at = space == NULL ? both.len : (size_t)(space - both.data);
    if (space == NULL || memchr(space + 1, ' ', both.len - at - 1) != NULL)
        return lt_json_fail(r->json, "merge %zu: '%.*s' is not two tokens with a space between them", r->entered,
                            LT_STR_ARG(both));
    LT_TRY(enter_queue(r, (lt_str){ both.data, at }, (lt_str){ space + 1, both.len - at - 1 }));
    return stays(r->json, both) ? LATTICE_OK : empty_queue(r);
}

static lattice_status read_list(merges_reading *r)
{
    bool more;
    LT_TRY(lt_json_begin_array(r->json));
    for (;;) {
        LT_TRY(lt_json_next_element(r->json, &more));
        if (!more) break;
        if (r->entered >= NONE) return lt_json_fail(r->json, "too many merges");
        LT_TRY(lt_json_peek(r->json) == LT_JSON_STRING ? read_line(r) : read_pair(r));
    }
    LT_TRY(empty_queue(r));
    return add_waiting(r);
}

lattice_status lt_bpe_read_merges(lt_subword *model, lt_json *json, bool *unresolved, lattice_error *err)
{
    lt_bpe *bpe = &model->bpe;
    lt_free(model->mem, bpe->merges);
    bpe->merges = NULL;
    bpe->n_slots = bpe->n_merges = 0;
    /* Published vocabularies have about as many merges as tokens. */
    if (!reserve_merges(bpe, model->mem, model->vocab.n)) return lt_no_memory(err, model->vocab.n * sizeof(lt_merge), "merges");
    merges_reading r = { .model = model, .json = json, .unresolved = unresolved, .last = LT_VOCAB_NO_ID };
    lt_buf_init(&r.joined, model->mem);
    lattice_status status = read_list(&r);
    lt_buf_free(&r.joined);
    return status;
}

lattice_status lt_bpe_prepare(lt_subword *model, lattice_error *err)
{
    (void)err;
    lt_bpe *bpe = &model->bpe;
    lt_subword_find_byte_tokens(model, bpe->byte_tokens);
    for (uint32_t unit = 0; unit < 256; unit++) {
        bpe->units[unit] = LT_VOCAB_NO_ID;
        if (!model->byte_level && unit >= 128) continue;
        uint8_t spelling[4];
        size_t length = lt_utf8_encode(model->byte_level ? lt_byte_to_char((uint8_t)unit) : unit, spelling);
        bpe->units[unit] = lt_vocab_find(&model->vocab, spelling, length);
    }
    return LATTICE_OK;
}

/* ------------------------------------------------------------------ a word as units */

typedef struct reader {
    const lt_subword *model;
    lt_subword_scratch *scratch;
    const uint8_t *word;
    size_t size, at;  /* bytes; those before `at` are units already */
    size_t n;         /* units that wait in the scratch */
    uint32_t unknown; /* bytes of the unknown token that waits to be joined; 0: none */
    lattice_error *err;
} reader;

static bool add_unit(reader *u, uint32_t id, uint32_t length)
{
    lt_subword_scratch *s = u->scratch;
    if (u->n == s->units_capacity && !LT_GROW(s->mem, s->units, s->units_capacity, u->n + 1)) return false;
    s->units[u->n++] = (lt_unit){ .id = id, .length = length };
    return true;
}

/* The unit's spelling in the vocabulary, into the scratch's text: in GPT-2's alphabet if byte-level, with the prefix inside a
 * word and the suffix at its end. */
static bool spell_unit(reader *u, const uint8_t *unit, size_t size, bool first, bool last)
{
    const lt_subword *model = u->model;
    lt_buf *text = &u->scratch->text;
    lt_buf_clear(text);
    if (!first) lt_buf_append(text, model->prefix.data, model->prefix.len);
    if (model->byte_level) {
        uint8_t spelling[4];
        lt_buf_append(text, spelling, lt_utf8_encode(lt_byte_to_char(unit[0]), spelling));
    } else {
        lt_buf_append(text, unit, size);
    }
    if (last) lt_buf_append(text, model->suffix.data, model->suffix.len);
    return !text->failed;
}

static bool find_unit(reader *u, const uint8_t *unit, size_t size, bool first, bool last, uint32_t *id)
{
    const lt_subword *model = u->model;
    bool plain = (first || model->prefix.len == 0) && (!last || model->suffix.len == 0);
    if (plain && size == 1) {
        *id = model->bpe.units[unit[0]];
    } else if (plain) {
        *id = lt_vocab_find(&model->vocab, unit, size);
    } else {
        if (!spell_unit(u, unit, size, first, last)) return false;
        *id = lt_vocab_find(&model->vocab, u->scratch->text.data, u->scratch->text.len);
    }
    return true;
}

/* The byte tokens of an unknown unit's spelling. *done false: one of them is missing, none is added. */
static bool add_bytes(reader *u, const uint8_t *unit, size_t size, bool first, bool last, bool *done)
{
    const uint32_t *tokens = u->model->bpe.byte_tokens;
    *done = false;
    if (!spell_unit(u, unit, size, first, last)) return false;
    const uint8_t *bytes = (const uint8_t *)u->scratch->text.data;
    size_t n = u->scratch->text.len;
    for (size_t i = 0; i < n; i++) {
        if (tokens[bytes[i]] == LT_VOCAB_NO_ID) return true;
    }
    for (size_t i = 0; i < n; i++) {
        if (!add_unit(u, tokens[bytes[i]], i < size || !u->model->byte_level)) return false;
    }
    *done = true;
    return true;
}

static bool flush_unknown(reader *u)
{
    if (u->unknown == 0) return true;
    uint32_t length = u->unknown;
    u->unknown = 0;
    return add_unit(u, u->model->unk_id, length);
}

/* An unknown unit: its bytes, else the unknown token (joined with the one before if fuse_unk), else nothing at all. A unit that
 * falls back to bytes goes before an unknown token that still waits, which is how Hugging Face orders them. */
static lattice_status add_unknown(reader *u, const uint8_t *unit, size_t size, bool first, bool last)
{
    const lt_subword *model = u->model;
    if (model->bpe.byte_fallback) {
        bool done;
        if (!add_bytes(u, unit, size, first, last, &done)) return lt_no_memory(u->err, sizeof(lt_unit), "a word");
        if (done) return LATTICE_OK;
    }
    if (model->unk_token.data == NULL) return LATTICE_OK;
    if (model->unk_id == LT_VOCAB_NO_ID) return lt_subword_no_unknown(model, u->err);
    if (!model->bpe.fuse_unk && !flush_unknown(u)) return lt_no_memory(u->err, sizeof(lt_unit), "a word");
    u->unknown += (uint32_t)size;
    return LATTICE_OK;
}

/* Reads on until `limit` units wait, or a few more, or the word ends. */
static lattice_status read_units(reader *u, size_t limit)
{
    const lt_subword *model = u->model;
    const uint8_t *word = u->word;
    for (size_t length; u->at < u->size && u->n < limit; u->at += length) {
        size_t at = u->at;
        length = model->byte_level ? 1 : lt_utf8_size(word[at]);
        if (length > u->size - at) length = u->size - at;
        bool first = at == 0, last = at + length == u->size;
        uint32_t id;
        if (!find_unit(u, word + at, length, first, last, &id)) return lt_no_memory(u->err, length, "a word");
        if (id == LT_VOCAB_NO_ID) {
            LT_TRY(add_unknown(u, word + at, length, first, last));
        } else if (!flush_unknown(u) || !add_unit(u, id, (uint32_t)length)) {
            return lt_no_memory(u->err, sizeof(lt_unit), "a word");
        }
    }
    return u->at < u->size || flush_unknown(u) ? LATTICE_OK : lt_no_memory(u->err, sizeof(lt_unit), "a word");
}

/* ------------------------------------------------------------------ merging */

static void link_symbols(const lt_unit *units, lt_symbol *symbols, size_t n)
{
    for (uint32_t i = 0; i < n; i++) symbols[i] = (lt_symbol){ units[i].id, units[i].length, i == 0 ? NONE : i - 1, i + 1 };
    symbols[n - 1].next = NONE;
}

static inline lt_pair pair_at(const lt_bpe *bpe, const lt_symbol *symbols, uint32_t at)
{
    uint32_t next = symbols[at].next;
    return next == NONE ? (lt_pair){ NONE, NONE } : find_merge(bpe, symbols[at].id, symbols[next].id);
}

/* Joins the symbol with its next one; returns that one's place, which no longer pairs. */
static inline uint32_t join(lt_symbol *symbols, uint32_t at, uint32_t id)
{
    uint32_t gone = symbols[at].next, after = symbols[gone].next;
    symbols[at].id = id;
    symbols[at].length += symbols[gone].length;
    symbols[at].next = after;
    if (after != NONE) symbols[after].previous = at;
    return gone;
}

static void merge_short(const lt_bpe *bpe, lt_symbol *symbols, size_t n)
{
    uint32_t rank[SHORT_WORD], id[SHORT_WORD];
    for (uint32_t i = 0; i < n; i++) {
        lt_pair pair = pair_at(bpe, symbols, i);
        rank[i] = pair.rank;
        id[i] = pair.id;
    }
    for (;;) {
        uint32_t best = 0;
        for (uint32_t i = 1; i < n; i++) best = rank[i] < rank[best] ? i : best;
        if (rank[best] == NONE) return;
        rank[join(symbols, best, id[best])] = NONE;
        lt_pair pair = pair_at(bpe, symbols, best);
        rank[best] = pair.rank;
        id[best] = pair.id;
        uint32_t previous = symbols[best].previous;
        if (previous == NONE) continue;
        pair = pair_at(bpe, symbols, previous);
        rank[previous] = pair.rank;
        id[previous] = pair.id;
    }
}

/* A heap of four children a node, smallest (rank, place) first: entries are rank << 32 | place. */
static void heap_down(uint64_t *heap, size_t n, size_t at, uint64_t *steps)
{
    uint64_t value = heap[at];
    for (size_t child; (child = 4 * at + 1) < n;) {
        size_t end = child + 4 < n ? child + 4 : n, least = child;
        for (size_t i = child + 1; i < end; i++) least = heap[i] < heap[least] ? i : least;
        ++*steps;
        if (heap[least] >= value) break;
        heap[at] = heap[least];
        at = least;
    }
    heap[at] = value;
}

static void heap_up(uint64_t *heap, size_t at, uint64_t *steps)
{
    uint64_t value = heap[at];
    while (at > 0 && heap[(at - 1) / 4] > value) {
        heap[at] = heap[(at - 1) / 4];
        at = (at - 1) / 4;
        ++*steps;
    }
    heap[at] = value;
}

/* Sorts n entries by rank, keeping the order of places, by counting 11 bits at a time; `other` has room for n. */
static void sort_by_rank(uint64_t *entries, uint64_t *other, size_t n, uint32_t largest)
{
    uint64_t *from = entries, *to = other;
    for (unsigned shift = 0; shift < 32 && largest >> shift > 0; shift += 11) {
        size_t at[2048] = { 0 }, sum = 0;
        for (size_t i = 0; i < n; i++) at[from[i] >> 32 >> shift & 2047]++;
        for (size_t digit = 0; digit < 2048; digit++) {
            size_t count = at[digit];
            at[digit] = sum;
            sum += count;
        }
        for (size_t i = 0; i < n; i++) to[at[from[i] >> 32 >> shift & 2047]++] = from[i];
        uint64_t *sorted = to;
        to = from;
        from = sorted;
    }
    if (from != entries) memcpy(entries, from, n * sizeof *entries);
}

/* The pairs of the symbols as they came are sorted once and walked in order; only those that merging makes go through the heap,
 * two at most for each of at most n - 1 merges. */
static bool merge_long(const lt_bpe *bpe, lt_subword_scratch *scratch, size_t n)
{
    if (!LT_GROW(scratch->mem, scratch->pairs, scratch->pairs_capacity, n) ||
        !LT_GROW(scratch->mem, scratch->first_pairs, scratch->first_pairs_capacity, n) ||
        !LT_GROW(scratch->mem, scratch->heap, scratch->heap_capacity, 2 * n))
        return false;
    lt_symbol *symbols = scratch->symbols;
    lt_pair *pairs = scratch->pairs;
    uint64_t *heap = scratch->heap, *sorted = scratch->first_pairs;
    size_t n_heap = 0, n_sorted = 0, at_sorted = 0;
    uint32_t largest = 0;
    for (uint32_t i = 0; i < n; i++) {
        pairs[i] = pair_at(bpe, symbols, i);
        if (pairs[i].rank == NONE) continue;
        sorted[n_sorted++] = (uint64_t)pairs[i].rank << 32 | i;
        largest = pairs[i].rank > largest ? pairs[i].rank : largest;
    }
    sort_by_rank(sorted, heap, n_sorted, largest);
    scratch->steps += n;
    while (n_heap > 0 || at_sorted < n_sorted) {
        uint64_t entry;
        if (n_heap == 0 || (at_sorted < n_sorted && sorted[at_sorted] < heap[0])) {
            entry = sorted[at_sorted++];
        } else {
            entry = heap[0];
            heap[0] = heap[--n_heap];
            if (n_heap > 0) heap_down(heap, n_heap, 0, &scratch->steps);
        }
        uint32_t at = (uint32_t)entry;
        scratch->steps++;
        if (pairs[at].rank != entry >> 32) continue; /* merged away or paired anew since */
        pairs[join(symbols, at, pairs[at].id)].rank = NONE;
        uint32_t changed[2] = { at, symbols[at].previous };
        for (size_t i = 0; i < 2 && changed[i] != NONE; i++) {
            pairs[changed[i]] = pair_at(bpe, symbols, changed[i]);
            if (pairs[changed[i]].rank == NONE) continue;
            heap[n_heap] = (uint64_t)pairs[changed[i]].rank << 32 | changed[i];
            heap_up(heap, n_heap++, &scratch->steps);
        }
    }
    return true;
}

/* Leaves the tokens of n >= 1 units in the scratch's symbols, linked from the first on. */
static lattice_status merge(const lt_bpe *bpe, lt_subword_scratch *scratch, const lt_unit *units, size_t n, lattice_error *err)
{
    if (n >= NONE) return lt_fail(err, LATTICE_ERR_TOO_LONG, "a word of %zu units", n);
    if (!LT_GROW(scratch->mem, scratch->symbols, scratch->symbols_capacity, n))
        return lt_no_memory(err, n * sizeof *scratch->symbols, "a word");
    link_symbols(units, scratch->symbols, n);
    if (n <= SHORT_WORD) {
        merge_short(bpe, scratch->symbols, n);
    } else if (!merge_long(bpe, scratch, n)) {
        return lt_no_memory(err, n * sizeof *scratch->symbols, "a word");
    }
    return LATTICE_OK;
}

/* ------------------------------------------------------------------ tokens */

typedef struct emitter {
    const lt_subword *model;
    const uint8_t *word;
    size_t size, at; /* bytes; tokens for those before `at` are out */
    lt_pieces *out;
    lattice_error *err;
} emitter;

/* Where units may be bytes of a character, a token's range is widened to whole characters. */
static void widen(const uint8_t *word, size_t size, lt_piece *piece)
{
    if (piece->end > size) piece->end = (uint32_t)size;
    if (piece->start > piece->end) piece->start = piece->end;
    while (piece->start > 0 && piece->start < size && (word[piece->start] & 0xC0) == 0x80) piece->start--;
    while (piece->end < size && (word[piece->end] & 0xC0) == 0x80) piece->end++;
}

static lattice_status emit(emitter *e, uint32_t id, uint32_t length)
{
    size_t end = e->at + length;
    if (!lt_pieces_add(e->out, id, e->at, end)) return lt_no_memory(e->err, sizeof(lt_piece), "tokens");
    if (!e->model->byte_level || end > e->size) widen(e->word, e->size, &e->out->data[e->out->n - 1]);
    e->at = end;
    return lt_pieces_hand_over(e->out, e->err);
}

/* Emits the window's tokens from the one at `at` up to the one at `end` (NONE: all the rest). */
static lattice_status emit_symbols(emitter *e, const lt_symbol *symbols, uint32_t at, uint32_t end)
{
    for (; at != end; at = symbols[at].next) LT_TRY(emit(e, symbols[at].id, symbols[at].length));
    return LATTICE_OK;
}

/* The token at which the next window begins: the last one that begins at or before unit `limit`. */
static uint32_t find_border(const lt_symbol *symbols, uint32_t limit)
{
    uint32_t at = 0;
    while (symbols[at].next != NONE && symbols[at].next <= limit) at = symbols[at].next;
    return at;
}

/* Keeps the tokens from `border` on, for joining them with the next window, which begins there. */
static bool keep_tail(lt_subword_scratch *scratch, uint32_t border, size_t *n)
{
    const lt_symbol *symbols = scratch->symbols;
    *n = 0;
    for (uint32_t at = border; at != NONE; at = symbols[at].next) {
        if (!LT_GROW(scratch->mem, scratch->tail, scratch->tail_capacity, *n + 1)) return false;
        scratch->tail[(*n)++] = (lt_tail){ symbols[at].id, symbols[at].length, at - border };
    }
    return true;
}

/* Finds the first token that the tail and the window have in common: tail[*kept] and the symbol at *at. */
static bool find_common(const lt_tail *tail, size_t n_tail, const lt_symbol *symbols, size_t *kept, uint32_t *at)
{
    *kept = 0;
    *at = 0;
    while (*kept + 1 < n_tail && symbols[*at].next != NONE) {
        uint32_t unit = tail[*kept].unit, end = tail[*kept + 1].unit, next = symbols[*at].next;
        if (unit == *at && end == next) return true;
        *kept += end <= next;
        *at = next <= end ? next : *at;
    }
    return false;
}

/* Merges the word in windows. *joined false: two of them have no token in common, and what was emitted is void. */
static lattice_status encode_windows(reader *u, emitter *e, size_t window, bool *joined)
{
    lt_subword_scratch *scratch = u->scratch;
    size_t n_tail = 0;
    *joined = true;
    for (;;) {
        LT_TRY(read_units(u, window));
        if (u->n == 0) return LATTICE_OK;
        LT_TRY(merge(&u->model->bpe, scratch, scratch->units, u->n, u->err));
        const lt_symbol *symbols = scratch->symbols;
        uint32_t at = 0;
        if (n_tail > 0) {
            size_t kept;
            *joined = find_common(scratch->tail, n_tail, symbols, &kept, &at);
            if (!*joined) return LATTICE_OK;
            for (size_t i = 0; i < kept; i++) LT_TRY(emit(e, scratch->tail[i].id, scratch->tail[i].length));
        }
        if (u->at == u->size) return emit_symbols(e, symbols, at, NONE);
        uint32_t border = find_border(symbols, (uint32_t)(window - window / 8));
        *joined = border > at;
        if (!*joined) return LATTICE_OK;
        LT_TRY(emit_symbols(e, symbols, at, border));
        if (!keep_tail(scratch, border, &n_tail)) return lt_no_memory(u->err, n_tail * sizeof *scratch->tail, "a word");
        u->n -= border;
        memmove(scratch->units, scratch->units + border, u->n * sizeof *scratch->units);
    }
}

/* The whole word as one token, where the model wants that: *id LT_VOCAB_NO_ID if it is none. */
static lattice_status find_whole(const lt_subword *model, lt_subword_scratch *scratch, const uint8_t *word, size_t size,
                                 uint32_t *id, lattice_error *err)
{
    if (!model->byte_level) {
        *id = lt_vocab_find(&model->vocab, word, size);
        return LATTICE_OK;
    }
    lt_buf_clear(&scratch->text);
    for (size_t i = 0; i < size && scratch->text.len <= model->vocab.longest; i++) {
        uint8_t unit[4];
        lt_buf_append(&scratch->text, unit, lt_utf8_encode(lt_byte_to_char(word[i]), unit));
    }
    if (scratch->text.failed) return lt_no_memory(err, size, "a word");
    *id = lt_vocab_find(&model->vocab, scratch->text.data, scratch->text.len);
    return LATTICE_OK;
}

lattice_status lt_bpe_encode(const lt_subword *model, lt_subword_scratch *scratch, const uint8_t *word, size_t size,
                             lt_pieces *out, lattice_error *err)
{
    if (model->bpe.ignore_merges) {
        uint32_t id = LT_VOCAB_NO_ID;
        LT_TRY(find_whole(model, scratch, word, size, &id, err));
        if (id != LT_VOCAB_NO_ID)
            return lt_pieces_add(out, id, 0, size) ? LATTICE_OK : lt_no_memory(err, sizeof(lt_piece), "tokens");
    }
    size_t first = out->n;
    for (size_t window = scratch->window;; window *= 4) {
        bool joined;
        reader u = { .model = model, .scratch = scratch, .word = word, .size = size, .err = err };
        emitter e = { .model = model, .word = word, .size = size, .out = out, .err = err };
        LT_TRY(encode_windows(&u, &e, window, &joined));
        if (joined) break;
        if (out->taken) LT_TRY(out->take(out->owner, NULL, 0, err));
        out->n = out->taken ? 0 : first;
        out->taken = false;
    }
    return LATTICE_OK;
}
