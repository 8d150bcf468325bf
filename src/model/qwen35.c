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
#include <stdio.h>

#include "model/decoder.h"
#include "model/family.h"

enum { NAME = 96 };

static bool matches(const lt_config *config)
{
    return config->model_type == LT_MODEL_QWEN3_5 && config->head != LT_HEAD_CLASSIFIER;
}

/* ------------------------------------------------------------------ attention */

static lattice_status attention(lt_decoder *d, size_t layer, int h, int *x)
{
    static const char *const stems[3] = { "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj" };
    const lt_config *c = d->config;
    const size_t gated = c->attn_output_gate ? 2 : 1, q_rows = gated * d->q_dim;
    const size_t rows[3] = { q_rows, d->kv_dim, d->kv_dim };
    int qkv, mixed;
    LT_TRY(lt_decoder_joined(d, layer, stems, 3, rows, false, h, "qkv", &qkv));
    const lt_operand q = { .value = qkv, .column = 0, .head_stride = gated * c->head_dim };
    const lt_operand k = { .value = qkv, .column = q_rows, .head_stride = c->head_dim };
    const lt_operand v = { .value = qkv, .column = q_rows + d->kv_dim, .head_stride = c->head_dim };
    LT_TRY(lt_decoder_rotate(d, layer, &q, &k));
    lt_decoder_attend(d, &q, &k, &v);
    mixed = qkv;
    if (c->attn_output_gate) {
        lt_op gate = lt_op_new(LT_OP_GATE);
        gate.in[0] = q;
        gate.in[1] = (lt_operand){ .value = qkv, .column = c->head_dim, .head_stride = q.head_stride };
        gate.n_heads = c->n_heads;
        gate.head_dim = c->head_dim;
        gate.out[0] = mixed = lt_plan_value(d->plan, LT_ROWS_TOKENS, d->q_dim, "gated");
        lt_plan_op(d->plan, gate);
    }
    return lt_decoder_project(d, layer, "self_attn.o_proj", mixed, d->q_dim, false, *x, 0, x);
}

/* ------------------------------------------------------------------ delta rule */

/* Widths of all key heads, of all value heads, and of q ‖ k ‖ v. find_widths has seen that they can be counted. */
typedef struct delta_widths {
    size_t key, value, mix;
} delta_widths;

static delta_widths delta_widths_of(const lt_config *c)
{
    const size_t key = c->linear_key_heads * c->linear_key_dim, value = c->linear_value_heads * c->linear_value_dim;
    return (delta_widths){ .key = key, .value = value, .mix = 2 * key + value };
}

static lattice_status delta_rule(lt_decoder *d, size_t layer, const delta_widths *width, int u, int *o)
{
    const lt_config *c = d->config;
    char name[NAME];
    lt_op conv = lt_op_new(LT_OP_CONV), op = lt_op_new(LT_OP_GATED_DELTA);
    int qkv;
    snprintf(name, NAME, "layers.%zu.linear_attn.conv1d.weight", layer);
    LT_TRY(lt_bind_taps(&d->binder, name, width->mix, c->conv_kernel, &conv.weight[0]));
    conv.in[0] = lt_all(u);
    conv.out[0] = qkv = lt_plan_value(d->plan, LT_ROWS_TOKENS, width->mix, "qkv");
    lt_plan_op(d->plan, conv);

    snprintf(name, NAME, "layers.%zu.linear_attn.A_log", layer);
    LT_TRY(lt_bind_vector(&d->binder, name, c->linear_value_heads, &op.weight[0]));
    snprintf(name, NAME, "layers.%zu.linear_attn.dt_bias", layer);
    LT_TRY(lt_bind_vector(&d->binder, name, c->linear_value_heads, &op.weight[1]));
    op.in[0] = (lt_operand){ .value = qkv, .column = 0, .head_stride = c->linear_key_dim };
    op.in[1] = (lt_operand){ .value = qkv, .column = width->key, .head_stride = c->linear_key_dim };
    op.in[2] = (lt_operand){ .value = qkv, .column = 2 * width->key, .head_stride = c->linear_value_dim };
    op.in[3] = (lt_operand){ .value = u, .column = width->mix + width->value };
    op.n_heads = c->linear_value_heads;
    op.n_kv_heads = c->linear_key_heads;
    op.head_dim = c->linear_key_dim;
    op.value_dim = c->linear_value_dim;
    op.out[0] = *o = lt_plan_value(d->plan, LT_ROWS_TOKENS, width->value, "o");
    lt_plan_op(d->plan, op);
    return LATTICE_OK;
}

