/* HTTP by libcurl, one request at a time. Redirects are followed here rather than by the library, because the token must end at
 * the endpoint's own origin whatever the version of libcurl. A file grows as PATH.part while its hash is carried along, so that a
 * finished transfer needs no second pass over it. */
#include "cli/hub.h"

#include <curl/curl.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "cli/cli.h"
#include "format/json.h"

enum {
    MAX_REDIRECTS = 10,
    MAX_ATTEMPTS = 5, /* in a row without a byte gained */
    FIRST_PAUSE_MS = 500,
    LONGEST_PAUSE_MS = 30000,
    CONNECT_SECONDS = 30,
    STALL_SECONDS = 60,
    LARGEST_LISTING = 64 << 20,
};

struct hub_client {
    CURL *curl;
    char *endpoint; /* without a slash at its end */
    char *origin;   /* scheme://host:port */
    struct curl_slist *authorization;
    bool answered; /* the endpoint has answered before: failing to connect may pass */
    char reason[CURL_ERROR_SIZE];
};

/* One response: what it said, and where its body goes. */
typedef struct transfer {
    hub_client *hub;
    long status;
    char message[200];    /* X-Error-Message */
    char commit[65];      /* X-Repo-Commit */
    uint64_t range_start; /* of Content-Range */
    bool has_range;
    curl_off_t retry_after; /* seconds; 0: not said */
    lt_buf *memory;         /* body goes here, */
    int fd;                 /* or here, from `offset` on, hashed, */
    char *piece;            /* a piece [LT_PIECE] at a time; `filled` bytes of it are not written yet */
    size_t filled;
    uint64_t offset;
    uint64_t size; /* the most that may come; UINT64_MAX: not known */
    lt_sha256 hash;
    bool started; /* a byte of the body has come */
    bool too_long, bad_range;
    int write_error; /* errno */
    void (*progress)(void *user, uint64_t done);
    void *user;
} transfer;

/* ------------------------------------------------------------------ one request */

static size_t on_header(char *data, size_t one, size_t n, void *user)
{
    transfer *t = user;
    (void)one;
    lt_str line = { data, n };
    while (line.len > 0 && (line.data[line.len - 1] == '\n' || line.data[line.len - 1] == '\r')) line.len--;
    if (lt_str_starts(line, "HTTP/")) { /* the next response of this request */
        t->message[0] = '\0';
        t->has_range = false;
        return n;
    }
    const char *colon = memchr(line.data, ':', line.len);
    if (!colon) return n;
    lt_str name = { line.data, (size_t)(colon - line.data) }, value = { colon + 1, line.len - name.len - 1 };
    while (value.len > 0 && value.data[0] == ' ') value.data++, value.len--;

    char text[200];
    size_t len = value.len < sizeof text - 1 ? value.len : sizeof text - 1;
    memcpy(text, value.data, len);
    text[len] = '\0';
    if (name.len == 15 && strncasecmp(name.data, "x-error-message", 15) == 0) {
        memcpy(t->message, text, len + 1);
    } else if (name.len == 13 && strncasecmp(name.data, "x-repo-commit", 13) == 0) {
        if (len < sizeof t->commit) memcpy(t->commit, text, len + 1);
    } else if (name.len == 13 && strncasecmp(name.data, "content-range", 13) == 0) {
        unsigned long long start;
        t->has_range = sscanf(text, "bytes %llu-", &start) == 1;
        if (t->has_range) t->range_start = start;
    }
    return n;
}

/* The first bytes of a file's body: does it begin where it was asked to? */
static bool start_file(transfer *t)
{
    t->started = true;
    if (t->status == 206) {
        t->bad_range = !t->has_range || t->range_start != t->offset;
        return !t->bad_range;
    }
    /* The whole file, although only its end was wanted. */
    if (t->offset > 0) {
        t->offset = 0;
        lt_sha256_init(&t->hash);
        if (ftruncate(t->fd, 0) != 0 || lseek(t->fd, 0, SEEK_SET) != 0) t->write_error = errno;
    }
    return t->write_error == 0;
}

