// What the kernels mean in the Metal Shading Language (2.1 and later). docs/gpu.md explains the words.
#include <metal_stdlib>
using namespace metal;
#define K_KERNEL kernel void
#define K_KERNEL_OF(threads, groups) [[max_total_threads_per_threadgroup(threads)]] kernel void
#define K_FUNC static inline
#define K_DEVICE device
#define K_TG threadgroup
#define K_THREAD thread
#define K_UNIT(n) 1 /* all at once */
#define K_UNROLL
#define K_UNROLL_8
#define K_ROLLED
#define K_SHARED threadgroup
#define K_IN(T, name, n) device const T *name [[buffer(n)]]
#define K_OUT(T, name, n) device T *name [[buffer(n)]]
#define K_ARGS(T, name, n) constant T &name [[buffer(n)]]
#define K_REF(T, name) constant T &name
#define K_BUILTINS                                                                                       \
    , uint3 k_group [[threadgroup_position_in_grid]], uint k_tid [[thread_index_in_threadgroup]],        \
    uint k_lane [[thread_index_in_simdgroup]], uint k_simd [[simdgroup_index_in_threadgroup]],           \
    uint k_simds [[simdgroups_per_threadgroup]]
#define K_ENTER
#define K_ENTER_EARLY
#define K_WAIT()
#define k_threads (k_simds * 32u)
#define K_BARRIER() threadgroup_barrier(mem_flags::mem_threadgroup)
#define K_SIMD_BARRIER() simdgroup_barrier(mem_flags::mem_threadgroup)
K_FUNC float k_half_to_float(ushort h) { return float(as_type<half>(h)); }
K_FUNC ushort k_float_to_half(float f) { return as_type<ushort>(half(f)); }
K_FUNC float k_bits_to_float(uint u) { return as_type<float>(u); }
K_FUNC uint k_float_to_bits(float f) { return as_type<uint>(f); }
K_FUNC float k_sqrt(float x) { return sqrt(x); }
K_FUNC float k_exp(float x) { return exp(x); }
K_FUNC float k_log(float x) { return log(x); }
K_FUNC float k_fma(float a, float b, float c) { return fma(a, b, c); }
K_FUNC float k_max(float a, float b) { return max(a, b); }
K_FUNC uint k_min_uint(uint a, uint b) { return min(a, b); }
K_FUNC float k_simd_sum(float x) { return simd_sum(x); }
K_FUNC float k_simd_max(float x) { return simd_max(x); }
K_FUNC float k_simd_xor(float x, uint mask) { return simd_shuffle_xor(x, ushort(mask)); }
