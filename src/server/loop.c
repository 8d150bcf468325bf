/* The event loop; see loop.h.
 *
 * libmicrohttpd runs without a thread of its own: its epoll descriptor is one of ours, beside the listening sockets, an eventfd
 * by which finished exchanges come back, and the sockets of clients that wait. A connection whose request is being computed is
 * suspended, and then libmicrohttpd does not look at its socket; we do, so that a client who leaves cancels its work. A
 * half-closed socket cannot be told from one whose client has left, and is treated the same: status 499 for whoever still reads.
 *
 * libmicrohttpd answers only before or after a body, not in the middle. A client that is too slow, or sends more than is allowed
 * without having said so, gets its answer written to the socket directly. */
#include "server/loop.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <microhttpd.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"
#include "server/answer_headers.h"

enum { MAX_LISTENERS = 8, EVENTS = 256, BACKLOG = 1024, SWEEP_MS = 200, LINGER_SECONDS = 2 };

/* What an epoll event is about: below the first connection's address, one of these. */
enum { ABOUT_HTTP = 1, ABOUT_DONE, ABOUT_STOP, ABOUT_LISTENER };

struct lt_connection {
    lt_connection *next, *before;
    int fd;
    lt_client client;      /* for the scheduler's fairness */
    double since;          /* of the request that is being received */
    bool receiving;        /* since the connection began, or the last answer was given */
    bool started;          /* a request's headers have come */
    double doomed;         /* > 0: answered directly; the socket ends then */
    lt_exchange *exchange; /* the current one */
};

struct lt_loop {
    lt_server *server;
    struct MHD_Daemon *daemon;
    int epoll, http_fd, done_fd;
    int listeners[MAX_LISTENERS];
    int n_listeners;
    bool listening; /* the listeners are watched */
    bool stopping;
    double stop_at;
    lt_connection *connections; /* ring of all, NULL: none */
    size_t n_connections, n_exchanges;
    size_t body_bytes;

    pthread_mutex_t lock;
    lt_exchange *done; /* finished exchanges, latest first */
};

static void watch(const lt_loop *loop, int fd, uint32_t events, void *about)
{
    struct epoll_event event = { .events = events, .data.ptr = about };
    epoll_ctl(loop->epoll, EPOLL_CTL_ADD, fd, &event);
}

static void *about(int what)
{
    return (void *)(uintptr_t)what;
}

/* ------------------------------------------------------------------ connections */

static void on_connection(void *cls, struct MHD_Connection *http, void **context, enum MHD_ConnectionNotificationCode code)
{
    lt_loop *loop = cls;
    lt_connection *c = *context;
    if (code == MHD_CONNECTION_NOTIFY_STARTED) {
        c = lt_alloc_zero(loop->server->mem, sizeof *c);
        if (!c) return; /* the access handler refuses it */
        const union MHD_ConnectionInfo *info = MHD_get_connection_info(http, MHD_CONNECTION_INFO_CONNECTION_FD);
        c->fd = info ? info->connect_fd : -1;
        c->receiving = true;
        c->since = lt_clock_seconds();
        if (loop->connections) {
            c->next = loop->connections;
            c->before = c->next->before;
            c->next->before = c->before->next = c;
        } else {
            c->next = c->before = c;
        }
        loop->connections = c;
        *context = c;
        loop->n_connections++;
        atomic_fetch_add(&loop->server->metrics.connections, 1);
        return;
    }
    if (!c) return;
    c->next->before = c->before;
    c->before->next = c->next;
    if (loop->connections == c) loop->connections = c->next == c ? NULL : c->next;
    loop->n_connections--;
    atomic_fetch_sub(&loop->server->metrics.connections, 1);
    lt_free(loop->server->mem, c);
    *context = NULL;
}

/* Writes an answer to the socket itself and ends the connection, after a moment for what the client still sends. */
static void answer_directly(lt_connection *c, const char *status, const char *message)
{
    if (c->doomed > 0) return;
    char text[512], body[256];
    int n_body = snprintf(body, sizeof body, "{\"error\":\"%s\"}", message);
    int n = snprintf(text, sizeof text,
                     "HTTP/1.1 %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s", status,
                     n_body, body);
    (void)!send(c->fd, text, (size_t)n, MSG_DONTWAIT | MSG_NOSIGNAL);
    shutdown(c->fd, SHUT_WR);
    c->doomed = lt_clock_seconds() + LINGER_SECONDS;
}

