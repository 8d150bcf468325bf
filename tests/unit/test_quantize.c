/* lattice_quantize from inside: what it leaves after running out of memory or being cancelled (nothing), and that a quantised
 * model obeys the numerics contract. */
#include "model_copy.h"

#include <dirent.h>

#define TEXT FIXTURE("qwen3.5-text")

/* Configuration and weights alone: opening a tokenizer would take most of the allocations. */
static lt_test_folder bare_copy(const char *fixture)
{
    lt_test_folder folder = lt_test_folder_create();
    copy_file(fixture, &folder, "config.json");
    copy_file(fixture, &folder, "model.safetensors");
    return folder;
}

static size_t count_entries(const char *path)
{
    size_t n = 0;
    DIR *d = opendir(path);
    assert_non_null(d);
    while (readdir(d)) n++;
    closedir(d);
    return n - 2;
}

static void run_out_of_memory(const char *fixture, const char *type)
{
    lt_test_folder from = bare_copy(fixture), to = lt_test_folder_create();
    char out[256];
    lattice_quantize_options quantize_options = lattice_quantize_options_default();
    quantize_options.type = type;
    lt_test_path(&to, "q8", out);
    for (long n = 1;; n += LT_ROUNDS(7, 31)) {
        lt_test_allocator a = lt_test_allocator_failing_at(n);
        lattice_allocator mem = lt_test_allocator_hooks(&a);
        lattice_runtime_options options = lattice_runtime_options_default();
        options.allocator = &mem;
        options.n_threads = 1;
        lattice_runtime *runtime;
        lattice_error err;
        lattice_status status = lattice_runtime_create(&options, &runtime, &err);
        if (status == LATTICE_OK) {
            status = lattice_quantize(runtime, from.path, out, &quantize_options, NULL, &err);
            lattice_runtime_free(runtime);
        }
        assert_int_equal(lt_test_allocator_live(&a), 0);
        if (status == LATTICE_OK) break;
        assert_int_equal(status, LATTICE_ERR_NO_MEMORY);
        assert_int_equal(count_entries(to.path), 0);
    }
    assert_int_equal(count_entries(to.path), 1);
    lt_test_folder_remove(&from);
    lt_test_folder_remove(&to);
}

static void running_out_of_memory_anywhere_leaves_nothing(void **state)
{
    (void)state;
    run_out_of_memory(TEXT, "q8_0");
    run_out_of_memory(FIXTURE("bert-cls"), "int8");
}

typedef struct patience {
    int calls, most;
    uint64_t done, total;
} patience;

static bool lose_patience(void *user, uint64_t done, uint64_t total)
{
    patience *p = user;
    assert_true(done > p->done && done <= total);
    p->done = done;
    p->total = total;
    return ++p->calls < p->most;
}

static void progress_counts_to_the_end_and_can_cancel(void **state)
{
    (void)state;
    lt_test_folder to = lt_test_folder_create();
    char out[256];
    lattice_runtime *runtime;
    lattice_error err;
    assert_ok(lattice_runtime_create(NULL, &runtime, NULL));
    patience p = { .most = 20 };
    lattice_quantize_options options = lattice_quantize_options_default();
    options.progress = lose_patience;
    options.progress_user = &p;
    lt_test_path(&to, "q8", out);
    assert_int_equal(lattice_quantize(runtime, TEXT, out, &options, NULL, &err), LATTICE_ERR_CANCELLED);
    assert_int_equal(count_entries(to.path), 0);
    p = (patience){ .most = 1 << 30 };
    lattice_quantize_report report;
    assert_ok_err(lattice_quantize(runtime, TEXT, out, &options, &report, &err), &err);
    assert_true(p.done == p.total && p.total == report.bytes_before);
    assert_true(report.n_quantized > 0 && report.n_kept > 0 && report.n_left_out == 0);
    lattice_runtime_free(runtime);
    lt_test_folder_remove(&to);
}

