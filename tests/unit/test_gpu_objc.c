/* metal.c against a stand-in Objective-C runtime (gpu/objc_standin.h): whole fixtures, order of commands, lifetimes, faults. */
#include "gpu_checks.h"

#include "backend/gpu/template.h"
#include "gpu/emulator.h"
#include "gpu/objc_standin.h"

#define uint uint32_t
#include "backend/gpu/kernels/args.h"
#undef uint

static int start(void **state)
{
    (void)state;
    lt_standin_reset();
    lt_emulator_order = 0;
    return 0;
}

/* Whatever happened: nothing that Metal forbids, nothing left over. */
static int check_end(void **state)
{
    (void)state;
    standin_counts c = lt_standin_counts();
    if (c.faults) print_error("%ld faults, the last: %s\n", c.faults, lt_standin_fault());
    if (c.live) print_error("%ld objects are not released\n", c.live);
    bool good = c.faults == 0 && c.live == 0 && c.pools == 0 && c.pending == 0 && !c.fast_math;
    lt_standin_reset();
    return good ? 0 : -1;
}

#define REQUIRE_EMULATOR()                                                                                                       \
    if (!lt_emulator_works()) skip()

/* ------------------------------------------------------------------ whole fixtures */

static const gpu_subject subject = { .driver = &lt_standin_driver, .device = "metal", .max_tokens = 96 };

static void check_fixture(const char *folder, lattice_compute compute)
{
    REQUIRE_EMULATOR();
    gpu_check_fixture(&subject, folder, compute, 4);
    assert_true(lt_standin_counts().views > 0); /* weights are read where they are mapped */
    assert_true(lt_standin_counts().dispatches > 100);
}

static void bert_equals_the_cpu(void **state)
{
    (void)state;
    check_fixture(FIXTURE("bert-cls"), LATTICE_COMPUTE_F32);
}

static void cross_encoder_equals_the_cpu(void **state)
{
    (void)state;
    check_fixture(FIXTURE("xlmr-cross-encoder"), LATTICE_COMPUTE_F32);
}

static void qwen3_equals_the_cpu(void **state)
{
    (void)state;
    check_fixture(FIXTURE("qwen3-embedding"), LATTICE_COMPUTE_F32);
}

static void qwen3_in_bf16_shards_equals_the_cpu(void **state)
{
    (void)state;
    check_fixture(FIXTURE("qwen3-embedding-hd80-sharded-bf16"), LATTICE_COMPUTE_BF16);
}

static void qwen35_equals_the_cpu(void **state)
{
    (void)state;
    check_fixture(FIXTURE("qwen3.5-text"), LATTICE_COMPUTE_F32);
}

static void weights_are_copied_where_views_are_refused(void **state)
{
    (void)state;
    REQUIRE_EMULATOR();
    lt_standin_plan.refuses_views = true;
    gpu_check_fixture(&subject, FIXTURE("qwen3-embedding"), LATTICE_COMPUTE_F32, 4);
    assert_int_equal(lt_standin_counts().views, 0);
}

/* ------------------------------------------------------------------ falling back */

typedef struct warnings {
    char last[1024];
    int n;
} warnings;

static void keep_warning(void *user, lattice_log_level level, const char *message)
{
    warnings *w = user;
    if (level > LATTICE_LOG_WARNING) return;
    snprintf(w->last, sizeof w->last, "%s", message);
    w->n++;
}

static lattice_runtime *make_runtime(warnings *w)
{
    lattice_error err;
    lattice_runtime *runtime;
    lattice_runtime_options o = lattice_runtime_options_default();
    *w = (warnings){ .n = 0 };
    o.n_threads = 2;
    o.log = keep_warning;
    o.log_user = w;
    assert_ok_err(lattice_runtime_create(&o, &runtime, &err), &err);
    runtime->gpu_driver = &lt_standin_driver;
    return runtime;
}