/* ------------------------------------------------------------------ exchanges */

static void exchange_free(lt_loop *loop, lt_exchange *ex)
{
    if (ex->free_call) ex->free_call(ex->call);
    loop->body_bytes -= ex->counted_body;
    loop->n_exchanges--;
    lt_buf_free(&ex->body);
    lt_buf_free(&ex->out);
    lt_buf_free(&ex->pending);
    lt_free(loop->server->mem, ex);
}

/* Whatever is done for the exchange ends. */
static void cancel_work(lt_loop *loop, lt_exchange *ex)
{
    atomic_store(&ex->gone, true);
    lt_job *job = atomic_load(&ex->job);
    if (job) lt_scheduler_cancel(loop->server->scheduler, job);
    lt_turn *turn = atomic_load(&ex->turn);
    if (turn) lt_scheduler_cancel_turn(loop->server->scheduler, turn);
}

static void count(lt_loop *loop, lt_exchange *ex)
{
    int route = 0;
    while (lt_routes[route].path && &lt_routes[route] != ex->route) route++;
    lt_metrics_count(&loop->server->metrics, route, ex->status, lt_clock_seconds() - ex->begun, ex->n_tokens);
    ex->is_counted = true;
}

static void on_completed(void *cls, struct MHD_Connection *http, void **context, enum MHD_RequestTerminationCode code)
{
    (void)http;
    (void)code;
    lt_loop *loop = cls;
    lt_exchange *ex = *context;
    if (!ex) return;
    *context = NULL;
    /* libmicrohttpd may see that the client has left before it asks for the answer. */
    if (ex->status && !ex->is_counted) count(loop, ex);
    ex->connection->exchange = NULL;
    ex->connection->receiving = true;
    ex->connection->started = false;
    ex->connection->since = lt_clock_seconds();
    /* Whoever writes the stream still has the exchange: it goes with its end. */
    pthread_mutex_lock(&loop->lock);
    bool is_orphan = ex->is_stream && !ex->stream_ended;
    bool is_queued = ex->is_queued;
    ex->is_orphan = is_orphan || is_queued;
    pthread_mutex_unlock(&loop->lock);
    if (is_orphan) cancel_work(loop, ex);
    if (!is_orphan && !is_queued) exchange_free(loop, ex);
}

/* Has the loop look at the exchange. With the lock held. */
static void call_loop(lt_loop *loop, lt_exchange *ex)
{
    if (ex->is_queued) return;
    const uint64_t one = 1;
    if (!loop->done) (void)!write(loop->done_fd, &one, sizeof one);
    ex->is_queued = true;
    ex->next_done = loop->done;
    loop->done = ex;
}

void lt_exchange_finish(lt_exchange *exchange)
{
    lt_loop *loop = exchange->server->loop;
    pthread_mutex_lock(&loop->lock);
    call_loop(loop, exchange);
    pthread_mutex_unlock(&loop->lock);
}

static void unwatch(const lt_loop *loop, lt_exchange *ex)
{
    if (ex->is_watched) epoll_ctl(loop->epoll, EPOLL_CTL_DEL, ex->connection->fd, NULL);
    ex->is_watched = false;
}

/* The client has left, or its time is up: whatever is done for it ends. */
static void abandon(lt_loop *loop, lt_exchange *ex, bool expired)
{
    unwatch(loop, ex);
    if (!atomic_load(&ex->gone)) ex->expired = expired;
    cancel_work(loop, ex);
}

static void resume_done(lt_loop *loop)
{
    uint64_t count;
    (void)!read(loop->done_fd, &count, sizeof count);
    pthread_mutex_lock(&loop->lock);
    lt_exchange *ex = loop->done;
    loop->done = NULL;
    pthread_mutex_unlock(&loop->lock);
    while (ex) {
        pthread_mutex_lock(&loop->lock);
        lt_exchange *next = ex->next_done;
        ex->is_queued = false;
        bool is_over = ex->is_orphan && (!ex->is_stream || ex->stream_ended);
        pthread_mutex_unlock(&loop->lock);
        if (is_over) {
            exchange_free(loop, ex);
        } else if (ex->is_suspended) {
            unwatch(loop, ex);
            ex->is_suspended = false;
            MHD_resume_connection(ex->http);
        }
        ex = next;
    }
}

