/* The template of the kernels: its text, and the text for one shape. */
#ifndef LT_BACKEND_GPU_TEMPLATE_H
#define LT_BACKEND_GPU_TEMPLATE_H

#include "backend/gpu/shape.h"
#include "base/bytes.h"

/* X(placeholder): all of them are substituted before compiling (INV-1). */
#define LT_GPU_PLACEHOLDER_LIST(X)                                                                                               \
    X(__FA_HEAD_DIM__)                                                                                                           \
    X(__FA_GQA_GROUPS__)                                                                                                         \
    X(__FUSED_C_HEAD_DIM__)                                                                                                      \
    X(__FUSED_C_HALF_DIM__)                                                                                                      \
    X(__FUSED_C_THREADS__)

enum { LT_GPU_PLACEHOLDERS = 5 };

typedef struct lt_gpu_substitution {
    const char *placeholder;
    size_t value;
} lt_gpu_substitution;

/* The numbers of K_UNIT in kernels/: 1 to this. */
enum { LT_GPU_UNITS = 19 };

/* The portable part of the template, as written. */
lt_str lt_gpu_template(void);

/* The words of one platform, put before the template. */
lt_str lt_gpu_shim_cuda(void);
lt_str lt_gpu_shim_metal(void);

/* Kernels of CUDA alone. */
lt_str lt_gpu_own_cuda(void);

/* What stands in the placeholders for an admissible shape. */
void lt_gpu_substitutions(const lt_gpu_shape *shape, lt_gpu_substitution list[LT_GPU_PLACEHOLDERS]);

/* Appends `text` with every placeholder of the list replaced. One that remains (a name of capitals between two pairs of
 * underscores that begins with __FA_ or __FUSED_) is LATTICE_ERR_INTERNAL naming it. */
lattice_status lt_gpu_substitute(lt_str text, const lt_gpu_substitution *list, size_t n, lt_buf *out, lattice_error *err);

/* The whole source for a shape: definitions, shim, template, and `extra` (kernels of one platform; "" for none). */
lattice_status lt_gpu_source(const lt_gpu_shape *shape, lt_str shim, lt_str extra, lt_buf *out, lattice_error *err);

#endif