/* INV-4: the model opens on the CPU, with one warning that holds `why`, and gives the CPU's vectors bit by bit. */
static void check_refusal(const char *why)
{
    static const uint32_t ids[] = { 2, 9, 7, 3 };
    lattice_error err;
    warnings w;
    float x[64], wanted[64];
    lattice_ids input = { ids, 4 };
    lattice_runtime *runtime = make_runtime(&w);
    lattice_model *m = gpu_open(runtime, FIXTURE("bert-cls"), "metal", LATTICE_COMPUTE_F32);
    assert_int_equal(w.n, 1);
    if (!strstr(w.last, why)) fail_msg("'%s' does not say '%s'", w.last, why);
    assert_string_equal(m->backend->name, "cpu");
    assert_true(lattice_embed_dim(m, NULL) <= 64);
    assert_ok_err(lattice_embed_ids(m, &input, 1, NULL, x, NULL, &err), &err);
    lattice_model *cpu = gpu_open(runtime, FIXTURE("bert-cls"), "cpu", LATTICE_COMPUTE_F32);
    assert_ok_err(lattice_embed_ids(cpu, &input, 1, NULL, wanted, NULL, &err), &err);
    assert_memory_equal(x, wanted, lattice_embed_dim(m, NULL) * sizeof *x);
    assert_int_equal(w.n, 1);
    lattice_model_close(m);
    lattice_model_close(cpu);
    lattice_runtime_free(runtime);
}

static void INV_4_a_machine_without_a_device_falls_back(void **state)
{
    (void)state;
    lt_standin_plan.no_device = true;
    check_refusal("this machine has no device");
}

static void INV_4_a_device_without_a_queue_falls_back(void **state)
{
    (void)state;
    lt_standin_plan.no_queue = true;
    check_refusal("Stand-in M0 gives no command queue");
}

static void INV_4_what_the_compiler_says_reaches_the_user(void **state)
{
    (void)state;
    lt_standin_plan.compile_error = "program_source:17:3: error: use of undeclared identifier 'half5'";
    check_refusal("use of undeclared identifier 'half5'");
}

static void INV_4_a_kernel_without_a_pipeline_is_named(void **state)
{
    (void)state;
    REQUIRE_EMULATOR();
    lt_standin_plan.pipeline_error = "fused_attention";
    check_refusal("the kernel 'fused_attention': the kernel uses too many registers");
}

static void INV_4_a_missing_kernel_is_named(void **state)
{
    (void)state;
    REQUIRE_EMULATOR();
    lt_standin_plan.missing_kernel = "gemm_r16";
    check_refusal("there is no kernel 'gemm_r16'");
}

static void INV_4_simdgroups_of_another_width_are_refused(void **state)
{
    (void)state;
    REQUIRE_EMULATOR();
    lt_standin_plan.simd_width = 64;
    check_refusal("simdgroups of 64 threads");
}

static void INV_4_too_little_memory_falls_back(void **state)
{
    (void)state;
    REQUIRE_EMULATOR();
    lt_standin_plan.memory = 100;
    check_refusal("bytes of device memory");
}

/* The run that fails is repeated on the CPU, and later ones stay there; `why` is in the one warning. */
static void check_failing_run(const char *why)
{
    static const uint32_t ids[] = { 2, 9, 7, 3 };
    lattice_error err;
    warnings w;
    float first[64], again[64], wanted[64];
    lattice_ids input = { ids, 4 };
    lattice_runtime *runtime = make_runtime(&w);
    lattice_model *m = gpu_open(runtime, FIXTURE("bert-cls"), "metal", LATTICE_COMPUTE_F32);
    lattice_model *cpu = gpu_open(runtime, FIXTURE("bert-cls"), "cpu", LATTICE_COMPUTE_F32);
    size_t size = lattice_embed_dim(m, NULL) * sizeof *first;
    assert_int_equal(w.n, 0);
    assert_ok_err(lattice_embed_ids(m, &input, 1, NULL, first, NULL, &err), &err);
    long commands = lt_standin_counts().commands;
    assert_ok_err(lattice_embed_ids(m, &input, 1, NULL, again, NULL, &err), &err);
    assert_ok_err(lattice_embed_ids(cpu, &input, 1, NULL, wanted, NULL, &err), &err);
    assert_memory_equal(first, wanted, size);
    assert_memory_equal(again, wanted, size);
    assert_int_equal(w.n, 1);
    if (!strstr(w.last, why)) fail_msg("'%s' does not say '%s'", w.last, why);
    assert_int_equal(lt_standin_counts().commands, commands);
    lattice_model_close(m);
    lattice_model_close(cpu);
    lattice_runtime_free(runtime);
}

