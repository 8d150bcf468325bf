/* The thread pool.
 *
 * Everything waits on a gate: a counter that only grows. A waiter spins on it for a while and then sleeps on the gate's
 * condition variable; whoever advances the counter takes the gate's lock only when somebody sleeps. No wake-up is lost: the
 * sleeper announces itself before it looks at the counter once more, the other advances the counter before it looks for
 * sleepers, both in sequentially consistent order, so at least one of them sees the other.
 *
 * A region is one step of `work`; the last worker to finish advances `done`. The barrier counts arrivals, and the last one
 * advances `phase` (the growing counter does what sense reversal does elsewhere). */
#include "base/threads.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/memory.h"

#define SPIN_SECONDS 50e-6
enum { PAUSES_PER_LOOK = 8, LOOKS_PER_CLOCK = 8, CACHE_LINE = 64 };
enum { TASK_QUEUED = 1, TASK_RUNNING = 2, TASK_DONE = 3 }; /* lt_task.state */

/* ------------------------------------------------------------------ gates */

typedef struct gate {
    atomic_uint count;
    atomic_int sleepers;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    char pad[CACHE_LINE]; /* the counters of two gates never share a cache line */
} gate;

static int gate_init(gate *g)
{
    atomic_init(&g->count, 0);
    atomic_init(&g->sleepers, 0);
    int error = pthread_mutex_init(&g->lock, NULL);
    if (error) return error;
    error = pthread_cond_init(&g->wake, NULL);
    if (error) pthread_mutex_destroy(&g->lock);
    return error;
}

static void gate_free(gate *g)
{
    pthread_cond_destroy(&g->wake);
    pthread_mutex_destroy(&g->lock);
}

static void gate_advance(gate *g)
{
    atomic_fetch_add(&g->count, 1);
    if (atomic_load(&g->sleepers) == 0) return;
    pthread_mutex_lock(&g->lock);
    pthread_cond_broadcast(&g->wake);
    pthread_mutex_unlock(&g->lock);
}

static inline void pause_cpu(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("isb" ::: "memory"); /* yield is a no-op on most cores; isb waits some ten nanoseconds */
#endif
}

/* Returns when the count differs from `seen`. */
static void gate_wait(gate *g, unsigned seen, bool spin)
{
    if (atomic_load_explicit(&g->count, memory_order_acquire) != seen) return;
    if (spin) {
        double deadline = lt_clock_seconds() + SPIN_SECONDS;
        do {
            for (int look = 0; look < LOOKS_PER_CLOCK; look++) {
                for (int i = 0; i < PAUSES_PER_LOOK; i++) pause_cpu();
                if (atomic_load_explicit(&g->count, memory_order_acquire) != seen) return;
            }
        } while (lt_clock_seconds() < deadline);
    }
    pthread_mutex_lock(&g->lock);
    atomic_fetch_add(&g->sleepers, 1);
    while (atomic_load(&g->count) == seen) pthread_cond_wait(&g->wake, &g->lock);
    atomic_fetch_sub(&g->sleepers, 1);
    pthread_mutex_unlock(&g->lock);
}

/* ------------------------------------------------------------------ pool */

typedef struct worker {
    lt_pool *pool;
    pthread_t thread;
    int index; /* 1 … n_threads - 1 */
} worker;

struct lt_pool {
    lattice_allocator mem;
    int n_threads;
    bool spin; /* not worth it with more threads than CPUs: it keeps those from running that are waited for */

    pthread_mutex_t region; /* held while a region runs: callers queue here */
    lt_parallel_fn fn;      /* NULL: workers leave */
    void *arg;
    gate work, done, phase;
    atomic_int running; /* workers that have not finished the region */
    char pad0[CACHE_LINE];
    atomic_int arrived; /* threads at the barrier */
    char pad1[CACHE_LINE];

    pthread_mutex_t task_lock;
    pthread_cond_t task_queued, task_done;
    lt_task *first, **last;
    bool stop;
    pthread_t task_thread;
    bool has_task_thread;

    int n_workers; /* started */
    worker workers[];
};

