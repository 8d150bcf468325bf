/* lattice generate: text that goes on from a prompt. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "cli/input.h"
#include "cli/sampling.h"

typedef struct generate_arguments {
    cli_common common;
    cli_sampling sampling;
    const char *prompt, *ids, *input, *session, *save_session;
    bool jsonl, literal, ignore_eos, prompt_only;
} generate_arguments;

#define AT(field) offsetof(generate_arguments, field)
// clang-format off
static const cli_option options[] = {
    CLI_OPTION_MODEL(generate_arguments),
    { "prompt",  'p', CLI_STRING, AT(prompt),  "TEXT", NULL, NULL, 0, 0, "the text to go on from; special tokens in it are recognised" },
    { "ids",     0,   CLI_STRING, AT(ids),     "LIST", NULL, NULL, 0, 0, "token ids to go on from, separated by commas" },
    { "jsonl",   0,   CLI_FLAG,   AT(jsonl),   NULL, NULL, NULL, 0, 0, "read a JSON object a line, {\"prompt\":…} or {\"ids\":[…]}; implies --json" },
    { "input",   'i', CLI_STRING, AT(input),   "FILE", NULL, NULL, 0, 0, "read FILE instead of standard input; with --jsonl" },
    { "session", 0,   CLI_STRING, AT(session), "FILE", NULL, NULL, 0, 0, "go on from a saved session; the prompt, if any, comes behind it" },
    { "save-session", 0, CLI_STRING, AT(save_session), "FILE", NULL, NULL, 0, 0, "write the session to FILE in the end" },
    { "prompt-only", 0, CLI_FLAG, AT(prompt_only), NULL, NULL, NULL, 0, 0, "generate nothing; with --save-session" },
    CLI_OPTIONS_SAMPLING(generate_arguments),
    { "ignore-eos", 0, CLI_FLAG,  AT(ignore_eos), NULL, NULL, NULL, 0, 0, "go on past the tokens that end a text" },
    { "literal", 0,   CLI_FLAG,   AT(literal), NULL, NULL, NULL, 0, 0, "take special tokens in prompts for plain text" },
    CLI_OPTIONS_RUN(generate_arguments),
    CLI_OPTIONS_JSON(generate_arguments, "print one JSON object instead of streaming text"),
    CLI_OPTIONS_LOG(generate_arguments),
    { 0 },
};
// clang-format on
#undef AT

typedef struct job {
    const generate_arguments *arguments;
    lattice_model *model;
    lattice_session *base;    /* what every prompt comes behind */
    lattice_session *session; /* a fork of it, for the prompt at hand */
    lattice_generate_options options;
    lattice_text *stop;
    uint32_t *ids; /* --ids */
    size_t n_ids, ids_capacity;
    lt_buf out;
    bool failed; /* standard output */
} job;

static bool stream_text(void *user, const char *text, size_t length)
{
    job *j = user;
    if (!j->arguments->common.json && !j->arguments->jsonl) {
        fwrite(text, 1, length, stdout);
        if (fflush(stdout) != 0) j->failed = true;
    }
    return !j->failed && !cli_interrupted;
}

/* "1,2,3" */
static int read_ids(job *j)
{
    const char *at = j->arguments->ids;
    for (;;) {
        char *end;
        errno = 0;
        unsigned long id = strtoul(at, &end, 10);
        if (*at < '0' || *at > '9' || errno != 0 || id > UINT32_MAX || (*end != ',' && *end != '\0'))
            return cli_usage(&cli_generate_command, "--ids must be whole numbers separated by commas, not '%s'",
                             j->arguments->ids);
        if (!LT_GROW(cli_memory, j->ids, j->ids_capacity, j->n_ids + 1)) return cli_failf("out of memory");
        j->ids[j->n_ids++] = (uint32_t)id;
        if (*end == '\0') return CLI_DONE;
        at = end + 1;
    }
}

