/* Files: read-only mapping, whole reading, atomic replacement, paths. */
#ifndef LT_BASE_FILE_H
#define LT_BASE_FILE_H

#include "base/bytes.h"

/* A file's bytes, mapped read-only or read into memory. An empty file has size 0 and data not NULL. A mapping follows the file
 * on disk: one that is cut short while mapped is the user's fault and raises SIGBUS; --no-mmap avoids it. */
typedef struct lt_file {
    const uint8_t *data;
    size_t size;
    bool mapped;
    const lattice_allocator *mem;
} lt_file;

/* Errors name the path: NOT_FOUND when it does not exist, IO otherwise (a directory, no permission, short read). */
lattice_status lt_file_open(const lattice_allocator *mem, const char *path, bool use_mmap, lt_file *file, lattice_error *err);
void lt_file_close(lt_file *file);
/* Tells the kernel that the pages wholly inside [offset, offset+size) are not needed now (they stay readable). */
void lt_file_forget(const lt_file *file, size_t offset, size_t size);

/* "PATH: cannot WHAT: the system's reason for errno `error`"; NOT_FOUND, NO_MEMORY or IO by that reason. */
lattice_status lt_io_fail(lattice_error *err, const char *path, const char *what, int error);

bool lt_path_exists(const char *path); /* a file or folder */
bool lt_path_is_folder(const char *path);

/* "folder/name" into buf (cleared first); returns buf->data, or NULL without memory. Refuses nothing: names from files must be
 * checked by lt_path_is_plain_name first. */
const char *lt_path_join(lt_buf *buf, const char *folder, const char *name);
/* True when `name` is one path component that stays inside its folder: no '/', no NUL, not "", "." or "..". */
bool lt_path_is_plain_name(lt_str name);
/* Creates the folder and its parents. */
lattice_status lt_make_folders(const char *path, lattice_error *err);

/* Writes all of it, after interruptions too; 0, or the errno of what failed. */
int lt_write_all(int fd, const void *data, size_t size);

/* A large file is written in such pieces, at multiples of them: a page cache holds them in huge pages then, and the mapping is
 * faster to read. */
#define LT_PIECE ((size_t)4 << 20)

/* Writing so that a reader sees the old file or the whole new one: temporary name in the same folder, fsync, rename, fsync of
 * the folder. Without lt_replace_commit the temporary file is removed by lt_replace_abort. */
typedef struct lt_replace {
    int fd;
    lt_buf path, temporary;
} lt_replace;

lattice_status lt_replace_begin(const lattice_allocator *mem, const char *path, lt_replace *replace, lattice_error *err);
lattice_status lt_replace_write(lt_replace *replace, const void *data, size_t size, lattice_error *err);
lattice_status lt_replace_commit(lt_replace *replace, lattice_error *err); /* frees; on failure the old file is untouched */
void lt_replace_abort(lt_replace *replace);

#endif
