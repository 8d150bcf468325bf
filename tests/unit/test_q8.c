/* Q8_0: the encoding against its formulas, and the integer products of every table that runs here against double precision,
 * against the scalar table and, bit for bit, against themselves with other rows and panels together. */
#include "support.h"

#include <math.h>
#include <stdlib.h>

#include "backend/cpu/q8.h"

static uint32_t seed = 7;

static float uniform(void) /* [-1, 1) */
{
    seed = seed * 1664525u + 1013904223u;
    return (float)(int32_t)(seed ^ seed >> 16) * 0x1p-31f;
}

static void *aligned(size_t bytes)
{
    void *p = aligned_alloc(64, (bytes + 64) / 64 * 64);
    assert_non_null(p);
    return p;
}

/* ---- halves ---- */

/* The value of a half by its fields. */
static double half_reference(uint16_t h)
{
    const int exponent = h >> 10 & 31, mantissa = h & 1023;
    double x = exponent == 0    ? ldexp(mantissa, -24)
               : exponent == 31 ? (mantissa ? NAN : INFINITY)
                                : ldexp(1024 + mantissa, exponent - 25);
    return h & 0x8000 ? -x : x;
}

static void halves_are_read_exactly_and_written_back(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 65536; h++) {
        const double want = half_reference((uint16_t)h);
        const float got = lt_half_to_float((uint16_t)h);
        if (isnan(want)) {
            assert_true(isnan(got));
            assert_true(isnan(lt_half_to_float(lt_float_to_half(got))));
            continue;
        }
        assert_true((double)got == want);
        assert_int_equal(lt_float_to_half(got), h);
    }
}

static void floats_are_rounded_to_the_nearest_half_and_ties_to_even(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 0x7bff; h++) {
        const double low = half_reference((uint16_t)h), high = half_reference((uint16_t)(h + 1));
        const float middle = (float)((low + high) / 2); /* exact: one bit more than a half */
        assert_int_equal(lt_float_to_half(middle), h % 2 == 0 ? h : h + 1);
        assert_int_equal(lt_float_to_half(nextafterf(middle, 0)), h);
        assert_int_equal(lt_float_to_half(-nextafterf(middle, INFINITY)), 0x8000 | (h + 1));
    }
    assert_int_equal(lt_float_to_half(65519), 0x7bff);
    assert_int_equal(lt_float_to_half(65520), 0x7c00);
}

/* ---- encoding ---- */

/* Encodes w[rows][cols] into one block of memory as a file holds it. */
static void *encode(const float *w, size_t rows, size_t cols)
{
    size_t bytes;
    assert_true(lt_q8_0_size(rows, cols, &bytes));
    uint8_t *data = aligned(bytes);
    memset(data, 0xee, bytes);
    uint16_t *scales = (uint16_t *)(void *)(data + lt_q8_0_scales_offset(rows, cols));
    for (size_t row = 0; row < rows; row += LT_Q8_0_PANEL) {
        const size_t n = rows - row < LT_Q8_0_PANEL ? rows - row : LT_Q8_0_PANEL;
        assert_true(lt_q8_0_encode(w + row * cols, n, cols, data + row * cols, scales + row * cols / LT_Q8_0_BLOCK));
    }
    return data;
}

static void a_block_is_rounded_to_multiples_of_its_scale(void **state)
{
    (void)state;
    const size_t rows = 21, cols = 96;
    float *w = aligned(rows * cols * sizeof *w), row[96];
    for (size_t i = 0; i < rows * cols; i++) w[i] = uniform() * (float)(1 + i % 7);
    for (size_t i = 0; i < 32; i++) w[3 * cols + 32 + i] = 0;                             /* a block of zeros */
    for (size_t i = 0; i < 32; i++) w[4 * cols + i] = i == 5 ? -2e-6f : (float)i * 1e-8f; /* a subnormal scale */
    void *data = encode(w, rows, cols);
    for (size_t r = 0; r < rows; r++) {
        lt_q8_0_decode_row(data, rows, cols, r, false, row);
        for (size_t b = 0; b < cols; b += 32) {
            float most = 0;
            for (size_t i = 0; i < 32; i++) {
                if (fabsf(w[r * cols + b + i]) > most) most = fabsf(w[r * cols + b + i]);
            }
            const double d = half_reference(lt_float_to_half(most / 127));
            for (size_t i = 0; i < 32; i++) {
                double q = d > 0 ? rint((double)(w[r * cols + b + i] / (float)d)) : 0;
                q = fmax(-127, fmin(127, q));
                assert_true((double)row[b + i] == d * q);
            }
        }
        float twice[96];
        memcpy(twice, row, sizeof row);
        lt_q8_0_decode_row(data, rows, cols, r, true, twice);
        for (size_t i = 0; i < cols; i++) assert_true(twice[i] == 2 * row[i]);
    }
    free(w);
    free(data);
}

