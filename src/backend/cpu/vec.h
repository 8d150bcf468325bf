/* What every vector vocabulary shares. */
#ifndef LT_BACKEND_CPU_VEC_H
#define LT_BACKEND_CPU_VEC_H

#define LT_VECTOR static inline __attribute__((always_inline))

/* Before a `for` of at most 16 rounds, a constant number once its function is inlined: all rounds are written out, so that arrays
 * of vectors indexed by them live in registers. */
#ifdef __clang__
#define LT_UNROLL _Pragma("clang loop unroll(full)")
#else
#define LT_UNROLL _Pragma("GCC unroll 16")
#endif

/* p, computed here: compilers would rather keep p and all that follows from it in registers of their own across a loop, and then
 * on the stack. */
LT_VECTOR const unsigned char *v_address(const unsigned char *p)
{
    __asm__("" : "+r"(p));
    return p;
}

#endif
