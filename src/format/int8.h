/* int8 by rows: a matrix whose rows have one scale each, w[r, c] ≈ d[r] · q[r, c] · m[c], q signed bytes within ±127; and how it
 * lies in our files and in memory.
 *
 * m is what the matrix's input is multiplied by before it is quantised: columns where activations are large have m < 1, and the
 * weights of such a column are the larger for it (SmoothQuant; Xiao et al. 2022, arXiv:2211.10438).
 *
 * Rows go 16 to a panel, as in Q8_0: for every four columns of a panel the four weights of row 0, of row 1, … of row 15, each
 * stored as q + 128. Columns are padded to a multiple of 8 by weights of 0.
 *
 *     quants   ⌈rows / 16⌉ panels [padded cols / 4][16][4] of unsigned bytes; what is not there is 128
 *     scales   [16 panels] d as float32; of rows that are not there 0
 *     sums     [16 panels] d · Σ q as float32
 *     inputs   [cols] m as float32; zeros up to a multiple of 64 bytes
 *
 * docs/quantised.md describes the whole file. */
#ifndef LT_FORMAT_INT8_H
#define LT_FORMAT_INT8_H

#include "base/memory.h"

enum { LT_INT8_PANEL = 16, LT_INT8_GROUP = 8 };

/* More columns could overflow a sum of products: 127 · 255 · 2^16 < 2^31. */
#define LT_INT8_MAX_COLS ((size_t)1 << 16)

/* Name and layout in a file's metadata; its other matrices and tables may be Q8_0. */
#define LT_INT8_QUANTIZATION "int8"

static inline size_t lt_int8_padded(size_t cols)
{
    return (cols + LT_INT8_GROUP - 1) / LT_INT8_GROUP * LT_INT8_GROUP;
}
static inline size_t lt_int8_panels(size_t rows)
{
    return rows / LT_INT8_PANEL + (rows % LT_INT8_PANEL != 0);
}
/* Where the parts begin. The matrix's whole size has been found to fit a size_t. */
static inline size_t lt_int8_scales_offset(size_t rows, size_t cols)
{
    return lt_int8_panels(rows) * LT_INT8_PANEL * lt_int8_padded(cols);
}
static inline size_t lt_int8_sums_offset(size_t rows, size_t cols)
{
    return lt_int8_scales_offset(rows, cols) + lt_int8_panels(rows) * LT_INT8_PANEL * sizeof(float);
}
static inline size_t lt_int8_inputs_offset(size_t rows, size_t cols)
{
    return lt_int8_sums_offset(rows, cols) + lt_int8_panels(rows) * LT_INT8_PANEL * sizeof(float);
}
/* Bytes of a whole matrix; false: more columns than LT_INT8_MAX_COLS, or they do not fit a size_t. */
bool lt_int8_size(size_t rows, size_t cols, size_t *bytes);

/* Quantises the panel of `n` rows w[n][cols], divided by inputs[cols] first where that is not NULL: d = max|w| / 127, q = w / d
 * to nearest even. quants [16 · padded cols], scales [16], sums [16]. False: a value is not finite or its scale is no float; then
 * its row's scale is not finite either. */
bool lt_int8_encode(const float *w, size_t n, size_t cols, const float *inputs, uint8_t *quants, float *scales, float *sums);

/* Row `row` of a matrix stored at `data`: dst[cols] = d · q · m, or is added to. */
void lt_int8_decode_row(const void *data, size_t rows, size_t cols, size_t row, bool add, float *dst);

/* The first row or column whose numbers no writer of ours makes: a scale or sum that is not finite or a scale below 0, or inputs
 * that are not above 0 or not finite. NULL: all are sound; else a few words, and *index. */
const char *lt_int8_fault(const void *data, size_t rows, size_t cols, size_t *index);

#endif
