/* Load on an embedding server: N connections, each sends a text and waits for its vector before it sends the next.
 *
 * usage: bench_load PORT TEXTS [CONNECTIONS [SECONDS [PATH]]]
 *
 * TEXTS has a text a line; they are sent in turn. PATH is /v1/embeddings (answers in base64) or any route that takes {"inputs":
 * …}. One thread on epoll, so that the generator takes little of the machine it shares with the server. Prints one JSON object:
 * requests a second, latency percentiles in ms, and how many answers had which status. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "format/json.h"

typedef struct connection {
    int fd;
    double sent;
    char head[4096]; /* of the answer, until its end is found */
    size_t n_head;
    size_t left; /* bytes of the body that are still to come */
    bool in_body;
} connection;

typedef struct load {
    lt_buf *requests; /* [n] */
    size_t n, next;
    int epoll;
    float *latencies;
    size_t n_done, capacity;
    size_t n_failed, statuses[600];
} load;

static void die(const char *what)
{
    fprintf(stderr, "bench_load: %s: %s\n", what, strerror(errno));
    exit(1);
}

static void read_texts(load *l, const char *path, const char *route)
{
    FILE *file = fopen(path, "r");
    if (!file) die(path);
    bool is_openai = strcmp(route, "/v1/embeddings") == 0;
    char *line = NULL;
    size_t room = 0, capacity = 0;
    for (ssize_t n; (n = getline(&line, &room, file)) > 0;) {
        while (n > 0 && (line[n - 1] == '\n' || line[n - 1] == '\r')) n--;
        if (n == 0) continue;
        lt_buf body;
        lt_buf_init(&body, &lt_malloc_allocator);
        lt_json_writer w = lt_json_writer_on(&body);
        lt_json_write_begin(&w, '{');
        lt_json_write_key(&w, is_openai ? "input" : "inputs");
        lt_json_write_str(&w, (lt_str){ line, (size_t)n });
        if (is_openai) {
            lt_json_write_key(&w, "encoding_format");
            lt_json_write_z(&w, "base64");
        }
        lt_json_write_end(&w, '}');
        if (!LT_GROW(&lt_malloc_allocator, l->requests, capacity, l->n + 1)) die("memory");
        lt_buf *request = &l->requests[l->n++];
        lt_buf_init(request, &lt_malloc_allocator);
        lt_buf_printf(request,
                      "POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n\r\n",
                      route, body.len);
        lt_buf_append(request, body.data, body.len);
        lt_buf_free(&body);
    }
    free(line);
    fclose(file);
    if (l->n == 0) die("no texts");
}

static void send_next(load *l, connection *c)
{
    const lt_buf *request = &l->requests[l->next++ % l->n];
    c->n_head = 0;
    c->in_body = false;
    c->sent = lt_clock_seconds();
    if (send(c->fd, request->data, request->len, MSG_NOSIGNAL) != (ssize_t)request->len) die("send");
}

static void answered(load *l, connection *c, double now)
{
    if (!LT_GROW(&lt_malloc_allocator, l->latencies, l->capacity, l->n_done + 1)) die("memory");
    l->latencies[l->n_done++] = (float)(now - c->sent);
}

/* Takes n bytes of an answer; true: it is whole. */
static bool take(load *l, connection *c, const char *data, size_t n)
{
    if (!c->in_body) {
        size_t fits = sizeof c->head - 1 - c->n_head, taken = n < fits ? n : fits;
        memcpy(c->head + c->n_head, data, taken);
        c->n_head += taken;
        c->head[c->n_head] = '\0';
        char *end = strstr(c->head, "\r\n\r\n");
        if (!end) return false;
        char *length = strcasestr(c->head, "\r\nContent-Length:");
        int status = atoi(c->head + 9);
        l->statuses[status > 0 && status < 600 ? status : 0]++;
        c->left = length && length < end ? strtoull(length + 17, NULL, 10) : 0;
        c->in_body = true;
        size_t behind = c->n_head - (size_t)(end + 4 - c->head) + (n - taken);
        c->left -= behind < c->left ? behind : c->left;
    } else {
        c->left -= n < c->left ? n : c->left;
    }
    return c->left == 0;
}

static int by_value(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

static double percentile(const load *l, double p)
{
    return l->n_done ? (double)l->latencies[(size_t)(p * (double)(l->n_done - 1))] * 1e3 : 0;
}

int main(int argc, char **argv)
{
    if (argc < 3) {
        fprintf(stderr, "usage: bench_load PORT TEXTS [CONNECTIONS [SECONDS [PATH]]]\n");
        return 2;
    }
    int n_connections = argc > 3 ? atoi(argv[3]) : 256;
    double seconds = argc > 4 ? atof(argv[4]) : 10;
    const char *route = argc > 5 ? argv[5] : "/v1/embeddings";
    load l = { .epoll = epoll_create1(0) };
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
    read_texts(&l, argv[2], route);
    connection *all = calloc((size_t)n_connections, sizeof *all);
    struct sockaddr_in address = { .sin_family = AF_INET,
                                   .sin_port = htons((uint16_t)atoi(argv[1])),
                                   .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    for (int i = 0; i < n_connections; i++) {
        connection *c = &all[i];
        int one = 1;
        c->fd = socket(AF_INET, SOCK_STREAM, 0);
        if (c->fd < 0 || connect(c->fd, (struct sockaddr *)&address, sizeof address) != 0) die("connect");
        setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        struct epoll_event event = { .events = EPOLLIN, .data.ptr = c };
        epoll_ctl(l.epoll, EPOLL_CTL_ADD, c->fd, &event);
    }
    double start = lt_clock_seconds(), now = start;
    for (int i = 0; i < n_connections; i++) send_next(&l, &all[i]);
    static char buffer[1 << 18];
    while ((now = lt_clock_seconds()) - start < seconds) {
        struct epoll_event events[256];
        int n = epoll_wait(l.epoll, events, 256, 100);
        for (int i = 0; i < n; i++) {
            connection *c = events[i].data.ptr;
            ssize_t got = recv(c->fd, buffer, sizeof buffer, MSG_DONTWAIT);
            if (got <= 0) {
                l.n_failed++;
                epoll_ctl(l.epoll, EPOLL_CTL_DEL, c->fd, NULL);
                continue;
            }
            if (!take(&l, c, buffer, (size_t)got)) continue;
            answered(&l, c, lt_clock_seconds());
            send_next(&l, c);
        }
    }
    double time = now - start;
    qsort(l.latencies, l.n_done, sizeof *l.latencies, by_value);
    printf("{\"connections\":%d,\"seconds\":%.2f,\"requests_per_s\":%.1f,\"p50_ms\":%.1f,\"p90_ms\":%.1f,\"p99_ms\":%.1f,\"max_"
           "ms\":%.1f,"
           "\"lost\":%zu,\"status\":{",
           n_connections, time, (double)l.n_done / time, percentile(&l, 0.5), percentile(&l, 0.9), percentile(&l, 0.99),
           percentile(&l, 1), l.n_failed);
    const char *comma = "";
    for (int s = 0; s < 600; s++) {
        if (l.statuses[s]) {
            printf("%s\"%d\":%zu", comma, s, l.statuses[s]);
            comma = ",";
        }
    }
    printf("}}\n");
    return l.n_failed > 0;
}
