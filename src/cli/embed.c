/* lattice embed: texts to vectors.
 *
 * Reads a window of items (bounded in bytes and in floats of output), embeds it, writes it, and goes on: memory does not grow
 * with the input. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli/input.h"
#include "cli/output.h"
#include "cli/progress.h"

typedef struct embed_arguments {
    cli_common common;
    const char *input, *output, *format, *output_type;
    const char *prompt, *prompt_name, *pooling;
    const char *cache;
    size_t dim, max_length, batch_tokens;
    bool jsonl, no_normalize, no_truncate, literal, resume, cache_unverified;
} embed_arguments;

#define AT(field) offsetof(embed_arguments, field)
// clang-format off
static const cli_option options[] = {
    CLI_OPTION_MODEL(embed_arguments),
    { "input",        'i', CLI_STRING, AT(input),        "FILE", NULL, NULL, 0, 0, "read FILE instead of standard input" },
    { "jsonl",        0,   CLI_FLAG,   AT(jsonl),        NULL, NULL, NULL, 0, 0, "read a JSON value a line: a string, {\"text\":…} or {\"ids\":[…]}" },
    { "output",       'o', CLI_STRING, AT(output),       "FILE", NULL, NULL, 0, 0, "write FILE instead of standard output; it appears when it is whole" },
    { "resume",       0,   CLI_FLAG,   AT(resume),       NULL, NULL, NULL, 0, 0, "go on after an interrupted --output" },
    { "format",       'f', CLI_CHOICE, AT(format),       "FORMAT", "jsonl|npy|text", "jsonl", 0, 0, "form of the output" },
    { "output-type",  0,   CLI_CHOICE, AT(output_type),  "TYPE", "float|int8|ubinary", "float", 0, 0, "type of the values" },
    { "dim",          'd', CLI_SIZE,   AT(dim),          "D", NULL, NULL, 1, 0, "keep the first D values and normalise again (default: all)" },
    { "prompt-name",  0,   CLI_STRING, AT(prompt_name),  "NAME", NULL, NULL, 0, 0, "put this prompt of the model before every text (default: the model's default prompt)" },
    { "prompt",       0,   CLI_STRING, AT(prompt),       "TEXT", NULL, NULL, 0, 0, "put TEXT before every text" },
    { "pooling",      0,   CLI_CHOICE, AT(pooling),      "KIND", "cls|mean|max|mean_sqrt_len|weightedmean|lasttoken", NULL, 0, 0, "how token vectors become one (default: as the model says)" },
    { "no-normalize", 0,   CLI_FLAG,   AT(no_normalize), NULL, NULL, NULL, 0, 0, "do not scale vectors to unit length" },
    { "max-length",   0,   CLI_SIZE,   AT(max_length),   "L", NULL, NULL, 1, 0, "tokens of one text at most (default: the model's limit)" },
    { "no-truncate",  0,   CLI_FLAG,   AT(no_truncate),  NULL, NULL, NULL, 0, 0, "fail on a longer text instead of cutting it" },
    { "literal",      0,   CLI_FLAG,   AT(literal),      NULL, NULL, NULL, 0, 0, "take special tokens in the texts for plain text" },
    { "batch-tokens", 0,   CLI_SIZE,   AT(batch_tokens), "B", NULL, "16384", 1, 16777216, "tokens computed at once" },
    { "cache",        0,   CLI_STRING, AT(cache),        "FILE", NULL, NULL, 0, 0, "keep vectors in FILE, and take from there what has been computed before; processes may share it" },
    { "cache-unverified", 0, CLI_FLAG, AT(cache_unverified), NULL, NULL, NULL, 0, 0, "take vectors that `lattice cache import` has read, too" },
    CLI_OPTIONS_RUN(embed_arguments),
    CLI_OPTIONS_JSON(embed_arguments, "the same as --format jsonl"),
    CLI_OPTIONS_LOG(embed_arguments),
    { 0 },
};
// clang-format on
#undef AT

/* ------------------------------------------------------------------ a window of items */

enum { WINDOW_ITEMS = 8192 };
static const size_t window_bytes = (size_t)4 << 20, window_floats = (size_t)2 << 20;

