/* linear and attention over one micro-kernel, for every set.
 *
 * The micro-kernel multiplies R <= LT_MR rows of activations, which lie as they are and are broadcast from memory, with a panel
 * of LT_NR columns: R × LT_NV accumulators in registers, k ascending, one accumulator an output. Fewer rows take the same steps
 * with fewer accumulators, so a row's result never depends on how many there are. Where LT_EMBED_BROADCAST(row) holds, the
 * broadcast is part of the multiply-add: it balances the front end against the load ports, and changes no result.
 *
 * linear takes a panel through all its rows while the panel is in L2 (or, narrow, in L1); meanwhile the next panel is fetched.
 * attention is the same product twice a block of LT_KEYS keys: K transposed into panels, V copied into panels (its rows are
 * often a multiple of 4096 bytes apart, which would put all of them into a few cache sets), with the softmax between them online.
 *
 * Sets that multiply bfloat16 have all of it a second time, over pairs: two neighbours of k, rounded, lie in one lane, and a step
 * takes both. Accumulators, softmax and everything behind stay float32. `pairs` is a constant wherever it is a parameter.
 */
#ifndef LT_BACKEND_CPU_PRODUCTS_H
#define LT_BACKEND_CPU_PRODUCTS_H

#include "backend/cpu/bodies.h"

_Static_assert(LT_BLOCK_ROWS % LT_VL == 0, "vectors of rows lie in one block");
_Static_assert(LT_NR % LT_VL == 0 && LT_KEYS % LT_NR == 0 && LT_KEYS % LT_VL == 0 && LT_TILE_ROWS % LT_MR == 0, "tile sizes");

/* c[rows, nr] (+)= x[rows, k] · b[k, nr]; or, where `bias` is not NULL, y[rows, nr] = x · b + bias + residual straight from the
 * registers. */
typedef struct tile_args {
    size_t k; /* steps: floats or pairs */
    const float *x;
    size_t ldx;
    const float *b;
    float *c;
    size_t ldc;
    bool add;
    uintptr_t prefetch; /* `lines` cache lines every four steps, from here on, are wanted next; any address is harmless */
    size_t lines;
    float
        *y; /* the finished rows, ldy apart: fetched meanwhile for writing, 6% of a product whose result is far. NULL: c is all */
    size_t ldy;
    const float *bias;     /* [nr], or NULL: c is finished afterwards */
    const float *residual; /* or NULL */
    size_t ldr;
} tile_args;

/* One step of k. Rows are reached from four bases, three rows each, which x86 addresses without further arithmetic. */
LT_VECTOR void tile_step(size_t rows, vf acc[LT_MR][LT_NV], const float *const base[4], size_t ldx, size_t p, const float *b,
                         bool pairs)
{
    vf bv[LT_NV];
    LT_UNROLL
    for (size_t j = 0; j < LT_NV; j++) bv[j] = v_load(b + j * LT_VL);
    LT_UNROLL
    for (size_t i = 0; i < rows; i++) {
        const float *x = base[i / 3] + (i % 3) * ldx + p;
        if (LT_EMBED_BROADCAST(i)) {
            LT_UNROLL
            for (size_t j = 0; j < LT_NV; j++)
                acc[i][j] = pairs ? v_dot_broadcast(x, bv[j], acc[i][j]) : v_fma_broadcast(x, bv[j], acc[i][j]);
        } else {
            const vf a = v_set1(*x); /* a pair too: its bits pass through */
            LT_UNROLL
            for (size_t j = 0; j < LT_NV; j++) acc[i][j] = pairs ? v_dot(a, bv[j], acc[i][j]) : v_fma(a, bv[j], acc[i][j]);
        }
    }
}

