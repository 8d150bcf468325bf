/* Finding a family's weights in a checkpoint. See bind.h. */
#include "model/bind.h"

#include <stdio.h>

/* Longest first where one starts with another: the bare name of a tensor is what the first fitting prefix leaves. */
static const char *const prefixes[] = { "model.language_model.", "language_model.model.", "bert.", "roberta.", "model." };
#define N_PREFIXES (sizeof prefixes / sizeof prefixes[0])

/* Parts of multimodal and multi-token-prediction checkpoints beside the text model. */
static const char *const foreign[] = { "model.visual.", "visual.", "mtp." };

#define MAX_NAME 256
#define MAX_WARNINGS 16

lattice_status lt_binder_open(lt_binder *binder, const lattice_runtime *runtime, lt_checkpoint *checkpoint, lt_plan *plan,
                              lattice_error *err)
{
    size_t count = lt_checkpoint_count(checkpoint);
    *binder = (lt_binder){ .runtime = runtime, .checkpoint = checkpoint, .plan = plan, .err = err };
    binder->used = lt_alloc_zero(&runtime->mem, count > 0 ? count : 1);
    if (!binder->used) return lt_no_memory(err, count, "the list of used tensors");
    return LATTICE_OK;
}

void lt_binder_close(lt_binder *binder)
{
    if (!binder->runtime) return;
    lt_free(&binder->runtime->mem, binder->used);
    binder->used = NULL;
}

/* ------------------------------------------------------------------ look-up */

static const lt_tensor *find_spelled(const lt_binder *binder, const char *prefix, const char *name)
{
    char full[MAX_NAME];
    int length = snprintf(full, sizeof full, "%s%s", prefix, name);
    if (length < 0 || (size_t)length >= sizeof full) return NULL;
    return lt_checkpoint_find(binder->checkpoint, (lt_str){ full, (size_t)length });
}

/* The tensor of a bare name; *twice: it is stored under two spellings, and which is meant cannot be known. */
static const lt_tensor *find(const lt_binder *binder, const char *name, bool *twice)
{
    const lt_tensor *found = find_spelled(binder, "", name);
    *twice = false;
    for (size_t i = 0; i < N_PREFIXES; i++) {
        const lt_tensor *other = find_spelled(binder, prefixes[i], name);
        if (other && found) *twice = true;
        if (other) found = other;
    }
    return found;
}

bool lt_binder_has(const lt_binder *binder, const char *name)
{
    bool twice;
    return find(binder, name, &twice) != NULL;
}

static size_t index_of(const lt_binder *binder, const lt_tensor *tensor)
{
    size_t low = 0, high = lt_checkpoint_count(binder->checkpoint);
    while (high - low > 1) { /* the catalogue is sorted by name */
        size_t middle = low + (high - low) / 2;
        lt_str a = lt_checkpoint_at(binder->checkpoint, middle)->name, b = tensor->name;
        int order = memcmp(a.data, b.data, a.len < b.len ? a.len : b.len);
        if (order > 0 || (order == 0 && a.len > b.len)) {
            high = middle;
        } else {
            low = middle;
        }
    }
    return low;
}

static const char *file_of(const lt_binder *binder, const lt_tensor *tensor)
{
    return lt_checkpoint_shard_name(binder->checkpoint, tensor->shard);
}

static void print_shape(const lt_tensor *tensor, char *out, size_t size)
{
    size_t length = 0;
    out[0] = '\0';
    for (int i = 0; i < tensor->rank && length < size; i++) {
        int n = snprintf(out + length, size - length, "%s%zu", i > 0 ? ", " : "", tensor->shape[i]);
        if (n < 0) return;
        length += (size_t)n;
    }
}

static lattice_status find_checked(lt_binder *binder, const char *name, size_t rows, size_t cols, int rank, const lt_tensor **out)
{
    bool twice;
    const lt_tensor *tensor = find(binder, name, &twice);
    if (!tensor) {
        return lt_fail(binder->err, LATTICE_ERR_FORMAT, "%s: tensor '%s' is missing", lt_checkpoint_folder(binder->checkpoint),
                       name);
    }
    if (twice) {
        return lt_fail(binder->err, LATTICE_ERR_FORMAT, "%s: tensor '%s' is stored under two prefixes",
                       lt_checkpoint_folder(binder->checkpoint), name);
    }
    if (tensor->dtype != LT_F32 && tensor->dtype != LT_F16 && tensor->dtype != LT_BF16 &&
        ((tensor->dtype != LT_Q8_0 && tensor->dtype != LT_INT8_ROWS) || rank != 2)) {
        return lt_fail(binder->err, LATTICE_ERR_UNSUPPORTED, "%s: tensor '%.*s' has type %.*s; supported are F32, F16, BF16%s",
                       file_of(binder, tensor), LT_STR_ARG(tensor->name), LT_STR_ARG(tensor->dtype_name),
                       rank == 2 ? ", Q8_0 and INT8_ROWS" : "");
    }
    bool fits = tensor->rank == rank && tensor->shape[0] == rows && (rank == 1 || tensor->shape[rank - 1] == cols) &&
                (rank < 3 || tensor->shape[1] == 1);
    if (!fits) {
        char shape[128], wanted[64];
        print_shape(tensor, shape, sizeof shape);
        if (rank == 1) {
            snprintf(wanted, sizeof wanted, "%zu", rows);
        } else {
            snprintf(wanted, sizeof wanted, rank == 2 ? "%zu, %zu" : "%zu, 1, %zu", rows, cols);
        }
        return lt_fail(binder->err, LATTICE_ERR_FORMAT, "%s: tensor '%.*s' has shape [%s], expected [%s]",
                       file_of(binder, tensor), LT_STR_ARG(tensor->name), shape, wanted);
    }
    binder->used[index_of(binder, tensor)] = 1;
    *out = tensor;
    return LATTICE_OK;
}

