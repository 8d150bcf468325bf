/* What is used of CUDA's driver API, NVRTC and cuBLASLt: own declarations, bound by name when a device is opened, so that
 * building needs no toolkit. Types and numbers are those of the published ABI. */
#ifndef LT_BACKEND_GPU_CUDA_API_H
#define LT_BACKEND_GPU_CUDA_API_H

#include "backend/gpu/device.h"
#include "backend/gpu/template.h"

typedef int cu_result;
typedef int cu_device;
typedef unsigned long long cu_pointer;

enum { CU_OK = 0, CU_OUT_OF_MEMORY = 2 };
enum { CU_ATTRIBUTE_PROCESSORS = 16, CU_ATTRIBUTE_MAJOR = 75, CU_ATTRIBUTE_MINOR = 76 };
enum { CU_FUNCTION_MAX_DYNAMIC_SHARED = 8 };

typedef struct cu_launch_attribute {
    int id, pad;
    union {
        int number;
        unsigned cluster[3];
        char pad[64];
    } value;
} cu_launch_attribute;

/* A launch with this attribute may begin before the one in front of it has ended; kernels wait for it themselves. */
enum { CU_LAUNCH_CLUSTER = 4, CU_LAUNCH_PROGRAMMATIC = 6, CU_DRIVER_RECORDS_PROGRAMMATIC = 12030 };

typedef struct cu_launch {
    unsigned grid[3], block[3], shared_bytes;
    void *stream;
    const cu_launch_attribute *attributes;
    unsigned n_attributes;
} cu_launch;

/* X(member, symbol, result, parameters) */
#define LT_CUDA_DRIVER_LIST(X)                                                                                                   \
    X(init, "cuInit", cu_result, (unsigned))                                                                                     \
    X(driver_version, "cuDriverGetVersion", cu_result, (int *))                                                                  \
    X(device_count, "cuDeviceGetCount", cu_result, (int *))                                                                      \
    X(device_get, "cuDeviceGet", cu_result, (cu_device *, int))                                                                  \
    X(device_name, "cuDeviceGetName", cu_result, (char *, int, cu_device))                                                       \
    X(device_memory, "cuDeviceTotalMem_v2", cu_result, (size_t *, cu_device))                                                    \
    X(device_attribute, "cuDeviceGetAttribute", cu_result, (int *, int, cu_device))                                              \
    X(context_retain, "cuDevicePrimaryCtxRetain", cu_result, (void **, cu_device))                                               \
    X(context_release, "cuDevicePrimaryCtxRelease_v2", cu_result, (cu_device))                                                   \
    X(context_set, "cuCtxSetCurrent", cu_result, (void *))                                                                       \
    X(stream_create, "cuStreamCreate", cu_result, (void **, unsigned))                                                           \
    X(stream_destroy, "cuStreamDestroy_v2", cu_result, (void *))                                                                 \
    X(stream_finish, "cuStreamSynchronize", cu_result, (void *))                                                                 \
    X(event_create, "cuEventCreate", cu_result, (void **, unsigned))                                                             \
    X(event_destroy, "cuEventDestroy_v2", cu_result, (void *))                                                                   \
    X(event_record, "cuEventRecord", cu_result, (void *, void *))                                                                \
    X(event_finish, "cuEventSynchronize", cu_result, (void *))                                                                   \
    X(allocate, "cuMemAlloc_v2", cu_result, (cu_pointer *, size_t))                                                              \
    X(release, "cuMemFree_v2", cu_result, (cu_pointer))                                                                          \
    X(host_allocate, "cuMemAllocHost_v2", cu_result, (void **, size_t))                                                          \
    X(host_release, "cuMemFreeHost", cu_result, (void *))                                                                        \
    X(upload, "cuMemcpyHtoDAsync_v2", cu_result, (cu_pointer, const void *, size_t, void *))                                     \
    X(download, "cuMemcpyDtoHAsync_v2", cu_result, (void *, cu_pointer, size_t, void *))                                         \
    X(copy, "cuMemcpyDtoDAsync_v2", cu_result, (cu_pointer, cu_pointer, size_t, void *))                                         \
    X(module_load, "cuModuleLoadData", cu_result, (void **, const void *))                                                       \
    X(module_unload, "cuModuleUnload", cu_result, (void *))                                                                      \
    X(module_function, "cuModuleGetFunction", cu_result, (void **, void *, const char *))                                        \
    X(function_set, "cuFuncSetAttribute", cu_result, (void *, int, int))                                                         \
    X(launch, "cuLaunchKernelEx", cu_result, (const cu_launch *, void *, void **, void **))                                      \
    X(capture_begin, "cuStreamBeginCapture_v2", cu_result, (void *, int))                                                        \
    X(capture_end, "cuStreamEndCapture", cu_result, (void *, void **))                                                           \
    X(graph_make, "cuGraphInstantiateWithFlags", cu_result, (void **, void *, unsigned long long))                               \
    X(graph_free, "cuGraphDestroy", cu_result, (void *))                                                                         \
    X(graph_launch, "cuGraphLaunch", cu_result, (void *, void *))                                                                \
    X(graph_made_free, "cuGraphExecDestroy", cu_result, (void *))                                                                \
    X(error_name, "cuGetErrorName", cu_result, (cu_result, const char **))                                                       \
    X(error_text, "cuGetErrorString", cu_result, (cu_result, const char **))

