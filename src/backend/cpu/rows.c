/* Operations of which every row is its own: embedding, norms, products, gates. Each runs on a part: some rows and, of a product,
 * some panels. */
#include "backend/cpu/run.h"

static void embed(const run *r, const lt_op *op, const frame *f, part p)
{
    const lt_batch *batch = r->batch;
    const lt_cpu_weight *tables[3] = { 0 };
    for (int i = 0; i < 3; i++) {
        if (op->weight[i] != LT_NONE) tables[i] = &r->program->weights.list[op->weight[i]];
    }
    view out = view_of(r, f, op->out[0], p.begin);
    for (size_t row = p.begin; row < p.end; row++, out.data += out.ld) {
        size_t index[3] = {
            batch->ids[row],
            batch->positions[row] + op->position_offset,
            batch->type_ids && !op->type_zero ? batch->type_ids[row] : 0,
        };
        for (int i = 0; i < 3; i++) {
            if (tables[i]) lt_cpu_read_row(tables[i], r->kernels, index[i], i > 0, out.data);
        }
    }
}

static void add_norm(const run *r, const lt_op *op, const frame *f, part p)
{
    view x = view_of(r, f, op->in[0].value, p.begin);
    lt_norm args = { .x = x.data + op->in[0].column, .ldx = x.ld, .m = p.end - p.begin, .eps = op->eps };
    if (op->in[1].value != LT_NONE) {
        view residual = view_of(r, f, op->in[1].value, p.begin);
        args.residual = residual.data + op->in[1].column;
        args.ldr = residual.ld;
    }
    if (op->out[1] != LT_NONE) {
        view sum = view_of(r, f, op->out[1], p.begin);
        args.n = r->plan->values[op->out[1]].width;
        args.sum = sum.data;
        args.lds = sum.ld;
    }
    if (op->out[0] != LT_NONE) {
        view y = view_of(r, f, op->out[0], p.begin);
        args.n = r->plan->values[op->out[0]].width;
        args.y = y.data;
        args.ldy = y.ld;
        args.gain = r->program->weights.list[op->weight[0]].vector;
        if (op->weight[1] != LT_NONE) args.bias = r->program->weights.list[op->weight[1]].vector;
    }
    r->kernels->norm(&args);
}

static void qk_norm_rope(const run *r, const lt_op *op, const frame *f, part p)
{
    view x = view_of(r, f, op->out[0], p.begin);
    for (int i = 0; i < 2; i++) {
        lt_norm_rope args = {
            .x = x.data + op->in[i].column,
            .ldx = x.ld,
            .head_stride = op->in[i].head_stride,
            .m = p.end - p.begin,
            .n_heads = i == 0 ? op->n_heads : op->n_kv_heads,
            .head_dim = op->head_dim,
            .rotary_dim = op->rotary_dim,
            .gain = r->program->weights.list[op->weight[i]].vector,
            .eps = op->eps,
            .cos = lt_cpu_cosines(r->program),
            .sin = lt_cpu_sines(r->program),
            .positions = r->batch->positions + p.begin,
        };
        r->kernels->norm_rope(&args);
    }
}

/* A product by panel `index` of a weight, for columns [panel_begin, panel_begin + 1). Of what is packed, or widened, when
 * touched, few rows are multiplied as it is. What the next panel is made from is fetched during the product, else that would wait
 * for memory most of its time. */
