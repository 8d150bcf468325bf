/* lattice perplexity: how likely a language model finds texts. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cli/input.h"
#include "cli/progress.h"

typedef struct perplexity_arguments {
    cli_common common;
    const char *input;
    size_t max_length;
    bool jsonl;
} perplexity_arguments;

#define AT(field) offsetof(perplexity_arguments, field)
// clang-format off
static const cli_option options[] = {
    CLI_OPTION_MODEL(perplexity_arguments),
    { "input",      'i', CLI_STRING, AT(input),      "FILE", NULL, NULL, 0, 0, "read FILE instead of standard input" },
    { "jsonl",      0,   CLI_FLAG,   AT(jsonl),      NULL, NULL, NULL, 0, 0, "read a JSON object a line: {\"text\":…} or {\"ids\":[…]}" },
    { "max-length", 0,   CLI_SIZE,   AT(max_length), "L", NULL, NULL, 1, 0, "leave out what is behind the first L tokens of a text" },
    CLI_OPTIONS_RUN(perplexity_arguments),
    CLI_OPTIONS_JSON(perplexity_arguments, "has no effect: results are JSON lines"),
    CLI_OPTIONS_LOG(perplexity_arguments),
    { 0 },
};
// clang-format on
#undef AT

typedef struct job {
    const perplexity_arguments *arguments;
    lattice_model *model;
    cli_input input;
    lt_buf out;
    uint64_t tokens; /* predicted */
    double nll;
} job;

static lattice_status write_line(job *j, lattice_error *err)
{
    lt_buf_byte(&j->out, '\n');
    if (j->out.failed) return lt_no_memory(err, j->out.len, "a result");
    fwrite(j->out.data, 1, j->out.len, stdout);
    if (fflush(stdout) != 0 || ferror(stdout)) return lt_fail(err, LATTICE_ERR_IO, "standard output: %s", strerror(errno));
    return LATTICE_OK;
}

/* A number, or null for what is none: the mean of nothing. */
static void write_number(lt_json_writer *w, const char *key, double value)
{
    lt_json_write_key(w, key);
    if (isfinite(value))
        lt_json_write_double(w, value);
    else
        lt_json_write_null(w);
}

static lattice_status measure_ids(job *j, const uint32_t *ids, size_t n, lattice_error *err)
{
    const size_t most = j->arguments->max_length;
    lattice_ids input = { ids, most && n > most ? most : n };
    double nll;
    LT_TRY(lattice_nll(j->model, &input, 1, &nll, NULL, err));
    j->tokens += input.n - 1;
    j->nll += nll;
    lt_buf_clear(&j->out);
    lt_json_writer w = lt_json_writer_on(&j->out);
    lt_json_write_begin(&w, '{');
    lt_json_write_key(&w, "tokens");
    lt_json_write_uint(&w, input.n - 1);
    write_number(&w, "nll", input.n > 1 ? nll / (double)(input.n - 1) : NAN);
    lt_json_write_end(&w, '}');
    return write_line(j, err);
}

static lattice_status measure_text(job *j, lt_str text, lattice_error *err)
{
    lattice_encode_options o = lattice_encode_options_default();
    o.add_special = false;
    lattice_encoding encoding;
    LT_TRY(lattice_encode(lattice_model_tokenizer(j->model), (lattice_text){ text.data, text.len }, NULL, &o, &encoding, err));
    lattice_status status = measure_ids(j, encoding.ids, encoding.n, err);
    lattice_encoding_free(&encoding);
    return status;
}

static lattice_status measure_all(job *j, lattice_error *err)
{
    cli_progress_begin("perplexity", j->input.bytes_total ? NULL : "texts", j->input.bytes_total);
    for (uint64_t done = 1;; done++) {
        cli_item item;
        bool more;
        LT_TRY(cli_input_next(&j->input, &item, &more, err));
        if (!more) return LATTICE_OK;
        if (cli_interrupted) return lt_fail(err, LATTICE_ERR_CANCELLED, "interrupted");
        lattice_error at;
        lattice_status status =
            item.kind == CLI_ITEM_IDS ? measure_ids(j, item.ids, item.n_ids, &at) : measure_text(j, item.text, &at);
        if (status != LATTICE_OK)
            return j->input.operands
                       ? lt_fail(err, status, "%s", at.message)
                       : lt_fail(err, status, "%s:%llu: %s", j->input.name, (unsigned long long)j->input.line_number, at.message);
        cli_progress_update(j->input.bytes_total ? j->input.bytes_read : done);
    }
}

static lattice_status perplexity(job *j, lattice_runtime *runtime, const char *folder, lattice_error *err)
{
    lattice_model_options model_options = cli_model_options(&j->arguments->common);
    LT_TRY(lattice_model_open(runtime, folder, &model_options, &j->model, err));
    LT_TRY(lattice_nll(j->model, NULL, 0, NULL, NULL, err)); /* says so when the model cannot */
    LT_TRY(measure_all(j, err));
    const double mean = j->tokens > 0 ? j->nll / (double)j->tokens : NAN;
    lt_buf_clear(&j->out);
    lt_json_writer w = lt_json_writer_on(&j->out);
    lt_json_write_begin(&w, '{');
    lt_json_write_key(&w, "tokens");
    lt_json_write_uint(&w, j->tokens);
    write_number(&w, "mean_nll", mean);
    write_number(&w, "perplexity", exp(mean));
    lt_json_write_end(&w, '}');
    return write_line(j, err);
}

static int run(void *opaque, char **operands, size_t n_operands)
{
    job j = { .arguments = opaque };
    const perplexity_arguments *a = j.arguments;
    if (!a->common.model) return cli_usage(&cli_perplexity_command, "no model given: -m MODEL");
    lattice_runtime *runtime = NULL;
    lattice_error err = { 0 };
    lt_buf folder;
    lt_buf_init(&folder, cli_memory);
    lt_buf_init(&j.out, cli_memory);
    int code = cli_input_open(&j.input, &cli_perplexity_command, operands, n_operands, a->input, a->jsonl);
    j.input.allow_ids = true;
    if (code == CLI_DONE) {
        cli_catch_interrupts();
        lattice_status status = cli_find_model(a->common.model, &folder, &err);
        if (status == LATTICE_OK) status = cli_runtime(&a->common, &runtime, &err);
        if (status == LATTICE_OK) status = perplexity(&j, runtime, folder.data, &err);
        cli_progress_end();
        if (status != LATTICE_OK) code = cli_fail(&err);
    }
    cli_input_close(&j.input);
    lattice_model_close(j.model);
    lattice_runtime_free(runtime);
    lt_buf_free(&j.out);
    lt_buf_free(&folder);
    return code;
}

const cli_command cli_perplexity_command = {
    .name = "perplexity",
    .operands = "[TEXT…]",
    .summary = "how likely a language model finds texts",
    .description = "Prints {\"tokens\",\"nll\"} for each text, the arguments, else the lines of --input or of\n"
                   "standard input: the tokens predicted, which are all but the first, and their mean\n"
                   "negative log-likelihood; then {\"tokens\",\"mean_nll\",\"perplexity\"} over all tokens.\n"
                   "Special tokens in texts are recognised, none are added.",
    .examples = "  lattice perplexity -m ./qwen3.5 --jsonl < held-out.jsonl",
    .options = options,
    .arguments_size = sizeof(perplexity_arguments),
    .max_operands = SIZE_MAX,
    .run = run,
};
