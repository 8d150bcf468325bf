/* The tables of the instruction sets that this build contains; select.c chooses among them. */
#ifndef LT_BACKEND_CPU_SETS_H
#define LT_BACKEND_CPU_SETS_H

#include "backend/cpu/kernels.h"

extern const lt_kernels lt_kernels_scalar;
#if defined(__x86_64__)
extern const lt_kernels lt_kernels_avx2;
extern const lt_kernels lt_kernels_avx512;
extern const lt_kernels lt_kernels_avx512bf16;
#elif defined(__aarch64__)
extern const lt_kernels lt_kernels_neon;
extern const lt_kernels lt_kernels_neonbf16;
#endif

#endif