static bool write_piece(transfer *t)
{
    if (t->write_error == 0) t->write_error = lt_write_all(t->fd, t->piece, t->filled);
    t->filled = 0;
    return t->write_error == 0;
}

static size_t on_body(char *data, size_t one, size_t n, void *user)
{
    transfer *t = user;
    (void)one;
    curl_easy_getinfo(t->hub->curl, CURLINFO_RESPONSE_CODE, &t->status);
    if (t->status != 200 && t->status != 206) return n; /* pages that come with errors and redirects */

    if (t->memory) {
        t->too_long = n > t->size - t->memory->len;
        if (!t->too_long) lt_buf_append(t->memory, data, n);
        return t->too_long || t->memory->failed ? 0 : n;
    }
    if (!t->started && !start_file(t)) return 0;
    t->too_long = n > t->size - t->offset;
    if (t->too_long) return 0;
    lt_sha256_update(&t->hash, data, n);
    for (size_t done = 0, some; done < n; done += some) {
        const size_t room = LT_PIECE - (size_t)(t->offset % LT_PIECE);
        some = n - done < room ? n - done : room;
        memcpy(t->piece + t->filled, data + done, some);
        t->filled += some;
        t->offset += some;
        if (some == room && !write_piece(t)) return 0;
    }
    if (t->progress) t->progress(t->user, t->offset);
    return n;
}

static int on_progress(void *user, curl_off_t total, curl_off_t now, curl_off_t up_total, curl_off_t up_now)
{
    (void)user, (void)total, (void)now, (void)up_total, (void)up_now;
    return cli_interrupted != 0;
}

/* "scheme://host:port" of a URL, to be freed; NULL when it is none or memory ran out. */
static char *origin_of(const char *url)
{
    char *origin = NULL, *scheme = NULL, *host = NULL, *port = NULL;
    CURLU *parts = curl_url();
    if (parts && curl_url_set(parts, CURLUPART_URL, url, 0) == CURLUE_OK &&
        curl_url_get(parts, CURLUPART_SCHEME, &scheme, 0) == CURLUE_OK &&
        curl_url_get(parts, CURLUPART_HOST, &host, 0) == CURLUE_OK &&
        curl_url_get(parts, CURLUPART_PORT, &port, CURLU_DEFAULT_PORT) == CURLUE_OK) {
        size_t size = strlen(scheme) + strlen(host) + strlen(port) + 5;
        origin = malloc(size);
        if (origin) snprintf(origin, size, "%s://%s:%s", scheme, host, port);
    }
    curl_free(scheme);
    curl_free(host);
    curl_free(port);
    curl_url_cleanup(parts);
    return origin;
}

static bool is_redirect(long status)
{
    return status == 301 || status == 302 || status == 303 || status == 307 || status == 308;
}

