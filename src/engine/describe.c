/* Descriptions as JSON: of the machine (lattice_describe_system) and of a model (lattice_model_describe). */
#include <stdio.h>
#include <string.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "backend/gpu/device.h"
#include "backend/gpu/shape.h"
#include "engine/model.h"
#include "format/json.h"

/* Copies what fits, with a NUL, and says the whole length. */
static lattice_status hand_over(lt_buf *text, char *out, size_t capacity, size_t *length, lattice_error *err)
{
    lattice_status status = text->failed ? lt_no_memory(err, text->len, "a description") : LATTICE_OK;
    if (status == LATTICE_OK) {
        *length = text->len;
        if (capacity > 0) {
            size_t n = text->len < capacity - 1 ? text->len : capacity - 1;
            memcpy(out, text->data, n);
            out[n] = 0;
        }
    }
    lt_buf_free(text);
    return status;
}

static void write_member(lt_json_writer *w, const char *key, const char *value)
{
    lt_json_write_key(w, key);
    lt_json_write_z(w, value);
}

static void write_number(lt_json_writer *w, const char *key, uint64_t value)
{
    lt_json_write_key(w, key);
    lt_json_write_uint(w, value);
}

static void write_bool(lt_json_writer *w, const char *key, bool value)
{
    lt_json_write_key(w, key);
    lt_json_write_bool(w, value);
}

/* ------------------------------------------------------------------ the machine */

#define TEXT_OF(x) #x
#define TEXT(x) TEXT_OF(x)

static const char *build(void)
{
    return
#if defined(__clang__)
        "clang " TEXT(__clang_major__) "." TEXT(__clang_minor__)
#elif defined(__GNUC__)
        "gcc " TEXT(__GNUC__) "." TEXT(__GNUC_MINOR__)
#else
        "unknown compiler"
#endif
#if defined(__x86_64__)
            ", x86_64"
#elif defined(__aarch64__)
            ", aarch64"
#endif
#if defined(NDEBUG)
            ", release"
#else
            ", debug"
#endif
        ;
}

/* The processor's own name where it can be asked for it; "" else. */
static void processor_name(char name[64])
{
    memset(name, 0, 64);
#if defined(__x86_64__)
    unsigned r[4];
    if (!__get_cpuid(0x80000000u, &r[0], &r[1], &r[2], &r[3]) || r[0] < 0x80000004u) return;
    for (unsigned leaf = 0; leaf < 3; leaf++) {
        __get_cpuid(0x80000002u + leaf, &r[0], &r[1], &r[2], &r[3]);
        memcpy(name + 16 * leaf, r, 16);
    }
    size_t lead = strspn(name, " ");
    memmove(name, name + lead, strlen(name) + 1 - lead);
#endif
}

static void write_device(lt_json_writer *w, const char *name, bool used, const char *reason)
{
    lt_json_write_begin(w, '{');
    write_member(w, "name", name);
    write_bool(w, "used", used);
    write_member(w, "reason", reason);
    lt_json_write_end(w, '}');
}

lattice_status lattice_describe_system(char *out, size_t capacity, size_t *length)
{
    lt_buf text;
    lt_buf_init(&text, &lt_malloc_allocator);
    lt_json_writer w = lt_json_writer_on(&text);
    lt_json_write_begin(&w, '{');
    write_member(&w, "version", lattice_version());
    write_member(&w, "build", build());
    size_t n;
    const lt_kernels *const *available = lt_kernels_available(&n);
    lt_json_write_key(&w, "isa");
    lt_json_write_begin(&w, '[');
    for (size_t i = 0; i < n; i++) lt_json_write_z(&w, available[i]->isa);
    lt_json_write_end(&w, ']');
    write_member(&w, "isa_chosen", available[0]->isa);
    char name[64], cpu[128];
    processor_name(name);
    int cpus = lt_available_cpus();
    snprintf(cpu, sizeof cpu, "%s%s%d CPU%s", name, name[0] ? ", " : "", cpus, cpus == 1 ? "" : "s");
    lt_json_write_key(&w, "devices");
    lt_json_write_begin(&w, '[');
    write_device(&w, "cpu", true, cpu);
    size_t n_drivers;
    const lt_gpu_driver *const *drivers = lt_gpu_drivers(&n_drivers);
    for (size_t i = 0; i < n_drivers; i++) {
        char reason[256];
        bool found = drivers[i]->describe(reason, sizeof reason);
        write_device(&w, drivers[i]->name, found, reason);
    }
    lt_json_write_end(&w, ']');
    lt_json_write_end(&w, '}');
    return hand_over(&text, out, capacity, length, NULL);
}

/* ------------------------------------------------------------------ a model */