/* ------------------------------------------------------------------ binding */

lattice_status lt_bind_joined(lt_binder *binder, const char *const *names, int n_names, const size_t *rows, size_t cols, int rank,
                              int *out)
{
    lt_weight weight = { .cols = cols, .n_segments = n_names };
    for (int i = 0; i < n_names; i++) {
        const lt_tensor *tensor = NULL;
        LT_TRY(find_checked(binder, names[i], rows[i], cols, rank, &tensor));
        if (i > 0 && tensor->dtype != weight.dtype) {
            return lt_fail(binder->err, LATTICE_ERR_UNSUPPORTED, "%s: tensor '%.*s' has type %s, its neighbour '%s' %s",
                           file_of(binder, tensor), LT_STR_ARG(tensor->name), lt_dtype_name(tensor->dtype), names[0],
                           lt_dtype_name(weight.dtype));
        }
        weight.dtype = tensor->dtype;
        weight.segments[i] = (lt_segment){ .checkpoint = binder->checkpoint, .tensor = tensor };
        if (!lt_add(weight.rows, rows[i], &weight.rows)) {
            return lt_fail(binder->err, LATTICE_ERR_FORMAT, "%s: tensor '%s' is too large", file_of(binder, tensor), names[i]);
        }
    }
    *out = lt_plan_weight(binder->plan, &weight);
    if (*out == LT_NONE) return lt_no_memory(binder->err, sizeof weight, "a plan's weights");
    return LATTICE_OK;
}

lattice_status lt_bind_matrix(lt_binder *binder, const char *name, size_t rows, size_t cols, int *out)
{
    return lt_bind_joined(binder, &name, 1, &rows, cols, 2, out);
}

lattice_status lt_bind_taps(lt_binder *binder, const char *name, size_t channels, size_t taps, int *out)
{
    return lt_bind_joined(binder, &name, 1, &channels, taps, 3, out);
}

lattice_status lt_bind_vector(lt_binder *binder, const char *name, size_t n, int *out)
{
    return lt_bind_joined(binder, &name, 1, &n, 1, 1, out);
}

/* ------------------------------------------------------------------ what is left */

static lt_str bare_name(lt_str name)
{
    for (size_t i = 0; i < N_PREFIXES; i++) {
        if (lt_str_starts(name, prefixes[i])) {
            size_t n = strlen(prefixes[i]);
            return (lt_str){ name.data + n, name.len - n };
        }
    }
    return name;
}

static bool is_ignored(lt_str name, const char *const *ignored)
{
    for (size_t i = 0; i < sizeof foreign / sizeof foreign[0]; i++) {
        if (lt_str_starts(name, foreign[i])) return true;
    }
    lt_str bare = bare_name(name);
    if (lt_str_ends(bare, "position_ids") || lt_str_ends(bare, "embeddings.token_type_ids")) return true;
    for (; *ignored; ignored++) {
        if (lt_str_starts(bare, *ignored)) return true;
    }
    return false;
}

/* The used weight that an unused bias belongs to, or NULL. */
static const lt_tensor *weight_beside(const lt_binder *binder, lt_str bias)
{
    char name[MAX_NAME];
    if (!lt_str_ends(bias, ".bias") || bias.len + 2 >= sizeof name) return NULL;
    size_t stem = bias.len - strlen("bias");
    memcpy(name, bias.data, stem);
    memcpy(name + stem, "weight", strlen("weight"));
    const lt_tensor *weight = lt_checkpoint_find(binder->checkpoint, (lt_str){ name, stem + strlen("weight") });
    return weight && binder->used[index_of(binder, weight)] ? weight : NULL;
}

lattice_status lt_binder_finish(lt_binder *binder, const char *const *ignored)
{
    size_t unknown = 0;
    for (size_t i = 0; i < lt_checkpoint_count(binder->checkpoint); i++) {
        const lt_tensor *tensor = lt_checkpoint_at(binder->checkpoint, i);
        if (binder->used[i]) continue;
        if (weight_beside(binder, tensor->name)) {
            return lt_fail(binder->err, LATTICE_ERR_UNSUPPORTED, "%s: tensor '%.*s': this model is not known to have such a bias",
                           file_of(binder, tensor), LT_STR_ARG(tensor->name));
        }
        if (is_ignored(tensor->name, ignored)) continue;
        if (unknown++ < MAX_WARNINGS) {
            lt_log(binder->runtime, LATTICE_LOG_WARNING, "%s: tensor '%.*s' is not used", file_of(binder, tensor),
                   LT_STR_ARG(tensor->name));
        }
    }
    if (unknown > MAX_WARNINGS) {
        lt_log(binder->runtime, LATTICE_LOG_WARNING, "%s: %zu more tensors are not used",
               lt_checkpoint_folder(binder->checkpoint), unknown - MAX_WARNINGS);
    }
    return LATTICE_OK;
}
