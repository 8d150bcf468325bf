/* What the decoder families (Qwen3, Qwen3.5) record alike: pre-norm layers of mixing and a gated feed-forward, and their tails.
 *
 *     x = E[id];   per layer:  x = x + mix(RMS(x));   x = x + Wd (act(Wg h) ⊙ Wu h), h = RMS(x);   RMS(x)
 *
 * A family gives `mix`, made of the products, the rotation and the attention below. What reads one h is one operand (INV-7), gate
 * and up too. The residual additions ride on the products' stores. */
#ifndef LT_MODEL_DECODER_H
#define LT_MODEL_DECODER_H

#include "format/sentence.h"
#include "model/bind.h"

typedef struct lt_decoder lt_decoder;

/* Records a layer's mixing of h, RMS(x), and its addition: *x to the next *x. */
typedef lattice_status lt_mix_fn(lt_decoder *d, size_t layer, int h, int *x);

struct lt_decoder {
    const lt_config *config;
    lt_plan *plan;
    lt_binder binder;
    size_t q_dim, kv_dim; /* nh hd, nk hd */
    bool gains_less_one;  /* every RMS of the width H or of heads stores its gain less 1 */
    lt_mix_fn *mix;
    int embedding; /* weight E, once the body is recorded */
};

/* Embedding, layers and final norm: the plan's body, whose result is *h [tokens, H]. */
lattice_status lt_decoder_body(lt_decoder *d, int *h);

/* *out = h Wᵀ (+ b), W and b those of the stems below layer `layer`, one below the other: "layers.3.{stem}.weight" [rows, H]. The
 * sum of rows must fit a size_t. */
lattice_status lt_decoder_joined(lt_decoder *d, size_t layer, const char *const *stems, int n, const size_t *rows, bool bias,
                                 int h, const char *value, int *out);

/* *out = in Wᵀ (+ b) + residual [tokens, H], W "layers.{layer}.{stem}.weight" [H, in_width]. */
lattice_status lt_decoder_project(lt_decoder *d, size_t layer, const char *stem, int in, size_t in_width, bool bias, int residual,
                                  int trace, int *out);

/* q = rope(RMS_head(q)), k = rope(RMS_head(k)), in place; both lie in one value. */
lattice_status lt_decoder_rotate(lt_decoder *d, size_t layer, const lt_operand *q, const lt_operand *k);

/* softmax(q kᵀ / √hd, causal) v, in the place of q. */
void lt_decoder_attend(lt_decoder *d, const lt_operand *q, const lt_operand *k, const lt_operand *v);

/* The output matrix: stored, or the embedding table where the two are tied. LT_NONE where there is neither and embeddings are
 * all that is wanted: checkpoints of embedding models leave it out, whatever their architecture is called. */
lattice_status lt_decoder_output_matrix(lt_decoder *d, const lt_sentence *sentence, int *weight);

/* pooled [sequences, H a pooling] of h */
void lt_decoder_pooled_tail(lt_decoder *d, int h, unsigned pooling);

/* logits [n_out, rows of W] = h[out_rows] Wᵀ */
void lt_decoder_logits_tail(lt_decoder *d, int h, int weight, lt_tail_kind kind);

#endif
