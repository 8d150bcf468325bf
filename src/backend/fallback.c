/* GPUs with the CPU behind them: what the engine sees when devices were chosen.
 *
 * share.c runs the batches. A failure is made good there or here; the user sees one warning and a right answer.
 *
 * A state here is one of a GPU's or one of the CPU's, and the ids of its rows. It lives where the fewest do when it is made. When
 * its sequence has to move - its device is lost or has no room, or it is longer than devices are to take - the rows are computed
 * again from the ids: that needs nothing of a device which may be lost. */
#include "backend/fallback.h"

#include <pthread.h>
#include <stdatomic.h>

#include "backend/share.h"

typedef struct fallback_backend {
    lt_backend base;
    lattice_runtime *runtime;
    lt_backend *backends[LT_MAX_DEVICES + 1]; /* the GPUs', then the CPU's */
    size_t n_gpus;
    size_t max_seq_len; /* 0: no limit */
} fallback_backend;

/* Programs and states of the backends are only passed on. */
struct lt_program {
    fallback_backend *backend;
    const lt_plan *plan;
    lt_backend *backends[LT_MAX_DEVICES + 1]; /* of the GPUs that took the model, then of the CPU */
    struct lt_program *programs[LT_MAX_DEVICES + 1];
    int n_gpus;
    lt_share *share;
    size_t max_tokens, max_seqs;
    atomic_size_t n_states[LT_MAX_DEVICES + 1]; /* that live on each */
    atomic_bool warned_length;
    pthread_mutex_t lock;    /* of `inner` and `homes`, while a batch with states is run */
    struct lt_state **inner; /* [max_seqs] */
    int *homes;              /* [max_seqs] */
};

struct lt_state {
    lt_program *program;
    struct lt_state *inner; /* of the device `home` */
    int home;
    uint32_t *ids; /* [length + pending] */
    size_t capacity, length, pending;
};

static const lt_state_ops *ops_at(const lt_program *p, int home)
{
    return p->backends[home]->states;
}

static const lt_state_ops *ops_of(const lt_state *s)
{
    return ops_at(s->program, s->home);
}

/* The GPU on which the fewest states live; the CPU when there is none left. `except`: not on this one. */
static int choose_home(lt_program *p, int except)
{
    int best = p->n_gpus;
    for (int d = 0; d < p->n_gpus; d++) {
        if (d == except || lt_share_lost(p->share, d)) continue;
        if (best == p->n_gpus || atomic_load(&p->n_states[d]) < atomic_load(&p->n_states[best])) best = d;
    }
    return best;
}

static lattice_status create_at(lt_program *p, int home, struct lt_state **inner, lattice_error *err)
{
    LT_TRY(ops_at(p, home)->create(p->programs[home], inner, err));
    atomic_fetch_add(&p->n_states[home], 1);
    return LATTICE_OK;
}

static void free_at(lt_program *p, int home, struct lt_state *inner)
{
    if (!inner) return;
    ops_at(p, home)->free(inner);
    atomic_fetch_sub(&p->n_states[home], 1);
}

/* ------------------------------------------------------------------ moving */

/* The tail with the fewest numbers a row: what a run that is about its state alone gives is thrown away. */
static lt_tail_kind smallest_tail(const lt_plan *plan)
{
    lt_tail_kind best = LT_TAIL_COUNT;
    size_t width = SIZE_MAX;
    for (int kind = LT_TAIL_POOLED; kind < LT_TAIL_COUNT; kind++) {
        if (plan->tails[kind].present && lt_tail_width(plan, (lt_tail_kind)kind, 0) < width) {
            best = (lt_tail_kind)kind;
            width = lt_tail_width(plan, best, 0);
        }
    }
    return best;
}

/* Rows of one run that makes up a state again: whole blocks. */
static size_t piece_of(const lt_program *p)
{
    size_t most = p->max_tokens < 4096 ? p->max_tokens : 4096;
    return most >= LT_BLOCK_ROWS ? most / LT_BLOCK_ROWS * LT_BLOCK_ROWS : most;
}

