/* The scheduler with many threads: results, order, cancellation, deadlines, a full queue, turns. */
#include "support.h"

#include <pthread.h>

#include "base/clock.h"
#include "engine/scheduler.h"

typedef struct world {
    lattice_runtime *runtime;
    lattice_model *model;
    lt_scheduler *scheduler;
} world;

static void begin(world *w, const char *folder, size_t batch_tokens, size_t queue_tokens)
{
    lattice_error err;
    lattice_runtime_options runtime = lattice_runtime_options_default();
    runtime.n_threads = 2;
    assert_ok_err(lattice_runtime_create(&runtime, &w->runtime, &err), &err);
    assert_ok_err(lattice_model_open(w->runtime, folder, NULL, &w->model, &err), &err);
    const lt_scheduler_options options = { .batch_tokens = batch_tokens, .queue_tokens = queue_tokens };
    assert_ok_err(lt_scheduler_create(w->runtime, &options, &w->scheduler, &err), &err);
}

static void end(world *w)
{
    lt_scheduler_free(w->scheduler);
    lattice_model_close(w->model);
    lattice_runtime_free(w->runtime);
}

/* ------------------------------------------------------------------ a request that is waited for */

typedef struct request {
    lt_job job;
    lt_client client;
    lt_window window;
    lt_embed_call *call;
    float *vectors;
    pthread_mutex_t lock;
    pthread_cond_t ended;
    int n_done;
} request;

static void on_done(lt_job *job)
{
    request *r = (request *)(void *)job; /* its first member */
    pthread_mutex_lock(&r->lock);
    r->n_done++;
    pthread_cond_signal(&r->ended);
    pthread_mutex_unlock(&r->lock);
}

static void prepare(request *r, world *w, const lattice_text *texts, size_t n)
{
    memset(r, 0, sizeof *r);
    lattice_error err;
    lattice_embed_options options = lattice_embed_options_default();
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->ended, NULL);
    lt_window_init(&r->window, &lt_malloc_allocator);
    assert_ok_err(lt_embed_call_create(w->model, &options, false, &r->call, &err), &err);
    assert_ok_err(lt_embed_call_texts(r->call, texts, n, &r->window, &err), &err);
    r->vectors = calloc(n * lt_embed_call_dim(r->call), sizeof(float));
    r->job = (lt_job){ .model = w->model,
                       .work = LT_WORK_VECTORS,
                       .client = &r->client,
                       .n = n,
                       .starts = r->window.starts,
                       .ids = r->window.ids,
                       .types = r->window.types,
                       .call = r->call,
                       .out = r->vectors,
                       .done = on_done };
}

static void wait_for(request *r)
{
    pthread_mutex_lock(&r->lock);
    while (r->n_done == 0) pthread_cond_wait(&r->ended, &r->lock);
    pthread_mutex_unlock(&r->lock);
}

static void discard(request *r)
{
    assert_true(r->n_done <= 1);
    lt_window_free(&r->window);
    lt_embed_call_free(r->call);
    free(r->vectors);
    pthread_cond_destroy(&r->ended);
    pthread_mutex_destroy(&r->lock);
}

enum { N_TEXTS = 24 };
static char bytes[N_TEXTS][200];
static lattice_text texts[N_TEXTS];

static void make_texts(void)
{
    for (int i = 0; i < N_TEXTS; i++) {
        int n = snprintf(bytes[i], sizeof bytes[i], "text %d", i);
        for (int k = 0; k < i % 9; k++) n += snprintf(bytes[i] + n, sizeof bytes[i] - (size_t)n, " and word %d", k);
        texts[i] = (lattice_text){ bytes[i], (size_t)n };
    }
}

/* ------------------------------------------------------------------ tests */

typedef struct asker {
    world *w;
    const float *want;
    size_t dim;
    unsigned seed;
    bool cancels;
    int n_wrong, n_cancelled;
} asker;

