/* Every kernel of every instruction set that runs here: against double precision, and the others against the scalar set; odd
 * sizes, unaligned pointers, strides wider than the rows, guards around every output, and the numerics contract bit for bit: a
 * row's result never depends on how many rows, panels or queries were asked for together. Products of bfloat16 are held to the
 * same with operands rounded beforehand. */
#include "backend/cpu/kernels.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- help ---- */

static uint32_t seed = 1;

static uint32_t random_bits(void)
{
    seed = seed * 1664525u + 1013904223u;
    return seed ^ seed >> 16;
}

static float uniform(void) /* [-1, 1) */
{
    return (float)(int32_t)random_bits() * 0x1p-31f;
}

static const float GUARD = -12345.678f;

/* n floats, `offset` floats past a 64-byte boundary, guarded on both sides. */
typedef struct buffer {
    float *base, *at;
    size_t n, offset;
} buffer;

static buffer buffer_new(size_t n, size_t offset)
{
    size_t all = (16 + offset + n + 16 + 15) / 16 * 16;
    buffer b = { aligned_alloc(64, all * sizeof(float)), NULL, n, offset };
    assert_non_null(b.base);
    b.at = b.base + 16 + offset;
    for (size_t i = 0; i < all; i++) b.base[i] = GUARD;
    return b;
}

static buffer buffer_random(size_t n, size_t offset, float scale)
{
    buffer b = buffer_new(n, offset);
    for (size_t i = 0; i < n; i++) b.at[i] = uniform() * scale;
    return b;
}

static void buffer_check(buffer b)
{
    for (size_t i = 0; i < 16 + b.offset; i++) assert_memory_equal(b.base + i, &GUARD, sizeof GUARD);
    for (size_t i = 0; i < 16; i++) assert_memory_equal(b.at + b.n + i, &GUARD, sizeof GUARD);
}

static void buffer_free(buffer b)
{
    free(b.base);
}

/* What lies between the end of a row and the next row is untouched. */
static void check_gaps(buffer y, size_t ldy, size_t m, size_t n)
{
    for (size_t i = 0; i + 1 < m; i++) {
        for (size_t j = n; j < ldy; j++) assert_memory_equal(y.at + i * ldy + j, &GUARD, sizeof GUARD);
    }
    buffer_check(y);
}

static void check_close(float got, double want, double tolerance, const char *isa, const char *what, size_t i)
{
    if (!(fabs((double)got - want) <= tolerance)) {
        fail_msg("%s: %s [%zu] is %.9g, should be %.9g within %g", isa, what, i, (double)got, want, tolerance);
    }
}

static void check_equal(const float *got, const float *want, size_t n, const char *isa, const char *what)
{
    for (size_t i = 0; i < n; i++) {
        if (memcmp(got + i, want + i, sizeof *got)) {
            fail_msg("%s: %s: [%zu] is %.9g, was %.9g", isa, what, i, (double)got[i], (double)want[i]);
        }
    }
}

static void each_set(void (*test)(const lt_kernels *))
{
    size_t n;
    const lt_kernels *const *sets = lt_kernels_available(&n);
    for (size_t i = 0; i < n; i++) test(sets[i]);
}

/* Products, in every arithmetic of the set. */
static void each_arithmetic(void (*test)(const lt_kernels *))
{
    size_t n;
    const lt_kernels *const *sets = lt_kernels_available(&n);
    for (size_t i = 0; i < n; i++) {
        test(sets[i]);
        if (sets[i]->bf16) test(sets[i]->bf16);
    }
}

static bool is_bf16(const lt_kernels *set)
{
    return set->compute == LATTICE_COMPUTE_BF16;
}

/* To nearest even with eight bits of mantissa, normal numbers only. */
static float bf16_reference(float x)
{
    int exponent;
    double mantissa = frexp((double)x, &exponent);
    return (float)ldexp(rint(mantissa * 256), exponent - 8);
}

/* What the set makes of an operand. */
static double operand(const lt_kernels *set, float x)
{
    return (double)(is_bf16(set) ? bf16_reference(x) : x);
}

/* The scalar set in the same arithmetic. */
static const lt_kernels *scalar_like(const lt_kernels *set)
{
    const lt_kernels *scalar = lt_kernels_find("scalar");
    return is_bf16(set) ? scalar->bf16 : scalar;
}

static double activation_reference(double x, lt_activation activation)
{
    switch (activation) {
    case LT_ACT_NONE: return x;
    case LT_ACT_GELU: return x / 2 * erfc(-x / sqrt(2));
    case LT_ACT_GELU_TANH: return x / 2 * (1 + tanh(sqrt(2 / acos(-1)) * (x + 0.044715 * x * x * x)));
    case LT_ACT_RELU: return x > 0 ? x : 0;
    case LT_ACT_SILU: return x / (1 + exp(-x));
    case LT_ACT_TANH: return tanh(x);
    case LT_ACT_SIGMOID: return 1 / (1 + exp(-x));
    }
    return 0;
}

static double half_reference(uint16_t h)
{
    double magnitude = (h >> 10 & 31) == 0 ? ldexp(h & 0x3ff, -24) : ldexp(0x400 | (h & 0x3ff), (h >> 10 & 31) - 25);
    return h & 0x8000 ? -magnitude : magnitude;
}

static float stored_reference(const unsigned char *p, lt_dtype dtype)
{
    float x;
    uint16_t h;
    uint32_t bits;
    switch (dtype) {
    case LT_F16: memcpy(&h, p, 2); return (float)half_reference(h);
    case LT_BF16:
        memcpy(&h, p, 2);
        bits = (uint32_t)h << 16;
        memcpy(&x, &bits, 4);
        return x;
    default: memcpy(&x, p, 4); return x;
    }
}

static const lt_dtype DTYPES[] = { LT_F32, LT_F16, LT_BF16 };

static size_t width_of(lt_dtype dtype)
{
    return dtype == LT_F32 ? 4 : 2;
}

/* n random finite numbers of moderate size as stored, `skip` bytes behind the beginning of a cache line. */
static unsigned char *stored_random(size_t n, lt_dtype dtype, size_t skip, unsigned char **base)
{
    *base = aligned_alloc(64, (n * 4 + skip + 63) / 64 * 64);
    assert_non_null(*base);
    unsigned char *p = *base + skip;
    for (size_t i = 0; i < n; i++) {
        float x = uniform();
        uint32_t bits;
        memcpy(&bits, &x, 4);
        uint16_t h =
            dtype == LT_F16 ? (uint16_t)((random_bits() & 0x83ff) | (8 + random_bits() % 8) << 10) : (uint16_t)(bits >> 16);
        if (dtype == LT_F32)
            memcpy(p + 4 * i, &x, 4);
        else
            memcpy(p + 2 * i, &h, 2);
    }
    return p;
}

/* ---- choosing ---- */

static void sets_are_found_by_name_and_scalar_is_last(void **state)
{
    (void)state;
    size_t n;
    const lt_kernels *const *sets = lt_kernels_available(&n);
    assert_true(n >= 1);
    assert_string_equal(sets[n - 1]->isa, "scalar");
    for (size_t i = 0; i < n; i++) {
        assert_ptr_equal(lt_kernels_find(sets[i]->isa), sets[i]);
        assert_int_equal(sets[i]->tile_rows % sets[i]->mr, 0);
        assert_int_equal(sets[i]->compute, LATTICE_COMPUTE_F32);
        const lt_kernels *bf16 = sets[i]->bf16;
        assert_int_equal(bf16 != NULL, strstr(sets[i]->isa, "bf16") || strstr(sets[i]->isa, "amx") || i == n - 1);
        if (!bf16) continue;
        assert_int_equal(bf16->compute, LATTICE_COMPUTE_BF16);
        assert_string_equal(bf16->isa, sets[i]->isa);
    }
    assert_ptr_equal(lt_kernels_find(NULL), sets[0]);
    assert_ptr_equal(lt_kernels_find("auto"), sets[0]);
    assert_null(lt_kernels_find("vax"));
    assert_null(lt_kernels_find(""));
}

/* ---- packing ---- */

static void check_pack(const lt_kernels *set)
{
    const size_t ks[] = { 1, 2, 3, 7, 8, 15, 16, 17, 31, 33, 64, 100 };
    for (size_t type = 0; type < 3; type++) {
        for (size_t ki = 0; ki < sizeof ks / sizeof *ks; ki++) {
            const size_t k = ks[ki], ldw = k + ki % 3 * 5, size = width_of(DTYPES[type]);
            for (size_t n = 1; n <= set->nr; n += n < 3 || n + 2 > set->nr ? 1 : 3) {
                unsigned char *base, *w = stored_random(n * ldw, DTYPES[type], n % 2, &base);
                buffer panel = buffer_new(k * set->nr, 0);
                set->pack_panel(w, DTYPES[type], ldw, n, k, panel.at);
                for (size_t kk = 0; kk < k; kk++) {
                    for (size_t r = 0; r < set->nr; r++) {
                        float want = r < n ? stored_reference(w + (r * ldw + kk) * size, DTYPES[type]) : 0;
                        check_equal(panel.at + kk * set->nr + r, &want, 1, set->isa, "panel");
                    }
                }
                buffer_check(panel);
                buffer_free(panel);
                free(base);
            }
        }
    }
}

