/* lattice_embed: texts to vectors.
 *
 * A call goes through its texts in windows of bounded size. While one window computes, the next is tokenised in the background.
 * A window is packed into batches (batch.h); each batch runs through the plan and its pooling, then here: Dense modules, the cut
 * to `dim`, normalising. A vector is written to the caller's row only when it is finite.
 *
 * With a cache, a text whose ids are found there gets its vector while the window is filled and takes no place in it. */
#include <math.h>
#include <string.h>

#include "engine/cache.h"
#include "engine/embed.h"
#include "engine/lower_case.h"
#include "engine/model.h"

/* The first window is small, so that computing begins early. */
enum { FIRST_WINDOW_TEXTS = 512, WINDOW_TEXTS = 4096 };
/* Batches for each of several devices in one run: the more there are, the less it weighs that they do not end together. */
enum { ROUNDS = 8 };
static const size_t window_bytes = (size_t)2 << 20;
/* What an idle worker keeps of its largest arrays. */
static const size_t kept_ids = (size_t)1 << 18, kept_floats = (size_t)1 << 19, kept_bytes = (size_t)1 << 20;

/* Texts of the caller's list from number window.first on, and of these the ones to compute. */
typedef struct text_window {
    lt_window window;
    size_t n_taken;
    size_t *index; /* [window.n] number in the caller's list */
    size_t index_capacity;
    uint64_t n_found, found_tokens; /* in the cache */
} text_window;

/* Working memory of one call. Tokenising uses scratch, tokens, text and one window; computing the rest. */
struct lt_worker {
    lt_worker *next;
    lt_scratch *scratch;
    lt_tokens tokens;
    lt_buf text;
    text_window windows[2];
    lt_packer packer;
    lt_embed_rows rows;
};

/* What a call asks for, resolved against the model. */
typedef struct embed_job {
    lattice_model *model;
    lattice_embed_options options;
    const lattice_text *texts; /* or */
    const lattice_ids *inputs;
    size_t n;
    lt_str prompt;
    size_t prompt_skip; /* tokens that pooling leaves out */
    size_t max_length, budget, max_seqs;
    size_t pooled_width, dim;
    bool normalize;
    lt_hash128 space; /* in options.cache */
    float *out;
    lattice_usage *usage;
    size_t done;
} embed_job;

/* ------------------------------------------------------------------ workers */

static void worker_free(lt_worker *w)
{
    const lattice_allocator *mem = w->packer.mem;
    lt_scratch_free(w->scratch);
    lt_tokens_free(&w->tokens);
    lt_buf_free(&w->text);
    for (int i = 0; i < 2; i++) {
        lt_window_free(&w->windows[i].window);
        lt_free(mem, w->windows[i].index);
    }
    lt_embed_rows_free(mem, &w->rows);
    lt_packer_free(&w->packer);
    lt_free(mem, w);
}

void lt_workers_free(lt_worker *first)
{
    while (first) {
        lt_worker *next = first->next;
        worker_free(first);
        first = next;
    }
}

static lattice_status worker_take(lattice_model *model, lt_worker **worker, lattice_error *err)
{
    pthread_mutex_lock(&model->lock);
    lt_worker *w = model->idle;
    if (w) model->idle = w->next;
    pthread_mutex_unlock(&model->lock);
    *worker = w;
    if (w) return LATTICE_OK;
    w = lt_alloc_zero(model->mem, sizeof *w);
    if (!w) return lt_no_memory(err, sizeof *w, "a worker");
    lt_tokens_init(&w->tokens, model->mem);
    lt_buf_init(&w->text, model->mem);
    for (int i = 0; i < 2; i++) lt_window_init(&w->windows[i].window, model->mem);
    lt_packer_init(&w->packer, model->mem);
    lattice_status status = LATTICE_OK;
    if (model->tokenizer) status = lt_scratch_create(lt_tokenizer_of(model->tokenizer), &w->scratch, err);
    if (status != LATTICE_OK) {
        worker_free(w);
        return status;
    }
    *worker = w;
    return LATTICE_OK;
}

