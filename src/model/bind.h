/* Finding a family's weights in a checkpoint by the names of its published layout.
 *
 * A name is looked up bare and behind every prefix that checkpoints put before it ("bert.", "roberta.", "model.", …); its shape
 * and type are checked; what was used is remembered, so that lt_binder_finish can warn of tensors that nobody asked for. */
#ifndef LT_MODEL_BIND_H
#define LT_MODEL_BIND_H

#include "backend/plan.h"
#include "base/runtime.h"

typedef struct lt_binder {
    const lattice_runtime *runtime;
    lt_checkpoint *checkpoint;
    lt_plan *plan;
    uint8_t *used; /* [tensors of the checkpoint] */
    lattice_error *err;
} lt_binder;

lattice_status lt_binder_open(lt_binder *binder, const lattice_runtime *runtime, lt_checkpoint *checkpoint, lt_plan *plan,
                              lattice_error *err);
/* Warns of tensors that were not used, but for those whose bare name starts with one of `ignored` (ends in NULL), position-id
 * buffers, and parts that no text model reads. A bias that is stored beside a used weight and was not asked for is
 * LATTICE_ERR_UNSUPPORTED naming it: leaving it out would give wrong vectors in silence. */
lattice_status lt_binder_finish(lt_binder *binder, const char *const *ignored);
void lt_binder_close(lt_binder *binder);

/* True when the checkpoint holds a tensor of this bare name. */
bool lt_binder_has(const lt_binder *binder, const char *name);

/* Record a weight of the plan in *out. Missing: LATTICE_ERR_FORMAT naming it; another shape: the same, naming both shapes; a type
 * other than F32, F16, BF16 and, of a matrix, Q8_0 and INT8_ROWS: LATTICE_ERR_UNSUPPORTED. */
lattice_status lt_bind_matrix(lt_binder *binder, const char *name, size_t rows, size_t cols, int *out);
lattice_status lt_bind_vector(lt_binder *binder, const char *name, size_t n, int *out);
/* The taps of a depthwise convolution, stored as [channels, 1, taps]: a weight of `channels` rows and `taps` columns. */
lattice_status lt_bind_taps(lt_binder *binder, const char *name, size_t channels, size_t taps, int *out);
/* One operand of n_names segments of the given rows (vectors: cols 1), all of one type. */
lattice_status lt_bind_joined(lt_binder *binder, const char *const *names, int n_names, const size_t *rows, size_t cols, int rank,
                              int *out);

#endif
