/* When a kernel of CUDA alone stands for one of the template: those of kernels/cuda_*.cu read and write 16 bytes at a time, and
 * attention uses the tensor cores. */
#include "backend/gpu/cuda_api.h"
#include "backend/gpu/gpu.h"
#include "backend/gpu/template.h"

#define uint uint32_t
#include "backend/gpu/kernels/args.h"
#undef uint

/* X(name) */
#define OWN_LIST(X)                                                                                                              \
    X(attention_mma)                                                                                                             \
    X(add_norm_1024)                                                                                                             \
    X(add_norm_group)                                                                                                            \
    X(glu_rows_wide)                                                                                                             \
    X(activate_rows_wide)                                                                                                        \
    X(rope_wide)                                                                                                                 \
    X(delta_steps)                                                                                                               \
    X(few_mma)                                                                                                                   \
    X(few_stream)                                                                                                                \
    X(delta_stream)

enum {
#define X(name) OWN_##name,
    OWN_LIST(X)
#undef X
        N_OWN
};

_Static_assert((int)N_OWN <= (int)LT_GPU_MAX_OWN, "a program has room for all");

static const char *const names[N_OWN] = {
#define X(name) #name,
    OWN_LIST(X)
#undef X
};

static bool has_attention(const lt_gpu_shape *shape)
{
    return shape->head_dim % 16 == 0 && shape->head_dim <= 256 && shape->n_heads / shape->n_kv_heads <= 16;
}

/* The numbers of kernels/cuda_attention.cu. */
static bool attention(const lt_gpu_shape *shape, lt_gpu_attention *a, size_t *own)
{
    if (!has_attention(shape)) return false;
    size_t groups = shape->n_heads / shape->n_kv_heads, small = shape->head_dim <= 128;
    size_t rows = small ? 128 : 64, keys = small ? 64 : 32;
    *a = (lt_gpu_attention){
        .queries = rows / groups,
        .heads = groups,
        .threads = 128,
        .shared_bytes = (rows + 4 * keys) * (shape->head_dim + 8) * 2,
    };
    *own = OWN_attention_mma;
    return true;
}

static bool wide(size_t width, size_t ld, uint32_t type)
{
    return width % 8 == 0 && ld % 8 == 0 && type != LT_GPU_F16;
}

static bool aligned(const lt_gpu_launch *l)
{
    for (int i = 0; i < l->n_buffers; i++) {
        if (lt_cuda_pointer(l->buffers[i]) % 16) return false;
    }
    return true;
}

static void replace(lt_gpu_launch *l, void *kernel, size_t x, size_t y)
{
    l->kernel = kernel;
    l->grid[0] = x;
    l->grid[1] = y;
    l->threads = 128;
}

static void norm(lt_gpu_launch *l, const norm_args *a, void *const *own)
{
    enum { MANY = 1024 /* rows that keep all multiprocessors at work as a warp each */ };
    bool fits = a->width <= 4096 && wide(a->width, a->ld_x, a->x_type) && (!a->has_y || wide(a->width, a->ld_y, a->y_type)) &&
                (!a->has_sum || wide(a->width, a->ld_sum, a->sum_type)) &&
                (!a->has_residual || wide(a->width, a->ld_residual, a->residual_type));
    if (!fits) return;
    if (a->width <= 1024 && a->rows > MANY)
        replace(l, own[OWN_add_norm_1024], lt_gpu_ceil(a->rows, 4), 1);
    else
        replace(l, own[OWN_add_norm_group], a->rows, 1);
}

static void rope(lt_gpu_launch *l, const rope_args *a, const lt_gpu_shape *shape, void *const *own)
{
    size_t heads = a->n_heads + a->n_kv_heads, lanes = shape->rotary_dim / 16;
    bool fits = wide(8, a->ld, a->type) && a->q_stride % 8 == 0 && a->k_stride % 8 == 0 && own[OWN_rope_wide] != NULL;
    if (fits) replace(l, own[OWN_rope_wide], l->grid[0] / heads, lt_gpu_ceil(heads, 128 / lanes));
}

/* One row of x: a group for each multiprocessor, so that those of the next launch find room beside it. */
static void few(lt_gpu_launch *l, const few_args *a, int processors, void *const *own)
{
    enum { MOST_SHARED = 100 << 10, WARPS = 16 /* as in kernels/cuda_few.cu */ };
    size_t pairs = a->has_glu ? a->n : lt_gpu_ceil(a->n, 2);
    size_t groups = pairs < (size_t)processors ? pairs : (size_t)processors;
    if (!own[OWN_few_stream] || a->m != 1 || a->x_type == LT_GPU_F16 || groups == 0) return;
    size_t shared = lt_gpu_round(a->k, 256) * sizeof(float) + (lt_gpu_ceil(pairs, groups) + 2 * WARPS) * 2 * sizeof(float);
    if (shared > MOST_SHARED) return;
    replace(l, own[OWN_few_stream], groups, 1);
    l->threads = 32 * WARPS;
    l->shared_bytes = shared;
}

