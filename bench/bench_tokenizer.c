/* Times a tokenizer: loading, and texts to tokens on one or several threads that share it.
 *
 *   build/bench_tokenizer FOLDER TEXTS.jsonl [--rounds N] [--threads N] [--no-spans] [--piece BYTES]
 *
 * TEXTS holds a JSON string, or an object with "text", a line (gunzip -c bench/data/mixed-10k.jsonl.gz). --piece joins the texts
 * and cuts them into pieces of that many bytes. Prints one JSON object: milliseconds to load (best and median of the rounds),
 * kilobytes the loaded tokenizer added to the resident memory, megabytes (10^6) of text a second in the best and the median
 * round, tokens. The first round of encoding starts with empty caches and is not counted. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "format/json.h"
#include "text/tokenizer.h"

enum { MAX_ROUNDS = 101, MAX_THREADS = 64 };

typedef struct texts {
    lt_str *data;
    size_t n, bytes;
} texts;

typedef struct worker {
    const lt_tokenizer *tokenizer;
    const texts *texts;
    size_t first, step;
    bool no_spans;
    lt_scratch *scratch;
    lt_tokens tokens;
    size_t n_tokens;
    pthread_t thread;
} worker;

static void check(lattice_status status, const lattice_error *err)
{
    if (status == LATTICE_OK) return;
    fprintf(stderr, "bench_tokenizer: %s\n", err->message);
    exit(1);
}

static void *memory(void *ptr)
{
    if (ptr) return ptr;
    fprintf(stderr, "bench_tokenizer: out of memory\n");
    exit(1);
}

static lt_str copy_text(lt_str s)
{
    char *data = memory(malloc(s.len + 1));
    memcpy(data, s.data, s.len);
    return (lt_str){ data, s.len };
}

/* The string of a line, or the "text" of its object. */
static lt_str read_line(const char *name, const char *line, size_t size)
{
    lattice_error err = { 0 };
    lt_json json;
    lt_str text = { "", 0 };
    lt_json_open(&json, &lt_malloc_allocator, name, line, size, &err);
    if (lt_json_peek(&json) == LT_JSON_STRING) {
        check(lt_json_string(&json, &text), &err);
        text = copy_text(text);
    } else {
        check(lt_json_begin_object(&json), &err);
        for (bool more = true; more;) {
            lt_str key;
            check(lt_json_next_member(&json, &key, &more), &err);
            if (!more) break;
            if (lt_str_is(key, "text")) {
                check(lt_json_string(&json, &text), &err);
                text = copy_text(text);
            } else {
                check(lt_json_skip(&json), &err);
            }
        }
    }
    lt_json_close(&json);
    return text;
}

static texts read_texts(const char *path)
{
    lattice_error err;
    lt_file file;
    texts out = { NULL, 0, 0 };
    size_t capacity = 0;
    check(lt_file_open(&lt_malloc_allocator, path, true, &file, &err), &err);
    const char *text = (const char *)file.data;
    for (size_t begin = 0; begin < file.size;) {
        const char *newline = memchr(text + begin, '\n', file.size - begin);
        size_t end = newline ? (size_t)(newline - text) : file.size;
        if (end > begin) {
            if (!LT_GROW(&lt_malloc_allocator, out.data, capacity, out.n + 1)) memory(NULL);
            out.data[out.n] = read_line(path, text + begin, end - begin);
            out.bytes += out.data[out.n++].len;
        }
        begin = end + 1;
    }
    lt_file_close(&file);
    return out;
}

/* The texts joined by newlines, cut into pieces; the last one is what is left. */
static texts cut(texts all, size_t piece)
{
    char *joined = memory(malloc(all.bytes + all.n));
    size_t size = 0;
    for (size_t i = 0; i < all.n; i++) {
        memcpy(joined + size, all.data[i].data, all.data[i].len);
        size += all.data[i].len;
        joined[size++] = '\n';
    }
    texts out = { memory(calloc(size / piece + 1, sizeof(lt_str))), 0, size };
    for (size_t at = 0; at < size; at += piece)
        out.data[out.n++] = (lt_str){ joined + at, size - at < piece ? size - at : piece };
    return out;
}

static size_t resident_kb(void)
{
    unsigned long pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (!f || fscanf(f, "%*u %lu", &pages) != 1) pages = 0;
    if (f) fclose(f);
    return pages * (size_t)sysconf(_SC_PAGESIZE) / 1024;
}

