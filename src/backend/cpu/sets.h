/* The tables of the instruction sets that this build contains; select.c chooses among them. */
#ifndef LT_BACKEND_CPU_SETS_H
#define LT_BACKEND_CPU_SETS_H

#include "backend/cpu/kernels.h"
#include "backend/cpu/q8.h"

extern const lt_kernels lt_kernels_scalar;
extern const lt_q8_kernels lt_q8_kernels_scalar;
#if defined(__x86_64__)
extern const lt_kernels lt_kernels_avx2;
extern const lt_kernels lt_kernels_avx512;
extern const lt_kernels lt_kernels_avx512bf16;
extern const lt_kernels lt_kernels_avx512amx;
extern const lt_q8_kernels lt_q8_kernels_avx2, lt_q8_kernels_avxvnni, lt_q8_kernels_avx512vnni, lt_q8_kernels_avx512amx;
#elif defined(__aarch64__)
extern const lt_kernels lt_kernels_neon;
extern const lt_kernels lt_kernels_neonbf16;
extern const lt_q8_kernels lt_q8_kernels_neon, lt_q8_kernels_neondot, lt_q8_kernels_neoni8mm;
#endif

#endif
