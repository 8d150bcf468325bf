/* Dense modules of Sentence-Transformers: y[m, out] = act(x[m, in] · Wᵀ + b) after pooling.
 *
 * W is small (at most a few thousand squared) and used for every text, so it is packed once when the model is opened. Large
 * products are split by panels between the threads; each output is summed whole by one of them, so the split changes nothing. */
#include <stdint.h>
#include <string.h>

#include "engine/model.h"

/* Fewer multiply-adds than this are done by the calling thread: waking others costs more. */
static const size_t parallel_from = (size_t)1 << 20;

static size_t panel_count(const lt_kernels *kernels, size_t n)
{
    return (n + kernels->nr - 1) / kernels->nr;
}

static lattice_status find_tensor(const lattice_model *model, size_t i, const char *name, int rank, const size_t *shape,
                                  const lt_tensor **tensor, lattice_error *err)
{
    const lt_dense *dense = &model->sentence.dense[i];
    const char *folder = lt_checkpoint_folder(dense->weights);
    *tensor = lt_checkpoint_find(dense->weights, lt_str_of(name));
    if (!*tensor) return lt_fail(err, LATTICE_ERR_FORMAT, "%s: no tensor '%s'", folder, name);
    bool fits = (*tensor)->rank == rank;
    for (int d = 0; fits && d < rank; d++) fits = (*tensor)->shape[d] == shape[d];
    if (!fits)
        return lt_fail(err, LATTICE_ERR_FORMAT, "%s: tensor '%s' does not have the %zu inputs and %zu outputs of config.json",
                       folder, name, dense->in_features, dense->out_features);
    lt_dtype dtype = (*tensor)->dtype;
    if (dtype != LT_F32 && dtype != LT_F16 && dtype != LT_BF16)
        return lt_fail(err, LATTICE_ERR_UNSUPPORTED, "%s: tensor '%s' is of type %.*s; Dense weights must be F32, F16 or BF16",
                       folder, name, LT_STR_ARG((*tensor)->dtype_name));
    return LATTICE_OK;
}

static lattice_status pack(lattice_model *model, lt_dense_layer *layer, const void *w, lt_dtype dtype, lattice_error *err)
{
    const lt_kernels *kernels = model->kernels;
    size_t panels = panel_count(kernels, layer->out_features), floats, bytes;
    if (!lt_mul(panels * kernels->nr, layer->in_features, &floats) || !lt_mul(floats, sizeof(float), &bytes) ||
        !lt_add(bytes, 64, &bytes))
        return lt_no_memory(err, SIZE_MAX, "a Dense module");
    layer->block = lt_alloc(model->mem, bytes);
    if (!layer->block) return lt_no_memory(err, bytes, "a Dense module");
    layer->panels = lt_align_up(layer->block, 64);
    for (size_t p = 0; p < panels; p++) {
        size_t row = p * kernels->nr, n = layer->out_features - row < kernels->nr ? layer->out_features - row : kernels->nr;
        const char *from = (const char *)w + row * layer->in_features * lt_dtype_size(dtype);
        kernels->pack_panel(from, dtype, layer->in_features, n, layer->in_features, layer->panels + row * layer->in_features);
    }
    return LATTICE_OK;
}

lattice_status lt_dense_create(lattice_model *model, size_t i, lattice_error *err)
{
    const lt_dense *dense = &model->sentence.dense[i];
    lt_dense_layer *layer = &model->dense[i];
    layer->in_features = dense->in_features;
    layer->out_features = dense->out_features;
    layer->activation = dense->activation;
    const lt_tensor *weight, *bias;
    const void *data;
    size_t shape[2] = { dense->out_features, dense->in_features };
    LT_TRY(find_tensor(model, i, "linear.weight", 2, shape, &weight, err));
    LT_TRY(lt_checkpoint_data(dense->weights, weight, &data, err));
    LT_TRY(pack(model, layer, data, weight->dtype, err));
    lt_checkpoint_forget(dense->weights, weight);
    model->dense_bytes += weight->size;
    model->n_parameters += weight->n_elements;
    if (!dense->bias) return LATTICE_OK;
    LT_TRY(find_tensor(model, i, "linear.bias", 1, shape, &bias, err));
    LT_TRY(lt_checkpoint_data(dense->weights, bias, &data, err));
    layer->bias = lt_alloc_array(model->mem, layer->out_features, sizeof(float));
    if (!layer->bias) return lt_no_memory(err, layer->out_features * sizeof(float), "a Dense module");
    model->kernels->convert(layer->bias, data, bias->dtype, layer->out_features);
    model->dense_bytes += bias->size;
    model->n_parameters += bias->n_elements;
    return LATTICE_OK;
}

void lt_dense_free(const lattice_allocator *mem, lt_dense_layer *layer)
{
    lt_free(mem, layer->block);
    lt_free(mem, layer->bias);
}

uint64_t lt_dense_packed_bytes(const lt_kernels *kernels, const lt_dense_layer *layer)
{
    return (uint64_t)panel_count(kernels, layer->out_features) * kernels->nr * layer->in_features * sizeof(float);
}

typedef struct dense_job {
    const lt_kernels *kernels;
    const lt_dense_layer *layer;
    const float *x;
    size_t m;
    float *y;
} dense_job;

static void run_part(void *arg, int thread, int n_threads)
{
    const dense_job *job = arg;
    const lt_dense_layer *layer = job->layer;
    size_t panels = panel_count(job->kernels, layer->out_features);
    size_t begin = panels * (size_t)thread / (size_t)n_threads, end = panels * ((size_t)thread + 1) / (size_t)n_threads;
    if (begin == end) return;
    lt_linear args = { .x = job->x,
                       .ldx = layer->in_features,
                       .m = job->m,
                       .k = layer->in_features,
                       .n = layer->out_features,
                       .panels = layer->panels + begin * job->kernels->nr * layer->in_features,
                       .panel_begin = begin,
                       .panel_end = end,
                       .bias = layer->bias,
                       .activation = layer->activation,
                       .y = job->y,
                       .ldy = layer->out_features };
    job->kernels->linear(&args);
}

void lt_dense_run(const lattice_model *model, const lt_dense_layer *layer, const float *x, size_t m, float *y)
{
    dense_job job = { model->kernels, layer, x, m, y };
    if (m * layer->in_features * layer->out_features < parallel_from)
        run_part(&job, 0, 1);
    else
        lt_pool_run(model->runtime->pool, run_part, &job);
}