static void *ask(void *arg)
{
    asker *a = arg;
    for (int round = 0; round < LT_ROUNDS(40, 12); round++) {
        a->seed = a->seed * 1103515245 + 12345;
        size_t first = a->seed >> 16 & 15, n = 1 + (a->seed >> 20) % (N_TEXTS - first);
        request r;
        prepare(&r, a->w, texts + first, n);
        lattice_error err;
        lattice_status status = lt_scheduler_submit(a->w->scheduler, &r.job, &err);
        if (status != LATTICE_OK) {
            a->n_wrong++;
        } else {
            if (a->cancels && round % 3 == 0) lt_scheduler_cancel(a->w->scheduler, &r.job);
            wait_for(&r);
            if (r.job.status == LATTICE_ERR_CANCELLED)
                a->n_cancelled++;
            else if (r.job.status != LATTICE_OK || memcmp(r.vectors, a->want + first * a->dim, n * a->dim * sizeof(float)) != 0)
                a->n_wrong++;
        }
        discard(&r);
    }
    return NULL;
}

static void run_askers(bool cancels)
{
    enum { N_THREADS = 6 };
    world w;
    begin(&w, FIXTURE("bert-cls"), 300, 1 << 20);
    make_texts();
    size_t dim = lattice_embed_dim(w.model, NULL);
    float *want = malloc(N_TEXTS * dim * sizeof *want);
    lattice_error err;
    assert_ok_err(lattice_embed(w.model, texts, N_TEXTS, NULL, want, NULL, &err), &err);
    pthread_t threads[N_THREADS];
    asker askers[N_THREADS];
    for (int i = 0; i < N_THREADS; i++) {
        askers[i] = (asker){ .w = &w, .want = want, .dim = dim, .seed = (unsigned)i, .cancels = cancels };
        pthread_create(&threads[i], NULL, ask, &askers[i]);
    }
    for (int i = 0; i < N_THREADS; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(askers[i].n_wrong, 0);
        if (!cancels) assert_int_equal(askers[i].n_cancelled, 0);
    }
    lt_scheduler_stats stats;
    lt_scheduler_get_stats(w.scheduler, &stats);
    assert_int_equal(stats.queue_tokens, 0);
    assert_true(stats.n_batches > 0);
    free(want);
    end(&w);
}

static void requests_of_many_threads_get_what_each_gets_alone(void **state)
{
    (void)state;
    run_askers(false);
}

static void cancelled_requests_end_once_and_leave_others_alone(void **state)
{
    (void)state;
    run_askers(true);
}

static void block(lt_post *post);

/* Keeps the engine busy until it is told to go on. */
typedef struct gate {
    lt_post post;
    pthread_mutex_t lock;
    pthread_cond_t opened;
    bool is_open, is_reached;
} gate;

static void block(lt_post *post)
{
    gate *g = (gate *)(void *)post;
    pthread_mutex_lock(&g->lock);
    g->is_reached = true;
    pthread_cond_broadcast(&g->opened);
    while (!g->is_open) pthread_cond_wait(&g->opened, &g->lock);
    pthread_mutex_unlock(&g->lock);
}

static void close_gate(gate *g, lt_scheduler *scheduler)
{
    *g = (gate){ .post.fn = block };
    pthread_mutex_init(&g->lock, NULL);
    pthread_cond_init(&g->opened, NULL);
    lt_scheduler_post(scheduler, &g->post, false);
    pthread_mutex_lock(&g->lock);
    while (!g->is_reached) pthread_cond_wait(&g->opened, &g->lock);
    pthread_mutex_unlock(&g->lock);
}

static void open_gate(gate *g)
{
    pthread_mutex_lock(&g->lock);
    g->is_open = true;
    pthread_cond_broadcast(&g->opened);
    pthread_mutex_unlock(&g->lock);
}

static void requests_that_wait_share_one_batch(void **state)
{
    (void)state;
    world w;
    gate g;
    request r[8];
    begin(&w, FIXTURE("bert-cls"), 4096, 1 << 20);
    make_texts();
    close_gate(&g, w.scheduler);
    for (int i = 0; i < 8; i++) {
        prepare(&r[i], &w, texts + i, 2);
        assert_ok(lt_scheduler_submit(w.scheduler, &r[i].job, NULL));
    }
    open_gate(&g);
    for (int i = 0; i < 8; i++) {
        wait_for(&r[i]);
        assert_ok(r[i].job.status);
    }
    lt_scheduler_stats stats;
    lt_scheduler_get_stats(w.scheduler, &stats);
    assert_int_equal(stats.n_batches, 1);
    assert_int_equal(stats.n_texts, 16);
    for (int i = 0; i < 8; i++) discard(&r[i]);
    end(&w);
}

