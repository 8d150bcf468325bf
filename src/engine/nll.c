/* lattice_nll: how likely a language model finds texts.
 *
 * A text runs through a state in pieces cut at multiples of 64 tokens, which changes no bit of the result, as long as their
 * logits fit a few megabytes: logits of a whole text never exist. */
#include <math.h>

#include "engine/model.h"

/* Bytes of the logits of a piece, where one of 64 rows does not need more. */
static const size_t piece_bytes = (size_t)32 << 20;

typedef struct nll_job {
    lattice_model *model;
    size_t width, piece; /* floats of a row; rows of a piece */
    float *logits;       /* [piece][width] */
    uint32_t *positions; /* [piece] */
    size_t *rows;        /* [piece] 0, 1, 2, … */
    lt_state *state;
} nll_job;

static lattice_status check_input(const nll_job *job, const lattice_ids *input, size_t i, lattice_error *err)
{
    const lattice_model *m = job->model;
    if (input->n == 0) return lt_fail(err, LATTICE_ERR_INVALID_ARGUMENT, "input %zu has no tokens", i);
    if (input->n > m->max_positions)
        return lt_fail(err, LATTICE_ERR_TOO_LONG, "input %zu has %zu tokens, more than the %zu that %s admits", i, input->n,
                       m->max_positions, m->folder);
    for (size_t k = 0; k < input->n; k++) {
        if (input->ids[k] >= job->width)
            return lt_fail(err, LATTICE_ERR_INVALID_ARGUMENT, "input %zu: token id %u is outside the model's vocabulary of %zu",
                           i, (unsigned)input->ids[k], job->width);
    }
    return LATTICE_OK;
}

/* −ln softmax(logits)[target] = ln Σ e^(logit − largest) + largest − logit of the target */
static double surprise(const float *logits, size_t n, uint32_t target)
{
    float largest = logits[0];
    double sum = 0;
    for (size_t i = 1; i < n; i++)
        if (logits[i] > largest) largest = logits[i];
    for (size_t i = 0; i < n; i++) sum += exp((double)logits[i] - (double)largest);
    return log(sum) + (double)largest - (double)logits[target];
}

/* Rows [begin, begin + n) predict the tokens behind each. */
static lattice_status run_piece(nll_job *job, const lattice_ids *input, size_t i, size_t begin, size_t n, double *nll,
                                lattice_error *err)
{
    lattice_model *m = job->model;
    const lt_state_ops *states = m->backend->states;
    const size_t starts[2] = { 0, n };
    LT_TRY(states->reserve(job->state, n, err));
    for (size_t k = 0; k < n; k++) job->positions[k] = (uint32_t)(begin + k);
    lt_batch batch = {
        .n_tokens = n,
        .n_seqs = 1,
        .n_out = n,
        .ids = input->ids + begin,
        .positions = job->positions,
        .seq_starts = starts,
        .out_rows = job->rows,
        .past_lens = &begin,
        .states = &job->state,
    };
    LT_TRY(m->backend->run(m->program, &batch, LT_TAIL_LOGITS, job->logits, NULL, err));
    states->commit(job->state);
    for (size_t k = 0; k < n; k++) {
        const float *row = job->logits + k * job->width;
        if (!m->kernels->all_finite(row, job->width))
            return lt_fail(err, LATTICE_ERR_NOT_FINITE,
                           "%s: the logits of input %zu are not finite; checking the model names a weight at fault", m->folder,
                           i);
        *nll += surprise(row, job->width, input->ids[begin + k + 1]);
    }
    return LATTICE_OK;
}

static lattice_status run_inputs(nll_job *job, const lattice_ids *inputs, size_t n, double *nll, lattice_usage *usage,
                                 lattice_error *err)
{
    for (size_t i = 0; i < n; i++) {
        const lattice_ids *input = &inputs[i];
        double sum = 0;
        LT_TRY(check_input(job, input, i, err));
        LT_TRY(job->model->backend->states->truncate(job->state, 0, err));
        for (size_t at = 0; at + 1 < input->n; at += job->piece) {
            size_t rest = input->n - 1 - at;
            LT_TRY(run_piece(job, input, i, at, rest < job->piece ? rest : job->piece, &sum, err));
        }
        nll[i] = sum;
        if (!usage) continue;
        usage->n_tokens += input->n;
        if (usage->text_tokens) usage->text_tokens[i] = (uint32_t)input->n;
    }
    return LATTICE_OK;
}

lattice_status lattice_nll(lattice_model *model, const lattice_ids *inputs, size_t n, double *nll, lattice_usage *usage,
                           lattice_error *err)
{
    if (usage) usage->n_tokens = usage->n_truncated = 0;
    if (!model->plan.tails[LT_TAIL_LOGITS].present)
        return lt_fail(err, LATTICE_ERR_UNSUPPORTED, "%s: this %s model has no language model's head", model->folder,
                       model->family->name);
    if (n == 0) return LATTICE_OK;
    nll_job job = { .model = model, .width = lt_tail_width(&model->plan, LT_TAIL_LOGITS, 0), .piece = 64 };
    size_t floats, most = model->max_tokens < 1024 ? model->max_tokens : 1024;
    while (2 * job.piece <= most && 2 * job.piece <= piece_bytes / sizeof(float) / job.width) job.piece *= 2;
    if (job.piece > model->max_tokens) job.piece = model->max_tokens;
    if (lt_mul(job.piece, job.width, &floats)) job.logits = lt_alloc_array(model->mem, floats, sizeof *job.logits);
    job.positions = lt_alloc_array(model->mem, job.piece, sizeof *job.positions);
    job.rows = lt_alloc_array(model->mem, job.piece, sizeof *job.rows);
    lattice_status status = LATTICE_OK;
    if (!job.logits || !job.positions || !job.rows) status = lt_no_memory(err, job.width * sizeof(float), "logits");
    for (size_t k = 0; status == LATTICE_OK && k < job.piece; k++) job.rows[k] = k;
    if (status == LATTICE_OK) status = model->backend->states->create(model->program, &job.state, err);
    if (status == LATTICE_OK) status = run_inputs(&job, inputs, n, nll, usage, err);
    model->backend->states->free(job.state);
    lt_free(model->mem, job.logits);
    lt_free(model->mem, job.positions);
    lt_free(model->mem, job.rows);
    return status;
}