/* Halves of a pair: of which `second`. */
static float half_of_pair(float pair, bool second)
{
    uint32_t bits;
    memcpy(&bits, &pair, 4);
    bits = second ? bits & 0xffff0000u : bits << 16;
    float x;
    memcpy(&x, &bits, 4);
    return x;
}

static void check_pack_pairs(const lt_kernels *set)
{
    if (!set->bf16) return;
    set = set->bf16;
    const size_t ks[] = { 1, 2, 3, 7, 8, 15, 16, 17, 31, 32, 33, 34, 63, 64, 65, 100 };
    for (size_t type = 0; type < 3; type++) {
        for (size_t ki = 0; ki < sizeof ks / sizeof *ks; ki++) {
            const size_t k = ks[ki], ldw = k + ki % 3 * 5, size = width_of(DTYPES[type]), steps = lt_panel_rows(set, k);
            assert_int_equal(steps, (k + 1) / 2);
            for (size_t n = 1; n <= set->nr; n += n < 3 || n + 2 > set->nr ? 1 : 3) {
                unsigned char *base, *w = stored_random(n * ldw, DTYPES[type], n % 2, &base);
                buffer panel = buffer_new(steps * set->nr, 0);
                set->pack_panel(w, DTYPES[type], ldw, n, k, panel.at);
                for (size_t kk = 0; kk < 2 * steps; kk++) {
                    for (size_t r = 0; r < set->nr; r++) {
                        bool inside = r < n && kk < k;
                        float want = inside ? bf16_reference(stored_reference(w + (r * ldw + kk) * size, DTYPES[type])) : 0;
                        float got = half_of_pair(panel.at[kk / 2 * set->nr + r], kk % 2);
                        check_equal(&got, &want, 1, set->isa, "panel of pairs");
                    }
                }
                buffer_check(panel);
                buffer_free(panel);
                free(base);
            }
        }
    }
}

static void panels_of_pairs_are_rounded_to_nearest_even(void **state)
{
    (void)state;
    each_set(check_pack_pairs);
}

static void check_round_rows(const lt_kernels *set)
{
    assert_int_equal(set->round_rows == NULL, true);
    if (!set->bf16) return;
    set = set->bf16;
    for (size_t k = 1; k < 70; k++) {
        const size_t steps = lt_panel_rows(set, k), ldx = k + k % 3, ldo = steps + k % 2, m = 3;
        buffer x = buffer_random(m * ldx, k % 5, 3), out = buffer_new(m * ldo - k % 2, k % 4);
        const uint32_t ties[] = { 0x3f808000, 0x3f818000, 0xbf808000, 0x3f808001, 0x3f807fff, 0x3fffffff };
        for (size_t j = 0; j < k && j < 6; j++) memcpy(x.at + ldx + j, ties + j, 4);
        set->round_rows(x.at, ldx, m, k, out.at, ldo);
        for (size_t i = 0; i < m; i++) {
            for (size_t j = 0; j < 2 * steps; j++) {
                float want = j < k ? bf16_reference(x.at[i * ldx + j]) : 0, got = half_of_pair(out.at[i * ldo + j / 2], j % 2);
                check_equal(&got, &want, 1, set->isa, "rounded");
            }
        }
        check_gaps(out, ldo, m, steps);
        const float odd[] = { NAN, INFINITY, -INFINITY };
        memcpy(x.at, odd, (k < 3 ? k : 3) * sizeof(float));
        set->round_rows(x.at, ldx, 1, k, out.at, ldo);
        assert_true(isnan(half_of_pair(out.at[0], false)));
        if (k >= 3) assert_true(half_of_pair(out.at[0], true) == INFINITY && half_of_pair(out.at[1], false) == -INFINITY);
        buffer_free(x), buffer_free(out);
    }
}

static void rows_are_rounded_to_nearest_even_and_keep_nan(void **state)
{
    (void)state;
    each_set(check_round_rows);
}

static void pack_panel_transposes_and_pads_with_zeros(void **state)
{
    (void)state;
    each_set(check_pack);
}

/* ---- linear ---- */

/* All panels of w [n, k], packed. */
static buffer packed_panels(const lt_kernels *set, const void *w, lt_dtype dtype, size_t ldw, size_t n, size_t k)
{
    const size_t panels = (n + set->nr - 1) / set->nr, floats = set->nr * lt_panel_rows(set, k);
    buffer packed = buffer_new(panels * floats, 0);
    for (size_t p = 0; p < panels; p++) {
        const size_t rows = n - p * set->nr < set->nr ? n - p * set->nr : set->nr;
        set->pack_panel((const unsigned char *)w + p * set->nr * ldw * width_of(dtype), dtype, ldw, rows, k,
                        packed.at + p * floats);
    }
    return packed;
}

typedef struct linear_case {
    size_t m, k, n;
    lt_activation activation;
    bool bias, residual, in_place, gate; /* in_place: of the gate, else of the residual */
    size_t offset, gap;
} linear_case;

/* Packs w [n, k] and runs the case. */
static void run_linear(const lt_kernels *set, const linear_case *c, const float *x, const float *w, const float *bias,
                       const float *gate, const float *residual, float *y)
{
    const size_t panels = (c->n + set->nr - 1) / set->nr, steps = lt_panel_rows(set, c->k), ldy = c->n + c->gap;
    size_t ldx = c->k + c->gap;
    buffer packed = packed_panels(set, w, LT_F32, c->k, c->n, c->k), rounded = buffer_new(c->m * (steps + c->gap), c->offset);
    if (is_bf16(set)) {
        set->round_rows(x, ldx, c->m, c->k, rounded.at, steps + c->gap);
        x = rounded.at;
        ldx = steps + c->gap;
    }
    lt_linear a = { .x = x,
                    .ldx = ldx,
                    .m = c->m,
                    .k = c->k,
                    .n = c->n,
                    .panels = packed.at,
                    .panel_begin = 0,
                    .panel_end = panels,
                    .bias = bias,
                    .activation = c->activation,
                    .gate = gate,
                    .ldg = ldy,
                    .residual = residual,
                    .ldr = ldy,
                    .y = y,
                    .ldy = ldy };
    set->linear(&a);
    buffer_check(packed);
    buffer_free(packed), buffer_free(rounded);
}

static void check_linear_case(const lt_kernels *set, const linear_case *c)
{
    const size_t ldx = c->k + c->gap, ldy = c->n + c->gap;
    buffer x = buffer_random(c->m * ldx, c->offset, 1), w = buffer_random(c->n * c->k, 0, 1);
    buffer bias = buffer_random(c->n, c->offset, 1), residual = buffer_random(c->m * ldy, c->offset, 1);
    buffer y = buffer_new(c->m * ldy - c->gap, c->offset), y_scalar = buffer_new(c->m * ldy - c->gap, 0);
    buffer factor = buffer_random(c->m * ldy, c->offset, 1);
    const float *gate = c->gate ? factor.at : NULL, *added = c->residual ? residual.at : NULL, *b = c->bias ? bias.at : NULL;
    if (c->in_place) {
        for (size_t i = 0; i < c->m; i++) memcpy(y.at + i * ldy, (c->gate ? gate : added) + i * ldy, c->n * sizeof(float));
    }
    run_linear(set, c, x.at, w.at, b, c->in_place && c->gate ? y.at : gate, c->in_place && !c->gate ? y.at : added, y.at);
    run_linear(scalar_like(set), c, x.at, w.at, b, gate, added, y_scalar.at);
    for (size_t i = 0; i < c->m; i++) {
        for (size_t j = 0; j < c->n; j++) {
            double sum = 0, size = 0;
            for (size_t kk = 0; kk < c->k; kk++) {
                double product = operand(set, x.at[i * ldx + kk]) * operand(set, w.at[j * c->k + kk]);
                sum += product, size += fabs(product);
            }
            if (c->bias) sum += (double)bias.at[j];
            double want = activation_reference(sum, c->activation) * (gate ? (double)gate[i * ldy + j] : 1);
            if (added) want += (double)added[i * ldy + j];
            double tolerance = 3e-7 * (2 + fabs(sum) + size);
            check_close(y.at[i * ldy + j], want, tolerance, set->isa, "linear", i * c->n + j);
            check_close(y.at[i * ldy + j], (double)y_scalar.at[i * ldy + j], 2 * tolerance, set->isa, "linear by scalar",
                        i * c->n + j);
        }
    }
    check_gaps(y, ldy, c->m, c->n);
    buffer_free(x), buffer_free(w), buffer_free(bias), buffer_free(residual), buffer_free(y), buffer_free(y_scalar);
    buffer_free(factor);
}