static void panel_product(const run *r, const lt_cpu_weight *w, const frame *f, size_t index, lt_linear *args)
{
    const bool few = args->m <= LT_FEW_ROWS, is_packed = w->is_packed && w->first_item + index < r->items;
    const size_t floats = lt_cpu_panel_floats(w, r->kernels);
    float *panel = panel_scratch(r, f->thread);
    args->panels = is_packed ? w->panels + index * floats : panel;
    if (is_packed && w->by_pairs) {
        if (few) {
            r->kernels->linear_by_pairs(args);
            return;
        }
        args->next = args->panels + floats;
        args->next_size = index + 1 < w->n_panels ? floats * sizeof(float) : 0;
        r->kernels->widen_pairs(args->panels, args->k, panel);
        args->panels = panel;
    } else if (!is_packed) {
        args->w = few ? lt_cpu_panel_rows(w, r->kernels, index) : NULL;
        if (args->w) {
            args->dtype = w->source->dtype;
            args->ldw = w->source->cols;
            r->kernels->linear_few(args);
            return;
        }
        lt_cpu_pack_panel(w, r->kernels, index, panel, gather_scratch(r, f->thread));
        if (index + 1 < w->n_panels) args->next = lt_cpu_panel_bytes(w, r->kernels, index + 1, &args->next_size);
    }
    r->kernels->linear(args);
}

/* Columns of panels [panel_begin, panel_end) of a product whose W is gate over up: a panel of the gate writes y, the same panel
 * of up multiplies it, while it is in the nearest cache. */
static void gated_linear(const run *r, const lt_op *op, const frame *f, part p, lt_linear *args)
{
    const lt_cpu_weight *w = &r->program->weights.list[op->weight[0]];
    const float *residual = args->residual;
    args->n = w->source->rows / 2;
    for (size_t i = p.panel_begin; i < p.panel_end; i++) {
        args->panel_begin = i;
        args->panel_end = i + 1;
        for (size_t up = 0; up < 2; up++) {
            args->activation = up ? LT_ACT_NONE : op->activation;
            args->gate = up ? args->y : NULL;
            args->ldg = args->ldy;
            args->residual = up ? residual : NULL;
            panel_product(r, w, f, 2 * i + up, args);
        }
    }
}

static void linear(const run *r, const lt_op *op, const frame *f, part p)
{
    const lt_cpu_weight *w = &r->program->weights.list[op->weight[0]];
    size_t k = w->source->cols;
    view x = view_of(r, f, op->in[0].value, p.begin), y = view_of(r, f, op->out[0], p.begin);
    lt_linear args = {
        .x = x.data + op->in[0].column,
        .ldx = x.ld,
        .m = p.end - p.begin,
        .k = k,
        .n = w->source->rows,
        .activation = op->activation,
        .y = y.data,
        .ldy = y.ld,
        .self_fetching = r->program->weights.self_fetching,
    };
    if (op->weight[1] != LT_NONE) args.bias = r->program->weights.list[op->weight[1]].vector;
    if (op->in[1].value != LT_NONE) {
        view residual = view_of(r, f, op->in[1].value, p.begin);
        args.residual = residual.data + op->in[1].column;
        args.ldr = residual.ld;
    }
    if (w->is_bytes) {
        void *quantised = rounded_scratch(r, f->thread);
        if (!p.rounded) lt_cpu_q8_quantize(w, r->program->q8, &args, quantised);
        lt_cpu_q8_linear(w, r->program->q8, &args, quantised, p.panel_begin, p.panel_end);
        return;
    }
    if (r->kernels->round_rows) {
        float *rounded = rounded_scratch(r, f->thread);
        size_t ld = lt_cpu_leading(lt_panel_rows(r->kernels, k));
        if (!p.rounded) r->kernels->round_rows(args.x, args.ldx, args.m, k, rounded, ld);
        args.x = rounded;
        args.ldx = ld;
    }
    if (w->is_glu) {
        gated_linear(r, op, f, p, &args);
        return;
    }
    if (w->panels && !w->by_pairs) {
        args.panels = w->panels + p.panel_begin * lt_cpu_panel_floats(w, r->kernels);
        args.panel_begin = p.panel_begin;
        args.panel_end = p.panel_end;
        r->kernels->linear(&args);
        return;
    }
    for (size_t i = p.panel_begin; i < p.panel_end; i++) {
        args.panel_begin = i;
        args.panel_end = i + 1;
        panel_product(r, w, f, i, &args);
    }
}