/* The numbers of kernels/cuda_mma.cu. */
enum { MMA_ROWS = 8, MMA_CHUNK = 32, MMA_PARTS = 4, MMA_LD = 68, MMA_CLUSTER = 8, MMA_SHARED = 200 << 10 };

/* Tiles of rows of W, which are groups or clusters. */
static size_t mma_tiles(size_t n, bool glu)
{
    return lt_gpu_ceil(n, glu ? 32 : 64);
}

/* Groups of a cluster: as many as keep all multiprocessors at work and have a chunk of k for each warp. */
static size_t mma_groups(size_t n, size_t k, bool glu, size_t processors)
{
    size_t groups = 1;
    while (groups < MMA_CLUSTER && 2 * groups * mma_tiles(n, glu) <= processors && k >= 2 * groups * MMA_PARTS * MMA_CHUNK)
        groups *= 2;
    return groups;
}

static size_t mma_shared(size_t k, size_t groups)
{
    size_t x = MMA_ROWS * (lt_gpu_ceil(k / MMA_CHUNK, groups) | 1) * MMA_CHUNK * 2;
    size_t sums = MMA_PARTS * MMA_ROWS * MMA_LD * sizeof(float);
    return x > sums ? x : sums;
}

static bool has_few(const lt_gpu_device *device, size_t m, size_t n, size_t k, bool glu)
{
    const lt_cuda_target *target = &((const cuda_device *)device)->target;
    return target->major >= 9 && m > 1 && m <= MMA_ROWS && k % MMA_CHUNK == 0 &&
           mma_shared(k, mma_groups(n, k, glu, (size_t)target->processors)) <= MMA_SHARED;
}

/* Its x and W lie at multiples of 16 bytes wherever few_rows_8 is launched. */
static void few_mma(lt_gpu_launch *l, const few_args *a, const lt_gpu_device *device, void *const *own)
{
    const size_t processors = (size_t)((const cuda_device *)device)->target.processors;
    if (!own[OWN_few_mma] || a->has_norm || a->x_type != LT_GPU_BF16 || !has_few(device, a->m, a->n, a->k, a->has_glu)) return;
    const size_t groups = mma_groups(a->n, a->k, a->has_glu, processors);
    replace(l, own[OWN_few_mma], mma_tiles(a->n, a->has_glu) * groups, 1);
    l->threads = 256;
    l->cluster = groups;
    l->shared_bytes = mma_shared(a->k, groups);
}

/* For more heads than multiprocessors; of fewer, registers are the faster place. S of a head is one piece of memory, which lies
 * at a multiple of 16 bytes. */
static void delta_step(lt_gpu_launch *l, const delta_step_args *a, int processors, const lt_gpu_shape *shape, void *const *own)
{
    if (!own[OWN_delta_stream] || l->grid[0] <= (size_t)processors || a->dv % 4 || a->memory_size % 4 || a->offset % 4) return;
    l->kernel = own[OWN_delta_stream];
    l->shared_bytes = shape->delta_dk * a->dv * sizeof(float);
}

static void specialise(const lt_gpu_device *device, int kernel, const lt_gpu_shape *shape, void *const *own, lt_gpu_launch *l)
{
    const int processors = ((const cuda_device *)device)->target.processors;
    if (kernel == LT_GPU_few_rows_8) few_mma(l, l->args, device, own);
    if (!aligned(l)) return;
    switch (kernel) {
    case LT_GPU_add_norm: norm(l, l->args, own); break;
    case LT_GPU_few_rows_1: few(l, l->args, processors, own); break;
    case LT_GPU_delta_step: delta_step(l, l->args, processors, shape, own); break;
    case LT_GPU_gated_delta: {
        const delta_args *a = l->args;
        if (!own[OWN_delta_steps]) break;
        replace(l, own[OWN_delta_steps], l->grid[0], lt_gpu_ceil(a->dv, 16));
        break;
    }
    case LT_GPU_fused_qk_norm_rope: rope(l, l->args, shape, own); break;
    case LT_GPU_glu_rows: {
        const glu_args *a = l->args;
        if (wide(a->width, a->ld_x, a->x_type) && wide(a->width, a->ld_y, a->y_type))
            replace(l, own[OWN_glu_rows_wide], a->rows, lt_gpu_ceil(a->width, 1024));
        break;
    }
    case LT_GPU_activate_rows: {
        const activate_args *a = l->args;
        if (wide(a->width, a->ld_x, a->x_type) && wide(a->width, a->ld_y, a->y_type) &&
            (!a->has_residual || wide(a->width, a->ld_residual, a->residual_type)))
            replace(l, own[OWN_activate_rows_wide], a->rows, lt_gpu_ceil(a->width, 1024));
        break;
    }
    default: break;
    }
}

void lt_cuda_own_kernels(cuda_device *d)
{
    if (d->target.major < 8) return; /* cp.async and bfloat16 products */
    d->base.extra = lt_gpu_own_cuda();
    d->base.own_names = names;
    d->base.n_own = N_OWN;
    d->base.specialise = specialise;
    d->base.attention = attention;
    d->base.few = has_few;
}
