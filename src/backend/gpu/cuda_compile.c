/* Compiling kernels by NVRTC, and a cache of what came out.
 *
 * An entry is a file of the runtime's cache folder, named by the SHA-256 of source, options and versions of compiler and driver.
 * It holds the SHA-256 of its code, so that one that was cut short or changed is made again; it is written beside and renamed. */
#include <stdio.h>

#include "backend/gpu/cuda_api.h"
#include "base/file.h"
#include "base/sha256.h"

#define CACHE_MAGIC "lattice gpu code 1\n"

enum { MAGIC = sizeof CACHE_MAGIC - 1 };

static void digest_of(const void *data, size_t size, uint8_t digest[LT_SHA256_SIZE])
{
    lt_sha256 hash;
    lt_sha256_init(&hash);
    lt_sha256_update(&hash, data, size);
    lt_sha256_final(&hash, digest);
}

/* Where the code for this source is kept; false: nowhere. */
static bool entry_path(const cuda_device *d, lt_str source, const char *options, const int version[2], lt_buf *path)
{
    if (!d->runtime->cache_dir) return false;
    char versions[96], name[2 * LT_SHA256_SIZE + 16], hex[2 * LT_SHA256_SIZE + 1];
    int length = snprintf(versions, sizeof versions, "|%s|%d.%d|%d|", options, version[0], version[1], d->driver_version);
    lt_sha256 hash;
    uint8_t digest[LT_SHA256_SIZE];
    lt_sha256_init(&hash);
    lt_sha256_update(&hash, source.data, source.len);
    lt_sha256_update(&hash, versions, (size_t)length);
    lt_sha256_final(&hash, digest);
    lt_sha256_hex(digest, hex);
    snprintf(name, sizeof name, "gpu-%s", hex);
    return lt_path_join(path, d->runtime->cache_dir, name) != NULL;
}

static bool read_entry(const cuda_device *d, const char *path, lt_buf *code)
{
    lt_file file;
    if (!lt_path_exists(path) || lt_file_open(&d->runtime->mem, path, false, &file, NULL) != LATTICE_OK) return false;
    bool good = false;
    if (file.size > MAGIC + LT_SHA256_SIZE && memcmp(file.data, CACHE_MAGIC, MAGIC) == 0) {
        const uint8_t *bytes = file.data + MAGIC + LT_SHA256_SIZE;
        size_t size = file.size - MAGIC - LT_SHA256_SIZE;
        uint8_t digest[LT_SHA256_SIZE];
        digest_of(bytes, size, digest);
        if (memcmp(digest, file.data + MAGIC, sizeof digest) == 0) {
            lt_buf_clear(code);
            lt_buf_append(code, bytes, size);
            good = !code->failed;
        }
    }
    lt_file_close(&file);
    return good;
}

/* A cache that cannot be written is only slower. */
static void write_entry(const cuda_device *d, const char *path, lt_str code)
{
    lt_replace replace;
    lattice_error err;
    uint8_t digest[LT_SHA256_SIZE];
    digest_of(code.data, code.len, digest);
    if (lt_make_folders(d->runtime->cache_dir, &err) != LATTICE_OK ||
        lt_replace_begin(&d->runtime->mem, path, &replace, &err) != LATTICE_OK) {
        lt_log(d->runtime, LATTICE_LOG_INFO, "compiled kernels are not kept: %s", err.message);
        return;
    }
    lattice_status status = lt_replace_write(&replace, CACHE_MAGIC, MAGIC, &err);
    if (status == LATTICE_OK) status = lt_replace_write(&replace, digest, sizeof digest, &err);
    if (status == LATTICE_OK) status = lt_replace_write(&replace, code.data, code.len, &err);
    if (status == LATTICE_OK)
        status = lt_replace_commit(&replace, &err);
    else
        lt_replace_abort(&replace);
    if (status != LATTICE_OK) lt_log(d->runtime, LATTICE_LOG_INFO, "compiled kernels are not kept: %s", err.message);
}

static lattice_status compile(const cuda_device *d, const nvrtc_api *rtc, lt_str source, const char *architecture, lt_buf *code,
                              lattice_error *err)
{
    const char *const options[] = { architecture, "--std=c++17", "-default-device", "-DLATTICE_CUDA=1" };
    void *program = NULL;
    size_t size = 0;
    int result = rtc->create(&program, source.data, "lattice.cu", 0, NULL, NULL);
    if (result == 0) result = rtc->compile(program, 4, options);
    if (result == 0) result = rtc->cubin_size(program, &size);
    lt_buf_clear(code);
    if (result == 0 && lt_buf_reserve(code, size)) {
        result = rtc->cubin(program, code->data);
        code->len = size;
    }
    if (result != 0) {
        char *log = rtc->log_size(program, &size) == 0 ? lt_alloc_zero(&d->runtime->mem, size + 1) : NULL;
        if (log && rtc->log(program, log) == 0) lt_log(d->runtime, LATTICE_LOG_INFO, "NVRTC: %s", log);
        lt_fail(err, LATTICE_ERR_DEVICE, "cuda: the kernels do not compile: %s: %s", rtc->error_text(result), log ? log : "");
        lt_free(&d->runtime->mem, log);
    }
    if (program) rtc->destroy(&program);
    if (result != 0) return LATTICE_ERR_DEVICE;
    return code->failed ? lt_no_memory(err, size, "compiled kernels") : LATTICE_OK;
}

lattice_status lt_cuda_compile(cuda_device *d, lt_str source, lt_buf *code, lattice_error *err)
{
    nvrtc_api rtc = { 0 };
    char text[200], architecture[48];
    int version[2] = { 0, 0 };
    /* Hopper's own instructions need the name with an a. */
    snprintf(architecture, sizeof architecture, "--gpu-architecture=sm_%d%d%s", d->major, d->minor, d->major == 9 ? "a" : "");
    if (!lt_cuda_load_nvrtc(&rtc, text, sizeof text))
        return lt_fail(err, LATTICE_ERR_DEVICE, "cuda: NVRTC, the compiler of kernels, cannot be loaded: %s", text);
    rtc.version(&version[0], &version[1]);
    lt_buf path;
    lt_buf_init(&path, &d->runtime->mem);
    bool cached = entry_path(d, source, architecture, version, &path);
    lattice_status status = LATTICE_OK;
    if (!cached || !read_entry(d, path.data, code)) {
        status = compile(d, &rtc, source, architecture, code, err);
        if (status == LATTICE_OK && cached) write_entry(d, path.data, lt_buf_str(code));
    }
    lt_buf_free(&path);
    lt_cuda_unload(&rtc.handle);
    return status;
}
