/* lattice tokenize: texts to token ids, and back with --decode. A folder with tokenizer files is enough. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/input.h"
#include "cli/progress.h"

typedef struct tokenize_arguments {
    cli_common common;
    const char *input, *output;
    size_t max_length;
    bool jsonl, no_special, literal, decode;
} tokenize_arguments;

#define AT(field) offsetof(tokenize_arguments, field)
// clang-format off
static const cli_option options[] = {
    CLI_OPTION_MODEL(tokenize_arguments),
    { "input",      'i', CLI_STRING, AT(input),      "FILE", NULL, NULL, 0, 0, "read FILE instead of standard input" },
    { "jsonl",      0,   CLI_FLAG,   AT(jsonl),      NULL, NULL, NULL, 0, 0, "read a JSON value a line: a string, {\"text\":…}, {\"text\":…,\"pair\":…}; with --decode {\"ids\":[…]}" },
    { "output",     'o', CLI_STRING, AT(output),     "FILE", NULL, NULL, 0, 0, "write FILE instead of standard output; it appears when it is whole" },
    { "max-length", 0,   CLI_SIZE,   AT(max_length), "L", NULL, NULL, 1, 0, "cut to L tokens, special ones counted (default: never cut)" },
    { "no-special", 0,   CLI_FLAG,   AT(no_special), NULL, NULL, NULL, 0, 0, "add no special tokens; with --decode: leave them out" },
    { "literal",    0,   CLI_FLAG,   AT(literal),    NULL, NULL, NULL, 0, 0, "take special tokens in the texts for plain text" },
    { "decode",     0,   CLI_FLAG,   AT(decode),     NULL, NULL, NULL, 0, 0, "turn ids into text: arguments or lines of numbers, or --jsonl" },
    CLI_OPTIONS_JSON(tokenize_arguments, "the output is always JSON lines; accepted for uniformity"),
    CLI_OPTIONS_LOG(tokenize_arguments),
    { 0 },
};
// clang-format on
#undef AT

typedef struct job {
    const tokenize_arguments *arguments;
    lattice_tokenizer *tokenizer;
    cli_input input;
    lt_buf out;
    lt_replace file; /* --output */
    bool file_open;
    uint32_t *ids; /* parsed from a line of numbers */
    size_t ids_capacity;
} job;

enum { FLUSH_AT = 1 << 16 };

static lattice_status flush(job *j, lattice_error *err)
{
    if (j->out.failed) return lt_no_memory(err, j->out.len, "output");
    if (j->out.len == 0) return LATTICE_OK;
    if (j->file_open) {
        LT_TRY(lt_replace_write(&j->file, j->out.data, j->out.len, err));
    } else if (fwrite(j->out.data, 1, j->out.len, stdout) != j->out.len || fflush(stdout) != 0) {
        return lt_fail(err, LATTICE_ERR_IO, "standard output: cannot write");
    }
    lt_buf_clear(&j->out);
    return LATTICE_OK;
}

/* ------------------------------------------------------------------ encoding */

/* A giant text's line is written as it grows. */
static lattice_status flush_if_large(job *j, lattice_error *err)
{
    return j->out.len >= FLUSH_AT ? flush(j, err) : LATTICE_OK;
}

static lattice_status print_encoding(job *j, const lattice_encoding *e, lattice_error *err)
{
    lt_json_writer w = lt_json_writer_on(&j->out);
    lt_json_write_begin(&w, '{');
    lt_json_write_key(&w, "ids");
    lt_json_write_begin(&w, '[');
    for (size_t i = 0; i < e->n; i++) {
        lt_json_write_uint(&w, e->ids[i]);
        LT_TRY(flush_if_large(j, err));
    }
    lt_json_write_end(&w, ']');
    lt_json_write_key(&w, "tokens");
    lt_json_write_begin(&w, '[');
    for (size_t i = 0; i < e->n; i++) {
        lattice_text token = lattice_token_text(j->tokenizer, e->ids[i]);
        lt_json_write_str(&w, (lt_str){ token.data ? token.data : "", token.length });
        LT_TRY(flush_if_large(j, err));
    }
    lt_json_write_end(&w, ']');
    lt_json_write_key(&w, "offsets");
    lt_json_write_begin(&w, '[');
    for (size_t i = 0; i < e->n; i++) {
        lt_json_write_begin(&w, '[');
        lt_json_write_uint(&w, e->offsets[i].start);
        lt_json_write_uint(&w, e->offsets[i].end);
        lt_json_write_end(&w, ']');
        LT_TRY(flush_if_large(j, err));
    }
    lt_json_write_end(&w, ']');
    lt_json_write_key(&w, "type_ids");
    lt_json_write_begin(&w, '[');
    for (size_t i = 0; i < e->n; i++) {
        lt_json_write_uint(&w, e->type_ids[i]);
        LT_TRY(flush_if_large(j, err));
    }
    lt_json_write_end(&w, ']');
    lt_json_write_end(&w, '}');
    lt_buf_byte(&j->out, '\n');
    return LATTICE_OK;
}

