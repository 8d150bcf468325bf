/* Compiling a plan for a device: types and places of values, weights, kernels, tables. */
#include "backend/gpu/gpu.h"

#include "backend/gpu/template.h"

typedef struct gpu_backend {
    lt_backend base;
    lattice_runtime *runtime;
    lt_gpu_device *device;
    lattice_compute compute;
} gpu_backend;

static bool supports(const lt_backend *backend, const lt_plan *plan, const lt_op *op, const char **reason)
{
    (void)backend;
    (void)plan;
    if (op->code < LT_OP_COUNT) return true;
    *reason = "unknown operation";
    return false;
}

/* ------------------------------------------------------------------ types */

/* In bfloat16 a value is kept in float32 only where sums run through many layers: when nothing but norms, residual additions and
 * poolings reads it. The result of a tail is float32 always. */
static lt_gpu_type type_of(const lt_program *p, int value)
{
    if (p->compute != LATTICE_COMPUTE_BF16) return LT_GPU_F32;
    for (int kind = 0; kind < LT_TAIL_COUNT; kind++) {
        const lt_tail *tail = &p->plan->tails[kind];
        if (tail->present && tail->n_ops > 0 && tail->result == value) return LT_GPU_F32;
    }
    for (size_t i = 0; i < p->plan->n_ops; i++) {
        const lt_op *op = &p->plan->ops[i];
        for (int k = 0; k < 4; k++) {
            if (op->in[k].value != value) continue;
            bool sums = op->code == LT_OP_ADD_NORM || op->code == LT_OP_POOL || op->code == LT_OP_SELECT ||
                        (op->code == LT_OP_LINEAR && k == 1);
            if (!sums) return LT_GPU_BF16;
        }
    }
    return LT_GPU_F32;
}

static lattice_compute choose_compute(const lt_plan *plan, lattice_compute wanted)
{
    if (wanted != LATTICE_COMPUTE_AUTO) return wanted;
    for (size_t i = 0; i < plan->n_ops; i++) {
        if (plan->ops[i].code != LT_OP_LINEAR) continue;
        lt_dtype dtype = plan->weights[plan->ops[i].weight[0]].dtype;
        if (dtype != LT_BF16 && dtype != LT_Q8_0) return LATTICE_COMPUTE_F32;
    }
    return LATTICE_COMPUTE_BF16;
}

/* ------------------------------------------------------------------ places */

typedef struct life {
    size_t begin, end; /* ops */
} life;

/* A value that a tail takes as its result lives on; one that is traced is copied at once. */
static void find_lives(const lt_plan *plan, const lt_gpu_join *joins, life *lives)
{
    for (size_t v = 0; v < plan->n_values; v++) lives[v] = (life){ SIZE_MAX, 0 };
    for (size_t i = 0; i < plan->n_ops; i++) {
        const lt_op *op = &plan->ops[i];
        int used[6] = { op->out[0], op->out[1], op->in[0].value, op->in[1].value, op->in[2].value, op->in[3].value };
        for (int k = 0; k < 6; k++) {
            if (used[k] == LT_NONE) continue;
            life *l = &lives[used[k]];
            if (l->begin == SIZE_MAX) l->begin = i;
            l->end = i;
        }
    }
    /* Operations that may be one launch read to its end. */
    for (size_t i = 0; i < plan->n_ops; i++) {
        size_t last = i + lt_gpu_join_span(joins[i]) - 1;
        for (size_t k = 0; k < 4 * (last + 1 - i); k++) {
            int v = plan->ops[i + k / 4].in[k % 4].value;
            if (v != LT_NONE && lives[v].end < last) lives[v].end = last;
        }
    }
    lives[plan->hidden].end = SIZE_MAX;
    for (int kind = 0; kind < LT_TAIL_COUNT; kind++) {
        if (plan->tails[kind].present) lives[plan->tails[kind].result].end = SIZE_MAX;
    }
}

