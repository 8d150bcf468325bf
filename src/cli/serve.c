/* lattice serve: the HTTP server's options. What it does is in src/server. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "cli/cli.h"
#include "server/server.h"

typedef struct serve_arguments {
    cli_common common;
    cli_strings models;
    const char *host, *unix_path, *cache;
    const char *api_key, *api_key_file, *cors_origin;
    size_t port, max_header, max_body, max_connections, max_client_batch, max_batch_tokens, max_queue_tokens, prefix_bytes,
        cache_entries;
    double idle_timeout, receive_timeout, total_timeout, grace;
    bool auto_truncate;
} serve_arguments;

#define AT(field) offsetof(serve_arguments, field)
// clang-format off
static const cli_option options[] = {
    { "model", 'm', CLI_STRINGS, AT(models), "[NAME=]MODEL", NULL, NULL, 0, 0, "a model to serve, under NAME or the name of its folder; the first of a kind answers requests that name none" },
    { "host", 0, CLI_STRING, AT(host), "ADDRESS", NULL, "127.0.0.1", 0, 0, "address to listen on" },
    { "port", 'p', CLI_SIZE, AT(port), "N", NULL, "8080", 0, 65535, "port to listen on; 0: any that is free" },
    { "unix", 0, CLI_STRING, AT(unix_path), "PATH", NULL, NULL, 0, 0, "listen on a Unix socket too" },
    { "api-key", 0, CLI_STRING, AT(api_key), "KEY", NULL, NULL, 0, 0, "ask for this key, as `Authorization: Bearer KEY`" },
    { "api-key-file", 0, CLI_STRING, AT(api_key_file), "FILE", NULL, NULL, 0, 0, "the same, from the first line of a file" },
    { "cors-origin", 0, CLI_STRING, AT(cors_origin), "ORIGIN", NULL, NULL, 0, 0, "let pages of this origin send requests; `*`: of any (default: none)" },
    { "max-batch-tokens", 0, CLI_SIZE, AT(max_batch_tokens), "N", NULL, "16384", 64, 1 << 24, "tokens of one batch" },
    { "max-queue-tokens", 0, CLI_SIZE, AT(max_queue_tokens), "N", NULL, "1048576", 1, 0, "tokens that may wait; requests beyond are told to come again (429)" },
    { "max-client-batch", 0, CLI_SIZE, AT(max_client_batch), "N", NULL, "10000", 1, 1 << 20, "texts of one request" },
    { "cache", 0, CLI_STRING, AT(cache), "FILE", NULL, NULL, 0, 0, "keep vectors in FILE, too; processes may share it" },
    { "cache-entries", 0, CLI_SIZE, AT(cache_entries), "N", NULL, "10000", 0, 0, "vectors kept in memory for texts that come again; 0: none" },
    { "prefix-cache", 0, CLI_SIZE, AT(prefix_bytes), "BYTES", NULL, "268435456", 0, 0, "memory for beginnings of conversations, which later turns go on from" },
    { "max-body", 0, CLI_SIZE, AT(max_body), "BYTES", NULL, "33554432", 1, 0, "bytes of one request's body" },
    { "max-header", 0, CLI_SIZE, AT(max_header), "BYTES", NULL, "32768", 4096, 1 << 20, "memory of one request's headers" },
    { "max-connections", 0, CLI_SIZE, AT(max_connections), "N", NULL, "16384", 1, 1 << 20, "connections at once" },
    { "auto-truncate", 0, CLI_FLAG, AT(auto_truncate), NULL, NULL, NULL, 0, 0, "cut texts that are too long, unless a request says otherwise" },
    { "idle-timeout", 0, CLI_NUMBER, AT(idle_timeout), "S", NULL, "75", 0, 1e6, "seconds that a connection may say nothing; 0: no limit" },
    { "receive-timeout", 0, CLI_NUMBER, AT(receive_timeout), "S", NULL, "60", 0, 1e6, "seconds until a request has come whole; 0: no limit" },
    { "total-timeout", 0, CLI_NUMBER, AT(total_timeout), "S", NULL, "600", 0, 1e6, "seconds until its answer is ready; 0: no limit" },
    { "grace", 0, CLI_NUMBER, AT(grace), "S", NULL, "30", 0, 1e6, "seconds for requests in flight when told to end" },
    CLI_OPTIONS_RUN(serve_arguments),
    CLI_OPTIONS_LOG(serve_arguments),
    { 0 },
};
// clang-format on
#undef AT

typedef struct served {
    lt_server_model *models;
    size_t n;
    char **names; /* [n] */
    lattice_cache *cache;
} served;