static void a_full_queue_refuses_and_recovers(void **state)
{
    (void)state;
    world w;
    gate g;
    request r[20];
    begin(&w, FIXTURE("bert-cls"), 4096, 60);
    make_texts();
    close_gate(&g, w.scheduler);
    int admitted = 0, refused = 0;
    for (int i = 0; i < 20; i++) {
        prepare(&r[i], &w, texts, 4);
        lattice_error err;
        lattice_status status = lt_scheduler_submit(w.scheduler, &r[i].job, &err);
        if (status == LATTICE_OK) {
            admitted++;
        } else {
            assert_int_equal(status, LATTICE_ERR_BUSY);
            assert_non_null(strstr(err.message, "60"));
            refused++;
        }
    }
    assert_true(admitted > 0 && refused > 0);
    assert_false(lt_scheduler_has_room(w.scheduler, 60));
    open_gate(&g);
    for (int i = 0; i < admitted; i++) wait_for(&r[i]);
    assert_true(lt_scheduler_has_room(w.scheduler, 60));
    for (int i = 0; i < 20; i++) discard(&r[i]);
    end(&w);
}

static void cancelling_before_submit_and_after_the_end_is_harmless(void **state)
{
    (void)state;
    world w;
    request r;
    begin(&w, FIXTURE("bert-cls"), 4096, 1 << 20);
    make_texts();
    prepare(&r, &w, texts, 1);
    lt_scheduler_cancel(w.scheduler, &r.job);
    assert_int_equal(lt_scheduler_submit(w.scheduler, &r.job, NULL), LATTICE_ERR_CANCELLED);
    assert_int_equal(r.n_done, 0);
    discard(&r);
    prepare(&r, &w, texts, 1);
    assert_ok(lt_scheduler_submit(w.scheduler, &r.job, NULL));
    wait_for(&r);
    lt_scheduler_cancel(w.scheduler, &r.job);
    assert_ok(r.job.status);
    assert_int_equal(r.n_done, 1);
    discard(&r);
    end(&w);
}

static void a_deadline_that_has_passed_ends_a_request(void **state)
{
    (void)state;
    world w;
    gate g;
    request late, fine;
    begin(&w, FIXTURE("bert-cls"), 4096, 1 << 20);
    make_texts();
    close_gate(&g, w.scheduler);
    prepare(&late, &w, texts, 3);
    prepare(&fine, &w, texts, 3);
    late.job.deadline = lt_clock_seconds() - 1;
    fine.job.deadline = lt_clock_seconds() + 600;
    assert_ok(lt_scheduler_submit(w.scheduler, &late.job, NULL));
    assert_ok(lt_scheduler_submit(w.scheduler, &fine.job, NULL));
    open_gate(&g);
    wait_for(&late);
    wait_for(&fine);
    assert_int_equal(late.job.status, LATTICE_ERR_CANCELLED);
    assert_non_null(strstr(late.job.err.message, "deadline"));
    assert_ok(fine.job.status);
    discard(&late);
    discard(&fine);
    end(&w);
}

static void what_waits_is_cancelled_when_the_scheduler_ends(void **state)
{
    (void)state;
    world w;
    gate g;
    request r[3];
    begin(&w, FIXTURE("bert-cls"), 4096, 1 << 20);
    make_texts();
    close_gate(&g, w.scheduler);
    for (int i = 0; i < 3; i++) {
        prepare(&r[i], &w, texts, 3);
        r[i].job.beside = i == 1;
        assert_ok(lt_scheduler_submit(w.scheduler, &r[i].job, NULL));
    }
    open_gate(&g);
    lt_scheduler_free(w.scheduler);
    w.scheduler = NULL;
    for (int i = 0; i < 3; i++) {
        assert_int_equal(r[i].n_done, 1);
        discard(&r[i]);
    }
    end(&w);
}

static void run_count(lt_post *post);

