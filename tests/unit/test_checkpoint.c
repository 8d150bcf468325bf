/* Checkpoints: every fixture opens, shards are opened late, and what is wrong with a folder is said before any work. */
#include "support.h"

#include <pthread.h>

#include "base/memory.h"
#include "format/checkpoint.h"

static const lattice_allocator *const mem = &lt_malloc_allocator;

/* ------------------------------------------------------------------ building folders */

/* Writes a safetensors file of `header` and data_size bytes 0, 1, 2, … */
static void write_shard(const lt_test_folder *folder, const char *name, const char *header, size_t data_size)
{
    char path[256];
    size_t length = strlen(header);
    uint8_t *file = malloc(8 + length + data_size);
    for (int i = 0; i < 8; i++) file[i] = (uint8_t)(length >> (8 * i));
    memcpy(file + 8, header, length);
    for (size_t i = 0; i < data_size; i++) file[8 + length + i] = (uint8_t)i;
    lt_test_write_file(lt_test_path(folder, name, path), file, 8 + length + data_size);
    free(file);
}

static void write_text(const lt_test_folder *folder, const char *name, const char *text)
{
    char path[256];
    lt_test_write_file(lt_test_path(folder, name, path), text, strlen(text));
}

#define INDEX "model.safetensors.index.json"
#define A                                                                                                                        \
    "{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},\"both\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[" \
    "2,3]}}"
#define B                                                                                                                        \
    "{\"both\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},\"b\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[" \
    "2,3]}}"

/* Opening `folder` must fail with `code` and "folder" + message. */
static void assert_open_fails(const lt_test_folder *folder, lattice_status code, const char *message)
{
    char expected[600];
    lattice_error err = { 0 };
    lt_checkpoint *checkpoint;
    assert_int_equal(lt_checkpoint_open(mem, folder->path, true, &checkpoint, &err), code);
    assert_null(checkpoint);
    snprintf(expected, sizeof expected, "%s%s", folder->path, message);
    assert_string_equal(err.message, expected);
}

/* ------------------------------------------------------------------ fixtures */

/* Counts and shapes as safetensors for Python lists them. */
static const struct {
    const char *folder;
    size_t tensors, shards;
    const char *tensor;
    lt_dtype dtype;
    int rank;
    size_t shape[3];
} fixtures[] = {
    // clang-format off
    { "bert-cls", 55, 1, "encoder.layer.2.intermediate.dense.weight", LT_F32, 2, { 96, 48 } },
    { "bert-mean-f16", 53, 1, "encoder.layer.2.output.LayerNorm.weight", LT_F16, 1, { 48 } },
    { "cross-encoder-1", 57, 1, "bert.pooler.dense.weight", LT_F32, 2, { 48, 48 } },
    { "cross-encoder-3", 57, 1, "bert.pooler.dense.weight", LT_F32, 2, { 48, 48 } },
    { "qwen3-embedding", 35, 1, "layers.2.self_attn.q_proj.weight", LT_F32, 2, { 128, 64 } },
    { "qwen3-embedding-hd80-sharded-bf16", 47, 5, "layers.0.self_attn.q_proj.weight", LT_BF16, 2, { 480, 64 } },
    { "qwen3-reranker", 35, 1, "model.layers.2.self_attn.q_proj.weight", LT_F32, 2, { 256, 64 } },
    { "qwen3.5-text", 55, 1, "model.layers.0.linear_attn.conv1d.weight", LT_F32, 3, { 192, 1, 4 } },
    { "qwen3.5-vl-layout-bf16", 77, 5, "lm_head.weight", LT_BF16, 2, { 1807, 64 } },
    { "roberta-max", 37, 1, "encoder.layer.1.output.LayerNorm.weight", LT_F32, 1, { 40 } },
    { "xlmr-cross-encoder", 57, 1, "roberta.encoder.layer.2.output.LayerNorm.weight", LT_F32, 1, { 48 } },
    { "xlmr-mean", 53, 1, "encoder.layer.2.output.LayerNorm.weight", LT_F32, 1, { 48 } },
    // clang-format on
};

