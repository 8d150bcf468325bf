/* How long NVRTC takes for the kernels, without any cache: bench_compile [THREADS [ROUNDS]].
 *
 * Prints milliseconds, the median of the rounds, for the shapes of three families: of the portable template alone, and with
 * CUDA's own kernels. Needs NVRTC, not a GPU; the code is for Hopper. */
#include <stdio.h>
#include <stdlib.h>

#include "backend/gpu/cuda_api.h"
#include "backend/gpu/template.h"
#include "base/clock.h"

enum { MOST_ROUNDS = 31 };

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void check(lattice_status status, const lattice_error *err)
{
    if (status == LATTICE_OK) return;
    fprintf(stderr, "bench_compile: %s\n", err->message);
    exit(1);
}

static double compile(const lattice_runtime *runtime, const lt_gpu_shape *shape, lt_str own, size_t rounds)
{
    const lt_cuda_target target = { .major = 9 };
    double times[MOST_ROUNDS];
    lattice_error err;
    lt_buf source;
    lt_buf_init(&source, &runtime->mem);
    check(lt_gpu_source(shape, lt_gpu_shim_cuda(), own, &source, &err), &err);
    for (size_t i = 0; i < rounds; i++) {
        lt_cuda_code code;
        lt_cuda_code_init(&code, &runtime->mem);
        double start = lt_clock_seconds();
        check(lt_cuda_compile_units(runtime, &target, lt_buf_str(&source), UINT32_MAX, &code, &err), &err);
        times[i] = (lt_clock_seconds() - start) * 1e3;
        lt_cuda_code_free(&code);
    }
    lt_buf_free(&source);
    qsort(times, rounds, sizeof *times, by_value);
    return times[rounds / 2];
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        lt_gpu_shape shape;
    } families[] = {
        { "bert", { .n_heads = 12, .n_kv_heads = 12, .head_dim = 64 } },
        { "qwen3", { .n_heads = 16, .n_kv_heads = 8, .head_dim = 128, .rotary_dim = 128, .few_bf16 = true, .keeps_bf16 = true } },
        { "qwen3.5",
          { .n_heads = 8,
            .n_kv_heads = 2,
            .head_dim = 256,
            .rotary_dim = 64,
            .delta_dk = 128,
            .decodes = true,
            .few_bf16 = true,
            .keeps_bf16 = true } },
    };
    size_t rounds = argc > 2 ? (size_t)atol(argv[2]) : 5;
    if (rounds < 1 || rounds > MOST_ROUNDS) rounds = MOST_ROUNDS;
    lattice_runtime_options options = lattice_runtime_options_default();
    options.n_threads = argc > 1 ? atoi(argv[1]) : 0;
    lattice_runtime *runtime;
    lattice_error err;
    check(lattice_runtime_create(&options, &runtime, &err), &err);
    for (size_t i = 0; i < sizeof families / sizeof *families; i++)
        printf("%s: template compiled in %.0f ms, with CUDA's own kernels in %.0f ms\n", families[i].name,
               compile(runtime, &families[i].shape, (lt_str){ "", 0 }, rounds),
               compile(runtime, &families[i].shape, lt_gpu_own_cuda(), rounds));
    lattice_runtime_free(runtime);
    return 0;
}