/* ------------------------------------------------------------------ streams */

static void suspend(lt_loop *loop, lt_exchange *ex)
{
    ex->is_suspended = ex->is_watched = true;
    MHD_suspend_connection(ex->http);
    watch(loop, ex->connection->fd, EPOLLRDHUP, ex->connection);
}

bool lt_exchange_begin_turn(lt_exchange *ex, lt_turn *turn, bool stream)
{
    lt_loop *loop = ex->server->loop;
    lattice_error err = { .code = LATTICE_ERR_CANCELLED };
    /* With the lock, so that a stream's first event waits for its status. */
    pthread_mutex_lock(&loop->lock);
    ex->is_stream = stream;
    atomic_store(&ex->turn, turn); /* and then `gone` is looked at: see lt_exchange_submit */
    bool begun = !atomic_load(&ex->gone) && lt_scheduler_begin_turn(ex->server->scheduler, turn, &err) == LATTICE_OK;
    if (begun && stream) {
        ex->status = 200;
        ex->content_type = "text/event-stream";
        call_loop(loop, ex);
    } else if (!begun) {
        ex->is_stream = false;
        atomic_store(&ex->turn, NULL);
    }
    pthread_mutex_unlock(&loop->lock);
    if (!begun) lt_answer_status(ex, NULL, &err);
    return begun;
}

void lt_exchange_write_event(lt_exchange *ex, lt_str text)
{
    lt_loop *loop = ex->server->loop;
    pthread_mutex_lock(&loop->lock);
    if (!ex->is_orphan) {
        lt_buf_append_z(&ex->pending, "data: ");
        lt_buf_append(&ex->pending, text.data, text.len);
        lt_buf_append_z(&ex->pending, "\n\n");
        call_loop(loop, ex);
    }
    pthread_mutex_unlock(&loop->lock);
}

void lt_exchange_end_stream(lt_exchange *ex)
{
    lt_loop *loop = ex->server->loop;
    atomic_fetch_add_explicit(&ex->server->metrics.tokens, ex->n_tokens, memory_order_relaxed);
    pthread_mutex_lock(&loop->lock);
    ex->stream_ended = true;
    call_loop(loop, ex);
    pthread_mutex_unlock(&loop->lock);
}

/* libmicrohttpd asks for more of a stream. */
static ssize_t read_stream(void *cls, uint64_t position, char *to, size_t most)
{
    (void)position;
    lt_exchange *ex = cls;
    lt_loop *loop = ex->server->loop;
    pthread_mutex_lock(&loop->lock);
    size_t n = ex->pending.len - ex->sent;
    bool has_failed = ex->pending.failed, has_ended = ex->stream_ended;
    if (n > most) n = most;
    if (n > 0) memcpy(to, ex->pending.data + ex->sent, n);
    ex->sent += n;
    if (ex->sent == ex->pending.len) {
        ex->sent = 0;
        lt_buf_clear(&ex->pending);
    }
    pthread_mutex_unlock(&loop->lock);
    if (n > 0) return (ssize_t)n;
    if (has_failed) return MHD_CONTENT_READER_END_WITH_ERROR;
    if (has_ended) return MHD_CONTENT_READER_END_OF_STREAM;
    suspend(loop, ex);
    return 0;
}

static void handle_post(lt_post *post)
{
    lt_exchange *ex = (lt_exchange *)(void *)((char *)post - offsetof(lt_exchange, post));
    if (atomic_load(&ex->gone)) {
        const lattice_error err = { .code = LATTICE_ERR_CANCELLED };
        lt_answer_status(ex, NULL, &err);
        lt_exchange_finish(ex);
        return;
    }
    ex->route->handle(ex);
}

