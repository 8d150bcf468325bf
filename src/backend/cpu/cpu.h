/* The CPU backend's own structures: bound weights, groups of operations, places of values, the compiled program.
 *
 * Compiling cuts the plan into groups: maximal runs of ROW operations over the same rows, and single SEQ operations. A value that
 * lives inside one group is local: it exists tile by tile in a thread's own memory. The others have a place in the workspace,
 * shared by values whose lifetimes do not meet. Places are counted in floats a row, so that a batch of few rows takes few pages:
 * value v lies at base + offset(v) * rows, with a leading dimension that is an odd number of cache lines. */
#ifndef LT_BACKEND_CPU_CPU_H
#define LT_BACKEND_CPU_CPU_H

#include <pthread.h>
#include <stdatomic.h>

#include "backend/backend.h"
#include "backend/cpu/kernels.h"
#include "backend/cpu/q8.h"

/* ------------------------------------------------------------------ weights (weights.c) */

/* What a weight is kept as. A matrix that is also a table (a tied output projection) is both. */
typedef struct lt_cpu_weight {
    const lt_weight *source;
    const uint8_t *data[LT_MAX_SEGMENTS]; /* each segment's bytes, as stored; Q8_0 and INT8_ROWS: those of its whole tensor */
    bool is_vector, is_table, is_matrix;
    bool is_taps;     /* a vector that is the taps of a convolution: [taps][channels] */
    bool is_glu;      /* gate over up: the panels of the two alternate, each half padded by itself */
    bool is_head;     /* a matrix of the logits tail alone */
    bool is_bytes;    /* a matrix multiplied in integers: n_panels counts panels of 16, those of each segment by itself */
    bool admits_rows; /* its family bears it in int8 by rows */
    bool by_rows;     /* of a matrix that is_bytes: int8 by rows; else Q8_0 */
    bool is_packed;   /* once, into panels or, by rows, into bytes */
    bool by_pairs;    /* the panels keep bfloat16 beside float32 arithmetic: [n_panels][cols / 2][nr] pairs */
    uint8_t *bytes[LT_MAX_SEGMENTS]; /* by rows: packed segments; NULL: as stored, in data */
    float *vector;                   /* vectors: [rows], converted when compiled */
    float *panels;     /* other matrices: [n_panels][lt_panel_rows][nr] unless by_pairs; NULL: packed whenever touched */
    size_t n_panels;   /* matrices; of gate and up together */
    size_t first_item; /* panels of the weights before it that are packed once */
} lt_cpu_weight;

typedef struct lt_cpu_weights {
    lt_cpu_weight *list; /* [plan->n_weights] */
    size_t n;
    float *vectors; /* all vectors, one behind the other */
    lt_reserve panels;
    size_t packed_bytes, packed_head_bytes, stored_bytes;
    /* Panels that are packed once, one behind the other: by the first run; then some by every run; then by runs for logits. */
    size_t n_first_items, n_body_items, n_items;
    bool has_bytes;     /* a matrix is_bytes */
    bool has_rows;      /* one of them is by_rows */
    bool self_fetching; /* lt_cpu_self_fetching() */
    size_t max_cols;    /* of all matrices */
} lt_cpu_weights;

/* Decides for every weight of the plan whether it is used as mapped, packed once or packed when touched, and opens its shard.
 * The only place that decides it. asked: `auto` and `int8` multiply Q8_0 and int8 by rows in integers, others dequantise them;
 * `int8` packs matrices of floating point as int8 by rows, where their family bears it.
 * lt_cpu_weights_free releases it, also after a failure. */
lattice_status lt_cpu_weights_bind(lt_cpu_weights *weights, const lt_plan *plan, const lt_compile_options *options,
                                   const lt_kernels *kernels, lattice_compute asked, const lattice_allocator *mem,
                                   lattice_error *err);
void lt_cpu_weights_free(lt_cpu_weights *weights, const lattice_allocator *mem);
/* Fills the packed copies, items [first, end): every thread of a region calls it with the same counter, 0 at first, and gather
 * scratch of its own. */
void lt_cpu_weights_pack(lt_cpu_weights *weights, const lt_kernels *kernels, size_t first, size_t end, atomic_size_t *counter,
                         float *gather);
/* Gives back the mapped pages of the matrices of which these items were the last. Rows of a table come back one by one, as they
 * are read. */
