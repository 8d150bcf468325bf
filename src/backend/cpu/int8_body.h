/* Products with int8 weights by rows for every set, over the words of q8_body.h, which is included before.
 *
 * A set says how many rows a tile has (INT8_ROWS, of Q8_PANELS panels) and INT8_TILES(X): X(1) … X(INT8_ROWS). All sums of a tile
 * are integers that stay in registers from the first column to the last; floats are made of them once, behind it. Sets with an
 * instruction for four products say INT8_STEP 4 and define
 *
 *   q_dot4, q_dot4_at   acc + Σ over one group of four: w · x, with x spread, or in memory, for the rows where INT8_EMBED says so
 *
 * Others say INT8_STEP 8, and q_dot takes both groups at once. Sets whose instruction takes two rows (Q8_ROW_PAIRS) say neither
 * and have q_pair_sums instead. */
#ifndef LT_BACKEND_CPU_INT8_BODY_H
#define LT_BACKEND_CPU_INT8_BODY_H

#include "backend/cpu/int8.h"
#include "backend/cpu/int8_finish.h"

_Static_assert((int)LT_INT8_PANEL == (int)LT_Q8_0_PANEL && LT_INT8_GROUP == 8, "the words take eight columns of such panels");

/* s, c and −128 Σ q of a row. */
LT_VECTOR void int8_numbers(const unsigned char *row, size_t k, float numbers[2], const void **correction)
{
    memcpy(numbers, row + k, 2 * sizeof *numbers);
    *correction = row + k + 8;
}

/* A tile: products of rows from x on with panels from `panel` on. */
typedef struct int8_args {
    const lt_int8_linear *a;
    const unsigned char *x;
    size_t panel;
    float *c;              /* [rows][LT_NR]: where the products go */
    const float *y;        /* the finished rows, which are fetched meanwhile for writing, */
    const float *residual; /* and what is added to them, or NULL */
    uintptr_t prefetch;    /* `lines` cache lines every eight columns, from here on, are wanted next; any address is harmless */
    size_t lines;
} int8_args;

#ifdef Q8_ROW_PAIRS
LT_VECTOR void int8_sums(size_t rows, size_t panels, const int8_args *t, const unsigned char *x, const uint8_t *w,
                         q_acc acc[INT8_ROWS][Q8_PANELS * Q8_VECTORS])
{
    const size_t k = lt_int8_padded(t->a->out.k);
    q_pair_sums(rows, panels * Q8_VECTORS, x, lt_int8_row_bytes(t->a->out.k), w, k / LT_INT8_GROUP, t->prefetch, t->lines,
                acc[0]);
}
#else
#ifndef INT8_EMBED
#define INT8_EMBED(row) false
#define q_dot4_at(acc, w, x) q_dot4(acc, w, q_spread4(x))
#endif

/* One row and all vectors of a tile: four columns, or eight. */
#if INT8_STEP == 4
LT_VECTOR void int8_step(size_t panels, q_acc *acc, q_weights q[][1], const unsigned char *x, bool embed)
{
    const q_spread s = q_spread4(x);
    LT_UNROLL
    for (size_t v = 0; v < panels * Q8_VECTORS; v++) acc[v] = embed ? q_dot4_at(acc[v], q[v][0], x) : q_dot4(acc[v], q[v][0], s);
}
#else
LT_VECTOR void int8_step(size_t panels, q_acc *acc, q_weights q[][2], const unsigned char *x, bool embed)
{
    (void)embed;
    const q_spread s[2] = { q_spread4(x), q_spread4(x + 4) };
    LT_UNROLL
    for (size_t v = 0; v < panels * Q8_VECTORS; v++) acc[v] = q_dot(acc[v], q[v], s);
}
#endif

/* acc += Σ over all columns */
LT_VECTOR void int8_sums(size_t rows, size_t panels, const int8_args *t, const unsigned char *x, const uint8_t *w,
                         q_acc acc[INT8_ROWS][Q8_PANELS * Q8_VECTORS])
{
    const size_t k = lt_int8_padded(t->a->out.k), row_bytes = lt_int8_row_bytes(t->a->out.k);
    uintptr_t prefetch = t->prefetch;
    for (size_t g = 0; g < k; g += LT_INT8_GROUP) {
        for (size_t i = 0; i < t->lines; i++, prefetch += 64) __builtin_prefetch((const void *)prefetch, 0, 2);
        LT_UNROLL
        for (size_t h = g; h < g + LT_INT8_GROUP; h += INT8_STEP) {
            q_weights q[Q8_PANELS * Q8_VECTORS][INT8_STEP / 4];
            LT_UNROLL
            for (size_t v = 0; v < panels * Q8_VECTORS; v++) {
                const uint8_t *from = w + v / Q8_VECTORS * LT_INT8_PANEL * k + v % Q8_VECTORS * LT_VL * 4 + h * LT_INT8_PANEL;
                LT_UNROLL
                for (size_t j = 0; j < INT8_STEP / 4; j++) q[v][j] = q_load(from + j * LT_INT8_PANEL * 4);
            }
            LT_UNROLL
            for (size_t i = 0; i < rows; i++) int8_step(panels, acc[i], q, x + i * row_bytes + h, INT8_EMBED(i));
        }
    }
}
#endif

