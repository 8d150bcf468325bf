/* lattice quantize: a checkpoint with its matrices in 8 bits. */
#include <stdio.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/progress.h"
#include "format/json.h"

typedef struct quantize_arguments {
    cli_common common;
    const char *type;
} quantize_arguments;

#define AT(field) offsetof(quantize_arguments, field)
// clang-format off
static const cli_option options[] = {
    { "type", 't', CLI_STRING, AT(type), "TYPE", "q8_0", "q8_0", 0, 0, "q8_0: blocks of 32 signed bytes with a half-precision scale; int8, of encoders: bytes with a scale an output, the fastest to compute" },
    CLI_OPTIONS_THREADS(quantize_arguments),
    CLI_OPTIONS_JSON(quantize_arguments, "print one JSON object"),
    CLI_OPTIONS_LOG(quantize_arguments),
    { 0 },
};
// clang-format on
#undef AT

static bool progress(void *user, uint64_t done, uint64_t total)
{
    (void)user;
    (void)total;
    cli_progress_update(done);
    return !cli_interrupted;
}

/* The bar's end is not known before the model is open: bytes of the first call are its total. */
static bool begin_progress(void *user, uint64_t done, uint64_t total)
{
    bool *begun = user;
    if (!*begun) cli_progress_begin("quantize", NULL, total);
    *begun = true;
    return progress(user, done, total);
}

static void print_report(const quantize_arguments *a, const lattice_quantize_report *r, lt_buf *out)
{
    if (a->common.json) {
        lt_json_writer w = lt_json_writer_on(out);
        const struct {
            const char *key;
            uint64_t value;
        } members[] = { { "bytes_before", r->bytes_before },
                        { "bytes_after", r->bytes_after },
                        { "quantized", r->n_quantized },
                        { "kept", r->n_kept },
                        { "left_out", r->n_left_out } };
        lt_json_write_begin(&w, '{');
        for (size_t i = 0; i < sizeof members / sizeof *members; i++) {
            lt_json_write_key(&w, members[i].key);
            lt_json_write_uint(&w, members[i].value);
        }
        lt_json_write_end(&w, '}');
        lt_buf_byte(out, '\n');
        return;
    }
    lt_buf_printf(out, "weights before %.1f MB, after %.1f MB (%.0f%%): %zu tensors quantised, %zu kept as they were, %zu left out\n",
                  (double)r->bytes_before / 1e6, (double)r->bytes_after / 1e6,
                  r->bytes_before ? 100 * (double)r->bytes_after / (double)r->bytes_before : 100, r->n_quantized, r->n_kept,
                  r->n_left_out);
}

static int run(void *opaque, char **operands, size_t n_operands)
{
    const quantize_arguments *a = opaque;
    lattice_runtime *runtime = NULL;
    lattice_error err = { 0 };
    lattice_quantize_report report;
    bool begun = false;
    lattice_quantize_options quantize_options = lattice_quantize_options_default();
    lt_buf folder, out;
    (void)n_operands;
    quantize_options.type = a->type;
    quantize_options.progress = begin_progress;
    quantize_options.progress_user = &begun;
    lt_buf_init(&folder, cli_memory);
    lt_buf_init(&out, cli_memory);
    cli_catch_interrupts();
    lattice_status status = cli_find_model(operands[0], &folder, &err);
    if (status == LATTICE_OK) status = cli_runtime(&a->common, &runtime, &err);
    if (status == LATTICE_OK) status = lattice_quantize(runtime, folder.data, operands[1], &quantize_options, &report, &err);
    cli_progress_end();
    if (status == LATTICE_OK) {
        print_report(a, &report, &out);
        if (out.failed) status = lt_no_memory(&err, out.len, "output");
    }
    int code = status != LATTICE_OK ? cli_fail(&err) : cli_print(lt_buf_str(&out)) ? CLI_DONE : CLI_FAILED;
    lattice_runtime_free(runtime);
    lt_buf_free(&folder);
    lt_buf_free(&out);
    return code;
}

const cli_command cli_quantize_command = {
    .name = "quantize",
    .operands = "MODEL OUT",
    .summary = "write a checkpoint with its matrices in 8 bits",
    .description = "Writes the model as the new folder OUT, which every command accepts: matrices in Q8_0\n"
                   "or, with --type int8, an encoder's matrices in int8 by rows, smoothed, and its tables in Q8_0;\n"
                   "everything else as it was, tokenizer and configuration copied. OUT must not exist;\n"
                   "it appears when all of it is written. Prints sizes before and after.",
    .examples = "  lattice quantize ./qwen3.5-0.8b ./qwen3.5-0.8b-q8\n"
                "  lattice chat -m ./qwen3.5-0.8b-q8\n"
                "  lattice quantize --type int8 ./all-MiniLM-L6-v2 ./minilm-int8",
    .options = options,
    .arguments_size = sizeof(quantize_arguments),
    .min_operands = 2,
    .max_operands = 2,
    .run = run,
};
