/* What metal.c uses of the Objective-C runtime and of Metal, from C.
 *
 * A message is a call of objc_msgSend cast to the method's exact type: the ABI passes its arguments as to the method itself. So each
 * message is listed once, with its type, and sent through the pointer of that type only. Methods whose names begin with `new` or are
 * `retain` give an object that the caller releases; all others give one that the innermost autorelease pool may release. */
#ifndef LT_BACKEND_GPU_METAL_API_H
#define LT_BACKEND_GPU_METAL_API_H

#include "backend/gpu/device.h"

typedef struct objc_object *objc_id;
typedef struct objc_selector *objc_sel;
typedef unsigned long ns_uint; /* NSUInteger */
typedef long ns_int;           /* NSInteger */

/* MTLSize */
typedef struct metal_size {
    ns_uint width, height, depth;
} metal_size;

/* X(member, function, result, (parameters)) */
#define LT_OBJC_FUNCTIONS(X)                                                   \
    X(get_class, "objc_getClass", objc_id, (const char *name))                 \
    X(selector, "sel_registerName", objc_sel, (const char *name))              \
    X(send, "objc_msgSend", void, (void))                                      \
    X(push_pool, "objc_autoreleasePoolPush", void *, (void))                   \
    X(pop_pool, "objc_autoreleasePoolPop", void, (void *pool))

#define LT_METAL_FUNCTIONS(X) X(default_device, "MTLCreateSystemDefaultDevice", objc_id, (void)) /* retained */

/* X(member, selector, result, (receiver, selector, arguments)) */
#define LT_METAL_MESSAGES(X)                                                                                                     \
    X(retain, "retain", objc_id, (objc_id, objc_sel))                                                                            \
    X(release, "release", void, (objc_id, objc_sel))                                                                             \
    X(responds, "respondsToSelector:", bool, (objc_id, objc_sel, objc_sel))                                                      \
    X(new_object, "new", objc_id, (objc_id, objc_sel))                                                                           \
    X(string, "stringWithUTF8String:", objc_id, (objc_id, objc_sel, const char *))                                               \
    X(utf8, "UTF8String", const char *, (objc_id, objc_sel))                                                                     \
    X(description, "localizedDescription", objc_id, (objc_id, objc_sel))                                                         \
    X(code, "code", ns_int, (objc_id, objc_sel))                                                                                 \
    X(set_fast_math, "setFastMathEnabled:", void, (objc_id, objc_sel, bool))                                                     \
    X(name, "name", objc_id, (objc_id, objc_sel))                                                                                \
    X(working_set, "recommendedMaxWorkingSetSize", uint64_t, (objc_id, objc_sel))                                                \
    X(max_buffer, "maxBufferLength", ns_uint, (objc_id, objc_sel))                                                               \
    X(new_queue, "newCommandQueue", objc_id, (objc_id, objc_sel))                                                                \
    X(new_library, "newLibraryWithSource:options:error:", objc_id, (objc_id, objc_sel, objc_id, objc_id, objc_id *))             \
    X(new_function, "newFunctionWithName:", objc_id, (objc_id, objc_sel, objc_id))                                               \
    X(new_pipeline, "newComputePipelineStateWithFunction:error:", objc_id, (objc_id, objc_sel, objc_id, objc_id *))              \
    X(simd_width, "threadExecutionWidth", ns_uint, (objc_id, objc_sel))                                                          \
    X(max_threads, "maxTotalThreadsPerThreadgroup", ns_uint, (objc_id, objc_sel))                                                \
    X(new_buffer, "newBufferWithLength:options:", objc_id, (objc_id, objc_sel, ns_uint, ns_uint))                                \
    X(new_view, "newBufferWithBytesNoCopy:length:options:deallocator:", objc_id,                                                 \
      (objc_id, objc_sel, void *, ns_uint, ns_uint, objc_id))                                                                    \
    X(contents, "contents", void *, (objc_id, objc_sel))                                                                         \
    X(command_buffer, "commandBuffer", objc_id, (objc_id, objc_sel))                                                             \
    X(compute_encoder, "computeCommandEncoder", objc_id, (objc_id, objc_sel))                                                    \
    X(set_pipeline, "setComputePipelineState:", void, (objc_id, objc_sel, objc_id))                                              \
    X(set_buffer, "setBuffer:offset:atIndex:", void, (objc_id, objc_sel, objc_id, ns_uint, ns_uint))                             \
    X(set_bytes, "setBytes:length:atIndex:", void, (objc_id, objc_sel, const void *, ns_uint, ns_uint))                          \
    X(dispatch, "dispatchThreadgroups:threadsPerThreadgroup:", void, (objc_id, objc_sel, metal_size, metal_size))                \
    X(end_encoding, "endEncoding", void, (objc_id, objc_sel))                                                                    \
    X(commit, "commit", void, (objc_id, objc_sel))                                                                               \
    X(wait, "waitUntilCompleted", void, (objc_id, objc_sel))                                                                     \
    X(status, "status", ns_uint, (objc_id, objc_sel))                                                                            \
    X(error, "error", objc_id, (objc_id, objc_sel))

/* The functions, as found in the system's libraries; a test brings its own. */
typedef struct metal_api {
#define X(member, name, result, parameters) result(*member) parameters;
    LT_OBJC_FUNCTIONS(X)
    LT_METAL_FUNCTIONS(X)
#undef X
} metal_api;

typedef struct metal_messages {
#define X(member, name, result, parameters) \
    struct {                                \
        objc_sel selector;                  \
        result(*send) parameters;           \
    } member;
    LT_METAL_MESSAGES(X)
#undef X
} metal_messages;

/* False, with the reason in `text`, where there is no Metal: on everything but macOS. */
bool lt_metal_load(metal_api *api, char *text, size_t size);
void lt_metal_messages(const metal_api *api, metal_messages *messages);

/* The driver's two functions over given libraries. */
lattice_status lt_metal_open(lattice_runtime *runtime, const metal_api *api, int index, lt_gpu_device **device, lattice_error *err);
bool lt_metal_describe(const metal_api *api, char *text, size_t size);

#endif