bool lt_exchange_submit(lt_exchange *ex, lt_job *job)
{
    lattice_error err = { .code = LATTICE_ERR_CANCELLED };
    job->client = &ex->connection->client;
    job->deadline = ex->deadline;
    /* Whoever sets `gone` looks for the job afterwards, and we look at `gone` after the job is there: one of us sees the other.
     */
    atomic_store(&ex->job, job);
    if (!atomic_load(&ex->gone) && lt_scheduler_submit(ex->server->scheduler, job, &err) == LATTICE_OK) return true;
    atomic_store(&ex->job, NULL);
    lt_answer_status(ex, NULL, &err);
    return false;
}

/* ------------------------------------------------------------------ requests */

static const lt_route *find_route(const char *method, const char *path, const char **allow)
{
    if (strcmp(method, "HEAD") == 0) method = "GET";
    for (const lt_route *route = lt_routes; route->path; route++) {
        if (strcmp(route->path, path) != 0) continue;
        if (strcmp(route->method, method) == 0) return route;
        *allow = *allow ? "GET, HEAD, POST" : strcmp(route->method, "GET") == 0 ? "GET, HEAD" : route->method;
    }
    return NULL;
}

/* All bytes of the longer one are looked at, whatever the first difference is. */
static bool same_secret(const char *a, const char *b)
{
    size_t n = strlen(a), m = strlen(b);
    volatile unsigned char difference = n != m;
    for (size_t i = 0; i < n; i++) difference |= (unsigned char)(a[i] ^ (m > 0 ? b[i % m] : 0));
    return difference == 0;
}

static bool is_authorized(const lt_server *server, struct MHD_Connection *http)
{
    const char *key = server->options.api_key;
    if (!key) return true;
    const char *given = MHD_lookup_connection_value(http, MHD_HEADER_KIND, "Authorization");
    if (!given || strncasecmp(given, "Bearer ", 7) != 0) return false;
    given += 7;
    while (*given == ' ') given++;
    return same_secret(given, key);
}

static void choose_id(lt_exchange *ex)
{
    static atomic_uint_fast64_t counter;
    const char *given = MHD_lookup_connection_value(ex->http, MHD_HEADER_KIND, "X-Request-Id");
    size_t n = given ? strlen(given) : 0;
    bool good = n > 0 && n < sizeof ex->id;
    for (size_t i = 0; good && i < n; i++) good = given[i] > ' ' && given[i] < 0x7F;
    if (good) {
        memcpy(ex->id, given, n + 1);
        return;
    }
    uint64_t number = atomic_fetch_add_explicit(&counter, 1, memory_order_relaxed);
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    snprintf(ex->id, sizeof ex->id, "req-%08llx%08llx%06llx", (unsigned long long)now.tv_sec, (unsigned long long)now.tv_nsec,
             (unsigned long long)number & 0xFFFFFF);
}

static lt_api api_of_path(const char *path)
{
    if (strncmp(path, "/v1/rerank", 10) == 0 || strncmp(path, "/v2/", 4) == 0) return LT_API_COHERE;
    return strncmp(path, "/v1/", 4) == 0 ? LT_API_OPENAI : LT_API_TEI;
}

/* What can be said from the headers alone. */
static void check_headers(lt_loop *loop, lt_exchange *ex, const char *path, const char *method)
{
    const lt_server *server = loop->server;
    if (!ex->route) {
        ex->api = api_of_path(path);
        if (ex->allow && strcmp(method, "OPTIONS") == 0 && server->options.cors_origin)
            ex->status = 204; /* what a browser asks before it sends a request for a page of another origin */
        else if (ex->allow)
            lt_answer_error(ex, LT_PROBLEM_METHOD, NULL, "%s is not allowed here, but %s", method, ex->allow);
        else
            lt_answer_error(ex, LT_PROBLEM_NOT_FOUND, NULL, "no such route: %s", path);
        return;
    }
    if (!ex->route->is_open && !is_authorized(server, ex->http)) {
        lt_answer_error(ex, LT_PROBLEM_UNAUTHORIZED, NULL,
                        "this server asks for a key: send the header 'Authorization: Bearer KEY'");
        return;
    }
    if (ex->route->is_quick) return;
    const char *length = MHD_lookup_connection_value(ex->http, MHD_HEADER_KIND, "Content-Length");
    unsigned long long bytes = length ? strtoull(length, NULL, 10) : 0;
    if (bytes > server->options.max_body)
        lt_answer_error(ex, LT_PROBLEM_BODY, NULL, "the body's %llu bytes are more than the %zu that are allowed", bytes,
                        server->options.max_body);
    /* About four bytes are a token: a full queue is told before the body is read. */
    else if (!lt_scheduler_has_room(server->scheduler, (size_t)bytes / 8))
        lt_answer_error(ex, LT_PROBLEM_BUSY, NULL, "the queue is full; try again");
}

