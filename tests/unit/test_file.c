/* Files, paths, atomic replacement. */
#include "unit/support.h"

#include <dirent.h>

#include "base/file.h"

static int make_folder(void **state)
{
    lt_test_folder *folder = malloc(sizeof *folder);
    *folder = lt_test_folder_create();
    *state = folder;
    return 0;
}

static int remove_folder(void **state)
{
    lt_test_folder_remove(*state);
    free(*state);
    return 0;
}

static void a_file_reads_the_same_mapped_and_in_memory(void **state)
{
    lattice_error err;
    char path[256];
    lt_test_path(*state, "data", path);
    size_t size = 3 * 4096 + 17;
    char *data = malloc(size);
    for (size_t i = 0; i < size; i++) data[i] = (char)(i * 31 % 251);
    lt_test_write_file(path, data, size);
    for (int use_mmap = 0; use_mmap < 2; use_mmap++) {
        lt_file file;
        assert_ok_err(lt_file_open(&lt_malloc_allocator, path, use_mmap, &file, &err), &err);
        assert_int_equal(file.size, size);
        assert_int_equal(file.mapped, use_mmap);
        assert_memory_equal(file.data, data, size);
        lt_file_forget(&file, 100, size);
        lt_file_forget(&file, 0, SIZE_MAX);
        lt_file_forget(&file, size + 1, 1);
        assert_memory_equal(file.data, data, size);
        lt_file_close(&file);
        assert_int_equal(file.size, 0);
        lt_file_close(&file);
    }
    free(data);
}

static void an_empty_file_has_size_zero_and_data(void **state)
{
    lattice_error err;
    char path[256];
    lt_test_write_file(lt_test_path(*state, "empty", path), "", 0);
    for (int use_mmap = 0; use_mmap < 2; use_mmap++) {
        lt_file file;
        assert_ok_err(lt_file_open(&lt_malloc_allocator, path, use_mmap, &file, &err), &err);
        assert_int_equal(file.size, 0);
        assert_non_null(file.data);
        lt_file_close(&file);
    }
}

static void what_is_no_file_is_refused_by_name(void **state)
{
    const lt_test_folder *folder = *state;
    lattice_error err;
    lt_file file;
    char path[256], expected[512];
    lt_test_path(folder, "absent", path);
    assert_int_equal(lt_file_open(&lt_malloc_allocator, path, true, &file, &err), LATTICE_ERR_NOT_FOUND);
    snprintf(expected, sizeof expected, "%s: cannot open: No such file or directory", path);
    assert_string_equal(err.message, expected);
    assert_int_equal(lt_file_open(&lt_malloc_allocator, folder->path, true, &file, &err), LATTICE_ERR_IO);
    snprintf(expected, sizeof expected, "%s: is a folder, expected a file", folder->path);
    assert_string_equal(err.message, expected);
    assert_int_equal(lt_file_open(&lt_malloc_allocator, "/dev/zero", true, &file, &err), LATTICE_ERR_IO);
    assert_string_equal(err.message, "/dev/zero: is not a regular file");
    /* A named pipe without a writer must not block. */
    assert_int_equal(mkfifo(lt_test_path(folder, "pipe", path), 0600), 0);
    assert_int_equal(lt_file_open(&lt_malloc_allocator, path, false, &file, &err), LATTICE_ERR_IO);
    lt_file_close(&file);
}

static void reading_into_memory_without_memory_is_an_error(void **state)
{
    lattice_error err;
    char path[256];
    lt_test_write_file(lt_test_path(*state, "data", path), "abc", 3);
    lt_test_allocator a = lt_test_allocator_failing_at(1);
    lattice_allocator mem = lt_test_allocator_hooks(&a);
    lt_file file;
    assert_int_equal(lt_file_open(&mem, path, false, &file, &err), LATTICE_ERR_NO_MEMORY);
    assert_int_equal(file.size, 0);
}

static void paths_join_with_one_slash(void **state)
{
    (void)state;
    lt_buf buf;
    lt_buf_init(&buf, &lt_malloc_allocator);
    assert_string_equal(lt_path_join(&buf, "models", "config.json"), "models/config.json");
    assert_string_equal(lt_path_join(&buf, "models/", "config.json"), "models/config.json");
    assert_string_equal(lt_path_join(&buf, "/", "x"), "/x");
    assert_string_equal(lt_path_join(&buf, "", "x"), "x");
    lt_buf_free(&buf);
    lt_test_allocator a = lt_test_allocator_failing_at(1);
    lattice_allocator mem = lt_test_allocator_hooks(&a);
    lt_buf_init(&buf, &mem);
    assert_null(lt_path_join(&buf, "a", "b"));
    lt_buf_free(&buf);
}

static void plain_names_stay_inside_their_folder(void **state)
{
    (void)state;
    assert_true(lt_path_is_plain_name(LT_STR("model-00001-of-00002.safetensors")));
    assert_true(lt_path_is_plain_name(LT_STR("...")));
    assert_true(lt_path_is_plain_name(LT_STR(".hidden")));
    assert_false(lt_path_is_plain_name(LT_STR("")));
    assert_false(lt_path_is_plain_name(LT_STR(".")));
    assert_false(lt_path_is_plain_name(LT_STR("..")));
    assert_false(lt_path_is_plain_name(LT_STR("../x")));
    assert_false(lt_path_is_plain_name(LT_STR("/etc/passwd")));
    assert_false(lt_path_is_plain_name(LT_STR("a/")));
    assert_false(lt_path_is_plain_name(LT_STR("a\0b")));
}

