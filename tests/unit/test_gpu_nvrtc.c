/* The kernels as NVRTC compiles them, which needs no GPU: every shape that is to be admitted, for Ampere and Hopper; skipped
 * where the library is not found (LD_LIBRARY_PATH). And the cache of compiled code, which needs nothing. */
#include "support.h"

#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "backend/gpu/cuda_api.h"
#include "backend/gpu/gpu.h"
#include "base/clock.h"

static lattice_runtime *runtime_in(const char *folder)
{
    lattice_error err;
    lattice_runtime *runtime;
    lattice_runtime_options o = lattice_runtime_options_default();
    o.cache_dir = folder;
    assert_ok_err(lattice_runtime_create(&o, &runtime, &err), &err);
    return runtime;
}

/* ------------------------------------------------------------------ the cache */

static void fill(lt_cuda_code *code, unsigned seed)
{
    lt_cuda_code_init(code, &lt_malloc_allocator);
    for (unsigned u = 0; u < LT_GPU_UNITS; u++) {
        for (unsigned i = 0; i < 100 + 37 * u; i++) lt_buf_byte(&code->units[u], (char)(i * 31 + u + seed));
    }
}

static bool same(const lt_cuda_code *a, const lt_cuda_code *b)
{
    for (int u = 0; u < LT_GPU_UNITS; u++) {
        if (a->units[u].len != b->units[u].len || memcmp(a->units[u].data, b->units[u].data, a->units[u].len) != 0) return false;
    }
    return true;
}

static void an_entry_is_read_as_it_was_written(void **state)
{
    (void)state;
    lt_test_folder folder = lt_test_folder_create();
    lattice_runtime *runtime = runtime_in(folder.path);
    lt_cuda_code code, read;
    lt_buf path, other;
    fill(&code, 0);
    lt_cuda_code_init(&read, &lt_malloc_allocator);
    lt_buf_init(&path, &lt_malloc_allocator);
    lt_buf_init(&other, &lt_malloc_allocator);
    assert_true(lt_cuda_cache_path(runtime, LT_STR("source"), "|sm_90a|", &path));
    assert_false(lt_cuda_cache_read(runtime, path.data, &read));
    lt_cuda_cache_write(runtime, path.data, &code);
    assert_true(lt_cuda_cache_read(runtime, path.data, &read));
    assert_true(same(&read, &code));
    /* Another source and other options are other entries. */
    assert_true(lt_cuda_cache_path(runtime, LT_STR("source "), "|sm_90a|", &other));
    assert_string_not_equal(other.data, path.data);
    lt_buf_clear(&other);
    assert_true(lt_cuda_cache_path(runtime, LT_STR("source"), "|sm_80|", &other));
    assert_string_not_equal(other.data, path.data);
    lt_buf_free(&path);
    lt_buf_free(&other);
    lt_cuda_code_free(&code);
    lt_cuda_code_free(&read);
    lattice_runtime_free(runtime);
    lt_test_folder_remove(&folder);
}

static void a_damaged_entry_is_not_read_and_is_written_again(void **state)
{
    (void)state;
    lt_test_folder folder = lt_test_folder_create();
    lattice_runtime *runtime = runtime_in(folder.path);
    lt_cuda_code code, read;
    lt_buf path;
    fill(&code, 3);
    lt_cuda_code_init(&read, &lt_malloc_allocator);
    lt_buf_init(&path, &lt_malloc_allocator);
    assert_true(lt_cuda_cache_path(runtime, LT_STR("source"), "", &path));
    lt_cuda_cache_write(runtime, path.data, &code);
    size_t size;
    char *data = lt_test_read_file(path.data, &size);
    for (size_t at = 0; at < size; at += at < 80 ? 1 : 97) { /* magic, sum and the first size byte by byte */
        data[at] ^= 0x20;
        lt_test_write_file(path.data, data, size);
        assert_false(lt_cuda_cache_read(runtime, path.data, &read));
        data[at] ^= 0x20;
        lt_test_write_file(path.data, data, at); /* cut short */
        assert_false(lt_cuda_cache_read(runtime, path.data, &read));
    }
    lt_cuda_cache_write(runtime, path.data, &code);
    assert_true(lt_cuda_cache_read(runtime, path.data, &read));
    assert_true(same(&read, &code));
    free(data);
    lt_buf_free(&path);
    lt_cuda_code_free(&code);
    lt_cuda_code_free(&read);
    lattice_runtime_free(runtime);
    lt_test_folder_remove(&folder);
}

