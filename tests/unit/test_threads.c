/* The thread pool: regions, barriers, several callers, tasks beside it. */
#include "unit/support.h"

#include <pthread.h>

#include "base/memory.h"
#include "base/threads.h"

static lt_pool *new_pool(int n_threads)
{
    lattice_error err;
    lt_pool *pool;
    assert_ok_err(lt_pool_create(&lt_malloc_allocator, n_threads, &pool, &err), &err);
    assert_int_equal(lt_pool_threads(pool), n_threads);
    return pool;
}

typedef struct region {
    lt_pool *pool;
    int calls[16], n_threads_seen[16];
    int written[16]; /* plain memory: the barrier must publish it */
    atomic_int wrong;
    int rounds;
} region;

static void count_calls(void *arg, int thread, int n_threads)
{
    region *r = arg;
    r->calls[thread]++;
    r->n_threads_seen[thread] = n_threads;
}

static void every_thread_runs_the_region_once(void **state)
{
    (void)state;
    for (int n = 1; n <= 8; n++) {
        lt_pool *pool = new_pool(n);
        region r = { .pool = pool };
        for (int i = 0; i < 50; i++) {
            lt_pool_run(pool, count_calls, &r);
            if (i % 20 == 19) usleep(300); /* long enough for the workers to fall asleep */
        }
        for (int t = 0; t < 16; t++) {
            assert_int_equal(r.calls[t], t < n ? 50 : 0);
            assert_int_equal(r.n_threads_seen[t], t < n ? n : 0);
        }
        lt_pool_free(pool);
    }
    lt_pool_free(NULL);
}

static void write_and_compare(void *arg, int thread, int n_threads)
{
    region *r = arg;
    for (int round = 1; round <= r->rounds; round++) {
        r->written[thread] = round;
        lt_pool_barrier(r->pool);
        for (int t = 0; t < n_threads; t++) {
            if (r->written[t] != round) atomic_fetch_add(&r->wrong, 1);
        }
        lt_pool_barrier(r->pool);
    }
}

static void a_barrier_shows_what_all_threads_wrote_before_it(void **state)
{
    (void)state;
    for (int n = 1; n <= 6; n++) { /* more threads than this machine may have CPUs */
        lt_pool *pool = new_pool(n);
        region r = { .pool = pool, .rounds = 300 };
        lt_pool_run(pool, write_and_compare, &r);
        assert_int_equal(atomic_load(&r.wrong), 0);
        assert_int_equal(r.written[n - 1], 300);
        lt_pool_free(pool);
    }
}

typedef struct caller {
    lt_pool *pool;
    atomic_int *inside;
    atomic_int *wrong;
} caller;

static void alone_inside(void *arg, int thread, int n_threads)
{
    caller *c = arg;
    (void)n_threads;
    if (thread == 0 && atomic_fetch_add(c->inside, 1) != 0) atomic_fetch_add(c->wrong, 1);
    lt_pool_barrier(c->pool);
    lt_pool_barrier(c->pool);
    if (thread == 0) atomic_fetch_sub(c->inside, 1);
}

static void *run_many(void *arg)
{
    caller *c = arg;
    for (int i = 0; i < 100; i++) lt_pool_run(c->pool, alone_inside, c);
    return NULL;
}

static void regions_of_several_callers_run_one_at_a_time(void **state)
{
    (void)state;
    for (int n = 1; n <= 3; n++) {
        lt_pool *pool = new_pool(n);
        atomic_int inside = 0, wrong = 0;
        caller c = { pool, &inside, &wrong };
        pthread_t threads[4];
        for (int i = 0; i < 4; i++) assert_int_equal(pthread_create(&threads[i], NULL, run_many, &c), 0);
        for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
        assert_int_equal(atomic_load(&wrong), 0);
        lt_pool_free(pool);
    }
}

typedef struct work {
    int value, from, order;
    atomic_int *counter;
    pthread_t thread;
} work;

static void copy_value(void *arg)
{
    work *w = arg;
    w->value = w->from;
    w->thread = pthread_self();
    if (w->counter) w->order = atomic_fetch_add(w->counter, 1);
}

static void tasks_are_done_when_they_were_waited_for(void **state)
{
    (void)state;
    lt_pool *pool = new_pool(1);
    enum { N = 40 };
    work works[N] = { 0 };
    lt_task tasks[N];
    for (int round = 0; round < 20; round++) {
        for (int i = 0; i < N; i++) {
            works[i] = (work){ .from = round * N + i + 1 };
            tasks[i] = (lt_task){ .fn = copy_value, .arg = &works[i] };
            lt_pool_task_start(pool, &tasks[i]);
        }
        /* In another order than they were started. */
        for (int k = 0; k < N; k++) {
            int i = k * 7 % N;
            lt_pool_task_wait(pool, &tasks[i]);
            assert_int_equal(works[i].value, works[i].from);
        }
    }
    lt_pool_free(pool);
}

static void a_task_runs_beside_the_thread_that_started_it(void **state)
{
    (void)state;
    lt_pool *pool = new_pool(2);
    atomic_int counter = 0;
    work w = { .from = 1, .counter = &counter };
    lt_task task = { .fn = copy_value, .arg = &w };
    lt_pool_task_start(pool, &task);
    for (int i = 0; i < 60000 && atomic_load(&counter) == 0; i++) usleep(1000);
    assert_int_equal(atomic_load(&counter), 1); /* nobody has waited yet */
    lt_pool_task_wait(pool, &task);
    assert_false(pthread_equal(w.thread, pthread_self()));
    lt_pool_free(pool);
}

typedef struct region_task {
    lt_pool *pool;
    region r;
} region_task;

static void run_region(void *arg)
{
    region_task *t = arg;
    lt_pool_run(t->pool, write_and_compare, &t->r);
}

static void a_task_may_run_a_region_itself(void **state)
{
    (void)state;
    lt_pool *pool = new_pool(2);
    region_task t = { .pool = pool, .r = { .pool = pool, .rounds = 50 } };
    lt_task task = { .fn = run_region, .arg = &t };
    region mine = { .pool = pool, .rounds = 50 };
    lt_pool_task_start(pool, &task);
    lt_pool_run(pool, write_and_compare, &mine);
    lt_pool_task_wait(pool, &task);
    assert_int_equal(atomic_load(&t.r.wrong) + atomic_load(&mine.wrong), 0);
    assert_int_equal(t.r.written[1], 50);
    lt_pool_free(pool);
}

static void a_pool_refuses_no_threads_and_no_memory(void **state)
{
    (void)state;
    lattice_error err;
    lt_pool *pool;
    assert_int_equal(lt_pool_create(&lt_malloc_allocator, 0, &pool, &err), LATTICE_ERR_INVALID_ARGUMENT);
    assert_null(pool);
    lt_test_allocator a = lt_test_allocator_failing_at(1);
    lattice_allocator mem = lt_test_allocator_hooks(&a);
    assert_int_equal(lt_pool_create(&mem, 2, &pool, &err), LATTICE_ERR_NO_MEMORY);
    assert_int_equal(lt_test_allocator_live(&a), 0);
    assert_true(lt_available_cpus() >= 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_thread_runs_the_region_once),
        cmocka_unit_test(a_barrier_shows_what_all_threads_wrote_before_it),
        cmocka_unit_test(regions_of_several_callers_run_one_at_a_time),
        cmocka_unit_test(tasks_are_done_when_they_were_waited_for),
        cmocka_unit_test(a_task_runs_beside_the_thread_that_started_it),
        cmocka_unit_test(a_task_may_run_a_region_itself),
        cmocka_unit_test(a_pool_refuses_no_threads_and_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
