/* Products with matrices of bytes, Q8_0 or int8 by rows: a joined operand's segments one by one, since each is a tensor with
 * panels of its own; and gate over up, where a few panels of the gate write y and those of up multiply it while it is near. */
#include "backend/cpu/cpu.h"

/* Of few rows y stays near for longer, and W, which is all that they wait for, is read in longer runs. */
enum { GATED_PANELS = 2, FEW_GATED_PANELS = 32 };

/* Panels [begin, end) of one segment of `rows` outputs, of which the first is column `column` of the result. */
static void multiply(const lt_cpu_weight *weight, const lt_q8_kernels *kernels, const lt_linear *whole, const void *x,
                     int segment, size_t rows, size_t column, size_t begin, size_t end)
{
    const size_t cols = weight->source->cols;
    const uint8_t *data = lt_cpu_byte_segment(weight, segment);
    lt_linear out = *whole;
    out.n = rows;
    out.panel_begin = begin;
    out.panel_end = end;
    out.y += column;
    if (out.bias) out.bias += column;
    if (out.gate) out.gate += column;
    if (out.residual) out.residual += column;
    if (weight->by_rows) {
        const unsigned char *scales = data + lt_int8_scales_offset(rows, cols), *sums = data + lt_int8_sums_offset(rows, cols);
        kernels->linear_rows(&(lt_int8_linear){ .out = out, .x = x, .quants = data, .scales = scales, .sums = sums });
    } else {
        kernels->linear(
            &(lt_q8_linear){ .out = out, .x = x, .quants = data, .scales = data + lt_q8_0_scales_offset(rows, cols) });
    }
}

void lt_cpu_q8_quantize(const lt_cpu_weight *weight, const lt_q8_kernels *kernels, const lt_linear *a, void *out)
{
    const lt_weight *source = weight->source;
    if (!weight->by_rows) {
        kernels->quantize(a->x, a->ldx, a->m, a->k, out);
        return;
    }
    const uint8_t *inputs = NULL; /* those of all segments are alike; what is packed has none */
    if (!weight->is_packed) inputs = weight->data[0] + lt_int8_inputs_offset(source->segments[0].tensor->shape[0], source->cols);
    kernels->quantize_rows(a->x, a->ldx, a->m, a->k, inputs, out);
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
        const size_t run = out->m <= LT_FEW_ROWS ? FEW_GATED_PANELS : GATED_PANELS;
        for (; begin < end; begin += run) {
            const size_t last = end - begin < run ? end : begin + run;
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
