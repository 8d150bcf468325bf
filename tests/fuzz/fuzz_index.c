/* model.safetensors.index.json: every entry that is accepted names a plain file with a number below n_files. */
#include <stdlib.h>

#include "base/file.h"
#include "format/index.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    lt_index index;
    lattice_error err;
    if (lt_index_parse(&lt_malloc_allocator, "fuzz", data, size, &index, &err) == LATTICE_OK) {
        if (index.n == 0 || index.n_files == 0 || index.n_files > index.n) abort();
        for (size_t i = 0; i < index.n; i++) {
            const lt_index_entry *entry = &index.entries[i];
            if (entry->shard >= index.n_files || !lt_str_eq(index.files[entry->shard], entry->file)) abort();
            if (!lt_path_is_plain_name(entry->file)) abort();
        }
    }
    lt_index_free(&index);
    return 0;
}