static void a_run_that_hangs_the_device_is_repeated_on_the_cpu(void **state)
{
    (void)state;
    REQUIRE_EMULATOR();
    lt_standin_plan.fail_commands = 1;
    lt_standin_plan.fail_code = 2;
    check_failing_run("the device stopped: Caused GPU Hang Error");
}

/* Memory may come back: the next run is the device's again. */
static void a_run_without_memory_is_repeated_on_the_cpu(void **state)
{
    (void)state;
    REQUIRE_EMULATOR();
    static const uint32_t ids[] = { 2, 9, 7, 3 };
    lattice_error err;
    warnings w;
    float first[64], wanted[64];
    lattice_ids input = { ids, 4 };
    lt_standin_plan.fail_commands = 1;
    lt_standin_plan.fail_code = 8;
    lattice_runtime *runtime = make_runtime(&w);
    lattice_model *m = gpu_open(runtime, FIXTURE("bert-cls"), "metal", LATTICE_COMPUTE_F32);
    lattice_model *cpu = gpu_open(runtime, FIXTURE("bert-cls"), "cpu", LATTICE_COMPUTE_F32);
    assert_ok_err(lattice_embed_ids(m, &input, 1, NULL, first, NULL, &err), &err);
    assert_ok_err(lattice_embed_ids(cpu, &input, 1, NULL, wanted, NULL, &err), &err);
    assert_memory_equal(first, wanted, lattice_embed_dim(m, NULL) * sizeof *first);
    assert_int_equal(w.n, 1);
    if (!strstr(w.last, "the device stopped")) fail_msg("'%s' does not say so", w.last);
    lt_standin_plan.fail_commands = 0;
    long commands = lt_standin_counts().commands;
    assert_ok_err(lattice_embed_ids(m, &input, 1, NULL, first, NULL, &err), &err);
    assert_true(lt_standin_counts().commands > commands);
    assert_int_equal(w.n, 1);
    lattice_model_close(m);
    lattice_model_close(cpu);
    lattice_runtime_free(runtime);
}

static void a_group_too_large_for_the_device_falls_back(void **state)
{
    (void)state;
    REQUIRE_EMULATOR();
    lt_standin_plan.max_threads = 64;
    check_failing_run("the device runs this kernel with 64");
}

/* The device is lost between tokens: the conversation goes on on the CPU with the same tokens. */
static void a_conversation_survives_its_device(void **state)
{
    (void)state;
    REQUIRE_EMULATOR();
    lattice_error err;
    warnings w;
    lattice_runtime *runtime = make_runtime(&w);
    golden *g = golden_read(FIXTURE("qwen3.5-text"));
    const golden_case *c = NULL;
    for (size_t i = 0; i < g->n_cases && !c; i++) {
        if (g->cases[i].n_greedy >= 6 && g->cases[i].greedy_min_margin >= 1e-3 && g->cases[i].n <= 64) c = &g->cases[i];
    }
    assert_non_null(c);
    lattice_model *m = gpu_open(runtime, FIXTURE("qwen3.5-text"), "metal", LATTICE_COMPUTE_F32);
    lattice_session *session;
    assert_ok_err(lattice_session_create(m, NULL, &session, &err), &err);
    assert_ok_err(lattice_session_prefill(session, c->ids, c->n, &err), &err);
    assert_int_equal(w.n, 0);
    lt_standin_plan.fail_commands = lt_standin_counts().commands + 3;
    lattice_generate_options o = { .sampling = { .top_p = 1, .repetition_penalty = 1 }, .ignore_end = true, .max_tokens = 6 };
    lattice_generation made;
    assert_ok_err(lattice_generate(session, &o, &made, &err), &err);
    assert_int_equal(made.n, 6);
    assert_memory_equal(made.ids, c->greedy, 6 * sizeof *made.ids);
    assert_true(w.n >= 1);
    lattice_generation_free(&made);
    lattice_session_free(session);
    lattice_model_close(m);
    lattice_runtime_free(runtime);
    golden_free(g);
}

