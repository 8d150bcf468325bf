/* Documents judged by a causal language model (Qwen3-Reranker): its next token after the prompt is "yes" or "no".
 *
 *     prefix    system message: how to judge; then the user's turn begins
 *     middle    <Instruct>: {instruction}\n<Query>: {query}\n<Document>: {document}
 *     suffix    the turn ends; the assistant has thought nothing and answers
 *
 * The three are tokenised one by one. Special tokens are recognised in prefix and suffix only: what a user writes never ends his
 * turn. Where the whole is too long the middle is cut at its end.
 *
 * All prompts of a call begin with prefix, instruction and query. Their keys and values are computed once, up to a multiple of 64
 * tokens, and the documents' states are forks of that one, so that its blocks are there once. Rows do not depend on such a cut,
 * and the cut is made for a single document too: a score does not depend on the other documents. */
#include <string.h>

#include "engine/rerank.h"

static const char prefix_text[] =
    "<|im_start|>system\n"
    "Judge whether the Document meets the requirements based on the Query and the Instruct provided. "
    "Note that the answer can only be \"yes\" or \"no\".<|im_end|>\n<|im_start|>user\n";
static const char suffix_text[] = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n";

/* Documents are computed in batches whose keys and values take about so much: a few hundred tokens of a large model, which is
 * where its products are as fast as they get. */
static const size_t state_bytes = (size_t)256 << 20;

/* ------------------------------------------------------------------ tokens */

/* max_length SIZE_MAX: not cut. */
static lattice_status encode(lt_rerank *job, lt_str text, bool literal, size_t max_length, lt_tokens *tokens, lattice_error *err)
{
    lt_encode_options options = { .literal = literal, .max_length = max_length == SIZE_MAX ? 0 : max_length, .no_spans = true };
    LT_TRY(lt_tokenizer_encode(lt_tokenizer_of(job->model->tokenizer), job->scratch, text, NULL, &options, tokens, err));
    size_t vocabulary = job->model->config.vocab_size;
    for (size_t i = 0; i < tokens->n; i++) {
        if (tokens->ids[i] >= vocabulary)
            return lt_fail(err, LATTICE_ERR_INVALID_ARGUMENT, "token id %u is outside the model's vocabulary of %zu",
                           tokens->ids[i], vocabulary);
    }
    return LATTICE_OK;
}

/* The middle of the prompt into job->tokens. */
static lattice_status encode_middle(lt_rerank *job, lt_str document, size_t max_length, lattice_error *err)
{
    lt_buf *text = &job->judge.text;
    const char *instruction = job->options->instruction ? job->options->instruction : LATTICE_DEFAULT_INSTRUCTION;
    lt_buf_clear(text);
    lt_buf_append_z(text, "<Instruct>: ");
    lt_buf_append_z(text, instruction);
    lt_buf_append_z(text, "\n<Query>: ");
    if (job->query.len) lt_buf_append(text, job->query.data, job->query.len);
    lt_buf_append_z(text, "\n<Document>: ");
    if (document.len) lt_buf_append(text, document.data, document.len);
    if (text->failed) {
        text->failed = false;
        return lt_no_memory(err, job->query.len + document.len, "a prompt");
    }
    return encode(job, lt_buf_str(text), true, max_length, &job->tokens, err);
}

static bool append_base(lt_judge *judge, const lt_rerank *job, const uint32_t *ids, size_t n)
{
    if (!LT_GROW(job->model->mem, judge->base, judge->base_capacity, judge->n_base + n)) return false;
    if (n) memcpy(judge->base + judge->n_base, ids, n * sizeof *ids);
    judge->n_base += n;
    return true;
}

/* Prefix, suffix, and the middle of a prompt whose document is empty. */
static lattice_status encode_prompt(lt_rerank *job, lattice_error *err)
{
    lt_judge *judge = &job->judge;
    LT_TRY(encode(job, LT_STR(suffix_text), false, SIZE_MAX, &judge->suffix, err));
    LT_TRY(encode(job, LT_STR(prefix_text), false, SIZE_MAX, &job->tokens, err));
    judge->n_prefix = job->tokens.n;
    if (!append_base(judge, job, job->tokens.ids, job->tokens.n)) return lt_no_memory(err, job->tokens.n * 4, "token ids");
    size_t fixed = judge->n_prefix + judge->suffix.n;
    if (job->max_length <= fixed)
        return lt_fail(err, LATTICE_ERR_INVALID_ARGUMENT,
                       "maximum length %zu leaves no room for query and document: the prompt itself has %zu tokens",
                       job->max_length, fixed);
    judge->room = job->max_length - fixed;
    LT_TRY(encode_middle(job, (lt_str){ "", 0 }, judge->room, err));
    return append_base(judge, job, job->tokens.ids, job->tokens.n) ? LATTICE_OK
                                                                   : lt_no_memory(err, job->tokens.n * 4, "token ids");
}

