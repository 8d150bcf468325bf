/* The scheduler's queue; see queue.h. */
#include "engine/queue.h"

void lt_queue_init(lt_queue *queue, const lattice_allocator *mem)
{
    *queue = (lt_queue){ .mem = mem };
}

void lt_queue_free(lt_queue *queue)
{
    lt_free(queue->mem, queue->slices);
    *queue = (lt_queue){ .mem = queue->mem };
}

/* ------------------------------------------------------------------ rings */

static void ring_add(lt_queue *queue, lt_client *client, lt_queue_class class)
{
    lt_client *head = queue->rings[class];
    struct lt_client_lane *lane = &client->lanes[class];
    if (!head) {
        queue->rings[class] = lane->next = lane->before = client;
        return;
    }
    lane->next = head;
    lane->before = head->lanes[class].before;
    lane->before->lanes[class].next = client;
    head->lanes[class].before = client;
}

static void ring_remove(lt_queue *queue, lt_client *client, lt_queue_class class)
{
    struct lt_client_lane *lane = &client->lanes[class];
    if (lane->next == client) {
        queue->rings[class] = NULL;
    } else {
        lane->next->lanes[class].before = lane->before;
        lane->before->lanes[class].next = lane->next;
        if (queue->rings[class] == client) queue->rings[class] = lane->next;
    }
    lane->next = lane->before = NULL;
}

/* ------------------------------------------------------------------ jobs */

static size_t tokens_left(const lt_queue_job *job)
{
    return job->starts[job->n] - job->starts[job->taken];
}

void lt_queue_push(lt_queue *queue, lt_queue_job *job)
{
    job->class = job->n <= LT_QUEUE_TURN ? LT_QUEUE_INTERACTIVE : LT_QUEUE_BULK;
    job->taken = 0;
    job->waiting = true;
    job->next = NULL;
    struct lt_client_lane *lane = &job->client->lanes[job->class];
    if (lane->first) {
        lane->last->next = job;
        lane->last = job;
    } else {
        lane->first = lane->last = job;
        ring_add(queue, job->client, job->class);
    }
    queue->n_tokens += tokens_left(job);
    queue->n_units += job->n;
    queue->n_jobs++;
}

void lt_queue_remove(lt_queue *queue, lt_queue_job *job)
{
    if (!job->waiting) return;
    struct lt_client_lane *lane = &job->client->lanes[job->class];
    lt_queue_job *before = NULL;
    for (lt_queue_job *j = lane->first; j != job; j = j->next) before = j;
    if (before)
        before->next = job->next;
    else
        lane->first = job->next;
    if (lane->last == job) lane->last = before;
    if (!lane->first) ring_remove(queue, job->client, job->class);
    queue->n_tokens -= tokens_left(job);
    queue->n_units -= job->n - job->taken;
    queue->n_jobs--;
    job->waiting = false;
}

void lt_queue_each(lt_queue *queue, void (*fn)(void *user, lt_queue_job *job), void *user)
{
    for (int class = 0; class < LT_QUEUE_CLASSES; class ++) {
        lt_client *client = queue->rings[class];
        bool more = client != NULL;
        while (more) {
            lt_client *next = client->lanes[class].next;
            more = next != queue->rings[class];
            for (lt_queue_job *job = client->lanes[class].first, *following; job; job = following) {
                following = job->next;
                fn(user, job);
            }
            client = next;
        }
    }
}

/* ------------------------------------------------------------------ batches */

/* The batch under construction. */
typedef struct packing {
    lt_queue *queue;
    const void *lane;    /* NULL: not chosen yet */
    lt_queue_job *alone; /* no other job may join */
    size_t budget, max_units;
    bool full;
} packing;

static bool admits(const packing *p, const lt_queue_job *job)
{
    if (!p->lane) return true;
    return job->lane == p->lane && !job->alone && !p->alone;
}

