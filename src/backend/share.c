/* The queue of batches; see share.h.
 *
 * One lock guards the list of runs and what is left of each; it is never held while anything is computed. A device's thread takes
 * a piece from the first run that has one. Pieces of a run's end are cut so that all devices end together: as much for each as is
 * left for one of them, and again when one comes back before the others. */
#include "backend/share.h"

#include <pthread.h>
#include <signal.h>
#include <string.h>

/* Of a device's batch. Below, the overhead of a run outweighs what sharing gains. */
enum { SMALLEST_SHARE = 8 };

typedef struct device {
    lt_share *share;
    int number;
    lt_backend *backend;
    lt_program *program;
    bool lost;
    size_t fits; /* tokens: what there has been memory for */
    pthread_t thread;
    bool has_thread;
} device;

/* A run, on the stack of its caller. */
typedef struct running {
    struct running *next;
    lt_whole whole;
    lt_run_hooks hooks;
    bool undivided;                     /* one piece: its trace is of the whole batch */
    bool alone;                         /* on one device: its profile is */
    size_t cursors[LT_MAX_DEVICES + 1]; /* next sequence; with states one for each home, else the first alone */
    size_t tokens_left;                 /* without states */
    size_t portion;                     /* tokens of a piece, of which every device has one */
    uint64_t has_portion;               /* devices */
    lt_cut returned[LT_MAX_DEVICES];    /* of devices lost */
    size_t n_returned, n_active;        /* pieces at work */
    lattice_status status;
    lattice_error err;
    size_t culprit;
} running;

struct lt_share {
    lattice_runtime *runtime;
    const lt_plan *plan;
    size_t max_tokens, max_seqs, max_seq_len;
    pthread_mutex_t lock;
    pthread_cond_t wake; /* work, a piece done, a device lost, the end */
    bool has_lock, has_wake, stop;
    bool warned_length, warned_memory;
    running *first;
    int n_devices, n_alive;
    device devices[LT_MAX_DEVICES + 1]; /* the CPU is the last */
};

/* ------------------------------------------------------------------ cutting */

static bool too_long(const lt_share *s, const lt_whole *whole, size_t seq)
{
    size_t past = whole->batch->past_lens ? whole->batch->past_lens[seq] : 0;
    return s->max_seq_len > 0 && past + lt_whole_tokens(whole, seq) > s->max_seq_len;
}

/* The first sequence from `seq` on that lives on `home`. */
static size_t next_at_home(const lt_whole *whole, size_t seq, int home)
{
    while (seq < whole->batch->n_seqs && whole->homes[seq] != home) seq++;
    return seq;
}

/* Sequences from `first` on, at least one, up to so many tokens; those that are too long for devices by themselves. */
static lt_cut cut_from(const lt_share *s, const lt_whole *whole, size_t first, int home, size_t most)
{
    lt_cut cut = { first, first, home };
    bool is_long = home == LT_ANYWHERE && too_long(s, whole, first);
    size_t n_tokens = 0, n_seqs = 0;
    for (size_t seq = first; seq < whole->batch->n_seqs; seq++) {
        if (home != LT_ANYWHERE && whole->homes[seq] != home) continue;
        size_t tokens = lt_whole_tokens(whole, seq);
        if (n_seqs > 0 && (tokens > most - n_tokens || n_seqs == s->max_seqs)) break;
        if (home == LT_ANYWHERE && too_long(s, whole, seq) != is_long) break;
        n_tokens = tokens > most ? most : n_tokens + tokens;
        n_seqs++;
        cut.end = seq + 1;
    }
    return cut;
}

/* Tokens of the next piece for a device. */
static size_t portion(const lt_share *s, running *r, const device *d)
{
    size_t most = d->fits < s->max_tokens ? d->fits : s->max_tokens;
    if (s->n_alive < 2 || r->alone) return most;
    uint64_t bit = (uint64_t)1 << d->number;
    if (r->portion == 0 || (r->has_portion & bit)) {
        size_t n = (size_t)s->n_alive;
        r->portion = r->tokens_left / n + (r->tokens_left % n != 0);
        if (r->portion < s->max_tokens / SMALLEST_SHARE) r->portion = s->max_tokens / SMALLEST_SHARE;
        r->has_portion = 0;
    }
    r->has_portion |= bit;
    return r->portion < most ? r->portion : most;
}

static const device *first_alive(const lt_share *s)
{
    const device *d = s->devices;
    while (d->lost) d++; /* the CPU, which is not, ends the search */
    return d;
}

