/* Opening a model: configuration, weights, plan, backend, tokenizer; and questions about an open one. */
#include "engine/model.h"
#include "format/q8_0.h"

#include <stdio.h>
#include <string.h>

#include "backend/fallback.h"
#include "backend/gpu/gpu.h"

enum { DEFAULT_BATCH_TOKENS = 16384, MAX_BATCH_TOKENS = 1 << 24, MAX_SEQS = 1024 };

lattice_model_options lattice_model_options_default(void)
{
    return (lattice_model_options){ .batch_tokens = DEFAULT_BATCH_TOKENS };
}

/* ------------------------------------------------------------------ opening */

/* The tokens that a language model judges documents with, "no" and "yes". A checkpoint with modules.json is meant for vectors,
 * and one whose vocabulary lacks a word cannot be asked. */
static size_t find_score_ids(const lattice_model *m, uint32_t ids[2])
{
    if (m->config.head != LT_HEAD_LM || m->sentence.has_modules || !m->tokenizer) return 0;
    const lt_tokenizer *tokenizer = lt_tokenizer_of(m->tokenizer);
    bool found = lt_tokenizer_find(tokenizer, LT_STR("no"), &ids[0]) && lt_tokenizer_find(tokenizer, LT_STR("yes"), &ids[1]);
    return found && ids[0] < m->config.vocab_size && ids[1] < m->config.vocab_size ? 2 : 0;
}

static lattice_status record_plan(lattice_model *m, lattice_error *err)
{
    m->family = lt_family_find(&m->config);
    if (!m->family)
        return lt_fail(err, LATTICE_ERR_UNSUPPORTED, "%s: no family built in computes %s (model_type '%s')", m->folder,
                       m->config.architecture[0] ? m->config.architecture : "this architecture", m->config.model_type_name);
    uint32_t ids[2];
    size_t n_ids = find_score_ids(m, ids);
    LT_TRY(m->family->record(m->runtime, &m->config, &m->sentence, m->checkpoint, ids, n_ids, &m->plan, err));
    return m->plan.failed ? lt_no_memory(err, 0, "a plan") : LATTICE_OK;
}

static bool segment_seen(const lt_plan *plan, size_t weight, int segment)
{
    const lt_tensor *tensor = plan->weights[weight].segments[segment].tensor;
    for (size_t w = 0; w <= weight; w++) {
        int n = w < weight ? plan->weights[w].n_segments : segment;
        for (int s = 0; s < n; s++)
            if (plan->weights[w].segments[s].tensor == tensor) return true;
    }
    return false;
}

/* Tensors in use, each counted once however many operands share it. */
static void count_weights(lattice_model *m)
{
    for (size_t w = 0; w < m->plan.n_weights; w++) {
        for (int s = 0; s < m->plan.weights[w].n_segments; s++) {
            if (segment_seen(&m->plan, w, s)) continue;
            const lt_tensor *tensor = m->plan.weights[w].segments[s].tensor;
            m->n_parameters += tensor->n_elements;
            m->weight_bytes += tensor->size;
        }
    }
}

/* Backends on the devices, which they own; on failure all are freed. */
static lattice_status open_gpus(lattice_model *m, const lattice_model_options *options, const lt_gpu_devices *devices,
                                lt_backend *gpus[LT_GPU_MAX_DEVICES], lattice_error *err)
{
    lt_gpu_shape shape;
    char reason[LT_GPU_REASON];
    size_t n = 0, taken = 0;
    lattice_status status = lt_gpu_shape_of(&m->plan, &shape, err);
    if (status == LATTICE_OK && !lt_gpu_shape_admits(&shape, reason))
        status = lt_fail(err, LATTICE_ERR_UNSUPPORTED, "%s", reason);
    for (; status == LATTICE_OK && taken < devices->n; taken++) {
        status = lt_gpu_backend_create(m->runtime, devices->device[taken], options->compute, &gpus[n], err);
        if (status == LATTICE_OK) n++;
    }
    if (status == LATTICE_OK) return LATTICE_OK;
    for (size_t i = 0; i < n; i++) gpus[i]->free(gpus[i]);
    for (size_t i = taken; i < devices->n; i++) devices->device[i]->free(devices->device[i]);
    return status;
}