static void check_linear(const lt_kernels *set)
{
    const size_t ms[] = { 1, 2, 3, 5, 6, 7, 11, 12, 13, 25, 50 }, ks[] = { 1, 3, 4, 7, 32, 65 },
                 ns[] = { 1, 2, 7, 8, 15, 16, 17, 31, 32, 33, 70 };
    size_t i = 0;
    for (size_t mi = 0; mi < sizeof ms / sizeof *ms; mi++) {
        for (size_t ni = 0; ni < sizeof ns / sizeof *ns; ni++, i++) {
            linear_case c = { .m = ms[mi],
                              .k = ks[i % 6],
                              .n = ns[ni],
                              .activation = (lt_activation)(i % 7),
                              .bias = i % 2,
                              .residual = i % 3 > 0,
                              .in_place = i % 3 == 2,
                              .gate = i % 5 > 2,
                              .offset = i % 5,
                              .gap = i % 4 * 3 };
            check_linear_case(set, &c);
        }
    }
    for (size_t activation = 0; activation < 7; activation++) {
        linear_case c = { .m = 14,
                          .k = 40,
                          .n = 67,
                          .activation = (lt_activation)activation,
                          .bias = true,
                          .residual = true,
                          .offset = 1,
                          .gap = 1 };
        check_linear_case(set, &c);
    }
    /* So long that AMX finishes a block's rows between the steps of the next one, a few at a time. */
    const linear_case several = { .m = 75, .k = 402, .n = 67, .activation = LT_ACT_GELU, .bias = true, .residual = true };
    check_linear_case(set, &several);
}

static void linear_multiplies_adds_bias_activates_gates_and_adds_residual(void **state)
{
    (void)state;
    each_arithmetic(check_linear);
}

static void check_linear_rows(const lt_kernels *set)
{
    const size_t k = 77, steps = lt_panel_rows(set, k), n = 3 * set->nr - 5, all = 70, panels = 3, ld = n + 3;
    const size_t counts[] = { 1, 2, set->mr - 1, set->mr, set->mr + 1, 2 * set->mr + 1, 31 };
    buffer x = buffer_random(all * k, 0, 1), w = buffer_random(n * k, 0, 1), bias = buffer_random(n, 0, 1);
    buffer packed = packed_panels(set, w.at, LT_F32, k, n, k), whole = buffer_new(all * ld, 0), part = buffer_new(all * ld, 0);
    if (is_bf16(set)) set->round_rows(x.at, k, all, k, x.at, steps); /* in place: a row never passes the one it is made of */
    lt_linear a = { .x = x.at,
                    .ldx = steps,
                    .m = all,
                    .k = k,
                    .n = n,
                    .panels = packed.at,
                    .panel_end = panels,
                    .bias = bias.at,
                    .activation = LT_ACT_GELU,
                    .y = whole.at,
                    .ldy = ld };
    set->linear(&a);
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
        for (size_t first = 0; first + counts[c] <= all; first += counts[c] + 3) {
            lt_linear b = a;
            b.x = x.at + first * steps, b.m = counts[c], b.y = part.at;
            for (size_t p = 0; p < panels; p++) { /* each panel alone */
                b.panels = packed.at + p * set->nr * steps, b.panel_begin = p, b.panel_end = p + 1;
                set->linear(&b);
            }
            for (size_t i = 0; i < counts[c]; i++) {
                check_equal(part.at + i * ld, whole.at + (first + i) * ld, n, set->isa, "row of fewer rows");
            }
        }
    }
    check_gaps(part, ld, 32, n);
    buffer_free(x), buffer_free(w), buffer_free(bias), buffer_free(packed), buffer_free(whole), buffer_free(part);
}

static void linear_rows_do_not_depend_on_rows_or_panels_together(void **state)
{
    (void)state;
    each_arithmetic(check_linear_rows);
}

/* From rows as they are stored, or from panels packed of them: the same bits, wherever cache lines begin in the rows. */
static void check_linear_few(const lt_kernels *set)
{
    const size_t ks[] = { 1, 3, 16, 31, 32, 33, 48, 65, 96, 100, 128, 130, 257 }, ns[] = { set->nr, 2 * set->nr, 3 * set->nr };
    const size_t skips[] = { 0, 1, 2, 24, 40, 62 }, n_skips = sizeof skips / sizeof *skips;
    size_t i = 0;
    for (size_t type = 0; type < 3; type++) {
        for (size_t ki = 0; ki < sizeof ks / sizeof *ks; ki++) {
            for (size_t ni = 0; ni < n_skips * (sizeof ns / sizeof *ns); ni++, i++) {
                const size_t k = ks[ki], n = ns[ni / n_skips], m = 1 + i % (LT_FEW_ROWS + 3), ldw = k + i % 5 % 3 * 5,
                             ldy = n + i % 2;
                const size_t steps = lt_panel_rows(set, k);
                unsigned char *base, *w = stored_random(n * ldw, DTYPES[type], skips[ni % n_skips], &base);
                buffer x = buffer_random(m * k, i % 5, 1), packed = packed_panels(set, w, DTYPES[type], ldw, n, k);
                buffer want = buffer_new(m * ldy, 0), got = buffer_new(m * ldy, i % 5), residual = buffer_random(m * n, 0, 1);
                if (is_bf16(set)) set->round_rows(x.at, k, m, k, x.at, steps);
                lt_linear a = { .x = x.at,
                                .ldx = steps,
                                .m = m,
                                .k = k,
                                .n = n,
                                .panels = packed.at,
                                .panel_end = n / set->nr,
                                .activation = LT_ACT_SILU,
                                .residual = residual.at,
                                .ldr = n,
                                .y = want.at,
                                .ldy = ldy,
                                .w = w,
                                .dtype = DTYPES[type],
                                .ldw = ldw };
                set->linear(&a);
                a.y = got.at;
                set->linear_few(&a);
                for (size_t row = 0; row < m; row++)
                    check_equal(got.at + row * ldy, want.at + row * ldy, n, set->isa, "product of stored rows");
                check_gaps(got, ldy, m, n);
                buffer_free(x), buffer_free(packed), buffer_free(want), buffer_free(got), buffer_free(residual);
                free(base);
            }
        }
    }
}

static void few_rows_times_stored_rows_have_the_bits_of_panels(void **state)
{
    (void)state;
    each_arithmetic(check_linear_few);
}

/* Panels that keep bfloat16: widened they are the panels of floats, and as they are they give the same bits. */
static void check_by_pairs(const lt_kernels *set)
{
    const size_t ks[] = { 2, 6, 8, 16, 30, 64, 66, 128, 258 }, ns[] = { 1, set->nr - 1, set->nr, 2 * set->nr + 3 };
    for (size_t i = 0; i < 4 * sizeof ks / sizeof *ks; i++) {
        const size_t k = ks[i / 4], n = ns[i % 4], m = 1 + i % (LT_FEW_ROWS + 3), ldw = k + i % 3 * 2, ldy = n + i % 2;
        const size_t panels = (n + set->nr - 1) / set->nr, floats = set->nr * k;
        unsigned char *base, *w = stored_random(n * ldw, LT_BF16, i % 5 * 2, &base);
        buffer x = buffer_random(m * k, i % 5, 1), residual = buffer_random(m * n, 0, 1), widened = buffer_new(floats, 0);
        buffer packed = packed_panels(set, w, LT_BF16, ldw, n, k), pairs = buffer_new(panels * floats / 2, 0);
        buffer want = buffer_new(m * ldy, 0), got = buffer_new(m * ldy, i % 5);
        for (size_t p = 0; p < panels; p++) {
            const size_t rows = n - p * set->nr < set->nr ? n - p * set->nr : set->nr;
            set->pack_pairs(w + p * set->nr * ldw * 2, ldw, rows, k, pairs.at + p * floats / 2);
            set->widen_pairs(pairs.at + p * floats / 2, k, widened.at);
            check_equal(widened.at, packed.at + p * floats, floats, set->isa, "widened panel");
        }
        lt_linear a = { .x = x.at,
                        .ldx = k,
                        .m = m,
                        .k = k,
                        .n = n,
                        .panels = packed.at,
                        .panel_end = panels,
                        .activation = i % 2 ? LT_ACT_SILU : LT_ACT_NONE,
                        .residual = residual.at,
                        .ldr = n,
                        .y = want.at,
                        .ldy = ldy,
                        .self_fetching = i % 2 };
        set->linear(&a);
        a.panels = pairs.at;
        a.y = got.at;
        set->linear_by_pairs(&a);
        for (size_t row = 0; row < m; row++)
            check_equal(got.at + row * ldy, want.at + row * ldy, n, set->isa, "product by pairs");
        check_gaps(got, ldy, m, n);
        buffer_check(pairs), buffer_check(widened);
        buffer_free(x), buffer_free(residual), buffer_free(widened), buffer_free(packed), buffer_free(pairs), buffer_free(want);
        buffer_free(got);
        free(base);
    }
}

