/* Q8_0 products in plain C, one row at a time: what the words mean. */
#include "backend/cpu/vec_scalar.h"

#define Q8_ISA "scalar"
#define Q8_ROWS 1
#define Q8_PANELS 1
#define Q8_TILES(X) X(1)
#define INT8_STEP 8
#define INT8_ROWS 1
#define INT8_TILES(X) X(1)

typedef int32_t q_acc;
typedef struct q_weights {
    int32_t w[4];
} q_weights;
typedef struct q_spread {
    int32_t x[4];
} q_spread;

LT_VECTOR q_acc q_start(const void *correction)
{
    (void)correction;
    return 0;
}
LT_VECTOR q_weights q_load(const uint8_t *p)
{
    return (q_weights){ { p[0] - 128, p[1] - 128, p[2] - 128, p[3] - 128 } };
}
LT_VECTOR q_spread q_spread4(const void *p)
{
    const signed char *x = p;
    return (q_spread){ { x[0], x[1], x[2], x[3] } };
}
LT_VECTOR q_acc q_dot(q_acc acc, const q_weights w[2], const q_spread x[2])
{
    LT_UNROLL
    for (size_t i = 0; i < 8; i++) acc += w[i / 4].w[i % 4] * x[i / 4].x[i % 4];
    return acc;
}
LT_VECTOR vf q_float(q_acc acc)
{
    return (float)acc;
}
/* Adding 1.5 · 2^23 leaves the nearest integer in the low bits; values lie within ±128, and those that do not are NaN. */
LT_VECTOR void q_bytes(signed char *p, vf a)
{
    const uint32_t bits = v_to_bits(a + 0x1.8p23f);
    memcpy(p, &(const unsigned char){ (unsigned char)bits }, 1);
}

LT_VECTOR float q_largest(const float *x)
{
    uint32_t most = 0;
    for (size_t i = 0; i < 32; i++) {
        const uint32_t bits = v_to_bits(x[i]) & 0x7fffffff;
        if (bits > most) most = bits;
    }
    return v_from_bits(most);
}
LT_VECTOR int q_sum(const signed char *p)
{
    int sum = 0;
    for (size_t i = 0; i < 32; i++) sum += p[i];
    return sum;
}

#include "backend/cpu/q8_body.h"

#include "backend/cpu/int8_body.h"
#include "backend/cpu/sets.h"

const lt_q8_kernels lt_q8_kernels_scalar = LT_Q8_KERNELS;