/* ------------------------------------------------------------------ models */

/* "NAME=PATH" or "PATH"; a folder whose name has '=' in it can be given as ./a=b. */
static lattice_status open_model(const serve_arguments *a, lattice_runtime *runtime, const char *word, served *s,
                                 lattice_error *err)
{
    const char *equals = strchr(word, '='), *slash = strchr(word, '/');
    if (equals && slash && slash < equals) equals = NULL;
    const char *path = equals ? equals + 1 : word;
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/') n--;
    const char *name = equals ? word : path;
    size_t length = equals ? (size_t)(equals - word) : n;
    if (!equals && lt_path_is_folder(path)) /* a folder's name without its parents; a fetched model's as it was given */
        for (size_t i = 0; i < n; i++)
            if (path[i] == '/') {
                name = path + i + 1;
                length = n - i - 1;
            }
    if (length == 0) return lt_fail(err, LATTICE_ERR_INVALID_ARGUMENT, "model '%s' has no name: give NAME=PATH", word);
    for (size_t i = 0; i < s->n; i++)
        if (strlen(s->names[i]) == length && memcmp(s->names[i], name, length) == 0)
            return lt_fail(err, LATTICE_ERR_INVALID_ARGUMENT, "two models are named '%s': give NAME=PATH", s->names[i]);
    char *copy = lt_alloc(cli_memory, length + 1);
    if (!copy) return lt_no_memory(err, length, "a name");
    memcpy(copy, name, length);
    copy[length] = '\0';
    s->names[s->n] = copy;
    lt_buf folder;
    lt_buf_init(&folder, cli_memory);
    lattice_model_options o = cli_model_options(&a->common);
    o.batch_tokens = a->max_batch_tokens;
    lattice_status status = cli_find_model(path, &folder, err);
    if (status == LATTICE_OK) status = lattice_model_open(runtime, folder.data, &o, &s->models[s->n].model, err);
    lt_buf_free(&folder);
    s->models[s->n++].name = copy;
    return status;
}

/* ------------------------------------------------------------------ key */

/* The first line of the file. */
static lattice_status read_key(const char *path, char *key, size_t capacity, lattice_error *err)
{
    FILE *file = fopen(path, "r");
    if (!file) return lt_fail(err, LATTICE_ERR_IO, "%s: %s", path, strerror(errno));
    bool read = fgets(key, (int)capacity, file) != NULL;
    fclose(file);
    if (read) key[strcspn(key, "\r\n")] = '\0';
    if (!read || !key[0]) return lt_fail(err, LATTICE_ERR_FORMAT, "%s: the first line is empty: no key", path);
    return LATTICE_OK;
}

static bool is_local(const char *host)
{
    return strncmp(host, "127.", 4) == 0 || strcmp(host, "::1") == 0 || strcmp(host, "localhost") == 0;
}

/* ------------------------------------------------------------------ running */

static void say_ready(void *user, const char *address)
{
    (void)user;
    printf("listening on %s\n", address);
    fflush(stdout);
}

static void say_warning(void *user, const char *message)
{
    (void)user;
    cli_warn("%s", message);
}

/* Every connection is a descriptor. */
static void raise_descriptors(size_t wanted)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
    rlim_t need = (rlim_t)wanted + 64;
    if (limit.rlim_cur < need) {
        limit.rlim_cur = limit.rlim_max != RLIM_INFINITY && need > limit.rlim_max ? limit.rlim_max : need;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
    if (limit.rlim_cur < need)
        cli_warn("the system allows %llu open files: fewer than the %zu connections of --max-connections",
                 (unsigned long long)limit.rlim_cur, wanted);
}

