/* Errors, interruption, runtime: what every command needs. See cli.h. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cli/progress.h"

const lattice_allocator *const cli_memory = &lt_malloc_allocator;

/* ------------------------------------------------------------------ errors */

/* One line on standard error, the progress bar wiped first; control characters (the message may quote an argument) are '?'. */
static void say(const char *kind, const char *message, const char *tail)
{
    cli_progress_wipe();
    lattice_error clean;
    lt_fail(&clean, LATTICE_ERR_INTERNAL, "%s", message);
    fprintf(stderr, "lattice: %s%s%s\n", kind, clean.message, tail);
}

static void vsay(const char *kind, const char *tail, const char *format, va_list arguments) __attribute__((format(printf, 3, 0)));

static void vsay(const char *kind, const char *tail, const char *format, va_list arguments)
{
    char message[1024];
    vsnprintf(message, sizeof message, format, arguments);
    say(kind, message, tail);
}

int cli_fail(const lattice_error *err)
{
    say("error: ", err->message, "");
    return CLI_FAILED;
}

int cli_failf(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsay("error: ", "", format, arguments);
    va_end(arguments);
    return CLI_FAILED;
}

int cli_usage(const cli_command *command, const char *format, ...)
{
    char tail[64];
    if (command)
        snprintf(tail, sizeof tail, " (see lattice %s --help)", command->name);
    else
        snprintf(tail, sizeof tail, " (see lattice help)");
    va_list arguments;
    va_start(arguments, format);
    vsay("error: ", tail, format, arguments);
    va_end(arguments);
    return CLI_USAGE;
}

void cli_warn(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsay("warning: ", "", format, arguments);
    va_end(arguments);
}

void cli_note(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsay("", "", format, arguments);
    va_end(arguments);
}

bool cli_print(lt_str text)
{
    fwrite(text.data, 1, text.len, stdout);
    if (fflush(stdout) == 0 && !ferror(stdout)) return true;
    cli_failf("standard output: %s", strerror(errno));
    return false;
}

/* ------------------------------------------------------------------ interruption */

volatile sig_atomic_t cli_interrupted;

static void interrupted(int signal_number)
{
    (void)signal_number;
    cli_interrupted = 1;
}

void cli_catch_interrupts(void)
{
    /* SA_RESETHAND: the second signal has its usual effect. No SA_RESTART: a read from a terminal returns. */
    struct sigaction action = { .sa_handler = interrupted, .sa_flags = (int)SA_RESETHAND };
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
}

/* ------------------------------------------------------------------ runtime */

static void print_log(void *user, lattice_log_level level, const char *message)
{
    (void)user;
    static const char *const kinds[] = { "error: ", "warning: ", "info: ", "debug: " };
    say(kinds[level], message, "");
}

/* $XDG_CACHE_HOME/lattice or ~/.cache/lattice; false: nowhere. */
static bool cache_folder(char *path, size_t size)
{
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    int n = 0;
    if (cache && cache[0] == '/')
        n = snprintf(path, size, "%s/lattice", cache);
    else if (home && home[0] == '/')
        n = snprintf(path, size, "%s/.cache/lattice", home);
    return n > 0 && (size_t)n < size;
}

lattice_status cli_runtime(const cli_common *common, lattice_runtime **runtime, lattice_error *err)
{
    static const char *const levels[] = { "error", "warning", "info", "debug" };
    lattice_runtime_options options = lattice_runtime_options_default();
    options.n_threads = (int)common->threads;
    options.log = print_log;
    char cache[1024];
    if (cache_folder(cache, sizeof cache)) options.cache_dir = cache;
    for (int i = 0; common->log_level && i < 4; i++)
        if (strcmp(common->log_level, levels[i]) == 0) options.log_level = (lattice_log_level)i;
    return lattice_runtime_create(&options, runtime, err);
}

lattice_model_options cli_model_options(const cli_common *common)
{
    static const char *const names[] = { "auto", "f32", "bf16", "int8" };
    lattice_model_options options = lattice_model_options_default();
    for (int i = 0; common->compute && i < 4; i++)
        if (strcmp(common->compute, names[i]) == 0) options.compute = (lattice_compute)i;
    options.device = common->device;
    options.isa = common->isa;
    options.no_mmap = common->no_mmap;
    return options;
}