void lt_cpu_weights_forget(const lt_cpu_weights *weights, size_t first, size_t end);
/* Packs panel `index` of a matrix into panel[lt_panel_rows][nr]. gather: lt_cpu_gather_floats() floats. */
void lt_cpu_pack_panel(const lt_cpu_weight *weight, const lt_kernels *kernels, size_t index, float *panel, float *gather);
/* Where the bytes lie that panel `index` is packed from, *size of them (all but those of a further segment). */
const void *lt_cpu_panel_bytes(const lt_cpu_weight *weight, const lt_kernels *kernels, size_t index, size_t *size);
/* The rows of panel `index` as linear_few reads them; NULL where they are fewer than a panel has or lie apart. */
const void *lt_cpu_panel_rows(const lt_cpu_weight *weight, const lt_kernels *kernels, size_t index);
/* Row `row` of a table, or of a matrix that is one: dst[cols], or added to it. */
void lt_cpu_read_row(const lt_cpu_weight *weight, const lt_kernels *kernels, size_t row, bool add, float *dst);
/* The first column of the result's panel `index` of lt_cpu_result_panels; of the last and one more, the width. */
size_t lt_cpu_panel_column(const lt_cpu_weight *weight, const lt_kernels *kernels, size_t index);
size_t lt_cpu_result_panels(const lt_cpu_weight *weight);
size_t lt_cpu_gather_floats(const lt_cpu_weights *weights, const lt_kernels *kernels);

/* Segment `s` of a matrix that is_bytes, as integer products read it. */
static inline const uint8_t *lt_cpu_byte_segment(const lt_cpu_weight *weight, int s)
{
    return weight->is_packed ? weight->bytes[s] : weight->data[s];
}

/* Rows of x (x, m, k of a) as a matrix that is_bytes takes them (q8.c): lt_q8_row_bytes(k) or lt_int8_row_bytes(k) each. */
void lt_cpu_q8_quantize(const lt_cpu_weight *weight, const lt_q8_kernels *kernels, const lt_linear *a, void *out);
/* Panels [begin, end) of the result of such a matrix. out: m, k, bias, activation, residual, y, from column 0; x: the rows,
 * quantised. */
void lt_cpu_q8_linear(const lt_cpu_weight *weight, const lt_q8_kernels *kernels, const lt_linear *out, const void *x,
                      size_t begin, size_t end);

/* ------------------------------------------------------------------ program (cpu.c) */

typedef struct lt_cpu_group {
    lt_domain domain;
    lt_rows rows; /* of what its ops write */
    size_t first_op, n_ops;
    bool touched;       /* a matrix of it is packed whenever touched */
    size_t byte_sizes;  /* of matrices that are multiplied in integers */
    size_t local_width; /* floats a row of its local values */
    size_t tile_rows;   /* rows of a tile at most */
    size_t column_rows; /* up to so many rows, threads split columns instead of rows */
} lt_cpu_group;

typedef struct lt_cpu_place {
    bool is_local;
    size_t offset; /* floats a row */
    size_t ld;     /* leading dimension in floats */
} lt_cpu_place;

typedef struct lt_cpu_counter {
    atomic_size_t next;
    char padding[64 - sizeof(atomic_size_t)]; /* one a cache line */
} lt_cpu_counter;

typedef struct lt_cpu_range {
    size_t first, n;
} lt_cpu_range;

struct lt_program {
    lattice_runtime *runtime;
    const lt_kernels *kernels;
    const lt_kernels *attention; /* whose attention is run: beside int8 by rows that for bfloat16, if the set has it */
    const lt_q8_kernels *q8;     /* NULL: nothing is multiplied in integers */
    const lt_plan *plan;
    size_t max_tokens, max_seqs;
    int n_threads;
    lt_cpu_weights weights;
    size_t n_packed; /* items of them */

    lt_cpu_group *groups;
    size_t n_groups;
    lt_cpu_range body, tails[LT_TAIL_COUNT]; /* of groups */
    lt_cpu_place *places;                    /* [plan->n_values] */
    size_t width[3];                         /* floats a row of the workspace, by lt_rows */

    /* One reservation: a part for each thread, then what column splits share, then the workspace. In floats. */
    lt_reserve memory;
    size_t thread_floats, tile_floats, attention_floats, panel_floats, rounded_floats, gather_floats;
    /* Rows of a piece of whole sequences (execute.c) at most, and as it is best; 0: every batch is run group by group. */
    size_t piece_limit, piece_rows;
    size_t column_floats;

