/* The scheduler's queue: classes, turns, budgets, and that nothing is lost or starved. */
#include "support.h"

#include "engine/queue.h"

typedef struct test_job {
    lt_queue_job job;
    size_t starts[300];
} test_job;

static const int lane_a, lane_b;

static void add(lt_queue *q, test_job *t, lt_client *client, const void *lane, size_t n, size_t tokens)
{
    t->job = (lt_queue_job){ .client = client, .lane = lane, .n = n, .starts = t->starts, .max_units = 1000 };
    for (size_t i = 0; i <= n; i++) t->starts[i] = i * tokens;
    lt_queue_push(q, &t->job);
}

static size_t taken_of(const lt_queue *q, const test_job *t)
{
    size_t n = 0;
    for (size_t k = 0; k < q->n_slices; k++)
        if (q->slices[k].job == &t->job) n += q->slices[k].n;
    return n;
}

static void an_empty_queue_gives_nothing(void **state)
{
    (void)state;
    lt_queue q;
    lt_queue_init(&q, &lt_malloc_allocator);
    assert_false(lt_queue_take(&q, 100));
    lt_queue_free(&q);
}

static void a_batch_is_full_but_not_over_its_budget(void **state)
{
    (void)state;
    lt_queue q;
    lt_client clients[3] = { 0 };
    test_job jobs[3];
    lt_queue_init(&q, &lt_malloc_allocator);
    for (int i = 0; i < 3; i++) add(&q, &jobs[i], &clients[i], &lane_a, 5, 7);
    assert_int_equal(q.n_tokens, 105);
    size_t units = 0;
    while (lt_queue_take(&q, 40)) {
        assert_true(q.batch_tokens <= 40);
        if (units + q.batch_units < 15) assert_true(q.batch_tokens > 40 - 7);
        units += q.batch_units;
    }
    assert_int_equal(units, 15);
    assert_int_equal(q.n_tokens, 0);
    assert_int_equal(q.n_units, 0);
    assert_int_equal(q.n_jobs, 0);
    lt_queue_free(&q);
}

static void a_unit_larger_than_the_budget_goes_alone(void **state)
{
    (void)state;
    lt_queue q;
    lt_client client = { 0 }, other = { 0 };
    test_job big, small;
    lt_queue_init(&q, &lt_malloc_allocator);
    add(&q, &big, &client, &lane_a, 1, 500);
    add(&q, &small, &other, &lane_a, 1, 5);
    assert_true(lt_queue_take(&q, 100));
    assert_int_equal(q.batch_units, 1);
    assert_int_equal(taken_of(&q, &big), 1);
    assert_true(lt_queue_take(&q, 100));
    assert_int_equal(taken_of(&q, &small), 1);
    lt_queue_free(&q);
}

static void units_of_a_job_come_in_order(void **state)
{
    (void)state;
    lt_queue q;
    lt_client client = { 0 };
    test_job t;
    lt_queue_init(&q, &lt_malloc_allocator);
    add(&q, &t, &client, &lane_a, 290, 3);
    size_t next = 0;
    while (lt_queue_take(&q, 50)) {
        for (size_t k = 0; k < q.n_slices; k++) {
            assert_int_equal(q.slices[k].first, next);
            next += q.slices[k].n;
        }
    }
    assert_int_equal(next, 290);
    lt_queue_free(&q);
}

static void clients_take_turns(void **state)
{
    (void)state;
    lt_queue q;
    lt_client busy = { 0 }, calm = { 0 };
    test_job many[20], one;
    lt_queue_init(&q, &lt_malloc_allocator);
    for (int i = 0; i < 20; i++) add(&q, &many[i], &busy, &lane_a, 10, 10);
    add(&q, &one, &calm, &lane_a, 10, 10);
    /* The client of one job waits for one of the other's, not for all twenty. */
    assert_true(lt_queue_take(&q, 200));
    assert_int_equal(taken_of(&q, &many[0]), 10);
    assert_int_equal(taken_of(&q, &one), 10);
    /* Of one client the oldest comes first. */
    assert_true(lt_queue_take(&q, 100));
    assert_int_equal(taken_of(&q, &many[1]), 10);
    lt_queue_free(&q);
}

