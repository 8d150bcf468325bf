/* The kernels that are not products, written once over the vector vocabulary: packing, norms, activations, conversion, pooling,
 * checks, measuring. A set's file includes a vocabulary, defines its tile sizes (see products.h) and then includes this. */
#ifndef LT_BACKEND_CPU_BODIES_H
#define LT_BACKEND_CPU_BODIES_H

#include "backend/cpu/kernels.h"
#include "backend/cpu/vec_math.h"

#include <math.h>
#include <string.h>

#define LT_NV (LT_NR / LT_VL) /* vectors across a panel */

LT_VECTOR size_t min_size(size_t a, size_t b)
{
    return a < b ? a : b;
}

#ifndef LT_HAS_PAIRS /* nothing in such a set asks for pairs, but the words have to be known */
#define v_pairs v_add
#define v_zip v_add
#define v_dot v_fma
#define v_dot_broadcast v_fma_broadcast
#endif

#ifndef LT_HAS_STORE_PAST
#define v_store_past v_store
LT_VECTOR void v_past_done(void) {}
#endif

#ifndef LT_HAS_LOAD_SQUARE
LT_VECTOR void v_load_square(vf r[LT_VL], const unsigned char *p, size_t row_bytes)
{
    LT_UNROLL
    for (size_t i = 0; i < LT_VL; i++) r[i] = v_load(p + i * row_bytes);
    v_transpose(r);
}
#endif

/* `dtype` is a constant where these are called. */
LT_VECTOR vf load_as(const unsigned char *p, lt_dtype dtype)
{
    return dtype == LT_F32 ? v_load(p) : dtype == LT_F16 ? v_load_f16(p) : v_load_bf16(p);
}

LT_VECTOR vf load_as_n(const unsigned char *p, lt_dtype dtype, size_t n)
{
    return dtype == LT_F32 ? v_load_n(p, n) : dtype == LT_F16 ? v_load_f16_n(p, n) : v_load_bf16_n(p, n);
}

/* ---- packing: panel[kk][r] = w[r][kk], a square of LT_VL rows and columns at a time through registers ---- */

LT_VECTOR void pack_rows(const unsigned char *w, lt_dtype dtype, size_t row_bytes, size_t rows, size_t k, float *panel)
{
    const size_t size = dtype == LT_F32 ? 4 : 2;
    vf square[LT_VL];
    size_t kk = 0;
    /* bfloat16 goes through the transposition in pairs, half as many steps for the same weights. */
    for (; dtype == LT_BF16 && kk + 2 * LT_VL <= k; kk += 2 * LT_VL) {
        LT_UNROLL
        for (size_t r = 0; r < LT_VL; r++) square[r] = r < rows ? v_load(w + r * row_bytes + kk * size) : v_zero();
        v_transpose(square);
        LT_UNROLL
        for (size_t j = 0; j < LT_VL; j++) {
            v_store(panel + (kk + 2 * j) * LT_NR, v_low_bf16(square[j]));
            v_store(panel + (kk + 2 * j + 1) * LT_NR, v_high_bf16(square[j]));
        }
    }
    for (; kk + LT_VL <= k; kk += LT_VL) {
        LT_UNROLL
        for (size_t r = 0; r < LT_VL; r++) square[r] = r < rows ? load_as(w + r * row_bytes + kk * size, dtype) : v_zero();
        v_transpose(square);
        LT_UNROLL
        for (size_t j = 0; j < LT_VL; j++) v_store(panel + (kk + j) * LT_NR, square[j]);
    }
    if (kk < k) {
        LT_UNROLL
        for (size_t r = 0; r < LT_VL; r++) {
            square[r] = r < rows ? load_as_n(w + r * row_bytes + kk * size, dtype, k - kk) : v_zero();
        }
        v_transpose(square);
        LT_UNROLL
        for (size_t j = 0; j < LT_VL; j++) {
            if (j < k - kk) v_store(panel + (kk + j) * LT_NR, square[j]);
        }
    }
}

LT_VECTOR void pack_panel_as(const unsigned char *w, lt_dtype dtype, size_t row_bytes, size_t n, size_t k, float *panel)
{
    for (size_t g = 0; g < LT_NR; g += LT_VL) {
        if (g + LT_VL <= n) {
            pack_rows(w + g * row_bytes, dtype, row_bytes, LT_VL, k, panel + g);
        } else if (g < n) {
            pack_rows(w + g * row_bytes, dtype, row_bytes, n - g, k, panel + g);
        } else {
            for (size_t kk = 0; kk < k; kk++) v_store(panel + kk * LT_NR + g, v_zero());
        }
    }
}

