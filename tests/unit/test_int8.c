/* int8 by rows: the encoding against its formulas, and the integer products of every table that runs here against double
 * precision, against the scalar table and, bit for bit, against themselves with other rows and panels together. */
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

static float float_at(const void *data, size_t offset)
{
    float x;
    memcpy(&x, (const char *)data + offset, sizeof x);
    return x;
}

/* Encodes w[rows][cols] into one block of memory as a file holds it. */
static uint8_t *encode(const float *w, size_t rows, size_t cols, const float *inputs)
{
    size_t bytes;
    assert_true(lt_int8_size(rows, cols, &bytes));
    uint8_t *data = aligned(bytes);
    memset(data, 0xee, bytes);
    for (size_t row = 0; row < rows; row += LT_INT8_PANEL) {
        const size_t n = rows - row < LT_INT8_PANEL ? rows - row : LT_INT8_PANEL;
        float scales[LT_INT8_PANEL], sums[LT_INT8_PANEL];
        assert_true(lt_int8_encode(w + row * cols, n, cols, inputs, data + row * lt_int8_padded(cols), scales, sums));
        memcpy(data + lt_int8_scales_offset(rows, cols) + row * 4, scales, sizeof scales);
        memcpy(data + lt_int8_sums_offset(rows, cols) + row * 4, sums, sizeof sums);
    }
    for (size_t c = 0; c < cols; c++) {
        const float m = inputs ? inputs[c] : 1;
        memcpy(data + lt_int8_inputs_offset(rows, cols) + c * 4, &m, 4);
    }
    return data;
}

static void a_row_is_rounded_to_multiples_of_its_scale(void **state)
{
    (void)state;
    enum { ROWS = 21, COLS = 45 };
    float w[ROWS * COLS], inputs[COLS], row[COLS], twice[COLS];
    for (size_t i = 0; i < ROWS * COLS; i++) w[i] = uniform() * (float)(1 + i / COLS % 7);
    for (size_t i = 0; i < COLS; i++) inputs[i] = 0.5f + (float)(i % 4);
    for (size_t i = 0; i < COLS; i++) w[3 * COLS + i] = 0;
    uint8_t *data = encode(w, ROWS, COLS, inputs);
    size_t index;
    assert_null(lt_int8_fault(data, ROWS, COLS, &index));
    for (size_t r = 0; r < ROWS; r++) {
        double most = 0, sum = 0;
        for (size_t c = 0; c < COLS; c++) most = fmax(most, fabs((double)(w[r * COLS + c] / inputs[c])));
        const float d = float_at(data, lt_int8_scales_offset(ROWS, COLS) + r * 4);
        assert_true(fabs((double)d - most / 127) <= 1e-7 * most);
        lt_int8_decode_row(data, ROWS, COLS, r, false, row);
        memcpy(twice, row, sizeof row);
        lt_int8_decode_row(data, ROWS, COLS, r, true, twice);
        for (size_t c = 0; c < COLS; c++) {
            const int q = data[r / 16 * 16 * 48 + (c / 4 * 16 + r % 16) * 4 + c % 4] - 128;
            sum += q;
            assert_true(abs(q) <= 127);
            assert_true(fabs((double)w[r * COLS + c] / (double)inputs[c] - q * (double)d) <= 0.501 * (double)d);
            assert_true(fabs((double)row[c] - q * (double)d * (double)inputs[c]) <= 1e-6 * (1 + fabs((double)row[c])));
            assert_true(twice[c] == 2 * row[c]);
        }
        assert_true(fabs((double)float_at(data, lt_int8_sums_offset(ROWS, COLS) + r * 4) - sum * (double)d) <= 1e-5 * most);
    }
    for (size_t c = COLS; c < 48; c++) assert_int_equal(data[(c / 4 * 16 + 5) * 4 + c % 4], 128);
    free(data);
}

static void what_no_row_can_hold_is_refused(void **state)
{
    (void)state;
    const float bad[] = { NAN, INFINITY, -INFINITY };
    uint8_t quants[16 * 8];
    float scales[16], sums[16];
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        float w[2 * 5] = { 1, 2, 3, 4, 5, 6, 7 };
        w[8] = bad[i];
        assert_false(lt_int8_encode(w, 2, 5, NULL, quants, scales, sums));
        assert_true(isfinite(scales[0]) && isnan(scales[1]));
    }
}

