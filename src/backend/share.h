/* Devices that share the work of one model: a queue of batches that each takes from as it becomes free.
 *
 * A run is cut into pieces (piece.h) of about equal work, no larger than a device's batch; which device computes a piece makes no
 * difference to its result. The CPU stands behind the devices:
 *
 * - A device that fails is lost. What it had begun goes to the others; when none is left, to the CPU.
 * - A piece that a device has no memory for is halved, and later ones are cut smaller; a single sequence that is still too large
 *   runs on the CPU.
 * - A sequence longer than devices are to take runs on the CPU.
 *
 * Sequences with states stay where their states live, so they cannot be handed on here: the run fails and says why. */
#ifndef LT_BACKEND_SHARE_H
#define LT_BACKEND_SHARE_H

#include "backend/piece.h"

enum { LT_MAX_DEVICES = 64 };

typedef struct lt_share lt_share;

typedef struct lt_share_options {
    lt_backend *const *backends; /* [n_devices + 1]: borrowed, the CPU's last */
    lt_program *const *programs;
    int n_devices;                            /* 1 to LT_MAX_DEVICES */
    size_t max_tokens, max_seqs, max_seq_len; /* of a device's batch; of a sequence on a device, 0: no limit */
    const lt_plan *plan;
} lt_share_options;

/* With several devices there is a thread for each; one device is used by the calling threads. */
lattice_status lt_share_create(lattice_runtime *runtime, const lt_share_options *options, lt_share **share, lattice_error *err);
/* After all runs; accepts NULL. */
void lt_share_free(lt_share *share);

/* Whether device number `device` has failed; the CPU never does. */
bool lt_share_lost(lt_share *share, int device);

/* Runs the batch, from any thread. On failure no state has rows that wait for a commit, and with states LATTICE_ERR_DEVICE says
 * that a device where one lives is lost, LATTICE_ERR_NO_MEMORY that its device has no room for sequence number *culprit. */
lattice_status lt_share_run(lt_share *share, const lt_whole *whole, const lt_run_hooks *hooks, size_t *culprit,
                            lattice_error *err);

#endif