static enum MHD_Result send_answer(lt_loop *loop, lt_exchange *ex)
{
    count(loop, ex);
    if (loop->stopping) ex->close = true;
    struct MHD_Response *response = lt_make_response(ex, lt_clock_seconds(), ex->is_stream ? read_stream : NULL);
    if (!response) return MHD_NO;
    enum MHD_Result result = MHD_queue_response(ex->http, ex->status, response);
    MHD_destroy_response(response);
    return result;
}

static enum MHD_Result begin_exchange(lt_loop *loop, struct MHD_Connection *http, const char *path, const char *method,
                                      void **context)
{
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(http, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    lt_connection *c = info ? info->socket_context : NULL;
    if (!c || c->doomed > 0) return MHD_NO;
    lt_exchange *ex = lt_alloc_zero(loop->server->mem, sizeof *ex);
    if (!ex) return MHD_NO;
    loop->n_exchanges++;
    ex->server = loop->server;
    ex->connection = c;
    ex->http = http;
    lt_buf_init(&ex->body, loop->server->mem);
    lt_buf_init(&ex->out, loop->server->mem);
    lt_buf_init(&ex->pending, loop->server->mem);
    ex->begun = lt_clock_seconds();
    ex->route = find_route(method, path, &ex->allow);
    if (ex->route) ex->api = ex->route->api;
    choose_id(ex);
    check_headers(loop, ex, path, method);
    c->exchange = ex;
    c->started = true;
    *context = ex;
    /* An answer that is known already goes out at once when the client waits for leave to send its body; else the body is read
     * and dropped, so that the answer reaches a client that only listens when it has sent everything. */
    const char *expect = MHD_lookup_connection_value(http, MHD_HEADER_KIND, "Expect");
    if (ex->status && expect && strcasecmp(expect, "100-continue") == 0) {
        ex->close = true;
        return send_answer(loop, ex);
    }
    return MHD_YES;
}

static void take_body(lt_loop *loop, lt_exchange *ex, const char *data, size_t n)
{
    lt_connection *c = ex->connection;
    if (ex->status || c->doomed > 0) { /* what is dropped is counted, too: nobody may send for ever */
        ex->counted_body += n;
        loop->body_bytes += n;
        if (ex->counted_body > 4 * loop->server->options.max_body + ((size_t)64 << 20))
            answer_directly(c, "413 Content Too Large", "the body is larger than this server allows");
        return;
    }
    size_t most = loop->server->options.max_body;
    if (n > most - ex->body.len) {
        lt_answer_error(ex, LT_PROBLEM_BODY, NULL, "the body is larger than the %zu bytes that are allowed", most);
        return;
    }
    if (loop->body_bytes + n > 8 * most + ((size_t)64 << 20)) {
        lt_answer_error(ex, LT_PROBLEM_BUSY, NULL, "the server holds as many bytes of requests as it may; try again");
        return;
    }
    lt_buf_append(&ex->body, data, n);
    ex->counted_body += n;
    loop->body_bytes += n;
    if (ex->body.failed) lt_answer_error(ex, LT_PROBLEM_BACKEND, NULL, "no memory for the body");
}

/* The request is whole. */
static enum MHD_Result dispatch(lt_loop *loop, lt_exchange *ex)
{
    enum { LONG_BODY = 64 << 10 };
    ex->connection->receiving = false;
    ex->received = lt_clock_seconds();
    if (ex->status) {
        lt_buf_free(&ex->body);
        return send_answer(loop, ex);
    }
    if (ex->route->is_quick) {
        ex->route->handle(ex);
        return send_answer(loop, ex);
    }
    if (loop->server->options.total_timeout > 0) ex->deadline = ex->begun + loop->server->options.total_timeout;
    suspend(loop, ex);
    ex->post.fn = handle_post;
    lt_scheduler_post(loop->server->scheduler, &ex->post, ex->body.len > LONG_BODY);
    return MHD_YES;
}

static enum MHD_Result on_access(void *cls, struct MHD_Connection *http, const char *url, const char *method, const char *version,
                                 const char *data, size_t *size, void **context)
{
    (void)version;
    lt_loop *loop = cls;
    lt_exchange *ex = *context;
    if (!ex) return begin_exchange(loop, http, url, method, context);
    if (*size > 0) {
        take_body(loop, ex, data, *size);
        *size = 0;
        return MHD_YES;
    }
    if (ex->connection->doomed > 0) return MHD_NO;
    if (ex->connection->receiving) return dispatch(loop, ex);
    return send_answer(loop, ex);
}

/* ------------------------------------------------------------------ listening */

static lattice_status add_listener(lt_loop *loop, int fd, const char *what, lattice_error *err)
{
    if (listen(fd, BACKLOG) != 0) {
        int error = errno;
        close(fd);
        return lt_fail(err, LATTICE_ERR_IO, "%s: cannot listen: %s", what, strerror(error));
    }
    if (loop->n_listeners == MAX_LISTENERS) {
        close(fd);
        return LATTICE_OK;
    }
    loop->listeners[loop->n_listeners++] = fd;
    return LATTICE_OK;
}

static lattice_status listen_tcp(lt_loop *loop, lattice_error *err)
{
    const lt_server_options *o = &loop->server->options;
    char port[16], name[INET6_ADDRSTRLEN] = "", address[128];
    snprintf(port, sizeof port, "%u", o->port);
    struct addrinfo hints = { .ai_flags = AI_PASSIVE | AI_NUMERICSERV, .ai_socktype = SOCK_STREAM }, *found;
    int rc = getaddrinfo(o->host, port, &hints, &found);
    if (rc != 0) return lt_fail(err, LATTICE_ERR_INVALID_ARGUMENT, "host '%s': %s", o->host, gai_strerror(rc));
    const struct addrinfo *first = found;
    int fd = socket(first->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), one = 1, error = errno;
    if (fd >= 0) {
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
        if (bind(fd, first->ai_addr, first->ai_addrlen) != 0) {
            error = errno;
            close(fd);
            fd = -1;
        }
    }
    freeaddrinfo(found);
    if (fd < 0) return lt_fail(err, LATTICE_ERR_IO, "%s port %s: %s", o->host, port, strerror(error));
    LT_TRY(add_listener(loop, fd, o->host, err));
    struct sockaddr_storage bound;
    socklen_t size = sizeof bound;
    getsockname(fd, (struct sockaddr *)&bound, &size);
    getnameinfo((struct sockaddr *)&bound, size, name, sizeof name, port, sizeof port, NI_NUMERICHOST | NI_NUMERICSERV);
    bool six = strchr(name, ':') != NULL;
    snprintf(address, sizeof address, "http://%s%s%s:%s", six ? "[" : "", name, six ? "]" : "", port);
    o->ready(o->user, address);
    return LATTICE_OK;
}

static lattice_status listen_unix(lt_loop *loop, lattice_error *err)
{
    const lt_server_options *o = &loop->server->options;
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    if (strlen(o->unix_path) >= sizeof address.sun_path)
        return lt_fail(err, LATTICE_ERR_INVALID_ARGUMENT, "%s: the path of a Unix socket has fewer than %zu bytes", o->unix_path,
                       sizeof address.sun_path);
    memcpy(address.sun_path, o->unix_path, strlen(o->unix_path));
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    /* A socket that nobody listens on any more is in the way; anything else stays. */
    struct stat there;
    if (fd >= 0 && lstat(o->unix_path, &there) == 0 && S_ISSOCK(there.st_mode)) {
        int probe = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (probe >= 0 && connect(probe, (struct sockaddr *)&address, sizeof address) != 0 && errno == ECONNREFUSED)
            unlink(o->unix_path);
        if (probe >= 0) close(probe);
    }
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof address) != 0) {
        int error = errno;
        if (fd >= 0) close(fd);
        return lt_fail(err, LATTICE_ERR_IO, "%s: %s", o->unix_path, strerror(error));
    }
    LT_TRY(add_listener(loop, fd, o->unix_path, err));
    char line[sizeof address.sun_path + 8];
    snprintf(line, sizeof line, "unix:%s", o->unix_path);
    o->ready(o->user, line);
    return LATTICE_OK;
}

