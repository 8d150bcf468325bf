/* Files and paths over POSIX calls. Interrupted calls are repeated; every error names the path and the system's reason. */
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/hash.h"

enum { LARGEST_TRANSFER = 1 << 30, TEMPORARY_TRIES = 100, PATH_LIMIT = 4096 };

/* ------------------------------------------------------------------ errors */

/* strerror_r returns an int by POSIX and a char * in glibc. */
static const char *text_of_int(int rc, const char *buffer)
{
    return rc == 0 ? buffer : "unknown error";
}

static const char *text_of_pointer(const char *text, const char *buffer)
{
    (void)buffer;
    return text;
}

lattice_status lt_io_fail(lattice_error *err, const char *path, const char *what, int error)
{
    char buffer[128] = "";
    // clang-format off
    const char *reason = _Generic(strerror_r(error, buffer, sizeof buffer), int: text_of_int, default: text_of_pointer)(
        strerror_r(error, buffer, sizeof buffer), buffer);
    // clang-format on
    lattice_status code = error == ENOENT || error == ENOTDIR ? LATTICE_ERR_NOT_FOUND
                          : error == ENOMEM                   ? LATTICE_ERR_NO_MEMORY
                                                              : LATTICE_ERR_IO;
    return lt_fail(err, code, "%s: cannot %s: %s", path, what, reason);
}

/* ------------------------------------------------------------------ reading */

static const uint8_t empty_file[1];

static lattice_status read_all(int fd, const char *path, lt_file *file, lattice_error *err)
{
    uint8_t *data = lt_alloc(file->mem, file->size);
    if (!data) return lt_no_memory(err, file->size, path);
    for (size_t done = 0; done < file->size;) {
        size_t wanted = file->size - done < LARGEST_TRANSFER ? file->size - done : LARGEST_TRANSFER;
        ssize_t got = read(fd, data + done, wanted);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) {
            lattice_status status = got < 0
                                        ? lt_io_fail(err, path, "read", errno)
                                        : lt_fail(err, LATTICE_ERR_IO, "%s: ends after %zu of %zu bytes", path, done, file->size);
            lt_free(file->mem, data);
            return status;
        }
        done += (size_t)got;
    }
    file->data = data;
    return LATTICE_OK;
}

lattice_status lt_file_open(const lattice_allocator *mem, const char *path, bool use_mmap, lt_file *file, lattice_error *err)
{
    *file = (lt_file){ empty_file, 0, false, mem };
    /* O_NONBLOCK: opening a named pipe must not wait for a writer, it is refused below. */
    int fd;
    do fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    while (fd < 0 && errno == EINTR);
    if (fd < 0) return lt_io_fail(err, path, "open", errno);

    lattice_status status = LATTICE_OK;
    struct stat info;
    if (fstat(fd, &info) != 0) {
        status = lt_io_fail(err, path, "open", errno);
    } else if (S_ISDIR(info.st_mode)) {
        status = lt_fail(err, LATTICE_ERR_IO, "%s: is a folder, expected a file", path);
    } else if (!S_ISREG(info.st_mode)) {
        status = lt_fail(err, LATTICE_ERR_IO, "%s: is not a regular file", path);
    } else if (info.st_size > 0) {
        file->size = (size_t)info.st_size;
        if (use_mmap) {
            void *map = mmap(NULL, file->size, PROT_READ, MAP_PRIVATE, fd, 0);
            if (map == MAP_FAILED) {
                status = lt_io_fail(err, path, "map", errno);
            } else {
                file->data = map;
                file->mapped = true;
                /* For large files read by whole passes: where the page cache holds them in huge pages, 10% more of the bandwidth
                 * and no fault a page. */
                lt_wish_huge_pages(map, file->size);
            }
        } else {
            status = read_all(fd, path, file, err);
        }
    }
    close(fd);
    if (status != LATTICE_OK) *file = (lt_file){ empty_file, 0, false, mem };
    return status;
}

void lt_file_close(lt_file *file)
{
    if (file->mapped) {
        munmap((void *)(uintptr_t)file->data, file->size);
    } else if (file->size > 0) {
        lt_free(file->mem, (void *)(uintptr_t)file->data);
    }
    *file = (lt_file){ empty_file, 0, false, file->mem };
}

void lt_file_forget(const lt_file *file, size_t offset, size_t size)
{
    if (!file->mapped || offset >= file->size) return;
    if (size > file->size - offset) size = file->size - offset;
    size_t page = (size_t)sysconf(_SC_PAGESIZE), end = offset + size;
    /* The mapping ends with its file: the last page is whole although the file may not fill it. */
    size_t first = offset + (page - offset % page) % page, last = end == file->size ? end : end - end % page;
    /* Pages of a read-only private mapping are never dirty: dropped ones are read from the file again. */
    if (first < last) madvise((void *)(uintptr_t)(file->data + first), last - first, MADV_DONTNEED);
}

/* ------------------------------------------------------------------ paths */

bool lt_path_exists(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0;
}