static void panels_that_keep_bfloat16_give_the_same_bits(void **state)
{
    (void)state;
    each_set(check_by_pairs);
}

/* ---- attention ---- */

typedef struct attention_case {
    size_t n_queries, n_keys, head_dim, first_position;
    bool causal;
    size_t offset, gap;
    float spread; /* of the scores */
} attention_case;

static void attention_reference(const lt_kernels *set, const lt_attention *a, double *out)
{
    double *p = malloc(a->n_keys * sizeof *p);
    assert_non_null(p);
    for (size_t i = 0; i < a->n_queries; i++) {
        size_t n = a->n_keys;
        if (a->causal && a->first_position + i + 1 < n) n = a->first_position + i + 1;
        double max = -INFINITY, sum = 0;
        for (size_t j = 0; j < n; j++) {
            p[j] = 0;
            for (size_t d = 0; d < a->head_dim; d++)
                p[j] += operand(set, a->q[i * a->ldq + d]) * operand(set, a->k[j * a->ldk + d]);
            p[j] *= (double)a->scale;
            if (p[j] > max) max = p[j];
        }
        for (size_t j = 0; j < n; j++) sum += p[j] = exp(p[j] - max);
        for (size_t d = 0; d < a->head_dim; d++) {
            double o = 0;
            for (size_t j = 0; j < n; j++) o += p[j] * operand(set, a->v[j * a->ldv + d]);
            out[i * a->head_dim + d] = o / sum;
        }
    }
    free(p);
}

/* Tile by tile, as a caller does. */
static void run_attention(const lt_kernels *set, const lt_attention *whole, size_t tile)
{
    buffer scratch = buffer_new(set->attention_scratch(whole->head_dim), 0);
    for (size_t i = 0; i < whole->n_queries; i += tile) {
        lt_attention a = *whole;
        a.q += i * a.ldq, a.out += i * a.ldo, a.first_position += i, a.scratch = scratch.at;
        a.n_queries = whole->n_queries - i < tile ? whole->n_queries - i : tile;
        set->attention(&a);
    }
    buffer_check(scratch);
    buffer_free(scratch);
}

/* Keys and values of rows [0, n) in blocks of 64, as a state has them: 64 of a step side by side, then the next step; and values
 * row by row. What no row has written is NaN. */
enum { MAX_BLOCKS = 8, BLOCK_OFFSET = 64 };

typedef struct blocks {
    unsigned char *at[MAX_BLOCKS];
    size_t n, value_offset;
} blocks;

static blocks blocks_new(const lt_kernels *set, const lt_attention *a, lt_dtype type)
{
    const size_t d = a->head_dim, steps = type == LT_BF16 ? (d + 1) / 2 : d, step = type == LT_F16 ? 2 : 4;
    const size_t size = type == LT_F32 ? 4 : 2;
    blocks b = { .n = (a->n_keys + LT_BLOCK_ROWS - 1) / LT_BLOCK_ROWS,
                 .value_offset = BLOCK_OFFSET + LT_BLOCK_ROWS * steps * step };
    float *row = malloc((d + 1) * sizeof *row);
    assert_true(b.n <= MAX_BLOCKS && row);
    for (size_t i = 0; i < b.n; i++) {
        b.at[i] = malloc(b.value_offset + LT_BLOCK_ROWS * d * size);
        assert_non_null(b.at[i]);
        memset(b.at[i], 0xff, b.value_offset + LT_BLOCK_ROWS * d * size);
    }
    for (size_t j = 0; j < a->n_keys; j++) {
        unsigned char *at = b.at[j / LT_BLOCK_ROWS];
        const size_t slot = j % LT_BLOCK_ROWS;
        for (int kind = 0; kind < 2; kind++) {
            const float *from = kind == 0 ? a->k + j * a->ldk : a->v + j * a->ldv;
            if (type == LT_F32) memcpy(row, from, d * sizeof *row);
            if (type == LT_F16) set->to_half(from, d, (uint16_t *)(void *)row);
            if (type == LT_BF16) set->round_rows(from, d, 1, d, row, d);
            if (kind == 1) memcpy(at + b.value_offset + slot * d * size, row, d * size);
            for (size_t p = 0; kind == 0 && p < steps; p++)
                memcpy(at + BLOCK_OFFSET + (p * LT_BLOCK_ROWS + slot) * step, (unsigned char *)row + p * step, step);
        }
    }
    free(row);
    return b;
}

static void blocks_free(blocks *b)
{
    for (size_t i = 0; i < b->n; i++) free(b->at[i]);
}

static void check_same_rows(const lt_kernels *set, const lt_attention *a, const lt_attention *b, const char *what)
{
    for (size_t i = 0; i < a->n_queries; i++) check_equal(a->out + i * a->ldo, b->out + i * b->ldo, a->head_dim, set->isa, what);
}

/* The bits that the same rows have in a batch, for many queries at once and for one after the other. */
static void check_attention_rows(const lt_kernels *set, const lt_attention *batch, lt_dtype type)
{
    blocks b = blocks_new(set, batch, type);
    lt_attention paged = *batch;
    buffer out = buffer_new(batch->n_queries * batch->ldo, 3);
    paged.k = paged.v = NULL;
    paged.blocks = (const unsigned char *const *)b.at;
    paged.k_offset = BLOCK_OFFSET;
    paged.v_offset = b.value_offset;
    paged.row_type = type;
    paged.out = out.at;
    run_attention(set, &paged, set->query_tile);
    check_same_rows(set, &paged, batch, "keys and values in blocks");
    run_attention(set, &paged, 1);
    check_same_rows(set, &paged, batch, "queries one by one over blocks");
    buffer_free(out);
    /* Rows of q as heads that share keys and values: what each gets as a query of the same position. */
    lt_attention one = paged;
    const size_t heads = batch->n_queries < 7 ? batch->n_queries : 7;
    buffer together = buffer_new(heads * batch->head_dim, 1), alone = buffer_new(batch->head_dim, 1);
    one.first_position = batch->causal ? batch->first_position + batch->n_queries - 1 : 0;
    one.n_queries = 1;
    one.n_heads = heads;
    one.head_stride = batch->ldq;
    one.out_stride = batch->head_dim;
    one.out = together.at;
    run_attention(set, &one, 1);
    buffer_check(together);
    for (size_t i = 0; i < heads; i++) {
        lt_attention single = one;
        single.q = batch->q + i * batch->ldq;
        single.n_heads = 1;
        single.out = alone.at;
        run_attention(set, &single, 1);
        check_equal(together.at + i * batch->head_dim, alone.at, batch->head_dim, set->isa, "heads together");
    }
    buffer_free(together), buffer_free(alone);
    blocks_free(&b);
}

/* a->out has the result of rows in a batch. */
static void check_attention_blocks(const lt_kernels *set, const lt_attention *a)
{
    if (is_bf16(set)) {
        check_attention_rows(set, a, LT_BF16);
        return;
    }
    check_attention_rows(set, a, LT_F32);
    /* Halves: a batch whose rows are rounded. */
    const size_t d = a->head_dim;
    lt_attention rounded = *a;
    float *k = malloc(2 * a->n_keys * d * sizeof *k);
    uint16_t *half = malloc(d * sizeof *half);
    buffer out = buffer_new(a->n_queries * a->ldo, 0);
    assert_true(k && half);
    for (size_t j = 0; j < 2 * a->n_keys; j++) {
        set->to_half(j < a->n_keys ? a->k + j * a->ldk : a->v + (j - a->n_keys) * a->ldv, d, half);
        set->convert(k + j * d, half, LT_F16, d);
    }
    rounded.k = k;
    rounded.v = k + a->n_keys * d;
    rounded.ldk = rounded.ldv = d;
    rounded.out = out.at;
    run_attention(set, &rounded, set->query_tile);
    check_attention_rows(set, &rounded, LT_F16);
    buffer_free(out);
    free(k), free(half);
}