/* Appends rows [begin, begin + n) of the ids to a state that lives on `home`. */
static lattice_status append_at(lt_program *p, int home, struct lt_state *inner, const uint32_t *ids, size_t begin, size_t n,
                                uint32_t *positions, float *out, lt_tail_kind tail, lattice_error *err)
{
    size_t starts[2] = { 0, n }, row = n - 1;
    for (size_t i = 0; i < n; i++) positions[i] = (uint32_t)(begin + i);
    lt_batch batch = { .n_tokens = n,
                       .n_seqs = 1,
                       .n_out = 1,
                       .ids = ids + begin,
                       .positions = positions,
                       .seq_starts = starts,
                       .out_rows = &row,
                       .past_lens = &begin,
                       .states = &inner };
    lt_whole whole = { .plan = p->plan, .batch = &batch, .tail = tail, .out = out, .states = &inner, .homes = &home };
    LT_TRY(ops_at(p, home)->reserve(inner, n, err));
    LT_TRY(lt_share_run(p->share, &whole, NULL, NULL, err));
    ops_at(p, home)->commit(inner);
    return LATTICE_OK;
}

/* A state on `home` whose rows are those of the ids. */
static lattice_status make_at(lt_program *p, int home, const uint32_t *ids, size_t length, struct lt_state **inner,
                              lattice_error *err)
{
    const lattice_allocator *mem = &p->backend->runtime->mem;
    lt_tail_kind tail = smallest_tail(p->plan);
    size_t most = piece_of(p);
    *inner = NULL;
    uint32_t *positions = lt_alloc_array(mem, most, sizeof *positions);
    float *out = tail < LT_TAIL_COUNT ? lt_alloc_array(mem, lt_tail_width(p->plan, tail, 0), sizeof *out) : NULL;
    lattice_status status = positions && out ? LATTICE_OK : lt_no_memory(err, most * sizeof *positions, "making up a state");
    if (status == LATTICE_OK) status = create_at(p, home, inner, err);
    for (size_t begin = 0; status == LATTICE_OK && begin < length; begin += most) {
        size_t n = length - begin < most ? length - begin : most;
        status = append_at(p, home, *inner, ids, begin, n, positions, out, tail, err);
    }
    lt_free(mem, positions);
    lt_free(mem, out);
    if (status == LATTICE_OK) return LATTICE_OK;
    free_at(p, home, *inner);
    *inner = NULL;
    return status;
}

/* A state on `home` with the same rows takes the place of the one that there is. */
static lattice_status move_state(lt_state *s, int home, lattice_error *err)
{
    struct lt_state *inner;
    if (s->home == home) return LATTICE_OK;
    LT_TRY(make_at(s->program, home, s->ids, s->length, &inner, err));
    free_at(s->program, s->home, s->inner);
    s->inner = inner;
    s->home = home;
    return LATTICE_OK;
}

/* Away from where it lives: to another GPU, or to the CPU. */
static lattice_status move_away(lt_state *s, lattice_error *err)
{
    int home = choose_home(s->program, s->home);
    if (home < s->program->n_gpus && move_state(s, home, NULL) == LATTICE_OK) return LATTICE_OK;
    return move_state(s, s->program->n_gpus, err);
}

/* ------------------------------------------------------------------ states */

static lattice_status state_create(lt_program *p, lt_state **state, lattice_error *err)
{
    *state = NULL;
    fallback_backend *b = p->backend;
    lt_state *s = lt_alloc_zero(&b->runtime->mem, sizeof *s);
    if (!s) return lt_no_memory(err, sizeof *s, "a state");
    s->program = p;
    s->home = choose_home(p, LT_ANYWHERE);
    lattice_status status = create_at(p, s->home, &s->inner, err);
    if (status != LATTICE_OK) {
        lt_free(&b->runtime->mem, s);
        return status;
    }
    *state = s;
    return LATTICE_OK;
}

static void state_free(lt_state *s)
{
    if (!s) return;
    const lattice_allocator *mem = &s->program->backend->runtime->mem;
    free_at(s->program, s->home, s->inner);
    lt_free(mem, s->ids);
    lt_free(mem, s);
}

