/* `lattice serve`: the HTTP server.
 *
 * One thread, the event loop (loop.c), moves bytes and nothing else: libmicrohttpd parses HTTP, bodies gather in exchanges. A
 * whole request becomes a post of the engine's scheduler, is parsed and tokenised on a compute thread between batches, queued as
 * a job, and its answer written the same way. One file an API: openai.c, tei.c, cohere.c, operations.c. */
#ifndef LT_SERVER_SERVER_H
#define LT_SERVER_SERVER_H

#include "lattice.h"

typedef struct lt_server_model {
    const char *name;
    lattice_model *model;
} lt_server_model;

typedef struct lt_server_options {
    const lt_server_model *models; /* the first of a kind answers requests that name none */
    size_t n_models;
    const char *host;        /* address to listen on; NULL: no TCP */
    unsigned port;           /* 0: any */
    const char *unix_path;   /* Unix socket to listen on; NULL: none */
    const char *api_key;     /* NULL: none is asked for */
    const char *cors_origin; /* "*", or an origin that browsers may send requests from; NULL: none */
    size_t max_header, max_body;
    size_t max_connections;
    size_t max_client_batch; /* texts of one request */
    size_t max_batch_tokens, max_queue_tokens;
    lattice_cache *cache;                           /* of vectors; NULL: none */
    size_t prefix_bytes;                            /* memory for beginnings of conversations */
    bool auto_truncate;                             /* cut texts over the model's length unless a request says otherwise */
    double idle_timeout;                            /* seconds a connection may say nothing; 0: no limit, here and below */
    double receive_timeout;                         /* until a request has come whole */
    double total_timeout;                           /* until its answer is ready */
    double grace;                                   /* for what is in flight when the server is told to end */
    int stop_fd;                                    /* readable when the server shall end */
    void (*ready)(void *user, const char *address); /* once for each address that is listened on */
    void (*warn)(void *user, const char *message);
    void *user;
} lt_server_options;

/* Serves until stop_fd is readable and what is in flight is done. */
lattice_status lt_server_run(lattice_runtime *runtime, const lt_server_options *options, lattice_error *err);

#endif
