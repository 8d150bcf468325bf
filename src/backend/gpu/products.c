/* Linear operations: few rows by kernels that join in what surrounds them, many by the device's library, the rest by the
 * template's tiles. */
#include "backend/gpu/run.h"

enum { FEW_SIMDS = 8, FEW_BUSY = 4096 /* simdgroups that keep a large device at work */ };

/* Consecutive rows of W: all of an uploaded one, or those of a mapped segment. They make columns [column, column + n) of y. */
typedef struct piece {
    lt_gpu_ref ref;   /* of W's first row; of the whole matrix in Q8_0 */
    size_t row, rows; /* the first one, and those of the whole matrix */
    size_t column, n;
} piece;

/* Rows [first, first + n) of W in pieces. */
static int pieces_of(const run *r, int weight, size_t first, size_t n, piece pieces[LT_MAX_SEGMENTS])
{
    const lt_gpu_weight *w = &r->p->weights[weight];
    const lt_weight *source = &r->plan->weights[weight];
    bool mapped = w->pieces[0].memory != NULL;
    size_t begin = 0, end, last = first + n;
    int count = 0;
    for (int s = 0; s < (mapped ? source->n_segments : 1); s++, begin = end) {
        end = mapped ? begin + lt_segment_rows(&source->segments[s], source->cols) : source->rows;
        size_t low = begin > first ? begin : first, high = end < last ? end : last;
        if (low >= high) continue;
        piece *p = &pieces[count++];
        *p = (piece){ mapped ? w->pieces[s] : w->ref, low - begin, end - begin, low - first, high - low };
        if (w->type == LT_GPU_Q8_0) continue;
        p->ref = lt_gpu_at(p->ref, p->row * source->cols * lt_gpu_type_size(w->type));
        p->row = 0;
    }
    return count;
}

/* ------------------------------------------------------------------ tiles */

/* A product with rows [first, first + a->n) of W. */
static lattice_status product_of_rows(const run *r, const lt_op *op, lt_gpu_kernel kernel, size_t tile,
                                      const lt_gpu_ref operands[5], const gemm_args *args, size_t first)
{
    piece pieces[LT_MAX_SEGMENTS];
    int n = pieces_of(r, op->weight[0], first, args->n, pieces);
    for (int i = 0; i < n; i++) {
        const piece *p = &pieces[i];
        gemm_args a = *args;
        a.n = u32(p->n);
        a.w_row = u32(p->row);
        a.w_rows = u32(p->rows);
        const lt_gpu_ref buffers[] = {
            operands[0],
            p->ref,
            a.has_bias ? lt_gpu_at(operands[2], p->column * sizeof(float)) : operands[2],
            a.has_residual ? lt_gpu_at(operands[3], p->column * lt_gpu_type_size((lt_gpu_type)a.residual_type)) : operands[3],
            lt_gpu_at(operands[4], p->column * lt_gpu_type_size((lt_gpu_type)a.y_type)),
        };
        LT_TRY(lt_gpu_launch_kernel(r, kernel, buffers, 5, &a, sizeof a, lt_gpu_ceil(a.m, tile), lt_gpu_ceil(a.n, 64), 256));
    }
    return LATTICE_OK;
}

/* y = act(x Wᵀ + b) + residual. */
static lattice_status tiled_product(const run *r, const lt_op *op, size_t m, view x, view y, const view *residual)
{
    const lt_gpu_weight *w = &r->p->weights[op->weight[0]];
    size_t n = r->plan->values[op->out[0]].width, k = r->plan->weights[op->weight[0]].cols;
    lt_gpu_kernel kernel = m <= 8 ? LT_GPU_gemm_r8 : m <= 64 ? LT_GPU_gemm_r16 : LT_GPU_gemm_r32;
    size_t rows = m <= 8 ? 8 : m <= 64 ? 16 : 32;
    gemm_args a = {
        .m = u32(m),
        .n = u32(n),
        .k = u32(k),
        .ld_x = u32(x.ld),
        .ld_residual = residual ? u32(residual->ld) : 0,
        .ld_y = u32(y.ld),
        .x_type = x.type,
        .w_type = w->type,
        .residual_type = residual ? residual->type : 0,
        .y_type = y.type,
        .has_bias = op->weight[1] != LT_NONE,
        .has_residual = residual && !op->glu,
        .activation = op->activation,
    };
    lt_gpu_ref buffers[] = { x.ref, w->ref, weight_ref(r, op->weight[1]), residual ? residual->ref : x.ref, y.ref };
    LT_TRY(product_of_rows(r, op, kernel, rows, buffers, &a, 0));
    if (!op->glu) return LATTICE_OK;
    /* The gate's half has written y; up's half multiplies it. */
    a.activation = LT_ACT_NONE;
    a.has_gate = 1;
    a.has_residual = residual != NULL;
    return product_of_rows(r, op, kernel, rows, buffers, &a, n);
}