static size_t state_length(const lt_state *s)
{
    return s->length;
}

static lattice_status state_reserve(lt_state *s, size_t n, lattice_error *err)
{
    size_t rows;
    if (!lt_add(s->length, n, &rows) || !LT_GROW(&s->program->backend->runtime->mem, s->ids, s->capacity, rows))
        return lt_no_memory(err, n * sizeof *s->ids, "a state");
    lattice_status status = ops_of(s)->reserve(s->inner, n, err);
    if (status == LATTICE_OK || s->home == s->program->n_gpus) return status;
    /* The device has no room, or is lost. */
    lt_log(s->program->backend->runtime, LATTICE_LOG_WARNING, "a conversation leaves its GPU: %s",
           err ? err->message : "no room");
    LT_TRY(move_away(s, err));
    if (s->home < s->program->n_gpus && ops_of(s)->reserve(s->inner, n, NULL) == LATTICE_OK) return LATTICE_OK;
    LT_TRY(move_state(s, s->program->n_gpus, err));
    return ops_of(s)->reserve(s->inner, n, err);
}

static void state_commit(lt_state *s)
{
    ops_of(s)->commit(s->inner);
    s->length += s->pending;
    s->pending = 0;
}

static void state_discard(lt_state *s)
{
    ops_of(s)->discard(s->inner);
    s->pending = 0;
}

static lattice_status state_truncate(lt_state *s, size_t rows, lattice_error *err)
{
    LT_TRY(ops_of(s)->truncate(s->inner, rows, err));
    s->length = rows;
    s->pending = 0;
    return LATTICE_OK;
}

static lattice_status state_fork(const lt_state *s, lt_state **copy, lattice_error *err)
{
    const lattice_allocator *mem = &s->program->backend->runtime->mem;
    *copy = NULL;
    lt_state *c = lt_alloc_zero(mem, sizeof *c);
    if (!c) return lt_no_memory(err, sizeof *c, "a state");
    c->program = s->program;
    lattice_status status = LATTICE_OK;
    if (!LT_GROW(mem, c->ids, c->capacity, s->length)) status = lt_no_memory(err, s->length * sizeof *c->ids, "a state");
    c->home = s->home;
    if (status == LATTICE_OK) status = ops_of(s)->fork(s->inner, &c->inner, err);
    if (status == LATTICE_OK) atomic_fetch_add(&c->program->n_states[c->home], 1);
    if (status != LATTICE_OK) {
        state_free(c);
        return status;
    }
    if (s->length > 0) memcpy(c->ids, s->ids, s->length * sizeof *c->ids);
    c->length = s->length;
    *copy = c;
    return LATTICE_OK;
}

static size_t state_bytes(const lt_program *p, size_t n)
{
    return p->backends[0]->states->bytes(p->programs[0], n);
}

/* ------------------------------------------------------------------ snapshots: the ids, from which any device makes the rows */

static size_t saved_bytes(const lt_program *p, size_t length)
{
    (void)p;
    size_t bytes;
    return lt_mul(length, sizeof(uint32_t), &bytes) ? bytes : SIZE_MAX;
}

static lattice_status state_save(const lt_state *s, lt_state_sink *sink, void *user, lattice_error *err)
{
    return s->length > 0 ? sink(user, s->ids, s->length * sizeof *s->ids, err) : LATTICE_OK;
}

static lattice_status state_load(lt_program *p, const void *data, size_t size, size_t length, lt_state **state,
                                 lattice_error *err)
{
    *state = NULL;
    if (size != saved_bytes(p, length))
        return lt_fail(err, LATTICE_ERR_FORMAT, "%zu bytes are not a state of %zu rows", size, length);
    lt_state *s;
    LT_TRY(state_create(p, &s, err));
    lattice_status status = LATTICE_OK;
    if (!LT_GROW(&p->backend->runtime->mem, s->ids, s->capacity, length)) status = lt_no_memory(err, size, "a snapshot");
    if (status == LATTICE_OK && length > 0) {
        memcpy(s->ids, data, size); /* the bytes may be unaligned */
        s->length = length;
        free_at(p, s->home, s->inner);
        status = make_at(p, s->home, s->ids, length, &s->inner, err);
        if (status != LATTICE_OK && s->home < p->n_gpus) status = move_away(s, err);
    }
    if (status != LATTICE_OK) {
        state_free(s);
        return status;
    }
    *state = s;
    return LATTICE_OK;
}

