/* What the decoder families (Qwen3, Qwen3.5) record alike: the gated feed-forward's first product. */
#include "model/decoder.h"

#include <stdio.h>

enum { NAME = 96 };

lattice_status lt_record_gate_up(lt_binder *binder, const lt_config *config, size_t layer, int h, int *out)
{
    char gate[NAME], up[NAME];
    snprintf(gate, NAME, "layers.%zu.mlp.gate_proj.weight", layer);
    snprintf(up, NAME, "layers.%zu.mlp.up_proj.weight", layer);
    const char *names[2] = { gate, up };
    const size_t rows[2] = { config->intermediate_size, config->intermediate_size };
    lt_op op = lt_op_new(LT_OP_LINEAR);
    LT_TRY(lt_bind_joined(binder, names, 2, rows, config->hidden_size, 2, &op.weight[0]));
    op.glu = true;
    op.activation = config->activation;
    op.in[0] = lt_all(h);
    op.out[0] = *out = lt_plan_value(binder->plan, LT_ROWS_TOKENS, config->intermediate_size, "intermediate");
    lt_plan_op(binder->plan, op);
    return LATTICE_OK;
}