/* Logits of a prompt alone, in a batch, with one thread and with three: the same bits. */
static void a_quantised_model_gives_the_same_bits_in_any_company(void **state)
{
    (void)state;
    enum { N = 5, LONGEST = 90 };
    lt_test_folder to = lt_test_folder_create();
    char out[256];
    lt_test_path(&to, "q8", out);
    uint32_t ids[N][LONGEST];
    lattice_ids inputs[N];
    const size_t lengths[N] = { 1, 90, 7, 2, 33 };
    for (size_t i = 0; i < N; i++) {
        for (size_t j = 0; j < lengths[i]; j++) ids[i][j] = (uint32_t)((i * 131 + j * 71) % 1800);
        inputs[i] = (lattice_ids){ ids[i], lengths[i] };
    }
    float *first = NULL;
    size_t vocab = 0;
    for (int threads = 1; threads <= 3; threads += 2) {
        lattice_runtime_options options = lattice_runtime_options_default();
        options.n_threads = threads;
        lattice_runtime *runtime;
        lattice_model *model;
        lattice_error err;
        assert_ok(lattice_runtime_create(&options, &runtime, NULL));
        if (!first) assert_ok_err(lattice_quantize(runtime, TEXT, out, NULL, NULL, &err), &err);
        assert_ok_err(lattice_model_open(runtime, out, NULL, &model, &err), &err);
        lattice_model_info info;
        lattice_model_get_info(model, &info);
        assert_string_equal(info.compute, "int8");
        vocab = info.vocab_size;
        float *all = malloc(N * vocab * sizeof *all), *one = malloc(vocab * sizeof *one);
        assert_ok_err(lattice_logits(model, inputs, N, all, NULL, &err), &err);
        for (size_t i = 0; i < N; i++) {
            assert_ok_err(lattice_logits(model, &inputs[i], 1, one, NULL, &err), &err);
            assert_memory_equal(one, all + i * vocab, vocab * sizeof *one);
        }
        if (first)
            assert_memory_equal(first, all, N * vocab * sizeof *all);
        else
            first = all;
        if (first != all) free(all);
        free(one);
        lattice_model_close(model);
        lattice_runtime_free(runtime);
    }
    free(first);
    lt_test_folder_remove(&to);
}

/* Vectors from int8 by rows as it is stored, smoothed: alone, in a batch, with one thread and with three. */
static void an_encoder_by_rows_gives_the_same_bits_in_any_company(void **state)
{
    (void)state;
    enum { N = 5, LONGEST = 60 };
    lt_test_folder to = lt_test_folder_create();
    char out[256];
    lt_test_path(&to, "int8", out);
    uint32_t ids[N][LONGEST];
    lattice_ids inputs[N];
    const size_t lengths[N] = { 2, 60, 7, 1, 33 };
    for (size_t i = 0; i < N; i++) {
        for (size_t j = 0; j < lengths[i]; j++) ids[i][j] = (uint32_t)((i * 31 + j * 7) % 100);
        inputs[i] = (lattice_ids){ ids[i], lengths[i] };
    }
    float *first = NULL;
    for (int threads = 1; threads <= 3; threads += 2) {
        lattice_runtime_options options = lattice_runtime_options_default();
        lattice_quantize_options quantize_options = lattice_quantize_options_default();
        lattice_runtime *runtime;
        lattice_model *model;
        lattice_model_info info;
        lattice_error err;
        options.n_threads = threads;
        quantize_options.type = "int8";
        assert_ok(lattice_runtime_create(&options, &runtime, NULL));
        if (!first) assert_ok_err(lattice_quantize(runtime, FIXTURE("bert-cls"), out, &quantize_options, NULL, &err), &err);
        assert_ok_err(lattice_model_open(runtime, out, NULL, &model, &err), &err);
        lattice_model_get_info(model, &info);
        assert_string_equal(info.compute, "int8");
        float *all = malloc(N * info.embedding_dim * sizeof *all), *one = malloc(info.embedding_dim * sizeof *one);
        assert_ok_err(lattice_embed_ids(model, inputs, N, NULL, all, NULL, &err), &err);
        for (size_t i = 0; i < N; i++) {
            assert_ok_err(lattice_embed_ids(model, &inputs[i], 1, NULL, one, NULL, &err), &err);
            assert_memory_equal(one, all + i * info.embedding_dim, info.embedding_dim * sizeof *one);
        }
        if (first)
            assert_memory_equal(first, all, N * info.embedding_dim * sizeof *all);
        else
            first = all;
        if (first != all) free(all);
        free(one);
        lattice_model_close(model);
        lattice_runtime_free(runtime);
    }
    free(first);
    lt_test_folder_remove(&to);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(running_out_of_memory_anywhere_leaves_nothing),
        cmocka_unit_test(progress_counts_to_the_end_and_can_cancel),
        cmocka_unit_test(a_quantised_model_gives_the_same_bits_in_any_company),
        cmocka_unit_test(an_encoder_by_rows_gives_the_same_bits_in_any_company),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