static void processes_that_write_at_the_same_time_leave_a_whole_entry(void **state)
{
    (void)state;
    lt_test_folder folder = lt_test_folder_create();
    lattice_runtime *runtime = runtime_in(folder.path);
    lt_cuda_code codes[2], read;
    lt_buf path;
    for (unsigned i = 0; i < 2; i++) fill(&codes[i], i);
    lt_cuda_code_init(&read, &lt_malloc_allocator);
    lt_buf_init(&path, &lt_malloc_allocator);
    assert_true(lt_cuda_cache_path(runtime, LT_STR("source"), "", &path));
    lt_cuda_cache_write(runtime, path.data, &codes[0]);
    pid_t children[2];
    for (unsigned i = 0; i < 2; i++) {
        children[i] = fork();
        assert_true(children[i] >= 0);
        if (children[i] == 0) {
            for (int n = 0; n < 50; n++) lt_cuda_cache_write(runtime, path.data, &codes[i]);
            _exit(0);
        }
    }
    for (int n = 0; n < 50; n++) {
        assert_true(lt_cuda_cache_read(runtime, path.data, &read));
        assert_true(same(&read, &codes[0]) || same(&read, &codes[1]));
    }
    for (unsigned i = 0; i < 2; i++) {
        int status;
        assert_int_equal(waitpid(children[i], &status, 0), children[i]);
        assert_int_equal(status, 0);
    }
    for (unsigned i = 0; i < 2; i++) lt_cuda_code_free(&codes[i]);
    lt_cuda_code_free(&read);
    lt_buf_free(&path);
    lattice_runtime_free(runtime);
    lt_test_folder_remove(&folder);
}

/* ------------------------------------------------------------------ NVRTC */

/* Sanitizers would count as leaks what the library keeps when it is closed. */
static bool has_nvrtc(void)
{
    if (LT_TEST_LIGHT) {
        print_message("NVRTC is not tried under sanitizers\n");
        return false;
    }
    nvrtc_api rtc = { 0 };
    char text[200];
    bool found = lt_cuda_load_nvrtc(&rtc, text, sizeof text);
    if (!found) print_message("NVRTC is not found: %s\n", text);
    lt_cuda_unload(&rtc.handle);
    return found;
}

static bool has_text(const lt_cuda_code *code, const char *name)
{
    for (int u = 0; u < LT_GPU_UNITS; u++) {
        if (memmem(code->units[u].data, code->units[u].len, name, strlen(name))) return true;
    }
    return false;
}

static lt_gpu_shape shape_of(size_t head_dim, size_t groups)
{
    return (lt_gpu_shape){ .n_heads = 2 * groups,
                           .n_kv_heads = 2,
                           .head_dim = head_dim,
                           .rotary_dim = head_dim,
                           .delta_dk = 128,
                           .decodes = true,
                           .keeps_bf16 = true,
                           .few_bf16 = true,
                           .few_q8_0 = true };
}

/* Units that depend on the shape: rows and rope, all attentions, CUDA's own rows. */
enum { OF_SHAPE = 1u << 0 | 1u << 7 | 1u << 9 | 1u << 10 | 1u << 14 | 1u << 17 };

static void compile(const lattice_runtime *runtime, lt_gpu_shape shape, int major, uint32_t units, lt_cuda_code *code)
{
    lattice_error err;
    lt_buf source;
    lt_cuda_target target = { .major = major };
    lt_buf_init(&source, &lt_malloc_allocator);
    assert_ok_err(lt_gpu_source(&shape, lt_gpu_shim_cuda(), lt_gpu_own_cuda(), &source, &err), &err);
    double start = lt_clock_seconds();
    assert_ok_err(lt_cuda_compile_units(runtime, &target, lt_buf_str(&source), units, code, &err), &err);
    print_message("head_dim %zu, %zu heads a key/value head, sm_%d0: %.0f ms\n", shape.head_dim, shape.n_heads / shape.n_kv_heads,
                  major, (lt_clock_seconds() - start) * 1e3);
    lt_buf_free(&source);
}

