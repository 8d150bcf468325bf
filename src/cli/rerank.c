/* lattice rerank: scores of documents for a query, best first; or many queries, a JSON object a line. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/input.h"
#include "cli/progress.h"

typedef struct rerank_arguments {
    cli_common common;
    const char *query, *input, *instruction, *label, *threshold;
    size_t max_length, top_n, batch_tokens;
    bool jsonl, raw, literal, no_truncate, sort;
} rerank_arguments;

#define AT(field) offsetof(rerank_arguments, field)
// clang-format off
static const cli_option options[] = {
    CLI_OPTION_MODEL(rerank_arguments),
    { "query",        'q', CLI_STRING, AT(query),        "QUERY", NULL, NULL, 0, 0, "what the documents are scored for (required without --jsonl)" },
    { "input",        'i', CLI_STRING, AT(input),        "FILE", NULL, NULL, 0, 0, "read FILE instead of standard input" },
    { "jsonl",        0,   CLI_FLAG,   AT(jsonl),        NULL, NULL, NULL, 0, 0, "read a JSON object a line, {\"query\":…,\"documents\":[…]}, and print one a query" },
    { "top-n",        'n', CLI_SIZE,   AT(top_n),        "K", NULL, NULL, 1, 0, "print the K best only (default: all)" },
    { "threshold",    0,   CLI_STRING, AT(threshold),    "S", NULL, NULL, 0, 0, "leave out documents whose score is below S" },
    { "sort",         0,   CLI_FLAG,   AT(sort),         NULL, NULL, NULL, 0, 0, "with --jsonl: best first instead of in the order of the input" },
    { "raw",          0,   CLI_FLAG,   AT(raw),          NULL, NULL, NULL, 0, 0, "scores are logits, not probabilities" },
    { "label",        0,   CLI_STRING, AT(label),        "NAME", NULL, NULL, 0, 0, "of a model with several labels: the label whose score counts" },
    { "instruction",  0,   CLI_STRING, AT(instruction),  "TEXT", NULL, NULL, 0, 0, "the task, for models that take one (default: web search)" },
    { "max-length",   0,   CLI_SIZE,   AT(max_length),   "L", NULL, NULL, 1, 0, "tokens of query and document together at most (default: the model's limit)" },
    { "no-truncate",  0,   CLI_FLAG,   AT(no_truncate),  NULL, NULL, NULL, 0, 0, "fail on a longer pair instead of cutting it" },
    { "literal",      0,   CLI_FLAG,   AT(literal),      NULL, NULL, NULL, 0, 0, "take special tokens in the texts for plain text" },
    { "batch-tokens", 0,   CLI_SIZE,   AT(batch_tokens), "B", NULL, "16384", 1, 16777216, "tokens computed at once" },
    CLI_OPTIONS_RUN(rerank_arguments),
    CLI_OPTIONS_JSON(rerank_arguments, "has no effect: results are JSON lines"),
    CLI_OPTIONS_LOG(rerank_arguments),
    { 0 },
};
// clang-format on
#undef AT

/* ------------------------------------------------------------------ a query and its documents */

typedef struct request {
    lt_buf bytes; /* texts, one behind the other */
    struct span {
        size_t begin, size;
    } query, *documents;
    size_t n, capacity;
} request;

typedef struct job {
    const rerank_arguments *arguments;
    lattice_model *model;
    lattice_model_info info;
    lattice_rerank_options options;
    bool has_threshold;
    double threshold;
    size_t label; /* whose score counts; SIZE_MAX: none does, there are several */
    cli_input input;
    request request;
    lattice_text *texts; /* the result, [capacity] documents */
    float *scores, *logits;
    size_t *order; /* documents to print */
    size_t texts_capacity, scores_capacity, logits_capacity, order_capacity;
    size_t n_order;
    uint64_t truncated;
    lt_buf out;
} job;