LT_VECTOR void tile(size_t rows, const tile_args *t, bool pairs)
{
    const size_t k = t->k, ldx = t->ldx;
    const float *const base[4] = { t->x, rows > 3 ? t->x + 3 * ldx : t->x, rows > 6 ? t->x + 6 * ldx : t->x,
                                   rows > 9 ? t->x + 9 * ldx : t->x };
    const float *b = t->b;
    uintptr_t prefetch = t->prefetch;
    vf acc[LT_MR][LT_NV];
    LT_UNROLL
    for (size_t i = 0; i < rows; i++) {
        LT_UNROLL
        for (size_t j = 0; j < LT_NV; j++) acc[i][j] = v_zero();
    }
    if (t->add) {
        LT_UNROLL
        for (size_t i = 0; i < rows; i++) {
            LT_UNROLL
            for (size_t j = 0; j < LT_NV; j++) acc[i][j] = v_load(t->c + i * t->ldc + j * LT_VL);
        }
    }
    size_t p = 0;
    if (t->y) {
        for (size_t i = 0; i < rows; i++) {
            LT_UNROLL
            for (size_t j = 0; j < LT_NR; j += 16) __builtin_prefetch(t->y + i * t->ldy + j, 1, 3);
        }
    }
    for (; p + 4 <= k; p += 4) {
        for (size_t i = 0; i < t->lines; i++, prefetch += 64) __builtin_prefetch((const void *)prefetch, 0, 2);
        LT_UNROLL
        for (size_t u = 0; u < 4; u++) tile_step(rows, acc, base, ldx, p + u, b + u * LT_NR, pairs);
        b += 4 * LT_NR;
    }
    for (; p < k; p++) {
        tile_step(rows, acc, base, ldx, p, b, pairs);
        b += LT_NR;
    }
    if (t->bias) {
        LT_UNROLL
        for (size_t i = 0; i < rows; i++) {
            LT_UNROLL
            for (size_t j = 0; j < LT_NV; j++) {
                vf v = v_add(acc[i][j], v_load(t->bias + j * LT_VL));
                if (t->residual) v = v_add(v, v_load(t->residual + i * t->ldr + j * LT_VL));
                v_store(t->y + i * t->ldy + j * LT_VL, v);
            }
        }
        return;
    }
    LT_UNROLL
    for (size_t i = 0; i < rows; i++) {
        LT_UNROLL
        for (size_t j = 0; j < LT_NV; j++) v_store(t->c + i * t->ldc + j * LT_VL, acc[i][j]);
    }
}

typedef void tile_fn(const tile_args *t);

/* LT_TILES(X): X(1) … X(LT_MR), defined by the set. */
#define X(rows)                                                                                                                  \
    static void tile_##rows(const tile_args *t)                                                                                  \
    {                                                                                                                            \
        tile(rows, t, false);                                                                                                    \
    }
LT_TILES(X)
#undef X

#define X(rows) [rows] = tile_##rows,
static tile_fn *const tiles[LT_MR + 1] = { LT_TILES(X) };
#undef X

#ifdef LT_HAS_PAIRS
#define X(rows)                                                                                                                  \
    static void pair_tile_##rows(const tile_args *t)                                                                             \
    {                                                                                                                            \
        tile(rows, t, true);                                                                                                     \
    }
LT_TILES(X)
#undef X

#define X(rows) [rows] = pair_tile_##rows,
static tile_fn *const pair_tiles[LT_MR + 1] = { LT_TILES(X) };
#undef X
#else
#define pair_tiles tiles
#endif

/* ---- linear ---- */

/* y = act(c + bias) · gate + residual for one tile of `cols` columns; `activation` and `whole` are constants where this is
 * called. */
LT_VECTOR void finish(const lt_linear *a, const float *c, size_t row, size_t rows, size_t col, size_t cols,
                      lt_activation activation, bool whole)
{
    for (size_t i = 0; i < rows; i++, c += LT_NR) {
        float *y = a->y + (row + i) * a->ldy + col;
        const float *gate = a->gate ? a->gate + (row + i) * a->ldg + col : NULL;
        const float *residual = a->residual ? a->residual + (row + i) * a->ldr + col : NULL;
        LT_UNROLL
        for (size_t j = 0; j < LT_NR; j += LT_VL) {
            if (!whole && j >= cols) break;
            const size_t n = whole ? LT_VL : min_size(cols - j, LT_VL);
            const bool full = n == LT_VL;
            vf v = v_load(c + j);
            if (a->bias) v = v_add(v, full ? v_load(a->bias + col + j) : v_load_n(a->bias + col + j, n));
            v = v_activate(v, activation);
            if (gate) v = v_mul(v, full ? v_load(gate + j) : v_load_n(gate + j, n));
            if (residual) v = v_add(v, full ? v_load(residual + j) : v_load_n(residual + j, n));
            if (full)
                v_store(y + j, v);
            else
                v_store_n(y + j, v, n);
        }
    }
}

