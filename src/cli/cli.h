/* What the commands share: the table of commands, common options, errors, interruption, opening runtime and model.
 *
 * Results go to standard output, everything else to standard error. Exit status: 0 done, 1 failed, 2 wrong usage. The
 * environment is read here and nowhere below. To add a command: define a cli_command in a file of its own, declare it here, and
 * add it to the table in commands.c. */
#ifndef CLI_CLI_H
#define CLI_CLI_H

#include <signal.h>

#include "base/file.h"
#include "cli/options.h"
#include "lattice.h"

enum { CLI_DONE = 0, CLI_FAILED = 1, CLI_USAGE = 2 };

/* The commands, in the order of `lattice help`; *n of them. */
const cli_command *const *cli_commands(size_t *n);
const cli_command *cli_find_command(const char *name);

extern const cli_command cli_embed_command;
extern const cli_command cli_rerank_command;
extern const cli_command cli_generate_command;
extern const cli_command cli_chat_command;
extern const cli_command cli_logits_command;
extern const cli_command cli_perplexity_command;
extern const cli_command cli_tokenize_command;
extern const cli_command cli_inspect_command;
extern const cli_command cli_cache_command;
extern const cli_command cli_quantize_command;
extern const cli_command cli_bench_command;
extern const cli_command cli_version_command;
extern const cli_command cli_serve_command;
extern const cli_command cli_pull_command;
extern const cli_command cli_completions_command;

/* ------------------------------------------------------------------ common options */

typedef struct cli_common {
    const char *model;
    size_t threads;
    const char *compute, *device, *isa;
    bool no_mmap;
    const char *log_level;
    bool json;
} cli_common;

/* Rows for a command's table; `type` is its argument structure, which has a `cli_common common`. */
// clang-format off
#define CLI_OPTION_MODEL(type) \
    { "model", 'm', CLI_STRING, offsetof(type, common.model), "MODEL", NULL, NULL, 0, 0, \
      "a folder in the Hugging Face layout, or the name of a model that has been fetched (required)" }
#define CLI_OPTIONS_LOG(type) \
    { "log-level", 0, CLI_CHOICE, offsetof(type, common.log_level), "LEVEL", "error|warning|info|debug", "warning", 0, 0, \
      "what is reported on standard error" }
#define CLI_OPTIONS_JSON(type, help_text) \
    { "json", 0, CLI_FLAG, offsetof(type, common.json), NULL, NULL, NULL, 0, 0, help_text }
#define CLI_OPTIONS_THREADS(type) \
    { "threads", 0, CLI_SIZE, offsetof(type, common.threads), "N", NULL, NULL, 1, 1024, \
      "compute threads (default: one per available CPU)" }
#define CLI_OPTIONS_RUN(type) \
    CLI_OPTIONS_THREADS(type), \
    { "compute", 0, CLI_CHOICE, offsetof(type, common.compute), "TYPE", "auto|f32|bf16|int8", "auto", 0, 0, \
      "arithmetic of the matrix products" }, \
    { "device", 0, CLI_STRING, offsetof(type, common.device), "DEVICE", "auto|cpu|cuda|metal", "auto", 0, 0, \
      "auto, cpu, cuda, cuda:N, metal; cuda:N,M or cuda:all share the work of several GPUs" }, \
    { "isa", 0, CLI_STRING, offsetof(type, common.isa), "SET", "auto|scalar|avx2|avx512|avx512bf16|avx512amx|neon|neonbf16", "auto", 0, 0, \
      "instruction set; `lattice version` lists those that this machine has" }, \
    { "no-mmap", 0, CLI_FLAG, offsetof(type, common.no_mmap), NULL, NULL, NULL, 0, 0, \
      "read model files into memory instead of mapping them" }
// clang-format on

/* ------------------------------------------------------------------ errors */

/* Prints "lattice: error: MESSAGE" and returns CLI_FAILED. */
int cli_fail(const lattice_error *err);
int cli_failf(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Prints "lattice: error: MESSAGE (see lattice COMMAND --help)" and returns CLI_USAGE; command NULL: "lattice help". */
int cli_usage(const cli_command *command, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* "lattice: warning: MESSAGE" and "lattice: MESSAGE". */
void cli_warn(const char *format, ...) __attribute__((format(printf, 1, 2)));
void cli_note(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* The memory of everything in cli/: malloc's. */
extern const lattice_allocator *const cli_memory;

/* Writes all of it to standard output at once; false (and the error is printed) when that fails. */
bool cli_print(lt_str text);

/* ------------------------------------------------------------------ interruption */

/* From here on the first SIGINT or SIGTERM only sets cli_interrupted; a second one ends the program. */
extern volatile sig_atomic_t cli_interrupted;
void cli_catch_interrupts(void);

/* ------------------------------------------------------------------ runtime and models */

lattice_status cli_runtime(const cli_common *common, lattice_runtime **runtime, lattice_error *err);
lattice_model_options cli_model_options(const cli_common *common);

/* The folder that fetched models are kept in: $XDG_DATA_HOME/lattice/models, else $HOME/.local/share/lattice/models.
 * LATTICE_ERR_NOT_FOUND when neither variable is set. */
lattice_status cli_models_folder(lt_buf *path, lattice_error *err);
/* The folder that -m NAME means: NAME when it is a folder, else that name under cli_models_folder (it may be ORG/NAME). */
lattice_status cli_find_model(const char *name, lt_buf *path, lattice_error *err);

#endif
