/* Products by AMX's tiles, beside the vectors of AVX-512: what the set avx512amx has of its own (amx.c). Each is an entry of
 * kernels.h or q8.h, and runs only where select.c has found AMX and asked the system for it. */
#ifndef LT_BACKEND_CPU_AMX_H
#define LT_BACKEND_CPU_AMX_H

#include "backend/cpu/int8.h"
#include "backend/cpu/kernels.h"

enum { LT_AMX_ROWS = 32 }; /* of a block: two tiles */

/* bfloat16, from the panels of avx512bf16. A sum takes 16 pairs of k at a time: the first halves of the pairs in one sum and the
 * second halves in another, then both together are added. */
void lt_amx_linear(const lt_linear *args);
void lt_amx_linear_few(const lt_linear *args);
double lt_amx_peak_bf16(size_t iterations);

/* c[rows, 32] (+)= x[rows, words] · w[words, 32] of pairs for 16 rows, or 32 if `two`: x, c and w 64-byte aligned or not, words a
 * multiple of 16, ldx and ldc in floats. Between lt_amx_begin and lt_amx_end, for attention. */
void lt_amx_begin(void);
void lt_amx_tile(bool two, const float *x, size_t ldx, const float *w, size_t words, float *c, size_t ldc, bool add);
void lt_amx_end(void);

/* int8 by rows, with the bits of any other set. */
void lt_amx_linear_rows(const lt_int8_linear *args);
double lt_amx_peak_int8(size_t iterations);

#endif
