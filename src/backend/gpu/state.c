/* States on a device: tables of slots.
 *
 * A block's slot holds the K and V rows of 64 positions of all layers, a memory's slot what the recurrent layers remember. Slots
 * are counted, so that forks share them; the allocation they lie in grows by doubling, its contents copied on the device. */
#include "backend/gpu/gpu.h"

/* ------------------------------------------------------------------ slots, under the program's lock */

void lt_gpu_slots_free(lt_program *p, lt_gpu_slots *slots)
{
    p->device->release(p->device, slots->memory);
    lt_free(&p->runtime->mem, slots->references);
    slots->memory = NULL;
    slots->references = NULL;
}

static lattice_status grow(lt_program *p, lt_gpu_slots *slots, lattice_error *err)
{
    size_t n = slots->n ? slots->n * 2 : 16, bytes;
    if (n >= LT_GPU_NO_SLOT / 64 || !lt_mul(n, slots->slot_bytes, &bytes)) return lt_no_memory(err, SIZE_MAX, "states");
    if (!LT_GROW(&p->runtime->mem, slots->references, slots->capacity, n)) return lt_no_memory(err, n * 4, "states");
    void *memory;
    LT_TRY(p->device->allocate(p->device, bytes, &memory, err));
    if (slots->n > 0) {
        lattice_status status = p->device->copy(p->device, (lt_gpu_ref){ memory, 0 }, (lt_gpu_ref){ slots->memory, 0 },
                                                slots->n * slots->slot_bytes, err);
        if (status != LATTICE_OK) {
            p->device->release(p->device, memory);
            return status;
        }
    }
    p->device->release(p->device, slots->memory);
    slots->memory = memory;
    for (size_t i = slots->n; i < n; i++) slots->references[i] = 0;
    slots->n = n;
    return LATTICE_OK;
}

static lattice_status take(lt_program *p, lt_gpu_slots *slots, uint32_t *slot, lattice_error *err)
{
    size_t i = 0;
    while (i < slots->n && slots->references[i] > 0) i++;
    if (i == slots->n) LT_TRY(grow(p, slots, err));
    slots->references[i] = 1;
    *slot = (uint32_t)i;
    return LATTICE_OK;
}

static void release(lt_gpu_slots *slots, uint32_t slot)
{
    if (slot != LT_GPU_NO_SLOT) slots->references[slot]--;
}

static void drop_blocks(lt_state *s, size_t n)
{
    while (s->n_blocks > n) release(&s->head.program->blocks, s->blocks[--s->n_blocks]);
}

/* ------------------------------------------------------------------ life */

static lattice_status create(lt_program *p, lt_state **state, lattice_error *err)
{
    *state = NULL;
    if (!p->admits_states)
        return lt_fail(err, LATTICE_ERR_UNSUPPORTED, "gpu: a model whose attention is not causal has no state to keep");
    lt_state *s = lt_alloc_zero(&p->runtime->mem, sizeof *s);
    if (!s) return lt_no_memory(err, sizeof *s, "a state");
    s->head.program = p;
    s->memory = s->next = LT_GPU_NO_SLOT;
    *state = s;
    return LATTICE_OK;
}

static void state_free(lt_state *s)
{
    if (!s) return;
    lt_program *p = s->head.program;
    pthread_mutex_lock(&p->lock);
    drop_blocks(s, 0);
    release(&p->memories, s->memory);
    release(&p->memories, s->next);
    pthread_mutex_unlock(&p->lock);
    lt_free(&p->runtime->mem, s->blocks);
    lt_free(&p->runtime->mem, s);
}

