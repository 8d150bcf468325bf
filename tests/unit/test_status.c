/* Status texts, error messages, and the runtime that carries allocator and log. */
#include "unit/support.h"

#include "base/runtime.h"

static void every_status_has_its_text(void **state)
{
    (void)state;
    assert_int_equal(LATTICE_OK, 0);
    assert_string_equal(lattice_status_text(LATTICE_OK), "ok");
    assert_string_equal(lattice_status_text(LATTICE_ERR_NO_MEMORY), "out of memory");
    assert_string_equal(lattice_status_text(LATTICE_ERR_INTERNAL), "internal error");
    assert_string_equal(lattice_status_text((lattice_status)99), "unknown status");
    assert_string_equal(lattice_version(), LATTICE_VERSION);
}

static void fail_fills_the_error_and_returns_its_code(void **state)
{
    (void)state;
    lattice_error err;
    assert_int_equal(lt_fail(&err, LATTICE_ERR_FORMAT, "%s: byte %d", "model.safetensors", 7), LATTICE_ERR_FORMAT);
    assert_int_equal(err.code, LATTICE_ERR_FORMAT);
    assert_string_equal(err.message, "model.safetensors: byte 7");
    assert_int_equal(lt_fail(NULL, LATTICE_ERR_IO, "nobody listens"), LATTICE_ERR_IO);
    assert_int_equal(lt_no_memory(&err, 4096, "the plan"), LATTICE_ERR_NO_MEMORY);
    assert_string_equal(err.message, "out of memory (4096 bytes for the plan)");
}

static void messages_show_control_characters_and_bad_utf8_as_question_marks(void **state)
{
    (void)state;
    lattice_error err;
    lt_fail(&err, LATTICE_ERR_FORMAT, "%s",
            "a\nb\x1b[1m\x7f|\xe6\xad|\xed\xa0\x80|\xc2\x85|\xe2\x80\xa8|\xc3\xa9\xf0\x9f\x98\x80");
    assert_string_equal(err.message, "a?b?[1m?|?|???|?|?|\xc3\xa9\xf0\x9f\x98\x80");
    lt_fail(&err, LATTICE_ERR_FORMAT, "a real one: %s", "\xef\xbf\xbd");
    assert_string_equal(err.message, "a real one: \xef\xbf\xbd");
}

static void long_messages_are_cut_between_code_points(void **state)
{
    (void)state;
    lattice_error err;
    char text[1200];
    for (size_t shift = 0; shift < 4; shift++) {
        memset(text, 'x', shift);
        for (size_t i = shift; i + 3 < sizeof text; i += 3) memcpy(text + i, "\xe6\xad\xa3", 4);
        lt_fail(&err, LATTICE_ERR_FORMAT, "%s", text);
        size_t len = strlen(err.message);
        assert_in_range(len, sizeof err.message - 4, sizeof err.message - 1);
        assert_int_equal((len - shift) % 3, 0);
        assert_memory_equal(err.message, text, len);
    }
}

static void a_message_may_quote_the_message_before(void **state)
{
    (void)state;
    lattice_error err;
    lt_fail(&err, LATTICE_ERR_IO, "no space");
    lt_fail(&err, LATTICE_ERR_IO, "cache: %s", err.message);
    assert_string_equal(err.message, "cache: no space");
}

typedef struct log_lines {
    int n;
    lattice_log_level level;
    char last[2048];
} log_lines;

static void keep_line(void *user, lattice_log_level level, const char *message)
{
    log_lines *lines = user;
    lines->n++;
    lines->level = level;
    snprintf(lines->last, sizeof lines->last, "%s", message);
}

