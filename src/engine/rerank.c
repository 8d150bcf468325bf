/* lattice_rerank: scores of documents for a query.
 *
 * As in embed.c, a call goes through its documents in windows of bounded size: while one computes, the next is tokenised in the
 * background; a window is packed into batches by length, and results go to the rows of their documents. A cross-encoder reads
 * query and document as one pair in the form its tokenizer's post-processor gives them, and its classifier reads the first
 * token; what a language model is asked is in judge.c. */
#include "engine/rerank.h"

#include <math.h>
#include <string.h>

/* The first window is small, so that computing begins early. */
enum { FIRST_WINDOW_DOCUMENTS = 64, WINDOW_DOCUMENTS = 1024 };
static const size_t window_bytes = (size_t)2 << 20;

lattice_rerank_options lattice_rerank_options_default(void)
{
    return (lattice_rerank_options){ .truncate = true };
}

/* ------------------------------------------------------------------ filling a window */

static lattice_status check_ids(const lt_rerank *job, size_t index, const lt_tokens *tokens, lattice_error *err)
{
    const lt_config *config = &job->model->config;
    if (tokens->n == 0) return lt_fail(err, LATTICE_ERR_INVALID_ARGUMENT, "document %zu and its query have no tokens", index);
    for (size_t i = 0; i < tokens->n; i++) {
        if (tokens->ids[i] >= config->vocab_size)
            return lt_fail(err, LATTICE_ERR_INVALID_ARGUMENT,
                           "document %zu: token id %u is outside the model's vocabulary of %zu", index, tokens->ids[i],
                           config->vocab_size);
        if (tokens->type_ids[i] >= config->type_vocab_size && tokens->type_ids[i] > 0)
            return lt_fail(err, LATTICE_ERR_INVALID_ARGUMENT, "document %zu: token type %u is outside the model's %zu", index,
                           tokens->type_ids[i], config->type_vocab_size);
    }
    return LATTICE_OK;
}

/* A pair, or without a document the query alone. */
static lattice_status add_pair(lt_rerank *job, lt_window *window, size_t i, lattice_error *err)
{
    lt_str document = { "", 0 };
    if (job->documents && job->documents[i].data) document = (lt_str){ job->documents[i].data, job->documents[i].length };
    lt_encode_options encode = { .add_special = true,
                                 .literal = job->options->literal,
                                 .max_length = job->options->truncate ? job->max_length : 0,
                                 .truncate_left = job->options->truncate_left,
                                 .no_spans = true };
    lt_tokens *tokens = &job->tokens;
    LT_TRY(lt_tokenizer_encode(lt_tokenizer_of(job->model->tokenizer), job->scratch, job->query,
                               job->documents ? &document : NULL, &encode, tokens, err));
    if (tokens->n > job->max_length)
        return lt_fail(err, LATTICE_ERR_TOO_LONG, "document %zu and its query have %zu tokens, more than the limit of %zu", i,
                       tokens->n, job->max_length);
    LT_TRY(check_ids(job, i, tokens, err));
    window->n_truncated += tokens->truncated;
    if (!lt_window_add(window, tokens->ids, tokens->type_ids, tokens->n)) return lt_no_memory(err, tokens->n * 8, "token ids");
    return LATTICE_OK;
}

/* Fills the window with the documents from `first` on. */
static lattice_status fill_window(lt_rerank *job, lt_window *window, size_t first, lattice_error *err)
{
    size_t limit = first == 0 ? FIRST_WINDOW_DOCUMENTS : WINDOW_DOCUMENTS, bytes = 0;
    lt_window_clear(window, first);
    while (first + window->n < job->n && window->n < limit && bytes < window_bytes) {
        size_t i = first + window->n;
        bytes += job->documents[i].length + job->query.len;
        LT_TRY(job->judges ? lt_judge_add(job, window, i, err) : add_pair(job, window, i, err));
    }
    return LATTICE_OK;
}

/* ------------------------------------------------------------------ computing a window */

/* exp is taken of nothing positive, so that no logit overflows. */
static double sigmoid(double x)
{
    double e = exp(-fabs(x));
    return x >= 0 ? 1 / (1 + e) : e / (1 + e);
}

static void softmax(const float *logits, size_t n, float *scores)
{
    double most = (double)logits[0], sum = 0;
    for (size_t i = 1; i < n; i++)
        if ((double)logits[i] > most) most = (double)logits[i];
    for (size_t i = 0; i < n; i++) sum += exp((double)logits[i] - most);
    for (size_t i = 0; i < n; i++) scores[i] = (float)(exp((double)logits[i] - most) / sum);
}

