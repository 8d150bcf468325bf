/* The scheduler; see scheduler.h.
 *
 * One lock guards the queue and the lists of posts; it is never held while anything is computed. A job's private fields are
 * guarded by it too. */
#include "engine/scheduler.h"

#include <pthread.h>
#include <signal.h>
#include <string.h>

#include "base/clock.h"

enum { DEFAULT_BATCH_TOKENS = 16384, QUEUE_BATCHES = 16, POSTS_FOR_ALL_THREADS = 4, N_SPEEDS = 64 };
/* What the memory of batches keeps after a large one. */
static const size_t kept_floats = (size_t)1 << 20;

typedef struct post_list {
    lt_post *first, **last;
    size_t n;
} post_list;

struct lt_scheduler {
    lattice_runtime *runtime;
    const lattice_allocator *mem;
    size_t batch_tokens, queue_tokens;

    pthread_mutex_t lock;
    pthread_cond_t wake;
    pthread_t thread;
    bool stop;
    lt_queue queue;
    post_list posts, beside;
    double next_deadline; /* of the waiting jobs; 0: none */
    lt_scheduler_stats stats;

    lt_turns turns;
    double credit; /* seconds that batches may take before the streams' next step; negative: they took more */
    struct speed {
        const void *lane;
        double seconds; /* a token, lately */
    } speeds[N_SPEEDS];

    lt_task task; /* runs the posts of `beside` */
    bool task_runs, task_started;

    /* The running batch: of the scheduler's thread alone. */
    uint32_t *ids, *types, *positions;
    size_t ids_capacity, types_capacity, positions_capacity;
    size_t *seq_starts, *pool_skip;
    size_t seq_starts_capacity, pool_skip_capacity;
    lt_embed_rows rows;
};

static void list_init(post_list *list)
{
    *list = (post_list){ .last = &list->first };
}

static void list_add(post_list *list, lt_post *post)
{
    post->next = NULL;
    *list->last = post;
    list->last = &post->next;
    list->n++;
}

static lt_post *list_take(post_list *list)
{
    lt_post *post = list->first;
    if (!post) return NULL;
    list->first = post->next;
    if (!list->first) list->last = &list->first;
    list->n--;
    return post;
}

/* ------------------------------------------------------------------ posts */

static void run_beside(void *arg)
{
    lt_scheduler *s = arg;
    pthread_mutex_lock(&s->lock);
    for (lt_post *post; (post = list_take(&s->beside));) {
        pthread_mutex_unlock(&s->lock);
        post->fn(post);
        pthread_mutex_lock(&s->lock);
    }
    s->task_runs = false;
    pthread_cond_broadcast(&s->wake);
    pthread_mutex_unlock(&s->lock);
}

/* With the lock held. */
static void add_post(lt_scheduler *s, lt_post *post, bool beside)
{
    if (!beside) {
        list_add(&s->posts, post);
        pthread_cond_broadcast(&s->wake);
        return;
    }
    list_add(&s->beside, post);
    if (s->task_runs) return;
    /* A task that ran before has let go of the lock for the last time: this does not take long. */
    if (s->task_started) lt_pool_task_wait(s->runtime->pool, &s->task);
    s->task_started = s->task_runs = true;
    lt_pool_task_start(s->runtime->pool, &s->task);
}

void lt_scheduler_post(lt_scheduler *s, lt_post *post, bool beside)
{
    pthread_mutex_lock(&s->lock);
    add_post(s, post, beside);
    pthread_mutex_unlock(&s->lock);
}

typedef struct post_run {
    pthread_mutex_t lock;
    post_list list;
} post_run;

static void run_posts_of(void *arg, int thread, int n_threads)
{
    (void)thread;
    (void)n_threads;
    post_run *run = arg;
    for (;;) {
        pthread_mutex_lock(&run->lock);
        lt_post *post = list_take(&run->list);
        pthread_mutex_unlock(&run->lock);
        if (!post) return;
        post->fn(post);
    }
}

/* Runs the posts that are there, on all compute threads when they are many. The lock is held before and after. */
static void run_posts(lt_scheduler *s)
{
    post_run run;
    list_init(&run.list);
    if (!s->posts.first) return;
    run.list.first = s->posts.first;
    run.list.last = s->posts.last;
    run.list.n = s->posts.n;
    list_init(&s->posts);
    pthread_mutex_unlock(&s->lock);
    pthread_mutex_init(&run.lock, NULL);
    if (run.list.n < POSTS_FOR_ALL_THREADS)
        run_posts_of(&run, 0, 1);
    else
        lt_pool_run(s->runtime->pool, run_posts_of, &run);
    pthread_mutex_destroy(&run.lock);
    pthread_mutex_lock(&s->lock);
}

