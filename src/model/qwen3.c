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
#include <math.h>
#include <stdio.h>

#include "model/bind.h"
#include "model/decoder.h"
#include "model/family.h"

typedef struct recorder {
    const lt_config *config;
    lt_plan *plan;
    lt_binder binder;
    size_t hidden, q_dim, kv_dim; /* H, nh hd, nk hd */
    int embedding;                /* weight */
} recorder;

enum { NAME = 96 };

static bool matches(const lt_config *config)
{
    return config->model_type == LT_MODEL_QWEN3 && config->head != LT_HEAD_CLASSIFIER;
}

/* out = RMS(in) */
static lattice_status rms_norm(recorder *r, const char *name, int in, int trace, int *out)
{
    lt_op op = lt_op_new(LT_OP_ADD_NORM);
    LT_TRY(lt_bind_vector(&r->binder, name, r->hidden, &op.weight[0]));
    op.in[0] = lt_all(in);
    op.eps = r->config->norm_eps;
    op.trace = trace;
    op.out[0] = *out = lt_plan_value(r->plan, LT_ROWS_TOKENS, r->hidden, "h");
    lt_plan_op(r->plan, op);
    return LATTICE_OK;
}

/* q ‖ k ‖ v of h, q and k normalised and rotated. */
static lattice_status query_key_value(recorder *r, size_t layer, int h, int *qkv)
{
    static const char parts[3] = { 'q', 'k', 'v' };
    const lt_config *c = r->config;
    const size_t rows[3] = { r->q_dim, r->kv_dim, r->kv_dim };
    char weights[3][NAME], biases[3][NAME], gain[NAME];
    const char *weight_names[3], *bias_names[3];
    for (int i = 0; i < 3; i++) {
        snprintf(weights[i], NAME, "layers.%zu.self_attn.%c_proj.weight", layer, parts[i]);
        snprintf(biases[i], NAME, "layers.%zu.self_attn.%c_proj.bias", layer, parts[i]);
        weight_names[i] = weights[i];
        bias_names[i] = biases[i];
    }
    lt_op join = lt_op_new(LT_OP_LINEAR);
    LT_TRY(lt_bind_joined(&r->binder, weight_names, 3, rows, r->hidden, 2, &join.weight[0]));
    if (c->attention_bias) LT_TRY(lt_bind_joined(&r->binder, bias_names, 3, rows, 1, 1, &join.weight[1]));
    join.in[0] = lt_all(h);
    join.out[0] = *qkv = lt_plan_value(r->plan, LT_ROWS_TOKENS, r->q_dim + 2 * r->kv_dim, "qkv");
    lt_plan_op(r->plan, join);

    lt_op rope = lt_op_new(LT_OP_QK_NORM_ROPE);
    for (int i = 0; i < 2; i++) {
        snprintf(gain, NAME, "layers.%zu.self_attn.%c_norm.weight", layer, parts[i]);
        LT_TRY(lt_bind_vector(&r->binder, gain, c->head_dim, &rope.weight[i]));
        rope.in[i] = (lt_operand){ .value = *qkv, .column = i == 0 ? 0 : r->q_dim, .head_stride = c->head_dim };
    }
    rope.out[0] = *qkv;
    rope.n_heads = c->n_heads;
    rope.n_kv_heads = c->n_kv_heads;
    rope.head_dim = c->head_dim;
    rope.rotary_dim = c->rotary_dim;
    rope.rope_theta = c->rope_theta;
    rope.max_positions = lt_config_max_length(c);
    rope.eps = c->norm_eps;
    lt_plan_op(r->plan, rope);
    return LATTICE_OK;
}

/* softmax(q kᵀ / √hd, causal) v, in the place of q. */
static void self_attention(recorder *r, int qkv)
{
    const lt_config *c = r->config;
    lt_op op = lt_op_new(LT_OP_ATTENTION);
    const size_t columns[3] = { 0, r->q_dim, r->q_dim + r->kv_dim };
    for (int i = 0; i < 3; i++) op.in[i] = (lt_operand){ .value = qkv, .column = columns[i], .head_stride = c->head_dim };
    op.n_heads = c->n_heads;
    op.n_kv_heads = c->n_kv_heads;
    op.head_dim = c->head_dim;
    op.scale = (float)(1.0 / sqrt((double)c->head_dim));
    op.causal = true;
    op.out[0] = qkv;
    lt_plan_op(r->plan, op);
}