typedef struct window {
    size_t capacity; /* items */
    size_t n;
    bool is_ids;         /* all items are lists of ids, or all are texts: a change ends a window */
    lt_buf bytes;        /* texts or ids, one after the other */
    size_t *begin;       /* [capacity] where an item lies in `bytes` */
    size_t *size;        /* [capacity] its bytes or ids */
    lattice_text *texts; /* [capacity] */
    lattice_ids *ids;    /* [capacity] */
    float *vectors;      /* [capacity][dim] */
    uint32_t *tokens;    /* [capacity] */
    cli_item next;       /* read already, for the next window */
    bool has_next;
} window;

static lattice_status window_create(window *w, size_t dim, lattice_error *err)
{
    memset(w, 0, sizeof *w);
    w->capacity = window_floats / dim;
    if (w->capacity > WINDOW_ITEMS) w->capacity = WINDOW_ITEMS;
    if (w->capacity < 64) w->capacity = 64;
    lt_buf_init(&w->bytes, cli_memory);
    w->begin = lt_alloc_array(cli_memory, w->capacity, sizeof *w->begin);
    w->size = lt_alloc_array(cli_memory, w->capacity, sizeof *w->size);
    w->texts = lt_alloc_array(cli_memory, w->capacity, sizeof *w->texts);
    w->ids = lt_alloc_array(cli_memory, w->capacity, sizeof *w->ids);
    w->tokens = lt_alloc_array(cli_memory, w->capacity, sizeof *w->tokens);
    w->vectors = lt_alloc_array(cli_memory, w->capacity * dim, sizeof *w->vectors);
    if (!w->begin || !w->size || !w->texts || !w->ids || !w->tokens || !w->vectors)
        return lt_no_memory(err, w->capacity * dim * sizeof *w->vectors, "a window of texts");
    return LATTICE_OK;
}

static void window_free(window *w)
{
    lt_buf_free(&w->bytes);
    lt_free(cli_memory, w->begin);
    lt_free(cli_memory, w->size);
    lt_free(cli_memory, w->texts);
    lt_free(cli_memory, w->ids);
    lt_free(cli_memory, w->tokens);
    lt_free(cli_memory, w->vectors);
}

static lattice_status window_add(window *w, const cli_item *item, lattice_error *err)
{
    const void *data = w->is_ids ? (const void *)item->ids : item->text.data;
    size_t size = w->is_ids ? item->n_ids : item->text.len, n_bytes = w->is_ids ? size * sizeof *item->ids : size;
    w->begin[w->n] = w->bytes.len;
    w->size[w->n] = size;
    if (n_bytes) lt_buf_append(&w->bytes, data, n_bytes);
    if (w->bytes.failed) return lt_no_memory(err, n_bytes, "a text");
    w->n++;
    return LATTICE_OK;
}

/* Reads until the window is full, the kind of item changes or the input ends; `skip` items are passed over first. A failure
 * leaves what was read. */
static lattice_status window_fill(window *w, cli_input *input, uint64_t *skip, bool *more, lattice_error *err)
{
    lt_buf_clear(&w->bytes);
    w->n = 0;
    *more = true;
    while (w->n < w->capacity && w->bytes.len < window_bytes) {
        if (!w->has_next) LT_TRY(cli_input_next(input, &w->next, more, err));
        if (!*more) break;
        w->has_next = false;
        if (*skip) {
            --*skip;
            continue;
        }
        bool is_ids = w->next.kind == CLI_ITEM_IDS;
        if (w->n > 0 && is_ids != w->is_ids) {
            w->has_next = true;
            break;
        }
        w->is_ids = is_ids;
        LT_TRY(window_add(w, &w->next, err));
    }
    return LATTICE_OK;
}

/* Points texts or ids into `bytes`, which does not move any more. */
static void window_point(window *w)
{
    for (size_t i = 0; i < w->n; i++) {
        const char *data = w->bytes.data ? w->bytes.data + w->begin[i] : "";
        w->ids[i] = (lattice_ids){ (const uint32_t *)(const void *)data, w->size[i] };
        w->texts[i] = (lattice_text){ data, w->size[i] };
    }
}

/* ------------------------------------------------------------------ the command */

typedef struct job {
    lattice_model *model;
    lattice_cache *cache;
    lattice_embed_options options;
    size_t dim;
    cli_input input;
    cli_output output;
    window window;
    uint64_t done, truncated;
} job;