static void watch_listeners(lt_loop *loop, bool on)
{
    if (loop->listening == on) return;
    loop->listening = on;
    for (int i = 0; i < loop->n_listeners; i++) {
        if (on)
            watch(loop, loop->listeners[i], EPOLLIN, about(ABOUT_LISTENER + i));
        else
            epoll_ctl(loop->epoll, EPOLL_CTL_DEL, loop->listeners[i], NULL);
    }
}

static void accept_all(lt_loop *loop, int listener)
{
    for (int i = 0; i < EVENTS; i++) {
        struct sockaddr_storage address;
        socklen_t size = sizeof address;
        int fd = accept4(listener, (struct sockaddr *)&address, &size, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0) {
            /* Out of descriptors: the sweep tries again, instead of a loop that spins. */
            if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) watch_listeners(loop, false);
            return;
        }
        if (loop->n_connections >= loop->server->options.max_connections) {
            static const char full[] = "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: 1\r\n"
                                       "Connection: close\r\nContent-Length: 32\r\n\r\n{\"error\":\"too many connections\"}";
            (void)!send(fd, full, sizeof full - 1, MSG_DONTWAIT | MSG_NOSIGNAL);
            close(fd);
            continue;
        }
        MHD_add_connection(loop->daemon, fd, (struct sockaddr *)&address, size); /* closes it when that fails */
    }
}