static lattice_status keep_text(request *r, lt_str text, struct span *span, lattice_error *err)
{
    *span = (struct span){ r->bytes.len, text.len };
    if (text.len) lt_buf_append(&r->bytes, text.data, text.len);
    return r->bytes.failed ? lt_no_memory(err, text.len, "a text") : LATTICE_OK;
}

static lattice_status add_document(request *r, lt_str text, lattice_error *err)
{
    if (!LT_GROW(cli_memory, r->documents, r->capacity, r->n + 1)) return lt_no_memory(err, r->n, "documents");
    LT_TRY(keep_text(r, text, &r->documents[r->n], err));
    r->n++;
    return LATTICE_OK;
}

/* Documents from arguments or lines. */
static lattice_status read_documents(job *j, lattice_error *err)
{
    LT_TRY(keep_text(&j->request, lt_str_of(j->arguments->query), &j->request.query, err));
    for (;;) {
        cli_item item;
        bool more;
        LT_TRY(cli_input_next(&j->input, &item, &more, err));
        if (!more) return LATTICE_OK;
        LT_TRY(add_document(&j->request, item.text, err));
    }
}

/* A document is a string, or an object with its "text"; other members are passed over. */
static lattice_status read_document(lt_json *json, request *r, lattice_error *err)
{
    lt_str text;
    if (lt_json_peek(json) != LT_JSON_OBJECT) {
        LT_TRY(lt_json_string(json, &text));
        return add_document(r, text, err);
    }
    bool has_text = false, more;
    LT_TRY(lt_json_begin_object(json));
    for (lt_str key;;) {
        LT_TRY(lt_json_next_member(json, &key, &more));
        if (!more) break;
        if (!lt_str_is(key, "text")) {
            LT_TRY(lt_json_skip(json));
            continue;
        }
        LT_TRY(lt_json_string(json, &text));
        LT_TRY(add_document(r, text, err));
        has_text = true;
    }
    return has_text ? LATTICE_OK : lt_json_fail(json, "a document needs a \"text\"");
}

static lattice_status read_request(lt_json *json, request *r, lattice_error *err)
{
    bool has_query = false, has_documents = false, more;
    lt_buf_clear(&r->bytes);
    r->n = 0;
    LT_TRY(lt_json_begin_object(json));
    for (lt_str key;;) {
        LT_TRY(lt_json_next_member(json, &key, &more));
        if (!more) break;
        if (lt_str_is(key, "query")) {
            lt_str text;
            LT_TRY(lt_json_string(json, &text));
            LT_TRY(keep_text(r, text, &r->query, err));
            has_query = true;
        } else if (lt_str_is(key, "documents")) {
            LT_TRY(lt_json_begin_array(json));
            for (;;) {
                LT_TRY(lt_json_next_element(json, &more));
                if (!more) break;
                LT_TRY(read_document(json, r, err));
            }
            has_documents = true;
        } else {
            LT_TRY(lt_json_skip(json));
        }
    }
    if (!has_query) return lt_json_fail(json, "an object needs a \"query\"");
    if (!has_documents) return lt_json_fail(json, "an object needs \"documents\"");
    if (r->n == 0) return lt_json_fail(json, "no documents");
    return lt_json_end(json);
}

/* ------------------------------------------------------------------ scores */

static bool progress(void *user, size_t done, size_t total)
{
    (void)total;
    job *j = user;
    cli_progress_update(j->input.bytes_total ? j->input.bytes_read : done);
    return !cli_interrupted;
}

