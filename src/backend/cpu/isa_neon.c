/* The set for AArch64 Advanced SIMD: tiles of 8 rows by 12 columns, 24 of the 32 registers accumulating. */
#if defined(__aarch64__)

#include "backend/cpu/vec_neon.h"

#define LT_ISA "neon"
#define LT_NR 12
#define LT_MR 8
#define LT_TILES(X) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8)
#define LT_EMBED_BROADCAST(row) false
#define LT_TILE_ROWS 96
#define LT_KEYS 96
#define LT_QUERIES 128

#include "backend/cpu/products.h"
#include "backend/cpu/sets.h"

const lt_kernels lt_kernels_neon = LT_KERNELS;

#else
typedef int lt_no_neon; /* a translation unit is never empty */
#endif
