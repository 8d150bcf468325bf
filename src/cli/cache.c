/* lattice cache: the embedding cache's file, looked at and moved. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"
#include "format/json.h"

typedef struct cache_arguments {
    cli_common common;
    const char *input, *output, *format;
} cache_arguments;

#define AT(field) offsetof(cache_arguments, field)
// clang-format off
static const cli_option options[] = {
    { "model",  'm', CLI_STRING, AT(common.model), "MODEL", NULL, NULL, 0, 0, "export the vectors of this model with its default options (default: all, when they are of one model)" },
    { "input",  'i', CLI_STRING, AT(input),        "FILE", NULL, NULL, 0, 0, "import: read FILE instead of standard input" },
    { "output", 'o', CLI_STRING, AT(output),       "FILE", NULL, NULL, 0, 0, "export: write FILE instead of standard output" },
    { "format", 'f', CLI_CHOICE, AT(format),       "FORMAT", "flat", "flat", 0, 0, "form of what is imported or exported" },
    CLI_OPTIONS_RUN(cache_arguments),
    CLI_OPTIONS_JSON(cache_arguments, "stats: as a JSON object"),
    CLI_OPTIONS_LOG(cache_arguments),
    { 0 },
};
// clang-format on
#undef AT

/* ------------------------------------------------------------------ actions */

static lattice_status print_stats(lattice_cache *cache, const cache_arguments *arguments, lattice_error *err)
{
    lattice_cache_stats stats;
    lattice_cache_get_stats(cache, &stats);
    lt_buf out;
    lt_buf_init(&out, cli_memory);
    if (arguments->common.json)
        lt_buf_printf(&out, "{\"entries\":%llu,\"unverified_entries\":%llu,\"bytes\":%llu}\n",
                      (unsigned long long)stats.disk_entries, (unsigned long long)stats.unverified_entries,
                      (unsigned long long)stats.disk_bytes);
    else
        lt_buf_printf(&out, "vectors   %llu\nimported  %llu\nbytes     %llu\n", (unsigned long long)stats.disk_entries,
                      (unsigned long long)stats.unverified_entries, (unsigned long long)stats.disk_bytes);
    lattice_status status = LATTICE_OK;
    if (out.failed)
        status = lt_no_memory(err, 0, "statistics");
    else if (!cli_print(lt_buf_str(&out)))
        status = lt_fail(err, LATTICE_ERR_IO, "%s", ""); /* said already */
    lt_buf_free(&out);
    return status;
}

/* A file of its own for what comes from or goes to a pipe. */
static lattice_status temporary_file(char path[64], FILE **file, lattice_error *err)
{
    snprintf(path, 64, "/tmp/lattice-cache-XXXXXX");
    int fd = mkstemp(path);
    *file = fd < 0 ? NULL : fdopen(fd, "w+b");
    return *file ? LATTICE_OK : lt_fail(err, LATTICE_ERR_IO, "%s: %s", path, strerror(errno));
}

static lattice_status copy(FILE *from, FILE *to, const char *what, lattice_error *err)
{
    char block[1 << 16];
    for (size_t n; (n = fread(block, 1, sizeof block, from)) > 0;)
        if (fwrite(block, 1, n, to) != n) break;
    if (ferror(from) || ferror(to) || fflush(to) != 0) return lt_fail(err, LATTICE_ERR_IO, "%s: %s", what, strerror(errno));
    return LATTICE_OK;
}

static lattice_status import_flat(lattice_cache *cache, const cache_arguments *arguments, uint64_t *n, lattice_error *err)
{
    if (arguments->input) return lattice_cache_import(cache, arguments->input, n, err);
    char path[64];
    FILE *file;
    LT_TRY(temporary_file(path, &file, err));
    lattice_status status = copy(stdin, file, "standard input", err);
    if (status == LATTICE_OK) status = lattice_cache_import(cache, path, n, err);
    fclose(file);
    unlink(path);
    return status;
}

static lattice_status export_to(lattice_cache *cache, lattice_model *model, const char *output, uint64_t *n, lattice_error *err)
{
    if (output) return lattice_cache_export(cache, output, model, NULL, n, err);
    char path[64];
    FILE *file;
    LT_TRY(temporary_file(path, &file, err));
    fclose(file);
    lattice_status status = lattice_cache_export(cache, path, model, NULL, n, err);
    if (status == LATTICE_OK) {
        file = fopen(path, "rb");
        status =
            file ? copy(file, stdout, "standard output", err) : lt_fail(err, LATTICE_ERR_IO, "%s: %s", path, strerror(errno));
        if (file) fclose(file);
    }
    unlink(path);
    return status;
}

