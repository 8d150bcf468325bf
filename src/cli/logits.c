/* lattice logits: what a language model expects after a prompt. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "cli/input.h"
#include "cli/progress.h"

typedef struct logits_arguments {
    cli_common common;
    const char *input;
    bool jsonl, literal;
} logits_arguments;

#define AT(field) offsetof(logits_arguments, field)
// clang-format off
static const cli_option options[] = {
    CLI_OPTION_MODEL(logits_arguments),
    { "input",   'i', CLI_STRING, AT(input),   "FILE", NULL, NULL, 0, 0, "read FILE instead of standard input" },
    { "jsonl",   0,   CLI_FLAG,   AT(jsonl),   NULL, NULL, NULL, 0, 0, "read a JSON object a line: {\"prompt\":…} or {\"ids\":[…]}" },
    { "literal", 0,   CLI_FLAG,   AT(literal), NULL, NULL, NULL, 0, 0, "take special tokens in the prompts for plain text" },
    CLI_OPTIONS_RUN(logits_arguments),
    CLI_OPTIONS_JSON(logits_arguments, "has no effect: results are JSON lines"),
    CLI_OPTIONS_LOG(logits_arguments),
    { 0 },
};
// clang-format on
#undef AT

/* Inputs computed at once. */
enum { WINDOW = 64 };
static const size_t window_tokens = 1 << 14;

typedef struct job {
    const logits_arguments *arguments;
    lattice_model *model;
    size_t n_logits;
    cli_input input;
    uint32_t *ids; /* of the window's inputs, one behind the other */
    size_t n_ids, ids_capacity;
    size_t begin[WINDOW + 1], n;
    float *logits;
    size_t logits_capacity;
    lt_buf prompt, out;
} job;

static lattice_status add_id(job *j, uint32_t id, lattice_error *err)
{
    if (!LT_GROW(cli_memory, j->ids, j->ids_capacity, j->n_ids + 1)) return lt_no_memory(err, j->n_ids * 4, "token ids");
    j->ids[j->n_ids++] = id;
    return LATTICE_OK;
}

static lattice_status add_prompt(job *j, lt_str prompt, lattice_error *err)
{
    lattice_encode_options o = lattice_encode_options_default();
    o.add_special = false;
    o.literal = j->arguments->literal;
    lattice_encoding encoding;
    LT_TRY(
        lattice_encode(lattice_model_tokenizer(j->model), (lattice_text){ prompt.data, prompt.len }, NULL, &o, &encoding, err));
    lattice_status status = LATTICE_OK;
    for (size_t i = 0; status == LATTICE_OK && i < encoding.n; i++) status = add_id(j, encoding.ids[i], err);
    lattice_encoding_free(&encoding);
    return status;
}

static lattice_status read_ids(job *j, lt_json *json, lattice_error *err)
{
    bool more;
    uint32_t id;
    LT_TRY(lt_json_begin_array(json));
    for (;;) {
        LT_TRY(lt_json_next_element(json, &more));
        if (!more) return LATTICE_OK;
        LT_TRY(lt_json_uint32(json, &id));
        LT_TRY(add_id(j, id, err));
    }
}

/* {"prompt":…} or {"ids":[…]}; other members are passed over. */
static lattice_status read_object(job *j, lt_json *json, lattice_error *err)
{
    bool has_prompt = false, has_ids = false, more;
    LT_TRY(lt_json_begin_object(json));
    for (lt_str key;;) {
        LT_TRY(lt_json_next_member(json, &key, &more));
        if (!more) break;
        if (lt_str_is(key, "prompt")) {
            lt_str text;
            LT_TRY(lt_json_string(json, &text));
            lt_buf_clear(&j->prompt);
            lt_buf_append(&j->prompt, text.data, text.len);
            if (j->prompt.failed) return lt_no_memory(err, text.len, "a prompt");
            has_prompt = true;
        } else if (lt_str_is(key, "ids")) {
            LT_TRY(read_ids(j, json, err));
            has_ids = true;
        } else {
            LT_TRY(lt_json_skip(json));
        }
    }
    if (has_prompt == has_ids) return lt_json_fail(json, "an object needs a \"prompt\" or \"ids\", one of them");
    LT_TRY(lt_json_end(json));
    return has_prompt ? add_prompt(j, lt_buf_str(&j->prompt), err) : LATTICE_OK;
}

/* Reads inputs until the window is full or *more is false. */
static lattice_status fill_window(job *j, bool *more, lattice_error *err)
{
    j->n = j->n_ids = 0;
    while (j->n < WINDOW && j->n_ids < window_tokens) {
        j->begin[j->n] = j->n_ids;
        lattice_status status;
        if (j->arguments->jsonl) {
            lt_json *json;
            LT_TRY(cli_input_json(&j->input, &json, err));
            *more = json != NULL;
            if (!*more) return LATTICE_OK;
            status = read_object(j, json, err);
            if (status != LATTICE_OK) cli_input_name_line(&j->input, err);
        } else {
            cli_item item;
            LT_TRY(cli_input_next(&j->input, &item, more, err));
            if (!*more) return LATTICE_OK;
            status = add_prompt(j, item.text, err);
        }
        if (status != LATTICE_OK) return status;
        if (j->n_ids == j->begin[j->n])
            return j->input.operands ? lt_fail(err, LATTICE_ERR_INVALID_ARGUMENT, "a prompt has no tokens")
                                     : lt_fail(err, LATTICE_ERR_INVALID_ARGUMENT, "%s:%llu: no tokens", j->input.name,
                                               (unsigned long long)j->input.line_number);
        j->begin[++j->n] = j->n_ids;
    }
    return LATTICE_OK;
}