/* out = in Wᵀ (+ b) + residual, W "{stem}.weight" [H, in_width] */
static lattice_status project(recorder *r, const char *stem, int in, size_t in_width, bool bias, int residual, int trace,
                              int *out)
{
    char name[NAME + 8];
    lt_op op = lt_op_new(LT_OP_LINEAR);
    snprintf(name, sizeof name, "%s.weight", stem);
    LT_TRY(lt_bind_matrix(&r->binder, name, r->hidden, in_width, &op.weight[0]));
    snprintf(name, sizeof name, "%s.bias", stem);
    if (bias) LT_TRY(lt_bind_vector(&r->binder, name, r->hidden, &op.weight[1]));
    op.in[0] = lt_all(in);
    op.in[1] = lt_all(residual);
    op.trace = trace;
    op.out[0] = *out = lt_plan_value(r->plan, LT_ROWS_TOKENS, r->hidden, "x");
    lt_plan_op(r->plan, op);
    return LATTICE_OK;
}

/* One layer: *x to the next *x. The trace shows the last layer after the final norm, so that is where its mark is. */
static lattice_status decoder_layer(recorder *r, size_t layer, int *x)
{
    const lt_config *c = r->config;
    char name[NAME];
    int h, qkv, intermediate;
    snprintf(name, NAME, "layers.%zu.input_layernorm.weight", layer);
    LT_TRY(rms_norm(r, name, *x, 0, &h));
    LT_TRY(query_key_value(r, layer, h, &qkv));
    self_attention(r, qkv);
    snprintf(name, NAME, "layers.%zu.self_attn.o_proj", layer);
    LT_TRY(project(r, name, qkv, r->q_dim, c->attention_bias, *x, 0, x));
    snprintf(name, NAME, "layers.%zu.post_attention_layernorm.weight", layer);
    LT_TRY(rms_norm(r, name, *x, 0, &h));
    LT_TRY(lt_record_gate_up(&r->binder, r->config, layer, h, &intermediate));
    snprintf(name, NAME, "layers.%zu.mlp.down_proj", layer);
    return project(r, name, intermediate, c->intermediate_size, false, *x, layer + 1 < c->n_layers ? (int)layer + 2 : 0, x);
}

/* ------------------------------------------------------------------ tails */

static void pooled_tail(recorder *r, int h, unsigned pooling)
{
    lt_op pool = lt_op_new(LT_OP_POOL);
    pool.pooling = pooling;
    pool.in[0] = lt_all(h);
    pool.out[0] = lt_plan_value(r->plan, LT_ROWS_SEQS, r->hidden * (size_t)__builtin_popcount(pooling), "pooled");
    lt_plan_op(r->plan, pool);
    lt_plan_end_tail(r->plan, LT_TAIL_POOLED, pool.out[0]);
}

/* logits[n_out, rows of W] = h[out_rows] Wᵀ */
static void logits_tail(recorder *r, int h, int weight, lt_tail_kind kind)
{
    if (r->plan->failed) return;
    lt_op select = lt_op_new(LT_OP_SELECT), op = lt_op_new(LT_OP_LINEAR);
    select.in[0] = lt_all(h);
    select.out[0] = lt_plan_value(r->plan, LT_ROWS_OUT, r->hidden, "selected");
    lt_plan_op(r->plan, select);
    op.weight[0] = weight;
    op.in[0] = lt_all(select.out[0]);
    op.out[0] = r->plan->failed ? LT_NONE : lt_plan_value(r->plan, LT_ROWS_OUT, r->plan->weights[weight].rows, "logits");
    lt_plan_op(r->plan, op);
    lt_plan_end_tail(r->plan, kind, op.out[0]);
}

/* The output matrix: stored, or the embedding table where the two are tied. LT_NONE where there is neither and embeddings are
 * all that is wanted: checkpoints of embedding models leave it out, whatever their architecture is called. */
static lattice_status output_matrix(recorder *r, const lt_sentence *sentence, int *weight)
{
    const lt_config *c = r->config;
    *weight = LT_NONE;
    if (c->head != LT_HEAD_LM) return LATTICE_OK;
    if (lt_binder_has(&r->binder, "lm_head.weight")) {
        return lt_bind_matrix(&r->binder, "lm_head.weight", c->vocab_size, r->hidden, weight);
    }
    if (c->tie_word_embeddings) {
        *weight = r->embedding;
    } else if (!sentence || !sentence->pooling) {
        return lt_bind_matrix(&r->binder, "lm_head.weight", c->vocab_size, r->hidden, weight);
    }
    return LATTICE_OK;
}

