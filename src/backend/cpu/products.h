/* linear over a micro-kernel, for every set, and the tables.
 *
 * The micro-kernel multiplies R <= LT_MR rows of activations, which lie as they are and are broadcast from memory, with a panel
 * of LT_NR columns: R × LT_NV accumulators in registers, k ascending, one accumulator an output. Fewer rows take the same steps
 * with fewer accumulators, so a row's result never depends on how many there are. Where LT_EMBED_BROADCAST(row) holds, the
 * broadcast is part of the multiply-add: it balances the front end against the load ports, and changes no result. Elsewhere
 * LT_KEEP_ORDER makes the compiler broadcast an activation right before its multiply-adds.
 *
 * linear takes a panel through all its rows while the panel is in L2 (or, narrow, in L1); meanwhile the next panel is fetched.
 * attention, in its own file, is the same product twice.
 *
 * Sets that multiply bfloat16 have all of it a second time, over pairs: two neighbours of k, rounded, lie in one lane, and a step
 * takes both. Accumulators, softmax and everything behind stay float32. `pairs` is a constant wherever it is a parameter.
 */
#ifndef LT_BACKEND_CPU_PRODUCTS_H
#define LT_BACKEND_CPU_PRODUCTS_H

#include "backend/cpu/bodies.h"
#include "backend/cpu/finish.h"

#ifndef LT_KEEP_ORDER
#define LT_KEEP_ORDER false
#endif

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

/* What a tile multiplies: floats; pairs of bfloat16 on both sides; or floats by pairs of bfloat16, two floats each. */
typedef enum tile_form { FLOATS, PAIRS, FLOATS_BY_PAIRS } tile_form;

/* x[rows][p] by one row of a panel. Rows are reached from four bases, three rows each, which x86 addresses without further
 * arithmetic. */
LT_VECTOR void tile_row(size_t rows, vf acc[LT_MR][LT_NV], const float *const base[4], size_t ldx, size_t p, const vf bv[LT_NV],
                        bool pairs)
{
    LT_UNROLL
    for (size_t i = 0; i < rows; i++) {
        const float *x = base[i / 3] + (i % 3) * ldx + p;
        if (LT_EMBED_BROADCAST(i)) {
            LT_UNROLL
            for (size_t j = 0; j < LT_NV; j++)
                acc[i][j] = pairs ? v_dot_broadcast(x, bv[j], acc[i][j]) : v_fma_broadcast(x, bv[j], acc[i][j]);
        } else {
            vf a = v_set1(*x); /* a pair too: its bits pass through */
            if (LT_KEEP_ORDER) LT_OPAQUE(a);
            LT_UNROLL
            for (size_t j = 0; j < LT_NV; j++) acc[i][j] = pairs ? v_dot(a, bv[j], acc[i][j]) : v_fma(a, bv[j], acc[i][j]);
        }
    }
}

/* One step of k. */
LT_VECTOR void tile_step(size_t rows, vf acc[LT_MR][LT_NV], const float *const base[4], size_t ldx, size_t p, const float *b,
                         tile_form form)
{
    vf bv[LT_NV], half[LT_NV];
    LT_UNROLL
    for (size_t j = 0; j < LT_NV; j++) bv[j] = v_load(b + j * LT_VL);
    if (form != FLOATS_BY_PAIRS) {
        tile_row(rows, acc, base, ldx, p, bv, form == PAIRS);
        return;
    }
    LT_UNROLL
    for (size_t j = 0; j < LT_NV; j++) half[j] = v_low_bf16(bv[j]);
    tile_row(rows, acc, base, ldx, 2 * p, half, false);
    LT_UNROLL
    for (size_t j = 0; j < LT_NV; j++) half[j] = v_high_bf16(bv[j]);
    tile_row(rows, acc, base, ldx, 2 * p + 1, half, false);
}

