// What the kernels mean in CUDA C++, for NVRTC: no header of the toolkit is needed. docs/gpu.md explains the words.
typedef unsigned char uchar;
typedef unsigned int uint;
typedef unsigned short ushort;
typedef unsigned long long ulong;
#define K_KERNEL extern "C" __global__ void
#define K_KERNEL_OF(threads, groups) extern "C" __global__ void __launch_bounds__(threads, groups)
#define K_FUNC static __device__ __forceinline__
#define K_DEVICE
#define K_TG
#define K_THREAD
/* Kernels are compiled in units side by side, or all at once. */
#ifdef LATTICE_UNIT
#define K_UNIT(n) (LATTICE_UNIT == (n))
#else
#define K_UNIT(n) 1
#endif
#define K_UNROLL _Pragma("unroll")
#define K_UNROLL_8 _Pragma("unroll 8")
#define K_ROLLED _Pragma("unroll 1")
#define K_SHARED __shared__
#define K_IN(T, name, n) const T *name
#define K_OUT(T, name, n) T *name
#define K_ARGS(T, name, n) const T name
#define K_REF(T, name) const T &name
#define K_BUILTINS
/* A launch may begin while the one before it still runs: it says so to the launch behind it, and waits before it reads or writes
 * what other launches do. */
#if __CUDA_ARCH__ >= 900
#define K_WAIT() asm volatile("griddepcontrol.wait;" ::: "memory")
#define K_ADMIT_NEXT() asm volatile("griddepcontrol.launch_dependents;" ::: "memory")
#else
#define K_WAIT()
#define K_ADMIT_NEXT()
#endif
#define K_ENTER K_ENTER_EARLY K_WAIT();
#define K_ENTER_EARLY                                                              \
    K_ADMIT_NEXT();                                                                \
    const uint3 k_group = make_uint3(blockIdx.x, blockIdx.y, blockIdx.z);          \
    const uint k_tid = threadIdx.x, k_lane = k_tid & 31u, k_simd = k_tid >> 5u;    \
    const uint k_simds = blockDim.x >> 5u;                                         \
    (void)k_group; (void)k_tid; (void)k_lane; (void)k_simd; (void)k_simds;
#define k_threads (k_simds * 32u)
#define K_BARRIER() __syncthreads()
#define K_SIMD_BARRIER() __syncwarp()
K_FUNC float k_half_to_float(ushort h) { float f; asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h)); return f; }
K_FUNC ushort k_float_to_half(float f) { ushort h; asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(f)); return h; }
K_FUNC float k_bits_to_float(uint u) { return __uint_as_float(u); }
K_FUNC uint k_float_to_bits(float f) { return __float_as_uint(f); }
K_FUNC float k_sqrt(float x) { return sqrtf(x); }
K_FUNC float k_exp(float x) { return expf(x); }
K_FUNC float k_log(float x) { return logf(x); }
K_FUNC float k_fma(float a, float b, float c) { return fmaf(a, b, c); }
K_FUNC float k_max(float a, float b) { return fmaxf(a, b); }
K_FUNC uint k_min_uint(uint a, uint b) { return a < b ? a : b; }
K_FUNC float k_simd_sum(float x) { for (int o = 16; o > 0; o >>= 1) x += __shfl_xor_sync(0xffffffffu, x, o); return x; }
K_FUNC float k_simd_max(float x) { for (int o = 16; o > 0; o >>= 1) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, o)); return x; }
K_FUNC float k_simd_xor(float x, uint mask) { return __shfl_xor_sync(0xffffffffu, x, mask); }
