/* The CPU backend: compiles a plan into groups of operations, places their values, and reserves all memory for the largest batch
 * (INV-8), so that a run allocates nothing. cpu.h describes the result, execute.c runs it. */
#include "backend/cpu/cpu.h"

#include <stdio.h>

typedef struct lt_cpu_backend {
    lt_backend base;
    lattice_runtime *runtime;
    const lt_kernels *kernels; /* float32 */
    lattice_compute compute;   /* as asked for */
} lt_cpu_backend;

/* Up to so many rows a thread, threads split columns. Measured on MiniLM (AVX-512, CPU time of the same work cut both ways): at 8
 * rows a thread columns take 0.65 of the time of rows, since each thread reads only its part of every matrix; at 16, 0.7; at 24,
 * 0.85; at 32, 0.9; from 48 on there is no difference, and rows need a seventh of the barriers. */
#define COLUMN_ROWS_PER_THREAD 40
/* Groups that pack their matrices when touched: a panel's packing is shared by all rows of a tile, or by all rows when split by
 * columns. */
#define TOUCHED_TILES 4
#define TOUCHED_COLUMN_ROWS 512
/* So are groups whose matrices of bytes come from memory every time, being larger than the near caches. */
#define STREAMED_BYTES ((size_t)8 << 20)

/* Pieces of whole sequences have up to so many rows, and about as many, or half, where the last cache keeps most of the matrices,
 * which every piece reads, and gives them fast enough: not for the tiles of AMX, which multiply 64 rows of bfloat16 faster than a
 * panel comes from it. Others come from memory, each thread at its own time: so many threads may do that. */
#define PIECE_ROWS 128
#define CACHED_BYTES ((size_t)64 << 20)
#define PIECE_THREADS 16

/* Those with fast products of bfloat16 on this architecture, for messages. */
#if defined(__aarch64__)
#define BF16_SETS "neonbf16"
#elif defined(__x86_64__)
#define BF16_SETS "avx512amx or avx512bf16"
#else
#define BF16_SETS "scalar"
#endif

static bool supports(const lt_backend *backend, const lt_plan *plan, const lt_op *op, const char **reason)
{
    (void)backend;
    for (int i = 0; i < 4; i++) {
        if (op->weight[i] == LT_NONE) continue;
        lt_dtype dtype = plan->weights[op->weight[i]].dtype;
        const bool is_matrix = (op->code == LT_OP_LINEAR && i == 0) || op->code == LT_OP_EMBED;
        const bool is_coded = dtype == LT_Q8_0 || dtype == LT_INT8_ROWS;
        if (dtype != LT_F32 && dtype != LT_F16 && dtype != LT_BF16 && !(is_coded && is_matrix)) {
            *reason = "weights must be F32, F16, BF16 or, of matrices, Q8_0 or INT8_ROWS";
            return false;
        }
    }
    if (op->code >= LT_OP_COUNT) {
        *reason = "unknown operation";
        return false;
    }
    return true;
}

/* ------------------------------------------------------------------ groups */

static lt_rows rows_of(const lt_plan *plan, const lt_op *op)
{
    return plan->values[op->out[0] != LT_NONE ? op->out[0] : op->out[1]].rows;
}

/* Appends the groups of ops [begin, end). A selection reads rows of another class, so it begins a group by itself. */
static lt_cpu_range group_ops(lt_program *p, size_t begin, size_t end)
{
    lt_cpu_range range = { p->n_groups, 0 };
    lt_cpu_group *group = NULL;
    for (size_t i = begin; i < end; i++) {
        const lt_op *op = &p->plan->ops[i];
        lt_domain domain = lt_op_domain(op->code);
        lt_rows rows = rows_of(p->plan, op);
        if (!group || domain == LT_DOMAIN_SEQ || group->domain == LT_DOMAIN_SEQ || rows != group->rows) {
            group = &p->groups[p->n_groups++];
            *group = (lt_cpu_group){ .domain = domain, .rows = rows, .first_op = i };
            range.n++;
        }
        group->n_ops++;
        if (op->code != LT_OP_LINEAR) continue;
        const lt_cpu_weight *w = &p->weights.list[op->weight[0]];
        if (!w->is_bytes && (!w->panels || w->by_pairs)) group->touched = true;
        if (w->is_bytes) group->byte_sizes += w->source->rows * w->source->cols;
    }
    return range;
}

