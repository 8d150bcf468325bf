/* Vectors in fewer bits, as the program writes and the server sends them.
 *
 *   int8     round(127 x / max|x|), a scale of its own for each vector;  uint8: that plus 128
 *   ubinary  one bit a value, 1 where x > 0, the most significant first, the last byte padded with zeros;  binary: that less 128
 */
#ifndef LT_ENGINE_VECTOR_TYPES_H
#define LT_ENGINE_VECTOR_TYPES_H

#include <stddef.h>

/* What a vector's values are multiplied by; 0 for a vector of zeros. */
float lt_int8_scale(const float *vector, size_t dim);
int lt_int8_value(const float *vector, float scale, size_t i);
static inline size_t lt_ubinary_bytes(size_t dim)
{
    return (dim + 7) / 8;
}
int lt_ubinary_value(const float *vector, size_t dim, size_t byte);

#endif
