/* A GPU with the CPU behind it: what the engine sees when a device was chosen.
 *
 * A run goes to the GPU. If that fails there, it is repeated on the CPU, and all later runs stay there; the user sees one warning
 * and a right answer. A batch with a sequence longer than the device is to take goes to the CPU alone.
 *
 * A state here is one of the GPU's or one of the CPU's, and the ids of its rows. When its sequence has to move, the CPU computes
 * the rows again from the ids: that needs nothing of a device which may be lost. It stays on the CPU from then on. */
#include "backend/fallback.h"

#include <pthread.h>
#include <stdatomic.h>

typedef struct fallback_backend {
    lt_backend base;
    lattice_runtime *runtime;
    lt_backend *gpu, *cpu;
    size_t max_seq_len; /* 0: no limit */
} fallback_backend;

/* Programs and states of the two backends are only passed on. */
struct lt_program {
    fallback_backend *backend;
    const lt_plan *plan;
    struct lt_program *gpu, *cpu;
    size_t max_tokens;
    atomic_bool failed; /* the device: all runs are on the CPU */
    atomic_bool warned_length;
    pthread_mutex_t lock;    /* of `inner`, while a batch with states is handed on */
    struct lt_state **inner; /* [max_seqs] */
};

struct lt_state {
    lt_program *program;
    struct lt_state *gpu, *cpu; /* one of them; the CPU's once it has moved */
    uint32_t *ids;              /* [length + pending] */
    size_t capacity, length, pending;
};

static const lt_state_ops *ops_of(const lt_state *s)
{
    return s->cpu ? s->program->backend->cpu->states : s->program->backend->gpu->states;
}

static struct lt_state *inner_of(const lt_state *s)
{
    return s->cpu ? s->cpu : s->gpu;
}

/* ------------------------------------------------------------------ moving to the CPU */

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

/* Rows [begin, begin + n) of the sequence on the CPU. */
static lattice_status replay(lt_state *s, struct lt_state *cpu, size_t begin, size_t n, uint32_t *positions, float *out,
                             lt_tail_kind tail, lattice_error *err)
{
    const lt_backend *backend = s->program->backend->cpu;
    size_t starts[2] = { 0, n }, row = n - 1;
    for (size_t i = 0; i < n; i++) positions[i] = (uint32_t)(begin + i);
    lt_batch batch = { .n_tokens = n,
                       .n_seqs = 1,
                       .n_out = 1,
                       .ids = s->ids + begin,
                       .positions = positions,
                       .seq_starts = starts,
                       .out_rows = &row,
                       .past_lens = &begin,
                       .states = &cpu };
    LT_TRY(backend->states->reserve(cpu, n, err));
    LT_TRY(backend->run(s->program->cpu, &batch, tail, out, NULL, err));
    backend->states->commit(cpu);
    return LATTICE_OK;
}

/* A state of the CPU with the same rows takes the place of the GPU's. */
static lattice_status move_state(lt_state *s, lattice_error *err)
{
    if (s->cpu) return LATTICE_OK;
    lt_program *p = s->program;
    const lattice_allocator *mem = &p->backend->runtime->mem;
    const lt_backend *cpu = p->backend->cpu;
    lt_tail_kind tail = smallest_tail(p->plan);
    size_t most = piece_of(p);
    struct lt_state *state = NULL;
    uint32_t *positions = lt_alloc_array(mem, most, sizeof *positions);
    float *out = tail < LT_TAIL_COUNT ? lt_alloc_array(mem, lt_tail_width(p->plan, tail, 0), sizeof *out) : NULL;
    lattice_status status = positions && out ? LATTICE_OK : lt_no_memory(err, most * sizeof *positions, "moving a state");
    if (status == LATTICE_OK) status = cpu->states->create(p->cpu, &state, err);
    for (size_t begin = 0; status == LATTICE_OK && begin < s->length; begin += most)
        status = replay(s, state, begin, s->length - begin < most ? s->length - begin : most, positions, out, tail, err);
    lt_free(mem, positions);
    lt_free(mem, out);
    if (status != LATTICE_OK) {
        cpu->states->free(state);
        return status;
    }
    p->backend->gpu->states->free(s->gpu);
    s->gpu = NULL;
    s->cpu = state;
    return LATTICE_OK;
}

