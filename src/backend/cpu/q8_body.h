/* Q8_0 products for every set, over a handful of words for bytes beside the vector vocabulary.
 *
 * A set's file includes its vocabulary, says how many rows (Q8_ROWS) and panels (Q8_PANELS) a tile has, and defines
 *
 *   q_acc       32-bit sums of LT_VL outputs
 *   q_weights   4 weights of each, ready to be multiplied
 *   q_spread    4 bytes of a row for all
 *   q_start     sums that begin at `correction`, which is what biased weights are too large by; 0 where q_load takes it away
 *   q_load      from 4 LT_VL bytes
 *   q_spread4   from 4 bytes
 *   q_dot       acc + Σ over two groups of four: w[0] · x[0] + w[1] · x[1]
 *   q_float     the sums as floats
 *   q_bytes     LT_VL floats as signed bytes, rounded to nearest even
 *
 * A set whose instruction takes two rows at once says Q8_ROW_PAIRS, and instead of q_spread and q_dot defines
 *
 *   q_pair_sums  acc[row][vector] += Σ over groups of eight columns, of rows and vectors of one panel
 *   q_pair_dot   one such instruction on two vectors of weights, for measuring
 *
 * A block's 32 columns are eight groups of four; its integer sums live in registers beside the float sums. */
#ifndef LT_BACKEND_CPU_Q8_BODY_H
#define LT_BACKEND_CPU_Q8_BODY_H

#include "backend/cpu/q8.h"
#include "backend/cpu/vec_math.h"

#include <math.h>
#include <string.h>

#define LT_NR (Q8_PANELS * LT_Q8_0_PANEL)
#ifndef Q8_STEP
#define Q8_STEP 8 /* columns at once; 4, by q_dot4, where more rows leave registers for no more weights */
#endif
#define Q8_VECTORS (LT_Q8_0_PANEL / LT_VL) /* of a panel */

LT_VECTOR size_t min_size(size_t a, size_t b)
{
    return a < b ? a : b;
}

#include "backend/cpu/finish.h"

/* For so few rows memory is the limit: while a block is computed, as much of the panels that follow is fetched; or it is left to
 * the processor, which needs them in one stream. */
#define Q8_FETCH_ROWS 4

LT_VECTOR void q8_fetch(size_t panels, const uint8_t *w, const unsigned char *scales, size_t k, size_t b)
{
    const size_t block = panels * LT_Q8_0_PANEL * LT_Q8_0_BLOCK, blocks = k / LT_Q8_0_BLOCK;
    const uintptr_t next = (uintptr_t)w + (blocks + b) * block; /* may lie behind the last */
    LT_UNROLL
    for (size_t i = 0; i < block / 64; i++) __builtin_prefetch((const void *)(next + i * 64), 0, 2);
    __builtin_prefetch((const void *)((uintptr_t)scales + (blocks + b) * panels * LT_Q8_0_PANEL * 2), 0, 2);
}

/* acc += Σ over the columns of block b */
LT_VECTOR void q8_sums(size_t rows, size_t panels, const unsigned char *x, size_t row_bytes, const uint8_t *w, size_t k, size_t b,
                       q_acc acc[Q8_ROWS][Q8_PANELS * Q8_VECTORS])
{
#ifdef Q8_ROW_PAIRS
    (void)k;
    q_pair_sums(rows, panels * Q8_VECTORS, x + b * LT_Q8_0_BLOCK, row_bytes, w + b * LT_Q8_0_BLOCK * LT_Q8_0_PANEL,
                LT_Q8_0_BLOCK / 8, 0, 0, acc[0]);
#else
    LT_UNROLL
    for (size_t g = 0; g < LT_Q8_0_BLOCK; g += Q8_STEP) {
        q_weights q[Q8_PANELS * Q8_VECTORS][Q8_STEP / 4];
        LT_UNROLL
        for (size_t v = 0; v < panels * Q8_VECTORS; v++) {
            const uint8_t *from = w + v / Q8_VECTORS * LT_Q8_0_PANEL * k + v % Q8_VECTORS * LT_VL * 4;
            LT_UNROLL
            for (size_t j = 0; j < Q8_STEP / 4; j++) q[v][j] = q_load(from + (b * LT_Q8_0_BLOCK + g + j * 4) * LT_Q8_0_PANEL);
        }
        LT_UNROLL
        for (size_t i = 0; i < rows; i++) {
            const unsigned char *from = x + i * row_bytes + b * LT_Q8_0_BLOCK + g;
#if Q8_STEP == 4
            const q_spread s = q_spread4(from);
            LT_UNROLL
            for (size_t v = 0; v < panels * Q8_VECTORS; v++) acc[i][v] = q_dot4(acc[i][v], q[v][0], s);
#else
            const q_spread s[2] = { q_spread4(from), q_spread4(from + 4) };
            LT_UNROLL
            for (size_t v = 0; v < panels * Q8_VECTORS; v++) acc[i][v] = q_dot(acc[i][v], q[v], s);
#endif
        }
    }
#endif
}