static void score(const lt_rerank *job, const float *logits, float *scores)
{
    if (job->judges) { /* softmax of two is the sigmoid of their difference */
        double difference = (double)logits[1] - (double)logits[0];
        scores[0] = (float)(job->options->raw ? difference : sigmoid(difference));
    } else if (job->options->raw) {
        memcpy(scores, logits, job->n_labels * sizeof *scores);
    } else if (job->n_labels == 1) {
        scores[0] = (float)sigmoid((double)logits[0]);
    } else {
        softmax(logits, job->n_labels, scores);
    }
}

static lattice_status finish_batch(lt_rerank *job, const lt_window *window, lattice_error *err)
{
    const lt_packer *packer = &job->packer;
    for (size_t s = 0; s < packer->batch.n_seqs; s++) {
        size_t i = window->first + packer->members[s], length = packer->seq_starts[s + 1] - packer->seq_starts[s];
        const float *logits = job->rows + s * job->n_labels;
        if (!job->model->kernels->all_finite(logits, job->n_labels))
            return lt_fail(err, LATTICE_ERR_NOT_FINITE,
                           "%s: the score of document %zu is not finite; checking the model names a weight at fault",
                           job->model->folder, i);
        if (job->logits) memcpy(job->logits + i * job->n_labels, logits, job->n_labels * sizeof *logits);
        if (job->scores) score(job, logits, job->scores + i * job->n_scores);
        if (!job->usage) continue;
        job->usage->n_tokens += length;
        if (!job->usage->text_tokens) continue;
        size_t past = job->judges ? lt_judge_past(job, window, packer->members[s]) : 0;
        job->usage->text_tokens[i] = (uint32_t)(past + length);
    }
    job->done += packer->batch.n_seqs;
    return LATTICE_OK;
}

static lattice_status run_batch(lt_rerank *job, const lt_window *window, lattice_error *err)
{
    lattice_model *model = job->model;
    lt_batch *batch = &job->packer.batch;
    size_t floats;
    if (!lt_mul(batch->n_seqs, job->n_labels, &floats) || !LT_GROW(model->mem, job->rows, job->rows_capacity, floats))
        return lt_no_memory(err, floats * sizeof(float), "logits");
    batch->out_rows = job->packer.seq_starts; /* the first token of each */
    batch->n_out = batch->n_seqs;
    if (job->judges) LT_TRY(lt_judge_prepare(job, window, err));
    LT_TRY(model->backend->run(model->program, batch, LT_TAIL_SCORES, job->rows, NULL, err));
    if (job->judges) lt_judge_discard(job);
    return finish_batch(job, window, err);
}

static lattice_status run_window(lt_rerank *job, const lt_window *window, lattice_error *err)
{
    if (!lt_packer_begin(&job->packer, window)) return lt_no_memory(err, window->n * sizeof(uint64_t), "the order of documents");
    if (job->usage) job->usage->n_truncated += window->n_truncated;
    for (;;) {
        bool more;
        if (!lt_packer_next(&job->packer, window, job->budget, lt_model_max_seqs(job->model), 0, &more))
            return lt_no_memory(err, job->budget * 12, "a batch");
        if (!more) return LATTICE_OK;
        LT_TRY(run_batch(job, window, err));
        const lattice_rerank_options *o = job->options;
        if (o->progress && !o->progress(o->progress_user, job->done, job->n))
            return lt_fail(err, LATTICE_ERR_CANCELLED, "cancelled");
    }
}

/* ------------------------------------------------------------------ windows in turns */

typedef struct fill_task {
    lt_rerank *job;
    lt_window *window;
    size_t first;
    lattice_status status;
    lattice_error err;
} fill_task;

static void run_fill(void *arg)
{
    fill_task *t = arg;
    t->status = fill_window(t->job, t->window, t->first, &t->err);
}

static lattice_status run_job(lt_rerank *job, lattice_error *err)
{
    if (job->judges) LT_TRY(lt_judge_begin(job, err));
    LT_TRY(fill_window(job, &job->windows[0], 0, err));
    lt_pool *pool = job->model->runtime->pool;
    for (size_t current = 0;; current = 1 - current) {
        lt_window *window = &job->windows[current];
        size_t next = window->first + window->n;
        if (next == job->n) return run_window(job, window, err);
        fill_task fill = { .job = job, .window = &job->windows[1 - current], .first = next };
        lt_task task = { .fn = run_fill, .arg = &fill };
        lt_pool_task_start(pool, &task);
        lattice_status status = run_window(job, window, err);
        lt_pool_task_wait(pool, &task);
        if (status == LATTICE_OK && fill.status != LATTICE_OK) {
            if (err) *err = fill.err;
            status = fill.status;
        }
        if (status != LATTICE_OK) return status;
    }
}

/* ------------------------------------------------------------------ a call */

