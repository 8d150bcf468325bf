/* One request and its answer, as the event loop and the APIs share it.
 *
 * An exchange belongs to the event loop until its request is whole; then to the handler of its route, which runs as a post of the
 * scheduler; and to the loop again from lt_exchange_finish on. Only `gone` and `job` are touched by both at once. */
#ifndef LT_SERVER_EXCHANGE_H
#define LT_SERVER_EXCHANGE_H

#include <stdatomic.h>

#include "engine/scheduler.h"
#include "format/json.h"
#include "server/metrics.h"
#include "server/server.h"

struct MHD_Connection;
typedef struct lt_server lt_server;
typedef struct lt_connection lt_connection;
typedef struct lt_exchange lt_exchange;

/* Whose shape errors have. */
typedef enum lt_api { LT_API_OPENAI, LT_API_TEI, LT_API_COHERE, LT_API_PLAIN } lt_api;

typedef struct lt_route {
    const char *method, *path;
    lt_api api;
    bool is_open;  /* without a key, too */
    bool is_quick; /* answered by the event loop itself: reads no body and computes nothing */
    void (*handle)(lt_exchange *exchange);
} lt_route;

struct lt_exchange {
    lt_server *server;
    lt_connection *connection;
    struct MHD_Connection *http;
    const lt_route *route; /* NULL: not found */
    lt_api api;
    char id[64 + 1];
    lt_buf body;
    double begun, received;  /* lt_clock_seconds: headers are there; the whole request is */
    double deadline;         /* 0: none */
    atomic_bool gone;        /* the client has left, or time is up */
    atomic_bool expired;     /* it is the time */
    _Atomic(lt_job *) job;   /* the job that lt_exchange_submit queued */
    _Atomic(lt_turn *) turn; /* or the turns that lt_exchange_begin_turn started */
    lt_post post;

    /* The answer. */
    unsigned status; /* 0: not ready */
    lt_buf out;
    const char *content_type;
    const char *allow; /* of a 405 */
    uint64_t n_tokens; /* that were computed for it */
    double queue_seconds, inference_seconds;
    bool close; /* the connection ends with it */

    /* What the route's handler keeps until the exchange ends. */
    void *call;
    void (*free_call)(void *call);

    /* A stream's text on its way to the socket; with the loop's lock. */
    bool is_stream;
    lt_buf pending;
    size_t sent;       /* bytes of `pending` that are out */
    bool stream_ended; /* nothing more comes */
    bool is_orphan;    /* the connection has ended before the stream */
    bool is_queued;    /* in the list of exchanges that the loop shall look at */

    bool is_suspended, is_watched;
    bool is_counted;     /* in the metrics */
    size_t counted_body; /* bytes of the body in the server's sum */
    lt_exchange *next_done;
};

struct lt_server {
    lattice_runtime *runtime;
    const lattice_allocator *mem; /* malloc's: libmicrohttpd frees answers */
    lt_server_options options;
    lattice_model_info *infos; /* [n_models] */
    lt_scheduler *scheduler;
    lt_metrics metrics;
    struct lt_prefixes *prefixes;
    struct lt_loop *loop;
    uint64_t created; /* Unix time of the start */
};

/* ------------------------------------------------------------------ answers: answer.c */

/* What went wrong, in terms of no API; each API has its status for it. */
typedef enum lt_problem {
    LT_PROBLEM_MALFORMED, /* not JSON, not UTF-8 */
    LT_PROBLEM_INVALID,   /* a value that is not allowed */
    LT_PROBLEM_TOO_LONG,  /* a text over the model's length */
    LT_PROBLEM_BATCH,     /* more texts than a request may have */
    LT_PROBLEM_BODY,      /* more bytes than a request may have */
    LT_PROBLEM_UNAUTHORIZED,
    LT_PROBLEM_NOT_FOUND, /* no such route */
    LT_PROBLEM_NO_MODEL,  /* no such model */
    LT_PROBLEM_METHOD,
    LT_PROBLEM_BUSY,
    LT_PROBLEM_BACKEND, /* computing failed */
    LT_PROBLEM_TIMEOUT,
    LT_PROBLEM_GONE,
} lt_problem;

/* Sets the answer to an error in the shape of the exchange's API; `param` is the field at fault, or NULL. */
void lt_answer_error(lt_exchange *exchange, lt_problem problem, const char *param, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
/* The same from a failed call of the library. */
void lt_answer_status(lt_exchange *exchange, const char *param, const lattice_error *err);
/* The text of such an error alone, for a stream that has begun. */
void lt_write_status(const lt_exchange *exchange, const lattice_error *err, lt_buf *out);
/* Sets an answer whose text has been written to exchange->out; memory that ran out there becomes an error. */
void lt_answer_json(lt_exchange *exchange);

/* Hands the answer over to the event loop. From any thread; the exchange is the loop's afterwards. */
void lt_exchange_finish(lt_exchange *exchange);

/* Queues a job whose pointers the exchange's call keeps alive. false: it did not come to that, and the answer (an error) is set.
 */
bool lt_exchange_submit(lt_exchange *exchange, lt_job *job);

/* Starts a turn and those chained to it, as a stream of events or not. false: as above. */
bool lt_exchange_begin_turn(lt_exchange *exchange, lt_turn *turn, bool stream);
/* Of a stream: sends "data: TEXT" and an empty line; after the last event the exchange is the loop's. */
void lt_exchange_write_event(lt_exchange *exchange, lt_str text);
void lt_exchange_end_stream(lt_exchange *exchange);

/* Reads the body as one JSON value with `reader`; false: the answer (an error) is set. */
bool lt_read_body(lt_exchange *exchange, lattice_status (*reader)(lt_json *json, void *request), void *request);

/* ------------------------------------------------------------------ models: server.c */

/* The model of that name, or without one (data NULL) the first that `fits`, one that is meant to generate text last. -1: the
 * answer (an error) is set. */
int lt_find_model(lt_exchange *exchange, lt_str name, bool (*fits)(const lt_server *server, size_t model), const char *what);
bool lt_gives_vectors(const lt_server *server, size_t model);
bool lt_gives_scores(const lt_server *server, size_t model);
bool lt_generates(const lt_server *server, size_t model);

/* ------------------------------------------------------------------ routes: routes.c */

/* Ended by one without a path. */
extern const lt_route lt_routes[];

void lt_openai_embeddings(lt_exchange *exchange);
void lt_openai_chat(lt_exchange *exchange);
void lt_openai_completion(lt_exchange *exchange);
void lt_openai_models(lt_exchange *exchange);
void lt_tei_embed(lt_exchange *exchange);
void lt_tei_embed_all(lt_exchange *exchange);
void lt_tei_similarity(lt_exchange *exchange);
void lt_tei_predict(lt_exchange *exchange);
void lt_tei_tokenize(lt_exchange *exchange);
void lt_tei_decode(lt_exchange *exchange);
void lt_rerank_route(lt_exchange *exchange);
void lt_cohere_embed(lt_exchange *exchange);
void lt_metrics_route(lt_exchange *exchange);
void lt_openapi(lt_exchange *exchange);
void lt_health(lt_exchange *exchange);
void lt_info(lt_exchange *exchange);
void lt_page(lt_exchange *exchange);

#endif