static const char *activation_name(lt_activation activation)
{
    switch (activation) {
    case LT_ACT_NONE: return "none";
    case LT_ACT_GELU: return "gelu";
    case LT_ACT_GELU_TANH: return "gelu_tanh";
    case LT_ACT_RELU: return "relu";
    case LT_ACT_SILU: return "silu";
    case LT_ACT_TANH: return "tanh";
    case LT_ACT_SIGMOID: return "sigmoid";
    }
    return "unknown";
}

static void write_sizes(lt_json_writer *w, const lattice_model *m, const lattice_model_info *info)
{
    const lt_config *c = &m->config;
    write_number(w, "parameters", info->n_parameters);
    write_number(w, "hidden_size", c->hidden_size);
    write_number(w, "layers", c->n_layers);
    write_number(w, "heads", c->n_heads);
    write_number(w, "kv_heads", c->n_kv_heads);
    write_number(w, "head_dim", c->head_dim);
    write_number(w, "intermediate_size", c->intermediate_size);
    write_member(w, "activation", activation_name(c->activation));
    write_number(w, "vocabulary", c->vocab_size);
    write_number(w, "positions", info->max_positions);
    write_number(w, "max_length", info->max_length);
    write_number(w, "embedding_dim", info->embedding_dim);
}

static void write_tensor_types(lt_json_writer *w, const lattice_model *m)
{
    lt_json_write_key(w, "tensor_types");
    lt_json_write_begin(w, '{');
    for (lt_dtype type = LT_F32; type <= LT_OTHER; type++) {
        uint64_t n = 0, bytes = 0;
        for (size_t i = 0; i < lt_checkpoint_count(m->checkpoint); i++) {
            const lt_tensor *tensor = lt_checkpoint_at(m->checkpoint, i);
            if (tensor->dtype != type) continue;
            n++;
            bytes += tensor->size;
        }
        if (n == 0) continue;
        lt_json_write_key(w, lt_dtype_name(type));
        lt_json_write_begin(w, '{');
        write_number(w, "tensors", n);
        write_number(w, "bytes", bytes);
        lt_json_write_end(w, '}');
    }
    lt_json_write_end(w, '}');
    write_number(w, "files", lt_checkpoint_shards(m->checkpoint));
}

static void write_memory(lt_json_writer *w, const lattice_model_info *info)
{
    lt_json_write_key(w, "memory");
    lt_json_write_begin(w, '{');
    write_number(w, "weight_bytes", info->weight_bytes);
    write_number(w, "packed_bytes", info->packed_bytes);
    write_number(w, "workspace_bytes", info->workspace_bytes);
    write_number(w, "batch_tokens", info->batch_tokens);
    lt_json_write_end(w, '}');
}

static void write_tokenizer(lt_json_writer *w, const lattice_model *m)
{
    lt_json_write_key(w, "tokenizer");
    if (!m->tokenizer) {
        lt_json_write_null(w);
        return;
    }
    const lt_tokenizer *tokenizer = lt_tokenizer_of(m->tokenizer);
    lt_json_write_begin(w, '{');
    write_member(w, "kind", lt_tokenizer_kind(tokenizer));
    write_number(w, "vocabulary", lt_tokenizer_size(tokenizer));
    write_number(w, "added_to_text", lt_tokenizer_added(tokenizer, false));
    write_number(w, "added_to_pair", lt_tokenizer_added(tokenizer, true));
    lt_json_write_end(w, '}');
}

static void write_pooling(lt_json_writer *w, const lt_sentence *s)
{
    static const char *const names[] = { "cls", "max", "mean", "mean_sqrt_len", "weightedmean", "lasttoken" };
    char text[96] = "";
    for (unsigned i = 0; i < 6; i++) {
        if (!(s->pooling & 1u << i)) continue;
        size_t length = strlen(text);
        snprintf(text + length, sizeof text - length, "%s%s", length ? "+" : "", names[i]);
    }
    write_member(w, "pooling", text);
    write_bool(w, "include_prompt", s->include_prompt);
    write_bool(w, "normalize", s->normalize);
    write_bool(w, "lower_case", s->lower_case);
    lt_json_write_key(w, "dense");
    lt_json_write_begin(w, '[');
    for (size_t i = 0; i < s->n_dense; i++) {
        lt_json_write_begin(w, '{');
        write_number(w, "in", s->dense[i].in_features);
        write_number(w, "out", s->dense[i].out_features);
        write_member(w, "activation", activation_name(s->dense[i].activation));
        lt_json_write_end(w, '}');
    }
    lt_json_write_end(w, ']');
    lt_json_write_key(w, "prompts");
    lt_json_write_begin(w, '{');
    for (size_t i = 0; i < s->n_prompts; i++) write_member(w, s->prompts[i].name, s->prompts[i].text);
    lt_json_write_end(w, '}');
    lt_json_write_key(w, "default_prompt");
    if (s->default_prompt)
        lt_json_write_z(w, s->default_prompt);
    else
        lt_json_write_null(w);
}