static void check_attention_case(const lt_kernels *set, const attention_case *c)
{
    const size_t d = c->head_dim, ld = 3 * d + c->gap, ldo = d + c->gap;
    const size_t rows = c->n_keys > c->n_queries ? c->n_keys : c->n_queries;
    buffer qkv = buffer_random(rows * ld, c->offset, 1), out = buffer_new(c->n_queries * ldo - c->gap, c->offset);
    buffer again = buffer_new(c->n_queries * ldo - c->gap, 0);
    lt_attention a = { .q = qkv.at,
                       .k = qkv.at + d,
                       .v = qkv.at + 2 * d,
                       .ldq = ld,
                       .ldk = ld,
                       .ldv = ld,
                       .out = out.at,
                       .ldo = ldo,
                       .n_queries = c->n_queries,
                       .n_keys = c->n_keys,
                       .head_dim = d,
                       .scale = c->spread / sqrtf((float)d),
                       .causal = c->causal,
                       .first_position = c->first_position,
                       .n_heads = 1 };
    run_attention(set, &a, set->query_tile);
    double *want = malloc(c->n_queries * d * sizeof *want);
    assert_non_null(want);
    attention_reference(set, &a, want);
    /* Values are in [-1, 1): the rounding of weights to eight bits moves an output by 2^-9 at most. */
    const double tolerance = 1e-6 + 1e-6 * (double)c->spread + (is_bf16(set) ? 0x1p-9 : 0);
    for (size_t i = 0; i < c->n_queries; i++) {
        for (size_t j = 0; j < d; j++) {
            check_close(out.at[i * ldo + j], want[i * d + j], tolerance, set->isa, "attention", i * d + j);
        }
    }
    check_gaps(out, ldo, c->n_queries, d);
    a.out = again.at;
    const size_t tiles[] = { 1, set->mr, set->mr + 1, 17 };
    for (size_t t = 0; t < sizeof tiles / sizeof *tiles; t++) {
        run_attention(set, &a, tiles[t]);
        for (size_t i = 0; i < c->n_queries; i++)
            check_equal(again.at + i * ldo, out.at + i * ldo, d, set->isa, "query of another tile");
    }
    check_attention_blocks(set, &a);
    if (c->causal) { /* keys past the last query's position change nothing */
        lt_attention shorter = a;
        shorter.n_keys = c->first_position + (c->n_queries + 1) / 2, shorter.n_queries = (c->n_queries + 1) / 2;
        run_attention(set, &shorter, set->query_tile);
        for (size_t i = 0; i < shorter.n_queries; i++)
            check_equal(again.at + i * ldo, out.at + i * ldo, d, set->isa, "shorter sequence");
    }
    free(want);
    buffer_free(qkv), buffer_free(out), buffer_free(again);
}

static void check_attention(const lt_kernels *set)
{
    const size_t lengths[] = { 1, 2, 5, 8, 13, 31, 32, 33, 64, 127, 128, 129, 200, 300 };
    const size_t dims[] = { 32, 1, 8, 10, 12, 64, 80, 33, 128, 256, 7 };
    size_t i = 0;
    for (size_t l = 0; l < sizeof lengths / sizeof *lengths; l++) {
        for (size_t causal = 0; causal < 2; causal++, i++) {
            attention_case c = { .n_queries = lengths[l],
                                 .n_keys = lengths[l],
                                 .head_dim = dims[i % 11],
                                 .causal = causal,
                                 .offset = i % 4,
                                 .gap = i % 3 * 7,
                                 .spread = i % 5 == 4 ? 60.0f : 3.0f };
            check_attention_case(set, &c);
        }
    }
    for (size_t d = 0; d < sizeof dims / sizeof *dims; d++) {
        attention_case c = {
            .n_queries = 14, .n_keys = 150, .head_dim = dims[d], .first_position = 136, .causal = true, .spread = 2
        };
        check_attention_case(set, &c);
        c.causal = false;
        check_attention_case(set, &c);
    }
}

static void attention_is_softmax_of_scores_times_values_whatever_the_tile(void **state)
{
    (void)state;
    each_arithmetic(check_attention);
}

/* A NaN among the keys reaches the output, so that the check of the results finds it; under a causal mask only from there on. */
static void check_attention_nan(const lt_kernels *set)
{
    enum { T = 40, D = 16 };
    buffer qkv = buffer_random(T * 3 * D, 0, 1), out = buffer_new(T * D, 0);
    qkv.at[20 * 3 * D + D + 3] = NAN;
    lt_attention a = { .q = qkv.at,
                       .k = qkv.at + D,
                       .v = qkv.at + 2 * D,
                       .ldq = 3 * D,
                       .ldk = 3 * D,
                       .ldv = 3 * D,
                       .out = out.at,
                       .ldo = D,
                       .n_queries = T,
                       .n_keys = T,
                       .head_dim = D,
                       .scale = 0.25f,
                       .causal = true };
    run_attention(set, &a, set->query_tile);
    for (size_t i = 0; i < T; i++) assert_int_equal(set->all_finite(out.at + i * D, D), i < 20);
    buffer_free(qkv), buffer_free(out);
}

static void attention_carries_nan_only_to_queries_that_see_it(void **state)
{
    (void)state;
    each_arithmetic(check_attention_nan);
}

/* ---- norm ---- */

static void check_norm_case(const lt_kernels *set, size_t m, size_t n, bool rms, bool residual, bool sum, int alias,
                            size_t offset)
{
    const size_t ld = n + offset;
    buffer x = buffer_random(m * ld, offset, 2), r = buffer_random(m * ld, 0, 2), gain = buffer_random(n, offset, 1);
    buffer bias = buffer_random(n, 0, 1), y = buffer_new(m * ld - offset, offset), s = buffer_new(m * ld - offset, 0);
    const float eps = 1e-5f;
    double *want = malloc(m * n * sizeof *want), *want_sum = malloc(m * n * sizeof *want);
    assert_true(want && want_sum);
    for (size_t i = 0; i < m; i++) {
        double mean = 0, square = 0;
        for (size_t j = 0; j < n; j++) {
            want_sum[i * n + j] = (double)x.at[i * ld + j] + (residual ? (double)r.at[i * ld + j] : 0);
            mean += want_sum[i * n + j] / (double)n;
        }
        if (rms) mean = 0;
        for (size_t j = 0; j < n; j++) square += pow(want_sum[i * n + j] - mean, 2) / (double)n;
        for (size_t j = 0; j < n; j++) {
            want[i * n + j] =
                (want_sum[i * n + j] - mean) / sqrt(square + (double)eps) * (double)gain.at[j] + (rms ? 0 : (double)bias.at[j]);
        }
    }
    float *out = alias == 1 ? x.at : alias == 2 ? r.at : y.at;
    lt_norm a = { .x = x.at,
                  .residual = residual ? r.at : NULL,
                  .ldx = ld,
                  .ldr = ld,
                  .m = m,
                  .n = n,
                  .gain = gain.at,
                  .bias = rms ? NULL : bias.at,
                  .eps = eps,
                  .y = out,
                  .sum = sum ? s.at : NULL,
                  .ldy = ld,
                  .lds = ld };
    set->norm(&a);
    for (size_t i = 0; i < m; i++) {
        for (size_t j = 0; j < n; j++) {
            /* Two values that differ by d are 1 / sqrt(d² / 4 + eps) apart: rounding of x weighs at most 1 / sqrt(eps). */
            check_close(out[i * ld + j], want[i * n + j], n < 4 ? 2e-4 : 3e-6, set->isa, "norm", i * n + j);
            if (sum) check_close(s.at[i * ld + j], want_sum[i * n + j], 5e-7, set->isa, "norm's sum", i * n + j);
        }
    }
    if (alias == 0) check_gaps(y, ld, m, n);
    if (sum) check_gaps(s, ld, m, n);
    buffer_check(x), buffer_check(r);
    free(want), free(want_sum);
    buffer_free(x), buffer_free(r), buffer_free(gain), buffer_free(bias), buffer_free(y), buffer_free(s);
}

static void check_norm(const lt_kernels *set)
{
    const size_t ns[] = { 1, 2, 7, 16, 17, 63, 64, 65, 100, 384, 1000 };
    size_t i = 0;
    for (size_t n = 0; n < sizeof ns / sizeof *ns; n++) {
        for (size_t variant = 0; variant < 12; variant++, i++) {
            bool residual = variant & 2;
            check_norm_case(set, 1 + i % 4, ns[n], variant & 1, residual, variant & 4, residual ? (int)(i % 3) : (int)(i % 2),
                            i % 5);
        }
    }
}

static void norm_is_layer_norm_with_bias_and_rms_norm_without(void **state)
{
    (void)state;
    each_set(check_norm);
}

/* ---- elementwise ---- */

/* ---- q and k ---- */

typedef struct rope_case {
    size_t m, n_heads, head_dim, rotary_dim, offset, gap;
} rope_case;