/* ------------------------------------------------------------------ jobs */

static void call_done(lt_post *post)
{
    lt_job *job = (lt_job *)(void *)((char *)post - offsetof(lt_job, post));
    job->done(job);
}

/* The job's last moment in the scheduler. With the lock held. */
static void end_job(lt_scheduler *s, lt_job *job)
{
    job->is_submitted = false;
    job->post.fn = call_done;
    add_post(s, &job->post, job->beside);
}

static void end_early(lt_scheduler *s, lt_job *job, const char *why)
{
    if (job->status == LATTICE_OK) job->status = lt_fail(&job->err, LATTICE_ERR_CANCELLED, "%s", why);
    lt_queue_remove(&s->queue, &job->entry);
    if (job->outstanding == 0) end_job(s, job);
}

static bool has_room(const lt_scheduler *s, size_t n_tokens)
{
    size_t waiting = s->queue.n_tokens + s->turns.waiting_tokens;
    size_t room = s->queue_tokens > waiting ? s->queue_tokens - waiting : 0;
    return (s->queue.n_jobs == 0 && s->turns.n_waiting == 0) || n_tokens <= room;
}

bool lt_scheduler_has_room(lt_scheduler *s, size_t n_tokens)
{
    pthread_mutex_lock(&s->lock);
    bool yes = has_room(s, n_tokens);
    if (!yes) s->stats.n_rejected++;
    pthread_mutex_unlock(&s->lock);
    return yes;
}

static lattice_status refuse(lt_scheduler *s, size_t n_tokens, lattice_error *err)
{
    s->stats.n_rejected++;
    return lt_fail(err, LATTICE_ERR_BUSY, "the queue is full: %zu tokens wait, %zu more would be over its %zu",
                   s->queue.n_tokens + s->turns.waiting_tokens, n_tokens, s->queue_tokens);
}

lattice_status lt_scheduler_submit(lt_scheduler *s, lt_job *job, lattice_error *err)
{
    job->status = LATTICE_OK;
    job->submitted = lt_clock_seconds();
    job->started = job->seconds = 0;
    job->outstanding = 0;
    /* A model is larger than a byte, so that these addresses stand for model and work. */
    job->entry = (lt_queue_job){ .client = job->client,
                                 .lane = (const char *)job->model + job->work,
                                 .alone = job->work == LT_WORK_CALL,
                                 .n = job->n,
                                 .starts = job->starts,
                                 .max_units = lt_model_max_seqs(job->model) };
    lattice_status status = LATTICE_OK;
    pthread_mutex_lock(&s->lock);
    if (job->is_cancelled || s->stop) {
        status = lt_fail(err, LATTICE_ERR_CANCELLED, "cancelled");
    } else if (!has_room(s, job->starts[job->n])) {
        status = refuse(s, job->starts[job->n], err);
    } else {
        job->is_submitted = true;
        lt_queue_push(&s->queue, &job->entry);
        if (job->deadline > 0 && (s->next_deadline == 0 || job->deadline < s->next_deadline)) s->next_deadline = job->deadline;
        pthread_cond_broadcast(&s->wake);
    }
    pthread_mutex_unlock(&s->lock);
    return status;
}

void lt_scheduler_cancel(lt_scheduler *s, lt_job *job)
{
    pthread_mutex_lock(&s->lock);
    if (!job->is_cancelled) {
        job->is_cancelled = true;
        if (job->is_submitted) {
            s->stats.n_cancelled++;
            end_early(s, job, "cancelled");
        }
    }
    pthread_mutex_unlock(&s->lock);
}

typedef struct expiry {
    lt_scheduler *scheduler;
    double now;
} expiry;

static void expire(void *user, lt_queue_job *entry)
{
    expiry *e = user;
    lt_job *job = (lt_job *)(void *)entry;
    if (job->deadline <= 0) return;
    if (job->deadline <= e->now) {
        e->scheduler->stats.n_cancelled++;
        end_early(e->scheduler, job, "the deadline has passed");
    } else if (e->scheduler->next_deadline == 0 || job->deadline < e->scheduler->next_deadline) {
        e->scheduler->next_deadline = job->deadline;
    }
}