static void pack_panel(const void *w, lt_dtype dtype, size_t ldw, size_t n, size_t k, float *panel)
{
    switch (dtype) {
    case LT_F16: pack_panel_as(w, LT_F16, ldw * 2, n, k, panel); break;
    case LT_BF16: pack_panel_as(w, LT_BF16, ldw * 2, n, k, panel); break;
    default: pack_panel_as(w, LT_F32, ldw * 4, n, k, panel); break;
    }
}

/* ---- pairs of bfloat16: panel[p][r] = (w[r][2p], w[r][2p + 1]), zero behind an odd k ---- */

/* The 2 LT_VL elements from p on, of which n are there, as pairs. */
LT_VECTOR vf load_pairs(const unsigned char *p, lt_dtype dtype, size_t n)
{
    const size_t size = dtype == LT_F32 ? 4 : 2;
    if (n >= 2 * LT_VL) return dtype == LT_BF16 ? v_load(p) : v_pairs(load_as(p, dtype), load_as(p + LT_VL * size, dtype));
    if (dtype == LT_BF16 && n % 2 == 0) return v_load_n(p, n / 2);
    if (n <= LT_VL) return v_pairs(n == LT_VL ? load_as(p, dtype) : load_as_n(p, dtype, n), v_zero());
    return v_pairs(load_as(p, dtype), load_as_n(p + LT_VL * size, dtype, n - LT_VL));
}

/* A square of pairs, `n` elements of each row. */
LT_VECTOR void pack_square(const unsigned char *w, lt_dtype dtype, size_t row_bytes, size_t rows, size_t n, float *panel)
{
    vf square[LT_VL];
    LT_UNROLL
    for (size_t r = 0; r < LT_VL; r++) square[r] = r < rows ? load_pairs(w + r * row_bytes, dtype, n) : v_zero();
    v_transpose(square);
    LT_UNROLL
    for (size_t j = 0; j < LT_VL; j++) {
        if (2 * j < n) v_store(panel + j * LT_NR, square[j]);
    }
}

LT_VECTOR void pack_row_pairs(const unsigned char *w, lt_dtype dtype, size_t row_bytes, size_t rows, size_t k, float *panel)
{
    const size_t size = dtype == LT_F32 ? 4 : 2;
    size_t kk = 0;
    for (; kk + 2 * LT_VL <= k; kk += 2 * LT_VL) {
        pack_square(w + kk * size, dtype, row_bytes, rows, 2 * LT_VL, panel + kk / 2 * LT_NR);
    }
    if (kk < k) pack_square(w + kk * size, dtype, row_bytes, rows, k - kk, panel + kk / 2 * LT_NR);
}

LT_VECTOR void pack_pair_panel_as(const unsigned char *w, lt_dtype dtype, size_t row_bytes, size_t n, size_t k, float *panel)
{
    for (size_t g = 0; g < LT_NR; g += LT_VL) {
        if (g + LT_VL <= n) {
            pack_row_pairs(w + g * row_bytes, dtype, row_bytes, LT_VL, k, panel + g);
        } else if (g < n) {
            pack_row_pairs(w + g * row_bytes, dtype, row_bytes, n - g, k, panel + g);
        } else {
            for (size_t p = 0; p < (k + 1) / 2; p++) v_store(panel + p * LT_NR + g, v_zero());
        }
    }
}

static void pack_pairs(const void *w, size_t ldw, size_t n, size_t k, float *panel)
{
    pack_pair_panel_as(w, LT_BF16, ldw * 2, n, k, panel);
}

static void widen_pairs(const float *pairs, size_t k, float *panel)
{
    for (size_t p = 0; p < k / 2; p++, pairs += LT_NR, panel += 2 * LT_NR) {
        LT_UNROLL
        for (size_t j = 0; j < LT_NR; j += LT_VL) {
            const vf v = v_load(pairs + j);
            v_store(panel + j, v_low_bf16(v));
            v_store(panel + LT_NR + j, v_high_bf16(v));
        }
    }
}