/* Ids that the middle has in common with that of an empty document. A token may reach over the end of the query into the
 * document: then there are fewer. */
static size_t common_with_base(const lt_judge *judge, const lt_tokens *middle)
{
    size_t most = judge->n_base - judge->n_prefix, common = 0;
    if (most > middle->n) most = middle->n;
    while (common < most && middle->ids[common] == judge->base[judge->n_prefix + common]) common++;
    return common;
}

/* Leaves the document's end, as far as there is room behind instruction and query. */
static void cut_beginning(const lt_judge *judge, lt_tokens *middle)
{
    if (middle->n <= judge->room) return;
    size_t kept = common_with_base(judge, middle), rest = judge->room - kept;
    memmove(middle->ids + kept, middle->ids + middle->n - rest, rest * sizeof *middle->ids);
    middle->n = judge->room;
    middle->truncated = true;
}

lattice_status lt_judge_add(lt_rerank *job, lt_window *window, size_t i, lattice_error *err)
{
    lt_judge *judge = &job->judge;
    lt_tokens *middle = &job->tokens;
    lt_str document = { job->documents[i].data ? job->documents[i].data : "", job->documents[i].length };
    bool cuts_end = job->options->truncate && !job->options->truncate_left;
    LT_TRY(encode_middle(job, document, cuts_end ? judge->room : SIZE_MAX, err));
    if (job->options->truncate && !cuts_end) cut_beginning(judge, middle);
    if (middle->n > judge->room)
        return lt_fail(err, LATTICE_ERR_TOO_LONG,
                       "document %zu, its query and the prompt have %zu tokens, more than the limit of %zu", i,
                       middle->n + (job->max_length - judge->room), job->max_length);
    window->n_truncated += middle->truncated;

    size_t common = common_with_base(judge, middle);
    size_t past = (judge->n_prefix + common) / LT_BLOCK_ROWS * LT_BLOCK_ROWS;
    if (past > judge->shared) past = judge->shared;

    size_t n = 0, which = (size_t)(window - job->windows), head = judge->n_prefix > past ? judge->n_prefix - past : 0;
    size_t skip = past > judge->n_prefix ? past - judge->n_prefix : 0;
    if (!LT_GROW(job->model->mem, judge->own, judge->own_capacity, head + middle->n + judge->suffix.n) ||
        !LT_GROW(job->model->mem, judge->pasts[which], judge->pasts_capacity[which], window->n + 1))
        return lt_no_memory(err, (head + middle->n) * 4, "token ids");
    if (head) memcpy(judge->own, judge->base + past, head * sizeof *judge->own);
    n = head;
    memcpy(judge->own + n, middle->ids + skip, (middle->n - skip) * sizeof *judge->own);
    n += middle->n - skip;
    memcpy(judge->own + n, judge->suffix.ids, judge->suffix.n * sizeof *judge->own);
    n += judge->suffix.n;
    judge->pasts[which][window->n] = past;
    if (!lt_window_add(window, judge->own, NULL, n)) return lt_no_memory(err, n * 8, "token ids");
    return LATTICE_OK;
}

size_t lt_judge_past(const lt_rerank *job, const lt_window *window, size_t i)
{
    return job->judge.pasts[window - job->windows][i];
}

/* ------------------------------------------------------------------ states */

/* The rows that all prompts share, into a state. */
static lattice_status compute_prefix(lt_rerank *job, lt_state **prefix, lattice_error *err)
{
    lattice_model *model = job->model;
    lt_judge *judge = &job->judge;
    const lt_state_ops *states = model->backend->states;
    LT_TRY(states->create(model->program, prefix, err));
    size_t n = judge->shared;
    if (n == 0) return LATTICE_OK;
    LT_TRY(states->reserve(*prefix, n, err));
    uint32_t *positions = lt_alloc_array(model->mem, n, sizeof *positions);
    if (!positions) return lt_no_memory(err, n * sizeof *positions, "a batch");
    for (size_t i = 0; i < n; i++) positions[i] = (uint32_t)i;
    size_t starts[2] = { 0, n }, past = 0, row = n - 1;
    float logits[2];
    lt_batch batch = { .n_tokens = n,
                       .n_seqs = 1,
                       .n_out = 1,
                       .ids = judge->base,
                       .positions = positions,
                       .seq_starts = starts,
                       .out_rows = &row,
                       .past_lens = &past,
                       .states = prefix };
    lattice_status status = model->backend->run(model->program, &batch, LT_TAIL_SCORES, logits, NULL, err);
    lt_free(model->mem, positions);
    if (status != LATTICE_OK) return status;
    states->commit(*prefix);
    return LATTICE_OK;
}