static void drop_expired(lt_scheduler *s)
{
    if (s->next_deadline == 0) return;
    expiry e = { s, lt_clock_seconds() };
    if (e.now < s->next_deadline) return;
    s->next_deadline = 0;
    lt_queue_each(&s->queue, expire, &e);
}

static void drop(void *user, lt_queue_job *entry)
{
    end_early(user, (lt_job *)(void *)entry, "the scheduler ends");
}

/* ------------------------------------------------------------------ turns */

static void call_turn_done(lt_post *post)
{
    lt_turn *turn = (lt_turn *)(void *)((char *)post - offsetof(lt_turn, post));
    turn->done(turn);
}

/* With the lock held. */
static void end_turn(lt_scheduler *s, lt_turn *turn)
{
    turn->is_submitted = false;
    turn->post.fn = call_turn_done;
    add_post(s, &turn->post, false);
}

lattice_status lt_scheduler_begin_turn(lt_scheduler *s, lt_turn *turn, lattice_error *err)
{
    size_t n_tokens = 0;
    for (lt_turn *t = turn; t; t = t->also) {
        t->status = LATTICE_OK;
        t->submitted = lt_clock_seconds();
        t->started = t->seconds = 0;
        t->was_appended = false;
        n_tokens += lattice_generator_pending(t->generator);
    }
    lattice_status status = LATTICE_OK;
    pthread_mutex_lock(&s->lock);
    if (turn->is_cancelled || s->stop) {
        status = lt_fail(err, LATTICE_ERR_CANCELLED, "cancelled");
    } else if (!has_room(s, n_tokens)) {
        status = refuse(s, n_tokens, err);
    } else {
        for (lt_turn *t = turn; t; t = t->also) {
            t->is_submitted = true;
            lt_turns_add(&s->turns, t);
        }
        pthread_cond_broadcast(&s->wake);
    }
    pthread_mutex_unlock(&s->lock);
    return status;
}

/* With the lock held. An active turn ends in its next step. */
static void cancel_turn(lt_scheduler *s, lt_turn *turn)
{
    s->stats.n_cancelled++;
    if (lt_turns_remove(&s->turns, turn)) {
        turn->status = lt_fail(&turn->err, LATTICE_ERR_CANCELLED, "cancelled");
        end_turn(s, turn);
    } else {
        lattice_session_cancel(turn->session);
    }
}

void lt_scheduler_cancel_turn(lt_scheduler *s, lt_turn *turn)
{
    pthread_mutex_lock(&s->lock);
    for (; turn; turn = turn->also) {
        if (turn->is_cancelled) continue;
        turn->is_cancelled = true;
        if (turn->is_submitted) cancel_turn(s, turn);
    }
    pthread_mutex_unlock(&s->lock);
}

/* One step of all active turns. The lock is held before and after. */
static void step_turns(lt_scheduler *s)
{
    lt_turns *turns = &s->turns;
    lt_turns_admit(turns);
    if (turns->n_active == 0) return;
    pthread_mutex_unlock(&s->lock);
    double start = lt_clock_seconds();
    size_t n_ended = lt_turns_step(turns);
    double seconds = lt_clock_seconds() - start;
    pthread_mutex_lock(&s->lock);
    s->stats.busy_seconds += seconds;
    s->stats.turns_active = turns->n_active;
    s->stats.n_prompt_tokens = turns->n_prompt_tokens;
    s->stats.n_new_tokens = turns->n_new_tokens;
    s->stats.n_steps = turns->n_steps;
    for (size_t i = 0; i < n_ended; i++) end_turn(s, turns->active[turns->n_active + i]);
}

static void drop_turns(lt_scheduler *s)
{
    while (s->turns.waiting) cancel_turn(s, s->turns.waiting);
    for (size_t i = 0; i < s->turns.n_active; i++) lattice_session_cancel(s->turns.active[i]->session);
}

/* ------------------------------------------------------------------ batches */

static lt_job *job_of(const lt_slice *slice)
{
    return (lt_job *)(void *)slice->job;
}