#ifdef LT_HAS_PAIRS
static void pack_pair_panel(const void *w, lt_dtype dtype, size_t ldw, size_t n, size_t k, float *panel)
{
    switch (dtype) {
    case LT_F16: pack_pair_panel_as(w, LT_F16, ldw * 2, n, k, panel); break;
    case LT_BF16: pack_pairs(w, ldw, n, k, panel); break;
    default: pack_pair_panel_as(w, LT_F32, ldw * 4, n, k, panel); break;
    }
}

#endif

/* One row; out may be x. */
LT_VECTOR void round_row(const float *x, size_t k, float *out)
{
    const size_t steps = (k + 1) / 2;
    size_t p = 0;
    for (; 2 * (p + LT_VL) <= k; p += LT_VL) v_store(out + p, v_pairs(v_load(x + 2 * p), v_load(x + 2 * p + LT_VL)));
    if (p == steps) return;
    const vf rest = load_pairs((const unsigned char *)(x + 2 * p), LT_F32, k - 2 * p);
    if (steps - p == LT_VL)
        v_store(out + p, rest);
    else
        v_store_n(out + p, rest, steps - p);
}

#ifdef LT_HAS_PAIRS
static void round_rows(const float *x, size_t ldx, size_t m, size_t k, float *out, size_t ldo)
{
    for (size_t i = 0; i < m; i++) round_row(x + i * ldx, k, out + i * ldo);
}
#endif

/* ---- norms: three passes over a row, which stays in L1; the variance is taken around the mean ---- */

LT_VECTOR float sum4(const vf s[4])
{
    return v_sum(v_add(v_add(s[0], s[1]), v_add(s[2], s[3])));
}

/* Σ (x - shift), or Σ (x - shift)², in four accumulators whose order depends on n alone. */
LT_VECTOR float row_sum(const float *x, size_t n, float shift, bool squared)
{
    vf s[4] = { v_zero(), v_zero(), v_zero(), v_zero() }, sh = v_set1(shift);
    size_t i = 0;
    for (; i + 4 * LT_VL <= n; i += 4 * LT_VL) {
        LT_UNROLL
        for (size_t j = 0; j < 4; j++) {
            vf d = v_sub(v_load(x + i + j * LT_VL), sh);
            s[j] = squared ? v_fma(d, d, s[j]) : v_add(d, s[j]);
        }
    }
    for (; i + LT_VL <= n; i += LT_VL) {
        vf d = v_sub(v_load(x + i), sh);
        s[0] = squared ? v_fma(d, d, s[0]) : v_add(d, s[0]);
    }
    if (i < n) {
        vf d = v_keep_n(v_sub(v_load_n(x + i, n - i), sh), n - i, v_zero());
        s[1] = squared ? v_fma(d, d, s[1]) : v_add(d, s[1]);
    }
    return sum4(s);
}

static void row_add(const float *a, const float *b, size_t n, float *out)
{
    size_t i = 0;
    for (; i + LT_VL <= n; i += LT_VL) v_store(out + i, v_add(v_load(a + i), v_load(b + i)));
    if (i < n) v_store_n(out + i, v_add(v_load_n(a + i, n - i), v_load_n(b + i, n - i)), n - i);
}

static void row_copy(const float *a, size_t n, float *out)
{
    size_t i = 0;
    for (; i + LT_VL <= n; i += LT_VL) v_store(out + i, v_load(a + i));
    if (i < n) v_store_n(out + i, v_load_n(a + i, n - i), n - i);
}

static void norm(const lt_norm *a)
{
    const size_t n = a->n;
    for (size_t r = 0; r < a->m; r++) {
        const float *x = a->x + r * a->ldx;
        float *y = a->y + r * a->ldy;
        if (a->residual) {
            float *sum = a->sum ? a->sum + r * a->lds : y;
            row_add(x, a->residual + r * a->ldr, n, sum);
            x = sum;
        } else if (a->sum) {
            row_copy(x, n, a->sum + r * a->lds);
        }
        const float mean = a->bias ? row_sum(x, n, 0, false) / (float)n : 0;
        const float variance = row_sum(x, n, mean, true) / (float)n;
        const vf center = v_set1(mean), inverse = v_set1(1.0f / sqrtf(variance + a->eps));
        size_t i = 0;
        if (a->bias) {
            for (; i + LT_VL <= n; i += LT_VL) {
                vf d = v_mul(v_sub(v_load(x + i), center), inverse);
                v_store(y + i, v_fma(d, v_load(a->gain + i), v_load(a->bias + i)));
            }
            if (i < n) {
                vf d = v_mul(v_sub(v_load_n(x + i, n - i), center), inverse);
                v_store_n(y + i, v_fma(d, v_load_n(a->gain + i, n - i), v_load_n(a->bias + i, n - i)), n - i);
            }
        } else {
            for (; i + LT_VL <= n; i += LT_VL) v_store(y + i, v_mul(v_mul(v_load(x + i), inverse), v_load(a->gain + i)));
            if (i < n) v_store_n(y + i, v_mul(v_mul(v_load_n(x + i, n - i), inverse), v_load_n(a->gain + i, n - i)), n - i);
        }
    }
}