/* First fit: the lowest offset where no value of the class that lives at the same time lies. */
static size_t first_fit(const lt_program *p, const life *lives, size_t v, size_t bytes)
{
    size_t offset = 0;
    for (bool moved = true; moved;) {
        moved = false;
        for (size_t u = 0; u < v; u++) {
            if (p->plan->values[u].rows != p->plan->values[v].rows || lives[u].begin == SIZE_MAX) continue;
            if (lives[u].end < lives[v].begin || lives[v].end < lives[u].begin) continue;
            size_t size = p->places[u].ld * lt_gpu_type_size(p->places[u].type);
            if (offset < p->places[u].offset + size && p->places[u].offset < offset + bytes) {
                offset = p->places[u].offset + size;
                moved = true;
            }
        }
    }
    return offset;
}

static lattice_status place_values(lt_program *p, lattice_error *err)
{
    const lattice_allocator *mem = &p->runtime->mem;
    p->places = lt_alloc_zero(mem, p->plan->n_values * sizeof *p->places);
    life *lives = lt_alloc_array(mem, p->plan->n_values, sizeof *lives);
    if (!p->places || !lives) {
        lt_free(mem, lives);
        return lt_no_memory(err, p->plan->n_values * sizeof *lives, "placing values");
    }
    find_lives(p->plan, p->joins, lives);
    for (size_t v = 0; v < p->plan->n_values; v++) {
        const lt_value *value = &p->plan->values[v];
        lt_gpu_place *place = &p->places[v];
        place->type = type_of(p, (int)v);
        place->ld = lt_gpu_round(value->width, 16); /* rows begin at multiples of 32 bytes */
        if (lives[v].begin == SIZE_MAX) continue;
        size_t bytes = place->ld * lt_gpu_type_size(place->type);
        place->offset = first_fit(p, lives, v, bytes);
        if (place->offset + bytes > p->row_bytes[value->rows]) p->row_bytes[value->rows] = place->offset + bytes;
    }
    lt_free(mem, lives);
    for (size_t i = 0; i < p->plan->n_ops; i++) {
        const lt_op *op = &p->plan->ops[i];
        if (op->code == LT_OP_LINEAR && op->glu) {
            size_t bytes = lt_gpu_round(2 * p->plan->values[op->out[0]].width, 16) * lt_gpu_type_size(p->places[op->out[0]].type);
            if (bytes > p->glu_bytes) p->glu_bytes = bytes;
        }
        if (op->code == LT_OP_GATED_DELTA) {
            size_t floats = lt_gpu_round(2 * op->n_kv_heads * op->head_dim, 4) + lt_gpu_round(3 * op->n_heads, 4);
            if (floats > p->delta_floats) p->delta_floats = floats;
        }
    }
    return LATTICE_OK;
}

static lattice_status find_rotary(lt_program *p, lattice_error *err)
{
    for (size_t i = 0; i < p->plan->n_ops; i++) {
        const lt_op *op = &p->plan->ops[i], *first = p->rotary_op;
        if (op->code != LT_OP_QK_NORM_ROPE) continue;
        if (!first) {
            p->rotary_op = op;
        } else if (op->rope_theta != first->rope_theta || op->max_positions != first->max_positions) {
            return lt_fail(err, LATTICE_ERR_UNSUPPORTED, "gpu: op %zu (%s): its rotary angles differ from those of other layers",
                           i, lt_op_name(op->code));
        }
    }
    if (!p->rotary_op) return LATTICE_OK;
    size_t half = p->rotary_op->rotary_dim / 2, bytes;
    if (!lt_mul(p->rotary_op->max_positions, half * 2 * sizeof(float), &bytes) || p->rotary_op->max_positions > UINT32_MAX)
        return lt_fail(err, LATTICE_ERR_UNSUPPORTED, "gpu: %zu positions are too many", p->rotary_op->max_positions);
    p->rotary_staging = lt_alloc_array(&p->runtime->mem, 1024, half * sizeof(float));
    if (!p->rotary_staging) return lt_no_memory(err, 1024 * half * sizeof(float), "rotary angles");
    return p->device->allocate(p->device, bytes, &p->rotary, err);
}

/* ------------------------------------------------------------------ kernels */