/* Puts the tokens of all slices in a row. */
static lattice_status pack(lt_scheduler *s, lt_batch *batch, lattice_error *err)
{
    const lt_queue *queue = &s->queue;
    size_t n_tokens = queue->batch_tokens, n_seqs = queue->batch_units;
    if (!LT_GROW(s->mem, s->ids, s->ids_capacity, n_tokens) || !LT_GROW(s->mem, s->types, s->types_capacity, n_tokens) ||
        !LT_GROW(s->mem, s->positions, s->positions_capacity, n_tokens) ||
        !LT_GROW(s->mem, s->seq_starts, s->seq_starts_capacity, n_seqs + 1) ||
        !LT_GROW(s->mem, s->pool_skip, s->pool_skip_capacity, n_seqs))
        return lt_no_memory(err, n_tokens * 12, "a batch");
    size_t at = 0, seq = 0;
    bool skips = false;
    for (size_t k = 0; k < queue->n_slices; k++) {
        const lt_slice *slice = &queue->slices[k];
        const lt_job *job = job_of(slice);
        size_t begin = job->starts[slice->first], n = job->starts[slice->first + slice->n] - begin;
        size_t skip = job->work == LT_WORK_VECTORS ? lt_embed_call_skip(job->call) : 0;
        memcpy(s->ids + at, job->ids + begin, n * sizeof *s->ids);
        if (job->types)
            memcpy(s->types + at, job->types + begin, n * sizeof *s->types);
        else
            memset(s->types + at, 0, n * sizeof *s->types);
        for (size_t i = slice->first; i < slice->first + slice->n; i++) {
            size_t length = lt_queue_unit_tokens(&job->entry, i);
            s->seq_starts[seq] = at;
            s->pool_skip[seq] = skip;
            skips = skips || skip > 0;
            for (size_t t = 0; t < length; t++) s->positions[at + t] = (uint32_t)t;
            at += length;
            seq++;
        }
    }
    s->seq_starts[seq] = at;
    *batch = (lt_batch){ .n_tokens = n_tokens,
                         .n_seqs = n_seqs,
                         .ids = s->ids,
                         .positions = s->positions,
                         .type_ids = s->types,
                         .seq_starts = s->seq_starts,
                         .pool_skip = skips ? s->pool_skip : NULL };
    return LATTICE_OK;
}

static void fail_job(lt_job *job, size_t text, const char *what)
{
    if (job->status != LATTICE_OK) return;
    job->status = lt_fail(&job->err, LATTICE_ERR_NOT_FINITE,
                          "%s: the %s of text %zu is not finite; checking the model names a weight at fault", job->model->folder,
                          what, text);
}

/* Hands the rows of a batch to their jobs. `width` floats a row; a row is a text, or a token of it. */
static void hand_out(lt_scheduler *s, lt_work work, const float *rows, size_t width)
{
    for (size_t k = 0; k < s->queue.n_slices; k++) {
        const lt_slice *slice = &s->queue.slices[k];
        lt_job *job = job_of(slice);
        for (size_t i = slice->first; i < slice->first + slice->n; i++) {
            size_t n_rows = work == LT_WORK_TOKENS ? lt_queue_unit_tokens(&job->entry, i) : 1;
            if (work == LT_WORK_VECTORS) {
                size_t dim = lt_embed_call_dim(job->call);
                if (!lt_embed_call_finish(job->call, rows, job->out + i * dim)) fail_job(job, i, "vector");
            } else {
                size_t to = work == LT_WORK_TOKENS ? job->starts[i] : i;
                if (!job->model->kernels->all_finite(rows, n_rows * width))
                    fail_job(job, i, work == LT_WORK_TOKENS ? "vectors" : "score");
                else
                    memcpy(job->out + to * width, rows, n_rows * width * sizeof *rows);
            }
            rows += n_rows * width;
        }
    }
}

static lattice_status forward(lt_scheduler *s, lattice_model *model, lt_work work, lattice_error *err)
{
    lt_batch batch;
    const float *rows;
    size_t width;
    LT_TRY(pack(s, &batch, err));
    if (work == LT_WORK_VECTORS) {
        batch.pooling = model->sentence.pooling;
        LT_TRY(lt_embed_forward(model, &batch, &s->rows, &rows, &width, err));
    } else {
        lt_tail_kind tail = work == LT_WORK_TOKENS ? LT_TAIL_TOKENS : LT_TAIL_SCORES;
        size_t n_rows = work == LT_WORK_TOKENS ? batch.n_tokens : batch.n_seqs, floats;
        width = lt_tail_width(&model->plan, tail, 0);
        if (work == LT_WORK_SCORES) { /* the first token of each */
            batch.out_rows = s->seq_starts;
            batch.n_out = batch.n_seqs;
        }
        if (!lt_mul(n_rows, width, &floats) || !LT_GROW(s->mem, s->rows.data[0], s->rows.capacity[0], floats))
            return lt_no_memory(err, width * sizeof(float), "a batch's rows");
        LT_TRY(model->backend->run(model->program, &batch, tail, s->rows.data[0], NULL, err));
        rows = s->rows.data[0];
    }
    hand_out(s, work, rows, width);
    return LATTICE_OK;
}