static void shapes_compile_for(int major, size_t step)
{
    if (!has_nvrtc()) skip();
    static const size_t shapes[][2] = { { 32, 1 },  { 64, 1 },  { 64, 2 },  { 80, 2 },  { 80, 3 },
                                        { 128, 2 }, { 128, 4 }, { 128, 5 }, { 256, 4 }, { 256, 8 } };
    static const char *const kernels[] = {
#define X(name) #name,
        LT_GPU_KERNEL_LIST(X)
#undef X
            "attention_mma",
        "add_norm_group",
        "rope_wide",
        "delta_steps",
        "few_stream",
        "delta_stream",
    };
    const size_t of_hopper = 2; /* the last ones */
    lattice_runtime *runtime = runtime_in(NULL);
    lt_cuda_code code;
    lt_cuda_code_init(&code, &lt_malloc_allocator); /* of what does not depend on the shape, the first one's stays */
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i += step) {
        compile(runtime, shape_of(shapes[i][0], shapes[i][1]), major, i == 0 ? UINT32_MAX : OF_SHAPE, &code);
        for (size_t k = 0; k < sizeof kernels / sizeof *kernels - (major < 9 ? of_hopper : 0); k++) {
            bool no_rope = shapes[i][0] == 80 && strcmp(kernels[k], "rope_wide") == 0; /* a half of 40 does not divide by 16 */
            if (!no_rope && !has_text(&code, kernels[k])) fail_msg("%s is missing", kernels[k]);
        }
    }
    lt_cuda_code_free(&code);
    lattice_runtime_free(runtime);
}

/* Its code differs from Hopper's in what may begin early, and lacks the kernels of the bulk copy engine. */
static void every_fourth_shape_compiles_for_ampere(void **state)
{
    (void)state;
    shapes_compile_for(8, 4);
}

static void every_shape_compiles_for_hopper(void **state)
{
    (void)state;
    shapes_compile_for(9, 1);
}

static void what_was_compiled_is_kept_and_made_again_when_damaged(void **state)
{
    (void)state;
    if (!has_nvrtc()) skip();
    lt_test_folder folder = lt_test_folder_create();
    lattice_runtime *runtime = runtime_in(folder.path);
    lattice_error err;
    lt_cuda_code code[3];
    lt_cuda_target target = { .major = 9 };
    lt_str source = LT_STR("extern \"C\" __global__ void k(int *p) { *p = LATTICE_UNIT; }\n");
    char found[300] = "", command[400];
    for (int i = 0; i < 3; i++) {
        lt_cuda_code_init(&code[i], &lt_malloc_allocator);
        assert_ok_err(lt_cuda_compile(runtime, &target, source, &code[i], &err), &err);
        snprintf(command, sizeof command, "ls %s/gpu-*", folder.path);
        FILE *names = popen(command, "r");
        assert_non_null(fgets(found, sizeof found, names));
        found[strcspn(found, "\n")] = '\0';
        assert_null(fgets(command, sizeof command, names)); /* one entry */
        pclose(names);
        if (i == 1) assert_int_equal(truncate(found, 1000), 0);
    }
    assert_true(same(&code[0], &code[1]) && same(&code[0], &code[2]));
    struct stat entry;
    assert_int_equal(stat(found, &entry), 0);
    assert_true(entry.st_size > 1000);
    for (int i = 0; i < 3; i++) lt_cuda_code_free(&code[i]);
    lattice_runtime_free(runtime);
    lt_test_folder_remove(&folder);
}

static void what_does_not_compile_is_refused_with_the_compilers_words(void **state)
{
    (void)state;
    if (!has_nvrtc()) skip();
    lattice_runtime *runtime = runtime_in(NULL);
    lattice_error err;
    lt_cuda_code code;
    lt_cuda_target target = { .major = 9 };
    lt_cuda_code_init(&code, &lt_malloc_allocator);
    assert_int_equal(lt_cuda_compile(runtime, &target, LT_STR("int x = absent;\n"), &code, &err), LATTICE_ERR_DEVICE);
    assert_non_null(strstr(err.message, "absent"));
    lt_cuda_code_free(&code);
    lattice_runtime_free(runtime);
}

/* With a pattern, the tests that it fits. */
int main(int argc, char **argv)
{
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_entry_is_read_as_it_was_written),
        cmocka_unit_test(a_damaged_entry_is_not_read_and_is_written_again),
        cmocka_unit_test(processes_that_write_at_the_same_time_leave_a_whole_entry),
        cmocka_unit_test(every_fourth_shape_compiles_for_ampere),
        cmocka_unit_test(every_shape_compiles_for_hopper),
        cmocka_unit_test(what_was_compiled_is_kept_and_made_again_when_damaged),
        cmocka_unit_test(what_does_not_compile_is_refused_with_the_compilers_words),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