/* ------------------------------------------------------------------ the device alone */

typedef struct bench {
    lattice_runtime *runtime;
    warnings warned;
    lt_gpu_device *device;
    void *library, *convert;
} bench;

static void bench_open(bench *b)
{
    lattice_error err;
    lt_buf source;
    lt_gpu_shape shape = { .n_heads = 2, .n_kv_heads = 1, .head_dim = 32 };
    b->runtime = make_runtime(&b->warned);
    assert_ok_err(lt_standin_driver.open(b->runtime, 0, &b->device, &err), &err);
    lt_buf_init(&source, &b->runtime->mem);
    assert_ok_err(lt_gpu_source(&shape, b->device->shim, b->device->extra, &source, &err), &err);
    assert_ok_err(b->device->build(b->device, lt_buf_str(&source), &b->library, &err), &err);
    assert_ok_err(b->device->find(b->device, b->library, "convert_rows", &b->convert, &err), &err);
    lt_buf_free(&source);
}

static void bench_close(bench *b)
{
    b->device->library_free(b->device, b->library);
    b->device->free(b->device);
    lattice_runtime_free(b->runtime);
}

enum { WIDTH = 40 };

/* y = x, WIDTH numbers, in a kernel. */
static lattice_status launch_copy(const bench *b, lt_gpu_ref x, lt_gpu_ref y, lattice_error *err)
{
    convert_args a = { .rows = 1, .width = WIDTH, .ld_x = WIDTH, .ld_y = WIDTH };
    lt_gpu_launch l = { .kernel = b->convert,
                        .buffers = { x, x, y },
                        .n_buffers = 3,
                        .args = &a,
                        .args_size = sizeof a,
                        .grid = { 1, 1 },
                        .threads = 128 };
    lattice_status status = b->device->launch(b->device, &l, err);
    memset(&a, 0xff, sizeof a); /* the device must not read it later */
    return status;
}

static void an_upload_waits_for_kernels_that_read_what_it_replaces(void **state)
{
    (void)state;
    REQUIRE_EMULATOR();
    lattice_error err;
    bench b;
    float one[WIDTH], two[WIDTH], got[WIDTH];
    for (int i = 0; i < WIDTH; i++) {
        one[i] = (float)i;
        two[i] = (float)-i;
    }
    bench_open(&b);
    lt_gpu_device *d = b.device;
    void *memory;
    assert_ok_err(d->allocate(d, 3 * 256, &memory, &err), &err);
    lt_gpu_ref x = { memory, 0 }, y = { memory, 256 }, z = { memory, 512 };
    assert_ok_err(d->upload(d, x, one, sizeof one, &err), &err);
    assert_ok_err(launch_copy(&b, x, y, &err), &err);
    assert_ok_err(d->upload(d, x, two, sizeof two, &err), &err);
    assert_ok_err(launch_copy(&b, x, z, &err), &err);
    assert_ok_err(d->download(d, got, z, sizeof got, &err), &err);
    assert_memory_equal(got, two, sizeof got);
    assert_ok_err(d->download(d, got, y, sizeof got, &err), &err);
    assert_memory_equal(got, one, sizeof got);
    assert_ok_err(launch_copy(&b, y, x, &err), &err);
    assert_ok_err(d->copy(d, z, x, sizeof got, &err), &err);
    assert_ok_err(d->download(d, got, z, sizeof got, &err), &err);
    assert_memory_equal(got, one, sizeof got);
    d->release(d, memory);
    bench_close(&b);
}