static lattice_status fork_state(const lt_state *s, lt_state **copy, lattice_error *err)
{
    lt_program *p = s->head.program;
    LT_TRY(create(p, copy, err));
    lt_state *c = *copy;
    size_t n = lt_gpu_ceil(s->head.length, LT_BLOCK_ROWS);
    if (!LT_GROW(&p->runtime->mem, c->blocks, c->capacity, n)) {
        state_free(c);
        *copy = NULL;
        return lt_no_memory(err, n * sizeof *c->blocks, "a state");
    }
    pthread_mutex_lock(&p->lock);
    for (size_t i = 0; i < n && p->block_numbers > 0; i++) {
        c->blocks[i] = s->blocks[i];
        p->blocks.references[c->blocks[i]]++;
        c->n_blocks++;
    }
    c->head.length = s->head.length;
    c->memory = s->memory;
    if (c->memory != LT_GPU_NO_SLOT) p->memories.references[c->memory]++;
    pthread_mutex_unlock(&p->lock);
    return LATTICE_OK;
}

/* ------------------------------------------------------------------ rows */

static lattice_status reserve_locked(lt_state *s, size_t rows, bool writes, lattice_error *err)
{
    lt_program *p = s->head.program;
    size_t n_blocks = lt_gpu_ceil(rows, LT_BLOCK_ROWS), partial = s->head.length % LT_BLOCK_ROWS, last = s->head.length / LT_BLOCK_ROWS;
    if (p->memory_floats > 0 && s->next == LT_GPU_NO_SLOT) LT_TRY(take(p, &p->memories, &s->next, err));
    if (p->block_numbers == 0) return LATTICE_OK;
    if (writes && partial > 0 && p->blocks.references[s->blocks[last]] > 1) {
        uint32_t own;
        LT_TRY(take(p, &p->blocks, &own, err));
        lt_gpu_ref memory = { p->blocks.memory, 0 };
        lattice_status status =
            p->device->copy(p->device, lt_gpu_at(memory, own * p->blocks.slot_bytes),
                            lt_gpu_at(memory, s->blocks[last] * p->blocks.slot_bytes), p->blocks.slot_bytes, err);
        if (status != LATTICE_OK) {
            release(&p->blocks, own);
            return status;
        }
        release(&p->blocks, s->blocks[last]);
        s->blocks[last] = own;
    }
    for (size_t before = s->n_blocks; s->n_blocks < n_blocks; s->n_blocks++) {
        lattice_status status = take(p, &p->blocks, &s->blocks[s->n_blocks], err);
        if (status == LATTICE_OK) continue;
        drop_blocks(s, before);
        return status;
    }
    return LATTICE_OK;
}

static lattice_status reserve(lt_state *s, size_t n, lattice_error *err)
{
    lt_program *p = s->head.program;
    size_t rows;
    if (!lt_add(s->head.length, n, &rows) || rows > UINT32_MAX / 2) return lt_no_memory(err, SIZE_MAX, "keys and values");
    if (!LT_GROW(&p->runtime->mem, s->blocks, s->capacity, lt_gpu_ceil(rows, LT_BLOCK_ROWS)))
        return lt_no_memory(err, rows / LT_BLOCK_ROWS * sizeof *s->blocks, "a state");
    pthread_mutex_lock(&p->lock);
    lattice_status status = reserve_locked(s, rows, n > 0, err);
    pthread_mutex_unlock(&p->lock);
    return status;
}

static void commit(lt_state *s)
{
    lt_program *p = s->head.program;
    if (s->head.pending > 0 && s->next != LT_GPU_NO_SLOT) {
        uint32_t before = s->memory;
        pthread_mutex_lock(&p->lock);
        s->memory = s->next;
        s->next = LT_GPU_NO_SLOT;
        if (before != LT_GPU_NO_SLOT && p->memories.references[before] > 1)
            release(&p->memories, before);
        else
            s->next = before; /* for the next run */
        pthread_mutex_unlock(&p->lock);
    }
    s->head.length += s->head.pending;
    s->head.pending = 0;
}

