/* Copies of fixtures whose files a test changes. */
#ifndef LT_TESTS_MODEL_COPY_H
#define LT_TESTS_MODEL_COPY_H

#include "support.h"

#include "format/checkpoint.h"

/* Copies a fixture's files into a temporary folder so that one can be changed. */
static inline void copy_file(const char *from_folder, const lt_test_folder *to, const char *name)
{
    char from[512], path[256];
    snprintf(from, sizeof from, "%s/%s", from_folder, name);
    if (access(from, R_OK) != 0) return;
    size_t size;
    char *data = lt_test_read_file(from, &size);
    lt_test_write_file(lt_test_path(to, name, path), data, size);
    free(data);
}

static inline lt_test_folder copy_model(const char *fixture)
{
    static const char *const names[] = { "config.json",
                                         "model.safetensors",
                                         "tokenizer.json",
                                         "tokenizer_config.json",
                                         "vocab.txt",
                                         "sentence_bert_config.json",
                                         "modules.json",
                                         "config_sentence_transformers.json",
                                         "1_Pooling/config.json" };
    lt_test_folder folder = lt_test_folder_create();
    char path[256];
    assert_int_equal(mkdir(lt_test_path(&folder, "1_Pooling", path), 0777), 0);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) copy_file(fixture, &folder, names[i]);
    return folder;
}

static inline void write_text(const lt_test_folder *folder, const char *name, const char *text)
{
    char path[256];
    lt_test_write_file(lt_test_path(folder, name, path), text, strlen(text));
}

/* Puts `bits` over one value of a tensor. */
static inline void spoil(const lt_test_folder *folder, const char *tensor_name, size_t index, uint32_t bits)
{
    lt_checkpoint *checkpoint;
    assert_ok(lt_checkpoint_open(&lt_malloc_allocator, folder->path, false, &checkpoint, NULL));
    const lt_tensor *tensor = lt_checkpoint_find(checkpoint, lt_str_of(tensor_name));
    assert_non_null(tensor);
    size_t offset = tensor->offset + index * sizeof bits;
    lt_checkpoint_close(checkpoint);
    char path[256];
    FILE *f = fopen(lt_test_path(folder, "model.safetensors", path), "r+b");
    assert_non_null(f);
    assert_int_equal(fseek(f, (long)offset, SEEK_SET), 0);
    assert_int_equal(fwrite(&bits, sizeof bits, 1, f), 1);
    fclose(f);
}

#endif