/* ---- q and k ---- */

/* One vector of pairs, or the first n of one; a and b are a head's values i and i + r. */
LT_VECTOR void rotate(float *a, float *b, const float *gain_a, const float *gain_b, const float *cosine, const float *sine,
                      vf inverse, size_t n)
{
    const bool full = n == LT_VL;
    const vf x = v_mul(v_mul(full ? v_load(a) : v_load_n(a, n), inverse), full ? v_load(gain_a) : v_load_n(gain_a, n));
    const vf y = v_mul(v_mul(full ? v_load(b) : v_load_n(b, n), inverse), full ? v_load(gain_b) : v_load_n(gain_b, n));
    const vf c = full ? v_load(cosine) : v_load_n(cosine, n), s = full ? v_load(sine) : v_load_n(sine, n);
    const vf p = v_fnma(y, s, v_mul(x, c)), q = v_fma(x, s, v_mul(y, c));
    if (full) {
        v_store(a, p);
        v_store(b, q);
    } else {
        v_store_n(a, p, n);
        v_store_n(b, q, n);
    }
}

static void norm_rope(const lt_norm_rope *a)
{
    const size_t d = a->head_dim, r = a->rotary_dim / 2;
    const float *gain = a->gain;
    for (size_t row = 0; row < a->m; row++) {
        const float *cosine = a->cos + a->positions[row] * r, *sine = a->sin + a->positions[row] * r;
        for (size_t head = 0; head < a->n_heads; head++) {
            float *x = a->x + row * a->ldx + head * a->head_stride;
            const vf inverse = v_set1(1.0f / sqrtf(row_sum(x, d, 0, true) / (float)d + a->eps));
            size_t i = 0;
            for (; i + LT_VL <= r; i += LT_VL) {
                rotate(x + i, x + r + i, gain + i, gain + r + i, cosine + i, sine + i, inverse, LT_VL);
            }
            if (i < r) rotate(x + i, x + r + i, gain + i, gain + r + i, cosine + i, sine + i, inverse, r - i);
            for (i = 2 * r; i + LT_VL <= d; i += LT_VL) v_store(x + i, v_mul(v_mul(v_load(x + i), inverse), v_load(gain + i)));
            if (i < d) v_store_n(x + i, v_mul(v_mul(v_load_n(x + i, d - i), inverse), v_load_n(gain + i, d - i)), d - i);
        }
    }
}

/* ---- elementwise ---- */

LT_VECTOR void activate_as(float *x, size_t n, lt_activation activation)
{
    size_t i = 0;
    for (; i + LT_VL <= n; i += LT_VL) v_store(x + i, v_activate(v_load(x + i), activation));
    if (i < n) v_store_n(x + i, v_activate(v_load_n(x + i, n - i), activation), n - i);
}

static void activate(float *x, size_t n, lt_activation activation)
{
    switch (activation) {
    case LT_ACT_NONE: break;
    case LT_ACT_GELU: activate_as(x, n, LT_ACT_GELU); break;
    case LT_ACT_GELU_TANH: activate_as(x, n, LT_ACT_GELU_TANH); break;
    case LT_ACT_RELU: activate_as(x, n, LT_ACT_RELU); break;
    case LT_ACT_SILU: activate_as(x, n, LT_ACT_SILU); break;
    case LT_ACT_TANH: activate_as(x, n, LT_ACT_TANH); break;
    case LT_ACT_SIGMOID: activate_as(x, n, LT_ACT_SIGMOID); break;
    }
}

