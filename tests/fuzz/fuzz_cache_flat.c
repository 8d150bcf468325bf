/* The flat file of vectors: what is accepted is read to its end, entry by entry, within its bytes. */
#include <stdlib.h>

#include "engine/cache_flat.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint64_t n, read = 0, hash;
    lattice_error err;
    if (lt_flat_check("fuzz", data, size, &n, &err) != LATTICE_OK) return 0;
    lt_flat_reader reader = { data, size, 0 };
    const void *vector;
    uint32_t dim, sum = 0;
    for (; lt_flat_next(&reader, &hash, &vector, &dim); read++) {
        if (reader.at > size || dim == 0) abort();
        for (size_t i = 0; i < (size_t)dim * 4; i++) sum += ((const uint8_t *)vector)[i];
    }
    if (read != n || sum == 1) return 1;
    return 0;
}