static bool has_failed(lt_program *p)
{
    return atomic_load_explicit(&p->failed, memory_order_relaxed);
}

/* ------------------------------------------------------------------ states */

static lattice_status state_create(lt_program *p, lt_state **state, lattice_error *err)
{
    *state = NULL;
    fallback_backend *b = p->backend;
    lt_state *s = lt_alloc_zero(&b->runtime->mem, sizeof *s);
    if (!s) return lt_no_memory(err, sizeof *s, "a state");
    s->program = p;
    lattice_status status =
        has_failed(p) ? b->cpu->states->create(p->cpu, &s->cpu, err) : b->gpu->states->create(p->gpu, &s->gpu, err);
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
    fallback_backend *b = s->program->backend;
    b->gpu->states->free(s->gpu);
    b->cpu->states->free(s->cpu);
    lt_free(&b->runtime->mem, s->ids);
    lt_free(&b->runtime->mem, s);
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
    lattice_status status = ops_of(s)->reserve(inner_of(s), n, err);
    if (status == LATTICE_OK || s->cpu) return status;
    /* The device has no room, or is lost. */
    lt_log(s->program->backend->runtime, LATTICE_LOG_WARNING, "a conversation goes on on the CPU: %s",
           err ? err->message : "no room");
    LT_TRY(move_state(s, err));
    return s->program->backend->cpu->states->reserve(s->cpu, n, err);
}

static void state_commit(lt_state *s)
{
    ops_of(s)->commit(inner_of(s));
    s->length += s->pending;
    s->pending = 0;
}

static void state_discard(lt_state *s)
{
    ops_of(s)->discard(inner_of(s));
    s->pending = 0;
}

static lattice_status state_truncate(lt_state *s, size_t rows, lattice_error *err)
{
    LT_TRY(ops_of(s)->truncate(inner_of(s), rows, err));
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
    if (status == LATTICE_OK) status = ops_of(s)->fork(inner_of(s), s->cpu ? &c->cpu : &c->gpu, err);
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
    return p->backend->gpu->states->bytes(p->gpu, n);
}

/* ------------------------------------------------------------------ snapshots: the ids, from which any device makes the rows */

static lattice_status run(lt_program *p, const lt_batch *batch, lt_tail_kind tail, float *out, const lt_run_hooks *hooks,
                          lattice_error *err);

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

/* Appends n rows wherever the program runs. */
static lattice_status append(lt_state *s, const uint32_t *ids, size_t n, uint32_t *positions, float *out, lt_tail_kind tail,
                             lattice_error *err)
{
    size_t starts[2] = { 0, n }, row = n - 1, past = s->length;
    for (size_t i = 0; i < n; i++) positions[i] = (uint32_t)(past + i);
    lt_batch batch = { .n_tokens = n,
                       .n_seqs = 1,
                       .n_out = 1,
                       .ids = ids,
                       .positions = positions,
                       .seq_starts = starts,
                       .out_rows = &row,
                       .past_lens = &past,
                       .states = &s };
    LT_TRY(state_reserve(s, n, err));
    LT_TRY(run(s->program, &batch, tail, out, NULL, err));
    state_commit(s);
    return LATTICE_OK;
}