static lattice_status linear_attention(lt_decoder *d, size_t layer, int h, int *x)
{
    static const char *const stems[4] = { "linear_attn.in_proj_qkv", "linear_attn.in_proj_z", "linear_attn.in_proj_b",
                                          "linear_attn.in_proj_a" };
    const lt_config *c = d->config;
    const delta_widths width = delta_widths_of(c);
    const size_t rows[4] = { width.mix, width.value, c->linear_value_heads, c->linear_value_heads };
    char name[NAME];
    int u, o;
    LT_TRY(lt_decoder_joined(d, layer, stems, 4, rows, false, h, "u", &u));
    LT_TRY(delta_rule(d, layer, &width, u, &o));

    lt_op norm = lt_op_new(LT_OP_GATED_NORM);
    int gated;
    snprintf(name, NAME, "layers.%zu.linear_attn.norm.weight", layer);
    LT_TRY(lt_bind_vector(&d->binder, name, c->linear_value_dim, &norm.weight[0]));
    norm.in[0] = (lt_operand){ .value = o, .head_stride = c->linear_value_dim };
    norm.in[1] = (lt_operand){ .value = u, .column = width.mix, .head_stride = c->linear_value_dim };
    norm.n_heads = c->linear_value_heads;
    norm.head_dim = c->linear_value_dim;
    norm.eps = c->norm_eps;
    norm.out[0] = gated = lt_plan_value(d->plan, LT_ROWS_TOKENS, width.value, "gated");
    lt_plan_op(d->plan, norm);
    return lt_decoder_project(d, layer, "linear_attn.out_proj", gated, width.value, false, *x, 0, x);
}

static lattice_status mix(lt_decoder *d, size_t layer, int h, int *x)
{
    if (d->config->layer_types[layer] == LT_LAYER_FULL_ATTENTION) return attention(d, layer, h, x);
    return linear_attention(d, layer, h, x);
}

/* ------------------------------------------------------------------ all */

static lattice_status record_all(lt_decoder *d, const lt_sentence *sentence)
{
    int h, matrix;
    LT_TRY(lt_decoder_body(d, &h));
    lt_plan_end_tail(d->plan, LT_TAIL_TOKENS, h);
    if (sentence && sentence->pooling) lt_decoder_pooled_tail(d, h, sentence->pooling);
    LT_TRY(lt_decoder_output_matrix(d, sentence, &matrix));
    if (matrix != LT_NONE) lt_decoder_logits_tail(d, h, matrix, LT_TAIL_LOGITS);
    static const char *const ignored[] = { "lm_head.", NULL };
    return lt_binder_finish(&d->binder, ignored);
}

/* The widths of all joined operands, and that they can be counted. */
static bool find_widths(lt_decoder *d)
{
    const lt_config *c = d->config;
    size_t q, kv, key, keys, value, mixed, all;
    return lt_mul(c->n_heads, c->head_dim, &d->q_dim) && lt_mul(c->n_kv_heads, c->head_dim, &d->kv_dim) &&
           lt_mul(d->q_dim, 2, &q) && lt_mul(d->kv_dim, 2, &kv) && lt_add(q, kv, &q) &&
           lt_mul(c->linear_key_heads, c->linear_key_dim, &key) && lt_mul(c->linear_value_heads, c->linear_value_dim, &value) &&
           lt_mul(key, 2, &keys) && lt_add(keys, value, &mixed) && lt_add(mixed, value, &all) &&
           lt_mul(c->linear_value_heads, 2, &keys) && lt_add(all, keys, &all);
}

static lattice_status record(const lattice_runtime *runtime, const lt_config *config, const lt_sentence *sentence,
                             lt_checkpoint *checkpoint, const uint32_t *score_ids, size_t n_score_ids, lt_plan *plan,
                             lattice_error *err)
{
    (void)score_ids; /* no published model of the family judges documents */
    (void)n_score_ids;
    lt_decoder d = { .config = config, .plan = plan, .gains_less_one = true, .mix = mix };
    if (!find_widths(&d)) return lt_fail(err, LATTICE_ERR_FORMAT, "config.json: heads are too large");
    if (config->attention_bias)
        return lt_fail(err, LATTICE_ERR_UNSUPPORTED, "config.json: attention_bias of %s is not supported",
                       config->model_type_name);
    LT_TRY(lt_binder_open(&d.binder, runtime, checkpoint, plan, err));
    lattice_status status = record_all(&d, sentence);
    lt_binder_close(&d.binder);
    if (status != LATTICE_OK) return status;
    return lt_plan_check(plan, err);
}

const lt_family lt_family_qwen35 = {
    .name = "qwen3_5",
    .matches = matches,
    .record = record,
};