static void what_no_block_can_hold_is_refused(void **state)
{
    (void)state;
    const float bad[] = { NAN, INFINITY, -INFINITY, 1e7f };
    uint8_t quants[16 * 32];
    uint16_t scales[16];
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        float w[2 * 32] = { 1 };
        w[40] = bad[i];
        assert_false(lt_q8_0_encode(w, 2, 32, quants, scales));
        w[40] = 8e6f;
        assert_true(lt_q8_0_encode(w, 2, 32, quants, scales));
    }
}

static void sizes_that_do_not_fit_are_refused(void **state)
{
    (void)state;
    size_t bytes;
    assert_false(lt_q8_0_size(16, 48, &bytes));
    assert_false(lt_q8_0_size(SIZE_MAX, 32, &bytes));
    assert_false(lt_q8_0_size(SIZE_MAX / 32, 64, &bytes));
    assert_true(lt_q8_0_size(1, 32, &bytes));
    assert_int_equal(bytes, 16 * 32 + 64);
    assert_true(lt_q8_0_size(33, 96, &bytes));
    assert_int_equal(bytes, 48 * 96 + 320);
    assert_true(lt_q8_0_size(0, 32, &bytes));
    assert_int_equal(bytes, 0);
}

/* ---- products ---- */

static const lt_q8_kernels *scalar_table(void)
{
    const lt_q8_kernels *kernels = NULL;
    for (size_t i = 0; lt_q8_kernels_run(i, &kernels); i++) {}
    assert_string_equal(kernels->isa, "scalar"); /* the last of the list */
    return kernels;
}

static void each_table(void (*test)(const lt_q8_kernels *))
{
    const lt_q8_kernels *kernels;
    size_t n = 0;
    for (size_t i = 0; lt_q8_kernels_run(i, &kernels); i++) {
        if (!kernels) continue;
        test(kernels);
        n++;
    }
    assert_true(n > 0);
}

static void check_quantize(const lt_q8_kernels *set)
{
    const size_t k = 160, m = 3, ldx = k + 5, row_bytes = lt_q8_row_bytes(k);
    float *x = aligned((m * ldx + 1) * sizeof *x);
    unsigned char *out = aligned(m * row_bytes);
    x++; /* unaligned */
    for (size_t i = 0; i < m * ldx; i++) x[i] = uniform() * 3;
    for (size_t i = 0; i < 32; i++) x[ldx + 64 + i] = 0;
    for (size_t i = 0; i < 32; i++) x[ldx + 96 + i] *= 0x1p-120f; /* counts as zeros */
    x[2 * ldx + 33] = NAN;
    x[2 * ldx + 70] = -INFINITY;
    set->quantize(x, ldx, m, k, out);
    for (size_t r = 0; r < m; r++) {
        for (size_t b = 0; b < k / 32; b++) {
            float scale, most = 0;
            int32_t correction, sum = 0;
            memcpy(&scale, out + r * row_bytes + k + b * 4, 4);
            memcpy(&correction, out + r * row_bytes + k + (k / 32 + b) * 4, 4);
            if (r == 2 && (b == 1 || b == 2)) {
                assert_false(isfinite(scale));
                continue;
            }
            for (size_t i = 0; i < 32; i++) {
                if (fabsf(x[r * ldx + b * 32 + i]) > most) most = fabsf(x[r * ldx + b * 32 + i]);
            }
            if (most < 0x1p-100f) most = 0;
            assert_true(scale == most / 127);
            for (size_t i = 0; i < 32; i++) {
                const int got = (signed char)out[r * row_bytes + b * 32 + i];
                assert_int_equal(got, (int)rintf(most > 0 ? x[r * ldx + b * 32 + i] * (127 / most) : 0));
                sum += got;
            }
            assert_int_equal(correction, -128 * sum);
        }
    }
    free(x - 1);
    free(out);
}

