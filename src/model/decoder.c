/* What the decoder families record alike; decoder.h says what. Names are made from a layer's number and a stem. */
#include "model/decoder.h"

#include <math.h>
#include <stdio.h>

enum { NAME = 96 };

static void layer_name(char name[NAME], size_t layer, const char *stem, const char *suffix)
{
    snprintf(name, NAME, "layers.%zu.%s.%s", layer, stem, suffix);
}

static lattice_status bind_gain(lt_decoder *d, const char *name, size_t n, int *weight)
{
    LT_TRY(lt_bind_vector(&d->binder, name, n, weight));
    if (!d->plan->failed) d->plan->weights[*weight].plus_one = d->gains_less_one;
    return LATTICE_OK;
}

/* *out = RMS(in) */
static lattice_status rms_norm(lt_decoder *d, const char *name, int in, int trace, int *out)
{
    lt_op op = lt_op_new(LT_OP_ADD_NORM);
    LT_TRY(bind_gain(d, name, d->config->hidden_size, &op.weight[0]));
    op.in[0] = lt_all(in);
    op.eps = d->config->norm_eps;
    op.trace = trace;
    op.out[0] = *out = lt_plan_value(d->plan, LT_ROWS_TOKENS, d->config->hidden_size, "h");
    lt_plan_op(d->plan, op);
    return LATTICE_OK;
}

lattice_status lt_decoder_joined(lt_decoder *d, size_t layer, const char *const *stems, int n, const size_t *rows, bool bias,
                                 int h, const char *value, int *out)
{
    char weights[LT_MAX_SEGMENTS][NAME], biases[LT_MAX_SEGMENTS][NAME];
    const char *weight_names[LT_MAX_SEGMENTS], *bias_names[LT_MAX_SEGMENTS];
    size_t width = 0;
    for (int i = 0; i < n; i++) {
        layer_name(weights[i], layer, stems[i], "weight");
        layer_name(biases[i], layer, stems[i], "bias");
        weight_names[i] = weights[i];
        bias_names[i] = biases[i];
        width += rows[i];
    }
    lt_op op = lt_op_new(LT_OP_LINEAR);
    LT_TRY(lt_bind_joined(&d->binder, weight_names, n, rows, d->config->hidden_size, 2, &op.weight[0]));
    if (bias) LT_TRY(lt_bind_joined(&d->binder, bias_names, n, rows, 1, 1, &op.weight[1]));
    op.in[0] = lt_all(h);
    op.out[0] = *out = lt_plan_value(d->plan, LT_ROWS_TOKENS, width, value);
    lt_plan_op(d->plan, op);
    return LATTICE_OK;
}

lattice_status lt_decoder_project(lt_decoder *d, size_t layer, const char *stem, int in, size_t in_width, bool bias, int residual,
                                  int trace, int *out)
{
    const size_t hidden = d->config->hidden_size;
    char name[NAME];
    lt_op op = lt_op_new(LT_OP_LINEAR);
    layer_name(name, layer, stem, "weight");
    LT_TRY(lt_bind_matrix(&d->binder, name, hidden, in_width, &op.weight[0]));
    layer_name(name, layer, stem, "bias");
    if (bias) LT_TRY(lt_bind_vector(&d->binder, name, hidden, &op.weight[1]));
    op.in[0] = lt_all(in);
    op.in[1] = lt_all(residual);
    op.trace = trace;
    op.out[0] = *out = lt_plan_value(d->plan, LT_ROWS_TOKENS, hidden, "x");
    lt_plan_op(d->plan, op);
    return LATTICE_OK;
}

/* ------------------------------------------------------------------ attention */

lattice_status lt_decoder_rotate(lt_decoder *d, size_t layer, const lt_operand *q, const lt_operand *k)
{
    static const char *const stems[2] = { "self_attn.q_norm", "self_attn.k_norm" };
    const lt_config *c = d->config;
    lt_op op = lt_op_new(LT_OP_QK_NORM_ROPE);
    for (int i = 0; i < 2; i++) {
        char name[NAME];
        layer_name(name, layer, stems[i], "weight");
        LT_TRY(bind_gain(d, name, c->head_dim, &op.weight[i]));
        op.in[i] = i == 0 ? *q : *k;
    }
    op.out[0] = q->value;
    op.n_heads = c->n_heads;
    op.n_kv_heads = c->n_kv_heads;
    op.head_dim = c->head_dim;
    op.rotary_dim = c->rotary_dim;
    op.rope_theta = c->rope_theta;
    op.max_positions = lt_config_max_length(c);
    op.eps = c->norm_eps;
    lt_plan_op(d->plan, op);
    return LATTICE_OK;
}

void lt_decoder_attend(lt_decoder *d, const lt_operand *q, const lt_operand *k, const lt_operand *v)
{
    const lt_config *c = d->config;
    lt_op op = lt_op_new(LT_OP_ATTENTION);
    op.in[0] = *q;
    op.in[1] = *k;
    op.in[2] = *v;
    op.n_heads = c->n_heads;
    op.n_kv_heads = c->n_kv_heads;
    op.head_dim = c->head_dim;
    op.scale = (float)(1.0 / sqrt((double)c->head_dim));
    op.causal = true;
    op.out[0] = q->value;
    lt_plan_op(d->plan, op);
}