/* Launches build on each other through many command buffers; memory may be released while they wait. */
static void launches_run_in_order_through_many_command_buffers(void **state)
{
    (void)state;
    REQUIRE_EMULATOR();
    enum { STEPS = 3000 };
    lattice_error err;
    bench b;
    float one[WIDTH], got[WIDTH];
    for (int i = 0; i < WIDTH; i++) one[i] = (float)i;
    bench_open(&b);
    lt_gpu_device *d = b.device;
    void *memory[2];
    for (int i = 0; i < 2; i++) assert_ok_err(d->allocate(d, 256, &memory[i], &err), &err);
    assert_ok_err(d->upload(d, (lt_gpu_ref){ memory[0], 0 }, one, sizeof one, &err), &err);
    for (int i = 0; i < STEPS; i++) {
        lt_gpu_ref x = { memory[i % 2], 0 }, y = { memory[(i + 1) % 2], 0 };
        assert_ok_err(launch_copy(&b, x, y, &err), &err);
    }
    d->release(d, memory[1]);
    assert_ok_err(d->download(d, got, (lt_gpu_ref){ memory[0], 0 }, sizeof got, &err), &err);
    assert_memory_equal(got, one, sizeof got);
    assert_int_equal(lt_standin_counts().dispatches, STEPS);
    assert_in_range(lt_standin_counts().commands, 2, STEPS / 8);
    d->release(d, memory[0]);
    bench_close(&b);
}

static void an_error_is_told_once_and_work_goes_on_after_it(void **state)
{
    (void)state;
    REQUIRE_EMULATOR();
    lattice_error err;
    bench b;
    float one[WIDTH] = { 1 }, got[WIDTH];
    bench_open(&b);
    lt_gpu_device *d = b.device;
    void *memory;
    assert_ok_err(d->allocate(d, 512, &memory, &err), &err);
    lt_gpu_ref x = { memory, 0 }, y = { memory, 256 };
    assert_ok_err(d->upload(d, x, one, sizeof one, &err), &err);
    lt_standin_plan.fail_commands = 1;
    assert_ok_err(launch_copy(&b, x, y, &err), &err);
    assert_int_equal(d->download(d, got, y, sizeof got, &err), LATTICE_ERR_DEVICE);
    assert_ok_err(d->finish(d, &err), &err);
    assert_ok_err(launch_copy(&b, x, y, &err), &err);
    assert_ok_err(d->download(d, got, y, sizeof got, &err), &err);
    assert_memory_equal(got, one, sizeof got);
    d->release(d, memory);
    bench_close(&b);
}

static void mapped_memory_is_read_where_it_lies_until_unmapped(void **state)
{
    (void)state;
    REQUIRE_EMULATOR();
    lattice_error err;
    bench b;
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    float got[WIDTH], *pages = aligned_alloc(page, 2 * page), *data = pages + page / sizeof *pages - 3; /* over the border */
    for (int i = 0; i < WIDTH; i++) data[i] = (float)i;
    bench_open(&b);
    lt_gpu_device *d = b.device;
    void *memory;
    lt_gpu_ref x;
    assert_ok_err(d->allocate(d, 256, &memory, &err), &err);
    lt_gpu_ref y = { memory, 0 };
    assert_true(d->map(d, data, WIDTH * sizeof *data, &x));
    assert_int_equal(x.offset, page - 3 * sizeof *data);
    assert_ok_err(launch_copy(&b, x, y, &err), &err);
    data[5] = 55; /* not copied: the kernel, which has not run yet, sees it */
    assert_ok_err(d->download(d, got, y, sizeof got, &err), &err);
    assert_memory_equal(got, data, sizeof got);
    assert_ok_err(launch_copy(&b, x, y, &err), &err);
    d->unmap(d, x.memory);
    assert_int_equal(lt_standin_counts().pending, 0);
    assert_int_equal(lt_standin_counts().commands, 2); /* it has waited */
    assert_false(d->map(d, data, SIZE_MAX - 100, &x));
    free(pages);
    d->release(d, memory);
    bench_close(&b);
}