typedef struct counted {
    lt_post post;
    atomic_int *count;
} counted;

static void run_count(lt_post *post)
{
    atomic_fetch_add(((counted *)(void *)post)->count, 1);
}

static void every_post_runs_once(void **state)
{
    (void)state;
    enum { N = 400 };
    world w;
    static counted posts[N];
    atomic_int count = 0;
    begin(&w, FIXTURE("bert-cls"), 4096, 1 << 20);
    for (int i = 0; i < N; i++) {
        posts[i] = (counted){ .post.fn = run_count, .count = &count };
        lt_scheduler_post(w.scheduler, &posts[i].post, i % 5 == 0);
    }
    lt_scheduler_free(w.scheduler);
    w.scheduler = NULL;
    assert_int_equal(atomic_load(&count), N);
    end(&w);
}

/* ------------------------------------------------------------------ turns */

typedef struct talk {
    lt_turn turn;
    lattice_session *session;
    lattice_generator *generator;
    atomic_bool done;
} talk;

static void on_turn_done(lt_turn *turn)
{
    atomic_store(&((talk *)(void *)turn)->done, true);
}

static void turns_together_give_what_each_gives_alone(void **state)
{
    (void)state;
    enum { N = 5, NEW = 12 };
    world w;
    static talk talks[N];
    uint32_t prompts[N][90], want[N][NEW];
    begin(&w, FIXTURE("qwen3.5-text"), 256, 1 << 20);
    lattice_generate_options options = lattice_generate_options_default(w.model);
    options.max_tokens = NEW;
    options.ignore_end = true;
    for (int i = 0; i < N; i++) {
        for (int k = 0; k < 90; k++) prompts[i][k] = (uint32_t)(3 + (i * 31 + k * 7) % 500);
        lattice_session *alone;
        lattice_generation g;
        assert_ok(lattice_session_create(w.model, NULL, &alone, NULL));
        assert_ok(lattice_session_prefill(alone, prompts[i], (size_t)(20 + 15 * i), NULL));
        assert_ok(lattice_generate(alone, &options, &g, NULL));
        assert_int_equal(g.n, NEW);
        memcpy(want[i], g.ids, sizeof want[i]);
        lattice_generation_free(&g);
        lattice_session_free(alone);
    }
    for (int i = 0; i < N; i++) {
        talk *t = &talks[i];
        *t = (talk){ 0 };
        assert_ok(lattice_session_create(w.model, NULL, &t->session, NULL));
        assert_ok(lattice_generator_create(t->session, prompts[i], (size_t)(20 + 15 * i), &options, &t->generator, NULL));
        t->turn = (lt_turn){ .session = t->session, .generator = t->generator, .done = on_turn_done };
        assert_ok(lt_scheduler_begin_turn(w.scheduler, &t->turn, NULL));
    }
    lt_scheduler_cancel_turn(w.scheduler, &talks[N - 1].turn);
    for (int i = 0; i < N; i++) {
        while (!atomic_load(&talks[i].done)) usleep(500);
        const lattice_generation *g = lattice_generator_result(talks[i].generator);
        if (i < N - 1) {
            assert_ok(talks[i].turn.status);
            assert_int_equal(g->n, NEW);
            assert_memory_equal(g->ids, want[i], sizeof want[i]);
        } else if (talks[i].turn.status == LATTICE_OK) {
            assert_int_equal(g->finish, LATTICE_FINISH_CANCELLED);
        }
        lattice_generator_free(talks[i].generator);
        lattice_session_free(talks[i].session);
    }
    end(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(requests_of_many_threads_get_what_each_gets_alone),
        cmocka_unit_test(cancelled_requests_end_once_and_leave_others_alone),
        cmocka_unit_test(requests_that_wait_share_one_batch),
        cmocka_unit_test(a_full_queue_refuses_and_recovers),
        cmocka_unit_test(cancelling_before_submit_and_after_the_end_is_harmless),
        cmocka_unit_test(a_deadline_that_has_passed_ends_a_request),
        cmocka_unit_test(what_waits_is_cancelled_when_the_scheduler_ends),
        cmocka_unit_test(every_post_runs_once),
        cmocka_unit_test(turns_together_give_what_each_gives_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
