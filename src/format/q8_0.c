/* Encoding and decoding Q8_0. See q8_0.h. */
#include "format/q8_0.h"

#include <math.h>
#include <string.h>

static uint32_t bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static float float_of(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Exponent and mantissa in place leave the exponent 112 too small, which the multiplication mends, for subnormal halves too. */
float lt_half_to_float(uint16_t half)
{
    const uint32_t sign = (uint32_t)(half & 0x8000) << 16, magnitude = (uint32_t)(half & 0x7fff) << 13;
    if (magnitude >= 0x7c00u << 13) return float_of(sign | 0x70000000u | magnitude);
    return float_of(sign | bits_of(float_of(magnitude) * 0x1p112f));
}

uint16_t lt_float_to_half(float x)
{
    const uint32_t bits = bits_of(x), sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
    if (magnitude > 0x7f800000) return (uint16_t)(sign | 0x7e00);
    if (magnitude >= 0x477ff000) return (uint16_t)(sign | 0x7c00); /* 65520 and more */
    if (magnitude < 0x38800000) {
        /* Subnormal: adding 0.5 leaves the multiple of 2^-24 in the low bits, rounded by the addition. */
        return (uint16_t)(sign | (bits_of(float_of(magnitude) + 0.5f) - bits_of(0.5f)));
    }
    const uint32_t rounded = magnitude + 0xfff + (magnitude >> 13 & 1);
    return (uint16_t)(sign | (rounded - (112u << 23)) >> 13);
}

bool lt_q8_0_size(size_t rows, size_t cols, size_t *bytes)
{
    size_t blocks, scales;
    if (cols % LT_Q8_0_BLOCK != 0) return false;
    if (!lt_mul(lt_q8_0_panels(rows), LT_Q8_0_PANEL, &rows) || !lt_mul(rows, cols / LT_Q8_0_BLOCK, &blocks)) return false;
    if (!lt_mul(blocks, 2, &scales) || !lt_add(scales, 63, &scales)) return false;
    return lt_mul(blocks, LT_Q8_0_BLOCK, bytes) && lt_add(*bytes, scales / 64 * 64, bytes);
}

/* Byte of column `col` of row r of a panel. */
static size_t place(size_t r, size_t col)
{
    return (col / 4 * LT_Q8_0_PANEL + r) * 4 + col % 4;
}

bool lt_q8_0_encode(const float *w, size_t n, size_t cols, uint8_t *quants, uint16_t *scales)
{
    memset(quants, 128, LT_Q8_0_PANEL * cols);
    memset(scales, 0, cols / LT_Q8_0_BLOCK * LT_Q8_0_PANEL * sizeof *scales);
    for (size_t r = 0; r < n; r++) {
        for (size_t first = 0; first < cols; first += LT_Q8_0_BLOCK) {
            const float *x = w + r * cols + first;
            float most = 0, sum = 0;
            for (size_t i = 0; i < LT_Q8_0_BLOCK; i++) {
                most = fabsf(x[i]) > most ? fabsf(x[i]) : most;
                sum += x[i] * 0; /* NaN where a value is not finite */
            }
            const uint16_t half = lt_float_to_half(most / 127);
            const float d = lt_half_to_float(half);
            if (sum != 0 || !isfinite(d)) return false;
            scales[first / LT_Q8_0_BLOCK * LT_Q8_0_PANEL + r] = half;
            for (size_t i = 0; i < LT_Q8_0_BLOCK && d > 0; i++) {
                float q = x[i] / d;
                q = q > 127 ? 127 : q < -127 ? -127 : q; /* a scale that is rounded down lets the largest pass 127 */
                const uint32_t rounded =
                    bits_of(q + 0x1.8p23f); /* the nearest integer, of equals the even one, in the low bits */
                quants[place(r, first + i)] = (uint8_t)((rounded + 128) & 0xff);
            }
        }
    }
    return true;
}

void lt_q8_0_decode_row(const void *data, size_t rows, size_t cols, size_t row, bool add, float *dst)
{
    const size_t panel = row / LT_Q8_0_PANEL, r = row % LT_Q8_0_PANEL, blocks = cols / LT_Q8_0_BLOCK;
    const uint8_t *quants = (const uint8_t *)data + panel * LT_Q8_0_PANEL * cols;
    const uint8_t *scales = (const uint8_t *)data + lt_q8_0_scales_offset(rows, cols) + panel * LT_Q8_0_PANEL * blocks * 2;
    for (size_t b = 0; b < blocks; b++) {
        uint16_t half;
        memcpy(&half, scales + (b * LT_Q8_0_PANEL + r) * 2, 2);
        const float d = lt_half_to_float(half);
        uint8_t bytes[LT_Q8_0_BLOCK];
        for (size_t i = 0; i < LT_Q8_0_BLOCK; i += 4) memcpy(bytes + i, quants + place(r, b * LT_Q8_0_BLOCK + i), 4);
        float *to = dst + b * LT_Q8_0_BLOCK;
        if (add) {
            for (size_t i = 0; i < LT_Q8_0_BLOCK; i++) to[i] += d * (float)(bytes[i] - 128);
        } else {
            for (size_t i = 0; i < LT_Q8_0_BLOCK; i++) to[i] = d * (float)(bytes[i] - 128);
        }
    }
}