static void what_does_not_fit_is_no_memory(void **state)
{
    (void)state;
    lattice_error err;
    warnings w;
    lt_gpu_device *d;
    void *memory;
    lattice_runtime *runtime = make_runtime(&w);
    assert_ok_err(lt_standin_driver.open(runtime, 0, &d, &err), &err);
    assert_string_equal(d->name, "Stand-in M0");
    assert_int_equal(d->memory_bytes, (uint64_t)12 << 30);
    assert_int_equal(d->allocate(d, SIZE_MAX, &memory, &err), LATTICE_ERR_NO_MEMORY);
    assert_null(memory);
    lt_standin_plan.memory = 4096;
    assert_int_equal(d->allocate(d, 5000, &memory, &err), LATTICE_ERR_NO_MEMORY);
    assert_ok_err(d->allocate(d, 0, &memory, &err), &err);
    d->release(d, memory);
    d->release(d, NULL);
    d->free(d);
    assert_int_equal(lt_standin_driver.open(runtime, 1, &d, &err), LATTICE_ERR_NOT_FOUND);
    assert_null(d);
    lattice_runtime_free(runtime);
}

static void failing_allocations_leave_nothing_behind(void **state)
{
    (void)state;
    REQUIRE_EMULATOR();
    lattice_error err;
    warnings w;
    lattice_runtime *runtime = make_runtime(&w);
    lattice_allocator own = runtime->mem;
    for (long n = 1;; n++) {
        lt_test_allocator a = lt_test_allocator_failing_at(n);
        lt_gpu_device *d = NULL;
        void *library = NULL, *kernel;
        runtime->mem = lt_test_allocator_hooks(&a);
        lattice_status status = lt_standin_driver.open(runtime, 0, &d, &err);
        if (status == LATTICE_OK)
            status =
                d->build(d, LT_STR("#include <metal_stdlib>\nkernel void k(device float *x [[buffer(0)]]) { x[0] = 1.0f; }\n"),
                         &library, &err);
        if (status == LATTICE_OK) status = d->find(d, library, "k", &kernel, &err);
        if (library) d->library_free(d, library);
        if (d) d->free(d);
        assert_int_equal(lt_test_allocator_live(&a), 0);
        assert_int_equal(lt_standin_counts().live, 0);
        if (status == LATTICE_OK) break;
        assert_int_equal(status, LATTICE_ERR_NO_MEMORY);
    }
    runtime->mem = own;
    lattice_runtime_free(runtime);
}

static void the_device_is_described(void **state)
{
    (void)state;
    char text[200];
    assert_true(lt_standin_driver.describe(text, sizeof text));
    assert_string_equal(text, "Stand-in M0, 12.0 GiB");
    lt_standin_plan.no_device = true;
    assert_false(lt_standin_driver.describe(text, sizeof text));
    assert_string_equal(text, "this machine has no Metal device");
#ifndef __APPLE__
    assert_false(lt_gpu_metal.describe(text, sizeof text));
    assert_non_null(strstr(text, "Metal is a part of macOS"));
    lattice_error err;
    warnings w;
    lt_gpu_device *d;
    lattice_runtime *runtime = make_runtime(&w);
    assert_int_equal(lt_gpu_metal.open(runtime, 0, &d, &err), LATTICE_ERR_NOT_FOUND);
    assert_non_null(strstr(err.message, "Metal is a part of macOS"));
    lattice_runtime_free(runtime);
#endif
}