static lattice_status truncate_state(lt_state *s, size_t rows, lattice_error *err)
{
    LT_TRY(lt_state_check_cut(&s->head, rows, s->head.program->memory_floats > 0, err));
    pthread_mutex_lock(&s->head.program->lock);
    if (rows == 0) {
        release(&s->head.program->memories, s->memory);
        s->memory = LT_GPU_NO_SLOT;
    }
    s->head.pending = 0;
    s->head.length = rows;
    drop_blocks(s, lt_gpu_ceil(rows, LT_BLOCK_ROWS));
    pthread_mutex_unlock(&s->head.program->lock);
    return LATTICE_OK;
}

static size_t bytes(const lt_program *p, size_t n)
{
    size_t total, memory;
    if (!lt_mul(lt_gpu_ceil(n, LT_BLOCK_ROWS), p->blocks.slot_bytes, &total) || !lt_mul(p->memories.slot_bytes, 2, &memory) ||
        !lt_add(total, memory, &total))
        return SIZE_MAX;
    return total;
}

/* Snapshots are fallback.c's, which stands before this backend: it saves ids. */
const lt_state_ops lt_gpu_state_ops = {
    .create = create,
    .free = state_free,
    .length = lt_state_length,
    .reserve = reserve,
    .commit = commit,
    .discard = lt_state_discard,
    .truncate = truncate_state,
    .fork = fork_state,
    .bytes = bytes,
};

/* ------------------------------------------------------------------ compiling and running */

lattice_status lt_gpu_place_states(lt_program *p, lattice_error *err)
{
    p->state_offset = lt_alloc_zero(&p->runtime->mem, p->plan->n_ops * sizeof *p->state_offset);
    if (!p->state_offset) return lt_no_memory(err, p->plan->n_ops * sizeof *p->state_offset, "a compiled plan");
    bool is_causal = true;
    for (size_t i = 0; i < p->plan->n_body; i++) {
        const lt_op *op = &p->plan->ops[i];
        size_t numbers = 0, *total = op->code == LT_OP_ATTENTION ? &p->block_numbers : &p->memory_floats;
        bool fits = true;
        if (op->code == LT_OP_ATTENTION) {
            if (!op->causal) is_causal = false;
            fits = lt_mul(op->n_kv_heads, op->head_dim, &numbers) && lt_mul(numbers, 2 * LT_BLOCK_ROWS, &numbers);
        } else if (op->code == LT_OP_CONV || op->code == LT_OP_GATED_DELTA) {
            size_t rows = op->code == LT_OP_CONV ? p->plan->weights[op->weight[0]].cols - 1 : op->head_dim;
            fits = lt_mul(p->plan->values[op->out[0]].width, rows, &numbers);
        }
        p->state_offset[i] = *total;
        if (!fits || !lt_add(*total, numbers, total) || *total > UINT32_MAX)
            return lt_fail(err, LATTICE_ERR_UNSUPPORTED, "gpu: a state is larger than can be addressed");
    }
    p->admits_states = is_causal && (p->block_numbers > 0 || p->memory_floats > 0);
    p->blocks.slot_bytes = p->block_numbers * lt_gpu_type_size(p->kv_type);
    p->memories.slot_bytes = p->memory_floats * sizeof(float);
    return LATTICE_OK;
}

/* Room for n rows behind those that there are, none of it another state's. */
static bool has_room(const lt_state *s, size_t n)
{
    const lt_program *p = s->head.program;
    const size_t past = s->head.length;
    if (p->memory_floats > 0 && s->next == LT_GPU_NO_SLOT) return false;
    if (p->block_numbers == 0) return true;
    return s->n_blocks >= lt_gpu_ceil(past + n, LT_BLOCK_ROWS) &&
           (past % LT_BLOCK_ROWS == 0 || p->blocks.references[s->blocks[past / LT_BLOCK_ROWS]] == 1);
}

lattice_status lt_gpu_states_enter(const lt_program *p, const lt_batch *batch, lattice_error *err)
{
    return lt_states_enter(batch, p, has_room, err);
}