static void activations_are_quantised_as_weights_are_and_keep_what_is_not_finite(void **state)
{
    (void)state;
    each_table(check_quantize);
}

typedef struct product {
    size_t m, k, n;
    lt_activation activation;
    bool bias, gate, residual;
} product;

static void run(const lt_q8_kernels *set, const product *p, const void *x, const void *w, const float *extra, float *y,
                size_t begin, size_t end)
{
    lt_q8_linear a = { .out = { .m = p->m,
                                .k = p->k,
                                .n = p->n,
                                .panel_begin = begin,
                                .panel_end = end,
                                .bias = p->bias ? extra : NULL,
                                .activation = p->activation,
                                .gate = p->gate ? extra : NULL,
                                .ldg = p->n,
                                .residual = p->residual ? extra : NULL,
                                .ldr = p->n,
                                .y = y,
                                .ldy = p->n + 1,
                                .self_fetching = p->k % 64 != 0 },
                       .x = x,
                       .quants = w,
                       .scales = (const uint8_t *)w + lt_q8_0_scales_offset(p->n, p->k) };
    set->linear(&a);
}

static void check_product(const lt_q8_kernels *set, const product *p)
{
    const size_t ldy = p->n + 1, panels = lt_q8_0_panels(p->n), row_bytes = lt_q8_row_bytes(p->k);
    float *x = aligned(p->m * p->k * 4), *w = aligned(p->n * p->k * 4), *extra = aligned(p->m * p->n * 4);
    float *y = aligned((p->m * ldy + 1) * 4), *other = aligned((p->m * ldy + 1) * 4), *row = aligned(p->k * 4);
    unsigned char *bytes = aligned(p->m * row_bytes);
    for (size_t i = 0; i < p->m * p->k; i++) x[i] = uniform();
    for (size_t i = 0; i < p->n * p->k; i++) w[i] = uniform();
    for (size_t i = 0; i < p->m * p->n; i++) extra[i] = uniform();
    for (size_t i = 0; i <= p->m * ldy; i++) y[i] = other[i] = -77;
    void *data = encode(w, p->n, p->k);
    set->quantize(x, p->k, p->m, p->k, bytes);
    run(set, p, bytes, data, extra, y, 0, panels);
    scalar_table()->quantize(x, p->k, p->m, p->k, bytes);
    run(scalar_table(), p, bytes, data, extra, other, 0, panels);
    for (size_t j = 0; j < p->n; j++) {
        lt_q8_0_decode_row(data, p->n, p->k, j, false, row);
        for (size_t i = 0; i < p->m; i++) {
            double sum = 0, size = 0;
            for (size_t kk = 0; kk < p->k; kk++) {
                float scale;
                memcpy(&scale, bytes + i * row_bytes + p->k + kk / 32 * 4, 4);
                const double term = (double)row[kk] * (double)scale * (signed char)bytes[i * row_bytes + kk];
                sum += term, size += fabs(term);
            }
            if (p->bias) sum += (double)extra[j];
            if (p->activation == LT_ACT_SILU) sum /= 1 + exp(-sum);
            if (p->gate) sum *= (double)extra[i * p->n + j];
            if (p->residual) sum += (double)extra[i * p->n + j];
            const double tolerance = 3e-7 * (2 + fabs(sum) + size);
            if (!(fabs((double)y[i * ldy + j] - sum) <= tolerance) ||
                !(fabs((double)other[i * ldy + j] - (double)y[i * ldy + j]) <= 2 * tolerance))
                fail_msg("%s: [%zu, %zu] is %.9g, by scalar %.9g, should be %.9g", set->isa, i, j, (double)y[i * ldy + j],
                         (double)other[i * ldy + j], sum);
        }
    }
    for (size_t i = 0; i < p->m; i++) assert_true(y[i * ldy + p->n] == -77);
    /* Each row and panel alone: the same bits. */
    set->quantize(x, p->k, p->m, p->k, bytes);
    for (size_t i = 0; i < p->m; i++) {
        const product one = { .m = 1, .k = p->k, .n = p->n, .activation = p->activation, .bias = p->bias };
        if (p->gate || p->residual) continue;
        for (size_t panel = 0; panel < panels; panel++)
            run(set, &one, bytes + i * row_bytes, data, extra, other + i * ldy, panel, panel + 1);
        assert_memory_equal(other + i * ldy, y + i * ldy, p->n * sizeof *y);
    }
    free(x), free(w), free(extra), free(y), free(other), free(row), free(bytes), free(data);
}

