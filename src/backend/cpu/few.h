/* linear for few rows, straight from the rows of W as they are stored: what a matrix that is packed when touched is multiplied by
 * at every step of decoding. There memory is the limit, and a panel written and read again would cost more than the product.
 *
 * A square of LT_VL outputs by LT_VL of k (of bfloat16, twice as many in the same registers) is transposed in registers and
 * multiplied at once, so that k ascends in one accumulator an output: the same steps as over a panel, and the same bits. While it
 * is computed, the rows that follow are fetched at the same columns: LT_VL streams are too many for a prefetcher to follow. */
#ifndef LT_BACKEND_CPU_FEW_H
#define LT_BACKEND_CPU_FEW_H

#define FEW_ROWS 4 /* accumulators beside a square; more rows take a panel's rows of W from L2 again */

/* acc[i] += x[i][p] · b for every row; x points at step p. */
LT_VECTOR void few_step(size_t m, vf acc[FEW_ROWS], const float *x, size_t ldx, vf b, bool pairs)
{
    LT_UNROLL
    for (size_t i = 0; i < m; i++)
        acc[i] = pairs ? v_dot_broadcast(x + i * ldx, b, acc[i]) : v_fma_broadcast(x + i * ldx, b, acc[i]);
}

/* What is fetched while a square is computed: its share of the LT_VL rows that follow, in this many streams of equal length: one
 * alone has too few lines under way (four read 4% more tokens a second than one, two 3%). */
#define FEW_STREAMS(bytes) ((bytes) >= 256 ? 4 : 1)
LT_VECTOR void few_fetch(const unsigned char *next, size_t bytes, size_t row_bytes)
{
    const size_t streams = FEW_STREAMS(bytes), apart = LT_VL / streams * row_bytes;
    for (size_t s = 0; s < streams; s++, next = (const unsigned char *)((uintptr_t)next + apart))
        for (size_t i = 0; i < bytes / streams; i += 64) __builtin_prefetch(next + i, 0, 2);
}

/* One square whose rows begin at w, `n` elements of each: LT_VL, of pairs and where bfloat16 is split twice as many, or fewer. */
LT_VECTOR void few_square(size_t m, vf acc[FEW_ROWS], const unsigned char *w, lt_dtype dtype, size_t row_bytes, size_t n,
                          bool full, const float *x, size_t ldx, bool split, bool pairs)
{
    vf square[LT_VL];
    if (full && (split || dtype == (pairs ? LT_BF16 : LT_F32))) {
        v_load_square(square, w, row_bytes);
    } else {
        LT_UNROLL
        for (size_t r = 0; r < LT_VL; r++) {
            const unsigned char *p = w + r * row_bytes;
            square[r] = pairs ? load_pairs(p, dtype, n) : full || n == LT_VL ? load_as(p, dtype) : load_as_n(p, dtype, n);
        }
        v_transpose(square);
    }
    LT_UNROLL
    for (size_t j = 0; j < LT_VL; j++) {
        if (split) {
            few_step(m, acc, x + 2 * j, ldx, v_low_bf16(square[j]), false);
            few_step(m, acc, x + 2 * j + 1, ldx, v_high_bf16(square[j]), false);
        } else if (full || (pairs ? 2 * j : j) < n) {
            few_step(m, acc, x + j, ldx, square[j], pairs);
        }
    }
}