static lattice_status score_request(job *j, lattice_error *err)
{
    request *r = &j->request;
    const lattice_model_info *info = &j->info;
    size_t n_scores, n_logits;
    if (!lt_mul(r->n, info->n_scores, &n_scores) || !lt_mul(r->n, info->n_labels, &n_logits) ||
        !LT_GROW(cli_memory, j->texts, j->texts_capacity, r->n) || !LT_GROW(cli_memory, j->order, j->order_capacity, r->n) ||
        !LT_GROW(cli_memory, j->scores, j->scores_capacity, n_scores) ||
        !LT_GROW(cli_memory, j->logits, j->logits_capacity, n_logits))
        return lt_no_memory(err, r->n * sizeof(lattice_text), "scores");
    const char *bytes = r->bytes.data ? r->bytes.data : "";
    for (size_t i = 0; i < r->n; i++) j->texts[i] = (lattice_text){ bytes + r->documents[i].begin, r->documents[i].size };
    lattice_text query = { bytes + r->query.begin, r->query.size };
    lattice_usage usage = { 0 };
    LT_TRY(lattice_rerank(j->model, query, j->texts, r->n, &j->options, j->scores, j->logits, &usage, err));
    j->truncated += usage.n_truncated;
    return LATTICE_OK;
}

static float score_of(const job *j, size_t document)
{
    return j->scores[document * j->info.n_scores + j->label];
}

/* Shell sort, best first, equal scores in the order of the input. */
static void sort_documents(job *j)
{
    size_t gap = 1;
    while (gap < j->n_order / 9) gap = 3 * gap + 1;
    for (; gap > 0; gap /= 3) {
        for (size_t i = gap; i < j->n_order; i++) {
            size_t document = j->order[i], at = i;
            for (; at >= gap; at -= gap) {
                size_t other = j->order[at - gap];
                float mine = score_of(j, document), its = score_of(j, other);
                if (its > mine || (its == mine && other < document)) break;
                j->order[at] = other;
            }
            j->order[at] = document;
        }
    }
}

static int compare_indices(const void *a, const void *b)
{
    size_t x = *(const size_t *)a, y = *(const size_t *)b;
    return (x > y) - (x < y);
}

/* Fills j->order with the documents to print, in their order. */
static void choose_documents(job *j)
{
    bool by_score = j->label != SIZE_MAX, keep_order = j->arguments->jsonl && !j->arguments->sort;
    j->n_order = 0;
    for (size_t i = 0; i < j->request.n; i++)
        if (!j->has_threshold || (double)score_of(j, i) >= j->threshold) j->order[j->n_order++] = i;
    size_t top = j->arguments->top_n;
    bool cut = top && top < j->n_order;
    if (!by_score || (keep_order && !cut)) return;
    sort_documents(j);
    if (cut) j->n_order = top;
    if (keep_order) qsort(j->order, j->n_order, sizeof *j->order, compare_indices);
}

/* ------------------------------------------------------------------ output */

static void write_result(job *j, lt_json_writer *w, size_t document)
{
    const lattice_model_info *info = &j->info;
    lt_json_write_begin(w, '{');
    lt_json_write_key(w, "index");
    lt_json_write_uint(w, document);
    if (j->label != SIZE_MAX) {
        lt_json_write_key(w, "score");
        lt_json_write_float(w, score_of(j, document));
    }
    if (info->n_scores > 1) {
        lt_json_write_key(w, "scores");
        lt_json_write_begin(w, '{');
        for (size_t i = 0; i < info->n_scores; i++) {
            lt_json_write_key(w, info->labels[i]);
            lt_json_write_float(w, j->scores[document * info->n_scores + i]);
        }
        lt_json_write_end(w, '}');
    }
    if (j->arguments->jsonl) {
        lt_json_write_key(w, "logits");
        lt_json_write_floats(w, j->logits + document * info->n_labels, info->n_labels);
    } else {
        lt_json_write_key(w, "document");
        lt_json_write_str(w, (lt_str){ j->texts[document].data, j->texts[document].length });
    }
    lt_json_write_end(w, '}');
}