/* The GPUs and behind them the CPU, which takes over in float32 where they fail, whatever the CPU could do faster. Owns the
 * devices. */
static lattice_status join_backends(lattice_model *m, const lattice_model_options *options, const lt_gpu_devices *devices,
                                    lt_backend **joined, lattice_error *err)
{
    lt_backend *gpus[LT_GPU_MAX_DEVICES], *cpu = NULL;
    LT_TRY(open_gpus(m, options, devices, gpus, err));
    lattice_status status = lt_cpu_backend_create(m->runtime, options->isa, LATTICE_COMPUTE_F32, &cpu, err);
    if (status == LATTICE_OK)
        status = lt_fallback_backend_create(m->runtime, gpus, devices->n, cpu, m->config.gpu_max_seq_len, joined, err);
    if (status == LATTICE_OK) return LATTICE_OK;
    if (cpu) cpu->free(cpu);
    for (size_t i = 0; i < devices->n; i++) gpus[i]->free(gpus[i]);
    return status;
}

/* Compiles for GPUs, where they are wanted, there and able to take the model; else leaves m->program NULL, with a warning that
 * says why (INV-4). */
static lattice_status compile_on_gpu(lattice_model *m, const lattice_model_options *options, const lt_compile_options *compile,
                                     lattice_error *err)
{
    lt_gpu_devices devices;
    lattice_error why;
    LT_TRY(lt_gpu_select(m->runtime, options->device, &devices, err));
    if (devices.n == 0) return LATTICE_OK;
    lattice_status status = join_backends(m, options, &devices, &m->backend, &why);
    if (status == LATTICE_OK) status = m->backend->compile(m->backend, &m->plan, compile, &m->program, &why);
    if (status == LATTICE_OK) return LATTICE_OK;
    lt_log(m->runtime, LATTICE_LOG_WARNING, "%s: running on the CPU: %s", m->folder, why.message);
    if (m->backend) m->backend->free(m->backend);
    m->backend = NULL;
    return LATTICE_OK;
}

static lattice_status compile_plan(lattice_model *m, const lattice_model_options *options, lattice_error *err)
{
    m->max_positions = lt_config_max_length(&m->config);
    m->max_length =
        m->sentence.max_length && m->sentence.max_length < m->max_positions ? m->sentence.max_length : m->max_positions;
    m->batch_tokens = options->batch_tokens ? options->batch_tokens : DEFAULT_BATCH_TOKENS;
    if (m->batch_tokens > MAX_BATCH_TOKENS)
        return lt_fail(err, LATTICE_ERR_INVALID_ARGUMENT, "a batch of %zu tokens is more than %d", m->batch_tokens,
                       MAX_BATCH_TOKENS);
    m->max_tokens = m->batch_tokens > m->max_positions ? m->batch_tokens : m->max_positions;
    m->max_seqs = m->max_tokens < MAX_SEQS ? m->max_tokens : MAX_SEQS;
    lt_compile_options compile = { .max_tokens = m->max_tokens, .max_seqs = m->max_seqs };
    LT_TRY(compile_on_gpu(m, options, &compile, err));
    if (!m->program) {
        LT_TRY(lt_cpu_backend_create(m->runtime, options->isa, options->compute, &m->backend, err));
        LT_TRY(m->backend->compile(m->backend, &m->plan, &compile, &m->program, err));
    }
    m->kernels = lt_kernels_find(m->backend->isa);
    return LATTICE_OK;
}

static lattice_status open_dense(lattice_model *m, lattice_error *err)
{
    m->n_dense = m->sentence.n_dense;
    if (m->n_dense == 0) return LATTICE_OK;
    m->dense = lt_alloc_zero(m->mem, m->n_dense * sizeof *m->dense);
    if (!m->dense) {
        m->n_dense = 0;
        return lt_no_memory(err, sizeof *m->dense, "Dense modules");
    }
    size_t width = m->plan.tails[LT_TAIL_POOLED].present ? lt_model_pooled_width(m, 0) : m->sentence.dense[0].in_features;
    for (size_t i = 0; i < m->n_dense; i++) {
        if (m->sentence.dense[i].in_features != width)
            return lt_fail(err, LATTICE_ERR_FORMAT, "%s: a Dense module takes %zu values, but gets %zu", m->folder,
                           m->sentence.dense[i].in_features, width);
        LT_TRY(lt_dense_create(m, i, err));
        width = m->dense[i].out_features;
    }
    return LATTICE_OK;
}