static lattice_status resolve(lt_rerank *job, lattice_error *err)
{
    const lattice_model *model = job->model;
    const lattice_rerank_options *o = job->options;
    lattice_head head = lt_model_head(model);
    if (head == LATTICE_HEAD_EMBEDDING || head == LATTICE_HEAD_GENERATOR)
        return lt_fail(err, LATTICE_ERR_UNSUPPORTED, "%s: this %s model has no head that scores documents", model->folder,
                       model->family->name);
    if (job->n == 0) return lt_fail(err, LATTICE_ERR_INVALID_ARGUMENT, "no documents");
    if (!model->tokenizer) return lt_fail(err, LATTICE_ERR_NOT_FOUND, "%s: no tokenizer", model->folder);
    job->judges = head == LATTICE_HEAD_RERANKER;
    if (o->instruction && !job->judges)
        return lt_fail(err, LATTICE_ERR_INVALID_ARGUMENT, "%s is a cross-encoder, which takes no instruction", model->folder);
    if (o->max_length > model->max_positions)
        return lt_fail(err, LATTICE_ERR_INVALID_ARGUMENT, "maximum length %zu is more than the %zu tokens that %s admits",
                       o->max_length, model->max_positions, model->folder);
    if (o->batch_tokens > model->batch_tokens)
        return lt_fail(err, LATTICE_ERR_INVALID_ARGUMENT,
                       "a batch of %zu tokens is more than the %zu that the model was opened for", o->batch_tokens,
                       model->batch_tokens);
    lattice_model_info info;
    lattice_model_get_info(model, &info);
    job->n_labels = info.n_labels;
    job->n_scores = info.n_scores;
    job->max_length = o->max_length ? o->max_length : model->max_length;
    job->budget = o->batch_tokens ? o->batch_tokens : model->batch_tokens * lt_model_devices(model);
    return LATTICE_OK;
}

lattice_status lattice_rerank(lattice_model *model, lattice_text query, const lattice_text *documents, size_t n,
                              const lattice_rerank_options *options, float *scores, float *logits, lattice_usage *usage,
                              lattice_error *err)
{
    lattice_rerank_options defaults = lattice_rerank_options_default();
    lt_rerank job = { .model = model,
                      .options = options ? options : &defaults,
                      .query = { query.data ? query.data : "", query.length },
                      .documents = documents,
                      .n = n,
                      .scores = scores,
                      .logits = logits,
                      .usage = usage };
    if (usage) usage->n_tokens = usage->n_truncated = 0;
    LT_TRY(resolve(&job, err));
    LT_TRY(lt_take_scratch(model->tokenizer, &job.scratch, err));
    lt_tokens_init(&job.tokens, model->mem);
    lt_tokens_init(&job.judge.suffix, model->mem);
    lt_buf_init(&job.judge.text, model->mem);
    for (int i = 0; i < 2; i++) lt_window_init(&job.windows[i], model->mem);
    lt_packer_init(&job.packer, model->mem);
    lattice_status status = run_job(&job, err);
    if (job.judges) lt_judge_end(&job);
    lt_packer_free(&job.packer);
    for (int i = 0; i < 2; i++) lt_window_free(&job.windows[i]);
    lt_tokens_free(&job.tokens);
    lt_free(model->mem, job.rows);
    lt_give_back_scratch(model->tokenizer, job.scratch);
    return status;
}

/* ------------------------------------------------------------------ the parts of a call */

lattice_status lt_rerank_check(lattice_model *model, size_t n, const lattice_rerank_options *options, lattice_error *err)
{
    lt_rerank job = { .model = model, .options = options, .n = n };
    return resolve(&job, err);
}

lattice_status lt_rerank_pairs(lattice_model *model, lattice_text query, const lattice_text *documents, size_t n,
                               const lattice_rerank_options *options, lt_window *window, lattice_error *err)
{
    lt_rerank job = { .model = model,
                      .options = options,
                      .query = { query.data ? query.data : "", query.length },
                      .documents = documents,
                      .n = n };
    LT_TRY(resolve(&job, err));
    LT_TRY(lt_take_scratch(model->tokenizer, &job.scratch, err));
    lt_tokens_init(&job.tokens, model->mem);
    lattice_status status = LATTICE_OK;
    for (size_t i = 0; i < n && status == LATTICE_OK; i++) status = add_pair(&job, window, i, err);
    lt_tokens_free(&job.tokens);
    lt_give_back_scratch(model->tokenizer, job.scratch);
    return status;
}

void lt_rerank_scores(const lattice_model *model, bool raw, const float *logits, size_t n, float *scores)
{
    const lattice_rerank_options options = { .raw = raw };
    lattice_model_info info;
    lattice_model_get_info(model, &info);
    const lt_rerank job = { .options = &options, .n_labels = info.n_labels, .judges = info.head == LATTICE_HEAD_RERANKER };
    for (size_t i = 0; i < n; i++) score(&job, logits + i * info.n_labels, scores + i * info.n_scores);
}