/* c[i][...] = products of `rows` rows from x on with `panels` panels from `panel` on. */
LT_VECTOR void q8_tile(size_t rows, size_t panels, const lt_q8_linear *a, const unsigned char *x, size_t panel, float *c)
{
    const size_t k = a->out.k, blocks = k / LT_Q8_0_BLOCK, row_bytes = lt_q8_row_bytes(k);
    const uint8_t *w = a->quants + panel * LT_Q8_0_PANEL * k;
    const unsigned char *scales = (const unsigned char *)a->scales + panel * LT_Q8_0_PANEL * blocks * 2;
    vf sum[Q8_ROWS][Q8_PANELS * Q8_VECTORS];
    LT_UNROLL
    for (size_t i = 0; i < rows; i++) {
        LT_UNROLL
        for (size_t v = 0; v < panels * Q8_VECTORS; v++) sum[i][v] = v_zero();
    }
    for (size_t b = 0; b < blocks; b++) {
        if (rows <= Q8_FETCH_ROWS && !a->out.self_fetching) q8_fetch(panels, w, scales, k, b);
        q_acc acc[Q8_ROWS][Q8_PANELS * Q8_VECTORS];
        LT_UNROLL
        for (size_t i = 0; i < rows; i++) {
            const q_acc start = q_start(x + i * row_bytes + k + (blocks + b) * 4);
            LT_UNROLL
            for (size_t v = 0; v < panels * Q8_VECTORS; v++) acc[i][v] = start;
        }
        q8_sums(rows, panels, x, row_bytes, w, k, b, acc);
        LT_UNROLL
        for (size_t v = 0; v < panels * Q8_VECTORS; v++) {
            const unsigned char *from = scales + (v / Q8_VECTORS * blocks + b) * LT_Q8_0_PANEL * 2 + v % Q8_VECTORS * LT_VL * 2;
            const vf d = v_load_f16(from);
            LT_UNROLL
            for (size_t i = 0; i < rows; i++) {
                float scale;
                memcpy(&scale, x + i * row_bytes + k + b * 4, 4);
                sum[i][v] = v_fma(q_float(acc[i][v]), v_mul(d, v_set1(scale)), sum[i][v]);
            }
        }
    }
    LT_UNROLL
    for (size_t i = 0; i < rows; i++) {
        LT_UNROLL
        for (size_t v = 0; v < panels * Q8_VECTORS; v++) v_store(c + i * LT_NR + v * LT_VL, sum[i][v]);
    }
}

typedef void q8_fn(const lt_q8_linear *a, const unsigned char *x, size_t panel, float *c);

/* Q8_TILES(X): X(1) … X(Q8_ROWS). */
#define X(rows)                                                                                                                  \
    static void q8_one_##rows(const lt_q8_linear *a, const unsigned char *x, size_t panel, float *c)                             \
    {                                                                                                                            \
        q8_tile(rows, 1, a, x, panel, c);                                                                                        \
    }
Q8_TILES(X)
#undef X
#define X(rows) q8_one_##rows,
static q8_fn *const q8_one[Q8_ROWS + 1] = { NULL, Q8_TILES(X) };
#undef X

#if Q8_PANELS > 1
#define X(rows)                                                                                                                  \
    static void q8_all_##rows(const lt_q8_linear *a, const unsigned char *x, size_t panel, float *c)                             \
    {                                                                                                                            \
        q8_tile(rows, Q8_PANELS, a, x, panel, c);                                                                                \
    }
Q8_TILES(X)
#undef X
#define X(rows) q8_all_##rows,
static q8_fn *const q8_all[Q8_ROWS + 1] = { NULL, Q8_TILES(X) };
#undef X
#else
#define q8_all q8_one
#endif