/* LT_VL outputs of m rows: c[i][0..LT_VL), rows of W at w. */
LT_VECTOR void few_outputs(size_t m, const lt_linear *a, const float *x, const unsigned char *w, lt_dtype dtype, float *c,
                           bool pairs)
{
    const size_t size = dtype == LT_F32 ? 4 : 2, row_bytes = a->ldw * size, k = a->k, ldx = a->ldx;
    const bool split = dtype == LT_BF16 && !pairs;
    const size_t wide = pairs || split ? 2 * LT_VL : LT_VL, narrow = pairs ? 2 * LT_VL : LT_VL;
    vf acc[FEW_ROWS];
    LT_UNROLL
    for (size_t i = 0; i < m; i++) acc[i] = v_zero();
    const unsigned char *next = (const unsigned char *)((uintptr_t)w + LT_VL * row_bytes);
    const size_t fetched = wide * size * LT_VL;
    size_t kk = 0;
    for (; kk + wide <= k; kk += wide, next += fetched / FEW_STREAMS(fetched), w += wide * size, x += pairs ? LT_VL : wide) {
        few_fetch(next, fetched, row_bytes);
        few_square(m, acc, w, dtype, row_bytes, wide, true, x, ldx, split, pairs);
    }
    for (; kk < k; kk += narrow, w += narrow * size, x += LT_VL)
        few_square(m, acc, w, dtype, row_bytes, min_size(narrow, k - kk), false, x, ldx, false, pairs);
    LT_UNROLL
    for (size_t i = 0; i < m; i++) v_store(c + i * LT_NR, acc[i]);
}

/* Panel `index` of m rows, of which the first is `row`. */
LT_VECTOR void few_panel(size_t m, const lt_linear *a, size_t row, size_t index, lt_dtype dtype, bool pairs)
{
    _Alignas(64) float c[FEW_ROWS * LT_NR];
    const size_t row_bytes = a->ldw * (dtype == LT_F32 ? 4 : 2);
    const unsigned char *w = (const unsigned char *)a->w + (index - a->panel_begin) * LT_NR * row_bytes;
    for (size_t g = 0; g < LT_NR; g += LT_VL) few_outputs(m, a, a->x + row * a->ldx, w + g * row_bytes, dtype, c + g, pairs);
    finish_tile(a, c, row, m, index * LT_NR, LT_NR);
}

/* One function a number of rows and type: the loops above are written out in each. */
typedef void few_fn(const lt_linear *a, size_t row, size_t index);

#define FEW_TABLE(name, pairs)                                                                                                   \
    FEW_TYPES(name, 1, pairs)                                                                                                    \
    FEW_TYPES(name, 2, pairs)                                                                                                    \
    FEW_TYPES(name, 4, pairs)                                                                                                    \
    static few_fn *const name[3][3] = { FEW_NAMES(name, LT_F32), FEW_NAMES(name, LT_F16), FEW_NAMES(name, LT_BF16) };
#define FEW_NAMES(name, dtype)                                                                                                   \
    {                                                                                                                            \
        name##_##dtype##_1, name##_##dtype##_2, name##_##dtype##_4                                                               \
    }
#define FEW_TYPES(name, m, pairs) FEW(name, LT_F32, m, pairs) FEW(name, LT_F16, m, pairs) FEW(name, LT_BF16, m, pairs)
#define FEW(name, dtype, m, pairs)                                                                                               \
    static void name##_##dtype##_##m(const lt_linear *a, size_t row, size_t index)                                               \
    {                                                                                                                            \
        few_panel(m, a, row, index, dtype, pairs);                                                                               \
    }

FEW_TABLE(few, false)
#ifdef LT_HAS_PAIRS
FEW_TABLE(few_pairs, true)
#endif

LT_VECTOR void by_few(const lt_linear *a, few_fn *const table[3][3])
{
    few_fn *const *by_rows = table[a->dtype == LT_F32 ? 0 : a->dtype == LT_F16 ? 1 : 2];
    for (size_t index = a->panel_begin; index < a->panel_end; index++) {
        for (size_t row = 0; row < a->m;) { /* by fours, twos, ones */
            const size_t power = a->m - row >= 4 ? 2 : a->m - row >= 2 ? 1 : 0;
            by_rows[power](a, row, index);
            row += (size_t)1 << power;
        }
    }
}

static void linear_few(const lt_linear *a)
{
    by_few(a, few);
}

#ifdef LT_HAS_PAIRS
static void linear_few_pairs(const lt_linear *a)
{
    by_few(a, few_pairs);
}
#endif

#endif