/* Every head of every row against the formula; the values between the heads stay as they are. */
static void check_rope_case(const lt_kernels *set, const rope_case *c)
{
    enum { POSITIONS = 9 };
    const size_t d = c->head_dim, r = c->rotary_dim / 2, stride = d + c->gap, ld = c->n_heads * stride + c->gap;
    buffer x = buffer_random(c->m * ld, c->offset, 3), before = buffer_new(c->m * ld, 0), gain = buffer_random(d, 0, 1);
    buffer cosine = buffer_random(POSITIONS * r, 0, 1), sine = buffer_random(POSITIONS * r, 0, 1);
    memcpy(before.at, x.at, c->m * ld * sizeof(float));
    uint32_t *positions = malloc(c->m * sizeof *positions);
    for (size_t t = 0; t < c->m; t++) positions[t] = (uint32_t)(7 * t % POSITIONS);
    lt_norm_rope a = { .x = x.at,
                       .ldx = ld,
                       .head_stride = stride,
                       .m = c->m,
                       .n_heads = c->n_heads,
                       .head_dim = d,
                       .rotary_dim = c->rotary_dim,
                       .gain = gain.at,
                       .eps = 1e-2f,
                       .cos = cosine.at,
                       .sin = sine.at,
                       .positions = positions };
    set->norm_rope(&a);
    for (size_t i = 0; i < c->m * ld; i++) {
        const size_t t = i / ld, head = i % ld / stride, j = i % ld % stride;
        if (head >= c->n_heads || j >= d) {
            check_equal(x.at + i, before.at + i, 1, set->isa, "beside a head");
            continue;
        }
        const float *h = before.at + t * ld + head * stride;
        double squares = 0;
        for (size_t k = 0; k < d; k++) squares += (double)h[k] * (double)h[k];
        const double inverse = 1 / sqrt(squares / (double)d + (double)a.eps);
        double want = (double)h[j] * inverse * (double)gain.at[j];
        if (j < 2 * r) {
            const size_t pair = j < r ? j : j - r, angle = positions[t] * r + pair, other = j < r ? j + r : j - r;
            const double partner = (double)h[other] * inverse * (double)gain.at[other];
            want = want * (double)cosine.at[angle] + (j < r ? -partner : partner) * (double)sine.at[angle];
        }
        check_close(x.at[i], want, 3e-6, set->isa, "norm_rope", i);
    }
    buffer_check(x);
    free(positions);
    buffer_free(x), buffer_free(before), buffer_free(gain), buffer_free(cosine), buffer_free(sine);
}

static void check_rope(const lt_kernels *set)
{
    static const rope_case cases[] = {
        { 1, 1, 128, 128, 0, 0 }, { 5, 4, 80, 80, 1, 3 },  { 3, 2, 32, 32, 0, 0 }, { 2, 3, 64, 16, 3, 1 },
        { 4, 1, 66, 66, 1, 0 },   { 3, 2, 256, 64, 0, 7 }, { 2, 1, 2, 2, 1, 1 },   { 2, 2, 7, 4, 0, 1 },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) check_rope_case(set, &cases[i]);
}

static void norm_rope_normalises_each_head_and_rotates_half_split_pairs(void **state)
{
    (void)state;
    each_set(check_rope);
}

static void check_activate(const lt_kernels *set)
{
    enum { N = 4001 };
    static const float special[] = { 0.0f, -0.0f, 1e-30f, -1e-30f, 5.39f, 5.41f, -5.39f, -5.41f,
                                     88,   -88,   100,    -100,    1e4f,  -1e4f, 0.624f, 0.626f };
    for (size_t activation = 0; activation < 7; activation++) {
        buffer x = buffer_new(N, 1), single = buffer_new(1, 3);
        for (size_t i = 0; i < N; i++) x.at[i] = i < 16 ? special[i] : ((float)i - 2000) * 0.005f + uniform() * 0.005f;
        buffer y = buffer_new(N, 1);
        memcpy(y.at, x.at, N * sizeof(float));
        set->activate(y.at, N, (lt_activation)activation);
        for (size_t i = 0; i < N; i++) {
            double at = (double)x.at[i], want = activation_reference(at, (lt_activation)activation);
            check_close(y.at[i], want, 3e-7 * fmin(fabs(at) + 1e-3, 1) + 2.5e-7 * (activation == LT_ACT_SIGMOID ? 1 : fabs(at)),
                        set->isa, "activate", i + 10000 * activation);
            if (i % 17 == 0) { /* alone, in a tail */
                single.at[0] = x.at[i];
                set->activate(single.at, 1, (lt_activation)activation);
                check_equal(single.at, y.at + i, 1, set->isa, "activate alone");
            }
        }
        single.at[0] = NAN;
        set->activate(single.at, 1, (lt_activation)activation);
        assert_true(isnan(single.at[0]));
        buffer_check(y), buffer_check(single);
        buffer_free(x), buffer_free(y), buffer_free(single);
    }
}

static void activations_follow_their_formulas_and_keep_nan(void **state)
{
    (void)state;
    each_set(check_activate);
}

static void check_convert(const lt_kernels *set)
{
    /* Every half and every bfloat16 there is. */
    uint16_t *all = malloc(65536 * sizeof *all);
    assert_non_null(all);
    for (size_t i = 0; i < 65536; i++) all[i] = (uint16_t)i;
    for (size_t type = 1; type < 3; type++) {
        buffer y = buffer_new(65536, 0);
        set->convert(y.at, all, DTYPES[type], 65536);
        for (size_t i = 0; i < 65536; i++) {
            bool special = type == 1 ? (i & 0x7c00) == 0x7c00 : (i & 0x7f80) == 0x7f80;
            bool nan = special && (i & (type == 1 ? 0x3ff : 0x7f)) != 0;
            if (nan) {
                assert_true(isnan(y.at[i]));
            } else {
                float want = special ? (i & 0x8000 ? -INFINITY : INFINITY)
                                     : stored_reference((const unsigned char *)(all + i), DTYPES[type]);
                check_equal(y.at + i, &want, 1, set->isa, "convert");
            }
        }
        buffer_check(y);
        buffer_free(y);
    }
    free(all);
    for (size_t type = 0; type < 3; type++) {
        for (size_t n = 0; n < 70; n++) {
            unsigned char *base, *src = stored_random(n, DTYPES[type], n % 2, &base);
            buffer y = buffer_new(n, n % 5), sum = buffer_random(n, n % 3, 1), before = buffer_new(n, 0);
            memcpy(before.at, sum.at, n * sizeof(float));
            set->convert(y.at, src, DTYPES[type], n);
            set->accumulate(sum.at, src, DTYPES[type], n);
            for (size_t i = 0; i < n; i++) {
                float x = stored_reference(src + i * width_of(DTYPES[type]), DTYPES[type]), added = before.at[i] + x;
                check_equal(y.at + i, &x, 1, set->isa, "convert");
                check_equal(sum.at + i, &added, 1, set->isa, "accumulate");
            }
            buffer_check(y), buffer_check(sum);
            buffer_free(y), buffer_free(sum), buffer_free(before);
            free(base);
        }
    }
}

static void convert_and_accumulate_read_every_stored_float_exactly(void **state)
{
    (void)state;
    each_set(check_convert);
}

/* Every half comes back; what lies between two goes to the nearer, halfway to the even one; too large is infinite. */
static void check_to_half(const lt_kernels *set)
{
    enum { LARGEST = 0x7bff };
    uint16_t got[3 * 3 + 1];
    for (uint32_t i = 0; i < LARGEST; i++) {
        const uint16_t pair[2] = { (uint16_t)i, (uint16_t)(i + 1) };
        float x[2], between[9];
        set->convert(x, pair, LT_F16, 2);
        const float middle = x[0] + (x[1] - x[0]) / 2; /* exact in a float */
        for (size_t k = 0; k < 9; k += 3) {
            between[k] = k == 0 ? x[0] : k == 3 ? nextafterf(middle, 0) : -middle;
            between[k + 1] = middle;
            between[k + 2] = nextafterf(middle, INFINITY);
        }
        const size_t n = 1 + i % 9;
        got[n] = 0xabcd;
        set->to_half(between, n, got);
        assert_int_equal(got[n], 0xabcd);
        const uint16_t even = pair[i % 2];
        const uint16_t want[9] = { pair[0], even, pair[1], pair[0], even, pair[1], (uint16_t)(0x8000 | even), even, pair[1] };
        for (size_t k = 0; k < n; k++)
            if (got[k] != want[k]) fail_msg("%s: half of %.9g is %04x, not %04x", set->isa, (double)between[k], got[k], want[k]);
    }
    const float odd[6] = { 65519.99f, 65520, INFINITY, -INFINITY, NAN, -1e-30f };
    set->to_half(odd, 6, got);
    assert_int_equal(got[0], LARGEST);
    assert_int_equal(got[1], 0x7c00);
    assert_int_equal(got[2], 0x7c00);
    assert_int_equal(got[3], 0xfc00);
    assert_true((got[4] & 0x7c00) == 0x7c00 && (got[4] & 0x3ff) != 0);
    assert_int_equal(got[5], 0x8000);
}

static void halves_round_to_nearest_even(void **state)
{
    (void)state;
    each_set(check_to_half);
}

/* ---- recurrent layers ---- */

static double sigmoid_reference(double x)
{
    return 1 / (1 + exp(-x));
}

typedef struct conv_case {
    size_t m, n, taps, offset;
    bool fresh; /* nothing before the first row */
} conv_case;