static lattice_status state_load(lt_program *p, const void *data, size_t size, size_t length, lt_state **state,
                                 lattice_error *err)
{
    const lattice_allocator *mem = &p->backend->runtime->mem;
    *state = NULL;
    if (size != saved_bytes(p, length))
        return lt_fail(err, LATTICE_ERR_FORMAT, "%zu bytes are not a state of %zu rows", size, length);
    LT_TRY(state_create(p, state, err));
    lt_tail_kind tail = smallest_tail(p->plan);
    size_t most = piece_of(p);
    uint32_t *ids = lt_alloc_array(mem, length > 0 ? length : 1, sizeof *ids),
             *positions = lt_alloc_array(mem, most, sizeof *positions);
    float *out = tail < LT_TAIL_COUNT ? lt_alloc_array(mem, lt_tail_width(p->plan, tail, 0), sizeof *out) : NULL;
    lattice_status status = ids && positions && out ? LATTICE_OK : lt_no_memory(err, size, "a snapshot");
    if (status == LATTICE_OK) memcpy(ids, data, size); /* the bytes may be unaligned */
    for (size_t begin = 0; status == LATTICE_OK && begin < length; begin += most)
        status = append(*state, ids + begin, length - begin < most ? length - begin : most, positions, out, tail, err);
    lt_free(mem, ids);
    lt_free(mem, positions);
    lt_free(mem, out);
    if (status == LATTICE_OK) return LATTICE_OK;
    state_free(*state);
    *state = NULL;
    return status;
}