static void every_fixture_opens_with_its_tensors(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof fixtures / sizeof *fixtures; i++) {
        for (int use_mmap = 0; use_mmap < 2; use_mmap++) {
            char folder[300];
            lattice_error err = { 0 };
            lt_checkpoint *checkpoint;
            snprintf(folder, sizeof folder, LT_FIXTURES "/%s", fixtures[i].folder);
            assert_ok_err(lt_checkpoint_open(mem, folder, use_mmap, &checkpoint, &err), &err);
            assert_string_equal(lt_checkpoint_folder(checkpoint), folder);
            assert_int_equal(lt_checkpoint_count(checkpoint), fixtures[i].tensors);
            assert_int_equal(lt_checkpoint_shards(checkpoint), fixtures[i].shards);
            const lt_tensor *tensor = lt_checkpoint_find(checkpoint, lt_str_of(fixtures[i].tensor));
            assert_non_null(tensor);
            assert_int_equal(tensor->dtype, fixtures[i].dtype);
            assert_int_equal(tensor->rank, fixtures[i].rank);
            for (int d = 0; d < tensor->rank; d++) assert_int_equal(tensor->shape[d], fixtures[i].shape[d]);
            for (size_t t = 0; t < lt_checkpoint_count(checkpoint); t++) {
                const lt_tensor *each = lt_checkpoint_at(checkpoint, t);
                assert_ptr_equal(lt_checkpoint_find(checkpoint, each->name), each);
                const void *data;
                assert_ok_err(lt_checkpoint_data(checkpoint, each, &data, &err), &err);
                lt_checkpoint_forget(checkpoint, each);
                uint8_t sum = 0; /* every byte can be read, also after it was said not to be needed */
                for (size_t b = 0; b < each->size; b++) sum = (uint8_t)(sum + ((const uint8_t *)data)[b]);
                (void)sum;
            }
            lt_checkpoint_close(checkpoint);
        }
    }
}

/* First and last values of the word embeddings, as safetensors for Python reads them. */
static void data_is_that_of_the_tensor(void **state)
{
    (void)state;
    for (int use_mmap = 0; use_mmap < 2; use_mmap++) {
        lattice_error err = { 0 };
        lt_checkpoint *checkpoint;
        assert_ok_err(lt_checkpoint_open(mem, FIXTURE("bert-cls"), use_mmap, &checkpoint, &err), &err);
        const lt_tensor *tensor = lt_checkpoint_find(checkpoint, LT_STR("embeddings.word_embeddings.weight"));
        assert_non_null(tensor);
        const void *data;
        assert_ok_err(lt_checkpoint_data(checkpoint, tensor, &data, &err), &err);
        uint32_t first, last;
        memcpy(&first, data, 4);
        memcpy(&last, (const char *)data + tensor->size - 4, 4);
        assert_int_equal(first, 0xbdf26f3b);
        assert_int_equal(last, 0x3e61bf00);
        lt_checkpoint_close(checkpoint);
    }
}

/* ------------------------------------------------------------------ shards */

static lt_test_folder sharded(void)
{
    lt_test_folder folder = lt_test_folder_create();
    write_shard(&folder, "a.safetensors", A, 3);
    write_shard(&folder, "b.safetensors", B, 3);
    write_text(&folder, INDEX,
               "{\"metadata\":{\"total_size\":6},\"weight_map\":{\"b\":\"b.safetensors\",\"both\":\"b.safetensors\",\"a\":\"a."
               "safetensors\"}}");
    return folder;
}

static void the_index_decides_where_a_tensor_is_and_what_belongs(void **state)
{
    (void)state;
    lt_test_folder folder = sharded();
    /* A stray single file beside the index is not even looked at. */
    write_text(&folder, "model.safetensors", "not a model");
    lattice_error err = { 0 };
    lt_checkpoint *checkpoint;
    assert_ok_err(lt_checkpoint_open(mem, folder.path, true, &checkpoint, &err), &err);
    assert_int_equal(lt_checkpoint_count(checkpoint), 3);
    const lt_tensor *both = lt_checkpoint_find(checkpoint, LT_STR("both"));
    assert_non_null(both);
    assert_int_equal(both->size, 2);
    assert_string_equal(lt_checkpoint_shard_name(checkpoint, both->shard), "b.safetensors");
    const void *data;
    assert_ok_err(lt_checkpoint_data(checkpoint, both, &data, &err), &err);
    assert_memory_equal(data, "\0\1", 2);
    assert_ok_err(lt_checkpoint_data(checkpoint, lt_checkpoint_find(checkpoint, LT_STR("a")), &data, &err), &err);
    assert_memory_equal(data, "\0\1", 2);
    lt_checkpoint_close(checkpoint);

    /* A tensor that the index leaves out is not part of the checkpoint. */
    write_text(&folder, INDEX, "{\"weight_map\":{\"b\":\"b.safetensors\"}}");
    assert_ok_err(lt_checkpoint_open(mem, folder.path, true, &checkpoint, &err), &err);
    assert_int_equal(lt_checkpoint_count(checkpoint), 1);
    assert_int_equal(lt_checkpoint_shards(checkpoint), 1);
    assert_null(lt_checkpoint_find(checkpoint, LT_STR("both")));
    lt_checkpoint_close(checkpoint);
    lt_test_folder_remove(&folder);
}