/* ------------------------------------------------------------------ time */

/* Looks at every connection: who has been sending for too long, whose answer takes too long, which socket is to end. */
static void sweep(lt_loop *loop)
{
    const lt_server_options *o = &loop->server->options;
    double now = lt_clock_seconds();
    lt_connection *c = loop->connections;
    for (size_t n = loop->n_connections; n > 0; n--, c = c->next) {
        if (c->doomed > 0) {
            if (now >= c->doomed) shutdown(c->fd, SHUT_RDWR);
        } else if (c->exchange && c->exchange->is_suspended) {
            if (c->exchange->deadline > 0 && now > c->exchange->deadline && !atomic_load(&c->exchange->gone))
                abandon(loop, c->exchange, true);
            if (loop->stopping && now > loop->stop_at) abandon(loop, c->exchange, true);
        } else if (c->receiving && loop->stopping && !c->started) {
            shutdown(c->fd, SHUT_RDWR);
        } else if (c->receiving && o->receive_timeout > 0 && now - c->since > o->receive_timeout) {
            if (c->started)
                answer_directly(c, "408 Request Timeout", "the request did not come whole in time");
            else
                shutdown(c->fd, SHUT_RDWR);
        }
    }
    if (!loop->stopping) watch_listeners(loop, true);
}

static void begin_stop(lt_loop *loop)
{
    if (loop->stopping) return;
    loop->stopping = true;
    loop->stop_at = lt_clock_seconds() + loop->server->options.grace;
    watch_listeners(loop, false);
    for (int i = 0; i < loop->n_listeners; i++) close(loop->listeners[i]);
    loop->n_listeners = 0;
    if (loop->server->options.unix_path) unlink(loop->server->options.unix_path);
    epoll_ctl(loop->epoll, EPOLL_CTL_DEL, loop->server->options.stop_fd, NULL);
    sweep(loop);
}

static int wait_ms(lt_loop *loop)
{
    MHD_UNSIGNED_LONG_LONG http;
    int ms = loop->connections || !loop->listening ? SWEEP_MS : -1;
    if (MHD_get_timeout(loop->daemon, &http) == MHD_YES && (ms < 0 || http < (MHD_UNSIGNED_LONG_LONG)ms)) ms = (int)http;
    return ms;
}

