/* The option parser and the text of --help. See options.h.
 *
 * A value is checked where it is read, so that a command starts only when its whole line is right. The text of --help is
 * computed from the same rows: a default shown is the default parsed. */
#include "cli/options.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"

enum { HELP_WIDTH = 80, HELP_COLUMN = 26 };

/* ------------------------------------------------------------------ suggestions */

/* Optimal string alignment distance (insert, delete, replace, swap of neighbours) of two short words. */
static size_t edit_distance(const char *a, const char *b)
{
    enum { LIMIT = 32 };
    size_t n = strlen(a), m = strlen(b);
    if (n > LIMIT || m > LIMIT) return SIZE_MAX;
    size_t rows[3][LIMIT + 1];
    size_t *before = rows[0], *last = rows[1], *now = rows[2];
    for (size_t j = 0; j <= m; j++) last[j] = j;
    for (size_t i = 1; i <= n; i++) {
        now[0] = i;
        for (size_t j = 1; j <= m; j++) {
            size_t best = last[j - 1] + (a[i - 1] != b[j - 1]);
            if (last[j] + 1 < best) best = last[j] + 1;
            if (now[j - 1] + 1 < best) best = now[j - 1] + 1;
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] && before[j - 2] + 1 < best)
                best = before[j - 2] + 1;
            now[j] = best;
        }
        size_t *spare = before;
        before = last;
        last = now;
        now = spare;
    }
    return last[m];
}

const char *cli_nearest(const char *word, const char *const *choices, size_t n)
{
    const char *nearest = NULL;
    size_t best = strlen(word) / 3 + 1;
    for (size_t i = 0; i < n; i++) {
        size_t distance = edit_distance(word, choices[i]);
        if (distance <= best && distance < strlen(choices[i])) {
            if (distance == best && nearest) continue;
            best = distance;
            nearest = choices[i];
        }
    }
    return nearest;
}

static size_t option_count(const cli_command *command)
{
    size_t n = 0;
    while (command->options[n].name) n++;
    return n;
}

static int unknown_option(const cli_command *command, const char *shown, const char *name)
{
    enum { LIMIT = 64 };
    const char *names[LIMIT];
    size_t n = 0;
    for (size_t i = 0; i < option_count(command) && n < LIMIT - 1; i++) names[n++] = command->options[i].name;
    names[n++] = "help";
    const char *nearest = name ? cli_nearest(name, names, n) : NULL;
    if (nearest) return cli_usage(command, "unknown option '%s'; did you mean '--%s'?", shown, nearest);
    if (!name && command->max_operands > 0)
        return cli_usage(command, "unknown option '%s'; put -- before operands that begin with '-'", shown);
    return cli_usage(command, "unknown option '%s'", shown);
}

/* ------------------------------------------------------------------ values */

static bool is_choice(const char *choices, const char *text)
{
    size_t n = strlen(text);
    for (const char *c = choices; c;) {
        const char *end = strchr(c, '|');
        size_t len = end ? (size_t)(end - c) : strlen(c);
        if (len == n && memcmp(c, text, n) == 0) return true;
        c = end ? end + 1 : NULL;
    }
    return false;
}

/* "a, b or c" */
static void list_choices(const char *choices, lt_buf *out)
{
    for (const char *c = choices; c;) {
        const char *end = strchr(c, '|');
        size_t len = end ? (size_t)(end - c) : strlen(c);
        if (c != choices) lt_buf_append_z(out, end ? ", " : " or ");
        lt_buf_append(out, c, len);
        c = end ? end + 1 : NULL;
    }
}

/* Reads a decimal number without sign, exponent or spaces into *out; false: not one, or over SIZE_MAX. */
static bool read_size(const char *text, size_t *out)
{
    size_t value = 0;
    if (!*text) return false;
    for (const char *c = text; *c; c++) {
        if (*c < '0' || *c > '9') return false;
        if (__builtin_mul_overflow(value, (size_t)10, &value) || __builtin_add_overflow(value, (size_t)(*c - '0'), &value))
            return false;
    }
    *out = value;
    return true;
}

static int bad_number(const cli_command *command, const cli_option *option, const char *text, const char *what)
{
    if (option->max > 0)
        return cli_usage(command, "--%s must be %s from %g to %.0f, not '%s'", option->name, what, option->min, option->max,
                         text);
    return cli_usage(command, "--%s must be %s of at least %g, not '%s'", option->name, what, option->min, text);
}

