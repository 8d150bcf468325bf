/* The set for AVX-512 (F, BW, DQ, VL): tiles of 12 rows by 32 columns, 24 of the 32 registers accumulating. */
#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)

#include "backend/cpu/vec_avx512.h"

#define LT_ISA "avx512"
#define LT_NR 32
#define LT_MR 12
#define LT_TILES(X) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12)
#define LT_EMBED_BROADCAST(row) ((row) % 3 != 0) /* beside a busy sibling thread 72% of peak instead of 65%; alone no loss */
#define LT_TILE_ROWS 96
#define LT_KEYS 128
#define LT_QUERIES 128

#include "backend/cpu/products.h"
#include "backend/cpu/sets.h"

const lt_kernels lt_kernels_avx512 = LT_KERNELS;

#else
typedef int lt_no_avx512; /* a translation unit is never empty */
#endif