/* New states live on the device that has the fewest, so that each has one. */
static lattice_status compute_prefixes(lt_rerank *job, lattice_error *err)
{
    lt_judge *judge = &job->judge;
    size_t n = lt_model_devices(job->model);
    judge->shared = judge->n_base / LT_BLOCK_ROWS * LT_BLOCK_ROWS;
    judge->prefixes = lt_alloc_zero(job->model->mem, n * sizeof *judge->prefixes);
    if (!judge->prefixes) return lt_no_memory(err, n * sizeof *judge->prefixes, "states");
    judge->n_prefixes = n;
    for (size_t i = 0; i < n; i++) LT_TRY(compute_prefix(job, &judge->prefixes[i], err));
    if (job->usage) job->usage->n_tokens += judge->shared;
    return LATTICE_OK;
}

lattice_status lt_judge_begin(lt_rerank *job, lattice_error *err)
{
    const lattice_model *model = job->model;
    LT_TRY(encode_prompt(job, err));
    size_t row_bytes = model->backend->states->bytes(model->program, LT_BLOCK_ROWS) / LT_BLOCK_ROWS;
    if (row_bytes > 0 && job->budget > state_bytes / row_bytes) job->budget = state_bytes / row_bytes;
    if (job->budget == 0) job->budget = 1;
    return compute_prefixes(job, err);
}

void lt_judge_end(lt_rerank *job)
{
    const lattice_allocator *mem = job->model->mem;
    lt_judge *judge = &job->judge;
    for (size_t i = 0; i < judge->n_states; i++) job->model->backend->states->free(judge->states[i]);
    for (size_t i = 0; i < judge->n_prefixes; i++) job->model->backend->states->free(judge->prefixes[i]);
    lt_free(mem, judge->prefixes);
    lt_tokens_free(&judge->suffix);
    lt_buf_free(&judge->text);
    lt_free(mem, judge->base);
    lt_free(mem, judge->own);
    lt_free(mem, judge->states);
    lt_free(mem, judge->past_lens);
    lt_free(mem, judge->out_rows);
    for (int i = 0; i < 2; i++) lt_free(mem, judge->pasts[i]);
}

/* A state for sequence number s of a batch: the one of the last batch, if it has as many rows, or a fork. */
static lattice_status take_state(lt_rerank *job, size_t s, size_t past, lattice_error *err)
{
    lt_judge *judge = &job->judge;
    const lt_state_ops *states = job->model->backend->states;
    if (s < judge->n_states && states->length(judge->states[s]) == past) return LATTICE_OK;
    lt_state *state;
    LT_TRY(states->fork(judge->prefixes[s % judge->n_prefixes], &state, err));
    lattice_status status = states->truncate(state, past, err);
    if (status != LATTICE_OK) {
        states->free(state);
        return status;
    }
    if (s < judge->n_states)
        states->free(judge->states[s]);
    else
        judge->n_states++;
    judge->states[s] = state;
    return LATTICE_OK;
}

lattice_status lt_judge_prepare(lt_rerank *job, const lt_window *window, lattice_error *err)
{
    const lattice_allocator *mem = job->model->mem;
    lt_judge *judge = &job->judge;
    lt_packer *packer = &job->packer;
    size_t n = packer->batch.n_seqs;
    if (!LT_GROW(mem, judge->states, judge->states_capacity, n) ||
        !LT_GROW(mem, judge->past_lens, judge->past_lens_capacity, n) ||
        !LT_GROW(mem, judge->out_rows, judge->out_rows_capacity, n))
        return lt_no_memory(err, n * sizeof *judge->states, "a batch");
    for (size_t s = 0; s < n; s++) {
        size_t past = lt_judge_past(job, window, packer->members[s]), begin = packer->seq_starts[s],
               end = packer->seq_starts[s + 1];
        LT_TRY(take_state(job, s, past, err));
        LT_TRY(job->model->backend->states->reserve(judge->states[s], end - begin, err));
        for (size_t i = begin; i < end; i++) packer->positions[i] += (uint32_t)past;
        judge->past_lens[s] = past;
        judge->out_rows[s] = end - 1;
    }
    packer->batch.past_lens = judge->past_lens;
    packer->batch.states = judge->states;
    packer->batch.out_rows = judge->out_rows;
    return LATTICE_OK;
}

void lt_judge_discard(lt_rerank *job)
{
    for (size_t s = 0; s < job->packer.batch.n_seqs; s++) job->model->backend->states->discard(job->judge.states[s]);
}
