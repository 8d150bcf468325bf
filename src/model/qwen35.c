/* Qwen3.5: hybrid decoders for generation. Most layers mix tokens by a gated delta rule, whose state does not grow (Gated Delta
 * Networks, arXiv:2412.06464); every few, by gated attention.
 *
 *     x = E[id];   per layer:  x = x + mix(RMS(x));   x = x + Wd (silu(Wg h) ⊙ Wu h), h = RMS(x);   RMS(x)
 *     attention:   q ‖ gate per head, k, v = h W;   q, k = rope(RMS_head(q)), rope(RMS_head(k)), the first rotary dimensions
 *                  mix = Wo (softmax(q kᵀ / √hd, causal) v ⊙ σ(gate))
 *     delta rule:  u ‖ z ‖ b ‖ a = h W;   q ‖ k ‖ v = silu(causal convolution of u)
 *                  o = delta rule(q, k, v, β = σ(b), g = −e^A_log softplus(a + dt_bias));   mix = Wo (RMS_head(o) w ⊙ silu(z))
 *
 * Every RMS but the last one stores its gain less 1. What reads one h is one operand: Wq‖Wk‖Wv, [2 q_dim + 2 kv_dim, H]; the four
 * projections of the delta rule; gate‖up. Attention writes in the place of q, beside its gate. Multimodal checkpoints hold the
 * same layers under another prefix. Tails: token vectors; a pooling where the checkpoint asks for one; logits. */
#include <math.h>
#include <stdio.h>

#include "model/bind.h"
#include "model/decoder.h"
#include "model/family.h"

typedef struct recorder {
    const lt_config *config;
    lt_plan *plan;
    lt_binder binder;
    size_t hidden, q_dim, kv_dim;   /* H, nh hd, nk hd */
    size_t key_dim, value_dim, mix; /* of the delta rule: all key heads, all value heads, q ‖ k ‖ v */
    int embedding;                  /* weight */
} recorder;

enum { NAME = 96 };

static bool matches(const lt_config *config)
{
    return config->model_type == LT_MODEL_QWEN3_5 && config->head != LT_HEAD_CLASSIFIER;
}

/* A gain stored less 1. */
static lattice_status bind_gain(recorder *r, const char *name, size_t n, int *weight)
{
    LT_TRY(lt_bind_vector(&r->binder, name, n, weight));
    r->plan->weights[*weight].plus_one = true;
    return LATTICE_OK;
}

/* out = RMS(in) */
static lattice_status rms_norm(recorder *r, const char *name, int in, int trace, int *out)
{
    lt_op op = lt_op_new(LT_OP_ADD_NORM);
    LT_TRY(bind_gain(r, name, r->hidden, &op.weight[0]));
    op.in[0] = lt_all(in);
    op.eps = r->config->norm_eps;
    op.trace = trace;
    op.out[0] = *out = lt_plan_value(r->plan, LT_ROWS_TOKENS, r->hidden, "h");
    lt_plan_op(r->plan, op);
    return LATTICE_OK;
}

/* out = in Wᵀ + residual */
static lattice_status project(recorder *r, const char *name, int in, size_t in_width, int residual, int trace, int *out)
{
    lt_op op = lt_op_new(LT_OP_LINEAR);
    LT_TRY(lt_bind_matrix(&r->binder, name, r->hidden, in_width, &op.weight[0]));
    op.in[0] = lt_all(in);
    op.in[1] = lt_all(residual);
    op.trace = trace;
    op.out[0] = *out = lt_plan_value(r->plan, LT_ROWS_TOKENS, r->hidden, "x");
    lt_plan_op(r->plan, op);
    return LATTICE_OK;
}

/* h times the operands of these names below `layer`, one below the other. */
static lattice_status joined(recorder *r, size_t layer, const char *const *names, int n, const size_t *rows, int h,
                             const char *value, int *out)
{
    char full[LT_MAX_SEGMENTS][NAME];
    const char *full_names[LT_MAX_SEGMENTS];
    size_t width = 0;
    for (int i = 0; i < n; i++) {
        snprintf(full[i], NAME, "layers.%zu.%s", layer, names[i]);
        full_names[i] = full[i];
        width += rows[i]; /* the sum was checked when the recorder was made */
    }
    lt_op op = lt_op_new(LT_OP_LINEAR);
    LT_TRY(lt_bind_joined(&r->binder, full_names, n, rows, r->hidden, 2, &op.weight[0]));
    op.in[0] = lt_all(h);
    op.out[0] = *out = lt_plan_value(r->plan, LT_ROWS_TOKENS, width, value);
    lt_plan_op(r->plan, op);
    return LATTICE_OK;
}