static lattice_status export_flat(lattice_runtime *runtime, lattice_cache *cache, const cache_arguments *arguments, uint64_t *n,
                                  lattice_error *err)
{
    if (!arguments->common.model) return export_to(cache, NULL, arguments->output, n, err);
    lattice_model_options model_options = cli_model_options(&arguments->common);
    model_options.tokenizer_optional = true;
    lattice_model *model = NULL;
    lt_buf folder;
    lt_buf_init(&folder, cli_memory);
    lattice_status status = cli_find_model(arguments->common.model, &folder, err);
    if (status == LATTICE_OK) status = lattice_model_open(runtime, folder.data, &model_options, &model, err);
    if (status == LATTICE_OK) status = export_to(cache, model, arguments->output, n, err);
    lattice_model_close(model);
    lt_buf_free(&folder);
    return status;
}

/* ------------------------------------------------------------------ the command */

enum { STATS, IMPORT, EXPORT, CLEAR, N_ACTIONS };
static const char *const actions[] = { "stats", "import", "export", "clear" };

static lattice_status act(int action, lattice_runtime *runtime, lattice_cache *cache, const cache_arguments *arguments,
                          lattice_error *err)
{
    uint64_t n = 0;
    if (action == STATS) return print_stats(cache, arguments, err);
    if (action == CLEAR) return lattice_cache_clear(cache, err);
    if (action == IMPORT)
        LT_TRY(import_flat(cache, arguments, &n, err));
    else
        LT_TRY(export_flat(runtime, cache, arguments, &n, err));
    cli_note("%llu vectors %s", (unsigned long long)n, action == IMPORT ? "imported" : "exported");
    return LATTICE_OK;
}

static int run(void *opaque, char **operands, size_t n_operands)
{
    cache_arguments *arguments = opaque;
    const cli_command *command = &cli_cache_command;
    (void)n_operands;
    int action = 0;
    while (action < N_ACTIONS && strcmp(operands[0], actions[action]) != 0) action++;
    if (action == N_ACTIONS) return cli_usage(command, "'%s' is none of stats, import, export and clear", operands[0]);
    if (action == EXPORT && !arguments->output && isatty(STDOUT_FILENO) == 1)
        return cli_usage(command, "the flat file is not for a terminal; use --output FILE");
    if (action == IMPORT && !arguments->input && isatty(STDIN_FILENO) == 1)
        return cli_usage(command, "nothing to import: --input FILE");
    lattice_runtime *runtime = NULL;
    lattice_cache *cache = NULL;
    lattice_error err = { 0 };
    lattice_cache_options cache_options = lattice_cache_options_default();
    cache_options.path = operands[1];
    cache_options.read_only = action == STATS || action == EXPORT;
    lattice_status status = LATTICE_OK;
    if (action == CLEAR && !lt_path_exists(operands[1]))
        status = lt_fail(&err, LATTICE_ERR_NOT_FOUND, "%s: no such file", operands[1]);
    if (status == LATTICE_OK) status = cli_runtime(&arguments->common, &runtime, &err);
    if (status == LATTICE_OK) status = lattice_cache_open(runtime, &cache_options, &cache, &err);
    if (status == LATTICE_OK) {
        lattice_cache_stats stats;
        lattice_cache_get_stats(cache, &stats);
        if (stats.disk)
            status = act(action, runtime, cache, arguments, &err);
        else
            status = lt_fail(&err, LATTICE_ERR_IO, "%s: cannot be used", operands[1]);
    }
    lattice_cache_close(cache);
    lattice_runtime_free(runtime);
    if (status == LATTICE_OK) return CLI_DONE;
    return err.message[0] ? cli_fail(&err) : CLI_FAILED;
}

const cli_command cli_cache_command = {
    .name = "cache",
    .operands = "stats|import|export|clear PATH",
    .summary = "the file of `embed --cache`",
    .description = "stats prints how many vectors the file PATH has. export writes them as a flat file,\n"
                   "{hash u64, dim u32, dim float32} an entry, little-endian, hash being the 64-bit FNV-1a of\n"
                   "the token ids as little-endian u32. import reads such a file; it does not say which\n"
                   "model its vectors are of, so they are used only by `embed --cache-unverified`. clear\n"
                   "removes everything.",
    .examples = "  lattice cache stats vectors.cache\n"
                "  lattice cache export vectors.cache -o vectors.flat\n"
                "  lattice cache import vectors.cache -i vectors.flat",
    .options = options,
    .arguments_size = sizeof(cache_arguments),
    .min_operands = 2,
    .max_operands = 2,
    .run = run,
};
