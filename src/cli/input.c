/* Reading texts. See input.h. */
#include "cli/input.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int cli_input_open(cli_input *input, const cli_command *command, char **operands, size_t n_operands, const char *path, bool jsonl)
{
    memset(input, 0, sizeof *input);
    lt_buf_init(&input->text, cli_memory);
    lt_buf_init(&input->pair, cli_memory);
    input->jsonl = jsonl;
    if (n_operands) {
        if (path) return cli_usage(command, "texts come from arguments or from --input, not both");
        if (jsonl) return cli_usage(command, "--jsonl reads --input or standard input, not arguments");
        input->operands = operands;
        input->n_operands = n_operands;
        return 0;
    }
    if (!path || strcmp(path, "-") == 0) {
        input->file = stdin;
        input->name = "standard input";
        if (isatty(STDIN_FILENO))
            cli_note("reading %s from the terminal, one a line; Ctrl-D ends", jsonl ? "JSON values" : "texts");
        return 0;
    }
    input->name = path;
    input->file = fopen(path, "rb");
    if (!input->file) return cli_failf("%s: %s", path, strerror(errno));
    struct stat info;
    if (fstat(fileno(input->file), &info) == 0) {
        if (S_ISDIR(info.st_mode)) return cli_failf("%s: is a folder", path);
        if (S_ISREG(info.st_mode)) input->bytes_total = (uint64_t)info.st_size;
    }
    return 0;
}

void cli_input_close(cli_input *input)
{
    if (input->json_open) lt_json_close(&input->json);
    if (input->file && input->file != stdin) fclose(input->file);
    lt_free(cli_memory, input->line);
    lt_free(cli_memory, input->ids);
    lt_buf_free(&input->text);
    lt_buf_free(&input->pair);
    memset(input, 0, sizeof *input);
}

/* Reads up to and without "\n" or "\r\n"; *more false when nothing is left. NUL is a character. */
static lattice_status read_line(cli_input *input, lt_str *line, bool *more, lattice_error *err)
{
    size_t n = 0;
    int c = EOF;
    flockfile(input->file);
    while (!cli_interrupted && (c = getc_unlocked(input->file)) != EOF) {
        if (n == input->line_capacity && !LT_GROW(cli_memory, input->line, input->line_capacity, n + 1)) break;
        if (n == CLI_MAX_LINE || c == '\n') break;
        input->line[n++] = (char)c;
    }
    funlockfile(input->file);
    input->line_number++;
    input->bytes_read += n + (c == '\n');
    *more = false;
    if (cli_interrupted) return lt_fail(err, LATTICE_ERR_CANCELLED, "interrupted");
    if (c != EOF && n == CLI_MAX_LINE)
        return lt_fail(err, LATTICE_ERR_TOO_LONG, "%s:%llu: line longer than %zu bytes", input->name,
                       (unsigned long long)input->line_number, CLI_MAX_LINE);
    if (c != EOF && c != '\n') return lt_no_memory(err, n + 1, "a line");
    if (c == EOF && ferror(input->file)) return lt_fail(err, LATTICE_ERR_IO, "%s: %s", input->name, strerror(errno));
    if (c == EOF && n == 0) return LATTICE_OK;
    *more = true;
    if (c == '\n' && n > 0 && input->line[n - 1] == '\r') n--;
    *line = (lt_str){ n ? input->line : "", n };
    return LATTICE_OK;
}

/* ------------------------------------------------------------------ JSON lines */

static lattice_status copy_string(cli_input *input, lt_buf *to, lattice_error *err)
{
    lt_str s;
    LT_TRY(lt_json_string(&input->json, &s));
    lt_buf_clear(to);
    lt_buf_append(to, s.data, s.len);
    return to->failed ? lt_no_memory(err, s.len, "a text") : LATTICE_OK;
}

static lattice_status read_ids(cli_input *input, cli_item *item, lattice_error *err)
{
    size_t n = 0;
    LT_TRY(lt_json_begin_array(&input->json));
    for (;;) {
        bool more;
        LT_TRY(lt_json_next_element(&input->json, &more));
        if (!more) break;
        if (!LT_GROW(cli_memory, input->ids, input->ids_capacity, n + 1)) return lt_no_memory(err, n * 4, "token ids");
        LT_TRY(lt_json_uint32(&input->json, &input->ids[n]));
        n++;
    }
    item->kind = CLI_ITEM_IDS;
    item->ids = input->ids;
    item->n_ids = n;
    return LATTICE_OK;
}