/* ------------------------------------------------------------------ attention */

static lattice_status rotate(recorder *r, size_t layer, const lt_operand *q, const lt_operand *k)
{
    const lt_config *c = r->config;
    lt_op op = lt_op_new(LT_OP_QK_NORM_ROPE);
    for (int i = 0; i < 2; i++) {
        char name[NAME];
        snprintf(name, NAME, "layers.%zu.self_attn.%c_norm.weight", layer, "qk"[i]);
        LT_TRY(bind_gain(r, name, c->head_dim, &op.weight[i]));
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
    lt_plan_op(r->plan, op);
    return LATTICE_OK;
}

static lattice_status attention(recorder *r, size_t layer, int h, int *x)
{
    static const char *const names[3] = { "self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight" };
    const lt_config *c = r->config;
    const size_t gated = c->attn_output_gate ? 2 : 1, q_rows = gated * r->q_dim;
    const size_t rows[3] = { q_rows, r->kv_dim, r->kv_dim };
    char name[NAME];
    int qkv, mixed;
    LT_TRY(joined(r, layer, names, 3, rows, h, "qkv", &qkv));
    const lt_operand q = { .value = qkv, .column = 0, .head_stride = gated * c->head_dim };
    const lt_operand k = { .value = qkv, .column = q_rows, .head_stride = c->head_dim };
    const lt_operand v = { .value = qkv, .column = q_rows + r->kv_dim, .head_stride = c->head_dim };
    LT_TRY(rotate(r, layer, &q, &k));

    lt_op op = lt_op_new(LT_OP_ATTENTION);
    op.in[0] = q;
    op.in[1] = k;
    op.in[2] = v;
    op.n_heads = c->n_heads;
    op.n_kv_heads = c->n_kv_heads;
    op.head_dim = c->head_dim;
    op.scale = (float)(1.0 / sqrt((double)c->head_dim));
    op.causal = true;
    op.out[0] = mixed = qkv;
    lt_plan_op(r->plan, op);

    if (c->attn_output_gate) {
        lt_op gate = lt_op_new(LT_OP_GATE);
        gate.in[0] = q;
        gate.in[1] = (lt_operand){ .value = qkv, .column = c->head_dim, .head_stride = q.head_stride };
        gate.n_heads = c->n_heads;
        gate.head_dim = c->head_dim;
        gate.out[0] = mixed = lt_plan_value(r->plan, LT_ROWS_TOKENS, r->q_dim, "gated");
        lt_plan_op(r->plan, gate);
    }
    snprintf(name, NAME, "layers.%zu.self_attn.o_proj.weight", layer);
    return project(r, name, mixed, r->q_dim, *x, 0, x);
}

/* ------------------------------------------------------------------ delta rule */

static lattice_status delta_rule(recorder *r, size_t layer, int u, int *o)
{
    const lt_config *c = r->config;
    char name[NAME];
    lt_op conv = lt_op_new(LT_OP_CONV), op = lt_op_new(LT_OP_GATED_DELTA);
    int qkv;
    snprintf(name, NAME, "layers.%zu.linear_attn.conv1d.weight", layer);
    LT_TRY(lt_bind_taps(&r->binder, name, r->mix, c->conv_kernel, &conv.weight[0]));
    conv.in[0] = lt_all(u);
    conv.out[0] = qkv = lt_plan_value(r->plan, LT_ROWS_TOKENS, r->mix, "qkv");
    lt_plan_op(r->plan, conv);

    snprintf(name, NAME, "layers.%zu.linear_attn.A_log", layer);
    LT_TRY(lt_bind_vector(&r->binder, name, c->linear_value_heads, &op.weight[0]));
    snprintf(name, NAME, "layers.%zu.linear_attn.dt_bias", layer);
    LT_TRY(lt_bind_vector(&r->binder, name, c->linear_value_heads, &op.weight[1]));
    op.in[0] = (lt_operand){ .value = qkv, .column = 0, .head_stride = c->linear_key_dim };
    op.in[1] = (lt_operand){ .value = qkv, .column = r->key_dim, .head_stride = c->linear_key_dim };
    op.in[2] = (lt_operand){ .value = qkv, .column = 2 * r->key_dim, .head_stride = c->linear_value_dim };
    op.in[3] = (lt_operand){ .value = u, .column = r->mix + r->value_dim };
    op.n_heads = c->linear_value_heads;
    op.n_kv_heads = c->linear_key_heads;
    op.head_dim = c->linear_key_dim;
    op.value_dim = c->linear_value_dim;
    op.out[0] = *o = lt_plan_value(r->plan, LT_ROWS_TOKENS, r->value_dim, "o");
    lt_plan_op(r->plan, op);
    return LATTICE_OK;
}

static lattice_status linear_attention(recorder *r, size_t layer, int h, int *x)
{
    static const char *const names[4] = { "linear_attn.in_proj_qkv.weight", "linear_attn.in_proj_z.weight",
                                          "linear_attn.in_proj_b.weight", "linear_attn.in_proj_a.weight" };
    const lt_config *c = r->config;
    const size_t rows[4] = { r->mix, r->value_dim, c->linear_value_heads, c->linear_value_heads };
    char name[NAME];
    int u, o;
    LT_TRY(joined(r, layer, names, 4, rows, h, "u", &u));
    LT_TRY(delta_rule(r, layer, u, &o));

    lt_op norm = lt_op_new(LT_OP_GATED_NORM);
    int gated;
    snprintf(name, NAME, "layers.%zu.linear_attn.norm.weight", layer);
    LT_TRY(lt_bind_vector(&r->binder, name, c->linear_value_dim, &norm.weight[0]));
    norm.in[0] = (lt_operand){ .value = o, .head_stride = c->linear_value_dim };
    norm.in[1] = (lt_operand){ .value = u, .column = r->mix, .head_stride = c->linear_value_dim };
    norm.n_heads = c->linear_value_heads;
    norm.head_dim = c->linear_value_dim;
    norm.eps = c->norm_eps;
    norm.out[0] = gated = lt_plan_value(r->plan, LT_ROWS_TOKENS, r->value_dim, "gated");
    lt_plan_op(r->plan, norm);
    snprintf(name, NAME, "layers.%zu.linear_attn.out_proj.weight", layer);
    return project(r, name, gated, r->value_dim, *x, 0, x);
}

/* ------------------------------------------------------------------ layers */

/* *x to the next *x. The trace shows the last layer after the final norm, so that is where its mark is. */
static lattice_status decoder_layer(recorder *r, size_t layer, int *x)
{
    const lt_config *c = r->config;
    char name[NAME];
    int h, intermediate;
    snprintf(name, NAME, "layers.%zu.input_layernorm.weight", layer);
    LT_TRY(rms_norm(r, name, *x, 0, &h));
    if (c->layer_types[layer] == LT_LAYER_FULL_ATTENTION)
        LT_TRY(attention(r, layer, h, x));
    else
        LT_TRY(linear_attention(r, layer, h, x));
    snprintf(name, NAME, "layers.%zu.post_attention_layernorm.weight", layer);
    LT_TRY(rms_norm(r, name, *x, 0, &h));
    LT_TRY(lt_record_gate_up(&r->binder, r->config, layer, h, &intermediate));
    snprintf(name, NAME, "layers.%zu.mlp.down_proj.weight", layer);
    return project(r, name, intermediate, c->intermediate_size, *x, layer + 1 < c->n_layers ? (int)layer + 2 : 0, x);
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

/* logits[n_out, vocabulary] = h[out_rows] Wᵀ, W stored or the embedding table where the two are tied */
static lattice_status logits_tail(recorder *r, int h)
{
    const lt_config *c = r->config;
    int weight = r->embedding;
    if (!c->tie_word_embeddings || lt_binder_has(&r->binder, "lm_head.weight"))
        LT_TRY(lt_bind_matrix(&r->binder, "lm_head.weight", c->vocab_size, r->hidden, &weight));
    lt_op select = lt_op_new(LT_OP_SELECT), op = lt_op_new(LT_OP_LINEAR);
    select.in[0] = lt_all(h);
    select.out[0] = lt_plan_value(r->plan, LT_ROWS_OUT, r->hidden, "selected");
    lt_plan_op(r->plan, select);
    op.weight[0] = weight;
    op.in[0] = lt_all(select.out[0]);
    op.out[0] = lt_plan_value(r->plan, LT_ROWS_OUT, c->vocab_size, "logits");
    lt_plan_op(r->plan, op);
    lt_plan_end_tail(r->plan, LT_TAIL_LOGITS, op.out[0]);
    return LATTICE_OK;
}

/* ------------------------------------------------------------------ all */

static lattice_status record_all(recorder *r, const lt_sentence *sentence)
{
    const lt_config *c = r->config;
    r->plan->n_trace = c->n_layers + 1;
    lt_op embed = lt_op_new(LT_OP_EMBED);
    LT_TRY(lt_bind_matrix(&r->binder, "embed_tokens.weight", c->vocab_size, r->hidden, &embed.weight[0]));
    r->embedding = embed.weight[0];
    int x = lt_plan_value(r->plan, LT_ROWS_TOKENS, r->hidden, "x"), h;
    embed.out[0] = x;
    embed.trace = 1;
    lt_plan_op(r->plan, embed);
    for (size_t layer = 0; layer < c->n_layers; layer++) LT_TRY(decoder_layer(r, layer, &x));
    LT_TRY(rms_norm(r, "norm.weight", x, (int)c->n_layers + 1, &h));
    lt_plan_end_body(r->plan, h);

    lt_plan_end_tail(r->plan, LT_TAIL_TOKENS, h);
    if (sentence && sentence->pooling) pooled_tail(r, h, sentence->pooling);
    if (c->head == LT_HEAD_LM) LT_TRY(logits_tail(r, h));
    static const char *const ignored[] = { "lm_head.", NULL };
    return lt_binder_finish(&r->binder, ignored);
}

/* The widths of all joined operands, and that they can be counted. */
static bool find_widths(recorder *r)
{
    const lt_config *c = r->config;
    size_t q, kv, keys, mix;
    return lt_mul(c->n_heads, c->head_dim, &r->q_dim) && lt_mul(c->n_kv_heads, c->head_dim, &r->kv_dim) &&
           lt_mul(r->q_dim, 2, &q) && lt_mul(r->kv_dim, 2, &kv) && lt_add(q, kv, &q) &&
           lt_mul(c->linear_key_heads, c->linear_key_dim, &r->key_dim) &&
           lt_mul(c->linear_value_heads, c->linear_value_dim, &r->value_dim) && lt_mul(r->key_dim, 2, &keys) &&
           lt_add(keys, r->value_dim, &r->mix) && lt_add(r->mix, r->value_dim, &mix) && lt_mul(c->linear_value_heads, 2, &keys) &&
           lt_add(mix, keys, &mix);
}

static lattice_status record(const lattice_runtime *runtime, const lt_config *config, const lt_sentence *sentence,
                             lt_checkpoint *checkpoint, const uint32_t *score_ids, size_t n_score_ids, lt_plan *plan,
                             lattice_error *err)
{
    (void)score_ids; /* no published model of the family judges documents */
    (void)n_score_ids;
    recorder r = { .config = config, .plan = plan, .hidden = config->hidden_size };
    if (!find_widths(&r)) return lt_fail(err, LATTICE_ERR_FORMAT, "config.json: heads are too large");
    if (config->attention_bias)
        return lt_fail(err, LATTICE_ERR_UNSUPPORTED, "config.json: attention_bias of %s is not supported",
                       config->model_type_name);
    LT_TRY(lt_binder_open(&r.binder, runtime, checkpoint, plan, err));
    lattice_status status = record_all(&r, sentence);
    lt_binder_close(&r.binder);
    if (status != LATTICE_OK) return status;
    return lt_plan_check(plan, err);
}

const lt_family lt_family_qwen35 = {
    .name = "qwen3_5",
    .matches = matches,
    .record = record,
};
