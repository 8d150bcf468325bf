/* Finding CUDA's libraries at run time. */
#include "backend/gpu/cuda_api.h"

#include <dlfcn.h>
#include <stdio.h>

typedef struct symbol {
    const char *name;
    size_t offset; /* of the pointer in the table */
} symbol;

static bool load(const char *const *names, const symbol *symbols, size_t n, void *api, void **handle, char *text, size_t size)
{
    *handle = NULL;
    for (; *names && !*handle; names++) *handle = dlopen(*names, RTLD_NOW | RTLD_LOCAL);
    if (!*handle) {
        const char *why = dlerror();
        snprintf(text, size, "%s", why ? why : "no such library");
        return false;
    }
    for (size_t i = 0; i < n; i++) {
        void *address = dlsym(*handle, symbols[i].name);
        if (!address) {
            snprintf(text, size, "%s is missing", symbols[i].name);
            lt_cuda_unload(handle);
            return false;
        }
        memcpy((char *)api + symbols[i].offset, &address, sizeof address);
    }
    return true;
}

void lt_cuda_unload(void **handle)
{
    if (*handle) dlclose(*handle);
    *handle = NULL;
}

bool lt_cuda_load_driver(cuda_driver_api *api, char *text, size_t size)
{
    static const char *const names[] = { "libcuda.so.1", "libcuda.so", NULL };
    static const symbol symbols[] = {
#define X(member, name, result, parameters) { name, offsetof(cuda_driver_api, member) },
        LT_CUDA_DRIVER_LIST(X)
#undef X
    };
    return load(names, symbols, sizeof symbols / sizeof *symbols, api, &api->handle, text, size);
}

bool lt_cuda_load_nvrtc(nvrtc_api *api, char *text, size_t size)
{
    static const char *const names[] = { "libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so", "/usr/local/cuda/lib64/libnvrtc.so",
                                         NULL };
    static const symbol symbols[] = {
#define X(member, name, result, parameters) { name, offsetof(nvrtc_api, member) },
        LT_NVRTC_LIST(X)
#undef X
    };
    return load(names, symbols, sizeof symbols / sizeof *symbols, api, &api->handle, text, size);
}

bool lt_cuda_load_cublas(cublas_api *api, char *text, size_t size)
{
    static const char *const names[] = { "libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so",
                                         "/usr/local/cuda/lib64/libcublasLt.so", NULL };
    static const symbol symbols[] = {
#define X(member, name, result, parameters) { name, offsetof(cublas_api, member) },
        LT_CUBLAS_LIST(X)
#undef X
    };
    return load(names, symbols, sizeof symbols / sizeof *symbols, api, &api->handle, text, size);
}