static lattice_status score_tail(recorder *r, int h, int matrix, const uint32_t *ids, size_t n_ids)
{
    lattice_error *err = r->binder.err;
    if (n_ids == 0) return LATTICE_OK;
    if (matrix == LT_NONE)
        return lt_fail(err, LATTICE_ERR_UNSUPPORTED, "config.json: a model without output matrix gives no scores");
    if (n_ids > LT_MAX_SEGMENTS)
        return lt_fail(err, LATTICE_ERR_INVALID_ARGUMENT, "scores of more than %d tokens", LT_MAX_SEGMENTS);
    if (r->plan->failed) return LATTICE_OK;
    lt_weight rows = r->plan->weights[matrix];
    for (size_t i = 0; i < n_ids; i++) {
        if (ids[i] >= r->config->vocab_size) {
            return lt_fail(err, LATTICE_ERR_INVALID_ARGUMENT, "token id %u is outside the vocabulary of %zu", (unsigned)ids[i],
                           r->config->vocab_size);
        }
        rows.segments[i] = rows.segments[0];
        rows.segments[i].first_row = ids[i];
        rows.segments[i].n_rows = 1;
    }
    rows.n_segments = (int)n_ids;
    rows.rows = n_ids;
    logits_tail(r, h, lt_plan_weight(r->plan, &rows), LT_TAIL_SCORES);
    return LATTICE_OK;
}

/* ------------------------------------------------------------------ all */

static lattice_status record_all(recorder *r, const lt_sentence *sentence, const uint32_t *score_ids, size_t n_score_ids)
{
    const lt_config *c = r->config;
    r->plan->n_trace = c->n_layers + 1;
    lt_op embed = lt_op_new(LT_OP_EMBED);
    LT_TRY(lt_bind_matrix(&r->binder, "embed_tokens.weight", c->vocab_size, r->hidden, &embed.weight[0]));
    r->embedding = embed.weight[0];
    int x = lt_plan_value(r->plan, LT_ROWS_TOKENS, r->hidden, "x"), h, matrix;
    embed.out[0] = x;
    embed.trace = 1;
    lt_plan_op(r->plan, embed);
    for (size_t layer = 0; layer < c->n_layers; layer++) LT_TRY(decoder_layer(r, layer, &x));
    LT_TRY(rms_norm(r, "norm.weight", x, (int)c->n_layers + 1, &h));
    lt_plan_end_body(r->plan, h);

    lt_plan_end_tail(r->plan, LT_TAIL_TOKENS, h);
    pooled_tail(r, h, sentence && sentence->pooling ? sentence->pooling : LATTICE_POOLING_LASTTOKEN);
    LT_TRY(output_matrix(r, sentence, &matrix));
    LT_TRY(score_tail(r, h, matrix, score_ids, n_score_ids));
    if (matrix != LT_NONE) logits_tail(r, h, matrix, LT_TAIL_LOGITS);

    static const char *const ignored[] = { "lm_head.", NULL };
    return lt_binder_finish(&r->binder, ignored);
}

static lattice_status record(const lattice_runtime *runtime, const lt_config *config, const lt_sentence *sentence,
                             lt_checkpoint *checkpoint, const uint32_t *score_ids, size_t n_score_ids, lt_plan *plan,
                             lattice_error *err)
{
    recorder r = { .config = config, .plan = plan, .hidden = config->hidden_size };
    size_t width;
    if (!lt_mul(config->n_heads, config->head_dim, &r.q_dim) || !lt_mul(config->n_kv_heads, config->head_dim, &r.kv_dim) ||
        !lt_mul(r.kv_dim, 2, &width) || !lt_add(width, r.q_dim, &width)) {
        return lt_fail(err, LATTICE_ERR_FORMAT, "config.json: %zu heads of %zu are too large", config->n_heads, config->head_dim);
    }
    lattice_status status = lt_binder_open(&r.binder, runtime, checkpoint, plan, err);
    if (status == LATTICE_OK) status = record_all(&r, sentence, score_ids, n_score_ids);
    lt_binder_close(&r.binder);
    if (status != LATTICE_OK) return status;
    return lt_plan_check(plan, err);
}

const lt_family lt_family_qwen3 = { .name = "qwen3", .matches = matches, .record = record };