/* A shard that is taken away after opening is missed only when one of its tensors is asked for. */
static void a_shard_is_opened_when_a_tensor_of_it_is_first_asked_for(void **state)
{
    (void)state;
    for (int use_mmap = 0; use_mmap < 2; use_mmap++) {
        lt_test_folder folder = sharded();
        char path[256];
        lattice_error err = { 0 };
        lt_checkpoint *checkpoint;
        const void *data;
        assert_ok_err(lt_checkpoint_open(mem, folder.path, use_mmap, &checkpoint, &err), &err);
        unlink(lt_test_path(&folder, "a.safetensors", path));
        assert_ok_err(lt_checkpoint_data(checkpoint, lt_checkpoint_find(checkpoint, LT_STR("b")), &data, &err), &err);
        const lt_tensor *a = lt_checkpoint_find(checkpoint, LT_STR("a"));
        assert_int_equal(lt_checkpoint_data(checkpoint, a, &data, &err), LATTICE_ERR_NOT_FOUND);
        assert_non_null(strstr(err.message, "a.safetensors"));
        /* Another file in its place is not the one whose header was checked. */
        write_shard(&folder, "a.safetensors", "{}", 0);
        assert_int_equal(lt_checkpoint_data(checkpoint, a, &data, &err), LATTICE_ERR_IO);
        assert_non_null(strstr(err.message, "a.safetensors: the file has changed since the model was opened"));
        lt_checkpoint_close(checkpoint);
        lt_test_folder_remove(&folder);
    }
}

typedef struct asking {
    lt_checkpoint *checkpoint;
    pthread_t thread;
    const void *data[64];
    lattice_status status;
} asking;

static void *ask_for_all(void *arg)
{
    asking *ask = arg;
    for (size_t i = 0; i < lt_checkpoint_count(ask->checkpoint) && i < 64; i++) {
        lattice_status status = lt_checkpoint_data(ask->checkpoint, lt_checkpoint_at(ask->checkpoint, i), &ask->data[i], NULL);
        if (status != LATTICE_OK) ask->status = status;
    }
    return NULL;
}

static void threads_asking_at_once_see_one_mapping(void **state)
{
    (void)state;
    enum { N = 8 };
    static asking asks[N];
    lattice_error err = { 0 };
    lt_checkpoint *checkpoint;
    assert_ok_err(lt_checkpoint_open(mem, FIXTURE("qwen3-embedding-hd80-sharded-bf16"), true, &checkpoint, &err), &err);
    for (int i = 0; i < N; i++) {
        asks[i] = (asking){ .checkpoint = checkpoint };
        assert_int_equal(pthread_create(&asks[i].thread, NULL, ask_for_all, &asks[i]), 0);
    }
    for (int i = 0; i < N; i++) {
        pthread_join(asks[i].thread, NULL);
        assert_ok(asks[i].status);
        assert_memory_equal(asks[i].data, asks[0].data, sizeof asks[0].data);
    }
    lt_checkpoint_close(checkpoint);
}

/* ------------------------------------------------------------------ faults */

static void a_missing_shard_is_named_before_any_header_is_read(void **state)
{
    (void)state;
    lt_test_folder folder = sharded();
    char path[256];
    write_text(&folder, "a.safetensors", "broken");
    unlink(lt_test_path(&folder, "b.safetensors", path));
    assert_open_fails(&folder, LATTICE_ERR_NOT_FOUND, "/b.safetensors: no such file, but " INDEX " names it");
    lt_test_folder_remove(&folder);
}

static void a_tensor_must_be_in_the_shard_that_the_index_names(void **state)
{
    (void)state;
    lt_test_folder folder = sharded();
    write_text(&folder, INDEX, "{\"weight_map\":{\"b\":\"a.safetensors\"}}");
    assert_open_fails(&folder, LATTICE_ERR_FORMAT, "/" INDEX ": tensor 'b' is not in 'a.safetensors'");
    lt_test_folder_remove(&folder);
}

static void shard_names_must_be_plain_file_names(void **state)
{
    (void)state;
    static const char *const names[] = { "../a.safetensors", "/etc/passwd", "sub/a.safetensors", "..", ".", "" };
    lt_test_folder folder = sharded();
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char index[200], message[200];
        snprintf(index, sizeof index, "{\"weight_map\":{\"a\":\"%s\"}}", names[i]);
        snprintf(message, sizeof message, "/" INDEX ": tensor 'a' is said to be in '%s', which is not a plain file name",
                 names[i]);
        write_text(&folder, INDEX, index);
        assert_open_fails(&folder, LATTICE_ERR_FORMAT, message);
    }
    lt_test_folder_remove(&folder);
}