static void worker_return(lattice_model *model, lt_worker *w)
{
    for (int i = 0; i < 2; i++)
        if (w->windows[i].window.ids_capacity > kept_ids) lt_window_free(&w->windows[i].window);
    if (w->rows.capacity[0] > kept_floats || w->rows.capacity[1] > kept_floats) lt_embed_rows_free(model->mem, &w->rows);
    if (w->packer.ids_capacity > kept_ids) lt_packer_free(&w->packer);
    if (w->tokens.capacity > kept_ids) {
        lt_tokens_free(&w->tokens);
        lt_tokens_init(&w->tokens, model->mem);
    }
    if (w->text.capacity > kept_bytes) {
        lt_buf_free(&w->text);
        lt_buf_init(&w->text, model->mem);
    }
    pthread_mutex_lock(&model->lock);
    w->next = model->idle;
    model->idle = w;
    pthread_mutex_unlock(&model->lock);
}

/* ------------------------------------------------------------------ options */

lattice_embed_options lattice_embed_options_default(void)
{
    return (lattice_embed_options){ .truncate = true };
}

size_t lt_model_pooled_width(const lattice_model *model, unsigned pooling)
{
    return lt_tail_width(&model->plan, LT_TAIL_POOLED, pooling ? pooling : model->sentence.pooling);
}

static const unsigned all_poolings = LATTICE_POOLING_CLS | LATTICE_POOLING_MAX | LATTICE_POOLING_MEAN |
                                     LATTICE_POOLING_MEAN_SQRT_LEN | LATTICE_POOLING_WEIGHTEDMEAN | LATTICE_POOLING_LASTTOKEN;

/* Checks what decides the width of a vector. */
static lattice_status resolve_dim(const lattice_model *model, const lattice_embed_options *options, size_t *pooled_width,
                                  size_t *dim, lattice_error *err)
{
    if (!model->plan.tails[LT_TAIL_POOLED].present)
        return lt_fail(err, LATTICE_ERR_UNSUPPORTED, "%s: a %s model with this head gives no embeddings", model->folder,
                       model->family->name);
    if (options->pooling & ~all_poolings)
        return lt_fail(err, LATTICE_ERR_INVALID_ARGUMENT, "unknown pooling %u", options->pooling);
    *pooled_width = lt_model_pooled_width(model, options->pooling);
    size_t full = *pooled_width;
    if (model->n_dense) {
        if (full != model->dense[0].in_features)
            return lt_fail(err, LATTICE_ERR_INVALID_ARGUMENT,
                           "this pooling gives %zu values, but the model's Dense module takes %zu", full,
                           model->dense[0].in_features);
        full = model->dense[model->n_dense - 1].out_features;
    }
    if (options->dim > full)
        return lt_fail(err, LATTICE_ERR_INVALID_ARGUMENT, "dimension %zu is not in 1 to %zu", options->dim, full);
    *dim = options->dim ? options->dim : full;
    return LATTICE_OK;
}

size_t lattice_embed_dim(const lattice_model *model, const lattice_embed_options *options)
{
    lattice_embed_options defaults = lattice_embed_options_default();
    size_t pooled_width = 0, dim = 0;
    return resolve_dim(model, options ? options : &defaults, &pooled_width, &dim, NULL) == LATTICE_OK ? dim : 0;
}

static lattice_status find_prompt(embed_job *job, lattice_error *err)
{
    const lt_sentence *sentence = &job->model->sentence;
    const char *name = job->options.prompt_name ? job->options.prompt_name : sentence->default_prompt;
    job->prompt = (lt_str){ "", 0 };
    if (job->options.prompt) {
        job->prompt = lt_str_of(job->options.prompt);
        return LATTICE_OK;
    }
    if (!name || !name[0]) return LATTICE_OK;
    for (size_t i = 0; i < sentence->n_prompts; i++) {
        if (strcmp(sentence->prompts[i].name, name) != 0) continue;
        job->prompt = lt_str_of(sentence->prompts[i].text);
        return LATTICE_OK;
    }
    char names[256] = "";
    size_t length = 0;
    for (size_t i = 0; i < sentence->n_prompts; i++) {
        size_t more = strlen(sentence->prompts[i].name);
        if (length + more + 3 > sizeof names) break;
        if (length) {
            memcpy(names + length, ", ", 2);
            length += 2;
        }
        memcpy(names + length, sentence->prompts[i].name, more);
        length += more;
    }
    names[length] = 0;
    return lt_fail(err, LATTICE_ERR_INVALID_ARGUMENT, "%s has no prompt '%s'; it has: %s", job->model->folder, name,
                   length ? names : "none");
}

