/* Opening a checkpoint: the index (if any) is read, every shard is stat'ed before any work, headers are read and checked, and
 * the tensors that belong to the checkpoint become one array sorted by name. Data is mapped, or read, shard by shard when a
 * tensor is first asked for; the file must then still be the one whose header was checked. */
#include "format/checkpoint.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/sha256.h"
#include "format/index.h"
#include "format/safetensors.h"

static const char single_name[] = "model.safetensors";
static const char index_name[] = "model.safetensors.index.json";

typedef struct shard {
    const char *name, *path;
    lt_safetensors header;
    struct stat seen;              /* the file whose header was read */
    lt_file file;                  /* valid when data is not NULL */
    _Atomic(const uint8_t *) data; /* published after `file` is whole */
} shard;

struct lt_checkpoint {
    const lattice_allocator *mem;
    lt_arena arena; /* paths */
    const char *folder;
    bool use_mmap;
    pthread_mutex_t lock; /* held while a shard is opened */
    shard *shards;
    size_t n_shards;
    const lt_tensor **tensors; /* sorted by name; each lives in its shard's header */
    size_t n;
};

/* ------------------------------------------------------------------ headers */

/* Reads exactly `size` bytes at `offset`. */
static lattice_status read_at(int fd, const char *path, void *out, size_t size, off_t offset, lattice_error *err)
{
    for (size_t done = 0; done < size;) {
        ssize_t got = pread(fd, (char *)out + done, size - done, offset + (off_t)done);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return lt_fail(err, LATTICE_ERR_IO, "%s: %s", path, strerror(errno));
        if (got == 0) return lt_fail(err, LATTICE_ERR_IO, "%s: the file became shorter while it was read", path);
        done += (size_t)got;
    }
    return LATTICE_OK;
}

