/* What follows the sums of a product in int8 by rows, over the vector vocabulary and finish.h, which are included before. */
#ifndef LT_BACKEND_CPU_INT8_FINISH_H
#define LT_BACKEND_CPU_INT8_FINISH_H

/* GELU as v_gelu, but a polynomial of degree 7 over |x| <= 4: an error of 1.3e-4, a hundredth of the step in which the next
 * product's rows are rounded, for half the time. */
LT_VECTOR vf int8_gelu(vf x)
{
    const vf t = v_fma(v_mul(x, x), v_set1(2.0f / 16), v_set1(-1.0f));
    vf p = v_set1(-5.46052326e-3f);
    p = v_fma(p, t, v_set1(1.64236543e-2f));
    p = v_fma(p, t, v_set1(-2.65163171e-2f));
    p = v_fma(p, t, v_set1(4.32421551e-2f));
    p = v_fma(p, t, v_set1(-7.29922315e-2f));
    p = v_fma(p, t, v_set1(1.12101964e-1f));
    p = v_fma(p, t, v_set1(-1.68714796e-1f));
    p = v_fma(p, t, v_set1(3.51895489e-1f));
    const vf half = v_mul(x, v_set1(0.5f));
    return v_select_gt(v_abs(x), v_set1(4.0f), v_max(v_zero(), x), v_fma(half, v_mul(x, p), half));
}

/* y = gelu(c + bias), the inner product of an encoder; all else is finish_tile's. */
static void int8_finish(const lt_linear *a, const float *c, size_t row, size_t rows, size_t col, size_t cols)
{
    if (a->activation != LT_ACT_GELU || !a->bias || a->gate || a->residual) {
        finish_tile(a, c, row, rows, col, cols);
        return;
    }
    const float *bias = a->bias + col;
    for (size_t i = 0; i < rows; i++, c += LT_NR) {
        float *y = a->y + (row + i) * a->ldy + col;
        size_t j = 0;
        for (; j + LT_VL <= cols; j += LT_VL) v_store(y + j, int8_gelu(v_add(v_load(c + j), v_load(bias + j))));
        if (j < cols) v_store_n(y + j, int8_gelu(v_add(v_load(c + j), v_load_n(bias + j, cols - j))), cols - j);
    }
}

#endif