static lattice_status print_json(job *j, const lattice_generation *g, size_t n_prompt, double prefill, double decode,
                                 lattice_error *err)
{
    lt_buf_clear(&j->out);
    lt_json_writer w = lt_json_writer_on(&j->out);
    lt_json_write_begin(&w, '{');
    lt_json_write_key(&w, "ids");
    lt_json_write_begin(&w, '[');
    for (size_t i = 0; i < g->n; i++) lt_json_write_uint(&w, g->ids[i]);
    lt_json_write_end(&w, ']');
    lt_json_write_key(&w, "text");
    lt_json_write_str(&w, (lt_str){ g->text, g->length });
    lt_json_write_key(&w, "finish_reason");
    lt_json_write_z(&w, lattice_finish_text(g->finish));
    lt_json_write_key(&w, "prompt_tokens");
    lt_json_write_uint(&w, n_prompt);
    lt_json_write_key(&w, "prefill_s");
    lt_json_write_double(&w, prefill);
    lt_json_write_key(&w, "decode_s");
    lt_json_write_double(&w, decode);
    lt_json_write_end(&w, '}');
    lt_buf_byte(&j->out, '\n');
    if (j->out.failed) return lt_no_memory(err, j->out.len, "a result");
    fwrite(j->out.data, 1, j->out.len, stdout);
    return LATTICE_OK;
}

static lattice_status go_on(job *j, const uint32_t *ids, size_t n, lattice_error *err)
{
    lattice_generation g;
    lattice_session_free(j->session);
    j->session = NULL;
    LT_TRY(lattice_session_fork(j->base, &j->session, err));
    double start = lt_clock_seconds();
    if (n > 0 || !j->arguments->session) LT_TRY(lattice_session_prefill(j->session, ids, n, err));
    if (j->arguments->prompt_only) return LATTICE_OK;
    double prefilled = lt_clock_seconds();
    LT_TRY(lattice_generate(j->session, &j->options, &g, err));
    double end = lt_clock_seconds();
    lattice_status status = LATTICE_OK;
    if (j->arguments->common.json || j->arguments->jsonl)
        status = print_json(j, &g, n, prefilled - start, end - prefilled, err);
    else if (g.length == 0 || g.text[g.length - 1] != '\n')
        putchar('\n');
    size_t held;
    (void)lattice_session_ids(j->session, &held);
    if (status == LATTICE_OK && g.finish == LATTICE_FINISH_CONTEXT) cli_note("the model's context of %zu tokens is full", held);
    lattice_generation_free(&g);
    if (status != LATTICE_OK) return status;
    if (fflush(stdout) != 0 || ferror(stdout)) return lt_fail(err, LATTICE_ERR_IO, "standard output: %s", strerror(errno));
    return cli_interrupted ? lt_fail(err, LATTICE_ERR_CANCELLED, "interrupted") : LATTICE_OK;
}

static lattice_status go_on_from_text(job *j, lt_str prompt, lattice_error *err)
{
    lattice_encode_options o = lattice_encode_options_default();
    o.add_special = false;
    o.literal = j->arguments->literal;
    lattice_encoding encoding;
    lattice_text text = { prompt.data, prompt.len };
    LT_TRY(lattice_encode(lattice_model_tokenizer(j->model), text, NULL, &o, &encoding, err));
    lattice_status status = go_on(j, encoding.ids, encoding.n, err);
    lattice_encoding_free(&encoding);
    return status;
}

static lattice_status read_lines(job *j, cli_input *input, lattice_error *err)
{
    for (;;) {
        cli_item item;
        bool more;
        LT_TRY(cli_input_next(input, &item, &more, err));
        if (!more) return LATTICE_OK;
        lattice_error at;
        lattice_status status =
            item.kind == CLI_ITEM_IDS ? go_on(j, item.ids, item.n_ids, &at) : go_on_from_text(j, item.text, &at);
        if (status == LATTICE_ERR_CANCELLED) return lt_fail(err, status, "%s", at.message);
        if (status != LATTICE_OK)
            return lt_fail(err, status, "%s:%llu: %s", input->name, (unsigned long long)input->line_number, at.message);
    }
}