static void bulk_waits_for_the_small_but_is_not_starved(void **state)
{
    (void)state;
    lt_queue q;
    lt_client bulk = { 0 }, small[8] = { 0 };
    test_job large, jobs[8] = { 0 };
    lt_queue_init(&q, &lt_malloc_allocator);
    add(&q, &large, &bulk, &lane_a, 200, 10);
    size_t bulk_tokens = 0, all_tokens = 0;
    for (int round = 0; round < 40 && large.job.waiting; round++) {
        for (int i = 0; i < 8; i++)
            if (!jobs[i].job.waiting) add(&q, &jobs[i], &small[i], &lane_a, 20, 10);
        assert_true(lt_queue_take(&q, 800));
        bulk_tokens += 10 * taken_of(&q, &large);
        all_tokens += q.batch_tokens;
    }
    /* An eighth, not more and not less than by a unit a batch. */
    assert_true(bulk_tokens * 9 > all_tokens);
    assert_true(bulk_tokens * 7 < all_tokens);
    lt_queue_free(&q);
}

static void bulk_of_another_model_gets_batches_of_its_own(void **state)
{
    (void)state;
    lt_queue q;
    lt_client bulk = { 0 }, small = { 0 };
    test_job large, job = { 0 };
    lt_queue_init(&q, &lt_malloc_allocator);
    add(&q, &large, &bulk, &lane_b, 100, 10);
    size_t bulk_tokens = 0, all_tokens = 0;
    for (int round = 0; round < 60 && large.job.waiting; round++) {
        if (!job.job.waiting) add(&q, &job, &small, &lane_a, 64, 10);
        assert_true(lt_queue_take(&q, 400));
        for (size_t k = 1; k < q.n_slices; k++) assert_ptr_equal(q.slices[k].job->lane, q.slices[0].job->lane);
        bulk_tokens += 10 * taken_of(&q, &large);
        all_tokens += q.batch_tokens;
    }
    assert_true(bulk_tokens * 12 > all_tokens);
    lt_queue_free(&q);
}

static void a_job_alone_shares_its_batch_with_nobody(void **state)
{
    (void)state;
    lt_queue q;
    lt_client clients[2] = { 0 };
    test_job alone, other;
    lt_queue_init(&q, &lt_malloc_allocator);
    add(&q, &alone, &clients[0], &lane_a, 10, 10);
    alone.job.alone = true;
    add(&q, &other, &clients[1], &lane_a, 10, 10);
    assert_true(lt_queue_take(&q, 1000));
    assert_int_equal(q.n_slices, 1);
    assert_true(lt_queue_take(&q, 1000));
    assert_int_equal(q.n_slices, 1);
    assert_int_equal(q.n_jobs, 0);
    lt_queue_free(&q);
}

static void a_removed_job_is_gone_and_the_rest_goes_on(void **state)
{
    (void)state;
    lt_queue q;
    lt_client clients[3] = { 0 };
    test_job jobs[6];
    lt_queue_init(&q, &lt_malloc_allocator);
    for (int i = 0; i < 6; i++) add(&q, &jobs[i], &clients[i % 3], &lane_a, 10, 10);
    assert_true(lt_queue_take(&q, 50)); /* half of the first */
    lt_queue_remove(&q, &jobs[0].job);
    lt_queue_remove(&q, &jobs[0].job);
    lt_queue_remove(&q, &jobs[5].job);
    assert_int_equal(q.n_tokens, 400);
    assert_int_equal(q.n_jobs, 4);
    size_t units = 0;
    while (lt_queue_take(&q, 70)) {
        assert_int_equal(taken_of(&q, &jobs[0]) + taken_of(&q, &jobs[5]), 0);
        units += q.batch_units;
    }
    assert_int_equal(units, 40);
    lt_queue_free(&q);
}

static void no_batch_has_more_texts_than_the_model_admits(void **state)
{
    (void)state;
    lt_queue q;
    lt_client client = { 0 };
    test_job t;
    lt_queue_init(&q, &lt_malloc_allocator);
    add(&q, &t, &client, &lane_a, 100, 1);
    t.job.max_units = 16;
    while (lt_queue_take(&q, 1000)) assert_true(q.batch_units <= 16);
    lt_queue_free(&q);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_empty_queue_gives_nothing),
        cmocka_unit_test(a_batch_is_full_but_not_over_its_budget),
        cmocka_unit_test(a_unit_larger_than_the_budget_goes_alone),
        cmocka_unit_test(units_of_a_job_come_in_order),
        cmocka_unit_test(clients_take_turns),
        cmocka_unit_test(bulk_waits_for_the_small_but_is_not_starved),
        cmocka_unit_test(bulk_of_another_model_gets_batches_of_its_own),
        cmocka_unit_test(a_job_alone_shares_its_batch_with_nobody),
        cmocka_unit_test(a_removed_job_is_gone_and_the_rest_goes_on),
        cmocka_unit_test(no_batch_has_more_texts_than_the_model_admits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
