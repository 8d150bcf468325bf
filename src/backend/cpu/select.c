/* Which instruction sets may run here: what the CPU has (cpuid) and what the operating system saves (xgetbv).
 *
 * The sets of one architecture are nested, so those available are always a tail of one constant list, best first. */
#include "backend/cpu/sets.h"

#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

static const lt_kernels *const all_sets[] = { &lt_kernels_avx512amx, &lt_kernels_avx512bf16, &lt_kernels_avx512, &lt_kernels_avx2,
                                              &lt_kernels_scalar };

/* Register state that the operating system saves (XCR0): bits 1 and 2 xmm and ymm; 5, 6 and 7 opmask and zmm; 17 and 18 tiles. */
static uint64_t saved_state(void)
{
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t)high << 32 | low;
}

/* Features that Q8_0 products ask for beside their set's. */
static bool has_avx512_vnni(void)
{
    uint32_t a, b, c, d;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (c & bit_AVX512VNNI) != 0;
}
static bool has_avx_vnni(void)
{
    uint32_t a, b, c, d;
    return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & 1u << 4) != 0;
}

/* AMX's registers are 8 KiB, which Linux saves for a process after it has asked (ARCH_REQ_XCOMP_PERM), all its threads, for good.
 * It refuses where a thread's alternate signal stack would be too small for them. */
static bool tiles_allowed(void)
{
#if defined(__linux__)
    enum { REQUEST = 0x1023, TILE_DATA = 18 };
    return syscall(SYS_arch_prctl, REQUEST, TILE_DATA) == 0;
#else
    return false;
#endif
}

static bool has_amx(uint64_t state)
{
    const uint32_t need_7d = 1u << 22 | 1u << 24 | 1u << 25; /* AMX_BF16, AMX_TILE, AMX_INT8 */
    const uint64_t tiles = (uint64_t)3 << 17;
    uint32_t a, b, c, d;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & need_7d) != need_7d) return false;
    return (state & tiles) == tiles && has_avx512_vnni() && tiles_allowed();
}

/* Index into all_sets of the best set that may run. */
static size_t first_available(void)
{
    enum { AVX512_AMX, AVX512_BF16, AVX512, AVX2, SCALAR };
    const uint32_t need_1c = bit_OSXSAVE | bit_AVX | bit_FMA | bit_F16C;
    const uint32_t need_7b = bit_AVX2 | bit_BMI2;
    const uint32_t need_7b_512 = bit_AVX512F | bit_AVX512BW | bit_AVX512DQ | bit_AVX512VL;
    const uint32_t need_71a = 1u << 5; /* AVX512_BF16, leaf 7, subleaf 1 */
    uint32_t a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d) || (c & need_1c) != need_1c) return SCALAR;
    uint64_t state = saved_state();
    if ((state & 0x06) != 0x06) return SCALAR;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (b & need_7b) != need_7b) return SCALAR;
    if ((state & 0xe6) != 0xe6 || (b & need_7b_512) != need_7b_512) return AVX2;
    if (!__get_cpuid_count(7, 1, &a, &b, &c, &d) || (a & need_71a) != need_71a) return AVX512;
    return has_amx(state) ? AVX512_AMX : AVX512_BF16;
}

bool lt_cpu_one_stream(void)
{
    enum { ZEN_3 = 0x19 };
    uint32_t a, b, c, d;
    char vendor[12];
    if (!__get_cpuid(0, &a, &b, &c, &d)) return false;
    memcpy(vendor, &b, 4);
    memcpy(vendor + 4, &d, 4);
    memcpy(vendor + 8, &c, 4);
    if (memcmp(vendor, "AuthenticAMD", sizeof vendor) != 0 || !__get_cpuid(1, &a, &b, &c, &d)) return false;
    return (a >> 8 & 0xf) + (a >> 20 & 0xff) >= ZEN_3;
}

bool lt_cpu_self_fetching(void)
{
    return lt_cpu_one_stream() && all_sets[first_available()] == &lt_kernels_avx512bf16;
}

#elif defined(__aarch64__)
#if defined(__APPLE__)
#include <sys/sysctl.h>