static lattice_status open_tokenizer(lattice_model *m, const lattice_model_options *options, lattice_error *err)
{
    lattice_status status = lattice_tokenizer_open(m->runtime, m->folder, &m->tokenizer, err);
    if (status == LATTICE_ERR_NOT_FOUND && options->tokenizer_optional) {
        m->tokenizer = NULL;
        return LATTICE_OK;
    }
    return status;
}

/* What a profile row says beside the operation: the first tensor of a product, the shape of an attention. */
static lattice_status name_ops(lattice_model *m, lattice_error *err)
{
    m->op_details = lt_arena_array(&m->arena, m->plan.n_ops, sizeof *m->op_details);
    if (!m->op_details) return lt_no_memory(err, m->plan.n_ops * sizeof *m->op_details, "names");
    for (size_t i = 0; i < m->plan.n_ops; i++) {
        const lt_op *op = &m->plan.ops[i];
        char text[64];
        lt_str detail = { "", 0 };
        if (op->weight[0] != LT_NONE) {
            detail = m->plan.weights[op->weight[0]].segments[0].tensor->name;
        } else if (op->code == LT_OP_ATTENTION) {
            snprintf(text, sizeof text, "%zu heads of %zu", op->n_heads, op->head_dim);
            detail = lt_str_of(text);
        }
        m->op_details[i] = lt_arena_copy(&m->arena, detail.data, detail.len);
        if (!m->op_details[i]) return lt_no_memory(err, detail.len, "names");
    }
    return LATTICE_OK;
}

static lattice_status open_model(lattice_model *m, const char *folder, const lattice_model_options *options, lattice_error *err)
{
    m->folder = lt_arena_copy(&m->arena, folder, strlen(folder));
    if (!m->folder) return lt_no_memory(err, strlen(folder), "a path");
    if (pthread_mutex_init(&m->lock, NULL) != 0) return lt_no_memory(err, sizeof m->lock, "a lock");
    m->has_lock = true;
    if (pthread_mutex_init(&m->fingerprint_lock, NULL) != 0) return lt_no_memory(err, sizeof m->lock, "a lock");
    m->has_fingerprint_lock = true;
    if (pthread_mutex_init(&m->rows_lock, NULL) != 0) return lt_no_memory(err, sizeof m->lock, "a lock");
    m->has_rows_lock = true;
    LT_TRY(lt_gpu_check_name(m->runtime, options->device, err));
    if (!lt_path_is_folder(folder)) return lt_fail(err, LATTICE_ERR_NOT_FOUND, "%s: no such folder", folder);
    LT_TRY(lt_config_read(m->mem, folder, &m->config, err));
    LT_TRY(lt_sentence_read(m->mem, folder, &m->config, !options->no_mmap, &m->sentence, err));
    LT_TRY(lt_checkpoint_open(m->mem, folder, !options->no_mmap, &m->checkpoint, err));
    LT_TRY(open_tokenizer(m, options, err));
    LT_TRY(record_plan(m, err));
    count_weights(m);
    LT_TRY(compile_plan(m, options, err));
    LT_TRY(open_dense(m, err));
    if (m->plan.tails[LT_TAIL_LOGITS].present) LT_TRY(lt_chat_open(m, err));
    return name_ops(m, err);
}

lattice_status lattice_model_open(lattice_runtime *runtime, const char *folder, const lattice_model_options *options,
                                  lattice_model **model, lattice_error *err)
{
    *model = NULL;
    lattice_model_options defaults = lattice_model_options_default();
    lattice_model *m = lt_alloc_zero(&runtime->mem, sizeof *m);
    if (!m) return lt_no_memory(err, sizeof *m, "a model");
    m->runtime = runtime;
    m->mem = &runtime->mem;
    lt_arena_init(&m->arena, m->mem);
    lt_arena_init(&m->config.arena, m->mem);
    lt_arena_init(&m->sentence.arena, m->mem);
    lt_plan_init(&m->plan, m->mem);
    lattice_status status = open_model(m, folder, options ? options : &defaults, err);
    if (status != LATTICE_OK) {
        lattice_model_close(m);
        return status;
    }
    *model = m;
    return LATTICE_OK;
}

