/* Unigram (Kudo 2018): the segmentation of greatest summed score, by Viterbi over the byte positions of a word.
 *
 * From each character every token that begins there is found in one walk down a trie; a character that is no token itself costs
 * the worst score less 10. Scores are doubles added in the order of the text, and an equal score never replaces an earlier one,
 * so ties fall as they do in Hugging Face's. Every so often the best paths to all positions that the search may still go on from
 * are followed back to where they meet: up to there the path is known, it is written out and the table begins anew, which keeps
 * it small for a text in one piece. Neighbouring unknown characters are one unknown token, or their bytes' tokens. */
#include <math.h>

#include "text/subword.h"

#define UNKNOWN_PENALTY 10.0
#define SETTLE_BYTES 4096 /* a table of 64 kB */
#define NO_NODE UINT32_MAX

lattice_status lt_unigram_prepare(lt_subword *model, lattice_error *err)
{
    lt_unigram *u = &model->unigram;
    double least = INFINITY;
    for (size_t i = 0; i < u->n_scores; i++) least = u->scores[i] < least ? u->scores[i] : least;
    u->unk_score = least - UNKNOWN_PENALTY;
    lt_subword_find_byte_tokens(model, u->byte_tokens);

    lt_trie_key *keys = lt_alloc_array(model->mem, model->vocab.n + (size_t)1, sizeof *keys);
    if (keys == NULL) return lt_no_memory(err, model->vocab.n * sizeof *keys, "the vocabulary's trie");
    size_t n = 0;
    for (uint32_t id = 0; id < model->vocab.size; id++) {
        lt_str token = lt_vocab_token(&model->vocab, id);
        /* Of a spelling that stands in the list twice the table knows the later id. */
        if (token.data == NULL || token.len == 0 || lt_vocab_find(&model->vocab, token.data, token.len) != id) continue;
        keys[n++] = (lt_trie_key){ .data = (const uint8_t *)token.data, .length = (uint32_t)token.len, .value = id };
    }
    lt_trie_free(&u->trie);
    lattice_status status = lt_trie_build(&u->trie, model->mem, keys, n, err);
    lt_free(model->mem, keys);
    return status;
}

typedef struct search {
    const lt_subword *model;
    lt_subword_scratch *scratch;
    const uint8_t *word;
    size_t size;
    size_t base;                       /* the table's first position */
    size_t end;                        /* positions up to here, relative to base, are initialised */
    size_t unknown_start, unknown_end; /* characters that wait to be one unknown token; equal: none */
    lt_pieces *out;
    lattice_error *err;
} search;

/* Makes the positions up to base + to usable. */
static bool extend(search *s, size_t to)
{
    lt_subword_scratch *scratch = s->scratch;
    if (to <= s->end) return true;
    if (!LT_GROW(scratch->mem, scratch->nodes, scratch->nodes_capacity, to + 1)) return false;
    for (size_t i = s->end + 1; i <= to; i++) scratch->nodes[i].start = NO_NODE;
    s->end = to;
    return true;
}

static inline bool better(const lt_viterbi_node *node, double score)
{
    return node->start == NO_NODE || score > node->score;
}

/* The unknown run that waits: a token after all (when its characters are not), its bytes, or the unknown token. */
static bool flush_unknown(search *s)
{
    const lt_unigram *u = &s->model->unigram;
    const uint8_t *word = s->word;
    size_t start = s->unknown_start, end = s->unknown_end;
    if (start == end) return true;
    s->unknown_start = end;
    uint32_t id = lt_vocab_find(&s->model->vocab, word + start, end - start);
    if (id != LT_VOCAB_NO_ID) return lt_pieces_add(s->out, id, start, end);
    bool all = u->byte_fallback;
    for (size_t i = start; i < end && all; i++) all = u->byte_tokens[word[i]] != LT_VOCAB_NO_ID;
    if (!all) return lt_pieces_add(s->out, s->model->unk_id, start, end);
    for (size_t i = start; i < end; i++) {
        if (!lt_pieces_add(s->out, u->byte_tokens[word[i]], start, end)) return false;
    }
    return true;
}

static lattice_status put(search *s, const lt_piece *piece)
{
    if (piece->id == s->model->unk_id && s->model->unk_id != LT_VOCAB_NO_ID) {
        if (s->unknown_start == s->unknown_end) s->unknown_start = piece->start;
        s->unknown_end = piece->end;
        return LATTICE_OK;
    }
    if (!flush_unknown(s) || !lt_pieces_add(s->out, piece->id, piece->start, piece->end))
        return lt_no_memory(s->err, sizeof *piece, "tokens");
    return lt_pieces_hand_over(s->out, s->err);
}