bool lt_path_is_folder(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

const char *lt_path_join(lt_buf *buf, const char *folder, const char *name)
{
    size_t len = strlen(folder);
    lt_buf_clear(buf);
    lt_buf_append(buf, folder, len);
    if (len > 0 && folder[len - 1] != '/') lt_buf_byte(buf, '/');
    lt_buf_append_z(buf, name);
    return buf->failed ? NULL : buf->data;
}

bool lt_path_is_plain_name(lt_str name)
{
    if (name.len == 0 || lt_str_is(name, ".") || lt_str_is(name, "..")) return false;
    return !memchr(name.data, '/', name.len) && !memchr(name.data, '\0', name.len);
}

lattice_status lt_make_folders(const char *path, lattice_error *err)
{
    char part[PATH_LIMIT];
    size_t len = strlen(path);
    if (len == 0) return lt_fail(err, LATTICE_ERR_INVALID_ARGUMENT, "the name of a folder is empty");
    if (len >= sizeof part) return lt_io_fail(err, path, "create the folder", ENAMETOOLONG);
    for (size_t i = 1; i <= len; i++) {
        if (path[i] != '/' && path[i] != '\0') continue;
        memcpy(part, path, i);
        part[i] = '\0';
        /* Whatever mkdir says of a folder that is there (it exists, read-only file system, no permission) does not matter. */
        if (mkdir(part, 0777) != 0) {
            int error = errno;
            if (!lt_path_is_folder(part)) return lt_io_fail(err, part, "create the folder", error);
        }
    }
    return LATTICE_OK;
}

/* ------------------------------------------------------------------ replacing */

static int sync_file(int fd)
{
#ifdef F_FULLFSYNC
    if (fcntl(fd, F_FULLFSYNC) == 0) return 0; /* macOS: fsync alone stops at the drive's cache */
#endif
    return fsync(fd);
}

static void free_paths(lt_replace *replace)
{
    lt_buf_free(&replace->path);
    lt_buf_free(&replace->temporary);
    replace->fd = -1;
}

lattice_status lt_replace_begin(const lattice_allocator *mem, const char *path, lt_replace *replace, lattice_error *err)
{
    replace->fd = -1;
    lt_buf_init(&replace->path, mem);
    lt_buf_init(&replace->temporary, mem);
    struct stat old;
    bool exists = stat(path, &old) == 0;
    if (exists && !S_ISREG(old.st_mode)) return lt_fail(err, LATTICE_ERR_IO, "%s: is not a regular file", path);

    lt_buf_append_z(&replace->path, path);
    for (int i = 0; i < TEMPORARY_TRIES && replace->fd < 0; i++) {
        /* Unique enough by process, time and address; O_EXCL decides, a name that is taken costs one more try. */
        struct {
            double now;
            const void *address;
            int64_t pid, count;
        } seed = { lt_clock_seconds(), replace, getpid(), i };
        lt_buf_clear(&replace->temporary);
        lt_buf_printf(&replace->temporary, "%s.tmp-%08x", path, (unsigned)lt_hash64(&seed, sizeof seed, 0));
        if (replace->path.failed || replace->temporary.failed) {
            free_paths(replace);
            return lt_no_memory(err, strlen(path), "a path");
        }
        replace->fd = open(replace->temporary.data, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (replace->fd < 0 && errno != EEXIST && errno != EINTR) break;
    }
    if (replace->fd < 0) {
        lattice_status status = lt_io_fail(err, path, "create a temporary file beside it", errno);
        free_paths(replace);
        return status;
    }
    /* The permissions of the file that is replaced live on; a file system without them is no reason to fail. */
    if (exists && fchmod(replace->fd, old.st_mode & 0777) != 0) errno = 0;
    return LATTICE_OK;
}

int lt_write_all(int fd, const void *data, size_t size)
{
    const uint8_t *from = data;
    while (size > 0) {
        ssize_t put = write(fd, from, size < LARGEST_TRANSFER ? size : LARGEST_TRANSFER);
        if (put < 0 && errno == EINTR) continue;
        if (put <= 0) return put < 0 ? errno : EIO;
        from += put;
        size -= (size_t)put;
    }
    return 0;
}

lattice_status lt_replace_write(lt_replace *replace, const void *data, size_t size, lattice_error *err)
{
    const int error = lt_write_all(replace->fd, data, size);
    return error == 0 ? LATTICE_OK : lt_io_fail(err, replace->path.data, "write", error);
}

/* Makes the rename itself durable. Its failure is not reported: the new file is whole and in place, only a power cut in the
 * next seconds could bring the old one back, and some file systems cannot sync a folder at all. */
static void sync_folder_of(lt_buf *path)
{
    char *slash = strrchr(path->data, '/');
    const char *folder = ".";
    if (slash == path->data) {
        folder = "/";
    } else if (slash) {
        *slash = '\0';
        folder = path->data;
    }
    int fd = open(folder, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return;
    sync_file(fd);
    close(fd);
}

lattice_status lt_replace_commit(lt_replace *replace, lattice_error *err)
{
    const char *path = replace->path.data;
    lattice_status status = LATTICE_OK;
    if (sync_file(replace->fd) != 0) status = lt_io_fail(err, path, "write to the disk", errno);
    if (close(replace->fd) != 0 && status == LATTICE_OK) status = lt_io_fail(err, path, "write", errno);
    replace->fd = -1;
    if (status == LATTICE_OK && rename(replace->temporary.data, path) != 0) status = lt_io_fail(err, path, "replace", errno);
    if (status == LATTICE_OK) {
        sync_folder_of(&replace->path);
    } else {
        unlink(replace->temporary.data);
    }
    free_paths(replace);
    return status;
}

void lt_replace_abort(lt_replace *replace)
{
    if (replace->fd >= 0) {
        close(replace->fd);
        unlink(replace->temporary.data);
    }
    free_paths(replace);
}
