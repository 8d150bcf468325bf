/* Folders over POSIX calls. See folder.h. */
#include "base/folder.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

/* ------------------------------------------------------------------ entries */

lattice_status lt_folder_each(const lattice_allocator *mem, const char *folder,
                              lattice_status (*visit)(void *user, const char *path, const char *name, lattice_error *err),
                              void *user, lattice_error *err)
{
    DIR *entries = opendir(folder);
    if (!entries) return lt_io_fail(err, folder, "read the folder", errno);
    lattice_status status = LATTICE_OK;
    lt_buf path;
    lt_buf_init(&path, mem);
    while (status == LATTICE_OK) {
        errno = 0;
        const struct dirent *entry = readdir(entries);
        if (!entry) {
            if (errno != 0) status = lt_io_fail(err, folder, "read the folder", errno);
            break;
        }
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
        if (!lt_path_join(&path, folder, entry->d_name))
            status = lt_no_memory(err, strlen(folder), "a path");
        else
            status = visit(user, path.data, entry->d_name, err);
    }
    lt_buf_free(&path);
    closedir(entries);
    return status;
}

lattice_status lt_copy_file(const lattice_allocator *mem, const char *from, const char *to, lattice_error *err)
{
    lt_file file;
    lt_replace replace;
    LT_TRY(lt_file_open(mem, from, true, &file, err));
    lattice_status status = lt_replace_begin(mem, to, &replace, err);
    if (status == LATTICE_OK) {
        status = lt_replace_write(&replace, file.data, file.size, err);
        if (status == LATTICE_OK)
            status = lt_replace_commit(&replace, err);
        else
            lt_replace_abort(&replace);
    }
    lt_file_close(&file);
    return status;
}

/* ------------------------------------------------------------------ a new folder */

/* "path" without slashes at its end; false without memory. */
static bool set_path(lt_buf *buf, const char *path)
{
    size_t length = strlen(path);
    while (length > 1 && path[length - 1] == '/') length--;
    lt_buf_append(buf, path, length);
    return !buf->failed;
}

static lattice_status make_parent(const lattice_allocator *mem, const char *path, lattice_error *err)
{
    const char *slash = strrchr(path, '/');
    if (!slash || slash == path) return LATTICE_OK;
    lt_buf parent;
    lt_buf_init(&parent, mem);
    lt_buf_append(&parent, path, (size_t)(slash - path));
    lattice_status status = parent.failed ? lt_no_memory(err, strlen(path), "a path") : lt_make_folders(parent.data, err);
    lt_buf_free(&parent);
    return status;
}

static void free_paths(lt_new_folder *folder)
{
    lt_buf_free(&folder->path);
    lt_buf_free(&folder->temporary);
}

lattice_status lt_new_folder_begin(const lattice_allocator *mem, const char *path, lt_new_folder *folder, lattice_error *err)
{
    lattice_status status = LATTICE_OK;
    lt_buf_init(&folder->path, mem);
    lt_buf_init(&folder->temporary, mem);
    if (path[0] == 0) LT_GO(lt_fail(err, LATTICE_ERR_INVALID_ARGUMENT, "the name of a folder is empty"));
    if (!set_path(&folder->path, path) || !set_path(&folder->temporary, path)) LT_GO(lt_no_memory(err, strlen(path), "a path"));
    if (lt_path_exists(folder->path.data)) LT_GO(lt_fail(err, LATTICE_ERR_IO, "%s: exists already", folder->path.data));
    LT_GO(make_parent(mem, folder->path.data, err));
    lt_buf_append_z(&folder->temporary, ".tmp-XXXXXX");
    if (folder->temporary.failed) LT_GO(lt_no_memory(err, strlen(path), "a path"));
    if (!mkdtemp(folder->temporary.data))
        status = lt_io_fail(err, folder->path.data, "create a temporary folder beside it", errno);
    else if (chmod(folder->temporary.data, 0755) != 0)
        errno = 0; /* a file system without permissions is no reason to fail */
done:
    if (status != LATTICE_OK) free_paths(folder);
    return status;
}

static lattice_status remove_entry(void *user, const char *path, const char *name, lattice_error *err)
{
    const lattice_allocator *mem = user;
    (void)name;
    if (unlink(path) == 0) return LATTICE_OK;
    LT_TRY(lt_folder_each(mem, path, remove_entry, user, err));
    return rmdir(path) == 0 ? LATTICE_OK : lt_io_fail(err, path, "remove the folder", errno);
}

void lt_new_folder_abort(lt_new_folder *folder)
{
    if (folder->temporary.data) {
        void *mem = (void *)(uintptr_t)&lt_malloc_allocator; /* cleaning up must not fail for the caller's limits */
        lt_folder_each(mem, folder->temporary.data, remove_entry, mem, NULL);
        rmdir(folder->temporary.data);
    }
    free_paths(folder);
}

lattice_status lt_new_folder_commit(lt_new_folder *folder, lattice_error *err)
{
    /* An empty folder of that name, made meanwhile, would be replaced; anything else refuses. */
    if (rename(folder->temporary.data, folder->path.data) == 0) {
        free_paths(folder);
        return LATTICE_OK;
    }
    lattice_status status = lt_io_fail(err, folder->path.data, "rename the finished folder to it", errno);
    lt_new_folder_abort(folder);
    return status;
}