    /* Rotary tables: cosines [max_positions][r], then sines. Filled up to the largest position seen so far. */
    lt_reserve rotary;
    const lt_op *rotary_op; /* the first that rotates, or NULL: no tables. All have the same angles. */
    size_t rotary_filled;   /* positions */

    /* States: the type of K and V rows (attention.h has their layout); bytes of a block, and where in it an attention has its K
     * rows, head by head, and then V; floats of a memory, and where in it a convolution has its last inputs, [taps - 1][width],
     * and a delta rule its S of every head, [n_heads][head_dim][value_dim]. */
    bool admits_states;
    lt_dtype row_type;
    size_t block_bytes, memory_floats;
    size_t *block_offset; /* [plan->n_ops] bytes of a block, or floats of a memory */
    pthread_mutex_t sheets_lock;
    struct lt_cpu_sheet *sheets; /* of blocks: state.c */
    float *zeros;                /* what is before the first row of a convolution's input */

    /* The run in progress, under the lock. */
    pthread_mutex_t lock;
    float **base;             /* [n_values] row 0 of a workspace value */
    size_t *ld;               /* [n_values] */
    size_t *first_query_tile; /* [max_seqs + 1] attention tiles before a sequence */
    size_t *pieces;           /* [max_seqs + 1] the first sequence of each piece, then their number */
    lt_cpu_counter *counters; /* [n_groups + 1 + plan->n_ops]; one for packing, then those of operations on few rows */
    double *seconds;          /* [n_threads][plan->n_ops] */
};

/* The rotary tables. Values are those of angles in double precision, rounded. */
static inline float *lt_cpu_cosines(const lt_program *program)
{
    return program->rotary.base;
}
static inline float *lt_cpu_sines(const lt_program *program)
{
    return lt_cpu_cosines(program) + program->rotary_op->max_positions * (program->rotary_op->rotary_dim / 2);
}

/* ------------------------------------------------------------------ states (state.c) */

struct lt_state {
    lt_state_head head;
    unsigned char **blocks; /* [n_blocks], for the committed and the reserved rows */
    size_t n_blocks, capacity;
    /* What recurrent operations remember: of the committed rows, counted as blocks are, NULL before the first; and what the run
     * writes, of this state alone, which the commit puts in its place. */
    float *memory, *next;
};

extern const lt_state_ops lt_cpu_state_ops;

/* Bytes of the K rows of one head in a block, and of its V rows. */
static inline size_t lt_cpu_key_bytes(const lt_program *program, const lt_op *op)
{
    const bool pairs = program->row_type == LT_BF16;
    return LT_BLOCK_ROWS * (pairs ? (op->head_dim + 1) / 2 * 4 : op->head_dim * lt_dtype_size(program->row_type));
}
static inline size_t lt_cpu_value_bytes(const lt_program *program, const lt_op *op)
{
    return LT_BLOCK_ROWS * op->head_dim * lt_dtype_size(program->row_type);
}

/* Where the K and V rows of every attention lie in a block. */
lattice_status lt_cpu_place_states(lt_program *program, lattice_error *err);
/* Before and after a run, under the program's lock: checks the states of a batch and takes them; makes their rows pending. */
lattice_status lt_cpu_states_enter(const lt_program *program, const lt_batch *batch, lattice_error *err);

/* ------------------------------------------------------------------ running */

/* backend->run (execute.c). */
lattice_status lt_cpu_run(lt_program *program, const lt_batch *batch, lt_tail_kind tail, float *out, const lt_run_hooks *hooks,
                          lattice_error *err);

static inline size_t lt_ceil_div(size_t a, size_t b)
{
    return a / b + (a % b != 0);
}
static inline size_t lt_round_up(size_t a, size_t multiple)
{
    return lt_ceil_div(a, multiple) * multiple;
}

/* Rows are an odd number of cache lines apart, so that they do not meet in the same cache sets. */
static inline size_t lt_cpu_leading(size_t width)
{
    return (lt_ceil_div(width, 16) | 1) * 16;
}
static inline size_t lt_cpu_panel_floats(const lt_cpu_weight *weight, const lt_kernels *kernels)
{
    const size_t cols = weight->source->cols;
    return kernels->nr * (weight->by_pairs ? cols / 2 : lt_panel_rows(kernels, cols));
}

#endif