static int set_value(const cli_command *command, const cli_option *option, const char *text, void *arguments)
{
    char *target = (char *)arguments + option->offset;
    switch (option->kind) {
    case CLI_FLAG: *(bool *)(void *)target = true; return 0;
    case CLI_STRING: *(const char **)(void *)target = text; return 0;
    case CLI_CHOICE:
        if (!is_choice(option->choices, text)) {
            lt_buf list;
            lt_buf_init(&list, cli_memory);
            list_choices(option->choices, &list);
            int code =
                cli_usage(command, "--%s must be %s, not '%s'", option->name, list.data ? list.data : "another value", text);
            lt_buf_free(&list);
            return code;
        }
        *(const char **)(void *)target = text;
        return 0;
    case CLI_SIZE: {
        size_t value;
        if (!read_size(text, &value) || (double)value < option->min || (option->max > 0 && (double)value > option->max))
            return bad_number(command, option, text, "a whole number");
        *(size_t *)(void *)target = value;
        return 0;
    }
    case CLI_NUMBER: {
        char *end;
        errno = 0;
        double value = strtod(text, &end);
        if (end == text || *end || errno || !isfinite(value) || value < option->min || (option->max > 0 && value > option->max))
            return bad_number(command, option, text, "a number");
        *(double *)(void *)target = value;
        return 0;
    }
    case CLI_STRINGS: {
        cli_strings *list = (cli_strings *)(void *)target;
        if (!LT_GROW(cli_memory, list->items, list->capacity, list->n + 1)) return cli_failf("out of memory");
        list->items[list->n++] = text;
        return 0;
    }
    }
    return 0;
}

/* ------------------------------------------------------------------ parsing */

static const cli_option *find_long(const cli_command *command, const char *name, size_t len)
{
    for (const cli_option *o = command->options; o->name; o++)
        if (strlen(o->name) == len && memcmp(o->name, name, len) == 0) return o;
    return NULL;
}

static const cli_option *find_short(const cli_command *command, char letter)
{
    for (const cli_option *o = command->options; o->name; o++)
        if (o->letter && o->letter == letter) return o;
    return NULL;
}

static int parse_long(const cli_command *command, int argc, char **argv, int *at, void *arguments)
{
    const char *shown = argv[*at], *name = shown + 2;
    const char *equals = strchr(name, '=');
    size_t len = equals ? (size_t)(equals - name) : strlen(name);
    const cli_option *option = find_long(command, name, len);
    if (!option) {
        char word[64];
        snprintf(word, sizeof word, "%.*s", (int)(len < 63 ? len : 63), name);
        char dashed[80];
        snprintf(dashed, sizeof dashed, "--%s", word);
        return unknown_option(command, dashed, word);
    }
    if (option->kind == CLI_FLAG) {
        if (equals) return cli_usage(command, "--%s takes no value", option->name);
        return set_value(command, option, NULL, arguments);
    }
    if (equals) return set_value(command, option, equals + 1, arguments);
    if (*at + 1 >= argc) return cli_usage(command, "--%s needs a value: %s", option->name, option->value);
    return set_value(command, option, argv[++*at], arguments);
}

/* "-m M", "-mM", and flags together: "-abm M". */
static int parse_short(const cli_command *command, int argc, char **argv, int *at, void *arguments)
{
    for (const char *c = argv[*at] + 1; *c; c++) {
        const cli_option *option = find_short(command, *c);
        if (!option) return unknown_option(command, argv[*at], NULL);
        if (option->kind == CLI_FLAG) {
            int code = set_value(command, option, NULL, arguments);
            if (code) return code;
            continue;
        }
        if (c[1]) return set_value(command, option, c + 1, arguments);
        if (*at + 1 >= argc) return cli_usage(command, "-%c needs a value: %s", option->letter, option->value);
        return set_value(command, option, argv[++*at], arguments);
    }
    return 0;
}

/* --help counts anywhere before "--", even beside a mistake, but not as the value of another option. */
static bool asks_for_help(const cli_command *command, int argc, char **argv)
{
    for (int i = 0; i < argc; i++) {
        if (strcmp(argv[i], "--") == 0) return false;
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) return true;
        const cli_option *option = NULL;
        if (argv[i][0] == '-' && argv[i][1] == '-' && !strchr(argv[i], '='))
            option = find_long(command, argv[i] + 2, strlen(argv[i] + 2));
        else if (argv[i][0] == '-' && argv[i][1] && !argv[i][2])
            option = find_short(command, argv[i][1]);
        if (option && option->kind != CLI_FLAG) i++;
    }
    return false;
}