static bool has_feature(const char *name)
{
    int value = 0;
    size_t size = sizeof value;
    return sysctlbyname(name, &value, &size, NULL, 0) == 0 && value != 0;
}
static bool has_bf16(void)
{
    return has_feature("hw.optional.arm.FEAT_BF16");
}
static bool has_dotprod(void)
{
    return has_feature("hw.optional.arm.FEAT_DotProd");
}
static bool has_i8mm(void)
{
    return has_feature("hw.optional.arm.FEAT_I8MM");
}
#elif defined(__linux__)
#include <sys/auxv.h>

static bool has_bf16(void)
{
    return getauxval(AT_HWCAP2) >> 14 & 1; /* HWCAP2_BF16 */
}
static bool has_dotprod(void)
{
    return getauxval(AT_HWCAP) >> 20 & 1; /* HWCAP_ASIMDDP */
}
static bool has_i8mm(void)
{
    return getauxval(AT_HWCAP2) >> 13 & 1; /* HWCAP2_I8MM */
}
#else
static bool has_bf16(void)
{
    return false;
}
static bool has_dotprod(void)
{
    return false;
}
static bool has_i8mm(void)
{
    return false;
}
#endif

/* Advanced SIMD belongs to every AArch64 system with a floating-point ABI. */
static const lt_kernels *const all_sets[] = { &lt_kernels_neonbf16, &lt_kernels_neon, &lt_kernels_scalar };

static size_t first_available(void)
{
    return has_bf16() ? 0 : 1;
}

#else
static const lt_kernels *const all_sets[] = { &lt_kernels_scalar };

static size_t first_available(void)
{
    return 0;
}

#endif

#if !defined(__x86_64__)
bool lt_cpu_one_stream(void)
{
    return false;
}
bool lt_cpu_self_fetching(void)
{
    return false;
}
#endif

const lt_kernels *const *lt_kernels_available(size_t *n)
{
    size_t first = first_available();
    *n = sizeof all_sets / sizeof *all_sets - first;
    return all_sets + first;
}

const lt_kernels *lt_kernels_find(const char *isa)
{
    size_t n;
    const lt_kernels *const *sets = lt_kernels_available(&n);
    if (!isa || !strcmp(isa, "auto")) return sets[0];
    for (size_t i = 0; i < n; i++) {
        if (!strcmp(isa, sets[i]->isa)) return sets[i];
    }
    return NULL;
}

/* ------------------------------------------------------------------ Q8_0 */

#if defined(__x86_64__)
static const lt_q8_kernels *const q8_sets[] = { &lt_q8_kernels_avx512amx, &lt_q8_kernels_avx512vnni, &lt_q8_kernels_avxvnni,
                                                &lt_q8_kernels_avx2, &lt_q8_kernels_scalar };

/* Whether q8_sets[i] may run beside a set. */
static bool q8_runs(size_t i, const lt_kernels *set)
{
    const bool tiles = set == &lt_kernels_avx512amx;
    const bool wide = set == &lt_kernels_avx512 || set == &lt_kernels_avx512bf16 || tiles;
    switch (i) {
    case 0: return tiles;
    case 1: return wide && has_avx512_vnni();
    case 2: return (wide || set == &lt_kernels_avx2) && has_avx_vnni();
    case 3: return wide || set == &lt_kernels_avx2;
    default: return true;
    }
}
#elif defined(__aarch64__)
static const lt_q8_kernels *const q8_sets[] = { &lt_q8_kernels_neoni8mm, &lt_q8_kernels_neondot, &lt_q8_kernels_neon,
                                                &lt_q8_kernels_scalar };

static bool q8_runs(size_t i, const lt_kernels *set)
{
    if (set == &lt_kernels_scalar) return i == 3;
    return i > 1 || (has_dotprod() && (i > 0 || has_i8mm()));
}
#else
static const lt_q8_kernels *const q8_sets[] = { &lt_q8_kernels_scalar };

static bool q8_runs(size_t i, const lt_kernels *set)
{
    (void)i;
    (void)set;
    return true;
}
#endif

const lt_q8_kernels *lt_q8_kernels_for(const lt_kernels *set)
{
    size_t i = 0;
    while (!q8_runs(i, set)) i++; /* the scalar one always does */
    return q8_sets[i];
}

bool lt_q8_kernels_run(size_t index, const lt_q8_kernels **kernels)
{
    const lt_kernels *best = all_sets[first_available()];
    if (index >= sizeof q8_sets / sizeof *q8_sets) return false;
    *kernels = q8_runs(index, best) ? q8_sets[index] : NULL;
    return true;
}
