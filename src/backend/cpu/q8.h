/* Products with Q8_0 weights in integers.
 *
 *   y[m, n] = act(Σ_b d_w[n, b] d_x[m, b] Σ_i q_w[n, b, i] q_x[m, b, i] + bias) · gate + residual
 *
 * over blocks b of 32 along k. Activations are quantised as the weights are, a row and block at a time. The integer sum inside a
 * block is exact in whatever order; blocks are added in ascending order into one accumulator an output, so that the numerics
 * contract holds for any number of rows. Weights are read where they are mapped: the layout of the file (docs/quantised.md) is
 * that of these kernels, so one and the same kernel serves decoding and long prompts and nothing is ever packed.
 *
 * Which of these tables runs beside which set of kernels.h depends on one more feature of the CPU (VNNI, dotprod, i8mm):
 * select.c. */
#ifndef LT_BACKEND_CPU_Q8_H
#define LT_BACKEND_CPU_Q8_H

#include "backend/cpu/int8.h"
#include "backend/cpu/kernels.h"
#include "format/q8_0.h"

/* A row as `quantize` leaves it: k signed bytes, then the k / 32 scales as floats, then for every block −128 times the sum of its
 * bytes: weights are stored as q + 128, and this takes the 128 away again. */
static inline size_t lt_q8_row_bytes(size_t k)
{
    return (k + k / LT_Q8_0_BLOCK * 8 + 63) / 64 * 64;
}

typedef struct lt_q8_linear {
    /* m, k (a multiple of 32), n, panel_begin, panel_end (panels of LT_Q8_0_PANEL columns), bias, activation, gate, residual, y,
     * self_fetching as in lt_linear; the rest is not read. */
    lt_linear out;
    const void *x;         /* [m] rows, lt_q8_row_bytes(k) apart */
    const uint8_t *quants; /* of panel 0 */
    const void *scales;
} lt_q8_linear;

typedef struct lt_q8_kernels {
    const char *isa; /* "scalar", "avx2", "avxvnni", "avx512vnni", "avx512amx", "neon", "neondot", "neoni8mm" */
    size_t mr;       /* rows of a tile */
    /* out: lt_q8_row_bytes(k) bytes a row, 64-byte aligned. A block that holds a NaN or an infinity gets a scale that is one. */
    void (*quantize)(const float *x, size_t ldx, size_t m, size_t k, void *out);
    void (*linear)(const lt_q8_linear *args);
    /* The same two of int8 by rows (int8.h). inputs: k floats, or NULL for ones; out: lt_int8_row_bytes(k) bytes a row, 64-byte
     * aligned. A row that holds a NaN or an infinity gets numbers that are NaN. */
    void (*quantize_rows)(const float *x, size_t ldx, size_t m, size_t k, const void *inputs, void *out);
    void (*linear_rows)(const lt_int8_linear *args);
    /* Measuring: rounds of independent products in registers; returns the operations done, two a product. */
    double (*peak)(size_t iterations);
} lt_q8_kernels;

/* The table that runs beside a set of kernels.h on this CPU: the best whose vectors are no wider than the set's. */
const lt_q8_kernels *lt_q8_kernels_for(const lt_kernels *set);
/* Number `index` of those built in, for tests; NULL in *kernels: it cannot run here. False: there are no more. */
bool lt_q8_kernels_run(size_t index, const lt_q8_kernels **kernels);

#endif
