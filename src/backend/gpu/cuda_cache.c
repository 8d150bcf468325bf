/* Compiled kernels kept on disk.
 *
 * An entry is a file of the runtime's cache folder, named by the SHA-256 of source, options and versions of compiler and driver:
 *
 *     magic    units: size and XXH3-128 of the code, 8 and 16 bytes in the machine's order; code
 *
 * One that was cut short or changed is seen by its sums and made again. It is written beside and renamed, so that processes that
 * make the same one at the same time leave a whole one. */
#include <stdio.h>

#include "backend/gpu/cuda_api.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/sha256.h"

#define CACHE_MAGIC "lattice gpu code 3\n"

enum { MAGIC = sizeof CACHE_MAGIC - 1 };

bool lt_cuda_cache_path(const lattice_runtime *runtime, lt_str source, const char *options, lt_buf *path)
{
    if (!runtime->cache_dir) return false;
    char name[2 * LT_SHA256_SIZE + 16], hex[2 * LT_SHA256_SIZE + 1];
    lt_sha256 hash;
    uint8_t digest[LT_SHA256_SIZE];
    lt_sha256_init(&hash);
    lt_sha256_update(&hash, source.data, source.len);
    lt_sha256_update(&hash, options, strlen(options));
    lt_sha256_final(&hash, digest);
    lt_sha256_hex(digest, hex);
    snprintf(name, sizeof name, "gpu-%s", hex);
    return lt_path_join(path, runtime->cache_dir, name) != NULL;
}

typedef struct unit_head {
    uint64_t size;
    lt_hash128 sum;
} unit_head;

static unit_head head_of(const lt_buf *unit)
{
    return (unit_head){ unit->len, lt_hash_128(unit->data, unit->len, 0) };
}

/* No size is believed. */
static bool read_units(const uint8_t *data, size_t size, lt_cuda_code *code)
{
    for (int u = 0; u < LT_GPU_UNITS; u++) {
        unit_head head;
        if (size < sizeof head) return false;
        memcpy(&head, data, sizeof head);
        data += sizeof head;
        size -= sizeof head;
        if (head.size > size) return false;
        lt_buf_clear(&code->units[u]);
        lt_buf_append(&code->units[u], data, (size_t)head.size);
        if (code->units[u].failed) return false;
        if (!lt_hash128_eq(head_of(&code->units[u]).sum, head.sum)) return false;
        data += head.size;
        size -= (size_t)head.size;
    }
    return size == 0;
}

bool lt_cuda_cache_read(const lattice_runtime *runtime, const char *path, lt_cuda_code *code)
{
    lt_file file;
    if (!lt_path_exists(path) || lt_file_open(&runtime->mem, path, false, &file, NULL) != LATTICE_OK) return false;
    bool good = false;
    if (file.size > MAGIC && memcmp(file.data, CACHE_MAGIC, MAGIC) == 0)
        good = read_units(file.data + MAGIC, file.size - MAGIC, code);
    lt_file_close(&file);
    return good;
}

static lattice_status write_units(lt_replace *replace, const lt_cuda_code *code, lattice_error *err)
{
    LT_TRY(lt_replace_write(replace, CACHE_MAGIC, MAGIC, err));
    for (int u = 0; u < LT_GPU_UNITS; u++) {
        const unit_head head = head_of(&code->units[u]);
        LT_TRY(lt_replace_write(replace, &head, sizeof head, err));
        LT_TRY(lt_replace_write(replace, code->units[u].data, code->units[u].len, err));
    }
    return LATTICE_OK;
}

/* A cache that cannot be written is only slower. */
void lt_cuda_cache_write(const lattice_runtime *runtime, const char *path, const lt_cuda_code *code)
{
    lt_replace replace;
    lattice_error err;
    lattice_status status = lt_make_folders(runtime->cache_dir, &err);
    if (status == LATTICE_OK) status = lt_replace_begin(&runtime->mem, path, &replace, &err);
    if (status == LATTICE_OK) {
        status = write_units(&replace, code, &err);
        if (status == LATTICE_OK)
            status = lt_replace_commit(&replace, &err);
        else
            lt_replace_abort(&replace);
    }
    if (status != LATTICE_OK) lt_log(runtime, LATTICE_LOG_INFO, "compiled kernels are not kept: %s", err.message);
}
