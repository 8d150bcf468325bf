/* Options of a command: one table each, from which arguments are parsed and --help, shell completions and the man page are made.
 *
 * A row says where its value goes by an offset into the command's own argument structure, which starts zeroed with every
 * `fallback` parsed into it. `--name value`, `--name=value`, `-n value`, `-nvalue`; options and operands mix; `--` ends options.
 */
#ifndef CLI_OPTIONS_H
#define CLI_OPTIONS_H

#include <stddef.h>
#include <stdint.h>

#include "base/bytes.h"

typedef enum cli_option_kind {
    CLI_FLAG,    /* bool */
    CLI_STRING,  /* const char * */
    CLI_CHOICE,  /* const char *: one of `choices` */
    CLI_SIZE,    /* size_t, min..max */
    CLI_NUMBER,  /* double, min..max */
    CLI_STRINGS, /* cli_strings: may be repeated */
} cli_option_kind;

typedef struct cli_strings {
    const char **items;
    size_t n, capacity;
} cli_strings;

typedef struct cli_option {
    const char *name; /* long name without dashes; NULL ends a table */
    char letter;      /* short name, or 0 */
    cli_option_kind kind;
    size_t offset;        /* of the value in the command's arguments */
    const char *value;    /* what the value is called in help: "FILE"; also tells completions about files and folders */
    const char *choices;  /* "a|b|c": the values of a CLI_CHOICE; for a CLI_STRING only what completions offer */
    const char *fallback; /* default as it would be typed; NULL: none */
    double min, max;      /* CLI_SIZE, CLI_NUMBER; max 0: no limit */
    const char *help;     /* one sentence, no full stop */
} cli_option;

typedef struct cli_command {
    const char *name;
    const char *operands;    /* for the usage line: "[TEXT…]", "" */
    const char *summary;     /* half a line for `lattice help` */
    const char *description; /* paragraphs for --help and the man page; lines under 80 columns */
    const char *examples;    /* shell lines for --help and the man page; may be NULL */
    const cli_option *options;
    size_t arguments_size;
    size_t min_operands, max_operands; /* max SIZE_MAX: any number */
    /* Returns the exit status. */
    int (*run)(void *arguments, char **operands, size_t n_operands);
    bool hidden; /* not listed */
} cli_command;

/* Parses argv[0..argc) (without program and command name) into `arguments` (command->arguments_size bytes, cleared here).
 * Operands are moved to the front of argv, *n_operands of them. *help is set when --help or -h was given; nothing else is
 * checked then. A wrong usage prints its one line and returns 2, else 0. */
int cli_options_parse(const cli_command *command, int argc, char **argv, void *arguments, size_t *n_operands, bool *help);
/* Frees what CLI_STRINGS options hold. */
void cli_options_free(const cli_command *command, void *arguments);

/* The text of `lattice COMMAND --help`. */
void cli_options_help(const cli_command *command, lt_buf *out);

/* The choice nearest to `word` by edit distance, NULL when none is near; for "did you mean". */
const char *cli_nearest(const char *word, const char *const *choices, size_t n);

#endif
