/* The GPU backend: a plan compiled for one device. Device-independent; device.h is all that it knows of CUDA or Metal.
 *
 * Opening uploads the weights and compiles the template for the model's shape. A run uploads ids and tables of the batch,
 * launches a kernel or a library's product for every operation in order, and downloads the result. */
#ifndef LT_BACKEND_GPU_GPU_H
#define LT_BACKEND_GPU_GPU_H

#include <pthread.h>

#include "backend/backend.h"
#include "backend/gpu/device.h"
#include "backend/gpu/shape.h"

/* ------------------------------------------------------------------ opening */

enum { LT_GPU_MAX_DEVICES = 64 };

typedef struct lt_gpu_devices {
    lt_gpu_device *device[LT_GPU_MAX_DEVICES];
    size_t n;
} lt_gpu_devices;

/* The devices that `name` asks for: "auto" or NULL, "cpu", "cuda", "cuda:1", "cuda:0,1", "cuda:all", "metal". None when the CPU
 * is to be used; why, where a GPU was asked for or refused by LATTICE_NO_GPU, is logged as a warning, as is one of several that
 * does not start. The only place that reads the environment. */
lattice_status lt_gpu_select(lattice_runtime *runtime, const char *name, lt_gpu_devices *devices, lattice_error *err);

/* LATTICE_ERR_INVALID_ARGUMENT when `name` is no device's. */
lattice_status lt_gpu_check_name(const lattice_runtime *runtime, const char *name, lattice_error *err);

/* A backend on a device, which it owns from then on, also after a failure. compute: F32; BF16: products in bfloat16; AUTO: BF16
 * where every matrix is stored so or in Q8_0. */
lattice_status lt_gpu_backend_create(lattice_runtime *runtime, lt_gpu_device *device, lattice_compute compute,
                                     lt_backend **backend, lattice_error *err);

/* ------------------------------------------------------------------ program */

enum { LT_GPU_MAX_OWN = 16 };

/* X(name of the kernel in the template) */
#define LT_GPU_KERNEL_LIST(X)                                                                                                    \
    X(embed)                                                                                                                     \
    X(add_norm)                                                                                                                  \
    X(activate_rows)                                                                                                             \
    X(glu_rows)                                                                                                                  \
    X(convert_rows)                                                                                                              \
    X(gate_rows)                                                                                                                 \
    X(gated_norm)                                                                                                                \
    X(top_rows)                                                                                                                  \
    X(pool)                                                                                                                      \
    X(gemm_r8)                                                                                                                   \
    X(gemm_r16)                                                                                                                  \
    X(gemm_r32)                                                                                                                  \
    X(unpack_q8)                                                                                                                 \
    X(few_rows_1)                                                                                                                \
    X(few_rows_8)                                                                                                                \
    X(few_rows_q8_1)                                                                                                             \
    X(few_rows_q8_8)                                                                                                             \
    X(fused_attention)                                                                                                           \
    X(append_rows)                                                                                                               \
    X(fused_qk_norm_rope)                                                                                                        \
    X(conv)                                                                                                                      \
    X(delta_units)                                                                                                               \
    X(gated_delta)                                                                                                               \
    X(delta_step)                                                                                                                \
    X(step_attention)                                                                                                            \
    X(step_combine)

typedef enum lt_gpu_kernel {
#define X(name) LT_GPU_##name,
    LT_GPU_KERNEL_LIST(X)
#undef X
        LT_GPU_KERNELS
} lt_gpu_kernel;

typedef struct lt_gpu_weight {
    lt_gpu_ref ref;
    lt_gpu_ref pieces[LT_MAX_SEGMENTS]; /* mapped: each segment where it lies; ref is the first. Else memory is NULL */
    lt_gpu_type type;
    void *unpacked; /* a copy as numbers of the type that products are made in, or NULL */
    bool is_vector; /* converted to float32; the taps of a convolution as [taps][channels] */
    bool is_taps, is_matrix, is_table;
} lt_gpu_weight;

/* What an operation and those behind it may be as one, where nothing else reads the values between them. */
typedef enum lt_gpu_join {
    LT_GPU_ALONE,
    LT_GPU_JOIN_NORM,      /* an RMS norm, a product: of few rows */
    LT_GPU_JOIN_DELTA,     /* convolution, delta rule, gated norm: of one token a sequence */
    LT_GPU_JOIN_ATTENTION, /* norm and rotation of q and k, attention: likewise, with states */
    LT_GPU_JOIN_GATED      /* the same and a gate */
} lt_gpu_join;

/* How many operations a join has. */
static inline size_t lt_gpu_join_span(lt_gpu_join join)
{
    return join == LT_GPU_ALONE ? 1 : join == LT_GPU_JOIN_DELTA || join == LT_GPU_JOIN_GATED ? 3 : 2;
}

