/* The set that runs everywhere, in plain C without fused multiply-add. What a compiler makes vectors of stays in the same order.
 */
#include "backend/cpu/vec_scalar.h"

#define LT_ISA "scalar"
#define LT_NR 8
#define LT_MR 4
#define LT_TILES(X) X(1) X(2) X(3) X(4)
#define LT_EMBED_BROADCAST(row) false
#define LT_TILE_ROWS 64
#define LT_KEYS 64
#define LT_QUERIES 64

#include "backend/cpu/products.h"
#include "backend/cpu/sets.h"

const lt_kernels lt_kernels_scalar = LT_KERNELS;