static void finish_tile(const lt_linear *a, const float *c, size_t row, size_t rows, size_t col)
{
    const size_t cols = min_size(LT_NR, a->n - col);
    // clang-format off
#define FINISH(activation)                                                                                                        \
    case activation:                                                                                                              \
        if (cols == LT_NR) finish(a, c, row, rows, col, LT_NR, activation, true);                                                 \
        else finish(a, c, row, rows, col, cols, activation, false);                                                               \
        break;
    switch (a->activation) {
    FINISH(LT_ACT_NONE)
    FINISH(LT_ACT_GELU)
    FINISH(LT_ACT_GELU_TANH)
    FINISH(LT_ACT_RELU)
    FINISH(LT_ACT_SILU)
    FINISH(LT_ACT_TANH)
    FINISH(LT_ACT_SIGMOID)
    }
#undef FINISH
    // clang-format on
}

/* steps: of k, each of a float or a pair */
LT_VECTOR void multiply(const lt_linear *a, size_t steps, tile_fn *const *by_rows)
{
    _Alignas(64) float c[LT_MR * LT_NR];
    const size_t n_tiles = (a->m + LT_MR - 1) / LT_MR;
    if (!n_tiles) return;
    /* Rows are dealt evenly: 12 and 1 would make the second tile as slow as the first. */
    const size_t least = a->m / n_tiles, more = a->m % n_tiles;
    /* The tiles of a panel together fetch the next one, which lies right behind, into L2: with weights from L3 that is 93% of
     * peak instead of 70% at 96 rows. One tile has no time for a whole panel and fetches what it needs itself soon. */
    const size_t panel_size = steps * LT_NR, quads = steps / 4 + 1;
    const size_t ahead = (n_tiles == 1 ? min_size(panel_size, 4096) : panel_size) * sizeof(float);
    const float *panel = a->panels;
    for (size_t index = a->panel_begin; index < a->panel_end; index++, panel += panel_size) {
        /* What is fetched, and how many cache lines of it in four steps of a tile. */
        const bool last = a->next && index + 1 == a->panel_end;
        const uintptr_t next = last ? (uintptr_t)a->next : (uintptr_t)panel + ahead;
        const size_t next_lines = (last ? a->next_size : panel_size * sizeof(float)) / 64;
        const size_t lines = (next_lines + quads * n_tiles - 1) / (quads * n_tiles), share = steps / 4 * lines * 64;
        size_t row = 0;
        for (size_t i = 0; i < n_tiles; i++) {
            const size_t rows = least + (i < more);
            const size_t col = index * LT_NR;
            const bool direct = a->bias && !a->gate && a->activation == LT_ACT_NONE && a->n - col >= LT_NR;
            const tile_args t = { .k = steps,
                                  .x = a->x + row * a->ldx,
                                  .ldx = a->ldx,
                                  .b = panel,
                                  .c = c,
                                  .ldc = LT_NR,
                                  .prefetch = next + i * share,
                                  .lines = i * share < next_lines * 64 ? lines : 0,
                                  .y = a->y + row * a->ldy + col,
                                  .ldy = a->ldy,
                                  .bias = direct ? a->bias + col : NULL,
                                  .residual = direct && a->residual ? a->residual + row * a->ldr + col : NULL,
                                  .ldr = a->ldr };
            by_rows[rows](&t);
            if (!direct) finish_tile(a, c, row, rows, col);
            row += rows;
        }
    }
}

static void linear(const lt_linear *a)
{
    multiply(a, a->k, tiles);
}

#include "backend/cpu/few.h"

/* ---- attention ---- */

LT_VECTOR size_t round_up(size_t n, size_t unit)
{
    return (n + unit - 1) / unit * unit;
}

/* Panels of keys [d][nr] · panels of values [LT_KEYS][nr] · weights [mr][LT_KEYS] · sums of values [queries][width] · sums of
 * weights [queries][vl] · largest score [queries]; with pairs, half the keys and values, and a tile of queries [mr][d / 2]. */