/* ------------------------------------------------------------------ the device's library */

/* Rows [first, first + n) of W as numbers of `type`, into scratch. */
static lattice_status unpack_weight(const run *r, int weight, lt_gpu_type type, size_t first, size_t n, lt_gpu_ref to)
{
    const lt_gpu_weight *w = &r->p->weights[weight];
    const lt_weight *source = &r->plan->weights[weight];
    if (w->type != LT_GPU_Q8_0) {
        view from = { lt_gpu_at(w->ref, first * source->cols * lt_gpu_type_size(w->type)), source->cols, w->type };
        return lt_gpu_convert_rows(r, from, NULL, (view){ to, source->cols, type }, n, source->cols);
    }
    unpack_args a = {
        .rows = u32(n), .cols = u32(source->cols), .w_row = u32(first), .w_rows = u32(source->rows), .y_type = type
    };
    return LAUNCH(unpack_q8, a, lt_gpu_ceil(n, 16), lt_gpu_ceil(source->cols, THREADS), THREADS, w->ref, to);
}

/* A copy of the whole of W as numbers of `type`, which all products are made in: it is there or is made, or there is no room for
 * one. None is made while a run is recorded: what fills it would only be recorded, too. */
static bool unpacked_copy(const run *r, int weight, lt_gpu_type type)
{
    lt_program *p = r->p;
    lt_gpu_weight *w = &p->weights[weight];
    const lt_weight *source = &r->plan->weights[weight];
    const size_t size = source->rows * source->cols * lt_gpu_type_size(type);
    if (w->unpacked) return true;
    if (p->is_recording || size > p->most_unpacked_bytes - p->unpacked_bytes) return false;
    if (r->device->allocate(r->device, size, &w->unpacked, NULL) != LATTICE_OK) {
        w->unpacked = NULL;
        p->most_unpacked_bytes = p->unpacked_bytes;
        return false;
    }
    p->unpacked_bytes += size;
    if (unpack_weight(r, weight, type, 0, source->rows, (lt_gpu_ref){ w->unpacked, 0 }) == LATTICE_OK) return true;
    r->device->release(r->device, w->unpacked);
    w->unpacked = NULL;
    p->unpacked_bytes -= size;
    return false;
}

/* The library multiplies numbers of one type: of a W of another one there is a copy, or it is unpacked into scratch, as many rows
 * at a time as fit there, which are then read from the cache. */
static lattice_status multiply(const run *r, const lt_op *op, const lt_gpu_product *product)
{
    lt_gpu_device *d = r->device;
    if (r->p->weights[op->weight[0]].type == product->type) return d->multiply(d, product, r->err);
    if (unpacked_copy(r, op->weight[0], product->type)) {
        lt_gpu_product whole = *product;
        whole.w = (lt_gpu_ref){ r->p->weights[op->weight[0]].unpacked, 0 };
        return d->multiply(d, &whole, r->err);
    }
    size_t size = lt_gpu_type_size(product->y_type), row_bytes = product->k * lt_gpu_type_size(product->type);
    size_t rows = r->p->scratch_weight_bytes / row_bytes / 16 * 16;
    for (size_t first = 0; first < product->n; first += rows) {
        lt_gpu_product part = *product;
        part.n = product->n - first < rows ? product->n - first : rows;
        part.w = scratch(r, r->weight_offset);
        part.y = lt_gpu_at(product->y, first * size);
        if (part.residual.memory) part.residual = lt_gpu_at(product->residual, first * size);
        LT_TRY(unpack_weight(r, op->weight[0], product->type, first, part.n, part.w));
        LT_TRY(d->multiply(d, &part, r->err));
    }
    return LATTICE_OK;
}

