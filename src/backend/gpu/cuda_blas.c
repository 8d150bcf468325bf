/* Large products by cuBLASLt, where it is installed.
 *
 * Its matrices are column-major: yᵀ[n, m] = W[k, n]ᵀ xᵀ[k, m] is the row-major y = x Wᵀ. The algorithm for a size is asked for
 * once and kept in a table. */
#include "backend/gpu/cuda_api.h"

enum { WORKSPACE = 32 << 20 };

static int real_type(lt_gpu_type type)
{
    return type == LT_GPU_F32 ? CUBLAS_REAL_32F : type == LT_GPU_F16 ? CUBLAS_REAL_16F : CUBLAS_REAL_16BF;
}

static bool multiplies(lt_gpu_device *device, const lt_gpu_product *p)
{
    (void)device;
    /* Vector loads of the library want rows that begin at multiples of 16 bytes. */
    size_t size = lt_gpu_type_size(p->type);
    bool aligned =
        p->k * size % 16 == 0 && p->ld_x * size % 16 == 0 && lt_cuda_pointer(p->x) % 16 == 0 && lt_cuda_pointer(p->w) % 16 == 0;
    return p->type == LT_GPU_F32 || aligned;
}

typedef struct plan {
    void *operation, *w, *x, *y;
} plan;

static void plan_free(const cublas_api *blas, plan *p)
{
    if (p->operation) blas->operation_destroy(p->operation);
    if (p->w) blas->layout_destroy(p->w);
    if (p->x) blas->layout_destroy(p->x);
    if (p->y) blas->layout_destroy(p->y);
}

static int plan_create(const cublas_api *blas, const lt_gpu_product *p, plan *made)
{
    *made = (plan){ 0 };
    int transposed = CUBLAS_TRANSPOSED, type = real_type(p->type);
    int result = blas->operation_create(&made->operation, CUBLAS_COMPUTE_32F, CUBLAS_REAL_32F);
    if (result == 0) result = blas->operation_set(made->operation, CUBLAS_MATMUL_TRANSA, &transposed, sizeof transposed);
    if (result == 0) result = blas->layout_create(&made->w, type, p->k, p->n, (int64_t)p->k);
    if (result == 0) result = blas->layout_create(&made->x, type, p->k, p->m, (int64_t)p->ld_x);
    if (result == 0) result = blas->layout_create(&made->y, real_type(p->y_type), p->n, p->m, (int64_t)p->ld_y);
    return result;
}

static int choose(cuda_device *d, const lt_gpu_product *p, const plan *made, cublas_choice **choice)
{
    const size_t key[9] = { p->m, p->n, p->k, p->ld_x, p->ld_y, p->residual.memory != NULL, p->type, p->y_type, 1 };
    size_t hash = 0;
    for (int i = 0; i < 9; i++) hash = (hash ^ key[i]) * 0x9e3779b97f4a7c15u;
    cublas_choice *c = &d->choices[(hash >> 32) % CUBLAS_CHOICES];
    *choice = c;
    if (c->valid && memcmp(c->key, key, sizeof key) == 0) return 0;
    c->valid = false;
    void *preference = NULL;
    size_t workspace = WORKSPACE;
    int found = 0, result = d->blas.preference_create(&preference);
    if (result == 0) result = d->blas.preference_set(preference, CUBLAS_PREFERENCE_WORKSPACE, &workspace, sizeof workspace);
    if (result == 0)
        result = d->blas.heuristic(d->blas_handle, made->operation, made->w, made->x, made->y, made->y, preference, 1, &c->chosen,
                                   &found);
    if (preference) d->blas.preference_destroy(preference);
    if (result == 0 && found == 0) result = 15; /* not supported */
    if (result == 0) {
        memcpy(c->key, key, sizeof key);
        c->valid = true;
    }
    return result;
}

static lattice_status multiply(lt_gpu_device *device, const lt_gpu_product *p, lattice_error *err)
{
    cuda_device *d = (cuda_device *)device;
    d->cu.context_set(d->context);
    plan made;
    cublas_choice *choice = NULL;
    float alpha = 1, beta = p->residual.memory ? 1 : 0;
    cu_pointer y = lt_cuda_pointer(p->y), residual = p->residual.memory ? lt_cuda_pointer(p->residual) : y;
    void *residual_layout = NULL;
    int result = plan_create(&d->blas, p, &made);
    if (result == 0 && p->residual.memory && p->ld_residual != p->ld_y)
        result = d->blas.layout_create(&residual_layout, real_type(p->y_type), p->n, p->m, (int64_t)p->ld_residual);
    if (result == 0) result = choose(d, p, &made, &choice);
    if (result == 0)
        result = d->blas.multiply(d->blas_handle, made.operation, &alpha, lt_cuda_pointer(p->w), made.w, lt_cuda_pointer(p->x),
                                  made.x, &beta, residual, residual_layout ? residual_layout : made.y, y, made.y,
                                  choice->chosen.algorithm, d->blas_workspace, WORKSPACE, d->stream);
    if (residual_layout) d->blas.layout_destroy(residual_layout);
    plan_free(&d->blas, &made);
    if (result == 0) return LATTICE_OK;
    return lt_fail(err, LATTICE_ERR_DEVICE, "cuda: a product of %zu x %zu x %zu failed in cuBLASLt (%d)", p->m, p->n, p->k,
                   result);
}

void lt_cuda_blas_open(cuda_device *d)
{
    char text[200];
    if (!lt_cuda_load_cublas(&d->blas, text, sizeof text)) {
        lt_log(d->runtime, LATTICE_LOG_INFO, "cuBLASLt is not used: %s", text);
        return;
    }
    d->choices = lt_alloc_zero(&d->runtime->mem, CUBLAS_CHOICES * sizeof *d->choices);
    if (d->choices && d->cu.allocate(&d->blas_workspace, WORKSPACE) == CU_OK && d->blas.create(&d->blas_handle) == 0) {
        d->base.multiplies = multiplies;
        d->base.multiply = multiply;
        return;
    }
    d->blas_handle = NULL;
    lt_cuda_blas_close(d);
}

void lt_cuda_blas_close(cuda_device *d)
{
    if (d->blas_handle) d->blas.destroy(d->blas_handle);
    if (d->blas_workspace) d->cu.release(d->blas_workspace);
    lt_free(&d->runtime->mem, d->choices);
    d->blas_handle = NULL;
    d->blas_workspace = 0;
    d->choices = NULL;
    lt_cuda_unload(&d->blas.handle);
}
