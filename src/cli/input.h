/* The texts a command works on: from arguments, lines of a file or of standard input, or one JSON value a line.
 *
 * Items come one by one, so that memory holds what the caller keeps and one line. Errors name the source and the line. */
#ifndef CLI_INPUT_H
#define CLI_INPUT_H

#include <stdio.h>

#include "cli/cli.h"
#include "format/json.h"

/* A longer line is an error rather than an endless allocation. */
#define CLI_MAX_LINE ((size_t)1 << 28)

typedef struct cli_item {
    enum { CLI_ITEM_TEXT, CLI_ITEM_PAIR, CLI_ITEM_IDS } kind;
    lt_str text, pair; /* valid until the next item is read */
    const uint32_t *ids;
    size_t n_ids;
} cli_item;

typedef struct cli_input {
    char **operands; /* texts given as arguments; NULL: lines are read */
    size_t n_operands, at;
    FILE *file;
    const char *name; /* "standard input" or the file's path */
    bool jsonl;
    bool allow_pairs, allow_ids; /* what JSON lines may hold besides texts */
    const char *text_key;        /* what an object calls its text; NULL: "text" */
    char *line;
    size_t line_capacity;
    uint64_t line_number;
    uint64_t bytes_read, bytes_total; /* total 0: not known */
    lt_json json;                     /* of the current line */
    bool json_open;
    lt_buf text, pair;
    uint32_t *ids;
    size_t ids_capacity;
} cli_input;

/* Operands are the texts when there are any; else `path`, or standard input when it is NULL or "-". Operands together with a
 * path or jsonl are a wrong usage. Prints its error and returns an exit status. */
int cli_input_open(cli_input *input, const cli_command *command, char **operands, size_t n_operands, const char *path,
                   bool jsonl);
void cli_input_close(cli_input *input);

/* The next item; *more false at the end. Blank lines are empty texts, but are skipped between JSON values. */
lattice_status cli_input_next(cli_input *input, cli_item *item, bool *more, lattice_error *err);

/* For commands whose JSON lines hold something else: the next line that is not blank, opened for reading until the next call;
 * *json NULL at the end. A failure while it is read goes through cli_input_name_line, which puts the line's number into it. */
lattice_status cli_input_json(cli_input *input, lt_json **json, lattice_error *err);
void cli_input_name_line(const cli_input *input, lattice_error *err);

#endif
