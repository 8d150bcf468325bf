/* The queue of the scheduler: which texts of which requests go into the next batch. Plain data, no threads.
 *
 * A request is a job of n units (texts, or pieces of a prompt), each of a known number of tokens. Jobs of up to 64 units are
 * interactive, larger ones are bulk. Within a class clients take turns: a turn is at most 64 units of the client's oldest job,
 * and a batch that is full ends a turn early. A batch holds units of one lane, which is a model and what is computed with it.
 *
 * Interactive jobs go first. So that bulk is never starved, every batch that is taken while bulk waits puts an eighth of its
 * budget to bulk's credit, and bulk goes first as far as the credit reaches. What interactive jobs leave free is bulk's anyway.
 */
#ifndef LT_ENGINE_QUEUE_H
#define LT_ENGINE_QUEUE_H

#include "base/memory.h"

enum { LT_QUEUE_TURN = 64, LT_QUEUE_BULK_SHARE = 8 };

typedef enum lt_queue_class { LT_QUEUE_INTERACTIVE, LT_QUEUE_BULK, LT_QUEUE_CLASSES } lt_queue_class;

typedef struct lt_queue_job lt_queue_job;

/* Whoever is treated as one by fairness: a connection, a thread. Zeroed before its first job; outlives its jobs. */
typedef struct lt_client {
    struct lt_client_lane {
        struct lt_client *next, *before; /* in the ring of clients with waiting jobs */
        lt_queue_job *first, *last;      /* oldest first */
    } lanes[LT_QUEUE_CLASSES];
} lt_client;

/* What the queue knows of a job. */
struct lt_queue_job {
    lt_client *client;
    const void *lane;     /* units of one lane may share a batch; of two, never */
    bool alone;           /* units share a batch with no other job's */
    size_t n;             /* units, at least one */
    const size_t *starts; /* [n + 1] unit i has starts[i + 1] - starts[i] tokens */
    size_t max_units;     /* of one batch */
    /* Private. */
    lt_queue_class class;
    size_t taken; /* units that have gone into batches */
    bool waiting; /* in its client's list */
    lt_queue_job *next;
};

/* Units first … first + n of a job. */
typedef struct lt_slice {
    lt_queue_job *job;
    size_t first, n;
} lt_slice;

typedef struct lt_queue {
    const lattice_allocator *mem;
    lt_client *rings[LT_QUEUE_CLASSES]; /* whose turn it is */
    size_t n_tokens, n_units, n_jobs;   /* waiting */
    size_t credit;                      /* tokens that bulk may take before interactive jobs */
    lt_slice *slices;
    size_t n_slices, slices_capacity;
    size_t batch_tokens, batch_units; /* of the slices */
} lt_queue;

void lt_queue_init(lt_queue *queue, const lattice_allocator *mem);
void lt_queue_free(lt_queue *queue);

void lt_queue_push(lt_queue *queue, lt_queue_job *job);
/* Takes out what has not been taken yet; nothing when the job is not waiting. */
void lt_queue_remove(lt_queue *queue, lt_queue_job *job);

/* Fills queue->slices with the next batch: units of one lane of `budget` tokens at most, but for a first unit that is larger by
 * itself. false: nothing waits (or there is no memory for a single slice). */
bool lt_queue_take(lt_queue *queue, size_t budget);

/* Calls fn for every waiting job; it may remove that job. */
void lt_queue_each(lt_queue *queue, void (*fn)(void *user, lt_queue_job *job), void *user);

static inline size_t lt_queue_unit_tokens(const lt_queue_job *job, size_t i)
{
    return job->starts[i + 1] - job->starts[i];
}

#endif
