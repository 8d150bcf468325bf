/* States on the CPU: tables of blocks, each counted, and the memory of recurrent operations, which is counted too.
 *
 * A block begins with a cache line for the header. Then come for every attention of the body the K rows of every head, then the
 * V rows, so that what a head reads lies side by side. Only the last block of a state can be shared and partly filled; reserve
 * copies it before rows are written there.
 *
 * A long state is read at every token, and translating its addresses takes time, too: so blocks of a program lie together in
 * sheets, allocations that the system may hold in huge pages. A sheet is released with the last block in it.
 * Small blocks, of which a sheet would be more than they need together, and memories are allocations of their own. */
#include <stdatomic.h>

#include "backend/cpu/cpu.h"

enum { LINE = 64, SHEET_BYTES = 4 * LT_HUGE_PAGE, LEAST_IN_SHEET = SHEET_BYTES / 128, MOST_IN_SHEET = SHEET_BYTES / 4 };

typedef struct lt_cpu_sheet {
    void *memory; /* as it was allocated */
    struct lt_cpu_sheet *next, *previous;
    void *spare; /* the first of its blocks that are not in use; each begins with the address of the next */
    size_t in_use;
} sheet;

typedef struct header {
    void *memory; /* as it was allocated; of a block in a sheet NULL */
    sheet *sheet;
    atomic_size_t references;
} header;

_Static_assert(sizeof(header) <= LINE && sizeof(sheet) <= LINE, "a header is a cache line");

static header *header_of(void *block)
{
    return (header *)(void *)((char *)block - LINE);
}

/* A sheet at the head of the program's list; its header is its first cache line. */
static sheet *sheet_create(lt_program *p, size_t stride, lattice_error *err)
{
    void *memory = lt_alloc(&p->runtime->mem, SHEET_BYTES + LT_HUGE_PAGE);
    if (!memory) {
        lt_no_memory(err, SHEET_BYTES + LT_HUGE_PAGE, "states' rows");
        return NULL;
    }
    char *base = lt_align_up(memory, LT_HUGE_PAGE);
    lt_wish_huge_pages(base, SHEET_BYTES);
    sheet *s = (sheet *)(void *)base;
    *s = (sheet){ .memory = memory, .next = p->sheets };
    if (s->next) s->next->previous = s;
    for (size_t n = (SHEET_BYTES - LINE) / stride; n-- > 0;) {
        void **block = (void **)(void *)(base + LINE + n * stride + LINE);
        *block = s->spare;
        s->spare = block;
    }
    return p->sheets = s;
}

static void *take_from_sheet(lt_program *p, size_t stride, lattice_error *err)
{
    pthread_mutex_lock(&p->sheets_lock);
    sheet *s = p->sheets;
    while (s && !s->spare) s = s->next;
    if (!s) s = sheet_create(p, stride, err);
    void *block = NULL;
    if (s) {
        block = s->spare;
        s->spare = *(void **)block;
        s->in_use++;
        *header_of(block) = (header){ .sheet = s, .references = 1 };
    }
    pthread_mutex_unlock(&p->sheets_lock);
    return block;
}

static void give_to_sheet(lt_program *p, void *block)
{
    sheet *s = header_of(block)->sheet;
    pthread_mutex_lock(&p->sheets_lock);
    *(void **)block = s->spare;
    s->spare = block;
    const bool empty = --s->in_use == 0;
    if (empty) {
        *(s->previous ? &s->previous->next : &p->sheets) = s->next;
        if (s->next) s->next->previous = s->previous;
    }
    pthread_mutex_unlock(&p->sheets_lock);
    if (empty) lt_free(&p->runtime->mem, s->memory);
}

/* What is no block in a sheet: a memory, or a block. */
static void *allocate(lt_program *p, size_t size, lattice_error *err)
{
    size_t bytes;
    if (!lt_add(size, 2 * LINE, &bytes)) bytes = SIZE_MAX;
    void *memory = lt_alloc(&p->runtime->mem, bytes);
    if (!memory) {
        lt_no_memory(err, bytes, "a state's rows");
        return NULL;
    }
    char *block = (char *)lt_align_up(memory, LINE) + LINE;
    lt_wish_huge_pages(block, size);
    *header_of(block) = (header){ .memory = memory, .references = 1 };
    return block;
}