/* Which products of few rows there may be. */
static void find_few(lt_program *p)
{
    for (size_t i = 0; i < p->plan->n_ops; i++) {
        if (p->plan->ops[i].code != LT_OP_LINEAR) continue;
        lt_dtype dtype = p->plan->weights[p->plan->ops[i].weight[0]].dtype;
        if (dtype == LT_Q8_0)
            p->shape.few_q8_0 = true;
        else if (dtype == LT_BF16 || p->compute == LATTICE_COMPUTE_BF16)
            p->shape.few_bf16 = true;
    }
}

static bool has_kernel(const lt_gpu_shape *shape, lt_gpu_kernel kernel)
{
    switch (kernel) {
    case LT_GPU_few_rows_1:
    case LT_GPU_few_rows_8: return shape->few_bf16;
    case LT_GPU_few_rows_q8_1:
    case LT_GPU_few_rows_q8_8: return shape->few_q8_0;
    case LT_GPU_conv:
    case LT_GPU_delta_units:
    case LT_GPU_gated_delta: return shape->delta_dk > 0;
    case LT_GPU_top_rows:
    case LT_GPU_delta_step:
    case LT_GPU_step_attention:
    case LT_GPU_step_combine: return shape->decodes;
    default: return true;
    }
}

static lattice_status build_kernels(lt_program *p, lattice_error *err)
{
    static const char *const names[] = {
#define X(name) #name,
        LT_GPU_KERNEL_LIST(X)
#undef X
    };
    char reason[LT_GPU_REASON];
    if (!lt_gpu_shape_admits(&p->shape, reason)) return lt_fail(err, LATTICE_ERR_UNSUPPORTED, "gpu: %s", reason);
    lt_gpu_attention_tile(&p->shape, &p->attention.queries, &p->attention.heads);
    p->attention.threads = p->attention.queries * 32;
    lt_buf source;
    lt_buf_init(&source, &p->runtime->mem);
    lattice_status status = lt_gpu_source(&p->shape, p->device->shim, p->device->extra, &source, err);
    if (status == LATTICE_OK) status = p->device->build(p->device, lt_buf_str(&source), &p->library, err);
    lt_buf_free(&source);
    for (int i = 0; status == LATTICE_OK && i < LT_GPU_KERNELS; i++) {
        if (has_kernel(&p->shape, (lt_gpu_kernel)i))
            status = p->device->find(p->device, p->library, names[i], &p->kernels[i], err);
    }
    for (size_t i = 0; status == LATTICE_OK && i < p->device->n_own; i++) {
        if (p->device->find(p->device, p->library, p->device->own_names[i], &p->own[i], NULL) != LATTICE_OK) p->own[i] = NULL;
    }
    p->attention_kernel = p->kernels[LT_GPU_fused_attention];
    size_t own;
    lt_gpu_attention attention;
    if (status == LATTICE_OK && p->compute == LATTICE_COMPUTE_BF16 && p->device->attention &&
        p->device->attention(&p->shape, &attention, &own)) {
        p->attention = attention;
        p->attention_kernel = p->own[own];
    }
    return status;
}

/* ------------------------------------------------------------------ compile */

static void program_free(lt_program *p)
{
    if (!p) return;
    const lattice_allocator *mem = &p->runtime->mem;
    lt_gpu_device *d = p->device;
    for (size_t i = 0; i < LT_GPU_RECORDINGS; i++) {
        if (p->recordings[i].recording) d->recording_free(d, p->recordings[i].recording);
    }
    lt_gpu_slots_free(p, &p->blocks);
    lt_gpu_slots_free(p, &p->memories);
    d->release(d, p->rotary);
    d->release(d, p->tables);
    d->release(d, p->kept);
    d->release(d, p->workspace);
    lt_gpu_weights_free(p);
    if (p->library) d->library_free(d, p->library);
    lt_free(mem, p->rotary_staging);
    lt_free(mem, p->staging);
    lt_free(mem, p->top_staging);
    lt_free(mem, p->state_offset);
    lt_free(mem, p->joins);
    lt_free(mem, p->places);
    pthread_mutex_destroy(&p->lock);
    lt_free(mem, p);
}