LT_VECTOR void int8_tile(size_t rows, size_t panels, const int8_args *t)
{
    const lt_int8_linear *a = t->a;
    const unsigned char *x = t->x;
    const size_t k = lt_int8_padded(a->out.k), row_bytes = lt_int8_row_bytes(a->out.k), panel = t->panel;
    const uint8_t *w = a->quants + panel * LT_INT8_PANEL * k;
    float *c = t->c;
    for (size_t i = 0; i < rows; i++) {
        LT_UNROLL
        for (size_t j = 0; j < panels * LT_INT8_PANEL; j += 16) __builtin_prefetch(t->y + i * a->out.ldy + j, 1, 3);
    }
    if (t->residual) {
        for (size_t i = 0; i < rows; i++) {
            LT_UNROLL
            for (size_t j = 0; j < panels * LT_INT8_PANEL; j += 16) __builtin_prefetch(t->residual + i * a->out.ldr + j, 0, 3);
        }
    }
    q_acc acc[INT8_ROWS][Q8_PANELS * Q8_VECTORS];
    float numbers[INT8_ROWS][2];
    LT_UNROLL
    for (size_t i = 0; i < rows; i++) {
        const void *correction;
        int8_numbers(x + i * row_bytes, k, numbers[i], &correction);
        const q_acc start = q_start(correction);
        LT_UNROLL
        for (size_t v = 0; v < panels * Q8_VECTORS; v++) acc[i][v] = start;
    }
    int8_sums(rows, panels, t, x, w, acc);
    LT_UNROLL
    for (size_t v = 0; v < panels * Q8_VECTORS; v++) {
        const size_t column = panel * LT_INT8_PANEL + v * LT_VL;
        const vf d = v_load(a->scales + column * sizeof(float)), sum = v_load(a->sums + column * sizeof(float));
        LT_UNROLL
        for (size_t i = 0; i < rows; i++) {
            const vf offset = v_mul(sum, v_set1(numbers[i][1]));
            v_store(c + i * LT_NR + v * LT_VL, v_fma(q_float(acc[i][v]), v_mul(d, v_set1(numbers[i][0])), offset));
        }
    }
}

typedef void int8_fn(const int8_args *t);

#define X(rows)                                                                                                                  \
    static void int8_one_##rows(const int8_args *t)                                                                              \
    {                                                                                                                            \
        int8_tile(rows, 1, t);                                                                                                   \
    }
INT8_TILES(X)
#undef X
#define X(rows) int8_one_##rows,
static int8_fn *const int8_one[INT8_ROWS + 1] = { NULL, INT8_TILES(X) };
#undef X

#if Q8_PANELS > 1
#define X(rows)                                                                                                                  \
    static void int8_all_##rows(const int8_args *t)                                                                              \
    {                                                                                                                            \
        int8_tile(rows, Q8_PANELS, t);                                                                                           \
    }
INT8_TILES(X)
#undef X
#define X(rows) int8_all_##rows,
static int8_fn *const int8_all[INT8_ROWS + 1] = { NULL, INT8_TILES(X) };
#undef X
#else
#define int8_all int8_one
#endif

static void int8_linear(const lt_int8_linear *a)
{
    _Alignas(64) float c[INT8_ROWS * LT_NR];
    const size_t m = a->out.m, k = lt_int8_padded(a->out.k), row_bytes = lt_int8_row_bytes(a->out.k);
    const size_t n_tiles = (m + INT8_ROWS - 1) / INT8_ROWS, least = n_tiles ? m / n_tiles : 0, more = n_tiles ? m % n_tiles : 0;
    /* The tiles of some panels together fetch the next ones, which lie right behind, into L2. */
    const size_t next_lines = Q8_PANELS * LT_INT8_PANEL * k / 64, groups = k / LT_INT8_GROUP;
    const size_t lines = n_tiles ? (next_lines + groups * n_tiles - 1) / (groups * n_tiles) : 0;
    for (size_t panel = a->out.panel_begin; panel < a->out.panel_end;) {
        // NOLINTNEXTLINE(bugprone-branch-clone): in some sets Q8_PANELS is 1
        const size_t panels = a->out.panel_end - panel < Q8_PANELS ? 1 : Q8_PANELS, col = panel * LT_INT8_PANEL;
        const size_t cols = min_size(panels * LT_INT8_PANEL, a->out.n - col);
        const uintptr_t next = (uintptr_t)a->quants + (panel + panels) * LT_INT8_PANEL * k;
        size_t row = 0;
        for (size_t i = 0; i < n_tiles; i++) { /* rows dealt evenly */
            const size_t rows = least + (i < more), share = i * lines * groups;
            const int8_args t = { .a = a,
                                  .x = (const unsigned char *)a->x + row * row_bytes,
                                  .panel = panel,
                                  .c = c,
                                  .y = a->out.y + row * a->out.ldy + col,
                                  .residual = a->out.residual ? a->out.residual + row * a->out.ldr + col : NULL,
                                  .prefetch = next + share * 64,
                                  .lines = share < next_lines ? lines : 0 };
            // NOLINTNEXTLINE(bugprone-branch-clone)
            (panels == 1 ? int8_one : int8_all)[rows](&t);
            int8_finish(&a->out, c, row, rows, col, cols);
            row += rows;
        }
        panel += panels;
    }
}

