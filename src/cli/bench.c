/* lattice bench: time of forward passes and of whole texts, against what this machine can do at best.
 *
 * A shape NxL is N sequences of L tokens. Each is run until --seconds are over; the median of the runs is reported. The peak is
 * measured in the same process, before and after, and the better counts: both swing with what else the machine does. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/clock.h"
#include "cli/bench_session.h"
#include "cli/input.h"
#include "format/json.h"

typedef struct bench_arguments {
    cli_common common;
    const char *shapes, *texts;
    double seconds;
    size_t batch_tokens, decode, prefill;
    bool profile;
} bench_arguments;

#define AT(field) offsetof(bench_arguments, field)
// clang-format off
static const cli_option options[] = {
    CLI_OPTION_MODEL(bench_arguments),
    { "shapes",       0, CLI_STRING, AT(shapes),       "NxL,…", NULL, "1x8,1x32,1x128,1x512,32x32,32x128,8x512", 0, 0, "sequences x tokens of each forward pass" },
    { "seconds",      0, CLI_NUMBER, AT(seconds),      "S", NULL, "1", 0.01, 3600, "time spent on each shape" },
    { "profile",      0, CLI_FLAG,   AT(profile),      NULL, NULL, NULL, 0, 0, "print time, rate and bytes of each operation" },
    { "texts",        0, CLI_STRING, AT(texts),        "FILE", NULL, NULL, 0, 0, "time texts to vectors instead: lines of FILE, or JSON lines when it ends in .jsonl" },
    { "decode",       0, CLI_SIZE,   AT(decode),       "N", NULL, NULL, 1, 1000000, "time N tokens of a language model one by one instead" },
    { "prefill",      0, CLI_SIZE,   AT(prefill),      "N", NULL, NULL, 1, 1000000, "time a prompt of N tokens instead" },
    { "batch-tokens", 0, CLI_SIZE,   AT(batch_tokens), "B", NULL, "16384", 1, 16777216, "tokens computed at once" },
    CLI_OPTIONS_RUN(bench_arguments),
    CLI_OPTIONS_JSON(bench_arguments, "print one JSON object"),
    CLI_OPTIONS_LOG(bench_arguments),
    { 0 },
};
// clang-format on
#undef AT

enum { MAX_SHAPES = 64, MAX_RUNS = 100000, MAX_ROWS = 4096 };

typedef struct shape {
    size_t n_seqs, seq_len;
    double median, best, flop, bytes; /* seconds; per forward pass */
    size_t runs;
} shape;

typedef struct job {
    const bench_arguments *arguments;
    lattice_runtime *runtime;
    lattice_model *model;
    lattice_model_info info;
    lattice_machine_peak peak;
    double open_seconds;
    shape shapes[MAX_SHAPES];
    size_t n_shapes;
    lattice_profile_row *rows; /* [MAX_ROWS] */
    lt_buf out;
} job;

/* ------------------------------------------------------------------ shapes */