/* What there is for a device to do in this run; false: nothing. Without states the CPU takes only what no device is left for. */
static bool take(lt_share *s, running *r, device *d, lt_cut *cut)
{
    const lt_whole *whole = &r->whole;
    if (r->status != LATTICE_OK || d->lost) return false;
    if (whole->homes) {
        size_t *cursor = &r->cursors[d->number];
        *cursor = next_at_home(whole, *cursor, d->number);
        if (*cursor == whole->batch->n_seqs) return false;
        *cut = cut_from(s, whole, *cursor, d->number, d->fits < s->max_tokens ? d->fits : s->max_tokens);
        *cursor = cut->end;
        return true;
    }
    bool is_cpu = d->number == s->n_devices;
    if ((is_cpu && s->n_alive > 0) || (r->alone && d != first_alive(s))) return false;
    if (r->n_returned > 0) {
        *cut = r->returned[--r->n_returned];
        return true;
    }
    size_t first = r->cursors[0];
    if (first == whole->batch->n_seqs) return false;
    *cut = r->undivided ? (lt_cut){ 0, whole->batch->n_seqs, LT_ANYWHERE }
                        : cut_from(s, whole, first, LT_ANYWHERE, portion(s, r, d));
    r->cursors[0] = cut->end;
    r->tokens_left -= whole->batch->seq_starts[cut->end] - whole->batch->seq_starts[first];
    return true;
}

/* Two cuts with about half of the tokens each; false: there is one sequence. */
static bool halve(const lt_whole *whole, const lt_cut *cut, lt_cut halves[2])
{
    size_t total = 0, n = 0, tokens = 0;
    for (size_t s = cut->first; s < cut->end; s++) {
        if (!lt_cut_has(cut, whole, s)) continue;
        total += lt_whole_tokens(whole, s);
        n++;
    }
    if (n < 2) return false;
    size_t middle = cut->first;
    for (size_t seen = 0; seen + 1 < n && (seen == 0 || 2 * tokens < total); middle++) {
        if (!lt_cut_has(cut, whole, middle)) continue;
        tokens += lt_whole_tokens(whole, middle);
        seen++;
    }
    halves[0] = (lt_cut){ cut->first, middle, cut->home };
    halves[1] = (lt_cut){ middle, cut->end, cut->home };
    return true;
}

/* ------------------------------------------------------------------ running */

static lattice_status run_piece(const device *d, const running *r, lt_piece *piece, const lt_run_hooks *hooks, lattice_error *err)
{
    LT_TRY(d->backend->run(d->program, &piece->batch, r->whole.tail, piece->out, hooks, err));
    lt_piece_deliver(piece, &r->whole);
    return LATTICE_OK;
}

/* A device that is short of memory halves at once what it takes, and comes back slowly: it may be another's use of the memory
 * that has to end. */
static void note_memory(lt_share *s, device *d, size_t n_tokens, bool fitted, const lattice_error *why)
{
    pthread_mutex_lock(&s->lock);
    if (fitted && d->fits < s->max_tokens) d->fits += d->fits / 16 + 1;
    if (!fitted && n_tokens / 2 < d->fits) d->fits = n_tokens / 2 > 0 ? n_tokens / 2 : 1;
    bool warns = !fitted && !s->warned_memory;
    s->warned_memory |= warns;
    pthread_mutex_unlock(&s->lock);
    if (warns)
        lt_log(s->runtime, LATTICE_LOG_WARNING, "a batch of %zu tokens does not fit on the GPU, which takes less at once: %s",
               n_tokens, why->message);
}

static void warn_length(lt_share *s)
{
    pthread_mutex_lock(&s->lock);
    bool warns = !s->warned_length;
    s->warned_length = true;
    pthread_mutex_unlock(&s->lock);
    if (warns)
        lt_log(s->runtime, LATTICE_LOG_WARNING, "a sequence is longer than gpu_max_seq_len %zu: it runs on the CPU",
               s->max_seq_len);
}