/* ------------------------------------------------------------------ the stand-in itself sees what it is there to see */

static void expect_fault(const char *text)
{
    if (!strstr(lt_standin_fault(), text)) fail_msg("'%s' instead of a fault with '%s'", lt_standin_fault(), text);
}

static void the_stand_in_sees_misuse(void **state)
{
    (void)state;
    REQUIRE_EMULATOR();
    metal_messages m;
    lt_metal_messages(&lt_standin_api, &m);
#define SEND(message, receiver, ...) m.message.send((receiver), m.message.selector, ##__VA_ARGS__)
    objc_id device = lt_standin_api.default_device(), queue = SEND(new_queue, device);
    SEND(commit, queue);
    expect_fault("MTLCommandQueue has no method commit");
    SEND(command_buffer, queue);
    expect_fault("without a pool");
    void *pool = lt_standin_api.push_pool();
    objc_id commands = SEND(command_buffer, queue), encoder = SEND(compute_encoder, commands);
    SEND(wait, commands);
    expect_fault("it would never end");
    SEND(dispatch, encoder, (metal_size){ 1, 1, 1 }, (metal_size){ 32, 1, 1 });
    expect_fault("without a pipeline");
    SEND(set_buffer, encoder, commands, 0, 0);
    expect_fault("of another class");
    SEND(commit, commands);
    expect_fault("its encoder open");
    SEND(end_encoding, encoder);
    SEND(end_encoding, encoder);
    expect_fault("after endEncoding");
    SEND(commit, commands);
    expect_fault("committed twice");
    objc_id buffer = SEND(new_buffer, device, 64, 0);
    lt_standin_api.pop_pool(pool);
    lt_standin_api.pop_pool(pool);
    expect_fault("not the innermost");
    SEND(release, buffer);
    SEND(contents, buffer);
    expect_fault("contents is sent to an object that is gone");
    SEND(contents, NULL);
    expect_fault("contents is sent to nil");
    SEND(new_view, device, (char *)&m + 1, 100, 0, NULL);
    lt_standin_api.selector("newBufferOfLength:");
    expect_fault("no class has a method newBufferOfLength:");
    assert_true(lt_standin_counts().live > 0); /* the queue, the device: leaks would be seen */
    lt_standin_reset();
#undef SEND
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, start, check_end)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(bert_equals_the_cpu),
        TEST(cross_encoder_equals_the_cpu),
        TEST(qwen3_equals_the_cpu),
        TEST(qwen3_in_bf16_shards_equals_the_cpu),
        TEST(qwen35_equals_the_cpu),
        TEST(weights_are_copied_where_views_are_refused),
        TEST(INV_4_a_machine_without_a_device_falls_back),
        TEST(INV_4_a_device_without_a_queue_falls_back),
        TEST(INV_4_what_the_compiler_says_reaches_the_user),
        TEST(INV_4_a_kernel_without_a_pipeline_is_named),
        TEST(INV_4_a_missing_kernel_is_named),
        TEST(INV_4_simdgroups_of_another_width_are_refused),
        TEST(INV_4_too_little_memory_falls_back),
        TEST(a_run_that_hangs_the_device_is_repeated_on_the_cpu),
        TEST(a_run_without_memory_is_repeated_on_the_cpu),
        TEST(a_group_too_large_for_the_device_falls_back),
        TEST(a_conversation_survives_its_device),
        TEST(an_upload_waits_for_kernels_that_read_what_it_replaces),
        TEST(launches_run_in_order_through_many_command_buffers),
        TEST(an_error_is_told_once_and_work_goes_on_after_it),
        TEST(mapped_memory_is_read_where_it_lies_until_unmapped),
        TEST(what_does_not_fit_is_no_memory),
        TEST(failing_allocations_leave_nothing_behind),
        TEST(the_device_is_described),
        TEST(the_stand_in_sees_misuse),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