/* Takes units of the job while they fit `limit` tokens in the batch. Returns how many. */
static size_t take_units(packing *p, lt_queue_job *job, size_t limit)
{
    lt_queue *queue = p->queue;
    size_t first = job->taken, n = 0;
    size_t most = job->max_units < p->max_units ? job->max_units : p->max_units;
    while (first + n < job->n && n < LT_QUEUE_TURN) {
        size_t tokens = lt_queue_unit_tokens(job, first + n);
        bool is_first = queue->batch_units == 0;
        if (queue->batch_units >= most || (!is_first && queue->batch_tokens + tokens > limit)) {
            p->full = queue->batch_units >= most || limit == p->budget;
            break;
        }
        queue->batch_tokens += tokens;
        queue->batch_units++;
        n++;
    }
    if (n == 0) return 0;
    queue->slices[queue->n_slices++] = (lt_slice){ job, first, n };
    p->lane = job->lane;
    p->max_units = most;
    if (job->alone) p->alone = job;
    return n;
}

static void advance_job(lt_queue *queue, lt_queue_job *job, size_t n)
{
    queue->n_tokens -= job->starts[job->taken + n] - job->starts[job->taken];
    queue->n_units -= n;
    job->taken += n;
    if (job->taken < job->n) return;
    queue->n_tokens += tokens_left(job); /* nothing: remove takes it off again */
    lt_queue_remove(queue, job);
}

/* Clients of a class take turns until the batch has `limit` tokens or none of them has units that may join. */
static void fill(packing *p, lt_queue_class class, size_t limit)
{
    lt_queue *queue = p->queue;
    lt_client *client = queue->rings[class];
    for (size_t passed = 0; client && !p->full && queue->batch_tokens < limit;) {
        lt_queue_job *job = client->lanes[class].first;
        lt_client *next = client->lanes[class].next;
        if (!LT_GROW(queue->mem, queue->slices, queue->slices_capacity, queue->n_slices + 1)) {
            p->full = true;
            return;
        }
        size_t n = 0;
        if (p->alone ? p->alone == job : admits(p, job)) n = take_units(p, job, limit);
        if (n == 0) {
            if (next == queue->rings[class] || ++passed > queue->n_jobs) return; /* once around without a taker */
            client = next;
            continue;
        }
        passed = 0;
        advance_job(queue, job, n);
        if (client->lanes[class].first && queue->rings[class] == client) {
            queue->rings[class] = next;          /* its turn is over */
        } else if (client->lanes[class].first) { /* taken out of the order: to the end of it */
            ring_remove(queue, client, class);
            ring_add(queue, client, class);
        }
        if (p->alone) return;
        client = queue->rings[class];
    }
}

bool lt_queue_take(lt_queue *queue, size_t budget)
{
    queue->n_slices = queue->batch_tokens = queue->batch_units = 0;
    packing p = { .queue = queue, .budget = budget, .max_units = SIZE_MAX };
    lt_client *bulk = queue->rings[LT_QUEUE_BULK];
    if (!bulk) {
        queue->credit = 0;
    } else if (queue->rings[LT_QUEUE_INTERACTIVE]) {
        const lt_queue_job *job = bulk->lanes[LT_QUEUE_BULK].first;
        queue->credit += budget / LT_QUEUE_BULK_SHARE;
        size_t need = lt_queue_unit_tokens(job, job->taken);
        if (need > budget) need = budget;
        if (queue->credit >= need) {
            size_t limit = queue->credit < budget ? queue->credit : budget;
            fill(&p, LT_QUEUE_BULK, limit);
            queue->credit -= queue->batch_tokens < queue->credit ? queue->batch_tokens : queue->credit;
            p.full = queue->batch_tokens >= budget;
        }
    }
    fill(&p, LT_QUEUE_INTERACTIVE, budget);
    fill(&p, LT_QUEUE_BULK, budget);
    return queue->n_slices > 0;
}
