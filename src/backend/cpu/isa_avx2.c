/* The set for AVX2 with FMA and F16C: tiles of 6 rows by 16 columns, 12 of the 16 registers accumulating. */
#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)

#include "backend/cpu/vec_avx2.h"

#define LT_ISA "avx2"
#define LT_NR 16
#define LT_MR 6
#define LT_TILES(X) X(1) X(2) X(3) X(4) X(5) X(6)
#define LT_EMBED_BROADCAST(row) false
#ifndef __clang__ /* clang keeps it by itself; gcc would load the next rows' activations early and move sums to make room */
#define LT_KEEP_ORDER true
#endif
#define LT_TILE_ROWS 96
#define LT_KEYS 128
#define LT_QUERIES 128

#include "backend/cpu/products.h"
#include "backend/cpu/sets.h"

const lt_kernels lt_kernels_avx2 = LT_KERNELS;

#else
typedef int lt_no_avx2; /* a translation unit is never empty */
#endif