static lattice_status library_product(const run *r, const lt_op *op, size_t m, view x, view y, const view *residual, bool *done)
{
    lt_gpu_device *d = r->device;
    const lt_weight *source = &r->plan->weights[op->weight[0]];
    size_t width = r->plan->values[op->out[0]].width;
    *done = false;
    if (!d->multiply || m <= LT_GPU_FEW_ROWS || (op->glu && residual)) return LATTICE_OK;
    bool plain = op->weight[1] == LT_NONE && op->activation == LT_ACT_NONE && !op->glu;
    bool joins = residual && plain && residual->type == y.type;
    view to = op->glu ? (view){ scratch(r, r->glu_offset), lt_gpu_round(2 * width, 16), y.type } : y;
    lt_gpu_product product = {
        .m = m,
        .n = source->rows,
        .k = source->cols,
        .x = x.ref,
        .w = r->p->weights[op->weight[0]].ref,
        .y = to.ref,
        .residual = joins ? residual->ref : (lt_gpu_ref){ NULL, 0 },
        .ld_x = x.ld,
        .ld_y = to.ld,
        .ld_residual = joins ? residual->ld : 0,
        .type = x.type,
        .y_type = to.type,
    };
    if (!d->multiplies(d, &product)) return LATTICE_OK;
    *done = true;
    LT_TRY(multiply(r, op, &product));
    if (op->glu) {
        glu_args a = { .rows = u32(m),
                       .width = u32(width),
                       .ld_x = u32(to.ld),
                       .ld_y = u32(y.ld),
                       .x_type = to.type,
                       .y_type = y.type,
                       .activation = op->activation };
        return LAUNCH(glu_rows, a, m, lt_gpu_ceil(width, THREADS), THREADS, to.ref, y.ref);
    }
    if (plain && (joins || !residual)) return LATTICE_OK;
    activate_args a = {
        .rows = u32(m),
        .width = u32(width),
        .ld_x = u32(y.ld),
        .ld_residual = residual ? u32(residual->ld) : 0,
        .ld_y = u32(y.ld),
        .x_type = y.type,
        .residual_type = residual ? residual->type : 0,
        .y_type = y.type,
        .has_bias = op->weight[1] != LT_NONE,
        .has_residual = residual != NULL,
        .activation = op->activation,
    };
    return LAUNCH(activate_rows, a, m, lt_gpu_ceil(width, THREADS), THREADS, y.ref, weight_ref(r, op->weight[1]),
                  residual ? residual->ref : y.ref, y.ref);
}

/* ------------------------------------------------------------------ few rows */

/* Simdgroups that share a row of W, so that all of a device is at work although there are `items` rows, and `parts` pieces of k.
 */
static size_t split_of(size_t items, size_t parts, size_t most)
{
    size_t split = 1;
    while (split < most && items * split < FEW_BUSY && parts >= 4 * split) split *= 2;
    return split;
}

/* One launch: rows `w` of W, with rows `up` for gated products. */
static lattice_status launch_few(const run *r, const few_args *args, const piece *w, const piece *up, lt_gpu_type type,
                                 const lt_gpu_ref operands[5])
{
    static const lt_gpu_kernel kernels[2][2] = { { LT_GPU_few_rows_1, LT_GPU_few_rows_8 },
                                                 { LT_GPU_few_rows_q8_1, LT_GPU_few_rows_q8_8 } };
    few_args a = *args;
    bool packed = type == LT_GPU_Q8_0;
    size_t items = packed ? lt_gpu_ceil(w->n, 16) * (a.has_glu ? 2 : 1) : a.has_glu ? w->n : lt_gpu_ceil(w->n, 2);
    size_t split = split_of(items, packed ? a.k / 64 : a.k / 128, packed && a.has_glu ? FEW_SIMDS / 2 : FEW_SIMDS);
    a.n = u32(w->n);
    a.split = u32(split);
    a.w_row = u32(w->row);
    a.w_rows = u32(w->rows);
    a.up_row = u32(up->row);
    const lt_gpu_ref buffers[] = {
        operands[0],
        w->ref,
        up->ref,
        a.has_bias ? lt_gpu_at(operands[1], w->column * sizeof(float)) : operands[1],
        operands[2],
        a.has_residual ? lt_gpu_at(operands[3], w->column * lt_gpu_type_size((lt_gpu_type)a.residual_type)) : operands[3],
        lt_gpu_at(operands[4], w->column * lt_gpu_type_size((lt_gpu_type)a.y_type)),
    };
    return lt_gpu_launch_kernel(r, kernels[packed][a.m > 1], buffers, 7, &a, sizeof a, lt_gpu_ceil(items * split, FEW_SIMDS), 1,
                                FEW_SIMDS * 32);
}