static bool progress(void *user, size_t done, size_t total)
{
    (void)total;
    job *j = user;
    /* With a file the bar counts its bytes, which are read ahead of what is computed: take the window's share of them. */
    if (j->input.bytes_total && j->window.n) {
        uint64_t ahead = (uint64_t)((double)j->window.bytes.len * (double)(j->window.n - done) / (double)j->window.n);
        cli_progress_update(j->input.bytes_read > ahead ? j->input.bytes_read - ahead : 0);
    } else {
        cli_progress_update(j->done + done);
    }
    return !cli_interrupted;
}

static lattice_status embed_window(job *j, lattice_error *err)
{
    window *w = &j->window;
    window_point(w);
    lattice_usage usage = { .text_tokens = w->tokens };
    j->options.first_index = (size_t)j->output.rows;
    if (w->is_ids)
        LT_TRY(lattice_embed_ids(j->model, w->ids, w->n, &j->options, w->vectors, &usage, err));
    else
        LT_TRY(lattice_embed(j->model, w->texts, w->n, &j->options, w->vectors, &usage, err));
    j->truncated += usage.n_truncated;
    for (size_t i = 0; i < w->n; i++) LT_TRY(cli_output_row(&j->output, w->vectors + i * j->dim, w->tokens[i], err));
    j->done += w->n;
    /* Results of a pipe's producer that pauses are wanted now, not when a buffer is full. */
    return cli_output_flush(&j->output, err);
}

static lattice_status embed_all(job *j, lattice_error *err)
{
    uint64_t skip = j->output.rows;
    bool more = true;
    while (more) {
        lattice_error read_err;
        lattice_status read = window_fill(&j->window, &j->input, &skip, &more, &read_err);
        if (read == LATTICE_ERR_CANCELLED) return lt_fail(err, read, "%s", read_err.message);
        if (j->window.n) LT_TRY(embed_window(j, err));
        if (read != LATTICE_OK) return lt_fail(err, read, "%s", read_err.message);
    }
    if (skip)
        return lt_fail(err, LATTICE_ERR_INVALID_ARGUMENT, "%s has %llu rows more than the input has texts", j->output.part.data,
                       (unsigned long long)skip);
    return cli_output_finish(&j->output, err);
}

static lattice_embed_options embed_options(const embed_arguments *arguments, job *j)
{
    static const char *const poolings[] = { "cls", "max", "mean", "mean_sqrt_len", "weightedmean", "lasttoken" };
    lattice_embed_options o = lattice_embed_options_default();
    o.prompt = arguments->prompt;
    o.prompt_name = arguments->prompt_name;
    o.dim = arguments->dim;
    for (unsigned i = 0; arguments->pooling && i < 6; i++)
        if (strcmp(arguments->pooling, poolings[i]) == 0) o.pooling = 1u << i;
    o.no_normalize = arguments->no_normalize;
    o.literal = arguments->literal;
    o.truncate = !arguments->no_truncate;
    o.max_length = arguments->max_length;
    o.cache = j->cache;
    o.cache_unverified = arguments->cache_unverified;
    o.progress = progress;
    o.progress_user = j;
    return o;
}

static lattice_status embed(const embed_arguments *arguments, job *j, lattice_error *err)
{
    cli_format format = CLI_JSONL;
    if (!arguments->common.json && strcmp(arguments->format, "npy") == 0) format = CLI_NPY;
    if (!arguments->common.json && strcmp(arguments->format, "text") == 0) format = CLI_TEXT;
    cli_vector_type type = CLI_FLOAT;
    if (strcmp(arguments->output_type, "int8") == 0) type = CLI_INT8;
    if (strcmp(arguments->output_type, "ubinary") == 0) type = CLI_UBINARY;
    j->options = embed_options(arguments, j);
    LT_TRY(lattice_embed(j->model, NULL, 0, &j->options, NULL, NULL, err)); /* checks the options */
    j->dim = lattice_embed_dim(j->model, &j->options);
    LT_TRY(window_create(&j->window, j->dim, err));
    LT_TRY(cli_output_open(&j->output, arguments->output, format, type, j->dim, arguments->resume, err));
    if (j->input.bytes_total)
        cli_progress_begin("embedding", NULL, j->input.bytes_total);
    else
        cli_progress_begin("embedding", "texts", j->input.n_operands);
    lattice_status status = embed_all(j, err);
    cli_progress_end();
    return status;
}