void lattice_model_close(lattice_model *m)
{
    if (!m) return;
    lt_workers_free(m->idle);
    lt_steppers_free(m->mem, m->idle_steppers);
    lattice_tokenizer_close(m->tokenizer);
    for (size_t i = 0; i < m->n_dense; i++) lt_dense_free(m->mem, &m->dense[i]);
    lt_free(m->mem, m->dense);
    if (m->program) m->backend->program_free(m->program);
    if (m->backend) m->backend->free(m->backend);
    lt_plan_free(&m->plan);
    lt_sentence_free(&m->sentence);
    lt_checkpoint_close(m->checkpoint); /* INV-5: after everything that borrows from its files */
    lt_config_free(&m->config);
    if (m->has_lock) pthread_mutex_destroy(&m->lock);
    if (m->has_fingerprint_lock) pthread_mutex_destroy(&m->fingerprint_lock);
    if (m->has_rows_lock) pthread_mutex_destroy(&m->rows_lock);
    lt_free(m->mem, m->row_owners);
    lt_arena_free(&m->arena);
    lt_free(m->mem, m);
}

/* ------------------------------------------------------------------ questions */

lattice_tokenizer *lattice_model_tokenizer(lattice_model *model)
{
    return model->tokenizer;
}

lattice_head lt_model_head(const lattice_model *m)
{
    if (!m->plan.tails[LT_TAIL_SCORES].present)
        return m->plan.tails[LT_TAIL_POOLED].present ? LATTICE_HEAD_EMBEDDING : LATTICE_HEAD_GENERATOR;
    return m->config.head == LT_HEAD_CLASSIFIER ? LATTICE_HEAD_CLASSIFIER : LATTICE_HEAD_RERANKER;
}

void lattice_model_get_info(const lattice_model *m, lattice_model_info *info)
{
    static const char *const compute_names[] = {
        [LATTICE_COMPUTE_AUTO] = "auto",
        [LATTICE_COMPUTE_F32] = "f32",
        [LATTICE_COMPUTE_BF16] = "bf16",
        [LATTICE_COMPUTE_INT8] = "int8",
    };
    static const char *const no_yes[] = { "no", "yes" };
    lattice_head head = lt_model_head(m);
    bool is_classifier = head == LATTICE_HEAD_CLASSIFIER, is_reranker = head == LATTICE_HEAD_RERANKER;
    lt_memory_report memory;
    m->backend->memory(m->program, &memory);
    uint64_t packed = memory.packed_bytes;
    for (size_t i = 0; i < m->n_dense; i++) packed += lt_dense_packed_bytes(m->kernels, &m->dense[i]);
    *info = (lattice_model_info){
        .family = m->family->name,
        .hidden_size = m->config.hidden_size,
        .n_layers = m->config.n_layers,
        .embedding_dim = lattice_embed_dim(m, NULL),
        .max_length = m->max_length,
        .max_positions = m->max_positions,
        .batch_tokens = m->batch_tokens,
        .normalizes = m->sentence.normalize,
        .compute = compute_names[m->backend->compute(m->program)],
        .device = m->backend->name,
        .isa = m->backend->isa,
        .n_parameters = m->n_parameters,
        .weight_bytes = m->weight_bytes + m->dense_bytes,
        .packed_bytes = packed,
        .workspace_bytes = memory.workspace_bytes,
        .workspace_touched_bytes = memory.touched_bytes,
        .head = head,
        .vocab_size = m->config.vocab_size,
        .n_labels = is_classifier ? m->config.n_labels
                    : is_reranker ? 2
                                  : 0,
        .labels = is_classifier ? (const char *const *)m->config.labels
                  : is_reranker ? no_yes
                                : NULL,
        .n_scores = is_classifier ? m->config.n_labels : is_reranker,
        .n_devices = lt_model_devices(m),
    };
}

/* ------------------------------------------------------------------ checking weights */

/* Position in the tensor's shape: "[3, 17]". */
static void print_index(const lt_tensor *tensor, size_t flat, char *out, size_t capacity)
{
    size_t at[LT_MAX_RANK] = { 0 }, length = 0;
    for (int d = tensor->rank - 1; d >= 0; d--) {
        at[d] = flat % tensor->shape[d];
        flat /= tensor->shape[d];
    }
    for (int d = 0; d < tensor->rank && length < capacity; d++)
        length += (size_t)snprintf(out + length, capacity - length, "%s%zu", d ? ", " : "", at[d]);
    if (tensor->rank == 0) snprintf(out, capacity, "0");
}

