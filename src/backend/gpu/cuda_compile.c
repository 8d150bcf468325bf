/* Compiling kernels by NVRTC, in units side by side on the runtime's threads: what K_UNIT in kernels/ divides. */
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "backend/gpu/cuda_api.h"
#include "base/clock.h"

void lt_cuda_code_init(lt_cuda_code *code, const lattice_allocator *mem)
{
    for (int u = 0; u < LT_GPU_UNITS; u++) lt_buf_init(&code->units[u], mem);
}

void lt_cuda_code_free(lt_cuda_code *code)
{
    for (int u = 0; u < LT_GPU_UNITS; u++) lt_buf_free(&code->units[u]);
}

enum { NVRTC_WITHOUT_CACHE = 13 /* the version that has the option, and the one for speed of compiling */ };

/* Units by the time that they take, longest first: NVRTC parses one at a time, and what is parsed last ends last. */
static const unsigned char order[] = { 13, 16, 10, 15, 14, 19, 12, 11, 7, 9, 17, 1, 5, 4, 6, 3, 2, 8, 18 };
_Static_assert(sizeof order == LT_GPU_UNITS, "every unit has a turn");

#define UNIT(n) (1u << ((n)-1))

/* Units of which NVRTC makes the fastest code: CUDA's own kernels, products of few rows, decoding steps. Of the others, which
 * stream rows or wait for memory, it unrolls only the loops that say so, in half the time; of the convolution, which waits for
 * memory, and of those that others stand for on Hopper it makes code with less effort. */
enum {
    FAST_CODE = UNIT(4) | UNIT(5) | UNIT(6) | UNIT(7) | UNIT(10) | UNIT(11) | UNIT(12) | UNIT(13) | UNIT(14) | UNIT(15) |
                UNIT(16) | UNIT(18) | UNIT(19),
    QUICK_CODE = UNIT(9),
    QUICK_ON_HOPPER = UNIT(4) | UNIT(5)
};

/* NVRTC's word for it; NULL: the fastest code. */
static const char *effort(const lt_cuda_target *target, int unit)
{
    const unsigned quick = QUICK_CODE | (target->major >= 9 ? QUICK_ON_HOPPER : 0u);
    if (quick >> unit & 1u) return "--Ofast-compile=mid";
    return (unsigned)FAST_CODE >> unit & 1u ? NULL : "--Ofast-compile=min";
}

/* Whether a line "#if NAME && K_UNIT(…" is left out: the source has it from the shape that NAME is 0. */
static bool is_left_out(lt_str source, const char *at)
{
    const char *line = at, *end = at;
    char definition[64];
    while (line > source.data && line[-1] != '\n') line--;
    if (at - line < 8 || memcmp(line, "#if ", 4) != 0 || memcmp(at - 4, " && ", 4) != 0) return false;
    line += 4;
    end -= 4;
    int n = snprintf(definition, sizeof definition, "#define %.*s 0\n", (int)(end - line), line);
    return memmem(source.data, source.len, definition, (size_t)n) != NULL;
}

/* Whether the source has kernels in it: those of some units are CUDA's own, or for some shapes. What knows of no units is in all.
 * An empty unit would keep others from being parsed. */
static bool has_unit(lt_str source, int unit)
{
    char word[16];
    size_t n = (size_t)snprintf(word, sizeof word, "K_UNIT(%d)", unit + 1);
    const char *end = source.data + source.len;
    for (const char *at = source.data; (at = memmem(at, (size_t)(end - at), word, n)) != NULL; at += n) {
        if (!is_left_out(source, at)) return true;
    }
    return !memmem(source.data, source.len, "K_UNIT(", 7);
}

/* Hopper's own instructions need the name with an a. */
static void name_architecture(const lt_cuda_target *target, char name[48])
{
    snprintf(name, 48, "--gpu-architecture=sm_%d%d%s", target->major, target->minor, target->major == 9 ? "a" : "");
}

/* What NVRTC is told for a unit. */
typedef struct unit_options {
    char define[32], architecture[48];
    const char *list[8];
    int n;
} unit_options;

static void make_options(const nvrtc_api *rtc, const lt_cuda_target *target, int unit, unit_options *o)
{
    const char *const quick = effort(target, unit);
    int version[2] = { 0, 0 };
    rtc->version(&version[0], &version[1]);
    snprintf(o->define, sizeof o->define, "-DLATTICE_UNIT=%d", unit + 1);
    name_architecture(target, o->architecture);
    /* The last three, which older ones do not know: nothing is kept beside us, no words of the runtime library, the effort. */
    const char *const all[] = { o->architecture, "--std=c++17", "-default-device", "-DLATTICE_CUDA=1",
                                o->define,       "--no-cache",  "--minimal",       quick };
    memcpy(o->list, all, sizeof all);
    o->n = (int)(sizeof all / sizeof *all);
    if (version[0] < NVRTC_WITHOUT_CACHE)
        o->n -= 3;
    else if (!quick)
        o->n -= 1;
}