static lattice_status open_cache(const embed_arguments *arguments, lattice_runtime *runtime, lattice_cache **cache,
                                 lattice_error *err)
{
    if (!arguments->cache) return LATTICE_OK;
    lattice_cache_options o = lattice_cache_options_default();
    o.path = arguments->cache;
    return lattice_cache_open(runtime, &o, cache, err);
}

/* The one line that ends a failed or interrupted run says what stayed. */
static int report(const embed_arguments *arguments, job *j, lattice_status status, const lattice_error *err)
{
    bool kept = false;
    uint64_t rows = j->output.rows + (j->output.expected.data != NULL);
    cli_output_close(&j->output, &kept);
    if (status == LATTICE_OK) {
        if (j->truncated) cli_warn("%llu texts were longer than the limit and have been cut", (unsigned long long)j->truncated);
        return CLI_DONE;
    }
    const char *why = status == LATTICE_ERR_CANCELLED ? "interrupted" : err->message;
    if (!kept) return cli_failf("%s", why);
    return cli_failf("%s; %llu rows are kept in %s.part and --resume goes on from there", why, (unsigned long long)rows,
                     arguments->output);
}

static int run(void *opaque, char **operands, size_t n_operands)
{
    embed_arguments *arguments = opaque;
    const cli_command *command = &cli_embed_command;
    if (!arguments->common.model) return cli_usage(command, "no model given: -m MODEL");
    if (arguments->cache_unverified && !arguments->cache) return cli_usage(command, "--cache-unverified needs --cache");
    if (arguments->resume && !arguments->output) return cli_usage(command, "--resume needs --output");
    if (arguments->prompt && arguments->prompt_name) return cli_usage(command, "--prompt and --prompt-name exclude each other");
    bool to_terminal = !arguments->output && isatty(STDOUT_FILENO) == 1;
    if (to_terminal && !arguments->common.json && strcmp(arguments->format, "npy") == 0)
        return cli_usage(command, "npy is not for a terminal; use --output FILE");
    job j = { .output = { .fd = -1, .sink = -1 } };
    lattice_runtime *runtime = NULL;
    lattice_error err = { 0 };
    lt_buf folder;
    lt_buf_init(&folder, cli_memory);
    lattice_model_options model_options = cli_model_options(&arguments->common);
    model_options.batch_tokens = arguments->batch_tokens;
    model_options.tokenizer_optional = arguments->jsonl; /* lines of ids need none */
    int code = cli_input_open(&j.input, command, operands, n_operands, arguments->input, arguments->jsonl);
    j.input.allow_ids = true;
    if (code) goto done;
    cli_catch_interrupts();
    lattice_status status = cli_find_model(arguments->common.model, &folder, &err);
    if (status == LATTICE_OK) status = cli_runtime(&arguments->common, &runtime, &err);
    if (status == LATTICE_OK) status = lattice_model_open(runtime, folder.data, &model_options, &j.model, &err);
    if (status == LATTICE_OK) status = open_cache(arguments, runtime, &j.cache, &err);
    if (status == LATTICE_OK) status = embed(arguments, &j, &err);
    code = report(arguments, &j, status, &err);
done:
    window_free(&j.window);
    cli_input_close(&j.input);
    lattice_cache_close(j.cache);
    lattice_model_close(j.model);
    lattice_runtime_free(runtime);
    lt_buf_free(&folder);
    return code;
}

const cli_command cli_embed_command = {
    .name = "embed",
    .operands = "[TEXT…]",
    .summary = "texts to vectors",
    .description = "Embeds texts: the arguments, else the lines of --input or of standard input.\n"
                   "jsonl prints {\"index\",\"tokens\",\"embedding\":[…]} a line in the order of the input, with\n"
                   "the shortest digits that give the float back; npy is one float32 array [n, dim];\n"
                   "text is rounded, for eyes. --output-type int8 scales every vector so that its\n"
                   "largest value is 127; ubinary keeps one bit a value, eight to a byte.",
    .examples = "  lattice embed -m all-minilm-l6-v2 \"A text.\" \"Another one.\"\n"
                "  lattice embed -m all-minilm-l6-v2 --cache vectors.cache < texts.txt > vectors.jsonl\n"
                "  lattice embed -m all-minilm-l6-v2 -i texts.txt -f npy -o vectors.npy\n"
                "  lattice embed -m ./model --jsonl < records.jsonl > vectors.jsonl",
    .options = options,
    .arguments_size = sizeof(embed_arguments),
    .max_operands = SIZE_MAX,
    .run = run,
};