/* Rows are those of the run that made them: a snapshot made on one device is for any, so its kind of rows is the arithmetic's. */
static const char *row_type(const lt_program *p)
{
    return p->backends[0]->compute(p->programs[0]) == LATTICE_COMPUTE_BF16 ? "bf16" : "f32";
}

static const lt_state_ops state_ops = {
    .create = state_create,
    .free = state_free,
    .length = state_length,
    .reserve = state_reserve,
    .commit = state_commit,
    .discard = state_discard,
    .truncate = state_truncate,
    .fork = state_fork,
    .bytes = state_bytes,
    .saved_bytes = saved_bytes,
    .save = state_save,
    .load = state_load,
    .row_type = row_type,
};

/* ------------------------------------------------------------------ running */

static lattice_status check_states(const lt_program *p, const lt_batch *batch, lattice_error *err)
{
    for (size_t s = 0; batch->states && s < batch->n_seqs; s++) {
        const lt_state *state = batch->states[s];
        if (!state || state->program != p)
            return lt_fail(err, LATTICE_ERR_INVALID_ARGUMENT, "sequence %zu has no state, or one of another model", s);
        if (state->pending)
            return lt_fail(err, LATTICE_ERR_INVALID_ARGUMENT, "sequence %zu: the last run was neither committed nor discarded",
                           s);
        size_t rows = state->length + batch->seq_starts[s + 1] - batch->seq_starts[s];
        if (state->length != batch->past_lens[s] || state->capacity < rows)
            return lt_fail(err, LATTICE_ERR_INVALID_ARGUMENT, "sequence %zu: no room was reserved for its rows", s);
    }
    return LATTICE_OK;
}

/* The state leaves a device that is lost, or that its sequence is too long for; there is room for the rows of this run where it
 * goes. */
static lattice_status settle(lt_state *state, size_t n, lattice_error *err)
{
    lt_program *p = state->program;
    size_t most = p->backend->max_seq_len;
    bool is_long = most > 0 && state->length + n > most && state->home < p->n_gpus;
    if (!is_long && !lt_share_lost(p->share, state->home)) return LATTICE_OK;
    if (is_long && !atomic_exchange(&p->warned_length, true))
        lt_log(p->backend->runtime, LATTICE_LOG_WARNING, "a sequence is longer than gpu_max_seq_len %zu: it runs on the CPU",
               most);
    LT_TRY(is_long ? move_state(state, p->n_gpus, err) : move_away(state, err));
    return ops_of(state)->reserve(state->inner, n, err);
}

/* As often as a device is lost or has no room. */
static lattice_status run_states(lt_program *p, const lt_batch *batch, lt_tail_kind tail, float *out, const lt_run_hooks *given,
                                 lattice_error *err)
{
    lt_run_hooks hooks = given ? *given : (lt_run_hooks){ 0 };
    lt_batch one = *batch;
    if (p->n_gpus > 1) one.tops = NULL; /* rows would lie on several */
    lt_whole whole = { .plan = p->plan, .batch = &one, .tail = tail, .out = out, .states = p->inner, .homes = p->homes };
    for (;; hooks.fail_at_op = 0) {
        size_t culprit = 0;
        bool any_lost = false;
        for (size_t s = 0; s < batch->n_seqs; s++) {
            LT_TRY(settle(batch->states[s], batch->seq_starts[s + 1] - batch->seq_starts[s], err));
            p->inner[s] = batch->states[s]->inner;
            p->homes[s] = batch->states[s]->home;
        }
        lattice_error why = { .code = LATTICE_OK };
        lattice_status status = lt_share_run(p->share, &whole, &hooks, &culprit, &why);
        lt_state *state = batch->states[culprit];
        for (size_t s = 0; s < batch->n_seqs; s++) any_lost |= lt_share_lost(p->share, p->homes[s]);
        if (status == LATTICE_OK) return status;
        if (status == LATTICE_ERR_NO_MEMORY && state->home < p->n_gpus) {
            lt_log(p->backend->runtime, LATTICE_LOG_WARNING, "a conversation goes on on the CPU: %s", why.message);
            LT_TRY(move_state(state, p->n_gpus, err));
            LT_TRY(ops_of(state)->reserve(state->inner, batch->seq_starts[culprit + 1] - batch->seq_starts[culprit], err));
        } else if (!(status == LATTICE_ERR_DEVICE && any_lost)) {
            if (err) *err = why;
            return status;
        }
    }
}

