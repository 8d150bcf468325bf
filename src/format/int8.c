/* Encoding and decoding int8 by rows. See int8.h. */
#include "format/int8.h"

#include <float.h>
#include <math.h>
#include <string.h>

bool lt_int8_size(size_t rows, size_t cols, size_t *bytes)
{
    size_t padded_rows, per_row, inputs;
    if (cols > LT_INT8_MAX_COLS) return false;
    per_row = lt_int8_padded(cols) + 2 * sizeof(float);
    inputs = cols * sizeof(float) + 63;
    if (!lt_mul(lt_int8_panels(rows), LT_INT8_PANEL, &padded_rows) || !lt_mul(padded_rows, per_row, bytes)) return false;
    if (!lt_add(*bytes, inputs, bytes)) return false;
    *bytes = *bytes / 64 * 64;
    return true;
}

/* Byte of column `col` of row r of a panel. */
static size_t place(size_t r, size_t col)
{
    return (col / 4 * LT_INT8_PANEL + r) * 4 + col % 4;
}

bool lt_int8_encode(const float *w, size_t n, size_t cols, const float *inputs, uint8_t *quants, float *scales, float *sums)
{
    bool finite = true;
    memset(quants, 128, LT_INT8_PANEL * lt_int8_padded(cols));
    for (size_t r = 0; r < LT_INT8_PANEL; r++) scales[r] = sums[r] = 0;
    for (size_t r = 0; r < n; r++, w += cols) {
        float most = 0, check = 0;
        for (size_t c = 0; c < cols; c++) {
            const float x = fabsf(inputs ? w[c] / inputs[c] : w[c]);
            most = x > most ? x : most;
            check += x * 0; /* NaN where a value is not finite */
        }
        if (check != 0) {
            scales[r] = sums[r] = NAN;
            finite = false;
            continue;
        }
        if (most < FLT_MIN * 127) continue; /* zeros, or as good as that */
        const float d = most / 127, inverse = 127 / most;
        int32_t sum = 0;
        for (size_t c = 0; c < cols; c++) {
            const float x = (inputs ? w[c] / inputs[c] : w[c]) * inverse + 0x1.8p23f; /* the nearest integer in the low bits */
            uint32_t bits;
            memcpy(&bits, &x, sizeof bits);
            const int32_t q = (int32_t)(bits & 0xffff) - (bits & 0x8000 ? 0x10000 : 0);
            quants[place(r, c)] = (uint8_t)(q + 128);
            sum += q;
        }
        scales[r] = d;
        sums[r] = d * (float)sum;
    }
    return finite;
}

static float float_at(const uint8_t *data, size_t offset, size_t index)
{
    float x;
    memcpy(&x, data + offset + index * sizeof x, sizeof x);
    return x;
}

void lt_int8_decode_row(const void *data, size_t rows, size_t cols, size_t row, bool add, float *dst)
{
    const uint8_t *panel = (const uint8_t *)data + row / LT_INT8_PANEL * LT_INT8_PANEL * lt_int8_padded(cols);
    const float d = float_at(data, lt_int8_scales_offset(rows, cols), row);
    const size_t inputs = lt_int8_inputs_offset(rows, cols);
    for (size_t c = 0; c < cols; c++) {
        const float x = d * (float)(panel[place(row % LT_INT8_PANEL, c)] - 128) * float_at(data, inputs, c);
        dst[c] = add ? dst[c] + x : x;
    }
}

const char *lt_int8_fault(const void *data, size_t rows, size_t cols, size_t *index)
{
    const size_t scales = lt_int8_scales_offset(rows, cols), sums = lt_int8_sums_offset(rows, cols);
    for (size_t i = 0; i < lt_int8_panels(rows) * LT_INT8_PANEL; i++) {
        const float d = float_at(data, scales, i), sum = float_at(data, sums, i);
        *index = i;
        if (!isfinite(d) || d < 0) return "a scale that is negative or not finite, of row";
        if (!isfinite(sum)) return "a sum that is not finite, of row";
    }
    for (size_t i = 0; i < cols; i++) {
        const float m = float_at(data, lt_int8_inputs_offset(rows, cols), i);
        *index = i;
        if (!isfinite(m) || m <= 0) return "an input factor that is not positive and finite, of column";
    }
    return NULL;
}
