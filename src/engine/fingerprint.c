/* A model's fingerprint: a hash that differs when a vector could.
 *
 * It covers the library's version, device, instruction set, arithmetic, config.json, the recorded plan, and name, type, shape and
 * bytes of every tensor that the plan or a Dense module uses. Names, dates and places of files are not in it, so a copy of a
 * checkpoint is the same model and a file changed in place is another. XXH3 reads about as fast as one thread can: it need not be
 * divided among several, and so may run anywhere, inside a parallel region too. */
#include <string.h>

#include "base/hash.h"
#include "engine/cache.h"

static bool plan_uses(const lt_plan *plan, const lt_tensor *tensor)
{
    for (size_t w = 0; w < plan->n_weights; w++)
        for (int s = 0; s < plan->weights[w].n_segments; s++)
            if (plan->weights[w].segments[s].tensor == tensor) return true;
    return false;
}

static lattice_status describe_tensor(lt_checkpoint *checkpoint, const lt_tensor *tensor, lt_buf *out, lattice_error *err)
{
    const void *data;
    LT_TRY(lt_checkpoint_data(checkpoint, tensor, &data, err));
    lt_hash128 digest = lt_hash_128(data, tensor->size, 0);
    lt_checkpoint_forget(checkpoint, tensor);
    lt_buf_append(out, tensor->name.data, tensor->name.len);
    lt_buf_printf(out, " %.*s", LT_STR_ARG(tensor->dtype_name));
    for (int d = 0; d < tensor->rank; d++) lt_buf_printf(out, " %zu", tensor->shape[d]);
    lt_buf_append(out, &digest, sizeof digest);
    return LATTICE_OK;
}

/* Everything but the tensors' bytes, as text that no two different models share. */
static void describe(const lattice_model *m, lt_buf *out)
{
    lattice_model_info info;
    lattice_model_get_info(m, &info);
    lt_buf_printf(out, "lattice %s %s %s %s %s\n", lattice_version(), info.device, info.isa, info.compute, info.family);
    lt_buf_append(out, &m->config.hash, sizeof m->config.hash);
    lt_plan_print(&m->plan, out);
    for (size_t d = 0; d < m->n_dense; d++)
        lt_buf_printf(out, "dense %zu %zu %d\n", m->dense[d].in_features, m->dense[d].out_features, (int)m->dense[d].activation);
}

static lattice_status describe_weights(const lattice_model *m, lt_buf *out, lattice_error *err)
{
    for (size_t i = 0; i < lt_checkpoint_count(m->checkpoint); i++) {
        const lt_tensor *tensor = lt_checkpoint_at(m->checkpoint, i);
        if (plan_uses(&m->plan, tensor)) LT_TRY(describe_tensor(m->checkpoint, tensor, out, err));
    }
    for (size_t d = 0; d < m->n_dense; d++) {
        lt_checkpoint *weights = m->sentence.dense[d].weights;
        for (size_t i = 0; i < lt_checkpoint_count(weights); i++)
            LT_TRY(describe_tensor(weights, lt_checkpoint_at(weights, i), out, err));
    }
    return LATTICE_OK;
}

static lattice_status compute(lattice_model *m, lt_hash128 *fingerprint, lattice_error *err)
{
    lt_buf text;
    lt_buf_init(&text, m->mem);
    describe(m, &text);
    lattice_status status = describe_weights(m, &text, err);
    if (status == LATTICE_OK && text.failed) status = lt_no_memory(err, text.len, "a fingerprint");
    if (status == LATTICE_OK) *fingerprint = lt_hash_128(text.data, text.len, 0);
    lt_buf_free(&text);
    return status;
}

lattice_status lt_model_fingerprint(lattice_model *m, lt_hash128 *fingerprint, lattice_error *err)
{
    lattice_status status = LATTICE_OK;
    if (!atomic_load_explicit(&m->has_fingerprint, memory_order_acquire)) {
        pthread_mutex_lock(&m->fingerprint_lock);
        if (!atomic_load(&m->has_fingerprint)) {
            status = compute(m, &m->fingerprint, err);
            if (status == LATTICE_OK) atomic_store_explicit(&m->has_fingerprint, true, memory_order_release);
        }
        pthread_mutex_unlock(&m->fingerprint_lock);
    }
    *fingerprint = m->fingerprint;
    return status;
}

lattice_status lt_cache_space(lattice_model *model, const lt_vector_shape *shape, lt_hash128 *space, lattice_error *err)
{
    struct {
        lt_hash128 fingerprint;
        uint64_t pooling, pool_skip, dim, normalize;
    } all = { .pooling = shape->pooling, .pool_skip = shape->pool_skip, .dim = shape->dim, .normalize = shape->normalize };
    LT_TRY(lt_model_fingerprint(model, &all.fingerprint, err));
    *space = lt_hash_128(&all, sizeof all, 0);
    return LATTICE_OK;
}
