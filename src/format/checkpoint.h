/* A checkpoint as one catalogue of named tensors, from one safetensors file or several shards.
 *
 * model.safetensors.index.json decides which shards belong to the checkpoint when it is there (a stray model.safetensors beside
 * it is ignored); else model.safetensors. Headers are read at open, so that names, types and shapes are known; a shard's data is
 * mapped when a tensor of it is first asked for. Every offset is checked before use: tensors must tile the data exactly, in some
 * order, within the file. INV-5: tensor data borrows from the mapping, which lives until lt_checkpoint_close. */
#ifndef LT_FORMAT_CHECKPOINT_H
#define LT_FORMAT_CHECKPOINT_H

#include "base/bytes.h"
#include "base/file.h"

typedef enum lt_dtype {
    LT_F32,
    LT_F16,
    LT_BF16,
    LT_Q8_0,     /* blocks of 32 int8 with a half scale; our own files */
    LT_INT8_ROWS, /* int8 with a float32 scale a row, format/int8.h; our own files */
    LT_I8,
    LT_U8,
    LT_I16,
    LT_I32,
    LT_I64,
    LT_F64,
    LT_BOOL,
    LT_OTHER,    /* recognised by name only (F8_E4M3, U16, …): dtype_name says which */
} lt_dtype;

const char *lt_dtype_name(lt_dtype dtype);
/* Bytes of an element; 0 for Q8_0, INT8_ROWS and LT_OTHER. */
size_t lt_dtype_size(lt_dtype dtype);

#define LT_MAX_RANK 8

typedef struct lt_tensor {
    lt_str name;        /* as stored */
    lt_dtype dtype;
    lt_str dtype_name;  /* as stored, for messages */
    int rank;
    size_t shape[LT_MAX_RANK];
    size_t n_elements;  /* checked product of shape; 1 for a scalar */
    uint32_t shard;
    size_t offset, size; /* bytes in the shard's file */
} lt_tensor;

typedef struct lt_checkpoint lt_checkpoint;

/* Opens `folder`. Errors name file and tensor; a shard that the index names and that is absent is LATTICE_ERR_NOT_FOUND before
 * any work. `mem` is borrowed. */
lattice_status lt_checkpoint_open(const lattice_allocator *mem, const char *folder, bool use_mmap, lt_checkpoint **checkpoint,
                                  lattice_error *err);
void lt_checkpoint_close(lt_checkpoint *checkpoint);

size_t lt_checkpoint_count(const lt_checkpoint *checkpoint);
const lt_tensor *lt_checkpoint_at(const lt_checkpoint *checkpoint, size_t i); /* sorted by name */
const lt_tensor *lt_checkpoint_find(const lt_checkpoint *checkpoint, lt_str name); /* NULL: not there */
const char *lt_checkpoint_folder(const lt_checkpoint *checkpoint);
size_t lt_checkpoint_shards(const lt_checkpoint *checkpoint);
const char *lt_checkpoint_shard_name(const lt_checkpoint *checkpoint, uint32_t shard); /* file name for messages */

/* The tensor's bytes (little-endian, row-major), opening its shard on first use; safe from several threads. They may be
 * unaligned for their type. */
lattice_status lt_checkpoint_data(lt_checkpoint *checkpoint, const lt_tensor *tensor, const void **data, lattice_error *err);
/* Reads every byte of the shards whose metadata have a checksum, and compares: LATTICE_ERR_FORMAT names the one that differs. */
lattice_status lt_checkpoint_verify(lt_checkpoint *checkpoint, lattice_error *err);
/* The bytes will not be needed soon (a packed copy exists). */
void lt_checkpoint_forget(lt_checkpoint *checkpoint, const lt_tensor *tensor);

#endif