/* Without states, the CPU computes what the device cannot; it does so at once, on the device's thread. */
static lattice_status run_cut(lt_share *s, device *d, running *r, const lt_cut *cut, lt_piece *piece, lt_run_hooks *hooks,
                              size_t *culprit, lattice_error *err)
{
    device *cpu = &s->devices[s->n_devices];
    bool is_long = !r->whole.homes && too_long(s, &r->whole, cut->first);
    LT_TRY(lt_piece_fill(piece, &r->whole, cut, err));
    if (is_long) warn_length(s);
    if (d == cpu || is_long) {
        hooks->fail_at_op = 0;
        return run_piece(cpu, r, piece, hooks, err);
    }
    size_t n_tokens = piece->batch.n_tokens;
    lattice_status status = run_piece(d, r, piece, hooks, err);
    hooks->fail_at_op = 0;
    if (status == LATTICE_OK) note_memory(s, d, n_tokens, true, NULL);
    if (status != LATTICE_ERR_NO_MEMORY) return status;
    note_memory(s, d, n_tokens, false, err);
    lt_cut halves[2];
    if (!r->undivided && halve(&r->whole, cut, halves)) {
        for (int i = 0; i < 2; i++) LT_TRY(run_cut(s, d, r, &halves[i], piece, hooks, culprit, err));
        return LATTICE_OK;
    }
    if (!r->whole.homes) return run_piece(cpu, r, piece, hooks, err);
    *culprit = cut->first;
    while (!lt_cut_has(cut, &r->whole, *culprit)) ++*culprit;
    return LATTICE_ERR_NO_MEMORY;
}

static void lose(lt_share *s, device *d, const char *why)
{
    pthread_mutex_lock(&s->lock);
    bool was_lost = d->lost;
    if (!was_lost) s->n_alive--;
    d->lost = true;
    int n_alive = s->n_alive;
    pthread_mutex_unlock(&s->lock);
    if (was_lost) return;
    if (n_alive > 0)
        lt_log(s->runtime, LATTICE_LOG_WARNING, "GPU %d of %d failed; the others go on without it: %s", d->number + 1,
               s->n_devices, why);
    else
        lt_log(s->runtime, LATTICE_LOG_WARNING, "the GPU failed; this and all further runs are on the CPU: %s", why);
}

/* Does a piece of a run. The lock is held before and after. */
static void work(lt_share *s, device *d, running *r, const lt_cut *cut, lt_piece *piece)
{
    lt_run_hooks hooks = r->hooks;
    r->hooks.fail_at_op = 0; /* the first piece */
    r->n_active++;
    pthread_mutex_unlock(&s->lock);
    lattice_error err = { .code = LATTICE_OK };
    size_t culprit = 0;
    lattice_status status = run_cut(s, d, r, cut, piece, &hooks, &culprit, &err);
    bool is_lost = d->number < s->n_devices && status == LATTICE_ERR_DEVICE;
    if (is_lost) lose(s, d, err.message);
    pthread_mutex_lock(&s->lock);
    r->n_active--;
    if (is_lost && !r->whole.homes) {
        r->returned[r->n_returned++] = *cut;
    } else if (status != LATTICE_OK && r->status == LATTICE_OK) {
        r->status = status;
        r->err = err;
        r->culprit = culprit;
    }
    pthread_cond_broadcast(&s->wake);
}

static void *device_main(void *arg)
{
    device *d = arg;
    lt_share *s = d->share;
    lt_piece piece;
    lt_piece_init(&piece, &s->runtime->mem);
    pthread_mutex_lock(&s->lock);
    while (!s->stop && !d->lost) {
        lt_cut cut;
        running *r = s->first;
        while (r && !take(s, r, d, &cut)) r = r->next;
        if (r)
            work(s, d, r, &cut, &piece);
        else
            pthread_cond_wait(&s->wake, &s->lock);
    }
    pthread_mutex_unlock(&s->lock);
    lt_piece_free(&piece);
    return NULL;
}

/* Work that nobody is left for: the states of a device that is lost. */
static bool is_stranded(const lt_share *s, const running *r)
{
    for (int d = 0; r->whole.homes && d < s->n_devices; d++) {
        if (s->devices[d].lost && next_at_home(&r->whole, r->cursors[d], d) < r->whole.batch->n_seqs) return true;
    }
    return false;
}

static void leave(lt_share *s, running *r)
{
    running **at = &s->first;
    while (*at != r) at = &(*at)->next;
    *at = r->next;
}

/* What the calling thread does itself: the CPU's part, and that of a device without a thread. With the lock. */
static bool take_part(lt_share *s, running *r, lt_piece *piece)
{
    lt_cut cut;
    device *own[2] = { s->n_devices == 1 ? &s->devices[0] : NULL, &s->devices[s->n_devices] };
    for (int i = 0; i < 2; i++) {
        if (!own[i] || !take(s, r, own[i], &cut)) continue;
        work(s, own[i], r, &cut, piece);
        return true;
    }
    return false;
}

static bool has_rest(const lt_share *s, running *r)
{
    if (!r->whole.homes) return r->n_returned > 0 || r->cursors[0] < r->whole.batch->n_seqs;
    for (int d = 0; d <= s->n_devices; d++) {
        if (next_at_home(&r->whole, r->cursors[d], d) < r->whole.batch->n_seqs) return true;
    }
    return false;
}

