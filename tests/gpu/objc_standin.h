/* A stand-in for the Objective-C runtime and Metal: enough of both to run metal.c on any machine, and stricter than either.
 *
 * It knows the methods of Apple's headers that metal.c uses, with their types, and reports as a fault what would crash, hang,
 * leak or be undefined there: a message to an object that is gone or has no such method, a retain too few or too many, an object
 * without a pool, an argument out of its range, commands out of order. Committed commands are run as late as they may be: when
 * somebody waits for them. Kernels run on the emulator. */
#ifndef LT_TESTS_GPU_OBJC_STANDIN_H
#define LT_TESTS_GPU_OBJC_STANDIN_H

#include "backend/gpu/metal_api.h"

/* What the machine does wrong; all zero: nothing. */
typedef struct standin_plan {
    bool no_device, no_queue;
    const char *compile_error;  /* the text of a source that is refused */
    const char *pipeline_error; /* the kernel that has no pipeline */
    const char *missing_kernel;
    ns_uint simd_width;  /* 0: 32 */
    ns_uint max_threads; /* of a group; 0: 1024 */
    long fail_commands;  /* the command buffer that fails, counted from 1; 0: none */
    long fail_code;      /* of its error */
    bool refuses_views;  /* of memory that is not the device's */
    size_t memory;       /* bytes of all buffers; 0: no limit */
} standin_plan;

typedef struct standin_counts {
    long faults, live, pools;                  /* live: objects that nobody has released */
    long commands, dispatches, views, pending; /* pending: command buffers that are committed and not run */
    bool fast_math;                            /* a library was compiled with it */
} standin_counts;

extern standin_plan lt_standin_plan;
extern const metal_api lt_standin_api;
extern const lt_gpu_driver lt_standin_driver; /* "metal" over lt_standin_api */

/* Faults are told on stderr when they happen. */
standin_counts lt_standin_counts(void);
/* The text of the last fault, or "". */
const char *lt_standin_fault(void);
/* Forgets all objects and faults. */
void lt_standin_reset(void);

#endif
