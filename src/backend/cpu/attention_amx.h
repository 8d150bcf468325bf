/* attention in bfloat16 by the tiles of AMX: attend of attention.h over 32 queries at a time, from the same panels of keys and
 * values, with the same softmax between the two products. A single query is no case of its own: the heads that share keys and
 * values are its rows. Panels and weights are filled up by zeros to whole tiles. */
#ifndef LT_BACKEND_CPU_ATTENTION_AMX_H
#define LT_BACKEND_CPU_ATTENTION_AMX_H

#include "backend/cpu/amx.h"
#include "backend/cpu/attention.h"

_Static_assert(LT_QUERIES % LT_AMX_ROWS == 0 && LT_KEYS % 32 == 0 && LT_NR == 32, "whole tiles");

enum { AMX_WORDS = 16, AMX_KEYS = 2 * AMX_WORDS }; /* of a tile */

LT_VECTOR size_t amx_steps(size_t head_dim)
{
    return round_up((head_dim + 1) / 2, AMX_WORDS);
}

/* Panels of keys [steps][nr] · panels of values [LT_KEYS / 2][nr] · weights [32][LT_KEYS] · sums of values [queries][width] ·
 * sums of weights [queries][vl] · largest score [queries] · queries of a tile [32][steps]. */
static size_t amx_attention_scratch(size_t head_dim)
{
    const size_t width = round_up(head_dim, LT_NR), steps = amx_steps(head_dim);
    return LT_KEYS * steps + LT_KEYS / 2 * width + LT_AMX_ROWS * LT_KEYS + LT_QUERIES * (width + LT_VL + 1) + LT_AMX_ROWS * steps;
}

/* The rows that are computed: queries of a head, or the heads of one query. */
typedef struct amx_rows {
    const float *q;
    size_t ldq, n;
    float *out;
    size_t ldo;
    size_t step; /* from a row's position to the next one's */
} amx_rows;

static void amx_zero(float *p, size_t n)
{
    for (size_t i = 0; i < n; i += LT_VL) v_store(p + i, v_zero());
}

/* Panels of keys and values [begin, begin + n). */
static void amx_pack(const lt_attention *a, size_t begin, size_t n, float *keys, float *values)
{
    const size_t used = (a->head_dim + 1) / 2, steps = amx_steps(a->head_dim), width = round_up(a->head_dim, LT_NR);
    for (size_t j = 0; j < n; j += LT_NR) {
        pack_key_pairs(a, begin + j, min_size(LT_NR, n - j), keys + j * steps);
        amx_zero(keys + j * steps + used * LT_NR, (steps - used) * LT_NR);
    }
    const size_t pairs = (n + 1) / 2, whole = round_up(n, AMX_KEYS) / 2;
    for (size_t c = 0; c < width; c += LT_NR) {
        float *panel = values + c * (LT_KEYS / 2);
        pack_value_pairs(a, begin, n, c, panel);
        amx_zero(panel + pairs * LT_NR, (whole - pairs) * LT_NR);
    }
}

/* Rows of the block of keys at `begin`: how many of n keys each sees; returns the most. */
static size_t amx_visible(const lt_attention *a, const amx_rows *r, size_t row, size_t rows, size_t begin, size_t n,
                          size_t *visible)
{
    size_t seen = 0;
    for (size_t i = 0; i < rows; i++) {
        const size_t end = a->causal ? a->first_position + (row + i) * r->step + 1 : SIZE_MAX;
        visible[i] = end <= begin ? 0 : min_size(n, end - begin);
        if (visible[i] > seen) seen = visible[i];
    }
    return seen;
}

static void attention_amx(const lt_attention *a)
{
    const bool one = a->blocks && a->n_queries == 1;
    const amx_rows r = { .q = a->q,
                         .ldq = one ? a->head_stride : a->ldq,
                         .n = one ? a->n_heads : a->n_queries,
                         .out = a->out,
                         .ldo = one ? a->out_stride : a->ldo,
                         .step = one ? 0 : 1 };
    const size_t d = a->head_dim, width = round_up(d, LT_NR), steps = amx_steps(d), used = (d + 1) / 2;
    float *keys = a->scratch, *values = keys + LT_KEYS * steps, *s = values + LT_KEYS / 2 * width;
    float *sums = s + LT_AMX_ROWS * LT_KEYS, *total = sums + LT_QUERIES * width, *max = total + LT_QUERIES * LT_VL;
    float *rounded = max + LT_QUERIES;
    const float factor = a->scale * 1.44269504f;
    const size_t n_keys = a->causal ? min_size(a->n_keys, a->first_position + a->n_queries) : a->n_keys;
    for (size_t i = 0; i < r.n; i++) {
        max[i] = -INFINITY;
        v_store(total + i * LT_VL, v_zero());
    }
    lt_amx_begin();
    for (size_t begin = 0; begin < n_keys; begin += LT_KEYS) {
        const size_t n = min_size(LT_KEYS, n_keys - begin);
        amx_pack(a, begin, n, keys, values);
        for (size_t row = 0; row < r.n; row += LT_AMX_ROWS) {
            const size_t rows = min_size(LT_AMX_ROWS, r.n - row);
            size_t visible[LT_AMX_ROWS];
            const size_t seen = amx_visible(a, &r, row, rows, begin, n, visible), whole = round_up(seen, AMX_KEYS);
            if (!seen) continue;
            for (size_t i = 0; i < rows; i++) {
                round_row(r.q + (row + i) * r.ldq, d, rounded + i * steps);
                for (size_t j = used; j < steps; j++) rounded[i * steps + j] = 0;
            }
            const bool two = rows > LT_AMX_ROWS / 2;
            for (size_t j = 0; j < seen; j += LT_NR)
                lt_amx_tile(two, rounded, steps, keys + j * steps, steps, s + j, LT_KEYS, false);
            for (size_t i = 0; i < rows; i += LT_MR) {
                softmax_tile(s + i * LT_KEYS, min_size(LT_MR, rows - i), visible + i, whole, factor, max + row + i,
                             total + (row + i) * LT_VL, sums + (row + i) * width, width, true);
            }
            for (size_t c = 0; c < width; c += LT_NR) {
                lt_amx_tile(two, s, LT_KEYS, values + c * (LT_KEYS / 2), whole / 2, sums + row * width + c, width, begin > 0);
            }
        }
    }
    lt_amx_end();
    for (size_t i = 0; i < r.n; i++) divide_row(sums + i * width, total + i * LT_VL, d, r.out + i * r.ldo);
}

#endif