static void check_conv_case(const lt_kernels *set, const conv_case *c)
{
    const size_t ld = c->n + c->offset, past = c->taps - 1;
    buffer x = buffer_random(c->m * ld, c->offset, 2), w = buffer_random(c->taps * ld, 0, 1), zeros = buffer_new(c->n, 0);
    buffer history = buffer_random(past * ld + 1, c->offset, 2), y = buffer_new(c->m * ld - c->offset, c->offset);
    memset(zeros.at, 0, c->n * sizeof(float));
    lt_conv a = { .x = x.at,
                  .history = c->fresh ? zeros.at : history.at,
                  .ldx = ld,
                  .ldh = c->fresh ? 0 : ld,
                  .weight = w.at,
                  .ldw = ld,
                  .m = c->m,
                  .n = c->n,
                  .taps = c->taps,
                  .y = y.at,
                  .ldy = ld };
    set->conv(&a);
    for (size_t t = 0; t < c->m; t++) {
        for (size_t j = 0; j < c->n; j++) {
            double sum = 0;
            for (size_t k = 0; k < c->taps; k++) {
                const double before = c->fresh ? 0 : (double)history.at[(t + k < past ? t + k : 0) * ld + j];
                const double input = t + k < past ? before : (double)x.at[(t + k - past) * ld + j];
                sum += input * (double)w.at[k * ld + j];
            }
            check_close(y.at[t * ld + j], sum * sigmoid_reference(sum), 3e-6, set->isa, "conv", t * c->n + j);
        }
    }
    check_gaps(y, ld, c->m, c->n);
    buffer_free(x), buffer_free(w), buffer_free(zeros), buffer_free(history), buffer_free(y);
}

static void check_conv(const lt_kernels *set)
{
    static const conv_case cases[] = { { 1, 1, 4, 0, false }, { 1, 192, 4, 0, true },  { 2, 37, 4, 3, false },
                                       { 3, 16, 4, 1, true }, { 9, 100, 4, 1, false }, { 5, 7, 1, 2, false },
                                       { 4, 33, 2, 0, true }, { 2, 65, 7, 1, false } };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) check_conv_case(set, &cases[i]);
}

static void conv_is_causal_and_begins_with_its_history(void **state)
{
    (void)state;
    each_set(check_conv);
}

static void check_gates(const lt_kernels *set)
{
    static const size_t dims[] = { 1, 3, 16, 32, 33, 80, 128 };
    for (size_t k = 0; k < sizeof dims / sizeof *dims; k++) {
        const size_t d = dims[k], heads = 1 + k % 3, m = 1 + k % 4, ld = heads * d + k % 2;
        buffer x = buffer_random(m * ld, k % 3, 2), z = buffer_random(m * ld, 1, 4), gain = buffer_random(d, 0, 1);
        buffer y = buffer_new(m * ld - k % 2, k % 2), gated = buffer_new(heads * d, 1);
        lt_gated_norm a = { .x = x.at,
                            .z = z.at,
                            .ldx = ld,
                            .ldz = ld,
                            .m = m,
                            .n_heads = heads,
                            .head_dim = d,
                            .gain = gain.at,
                            .eps = 1e-2f,
                            .y = y.at,
                            .ldy = ld };
        set->gated_norm(&a);
        set->gate(x.at, z.at, heads * d, gated.at);
        for (size_t i = 0; i < m * ld - k % 2; i++) {
            const size_t row = i / ld, head = i % ld / d, j = i % ld % d;
            if (head >= heads) continue;
            const float *h = x.at + row * ld + head * d;
            double squares = 0, gate = (double)z.at[i];
            for (size_t p = 0; p < d; p++) squares += (double)h[p] * (double)h[p];
            const double normal = (double)h[j] / sqrt(squares / (double)d + (double)a.eps) * (double)gain.at[j];
            check_close(y.at[i], normal * gate * sigmoid_reference(gate), 1e-5, set->isa, "gated_norm", i);
            if (row == 0) check_close(gated.at[i], (double)x.at[i] * sigmoid_reference(gate), 1e-6, set->isa, "gate", i);
        }
        check_gaps(y, ld, m, heads * d);
        buffer_check(gated);
        buffer_free(x), buffer_free(z), buffer_free(gain), buffer_free(y), buffer_free(gated);
    }
}

static void gates_multiply_by_silu_after_a_norm_and_by_sigmoid_alone(void **state)
{
    (void)state;
    each_set(check_gates);
}

enum { DELTA_ROWS = 300, DELTA_DIMS = 40 };

/* A sequence of one head, and what the formula gives for it in double precision from a state that is not zero. */
typedef struct delta_case {
    size_t dk, dv, ld, ldg;
    buffer rows, gates, state;
    float rate, dt_bias;
    double *o;      /* [DELTA_ROWS][dv] */
    double *s;      /* [dk][dv] after `upto` rows */
    double largest; /* of o */
    double summed;  /* the largest Σ |terms| of an o, where cancellation leaves little of it */
    double scale;   /* the largest that S ever was: what is left of it after cancellation is as exact as that */
    bool fresh;
} delta_case;

static void delta_reference(delta_case *c, size_t upto)
{
    const size_t dk = c->dk, dv = c->dv;
    double q[DELTA_DIMS], k[DELTA_DIMS];
    for (size_t i = 0; i < dk * dv; i++) c->s[i] = c->fresh ? 0 : (double)c->state.at[i];
    c->largest = c->summed = c->scale = 0;
    for (size_t t = 0; t < upto; t++) {
        const float *x = c->rows.at + t * c->ld;
        double qq = 1e-6, kk = 1e-6;
        for (size_t i = 0; i < dk; i++) qq += (double)x[i] * (double)x[i], kk += (double)x[dk + i] * (double)x[dk + i];
        for (size_t i = 0; i < dk; i++) q[i] = (double)x[i] / sqrt(qq * (double)dk), k[i] = (double)x[dk + i] / sqrt(kk);
        const double beta = sigmoid_reference((double)c->gates.at[t * c->ldg]);
        const double g = -(double)c->rate * log1p(exp((double)c->gates.at[t * c->ldg + 1] + (double)c->dt_bias)), decay = exp(g);
        for (size_t j = 0; j < dv; j++) {
            double sum = 0, out = 0, terms = 0;
            for (size_t i = 0; i < dk; i++) sum += (c->s[i * dv + j] *= decay) * k[i];
            const double delta = beta * ((double)x[2 * dk + j] - sum);
            for (size_t i = 0; i < dk; i++) {
                const double term = (c->s[i * dv + j] += k[i] * delta) * q[i];
                out += term;
                terms += fabs(term);
            }
            for (size_t i = 0; i < dk; i++) c->scale = fmax(c->scale, fabs(c->s[i * dv + j]));
            c->o[t * dv + j] = out;
            c->largest = fmax(c->largest, fabs(out));
            c->summed = fmax(c->summed, terms);
        }
    }
}

static void check_delta_rows(const lt_kernels *set, const delta_case *c, size_t m, size_t first, lt_delta_form form,
                             size_t offset)
{
    const size_t dk = c->dk, dv = c->dv, ldo = dv + offset;
    buffer o = buffer_new(m * ldo - offset, offset), next = buffer_new(dk * dv, offset);
    const size_t floats = set->delta_scratch(dk);
    buffer scratch = buffer_new(floats, 0);
    lt_delta a = { .q = c->rows.at,
                   .k = c->rows.at + dk,
                   .v = c->rows.at + 2 * dk,
                   .ld = c->ld,
                   .b = c->gates.at,
                   .a = c->gates.at + 1,
                   .ldg = c->ldg,
                   .rate = c->rate,
                   .dt_bias = c->dt_bias,
                   .m = m,
                   .dk = dk,
                   .dv = dv,
                   .first_position = first,
                   .state = c->fresh ? NULL : c->state.at,
                   .next = next.at,
                   .o = o.at,
                   .ldo = ldo,
                   .scratch = scratch.at,
                   .form = form };
    set->delta(&a);
    const double tolerance = 1e-5 * c->largest + 1e-6 * c->summed;
    for (size_t i = 0; i < m; i++) {
        for (size_t j = 0; j < dv; j++)
            check_close(o.at[i * ldo + j], c->o[i * dv + j], tolerance, set->isa, "delta", i * dv + j);
    }
    for (size_t i = 0; i < dk * dv; i++) check_close(next.at[i], c->s[i], 1e-5 * c->scale, set->isa, "S", i);
    check_gaps(o, ldo, m, dv);
    buffer_check(next), buffer_check(scratch);
    buffer_free(o), buffer_free(next), buffer_free(scratch);
}

/* Token by token and in chunks each within 1e-5 of the formula in double precision, so within 2e-5 of each other: every length up
 * to a little over a chunk, then some up to 300, beginning anywhere in a chunk. */
