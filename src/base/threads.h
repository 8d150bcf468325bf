/* The thread pool: fork-join over all compute threads of a runtime, with barriers inside.
 *
 * One parallel region runs at a time; further callers wait their turn. Between regions workers spin for about 50 µs, then
 * sleep. Thread 0 is the caller. */
#ifndef LT_BASE_THREADS_H
#define LT_BASE_THREADS_H

#include "base/status.h"

typedef struct lt_pool lt_pool;

/* CPUs this process may run on (its affinity mask where the system has one), at least 1. */
int lt_available_cpus(void);

/* n_threads >= 1. */
lattice_status lt_pool_create(const lattice_allocator *mem, int n_threads, lt_pool **pool, lattice_error *err);
void lt_pool_free(lt_pool *pool);
int lt_pool_threads(const lt_pool *pool);

/* Runs fn(arg, thread, n_threads) on every thread at once and returns when all have returned. Must not be nested. */
typedef void (*lt_parallel_fn)(void *arg, int thread, int n_threads);
void lt_pool_run(lt_pool *pool, lt_parallel_fn fn, void *arg);

/* Inside a region: waits until every thread of it has arrived; what they wrote before is visible after. */
void lt_pool_barrier(lt_pool *pool);

/* Work beside the pool: one background thread that runs one task at a time (tokenising the next window while the current one
 * computes, writing output). Created with the pool's runtime, sleeping when idle. */
typedef struct lt_task {
    void (*fn)(void *arg);
    void *arg;
    int state; /* private */
    struct lt_task *next;
} lt_task;

/* `task` is borrowed until it was waited for, which must happen exactly once for each start. Waiting for a task that has not
 * begun runs it on the waiting thread. */
void lt_pool_task_start(lt_pool *pool, lt_task *task);
void lt_pool_task_wait(lt_pool *pool, lt_task *task);

#endif
