/* Vectors in fewer bits; see vector_types.h. */
#include "engine/vector_types.h"

#include <math.h>

float lt_int8_scale(const float *vector, size_t dim)
{
    float largest = 0;
    for (size_t i = 0; i < dim; i++) largest = fmaxf(largest, fabsf(vector[i]));
    return largest > 0 ? 127 / largest : 0;
}

int lt_int8_value(const float *vector, float scale, size_t i)
{
    return (int)lrintf(vector[i] * scale);
}

int lt_ubinary_value(const float *vector, size_t dim, size_t byte)
{
    int bits = 0;
    for (size_t i = 8 * byte; i < 8 * byte + 8; i++) bits = bits << 1 | (i < dim && vector[i] > 0);
    return bits;
}