static lattice_status resolve(embed_job *job, lattice_error *err)
{
    const lattice_model *model = job->model;
    const lattice_embed_options *o = &job->options;
    LT_TRY(resolve_dim(model, o, &job->pooled_width, &job->dim, err));
    if (o->max_length > model->max_positions)
        return lt_fail(err, LATTICE_ERR_INVALID_ARGUMENT, "maximum length %zu is more than the %zu tokens that %s admits",
                       o->max_length, model->max_positions, model->folder);
    if (o->batch_tokens > model->batch_tokens)
        return lt_fail(err, LATTICE_ERR_INVALID_ARGUMENT,
                       "a batch of %zu tokens is more than the %zu that the model was opened for", o->batch_tokens,
                       model->batch_tokens);
    job->max_length = o->max_length ? o->max_length : job->inputs ? model->max_positions : model->max_length;
    size_t n_devices = lt_model_devices(model), rounds = n_devices > 1 ? n_devices * ROUNDS : 1;
    job->budget = o->batch_tokens ? o->batch_tokens : model->batch_tokens * rounds;
    job->max_seqs = model->max_seqs * rounds;
    job->normalize = model->sentence.normalize && !o->no_normalize;
    if (job->inputs) return LATTICE_OK;
    if (!model->tokenizer && job->n)
        return lt_fail(err, LATTICE_ERR_NOT_FOUND, "%s: no tokenizer; only token ids can be embedded", model->folder);
    return find_prompt(job, err);
}

/* After prompt_skip is known. */
static lattice_status find_space(embed_job *job, lattice_error *err)
{
    if (!job->options.cache) return LATTICE_OK;
    lt_vector_shape shape = { .pooling = job->options.pooling ? job->options.pooling : job->model->sentence.pooling,
                              .pool_skip = job->prompt_skip,
                              .dim = job->dim,
                              .normalize = job->normalize };
    return lt_cache_space(job->model, &shape, &job->space, err);
}

/* ------------------------------------------------------------------ filling a window */

/* The prompt and the text as the tokenizer gets them, in w->text when they must be put together. */
static lattice_status prepare_text(const embed_job *job, lt_worker *w, lt_str text, lt_str *prepared, lattice_error *err)
{
    *prepared = text;
    if (job->prompt.len == 0 && !job->model->sentence.lower_case) return LATTICE_OK;
    lt_buf_clear(&w->text);
    if (job->model->sentence.lower_case) {
        lt_lower_case_append(&w->text, job->prompt);
        lt_lower_case_append(&w->text, text);
    } else {
        lt_buf_append(&w->text, job->prompt.data, job->prompt.len);
        if (text.len) lt_buf_append(&w->text, text.data, text.len);
    }
    if (w->text.failed) {
        w->text.failed = false;
        return lt_no_memory(err, text.len, "a text");
    }
    *prepared = (lt_str){ w->text.data ? w->text.data : "", w->text.len };
    return LATTICE_OK;
}

static lattice_status check_ids(const embed_job *job, size_t index, const uint32_t *ids, const uint32_t *types, size_t n,
                                lattice_error *err)
{
    const lt_config *config = &job->model->config;
    if (n == 0) return lt_fail(err, LATTICE_ERR_INVALID_ARGUMENT, "text %zu has no tokens", index);
    for (size_t i = 0; i < n; i++) {
        if (ids[i] >= config->vocab_size)
            return lt_fail(err, LATTICE_ERR_INVALID_ARGUMENT, "text %zu: token id %u is outside the model's vocabulary of %zu",
                           index, ids[i], config->vocab_size);
        if (types && types[i] >= config->type_vocab_size && types[i] > 0)
            return lt_fail(err, LATTICE_ERR_INVALID_ARGUMENT, "text %zu: token type %u is outside the model's %zu", index,
                           types[i], config->type_vocab_size);
    }
    return LATTICE_OK;
}

