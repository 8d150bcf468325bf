/* What follows the sums of a product: bias, activation, gate, residual. For rows of LT_NR sums, `cols` of which are columns of y.
 */
#ifndef LT_BACKEND_CPU_FINISH_H
#define LT_BACKEND_CPU_FINISH_H

/* y = act(c + bias) · gate + residual for one tile of `cols` columns; `activation` and `whole` are constants where this is
 * called. */
LT_VECTOR void finish(const lt_linear *a, const float *c, size_t row, size_t rows, size_t col, size_t cols,
                      lt_activation activation, bool whole)
{
    for (size_t i = 0; i < rows; i++, c += LT_NR) {
        float *y = a->y + (row + i) * a->ldy + col;
        const float *gate = a->gate ? a->gate + (row + i) * a->ldg + col : NULL;
        const float *residual = a->residual ? a->residual + (row + i) * a->ldr + col : NULL;
        LT_UNROLL
        for (size_t j = 0; j < LT_NR; j += LT_VL) {
            if (!whole && j >= cols) break;
            const size_t n = whole ? LT_VL : min_size(cols - j, LT_VL);
            const bool full = n == LT_VL;
            vf v = v_load(c + j);
            if (a->bias) v = v_add(v, full ? v_load(a->bias + col + j) : v_load_n(a->bias + col + j, n));
            v = v_activate(v, activation);
            if (gate) v = v_mul(v, full ? v_load(gate + j) : v_load_n(gate + j, n));
            if (residual) v = v_add(v, full ? v_load(residual + j) : v_load_n(residual + j, n));
            if (full)
                v_store(y + j, v);
            else
                v_store_n(y + j, v, n);
        }
    }
}

static void finish_tile(const lt_linear *a, const float *c, size_t row, size_t rows, size_t col, size_t cols)
{
    // clang-format off
#define FINISH(activation)                                                                                                        \
    case activation:                                                                                                              \
        if (cols == LT_NR) finish(a, c, row, rows, col, LT_NR, activation, true);                                                 \
        else finish(a, c, row, rows, col, cols, activation, false);                                                               \
        break;
    switch (a->activation) {
    FINISH(LT_ACT_NONE)
    FINISH(LT_ACT_GELU)
    FINISH(LT_ACT_GELU_TANH)
    FINISH(LT_ACT_RELU)
    FINISH(LT_ACT_SILU)
    FINISH(LT_ACT_TANH)
    FINISH(LT_ACT_SIGMOID)
    }
#undef FINISH
    // clang-format on
}

#endif