/* A block of K and V rows; as all of these, with one reference. */
static void *block_create(lt_program *p, lattice_error *err)
{
    const size_t stride = p->block_bytes < SIZE_MAX / 2 ? lt_round_up(p->block_bytes, LINE) + LINE : SIZE_MAX;
    const bool in_sheet = stride >= LEAST_IN_SHEET && stride <= MOST_IN_SHEET;
    return in_sheet ? take_from_sheet(p, stride, err) : allocate(p, p->block_bytes, err);
}

static void block_release(lt_program *p, void *block)
{
    header *h = header_of(block);
    if (atomic_fetch_sub_explicit(&h->references, 1, memory_order_acq_rel) != 1) return;
    if (h->sheet)
        give_to_sheet(p, block);
    else
        lt_free(&p->runtime->mem, h->memory);
}

static bool is_shared(void *block)
{
    return atomic_load_explicit(&header_of(block)->references, memory_order_acquire) > 1;
}

/* ------------------------------------------------------------------ life */

static lattice_status create(lt_program *program, lt_state **state, lattice_error *err)
{
    *state = NULL;
    if (!program->admits_states)
        return lt_fail(err, LATTICE_ERR_UNSUPPORTED, "cpu: a model whose attention is not causal has no state to keep");
    lt_state *s = lt_alloc_zero(&program->runtime->mem, sizeof *s);
    if (!s) return lt_no_memory(err, sizeof *s, "a state");
    s->head.program = program;
    *state = s;
    return LATTICE_OK;
}

/* Releases the blocks from number n on. */
static void drop_blocks(lt_state *s, size_t n)
{
    while (s->n_blocks > n) block_release(s->head.program, s->blocks[--s->n_blocks]);
}

static void state_free(lt_state *s)
{
    if (!s) return;
    drop_blocks(s, 0);
    if (s->memory) block_release(s->head.program, s->memory);
    if (s->next) block_release(s->head.program, s->next);
    lt_free(&s->head.program->runtime->mem, s->blocks);
    lt_free(&s->head.program->runtime->mem, s);
}

static lattice_status fork_state(const lt_state *s, lt_state **copy, lattice_error *err)
{
    LT_TRY(create(s->head.program, copy, err));
    lt_state *c = *copy;
    size_t n = lt_ceil_div(s->head.length, LT_BLOCK_ROWS);
    if (!LT_GROW(&s->head.program->runtime->mem, c->blocks, c->capacity, n)) {
        state_free(c);
        *copy = NULL;
        return lt_no_memory(err, n * sizeof *c->blocks, "a state");
    }
    for (size_t i = 0; i < n; i++) {
        atomic_fetch_add_explicit(&header_of(s->blocks[i])->references, 1, memory_order_relaxed);
        c->blocks[i] = s->blocks[i];
    }
    c->n_blocks = n;
    c->head.length = s->head.length;
    c->memory = s->memory;
    if (c->memory) atomic_fetch_add_explicit(&header_of(c->memory)->references, 1, memory_order_relaxed);
    return LATTICE_OK;
}

/* ------------------------------------------------------------------ rows */

/* The first `rows` rows of every head, K and V, of every layer. Keys lie step by step, 64 of them side by side. */
static void copy_rows(const lt_program *p, unsigned char *to, const unsigned char *from, size_t rows)
{
    const size_t step = p->row_type == LT_F16 ? 2 : 4;
    for (size_t i = 0; i < p->plan->n_body; i++) {
        const lt_op *op = &p->plan->ops[i];
        if (op->code != LT_OP_ATTENTION) continue;
        const size_t keys = lt_cpu_key_bytes(p, op), values = lt_cpu_value_bytes(p, op);
        size_t at = p->block_offset[i], end = at + op->n_kv_heads * keys;
        for (; at < end; at += LT_BLOCK_ROWS * step) memcpy(to + at, from + at, rows * step);
        for (end = at + op->n_kv_heads * values; at < end; at += values)
            memcpy(to + at, from + at, values / LT_BLOCK_ROWS * rows);
    }
}

