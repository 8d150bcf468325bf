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

/* Devices on the emulator, lt_emulated_devices of them. Number lt_emulated_fail_device (-1: any) fails at launch number
 * lt_emulated_fail_at of all (counted from 1; 0: never) and at all later ones, and each has memory for lt_emulated_memory bytes
 * (0: no limit). */
enum { LT_EMULATED_MOST = 4 };
extern const lt_gpu_driver lt_gpu_emulated;
extern int lt_emulated_devices;
extern long lt_emulated_fail_at;
extern int lt_emulated_fail_device;
extern long lt_emulated_launches; /* of all devices */
extern long lt_emulated_launches_of[LT_EMULATED_MOST];
/* A device's next launch waits until so many devices have come to theirs (0: it does not): proof that they work at the same time.
 * Gives up, and fails, after two minutes. */
extern int lt_emulated_meet;
extern size_t lt_emulated_memory;
extern size_t lt_emulated_used_of[LT_EMULATED_MOST]; /* bytes allocated */
/* A program that is itself under ThreadSanitizer has that one's hooks. */
#if defined(__SANITIZE_THREAD__)
#define LT_EMULATOR_WATCHES 0
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define LT_EMULATOR_WATCHES 0
#endif
#endif
#ifndef LT_EMULATOR_WATCHES
#define LT_EMULATOR_WATCHES 1
#endif

/* Kernels compiled so that every access to a group's memory is watched: two threads at one place, one of them writing, without a
 * barrier between them are a fault. Of the template's barriers number lt_emulated_without (counted from 1; 0: none) is left out.
 */
extern bool lt_emulated_checked;
extern int lt_emulated_without;

/* What the driver's open says instead of opening; LATTICE_OK: it opens. */
extern lattice_status lt_emulated_open_status;
/* Back to one device that works. */
void lt_emulated_reset(void);

/* What the device is made of, for a Metal that is made up: a source compiled, its kernels (NULL: no such), and one of them run on
 * a grid, as lt_emulate does. */
lattice_status lt_emulated_build(lt_str source, void **library, lattice_error *err);
void *lt_emulated_find(void *library, const char *name);
bool lt_emulated_run(void *kernel, void *const *arguments, int n, size_t grid_x, size_t grid_y, size_t threads,
                     const char **fault);
void lt_emulated_library_free(void *library);

/* Whether this machine has what the emulation needs: clang, objcopy, an x86-64 CPU. */
bool lt_emulator_works(void);

#endif