static lattice_status print_window(job *j, lattice_error *err)
{
    size_t floats;
    if (!lt_mul(j->n, j->n_logits, &floats) || !LT_GROW(cli_memory, j->logits, j->logits_capacity, floats))
        return lt_no_memory(err, j->n_logits * sizeof(float), "logits");
    lattice_ids inputs[WINDOW];
    for (size_t i = 0; i < j->n; i++) inputs[i] = (lattice_ids){ j->ids + j->begin[i], j->begin[i + 1] - j->begin[i] };
    LT_TRY(lattice_logits(j->model, inputs, j->n, j->logits, NULL, err));
    for (size_t i = 0; i < j->n; i++) {
        lt_buf_clear(&j->out);
        lt_json_writer w = lt_json_writer_on(&j->out);
        lt_json_write_begin(&w, '{');
        lt_json_write_key(&w, "ids");
        lt_json_write_begin(&w, '[');
        for (size_t k = 0; k < inputs[i].n; k++) lt_json_write_uint(&w, inputs[i].ids[k]);
        lt_json_write_end(&w, ']');
        lt_json_write_key(&w, "logits");
        lt_json_write_floats(&w, j->logits + i * j->n_logits, j->n_logits);
        lt_json_write_end(&w, '}');
        lt_buf_byte(&j->out, '\n');
        if (j->out.failed) return lt_no_memory(err, j->out.len, "logits");
        fwrite(j->out.data, 1, j->out.len, stdout);
    }
    if (fflush(stdout) != 0 || ferror(stdout)) return lt_fail(err, LATTICE_ERR_IO, "standard output: %s", strerror(errno));
    return LATTICE_OK;
}

static lattice_status print_logits(job *j, lattice_runtime *runtime, const char *folder, lattice_error *err)
{
    lattice_model_options model_options = cli_model_options(&j->arguments->common);
    LT_TRY(lattice_model_open(runtime, folder, &model_options, &j->model, err));
    LT_TRY(lattice_logits(j->model, NULL, 0, NULL, NULL, err)); /* says so when the model has none */
    lattice_model_info info;
    lattice_model_get_info(j->model, &info);
    j->n_logits = info.vocab_size;
    uint64_t done = 0;
    cli_progress_begin("logits", j->input.bytes_total ? NULL : "inputs", j->input.bytes_total);
    for (bool more = true; more;) {
        lattice_error read_err;
        lattice_status read = fill_window(j, &more, &read_err);
        if (read == LATTICE_ERR_CANCELLED || cli_interrupted) return lt_fail(err, LATTICE_ERR_CANCELLED, "interrupted");
        if (j->n) LT_TRY(print_window(j, err));
        if (read != LATTICE_OK) return lt_fail(err, read, "%s", read_err.message);
        done += j->n;
        cli_progress_update(j->input.bytes_total ? j->input.bytes_read : done);
    }
    return LATTICE_OK;
}

static int run(void *opaque, char **operands, size_t n_operands)
{
    job j = { .arguments = opaque };
    const logits_arguments *a = j.arguments;
    if (!a->common.model) return cli_usage(&cli_logits_command, "no model given: -m MODEL");
    lattice_runtime *runtime = NULL;
    lattice_error err = { 0 };
    lt_buf folder;
    lt_buf_init(&folder, cli_memory);
    lt_buf_init(&j.prompt, cli_memory);
    lt_buf_init(&j.out, cli_memory);
    int code = cli_input_open(&j.input, &cli_logits_command, operands, n_operands, a->input, a->jsonl);
    if (code == 0) {
        cli_catch_interrupts();
        lattice_status status = cli_find_model(a->common.model, &folder, &err);
        if (status == LATTICE_OK) status = cli_runtime(&a->common, &runtime, &err);
        if (status == LATTICE_OK) status = print_logits(&j, runtime, folder.data, &err);
        cli_progress_end();
        if (status != LATTICE_OK) code = cli_fail(&err);
    }
    cli_input_close(&j.input);
    lattice_model_close(j.model);
    lattice_runtime_free(runtime);
    lt_free(cli_memory, j.ids);
    lt_free(cli_memory, j.logits);
    lt_buf_free(&j.prompt);
    lt_buf_free(&j.out);
    lt_buf_free(&folder);
    return code;
}

const cli_command cli_logits_command = {
    .name = "logits",
    .operands = "[PROMPT…]",
    .summary = "logits of a language model for the next token",
    .description = "Prints {\"ids\":[…],\"logits\":[…]} for each prompt, the arguments, else the lines of\n"
                   "--input or of standard input: the prompt's ids, to which no special tokens are\n"
                   "added, and the logits of all tokens at its last position.",
    .examples = "  lattice logits -m ./qwen3 \"The capital of France is\"\n"
                "  lattice logits -m ./qwen3 --jsonl < prompts.jsonl > logits.jsonl",
    .options = options,
    .arguments_size = sizeof(logits_arguments),
    .max_operands = SIZE_MAX,
    .run = run,
};