static lattice_status add_text(const embed_job *job, lt_worker *w, lt_window *window, size_t i, lattice_error *err)
{
    size_t index = job->options.first_index + i;
    lt_str text = { job->texts[i].data ? job->texts[i].data : "", job->texts[i].length };
    LT_TRY(prepare_text(job, w, text, &text, err));
    lt_encode_options encode = { .add_special = true,
                                 .literal = job->options.literal,
                                 .max_length = job->options.truncate ? job->max_length : 0,
                                 .truncate_left = job->options.truncate_left,
                                 .no_spans = true };
    lt_tokens *tokens = &w->tokens;
    LT_TRY(lt_tokenizer_encode(lt_tokenizer_of(job->model->tokenizer), w->scratch, text, NULL, &encode, tokens, err));
    if (tokens->n > job->max_length)
        return lt_fail(err, LATTICE_ERR_TOO_LONG, "text %zu has %zu tokens, more than the limit of %zu", index, tokens->n,
                       job->max_length);
    LT_TRY(check_ids(job, index, tokens->ids, tokens->type_ids, tokens->n, err));
    if (job->prompt_skip >= tokens->n)
        return lt_fail(err, LATTICE_ERR_INVALID_ARGUMENT, "text %zu: the prompt alone fills the limit of %zu tokens", index,
                       job->max_length);
    window->n_truncated += tokens->truncated;
    if (!lt_window_add(window, tokens->ids, tokens->type_ids, tokens->n)) return lt_no_memory(err, tokens->n * 8, "token ids");
    return LATTICE_OK;
}

static lattice_status add_ids(const embed_job *job, lt_window *window, size_t i, lattice_error *err)
{
    size_t index = job->options.first_index + i;
    const lattice_ids *input = &job->inputs[i];
    if (input->n > job->max_length)
        return lt_fail(err, LATTICE_ERR_TOO_LONG, "text %zu has %zu token ids, more than the limit of %zu", index, input->n,
                       job->max_length);
    LT_TRY(check_ids(job, index, input->ids, NULL, input->n, err));
    if (!lt_window_add(window, input->ids, NULL, input->n)) return lt_no_memory(err, input->n * 8, "token ids");
    return LATTICE_OK;
}

/* The key of a text of a window; false: no cache, or a text with types other than 0, which the key does not tell. */
static bool cache_key(const embed_job *job, const lt_window *window, size_t member, lt_cache_key *key)
{
    if (!job->options.cache) return false;
    size_t begin = window->starts[member], n = lt_window_length(window, member);
    for (size_t i = 0; i < n; i++)
        if (window->types[begin + i]) return false;
    *key = lt_cache_key_of(job->space, window->ids + begin, n);
    return true;
}

/* The vector of a text of a window, from the cache. */
static bool find_vector(const embed_job *job, const lt_window *window, size_t member, float *out)
{
    lt_cache_key key;
    return cache_key(job, window, member, &key) &&
           lt_cache_find(job->options.cache, &key, job->options.cache_unverified ? LT_CACHE_UNVERIFIED : 0, out, job->dim);
}

/* Text i has been added last. Takes it away again when its vector is in the cache. */
static lattice_status look_up(const embed_job *job, text_window *texts, size_t i, lattice_error *err)
{
    lt_window *window = &texts->window;
    size_t member = window->n - 1, length = lt_window_length(window, member);
    if (find_vector(job, window, member, job->out + i * job->dim)) {
        if (job->usage && job->usage->text_tokens) job->usage->text_tokens[i] = (uint32_t)length;
        texts->n_found++;
        texts->found_tokens += length;
        window->n--;
        return LATTICE_OK;
    }
    if (!LT_GROW(job->model->mem, texts->index, texts->index_capacity, window->n))
        return lt_no_memory(err, window->n * sizeof *texts->index, "a window of texts");
    texts->index[member] = i;
    return LATTICE_OK;
}

/* Fills the window with the texts from `first` on. */
static lattice_status fill_window(const embed_job *job, lt_worker *w, text_window *texts, size_t first, lattice_error *err)
{
    size_t limit = first == 0 ? FIRST_WINDOW_TEXTS : WINDOW_TEXTS, bytes = 0;
    lt_window_clear(&texts->window, first);
    texts->n_taken = 0;
    texts->n_found = texts->found_tokens = 0;
    for (; first + texts->n_taken < job->n && texts->n_taken < limit && bytes < window_bytes; texts->n_taken++) {
        size_t i = first + texts->n_taken;
        if (job->inputs) {
            bytes += job->inputs[i].n * sizeof(uint32_t);
            LT_TRY(add_ids(job, &texts->window, i, err));
        } else {
            bytes += job->texts[i].length;
            LT_TRY(add_text(job, w, &texts->window, i, err));
        }
        LT_TRY(look_up(job, texts, i, err));
    }
    return LATTICE_OK;
}