static void check_delta(const lt_kernels *set)
{
    static const size_t dims[][2] = { { 16, 32 }, { 1, 1 }, { 33, 37 }, { 40, 16 } };
    for (size_t k = 0; k < 4; k++) {
        delta_case c = {
            .dk = dims[k][0], .dv = dims[k][1], .ldg = 3, .rate = k == 2 ? 40 : 0.3f, .dt_bias = 0.2f, .fresh = k == 1
        };
        c.ld = 2 * c.dk + c.dv + k;
        c.rows = buffer_random(DELTA_ROWS * c.ld, k, 1);
        c.gates = buffer_random(DELTA_ROWS * c.ldg, 0, 3);
        c.state = buffer_random(c.dk * c.dv, 1, 0.5f);
        c.o = malloc(DELTA_ROWS * c.dv * sizeof(double));
        c.s = malloc(c.dk * c.dv * sizeof(double));
        for (size_t m = 1; m <= DELTA_ROWS; m += m < 70 ? 1 + k % 2 : 23) {
            delta_reference(&c, m);
            check_delta_rows(set, &c, m, 0, LT_DELTA_RECURRENT, m % 3);
            check_delta_rows(set, &c, m, 0, LT_DELTA_CHUNKED, m % 3);
            check_delta_rows(set, &c, m, 7 * m, LT_DELTA_AUTO, 0);
        }
        delta_reference(&c, DELTA_ROWS);
        check_delta_rows(set, &c, DELTA_ROWS, 0, LT_DELTA_CHUNKED, 1);
        free(c.o), free(c.s);
        buffer_free(c.rows), buffer_free(c.gates), buffer_free(c.state);
    }
}

static void delta_rule_by_tokens_and_by_chunks_follows_its_formula(void **state)
{
    (void)state;
    each_set(check_delta);
}

static void check_delta_pieces(const lt_kernels *set)
{
    enum { M = 200, DK = 16, DV = 24, LD = 2 * DK + DV };
    buffer rows = buffer_random(M * LD, 0, 1), gates = buffer_random(M * 2, 0, 2),
           scratch = buffer_new(set->delta_scratch(DK), 0);
    buffer o[2] = { buffer_new(M * DV, 0), buffer_new(M * DV, 0) }, next[2] = { buffer_new(DK * DV, 0), buffer_new(DK * DV, 0) };
    static const size_t cuts[] = { 0, 64, 192, M };
    lt_delta a = { .q = rows.at,
                   .k = rows.at + DK,
                   .v = rows.at + 2 * DK,
                   .ld = LD,
                   .b = gates.at,
                   .a = gates.at + 1,
                   .ldg = 2,
                   .rate = 0.2f,
                   .m = M,
                   .dk = DK,
                   .dv = DV,
                   .next = next[0].at,
                   .o = o[0].at,
                   .ldo = DV,
                   .scratch = scratch.at };
    set->delta(&a);
    for (size_t i = 0; i < 3; i++) { /* in place, S in, S out */
        lt_delta piece = a;
        piece.q += cuts[i] * LD, piece.k += cuts[i] * LD, piece.v += cuts[i] * LD;
        piece.b += cuts[i] * 2, piece.a += cuts[i] * 2;
        piece.m = cuts[i + 1] - cuts[i];
        piece.first_position = cuts[i];
        piece.state = i > 0 ? next[1].at : NULL;
        piece.next = next[1].at;
        piece.o = o[1].at + cuts[i] * DV;
        set->delta(&piece);
    }
    check_equal(o[1].at, o[0].at, M * DV, set->isa, "delta in pieces");
    check_equal(next[1].at, next[0].at, DK * DV, set->isa, "S in pieces");
    buffer_free(rows), buffer_free(gates), buffer_free(scratch);
    for (size_t i = 0; i < 2; i++) buffer_free(o[i]), buffer_free(next[i]);
}

static void delta_rule_cut_at_multiples_of_64_gives_the_same_bits(void **state)
{
    (void)state;
    each_set(check_delta_pieces);
}

/* ---- pooling ---- */

static void check_pool(const lt_kernels *set)
{
    for (size_t n = 1; n < 150; n += n < 36 ? 1 : 19) {
        for (size_t m = 1; m < 20; m += 6) {
            const size_t ld = n + n % 3;
            buffer x = buffer_random(m * ld, n % 4, 1), y[3] = { buffer_new(n, 1), buffer_new(n, 2), buffer_new(n, 3) };
            set->pool_sum(x.at, ld, m, n, 0.25f, y[0].at);
            set->pool_weighted(x.at, ld, m, n, 3, 0.5f, y[1].at);
            set->pool_max(x.at, ld, m, n, y[2].at);
            for (size_t j = 0; j < n; j++) {
                double sum = 0, weighted = 0, max = -INFINITY;
                for (size_t i = 0; i < m; i++) {
                    double v = (double)x.at[i * ld + j];
                    sum += v, weighted += (double)(3 + i + 1) * v, max = fmax(max, v);
                }
                check_close(y[0].at[j], sum / 4, 1e-6, set->isa, "pool_sum", j);
                check_close(y[1].at[j], weighted / 2, 2e-5, set->isa, "pool_weighted", j);
                check_close(y[2].at[j], max, 0, set->isa, "pool_max", j);
            }
            for (size_t i = 0; i < 3; i++) buffer_check(y[i]);
            x.at[m / 2 * ld + n - 1] = NAN;
            set->pool_max(x.at, ld, m, n, y[2].at);
            assert_true(isnan(y[2].at[n - 1]));
            assert_true(n == 1 || set->all_finite(y[2].at, n - 1));
            for (size_t i = 0; i < 3; i++) buffer_free(y[i]);
            buffer_free(x);
        }
    }
}

static void pools_go_down_the_columns_and_max_keeps_nan(void **state)
{
    (void)state;
    each_set(check_pool);
}

static void check_finite(const lt_kernels *set)
{
    static const float bad[] = { NAN, INFINITY, -INFINITY };
    for (size_t n = 1; n < 140; n += 1 + n / 8) {
        buffer x = buffer_random(n, n % 4, 3e38f);
        assert_true(set->all_finite(x.at, n));
        for (size_t i = 0; i < n; i++) {
            float keep = x.at[i];
            x.at[i] = bad[i % 3];
            assert_false(set->all_finite(x.at, n));
            x.at[i] = keep;
        }
        x.at[n] = NAN; /* just behind: not read */
        assert_true(set->all_finite(x.at, n));
        buffer_free(x);
    }
    assert_true(set->all_finite(NULL, 0));
}

static void all_finite_finds_one_nan_or_infinity_anywhere(void **state)
{
    (void)state;
    each_set(check_finite);
}

static void check_peak(const lt_kernels *set)
{
    assert_true(set->peak_flop(1000) >= 2000);
    buffer x = buffer_new(1003, 1);
    for (size_t i = 0; i < 1003; i++) x.at[i] = (float)i;
    assert_true(set->peak_read(x.at, 1003) == 1002 * 1003 / 2);
    buffer_free(x);
}

static void peaks_count_their_work(void **state)
{
    (void)state;
    each_arithmetic(check_peak);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sets_are_found_by_name_and_scalar_is_last),
        cmocka_unit_test(pack_panel_transposes_and_pads_with_zeros),
        cmocka_unit_test(panels_of_pairs_are_rounded_to_nearest_even),
        cmocka_unit_test(rows_are_rounded_to_nearest_even_and_keep_nan),
        cmocka_unit_test(linear_multiplies_adds_bias_activates_gates_and_adds_residual),
        cmocka_unit_test(linear_rows_do_not_depend_on_rows_or_panels_together),
        cmocka_unit_test(few_rows_times_stored_rows_have_the_bits_of_panels),
        cmocka_unit_test(panels_that_keep_bfloat16_give_the_same_bits),
        cmocka_unit_test(attention_is_softmax_of_scores_times_values_whatever_the_tile),
        cmocka_unit_test(attention_carries_nan_only_to_queries_that_see_it),
        cmocka_unit_test(halves_round_to_nearest_even),
        cmocka_unit_test(norm_is_layer_norm_with_bias_and_rms_norm_without),
        cmocka_unit_test(norm_rope_normalises_each_head_and_rotates_half_split_pairs),
        cmocka_unit_test(activations_follow_their_formulas_and_keep_nan),
        cmocka_unit_test(convert_and_accumulate_read_every_stored_float_exactly),
        cmocka_unit_test(pools_go_down_the_columns_and_max_keeps_nan),
        cmocka_unit_test(all_finite_finds_one_nan_or_infinity_anywhere),
        cmocka_unit_test(peaks_count_their_work),
        cmocka_unit_test(conv_is_causal_and_begins_with_its_history),
        cmocka_unit_test(gates_multiply_by_silu_after_a_norm_and_by_sigmoid_alone),
        cmocka_unit_test(delta_rule_by_tokens_and_by_chunks_follows_its_formula),
        cmocka_unit_test(delta_rule_cut_at_multiples_of_64_gives_the_same_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
