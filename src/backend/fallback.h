/* One backend behind another: runs go to the GPU, and to the CPU whenever the GPU cannot have them. */
#ifndef LT_BACKEND_FALLBACK_H
#define LT_BACKEND_FALLBACK_H

#include "backend/backend.h"

/* Runs on `gpu` and, whenever that fails or a sequence is longer than max_seq_len (0: no limit), on `cpu`; owns both after a
 * success. After a device has failed, all runs are on the CPU. States move with the runs. The name is the GPU's, the instruction
 * set the CPU's. */
lattice_status lt_fallback_backend_create(lattice_runtime *runtime, lt_backend *gpu, lt_backend *cpu, size_t max_seq_len,
                                          lt_backend **backend, lattice_error *err);

#endif