LT_VECTOR size_t attention_floats(size_t head_dim, bool pairs)
{
    const size_t width = round_up(head_dim, LT_NR), steps = pairs ? (head_dim + 1) / 2 : head_dim;
    const size_t inputs = LT_KEYS * steps + (pairs ? LT_KEYS / 2 * width + LT_MR * steps : LT_KEYS * width);
    return inputs + LT_MR * LT_KEYS + LT_QUERIES * (width + LT_VL) + LT_QUERIES;
}

static size_t attention_scratch(size_t head_dim)
{
    return attention_floats(head_dim, false);
}

/* The largest of n floats, or -infinity; NaNs are passed over. */
LT_VECTOR float row_max(const float *s, size_t n)
{
    const vf least = v_set1(-INFINITY);
    vf m[2] = { least, least };
    size_t j = 0;
    for (; j + 2 * LT_VL <= n; j += 2 * LT_VL) {
        m[0] = v_max(v_load(s + j), m[0]);
        m[1] = v_max(v_load(s + j + LT_VL), m[1]);
    }
    for (; j + LT_VL <= n; j += LT_VL) m[0] = v_max(v_load(s + j), m[0]);
    if (j < n) m[1] = v_max(v_keep_n(v_load_n(s + j, n - j), n - j, least), m[1]);
    return v_max_across(v_max(m[0], m[1]));
}

/* A tile's scores s [rows][LT_KEYS] of one block of keys become weights 2^(factor (s - max)), in place; row i sees the first
 * visible[i] keys, and the weights from there to n are zero. `max` [rows] is the largest score of the blocks so far, `total`
 * [rows][LT_VL] the sums of the weights: lane by lane down the keys, so that their order depends on the keys' positions alone.
 * Where the largest grows, total and the sums of values so far, o [rows][width], are scaled down; else they stay untouched. */
static void softmax_tile(float *s, size_t rows, const size_t *visible, size_t n, float factor, float *max, float *total, float *o,
                         size_t width)
{
    float scale[LT_MR];
    for (size_t i = 0; i < rows; i++) {
        const float before = max[i], largest = row_max(s + i * LT_KEYS, visible[i]);
        scale[i] = 1;
        if (largest > before) {
            max[i] = largest;
            scale[i] = before > -INFINITY ? factor * before - factor * largest : 1;
        }
    }
    for (size_t i = 0; i < rows; i++) {
        float *row = s + i * LT_KEYS;
        const vf f = v_set1(factor), shift = v_set1(-(factor * max[i]));
        vf sum = v_load(total + i * LT_VL);
        if (scale[i] < 0) {
            const vf down = v_exp2_weight(v_set1(scale[i]));
            sum = v_mul(sum, down);
            for (size_t j = 0; j < width; j += LT_VL) v_store(o + i * width + j, v_mul(v_load(o + i * width + j), down));
        }
        size_t j = 0;
        for (; j + LT_VL <= visible[i]; j += LT_VL) {
            vf e = v_exp2_weight(v_fma(v_load(row + j), f, shift));
            v_store(row + j, e);
            sum = v_add(sum, e);
        }
        if (j < visible[i]) {
            const size_t rest = visible[i] - j;
            vf e = v_keep_n(v_exp2_weight(v_fma(v_load_n(row + j, rest), f, shift)), rest, v_zero());
            v_store(row + j, e); /* LT_KEYS is a multiple of LT_VL */
            sum = v_add(sum, e);
            j += LT_VL;
        }
        for (; j < n; j += LT_VL) v_store(row + j, v_zero());
        v_store(total + i * LT_VL, sum);
    }
}

LT_VECTOR const float *key_at(const lt_attention *a, size_t row)
{
    if (!a->blocks) return a->k + row * a->ldk;
    return a->blocks[row / LT_BLOCK_ROWS] + a->k_offset + row % LT_BLOCK_ROWS * a->ldk;
}

LT_VECTOR const float *value_at(const lt_attention *a, size_t row)
{
    if (!a->blocks) return a->v + row * a->ldv;
    return a->blocks[row / LT_BLOCK_ROWS] + a->v_offset + row % LT_BLOCK_ROWS * a->ldv;
}

