/* A safetensors file: the input is the file's head; what is not there of its data counts by the size that a prefix of 8 bytes
 * names. Every tensor that is accepted must lie inside the file and be found by its name; rows of Q8_0 that are there are decoded. */
#include <stdlib.h>

#include "base/memory.h"
#include "format/q8_0.h"
#include "format/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* `data` is a whole file when `file_size` is its size, else the head of a larger one. */
static void check(const uint8_t *data, size_t size, uint64_t file_size)
{
    size_t length;
    lt_safetensors file;
    lattice_error err;
    if (lt_safetensors_header_length("fuzz", data, size, file_size, &length, &err) != LATTICE_OK || length > size - 8) return;
    if (lt_safetensors_parse(&lt_malloc_allocator, "fuzz", data + 8, length, file_size, &file, &err) == LATTICE_OK) {
        uint64_t total = 8 + length;
        for (size_t i = 0; i < file.n; i++) {
            const lt_tensor *tensor = &file.tensors[i];
            if (tensor->offset < 8 + length || tensor->offset > file_size || tensor->size > file_size - tensor->offset) abort();
            if (lt_safetensors_find(&file, tensor->name) != tensor) abort();
            total += tensor->size;
            if (tensor->dtype != LT_Q8_0 || file_size > size || tensor->shape[0] == 0 || tensor->shape[1] == 0) continue;
            float *row = malloc(tensor->shape[1] * sizeof *row);
            if (!row) abort();
            lt_q8_0_decode_row(data + tensor->offset, tensor->shape[0], tensor->shape[1], 0, false, row);
            lt_q8_0_decode_row(data + tensor->offset, tensor->shape[0], tensor->shape[1], tensor->shape[0] - 1, true, row);
            free(row);
        }
        if (total != file_size) abort(); /* the tensors tile the data */
    }
    lt_safetensors_free(&file);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 8) return 0;
    check(data, size, size);
    uint64_t file_size = 0;
    for (size_t i = 0; i < 8; i++) file_size = file_size << 8 | data[size - 1 - i];
    if (file_size > size) check(data, size, file_size);
    return 0;
}
