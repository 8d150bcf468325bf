/* What the decoder families (Qwen3, Qwen3.5) record alike. */
#ifndef LT_MODEL_DECODER_H
#define LT_MODEL_DECODER_H

#include "model/bind.h"

/* *out = act(h gateᵀ) ⊙ h upᵀ [tokens, intermediate_size], gate and up of layer `layer` as one joined operand. Errors as
 * lt_bind_joined's. */
lattice_status lt_record_gate_up(lt_binder *binder, const lt_config *config, size_t layer, int h, int *out);

#endif