static lattice_status run(lt_program *p, const lt_batch *batch, lt_tail_kind tail, float *out, const lt_run_hooks *hooks,
                          lattice_error *err)
{
    if (!batch->states) {
        lt_whole whole = { .plan = p->plan, .batch = batch, .tail = tail, .out = out };
        return lt_share_run(p->share, &whole, hooks, NULL, err);
    }
    LT_TRY(lt_batch_check(p->plan, batch, tail, SIZE_MAX, p->max_seqs, err));
    pthread_mutex_lock(&p->lock);
    lattice_status status = check_states(p, batch, err);
    if (status == LATTICE_OK) status = run_states(p, batch, tail, out, hooks, err);
    for (size_t s = 0; status == LATTICE_OK && s < batch->n_seqs; s++) {
        lt_state *state = batch->states[s];
        state->pending = batch->seq_starts[s + 1] - batch->seq_starts[s];
        memcpy(state->ids + state->length, batch->ids + batch->seq_starts[s], state->pending * sizeof *state->ids);
    }
    pthread_mutex_unlock(&p->lock);
    return status;
}

static lattice_status fetch(lt_program *p, size_t row, float *out, lattice_error *err)
{
    return p->backends[0]->fetch(p->programs[0], row, out, err);
}

/* ------------------------------------------------------------------ compiling */

static bool supports(const lt_backend *backend, const lt_plan *plan, const lt_op *op, const char **reason)
{
    const fallback_backend *b = (const fallback_backend *)backend;
    const lt_backend *cpu = b->backends[b->n_gpus];
    return cpu->supports(cpu, plan, op, reason);
}

static void program_free(lt_program *p)
{
    if (!p) return;
    const lattice_allocator *mem = &p->backend->runtime->mem;
    lt_share_free(p->share);
    for (int d = 0; d <= p->n_gpus; d++) {
        if (p->programs[d]) p->backends[d]->program_free(p->programs[d]);
    }
    lt_free(mem, p->inner);
    lt_free(mem, p->homes);
    pthread_mutex_destroy(&p->lock);
    lt_free(mem, p);
}

/* The GPUs that take the model, each with its copy of the weights; one that does not is left out with a warning while there are
 * others. */
static lattice_status compile_gpus(lt_program *p, const lt_compile_options *options, lattice_error *err)
{
    fallback_backend *b = p->backend;
    lattice_error why = { .code = LATTICE_OK };
    for (size_t i = 0; i < b->n_gpus; i++) {
        lt_backend *gpu = b->backends[i];
        if (gpu->compile(gpu, p->plan, options, &p->programs[p->n_gpus], &why) == LATTICE_OK) {
            p->backends[p->n_gpus++] = gpu;
            continue;
        }
        if (b->n_gpus > 1)
            lt_log(b->runtime, LATTICE_LOG_WARNING, "GPU %zu of %zu is not used: %s", i + 1, b->n_gpus, why.message);
    }
    b->base.n_devices = (size_t)p->n_gpus;
    if (p->n_gpus > 0) return LATTICE_OK;
    if (err) *err = why;
    return why.code;
}

