/* Words for bytes that both NEON tables share. */
#ifndef LT_BACKEND_CPU_Q8_NEON_H
#define LT_BACKEND_CPU_Q8_NEON_H

#include "backend/cpu/vec_neon.h"

typedef int8x16_t q_weights;

LT_VECTOR q_weights q_load(const uint8_t *p)
{
    return vreinterpretq_s8_u8(veorq_u8(vld1q_u8(p), vdupq_n_u8(128)));
}
LT_VECTOR void q_bytes(signed char *p, vf a)
{
    const int16x4_t words = vqmovn_s32(vcvtnq_s32_f32(a));
    const int32x2_t bytes = vreinterpret_s32_s8(vqmovn_s16(vcombine_s16(words, words)));
    const int32_t bits = vget_lane_s32(bytes, 0);
    memcpy(p, &bits, 4);
}

LT_VECTOR float q_largest(const float *x)
{
    const uint32x4_t magnitude = vdupq_n_u32(0x7fffffff);
    uint32x4_t m = vdupq_n_u32(0);
    LT_UNROLL
    for (size_t i = 0; i < 32; i += 4) m = vmaxq_u32(m, vandq_u32(vreinterpretq_u32_f32(v_load(x + i)), magnitude));
    const uint32_t bits = vmaxvq_u32(m);
    float largest;
    memcpy(&largest, &bits, 4);
    return largest;
}
LT_VECTOR int q_sum(const signed char *p)
{
    return vaddlvq_s8(vld1q_s8(p)) + vaddlvq_s8(vld1q_s8(p + 16));
}

#endif
