/* One run of a plan: what the files that launch its operations share. */
#ifndef LT_BACKEND_GPU_RUN_H
#define LT_BACKEND_GPU_RUN_H

#include "backend/gpu/gpu.h"

#define uint uint32_t
#include "backend/gpu/kernels/args.h"
#undef uint

enum { THREADS = 128, WORD = 4 };
enum { LT_GPU_FEW_ROWS = 8 };    /* that the kernels for few rows take */
enum { LT_GPU_EARLY_ROWS = 64 }; /* of a step whose launches may begin early */

/* Where the tables of the batch begin, in words. */
typedef struct batch_tables {
    size_t ids, positions, types, attention_seqs, tiles, blocks, slots, pool_seqs, out_rows, recurrent_seqs, token_seq, end;
    size_t n_tiles, n_blocks;
} batch_tables;

typedef struct run {
    lt_program *p;
    const lt_plan *plan;
    const lt_batch *batch;
    lt_gpu_device *device;
    size_t rows[3];
    size_t class_offset[3], glu_offset, delta_offset, partial_offset, weight_offset, result_offset; /* bytes into the workspace */
    size_t result_width;
    size_t n_top,
        top_offset[2]; /* likeliest tokens that are looked for instead of downloading rows; 0: none. Passes' results in turn */
    bool is_step;      /* one token a sequence */
    size_t splits;     /* of keys between groups of step_attention; 0: it is not used */
    batch_tables at;
    lattice_error *err;
} run;

typedef struct view {
    lt_gpu_ref ref;
    size_t ld;
    lt_gpu_type type;
} view;

static inline view value_view(const run *r, int value)
{
    const lt_gpu_place *place = &r->p->places[value];
    lt_rows rows = r->plan->values[value].rows;
    size_t offset = r->class_offset[rows] + place->offset * r->rows[rows];
    return (view){ { r->p->workspace, offset }, place->ld, place->type };
}

static inline view operand_view(const run *r, const lt_operand *in)
{
    view v = value_view(r, in->value);
    v.ref.offset += in->column * lt_gpu_type_size(v.type);
    return v;
}

static inline lt_gpu_ref weight_ref(const run *r, int weight)
{
    return weight == LT_NONE ? (lt_gpu_ref){ r->p->weight_memory, 0 } : r->p->weights[weight].ref;
}

static inline lt_gpu_ref table(const run *r, size_t word)
{
    return (lt_gpu_ref){ r->p->tables, word * WORD };
}

static inline lt_gpu_ref scratch(const run *r, size_t offset)
{
    return (lt_gpu_ref){ r->p->workspace, offset };
}

static inline uint32_t u32(size_t n)
{
    return (uint32_t)n; /* widths and rows were checked when the plan was compiled */
}

/* Launches the template's kernel, or the device's own in its place, over a grid of x by y groups; an empty grid is nothing. */
lattice_status lt_gpu_launch_kernel(const run *r, lt_gpu_kernel kernel, const lt_gpu_ref *buffers, int n_buffers,
                                    const void *args, size_t args_size, size_t x, size_t y, size_t threads);

#define LAUNCH(kernel, args, x, y, threads, ...)                                                                                 \
    lt_gpu_launch_kernel(r, LT_GPU_##kernel, (const lt_gpu_ref[]){ __VA_ARGS__ },                                                \
                         (int)(sizeof((const lt_gpu_ref[]){ __VA_ARGS__ }) / sizeof(lt_gpu_ref)), &(args), sizeof(args), x, y,   \
                         threads)

/* y[i] = x[index[i]] or x[i], with y's type and leading dimension. */
lattice_status lt_gpu_convert_rows(const run *r, view x, const lt_gpu_ref *index, view y, size_t rows, size_t width);

/* products.c: a linear operation, with the norm before it joined in where *done says so. */
lattice_status lt_gpu_linear(const run *r, const lt_op *op);
lattice_status lt_gpu_few_rows(const run *r, const lt_op *norm, const lt_op *op, bool *done);

/* step.c: whether every sequence has one token; the splits of its keys; the bytes of their parts. */
bool lt_gpu_is_step(const lt_batch *batch);
size_t lt_gpu_splits(const run *r);
size_t lt_gpu_partial_bytes(const run *r);
/* top.c: how many likeliest tokens a run looks for; bytes of a pass's results; the launches behind its tail; their download,
 * after which the rows are left where they are; the copy of those of the run before, whose place another run takes. */
size_t lt_gpu_top_wanted(const run *r, lt_tail_kind kind);
size_t lt_gpu_top_bytes(const run *r);
lattice_status lt_gpu_top(const run *r, int result);
lattice_status lt_gpu_top_download(const run *r, int result);
lattice_status lt_gpu_top_keep(lt_program *p, lattice_error *err);
/* op[0] and those that it is joined with; *n: how many they are, 0: they are not joined in this run. */
lattice_status lt_gpu_step(const run *r, const lt_op *op, lt_gpu_join join, size_t *n);

#endif