static void size_groups(lt_program *p)
{
    size_t tile = p->kernels->tile_rows, columns = (size_t)p->n_threads * COLUMN_ROWS_PER_THREAD;
    for (size_t i = 0; i < p->n_groups; i++) {
        lt_cpu_group *group = &p->groups[i];
        const bool streamed = group->touched || group->byte_sizes > STREAMED_BYTES;
        group->tile_rows = streamed ? tile * TOUCHED_TILES : tile;
        group->column_rows = p->n_threads == 1 ? 0 : columns;
        if (streamed && group->column_rows < TOUCHED_COLUMN_ROWS) group->column_rows = TOUCHED_COLUMN_ROWS;
    }
}

/* Whether batches may be cut into pieces, and which. */
static void size_pieces(lt_program *p)
{
    size_t bytes = p->weights.packed_bytes;
    for (size_t i = p->body.first; i < p->body.first + p->body.n; i++) {
        const lt_cpu_group *group = &p->groups[i];
        if (group->rows != LT_ROWS_TOKENS || group->touched) return;
        if (group->domain == LT_DOMAIN_SEQ && p->plan->ops[group->first_op].code != LT_OP_ATTENTION) return;
        bytes += group->byte_sizes;
    }
    if (bytes > CACHED_BYTES && p->n_threads > PIECE_THREADS) return;
    p->piece_limit = PIECE_ROWS;
    p->piece_rows = bytes <= CACHED_BYTES && p->kernels->tile_rows <= PIECE_ROWS ? PIECE_ROWS / 2 : PIECE_ROWS;
}

/* ------------------------------------------------------------------ places */

/* A value's life: from the op that first writes it to the last that reads it. */
typedef struct life {
    bool is_local;  /* all inside of one group */
    bool is_result; /* of a tail alone: it lies in the caller's array */
    size_t group;   /* of the first op */
    size_t begin, end;
} life;

typedef struct placing {
    lt_program *program;
    life *lives;      /* [n_values] */
    size_t *group_of; /* [n_ops] */
} placing;

static void find_lives(placing *g)
{
    const lt_plan *plan = g->program->plan;
    for (size_t i = 0; i < g->program->n_groups; i++) {
        const lt_cpu_group *group = &g->program->groups[i];
        for (size_t op = group->first_op; op < group->first_op + group->n_ops; op++) g->group_of[op] = i;
    }
    for (size_t i = 0; i < plan->n_ops; i++) {
        const lt_op *op = &plan->ops[i];
        for (int k = 0; k < 2; k++) {
            if (op->out[k] == LT_NONE || op->out[k] == op->in[0].value) continue; /* in place: it lives already */
            g->lives[op->out[k]] = (life){ .is_local = true, .group = g->group_of[i], .begin = i, .end = i };
        }
        for (int k = 0; k < 4; k++) {
            if (op->in[k].value == LT_NONE) continue;
            life *l = &g->lives[op->in[k].value];
            if (l->group != g->group_of[i]) l->is_local = false;
            l->end = i;
        }
    }
    /* Results outlive their group; the hidden states live until the last op of any tail. */
    for (int kind = 0; kind < LT_TAIL_COUNT; kind++) {
        if (!plan->tails[kind].present) continue;
        life *l = &g->lives[plan->tails[kind].result];
        l->is_local = false;
        l->is_result = plan->tails[kind].result != plan->hidden;
    }
    life *hidden = &g->lives[plan->hidden];
    hidden->is_local = false;
    hidden->end = plan->n_ops - 1;
}

static bool shares_space(const placing *g, size_t a, size_t b)
{
    const life *x = &g->lives[a], *y = &g->lives[b];
    if (x->is_result || y->is_result) return false;
    if (x->is_local != y->is_local || (x->is_local && x->group != y->group)) return false;
    return g->program->plan->values[a].rows == g->program->plan->values[b].rows;
}

/* Must two values of one space lie apart? Not when one is dead before the other's first op in the same group, if they are in one
 * and the same place or local; nor when it is dead before the other's group. */
static bool must_part(const placing *g, size_t u, size_t v)
{
    const life *a = &g->lives[u], *b = &g->lives[v];
    const lt_cpu_place *p = &g->program->places[u], *q = &g->program->places[v];
    if (b->begin < a->begin) {
        const life *other = a;
        a = b;
        b = other;
    }
    if (a->end >= b->begin) return true;
    if (a->is_local || g->group_of[a->end] < g->group_of[b->begin]) return false;
    /* Tiles of rows pass through a group independently: what one tile writes must not be what another still reads, and it is not
     * where row for row the two values lie in the same place. */
    return p->offset != q->offset || p->ld != q->ld;
}