/* ------------------------------------------------------------------ layers */

/* x + Wd (act(Wg h) ⊙ Wu h), h = RMS(x). The trace shows the last layer after the final norm, so that is where its mark is. */
static lattice_status feed_forward(lt_decoder *d, size_t layer, int *x)
{
    static const char *const stems[2] = { "mlp.gate_proj", "mlp.up_proj" };
    const lt_config *c = d->config;
    char name[NAME], names[2][NAME];
    int h, intermediate;
    layer_name(name, layer, "post_attention_layernorm", "weight");
    LT_TRY(rms_norm(d, name, *x, 0, &h));
    for (int i = 0; i < 2; i++) layer_name(names[i], layer, stems[i], "weight");
    const char *const gate_up[2] = { names[0], names[1] };
    const size_t rows[2] = { c->intermediate_size, c->intermediate_size };
    lt_op op = lt_op_new(LT_OP_LINEAR);
    LT_TRY(lt_bind_joined(&d->binder, gate_up, 2, rows, c->hidden_size, 2, &op.weight[0]));
    op.glu = true;
    op.activation = c->activation;
    op.in[0] = lt_all(h);
    op.out[0] = intermediate = lt_plan_value(d->plan, LT_ROWS_TOKENS, c->intermediate_size, "intermediate");
    lt_plan_op(d->plan, op);
    const int trace = layer + 1 < c->n_layers ? (int)layer + 2 : 0;
    return lt_decoder_project(d, layer, "mlp.down_proj", intermediate, c->intermediate_size, false, *x, trace, x);
}

lattice_status lt_decoder_body(lt_decoder *d, int *h)
{
    const lt_config *c = d->config;
    d->plan->n_trace = c->n_layers + 1;
    lt_op embed = lt_op_new(LT_OP_EMBED);
    LT_TRY(lt_bind_matrix(&d->binder, "embed_tokens.weight", c->vocab_size, c->hidden_size, &embed.weight[0]));
    d->embedding = embed.weight[0];
    int x = lt_plan_value(d->plan, LT_ROWS_TOKENS, c->hidden_size, "x");
    embed.out[0] = x;
    embed.trace = 1;
    lt_plan_op(d->plan, embed);
    for (size_t layer = 0; layer < c->n_layers; layer++) {
        char name[NAME];
        layer_name(name, layer, "input_layernorm", "weight");
        LT_TRY(rms_norm(d, name, x, 0, h));
        LT_TRY(d->mix(d, layer, *h, &x));
        LT_TRY(feed_forward(d, layer, &x));
    }
    LT_TRY(rms_norm(d, "norm.weight", x, (int)c->n_layers + 1, h));
    lt_plan_end_body(d->plan, *h);
    return LATTICE_OK;
}

/* ------------------------------------------------------------------ tails */

lattice_status lt_decoder_output_matrix(lt_decoder *d, const lt_sentence *sentence, int *weight)
{
    const lt_config *c = d->config;
    *weight = LT_NONE;
    if (c->head != LT_HEAD_LM) return LATTICE_OK;
    const bool stored = lt_binder_has(&d->binder, "lm_head.weight");
    if (!stored && c->tie_word_embeddings) {
        *weight = d->embedding;
        return LATTICE_OK;
    }
    if (!stored && sentence && sentence->pooling) return LATTICE_OK;
    return lt_bind_matrix(&d->binder, "lm_head.weight", c->vocab_size, c->hidden_size, weight);
}

void lt_decoder_pooled_tail(lt_decoder *d, int h, unsigned pooling)
{
    const size_t width = d->config->hidden_size * (size_t)__builtin_popcount(pooling);
    lt_op pool = lt_op_new(LT_OP_POOL);
    pool.pooling = pooling;
    pool.in[0] = lt_all(h);
    pool.out[0] = lt_plan_value(d->plan, LT_ROWS_SEQS, width, "pooled");
    lt_plan_op(d->plan, pool);
    lt_plan_end_tail(d->plan, LT_TAIL_POOLED, pool.out[0]);
}

void lt_decoder_logits_tail(lt_decoder *d, int h, int weight, lt_tail_kind kind)
{
    if (d->plan->failed) return;
    lt_op select = lt_op_new(LT_OP_SELECT), op = lt_op_new(LT_OP_LINEAR);
    select.in[0] = lt_all(h);
    select.out[0] = lt_plan_value(d->plan, LT_ROWS_OUT, d->config->hidden_size, "selected");
    lt_plan_op(d->plan, select);
    op.weight[0] = weight;
    op.in[0] = lt_all(select.out[0]);
    op.out[0] = d->plan->failed ? LT_NONE : lt_plan_value(d->plan, LT_ROWS_OUT, d->plan->weights[weight].rows, "logits");
    lt_plan_op(d->plan, op);
    lt_plan_end_tail(d->plan, kind, op.out[0]);
}
