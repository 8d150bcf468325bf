/* Products with Q8_0 matrices: a joined operand's segments one by one, since each is a tensor with panels of its own; and gate
 * over up, where a few panels of the gate write y and those of up multiply it while it is near. */
#include "backend/cpu/cpu.h"

enum { GATED_PANELS = 2 };

/* Panels [begin, end) of one segment of `rows` outputs, of which the first is column `column` of the result. */
static void multiply(const lt_cpu_weight *weight, const lt_q8_kernels *kernels, const lt_linear *out, const void *x, int segment,
                     size_t rows, size_t column, size_t begin, size_t end)
{
    lt_q8_linear a = { .out = *out, .x = x, .quants = weight->data[segment] };
    a.scales = a.quants + lt_q8_0_scales_offset(rows, weight->source->cols);
    a.out.n = rows;
    a.out.panel_begin = begin;
    a.out.panel_end = end;
    a.out.y += column;
    if (a.out.bias) a.out.bias += column;
    if (a.out.gate) a.out.gate += column;
    if (a.out.residual) a.out.residual += column;
    kernels->linear(&a);
}

void lt_cpu_q8_linear(const lt_cpu_weight *weight, const lt_q8_kernels *kernels, const lt_linear *out, const void *x,
                      size_t begin, size_t end)
{
    const lt_weight *source = weight->source;
    if (weight->is_glu) {
        lt_linear gate = *out, up = *out;
        gate.residual = NULL;
        up.activation = LT_ACT_NONE;
        up.gate = out->y;
        up.ldg = out->ldy;
        for (; begin < end; begin += GATED_PANELS) {
            const size_t last = end - begin < GATED_PANELS ? end : begin + GATED_PANELS;
            multiply(weight, kernels, &gate, x, 0, source->rows / 2, 0, begin, last);
            multiply(weight, kernels, &up, x, 1, source->rows / 2, 0, begin, last);
        }
        return;
    }
    size_t first = 0, column = 0;
    for (int s = 0; s < source->n_segments && first < end; s++) {
        const size_t rows = lt_segment_rows(&source->segments[s], source->cols), panels = lt_q8_0_panels(rows);
        const size_t from = begin > first ? begin - first : 0, to = end - first < panels ? end - first : panels;
        if (from < to) multiply(weight, kernels, out, x, s, rows, column, from, to);
        first += panels;
        column += rows;
    }
}