/* First fit: the lowest offset at which no value placed before overlaps in both space and life. */
static void place_value(placing *g, size_t v)
{
    const lt_plan *plan = g->program->plan;
    lt_cpu_place *places = g->program->places, *place = &places[v];
    *place = (lt_cpu_place){ .is_local = g->lives[v].is_local, .ld = lt_cpu_leading(plan->values[v].width) };
    if (g->lives[v].is_result) return;
    for (bool moved = true; moved;) {
        moved = false;
        for (size_t u = 0; u < v; u++) {
            if (!shares_space(g, u, v)) continue;
            if (places[u].offset + places[u].ld <= place->offset || place->offset + place->ld <= places[u].offset) continue;
            if (!must_part(g, u, v)) continue;
            place->offset = places[u].offset + places[u].ld;
            moved = true;
        }
    }
    size_t end = place->offset + place->ld;
    size_t *width =
        place->is_local ? &g->program->groups[g->lives[v].group].local_width : &g->program->width[plan->values[v].rows];
    if (end > *width) *width = end;
}

static lattice_status place_values(lt_program *p, lattice_error *err)
{
    const lattice_allocator *mem = &p->runtime->mem;
    placing g = { .program = p };
    g.lives = lt_alloc_array(mem, p->plan->n_values, sizeof *g.lives);
    g.group_of = lt_alloc_array(mem, p->plan->n_ops, sizeof *g.group_of);
    lattice_status status = LATTICE_OK;
    if (!g.lives || !g.group_of) {
        status = lt_no_memory(err, p->plan->n_values * sizeof *g.lives, "placing values");
    } else {
        /* A value that no op writes has no life and no place; lt_plan_check allows it, nothing reads it. */
        for (size_t v = 0; v < p->plan->n_values; v++)
            g.lives[v] = (life){ .is_local = true, .begin = SIZE_MAX, .end = SIZE_MAX };
        find_lives(&g);
        for (size_t v = 0; v < p->plan->n_values; v++) {
            if (g.lives[v].end != SIZE_MAX) place_value(&g, v);
        }
    }
    lt_free(mem, g.lives);
    lt_free(mem, g.group_of);
    return status;
}

/* ------------------------------------------------------------------ memory */

/* *total += a * b, in floats; false on overflow. */
static bool add_product(size_t *total, size_t a, size_t b)
{
    size_t product;
    return lt_mul(a, b, &product) && lt_add(*total, product, total);
}