LT_VECTOR void tile(size_t rows, const tile_args *t, tile_form form)
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
    if (t->residual) {
        for (size_t i = 0; i < rows; i++) {
            LT_UNROLL
            for (size_t j = 0; j < LT_NR; j += 16) __builtin_prefetch(t->residual + i * t->ldr + j, 0, 3);
        }
    }
    for (; p + 4 <= k; p += 4) {
        for (size_t i = 0; i < t->lines; i++, prefetch += 64) __builtin_prefetch((const void *)prefetch, 0, 2);
        LT_UNROLL
        for (size_t u = 0; u < 4; u++) tile_step(rows, acc, base, ldx, p + u, b + u * LT_NR, form);
        b += 4 * LT_NR;
    }
    for (; p < k; p++) {
        tile_step(rows, acc, base, ldx, p, b, form);
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

/* A function for each number of rows. LT_TILES(X): X(1) … X(LT_MR), defined by the set. */
#define X(rows)                                                                                                                  \
    static void tile_##rows(const tile_args *t)                                                                                  \
    {                                                                                                                            \
        tile(rows, t, FLOATS);                                                                                                   \
    }                                                                                                                            \
    static void tile_by_pairs_##rows(const tile_args *t)                                                                         \
    {                                                                                                                            \
        tile(rows, t, FLOATS_BY_PAIRS);                                                                                          \
    }
LT_TILES(X)
#undef X

#define X(rows) [rows] = tile_##rows,
static tile_fn *const tiles[LT_MR + 1] = { LT_TILES(X) };
#undef X
#define X(rows) [rows] = tile_by_pairs_##rows,
static tile_fn *const tiles_by_pairs[LT_MR + 1] = { LT_TILES(X) };
#undef X

#ifdef LT_HAS_PAIRS
#define X(rows)                                                                                                                  \
    static void pair_tile_##rows(const tile_args *t)                                                                             \
    {                                                                                                                            \
        tile(rows, t, PAIRS);                                                                                                    \
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

/* steps: of k, each of a float or a pair; fetch: what comes next, ahead */
LT_VECTOR void multiply(const lt_linear *a, size_t steps, tile_fn *const *by_rows, bool fetch)
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
                                  .lines = fetch && i * share < next_lines * 64 ? lines : 0,
                                  .y = a->y + row * a->ldy + col,
                                  .ldy = a->ldy,
                                  .bias = direct ? a->bias + col : NULL,
                                  .residual = direct && a->residual ? a->residual + row * a->ldr + col : NULL,
                                  .ldr = a->ldr };
            by_rows[rows](&t);
            if (!direct) finish_tile(a, c, row, rows, col, min_size(LT_NR, a->n - col));
            row += rows;
        }
    }
}

static void linear(const lt_linear *a)
{
    multiply(a, a->k, tiles, true);
}

static void linear_by_pairs(const lt_linear *a)
{
    multiply(a, a->k / 2, tiles_by_pairs, !a->self_fetching);
}

#include "backend/cpu/few.h"

#include "backend/cpu/attention.h"
#include "backend/cpu/recurrent.h"

/* What is the same in every arithmetic: what layers remember is computed in float32. */
#define LT_COMMON_KERNELS(name)                                                                                                  \
    .isa = name, .nr = LT_NR, .query_tile = LT_QUERIES, .norm = norm, .norm_rope = norm_rope, .activate = activate,              \
    .convert = convert, .accumulate = accumulate, .pool_sum = pool_sum, .pool_weighted = pool_weighted, .pool_max = pool_max,    \
    .all_finite = all_finite, .peak_read = peak_read, .delta_scratch = delta_scratch_floats, .delta = delta, .conv = conv,       \
    .gated_norm = gated_norm, .gate = gate, .to_half = to_half

#ifdef LT_HAS_PAIRS
static void linear_pairs(const lt_linear *a)
{
    multiply(a, (a->k + 1) / 2, pair_tiles, true);
}

static size_t attention_scratch_pairs(size_t head_dim)
{
    return attention_floats(head_dim, true);
}

/* What is the same for all products of bfloat16 over these panels. */
#define LT_BF16_COMMON(name)                                                                                                     \
    LT_COMMON_KERNELS(name), .compute = LATTICE_COMPUTE_BF16, .pack_panel = pack_pair_panel, .round_rows = round_rows

static const lt_kernels bf16_kernels = { LT_BF16_COMMON(LT_ISA),         .mr = LT_MR,
                                         .tile_rows = LT_TILE_ROWS,      .linear = linear_pairs,
                                         .linear_few = linear_few_pairs, .attention_scratch = attention_scratch_pairs,
                                         .attention = attention_pairs,   .peak_flop = peak_flop_pairs };
#define LT_BF16_KERNELS &bf16_kernels
#else
#define LT_BF16_KERNELS NULL
#endif

/* The float32 table of a set, and its name. */
#define LT_KERNELS_AS(name, bf16_table)                                                                                          \
    {                                                                                                                            \
        LT_COMMON_KERNELS(name), .mr = LT_MR, .tile_rows = LT_TILE_ROWS, .compute = LATTICE_COMPUTE_F32, .bf16 = bf16_table,     \
                                 .attention_scratch = attention_scratch, .pack_panel = pack_panel, .linear = linear,             \
                                 .linear_few = linear_few, .pack_pairs = pack_pairs, .widen_pairs = widen_pairs,                 \
                                 .linear_by_pairs = linear_by_pairs, .attention = attention, .peak_flop = peak_flop              \
    }

/* LT_ISA is its name. */
#define LT_KERNELS LT_KERNELS_AS(LT_ISA, LT_BF16_KERNELS)

#endif