static void check_products(const lt_q8_kernels *set)
{
    const size_t ms[] = { 1, 2, 3, 4, 5, 6, 7, 13 }, ks[] = { 32, 64, 96, 320 }, ns[] = { 1, 7, 16, 17, 32, 33, 47, 70 };
    size_t i = 0;
    for (size_t a = 0; a < sizeof ms / sizeof *ms; a++) {
        for (size_t b = 0; b < sizeof ns / sizeof *ns; b++, i++) {
            const product p = { .m = ms[a],
                                .k = ks[i % 4],
                                .n = ns[b],
                                .activation = i % 3 ? LT_ACT_NONE : LT_ACT_SILU,
                                .bias = i % 2,
                                .gate = i % 5 == 3,
                                .residual = i % 4 == 1 };
            check_product(set, &p);
        }
    }
}

static void products_of_blocks_are_added_in_order_whatever_the_rows_and_panels(void **state)
{
    (void)state;
    each_table(check_products);
}

/* The largest bytes of both signs in every place: no step in between may saturate. */
static void check_extremes(const lt_q8_kernels *set)
{
    enum { K = 64, N = 16 };
    float x[K], w[N * K], y[N + 1];
    unsigned char *bytes = aligned(lt_q8_row_bytes(K));
    for (int signs = 0; signs < 4; signs++) {
        for (size_t i = 0; i < K; i++) x[i] = signs & 1 ? -1 : 1;
        for (size_t i = 0; i < N * K; i++) w[i] = signs & 2 ? -1 : 1;
        uint8_t *data = encode(w, N, K);
        if (signs == 2) memset(data, 0, N * K); /* −128, which no writer of ours makes */
        set->quantize(x, K, 1, K, bytes);
        const product p = { .m = 1, .k = K, .n = N };
        run(set, &p, bytes, data, NULL, y, 0, 1);
        const float weight = signs == 2  ? -128.0f
                             : signs & 2 ? -127.0f
                                         : 127.0f,
                    d = lt_half_to_float(lt_float_to_half(1.0f / 127));
        const double want = (double)x[0] * (double)weight * (double)d * K;
        for (size_t j = 0; j < N; j++) assert_true(fabs((double)y[j] - want) < 1e-4);
        free(data);
    }
    free(bytes);
}

static void the_largest_bytes_do_not_saturate(void **state)
{
    (void)state;
    each_table(check_extremes);
}

static void tables_follow_their_set(void **state)
{
    (void)state;
    size_t n;
    const lt_kernels *const *sets = lt_kernels_available(&n);
    for (size_t i = 0; i < n; i++) {
        const lt_q8_kernels *kernels = lt_q8_kernels_for(sets[i]);
        assert_non_null(kernels);
        assert_int_equal(strcmp(sets[i]->isa, "scalar") == 0, strcmp(kernels->isa, "scalar") == 0);
        assert_true(kernels->peak(10) > 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(halves_are_read_exactly_and_written_back),
        cmocka_unit_test(floats_are_rounded_to_the_nearest_half_and_ties_to_even),
        cmocka_unit_test(a_block_is_rounded_to_multiples_of_its_scale),
        cmocka_unit_test(what_no_block_can_hold_is_refused),
        cmocka_unit_test(sizes_that_do_not_fit_are_refused),
        cmocka_unit_test(activations_are_quantised_as_weights_are_and_keep_what_is_not_finite),
        cmocka_unit_test(products_of_blocks_are_added_in_order_whatever_the_rows_and_panels),
        cmocka_unit_test(the_largest_bytes_do_not_saturate),
        cmocka_unit_test(tables_follow_their_set),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
