/* What a device offers: compile a plan once, run it for each batch. */
#ifndef LT_BACKEND_BACKEND_H
#define LT_BACKEND_BACKEND_H

#include "backend/plan.h"
#include "backend/state.h"
#include "base/runtime.h"

typedef struct lt_backend lt_backend;
typedef struct lt_program lt_program; /* a compiled plan with its weights and workspace */

/* Time and work of one op, summed over runs. */
typedef struct lt_op_profile {
    double seconds; /* thread-seconds */
    double flop, bytes;
} lt_op_profile;

/* Hooks of one run; all optional. */
typedef struct lt_run_hooks {
    lt_op_profile *profile; /* [plan->n_ops], added to */
    int fail_at_op;         /* fault injection: > 0 makes op number fail_at_op - 1 fail with LATTICE_ERR_DEVICE */
    const bool *cancel;     /* read (atomically) between groups of ops; true: LATTICE_ERR_CANCELLED */
} lt_run_hooks;

typedef struct lt_memory_report {
    uint64_t weight_bytes;    /* tensors in use, as stored */
    uint64_t packed_bytes;    /* packed copies: anonymous memory, taken when first used */
    uint64_t workspace_bytes; /* reserved address space */
    uint64_t touched_bytes;   /* of it, in memory now */
} lt_memory_report;

typedef enum lt_copies {
    LT_COPIES_AUTO,      /* within the backend's limits */
    LT_COPIES_AS_STORED, /* none that is larger than what is stored */
    LT_COPIES_NONE,      /* least memory: whatever the backend would keep packed is packed whenever it is used */
} lt_copies;

typedef struct lt_compile_options {
    size_t max_tokens; /* of one batch */
    size_t max_seqs;
    bool half_rows; /* states keep keys and values as halves, whatever the arithmetic but bfloat16, which keeps its own */
    lt_copies copies;
} lt_compile_options;

struct lt_backend {
    const char *name; /* "cpu" */
    const char *isa;  /* instruction set, "" for a GPU */
    /* 0 and 1: a batch runs on one device. More: one of up to so many times max_tokens and max_seqs, or more still, is shared by
     * so many devices; known after compile. */
    size_t n_devices;
    /* False and a reason in words when the device cannot run the op. */
    bool (*supports)(const lt_backend *backend, const lt_plan *plan, const lt_op *op, const char **reason);
    /* Checks every op with `supports` (LATTICE_ERR_UNSUPPORTED naming op and reason), decides for every weight whether it is
     * used as mapped or packed, assigns the workspace and reserves it (INV-8). The plan and its checkpoints are borrowed. */
    lattice_status (*compile)(lt_backend *backend, const lt_plan *plan, const lt_compile_options *options, lt_program **program,
                              lattice_error *err);
    void (*program_free)(lt_program *program);
    /* Runs body and tail; writes the tail's rows densely to out (rows * lt_tail_width floats). Allocates nothing. Callers beyond
     * the program's workspaces wait. hooks may be NULL. Ids, positions and type ids must lie inside their tables (the engine
     * checks them); the backend refuses a batch over max_tokens or max_seqs. With states, every sequence goes on from its own,
     * which must have room reserved; after a success their new rows wait for commit or discard, after a failure all is as it was.
     */
    lattice_status (*run)(lt_program *program, const lt_batch *batch, lt_tail_kind tail, float *out, const lt_run_hooks *hooks,
                          lattice_error *err);
    /* NULL: rows are always written. Row number `row` of the last successful run that wrote batch->tops instead of rows; until
     * the next such one has succeeded. LATTICE_ERR_DEVICE where the device that has it is lost. */
    lattice_status (*fetch)(lt_program *program, size_t row, float *out, lattice_error *err);
    void (*memory)(const lt_program *program, lt_memory_report *report);
    lattice_compute (*compute)(const lt_program *program); /* the arithmetic chosen: never AUTO */
    const lt_state_ops *states;
    void (*free)(lt_backend *backend);
};

/* The CPU backend. isa NULL or "auto": the best set that the CPU and the operating system allow; a set that is not built in or
 * not available is LATTICE_ERR_UNSUPPORTED naming it and what is available. compute: F32; BF16, if the set multiplies bfloat16
 * (else LATTICE_ERR_UNSUPPORTED naming the set that does; the scalar set emulates it); AUTO: BF16 for plans all of whose matrices
 * have 16-bit weights where the set does so fast, else F32. */
lattice_status lt_cpu_backend_create(lattice_runtime *runtime, const char *isa, lattice_compute compute, lt_backend **backend,
                                     lattice_error *err);

#endif