static lattice_status compile_unit(const lattice_runtime *runtime, const nvrtc_api *rtc, lt_str source,
                                   const lt_cuda_target *target, int unit, lt_buf *code, lattice_error *err)
{
    unit_options options;
    make_options(rtc, target, unit, &options);
    void *program = NULL;
    size_t size = 0;
    int result = rtc->create(&program, source.data, "lattice.cu", 0, NULL, NULL);
    if (result == 0) result = rtc->compile(program, options.n, options.list);
    if (result == 0) result = rtc->cubin_size(program, &size);
    lt_buf_clear(code);
    if (result == 0 && lt_buf_reserve(code, size)) {
        result = rtc->cubin(program, code->data);
        code->len = size;
    }
    if (result != 0) {
        char *log = rtc->log_size(program, &size) == 0 ? lt_alloc_zero(&runtime->mem, size + 1) : NULL;
        if (log && rtc->log(program, log) == 0) lt_log(runtime, LATTICE_LOG_INFO, "NVRTC: %s", log);
        lt_fail(err, LATTICE_ERR_DEVICE, "cuda: the kernels do not compile: %s: %s", rtc->error_text(result), log ? log : "");
        lt_free(&runtime->mem, log);
    }
    if (program) rtc->destroy(&program);
    if (result != 0) return LATTICE_ERR_DEVICE;
    return code->failed ? lt_no_memory(err, size, "compiled kernels") : LATTICE_OK;
}

typedef struct job {
    const lattice_runtime *runtime;
    const nvrtc_api *rtc;
    lt_str source;
    const lt_cuda_target *target;
    uint32_t units; /* bit u: unit u */
    lt_cuda_code *code;
    atomic_int next;
    lattice_status status[LT_GPU_UNITS];
    lattice_error errors[LT_GPU_UNITS];
} job;

static void compile_some(void *arg, int thread, int n_threads)
{
    (void)thread;
    (void)n_threads;
    job *j = arg;
    for (int i; (i = atomic_fetch_add(&j->next, 1)) < LT_GPU_UNITS;) {
        int u = order[i] - 1;
        if (!(j->units >> u & 1) || !has_unit(j->source, u)) continue;
        j->status[u] = compile_unit(j->runtime, j->rtc, j->source, j->target, u, &j->code->units[u], &j->errors[u]);
    }
}

static lattice_status compile_all(const lattice_runtime *runtime, const nvrtc_api *rtc, lt_str source,
                                  const lt_cuda_target *target, uint32_t units, lt_cuda_code *code, lattice_error *err)
{
    job *j = lt_alloc_zero(&runtime->mem, sizeof *j);
    if (!j) return lt_no_memory(err, sizeof *j, "compiling kernels");
    *j = (job){ .runtime = runtime, .rtc = rtc, .source = source, .target = target, .units = units, .code = code };
    lt_pool_run(runtime->pool, compile_some, j);
    lattice_status status = LATTICE_OK;
    for (int u = 0; u < LT_GPU_UNITS && status == LATTICE_OK; u++) {
        status = j->status[u];
        if (status != LATTICE_OK && err) *err = j->errors[u];
    }
    lt_free(&runtime->mem, j);
    return status;
}

static lattice_status load_nvrtc(nvrtc_api *rtc, lattice_error *err)
{
    char text[200];
    if (lt_cuda_load_nvrtc(rtc, text, sizeof text)) return LATTICE_OK;
    return lt_fail(err, LATTICE_ERR_DEVICE, "cuda: NVRTC, the compiler of kernels, cannot be loaded: %s", text);
}

lattice_status lt_cuda_compile_units(const lattice_runtime *runtime, const lt_cuda_target *target, lt_str source, uint32_t units,
                                     lt_cuda_code *code, lattice_error *err)
{
    nvrtc_api rtc = { 0 };
    LT_TRY(load_nvrtc(&rtc, err));
    lattice_status status = compile_all(runtime, &rtc, source, target, units, code, err);
    lt_cuda_unload(&rtc.handle);
    return status;
}

/* What code depends on besides its source: the versions of NVRTC and of the driver, and every unit's options. */
static void describe(const nvrtc_api *rtc, const lt_cuda_target *target, lt_buf *text)
{
    int version[2] = { 0, 0 };
    rtc->version(&version[0], &version[1]);
    lt_buf_printf(text, "|%d.%d|%d|", version[0], version[1], target->driver_version);
    for (int u = 0; u < LT_GPU_UNITS; u++) {
        unit_options options;
        make_options(rtc, target, u, &options);
        for (int i = 0; i < options.n; i++) lt_buf_printf(text, "%s|", options.list[i]);
    }
}

lattice_status lt_cuda_compile(const lattice_runtime *runtime, const lt_cuda_target *target, lt_str source, lt_cuda_code *code,
                               lattice_error *err)
{
    nvrtc_api rtc = { 0 };
    LT_TRY(load_nvrtc(&rtc, err));
    lt_buf path, made_with;
    lt_buf_init(&path, &runtime->mem);
    lt_buf_init(&made_with, &runtime->mem);
    describe(&rtc, target, &made_with);
    double start = lt_clock_seconds();
    bool cached = !made_with.failed && lt_cuda_cache_path(runtime, source, made_with.data, &path),
         found = cached && lt_cuda_cache_read(runtime, path.data, code);
    lattice_status status = LATTICE_OK;
    if (!found) status = compile_all(runtime, &rtc, source, target, UINT32_MAX, code, err);
    if (status == LATTICE_OK)
        lt_log(runtime, LATTICE_LOG_INFO, "kernels %s in %.1f ms", found ? "read from the cache" : "compiled",
               (lt_clock_seconds() - start) * 1e3);
    if (status == LATTICE_OK && cached && !found) lt_cuda_cache_write(runtime, path.data, code);
    lt_buf_free(&path);
    lt_buf_free(&made_with);
    lt_cuda_unload(&rtc.handle);
    return status;
}