static bool size_memory(lt_program *p, size_t *bytes)
{
    size_t total = 0, most_rows = 0;
    bool touched = false;
    for (size_t i = 0; i < p->n_groups; i++) {
        const lt_cpu_group *group = &p->groups[i];
        size_t tile = 0, columns = 0;
        if (!add_product(&tile, group->local_width, group->tile_rows)) return false;
        size_t rows = group->column_rows < p->max_tokens ? group->column_rows : p->max_tokens;
        if (!add_product(&columns, group->local_width, rows)) return false;
        if (tile > p->tile_floats) p->tile_floats = tile;
        if (columns > p->column_floats) p->column_floats = columns;
        if (group->touched) touched = true;
        if (group->tile_rows > most_rows) most_rows = group->tile_rows;
        if (rows > most_rows) most_rows = rows;
    }
    for (size_t i = 0; i < p->plan->n_ops; i++) {
        const lt_op *op = &p->plan->ops[i];
        size_t floats = 0;
        if (op->code == LT_OP_ATTENTION) floats = lt_round_up(p->attention->attention_scratch(op->head_dim), 16);
        if (op->code == LT_OP_GATED_DELTA) { /* S of a sequence without a state lies there too */
            floats = lt_round_up(p->kernels->delta_scratch(op->head_dim), 16);
            if (!add_product(&floats, op->head_dim, op->value_dim)) return false;
            floats = lt_round_up(floats, 16);
        }
        if (floats > p->attention_floats) p->attention_floats = floats;
    }
    p->gather_floats = lt_round_up(lt_cpu_gather_floats(&p->weights, p->kernels), 16);
    p->panel_floats = touched ? p->gather_floats : 0; /* a panel is as large as the rows it is made of */
    if (p->kernels->round_rows) {
        size_t ld = lt_cpu_leading(lt_panel_rows(p->kernels, p->weights.max_cols));
        if (!lt_mul(ld, most_rows, &p->rounded_floats)) return false;
    }
    if (p->q8) {
        size_t row = lt_q8_row_bytes(p->weights.max_cols), floats;
        if (lt_int8_row_bytes(p->weights.max_cols) > row) row = lt_int8_row_bytes(p->weights.max_cols);
        if (!lt_mul(row / sizeof(float), most_rows, &floats)) return false;
        if (floats > p->rounded_floats) p->rounded_floats = floats;
    }
    p->rounded_floats = lt_round_up(p->rounded_floats, 16);
    /* An odd number of cache lines past a page, so that the threads' parts do not fall on the same cache sets. */
    if (!lt_add(p->tile_floats, p->attention_floats, &p->thread_floats) ||
        !lt_add(p->thread_floats, p->panel_floats, &p->thread_floats) ||
        !lt_add(p->thread_floats, p->rounded_floats, &p->thread_floats) ||
        !lt_add(p->thread_floats, p->gather_floats + 1024, &p->thread_floats) ||
        !add_product(&p->thread_floats, p->width[LT_ROWS_TOKENS], p->piece_limit)) {
        return false;
    }
    p->thread_floats = lt_round_up(p->thread_floats, 1024) + 16;
    return add_product(&total, p->thread_floats, (size_t)p->n_threads) && lt_add(total, p->column_floats, &total) &&
           add_product(&total, p->width[LT_ROWS_TOKENS], p->max_tokens) &&
           add_product(&total, p->width[LT_ROWS_SEQS], p->max_seqs) &&
           add_product(&total, p->width[LT_ROWS_OUT], p->max_tokens) && lt_mul(total, sizeof(float), bytes);
}

/* Rotary tables for all positions that the plan admits; a run fills them as far as it needs them. */
static lattice_status reserve_rotary(lt_program *p, lattice_error *err)
{
    for (size_t i = 0; i < p->plan->n_ops; i++) {
        const lt_op *op = &p->plan->ops[i], *first = p->rotary_op;
        if (op->code != LT_OP_QK_NORM_ROPE) continue;
        if (!first) {
            p->rotary_op = op;
        } else if (op->rotary_dim != first->rotary_dim || op->rope_theta != first->rope_theta ||
                   op->max_positions != first->max_positions) {
            return lt_fail(err, LATTICE_ERR_UNSUPPORTED, "cpu: op %zu (%s): its rotary angles differ from those of other layers",
                           i, lt_op_name(op->code));
        }
    }
    size_t bytes;
    if (!p->rotary_op) return LATTICE_OK;
    if (!lt_mul(p->rotary_op->max_positions, p->rotary_op->rotary_dim * sizeof(float), &bytes)) {
        return lt_fail(err, LATTICE_ERR_INVALID_ARGUMENT, "cpu: %zu positions need more memory than can be addressed",
                       p->rotary_op->max_positions);
    }
    return lt_reserve_create(bytes, &p->rotary, err);
}

static lattice_status reserve_memory(lt_program *p, lattice_error *err)
{
    size_t bytes = 0;
    if (!size_memory(p, &bytes)) {
        return lt_fail(err, LATTICE_ERR_INVALID_ARGUMENT, "cpu: a batch of %zu tokens needs more memory than can be addressed",
                       p->max_tokens);
    }
    LT_TRY(lt_reserve_create(bytes, &p->memory, err));
    LT_TRY(reserve_rotary(p, err));
    const lattice_allocator *mem = &p->runtime->mem;
    size_t seconds;
    p->base = lt_alloc_array(mem, p->plan->n_values, sizeof(float *));
    p->ld = lt_alloc_array(mem, p->plan->n_values, sizeof(size_t));
    p->counters = lt_alloc_array(mem, p->n_groups + 1 + p->plan->n_ops, sizeof *p->counters);
    p->first_query_tile = p->max_seqs < SIZE_MAX ? lt_alloc_array(mem, p->max_seqs + 1, sizeof(size_t)) : NULL;
    p->pieces = p->max_seqs < SIZE_MAX ? lt_alloc_array(mem, p->max_seqs + 1, sizeof(size_t)) : NULL;
    p->seconds = lt_mul((size_t)p->n_threads, p->plan->n_ops, &seconds) ? lt_alloc_array(mem, seconds, sizeof(double)) : NULL;
    if (!p->base || !p->ld || !p->counters || !p->first_query_tile || !p->pieces || !p->seconds) {
        return lt_no_memory(err, p->max_seqs * sizeof(size_t), "a compiled plan");
    }
    return LATTICE_OK;
}