static void numbers_that_no_writer_makes_are_found(void **state)
{
    (void)state;
    enum { ROWS = 18, COLS = 9 };
    float w[ROWS * COLS];
    for (size_t i = 0; i < ROWS * COLS; i++) w[i] = uniform();
    const struct {
        size_t offset;
        float value;
        const char *words;
        size_t index;
    } cases[] = {
        { lt_int8_scales_offset(ROWS, COLS) + 17 * 4, NAN, "a scale", 17 },
        { lt_int8_scales_offset(ROWS, COLS) + 31 * 4, INFINITY, "a scale", 31 },
        { lt_int8_scales_offset(ROWS, COLS), -1, "a scale", 0 },
        { lt_int8_sums_offset(ROWS, COLS) + 2 * 4, -INFINITY, "a sum", 2 },
        { lt_int8_inputs_offset(ROWS, COLS) + 8 * 4, NAN, "an input factor", 8 },
        { lt_int8_inputs_offset(ROWS, COLS) + 4, 0, "an input factor", 1 },
        { lt_int8_inputs_offset(ROWS, COLS), INFINITY, "an input factor", 0 },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint8_t *data = encode(w, ROWS, COLS, NULL);
        size_t index = 99;
        memcpy(data + cases[i].offset, &cases[i].value, 4);
        const char *fault = lt_int8_fault(data, ROWS, COLS, &index);
        assert_non_null(fault);
        assert_int_equal(strncmp(fault, cases[i].words, strlen(cases[i].words)), 0);
        assert_int_equal(index, cases[i].index);
        free(data);
    }
}

static void sizes_that_do_not_fit_are_refused(void **state)
{
    (void)state;
    size_t bytes;
    assert_false(lt_int8_size(16, LT_INT8_MAX_COLS + 1, &bytes));
    assert_false(lt_int8_size(SIZE_MAX, 8, &bytes));
    assert_false(lt_int8_size(SIZE_MAX / 16, 8, &bytes));
    assert_true(lt_int8_size(1, 5, &bytes));
    assert_int_equal(bytes, 16 * 8 + 2 * 64 + 64);
    assert_true(lt_int8_size(33, 48, &bytes));
    assert_int_equal(bytes, 48 * 48 + 2 * 48 * 4 + 192);
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

/* s, c and the correction of a quantised row. */
static void numbers_of(const unsigned char *row, size_t k, float *s, float *c, int32_t *correction)
{
    *s = float_at(row, lt_int8_padded(k));
    *c = float_at(row, lt_int8_padded(k) + 4);
    memcpy(correction, row + lt_int8_padded(k) + 8, 4);
}

static void check_row(const lt_q8_kernels *set, size_t k, bool with_inputs, int kind)
{
    const size_t row_bytes = lt_int8_row_bytes(k), ldx = k + 3;
    float *x = aligned((2 * ldx + 1) * 4), *inputs = aligned((k + 1) * 4);
    unsigned char *out = aligned(2 * row_bytes + 64);
    memset(out, 0xee, 2 * row_bytes + 64);
    x++, inputs++; /* unaligned */
    for (size_t i = 0; i < 2 * ldx; i++) x[i] = kind == 1 ? -0.75f : uniform() * 3 + (kind == 2 ? 10 : 0.5f);
    for (size_t i = 0; i < k; i++) inputs[i] = with_inputs && kind != 1 ? 0.25f + (float)(i % 3) : 1;
    set->quantize_rows(x, ldx, 2, k, with_inputs ? inputs : NULL, out);
    for (size_t r = 0; r < 2; r++) {
        const float *row = x + r * ldx;
        float s, c, least = INFINITY, most = -INFINITY;
        int32_t correction, sum = 0;
        numbers_of(out + r * row_bytes, k, &s, &c, &correction);
        for (size_t i = 0; i < k; i++) {
            least = fminf(least, row[i] * inputs[i]);
            most = fmaxf(most, row[i] * inputs[i]);
        }
        assert_true(fabsf(s - (most - least) / 254) <= 1e-6f * (most - least));
        assert_true(fabsf(c - (most + least) / 2) <= 1e-6f * (fabsf(most) + fabsf(least)));
        for (size_t i = 0; i < lt_int8_padded(k); i++) {
            const int q = (signed char)out[r * row_bytes + i];
            sum += q;
            assert_true(q >= -127 && q <= 127);
            if (i >= k)
                assert_int_equal(q, 0);
            else
                assert_true(fabsf(row[i] * inputs[i] - (s * (float)q + c)) <= 0.501f * s + 1e-6f * fabsf(c));
        }
        assert_int_equal(correction, -128 * sum);
    }
    for (size_t i = 0; i < 64; i++) assert_int_equal(out[2 * row_bytes + i], 0xee);
    free(x - 1), free(inputs - 1), free(out);
}

static void check_rows(const lt_q8_kernels *set)
{
    const size_t ks[] = { 1, 5, 8, 15, 16, 17, 31, 33, 36, 64, 100, 384 };
    for (size_t i = 0; i < sizeof ks / sizeof *ks; i++) {
        for (int kind = 0; kind < 3; kind++) {
            check_row(set, ks[i], false, kind);
            check_row(set, ks[i], true, kind);
        }
    }
}

static void rows_are_centred_and_rounded_to_multiples_of_a_254th_of_their_range(void **state)
{
    (void)state;
    each_table(check_rows);
}

static void check_not_finite(const lt_q8_kernels *set)
{
    const float bad[] = { NAN, INFINITY, -INFINITY };
    enum { K = 37 };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        for (size_t at = 0; at < K; at++) {
            float x[K], s, c;
            unsigned char *out = aligned(lt_int8_row_bytes(K));
            int32_t correction;
            for (size_t j = 0; j < K; j++) x[j] = uniform();
            x[at] = bad[i];
            set->quantize_rows(x, K, 1, K, NULL, out);
            numbers_of(out, K, &s, &c, &correction);
            if (!isnan(s) || !isnan(c)) fail_msg("%s: %g at %zu is lost", set->isa, (double)bad[i], at);
            free(out);
        }
    }
}