static void q8_linear(const lt_q8_linear *a)
{
    _Alignas(64) float c[Q8_ROWS * LT_NR];
    const size_t m = a->out.m, row_bytes = lt_q8_row_bytes(a->out.k), n_tiles = (m + Q8_ROWS - 1) / Q8_ROWS;
    const bool one_stream = m <= Q8_FETCH_ROWS && a->out.self_fetching;
    for (size_t panel = a->out.panel_begin; panel < a->out.panel_end;) {
        // NOLINTNEXTLINE(bugprone-branch-clone): in some sets Q8_PANELS is 1
        const size_t panels = one_stream || a->out.panel_end - panel < Q8_PANELS ? 1 : Q8_PANELS, col = panel * LT_Q8_0_PANEL;
        const size_t cols = min_size(panels * LT_Q8_0_PANEL, a->out.n - col);
        size_t row = 0;
        for (size_t i = 0; i < n_tiles; i++) { /* rows dealt evenly */
            const size_t rows = m / n_tiles + (i < m % n_tiles);
            const unsigned char *x = (const unsigned char *)a->x + row * row_bytes;
            // NOLINTNEXTLINE(bugprone-branch-clone)
            (panels == 1 ? q8_one : q8_all)[rows](a, x, panel, c);
            finish_tile(&a->out, c, row, rows, col, cols);
            row += rows;
        }
        panel += panels;
    }
}

/* ---- activations ---- */

/* d = max|x| / 127, q = x · (127 / max|x|) to nearest even; blocks of nothing but tiny values are zeros. */
static void q8_quantize_row(const float *x, size_t k, unsigned char *out)
{
    const size_t blocks = k / LT_Q8_0_BLOCK;
    for (size_t b = 0; b < blocks; b++, x += LT_Q8_0_BLOCK) {
        signed char *bytes = (signed char *)out + b * LT_Q8_0_BLOCK;
        const float most = q_largest(x), scale = most < 0x1p-100f ? 0 : most / 127;
        const vf inverse = v_set1(most < 0x1p-100f ? 0 : 127 / most);
        LT_UNROLL
        for (size_t i = 0; i < LT_Q8_0_BLOCK; i += LT_VL) q_bytes(bytes + i, v_mul(v_load(x + i), inverse));
        const int correction = -128 * q_sum(bytes);
        memcpy(out + k + b * 4, &scale, 4);
        memcpy(out + k + (blocks + b) * 4, &correction, 4);
    }
}

static void q8_quantize(const float *x, size_t ldx, size_t m, size_t k, void *out)
{
    for (size_t i = 0; i < m; i++) q8_quantize_row(x + i * ldx, k, (unsigned char *)out + i * lt_q8_row_bytes(k));
}

/* ---- measuring ---- */

static double q8_peak(size_t iterations)
{
    enum { CHAINS = 12 };
    static const uint8_t bytes[8 * LT_VL + 16] = { 129, 3, 130, 4, 131, 5, 132, 6, 133, 7, 134, 8, 135, 9, 136, 10 };
    volatile const uint8_t *source = bytes;
    volatile float sink;
    uint8_t copy[sizeof bytes];
    for (size_t i = 0; i < sizeof copy; i++) copy[i] = source[i];
    const q_weights w[2] = { q_load(copy), q_load(copy + 4 * LT_VL) };
#ifndef Q8_ROW_PAIRS
    const q_spread s[2] = { q_spread4(copy), q_spread4(copy + 4) };
#endif
    q_acc acc[CHAINS];
    LT_UNROLL
    for (size_t c = 0; c < CHAINS; c++) acc[c] = q_start(copy + c); /* chains that start alike would be merged */
    for (size_t i = 0; i < iterations; i++) {
        LT_UNROLL
        for (size_t c = 0; c < CHAINS; c++) {
#ifdef Q8_ROW_PAIRS
            acc[c] = q_pair_dot(q_pair_dot(acc[c], w[0], w[1]), w[1], w[0]);
#else
            q_spread x[2] = { s[0], s[1] }; /* each time other ones, as far as the compiler knows: it would multiply but once */
            LT_OPAQUE(x[0]);
            LT_OPAQUE(x[1]);
            acc[c] = q_dot(acc[c], w, x);
#endif
        }
    }
    vf total = v_zero();
    LT_UNROLL
    for (size_t c = 0; c < CHAINS; c++) total = v_add(total, q_float(acc[c]));
    sink = v_sum(total);
    (void)sink;
#ifdef Q8_ROW_PAIRS
    return 128.0 * CHAINS * (double)iterations;
#else
    return 16.0 * LT_VL * CHAINS * (double)iterations;
#endif
}

/* All of a table but its products. */
#define LT_Q8_COMMON(name) .isa = name, .mr = Q8_ROWS, .quantize = q8_quantize, .quantize_rows = int8_quantize
#define LT_Q8_KERNELS                                                                                                            \
    {                                                                                                                            \
        LT_Q8_COMMON(Q8_ISA), .linear = q8_linear, .linear_rows = int8_linear, .peak = q8_peak                                   \
    }

#endif