/* Of blocks only the scales can be anything else than finite. */
static lattice_status check_q8_0(const lattice_model *m, lt_checkpoint *checkpoint, const lt_tensor *tensor, lattice_error *err)
{
    const void *data;
    LT_TRY(lt_checkpoint_data(checkpoint, tensor, &data, err));
    const size_t rows = tensor->shape[0], blocks = tensor->shape[1] / LT_Q8_0_BLOCK;
    const char *scales = (const char *)data + lt_q8_0_scales_offset(rows, tensor->shape[1]);
    for (size_t row = 0; row < rows; row++) {
        for (size_t b = 0; b < blocks; b++) {
            float scale;
            m->kernels->convert(&scale, scales + ((row / LT_Q8_0_PANEL * blocks + b) * LT_Q8_0_PANEL + row % LT_Q8_0_PANEL) * 2,
                                LT_F16, 1);
            if (m->kernels->all_finite(&scale, 1)) continue;
            return lt_fail(err, LATTICE_ERR_NOT_FINITE, "%s/%s: tensor '%.*s' has a scale that is %s at [%zu, %zu]",
                           lt_checkpoint_folder(checkpoint), lt_checkpoint_shard_name(checkpoint, tensor->shard),
                           LT_STR_ARG(tensor->name), scale != scale ? "NaN" : "infinite", row, b * LT_Q8_0_BLOCK);
        }
    }
    return LATTICE_OK;
}

static lattice_status check_tensor(lattice_model *m, lt_checkpoint *checkpoint, const lt_tensor *tensor, float *block,
                                   size_t block_size, lattice_error *err)
{
    if (tensor->dtype == LT_Q8_0) return check_q8_0(m, checkpoint, tensor, err);
    if (tensor->dtype != LT_F32 && tensor->dtype != LT_F16 && tensor->dtype != LT_BF16) return LATTICE_OK;
    const void *data;
    LT_TRY(lt_checkpoint_data(checkpoint, tensor, &data, err));
    size_t element = lt_dtype_size(tensor->dtype);
    for (size_t at = 0; at < tensor->n_elements; at += block_size) {
        size_t n = tensor->n_elements - at < block_size ? tensor->n_elements - at : block_size;
        m->kernels->convert(block, (const char *)data + at * element, tensor->dtype, n);
        if (m->kernels->all_finite(block, n)) continue;
        size_t i = 0;
        while (i + 1 < n && m->kernels->all_finite(block + i, 1)) i++;
        char index[200];
        print_index(tensor, at + i, index, sizeof index);
        return lt_fail(err, LATTICE_ERR_NOT_FINITE, "%s/%s: tensor '%.*s' is %s at [%s]", lt_checkpoint_folder(checkpoint),
                       lt_checkpoint_shard_name(checkpoint, tensor->shard), LT_STR_ARG(tensor->name),
                       block[i] != block[i] ? "NaN" : "infinite", index);
    }
    return LATTICE_OK;
}

static lattice_status check_checkpoint(lattice_model *m, lt_checkpoint *checkpoint, float *block, size_t block_size,
                                       lattice_error *err)
{
    for (size_t i = 0; i < lt_checkpoint_count(checkpoint); i++)
        LT_TRY(check_tensor(m, checkpoint, lt_checkpoint_at(checkpoint, i), block, block_size, err));
    return lt_checkpoint_verify(checkpoint, err);
}

lattice_status lattice_model_check(lattice_model *m, lattice_error *err)
{
    enum { BLOCK = 16384 };
    float *block = lt_alloc_array(m->mem, BLOCK, sizeof *block);
    if (!block) return lt_no_memory(err, BLOCK * sizeof *block, "a block");
    lattice_status status = check_checkpoint(m, m->checkpoint, block, BLOCK, err);
    for (size_t i = 0; status == LATTICE_OK && i < m->sentence.n_dense; i++)
        status = check_checkpoint(m, m->sentence.dense[i].weights, block, BLOCK, err);
    lt_free(m->mem, block);
    return status;
}