static lattice_status generate(job *j, lattice_runtime *runtime, const char *folder, cli_input *input, lattice_error *err)
{
    const generate_arguments *a = j->arguments;
    lattice_model_options model_options = cli_model_options(&a->common);
    LT_TRY(lattice_model_open(runtime, folder, &model_options, &j->model, err));
    if (a->session)
        LT_TRY(lattice_session_load(j->model, a->session, NULL, &j->base, err));
    else
        LT_TRY(lattice_session_create(j->model, NULL, &j->base, err));
    j->options = cli_generate_options(&a->sampling, j->model, j->stop);
    j->options.ignore_end = a->ignore_eos;
    j->options.on_text = stream_text;
    j->options.user = j;
    if (a->jsonl) return read_lines(j, input, err);
    LT_TRY(a->prompt ? go_on_from_text(j, lt_str_of(a->prompt), err) : go_on(j, j->ids, j->n_ids, err));
    return a->save_session ? lattice_session_save(j->session, a->save_session, err) : LATTICE_OK;
}

static int run(void *opaque, char **operands, size_t n_operands)
{
    (void)operands;
    (void)n_operands;
    job j = { .arguments = opaque };
    const generate_arguments *a = j.arguments;
    if (!a->common.model) return cli_usage(&cli_generate_command, "no model given: -m MODEL");
    const int given = !!a->prompt + !!a->ids + a->jsonl;
    if (given > 1 || (given == 0 && !a->session))
        return cli_usage(&cli_generate_command, "give one of --prompt, --ids and --jsonl");
    if (a->prompt_only && !a->save_session) return cli_usage(&cli_generate_command, "--prompt-only needs --save-session");
    if (a->save_session && a->jsonl) return cli_usage(&cli_generate_command, "--save-session needs a single prompt");
    if (a->input && !a->jsonl) return cli_usage(&cli_generate_command, "--input needs --jsonl");
    int code = cli_check_sampling(&cli_generate_command, &a->sampling);
    if (code == CLI_DONE && a->ids) code = read_ids(&j);
    lattice_runtime *runtime = NULL;
    lattice_error err = { 0 };
    cli_input input = { 0 };
    lt_buf folder;
    lt_buf_init(&folder, cli_memory);
    lt_buf_init(&j.out, cli_memory);
    if (code == CLI_DONE && a->jsonl) code = cli_input_open(&input, &cli_generate_command, NULL, 0, a->input, true);
    input.allow_ids = true;
    input.text_key = "prompt";
    if (code == CLI_DONE) {
        cli_catch_interrupts();
        j.stop = lt_alloc_array(cli_memory, a->sampling.stop.n + 1, sizeof *j.stop);
        lattice_status status = j.stop ? cli_find_model(a->common.model, &folder, &err) : lt_no_memory(&err, 0, "stop strings");
        if (status == LATTICE_OK) status = cli_runtime(&a->common, &runtime, &err);
        if (status == LATTICE_OK) status = generate(&j, runtime, folder.data, &input, &err);
        if (status != LATTICE_OK) code = cli_fail(&err);
    }
    if (a->jsonl && input.name) cli_input_close(&input);
    lattice_session_free(j.session);
    lattice_session_free(j.base);
    lattice_model_close(j.model);
    lattice_runtime_free(runtime);
    lt_free(cli_memory, j.stop);
    lt_free(cli_memory, j.ids);
    lt_buf_free(&j.out);
    lt_buf_free(&folder);
    return code;
}

const cli_command cli_generate_command = {
    .name = "generate",
    .operands = "",
    .summary = "text that goes on from a prompt",
    .description = "Streams the text that a language model goes on with from --prompt or --ids; with\n"
                   "--jsonl from each line of standard input. --json prints an object of ids (those of\n"
                   "the new tokens), text, finish_reason (length, end, stop, context or cancelled),\n"
                   "prompt_tokens, prefill_s and decode_s. --save-session keeps what was computed: a\n"
                   "prompt that many texts begin with is computed once, and --session goes on from it.",
    .examples = "  lattice generate -m ./qwen3.5 -p \"Once upon a time\" -n 64 --temperature 0.8 --seed 1\n"
                "  lattice generate -m ./qwen3.5 --jsonl -n 32 < prompts.jsonl > texts.jsonl",
    .options = options,
    .arguments_size = sizeof(generate_arguments),
    .max_operands = 0,
    .run = run,
};