static lattice_status print_results(job *j, lattice_error *err)
{
    lt_buf_clear(&j->out);
    lt_json_writer w = lt_json_writer_on(&j->out);
    if (j->arguments->jsonl) {
        lt_json_write_begin(&w, '{');
        lt_json_write_key(&w, "results");
        lt_json_write_begin(&w, '[');
    }
    for (size_t i = 0; i < j->n_order; i++) {
        write_result(j, &w, j->order[i]);
        if (j->arguments->jsonl) continue;
        lt_buf_byte(&j->out, '\n');
        w.comma = false;
    }
    if (j->arguments->jsonl) {
        lt_json_write_end(&w, ']');
        lt_json_write_end(&w, '}');
        lt_buf_byte(&j->out, '\n');
    }
    if (j->out.failed) return lt_no_memory(err, j->out.len, "results");
    fwrite(j->out.data ? j->out.data : "", 1, j->out.len, stdout);
    if (fflush(stdout) != 0 || ferror(stdout)) return lt_fail(err, LATTICE_ERR_IO, "standard output: %s", strerror(errno));
    return LATTICE_OK;
}

static lattice_status rerank_documents(job *j, lattice_error *err)
{
    LT_TRY(read_documents(j, err));
    cli_progress_begin("reranking", "documents", j->request.n);
    LT_TRY(score_request(j, err));
    cli_progress_end();
    choose_documents(j);
    return print_results(j, err);
}

static lattice_status rerank_lines(job *j, lattice_error *err)
{
    cli_progress_begin("reranking", j->input.bytes_total ? NULL : "queries", j->input.bytes_total);
    for (;;) {
        lt_json *json;
        LT_TRY(cli_input_json(&j->input, &json, err));
        if (!json) return LATTICE_OK;
        lattice_status status = read_request(json, &j->request, err);
        if (status == LATTICE_OK) status = score_request(j, err);
        if (status != LATTICE_OK) {
            cli_input_name_line(&j->input, err);
            return status;
        }
        choose_documents(j);
        LT_TRY(print_results(j, err));
    }
}

/* ------------------------------------------------------------------ the command */

/* Which label counts, and what needs one; 0 or CLI_USAGE. */
static int find_label(job *j)
{
    const rerank_arguments *a = j->arguments;
    const lattice_model_info *info = &j->info;
    bool several = info->n_scores > 1;
    /* A reranker's one score is that of "yes", its last label. */
    size_t first = several ? 0 : info->n_labels - 1, found = SIZE_MAX;
    for (size_t i = first; a->label && i < info->n_labels; i++)
        if (strcmp(info->labels[i], a->label) == 0) found = i;
    j->label = several ? found : 0;
    bool is_known = !a->label || found != SIZE_MAX;
    if (is_known && (j->label != SIZE_MAX || (!a->top_n && !a->threshold && !a->sort))) return 0;
    lt_buf names;
    lt_buf_init(&names, cli_memory);
    for (size_t i = first; i < info->n_labels; i++) lt_buf_printf(&names, "%s%s", i > first ? ", " : "", info->labels[i]);
    const char *list = names.data ? names.data : "";
    const cli_command *command = &cli_rerank_command;
    int code = is_known ? cli_usage(command, "the model has several labels: --label says whose score counts (%s)", list)
                        : cli_usage(command, "the model has no label '%s'; it has: %s", a->label, list);
    lt_buf_free(&names);
    return code;
}

static int rerank(job *j, lattice_runtime *runtime, const char *folder)
{
    const rerank_arguments *a = j->arguments;
    lattice_error err = { 0 };
    lattice_model_options model_options = cli_model_options(&a->common);
    model_options.batch_tokens = a->batch_tokens;
    lattice_status status = lattice_model_open(runtime, folder, &model_options, &j->model, &err);
    if (status != LATTICE_OK) return cli_fail(&err);
    lattice_model_get_info(j->model, &j->info);
    if (j->info.n_labels == 0) return cli_failf("%s: this model gives vectors (lattice embed), not scores of documents", folder);
    int code = find_label(j);
    if (code) return code;
    j->options = lattice_rerank_options_default();
    j->options.instruction = a->instruction;
    j->options.raw = a->raw;
    j->options.literal = a->literal;
    j->options.truncate = !a->no_truncate;
    j->options.max_length = a->max_length;
    j->options.progress = progress;
    j->options.progress_user = j;
    status = a->jsonl ? rerank_lines(j, &err) : rerank_documents(j, &err);
    cli_progress_end();
    if (status == LATTICE_ERR_CANCELLED) return cli_failf("interrupted");
    if (status != LATTICE_OK) return cli_fail(&err);
    if (j->truncated) cli_warn("%llu pairs were longer than the limit and have been cut", (unsigned long long)j->truncated);
    return CLI_DONE;
}