static lattice_status serve(const serve_arguments *a, lattice_runtime *runtime, served *s, int stop_fd, lattice_error *err)
{
    char key[1024];
    const char *api_key = a->api_key;
    if (a->api_key_file) {
        LT_TRY(read_key(a->api_key_file, key, sizeof key, err));
        api_key = key;
    }
    for (size_t i = 0; i < a->models.n; i++) LT_TRY(open_model(a, runtime, a->models.items[i], s, err));
    if (a->cache_entries > 0) {
        lattice_cache_options cache = lattice_cache_options_default();
        cache.path = a->cache;
        cache.max_entries = a->cache_entries;
        LT_TRY(lattice_cache_open(runtime, &cache, &s->cache, err));
    }
    if (!api_key && !is_local(a->host)) cli_warn("%s can be reached from other machines, and no --api-key is asked for", a->host);
    raise_descriptors(a->max_connections);
    const lt_server_options o = { .models = s->models,
                                  .n_models = s->n,
                                  .host = a->host,
                                  .port = (unsigned)a->port,
                                  .unix_path = a->unix_path,
                                  .api_key = api_key,
                                  .cors_origin = a->cors_origin,
                                  .max_header = a->max_header,
                                  .max_body = a->max_body,
                                  .max_connections = a->max_connections,
                                  .max_client_batch = a->max_client_batch,
                                  .max_batch_tokens = a->max_batch_tokens,
                                  .max_queue_tokens = a->max_queue_tokens,
                                  .cache = s->cache,
                                  .prefix_bytes = a->prefix_bytes,
                                  .auto_truncate = a->auto_truncate,
                                  .idle_timeout = a->idle_timeout,
                                  .receive_timeout = a->receive_timeout,
                                  .total_timeout = a->total_timeout,
                                  .grace = a->grace,
                                  .stop_fd = stop_fd,
                                  .ready = say_ready,
                                  .warn = say_warning };
    return lt_server_run(runtime, &o, err);
}

static int run(void *opaque, char **operands, size_t n_operands)
{
    (void)operands;
    (void)n_operands;
    const serve_arguments *a = opaque;
    if (a->models.n == 0) return cli_usage(&cli_serve_command, "no model given: -m MODEL");
    if (a->api_key && a->api_key_file) return cli_usage(&cli_serve_command, "give one of --api-key and --api-key-file");
    if (a->cache && a->cache_entries == 0) return cli_usage(&cli_serve_command, "--cache needs --cache-entries");
    if (a->api_key && !a->api_key[0]) return cli_usage(&cli_serve_command, "--api-key is empty");
    /* Threads that are made from here on leave the signals to the descriptor. */
    sigset_t ends;
    sigemptyset(&ends);
    sigaddset(&ends, SIGTERM);
    sigaddset(&ends, SIGINT);
    sigprocmask(SIG_BLOCK, &ends, NULL);
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN); /* a cache file at the limit of file sizes: the write fails, and that is enough */
    int stop_fd = signalfd(-1, &ends, SFD_CLOEXEC | SFD_NONBLOCK);
    if (stop_fd < 0) return cli_failf("cannot wait for signals: %s", strerror(errno));
    lattice_error err = { 0 };
    lattice_runtime *runtime = NULL;
    served s = { .models = lt_alloc_zero(cli_memory, a->models.n * sizeof *s.models),
                 .names = lt_alloc_zero(cli_memory, a->models.n * sizeof *s.names) };
    lattice_status status =
        s.models && s.names ? cli_runtime(&a->common, &runtime, &err) : lt_no_memory(&err, 0, "a list of models");
    if (status == LATTICE_OK) status = serve(a, runtime, &s, stop_fd, &err);
    lattice_cache_close(s.cache);
    for (size_t i = 0; i < s.n; i++) {
        lattice_model_close(s.models[i].model);
        lt_free(cli_memory, s.names[i]);
    }
    lt_free(cli_memory, s.names);
    lt_free(cli_memory, s.models);
    lattice_runtime_free(runtime);
    close(stop_fd);
    return status == LATTICE_OK ? CLI_DONE : cli_fail(&err);
}

const cli_command cli_serve_command = {
    .name = "serve",
    .operands = "",
    .summary = "answer requests over HTTP",
    .description = "Serves models over HTTP to clients of the OpenAI, Cohere and Text Embeddings\n"
                   "Inference APIs. Prints `listening on ADDRESS` when it is ready; SIGTERM lets it\n"
                   "finish what is in flight and end.",
    .examples = "  lattice serve -m all-minilm-l6-v2\n"
                "  lattice serve -m embed=./minilm -m rerank=./bge-reranker --port 0 --api-key-file key.txt\n"
                "  curl -s localhost:8080/v1/embeddings -d '{\"input\":\"a text\"}'",
    .options = options,
    .arguments_size = sizeof(serve_arguments),
    .max_operands = 0,
    .run = run,
};
