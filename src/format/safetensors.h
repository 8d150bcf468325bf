/* The header of one safetensors file.
 *
 *     8 bytes   length N of the header, little-endian
 *     N bytes   JSON: { "name": { "dtype": "F32", "shape": [..], "data_offsets": [begin, end] }, …, "__metadata__": {..} },
 *               may be padded with spaces at its end
 *     the rest  data; offsets count from its first byte
 *
 * The file is hostile until checked: the tensors must tile the data exactly, in some order, each as large as its shape and type
 * say. Only the header's bytes and the file's size are needed, so that a file is checked without touching its data. */
#ifndef LT_FORMAT_SAFETENSORS_H
#define LT_FORMAT_SAFETENSORS_H

#include "format/checkpoint.h"

/* Longest header that is read, as in the reference library: 100 MB. */
#define LT_SAFETENSORS_MAX_HEADER ((size_t)100000000)

typedef struct lt_safetensors {
    const lattice_allocator *mem;
    lt_arena arena;            /* names */
    lt_tensor *tensors;        /* [n] as listed in the header; shard is 0, offset counts from the start of the file */
    const lt_tensor **by_name; /* [n] sorted by name, bytewise */
    size_t n, capacity;
    lt_str quantization, layout; /* of the metadata, in files that `quantize` wrote: "q8_0" or "int8", LT_Q8_0_LAYOUT; data NULL: not there */
    lt_str checksum;             /* likewise: the SHA-256 of the data in hexadecimal digits, not compared with them here */
    size_t data_offset;          /* where the data begin */
} lt_safetensors;

/* Checks the first 8 bytes of a file of `file_size` bytes and gives the header's length. `name` is for messages. */
lattice_status lt_safetensors_header_length(const char *name, const uint8_t *first8, size_t available, uint64_t file_size,
                                            size_t *length, lattice_error *err);

/* Parses and checks the header (`length` bytes of JSON behind the first 8) of a file of `file_size` bytes. Errors read
 * "NAME: tensor 'T': what is wrong". Released by lt_safetensors_free, also after a failure. */
lattice_status lt_safetensors_parse(const lattice_allocator *mem, const char *name, const void *header, size_t length,
                                    uint64_t file_size, lt_safetensors *out, lattice_error *err);
void lt_safetensors_free(lt_safetensors *file);

/* NULL: not there. */
const lt_tensor *lt_safetensors_find(const lt_safetensors *file, lt_str name);

/* Bytewise order of names, a prefix first: < 0, 0, > 0. */
int lt_name_compare(lt_str a, lt_str b);
/* Sorts pointers in place, without allocating (heap sort). */
void lt_sort_pointers(const void **items, size_t n, int (*compare)(const void *a, const void *b));

#endif