static void write_head(lt_json_writer *w, const lattice_model_info *info)
{
    static const char *const names[] = { "embedding", "classifier (cross-encoder)", "language model (reranker: no, yes)" };
    write_member(w, "head", names[info->head]);
    if (info->n_labels == 0) return;
    lt_json_write_key(w, "labels");
    lt_json_write_begin(w, '[');
    for (size_t i = 0; i < info->n_labels; i++) lt_json_write_z(w, info->labels[i]);
    lt_json_write_end(w, ']');
}

static void write_gpu(lt_json_writer *w, const lattice_model *m)
{
    lt_gpu_shape shape;
    char reason[LT_GPU_REASON] = "its layers differ in shape";
    bool admissible = lt_gpu_shape_of(&m->plan, &shape, NULL) == LATTICE_OK && lt_gpu_shape_admits(&shape, reason);
    lt_json_write_key(w, "gpu");
    lt_json_write_begin(w, '{');
    write_bool(w, "admissible", admissible);
    char text[LT_GPU_REASON + 32];
    size_t groups = admissible ? shape.n_heads / shape.n_kv_heads : 1;
    if (!admissible)
        snprintf(text, sizeof text, "%s: it runs on the CPU", reason);
    else
        snprintf(text, sizeof text, "head_dim %zu divides by 4, %zu query head%s to a key/value head", shape.head_dim, groups,
                 groups == 1 ? "" : "s");
    write_member(w, "reason", text);
    lt_json_write_end(w, '}');
}

static bool is_used(const lt_plan *plan, const lt_tensor *tensor)
{
    for (size_t i = 0; i < plan->n_weights; i++)
        for (int s = 0; s < plan->weights[i].n_segments; s++)
            if (plan->weights[i].segments[s].tensor == tensor) return true;
    return false;
}

static void write_tensors(lt_json_writer *w, const lattice_model *m)
{
    lt_json_write_key(w, "tensors");
    lt_json_write_begin(w, '[');
    for (size_t i = 0; i < lt_checkpoint_count(m->checkpoint); i++) {
        const lt_tensor *tensor = lt_checkpoint_at(m->checkpoint, i);
        lt_json_write_begin(w, '{');
        lt_json_write_key(w, "name");
        lt_json_write_str(w, tensor->name);
        lt_json_write_key(w, "type");
        lt_json_write_str(w, tensor->dtype_name);
        lt_json_write_key(w, "shape");
        lt_json_write_begin(w, '[');
        for (int d = 0; d < tensor->rank; d++) lt_json_write_uint(w, tensor->shape[d]);
        lt_json_write_end(w, ']');
        write_number(w, "bytes", tensor->size);
        write_member(w, "file", lt_checkpoint_shard_name(m->checkpoint, tensor->shard));
        write_bool(w, "used", is_used(&m->plan, tensor));
        lt_json_write_end(w, '}');
    }
    lt_json_write_end(w, ']');
}

static void write_plan(lt_json_writer *w, const lattice_model *m)
{
    lt_buf lines;
    lt_buf_init(&lines, m->mem);
    lt_plan_print(&m->plan, &lines);
    lt_json_write_key(w, "plan");
    lt_json_write_begin(w, '[');
    const char *end = lines.data + lines.len;
    for (const char *line = lines.data; line && line < end;) {
        const char *stop = memchr(line, '\n', (size_t)(end - line));
        size_t length = stop ? (size_t)(stop - line) : (size_t)(end - line);
        lt_json_write_str(w, (lt_str){ line, length });
        line += length + 1;
    }
    lt_json_write_end(w, ']');
    if (lines.failed) w->out->failed = true;
    lt_buf_free(&lines);
}

lattice_status lattice_model_describe(const lattice_model *m, bool tensors, bool plan, char *out, size_t capacity, size_t *length,
                                      lattice_error *err)
{
    lattice_model_info info;
    lattice_model_get_info(m, &info);
    lt_buf text;
    lt_buf_init(&text, m->mem);
    lt_json_writer w = lt_json_writer_on(&text);
    lt_json_write_begin(&w, '{');
    write_member(&w, "folder", m->folder);
    write_member(&w, "family", info.family);
    write_member(&w, "model_type", m->config.model_type_name);
    write_member(&w, "architecture", m->config.architecture);
    write_head(&w, &info);
    write_sizes(&w, m, &info);
    write_tensor_types(&w, m);
    write_memory(&w, &info);
    write_member(&w, "compute", info.compute);
    write_member(&w, "device", info.device);
    write_number(&w, "n_devices", info.n_devices);
    write_member(&w, "isa", info.isa);
    write_tokenizer(&w, m);
    write_pooling(&w, &m->sentence);
    write_gpu(&w, m);
    if (tensors) write_tensors(&w, m);
    if (plan) write_plan(&w, m);
    lt_json_write_end(&w, '}');
    return hand_over(&text, out, capacity, length, err);
}
