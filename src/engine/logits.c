/* lattice_logits: what a language model expects next. Inputs are packed into batches as everywhere; of each only the last row
 * goes through the output matrix. */
#include <string.h>

#include "engine/batch.h"
#include "engine/model.h"

/* Rows of the vocabulary's width that a batch holds at most. */
enum { BATCH_INPUTS = 64, WINDOW_INPUTS = 1 << 16 };

typedef struct logits_job {
    lattice_model *model;
    const lattice_ids *inputs;
    size_t n;
    float *out;
    lattice_usage *usage;
    size_t n_logits;
    lt_window window;
    lt_packer packer;
    size_t last_rows[BATCH_INPUTS];
    float *rows; /* [batch n_seqs][n_logits] */
    size_t rows_capacity;
} logits_job;

static lattice_status check_input(const logits_job *job, size_t i, lattice_error *err)
{
    const lattice_ids *input = &job->inputs[i];
    const lattice_model *model = job->model;
    if (input->n == 0) return lt_fail(err, LATTICE_ERR_INVALID_ARGUMENT, "input %zu has no tokens", i);
    if (input->n > model->max_positions)
        return lt_fail(err, LATTICE_ERR_TOO_LONG, "input %zu has %zu tokens, more than the %zu that %s admits", i, input->n,
                       model->max_positions, model->folder);
    for (size_t k = 0; k < input->n; k++) {
        if (input->ids[k] >= model->config.vocab_size)
            return lt_fail(err, LATTICE_ERR_INVALID_ARGUMENT, "input %zu: token id %u is outside the model's vocabulary of %zu",
                           i, input->ids[k], model->config.vocab_size);
    }
    return LATTICE_OK;
}

static lattice_status run_batch(logits_job *job, lattice_error *err)
{
    lattice_model *model = job->model;
    lt_packer *packer = &job->packer;
    size_t n = packer->batch.n_seqs, width = job->n_logits, floats;
    if (!lt_mul(n, width, &floats) || !LT_GROW(model->mem, job->rows, job->rows_capacity, floats))
        return lt_no_memory(err, width * sizeof(float), "logits");
    for (size_t s = 0; s < n; s++) job->last_rows[s] = packer->seq_starts[s + 1] - 1;
    packer->batch.out_rows = job->last_rows;
    packer->batch.n_out = n;
    LT_TRY(model->backend->run(model->program, &packer->batch, LT_TAIL_LOGITS, job->rows, NULL, err));
    for (size_t s = 0; s < n; s++) {
        size_t i = job->window.first + packer->members[s], length = packer->seq_starts[s + 1] - packer->seq_starts[s];
        const float *row = job->rows + s * width;
        if (!model->kernels->all_finite(row, width))
            return lt_fail(err, LATTICE_ERR_NOT_FINITE,
                           "%s: the logits of input %zu are not finite; checking the model names a weight at fault",
                           model->folder, i);
        memcpy(job->out + i * width, row, width * sizeof *row);
        if (!job->usage) continue;
        job->usage->n_tokens += length;
        if (job->usage->text_tokens) job->usage->text_tokens[i] = (uint32_t)length;
    }
    return LATTICE_OK;
}

static lattice_status run_window(logits_job *job, size_t first, lattice_error *err)
{
    lattice_model *model = job->model;
    lt_window_clear(&job->window, first);
    for (size_t i = first; i < job->n && job->window.n < WINDOW_INPUTS; i++) {
        LT_TRY(check_input(job, i, err));
        if (!lt_window_add(&job->window, job->inputs[i].ids, NULL, job->inputs[i].n))
            return lt_no_memory(err, job->inputs[i].n * 8, "token ids");
    }
    if (!lt_packer_begin(&job->packer, &job->window)) return lt_no_memory(err, job->window.n * 8, "the order of inputs");
    size_t max_seqs = model->max_seqs < BATCH_INPUTS ? model->max_seqs : BATCH_INPUTS;
    for (;;) {
        bool more;
        if (!lt_packer_next(&job->packer, &job->window, model->batch_tokens, max_seqs, 0, &more))
            return lt_no_memory(err, model->batch_tokens * 12, "a batch");
        if (!more) return LATTICE_OK;
        LT_TRY(run_batch(job, err));
    }
}

lattice_status lattice_logits(lattice_model *model, const lattice_ids *inputs, size_t n, float *out, lattice_usage *usage,
                              lattice_error *err)
{
    if (usage) usage->n_tokens = usage->n_truncated = 0;
    if (!model->plan.tails[LT_TAIL_LOGITS].present)
        return lt_fail(err, LATTICE_ERR_UNSUPPORTED, "%s: this %s model has no language model's head", model->folder,
                       model->family->name);
    logits_job job = { .model = model, .inputs = inputs, .n = n, .out = out, .usage = usage };
    job.n_logits = lt_tail_width(&model->plan, LT_TAIL_LOGITS, 0);
    lt_window_init(&job.window, model->mem);
    lt_packer_init(&job.packer, model->mem);
    lattice_status status = LATTICE_OK;
    for (size_t first = 0; status == LATTICE_OK && first < n; first += WINDOW_INPUTS) status = run_window(&job, first, err);
    lt_packer_free(&job.packer);
    lt_window_free(&job.window);
    lt_free(model->mem, job.rows);
    return status;
}