/* Sentence-Transformers leaves out of pooling as many tokens as the prompt alone gives, its closing special token not counted. */
static lattice_status count_prompt_tokens(embed_job *job, lt_worker *w, lattice_error *err)
{
    job->prompt_skip = 0;
    if (job->prompt.len == 0 || job->model->sentence.include_prompt) return LATTICE_OK;
    lt_str text;
    LT_TRY(prepare_text(job, w, (lt_str){ "", 0 }, &text, err));
    lt_encode_options encode = { .add_special = true, .no_spans = true };
    LT_TRY(lt_tokenizer_encode(lt_tokenizer_of(job->model->tokenizer), w->scratch, text, NULL, &encode, &w->tokens, err));
    size_t n = w->tokens.n;
    job->prompt_skip = n - (n > 0 && w->tokens.special[n - 1]);
    return LATTICE_OK;
}

/* ------------------------------------------------------------------ computing a window */

/* Cuts and normalises v[width] into out[dim]; false when a value is not finite. The squares are added in double, in order. */
static bool finish_vector(const embed_job *job, const float *v, float *out)
{
    if (!job->model->kernels->all_finite(v, job->dim)) return false;
    if (!job->normalize) {
        memcpy(out, v, job->dim * sizeof *out);
        return true;
    }
    double sum = 0;
    for (size_t i = 0; i < job->dim; i++) sum += (double)v[i] * (double)v[i];
    double norm = sqrt(sum), scale = 1 / (norm > 1e-12 ? norm : 1e-12);
    for (size_t i = 0; i < job->dim; i++) out[i] = (float)((double)v[i] * scale);
    return true;
}

static void store_vector(const embed_job *job, const lt_window *window, size_t member, const float *vector)
{
    lt_cache_key key;
    if (cache_key(job, window, member, &key)) lt_cache_store(job->options.cache, &key, vector, job->dim);
}

static lattice_status finish_batch(embed_job *job, lt_worker *w, const text_window *texts, const float *rows, size_t width,
                                   lattice_error *err)
{
    const lt_packer *packer = &w->packer;
    for (size_t s = 0; s < packer->batch.n_seqs; s++) {
        size_t i = texts->index[packer->members[s]], length = packer->seq_starts[s + 1] - packer->seq_starts[s];
        if (!finish_vector(job, rows + s * width, job->out + i * job->dim))
            return lt_fail(err, LATTICE_ERR_NOT_FINITE,
                           "%s: the vector of text %zu is not finite; checking the model names a weight at fault",
                           job->model->folder, job->options.first_index + i);
        if (job->usage) {
            job->usage->n_tokens += length;
            if (job->usage->text_tokens) job->usage->text_tokens[i] = (uint32_t)length;
        }
        store_vector(job, &texts->window, packer->members[s], job->out + i * job->dim);
    }
    job->done += packer->batch.n_seqs;
    return LATTICE_OK;
}

lattice_status lt_embed_forward(lattice_model *model, const lt_batch *batch, lt_embed_rows *memory, const float **rows,
                                size_t *width, lattice_error *err)
{
    *width = lt_model_pooled_width(model, batch->pooling);
    for (size_t i = 0; i <= (model->n_dense > 0); i++) {
        size_t widest = i == 0 ? *width : 0, floats;
        for (size_t d = 0; d < model->n_dense; d++)
            if (model->dense[d].out_features > widest) widest = model->dense[d].out_features;
        if (!lt_mul(batch->n_seqs, widest, &floats) || !LT_GROW(model->mem, memory->data[i], memory->capacity[i], floats))
            return lt_no_memory(err, widest * sizeof(float), "pooled vectors");
    }
    LT_TRY(model->backend->run(model->program, batch, LT_TAIL_POOLED, memory->data[0], NULL, err));
    size_t at = 0;
    for (size_t d = 0; d < model->n_dense; d++, at = 1 - at) {
        lt_dense_run(model, &model->dense[d], memory->data[at], batch->n_seqs, memory->data[1 - at]);
        *width = model->dense[d].out_features;
    }
    *rows = memory->data[at];
    return LATTICE_OK;
}