static void *encode(void *arg)
{
    worker *w = arg;
    const lt_encode_options options = { .add_special = true, .no_spans = w->no_spans };
    lattice_error err;
    w->n_tokens = 0;
    for (size_t i = w->first; i < w->texts->n; i += w->step) {
        check(lt_tokenizer_encode(w->tokenizer, w->scratch, w->texts->data[i], NULL, &options, &w->tokens, &err), &err);
        w->n_tokens += w->tokens.n;
    }
    return NULL;
}

static double run(worker *workers, int n)
{
    double start = lt_clock_seconds();
    for (int i = 1; i < n; i++) {
        if (pthread_create(&workers[i].thread, NULL, encode, &workers[i]) != 0) memory(NULL);
    }
    encode(&workers[0]);
    for (int i = 1; i < n; i++) pthread_join(workers[i].thread, NULL);
    return lt_clock_seconds() - start;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
    int rounds = 5, n_threads = 1;
    size_t piece = 0;
    bool no_spans = false;
    for (int i = 3; i < argc; i++) {
        if (strcmp(argv[i], "--no-spans") == 0)
            no_spans = true;
        else if (strcmp(argv[i], "--rounds") == 0 && i + 1 < argc)
            rounds = atoi(argv[++i]);
        else if (strcmp(argv[i], "--threads") == 0 && i + 1 < argc)
            n_threads = atoi(argv[++i]);
        else if (strcmp(argv[i], "--piece") == 0 && i + 1 < argc)
            piece = strtoul(argv[++i], NULL, 10);
        else
            argc = 0;
    }
    if (argc < 3 || rounds < 1 || rounds > MAX_ROUNDS || n_threads < 1 || n_threads > MAX_THREADS) {
        fprintf(stderr, "usage: bench_tokenizer FOLDER TEXTS.jsonl [--rounds N] [--threads N] [--no-spans] [--piece BYTES]\n");
        return 2;
    }
    texts all = read_texts(argv[2]);
    if (piece > 0) all = cut(all, piece);

    lattice_error err;
    lt_tokenizer *tokenizer = NULL;
    double load[MAX_ROUNDS], seconds[MAX_ROUNDS];
    size_t before = resident_kb(), resident = 0;
    for (int i = 0; i < rounds; i++) {
        lt_tokenizer_close(tokenizer);
        double start = lt_clock_seconds();
        check(lt_tokenizer_open(&lt_malloc_allocator, argv[1], &tokenizer, &err), &err);
        load[i] = lt_clock_seconds() - start;
        if (i == 0) resident = resident_kb() - before;
    }

    worker workers[MAX_THREADS];
    size_t n_tokens = 0;
    for (int i = 0; i < n_threads; i++) {
        workers[i] = (worker){
            .tokenizer = tokenizer, .texts = &all, .first = (size_t)i, .step = (size_t)n_threads, .no_spans = no_spans
        };
        lt_tokens_init(&workers[i].tokens, &lt_malloc_allocator);
        check(lt_scratch_create(tokenizer, &workers[i].scratch, &err), &err);
    }
    run(workers, n_threads);
    for (int i = 0; i < rounds; i++) seconds[i] = run(workers, n_threads);
    for (int i = 0; i < n_threads; i++) n_tokens += workers[i].n_tokens;

    qsort(load, (size_t)rounds, sizeof *load, compare);
    qsort(seconds, (size_t)rounds, sizeof *seconds, compare);
    double megabytes = (double)all.bytes * 1e-6;
    printf("{\"load_ms\": %.2f, \"load_ms_median\": %.2f, \"resident_kb\": %zu, \"mb_s\": %.2f, \"mb_s_median\": %.2f, "
           "\"megabytes\": %.3f, \"tokens\": %zu, \"threads\": %d}\n",
           load[0] * 1e3, load[rounds / 2] * 1e3, resident, megabytes / seconds[0], megabytes / seconds[rounds / 2], megabytes,
           n_tokens, n_threads);
    for (int i = 0; i < n_threads; i++) {
        lt_tokens_free(&workers[i].tokens);
        lt_scratch_free(workers[i].scratch);
    }
    lt_tokenizer_close(tokenizer);
    return 0;
}
