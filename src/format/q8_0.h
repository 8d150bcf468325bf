/* Q8_0: a matrix in blocks of 32 signed bytes with a half-precision scale, w ≈ d · q; and how our files lay it out.
 *
 * Rows go 16 to a panel, so that a vector of outputs reads consecutive bytes: for every four columns of a panel the four weights
 * of row 0, of row 1, … of row 15. A weight is stored as q + 128, unsigned, as the products of x86 want it.
 *
 *     quants   ⌈rows / 16⌉ panels [cols / 4][16][4] of unsigned bytes; rows that are not there are 128
 *     scales   ⌈rows / 16⌉ panels [cols / 32][16] of little-endian halves; of rows that are not there 0; zeros up to 64 bytes
 *
 * docs/quantised.md describes the whole file. */
#ifndef LT_FORMAT_Q8_0_H
#define LT_FORMAT_Q8_0_H

#include "base/memory.h"

enum { LT_Q8_0_BLOCK = 32, LT_Q8_0_PANEL = 16 };

/* Layout of the above; a file names the one that it was written in, in its metadata. */
#define LT_Q8_0_LAYOUT "1"
#define LT_QUANTIZATION_KEY "lattice.quantization"
#define LT_LAYOUT_KEY "lattice.layout"
#define LT_CHECKSUM_KEY "lattice.sha256"

static inline size_t lt_q8_0_panels(size_t rows)
{
    return rows / LT_Q8_0_PANEL + (rows % LT_Q8_0_PANEL != 0);
}
/* Bytes of the quants, where the scales begin. The matrix's whole size has been found to fit a size_t. */
static inline size_t lt_q8_0_scales_offset(size_t rows, size_t cols)
{
    return lt_q8_0_panels(rows) * LT_Q8_0_PANEL * cols;
}
/* Bytes of a whole matrix; false: cols is not a multiple of 32, or they do not fit a size_t. */
bool lt_q8_0_size(size_t rows, size_t cols, size_t *bytes);

/* Quantises the panel of `n` rows w[n][cols]: d = max|w| / 127 rounded to half, q = w / d rounded to nearest even, 0 where d is
 * 0. quants [16 cols], scales [cols / 32][16]. False: a block has a value that is not finite or a scale that no half holds. */
bool lt_q8_0_encode(const float *w, size_t n, size_t cols, uint8_t *quants, uint16_t *scales);

/* Row `row` of a matrix stored at `data`: dst[cols] = d · q, or is added to. */
void lt_q8_0_decode_row(const void *data, size_t rows, size_t cols, size_t row, bool add, float *dst);

/* IEEE half precision. To half: to nearest even, infinite past the largest. */
float lt_half_to_float(uint16_t half);
uint16_t lt_float_to_half(float x);

#endif