int lt_available_cpus(void)
{
#ifdef __linux__
    /* The mask must be as large as the kernel's; a machine with more CPUs than it holds answers EINVAL. */
    for (size_t n = 1024; n <= 64 * 1024; n *= 4) {
        cpu_set_t *set = CPU_ALLOC(n);
        if (!set) break;
        size_t size = CPU_ALLOC_SIZE(n);
        int rc = sched_getaffinity(0, size, set);
        int count = rc == 0 ? CPU_COUNT_S(size, set) : 0;
        int error = errno;
        CPU_FREE(set);
        if (rc == 0) return count > 0 ? count : 1;
        if (error != EINVAL) break;
    }
#endif
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    return online > 0 && online < 1 << 20 ? (int)online : 1;
}

static void *worker_main(void *arg)
{
    worker *self = arg;
    lt_pool *pool = self->pool;
    /* No region can pass unseen: the caller waits for every worker before it starts the next. */
    for (unsigned seen = 0;; seen++) {
        gate_wait(&pool->work, seen, pool->spin);
        if (!pool->fn) return NULL;
        pool->fn(pool->arg, self->index, pool->n_threads);
        if (atomic_fetch_sub(&pool->running, 1) == 1) gate_advance(&pool->done);
    }
}

static void *task_main(void *arg)
{
    lt_pool *pool = arg;
    pthread_mutex_lock(&pool->task_lock);
    for (;;) {
        while (!pool->first && !pool->stop) pthread_cond_wait(&pool->task_queued, &pool->task_lock);
        lt_task *task = pool->first;
        if (!task) break;
        pool->first = task->next;
        if (!pool->first) pool->last = &pool->first;
        task->state = TASK_RUNNING;
        pthread_mutex_unlock(&pool->task_lock);
        task->fn(task->arg);
        pthread_mutex_lock(&pool->task_lock);
        task->state = TASK_DONE;
        pthread_cond_broadcast(&pool->task_done);
    }
    pthread_mutex_unlock(&pool->task_lock);
    return NULL;
}

/* Starts a thread that leaves all signals to the threads of the program. */
static int start_thread(pthread_t *thread, void *(*fn)(void *), void *arg)
{
    sigset_t all, old;
    sigfillset(&all);
    int error = pthread_sigmask(SIG_SETMASK, &all, &old);
    if (error) return error;
    error = pthread_create(thread, NULL, fn, arg);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return error;
}

/* Creates the pool's locks; on failure those created before are destroyed. */
static int init_locks(lt_pool *pool)
{
    gate *const gates[] = { &pool->work, &pool->done, &pool->phase };
    pthread_mutex_t *const mutexes[] = { &pool->region, &pool->task_lock };
    pthread_cond_t *const conditions[] = { &pool->task_queued, &pool->task_done };
    int n_gates = 0, n_mutexes = 0, n_conditions = 0, error = 0;
    while (n_gates < 3 && !(error = gate_init(gates[n_gates]))) n_gates++;
    while (!error && n_mutexes < 2 && !(error = pthread_mutex_init(mutexes[n_mutexes], NULL))) n_mutexes++;
    while (!error && n_conditions < 2 && !(error = pthread_cond_init(conditions[n_conditions], NULL))) n_conditions++;
    if (!error) return 0;
    while (n_conditions > 0) pthread_cond_destroy(conditions[--n_conditions]);
    while (n_mutexes > 0) pthread_mutex_destroy(mutexes[--n_mutexes]);
    while (n_gates > 0) gate_free(gates[--n_gates]);
    return error;
}