static bool parse_shapes(const char *text, job *j)
{
    while (*text) {
        char *end;
        if (j->n_shapes == MAX_SHAPES || *text < '0' || *text > '9') return false;
        shape s = { .n_seqs = strtoul(text, &end, 10) };
        if (*end != 'x' || end[1] < '0' || end[1] > '9') return false;
        s.seq_len = strtoul(end + 1, &end, 10);
        if (s.n_seqs == 0 || s.seq_len == 0 || (*end && *end != ',')) return false;
        j->shapes[j->n_shapes++] = s;
        text = *end ? end + 1 : end;
    }
    return j->n_shapes > 0;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Runs twice untimed, since the first pass touches and packs memory, then until the time is over; at least five times. */
static lattice_status time_shape(job *j, shape *s, lattice_error *err)
{
    for (int i = 0; i < 2; i++) LT_TRY(lattice_bench_forward(j->model, s->n_seqs, s->seq_len, NULL, 0, NULL, err));
    double *times = lt_alloc_array(cli_memory, MAX_RUNS, sizeof *times);
    if (!times) return lt_no_memory(err, MAX_RUNS * sizeof *times, "times");
    lattice_status status = LATTICE_OK;
    double begun = lt_clock_seconds();
    while (s->runs < MAX_RUNS && (s->runs < 5 || lt_clock_seconds() - begun < j->arguments->seconds)) {
        if (cli_interrupted) LT_GO(lt_fail(err, LATTICE_ERR_CANCELLED, "interrupted"));
        double start = lt_clock_seconds();
        LT_GO(lattice_bench_forward(j->model, s->n_seqs, s->seq_len, NULL, 0, NULL, err));
        times[s->runs++] = lt_clock_seconds() - start;
    }
    qsort(times, s->runs, sizeof *times, compare);
    s->median = times[s->runs / 2];
    s->best = times[0];
done:
    lt_free(cli_memory, times);
    return status;
}

/* Work of a pass, and with --profile its table. Untimed: profiling reads the clock around every operation. */
static lattice_status profile_shape(job *j, shape *s, size_t *n_rows, lattice_error *err)
{
    LT_TRY(lattice_bench_forward(j->model, s->n_seqs, s->seq_len, j->rows, MAX_ROWS, n_rows, err));
    if (*n_rows > MAX_ROWS) *n_rows = MAX_ROWS;
    for (size_t i = 0; i < *n_rows; i++) {
        s->flop += j->rows[i].flop;
        s->bytes += j->rows[i].bytes;
    }
    return LATTICE_OK;
}

static double tokens_per_second(const shape *s)
{
    return (double)(s->n_seqs * s->seq_len) / s->median;
}

/* ------------------------------------------------------------------ memory */

typedef struct memory {
    uint64_t weights, packed, workspace, resident, peak;
} memory;

static uint64_t resident_bytes(void)
{
    unsigned long long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (file) {
        if (fscanf(file, "%*u %llu", &pages) != 1) pages = 0;
        fclose(file);
    }
    return (uint64_t)pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

static memory measure_memory(const job *j)
{
    lattice_model_info info;
    lattice_model_get_info(j->model, &info);
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
#ifdef __APPLE__
    uint64_t unit = 1;
#else
    uint64_t unit = 1024;
#endif
    return (memory){ .weights = info.weight_bytes,
                     .packed = info.packed_bytes,
                     .workspace = info.workspace_touched_bytes,
                     .resident = resident_bytes(),
                     .peak = (uint64_t)usage.ru_maxrss * unit };
}

static void write_memory(lt_json_writer *w, const memory *m)
{
    const struct {
        const char *key;
        uint64_t value;
    } parts[] = { { "weight_bytes", m->weights },
                  { "packed_bytes", m->packed },
                  { "workspace_touched_bytes", m->workspace },
                  { "resident_bytes", m->resident },
                  { "peak_resident_bytes", m->peak } };
    lt_json_write_key(w, "memory");
    lt_json_write_begin(w, '{');
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        lt_json_write_key(w, parts[i].key);
        lt_json_write_uint(w, parts[i].value);
    }
    lt_json_write_end(w, '}');
}

static void print_memory(lt_buf *out, const memory *m)
{
    lt_buf_printf(
        out, "memory: weights %.1f MB, packed copies %.1f MB, workspace touched %.1f MB, resident %.1f MB, at most %.1f MB\n",
        (double)m->weights / 1e6, (double)m->packed / 1e6, (double)m->workspace / 1e6, (double)m->resident / 1e6,
        (double)m->peak / 1e6);
}

/* ------------------------------------------------------------------ forward passes */

static void write_number(lt_json_writer *w, const char *key, double value)
{
    lt_json_write_key(w, key);
    lt_json_write_double(w, value);
}

/* Of the arithmetic in use. */
static double peak_gflops(const job *j)
{
    if (strcmp(j->info.compute, "int8") == 0) return j->peak.gops_int8;
    return strcmp(j->info.compute, "bf16") == 0 ? j->peak.gflops_bf16 : j->peak.gflops_f32;
}

static void write_peak(lt_json_writer *w, const job *j)
{
    lt_json_write_key(w, "peak");
    lt_json_write_begin(w, '{');
    write_number(w, "gflops_f32", j->peak.gflops_f32);
    write_number(w, "gflops_bf16", j->peak.gflops_bf16);
    write_number(w, "gops_int8", j->peak.gops_int8);
    write_number(w, "read_gb_s", j->peak.read_gb_s);
    lt_json_write_key(w, "threads");
    lt_json_write_int(w, lattice_runtime_threads(j->runtime));
    lt_json_write_key(w, "isa");
    lt_json_write_z(w, j->info.isa);
    lt_json_write_end(w, '}');
}

static void write_profile(lt_json_writer *w, const job *j, size_t n_rows)
{
    lt_json_write_key(w, "profile");
    lt_json_write_begin(w, '[');
    for (size_t i = 0; i < n_rows; i++) {
        const lattice_profile_row *row = &j->rows[i];
        lt_json_write_begin(w, '{');
        lt_json_write_key(w, "operation");
        lt_json_write_z(w, row->operation);
        lt_json_write_key(w, "detail");
        lt_json_write_z(w, row->detail);
        write_number(w, "thread_seconds", row->seconds);
        write_number(w, "flop", row->flop);
        write_number(w, "bytes", row->bytes);
        lt_json_write_end(w, '}');
    }
    lt_json_write_end(w, ']');
}

static void print_profile(lt_buf *out, const job *j, const shape *s, size_t n_rows)
{
    double total = 0;
    for (size_t i = 0; i < n_rows; i++) total += j->rows[i].seconds;
    lt_buf_printf(out, "\n%zux%zu by operation (thread time)\n  %-11s %9s %6s %9s %8s  %s\n", s->n_seqs, s->seq_len, "operation",
                  "ms", "share", "GFLOP/s", "GB/s", "weight or shape");
    for (size_t i = 0; i < n_rows; i++) {
        const lattice_profile_row *row = &j->rows[i];
        double seconds = row->seconds > 0 ? row->seconds : 1e-12;
        lt_buf_printf(out, "  %-11s %9.3f %5.1f%% %9.1f %8.1f  %s\n", row->operation, row->seconds * 1e3,
                      total > 0 ? 100 * row->seconds / total : 0, row->flop / seconds / 1e9, row->bytes / seconds / 1e9,
                      row->detail);
    }
}

static void write_shape(lt_json_writer *w, const job *j, const shape *s, size_t n_rows)
{
    char name[64];
    snprintf(name, sizeof name, "%zux%zu", s->n_seqs, s->seq_len);
    lt_json_write_begin(w, '{');
    lt_json_write_key(w, "shape");
    lt_json_write_z(w, name);
    write_number(w, "ms", s->median * 1e3);
    write_number(w, "best_ms", s->best * 1e3);
    write_number(w, "tok_per_s", tokens_per_second(s));
    write_number(w, "gflops", s->flop / s->median / 1e9);
    write_number(w, "peak_share", s->flop / s->median / 1e9 / peak_gflops(j));
    write_number(w, "read_share", s->bytes / s->median / 1e9 / j->peak.read_gb_s);
    lt_json_write_key(w, "runs");
    lt_json_write_uint(w, s->runs);
    if (j->arguments->profile) write_profile(w, j, n_rows);
    lt_json_write_end(w, '}');
}

static void better_peak(lattice_machine_peak *peak, const lattice_machine_peak *again)
{
    if (again->gflops_f32 > peak->gflops_f32) peak->gflops_f32 = again->gflops_f32;
    if (again->gflops_bf16 > peak->gflops_bf16) peak->gflops_bf16 = again->gflops_bf16;
    if (again->read_gb_s > peak->read_gb_s) peak->read_gb_s = again->read_gb_s;
    if (again->gops_int8 > peak->gops_int8) peak->gops_int8 = again->gops_int8;
}

static void print_heading(job *j)
{
    lt_buf_printf(&j->out, "%s, %s, %s, %d threads, opened in %.1f ms\n", j->info.family, j->info.compute, j->info.isa,
                  lattice_runtime_threads(j->runtime), j->open_seconds * 1e3);
}

/* Times all shapes before any output, and measures the peak around them: memory is asked for first, since the peak's own buffer
 * would count. */
static lattice_status bench_shapes(job *j, lattice_error *err)
{
    const bool json = j->arguments->common.json;
    for (size_t i = 0; i < j->n_shapes; i++) LT_TRY(time_shape(j, &j->shapes[i], err));
    memory used = measure_memory(j);
    lattice_machine_peak again;
    LT_TRY(lattice_measure_peak(j->runtime, j->info.isa, 1, &j->peak, err));
    lt_json_writer w = lt_json_writer_on(&j->out);
    lt_buf profiles;
    lt_buf_init(&profiles, cli_memory);
    lattice_status status = LATTICE_OK;
    LT_GO(lattice_measure_peak(j->runtime, j->info.isa, 0.5, &again, err));
    better_peak(&j->peak, &again);
    if (json) {
        lt_json_write_begin(&w, '{');
        write_peak(&w, j);
        write_number(&w, "open_ms", j->open_seconds * 1e3);
        lt_json_write_key(&w, "results");
        lt_json_write_begin(&w, '[');
    } else {
        print_heading(j);
        lt_buf_printf(&j->out, "peak: %.1f GFLOP/s, %.1f GB/s read\n\n%-10s %10s %12s %10s %9s %9s\n", peak_gflops(j),
                      j->peak.read_gb_s, "shape", "median ms", "tokens/s", "GFLOP/s", "of FMA", "of read");
    }
    for (size_t i = 0; i < j->n_shapes; i++) {
        shape *s = &j->shapes[i];
        size_t n_rows;
        LT_GO(profile_shape(j, s, &n_rows, err));
        if (json) {
            write_shape(&w, j, s, n_rows);
            continue;
        }
        char name[64];
        snprintf(name, sizeof name, "%zux%zu", s->n_seqs, s->seq_len);
        double gflops = s->flop / s->median / 1e9, gb = s->bytes / s->median / 1e9;
        lt_buf_printf(&j->out, "%-10s %10.3f %12.0f %10.1f %8.1f%% %8.1f%%\n", name, s->median * 1e3, tokens_per_second(s),
                      gflops, 100 * gflops / peak_gflops(j), 100 * gb / j->peak.read_gb_s);
        if (j->arguments->profile) print_profile(&profiles, j, s, n_rows);
    }
    if (json) {
        lt_json_write_end(&w, ']');
        write_memory(&w, &used);
        lt_json_write_end(&w, '}');
        lt_buf_byte(&j->out, '\n');
    } else {
        lt_buf_append(&j->out, profiles.data, profiles.len);
        lt_buf_byte(&j->out, '\n');
        print_memory(&j->out, &used);
    }
done:
    lt_buf_free(&profiles);
    return status;
}

/* ------------------------------------------------------------------ texts to vectors */

typedef struct corpus {
    lt_buf bytes;
    size_t *begin; /* [n + 1] */
    size_t n, capacity;
} corpus;

static lattice_status read_corpus(cli_input *input, corpus *c, lattice_error *err)
{
    for (;;) {
        cli_item item;
        bool more;
        LT_TRY(cli_input_next(input, &item, &more, err));
        if (!LT_GROW(cli_memory, c->begin, c->capacity, c->n + 1)) return lt_no_memory(err, c->n * sizeof *c->begin, "texts");
        c->begin[c->n] = c->bytes.len;
        if (!more) return LATTICE_OK;
        if (item.text.len) lt_buf_append(&c->bytes, item.text.data, item.text.len);
        if (c->bytes.failed) return lt_no_memory(err, c->bytes.len, "texts");
        c->n++;
    }
}

static bool go_on(void *user, size_t done, size_t total)
{
    (void)user;
    (void)done;
    (void)total;
    return !cli_interrupted;
}

static lattice_status time_texts(job *j, const corpus *c, lattice_text *texts, float *vectors, lattice_error *err)
{
    const bool json = j->arguments->common.json;
    lattice_embed_options embed_options = lattice_embed_options_default();
    embed_options.progress = go_on;
    lattice_usage usage = { 0 };
    for (size_t i = 0; i < c->n; i++)
        texts[i] = (lattice_text){ c->bytes.data ? c->bytes.data + c->begin[i] : "", c->begin[i + 1] - c->begin[i] };
    double start = lt_clock_seconds();
    LT_TRY(lattice_embed(j->model, texts, c->n, &embed_options, vectors, &usage, err));
    double seconds = lt_clock_seconds() - start;
    memory used = measure_memory(j);
    double text_rate = (double)c->n / seconds, token_rate = (double)usage.n_tokens / seconds;
    if (json) {
        lt_json_writer w = lt_json_writer_on(&j->out);
        lt_json_write_begin(&w, '{');
        lt_json_write_key(&w, "texts");
        lt_json_write_uint(&w, c->n);
        lt_json_write_key(&w, "tokens");
        lt_json_write_uint(&w, usage.n_tokens);
        lt_json_write_key(&w, "truncated");
        lt_json_write_uint(&w, usage.n_truncated);
        write_number(&w, "seconds", seconds);
        write_number(&w, "text_per_s", text_rate);
        write_number(&w, "tok_per_s", token_rate);
        write_number(&w, "open_ms", j->open_seconds * 1e3);
        write_memory(&w, &used);
        lt_json_write_end(&w, '}');
        lt_buf_byte(&j->out, '\n');
    } else {
        print_heading(j);
        lt_buf_printf(&j->out, "%zu texts, %llu tokens (%llu texts cut to %zu) in %.2f s: %.1f texts/s, %.0f tokens/s\n", c->n,
                      (unsigned long long)usage.n_tokens, (unsigned long long)usage.n_truncated, j->info.max_length, seconds,
                      text_rate, token_rate);
        print_memory(&j->out, &used);
    }
    return LATTICE_OK;
}

static lattice_status bench_texts(job *j, cli_input *input, lattice_error *err)
{
    corpus c = { .n = 0 };
    lt_buf_init(&c.bytes, cli_memory);
    lattice_text *texts = NULL;
    float *vectors = NULL;
    lattice_status status = LATTICE_OK;
    LT_GO(read_corpus(input, &c, err));
    if (c.n == 0) LT_GO(lt_fail(err, LATTICE_ERR_INVALID_ARGUMENT, "%s: no texts", input->name));
    texts = lt_alloc_array(cli_memory, c.n, sizeof *texts);
    vectors = lt_alloc_array(cli_memory, c.n, j->info.embedding_dim * sizeof *vectors);
    if (!texts || !vectors) LT_GO(lt_no_memory(err, c.n * j->info.embedding_dim * sizeof *vectors, "vectors"));
    LT_GO(time_texts(j, &c, texts, vectors, err));
done:
    lt_free(cli_memory, texts);
    lt_free(cli_memory, vectors);
    lt_free(cli_memory, c.begin);
    lt_buf_free(&c.bytes);
    return status;
}

/* ------------------------------------------------------------------ prompts and tokens */

static lattice_status bench_session(job *j, lattice_error *err)
{
    const bench_arguments *a = j->arguments;
    cli_bench_session b = { .decode = a->decode, .prefill = a->prefill, .seconds = a->seconds };
    LT_TRY(cli_bench_session_run(j->runtime, j->model, &b, err));
    memory used = measure_memory(j);
    if (a->common.json) {
        lt_json_writer w = lt_json_writer_on(&j->out);
        lt_json_write_begin(&w, '{');
        write_number(&w, "open_ms", j->open_seconds * 1e3);
        write_memory(&w, &used);
        cli_bench_session_write(&b, &j->out, true);
        lt_json_write_end(&w, '}');
        lt_buf_byte(&j->out, '\n');
    } else {
        print_heading(j);
        cli_bench_session_print(&b, &j->out);
        print_memory(&j->out, &used);
    }
    return LATTICE_OK;
}

/* ------------------------------------------------------------------ the command */

static lattice_status bench(job *j, cli_input *input, lattice_error *err)
{
    lt_buf folder;
    lt_buf_init(&folder, cli_memory);
    lattice_model_options model_options = cli_model_options(&j->arguments->common);
    model_options.batch_tokens = j->arguments->batch_tokens;
    model_options.tokenizer_optional = !j->arguments->texts;
    lattice_status status = cli_find_model(j->arguments->common.model, &folder, err);
    if (status == LATTICE_OK) status = cli_runtime(&j->arguments->common, &j->runtime, err);
    double start = lt_clock_seconds();
    if (status == LATTICE_OK) status = lattice_model_open(j->runtime, folder.data, &model_options, &j->model, err);
    j->open_seconds = lt_clock_seconds() - start;
    lt_buf_free(&folder);
    LT_TRY(status);
    lattice_model_get_info(j->model, &j->info);
    if (j->arguments->decode || j->arguments->prefill) return bench_session(j, err);
    return j->arguments->texts ? bench_texts(j, input, err) : bench_shapes(j, err);
}

static int run(void *opaque, char **operands, size_t n_operands)
{
    (void)operands;
    (void)n_operands;
    bench_arguments *arguments = opaque;
    const cli_command *command = &cli_bench_command;
    if (!arguments->common.model) return cli_usage(command, "no model given: -m MODEL");
    job j = { .arguments = arguments };
    lt_buf_init(&j.out, cli_memory);
    if (!parse_shapes(arguments->shapes, &j))
        return cli_usage(command, "--shapes must be like 1x8,32x128, not '%s'", arguments->shapes);
    cli_input input = { 0 };
    if (arguments->texts) {
        bool jsonl = lt_str_ends(lt_str_of(arguments->texts), ".jsonl");
        int code = cli_input_open(&input, command, NULL, 0, arguments->texts, jsonl);
        if (code) return code;
    }
    cli_catch_interrupts();
    lattice_error err = { 0 };
    int code = CLI_FAILED;
    j.rows = lt_alloc_array(cli_memory, MAX_ROWS, sizeof *j.rows);
    lattice_status status = j.rows ? bench(&j, &input, &err) : lt_no_memory(&err, MAX_ROWS * sizeof *j.rows, "a profile");
    if (status == LATTICE_OK && j.out.failed) status = lt_no_memory(&err, j.out.len, "output");
    if (status != LATTICE_OK)
        cli_fail(&err);
    else if (cli_print(lt_buf_str(&j.out)))
        code = CLI_DONE;
    if (arguments->texts) cli_input_close(&input);
    lattice_model_close(j.model);
    lattice_runtime_free(j.runtime);
    lt_free(cli_memory, j.rows);
    lt_buf_free(&j.out);
    return code;
}

const cli_command cli_bench_command = {
    .name = "bench",
    .operands = "",
    .summary = "speed and memory against this machine's peak",
    .description = "Times forward passes of given shapes and prints the median, tokens a second, and the\n"
                   "share of the multiply-add and read peaks that are measured beside them. --texts times\n"
                   "whole texts, tokenising included; --decode and --prefill a language model's two phases,\n"
                   "with the share of the read bandwidth. All print each part of the memory.",
    .examples = "  lattice bench -m all-minilm-l6-v2 --threads 2\n"
                "  lattice bench -m all-minilm-l6-v2 --shapes 32x128 --profile\n"
                "  lattice bench -m all-minilm-l6-v2 --texts texts.jsonl\n"
                "  lattice bench -m ./qwen3.5 --prefill 512 --decode 64",
    .options = options,
    .arguments_size = sizeof(bench_arguments),
    .run = run,
};
