/* Qwen3: pre-norm decoders with grouped queries, for embeddings and reranking (Qwen3 Technical Report, arXiv:2505.09388).
 *
 *     x = E[id]
 *     per layer:  h = RMS(x);  q, k, v = h Wqᵀ, h Wkᵀ, h Wvᵀ;  q, k = rope(RMS_head(q)), rope(RMS_head(k))
 *                 x = x + Wo softmax(q kᵀ / √hd, causal) v;   x = x + Wd (silu(Wg h) ⊙ Wu h), h = RMS(x)
 *     RMS(x)
 *
 * q, k and v come from one joined operand [q_dim + 2 kv_dim, H] (INV-7), whose columns the rotation changes in place and
 * attention reads in place; gate and up are one operand too. The residual additions ride on the products' stores. Tails: token
 * vectors; poolings; and, where the checkpoint has an output matrix, logits of the rows selected: of the whole vocabulary, or of
 * a few tokens (a reranker's "no" and "yes") from these rows of the matrix alone. */
#include "model/decoder.h"
#include "model/family.h"

static bool matches(const lt_config *config)
{
    return config->model_type == LT_MODEL_QWEN3 && config->head != LT_HEAD_CLASSIFIER;
}

/* x + Wo softmax(q kᵀ / √hd, causal) v */
static lattice_status mix(lt_decoder *d, size_t layer, int h, int *x)
{
    static const char *const stems[3] = { "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj" };
    const lt_config *c = d->config;
    const size_t rows[3] = { d->q_dim, d->kv_dim, d->kv_dim };
    int qkv;
    LT_TRY(lt_decoder_joined(d, layer, stems, 3, rows, c->attention_bias, h, "qkv", &qkv));
    const lt_operand q = { .value = qkv, .column = 0, .head_stride = c->head_dim };
    const lt_operand k = { .value = qkv, .column = d->q_dim, .head_stride = c->head_dim };
    const lt_operand v = { .value = qkv, .column = d->q_dim + d->kv_dim, .head_stride = c->head_dim };
    LT_TRY(lt_decoder_rotate(d, layer, &q, &k));
    lt_decoder_attend(d, &q, &k, &v);
    return lt_decoder_project(d, layer, "self_attn.o_proj", qkv, d->q_dim, c->attention_bias, *x, 0, x);
}

/* Logits of a few tokens: these rows of the output matrix alone. */
static lattice_status score_tail(lt_decoder *d, int h, int matrix, const uint32_t *ids, size_t n_ids)
{
    lattice_error *err = d->binder.err;
    if (n_ids == 0) return LATTICE_OK;
    if (matrix == LT_NONE)
        return lt_fail(err, LATTICE_ERR_UNSUPPORTED, "config.json: a model without output matrix gives no scores");
    if (n_ids > LT_MAX_SEGMENTS)
        return lt_fail(err, LATTICE_ERR_INVALID_ARGUMENT, "scores of more than %d tokens", LT_MAX_SEGMENTS);
    if (d->plan->failed) return LATTICE_OK;
    lt_weight rows = d->plan->weights[matrix];
    for (size_t i = 0; i < n_ids; i++) {
        if (ids[i] >= d->config->vocab_size) {
            return lt_fail(err, LATTICE_ERR_INVALID_ARGUMENT, "token id %u is outside the vocabulary of %zu", (unsigned)ids[i],
                           d->config->vocab_size);
        }
        rows.segments[i] = rows.segments[0];
        rows.segments[i].first_row = ids[i];
        rows.segments[i].n_rows = 1;
    }
    rows.n_segments = (int)n_ids;
    rows.rows = n_ids;
    lt_decoder_logits_tail(d, h, lt_plan_weight(d->plan, &rows), LT_TAIL_SCORES);
    return LATTICE_OK;
}

static lattice_status record_all(lt_decoder *d, const lt_sentence *sentence, const uint32_t *score_ids, size_t n_score_ids)
{
    int h, matrix;
    LT_TRY(lt_decoder_body(d, &h));
    lt_plan_end_tail(d->plan, LT_TAIL_TOKENS, h);
    lt_decoder_pooled_tail(d, h, sentence && sentence->pooling ? sentence->pooling : LATTICE_POOLING_LASTTOKEN);
    LT_TRY(lt_decoder_output_matrix(d, sentence, &matrix));
    LT_TRY(score_tail(d, h, matrix, score_ids, n_score_ids));
    if (matrix != LT_NONE) lt_decoder_logits_tail(d, h, matrix, LT_TAIL_LOGITS);
    static const char *const ignored[] = { "lm_head.", NULL };
    return lt_binder_finish(&d->binder, ignored);
}

static lattice_status record(const lattice_runtime *runtime, const lt_config *config, const lt_sentence *sentence,
                             lt_checkpoint *checkpoint, const uint32_t *score_ids, size_t n_score_ids, lt_plan *plan,
                             lattice_error *err)
{
    lt_decoder d = { .config = config, .plan = plan, .mix = mix };
    size_t width;
    if (!lt_mul(config->n_heads, config->head_dim, &d.q_dim) || !lt_mul(config->n_kv_heads, config->head_dim, &d.kv_dim) ||
        !lt_mul(d.kv_dim, 2, &width) || !lt_add(width, d.q_dim, &width)) {
        return lt_fail(err, LATTICE_ERR_FORMAT, "config.json: %zu heads of %zu are too large", config->n_heads, config->head_dim);
    }
    lattice_status status = lt_binder_open(&d.binder, runtime, checkpoint, plan, err);
    if (status == LATTICE_OK) status = record_all(&d, sentence, score_ids, n_score_ids);
    lt_binder_close(&d.binder);
    if (status != LATTICE_OK) return status;
    return lt_plan_check(plan, err);
}

const lt_family lt_family_qwen3 = { .name = "qwen3", .matches = matches, .record = record };