void lt_embed_rows_free(const lattice_allocator *mem, lt_embed_rows *memory)
{
    for (int i = 0; i < 2; i++) lt_free(mem, memory->data[i]);
    *memory = (lt_embed_rows){ 0 };
}

static lattice_status run_batch(embed_job *job, lt_worker *w, const text_window *texts, lattice_error *err)
{
    lt_batch *batch = &w->packer.batch;
    batch->pooling = job->options.pooling ? job->options.pooling : job->model->sentence.pooling;
    const float *rows;
    size_t width;
    LT_TRY(lt_embed_forward(job->model, batch, &w->rows, &rows, &width, err));
    return finish_batch(job, w, texts, rows, width, err);
}

static lattice_status report_progress(const embed_job *job, lattice_error *err)
{
    const lattice_embed_options *o = &job->options;
    if (o->progress && !o->progress(o->progress_user, job->done, job->n)) return lt_fail(err, LATTICE_ERR_CANCELLED, "cancelled");
    return LATTICE_OK;
}

static lattice_status run_window(embed_job *job, lt_worker *w, const text_window *texts, lattice_error *err)
{
    const lt_window *window = &texts->window;
    if (!lt_packer_begin(&w->packer, window)) return lt_no_memory(err, window->n * sizeof(uint64_t), "the order of texts");
    if (job->usage) {
        job->usage->n_truncated += window->n_truncated;
        job->usage->n_cached += texts->n_found;
        job->usage->n_tokens += texts->found_tokens;
    }
    if (texts->n_found) {
        job->done += (size_t)texts->n_found;
        LT_TRY(report_progress(job, err));
    }
    for (;;) {
        bool more;
        if (!lt_packer_next(&w->packer, window, job->budget, job->max_seqs, job->prompt_skip, &more))
            return lt_no_memory(err, job->budget * 12, "a batch");
        if (!more) return LATTICE_OK;
        LT_TRY(run_batch(job, w, texts, err));
        LT_TRY(report_progress(job, err));
    }
}

/* ------------------------------------------------------------------ windows in turns */

typedef struct fill_task {
    const embed_job *job;
    lt_worker *worker;
    text_window *texts;
    size_t first;
    lattice_status status;
    lattice_error err;
} fill_task;

static void run_fill(void *arg)
{
    fill_task *t = arg;
    t->status = fill_window(t->job, t->worker, t->texts, t->first, &t->err);
}

static lattice_status run_job(embed_job *job, lt_worker *w, lattice_error *err)
{
    LT_TRY(count_prompt_tokens(job, w, err));
    LT_TRY(find_space(job, err));
    LT_TRY(fill_window(job, w, &w->windows[0], 0, err));
    lt_pool *pool = job->model->runtime->pool;
    for (size_t current = 0;; current = 1 - current) {
        text_window *texts = &w->windows[current];
        size_t next = texts->window.first + texts->n_taken;
        if (next == job->n) return run_window(job, w, texts, err);
        fill_task fill = { .job = job, .worker = w, .texts = &w->windows[1 - current], .first = next };
        lt_task task = { .fn = run_fill, .arg = &fill };
        lt_pool_task_start(pool, &task);
        lattice_status status = run_window(job, w, texts, err);
        lt_pool_task_wait(pool, &task);
        if (status == LATTICE_OK && fill.status != LATTICE_OK) {
            if (err) *err = fill.err;
            status = fill.status;
        }
        if (status != LATTICE_OK) return status;
    }
}

/* One list of ids needs no worker when it is found. Ids in the cache were checked before they came there. */
static lattice_status find_one(embed_job *job, bool *found, lattice_error *err)
{
    const lattice_ids *input = &job->inputs[0];
    LT_TRY(find_space(job, err));
    lt_cache_key key = lt_cache_key_of(job->space, input->ids, input->n);
    *found = input->n <= job->max_length && lt_cache_find(job->options.cache, &key, LT_CACHE_MEMORY_ONLY, job->out, job->dim);
    if (!*found) return LATTICE_OK;
    if (job->usage) {
        job->usage->n_tokens = input->n;
        job->usage->n_cached = 1;
        if (job->usage->text_tokens) job->usage->text_tokens[0] = (uint32_t)input->n;
    }
    job->done = 1;
    return report_progress(job, err);
}