/* ---- activations ---- */

/* LT_VL values from x on, times their factors; of the last vector n. */
LT_VECTOR vf int8_input(const float *x, const unsigned char *inputs, size_t i, size_t n)
{
    const vf v = n == LT_VL ? v_load(x + i) : v_load_n(x + i, n);
    if (!inputs) return v;
    const unsigned char *m = inputs + i * sizeof(float);
    return v_mul(v, n == LT_VL ? v_load(m) : v_load_n(m, n));
}

/* least and most of a row; NaN, both, where a value is not finite. */
LT_VECTOR void int8_range(const float *x, const unsigned char *inputs, size_t k, float *least, float *most)
{
    float factor = 1;
    if (inputs) memcpy(&factor, inputs, sizeof factor);
    const vf first = v_set1(x[0] * factor), zero = v_zero();
    vf high[2] = { first, first }, low[2], check[2] = { zero, zero }; /* low: of −x */
    low[0] = low[1] = v_sub(zero, first);
    size_t i = 0;
    for (; i + 2 * LT_VL <= k; i += 2 * LT_VL) {
        LT_UNROLL
        for (size_t j = 0; j < 2; j++) {
            const vf v = int8_input(x, inputs, i + j * LT_VL, LT_VL);
            high[j] = v_max(v, high[j]);
            low[j] = v_max(v_sub(zero, v), low[j]);
            check[j] = v_fma(v, zero, check[j]);
        }
    }
    for (size_t n; i < k; i += n) {
        n = min_size(k - i, LT_VL);
        const vf v = v_keep_n(int8_input(x, inputs, i, n), n, first);
        high[0] = v_max(v, high[0]);
        low[0] = v_max(v_sub(zero, v), low[0]);
        check[0] = v_fma(v, zero, check[0]);
    }
    const float bad = v_sum(v_add(check[0], check[1]));
    *most = v_max_across(v_max(high[0], high[1])) + bad;
    *least = bad - v_max_across(v_max(low[0], low[1]));
}

static void int8_quantize_row(const float *x, const unsigned char *inputs, size_t k, unsigned char *out)
{
    const size_t padded = lt_int8_padded(k), summed = (padded + 31) / 32 * 32;
    float least, most, numbers[2];
    int8_range(x, inputs, k, &least, &most);
    const float range = most - least, center = least + range / 2;
    const bool flat = range < 0x1p-100f; /* all alike */
    const vf inverse = v_set1(flat ? 0 : 254 / range), shift = v_set1(flat ? 0 : -center * (254 / range));
    signed char *bytes = (signed char *)out;
    size_t i = 0;
    for (; i + LT_VL <= k; i += LT_VL) q_bytes(bytes + i, v_fma(int8_input(x, inputs, i, LT_VL), inverse, shift));
    if (i < k) {
        const size_t n = k - i;
        q_bytes(bytes + i, v_keep_n(v_fma(int8_input(x, inputs, i, n), inverse, shift), n, v_zero()));
    }
    memset(out + k, 0, summed - k);
    int sum = 0;
    for (i = 0; i < summed; i += 32) sum += q_sum(bytes + i);
    sum *= -128;
    numbers[0] = flat ? 0 : range / 254;
    numbers[1] = center;
    memcpy(out + padded, numbers, sizeof numbers);
    memcpy(out + padded + sizeof numbers, &sum, sizeof sum);
}

static void int8_quantize(const float *x, size_t ldx, size_t m, size_t k, const void *inputs, void *out)
{
    const size_t row_bytes = lt_int8_row_bytes(k);
    for (size_t i = 0; i < m; i++) {
        unsigned char *row = (unsigned char *)out + i * row_bytes;
        if (inputs)
            int8_quantize_row(x + i * ldx, inputs, k, row);
        else
            int8_quantize_row(x + i * ldx, NULL, k, row);
    }
}

#endif
