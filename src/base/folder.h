/* Making a folder so that nobody sees half of it: everything is written into a temporary one beside it, which is renamed at the
 * end. Without lt_new_folder_commit the temporary folder and all that is in it are removed by lt_new_folder_abort. */
#ifndef LT_BASE_FOLDER_H
#define LT_BASE_FOLDER_H

#include "base/file.h"

typedef struct lt_new_folder {
    lt_buf path, temporary; /* what it will be called, and where to write meanwhile */
} lt_new_folder;

/* `path` must not exist; the folders above it are created. */
lattice_status lt_new_folder_begin(const lattice_allocator *mem, const char *path, lt_new_folder *folder, lattice_error *err);
lattice_status lt_new_folder_commit(lt_new_folder *folder, lattice_error *err); /* frees; after a failure nothing is left */
void lt_new_folder_abort(lt_new_folder *folder);

/* Calls `visit` for every entry of a folder but "." and "..", in no order, until it fails. `path` is the entry's. */
lattice_status lt_folder_each(const lattice_allocator *mem, const char *folder,
                              lattice_status (*visit)(void *user, const char *path, const char *name, lattice_error *err),
                              void *user, lattice_error *err);

/* Copies a file's bytes to a path that did not exist, or replaces it. */
lattice_status lt_copy_file(const lattice_allocator *mem, const char *from, const char *to, lattice_error *err);

#endif