/* Writes out the best path from base to base + end, and lets the table begin there. */
static lattice_status settle(search *s, size_t end)
{
    lt_subword_scratch *scratch = s->scratch;
    lt_viterbi_node *nodes = scratch->nodes;
    lt_pieces *path = &scratch->pieces;
    path->n = 0;
    for (size_t at = end; at > 0; at = nodes[at].start) {
        if (!lt_pieces_add(path, nodes[at].id, s->base + nodes[at].start, s->base + at))
            return lt_no_memory(s->err, sizeof *path->data, "tokens");
    }
    for (size_t i = path->n; i-- > 0;) LT_TRY(put(s, &path->data[i]));
    s->base += end;
    s->end -= end;
    for (size_t i = 0; i <= s->end; i++) {
        nodes[i] = nodes[end + i];
        /* Paths that began before `end` and do not go through it lead nowhere any more. */
        if (nodes[i].start != NO_NODE) nodes[i].start = nodes[i].start < end ? 0 : nodes[i].start - (uint32_t)end;
    }
    return LATTICE_OK;
}

/* Where the best paths to all of the positions [at, reach] meet. */
static size_t meeting(const lt_viterbi_node *nodes, size_t at, size_t reach)
{
    size_t a = at;
    for (size_t i = at + 1; i <= reach; i++) {
        if (nodes[i].start == NO_NODE) continue;
        for (size_t b = i; a != b;) {
            if (a > b) {
                a = nodes[a].start;
            } else {
                b = nodes[b].start;
            }
        }
    }
    return a;
}

static lattice_status viterbi(search *s)
{
    const lt_unigram *u = &s->model->unigram;
    const lt_trie *trie = &u->trie;
    size_t reach = 0; /* the furthest position, relative to base, that a token has reached */
    size_t settle_at = SETTLE_BYTES;
    for (size_t at = 0; s->base + at < s->size;) {
        const uint8_t *rest = s->word + s->base + at;
        size_t left = s->size - s->base - at, character = lt_utf8_size(rest[0]);
        if (character > left) character = left;
        if (!extend(s, at + character)) return lt_no_memory(s->err, s->size, "a word");
        double so_far = s->scratch->nodes[at].score;
        bool single = false;
        uint32_t node = LT_TRIE_ROOT;
        for (size_t i = 0; i < left && lt_trie_step(trie, &node, rest[i]); i++) {
            uint32_t id = trie->nodes[node].value;
            s->scratch->steps++;
            if (id == LT_TRIE_NO_VALUE) continue;
            if (!extend(s, at + i + 1)) return lt_no_memory(s->err, s->size, "a word");
            lt_viterbi_node *target = &s->scratch->nodes[at + i + 1];
            double score = so_far + u->scores[id];
            if (better(target, score)) *target = (lt_viterbi_node){ score, (uint32_t)at, id };
            if (i + 1 > reach - at) reach = at + i + 1;
            single = single || i + 1 == character;
        }
        lt_viterbi_node *target = &s->scratch->nodes[at + character];
        if (!single && better(target, so_far + u->unk_score)) {
            if (s->model->unk_id == LT_VOCAB_NO_ID) return lt_subword_no_unknown(s->model, s->err);
            *target = (lt_viterbi_node){ so_far + u->unk_score, (uint32_t)at, s->model->unk_id };
        }
        at += character;
        if (reach < at) reach = at;
        if (at < settle_at || s->base + at == s->size) continue;
        size_t settled = meeting(s->scratch->nodes, at, reach);
        LT_TRY(settle(s, settled));
        at -= settled;
        reach -= settled;
        settle_at = settled > 0 ? at + SETTLE_BYTES : 2 * at;
    }
    return settle(s, s->size - s->base);
}

lattice_status lt_unigram_encode(const lt_subword *model, lt_subword_scratch *scratch, const uint8_t *word, size_t size,
                                 lt_pieces *out, lattice_error *err)
{
    search s = { .model = model, .scratch = scratch, .word = word, .size = size, .out = out, .err = err };
    if (!LT_GROW(scratch->mem, scratch->nodes, scratch->nodes_capacity, 64)) return lt_no_memory(err, size, "a word");
    scratch->nodes[0] = (lt_viterbi_node){ 0.0, 0, LT_VOCAB_NO_ID };
    LT_TRY(viterbi(&s));
    return flush_unknown(&s) ? LATTICE_OK : lt_no_memory(err, sizeof(lt_piece), "tokens");
}
