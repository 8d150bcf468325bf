/* model.safetensors.index.json: which shard holds which tensor.
 *
 *     { "metadata": {..}, "weight_map": { "tensor name": "file name", … } } */
#ifndef LT_FORMAT_INDEX_H
#define LT_FORMAT_INDEX_H

#include "base/bytes.h"

typedef struct lt_index_entry {
    lt_str tensor;
    lt_str file;    /* a plain file name, NUL-terminated */
    uint32_t shard; /* number of the file among lt_index.files */
} lt_index_entry;

typedef struct lt_index {
    const lattice_allocator *mem;
    lt_arena arena;          /* names */
    lt_index_entry *entries; /* [n] as listed */
    size_t n, capacity;
    lt_str *files; /* [n_files] without repetition, sorted */
    size_t n_files;
} lt_index;

/* `name` is for messages. A file name that would leave the folder is an error. Released by lt_index_free, also after a failure.
 */
lattice_status lt_index_parse(const lattice_allocator *mem, const char *name, const void *text, size_t size, lt_index *index,
                              lattice_error *err);
void lt_index_free(lt_index *index);

#endif
