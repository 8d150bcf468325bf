/* BERT, RoBERTa and XLM-RoBERTa: post-norm encoders (Devlin et al. 2018, arXiv:1810.04805; Liu et al. 2019, arXiv:1907.11692).
 *
 *     x = LN(word[id] + position[p + offset] + type[t])
 *     per layer:  a = softmax(q kᵀ / √hd) v;   x = LN(x + Wo a + bo);   x = LN(x + W2 act(W1 x + b1) + b2)
 *
 * q, k and v come from one joined operand [3H, H], whose columns attention reads in place. The residual additions ride on the
 * products' stores, so that a layer norm reads one matrix.
 * Tails: token vectors as they are; poolings; and, for sequence classification, BERT's pooler (dense, tanh) and classifier, or
 * RoBERTa's classifier.dense (tanh) and classifier.out_proj, on the rows selected. */
#include <math.h>
#include <stdio.h>

#include "model/bind.h"
#include "model/family.h"

typedef struct recorder {
    const lt_config *config;
    lt_plan *plan;
    lt_binder binder;
    size_t hidden; /* H */
} recorder;

static bool matches(const lt_config *config)
{
    return config->model_type == LT_MODEL_BERT || config->model_type == LT_MODEL_ROBERTA;
}

/* out = act(in Wᵀ + b) + residual, with the weights "{name}.weight" [width, in_width] and "{name}.bias" [width]. */
static lattice_status linear(recorder *r, const char *name, int in, size_t in_width, int residual, lt_activation activation,
                             lt_rows rows, size_t width, const char *label, int *out)
{
    char weight[160], bias[160];
    snprintf(weight, sizeof weight, "%s.weight", name);
    snprintf(bias, sizeof bias, "%s.bias", name);
    lt_op op = lt_op_new(LT_OP_LINEAR);
    LT_TRY(lt_bind_matrix(&r->binder, weight, width, in_width, &op.weight[0]));
    LT_TRY(lt_bind_vector(&r->binder, bias, width, &op.weight[1]));
    op.in[0] = lt_all(in);
    if (residual != LT_NONE) op.in[1] = lt_all(residual);
    op.activation = activation;
    op.int8 = rows == LT_ROWS_TOKENS; /* not a classifier's, which are small and end in a score */
    op.out[0] = *out = lt_plan_value(r->plan, rows, width, label);
    lt_plan_op(r->plan, op);
    return LATTICE_OK;
}

/* out = LN(in). Checkpoints older than safetensors call gain and bias gamma and beta. */
static lattice_status layer_norm(recorder *r, const char *name, int in, int trace, int *out)
{
    char gain[160], bias[160];
    snprintf(gain, sizeof gain, "%s.weight", name);
    snprintf(bias, sizeof bias, "%s.bias", name);
    if (!lt_binder_has(&r->binder, gain)) {
        char gamma[160];
        snprintf(gamma, sizeof gamma, "%s.gamma", name);
        if (lt_binder_has(&r->binder, gamma)) {
            snprintf(gain, sizeof gain, "%s.gamma", name);
            snprintf(bias, sizeof bias, "%s.beta", name);
        }
    }
    lt_op op = lt_op_new(LT_OP_ADD_NORM);
    LT_TRY(lt_bind_vector(&r->binder, gain, r->hidden, &op.weight[0]));
    LT_TRY(lt_bind_vector(&r->binder, bias, r->hidden, &op.weight[1]));
    op.in[0] = lt_all(in);
    op.eps = r->config->norm_eps;
    op.trace = trace;
    op.out[0] = *out = lt_plan_value(r->plan, LT_ROWS_TOKENS, r->hidden, "x");
    lt_plan_op(r->plan, op);
    return LATTICE_OK;
}