LT_VECTOR void convert_as(float *dst, const unsigned char *src, lt_dtype dtype, size_t n, bool add)
{
    const size_t size = dtype == LT_F32 ? 4 : 2;
    size_t i = 0;
    for (; i + LT_VL <= n; i += LT_VL) {
        vf x = load_as(src + i * size, dtype);
        v_store(dst + i, add ? v_add(v_load(dst + i), x) : x);
    }
    if (i < n) {
        vf x = load_as_n(src + i * size, dtype, n - i);
        v_store_n(dst + i, add ? v_add(v_load_n(dst + i, n - i), x) : x, n - i);
    }
}

static void convert(float *dst, const void *src, lt_dtype dtype, size_t n)
{
    switch (dtype) {
    case LT_F16: convert_as(dst, src, LT_F16, n, false); break;
    case LT_BF16: convert_as(dst, src, LT_BF16, n, false); break;
    default: convert_as(dst, src, LT_F32, n, false); break;
    }
}

static void accumulate(float *dst, const void *src, lt_dtype dtype, size_t n)
{
    switch (dtype) {
    case LT_F16: convert_as(dst, src, LT_F16, n, true); break;
    case LT_BF16: convert_as(dst, src, LT_BF16, n, true); break;
    default: convert_as(dst, src, LT_F32, n, true); break;
    }
}

static void to_half(const float *x, size_t n, uint16_t *out)
{
    size_t i = 0;
    for (; i + LT_VL <= n; i += LT_VL) v_store_f16(out + i, v_load(x + i));
    if (i < n) {
        uint16_t rest[LT_VL];
        v_store_f16(rest, v_load_n(x + i, n - i));
        memcpy(out + i, rest, (n - i) * sizeof *out);
    }
}

/* ---- pooling: a column at a time down the rows, four vectors of columns together ---- */

typedef enum pooling { POOL_SUM, POOL_WEIGHTED, POOL_MAX } pooling;

LT_VECTOR vf pool_step(vf s, vf x, size_t i, pooling how)
{
    return how == POOL_SUM ? v_add(s, x) : how == POOL_WEIGHTED ? v_fma(v_set1((float)(i + 1)), x, s) : v_max_nan(s, x);
}

LT_VECTOR void pool(const float *x, size_t ldx, size_t m, size_t n, size_t first, float scale, float *out, pooling how)
{
    const vf start = v_set1(how == POOL_MAX ? -INFINITY : 0.0f), factor = v_set1(scale);
    size_t j = 0;
    for (; j + 4 * LT_VL <= n; j += 4 * LT_VL) {
        vf s[4] = { start, start, start, start };
        for (size_t i = 0; i < m; i++) {
            LT_UNROLL
            for (size_t c = 0; c < 4; c++) s[c] = pool_step(s[c], v_load(x + i * ldx + j + c * LT_VL), first + i, how);
        }
        LT_UNROLL
        for (size_t c = 0; c < 4; c++) v_store(out + j + c * LT_VL, how == POOL_MAX ? s[c] : v_mul(s[c], factor));
    }
    for (; j < n; j += LT_VL) {
        const size_t c = min_size(n - j, LT_VL);
        vf s = start;
        for (size_t i = 0; i < m; i++) {
            const float *p = x + i * ldx + j;
            s = pool_step(s, c == LT_VL ? v_load(p) : v_load_n(p, c), first + i, how);
        }
        if (how != POOL_MAX) s = v_mul(s, factor);
        if (c == LT_VL)
            v_store(out + j, s);
        else
            v_store_n(out + j, s, c);
    }
}

static void pool_sum(const float *x, size_t ldx, size_t m, size_t n, float scale, float *out)
{
    pool(x, ldx, m, n, 0, scale, out, POOL_SUM);
}

static void pool_weighted(const float *x, size_t ldx, size_t m, size_t n, size_t first, float scale, float *out)
{
    pool(x, ldx, m, n, first, scale, out, POOL_WEIGHTED);
}

static void pool_max(const float *x, size_t ldx, size_t m, size_t n, float *out)
{
    pool(x, ldx, m, n, 0, 1, out, POOL_MAX);
}

/* 0 · x is 0 for a finite x and NaN for any other, and a NaN stays in its sum. */
static bool all_finite(const float *x, size_t n)
{
    const vf zero = v_zero();
    vf s[4] = { zero, zero, zero, zero };
    size_t i = 0;
    for (; i + 4 * LT_VL <= n; i += 4 * LT_VL) {
        LT_UNROLL
        for (size_t j = 0; j < 4; j++) s[j] = v_fma(v_load(x + i + j * LT_VL), zero, s[j]);
    }
    for (; i + LT_VL <= n; i += LT_VL) s[0] = v_fma(v_load(x + i), zero, s[0]);
    if (i < n) s[0] = v_fma(v_load_n(x + i, n - i), zero, s[0]);
    return sum4(s) == 0;
}