/* ------------------------------------------------------------------ compile */

static void program_free(lt_program *p)
{
    if (!p) return;
    const lattice_allocator *mem = &p->runtime->mem;
    lt_reserve_free(&p->memory);
    lt_reserve_free(&p->rotary);
    lt_cpu_weights_free(&p->weights, mem);
    lt_free(mem, p->groups);
    lt_free(mem, p->places);
    lt_free(mem, p->block_offset);
    lt_free(mem, p->zeros);
    lt_free(mem, p->base);
    lt_free(mem, p->ld);
    lt_free(mem, p->counters);
    lt_free(mem, p->first_query_tile);
    lt_free(mem, p->pieces);
    lt_free(mem, p->seconds);
    pthread_mutex_destroy(&p->sheets_lock);
    pthread_mutex_destroy(&p->lock);
    lt_free(mem, p);
}

/* What states keep keys and values as: halves beside integer products. bfloat16 goes with products of it, which take them as they
 * are. */
static lt_dtype row_type(const lt_program *p, const lt_compile_options *options)
{
    if (p->q8) return LT_F16;
    if (p->kernels->compute == LATTICE_COMPUTE_BF16) return LT_BF16;
    return options->half_rows ? LT_F16 : LT_F32;
}

static lattice_status compile_program(lt_program *p, const lt_compile_options *options, lattice_compute asked, lattice_error *err)
{
    const lt_plan *plan = p->plan;
    const lattice_allocator *mem = &p->runtime->mem;
    LT_TRY(lt_cpu_weights_bind(&p->weights, plan, options, p->kernels, asked, mem, err));
    if (p->weights.has_bytes) p->q8 = lt_q8_kernels_for(p->kernels);
    if (asked == LATTICE_COMPUTE_INT8 && !p->q8)
        return lt_fail(err, LATTICE_ERR_UNSUPPORTED,
                       "cpu: compute int8 needs an encoder, or weights in Q8_0, which `lattice quantize` makes");
    p->row_type = row_type(p, options);
    p->attention = p->weights.has_rows && p->kernels->bf16 ? p->kernels->bf16 : p->kernels;
    p->groups = lt_alloc_array(mem, plan->n_ops, sizeof *p->groups);
    p->places = lt_alloc_zero(mem, plan->n_values * sizeof *p->places);
    if (!p->groups || !p->places) return lt_no_memory(err, plan->n_ops * sizeof *p->groups, "a compiled plan");
    p->body = group_ops(p, 0, plan->n_body);
    for (int kind = 0; kind < LT_TAIL_COUNT; kind++) {
        const lt_tail *tail = &plan->tails[kind];
        if (tail->present) p->tails[kind] = group_ops(p, (size_t)tail->first_op, (size_t)(tail->first_op + tail->n_ops));
    }
    size_groups(p);
    size_pieces(p);
    LT_TRY(place_values(p, err));
    LT_TRY(lt_cpu_place_states(p, err));
    return reserve_memory(p, err);
}

/* What is not multiplied in integers. auto is bfloat16 where the set says so, for weights that are all stored in it. */
static const lt_kernels *choose_arithmetic(const lt_cpu_backend *cpu, const lt_plan *plan)
{
    const lt_kernels *bf16 = cpu->kernels->bf16;
    if (cpu->compute == LATTICE_COMPUTE_BF16) return bf16;
    if (cpu->compute != LATTICE_COMPUTE_AUTO || !bf16 || !bf16->preferred) return cpu->kernels;
    for (size_t i = 0; i < plan->n_ops; i++) {
        if (plan->ops[i].code == LT_OP_LINEAR && plan->weights[plan->ops[i].weight[0]].dtype != LT_BF16) return cpu->kernels;
    }
    return bf16;
}