static void the_log_passes_levels_up_to_the_chosen_one(void **state)
{
    (void)state;
    lattice_error err;
    log_lines lines = { 0 };
    lattice_runtime_options options = lattice_runtime_options_default();
    options.n_threads = 1;
    options.log = keep_line;
    options.log_user = &lines;
    lattice_runtime *runtime;
    assert_ok_err(lattice_runtime_create(&options, &runtime, &err), &err);
    lt_log(runtime, LATTICE_LOG_INFO, "not shown");
    assert_int_equal(lines.n, 0);
    lt_log(runtime, LATTICE_LOG_WARNING, "layer %d\n", 3);
    assert_int_equal(lines.n, 1);
    assert_int_equal(lines.level, LATTICE_LOG_WARNING);
    assert_string_equal(lines.last, "layer 3?");
    char large[3000];
    memset(large, 'y', sizeof large - 1);
    large[sizeof large - 1] = '\0';
    lt_log(runtime, LATTICE_LOG_ERROR, "%s", large);
    assert_int_equal(strlen(lines.last), 1023);
    lattice_runtime_free(runtime);
}

static void a_runtime_refuses_bad_options(void **state)
{
    (void)state;
    lattice_error err;
    lattice_runtime *runtime = (lattice_runtime *)&err;
    lattice_runtime_options options = lattice_runtime_options_default();
    options.n_threads = -1;
    assert_int_equal(lattice_runtime_create(&options, &runtime, &err), LATTICE_ERR_INVALID_ARGUMENT);
    assert_null(runtime);
    assert_string_equal(err.message, "n_threads is -1: expected 0 (one per CPU) to 4096");
    lattice_allocator half = lt_malloc_allocator;
    half.resize = NULL;
    options.n_threads = 1;
    options.allocator = &half;
    assert_int_equal(lattice_runtime_create(&options, &runtime, &err), LATTICE_ERR_INVALID_ARGUMENT);
    assert_int_equal(lattice_runtime_create(NULL, NULL, &err), LATTICE_ERR_INVALID_ARGUMENT);
    lattice_runtime_free(NULL);
}

static void a_runtime_has_a_thread_for_each_available_cpu_by_default(void **state)
{
    (void)state;
    lattice_error err;
    lattice_runtime *runtime;
    assert_ok_err(lattice_runtime_create(NULL, &runtime, &err), &err);
    assert_int_equal(lattice_runtime_threads(runtime), lt_available_cpus());
    lattice_runtime_free(runtime);
}

static void a_runtime_survives_every_failing_allocation(void **state)
{
    (void)state;
    lattice_status status = LATTICE_ERR_NO_MEMORY;
    for (long n = 1; status != LATTICE_OK; n++) {
        lattice_error err;
        lt_test_allocator a = lt_test_allocator_failing_at(n);
        lattice_allocator mem = lt_test_allocator_hooks(&a);
        lattice_runtime_options options = lattice_runtime_options_default();
        options.n_threads = 2;
        options.allocator = &mem;
        options.cache_dir = "/nowhere";
        lattice_runtime *runtime;
        status = lattice_runtime_create(&options, &runtime, &err);
        if (status == LATTICE_OK) {
            assert_true(n > 3);
            assert_string_equal(runtime->cache_dir, "/nowhere");
            lattice_runtime_free(runtime);
        } else {
            assert_int_equal(status, LATTICE_ERR_NO_MEMORY);
            assert_null(runtime);
        }
        assert_int_equal(lt_test_allocator_live(&a), 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_status_has_its_text),
        cmocka_unit_test(fail_fills_the_error_and_returns_its_code),
        cmocka_unit_test(messages_show_control_characters_and_bad_utf8_as_question_marks),
        cmocka_unit_test(long_messages_are_cut_between_code_points),
        cmocka_unit_test(a_message_may_quote_the_message_before),
        cmocka_unit_test(the_log_passes_levels_up_to_the_chosen_one),
        cmocka_unit_test(a_runtime_refuses_bad_options),
        cmocka_unit_test(a_runtime_has_a_thread_for_each_available_cpu_by_default),
        cmocka_unit_test(a_runtime_survives_every_failing_allocation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