int cli_options_parse(const cli_command *command, int argc, char **argv, void *arguments, size_t *n_operands, bool *help)
{
    memset(arguments, 0, command->arguments_size);
    *n_operands = 0;
    *help = asks_for_help(command, argc, argv);
    if (*help) return 0;
    for (const cli_option *o = command->options; o->name; o++) {
        if (!o->fallback) continue;
        int code = set_value(command, o, o->fallback, arguments);
        if (code) return code;
    }
    size_t n = 0;
    bool ended = false;
    for (int i = 0; i < argc; i++) {
        const char *word = argv[i];
        if (ended || word[0] != '-' || !word[1]) {
            argv[n++] = argv[i];
        } else if (strcmp(word, "--") == 0) {
            ended = true;
        } else {
            int code =
                word[1] == '-' ? parse_long(command, argc, argv, &i, arguments) : parse_short(command, argc, argv, &i, arguments);
            if (code) return code;
        }
    }
    if (n > command->max_operands) return cli_usage(command, "unexpected argument '%s'", argv[command->max_operands]);
    if (n < command->min_operands) return cli_usage(command, "missing argument: %s", command->operands);
    *n_operands = n;
    return 0;
}

void cli_options_free(const cli_command *command, void *arguments)
{
    for (const cli_option *o = command->options; o->name; o++)
        if (o->kind == CLI_STRINGS) lt_free(cli_memory, ((cli_strings *)(void *)((char *)arguments + o->offset))->items);
}

/* ------------------------------------------------------------------ help */

/* Columns that UTF-8 text takes, one a code point (the help has no wide or combining characters). */
static size_t columns(const char *text, size_t len)
{
    size_t n = 0;
    for (size_t i = 0; i < len; i++) n += ((unsigned char)text[i] & 0xC0) != 0x80;
    return n;
}

/* Appends text from `column` on, broken at spaces before HELP_WIDTH, later lines indented to HELP_COLUMN. */
static void wrap(lt_buf *out, const char *text, size_t column)
{
    bool first = true;
    while (*text) {
        size_t len = strcspn(text, " ");
        size_t width = columns(text, len);
        if (!first && column + 1 + width > HELP_WIDTH) {
            lt_buf_printf(out, "\n%*s", HELP_COLUMN, "");
            column = HELP_COLUMN;
        } else if (!first) {
            lt_buf_byte(out, ' ');
            column++;
        }
        lt_buf_append(out, text, len);
        column += width;
        text += len;
        while (*text == ' ') text++;
        first = false;
    }
}

static void help_row(lt_buf *out, char letter, const char *name, const char *value, const char *text)
{
    size_t begin = out->len;
    if (letter)
        lt_buf_printf(out, "  -%c, --%s", letter, name);
    else
        lt_buf_printf(out, "      --%s", name);
    if (value) lt_buf_printf(out, " %s", value);
    size_t column = out->data ? columns(out->data + begin, out->len - begin) : 0;
    if (column + 2 > HELP_COLUMN) {
        lt_buf_byte(out, '\n');
        column = 0;
    }
    lt_buf_printf(out, "%*s", (int)(HELP_COLUMN - column), "");
    wrap(out, text, HELP_COLUMN);
    lt_buf_byte(out, '\n');
}

void cli_options_help(const cli_command *command, lt_buf *out)
{
    lt_buf_printf(out, "Usage: lattice %s%s%s%s\n\n%s\n\nOptions:\n", command->name, command->options[0].name ? " [OPTIONS]" : "",
                  command->operands[0] ? " " : "", command->operands, command->description);
    for (const cli_option *o = command->options; o->name; o++) {
        lt_buf text;
        lt_buf_init(&text, cli_memory);
        /* The choices go before a default that the sentence itself speaks of. */
        const char *tail = strstr(o->help, " (default");
        size_t head = tail ? (size_t)(tail - o->help) : strlen(o->help);
        lt_buf_append(&text, o->help, head);
        if (o->kind == CLI_CHOICE) {
            lt_buf_append_z(&text, ": ");
            list_choices(o->choices, &text);
        }
        lt_buf_append_z(&text, o->help + head);
        if (o->kind == CLI_STRINGS) lt_buf_append_z(&text, "; may be repeated");
        if (o->fallback) lt_buf_printf(&text, " (default: %s)", o->fallback);
        help_row(out, o->letter, o->name, o->value, text.data ? text.data : "");
        lt_buf_free(&text);
    }
    help_row(out, 'h', "help", NULL, "print this");
    if (command->examples) lt_buf_printf(out, "\nExamples:\n%s\n", command->examples);
}