#define LT_NVRTC_LIST(X)                                                                                                         \
    X(version, "nvrtcVersion", int, (int *, int *))                                                                              \
    X(create, "nvrtcCreateProgram", int, (void **, const char *, const char *, int, const char *const *, const char *const *))   \
    X(destroy, "nvrtcDestroyProgram", int, (void **))                                                                            \
    X(compile, "nvrtcCompileProgram", int, (void *, int, const char *const *))                                                   \
    X(log_size, "nvrtcGetProgramLogSize", int, (void *, size_t *))                                                               \
    X(log, "nvrtcGetProgramLog", int, (void *, char *))                                                                          \
    X(cubin_size, "nvrtcGetCUBINSize", int, (void *, size_t *))                                                                  \
    X(cubin, "nvrtcGetCUBIN", int, (void *, char *))                                                                             \
    X(error_text, "nvrtcGetErrorString", const char *, (int))

typedef struct cublas_heuristic {
    uint64_t algorithm[8];
    size_t workspace;
    int state;
    float waves;
    int reserved[4];
} cublas_heuristic;

enum { CUBLAS_COMPUTE_32F = 68, CUBLAS_REAL_32F = 0, CUBLAS_REAL_16F = 2, CUBLAS_REAL_16BF = 14, CUBLAS_TRANSPOSED = 1 };
enum { CUBLAS_MATMUL_TRANSA = 3, CUBLAS_PREFERENCE_WORKSPACE = 1 };

#define LT_CUBLAS_LIST(X)                                                                                                        \
    X(create, "cublasLtCreate", int, (void **))                                                                                  \
    X(destroy, "cublasLtDestroy", int, (void *))                                                                                 \
    X(operation_create, "cublasLtMatmulDescCreate", int, (void **, int, int))                                                    \
    X(operation_destroy, "cublasLtMatmulDescDestroy", int, (void *))                                                             \
    X(operation_set, "cublasLtMatmulDescSetAttribute", int, (void *, int, const void *, size_t))                                 \
    X(layout_create, "cublasLtMatrixLayoutCreate", int, (void **, int, uint64_t, uint64_t, int64_t))                             \
    X(layout_destroy, "cublasLtMatrixLayoutDestroy", int, (void *))                                                              \
    X(preference_create, "cublasLtMatmulPreferenceCreate", int, (void **))                                                       \
    X(preference_destroy, "cublasLtMatmulPreferenceDestroy", int, (void *))                                                      \
    X(preference_set, "cublasLtMatmulPreferenceSetAttribute", int, (void *, int, const void *, size_t))                          \
    X(heuristic, "cublasLtMatmulAlgoGetHeuristic", int,                                                                          \
      (void *, void *, void *, void *, void *, void *, void *, int, cublas_heuristic *, int *))                                  \
    X(multiply, "cublasLtMatmul", int,                                                                                           \
      (void *, void *, const void *, cu_pointer, void *, cu_pointer, void *, const void *, cu_pointer, void *, cu_pointer,       \
       void *, const void *, cu_pointer, size_t, void *))