/* Computes the slices of the queue, without the lock. */
static void compute(lt_scheduler *s)
{
    const lt_slice *first = &s->queue.slices[0];
    lt_job *job = job_of(first);
    lattice_error err = { 0 };
    lattice_status status =
        job->work == LT_WORK_CALL ? job->run(job, first->first, first->n, &err) : forward(s, job->model, job->work, &err);
    for (size_t k = 0; status != LATTICE_OK && k < s->queue.n_slices; k++) {
        lt_job *failed = job_of(&s->queue.slices[k]);
        if (failed->status != LATTICE_OK) continue;
        failed->status = status;
        failed->err = err;
    }
    if (s->rows.capacity[0] > kept_floats || s->rows.capacity[1] > kept_floats) lt_embed_rows_free(s->mem, &s->rows);
}

static void count_batch(lt_scheduler *s, double seconds)
{
    static const size_t bounds[LT_N_BATCH_BOUNDS] = LT_BATCH_BOUNDS;
    s->stats.n_batches++;
    s->stats.n_texts += s->queue.batch_units;
    s->stats.n_tokens += s->queue.batch_tokens;
    s->stats.busy_seconds += seconds;
    for (size_t i = 0; i < LT_N_BATCH_BOUNDS; i++) {
        if (s->queue.batch_tokens > bounds[i]) continue;
        s->stats.batches_up_to[i]++;
        break;
    }
}

static struct speed *speed_of(lt_scheduler *s, const void *lane)
{
    size_t i = 0;
    while (i + 1 < N_SPEEDS && s->speeds[i].lane && s->speeds[i].lane != lane) i++;
    s->speeds[i].lane = lane;
    return &s->speeds[i];
}

/* Tokens of the next batch. While somebody's stream runs, what his next token may wait for. */
static size_t batch_budget(lt_scheduler *s)
{
    double allowance = lt_turns_allowance(&s->turns), slowest = 0;
    if (allowance <= 0) return s->batch_tokens;
    for (size_t i = 0; i < N_SPEEDS && s->speeds[i].lane; i++)
        if (s->speeds[i].seconds > slowest) slowest = s->speeds[i].seconds;
    double tokens = slowest > 0 ? allowance / slowest : 1;
    return tokens < 1 ? 1 : tokens < (double)s->batch_tokens ? (size_t)tokens : s->batch_tokens;
}

/* Is it time for a batch? Streams grant what may pass between their steps. A text cannot be cut, so one that takes longer is made
 * up for by the steps after it, and in the mean a stream keeps half its pace. */
static bool may_run_batch(lt_scheduler *s)
{
    if (s->queue.n_jobs == 0) return false;
    double allowance = lt_turns_allowance(&s->turns);
    if (allowance <= 0) {
        s->credit = 0;
        return true;
    }
    s->credit = s->credit + allowance < allowance ? s->credit + allowance : allowance;
    return s->credit > 0;
}

/* Takes the next batch and runs it. The lock is held before and after. */
static void run_batch(lt_scheduler *s)
{
    if (!lt_queue_take(&s->queue, batch_budget(s))) return;
    double start = lt_clock_seconds();
    const void *lane = s->queue.slices[0].job->lane;
    for (size_t k = 0; k < s->queue.n_slices; k++) {
        lt_job *job = job_of(&s->queue.slices[k]);
        job->outstanding += s->queue.slices[k].n;
        if (job->started == 0) job->started = start;
    }
    pthread_mutex_unlock(&s->lock);
    compute(s);
    pthread_mutex_lock(&s->lock);
    double seconds = lt_clock_seconds() - start;
    count_batch(s, seconds);
    s->credit -= seconds;
    struct speed *speed = speed_of(s, lane);
    double a_token = seconds / (double)s->queue.batch_tokens;
    speed->seconds = speed->seconds > 0 ? 0.7 * speed->seconds + 0.3 * a_token : a_token;
    /* A job may have several slices of one batch: it ends with the last. */
    for (size_t k = 0; k < s->queue.n_slices; k++) {
        const lt_slice *slice = &s->queue.slices[k];
        lt_job *job = job_of(slice);
        job->outstanding -= slice->n;
        if (job->outstanding > 0) continue;
        job->seconds += seconds;
        if (job->status != LATTICE_OK) lt_queue_remove(&s->queue, &job->entry);
        if (!job->entry.waiting) end_job(s, job);
    }
}