lattice_status lt_pool_create(const lattice_allocator *mem, int n_threads, lt_pool **out, lattice_error *err)
{
    *out = NULL;
    if (n_threads < 1) return lt_fail(err, LATTICE_ERR_INVALID_ARGUMENT, "a thread pool of %d threads", n_threads);
    size_t size = sizeof(lt_pool) + (size_t)(n_threads - 1) * sizeof(worker);
    lt_pool *pool = lt_alloc_zero(mem, size);
    if (!pool) return lt_no_memory(err, size, "the thread pool");
    pool->mem = *mem;
    pool->n_threads = n_threads;
    pool->spin = n_threads <= lt_available_cpus();
    pool->last = &pool->first;
    atomic_init(&pool->running, 0);
    atomic_init(&pool->arrived, 0);
    int error = init_locks(pool);
    if (error) {
        lt_free(mem, pool);
        return lt_fail(err, LATTICE_ERR_IO, "cannot create the locks of the thread pool (error %d)", error);
    }
    error = start_thread(&pool->task_thread, task_main, pool);
    pool->has_task_thread = !error;
    while (!error && pool->n_workers < n_threads - 1) {
        worker *w = &pool->workers[pool->n_workers];
        w->pool = pool;
        w->index = pool->n_workers + 1;
        error = start_thread(&w->thread, worker_main, w);
        if (!error) pool->n_workers++;
    }
    if (error) {
        lt_fail(err, LATTICE_ERR_IO, "cannot start %d threads (started %d, error %d)", n_threads, pool->n_workers, error);
        lt_pool_free(pool);
        return LATTICE_ERR_IO;
    }
    *out = pool;
    return LATTICE_OK;
}

void lt_pool_free(lt_pool *pool)
{
    if (!pool) return;
    pool->fn = NULL;
    gate_advance(&pool->work);
    for (int i = 0; i < pool->n_workers; i++) pthread_join(pool->workers[i].thread, NULL);
    if (pool->has_task_thread) {
        pthread_mutex_lock(&pool->task_lock);
        pool->stop = true;
        pthread_cond_broadcast(&pool->task_queued);
        pthread_mutex_unlock(&pool->task_lock);
        pthread_join(pool->task_thread, NULL);
    }
    pthread_cond_destroy(&pool->task_done);
    pthread_cond_destroy(&pool->task_queued);
    pthread_mutex_destroy(&pool->task_lock);
    pthread_mutex_destroy(&pool->region);
    gate_free(&pool->phase);
    gate_free(&pool->done);
    gate_free(&pool->work);
    lattice_allocator mem = pool->mem;
    lt_free(&mem, pool);
}

int lt_pool_threads(const lt_pool *pool)
{
    return pool->n_threads;
}

void lt_pool_run(lt_pool *pool, lt_parallel_fn fn, void *arg)
{
    pthread_mutex_lock(&pool->region);
    if (pool->n_threads == 1) {
        fn(arg, 0, 1);
    } else {
        unsigned done = atomic_load_explicit(&pool->done.count, memory_order_relaxed);
        pool->fn = fn;
        pool->arg = arg;
        atomic_store_explicit(&pool->running, pool->n_threads - 1, memory_order_relaxed);
        gate_advance(&pool->work);
        fn(arg, 0, pool->n_threads);
        gate_wait(&pool->done, done, pool->spin);
    }
    pthread_mutex_unlock(&pool->region);
}

void lt_pool_barrier(lt_pool *pool)
{
    if (pool->n_threads == 1) return;
    /* Read before arriving: once all have arrived the phase may advance at any moment. */
    unsigned phase = atomic_load_explicit(&pool->phase.count, memory_order_relaxed);
    if (atomic_fetch_add(&pool->arrived, 1) == pool->n_threads - 1) {
        atomic_store_explicit(&pool->arrived, 0, memory_order_relaxed);
        gate_advance(&pool->phase);
    } else {
        gate_wait(&pool->phase, phase, pool->spin);
    }
}

/* ------------------------------------------------------------------ tasks */

void lt_pool_task_start(lt_pool *pool, lt_task *task)
{
    pthread_mutex_lock(&pool->task_lock);
    task->state = TASK_QUEUED;
    task->next = NULL;
    *pool->last = task;
    pool->last = &task->next;
    pthread_cond_signal(&pool->task_queued);
    pthread_mutex_unlock(&pool->task_lock);
}

void lt_pool_task_wait(lt_pool *pool, lt_task *task)
{
    pthread_mutex_lock(&pool->task_lock);
    if (task->state == TASK_QUEUED) {
        lt_task **link = &pool->first;
        while (*link != task) link = &(*link)->next;
        *link = task->next;
        if (!*link) pool->last = link;
        pthread_mutex_unlock(&pool->task_lock);
        task->fn(task->arg);
        return;
    }
    while (task->state != TASK_DONE) pthread_cond_wait(&pool->task_done, &pool->task_lock);
    pthread_mutex_unlock(&pool->task_lock);
}