static void folders_are_made_with_their_parents(void **state)
{
    lattice_error err;
    char path[256];
    lt_test_path(*state, "a/b//c/", path);
    assert_false(lt_path_exists(path));
    assert_ok_err(lt_make_folders(path, &err), &err);
    assert_true(lt_path_is_folder(path));
    assert_ok_err(lt_make_folders(path, &err), &err);
    assert_ok_err(lt_make_folders("/", &err), &err);
    lt_test_write_file(lt_test_path(*state, "file", path), "", 0);
    assert_true(lt_path_exists(path));
    assert_false(lt_path_is_folder(path));
    lt_test_path(*state, "file/below", path);
    assert_int_not_equal(lt_make_folders(path, &err), LATTICE_OK);
    assert_non_null(strstr(err.message, "file: cannot create the folder"));
    assert_int_equal(lt_make_folders("", &err), LATTICE_ERR_INVALID_ARGUMENT);
    char large[5000];
    memset(large, 'x', sizeof large - 1);
    large[sizeof large - 1] = '\0';
    assert_int_equal(lt_make_folders(large, &err), LATTICE_ERR_IO);
}

static int entries(const char *path)
{
    int n = 0;
    DIR *dir = opendir(path);
    while (readdir(dir)) n++;
    closedir(dir);
    return n - 2;
}

static void assert_file(const char *path, const char *expected)
{
    size_t size;
    char *data = lt_test_read_file(path, &size);
    assert_string_equal(data, expected);
    assert_int_equal(size, strlen(expected));
    free(data);
}

static void a_replaced_file_is_the_old_one_until_the_commit(void **state)
{
    const lt_test_folder *folder = *state;
    lattice_error err;
    char path[256];
    lt_test_write_file(lt_test_path(folder, "vectors", path), "old", 3);
    chmod(path, 0640);
    lt_replace replace;
    assert_ok_err(lt_replace_begin(&lt_malloc_allocator, path, &replace, &err), &err);
    assert_ok_err(lt_replace_write(&replace, "new ", 4, &err), &err);
    assert_ok_err(lt_replace_write(&replace, "text", 4, &err), &err);
    assert_file(path, "old");
    assert_int_equal(entries(folder->path), 2);
    assert_ok_err(lt_replace_commit(&replace, &err), &err);
    assert_file(path, "new text");
    assert_int_equal(entries(folder->path), 1);
    struct stat info;
    assert_int_equal(stat(path, &info), 0);
    assert_int_equal(info.st_mode & 0777, 0640);
    lt_replace_abort(&replace); /* after a commit: nothing */
    assert_file(path, "new text");
}

static void an_aborted_replacement_leaves_nothing(void **state)
{
    const lt_test_folder *folder = *state;
    lattice_error err;
    char path[256];
    lt_test_path(folder, "fresh", path);
    lt_replace replace;
    assert_ok_err(lt_replace_begin(&lt_malloc_allocator, path, &replace, &err), &err);
    assert_ok_err(lt_replace_write(&replace, "x", 1, &err), &err);
    lt_replace_abort(&replace);
    assert_int_equal(entries(folder->path), 0);
}

static void a_failed_commit_removes_the_temporary_file(void **state)
{
    const lt_test_folder *folder = *state;
    lattice_error err;
    char path[256], inner[256];
    lt_test_path(folder, "target", path);
    lt_replace replace;
    assert_ok_err(lt_replace_begin(&lt_malloc_allocator, path, &replace, &err), &err);
    /* A folder with something in it appears where the file should go: the rename fails. */
    assert_int_equal(mkdir(path, 0700), 0);
    lt_test_write_file(lt_test_path(folder, "target/x", inner), "", 0);
    assert_int_equal(lt_replace_commit(&replace, &err), LATTICE_ERR_IO);
    assert_int_equal(entries(folder->path), 1);
}

static void replacing_what_cannot_be_replaced_is_refused_at_once(void **state)
{
    const lt_test_folder *folder = *state;
    lattice_error err;
    char path[256];
    lt_replace replace;
    assert_int_equal(lt_replace_begin(&lt_malloc_allocator, folder->path, &replace, &err), LATTICE_ERR_IO);
    lt_replace_abort(&replace);
    lt_test_path(folder, "absent/file", path);
    assert_int_equal(lt_replace_begin(&lt_malloc_allocator, path, &replace, &err), LATTICE_ERR_NOT_FOUND);
    lt_replace_abort(&replace);
    lt_test_path(folder, "file", path);
    for (long n = 1; n <= 2; n++) {
        lt_test_allocator a = lt_test_allocator_failing_at(n);
        lattice_allocator mem = lt_test_allocator_hooks(&a);
        assert_int_equal(lt_replace_begin(&mem, path, &replace, &err), LATTICE_ERR_NO_MEMORY);
        assert_int_equal(lt_test_allocator_live(&a), 0);
        assert_int_equal(entries(folder->path), 0);
    }
}

#define WITH_FOLDER(test) cmocka_unit_test_setup_teardown(test, make_folder, remove_folder)

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH_FOLDER(a_file_reads_the_same_mapped_and_in_memory),
        WITH_FOLDER(an_empty_file_has_size_zero_and_data),
        WITH_FOLDER(what_is_no_file_is_refused_by_name),
        WITH_FOLDER(reading_into_memory_without_memory_is_an_error),
        cmocka_unit_test(paths_join_with_one_slash),
        cmocka_unit_test(plain_names_stay_inside_their_folder),
        WITH_FOLDER(folders_are_made_with_their_parents),
        WITH_FOLDER(a_replaced_file_is_the_old_one_until_the_commit),
        WITH_FOLDER(an_aborted_replacement_leaves_nothing),
        WITH_FOLDER(a_failed_commit_removes_the_temporary_file),
        WITH_FOLDER(replacing_what_cannot_be_replaced_is_refused_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
