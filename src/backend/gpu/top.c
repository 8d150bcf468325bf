/* The likeliest tokens of rows of logits, found on the device, and the rows themselves, which stay there until they are asked
 * for. */
#include "backend/gpu/run.h"

#include <math.h>

enum { CHUNK = 1024 /* as in kernels/rows.k */, MOST_IDS = 1 << 24 /* that float32 tells apart */ };

/* Numbers of a row after one pass over `width`. */
static size_t passed(size_t width, size_t n)
{
    return lt_gpu_ceil(width, CHUNK) * n;
}

size_t lt_gpu_top_wanted(const run *r, lt_tail_kind kind)
{
    const lt_batch *b = r->batch;
    if (kind != LT_TAIL_LOGITS || !b->tops || b->n_out == 0 || !r->p->shape.decodes || b->trace) return 0;
    const int result = r->plan->tails[kind].result;
    const view v = value_view(r, result);
    if (r->plan->values[result].rows != LT_ROWS_OUT || v.type != LT_GPU_F32) return 0;
    if (b->n_top == 0 || b->n_top > LT_TOP_MOST || r->result_width < b->n_top || r->result_width >= MOST_IDS) return 0;
    return b->n_top;
}

size_t lt_gpu_top_bytes(const run *r)
{
    return r->n_top == 0 ? 0 : 2 * r->batch->n_out * passed(r->result_width, r->n_top) * sizeof(float);
}

/* Where the values of pass number `pass` go; their ids are behind them. */
static lt_gpu_ref place_of(const run *r, size_t pass)
{
    return scratch(r, r->top_offset[pass % 2]);
}

static size_t passes(const run *r)
{
    size_t n = 1;
    for (size_t width = r->result_width; passed(width, r->n_top) > r->n_top; n++) width = passed(width, r->n_top);
    return n;
}

lattice_status lt_gpu_top(const run *r, int result)
{
    size_t width = r->result_width, rows = r->batch->n_out;
    const view logits = value_view(r, result);
    lt_gpu_ref from = logits.ref, ids = from;
    for (size_t pass = 0; pass < passes(r); pass++) {
        const size_t chunks = lt_gpu_ceil(width, CHUNK);
        const top_args a = {
            .width = u32(width), .ld = u32(pass > 0 ? width : logits.ld), .n = u32(r->n_top), .indexed = pass > 0
        };
        const lt_gpu_ref to = place_of(r, pass), to_ids = lt_gpu_at(to, rows * chunks * r->n_top * sizeof(float));
        LT_TRY(LAUNCH(top_rows, a, chunks, rows, 32, from, ids, to, to_ids));
        from = to;
        ids = to_ids;
        width = chunks * r->n_top;
    }
    return LATTICE_OK;
}

lattice_status lt_gpu_top_download(const run *r, int result)
{
    lt_program *p = r->p;
    const size_t rows = r->batch->n_out, n = rows * r->n_top;
    if (!LT_GROW(&p->runtime->mem, p->top_staging, p->top_capacity, 2 * n))
        return lt_no_memory(r->err, 8 * n, "the likeliest tokens");
    LT_TRY(r->device->download(r->device, p->top_staging, place_of(r, passes(r) - 1), 2 * n * sizeof(float), r->err));
    for (size_t row = 0; row < rows; row++) {
        lt_top *top = &r->batch->tops[row];
        const float *values = p->top_staging + row * r->n_top, *ids = values + n;
        for (size_t i = 0; i < r->n_top; i++) top->list[i] = (lt_candidate){ values[i], u32((size_t)ids[i]) };
        top->finite = isfinite(values[0]);
        top->n = r->n_top;
    }
    const view logits = value_view(r, result);
    p->left = logits.ref;
    p->left_rows = rows;
    p->left_ld = logits.ld;
    p->left_width = r->result_width;
    p->left_in_workspace = true;
    return LATTICE_OK;
}

lattice_status lt_gpu_top_keep(lt_program *p, lattice_error *err)
{
    lt_gpu_device *d = p->device;
    if (p->left_rows == 0 || !p->left_in_workspace) return LATTICE_OK;
    const size_t size = p->left_rows * p->left_ld * sizeof(float);
    if (p->kept_bytes < size) {
        d->release(d, p->kept);
        p->kept = NULL;
        p->kept_bytes = 0;
        LT_TRY(d->allocate(d, size, &p->kept, err));
        p->kept_bytes = size;
    }
    LT_TRY(d->copy(d, (lt_gpu_ref){ p->kept, 0 }, p->left, size, err));
    p->left = (lt_gpu_ref){ p->kept, 0 };
    p->left_in_workspace = false;
    return LATTICE_OK;
}

lattice_status lt_gpu_fetch(lt_program *p, size_t row, float *out, lattice_error *err)
{
    pthread_mutex_lock(&p->lock);
    lattice_status status = LATTICE_OK;
    if (row >= p->left_rows) {
        status = lt_fail(err, LATTICE_ERR_INTERNAL, "gpu: row %zu of %zu that are left there", row, p->left_rows);
    } else {
        const lt_gpu_ref from = lt_gpu_at(p->left, row * p->left_ld * sizeof(float));
        status = p->device->download(p->device, out, from, p->left_width * sizeof(float), err);
    }
    pthread_mutex_unlock(&p->lock);
    return status;
}