static lattice_status reserve(lt_state *s, size_t n, lattice_error *err)
{
    lt_program *p = s->head.program;
    size_t rows;
    if (!lt_add(s->head.length, n, &rows)) return lt_no_memory(err, SIZE_MAX, "keys and values");
    size_t n_blocks = lt_ceil_div(rows, LT_BLOCK_ROWS), partial = s->head.length % LT_BLOCK_ROWS,
           last = s->head.length / LT_BLOCK_ROWS;
    if (!LT_GROW(&p->runtime->mem, s->blocks, s->capacity, n_blocks))
        return lt_no_memory(err, n_blocks * sizeof *s->blocks, "a state");
    if (p->memory_floats > 0 && !s->next) {
        s->next = allocate(p, p->memory_floats * sizeof(float), err);
        if (!s->next) return LATTICE_ERR_NO_MEMORY;
    }
    if (n > 0 && partial > 0 && is_shared(s->blocks[last])) {
        unsigned char *own = block_create(p, err);
        if (!own) return LATTICE_ERR_NO_MEMORY;
        copy_rows(p, own, s->blocks[last], partial);
        block_release(p, s->blocks[last]);
        s->blocks[last] = own;
    }
    for (size_t before = s->n_blocks; s->n_blocks < n_blocks; s->n_blocks++) {
        s->blocks[s->n_blocks] = block_create(p, err);
        if (s->blocks[s->n_blocks]) continue;
        drop_blocks(s, before);
        return LATTICE_ERR_NO_MEMORY;
    }
    return LATTICE_OK;
}

static void commit(lt_state *s)
{
    if (s->head.pending > 0 && s->next) {
        float *before = s->memory;
        s->memory = s->next;
        s->next = NULL;
        if (before && is_shared(before))
            block_release(s->head.program, before);
        else
            s->next = before; /* for the next run */
    }
    s->head.length += s->head.pending;
    s->head.pending = 0;
}

static lattice_status truncate_state(lt_state *s, size_t rows, lattice_error *err)
{
    LT_TRY(lt_state_check_cut(&s->head, rows, s->head.program->memory_floats > 0, err));
    if (s->memory && rows == 0) {
        block_release(s->head.program, s->memory);
        s->memory = NULL;
    }
    s->head.pending = 0;
    s->head.length = rows;
    drop_blocks(s, lt_ceil_div(rows, LT_BLOCK_ROWS));
    return LATTICE_OK;
}

static size_t bytes(const lt_program *program, size_t n)
{
    size_t total, memory;
    if (!lt_mul(lt_ceil_div(n, LT_BLOCK_ROWS), program->block_bytes, &total) ||
        !lt_mul(program->memory_floats, 2 * sizeof(float), &memory) || !lt_add(total, memory, &total))
        return SIZE_MAX;
    return total;
}

/* ------------------------------------------------------------------ snapshots: the memory, then the blocks */

static size_t saved_bytes(const lt_program *program, size_t length)
{
    size_t blocks, memory = length > 0 ? program->memory_floats * sizeof(float) : 0, total;
    if (!lt_mul(lt_ceil_div(length, LT_BLOCK_ROWS), program->block_bytes, &blocks) || !lt_add(blocks, memory, &total))
        return SIZE_MAX;
    return total;
}

/* A partly filled block is copied, so that nothing is handed out that no row has written. */
static lattice_status save_block(const lt_state *s, size_t i, lt_state_sink *sink, void *user, lattice_error *err)
{
    const lt_program *p = s->head.program;
    if (s->head.length - i * LT_BLOCK_ROWS >= LT_BLOCK_ROWS) return sink(user, s->blocks[i], p->block_bytes, err);
    unsigned char *copy = lt_alloc_zero(&p->runtime->mem, p->block_bytes);
    if (!copy) return lt_no_memory(err, p->block_bytes, "a snapshot");
    copy_rows(p, copy, s->blocks[i], s->head.length % LT_BLOCK_ROWS);
    lattice_status status = sink(user, copy, p->block_bytes, err);
    lt_free(&p->runtime->mem, copy);
    return status;
}

static lattice_status save(const lt_state *s, lt_state_sink *sink, void *user, lattice_error *err)
{
    if (s->memory) LT_TRY(sink(user, s->memory, s->head.program->memory_floats * sizeof(float), err));
    const size_t n_blocks = s->head.program->block_bytes ? lt_ceil_div(s->head.length, LT_BLOCK_ROWS) : 0;
    for (size_t i = 0; i < n_blocks; i++) LT_TRY(save_block(s, i, sink, user, err));
    return LATTICE_OK;
}

