/* Where models live: a folder, or a name under the user's data folder. */
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"

lattice_status cli_models_folder(lt_buf *path, lattice_error *err)
{
    lt_buf_clear(path);
    /* The base directory specification: a relative XDG_DATA_HOME is to be ignored. */
    const char *data = getenv("XDG_DATA_HOME"), *home = getenv("HOME");
    if (data && data[0] == '/')
        lt_buf_printf(path, "%s/lattice/models", data);
    else if (home && home[0])
        lt_buf_printf(path, "%s/.local/share/lattice/models", home);
    else
        return lt_fail(err, LATTICE_ERR_NOT_FOUND, "no folder for models: neither XDG_DATA_HOME nor HOME is set");
    return path->failed ? lt_no_memory(err, 0, "a path") : LATTICE_OK;
}

/* NAME or ORG/NAME, each a plain file name. */
static bool is_model_name(const char *name)
{
    const char *slash = strchr(name, '/');
    if (!slash) return lt_path_is_plain_name(lt_str_of(name));
    return lt_path_is_plain_name((lt_str){ name, (size_t)(slash - name) }) && lt_path_is_plain_name(lt_str_of(slash + 1));
}

lattice_status cli_find_model(const char *name, lt_buf *path, lattice_error *err)
{
    lt_buf_clear(path);
    if (lt_path_is_folder(name)) {
        lt_buf_append_z(path, name);
        return path->failed ? lt_no_memory(err, 0, "a path") : LATTICE_OK;
    }
    if (!is_model_name(name)) return lt_fail(err, LATTICE_ERR_NOT_FOUND, "model '%s': no such folder", name);
    LT_TRY(cli_models_folder(path, err));
    size_t root = path->len;
    lt_buf_printf(path, "/%s", name);
    if (path->failed) return lt_no_memory(err, 0, "a path");
    if (lt_path_is_folder(path->data)) return LATTICE_OK;
    return lt_fail(err, LATTICE_ERR_NOT_FOUND,
                   "model '%s': no such folder, and none of that name in %.*s (lattice pull ORG/NAME fetches one)", name,
                   (int)root, path->data);
}