static void gated_norm(const run *r, const lt_op *op, const frame *f, part p)
{
    view x = view_of(r, f, op->in[0].value, p.begin), z = view_of(r, f, op->in[1].value, p.begin);
    view y = view_of(r, f, op->out[0], p.begin);
    lt_gated_norm args = {
        .x = x.data + op->in[0].column,
        .ldx = x.ld,
        .z = z.data + op->in[1].column,
        .ldz = z.ld,
        .m = p.end - p.begin,
        .n_heads = op->n_heads,
        .head_dim = op->head_dim,
        .gain = r->program->weights.list[op->weight[0]].vector,
        .eps = op->eps,
        .y = y.data,
        .ldy = y.ld,
    };
    r->kernels->gated_norm(&args);
}

static void gate(const run *r, const lt_op *op, const frame *f, part p)
{
    view x = view_of(r, f, op->in[0].value, p.begin), z = view_of(r, f, op->in[1].value, p.begin);
    view y = view_of(r, f, op->out[0], p.begin);
    for (size_t row = p.begin; row < p.end; row++, x.data += x.ld, z.data += z.ld, y.data += y.ld) {
        for (size_t head = 0; head < op->n_heads; head++) {
            r->kernels->gate(x.data + op->in[0].column + head * op->in[0].head_stride,
                             z.data + op->in[1].column + head * op->in[1].head_stride, op->head_dim,
                             y.data + head * op->head_dim);
        }
    }
}

static void select_rows(const run *r, const lt_op *op, const frame *f, part p)
{
    size_t width = r->plan->values[op->out[0]].width;
    view out = view_of(r, f, op->out[0], p.begin);
    for (size_t row = p.begin; row < p.end; row++, out.data += out.ld) {
        view in = view_of(r, f, op->in[0].value, r->batch->out_rows[row]);
        memcpy(out.data, in.data + op->in[0].column, width * sizeof(float));
    }
}

/* Copies columns [begin, end) of what the op has just written into the trace. */
static void trace(const run *r, const lt_op *op, const frame *f, part p, size_t begin, size_t end)
{
    size_t width = r->plan->values[op->out[0]].width;
    float *to = r->batch->trace + (size_t)(op->trace - 1) * r->batch->n_tokens * width;
    view from = view_of(r, f, op->out[0], p.begin);
    for (size_t row = p.begin; row < p.end; row++, from.data += from.ld) {
        memcpy(to + row * width + begin, from.data + begin, (end - begin) * sizeof(float));
    }
}

size_t lt_cpu_panels_of(const run *r, const lt_op *op)
{
    if (op->code != LT_OP_LINEAR) return 0;
    return lt_cpu_result_panels(&r->program->weights.list[op->weight[0]]);
}

void lt_cpu_row_op(const run *r, const lt_op *op, const frame *f, part p)
{
    if (p.begin >= p.end) return;
    switch (op->code) {
    case LT_OP_EMBED: embed(r, op, f, p); break;
    case LT_OP_ADD_NORM: add_norm(r, op, f, p); break;
    case LT_OP_LINEAR: linear(r, op, f, p); break;
    case LT_OP_QK_NORM_ROPE: qk_norm_rope(r, op, f, p); break;
    case LT_OP_SELECT: select_rows(r, op, f, p); break;
    case LT_OP_GATED_NORM: gated_norm(r, op, f, p); break;
    case LT_OP_GATE: gate(r, op, f, p); break;
    case LT_OP_ATTENTION:
    case LT_OP_CONV:
    case LT_OP_GATED_DELTA:
    case LT_OP_POOL:
    case LT_OP_COUNT: break;
    }
    if (op->trace > 0 && r->batch->trace) {
        size_t begin = 0, end = r->plan->values[op->out[0]].width;
        if (op->code == LT_OP_LINEAR) {
            const lt_cpu_weight *w = &r->program->weights.list[op->weight[0]];
            begin = lt_cpu_panel_column(w, r->kernels, p.panel_begin);
            end = lt_cpu_panel_column(w, r->kernels, p.panel_end);
        }
        trace(r, op, f, p, begin, end);
    }
}