static lattice_status compile_all(lt_program *p, const lt_compile_options *options, lattice_error *err)
{
    fallback_backend *b = p->backend;
    const lattice_allocator *mem = &b->runtime->mem;
    lt_backend *cpu = b->backends[b->n_gpus];
    p->inner = lt_alloc_array(mem, options->max_seqs, sizeof *p->inner);
    p->homes = lt_alloc_array(mem, options->max_seqs, sizeof *p->homes);
    if (!p->inner || !p->homes) return lt_no_memory(err, options->max_seqs * sizeof *p->inner, "states");
    LT_TRY(compile_gpus(p, options, err));
    p->backends[p->n_gpus] = cpu;
    LT_TRY(cpu->compile(cpu, p->plan, options, &p->programs[p->n_gpus], err));
    lt_share_options share = { .backends = p->backends,
                               .programs = p->programs,
                               .n_devices = p->n_gpus,
                               .max_tokens = options->max_tokens,
                               .max_seqs = options->max_seqs,
                               .max_seq_len = b->max_seq_len,
                               .plan = p->plan };
    return lt_share_create(b->runtime, &share, &p->share, err);
}

static lattice_status compile(lt_backend *backend, const lt_plan *plan, const lt_compile_options *options, lt_program **program,
                              lattice_error *err)
{
    fallback_backend *b = (fallback_backend *)backend;
    *program = NULL;
    lt_program *p = lt_alloc_zero(&b->runtime->mem, sizeof *p);
    if (!p) return lt_no_memory(err, sizeof *p, "a compiled plan");
    if (pthread_mutex_init(&p->lock, NULL) != 0) {
        lt_free(&b->runtime->mem, p);
        return lt_no_memory(err, sizeof p->lock, "a lock");
    }
    p->backend = b;
    p->plan = plan;
    p->max_tokens = options->max_tokens;
    p->max_seqs = options->max_seqs;
    atomic_init(&p->warned_length, false);
    lattice_status status = compile_all(p, options, err);
    if (status != LATTICE_OK) {
        program_free(p);
        return status;
    }
    *program = p;
    return LATTICE_OK;
}

static void memory(const lt_program *p, lt_memory_report *report)
{
    p->backends[0]->memory(p->programs[0], report);
    for (int d = 1; d < p->n_gpus; d++) {
        lt_memory_report other;
        p->backends[d]->memory(p->programs[d], &other);
        report->packed_bytes += other.packed_bytes;
        report->workspace_bytes += other.workspace_bytes;
        report->touched_bytes += other.touched_bytes;
    }
}

static lattice_compute compute(const lt_program *p)
{
    return p->backends[0]->compute(p->programs[0]);
}

static void backend_free(lt_backend *backend)
{
    fallback_backend *b = (fallback_backend *)backend;
    if (!b) return;
    for (size_t i = 0; i <= b->n_gpus; i++) b->backends[i]->free(b->backends[i]);
    lt_free(&b->runtime->mem, b);
}

lattice_status lt_fallback_backend_create(lattice_runtime *runtime, lt_backend *const *gpus, size_t n_gpus, lt_backend *cpu,
                                          size_t max_seq_len, lt_backend **backend, lattice_error *err)
{
    *backend = NULL;
    fallback_backend *b = lt_alloc_zero(&runtime->mem, sizeof *b);
    if (!b) return lt_no_memory(err, sizeof *b, "a backend");
    b->base = (lt_backend){
        .name = gpus[0]->name,
        .isa = cpu->isa,
        .n_devices = n_gpus,
        .supports = supports,
        .compile = compile,
        .program_free = program_free,
        .run = run,
        .fetch = fetch,
        .memory = memory,
        .compute = compute,
        .states = &state_ops,
        .free = backend_free,
    };
    b->runtime = runtime;
    for (size_t i = 0; i < n_gpus; i++) b->backends[i] = gpus[i];
    b->backends[n_gpus] = cpu;
    b->n_gpus = n_gpus;
    b->max_seq_len = max_seq_len;
    *backend = &b->base;
    return LATTICE_OK;
}