#define LT_CUDA_MEMBER(member, symbol, result, parameters) result(*member) parameters;

typedef struct cuda_driver_api {
    void *handle;
    LT_CUDA_DRIVER_LIST(LT_CUDA_MEMBER)
} cuda_driver_api;

typedef struct nvrtc_api {
    void *handle;
    LT_NVRTC_LIST(LT_CUDA_MEMBER)
} nvrtc_api;

typedef struct cublas_api {
    void *handle;
    LT_CUBLAS_LIST(LT_CUDA_MEMBER)
} cublas_api;

/* Bind; false with the reason in `text`: no such library, or a symbol is missing. Released by closing the handle. */
bool lt_cuda_load_driver(cuda_driver_api *api, char *text, size_t size);
bool lt_cuda_load_nvrtc(nvrtc_api *api, char *text, size_t size);
bool lt_cuda_load_cublas(cublas_api *api, char *text, size_t size);
void lt_cuda_unload(void **handle);

/* ------------------------------------------------------------------ the device's own structure */

typedef struct cublas_choice {
    size_t key[9];
    bool valid;
    cublas_heuristic chosen;
} cublas_choice;

enum { CUBLAS_CHOICES = 256 };

typedef struct lt_cuda_target {
    int major, minor; /* compute capability */
    int driver_version;
    int processors; /* multiprocessors */
} lt_cuda_target;

typedef struct cuda_device {
    lt_gpu_device base;
    lattice_runtime *runtime;
    cuda_driver_api cu;
    cu_device device;
    void *context, *stream;
    lt_cuda_target target;

    void *staging[2], *staged[2]; /* pinned buffers for uploads, and events behind the last use of each */
    int next_staging;

    cublas_api blas; /* handle NULL: there is none */
    void *blas_handle;
    cu_pointer blas_workspace;
    cublas_choice *choices; /* [CUBLAS_CHOICES] */
} cuda_device;

/* "what: CUDA_ERROR_…: text" */
lattice_status lt_cuda_fail(const cuda_device *d, cu_result result, const char *what, lattice_error *err);

/* Machine code, a module for each unit. */
typedef struct lt_cuda_code {
    lt_buf units[LT_GPU_UNITS];
} lt_cuda_code;

/* cuda_compile.c: code for a source, from the cache folder of the runtime or from NVRTC. */
void lt_cuda_code_init(lt_cuda_code *code, const lattice_allocator *mem);
void lt_cuda_code_free(lt_cuda_code *code);
lattice_status lt_cuda_compile(const lattice_runtime *runtime, const lt_cuda_target *target, lt_str source, lt_cuda_code *code,
                               lattice_error *err);
/* Some of it, not kept: bit u of `units` is unit u. */
lattice_status lt_cuda_compile_units(const lattice_runtime *runtime, const lt_cuda_target *target, lt_str source, uint32_t units,
                                     lt_cuda_code *code, lattice_error *err);

/* cuda_cache.c. Where the code of a source, made with these options, is kept; false: nowhere. Reads an entry; false: there is
 * none, or it is damaged. Writes one, if it can. */
bool lt_cuda_cache_path(const lattice_runtime *runtime, lt_str source, const char *options, lt_buf *path);
bool lt_cuda_cache_read(const lattice_runtime *runtime, const char *path, lt_cuda_code *code);
void lt_cuda_cache_write(const lattice_runtime *runtime, const char *path, const lt_cuda_code *code);

/* cuda_kernels.c: kernels of CUDA alone, where the device is new enough for them. */
void lt_cuda_own_kernels(cuda_device *d);

/* cuda_blas.c */
void lt_cuda_blas_open(cuda_device *d);
void lt_cuda_blas_close(cuda_device *d);

static inline cu_pointer lt_cuda_pointer(lt_gpu_ref ref)
{
    return (cu_pointer)(uintptr_t)ref.memory + ref.offset;
}

#endif
