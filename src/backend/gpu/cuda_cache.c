/* Compiled kernels kept on disk.
 *
 * An entry is a file of the runtime's cache folder, named by the SHA-256 of source, options and versions of compiler and driver:
 *
 *     magic    SHA-256 of the rest    units: size, 8 bytes in the machine's order, and code
 *
 * One that was cut short or changed is seen by its sum and made again. It is written beside and renamed, so that processes that
 * make the same one at the same time leave a whole one. */
#include <stdio.h>

#include "backend/gpu/cuda_api.h"
#include "base/file.h"
#include "base/sha256.h"

#define CACHE_MAGIC "lattice gpu code 2\n"

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

/* The units behind the sum, which has been found right: still, no size is believed. */
static bool read_units(const uint8_t *data, size_t size, lt_cuda_code *code)
{
    for (int u = 0; u < LT_GPU_UNITS; u++) {
        uint64_t n;
        if (size < sizeof n) return false;
        memcpy(&n, data, sizeof n);
        data += sizeof n;
        size -= sizeof n;
        if (n == 0 || n > size) return false;
        lt_buf_clear(&code->units[u]);
        lt_buf_append(&code->units[u], data, (size_t)n);
        if (code->units[u].failed) return false;
        data += n;
        size -= (size_t)n;
    }
    return size == 0;
}

bool lt_cuda_cache_read(const lattice_runtime *runtime, const char *path, lt_cuda_code *code)
{
    lt_file file;
    if (!lt_path_exists(path) || lt_file_open(&runtime->mem, path, false, &file, NULL) != LATTICE_OK) return false;
    bool good = false;
    const size_t head = MAGIC + LT_SHA256_SIZE;
    if (file.size > head && memcmp(file.data, CACHE_MAGIC, MAGIC) == 0) {
        lt_sha256 hash;
        uint8_t digest[LT_SHA256_SIZE];
        lt_sha256_init(&hash);
        lt_sha256_update(&hash, file.data + head, file.size - head);
        lt_sha256_final(&hash, digest);
        good = memcmp(digest, file.data + MAGIC, sizeof digest) == 0 && read_units(file.data + head, file.size - head, code);
    }
    lt_file_close(&file);
    return good;
}

static lattice_status write_units(lt_replace *replace, const lt_cuda_code *code, lattice_error *err)
{
    lt_sha256 hash;
    uint8_t digest[LT_SHA256_SIZE];
    lt_sha256_init(&hash);
    for (int u = 0; u < LT_GPU_UNITS; u++) {
        uint64_t n = code->units[u].len;
        lt_sha256_update(&hash, &n, sizeof n);
        lt_sha256_update(&hash, code->units[u].data, code->units[u].len);
    }
    lt_sha256_final(&hash, digest);
    LT_TRY(lt_replace_write(replace, CACHE_MAGIC, MAGIC, err));
    LT_TRY(lt_replace_write(replace, digest, sizeof digest, err));
    for (int u = 0; u < LT_GPU_UNITS; u++) {
        uint64_t n = code->units[u].len;
        LT_TRY(lt_replace_write(replace, &n, sizeof n, err));
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