/* {"text":…}, {"text":…,"pair":…} or {"ids":[…]}; other members are passed over, so that records can carry their own fields. */
static lattice_status read_object(cli_input *input, cli_item *item, lattice_error *err)
{
    const char *text_key = input->text_key ? input->text_key : "text";
    bool has_text = false, has_pair = false, has_ids = false;
    LT_TRY(lt_json_begin_object(&input->json));
    for (;;) {
        lt_str key;
        bool more;
        LT_TRY(lt_json_next_member(&input->json, &key, &more));
        if (!more) break;
        if (lt_str_is(key, text_key)) {
            LT_TRY(copy_string(input, &input->text, err));
            has_text = true;
        } else if (input->allow_pairs && lt_str_is(key, "pair")) {
            LT_TRY(copy_string(input, &input->pair, err));
            has_pair = true;
        } else if (input->allow_ids && lt_str_is(key, "ids")) {
            LT_TRY(read_ids(input, item, err));
            has_ids = true;
        } else {
            LT_TRY(lt_json_skip(&input->json));
        }
    }
    if (has_text && has_ids) return lt_json_fail(&input->json, "an item has a \"%s\" or \"ids\", not both", text_key);
    if (has_pair && !has_text) return lt_json_fail(&input->json, "a \"pair\" needs a \"text\" beside it");
    if (!has_text && !has_ids)
        return lt_json_fail(&input->json, input->allow_ids ? "an object needs a \"%s\" or \"ids\"" : "an object needs a \"%s\"",
                            text_key);
    if (has_text) {
        item->kind = has_pair ? CLI_ITEM_PAIR : CLI_ITEM_TEXT;
        item->text = lt_buf_str(&input->text);
        if (has_pair) item->pair = lt_buf_str(&input->pair);
    }
    return LATTICE_OK;
}

static void open_line(cli_input *input, lt_str line, lattice_error *err)
{
    if (input->json_open) lt_json_close(&input->json);
    lt_json_open(&input->json, cli_memory, input->name, line.data, line.len, err);
    input->json_open = true;
}

static lattice_status read_json(cli_input *input, lt_str line, cli_item *item, lattice_error *err)
{
    open_line(input, line, err);
    switch (lt_json_peek(&input->json)) {
    case LT_JSON_STRING:
        LT_TRY(copy_string(input, &input->text, err));
        item->kind = CLI_ITEM_TEXT;
        item->text = lt_buf_str(&input->text);
        break;
    case LT_JSON_OBJECT: LT_TRY(read_object(input, item, err)); break;
    case LT_JSON_INVALID: LT_TRY(lt_json_skip(&input->json)); break; /* reports what is wrong */
    default: return lt_json_fail(&input->json, "expected a string or an object");
    }
    return lt_json_end(&input->json);
}

/* The reader saw one line only: "NAME:1:COLUMN: …" becomes "NAME:LINE:COLUMN: …". */
void cli_input_name_line(const cli_input *input, lattice_error *err)
{
    size_t len = strlen(input->name);
    if (!err || strncmp(err->message, input->name, len) != 0 || strncmp(err->message + len, ":1:", 3) != 0) return;
    lattice_error with_line;
    lt_fail(&with_line, err->code, "%s:%llu:%s", input->name, (unsigned long long)input->line_number, err->message + len + 3);
    *err = with_line;
}

static bool is_blank(lt_str line)
{
    for (size_t i = 0; i < line.len; i++)
        if (!strchr(" \t\r", line.data[i]) || line.data[i] == 0) return false;
    return true;
}

lattice_status cli_input_next(cli_input *input, cli_item *item, bool *more, lattice_error *err)
{
    memset(item, 0, sizeof *item);
    *more = false;
    if (input->operands) {
        if (input->at == input->n_operands) return LATTICE_OK;
        item->text = lt_str_of(input->operands[input->at++]);
        *more = true;
        return LATTICE_OK;
    }
    lt_str line;
    do {
        LT_TRY(read_line(input, &line, more, err));
        if (!*more) return LATTICE_OK;
    } while (input->jsonl && is_blank(line));
    if (!input->jsonl) {
        item->text = line;
        return LATTICE_OK;
    }
    lattice_error local;
    lattice_status status = read_json(input, line, item, err ? err : &local);
    if (status != LATTICE_OK) cli_input_name_line(input, err);
    return status;
}

lattice_status cli_input_json(cli_input *input, lt_json **json, lattice_error *err)
{
    lt_str line;
    bool more;
    *json = NULL;
    do {
        LT_TRY(read_line(input, &line, &more, err));
        if (!more) return LATTICE_OK;
    } while (is_blank(line));
    open_line(input, line, err);
    *json = &input->json;
    return LATTICE_OK;
}