/* GETs `url`, following redirects; t->status is the last response's. */
static CURLcode get(hub_client *hub, const char *url, transfer *t)
{
    CURL *curl = hub->curl;
    char *here = strdup(url);
    CURLcode rc = here ? CURLE_OK : CURLE_OUT_OF_MEMORY;
    bool trusted = true;
    hub->reason[0] = '\0';
    for (int hop = 0; rc == CURLE_OK; hop++) {
        if (hop > MAX_REDIRECTS) {
            rc = CURLE_TOO_MANY_REDIRECTS;
            break;
        }
        /* Once another origin has been visited the token stays out, even if it leads back. */
        char *origin = origin_of(here);
        trusted = trusted && origin && strcasecmp(origin, hub->origin) == 0;
        free(origin);

        char range[32];
        snprintf(range, sizeof range, "%llu-", (unsigned long long)t->offset);
        curl_easy_setopt(curl, CURLOPT_URL, here);
        curl_easy_setopt(curl, CURLOPT_HTTPHEADER, trusted ? hub->authorization : NULL);
        curl_easy_setopt(curl, CURLOPT_RANGE, !t->memory && t->offset > 0 ? range : NULL);
        curl_easy_setopt(curl, CURLOPT_HEADERDATA, t);
        curl_easy_setopt(curl, CURLOPT_WRITEDATA, t);
        t->status = 0;
        rc = curl_easy_perform(curl);
        if (!write_piece(t)) rc = CURLE_WRITE_ERROR; /* what has come is kept, however it ended */
        if (rc != CURLE_OK) break;
        hub->answered = true;
        curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &t->status);
        curl_easy_getinfo(curl, CURLINFO_RETRY_AFTER, &t->retry_after);
        char *next = NULL;
        if (is_redirect(t->status)) curl_easy_getinfo(curl, CURLINFO_REDIRECT_URL, &next);
        if (!next) break;
        next = strdup(next);
        free(here);
        here = next;
        if (!here) rc = CURLE_OUT_OF_MEMORY;
    }
    free(here);
    return rc;
}

static bool may_pass(const hub_client *hub, CURLcode rc, long status)
{
    switch (rc) {
    case CURLE_OK: return status == 408 || status == 429 || status == 500 || status == 502 || status == 503 || status == 504;
    case CURLE_PARTIAL_FILE:
    case CURLE_GOT_NOTHING:
    case CURLE_RECV_ERROR:
    case CURLE_SEND_ERROR:
    case CURLE_HTTP2:
    case CURLE_HTTP2_STREAM:
    case CURLE_OPERATION_TIMEDOUT: return true;
    case CURLE_COULDNT_CONNECT:
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_SSL_CONNECT_ERROR: return hub->answered;
    default: return false;
    }
}

static void pause_before(int attempt, curl_off_t retry_after)
{
    long ms = (long)FIRST_PAUSE_MS << attempt;
    if (retry_after > 0) ms = retry_after > LONGEST_PAUSE_MS / 1000 ? LONGEST_PAUSE_MS : (long)retry_after * 1000;
    for (long left = ms; left > 0 && !cli_interrupted; left -= 50) nanosleep(&(struct timespec){ 0, 50000000 }, NULL);
}

/* What went wrong, in the words of who can do something about it. `what` is the repository, or the file in it. */
static lattice_status fail(const transfer *t, CURLcode rc, const char *what, lattice_error *err)
{
    const hub_client *hub = t->hub;
    if (cli_interrupted) return lt_fail(err, LATTICE_ERR_CANCELLED, "interrupted; the same command goes on from here");
    if (t->write_error != 0) return lt_fail(err, LATTICE_ERR_IO, "%s: cannot write: %s", what, strerror(t->write_error));
    if (t->memory && t->memory->failed) return lt_no_memory(err, t->memory->len, what);
    if (t->too_long)
        return lt_fail(err, LATTICE_ERR_FORMAT, "%s: the server sends more than %llu bytes", what, (unsigned long long)t->size);
    if (rc != CURLE_OK)
        return lt_fail(err, LATTICE_ERR_IO, "%s: %s (%s)", what, hub->reason[0] ? hub->reason : curl_easy_strerror(rc),
                       hub->endpoint);

    const char *colon = t->message[0] ? ": " : "";
    switch (t->status) {
    case 401:
        return lt_fail(err, LATTICE_ERR_NOT_FOUND, "%s: %s%s%s", what,
                       hub->authorization ? "there is no such repository, or HF_TOKEN gives no access to it"
                                          : "there is no such repository, or it needs a token (HF_TOKEN)",
                       colon, t->message);
    case 403:
        return lt_fail(err, LATTICE_ERR_IO, "%s: access is restricted; ask for it at %s and set HF_TOKEN%s%s", what,
                       hub->endpoint, colon, t->message);
    case 404: return lt_fail(err, LATTICE_ERR_NOT_FOUND, "%s: not found at %s%s%s", what, hub->endpoint, colon, t->message);
    default:
        return lt_fail(err, LATTICE_ERR_IO, "%s: %s answers with HTTP status %ld%s%s", what, hub->endpoint, t->status, colon,
                       t->message);
    }
}