static lattice_status embed(embed_job *job, lattice_error *err)
{
    if (job->usage) job->usage->n_tokens = job->usage->n_truncated = job->usage->n_cached = 0;
    LT_TRY(resolve(job, err));
    if (job->n == 0) return LATTICE_OK;
    if (job->inputs && job->n == 1 && job->options.cache) {
        bool found;
        LT_TRY(find_one(job, &found, err));
        if (found) return LATTICE_OK;
    }
    lt_worker *w;
    LT_TRY(worker_take(job->model, &w, err));
    lattice_status status = run_job(job, w, err);
    worker_return(job->model, w);
    return status;
}

lattice_status lattice_embed(lattice_model *model, const lattice_text *texts, size_t n, const lattice_embed_options *options,
                             float *out, lattice_usage *usage, lattice_error *err)
{
    embed_job job = { .model = model,
                      .options = options ? *options : lattice_embed_options_default(),
                      .texts = texts,
                      .n = n,
                      .out = out,
                      .usage = usage };
    return embed(&job, err);
}

lattice_status lattice_embed_ids(lattice_model *model, const lattice_ids *inputs, size_t n, const lattice_embed_options *options,
                                 float *out, lattice_usage *usage, lattice_error *err)
{
    static const lattice_ids none;
    embed_job job = { .model = model,
                      .options = options ? *options : lattice_embed_options_default(),
                      .inputs = inputs ? inputs : &none,
                      .n = n,
                      .out = out,
                      .usage = usage };
    return embed(&job, err);
}

/* ------------------------------------------------------------------ the parts of a call: embed.h */

struct lt_embed_call {
    embed_job job;
};

lattice_status lt_embed_call_create(lattice_model *model, const lattice_embed_options *options, bool by_ids, lt_embed_call **out,
                                    lattice_error *err)
{
    static const lattice_ids none;
    *out = NULL;
    lt_embed_call *call = lt_alloc_zero(model->mem, sizeof *call);
    if (!call) return lt_no_memory(err, sizeof *call, "a request");
    call->job = (embed_job){ .model = model, .options = *options, .n = 1, .inputs = by_ids ? &none : NULL };
    lt_worker *w = NULL;
    lattice_status status = resolve(&call->job, err);
    if (status == LATTICE_OK && call->job.prompt.len > 0) {
        status = worker_take(model, &w, err);
        if (status == LATTICE_OK) {
            status = count_prompt_tokens(&call->job, w, err);
            worker_return(model, w);
        }
    }
    if (status == LATTICE_OK) status = find_space(&call->job, err);
    if (status != LATTICE_OK) {
        lt_free(model->mem, call);
        return status;
    }
    *out = call;
    return LATTICE_OK;
}

void lt_embed_call_free(lt_embed_call *call)
{
    if (call) lt_free(call->job.model->mem, call);
}

size_t lt_embed_call_dim(const lt_embed_call *call)
{
    return call->job.dim;
}

size_t lt_embed_call_skip(const lt_embed_call *call)
{
    return call->job.prompt_skip;
}

lattice_status lt_embed_call_texts(lt_embed_call *call, const lattice_text *texts, size_t n, lt_window *window,
                                   lattice_error *err)
{
    lt_worker *w;
    LT_TRY(worker_take(call->job.model, &w, err));
    call->job.texts = texts;
    lattice_status status = LATTICE_OK;
    for (size_t i = 0; i < n && status == LATTICE_OK; i++) status = add_text(&call->job, w, window, i, err);
    worker_return(call->job.model, w);
    return status;
}

lattice_status lt_embed_call_ids(lt_embed_call *call, const lattice_ids *inputs, size_t n, lt_window *window, lattice_error *err)
{
    call->job.inputs = inputs;
    for (size_t i = 0; i < n; i++) LT_TRY(add_ids(&call->job, window, i, err));
    return LATTICE_OK;
}

lt_hash128 lt_embed_call_space(const lt_embed_call *call)
{
    return call->job.space;
}

bool lt_embed_call_find(const lt_embed_call *call, const lt_window *window, size_t member, float *out)
{
    return find_vector(&call->job, window, member, out);
}

void lt_embed_call_store(const lt_embed_call *call, const lt_window *window, size_t member, const float *vector)
{
    store_vector(&call->job, window, member, vector);
}

bool lt_embed_call_finish(const lt_embed_call *call, const float *row, float *out)
{
    return finish_vector(&call->job, row, out);
}