static void rows_keep_what_is_not_finite(void **state)
{
    (void)state;
    each_table(check_not_finite);
}

typedef struct product {
    size_t m, k, n;
    lt_activation activation;
    bool bias, gate, residual;
} product;

static void run(const lt_q8_kernels *set, const product *p, const void *x, const uint8_t *w, const float *extra, float *y,
                size_t begin, size_t end)
{
    set->linear_rows(&(lt_int8_linear){ .out = { .m = p->m,
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
                                                 .ldy = p->n + 1 },
                                        .x = x,
                                        .quants = w,
                                        .scales = w + lt_int8_scales_offset(p->n, p->k),
                                        .sums = w + lt_int8_sums_offset(p->n, p->k) });
}

static void check_product(const lt_q8_kernels *set, const product *p)
{
    const size_t ldy = p->n + 1, panels = lt_int8_panels(p->n), row_bytes = lt_int8_row_bytes(p->k);
    float *x = aligned(p->m * p->k * 4), *w = aligned(p->n * p->k * 4), *extra = aligned(p->m * p->n * 4);
    float *y = aligned((p->m * ldy + 1) * 4), *other = aligned((p->m * ldy + 1) * 4), *row = aligned(p->k * 4);
    unsigned char *bytes = aligned(p->m * row_bytes);
    for (size_t i = 0; i < p->m * p->k; i++) x[i] = uniform() + 0.3f;
    for (size_t i = 0; i < p->n * p->k; i++) w[i] = uniform();
    for (size_t i = 0; i < p->m * p->n; i++) extra[i] = uniform();
    for (size_t i = 0; i <= p->m * ldy; i++) y[i] = other[i] = -77;
    uint8_t *data = encode(w, p->n, p->k, NULL);
    scalar_table()->quantize_rows(x, p->k, p->m, p->k, NULL, bytes);
    run(set, p, bytes, data, extra, y, 0, panels);
    run(scalar_table(), p, bytes, data, extra, other, 0, panels);
    for (size_t j = 0; j < p->n; j++) {
        lt_int8_decode_row(data, p->n, p->k, j, false, row);
        for (size_t i = 0; i < p->m; i++) {
            float s, c;
            int32_t correction;
            double sum = 0, size = 0;
            numbers_of(bytes + i * row_bytes, p->k, &s, &c, &correction);
            for (size_t kk = 0; kk < p->k; kk++) {
                const double term = (double)row[kk] * ((double)s * (signed char)bytes[i * row_bytes + kk] + (double)c);
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
    for (size_t i = 0; i < p->m && !p->gate && !p->residual; i++) {
        const product one = { .m = 1, .k = p->k, .n = p->n, .activation = p->activation, .bias = p->bias };
        for (size_t panel = 0; panel < panels; panel++)
            run(set, &one, bytes + i * row_bytes, data, extra, other + i * ldy, panel, panel + 1);
        assert_memory_equal(other + i * ldy, y + i * ldy, p->n * sizeof *y);
    }
    free(x), free(w), free(extra), free(y), free(other), free(row), free(bytes), free(data);
}

static void check_products(const lt_q8_kernels *set)
{
    const size_t ms[] = { 1, 2, 3, 5, 6, 7, 11, 12, 13, 25 }, ks[] = { 4, 7, 32, 36, 65, 320 };
    const size_t ns[] = { 1, 7, 16, 17, 32, 33, 47, 70 };
    size_t i = 0;
    for (size_t a = 0; a < sizeof ms / sizeof *ms; a++) {
        for (size_t b = 0; b < sizeof ns / sizeof *ns; b++, i++) {
            const product p = { .m = ms[a],
                                .k = ks[i * 5 % 6],
                                .n = ns[b],
                                .activation = i % 3 ? LT_ACT_NONE : LT_ACT_SILU,
                                .bias = i % 2,
                                .gate = i % 5 == 3,
                                .residual = i % 4 == 1 };
            check_product(set, &p);
        }
    }
}

static void products_by_rows_are_the_same_bits_whatever_the_rows_and_panels(void **state)
{
    (void)state;
    each_table(check_products);
}

/* The largest bytes of both signs in every place: no step in between may saturate. */
static void check_extremes(const lt_q8_kernels *set)
{
    enum { K = 1024, N = 16 };
    float *x = aligned(K * 4), *w = aligned(N * K * 4), y[N + 1];
    unsigned char *bytes = aligned(lt_int8_row_bytes(K));
    for (int signs = 0; signs < 4; signs++) {
        for (size_t i = 0; i < K; i++) x[i] = signs & 1 ? -1 : 1;
        x[K - 1] = -x[0];
        for (size_t i = 0; i < N * K; i++) w[i] = signs & 2 ? -1 : 1;
        uint8_t *data = encode(w, N, K, NULL);
        if (signs == 2) memset(data, 0, N * K); /* −128, which no writer of ours makes */
        set->quantize_rows(x, K, 1, K, NULL, bytes);
        const product p = { .m = 1, .k = K, .n = N };
        run(set, &p, bytes, data, NULL, y, 0, 1);
        const double weight = signs == 2 ? -128.0 / 127 : signs & 2 ? -1 : 1;
        for (size_t j = 0; j < N; j++) assert_true(fabs((double)y[j] - (double)x[0] * weight * (K - 2)) < 1e-2);
        free(data);
    }
    free(x), free(w), free(bytes);
}

static void the_largest_bytes_do_not_saturate(void **state)
{
    (void)state;
    each_table(check_extremes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_row_is_rounded_to_multiples_of_its_scale),
        cmocka_unit_test(what_no_row_can_hold_is_refused),
        cmocka_unit_test(numbers_that_no_writer_makes_are_found),
        cmocka_unit_test(sizes_that_do_not_fit_are_refused),
        cmocka_unit_test(rows_are_centred_and_rounded_to_multiples_of_a_254th_of_their_range),
        cmocka_unit_test(rows_keep_what_is_not_finite),
        cmocka_unit_test(products_by_rows_are_the_same_bits_whatever_the_rows_and_panels),
        cmocka_unit_test(the_largest_bytes_do_not_saturate),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