/* Whether the kernels can read these rows of W: 16 bytes at a time, whole panels. */
static bool admits_piece(const piece *p, lt_gpu_type type)
{
    return p->ref.offset % 16 == 0 && (type != LT_GPU_Q8_0 || p->row % 16 == 0);
}

lattice_status lt_gpu_few_rows(const run *r, const lt_op *norm, const lt_op *op, bool *done)
{
    const lt_gpu_weight *w = &r->p->weights[op->weight[0]];
    view x = operand_view(r, norm ? &norm->in[0] : &op->in[0]), y = value_view(r, op->out[0]), residual = y;
    bool has_residual = op->in[1].value != LT_NONE;
    size_t m = r->rows[r->plan->values[op->out[0]].rows], n = r->plan->values[op->out[0]].width;
    size_t k = r->plan->weights[op->weight[0]].cols;
    bool own = r->device->few && w->type == LT_GPU_BF16 && operand_view(r, &op->in[0]).type == LT_GPU_BF16 &&
               r->device->few(r->device, m, n, k, op->glu);
    *done = false;
    if (m > LT_GPU_FEW_ROWS || (own && norm) || (w->type != LT_GPU_BF16 && w->type != LT_GPU_Q8_0)) return LATTICE_OK;
    if (has_residual) residual = operand_view(r, &op->in[1]);
    few_args a = {
        .m = u32(m),
        .k = u32(k),
        .ld_x = u32(x.ld),
        .ld_residual = u32(residual.ld),
        .ld_y = u32(y.ld),
        .x_type = x.type,
        .residual_type = residual.type,
        .y_type = y.type,
        .has_norm = norm != NULL,
        .has_glu = op->glu,
        .has_bias = op->weight[1] != LT_NONE,
        .has_residual = has_residual,
        .activation = op->activation,
        .eps = norm ? norm->eps : 0,
    };
    piece low[LT_MAX_SEGMENTS], high[LT_MAX_SEGMENTS];
    int n_low = pieces_of(r, op->weight[0], 0, n, low), n_high = op->glu ? pieces_of(r, op->weight[0], n, n, high) : 0;
    bool fits = a.k % 8 == 0 && x.ld % 8 == 0 && x.ref.offset % 16 == 0;
    for (int i = 0; i < n_low; i++) fits = fits && admits_piece(&low[i], w->type);
    if (op->glu) /* gate and up alike; of panels, of matrices of equal size */
        fits = fits && n_low == 1 && n_high == 1 && admits_piece(&high[0], w->type) && low[0].rows == high[0].rows;
    if (!fits) return LATTICE_OK;
    *done = true;
    const lt_gpu_ref operands[5] = { x.ref, weight_ref(r, op->weight[1]), weight_ref(r, norm ? norm->weight[0] : LT_NONE),
                                     residual.ref, y.ref };
    for (int i = 0; i < n_low && m > 0; i++) LT_TRY(launch_few(r, &a, &low[i], op->glu ? &high[0] : &low[i], w->type, operands));
    return LATTICE_OK;
}

lattice_status lt_gpu_linear(const run *r, const lt_op *op)
{
    view x = operand_view(r, &op->in[0]), y = value_view(r, op->out[0]), residual = y;
    bool has_residual = op->in[1].value != LT_NONE, done;
    if (has_residual) residual = operand_view(r, &op->in[1]);
    size_t m = r->rows[r->plan->values[op->out[0]].rows];
    if (m == 0) return LATTICE_OK;
    LT_TRY(lt_gpu_few_rows(r, NULL, op, &done));
    if (done) return LATTICE_OK;
    LT_TRY(library_product(r, op, m, x, y, has_residual ? &residual : NULL, &done));
    return done ? LATTICE_OK : tiled_product(r, op, m, x, y, has_residual ? &residual : NULL);
}