static lattice_status encode_item(job *j, const cli_item *item, lattice_error *err)
{
    lattice_encode_options o = lattice_encode_options_default();
    o.add_special = !j->arguments->no_special;
    o.literal = j->arguments->literal;
    o.max_length = j->arguments->max_length;
    lattice_text text = { item->text.data ? item->text.data : "", item->text.len };
    lattice_text pair = { item->pair.data ? item->pair.data : "", item->pair.len };
    lattice_encoding encoding;
    LT_TRY(lattice_encode(j->tokenizer, text, item->kind == CLI_ITEM_PAIR ? &pair : NULL, &o, &encoding, err));
    lattice_status status = print_encoding(j, &encoding, err);
    lattice_encoding_free(&encoding);
    return status;
}

/* ------------------------------------------------------------------ decoding */

/* "101 2023, 102" or "[101, 2023, 102]": numbers between spaces and commas. `more` ids are appended to n. */
static lattice_status parse_ids(job *j, lt_str text, size_t *n, lattice_error *err)
{
    size_t end = text.len, i = 0;
    if (end >= 2 && text.data[0] == '[' && text.data[end - 1] == ']') {
        i++;
        end--;
    }
    while (i < end) {
        if (text.data[i] == ' ' || text.data[i] == '\t' || text.data[i] == ',') {
            i++;
            continue;
        }
        uint64_t value = 0;
        size_t begin = i;
        while (i < end && text.data[i] >= '0' && text.data[i] <= '9' && value <= UINT32_MAX)
            value = value * 10 + (uint64_t)(text.data[i++] - '0');
        if (i == begin || value > UINT32_MAX) {
            lt_str rest = { text.data + begin, end - begin < 40 ? end - begin : 40 };
            return lt_fail(err, LATTICE_ERR_INVALID_ARGUMENT, "'%.*s' is not a token id", LT_STR_ARG(rest));
        }
        if (!LT_GROW(cli_memory, j->ids, j->ids_capacity, *n + 1)) return lt_no_memory(err, *n * 4, "token ids");
        j->ids[(*n)++] = (uint32_t)value;
    }
    return LATTICE_OK;
}

static lattice_status decode_ids(job *j, const uint32_t *ids, size_t n, lattice_error *err)
{
    lattice_text text;
    LT_TRY(lattice_decode(j->tokenizer, ids, n, j->arguments->no_special, &text, err));
    lt_json_writer w = lt_json_writer_on(&j->out);
    lt_json_write_begin(&w, '{');
    lt_json_write_key(&w, "text");
    lt_json_write_str(&w, (lt_str){ text.data, text.length });
    lt_json_write_end(&w, '}');
    lt_buf_byte(&j->out, '\n');
    lattice_text_free(j->tokenizer, &text);
    return LATTICE_OK;
}

static lattice_status decode_item(job *j, const cli_item *item, lattice_error *err)
{
    if (item->kind == CLI_ITEM_IDS) return decode_ids(j, item->ids, item->n_ids, err);
    if (j->input.jsonl)
        return lt_fail(err, LATTICE_ERR_INVALID_ARGUMENT, "%s:%llu: --decode needs {\"ids\":[…]}", j->input.name,
                       (unsigned long long)j->input.line_number);
    size_t n = 0;
    LT_TRY(parse_ids(j, item->text, &n, err));
    /* Arguments are one list: "--decode 101 2023 102". */
    while (j->input.operands && j->input.at < j->input.n_operands)
        LT_TRY(parse_ids(j, lt_str_of(j->input.operands[j->input.at++]), &n, err));
    return decode_ids(j, j->ids, n, err);
}

