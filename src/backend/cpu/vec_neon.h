/* Vector vocabulary for AArch64 Advanced SIMD: 4 floats; tails through a small copy. See vec_scalar.h for what each word means.
 */
#ifndef LT_BACKEND_CPU_VEC_NEON_H
#define LT_BACKEND_CPU_VEC_NEON_H

#include "backend/cpu/vec.h"

#include <arm_neon.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define LT_VL 4

typedef float32x4_t vf;

#define LT_OPAQUE(a) __asm__ volatile("" : "+w"(a))

LT_VECTOR uint32x4_t v_mask(size_t n)
{
    static const uint32_t lanes[4] = { 0, 1, 2, 3 };
    return vcltq_u32(vld1q_u32(lanes), vdupq_n_u32((uint32_t)n));
}

LT_VECTOR vf v_zero(void)
{
    return vdupq_n_f32(0);
}
LT_VECTOR vf v_set1(float x)
{
    return vdupq_n_f32(x);
}
/* By bytes: they need no alignment. */
LT_VECTOR vf v_load(const void *p)
{
    return vreinterpretq_f32_u8(vld1q_u8(p));
}
LT_VECTOR vf v_load_n(const void *p, size_t n)
{
    float copy[4] = { 0 };
    memcpy(copy, p, 4 * n);
    return vld1q_f32(copy);
}
LT_VECTOR void v_store(float *p, vf a)
{
    vst1q_f32(p, a);
}
LT_VECTOR void v_store_n(float *p, vf a, size_t n)
{
    float copy[4];
    vst1q_f32(copy, a);
    memcpy(p, copy, 4 * n);
}
LT_VECTOR uint16x4_t v_load_16_n(const void *p, size_t n)
{
    uint16_t copy[4] = { 0 };
    memcpy(copy, p, 2 * n);
    return vld1_u16(copy);
}
LT_VECTOR vf v_load_f16(const void *p)
{
    return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(p)));
}
LT_VECTOR vf v_load_f16_n(const void *p, size_t n)
{
    return vcvt_f32_f16(vreinterpret_f16_u16(v_load_16_n(p, n)));
}
LT_VECTOR void v_store_f16(void *p, vf a)
{
    vst1_u8(p, vreinterpret_u8_f16(vcvt_f16_f32(a)));
}
LT_VECTOR vf v_load_bf16(const void *p)
{
    return vreinterpretq_f32_u32(vshll_n_u16(vreinterpret_u16_u8(vld1_u8(p)), 16));
}
LT_VECTOR vf v_load_bf16_n(const void *p, size_t n)
{
    return vreinterpretq_f32_u32(vshll_n_u16(v_load_16_n(p, n), 16));
}
LT_VECTOR vf v_low_bf16(vf a)
{
    return vreinterpretq_f32_u32(vshlq_n_u32(vreinterpretq_u32_f32(a), 16));
}
LT_VECTOR vf v_high_bf16(vf a)
{
    return vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(a), vdupq_n_u32(0xffff0000)));
}
LT_VECTOR vf v_add(vf a, vf b)
{
    return vaddq_f32(a, b);
}
LT_VECTOR vf v_sub(vf a, vf b)
{
    return vsubq_f32(a, b);
}
LT_VECTOR vf v_mul(vf a, vf b)
{
    return vmulq_f32(a, b);
}
LT_VECTOR vf v_div(vf a, vf b)
{
    return vdivq_f32(a, b);
}
LT_VECTOR vf v_fma(vf a, vf b, vf c)
{
    return vfmaq_f32(c, a, b);
}
LT_VECTOR vf v_fma_broadcast(const float *a, vf b, vf c)
{
    return v_fma(v_set1(*a), b, c);
}
LT_VECTOR vf v_fnma(vf a, vf b, vf c)
{
    return vfmsq_f32(c, a, b);
}
LT_VECTOR vf v_max(vf a, vf b)
{
    return vbslq_f32(vcgtq_f32(a, b), a, b);
}
LT_VECTOR vf v_max_nan(vf a, vf b)
{
    return vmaxq_f32(a, b);
}
LT_VECTOR vf v_abs(vf a)
{
    return vabsq_f32(a);
}
LT_VECTOR vf v_fraction(vf a)
{
    return vsubq_f32(a, vrndmq_f32(a));
}
LT_VECTOR vf v_ldexp(vf a, vf y)
{
    return vreinterpretq_f32_s32(vaddq_s32(vreinterpretq_s32_f32(a), vshlq_n_s32(vcvtmq_s32_f32(y), 23)));
}
LT_VECTOR vf v_ldexp_weight(vf a, vf y)
{
    return vbslq_f32(vcltq_f32(y, vdupq_n_f32(-100.0f)), vdupq_n_f32(0), v_ldexp(a, y));
}
LT_VECTOR vf v_select_gt(vf a, vf b, vf x, vf y)
{
    return vbslq_f32(vcgtq_f32(a, b), x, y);
}
LT_VECTOR vf v_keep_n(vf a, size_t n, vf rest)
{
    return vbslq_f32(v_mask(n), a, rest);
}

LT_VECTOR float v_sum(vf a)
{
    float32x2_t x = vadd_f32(vget_low_f32(a), vget_high_f32(a));
    return vget_lane_f32(vpadd_f32(x, x), 0);
}
LT_VECTOR float v_max_across(vf a)
{
    return vmaxvq_f32(a);
}

LT_VECTOR void v_transpose(vf r[LT_VL])
{
    float32x4x2_t a = vtrnq_f32(r[0], r[1]), b = vtrnq_f32(r[2], r[3]);
    r[0] = vcombine_f32(vget_low_f32(a.val[0]), vget_low_f32(b.val[0]));
    r[1] = vcombine_f32(vget_low_f32(a.val[1]), vget_low_f32(b.val[1]));
    r[2] = vcombine_f32(vget_high_f32(a.val[0]), vget_high_f32(b.val[0]));
    r[3] = vcombine_f32(vget_high_f32(a.val[1]), vget_high_f32(b.val[1]));
}

#ifdef __ARM_FEATURE_BF16_VECTOR_ARITHMETIC
#define LT_HAS_PAIRS

LT_VECTOR vf v_pairs(vf a, vf b)
{
    return vreinterpretq_f32_bf16(vcvtq_high_bf16_f32(vcvtq_low_bf16_f32(a), b));
}
LT_VECTOR vf v_zip(vf a, vf b)
{
    const uint16x4x2_t pairs = vzip_u16(vreinterpret_u16_bf16(vcvt_bf16_f32(a)), vreinterpret_u16_bf16(vcvt_bf16_f32(b)));
    return vreinterpretq_f32_u16(vcombine_u16(pairs.val[0], pairs.val[1]));
}
LT_VECTOR vf v_dot(vf a, vf b, vf c)
{
    return vbfdotq_f32(c, vreinterpretq_bf16_f32(a), vreinterpretq_bf16_f32(b));
}
LT_VECTOR vf v_dot_broadcast(const float *a, vf b, vf c)
{
    return v_dot(v_set1(*a), b, c);
}
#endif

#endif