static void an_index_without_a_map_is_refused(void **state)
{
    (void)state;
    lt_test_folder folder = sharded();
    write_text(&folder, INDEX, "{\"metadata\":{}}");
    assert_open_fails(&folder, LATTICE_ERR_FORMAT, "/" INDEX ": no weight_map");
    write_text(&folder, INDEX, "{\"weight_map\":{}}");
    assert_open_fails(&folder, LATTICE_ERR_FORMAT, "/" INDEX ": weight_map is empty");
    lt_test_folder_remove(&folder);
}

static void a_folder_without_weights_says_so(void **state)
{
    (void)state;
    lt_test_folder folder = lt_test_folder_create();
    assert_open_fails(&folder, LATTICE_ERR_NOT_FOUND, ": neither model.safetensors nor " INDEX);
    write_text(&folder, "pytorch_model.bin", "x");
    assert_open_fails(&folder, LATTICE_ERR_NOT_FOUND,
                      ": neither model.safetensors nor " INDEX " (pytorch_model.bin is not read: convert it to safetensors)");
    lt_test_folder_remove(&folder);
    assert_open_fails(&folder, LATTICE_ERR_NOT_FOUND, ": no such folder");
}

static void a_bad_file_is_named_with_its_tensor(void **state)
{
    (void)state;
    lt_test_folder folder = lt_test_folder_create();
    write_shard(&folder, "model.safetensors", A, 2);
    assert_open_fails(&folder, LATTICE_ERR_FORMAT, "/model.safetensors: tensor 'both': ends at data byte 3, past the file's 2");
    write_text(&folder, "model.safetensors", "");
    assert_open_fails(&folder, LATTICE_ERR_FORMAT, "/model.safetensors: 0 bytes are too few for a safetensors file");
    write_text(&folder, "model.safetensors", "12345678");
    assert_open_fails(&folder, LATTICE_ERR_FORMAT,
                      "/model.safetensors: the header's length 4050765991979987505 goes past the file's 8 bytes");
    lt_test_folder_remove(&folder);
    folder = lt_test_folder_create();
    char path[256];
    assert_int_equal(mkdir(lt_test_path(&folder, "model.safetensors", path), 0700), 0);
    assert_open_fails(&folder, LATTICE_ERR_IO, "/model.safetensors: not a file");
    lt_test_folder_remove(&folder);
}

static void every_failed_allocation_is_reported_without_a_leak(void **state)
{
    (void)state;
    lt_test_folder folder = sharded();
    const char *folders[] = { folder.path, FIXTURE("bert-cls") };
    for (size_t f = 0; f < 2; f++) {
        for (long n = 1;; n++) {
            lt_test_allocator a = lt_test_allocator_failing_at(n);
            lattice_allocator hooks = lt_test_allocator_hooks(&a);
            lt_checkpoint *checkpoint;
            const void *data;
            lattice_status status = lt_checkpoint_open(&hooks, folders[f], false, &checkpoint, NULL);
            if (status == LATTICE_OK) {
                status = lt_checkpoint_data(checkpoint, lt_checkpoint_at(checkpoint, 0), &data, NULL);
                lt_checkpoint_close(checkpoint);
            } else {
                assert_null(checkpoint);
            }
            assert_int_equal(lt_test_allocator_live(&a), 0);
            if (status == LATTICE_OK) break;
            assert_int_equal(status, LATTICE_ERR_NO_MEMORY);
        }
    }
    lt_test_folder_remove(&folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_fixture_opens_with_its_tensors),
        cmocka_unit_test(data_is_that_of_the_tensor),
        cmocka_unit_test(the_index_decides_where_a_tensor_is_and_what_belongs),
        cmocka_unit_test(a_shard_is_opened_when_a_tensor_of_it_is_first_asked_for),
        cmocka_unit_test(threads_asking_at_once_see_one_mapping),
        cmocka_unit_test(a_missing_shard_is_named_before_any_header_is_read),
        cmocka_unit_test(a_tensor_must_be_in_the_shard_that_the_index_names),
        cmocka_unit_test(shard_names_must_be_plain_file_names),
        cmocka_unit_test(an_index_without_a_map_is_refused),
        cmocka_unit_test(a_folder_without_weights_says_so),
        cmocka_unit_test(a_bad_file_is_named_with_its_tensor),
        cmocka_unit_test(every_failed_allocation_is_reported_without_a_leak),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