static lattice_status compile(lt_backend *backend, const lt_plan *plan, const lt_compile_options *options, lt_program **program,
                              lattice_error *err)
{
    lt_cpu_backend *cpu = (lt_cpu_backend *)backend;
    *program = NULL;
    LT_TRY(lt_plan_check(plan, err));
    for (size_t i = 0; i < plan->n_ops; i++) {
        const char *reason = "";
        if (!backend->supports(backend, plan, &plan->ops[i], &reason)) {
            return lt_fail(err, LATTICE_ERR_UNSUPPORTED, "cpu: op %zu (%s): %s", i, lt_op_name(plan->ops[i].code), reason);
        }
    }
    if (options->max_tokens == 0 || options->max_seqs == 0) {
        return lt_fail(err, LATTICE_ERR_INVALID_ARGUMENT, "cpu: a batch must admit at least one token and one sequence");
    }
    lt_program *p = lt_alloc_zero(&cpu->runtime->mem, sizeof *p);
    if (!p) return lt_no_memory(err, sizeof *p, "a compiled plan");
    p->runtime = cpu->runtime;
    p->kernels = choose_arithmetic(cpu, plan);
    p->plan = plan;
    p->max_tokens = options->max_tokens;
    p->max_seqs = options->max_seqs;
    p->n_threads = lt_pool_threads(cpu->runtime->pool);
    const bool locked = pthread_mutex_init(&p->lock, NULL) == 0;
    if (!locked || pthread_mutex_init(&p->sheets_lock, NULL) != 0) {
        if (locked) pthread_mutex_destroy(&p->lock);
        lt_free(&cpu->runtime->mem, p);
        return lt_fail(err, LATTICE_ERR_NO_MEMORY, "out of memory for a lock");
    }
    lattice_status status = compile_program(p, options, cpu->compute, err);
    if (status != LATTICE_OK) {
        program_free(p);
        return status;
    }
    *program = p;
    return LATTICE_OK;
}

static void memory(const lt_program *program, lt_memory_report *report)
{
    *report = (lt_memory_report){
        .weight_bytes = program->weights.stored_bytes,
        .packed_bytes = program->weights.packed_bytes +
                        (program->n_packed > program->weights.n_body_items ? program->weights.packed_head_bytes : 0),
        .workspace_bytes = program->memory.size + program->rotary.size,
        .touched_bytes = lt_reserve_resident(&program->memory) + lt_reserve_resident(&program->rotary),
    };
}

static lattice_compute arithmetic(const lt_program *program)
{
    return program->q8 ? LATTICE_COMPUTE_INT8 : program->kernels->compute;
}

static void backend_free(lt_backend *backend)
{
    if (!backend) return;
    lt_cpu_backend *cpu = (lt_cpu_backend *)backend;
    lt_free(&cpu->runtime->mem, cpu);
}

/* The names of the available sets. */
static void list_sets(char *names, size_t size)
{
    size_t n, length = 0;
    const lt_kernels *const *available = lt_kernels_available(&n);
    names[0] = '\0';
    for (size_t i = 0; i < n && length < size; i++) {
        int written = snprintf(names + length, size - length, "%s%s", i > 0 ? ", " : "", available[i]->isa);
        if (written > 0) length += (size_t)written;
    }
}

lattice_status lt_cpu_backend_create(lattice_runtime *runtime, const char *isa, lattice_compute compute, lt_backend **backend,
                                     lattice_error *err)
{
    *backend = NULL;
    const lt_kernels *kernels = lt_kernels_find(isa);
    if (!kernels || (compute == LATTICE_COMPUTE_BF16 && !kernels->bf16)) {
        char names[128];
        list_sets(names, sizeof names);
        if (!kernels) {
            return lt_fail(err, LATTICE_ERR_UNSUPPORTED, "cpu: instruction set '%s' is not available; available are: %s", isa,
                           names);
        }
        return lt_fail(
            err, LATTICE_ERR_UNSUPPORTED,
            "cpu: compute bf16 needs the instruction set %s, and '%s' is in use; available are: %s (scalar emulates it)",
            BF16_SETS, kernels->isa, names);
    }
    lt_cpu_backend *cpu = lt_alloc_zero(&runtime->mem, sizeof *cpu);
    if (!cpu) return lt_no_memory(err, sizeof *cpu, "a backend");
    cpu->base = (lt_backend){
        .name = "cpu",
        .isa = kernels->isa,
        .supports = supports,
        .compile = compile,
        .program_free = program_free,
        .run = lt_cpu_run,
        .memory = memory,
        .compute = arithmetic,
        .states = &lt_cpu_state_ops,
        .free = backend_free,
    };
    cpu->runtime = runtime;
    cpu->kernels = kernels;
    cpu->compute = compute;
    *backend = &cpu->base;
    return LATTICE_OK;
}
