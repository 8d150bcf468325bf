/* One backend behind others: runs go to the GPUs, which share them, and to the CPU whatever the GPUs cannot have. */
#ifndef LT_BACKEND_FALLBACK_H
#define LT_BACKEND_FALLBACK_H

#include "backend/backend.h"

/* Runs on `gpus`, at most LT_MAX_DEVICES (share.h), and what they cannot have, or whose sequence is longer than max_seq_len (0: no
 * limit), on `cpu`; owns all of them after a success. After all GPUs have failed, all runs are on the CPU. States move with the
 * runs. The name is the GPUs', the instruction set the CPU's. Batches may be larger than max_tokens and max_seqs: they are cut. */
lattice_status lt_fallback_backend_create(lattice_runtime *runtime, lt_backend *const *gpus, size_t n_gpus, lt_backend *cpu,
                                          size_t max_seq_len, lt_backend **backend, lattice_error *err);

#endif