/* ------------------------------------------------------------------ the thread */

static bool has_nothing(const lt_scheduler *s)
{
    return !s->posts.first && s->queue.n_jobs == 0 && s->turns.n_waiting == 0 && s->turns.n_active == 0;
}

static bool is_idle(const lt_scheduler *s)
{
    return has_nothing(s) && (!s->stop || s->task_runs);
}

static void *scheduler_main(void *arg)
{
    lt_scheduler *s = arg;
    pthread_mutex_lock(&s->lock);
    for (;;) {
        while (is_idle(s)) pthread_cond_wait(&s->wake, &s->lock);
        if (s->stop) {
            lt_queue_each(&s->queue, drop, s);
            drop_turns(s);
        }
        run_posts(s);
        drop_expired(s);
        step_turns(s);
        run_posts(s); /* the last event of a stream does not wait for a batch */
        if (may_run_batch(s)) run_batch(s);
        if (s->stop && has_nothing(s) && !s->task_runs) break;
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

static void free_all(lt_scheduler *s)
{
    lt_free(s->mem, s->ids);
    lt_free(s->mem, s->types);
    lt_free(s->mem, s->positions);
    lt_free(s->mem, s->seq_starts);
    lt_free(s->mem, s->pool_skip);
    lt_embed_rows_free(s->mem, &s->rows);
    lt_queue_free(&s->queue);
    pthread_cond_destroy(&s->wake);
    pthread_mutex_destroy(&s->lock);
    lt_free(s->mem, s);
}

lattice_status lt_scheduler_create(lattice_runtime *runtime, const lt_scheduler_options *options, lt_scheduler **out,
                                   lattice_error *err)
{
    *out = NULL;
    lt_scheduler *s = lt_alloc_zero(&runtime->mem, sizeof *s);
    if (!s) return lt_no_memory(err, sizeof *s, "the scheduler");
    s->runtime = runtime;
    s->mem = &runtime->mem;
    s->batch_tokens = options && options->batch_tokens ? options->batch_tokens : DEFAULT_BATCH_TOKENS;
    s->queue_tokens = options ? options->queue_tokens : 0;
    if (s->queue_tokens == 0 && !lt_mul(s->batch_tokens, QUEUE_BATCHES, &s->queue_tokens)) s->queue_tokens = SIZE_MAX;
    lt_queue_init(&s->queue, s->mem);
    lt_turns_init(&s->turns, s->mem);
    list_init(&s->posts);
    list_init(&s->beside);
    s->task = (lt_task){ .fn = run_beside, .arg = s };
    pthread_mutex_init(&s->lock, NULL); /* default attributes: neither can fail on the systems we build for */
    pthread_cond_init(&s->wake, NULL);
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old); /* signals are for the threads of the program */
    int error = pthread_create(&s->thread, NULL, scheduler_main, s);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (error) {
        free_all(s);
        return lt_fail(err, LATTICE_ERR_IO, "cannot start the scheduler's thread (error %d)", error);
    }
    *out = s;
    return LATTICE_OK;
}

void lt_scheduler_free(lt_scheduler *s)
{
    if (!s) return;
    pthread_mutex_lock(&s->lock);
    s->stop = true;
    pthread_cond_broadcast(&s->wake);
    pthread_mutex_unlock(&s->lock);
    pthread_join(s->thread, NULL);
    if (s->task_started) lt_pool_task_wait(s->runtime->pool, &s->task);
    free_all(s);
}

void lt_scheduler_get_stats(lt_scheduler *s, lt_scheduler_stats *stats)
{
    pthread_mutex_lock(&s->lock);
    *stats = s->stats;
    stats->queue_tokens = s->queue.n_tokens;
    stats->queue_texts = s->queue.n_units;
    stats->queue_tokens += s->turns.waiting_tokens;
    stats->queue_jobs = s->queue.n_jobs + s->turns.n_waiting;
    stats->turns_waiting = s->turns.n_waiting;
    pthread_mutex_unlock(&s->lock);
}
