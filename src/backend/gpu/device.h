/* What the device-independent part of the GPU backend needs of a device: memory, compiled kernels, launches in order, and, where
 * there is a library for it, matrix products. CUDA and Metal fill the same table. */
#ifndef LT_BACKEND_GPU_DEVICE_H
#define LT_BACKEND_GPU_DEVICE_H

#include "backend/gpu/shape.h"
#include "base/bytes.h"
#include "base/runtime.h"

/* How numbers are stored; the kernels' STORED_ names. Q8_0 is for whole matrices and tables, laid out as format/q8_0.h says. */
typedef enum lt_gpu_type { LT_GPU_F32, LT_GPU_F16, LT_GPU_BF16, LT_GPU_Q8_0 } lt_gpu_type;

/* Bytes of one number, but for Q8_0. */
static inline size_t lt_gpu_type_size(lt_gpu_type type)
{
    return type == LT_GPU_F32 ? 4 : 2;
}

/* A place in the device's memory: what `allocate` gave, and bytes from there. */
typedef struct lt_gpu_ref {
    void *memory;
    size_t offset;
} lt_gpu_ref;

static inline lt_gpu_ref lt_gpu_at(lt_gpu_ref ref, size_t bytes)
{
    return (lt_gpu_ref){ ref.memory, ref.offset + bytes };
}

enum { LT_GPU_MAX_BUFFERS = 8 };

/* One launch: a kernel over a grid of groups of `threads`, its buffers in order and then its struct of numbers. */
typedef struct lt_gpu_launch {
    void *kernel;
    lt_gpu_ref buffers[LT_GPU_MAX_BUFFERS];
    int n_buffers;
    const void *args;
    size_t args_size;
    size_t grid[2];
    size_t threads;
    size_t shared_bytes; /* threadgroup memory beyond what the kernel declares; CUDA's own kernels only */
    bool early;          /* may begin while the launch before still runs: the kernel waits for it (K_WAIT) */
    size_t cluster;      /* neighbouring groups that read one another's memory, 0: none do; CUDA's own kernels only */
} lt_gpu_launch;

/* y[m, n] = x[m, k] Wᵀ (+ residual, of y's type), W [n, k] dense. */
typedef struct lt_gpu_product {
    size_t m, n, k;
    lt_gpu_ref x, w, y, residual; /* residual.memory NULL: none */
    size_t ld_x, ld_y, ld_residual;
    lt_gpu_type type; /* of x and W */
    lt_gpu_type y_type;
} lt_gpu_product;

/* A platform's own attention kernel, which has the buffers and numbers of fused_attention, for bfloat16 values. */
typedef struct lt_gpu_attention {
    size_t queries, heads; /* tokens and query heads of a group */
    size_t threads, shared_bytes;
} lt_gpu_attention;

typedef struct lt_gpu_device lt_gpu_device;

/* Work is done in the order of the calls. A device is used by one thread at a time, but for allocate and release. Errors are
 * LATTICE_ERR_DEVICE, or LATTICE_ERR_NO_MEMORY where the device's memory is used up, and say what was tried. */
struct lt_gpu_device {
    const char *driver; /* "cuda", "metal" */
    char name[96];      /* "NVIDIA H200" */
    uint64_t memory_bytes;
    lt_str shim;  /* put before the template */
    lt_str extra; /* kernels of this platform alone, put behind it; may be empty */

    /* Names of the kernels in `extra` that may stand for one of the template; a shape may be without some. */
    const char *const *own_names;
    size_t n_own;
    /* Puts one of them in the place of the template's kernel number `kernel`, with its own grid, where the launch's numbers
     * allow; own: [n_own] kernels, NULL where the shape has none. NULL: no device's own kernels. */
    void (*specialise)(const lt_gpu_device *device, int kernel, const lt_gpu_shape *shape, void *const *own,
                       lt_gpu_launch *launch);
    /* Whether there is an attention kernel for this shape in bfloat16, and which of the own kernels it is. NULL: no. */
    bool (*attention)(const lt_gpu_shape *shape, lt_gpu_attention *attention, size_t *own);
    /* Whether one stands for few_rows_8, where no norm is joined, in a product of m rows of bfloat16 with W [n, k] in bfloat16,
     * or gate and up of that size each. NULL: no. */
    bool (*few)(const lt_gpu_device *device, size_t m, size_t n, size_t k, bool glu);

    /* Compiles a source; kernels are found in it by name and live as long as the library. */
    lattice_status (*build)(lt_gpu_device *device, lt_str source, void **library, lattice_error *err);
    lattice_status (*find)(lt_gpu_device *device, void *library, const char *name, void **kernel, lattice_error *err);
    void (*library_free)(lt_gpu_device *device, void *library);

    lattice_status (*allocate)(lt_gpu_device *device, size_t size, void **memory, lattice_error *err);
    void (*release)(lt_gpu_device *device, void *memory); /* waits for work that may use it; accepts NULL */
    /* NULL: the device reads its own memory only. Makes [data, data + size) readable by kernels where it lies, until unmap, which
     * waits for the work that may read it; false: it cannot. */
    bool (*map)(lt_gpu_device *device, const void *data, size_t size, lt_gpu_ref *ref);
    void (*unmap)(lt_gpu_device *device, void *memory);
    /* The data may be changed as soon as upload returns; download waits for it. */
    lattice_status (*upload)(lt_gpu_device *device, lt_gpu_ref to, const void *data, size_t size, lattice_error *err);
    lattice_status (*download)(lt_gpu_device *device, void *data, lt_gpu_ref from, size_t size, lattice_error *err);
    lattice_status (*copy)(lt_gpu_device *device, lt_gpu_ref to, lt_gpu_ref from, size_t size, lattice_error *err);
    lattice_status (*launch)(lt_gpu_device *device, const lt_gpu_launch *launch, lattice_error *err);
    lattice_status (*finish)(lt_gpu_device *device, lattice_error *err);
    /* NULL: there is no library for products. False: not for this one. */
    bool (*multiplies)(lt_gpu_device *device, const lt_gpu_product *product);
    lattice_status (*multiply)(lt_gpu_device *device, const lt_gpu_product *product, lattice_error *err);
    /* Launches and products between record_begin and record_end are not run but recorded, to be run by replay, as often as
     * wanted, at less cost. record_end without a recording (NULL) drops what there is. NULL: the device records nothing. */
    lattice_status (*record_begin)(lt_gpu_device *device, lattice_error *err);
    lattice_status (*record_end)(lt_gpu_device *device, void **recording, lattice_error *err);
    lattice_status (*replay)(lt_gpu_device *device, void *recording, lattice_error *err);
    void (*recording_free)(lt_gpu_device *device, void *recording);
    void (*free)(lt_gpu_device *device);
};

/* A kind of device. */
typedef struct lt_gpu_driver {
    const char *name; /* "cuda" */
    /* Opens device number `index`. LATTICE_ERR_NOT_FOUND when this machine has no such driver or device. */
    lattice_status (*open)(lattice_runtime *runtime, int index, lt_gpu_device **device, lattice_error *err);
    /* One line for people, "NVIDIA H200, 139 GiB" or why there is none; true when there is a device. */
    bool (*describe)(char *text, size_t size);
} lt_gpu_driver;

extern const lt_gpu_driver lt_gpu_cuda;
extern const lt_gpu_driver lt_gpu_metal;

/* The drivers of this build, in the order they are tried. */
const lt_gpu_driver *const *lt_gpu_drivers(size_t *n);

#endif