static int check_usage(job *j)
{
    const rerank_arguments *a = j->arguments;
    const cli_command *command = &cli_rerank_command;
    if (!a->common.model) return cli_usage(command, "no model given: -m MODEL");
    if (!a->query && !a->jsonl) return cli_usage(command, "no query given: -q QUERY");
    if (a->query && a->jsonl) return cli_usage(command, "--query and --jsonl exclude each other");
    if (a->sort && !a->jsonl) return cli_usage(command, "--sort belongs to --jsonl; without it the best comes first anyway");
    if (!a->threshold) return 0;
    char *end;
    j->has_threshold = true;
    j->threshold = strtod(a->threshold, &end);
    if (end == a->threshold || *end || !isfinite(j->threshold))
        return cli_usage(command, "--threshold must be a number, not '%s'", a->threshold);
    return 0;
}

static int run(void *opaque, char **operands, size_t n_operands)
{
    job j = { .arguments = opaque };
    int code = check_usage(&j);
    if (code) return code;
    const rerank_arguments *a = j.arguments;
    lattice_runtime *runtime = NULL;
    lattice_error err = { 0 };
    lt_buf folder;
    lt_buf_init(&folder, cli_memory);
    lt_buf_init(&j.request.bytes, cli_memory);
    lt_buf_init(&j.out, cli_memory);
    code = cli_input_open(&j.input, &cli_rerank_command, operands, n_operands, a->input, a->jsonl);
    if (code == 0) {
        cli_catch_interrupts();
        lattice_status status = cli_find_model(a->common.model, &folder, &err);
        if (status == LATTICE_OK) status = cli_runtime(&a->common, &runtime, &err);
        code = status == LATTICE_OK ? rerank(&j, runtime, folder.data) : cli_fail(&err);
    }
    cli_input_close(&j.input);
    lattice_model_close(j.model);
    lattice_runtime_free(runtime);
    lt_free(cli_memory, j.request.documents);
    lt_free(cli_memory, j.texts);
    lt_free(cli_memory, j.scores);
    lt_free(cli_memory, j.logits);
    lt_free(cli_memory, j.order);
    lt_buf_free(&j.request.bytes);
    lt_buf_free(&j.out);
    lt_buf_free(&folder);
    return code;
}

const cli_command cli_rerank_command = {
    .name = "rerank",
    .operands = "[DOC…]",
    .summary = "scores of documents for a query",
    .description = "Scores documents, the arguments, else the lines of --input or of standard input, for\n"
                   "--query with a cross-encoder or a reranker, and prints\n"
                   "{\"index\",\"score\",\"document\"} a line, best first. With --jsonl every line holds a query\n"
                   "and its documents, and gives {\"results\":[{\"index\",\"score\",\"logits\"}]} in their order.\n"
                   "A model with several labels gives \"scores\" by label; --label names the one that sorts.",
    .examples = "  lattice rerank -m bge-reranker-v2-m3 -q \"what is a panda?\" \"A bear.\" \"A car.\"\n"
                "  lattice rerank -m ./model -q \"sorting\" --top-n 3 -i passages.txt\n"
                "  lattice rerank -m ./model --jsonl < queries.jsonl > scores.jsonl",
    .options = options,
    .arguments_size = sizeof(rerank_arguments),
    .max_operands = SIZE_MAX,
    .run = run,
};