/* ------------------------------------------------------------------ open and close */

/* A token is one word of visible characters: anything else would end the header early. */
static bool is_token(const char *token)
{
    for (; *token; token++)
        if (*token <= ' ' || *token > '~') return false;
    return true;
}

static void only_http(CURL *curl, bool tls_only)
{
#if LIBCURL_VERSION_NUM >= 0x075500
    curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, tls_only ? "https" : "http,https");
#else
    curl_easy_setopt(curl, CURLOPT_PROTOCOLS, tls_only ? CURLPROTO_HTTPS : CURLPROTO_HTTP | CURLPROTO_HTTPS);
#endif
}

lattice_status hub_open(const char *endpoint, const char *token, hub_client **out, lattice_error *err)
{
    *out = NULL;
    if (curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK) return lt_fail(err, LATTICE_ERR_INTERNAL, "libcurl does not start");
    hub_client *h = calloc(1, sizeof *h);
    lattice_status status = h ? LATTICE_OK : lt_no_memory(err, sizeof *h, "the connection");
    if (!h) goto done;

    h->endpoint = strdup(endpoint);
    h->curl = curl_easy_init();
    if (!h->endpoint || !h->curl) {
        status = lt_no_memory(err, strlen(endpoint), "the connection");
        goto done;
    }
    for (size_t n = strlen(h->endpoint); n > 0 && h->endpoint[n - 1] == '/'; n--) h->endpoint[n - 1] = '\0';
    bool tls = strncasecmp(endpoint, "https://", 8) == 0;
    h->origin = origin_of(h->endpoint);
    if (!h->origin || (!tls && strncasecmp(endpoint, "http://", 7) != 0)) {
        status = lt_fail(err, LATTICE_ERR_INVALID_ARGUMENT, "endpoint '%s' is not an http or https URL", endpoint);
        goto done;
    }
    if (token && *token) {
        char header[1024];
        int n = snprintf(header, sizeof header, "Authorization: Bearer %s", token);
        if (!is_token(token) || n < 0 || (size_t)n >= sizeof header) {
            status = lt_fail(err, LATTICE_ERR_INVALID_ARGUMENT,
                             "HF_TOKEN is not a token: it holds spaces or control characters, or is too long");
            goto done;
        }
        h->authorization = curl_slist_append(NULL, header);
        if (!h->authorization) {
            status = lt_no_memory(err, sizeof header, "the connection");
            goto done;
        }
    }

    curl_easy_setopt(h->curl, CURLOPT_ERRORBUFFER, h->reason);
    curl_easy_setopt(h->curl, CURLOPT_USERAGENT, "lattice/" LATTICE_VERSION);
    curl_easy_setopt(h->curl, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(h->curl, CURLOPT_FOLLOWLOCATION, 0L);
    curl_easy_setopt(h->curl, CURLOPT_SUPPRESS_CONNECT_HEADERS, 1L);
    curl_easy_setopt(h->curl, CURLOPT_CONNECTTIMEOUT, (long)CONNECT_SECONDS);
    curl_easy_setopt(h->curl, CURLOPT_LOW_SPEED_LIMIT, 1L);
    curl_easy_setopt(h->curl, CURLOPT_LOW_SPEED_TIME, (long)STALL_SECONDS);
    curl_easy_setopt(h->curl, CURLOPT_HEADERFUNCTION, on_header);
    curl_easy_setopt(h->curl, CURLOPT_WRITEFUNCTION, on_body);
    curl_easy_setopt(h->curl, CURLOPT_NOPROGRESS, 0L);
    curl_easy_setopt(h->curl, CURLOPT_XFERINFOFUNCTION, on_progress);
    only_http(h->curl, tls); /* a redirect must not leave TLS, or HTTP */
    *out = h;
    return LATTICE_OK;

done:
    hub_close(h);
    if (!h) curl_global_cleanup();
    return status;
}

void hub_close(hub_client *hub)
{
    if (!hub) return;
    curl_slist_free_all(hub->authorization);
    curl_easy_cleanup(hub->curl);
    free(hub->origin);
    free(hub->endpoint);
    free(hub);
    curl_global_cleanup();
}

/* ------------------------------------------------------------------ the listing */

/* Appends `text` percent-encoded; a slash stays one when `path`. */
static void append_escaped(lt_buf *url, const char *text, bool path)
{
    for (const unsigned char *c = (const unsigned char *)text; *c; c++) {
        bool plain = (*c >= 'a' && *c <= 'z') || (*c >= 'A' && *c <= 'Z') || (*c >= '0' && *c <= '9') || strchr("-._~", *c) ||
                     (path && *c == '/');
        if (plain)
            lt_buf_byte(url, (char)*c);
        else
            lt_buf_printf(url, "%%%02X", *c);
    }
}

static int hex_digit(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

static bool read_sha256(lt_str hex, uint8_t digest[LT_SHA256_SIZE])
{
    if (hex.len != 2 * LT_SHA256_SIZE) return false;
    for (size_t i = 0; i < LT_SHA256_SIZE; i++) {
        int high = hex_digit(hex.data[2 * i]), low = hex_digit(hex.data[2 * i + 1]);
        if (high < 0 || low < 0) return false;
        digest[i] = (uint8_t)(high << 4 | low);
    }
    return true;
}

static lattice_status read_size(lt_json *j, hub_file *file)
{
    if (lt_json_peek(j) != LT_JSON_NUMBER) return lt_json_skip(j);
    size_t size;
    LT_TRY(lt_json_size(j, &size));
    file->size = size;
    file->has_size = true;
    return LATTICE_OK;
}

/* {"sha256": …, "size": …}, or null for a file that is stored plainly. */
static lattice_status read_lfs(lt_json *j, hub_file *file)
{
    if (lt_json_peek(j) != LT_JSON_OBJECT) return lt_json_skip(j);
    LT_TRY(lt_json_begin_object(j));
    for (lt_str key;;) {
        bool more;
        LT_TRY(lt_json_next_member(j, &key, &more));
        if (!more) return LATTICE_OK;
        if (lt_str_is(key, "sha256") && lt_json_peek(j) == LT_JSON_STRING) {
            lt_str hex;
            LT_TRY(lt_json_string(j, &hex));
            if (!read_sha256(hex, file->sha256)) return lt_json_fail(j, "'%.*s' is not a sha256", LT_STR_ARG(hex));
            file->has_sha256 = true;
        } else if (lt_str_is(key, "size")) {
            LT_TRY(read_size(j, file));
        } else {
            LT_TRY(lt_json_skip(j));
        }
    }
}

static lattice_status read_sibling(lt_json *j, hub_listing *listing)
{
    hub_file file = { 0 };
    LT_TRY(lt_json_begin_object(j));
    for (lt_str key;;) {
        bool more;
        LT_TRY(lt_json_next_member(j, &key, &more));
        if (!more) break;
        if (lt_str_is(key, "rfilename")) {
            lt_str name;
            LT_TRY(lt_json_string(j, &name));
            if (memchr(name.data, '\0', name.len)) return lt_json_fail(j, "a file name holds a NUL");
            file.name = lt_arena_copy(&listing->arena, name.data, name.len);
            if (!file.name) return lt_no_memory(j->err, name.len, "the list of files");
        } else if (lt_str_is(key, "size")) {
            LT_TRY(read_size(j, &file));
        } else if (lt_str_is(key, "lfs")) {
            LT_TRY(read_lfs(j, &file));
        } else {
            LT_TRY(lt_json_skip(j));
        }
    }
    if (!file.name) return lt_json_fail(j, "a file without 'rfilename'");
    if (!LT_GROW(cli_memory, listing->files, listing->capacity, listing->n + 1))
        return lt_no_memory(j->err, (listing->n + 1) * sizeof file, "the list of files");
    listing->files[listing->n++] = file;
    return LATTICE_OK;
}

static lattice_status read_listing(lt_json *j, hub_listing *listing)
{
    bool has_files = false;
    LT_TRY(lt_json_begin_object(j));
    for (lt_str key;;) {
        bool more;
        LT_TRY(lt_json_next_member(j, &key, &more));
        if (!more) break;
        if (lt_str_is(key, "siblings")) {
            has_files = true;
            LT_TRY(lt_json_begin_array(j));
            for (;;) {
                LT_TRY(lt_json_next_element(j, &more));
                if (!more) break;
                LT_TRY(read_sibling(j, listing));
            }
        } else if (lt_str_is(key, "sha") && lt_json_peek(j) == LT_JSON_STRING) {
            lt_str sha;
            LT_TRY(lt_json_string(j, &sha));
            for (size_t i = 0; i < sha.len; i++)
                if (hex_digit(sha.data[i]) < 0) return lt_json_fail(j, "'%.*s' is not a commit", LT_STR_ARG(sha));
            listing->commit = lt_arena_copy(&listing->arena, sha.data, sha.len);
            if (!listing->commit) return lt_no_memory(j->err, sha.len, "the list of files");
        } else {
            LT_TRY(lt_json_skip(j));
        }
    }
    if (!has_files) return lt_json_fail(j, "no 'siblings': not a repository of a Hugging Face endpoint");
    return lt_json_end(j);
}

lattice_status hub_list(hub_client *hub, const char *repo, const char *revision, hub_listing *listing, lattice_error *err)
{
    *listing = (hub_listing){ .commit = "" };
    lt_arena_init(&listing->arena, cli_memory);
    lt_buf url, body, what;
    lt_buf_init(&url, cli_memory);
    lt_buf_init(&body, cli_memory);
    lt_buf_init(&what, cli_memory);
    lt_buf_printf(&url, "%s/api/models/", hub->endpoint);
    append_escaped(&url, repo, true);
    lt_buf_append_z(&url, "/revision/");
    append_escaped(&url, revision, false);
    lt_buf_append_z(&url, "?blobs=true");
    lt_buf_printf(&what, "%s (revision %s)", repo, revision);

    lattice_status status = LATTICE_OK;
    if (url.failed || what.failed) {
        status = lt_no_memory(err, url.len, "a URL");
        goto done;
    }
    for (int attempt = 0;; attempt++) {
        lt_buf_clear(&body);
        transfer t = { .hub = hub, .memory = &body, .size = LARGEST_LISTING, .fd = -1 };
        CURLcode rc = get(hub, url.data, &t);
        if (rc == CURLE_OK && t.status == 200) break;
        if (attempt + 1 == MAX_ATTEMPTS || cli_interrupted || !may_pass(hub, rc, t.status)) {
            status = fail(&t, rc, what.data, err);
            goto done;
        }
        pause_before(attempt, t.retry_after);
    }
    lt_json json;
    lt_json_open(&json, cli_memory, url.data, body.data ? body.data : "", body.len, err);
    status = read_listing(&json, listing);
    lt_json_close(&json);

done:
    lt_buf_free(&url);
    lt_buf_free(&body);
    lt_buf_free(&what);
    return status;
}

void hub_listing_free(hub_listing *listing)
{
    lt_free(cli_memory, listing->files);
    lt_arena_free(&listing->arena);
    *listing = (hub_listing){ .commit = "" };
}

const hub_file *hub_find(const hub_listing *listing, lt_str name)
{
    for (size_t i = 0; i < listing->n; i++)
        if (lt_str_is(name, listing->files[i].name)) return &listing->files[i];
    return NULL;
}

/* ------------------------------------------------------------------ a file */

/* Hashes the open file from its start; leaves the offset at its end. */
static lattice_status hash_file(int fd, const char *path, lt_sha256 *hash, uint64_t *size, lattice_error *err)
{
    char block[1 << 16];
    lt_sha256_init(hash);
    *size = 0;
    for (;;) {
        ssize_t n = read(fd, block, sizeof block);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return lt_fail(err, LATTICE_ERR_IO, "%s: cannot read: %s", path, strerror(errno));
        if (n == 0) return LATTICE_OK;
        if (cli_interrupted) return lt_fail(err, LATTICE_ERR_CANCELLED, "interrupted; the same command goes on from here");
        lt_sha256_update(hash, block, (size_t)n);
        *size += (uint64_t)n;
    }
}

static bool is_right(const hub_file *file, uint64_t size, lt_sha256 hash, char found[2 * LT_SHA256_SIZE + 1])
{
    uint8_t digest[LT_SHA256_SIZE];
    lt_sha256_final(&hash, digest);
    lt_sha256_hex(digest, found);
    return (!file->has_size || file->size == size) && (!file->has_sha256 || memcmp(digest, file->sha256, sizeof digest) == 0);
}

/* Is the file at `path` already what is wanted? Without a size there is nothing to go by. */
static bool already_there(const hub_file *file, const char *path)
{
    if (!file->has_size) return false;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0) return false;
    lt_sha256 hash;
    uint64_t size;
    char found[2 * LT_SHA256_SIZE + 1];
    bool right = hash_file(fd, path, &hash, &size, NULL) == LATTICE_OK && is_right(file, size, hash, found);
    close(fd);
    return right;
}

/* Takes the body until it is whole. A broken transfer is taken up where it broke. */
static lattice_status transfer_file(transfer *t, const char *url, const char *what, const hub_listing *listing,
                                    lattice_error *err)
{
    int attempt = 0;
    uint64_t most = t->offset; /* only bytes beyond it are a gain */
    for (;;) {
        if (t->size != UINT64_MAX && t->offset == t->size && t->size > 0) return LATTICE_OK;
        t->started = t->bad_range = false;
        t->commit[0] = '\0';
        CURLcode rc = get(t->hub, url, t);
        if (t->commit[0] && listing->commit[0] && strcmp(t->commit, listing->commit) != 0)
            return lt_fail(err, LATTICE_ERR_IO,
                           "%s: the repository has changed meanwhile (commit %s, not %s); run the command again", what, t->commit,
                           listing->commit);
        bool whole = rc == CURLE_OK && (t->status == 200 || t->status == 206);
        if (whole && !t->started && !start_file(t)) whole = false; /* no body: an empty file */
        if (whole && (t->size == UINT64_MAX || t->offset == t->size)) return LATTICE_OK;

        /* A response of a length that it announced and kept will not be longer next time. */
        curl_off_t announced = -1;
        curl_easy_getinfo(t->hub->curl, CURLINFO_CONTENT_LENGTH_DOWNLOAD_T, &announced);
        if (whole && announced >= 0)
            return lt_fail(err, LATTICE_ERR_FORMAT, "%s: ends after %llu of %llu bytes", what, (unsigned long long)t->offset,
                           (unsigned long long)t->size);

        /* What is there does not fit to what the server has (416, or another range than was asked for): from the start. */
        bool restart = t->status == 416 || t->bad_range;
        if (restart && t->offset > 0 && attempt < MAX_ATTEMPTS) {
            t->offset = 0;
            lt_sha256_init(&t->hash);
            if (ftruncate(t->fd, 0) != 0 || lseek(t->fd, 0, SEEK_SET) != 0)
                return lt_fail(err, LATTICE_ERR_IO, "%s: cannot write: %s", what, strerror(errno));
            attempt++;
            continue;
        }
        attempt = t->offset > most ? 0 : attempt + 1;
        if (t->offset > most) most = t->offset;
        bool broken = whole || may_pass(t->hub, rc, t->status);
        if (!broken || attempt == MAX_ATTEMPTS || cli_interrupted || t->write_error || t->too_long) {
            if (whole && attempt == MAX_ATTEMPTS)
                return lt_fail(err, LATTICE_ERR_IO, "%s: ends after %llu of %llu bytes", what, (unsigned long long)t->offset,
                               (unsigned long long)t->size);
            return fail(t, rc, what, err);
        }
        pause_before(attempt, t->retry_after);
    }
}

lattice_status hub_fetch(hub_client *hub, const char *repo, const char *revision, const hub_listing *listing,
                         const hub_file *file, const char *path, void (*progress)(void *user, uint64_t done), void *user,
                         lattice_error *err)
{
    if (already_there(file, path)) {
        if (progress) progress(user, file->size);
        return LATTICE_OK;
    }
    lt_buf url, what, part;
    lt_buf_init(&url, cli_memory);
    lt_buf_init(&what, cli_memory);
    lt_buf_init(&part, cli_memory);
    lt_buf_printf(&url, "%s/", hub->endpoint);
    append_escaped(&url, repo, true);
    lt_buf_append_z(&url, "/resolve/");
    append_escaped(&url, revision, false);
    lt_buf_byte(&url, '/');
    append_escaped(&url, file->name, true);
    lt_buf_printf(&what, "%s/%s", repo, file->name);
    lt_buf_printf(&part, "%s.part", path);

    lattice_status status = LATTICE_OK;
    transfer t = { .hub = hub, .fd = -1, .size = file->has_size ? file->size : UINT64_MAX, .progress = progress, .user = user };
    t.piece = malloc(LT_PIECE);
    if (url.failed || what.failed || part.failed || !t.piece) {
        status = lt_no_memory(err, LT_PIECE, "a transfer");
        goto done;
    }
    t.fd = open(part.data, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (t.fd < 0) {
        status = lt_fail(err, LATTICE_ERR_IO, "%s: cannot create: %s", part.data, strerror(errno));
        goto done;
    }
    LT_GO(hash_file(t.fd, part.data, &t.hash, &t.offset, err));
    for (bool resumed = t.offset > 0;; resumed = false) {
        if (t.offset > t.size) t.offset = 0;
        if (t.offset == 0) {
            lt_sha256_init(&t.hash);
            if (ftruncate(t.fd, 0) != 0 || lseek(t.fd, 0, SEEK_SET) != 0) {
                status = lt_fail(err, LATTICE_ERR_IO, "%s: cannot write: %s", part.data, strerror(errno));
                goto done;
            }
        }
        LT_GO(transfer_file(&t, url.data, what.data, listing, err));
        char found[2 * LT_SHA256_SIZE + 1], expected[2 * LT_SHA256_SIZE + 1];
        if (is_right(file, t.offset, t.hash, found)) break;
        if (!resumed) {
            lt_sha256_hex(file->sha256, expected);
            unlink(part.data);
            status = lt_fail(err, LATTICE_ERR_FORMAT, "%s: sha256 is %s, the repository says %s", what.data, found, expected);
            goto done;
        }
        t.offset = 0; /* the part was of another file: once more, whole */
    }
    if (fsync(t.fd) != 0 || rename(part.data, path) != 0)
        status = lt_fail(err, LATTICE_ERR_IO, "%s: cannot write: %s", path, strerror(errno));

done:
    if (t.fd >= 0) close(t.fd);
    free(t.piece);
    lt_buf_free(&url);
    lt_buf_free(&what);
    lt_buf_free(&part);
    return status;
}
