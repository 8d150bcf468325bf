/* The scheduler: requests of many threads, merged into packed batches.
 *
 * One thread takes from a queue (queue.h) whatever fits the token budget, runs it on all compute threads of the runtime, and
 * takes the next as soon as the engine is free; there is no timer. What belongs to a request besides - parsing, tokenising,
 * writing its answer - are posts: they run on the same compute threads between two batches, so that the CPU is never asked for
 * more threads than it has. Long posts go to the runtime's background thread instead, beside the batches.
 *
 * Vectors, scores and logits do not depend on what else is in their batch, so merging changes no result. */
#ifndef LT_ENGINE_SCHEDULER_H
#define LT_ENGINE_SCHEDULER_H

#include "engine/embed.h"
#include "engine/posts.h"
#include "engine/queue.h"
#include "engine/turns.h"

typedef struct lt_scheduler lt_scheduler;

typedef struct lt_scheduler_options {
    size_t batch_tokens; /* budget of a batch; 0: 16384. Each device of a model must have been opened with its part of it at least */
    size_t queue_tokens; /* tokens that may wait; 0: 16 batches. A job that finds the queue empty is always admitted */
} lt_scheduler_options;

lattice_status lt_scheduler_create(lattice_runtime *runtime, const lt_scheduler_options *options, lt_scheduler **scheduler,
                                   lattice_error *err);
/* Cancels what waits, runs what was posted, and ends the thread. Accepts NULL. */
void lt_scheduler_free(lt_scheduler *scheduler);

/* ------------------------------------------------------------------ posts */

/* Runs the post once, on a compute thread between batches; `beside`: on the background thread. From any thread. */
void lt_scheduler_post(lt_scheduler *scheduler, lt_post *post, bool beside);

/* ------------------------------------------------------------------ jobs */

typedef enum lt_work {
    LT_WORK_VECTORS, /* out[n][lt_embed_call_dim]: pooled vectors, finished by `call` */
    LT_WORK_TOKENS,  /* out[tokens][hidden_size]: the vectors of all tokens */
    LT_WORK_SCORES,  /* out[n][n_labels]: a classifier's logits */
    LT_WORK_CALL,    /* run() does it, alone on the engine */
} lt_work;

typedef struct lt_job lt_job;

struct lt_job {
    lt_queue_job entry; /* the scheduler's; first, so that an entry is a job */

    /* Filled by the caller, who keeps what it points to until done() is called. */
    lattice_model *model;
    lt_work work;
    lt_client *client;
    double deadline;             /* lt_clock_seconds; 0: none */
    size_t n;                    /* texts, at least one */
    const size_t *starts;        /* [n + 1] */
    const uint32_t *ids, *types; /* [starts[n]]; NULL for LT_WORK_CALL; types may be NULL */
    const lt_embed_call *call;
    float *out;
    lattice_status (*run)(lt_job *job, size_t first, size_t n, lattice_error *err);
    bool beside;               /* done() is long */
    void (*done)(lt_job *job); /* called once as a post after a successful submit, whatever the result; may free the job */

    /* For done(). */
    lattice_status status;
    lattice_error err;
    double submitted, started; /* lt_clock_seconds; started 0: never */
    double seconds;            /* of the batches that it had part in */

    /* Private. */
    lt_post post;
    size_t outstanding; /* units in the running batch */
    bool is_submitted, is_cancelled;
};

/* Queues the job. LATTICE_ERR_BUSY when the queue has no room, LATTICE_ERR_CANCELLED when it was cancelled before; done() is not
 * called then. */
lattice_status lt_scheduler_submit(lt_scheduler *scheduler, lt_job *job, lattice_error *err);

/* Ends the job early with LATTICE_ERR_CANCELLED: at once when it waits, else after the running batch. Before submit: submit will
 * fail. The job must not have been freed; after done() has begun nothing happens. */
void lt_scheduler_cancel(lt_scheduler *scheduler, lt_job *job);

/* Starts a turn (turns.h) and those chained to it, all or none; the same errors. Their tokens count as waiting until they are
 * active. */
lattice_status lt_scheduler_begin_turn(lt_scheduler *scheduler, lt_turn *turn, lattice_error *err);
/* As lt_scheduler_cancel, the whole chain: a turn ends within one token, its generation as LATTICE_FINISH_CANCELLED. */
void lt_scheduler_cancel_turn(lt_scheduler *scheduler, lt_turn *turn);

/* Would a job of so many tokens be admitted now? */
bool lt_scheduler_has_room(lt_scheduler *scheduler, size_t n_tokens);

/* ------------------------------------------------------------------ what it does, in numbers */

/* Upper bounds of the histogram of tokens in a batch; the last class has none. */
#define LT_BATCH_BOUNDS                                                                                                          \
    {                                                                                                                            \
        64, 256, 1024, 2048, 4096, 8192, 16384                                                                                   \
    }
enum { LT_N_BATCH_BOUNDS = 7 };

typedef struct lt_scheduler_stats {
    size_t queue_tokens, queue_texts, queue_jobs; /* waiting now */
    uint64_t n_batches, n_texts, n_tokens;        /* run so far */
    uint64_t batches_up_to[LT_N_BATCH_BOUNDS];    /* not cumulative */
    uint64_t n_rejected, n_cancelled;
    size_t turns_active, turns_waiting;
    uint64_t n_prompt_tokens, n_new_tokens, n_steps; /* of generations */
    double busy_seconds;                             /* of the engine */
} lt_scheduler_stats;

void lt_scheduler_get_stats(lt_scheduler *scheduler, lt_scheduler_stats *stats);

#endif