/* A panel of keys `row` to row + n, row a multiple of LT_VL. So many rows lie in one block whenever they are packed at once. */
LT_VECTOR void pack_keys(const lt_attention *a, size_t row, size_t n, float *panel, bool pairs)
{
    const size_t steps = pairs ? (a->head_dim + 1) / 2 : a->head_dim, row_bytes = a->ldk * sizeof(float);
    for (size_t g = 0; g < LT_NR; g += LT_VL) {
        const size_t rows = g < n ? min_size(LT_VL, n - g) : 0;
        if (!rows) {
            for (size_t p = 0; p < steps; p++) v_store(panel + p * LT_NR + g, v_zero());
        } else if (pairs) {
            pack_row_pairs((const unsigned char *)key_at(a, row + g), LT_F32, row_bytes, rows, a->head_dim, panel + g);
        } else {
            pack_rows((const unsigned char *)key_at(a, row + g), LT_F32, row_bytes, rows, a->head_dim, panel + g);
        }
    }
}

/* Columns [column, column + LT_NR) of values `row` to row + n as a panel: rows as they are or, with pairs, two and two. */
LT_VECTOR void pack_values(const lt_attention *a, size_t row, size_t n, size_t column, float *panel, bool pairs)
{
    const size_t cols = min_size(LT_NR, a->head_dim - column);
    for (size_t j = 0; j < n; j += pairs ? 2 : 1, panel += LT_NR) {
        const float *v = value_at(a, row + j) + column, *next = pairs && j + 1 < n ? value_at(a, row + j + 1) + column : NULL;
        LT_UNROLL
        for (size_t i = 0; i < LT_NR; i += LT_VL) {
            vf x = i + LT_VL <= cols ? v_load(v + i) : i < cols ? v_load_n(v + i, cols - i) : v_zero();
            if (pairs) {
                vf y = !next || i >= cols ? v_zero() : i + LT_VL <= cols ? v_load(next + i) : v_load_n(next + i, cols - i);
                x = v_zip(x, y);
            }
            v_store(panel + i, x);
        }
    }
}

/* A step of k is a dimension of the head, then a key; with pairs, two. */
LT_VECTOR void attend(const lt_attention *a, tile_fn *const *by_rows, bool pairs)
{
    const size_t d = a->head_dim, width = round_up(d, LT_NR), group = pairs ? 2 : 1, steps = (d + group - 1) / group;
    float *keys = a->scratch, *values = keys + LT_KEYS * steps, *s = values + LT_KEYS / group * width;
    float *sums = s + LT_MR * LT_KEYS, *total = sums + LT_QUERIES * width, *max = total + LT_QUERIES * LT_VL;
    float *rounded = max + LT_QUERIES; /* queries of a tile, as pairs */
    const float factor = a->scale * 1.44269504f;
    /* Keys that the last query sees. */
    const size_t n_keys = a->causal ? min_size(a->n_keys, a->first_position + a->n_queries) : a->n_keys;
    for (size_t i = 0; i < a->n_queries; i++) {
        max[i] = -INFINITY;
        v_store(total + i * LT_VL, v_zero());
    }

    for (size_t begin = 0; begin < n_keys; begin += LT_KEYS) {
        const size_t n = min_size(LT_KEYS, n_keys - begin);
        for (size_t j = 0; j < n; j += LT_NR) {
            pack_keys(a, begin + j, min_size(LT_NR, n - j), keys + j * steps, pairs);
        }
        for (size_t c = 0; c < width; c += LT_NR) pack_values(a, begin, n, c, values + c * (LT_KEYS / group), pairs);
        for (size_t row = 0; row < a->n_queries; row += LT_MR) {
            const size_t rows = min_size(LT_MR, a->n_queries - row);
            size_t seen = n, visible[LT_MR]; /* keys of this block that the tile's last query sees; that each sees */
            if (a->causal) {
                const size_t end = a->first_position + row + 1; /* the first query sees keys [0, end) */
                if (end + rows - 1 <= begin) continue;
                seen = min_size(n, end + rows - 1 - begin);
                for (size_t i = 0; i < rows; i++) visible[i] = end + i <= begin ? 0 : min_size(seen, end + i - begin);
            } else {
                for (size_t i = 0; i < rows; i++) visible[i] = n;
            }
            const float *q = a->q + row * a->ldq;
            size_t ldq = a->ldq;
            if (pairs) {
                for (size_t i = 0; i < rows; i++) round_row(q + i * ldq, d, rounded + i * steps);
                q = rounded;
                ldq = steps;
            }
            for (size_t j = 0; j < seen; j += LT_NR) {
                const tile_args t = { .k = steps, .x = q, .ldx = ldq, .b = keys + j * steps, .c = s + j, .ldc = LT_KEYS };
                by_rows[rows](&t);
            }
            const size_t used = round_up(seen, group); /* a pair's second key may be one that nobody sees: weight 0 */
            softmax_tile(s, rows, visible, used, factor, max + row, total + row * LT_VL, sums + row * width, width);
            if (pairs) {
                for (size_t i = 0; i < rows; i++) round_row(s + i * LT_KEYS, used, s + i * LT_KEYS);
            }
            for (size_t c = 0; c < width; c += LT_NR) {
                const tile_args t = { .k = used / group,
                                      .x = s,
                                      .ldx = LT_KEYS,
                                      .b = values + c * (LT_KEYS / group),
                                      .c = sums + row * width + c,
                                      .ldc = width,
                                      .add = begin > 0 };
                by_rows[rows](&t);
            }
        }
    }
    for (size_t i = 0; i < a->n_queries; i++) {
        const vf inverse = v_set1(1.0f / v_sum(v_load(total + i * LT_VL)));
        const float *o = sums + i * width;
        float *out = a->out + i * a->ldo;
        size_t j = 0;
        for (; j + LT_VL <= d; j += LT_VL) v_store(out + j, v_mul(v_load(o + j), inverse));
        if (j < d) v_store_n(out + j, v_mul(v_load(o + j), inverse), d - j);
    }
}

