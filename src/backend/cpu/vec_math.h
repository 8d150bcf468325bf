/* Elementary functions over the vector vocabulary: polynomials found by weighted minimax fits in double precision.
 * A NaN comes out as a NaN everywhere: the checks of the results depend on it. */
#ifndef LT_BACKEND_CPU_VEC_MATH_H
#define LT_BACKEND_CPU_VEC_MATH_H

#include "format/config.h"

/* 2^f for 0 <= f < 1: relative error of the polynomial 2e-9, with its rounding 7e-8; exactly 1 at 0. */
LT_VECTOR vf v_exp2_fraction(vf f)
{
    vf p = v_set1(2.16129219e-4f);
    p = v_fma(p, f, v_set1(1.24678448e-3f));
    p = v_fma(p, f, v_set1(9.67545169e-3f));
    p = v_fma(p, f, v_set1(5.54852806e-2f));
    p = v_fma(p, f, v_set1(2.40229306e-1f));
    p = v_fma(p, f, v_set1(6.93147044e-1f));
    return v_fma(p, f, v_set1(1.0f));
}

/* 2^y, the weights of a softmax: y is at most 0, but for rounding. Below 2^-100 it is zero: such a weight cannot be seen beside
 * the largest one, which is 1, and its products would be subnormal, which are slow. */
LT_VECTOR vf v_exp2_weight(vf y)
{
    return v_ldexp_weight(v_exp2_fraction(v_fraction(y)), y);
}

/* e^x, relative error 2e-7 with fused multiply-add, 5e-7 without; x is clamped to [-87, 87]. n ln 2, n = ⌊x / ln 2⌋, is
 * subtracted in two parts, the first of which has few enough bits for an exact product. Rounding may leave the rest a little
 * outside of [0, ln 2): the polynomial bears that. */
LT_VECTOR vf v_exp(vf x)
{
    x = v_max(v_set1(-87.0f), x);
    x = v_select_gt(x, v_set1(87.0f), v_set1(87.0f), x);
    vf y = v_mul(x, v_set1(1.44269504f));
    vf n = v_sub(y, v_fraction(y));
    vf r = v_fnma(n, v_set1(0x1.62e4p-1f), x);
    r = v_fnma(n, v_set1(0x1.7f7d1cp-20f), r);
    return v_ldexp(v_exp2_fraction(v_mul(r, v_set1(1.44269504f))), n);
}

LT_VECTOR vf v_sigmoid(vf x)
{
    return v_div(v_set1(1.0f), v_add(v_set1(1.0f), v_exp(v_sub(v_zero(), x))));
}

/* tanh x: odd polynomial below 0.625, else 1 − 2 / (e^2x + 1); relative error 3e-7. */
LT_VECTOR vf v_tanh(vf x)
{
    vf a = v_abs(x), u = v_mul(x, x);
    vf p = v_set1(-5.70543130e-3f);
    p = v_fma(p, u, v_set1(2.06395396e-2f));
    p = v_fma(p, u, v_set1(-5.37398774e-2f));
    p = v_fma(p, u, v_set1(1.33314446e-1f));
    p = v_fma(p, u, v_set1(-3.33332821e-1f));
    vf small = v_fma(v_mul(p, u), x, x);
    vf large = v_sub(v_set1(1.0f), v_div(v_set1(2.0f), v_add(v_exp(v_add(a, a)), v_set1(1.0f))));
    large = v_select_gt(v_zero(), x, v_sub(v_zero(), large), large);
    return v_select_gt(a, v_set1(0.625f), large, small);
}

/* GELU(x) = x/2 (1 + erf(x/√2)), with erf(x/√2) = x P(t), t = 2 x²/5.4² − 1: a polynomial of degree 14 over |x| <= 5.4; beyond,
 * where erfc is below 7e-8, max(x, 0). Absolute error at most 1.5e-7 · max(1, |x|), all of it rounding but 3e-8: as the formula
 * evaluated in float32 with an exact erf. Horner in t keeps the coefficients small, so nothing cancels. */
LT_VECTOR vf v_gelu(vf x)
{
    vf t = v_fma(v_mul(x, x), v_set1(2.0f / (5.4f * 5.4f)), v_set1(-1.0f));
    vf p = v_set1(7.69470760e-4f);
    p = v_fma(p, t, v_set1(-2.04225723e-3f));
    p = v_fma(p, t, v_set1(1.79648376e-3f));
    p = v_fma(p, t, v_set1(-2.41338764e-3f));
    p = v_fma(p, t, v_set1(7.26654846e-3f));
    p = v_fma(p, t, v_set1(-1.33875292e-2f));
    p = v_fma(p, t, v_set1(1.93295497e-2f));
    p = v_fma(p, t, v_set1(-2.79483460e-2f));
    p = v_fma(p, t, v_set1(3.92831936e-2f));
    p = v_fma(p, t, v_set1(-5.14876954e-2f));
    p = v_fma(p, t, v_set1(6.42340258e-2f));
    p = v_fma(p, t, v_set1(-7.84141496e-2f));
    p = v_fma(p, t, v_set1(9.69991460e-2f));
    p = v_fma(p, t, v_set1(-1.30656093e-1f));
    p = v_fma(p, t, v_set1(2.61856228e-1f));
    vf half = v_mul(x, v_set1(0.5f));
    vf inside = v_fma(half, v_mul(x, p), half);
    return v_select_gt(v_abs(x), v_set1(5.4f), v_max(v_zero(), x), inside);
}

/* x/2 (1 + tanh(√(2/π) (x + 0.044715 x³))) = x · sigmoid(2 √(2/π) (x + 0.044715 x³)) */
LT_VECTOR vf v_gelu_tanh(vf x)
{
    vf cubic = v_fma(v_mul(v_mul(x, x), v_set1(0.044715f)), x, x);
    return v_mul(x, v_sigmoid(v_mul(cubic, v_set1(1.59576912f))));
}

/* `activation` is a constant where this is called, so that the switch disappears. */
LT_VECTOR vf v_activate(vf x, lt_activation activation)
{
    switch (activation) {
    case LT_ACT_NONE: return x;
    case LT_ACT_GELU: return v_gelu(x);
    case LT_ACT_GELU_TANH: return v_gelu_tanh(x);
    case LT_ACT_RELU: return v_max(v_zero(), x);
    case LT_ACT_SILU: return v_mul(x, v_sigmoid(x));
    case LT_ACT_TANH: return v_tanh(x);
    case LT_ACT_SIGMOID: return v_sigmoid(x);
    }
    return x;
}

#endif