/* Rows are those of the run that made them: a snapshot made on one device is for any, so its kind of rows is the arithmetic's. */
static const char *row_type(const lt_program *p)
{
    return p->backend->gpu->compute(p->gpu) == LATTICE_COMPUTE_BF16 ? "bf16" : "f32";
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

static bool too_long(const lt_program *p, const lt_batch *batch)
{
    size_t most = p->backend->max_seq_len;
    for (size_t s = 0; most > 0 && s < batch->n_seqs; s++) {
        size_t length = batch->seq_starts[s + 1] - batch->seq_starts[s] + (batch->past_lens ? batch->past_lens[s] : 0);
        if (length > most) return true;
    }
    return false;
}

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

static bool on_cpu(lt_program *p, const lt_batch *batch)
{
    if (has_failed(p)) return true;
    for (size_t s = 0; batch->states && s < batch->n_seqs; s++)
        if (batch->states[s]->cpu) return true;
    if (!too_long(p, batch)) return false;
    if (!atomic_exchange(&p->warned_length, true))
        lt_log(p->backend->runtime, LATTICE_LOG_WARNING, "a sequence is longer than gpu_max_seq_len %zu: it runs on the CPU",
               p->backend->max_seq_len);
    return true;
}

static lattice_status run_on_cpu(lt_program *p, const lt_batch *batch, lt_tail_kind tail, float *out, const lt_run_hooks *hooks,
                                 lattice_error *err)
{
    lt_batch moved = *batch;
    for (size_t s = 0; batch->states && s < batch->n_seqs; s++) {
        lt_state *state = batch->states[s];
        if (!state->cpu) {
            LT_TRY(move_state(state, err));
            LT_TRY(p->backend->cpu->states->reserve(state->cpu, batch->seq_starts[s + 1] - batch->seq_starts[s], err));
        }
        p->inner[s] = state->cpu;
    }
    if (batch->states) moved.states = p->inner;
    return p->backend->cpu->run(p->cpu, &moved, tail, out, hooks, err);
}

static lattice_status run_on_gpu(lt_program *p, const lt_batch *batch, lt_tail_kind tail, float *out, const lt_run_hooks *hooks,
                                 lattice_error *err)
{
    lt_batch handed = *batch;
    for (size_t s = 0; batch->states && s < batch->n_seqs; s++) p->inner[s] = batch->states[s]->gpu;
    if (batch->states) handed.states = p->inner;
    return p->backend->gpu->run(p->gpu, &handed, tail, out, hooks, err);
}

/* Errors of a device, as opposed to those of the batch. */
static bool is_device_failure(lattice_status status)
{
    return status == LATTICE_ERR_DEVICE || status == LATTICE_ERR_NO_MEMORY;
}

static lattice_status run_somewhere(lt_program *p, const lt_batch *batch, lt_tail_kind tail, float *out,
                                    const lt_run_hooks *hooks, lattice_error *err)
{
    if (on_cpu(p, batch)) return run_on_cpu(p, batch, tail, out, hooks, err);
    lattice_error why = { .code = LATTICE_OK };
    lattice_status status = run_on_gpu(p, batch, tail, out, hooks, &why);
    if (!is_device_failure(status)) {
        if (status != LATTICE_OK && err) *err = why;
        return status;
    }
    if (!atomic_exchange(&p->failed, true))
        lt_log(p->backend->runtime, LATTICE_LOG_WARNING, "the GPU failed; this and all further runs are on the CPU: %s",
               why.message);
    lt_run_hooks again = hooks ? *hooks : (lt_run_hooks){ 0 };
    again.fail_at_op = 0;
    return run_on_cpu(p, batch, tail, out, &again, err);
}

static lattice_status run(lt_program *p, const lt_batch *batch, lt_tail_kind tail, float *out, const lt_run_hooks *hooks,
                          lattice_error *err)
{
    if (!batch->states) return run_somewhere(p, batch, tail, out, hooks, err);
    pthread_mutex_lock(&p->lock);
    lattice_status status = check_states(p, batch, err);
    if (status == LATTICE_OK) status = run_somewhere(p, batch, tail, out, hooks, err);
    for (size_t s = 0; status == LATTICE_OK && s < batch->n_seqs; s++) {
        lt_state *state = batch->states[s];
        state->pending = batch->seq_starts[s + 1] - batch->seq_starts[s];
        memcpy(state->ids + state->length, batch->ids + batch->seq_starts[s], state->pending * sizeof *state->ids);
    }
    pthread_mutex_unlock(&p->lock);
    return status;
}

/* ------------------------------------------------------------------ compiling */

static bool supports(const lt_backend *backend, const lt_plan *plan, const lt_op *op, const char **reason)
{
    const lt_backend *cpu = ((const fallback_backend *)backend)->cpu;
    return cpu->supports(cpu, plan, op, reason);
}

static void program_free(lt_program *p)
{
    if (!p) return;
    fallback_backend *b = p->backend;
    if (p->gpu) b->gpu->program_free(p->gpu);
    if (p->cpu) b->cpu->program_free(p->cpu);
    lt_free(&b->runtime->mem, p->inner);
    pthread_mutex_destroy(&p->lock);
    lt_free(&b->runtime->mem, p);
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
    atomic_init(&p->failed, false);
    atomic_init(&p->warned_length, false);
    p->inner = lt_alloc_array(&b->runtime->mem, options->max_seqs, sizeof *p->inner);
    lattice_status status = p->inner ? LATTICE_OK : lt_no_memory(err, options->max_seqs * sizeof *p->inner, "states");
    if (status == LATTICE_OK) status = b->cpu->compile(b->cpu, plan, options, &p->cpu, err);
    if (status == LATTICE_OK) status = b->gpu->compile(b->gpu, plan, options, &p->gpu, err);
    if (status != LATTICE_OK) {
        program_free(p);
        return status;
    }
    *program = p;
    return LATTICE_OK;
}

static void memory(const lt_program *p, lt_memory_report *report)
{
    p->backend->gpu->memory(p->gpu, report);
}

static lattice_compute compute(const lt_program *p)
{
    return p->backend->gpu->compute(p->gpu);
}

static void backend_free(lt_backend *backend)
{
    fallback_backend *b = (fallback_backend *)backend;
    if (!b) return;
    b->gpu->free(b->gpu);
    b->cpu->free(b->cpu);
    lt_free(&b->runtime->mem, b);
}

lattice_status lt_fallback_backend_create(lattice_runtime *runtime, lt_backend *gpu, lt_backend *cpu, size_t max_seq_len,
                                          lt_backend **backend, lattice_error *err)
{
    *backend = NULL;
    fallback_backend *b = lt_alloc_zero(&runtime->mem, sizeof *b);
    if (!b) return lt_no_memory(err, sizeof *b, "a backend");
    b->base = (lt_backend){
        .name = gpu->name,
        .isa = cpu->isa,
        .supports = supports,
        .compile = compile,
        .program_free = program_free,
        .run = run,
        .memory = memory,
        .compute = compute,
        .states = &state_ops,
        .free = backend_free,
    };
    b->runtime = runtime;
    b->gpu = gpu;
    b->cpu = cpu;
    b->max_seq_len = max_seq_len;
    *backend = &b->base;
    return LATTICE_OK;
}