static void attention(const lt_attention *a)
{
    attend(a, tiles, false);
}

#include "backend/cpu/recurrent.h"

/* What is the same in every arithmetic: what layers remember is computed in float32. */
#define LT_COMMON_KERNELS(name)                                                                                                  \
    .isa = name, .nr = LT_NR, .mr = LT_MR, .tile_rows = LT_TILE_ROWS, .query_tile = LT_QUERIES, .norm = norm,                    \
    .norm_rope = norm_rope, .activate = activate, .convert = convert, .accumulate = accumulate, .pool_sum = pool_sum,            \
    .pool_weighted = pool_weighted, .pool_max = pool_max, .all_finite = all_finite, .peak_read = peak_read,                      \
    .delta_scratch = delta_scratch_floats, .delta = delta, .conv = conv, .gated_norm = gated_norm, .gate = gate

#ifdef LT_HAS_PAIRS
static void linear_pairs(const lt_linear *a)
{
    multiply(a, (a->k + 1) / 2, pair_tiles);
}

static size_t attention_scratch_pairs(size_t head_dim)
{
    return attention_floats(head_dim, true);
}

static void attention_pairs(const lt_attention *a)
{
    attend(a, pair_tiles, true);
}

static const lt_kernels bf16_kernels = {
    LT_COMMON_KERNELS(LT_ISA),     .compute = LATTICE_COMPUTE_BF16, .attention_scratch = attention_scratch_pairs,
    .pack_panel = pack_pair_panel, .round_rows = round_rows,        .linear = linear_pairs,
    .linear_few = linear_few_pairs,    .attention = attention_pairs,  .peak_flop = peak_flop_pairs,
};
#define LT_BF16_KERNELS &bf16_kernels
#else
#define LT_BF16_KERNELS NULL
#endif

/* The table of a set: LT_ISA is its name. */
#define LT_KERNELS                                                                                                               \
    {                                                                                                                            \
        LT_COMMON_KERNELS(LT_ISA), .compute = LATTICE_COMPUTE_F32, .bf16 = LT_BF16_KERNELS,                                      \
                                   .attention_scratch = attention_scratch, .pack_panel = pack_panel, .linear = linear,           \
                                   .linear_few = linear_few,                                                                    \
                                   .attention = attention, .peak_flop = peak_flop                                                \
    }

#endif
