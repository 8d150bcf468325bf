/* The set for AVX-512 with products of bfloat16 (AVX512_BF16): the same tiles, in float32 with the same results. And the set
 * beside it that multiplies bfloat16 by AMX (amx.c), from the same panels. */
#if defined(__AVX512BF16__) && defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)

#include "backend/cpu/vec_avx512.h"

#define LT_ISA "avx512bf16"
#define LT_NR 32
#define LT_MR 12
#define LT_TILES(X) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12)
#define LT_EMBED_BROADCAST(row) ((row) % 3 != 0) /* beside a busy sibling thread 72% of peak instead of 65%; alone no loss */
#define LT_TILE_ROWS 96
#define LT_KEYS 128
#define LT_QUERIES 128

#include "backend/cpu/products.h"

#include "backend/cpu/attention_amx.h"
#include "backend/cpu/sets.h"

const lt_kernels lt_kernels_avx512bf16 = LT_KERNELS;

static const lt_kernels amx_kernels = { LT_BF16_COMMON("avx512amx"),
                                        .preferred = true,
                                        .mr = LT_AMX_ROWS,
                                        .pads = true,
                                        .tile_rows = 2 * LT_TILE_ROWS,
                                        .linear = lt_amx_linear,
                                        .linear_few = lt_amx_linear_few,
                                        .attention_scratch = amx_attention_scratch,
                                        .attention = attention_amx,
                                        .peak_flop = lt_amx_peak_bf16 };
const lt_kernels lt_kernels_avx512amx = LT_KERNELS_AS("avx512amx", &amx_kernels);

#else
typedef int lt_no_avx512bf16; /* a translation unit is never empty */
#endif