lattice_status lt_share_run(lt_share *s, const lt_whole *whole, const lt_run_hooks *hooks, size_t *culprit, lattice_error *err)
{
    LT_TRY(lt_batch_check(s->plan, whole->batch, whole->tail, SIZE_MAX, SIZE_MAX, err));
    running r = { .whole = *whole,
                  .hooks = hooks ? *hooks : (lt_run_hooks){ 0 },
                  .undivided = whole->batch->trace != NULL,
                  .alone = hooks && hooks->profile,
                  .tokens_left = whole->batch->n_tokens };
    lt_piece piece;
    lt_piece_init(&piece, &s->runtime->mem);
    pthread_mutex_lock(&s->lock);
    running **last = &s->first;
    while (*last) last = &(*last)->next;
    *last = &r;
    if (s->n_devices > 1) pthread_cond_broadcast(&s->wake);
    for (;;) {
        if (take_part(s, &r, &piece)) continue;
        if (r.status == LATTICE_OK && is_stranded(s, &r))
            r.status = lt_fail(&r.err, LATTICE_ERR_DEVICE, "a GPU with states of this batch is lost");
        if (r.n_active == 0 && (r.status != LATTICE_OK || !has_rest(s, &r))) break;
        pthread_cond_wait(&s->wake, &s->lock);
    }
    leave(s, &r);
    pthread_mutex_unlock(&s->lock);
    lt_piece_free(&piece);
    if (r.status == LATTICE_OK) return LATTICE_OK;
    for (size_t i = 0; whole->homes && i < whole->batch->n_seqs; i++)
        s->devices[whole->homes[i]].backend->states->discard(whole->states[i]);
    if (culprit) *culprit = r.culprit;
    if (err) *err = r.err;
    return r.status;
}

bool lt_share_lost(lt_share *s, int number)
{
    pthread_mutex_lock(&s->lock);
    bool lost = s->devices[number].lost;
    pthread_mutex_unlock(&s->lock);
    return lost;
}

/* ------------------------------------------------------------------ life */

static lattice_status start_threads(lt_share *s, lattice_error *err)
{
    for (int i = 0; s->n_devices > 1 && i < s->n_devices; i++) {
        device *d = &s->devices[i];
        sigset_t all, old;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &old); /* signals are for the threads of the program */
        d->has_thread = pthread_create(&d->thread, NULL, device_main, d) == 0;
        pthread_sigmask(SIG_SETMASK, &old, NULL);
        if (!d->has_thread) return lt_no_memory(err, 0, "a thread");
    }
    return LATTICE_OK;
}

lattice_status lt_share_create(lattice_runtime *runtime, const lt_share_options *o, lt_share **share, lattice_error *err)
{
    *share = NULL;
    lt_share *s = lt_alloc_zero(&runtime->mem, sizeof *s);
    if (!s) return lt_no_memory(err, sizeof *s, "devices");
    s->runtime = runtime;
    s->plan = o->plan;
    s->max_tokens = o->max_tokens;
    s->max_seqs = o->max_seqs;
    s->max_seq_len = o->max_seq_len;
    s->n_devices = s->n_alive = o->n_devices;
    for (int i = 0; i <= s->n_devices; i++)
        s->devices[i] =
            (device){ .share = s, .number = i, .backend = o->backends[i], .program = o->programs[i], .fits = SIZE_MAX };
    s->has_lock = pthread_mutex_init(&s->lock, NULL) == 0;
    s->has_wake = pthread_cond_init(&s->wake, NULL) == 0;
    lattice_status status = s->has_lock && s->has_wake ? start_threads(s, err) : lt_no_memory(err, sizeof s->lock, "a lock");
    if (status != LATTICE_OK) {
        lt_share_free(s);
        return status;
    }
    *share = s;
    return LATTICE_OK;
}

void lt_share_free(lt_share *s)
{
    if (!s) return;
    if (s->has_lock && s->has_wake) {
        pthread_mutex_lock(&s->lock);
        s->stop = true;
        pthread_cond_broadcast(&s->wake);
        pthread_mutex_unlock(&s->lock);
    }
    for (int i = 0; i < s->n_devices; i++) {
        if (s->devices[i].has_thread) pthread_join(s->devices[i].thread, NULL);
    }
    if (s->has_wake) pthread_cond_destroy(&s->wake);
    if (s->has_lock) pthread_mutex_destroy(&s->lock);
    lt_free(&s->runtime->mem, s);
}