static lattice_status compile_program(lt_program *p, lattice_error *err)
{
    LT_TRY(lt_gpu_shape_of(p->plan, &p->shape, err));
    find_few(p);
    p->shape.keeps_bf16 = p->kv_type == LT_GPU_BF16;
    LT_TRY(build_kernels(p, err));
    LT_TRY(lt_gpu_find_joins(p, err));
    LT_TRY(place_values(p, err));
    LT_TRY(lt_gpu_place_states(p, err));
    LT_TRY(find_rotary(p, err));
    return lt_gpu_weights_upload(p, err);
}

static lattice_status compile(lt_backend *backend, const lt_plan *plan, const lt_compile_options *options, lt_program **program,
                              lattice_error *err)
{
    gpu_backend *gpu = (gpu_backend *)backend;
    *program = NULL;
    LT_TRY(lt_plan_check(plan, err));
    if (options->max_tokens == 0 || options->max_seqs == 0 || options->max_tokens > UINT32_MAX / 4)
        return lt_fail(err, LATTICE_ERR_INVALID_ARGUMENT, "gpu: a batch of %zu tokens", options->max_tokens);
    lt_program *p = lt_alloc_zero(&gpu->runtime->mem, sizeof *p);
    if (!p) return lt_no_memory(err, sizeof *p, "a compiled plan");
    p->runtime = gpu->runtime;
    p->device = gpu->device;
    p->plan = plan;
    p->max_tokens = options->max_tokens;
    p->max_seqs = options->max_seqs;
    p->compute = choose_compute(plan, gpu->compute);
    enum { UNPACKED_SHARE = 8 }; /* of the device's memory, for copies of weights */
    p->most_unpacked_bytes = options->copies == LT_COPIES_NONE ? 0 : (size_t)(p->device->memory_bytes / UNPACKED_SHARE);
    p->kv_type = p->compute == LATTICE_COMPUTE_BF16 ? LT_GPU_BF16 : LT_GPU_F32;
    if (pthread_mutex_init(&p->lock, NULL) != 0) {
        lt_free(&gpu->runtime->mem, p);
        return lt_no_memory(err, sizeof p->lock, "a lock");
    }
    lattice_status status = compile_program(p, err);
    if (status != LATTICE_OK) {
        program_free(p);
        return status;
    }
    *program = p;
    return LATTICE_OK;
}

static void memory(const lt_program *p, lt_memory_report *report)
{
    *report = (lt_memory_report){
        .weight_bytes = p->stored_bytes,
        .packed_bytes = p->unpacked_bytes,
        .workspace_bytes = p->workspace_bytes,
        .touched_bytes = p->workspace_bytes,
    };
}

static lattice_compute compute(const lt_program *p)
{
    return p->compute;
}

static void backend_free(lt_backend *backend)
{
    gpu_backend *gpu = (gpu_backend *)backend;
    if (!gpu) return;
    gpu->device->free(gpu->device);
    lt_free(&gpu->runtime->mem, gpu);
}

lattice_status lt_gpu_backend_create(lattice_runtime *runtime, lt_gpu_device *device, lattice_compute wanted,
                                     lt_backend **backend, lattice_error *err)
{
    *backend = NULL;
    gpu_backend *gpu = NULL;
    lattice_status status = LATTICE_OK;
    if (wanted == LATTICE_COMPUTE_INT8)
        status = lt_fail(err, LATTICE_ERR_UNSUPPORTED, "gpu: only float32 and bfloat16 arithmetic are built in");
    if (status == LATTICE_OK && !(gpu = lt_alloc_zero(&runtime->mem, sizeof *gpu)))
        status = lt_no_memory(err, sizeof *gpu, "a backend");
    if (status != LATTICE_OK) {
        device->free(device);
        return status;
    }
    gpu->base = (lt_backend){
        .name = device->driver,
        .isa = "",
        .supports = supports,
        .compile = compile,
        .program_free = program_free,
        .run = lt_gpu_run,
        .fetch = lt_gpu_fetch,
        .memory = memory,
        .compute = compute,
        .states = &lt_gpu_state_ops,
        .free = backend_free,
    };
    gpu->runtime = runtime;
    gpu->device = device;
    gpu->compute = wanted;
    *backend = &gpu->base;
    return LATTICE_OK;
}