static lattice_status read_header(lt_checkpoint *checkpoint, shard *s, lattice_error *err)
{
    lattice_status status = LATTICE_OK;
    uint8_t first8[8];
    uint8_t *header = NULL;
    size_t length = 0;
    int fd; /* opening a named pipe must not wait for a writer: it is refused below */
    do fd = open(s->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    while (fd < 0 && errno == EINTR);
    if (fd < 0) return lt_fail(err, errno == ENOENT ? LATTICE_ERR_NOT_FOUND : LATTICE_ERR_IO, "%s: %s", s->path, strerror(errno));
    if (fstat(fd, &s->seen) != 0) {
        status = lt_fail(err, LATTICE_ERR_IO, "%s: %s", s->path, strerror(errno));
        goto done;
    }
    if (!S_ISREG(s->seen.st_mode)) {
        status = lt_fail(err, LATTICE_ERR_IO, "%s: not a file", s->path);
        goto done;
    }
    uint64_t size = (uint64_t)s->seen.st_size;
    size_t available = size < 8 ? (size_t)size : 8;
    LT_GO(read_at(fd, s->path, first8, available, 0, err));
    LT_GO(lt_safetensors_header_length(s->path, first8, available, size, &length, err));
    header = lt_alloc(checkpoint->mem, length);
    if (!header) {
        status = lt_no_memory(err, length, "a safetensors header");
        goto done;
    }
    LT_GO(read_at(fd, s->path, header, length, 8, err));
    LT_GO(lt_safetensors_parse(checkpoint->mem, s->path, header, length, size, &s->header, err));
    uint32_t number = (uint32_t)(s - checkpoint->shards);
    for (size_t i = 0; i < s->header.n; i++) s->header.tensors[i].shard = number;
done:
    lt_free(checkpoint->mem, header);
    close(fd);
    return status;
}

/* ------------------------------------------------------------------ the catalogue */

static int by_name(const void *a, const void *b)
{
    return lt_name_compare(((const lt_tensor *)a)->name, ((const lt_tensor *)b)->name);
}

static lattice_status set_shard(lt_checkpoint *checkpoint, size_t i, lt_str name, lt_buf *path, lattice_error *err)
{
    shard *s = &checkpoint->shards[i];
    s->name = lt_arena_copy(&checkpoint->arena, name.data, name.len);
    if (s->name && lt_path_join(path, checkpoint->folder, s->name))
        s->path = lt_arena_copy(&checkpoint->arena, path->data, path->len);
    return s->path ? LATTICE_OK : lt_no_memory(err, name.len, "a shard's path");
}

static lattice_status new_shards(lt_checkpoint *checkpoint, size_t n, lattice_error *err)
{
    checkpoint->shards = lt_alloc_array(checkpoint->mem, n, sizeof *checkpoint->shards);
    if (!checkpoint->shards) return lt_no_memory(err, n * sizeof *checkpoint->shards, "the list of shards");
    checkpoint->n_shards = n;
    for (size_t i = 0; i < n; i++) {
        checkpoint->shards[i] = (shard){ 0 };
        atomic_init(&checkpoint->shards[i].data, NULL);
    }
    return LATTICE_OK;
}

static lattice_status new_catalogue(lt_checkpoint *checkpoint, size_t n, lattice_error *err)
{
    checkpoint->tensors = lt_alloc_array(checkpoint->mem, n + 1, sizeof *checkpoint->tensors);
    if (!checkpoint->tensors) return lt_no_memory(err, (n + 1) * sizeof *checkpoint->tensors, "the catalogue of tensors");
    return LATTICE_OK;
}

static lattice_status open_single(lt_checkpoint *checkpoint, lt_buf *path, lattice_error *err)
{
    LT_TRY(new_shards(checkpoint, 1, err));
    LT_TRY(set_shard(checkpoint, 0, lt_str_of(single_name), path, err));
    LT_TRY(read_header(checkpoint, checkpoint->shards, err));
    const lt_safetensors *header = &checkpoint->shards[0].header;
    LT_TRY(new_catalogue(checkpoint, header->n, err));
    for (size_t i = 0; i < header->n; i++) checkpoint->tensors[checkpoint->n++] = header->by_name[i];
    return LATTICE_OK;
}

/* Only what the index names is loaded, and a tensor must be in the shard that the index names. */
static lattice_status open_indexed(lt_checkpoint *checkpoint, const char *path, const lt_index *index, lt_buf *buf,
                                   lattice_error *err)
{
    LT_TRY(new_shards(checkpoint, index->n_files, err));
    for (size_t i = 0; i < index->n_files; i++) {
        LT_TRY(set_shard(checkpoint, i, index->files[i], buf, err));
        if (!lt_path_exists(checkpoint->shards[i].path))
            return lt_fail(err, LATTICE_ERR_NOT_FOUND, "%s: no such file, but %s names it", checkpoint->shards[i].path,
                           index_name);
    }
    for (size_t i = 0; i < index->n_files; i++) LT_TRY(read_header(checkpoint, &checkpoint->shards[i], err));
    LT_TRY(new_catalogue(checkpoint, index->n, err));
    for (size_t i = 0; i < index->n; i++) {
        const lt_index_entry *entry = &index->entries[i];
        const lt_tensor *tensor = lt_safetensors_find(&checkpoint->shards[entry->shard].header, entry->tensor);
        if (!tensor)
            return lt_fail(err, LATTICE_ERR_FORMAT, "%s: tensor '%.*s' is not in '%s'", path, LT_STR_ARG(entry->tensor),
                           checkpoint->shards[entry->shard].name);
        checkpoint->tensors[checkpoint->n++] = tensor;
    }
    lt_sort_pointers((const void **)checkpoint->tensors, checkpoint->n, by_name);
    return LATTICE_OK;
}

/* Says why there is nothing to open in a folder. */
static lattice_status nothing_to_open(const char *folder, lt_buf *path, lattice_error *err)
{
    if (!lt_path_is_folder(folder)) return lt_fail(err, LATTICE_ERR_NOT_FOUND, "%s: no such folder", folder);
    const char *pickle = lt_path_join(path, folder, "pytorch_model.bin");
    if (!pickle) return lt_no_memory(err, 0, "a path");
    return lt_fail(err, LATTICE_ERR_NOT_FOUND, "%s: neither %s nor %s%s", folder, single_name, index_name,
                   lt_path_exists(pickle) ? " (pytorch_model.bin is not read: convert it to safetensors)" : "");
}

lattice_status lt_checkpoint_open(const lattice_allocator *mem, const char *folder, bool use_mmap, lt_checkpoint **out,
                                  lattice_error *err)
{
    *out = NULL;
    lt_checkpoint *checkpoint = lt_alloc_zero(mem, sizeof *checkpoint);
    if (!checkpoint) return lt_no_memory(err, sizeof *checkpoint, "a checkpoint");
    if (pthread_mutex_init(&checkpoint->lock, NULL) != 0) {
        lt_free(mem, checkpoint);
        return lt_fail(err, LATTICE_ERR_INTERNAL, "%s: no lock", folder);
    }
    checkpoint->mem = mem;
    checkpoint->use_mmap = use_mmap;
    lt_arena_init(&checkpoint->arena, mem);

    lattice_status status;
    lt_index index = { 0 };
    lt_file file = { 0 };
    lt_buf path, shard_path;
    lt_buf_init(&path, mem);
    lt_buf_init(&shard_path, mem);
    checkpoint->folder = lt_arena_copy(&checkpoint->arena, folder, strlen(folder));
    if (!checkpoint->folder || !lt_path_join(&path, folder, index_name) || !lt_path_join(&shard_path, folder, single_name)) {
        status = lt_no_memory(err, strlen(folder), "a path");
        goto done;
    }
    if (lt_path_exists(path.data)) {
        LT_GO(lt_file_open(mem, path.data, use_mmap, &file, err));
        LT_GO(lt_index_parse(mem, path.data, file.data, file.size, &index, err));
        LT_GO(open_indexed(checkpoint, path.data, &index, &shard_path, err));
    } else if (lt_path_exists(shard_path.data)) {
        LT_GO(open_single(checkpoint, &shard_path, err));
    } else {
        status = nothing_to_open(folder, &path, err);
    }
done:
    lt_index_free(&index);
    if (file.data) lt_file_close(&file);
    lt_buf_free(&path);
    lt_buf_free(&shard_path);
    if (status == LATTICE_OK)
        *out = checkpoint;
    else
        lt_checkpoint_close(checkpoint);
    return status;
}

void lt_checkpoint_close(lt_checkpoint *checkpoint)
{
    if (!checkpoint) return;
    const lattice_allocator *mem = checkpoint->mem;
    for (size_t i = 0; i < checkpoint->n_shards; i++) {
        shard *s = &checkpoint->shards[i];
        if (atomic_load(&s->data)) lt_file_close(&s->file);
        lt_safetensors_free(&s->header);
    }
    lt_free(mem, checkpoint->shards);
    lt_free(mem, checkpoint->tensors);
    lt_arena_free(&checkpoint->arena);
    pthread_mutex_destroy(&checkpoint->lock);
    lt_free(mem, checkpoint);
}

size_t lt_checkpoint_count(const lt_checkpoint *checkpoint)
{
    return checkpoint->n;
}

const lt_tensor *lt_checkpoint_at(const lt_checkpoint *checkpoint, size_t i)
{
    return checkpoint->tensors[i];
}

const lt_tensor *lt_checkpoint_find(const lt_checkpoint *checkpoint, lt_str name)
{
    size_t low = 0, high = checkpoint->n;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        int order = lt_name_compare(checkpoint->tensors[middle]->name, name);
        if (order == 0) return checkpoint->tensors[middle];
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return NULL;
}

const char *lt_checkpoint_folder(const lt_checkpoint *checkpoint)
{
    return checkpoint->folder;
}

size_t lt_checkpoint_shards(const lt_checkpoint *checkpoint)
{
    return checkpoint->n_shards;
}

const char *lt_checkpoint_shard_name(const lt_checkpoint *checkpoint, uint32_t number)
{
    return checkpoint->shards[number].name;
}

/* ------------------------------------------------------------------ data */

/* Called with the lock held. */
static lattice_status open_shard(lt_checkpoint *checkpoint, shard *s, lattice_error *err)
{
    struct stat now;
    LT_TRY(lt_file_open(checkpoint->mem, s->path, checkpoint->use_mmap, &s->file, err));
    if (stat(s->path, &now) != 0 || now.st_dev != s->seen.st_dev || now.st_ino != s->seen.st_ino ||
        now.st_mtime != s->seen.st_mtime || s->file.size != (size_t)s->seen.st_size) {
        lt_file_close(&s->file);
        return lt_fail(err, LATTICE_ERR_IO, "%s: the file has changed since the model was opened", s->path);
    }
    atomic_store_explicit(&s->data, s->file.data, memory_order_release);
    return LATTICE_OK;
}

/* The first byte of a shard's file. */
static lattice_status shard_data(lt_checkpoint *checkpoint, shard *s, const uint8_t **data, lattice_error *err)
{
    lattice_status status = LATTICE_OK;
    *data = atomic_load_explicit(&s->data, memory_order_acquire);
    if (*data) return LATTICE_OK;
    pthread_mutex_lock(&checkpoint->lock);
    if (!atomic_load_explicit(&s->data, memory_order_relaxed)) status = open_shard(checkpoint, s, err);
    *data = atomic_load_explicit(&s->data, memory_order_relaxed);
    pthread_mutex_unlock(&checkpoint->lock);
    return status;
}

lattice_status lt_checkpoint_data(lt_checkpoint *checkpoint, const lt_tensor *tensor, const void **data, lattice_error *err)
{
    const uint8_t *base;
    LT_TRY(shard_data(checkpoint, &checkpoint->shards[tensor->shard], &base, err));
    *data = base + tensor->offset;
    return LATTICE_OK;
}

lattice_status lt_checkpoint_verify(lt_checkpoint *checkpoint, lattice_error *err)
{
    for (size_t i = 0; i < checkpoint->n_shards; i++) {
        shard *s = &checkpoint->shards[i];
        const uint8_t *base;
        if (!s->header.checksum.data) continue;
        LT_TRY(shard_data(checkpoint, s, &base, err));
        lt_sha256 hash;
        uint8_t digest[LT_SHA256_SIZE];
        char hex[2 * LT_SHA256_SIZE + 1];
        lt_sha256_init(&hash);
        lt_sha256_update(&hash, base + s->header.data_offset, s->file.size - s->header.data_offset);
        lt_sha256_final(&hash, digest);
        lt_sha256_hex(digest, hex);
        if (!lt_str_is(s->header.checksum, hex))
            return lt_fail(err, LATTICE_ERR_FORMAT, "%s: the data are damaged: their SHA-256 is %s, and should be %.*s", s->path,
                           hex, LT_STR_ARG(s->header.checksum));
    }
    return LATTICE_OK;
}

void lt_checkpoint_forget(lt_checkpoint *checkpoint, const lt_tensor *tensor)
{
    const shard *s = &checkpoint->shards[tensor->shard];
    if (atomic_load_explicit(&s->data, memory_order_acquire)) lt_file_forget(&s->file, tensor->offset, tensor->size);
}
