/* Which shapes the GPU's kernels take: the only place that decides it, and it says why in words (INV-2, INV-3). */
#ifndef LT_BACKEND_GPU_SHAPE_H
#define LT_BACKEND_GPU_SHAPE_H

#include "backend/plan.h"

enum { LT_GPU_REASON = 160 };

typedef struct lt_gpu_shape {
    size_t n_heads, n_kv_heads, head_dim;
    size_t rotary_dim; /* 0: nothing is rotated */
    size_t delta_dk;   /* key dimension of the delta rule; 0: there is none */
    /* Kernels that not every model needs: decoding steps, products of few rows with matrices stored so. */
    bool decodes, few_bf16, few_q8_0;
    bool keeps_bf16; /* keys and values of states */
} lt_gpu_shape;

/* False, and the reason in words, when no kernel can be made for the shape. `reason` gets "" otherwise. */
bool lt_gpu_shape_admits(const lt_gpu_shape *shape, char reason[LT_GPU_REASON]);

/* Queries and heads that a threadgroup of fused_attention takes, as kernels/attention.k decides them. */
void lt_gpu_attention_tile(const lt_gpu_shape *shape, size_t *queries, size_t *heads);

/* The shape that a plan's operations have. LATTICE_ERR_UNSUPPORTED when layers differ in it: one template serves one shape. */
lattice_status lt_gpu_shape_of(const lt_plan *plan, lt_gpu_shape *shape, lattice_error *err);

#endif