/* A value is a matrix of `rows` rows of ld numbers; it begins offset * rows bytes into its class of rows. */
typedef struct lt_gpu_place {
    lt_gpu_type type;
    size_t ld, offset;
} lt_gpu_place;

/* Counted slots of equal size in one allocation that grows: blocks of keys and values, memories of recurrent layers. */
typedef struct lt_gpu_slots {
    void *memory;
    size_t slot_bytes;
    uint32_t *references;
    size_t n, capacity; /* slots of the allocation; room in `references` */
} lt_gpu_slots;

/* A run of few tokens, whose launches cost more than their work, is recorded when its like comes a second time in succession.
 * What a recording depends on is its key: sizes, and where everything lies. */
enum { LT_GPU_RECORDINGS = 8, LT_GPU_KEY = 20 };

typedef struct lt_gpu_recording {
    size_t key[LT_GPU_KEY];
    void *recording; /* NULL: none */
} lt_gpu_recording;

struct lt_program {
    lattice_runtime *runtime;
    lt_gpu_device *device;
    const lt_plan *plan;
    lt_gpu_shape shape;
    size_t max_tokens, max_seqs;
    lattice_compute compute;
    void *library;
    void *kernels[LT_GPU_KERNELS];
    void *own[LT_GPU_MAX_OWN];  /* the device's own kernels */
    lt_gpu_attention attention; /* tiles of the attention kernel in use */
    void *attention_kernel;

    lt_gpu_weight *weights; /* [plan->n_weights] */
    void *weight_memory;
    size_t weight_bytes, stored_bytes;

    lt_gpu_join *joins;                         /* [plan->n_ops] */
    lt_gpu_place *places;                       /* [plan->n_values] */
    size_t row_bytes[3];                        /* of the workspace, by lt_rows */
    size_t glu_bytes, delta_floats;             /* scratch a token: of gated products, of the delta rule */
    size_t scratch_weight_bytes;                /* for products whose W a library does not take as stored */
    size_t unpacked_bytes, most_unpacked_bytes; /* of copies of such W */
    bool is_recording;
    void *workspace;
    size_t workspace_bytes;
    void *tables; /* of the batch */
    size_t tables_bytes;
    /* Rows of logits of the last run that left them here: in the workspace, or, when another run has begun, in memory of their
     * own. */
    lt_gpu_ref left;
    size_t left_rows, left_width, left_ld; /* 0 rows: none */
    bool left_in_workspace;
    void *kept;
    size_t kept_bytes;
    float *top_staging; /* [top_capacity] */
    size_t top_capacity;
    uint32_t *staging; /* [staging_capacity] words of the batch's tables */
    size_t staging_capacity;
    float *rotary_staging;
    void *rotary; /* cosines [max_positions][half], then sines */
    const lt_op *rotary_op;
    size_t rotary_filled;

    lt_gpu_recording recordings[LT_GPU_RECORDINGS];
    size_t next_recording;
    size_t last_key[LT_GPU_KEY];

    bool admits_states;
    lt_gpu_type kv_type;
    size_t block_numbers, memory_floats;
    size_t *state_offset; /* [plan->n_ops] numbers into a block (attention) or a memory */
    lt_gpu_slots blocks, memories;

    pthread_mutex_t lock; /* of runs and of the slots */
};

/* weights.c: all weights of the plan, mapped where the device can read them as they lie, else uploaded. */
lattice_status lt_gpu_weights_upload(lt_program *program, lattice_error *err);
void lt_gpu_weights_free(lt_program *program);

/* state.c */
#define LT_GPU_NO_SLOT UINT32_MAX

struct lt_state {
    lt_state_head head;
    uint32_t *blocks; /* [n_blocks] slots */
    size_t n_blocks, capacity;
    uint32_t memory, next; /* slots, or LT_GPU_NO_SLOT */
};

extern const lt_state_ops lt_gpu_state_ops;
lattice_status lt_gpu_place_states(lt_program *program, lattice_error *err);
void lt_gpu_slots_free(lt_program *program, lt_gpu_slots *slots);
lattice_status lt_gpu_states_enter(const lt_program *program, const lt_batch *batch, lattice_error *err);

/* join.c: program->joins. */
lattice_status lt_gpu_find_joins(lt_program *program, lattice_error *err);

/* execute.c */
lattice_status lt_gpu_run(lt_program *program, const lt_batch *batch, lt_tail_kind tail, float *out, const lt_run_hooks *hooks,
                          lattice_error *err);

/* A row of logits that a run has left on the device. */
lattice_status lt_gpu_fetch(lt_program *program, size_t row, float *out, lattice_error *err);

static inline size_t lt_gpu_ceil(size_t a, size_t b)
{
    return a / b + (a % b != 0);
}
static inline size_t lt_gpu_round(size_t a, size_t multiple)
{
    return lt_gpu_ceil(a, multiple) * multiple;
}

#endif