void lt_loop_run(lt_loop *loop)
{
    double swept = lt_clock_seconds();
    while (!loop->stopping || loop->n_exchanges > 0) {
        struct epoll_event events[EVENTS];
        int n = epoll_wait(loop->epoll, events, EVENTS, wait_ms(loop));
        for (int i = 0; i < n; i++) {
            uintptr_t what = (uintptr_t)events[i].data.ptr;
            if (what == ABOUT_DONE)
                resume_done(loop);
            else if (what == ABOUT_STOP)
                begin_stop(loop);
            else if (what >= ABOUT_LISTENER && what < ABOUT_LISTENER + MAX_LISTENERS) {
                if (!loop->stopping) accept_all(loop, loop->listeners[what - ABOUT_LISTENER]);
            } else if (what != ABOUT_HTTP) {
                lt_connection *c = events[i].data.ptr;
                if (c->exchange) abandon(loop, c->exchange, false);
            }
        }
        MHD_run(loop->daemon);
        double now = lt_clock_seconds();
        if (now - swept < SWEEP_MS / 1000.0) continue;
        swept = now;
        sweep(loop);
        /* Who does not take its answer cannot keep the server from ending. */
        if (loop->stopping && now > loop->stop_at + LINGER_SECONDS) {
            lt_connection *c = loop->connections;
            for (size_t k = loop->n_connections; k > 0; k--, c = c->next)
                if (!c->exchange || !c->exchange->is_suspended) shutdown(c->fd, SHUT_RDWR);
        }
    }
}

/* ------------------------------------------------------------------ creation */

lattice_status lt_loop_create(lt_server *server, lt_loop **out, lattice_error *err)
{
    const lt_server_options *o = &server->options;
    *out = NULL;
    lt_loop *loop = lt_alloc_zero(server->mem, sizeof *loop);
    if (!loop) return lt_no_memory(err, sizeof *loop, "the event loop");
    loop->server = server;
    server->loop = loop;
    *out = loop;
    pthread_mutex_init(&loop->lock, NULL);
    loop->epoll = epoll_create1(EPOLL_CLOEXEC);
    loop->done_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (loop->epoll < 0 || loop->done_fd < 0) return lt_fail(err, LATTICE_ERR_IO, "cannot create epoll: %s", strerror(errno));
    loop->daemon = MHD_start_daemon(MHD_USE_EPOLL | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_NO_LISTEN_SOCKET, 0, NULL, NULL, on_access,
                                    loop, MHD_OPTION_NOTIFY_COMPLETED, on_completed, loop, MHD_OPTION_NOTIFY_CONNECTION,
                                    on_connection, loop, MHD_OPTION_CONNECTION_MEMORY_LIMIT, o->max_header,
                                    MHD_OPTION_CONNECTION_LIMIT, (unsigned)o->max_connections, MHD_OPTION_CONNECTION_TIMEOUT,
                                    (unsigned)o->idle_timeout, MHD_OPTION_STRICT_FOR_CLIENT, 1, MHD_OPTION_END);
    if (!loop->daemon) return lt_fail(err, LATTICE_ERR_IO, "cannot start libmicrohttpd");
    const union MHD_DaemonInfo *info = MHD_get_daemon_info(loop->daemon, MHD_DAEMON_INFO_EPOLL_FD);
    if (!info) return lt_fail(err, LATTICE_ERR_IO, "libmicrohttpd was built without epoll");
    loop->http_fd = info->epoll_fd;
    watch(loop, loop->http_fd, EPOLLIN, about(ABOUT_HTTP));
    watch(loop, loop->done_fd, EPOLLIN, about(ABOUT_DONE));
    watch(loop, o->stop_fd, EPOLLIN, about(ABOUT_STOP));
    if (o->unix_path) LT_TRY(listen_unix(loop, err));
    if (o->host) LT_TRY(listen_tcp(loop, err));
    watch_listeners(loop, true);
    return LATTICE_OK;
}

void lt_loop_free(lt_loop *loop)
{
    if (!loop) return;
    if (loop->daemon) MHD_stop_daemon(loop->daemon);
    for (int i = 0; i < loop->n_listeners; i++) close(loop->listeners[i]);
    if (loop->done_fd > 0) close(loop->done_fd);
    if (loop->epoll > 0) close(loop->epoll);
    pthread_mutex_destroy(&loop->lock);
    lt_free(loop->server->mem, loop);
}