/* ---- measuring ---- */

#if LT_VL == 1
/* Compilers make vectors of four of the portable products: they are measured against the same. */
typedef float peak_vector __attribute__((vector_size(16)));
#define PEAK_FMA(a, b, c) ((a) * (b) + (c))
#define PEAK_SET1(x) ((peak_vector){ x, x, x, x })
#else
typedef vf peak_vector;
#define PEAK_FMA(a, b, c) v_fma(a, b, c)
#define PEAK_SET1(x) v_set1(x)
#endif

#ifdef LT_HAS_PAIRS
static double peak_flop_pairs(size_t iterations)
{
    enum { CHAINS = 12 };
    volatile float source[2] = { 0.999f, 0.001f };
    volatile float sink;
    const float factor = source[0], offset = source[1];
    const vf a = v_pairs(v_set1(factor), v_set1(factor)), b = v_pairs(v_set1(offset), v_set1(offset));
    vf s[CHAINS];
    LT_UNROLL
    for (int c = 0; c < CHAINS; c++) {
        const float start = source[0];
        s[c] = v_set1(start);
    }
    for (size_t i = 0; i < iterations; i++) {
        LT_UNROLL
        for (int c = 0; c < CHAINS; c++) s[c] = v_dot(a, b, s[c]);
    }
    LT_UNROLL
    for (int c = 1; c < CHAINS; c++) s[0] = v_add(s[0], s[c]);
    sink = v_sum(s[0]);
    (void)sink;
    return 4.0 * LT_VL * CHAINS * (double)iterations;
}
#endif

/* 12 independent chains cover the latency of two units. The factors come from volatile memory, so that nothing folds. */
static double peak_flop(size_t iterations)
{
    enum { CHAINS = 12 };
    volatile float source[2] = { 0.999f, 0.001f };
    volatile float sink;
    const float factor = source[0], offset = source[1];
    const peak_vector a = PEAK_SET1(factor), b = PEAK_SET1(offset);
    peak_vector s[CHAINS];
    LT_UNROLL
    for (int c = 0; c < CHAINS; c++) {
        const float start = source[0]; /* read anew: chains that start alike may be merged */
        s[c] = PEAK_SET1(start);
    }
    for (size_t i = 0; i < iterations; i++) {
        LT_UNROLL
        for (int c = 0; c < CHAINS; c++) s[c] = PEAK_FMA(s[c], a, b);
    }
    peak_vector total = s[0];
    LT_UNROLL
    for (int c = 1; c < CHAINS; c++) total = PEAK_FMA(total, a, s[c]);
    float lanes[sizeof total / sizeof(float)];
    memcpy(lanes, &total, sizeof total);
    sink = lanes[0];
    (void)sink;
    return 2.0 * (double)(sizeof total / sizeof(float)) * CHAINS * (double)iterations;
}

/* The fastest reading known: two streams, so that while one crosses a page the other goes on, each fetched a page ahead. 24% more
 * than by one stream without. */
static float peak_read(const float *x, size_t n)
{
    enum { AHEAD = 4096 };
    const size_t half = n / (4 * LT_VL) * (2 * LT_VL);
    const float *y = x + half;
    vf s[4] = { v_zero(), v_zero(), v_zero(), v_zero() };
    for (size_t i = 0; i < half; i += 2 * LT_VL) {
        LT_UNROLL
        for (size_t j = 0; j < 2; j++) {
            __builtin_prefetch((const char *)(uintptr_t)(x + i + j * LT_VL) + AHEAD, 0, 2);
            __builtin_prefetch((const char *)(uintptr_t)(y + i + j * LT_VL) + AHEAD, 0, 2);
            s[j] = v_add(v_load(x + i + j * LT_VL), s[j]);
            s[2 + j] = v_add(v_load(y + i + j * LT_VL), s[2 + j]);
        }
    }
    size_t i = 2 * half;
    for (; i + LT_VL <= n; i += LT_VL) s[0] = v_add(v_load(x + i), s[0]);
    if (i < n) s[0] = v_add(v_load_n(x + i, n - i), s[0]);
    return sum4(s);
}

#endif