/* ------------------------------------------------------------------ the command */

static lattice_status work(job *j, lattice_error *err)
{
    for (uint64_t done = 0;; done++) {
        cli_item item;
        bool more;
        LT_TRY(cli_input_next(&j->input, &item, &more, err));
        if (!more) break;
        if (cli_interrupted) return lt_fail(err, LATTICE_ERR_CANCELLED, "interrupted");
        LT_TRY(j->arguments->decode ? decode_item(j, &item, err) : encode_item(j, &item, err));
        LT_TRY(flush_if_large(j, err));
        cli_progress_update(j->input.bytes_total ? j->input.bytes_read : done);
    }
    LT_TRY(flush(j, err));
    if (j->file_open) {
        j->file_open = false;
        LT_TRY(lt_replace_commit(&j->file, err));
    }
    return LATTICE_OK;
}

static lattice_status tokenize(job *j, lattice_runtime *runtime, const char *folder, lattice_error *err)
{
    LT_TRY(lattice_tokenizer_open(runtime, folder, &j->tokenizer, err));
    if (j->arguments->output) {
        LT_TRY(lt_replace_begin(cli_memory, j->arguments->output, &j->file, err));
        j->file_open = true;
    }
    cli_progress_begin("tokenizing", j->input.bytes_total ? NULL : "texts", j->input.bytes_total);
    lattice_status status = work(j, err);
    cli_progress_end();
    /* Lines before the one at fault stand. */
    lattice_error ignored;
    if (status != LATTICE_OK && !j->file_open) flush(j, &ignored);
    return status;
}

static int run(void *opaque, char **operands, size_t n_operands)
{
    tokenize_arguments *arguments = opaque;
    const cli_command *command = &cli_tokenize_command;
    if (!arguments->common.model) return cli_usage(command, "no model given: -m MODEL");
    arguments->common.threads = 1; /* the runtime's threads have nothing to compute here */
    job j = { .arguments = arguments };
    lt_buf_init(&j.out, cli_memory);
    lattice_runtime *runtime = NULL;
    lattice_error err = { 0 };
    lt_buf folder;
    lt_buf_init(&folder, cli_memory);
    int code = cli_input_open(&j.input, command, operands, n_operands, arguments->input, arguments->jsonl);
    j.input.allow_pairs = !arguments->decode;
    j.input.allow_ids = arguments->decode;
    if (code) goto done;
    cli_catch_interrupts();
    lattice_status status = cli_find_model(arguments->common.model, &folder, &err);
    if (status == LATTICE_OK) status = cli_runtime(&arguments->common, &runtime, &err);
    if (status == LATTICE_OK) status = tokenize(&j, runtime, folder.data, &err);
    if (status != LATTICE_OK) code = cli_fail(&err);
done:
    if (j.file_open) lt_replace_abort(&j.file);
    lattice_tokenizer_close(j.tokenizer);
    lattice_runtime_free(runtime);
    cli_input_close(&j.input);
    lt_free(cli_memory, j.ids);
    lt_buf_free(&j.out);
    lt_buf_free(&folder);
    return code;
}

const cli_command cli_tokenize_command = {
    .name = "tokenize",
    .operands = "[TEXT…]",
    .summary = "texts to token ids, and back",
    .description = "Tokenises texts: the arguments, else the lines of --input or of standard input.\n"
                   "Prints {\"ids\",\"tokens\",\"offsets\",\"type_ids\"} a line; offsets are bytes of the text.\n"
                   "Texts are never cut unless --max-length says so. --decode prints {\"text\"} a line.",
    .examples = "  lattice tokenize -m all-minilm-l6-v2 \"A text.\"\n"
                "  lattice tokenize -m all-minilm-l6-v2 --decode 101 1037 3793 1012 102",
    .options = options,
    .arguments_size = sizeof(tokenize_arguments),
    .max_operands = SIZE_MAX,
    .run = run,
};