static lattice_status load(lt_program *p, const void *data, size_t size, size_t rows, lt_state **state, lattice_error *err)
{
    const unsigned char *from = data;
    *state = NULL;
    if (size != saved_bytes(p, rows))
        return lt_fail(err, LATTICE_ERR_FORMAT, "%zu bytes are not a state of %zu rows", size, rows);
    LT_TRY(create(p, state, err));
    if (rows == 0) return LATTICE_OK;
    lt_state *s = *state;
    lattice_status status = reserve(s, rows, err);
    if (status != LATTICE_OK) {
        state_free(s);
        *state = NULL;
        return status;
    }
    if (s->next) memcpy(s->next, from, p->memory_floats * sizeof(float));
    from += p->memory_floats * sizeof(float);
    for (size_t i = 0; i < s->n_blocks; i++) memcpy(s->blocks[i], from + i * p->block_bytes, p->block_bytes);
    s->head.pending = rows;
    commit(s);
    return LATTICE_OK;
}

static const char *row_type(const lt_program *program)
{
    return program->row_type == LT_F16 ? "f16" : program->row_type == LT_BF16 ? "bf16" : "f32";
}

const lt_state_ops lt_cpu_state_ops = {
    .create = create,
    .free = state_free,
    .length = lt_state_length,
    .reserve = reserve,
    .commit = commit,
    .discard = lt_state_discard,
    .truncate = truncate_state,
    .fork = fork_state,
    .bytes = bytes,
    .saved_bytes = saved_bytes,
    .save = save,
    .load = load,
    .row_type = row_type,
};

/* ------------------------------------------------------------------ compiling and running */

lattice_status lt_cpu_place_states(lt_program *p, lattice_error *err)
{
    p->block_offset = lt_alloc_zero(&p->runtime->mem, p->plan->n_ops * sizeof *p->block_offset);
    if (!p->block_offset) return lt_no_memory(err, p->plan->n_ops * sizeof *p->block_offset, "a compiled plan");
    bool has_memory = false, is_causal = true;
    size_t zeros = 0;
    for (size_t i = 0; i < p->plan->n_body; i++) {
        const lt_op *op = &p->plan->ops[i];
        size_t floats;
        if (op->code == LT_OP_CONV || op->code == LT_OP_GATED_DELTA) {
            size_t width = p->plan->values[op->out[0]].width;
            size_t rows = op->code == LT_OP_CONV ? p->plan->weights[op->weight[0]].cols - 1 : op->head_dim;
            if (!lt_mul(width, rows, &floats) || !lt_add(lt_round_up(floats, 16), p->memory_floats, &floats))
                return lt_fail(err, LATTICE_ERR_INVALID_ARGUMENT, "cpu: a state is larger than can be addressed");
            p->block_offset[i] = p->memory_floats;
            p->memory_floats = floats;
            if (op->code == LT_OP_CONV && width > zeros) zeros = width;
            has_memory = true;
        }
        if (op->code != LT_OP_ATTENTION) continue;
        has_memory = true;
        if (!op->causal) is_causal = false;
        size_t bytes;
        if (!lt_mul(op->head_dim + 1, (size_t)2 * LT_BLOCK_ROWS * sizeof(float), &bytes) ||
            !lt_mul(bytes, op->n_kv_heads, &bytes) || !lt_add(p->block_bytes, bytes, &bytes))
            return lt_fail(err, LATTICE_ERR_INVALID_ARGUMENT, "cpu: keys and values are larger than can be addressed");
        p->block_offset[i] = p->block_bytes;
        p->block_bytes += op->n_kv_heads * (lt_cpu_key_bytes(p, op) + lt_cpu_value_bytes(p, op));
    }
    p->admits_states = has_memory && is_causal;
    if (zeros > 0) {
        p->zeros = lt_alloc_zero(&p->runtime->mem, zeros * sizeof *p->zeros);
        if (!p->zeros) return lt_no_memory(err, zeros * sizeof *p->zeros, "a compiled plan");
    }
    return LATTICE_OK;
}

/* Room for n rows behind those that there are, none of it another state's. */
static bool has_room(const lt_state *s, size_t n)
{
    const lt_program *p = s->head.program;
    const size_t past = s->head.length;
    return (p->memory_floats == 0 || s->next) && s->n_blocks >= lt_ceil_div(past + n, LT_BLOCK_ROWS) &&
           (past % LT_BLOCK_ROWS == 0 || !is_shared(s->blocks[past / LT_BLOCK_ROWS]));
}

lattice_status lt_cpu_states_enter(const lt_program *p, const lt_batch *batch, lattice_error *err)
{
    return lt_states_enter(batch, p, has_room, err);
}
