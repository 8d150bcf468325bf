/* Products with int8 weights by rows (format/int8.h), beside those of Q8_0:
 *
 *   y[m, n] = act(s[m] d[n] Σ_k q_w[n, k] q_x[m, k] + c[m] S[n] + bias) · gate + residual,   S[n] = d[n] Σ_k q_w[n, k]
 *
 * A row of activations, times the weights' input factors, is x ≈ s q_x + c: c the middle between its least and largest value, and
 * q_x within ±127. The integer sum over all of k is exact in whatever order, so the numerics contract holds of itself. */
#ifndef LT_BACKEND_CPU_INT8_H
#define LT_BACKEND_CPU_INT8_H

#include "backend/cpu/kernels.h"
#include "format/int8.h"

/* A row as `quantize_rows` leaves it: its bytes, zeros up to a multiple of 8, then s and c as floats and −128 Σ q_x, which
 * weights stored as q + 128 make the sum too large by. Rows are an odd number of cache lines apart. */
static inline size_t lt_int8_row_bytes(size_t k)
{
    return ((lt_int8_padded(k) + 12 + 63) / 64 | 1) * 64;
}

typedef struct lt_int8_linear {
    /* m, k, n, panel_begin, panel_end (panels of LT_INT8_PANEL columns), bias, activation, gate, residual, y as in lt_linear; the
     * rest is not read. */
    lt_linear out;
    const void *x;                      /* [m] rows, lt_int8_row_bytes(k) apart */
    const uint8_t *quants;              /* of panel 0 */
    const unsigned char *scales, *sums; /* floats, of column 0; may be unaligned */
} lt_int8_linear;

#endif