static lattice_status embeddings(recorder *r, int *x)
{
    const lt_config *c = r->config;
    lt_op op = lt_op_new(LT_OP_EMBED);
    LT_TRY(lt_bind_matrix(&r->binder, "embeddings.word_embeddings.weight", c->vocab_size, r->hidden, &op.weight[0]));
    LT_TRY(lt_bind_matrix(&r->binder, "embeddings.position_embeddings.weight", c->max_positions, r->hidden, &op.weight[1]));
    LT_TRY(lt_bind_matrix(&r->binder, "embeddings.token_type_embeddings.weight", c->type_vocab_size, r->hidden, &op.weight[2]));
    op.position_offset = c->position_offset;
    op.type_zero = c->model_type == LT_MODEL_ROBERTA;
    int sum = lt_plan_value(r->plan, LT_ROWS_TOKENS, r->hidden, "embedding");
    op.out[0] = sum;
    lt_plan_op(r->plan, op);
    return layer_norm(r, "embeddings.LayerNorm", sum, 1, x);
}

/* softmax(q kᵀ / √hd) v, from x. */
static lattice_status self_attention(recorder *r, size_t layer, int x, int *out)
{
    static const char *const parts[3] = { "query", "key", "value" };
    const lt_config *c = r->config;
    char weights[3][160], biases[3][160];
    const char *weight_names[3], *bias_names[3];
    size_t rows[3];
    for (int i = 0; i < 3; i++) {
        snprintf(weights[i], sizeof weights[i], "encoder.layer.%zu.attention.self.%s.weight", layer, parts[i]);
        snprintf(biases[i], sizeof biases[i], "encoder.layer.%zu.attention.self.%s.bias", layer, parts[i]);
        weight_names[i] = weights[i];
        bias_names[i] = biases[i];
        rows[i] = r->hidden;
    }
    lt_op join = lt_op_new(LT_OP_LINEAR);
    LT_TRY(lt_bind_joined(&r->binder, weight_names, 3, rows, r->hidden, 2, &join.weight[0]));
    LT_TRY(lt_bind_joined(&r->binder, bias_names, 3, rows, 1, 1, &join.weight[1]));
    int qkv = lt_plan_value(r->plan, LT_ROWS_TOKENS, 3 * r->hidden, "qkv");
    join.in[0] = lt_all(x);
    join.int8 = true;
    join.out[0] = qkv;
    lt_plan_op(r->plan, join);

    lt_op attention = lt_op_new(LT_OP_ATTENTION);
    for (size_t i = 0; i < 3; i++) {
        attention.in[i] = (lt_operand){ .value = qkv, .column = i * r->hidden, .head_stride = c->head_dim };
    }
    attention.n_heads = attention.n_kv_heads = c->n_heads;
    attention.head_dim = c->head_dim;
    attention.scale = (float)(1.0 / sqrt((double)c->head_dim));
    attention.out[0] = *out = lt_plan_value(r->plan, LT_ROWS_TOKENS, r->hidden, "attention");
    lt_plan_op(r->plan, attention);
    return LATTICE_OK;
}

static lattice_status encoder_layer(recorder *r, size_t layer, int *x)
{
    const lt_config *c = r->config;
    char name[96];
    int a, sum, h;
    LT_TRY(self_attention(r, layer, *x, &a));
    snprintf(name, sizeof name, "encoder.layer.%zu.attention.output.dense", layer);
    LT_TRY(linear(r, name, a, r->hidden, *x, LT_ACT_NONE, LT_ROWS_TOKENS, r->hidden, "sum", &sum));
    snprintf(name, sizeof name, "encoder.layer.%zu.attention.output.LayerNorm", layer);
    LT_TRY(layer_norm(r, name, sum, 0, x));
    snprintf(name, sizeof name, "encoder.layer.%zu.intermediate.dense", layer);
    LT_TRY(linear(r, name, *x, r->hidden, LT_NONE, c->activation, LT_ROWS_TOKENS, c->intermediate_size, "intermediate", &h));
    snprintf(name, sizeof name, "encoder.layer.%zu.output.dense", layer);
    LT_TRY(linear(r, name, h, c->intermediate_size, *x, LT_ACT_NONE, LT_ROWS_TOKENS, r->hidden, "sum", &sum));
    snprintf(name, sizeof name, "encoder.layer.%zu.output.LayerNorm", layer);
    return layer_norm(r, name, sum, (int)layer + 2, x);
}

