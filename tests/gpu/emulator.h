/* Runs kernels that were compiled from Metal text, on the CPU: the threads of a group are fibers. */
#ifndef LT_TESTS_GPU_EMULATOR_H
#define LT_TESTS_GPU_EMULATOR_H

#include <stddef.h>
#include <stdint.h>

#include "backend/gpu/device.h"

/* A group over a grid: `arguments` are pointers, buffers and then the struct of numbers. group_memory is poisoned with NaN before
 * each group. False, with the reason in *fault: threads of a group that do not meet at the same barrier or simd operation. */
bool lt_emulate(void *kernel, void *const *arguments, int n_arguments, uint32_t grid_x, uint32_t grid_y, uint32_t threads,
                void *group_memory, size_t group_memory_size, const char **fault);

/* In which order runnable threads go on: 0 ascending, 1 descending, others permute simdgroups. */
extern unsigned lt_emulator_order;

/* A device on the emulator. It fails at launch number lt_emulated_fail_at (counted from 1; 0: never), and has memory for
 * lt_emulated_memory bytes (0: no limit). */
extern const lt_gpu_driver lt_gpu_emulated;
extern long lt_emulated_fail_at;
extern long lt_emulated_launches;
extern size_t lt_emulated_memory;
/* What the driver's open says instead of opening; LATTICE_OK: it opens. */
extern lattice_status lt_emulated_open_status;

/* What the device is made of, for a Metal that is made up: a source compiled, its kernels (NULL: no such), and one of them run on a
 * grid, as lt_emulate does. */
lattice_status lt_emulated_build(lt_str source, void **library, lattice_error *err);
void *lt_emulated_find(void *library, const char *name);
bool lt_emulated_run(void *kernel, void *const *arguments, int n, size_t grid_x, size_t grid_y, size_t threads, const char **fault);
void lt_emulated_library_free(void *library);

/* Whether this machine has what the emulation needs: clang, objcopy, an x86-64 CPU. */
bool lt_emulator_works(void);

#endif