static lattice_status classifier(recorder *r, int x)
{
    bool roberta = r->config->model_type == LT_MODEL_ROBERTA;
    lt_op select = lt_op_new(LT_OP_SELECT);
    int first = lt_plan_value(r->plan, LT_ROWS_OUT, r->hidden, "first"), dense, logits;
    select.in[0] = lt_all(x);
    select.out[0] = first;
    lt_plan_op(r->plan, select);
    LT_TRY(linear(r, roberta ? "classifier.dense" : "pooler.dense", first, r->hidden, LT_NONE, LT_ACT_TANH, LT_ROWS_OUT,
                  r->hidden, "pooler", &dense));
    LT_TRY(linear(r, roberta ? "classifier.out_proj" : "classifier", dense, r->hidden, LT_NONE, LT_ACT_NONE, LT_ROWS_OUT,
                  r->config->n_labels, "logits", &logits));
    lt_plan_end_tail(r->plan, LT_TAIL_SCORES, logits);
    return LATTICE_OK;
}

static lattice_status record_all(recorder *r, unsigned pooling)
{
    const lt_config *c = r->config;
    r->plan->n_trace = c->n_layers + 1;
    int x;
    LT_TRY(embeddings(r, &x));
    for (size_t layer = 0; layer < c->n_layers; layer++) LT_TRY(encoder_layer(r, layer, &x));
    lt_plan_end_body(r->plan, x);
    lt_plan_end_tail(r->plan, LT_TAIL_TOKENS, x);

    lt_op pool = lt_op_new(LT_OP_POOL);
    pool.pooling = pooling;
    pool.in[0] = lt_all(x);
    pool.out[0] = lt_plan_value(r->plan, LT_ROWS_SEQS, r->hidden * (size_t)__builtin_popcount(pooling), "pooled");
    lt_plan_op(r->plan, pool);
    lt_plan_end_tail(r->plan, LT_TAIL_POOLED, pool.out[0]);
    if (c->head == LT_HEAD_CLASSIFIER) LT_TRY(classifier(r, x));

    /* Heads of pre-training, and the pooler where no classifier reads it. */
    static const char *const ignored[] = { "pooler.", "cls.", "lm_head.", NULL };
    return lt_binder_finish(&r->binder, ignored);
}

static lattice_status record(const lattice_runtime *runtime, const lt_config *config, const lt_sentence *sentence,
                             lt_checkpoint *checkpoint, const uint32_t *score_ids, size_t n_score_ids, lt_plan *plan,
                             lattice_error *err)
{
    (void)score_ids;
    (void)n_score_ids;
    size_t width;
    if (!lt_mul(config->n_heads, config->head_dim, &width) || width != config->hidden_size || width == 0) {
        return lt_fail(err, LATTICE_ERR_FORMAT, "config.json: hidden_size %zu is not num_attention_heads %zu times head_dim %zu",
                       config->hidden_size, config->n_heads, config->head_dim);
    }
    if (config->head == LT_HEAD_CLASSIFIER && config->n_labels == 0) {
        return lt_fail(err, LATTICE_ERR_FORMAT, "config.json: a classifier without labels");
    }
    unsigned pooling = sentence && sentence->pooling ? sentence->pooling : LATTICE_POOLING_MEAN;
    recorder r = { .config = config, .plan = plan, .hidden = config->hidden_size };
    lattice_status status = lt_binder_open(&r.binder, runtime, checkpoint, plan, err);
    if (status == LATTICE_OK) status = record_all(&r, pooling);
    lt_binder_close(&r.binder);
    if (status != LATTICE_OK) return status;
    return lt_plan_check(plan, err);
}

const lt_family lt_family_bert = { .name = "bert", .matches = matches, .record = record };
