/* An Apple device through Metal, from C: shared buffers, kernels from the template's text, launches in command buffers.
 *
 * Memory is the host's: an upload is a copy of bytes, once the work before it is done, and mapped weights are used where they
 * lie. Launches are encoded one after the other into a command buffer, which is committed every few launches, so that the device
 * works while the next ones are encoded and no buffer runs so long that the system ends it. The queue runs the buffers in order,
 * and a serial encoder its launches, so nothing else is needed between them. A command buffer retains what it uses; `release`
 * need not wait. */
#include <stdio.h>
#include <unistd.h>

#include "backend/gpu/metal_api.h"
#include "backend/gpu/template.h"

enum {
    LAUNCHES = 64,    /* of a command buffer */
    IN_FLIGHT = 16,   /* command buffers; a queue admits 64 */
    MAX_BYTES = 4096, /* of setBytes */
    LANES = 32,
    SHARED = 0,        /* MTLResourceStorageModeShared */
    COMPLETED = 4,     /* MTLCommandBufferStatusCompleted */
    OUT_OF_MEMORY = 8, /* MTLCommandBufferErrorOutOfMemory */
};

typedef struct metal_device {
    lt_gpu_device base;
    lattice_runtime *runtime;
    metal_api api;
    metal_messages m;
    objc_id device, queue;
    ns_uint max_buffer;
    objc_id commands, encoder; /* open, or NULL */
    size_t launches;
    objc_id in_flight[IN_FLIGHT]; /* committed, oldest first */
    size_t n_in_flight;
} metal_device;

typedef struct metal_library {
    objc_id library;
    objc_id *pipelines;
    size_t n, capacity;
} metal_library;

#define SEND(d, message, receiver, ...) ((d)->m.message.send((receiver), (d)->m.message.selector, ##__VA_ARGS__))

/* The text of an NSError, which may be nil. Lives as long as the innermost pool. */
static const char *error_text(const metal_device *d, objc_id error)
{
    objc_id description = error ? SEND(d, description, error) : NULL;
    const char *text = description ? SEND(d, utf8, description) : NULL;
    return text ? text : "no reason is given";
}

/* ------------------------------------------------------------------ kernels */

static objc_id string_of(const metal_device *d, const char *text)
{
    return SEND(d, string, d->api.get_class("NSString"), text);
}

static lattice_status build_library(metal_device *d, const char *source, objc_id *library, lattice_error *err)
{
    objc_id options = SEND(d, new_object, d->api.get_class("MTLCompileOptions")), error = NULL, text = string_of(d, source);
    if (!options || !text) {
        if (options) SEND(d, release, options);
        return lt_no_memory(err, strlen(source), "Metal's source");
    }
    /* Fast arithmetic assumes that there is no NaN and no infinity, and rounds as it likes. */
    if (SEND(d, responds, options, d->m.set_fast_math.selector)) SEND(d, set_fast_math, options, false);
    *library = SEND(d, new_library, d->device, text, options, &error);
    SEND(d, release, options);
    if (*library) return LATTICE_OK;
    lt_log(d->runtime, LATTICE_LOG_INFO, "Metal: %s", error_text(d, error));
    return lt_fail(err, LATTICE_ERR_DEVICE, "metal: the kernels do not compile: %s", error_text(d, error));
}

static lattice_status build(lt_gpu_device *device, lt_str source, void **out, lattice_error *err)
{
    metal_device *d = (metal_device *)device;
    *out = NULL;
    metal_library *l = lt_alloc_zero(&d->runtime->mem, sizeof *l);
    if (!l) return lt_no_memory(err, sizeof *l, "a library of kernels");
    void *pool = d->api.push_pool();
    lattice_status status = build_library(d, source.data, &l->library, err);
    d->api.pop_pool(pool);
    if (status != LATTICE_OK) {
        lt_free(&d->runtime->mem, l);
        return status;
    }
    *out = l;
    return LATTICE_OK;
}

static lattice_status build_pipeline(metal_device *d, objc_id library, const char *name, objc_id *pipeline, lattice_error *err)
{
    objc_id text = string_of(d, name), error = NULL;
    objc_id function = text ? SEND(d, new_function, library, text) : NULL;
    if (!function) return lt_fail(err, LATTICE_ERR_DEVICE, "metal: there is no kernel '%s'", name);
    *pipeline = SEND(d, new_pipeline, d->device, function, &error);
    SEND(d, release, function);
    if (!*pipeline) return lt_fail(err, LATTICE_ERR_DEVICE, "metal: the kernel '%s': %s", name, error_text(d, error));
    unsigned long width = SEND(d, simd_width, *pipeline);
    if (width == LANES) return LATTICE_OK;
    SEND(d, release, *pipeline);
    return lt_fail(err, LATTICE_ERR_DEVICE, "metal: simdgroups of %lu threads; the kernels are written for %d", width, LANES);
}

static lattice_status find(lt_gpu_device *device, void *library, const char *name, void **kernel, lattice_error *err)
{
    metal_device *d = (metal_device *)device;
    metal_library *l = library;
    objc_id pipeline = NULL;
    if (!LT_GROW(&d->runtime->mem, l->pipelines, l->capacity, l->n + 1))
        return lt_no_memory(err, (l->n + 1) * sizeof *l->pipelines, "kernels");
    void *pool = d->api.push_pool();
    lattice_status status = build_pipeline(d, l->library, name, &pipeline, err);
    d->api.pop_pool(pool);
    if (status == LATTICE_OK) *kernel = l->pipelines[l->n++] = pipeline;
    return status;
}

static void library_free(lt_gpu_device *device, void *library)
{
    metal_device *d = (metal_device *)device;
    metal_library *l = library;
    void *pool = d->api.push_pool();
    for (size_t i = 0; i < l->n; i++) SEND(d, release, l->pipelines[i]);
    SEND(d, release, l->library);
    d->api.pop_pool(pool);
    lt_free(&d->runtime->mem, l->pipelines);
    lt_free(&d->runtime->mem, l);
}

/* ------------------------------------------------------------------ commands; under a pool */

/* Waits for the oldest committed buffer. */
static lattice_status await_oldest(metal_device *d, lattice_error *err)
{
    objc_id commands = d->in_flight[0];
    lattice_status status = LATTICE_OK;
    d->n_in_flight--;
    memmove(d->in_flight, d->in_flight + 1, d->n_in_flight * sizeof *d->in_flight);
    SEND(d, wait, commands);
    if (SEND(d, status, commands) != COMPLETED) {
        objc_id error = SEND(d, error, commands);
        status = error && SEND(d, code, error) == OUT_OF_MEMORY ? LATTICE_ERR_NO_MEMORY : LATTICE_ERR_DEVICE;
        lt_fail(err, status, "metal: the device stopped: %s", error_text(d, error));
    }
    SEND(d, release, commands);
    return status;
}

static void submit(metal_device *d)
{
    if (!d->commands) return;
    SEND(d, end_encoding, d->encoder);
    SEND(d, release, d->encoder);
    SEND(d, commit, d->commands);
    d->in_flight[d->n_in_flight++] = d->commands;
    d->commands = d->encoder = NULL;
    d->launches = 0;
}

/* Ends all work; the first error is the one told. */
static lattice_status finish_all(metal_device *d, lattice_error *err)
{
    lattice_status status = LATTICE_OK;
    submit(d);
    while (d->n_in_flight > 0) {
        lattice_status one = await_oldest(d, status == LATTICE_OK ? err : NULL);
        if (status == LATTICE_OK) status = one;
    }
    return status;
}

static lattice_status open_commands(metal_device *d, lattice_error *err)
{
    if (d->commands) return LATTICE_OK;
    if (d->n_in_flight == IN_FLIGHT) LT_TRY(await_oldest(d, err));
    objc_id commands = SEND(d, command_buffer, d->queue);
    objc_id encoder = commands ? SEND(d, compute_encoder, commands) : NULL;
    if (!encoder) return lt_fail(err, LATTICE_ERR_DEVICE, "metal: there is no command buffer");
    d->commands = SEND(d, retain, commands);
    d->encoder = SEND(d, retain, encoder);
    return LATTICE_OK;
}

static lattice_status encode(metal_device *d, const lt_gpu_launch *l, lattice_error *err)
{
    objc_id pipeline = l->kernel;
    unsigned long most = SEND(d, max_threads, pipeline);
    if (l->threads > most || l->args_size > MAX_BYTES)
        return lt_fail(err, LATTICE_ERR_DEVICE, "metal: a group of %zu threads; the device runs this kernel with %lu", l->threads,
                       most);
    LT_TRY(open_commands(d, err));
    SEND(d, set_pipeline, d->encoder, pipeline);
    for (int i = 0; i < l->n_buffers; i++)
        SEND(d, set_buffer, d->encoder, (objc_id)l->buffers[i].memory, l->buffers[i].offset, (ns_uint)i);
    SEND(d, set_bytes, d->encoder, l->args, l->args_size, (ns_uint)l->n_buffers);
    SEND(d, dispatch, d->encoder, (metal_size){ l->grid[0], l->grid[1], 1 }, (metal_size){ l->threads, 1, 1 });
    if (++d->launches == LAUNCHES) submit(d);
    return LATTICE_OK;
}

static lattice_status launch(lt_gpu_device *device, const lt_gpu_launch *l, lattice_error *err)
{
    metal_device *d = (metal_device *)device;
    void *pool = d->api.push_pool();
    lattice_status status = encode(d, l, err);
    d->api.pop_pool(pool);
    return status;
}

static lattice_status finish(lt_gpu_device *device, lattice_error *err)
{
    metal_device *d = (metal_device *)device;
    void *pool = d->api.push_pool();
    lattice_status status = finish_all(d, err);
    d->api.pop_pool(pool);
    return status;
}

/* ------------------------------------------------------------------ memory */

static lattice_status allocate(lt_gpu_device *device, size_t size, void **memory, lattice_error *err)
{
    metal_device *d = (metal_device *)device;
    void *pool = d->api.push_pool();
    *memory = size <= d->max_buffer ? SEND(d, new_buffer, d->device, size > 0 ? size : 1, SHARED) : NULL;
    d->api.pop_pool(pool);
    return *memory ? LATTICE_OK : lt_fail(err, LATTICE_ERR_NO_MEMORY, "metal: %zu bytes of device memory", size);
}

static void release(lt_gpu_device *device, void *memory)
{
    metal_device *d = (metal_device *)device;
    if (!memory) return;
    void *pool = d->api.push_pool();
    SEND(d, release, (objc_id)memory);
    d->api.pop_pool(pool);
}

/* A buffer is made of whole pages, so a view begins where the page of the first byte does. */
static bool map(lt_gpu_device *device, const void *data, size_t size, lt_gpu_ref *ref)
{
    metal_device *d = (metal_device *)device;
    long page_size = sysconf(_SC_PAGESIZE);
    size_t page = page_size > 0 ? (size_t)page_size : 4096, inside = (uintptr_t)data % page, length;
    if (!lt_add(inside, size, &length) || !lt_add(length, page - 1, &length) || length / page * page > d->max_buffer)
        return false;
    void *begin = (void *)((uintptr_t)data - inside);
    void *pool = d->api.push_pool();
    ref->memory = SEND(d, new_view, d->device, begin, length / page * page, SHARED, NULL);
    ref->offset = inside;
    d->api.pop_pool(pool);
    return ref->memory != NULL;
}

/* The bytes may go away afterwards, whatever happened to the work that reads them. */
static void unmap(lt_gpu_device *device, void *memory)
{
    if (memory) finish(device, NULL);
    release(device, memory);
}

static char *address(const metal_device *d, lt_gpu_ref ref)
{
    return (char *)SEND(d, contents, (objc_id)ref.memory) + ref.offset;
}

static lattice_status upload(lt_gpu_device *device, lt_gpu_ref to, const void *data, size_t size, lattice_error *err)
{
    LT_TRY(finish(device, err));
    memcpy(address((metal_device *)device, to), data, size);
    return LATTICE_OK;
}

static lattice_status download(lt_gpu_device *device, void *data, lt_gpu_ref from, size_t size, lattice_error *err)
{
    LT_TRY(finish(device, err));
    memcpy(data, address((metal_device *)device, from), size);
    return LATTICE_OK;
}

static lattice_status copy(lt_gpu_device *device, lt_gpu_ref to, lt_gpu_ref from, size_t size, lattice_error *err)
{
    metal_device *d = (metal_device *)device;
    LT_TRY(finish(device, err));
    memmove(address(d, to), address(d, from), size);
    return LATTICE_OK;
}

/* ------------------------------------------------------------------ opening */

static void device_free(lt_gpu_device *device)
{
    metal_device *d = (metal_device *)device;
    void *pool = d->api.push_pool();
    finish_all(d, NULL);
    if (d->queue) SEND(d, release, d->queue);
    if (d->device) SEND(d, release, d->device);
    d->api.pop_pool(pool);
    lt_free(&d->runtime->mem, d);
}

static void copy_name(const metal_device *d, objc_id device, char *name, size_t size)
{
    objc_id string = SEND(d, name, device);
    const char *text = string ? SEND(d, utf8, string) : NULL;
    snprintf(name, size, "%s", text ? text : "Metal device");
}

static lattice_status start(metal_device *d, int index, lattice_error *err)
{
    if (index != 0) return lt_fail(err, LATTICE_ERR_NOT_FOUND, "metal: there is no device %d; this machine's is 0", index);
    d->device = d->api.default_device();
    if (!d->device) return lt_fail(err, LATTICE_ERR_NOT_FOUND, "metal: this machine has no device");
    copy_name(d, d->device, d->base.name, sizeof d->base.name);
    d->base.memory_bytes = SEND(d, working_set, d->device);
    d->max_buffer = SEND(d, max_buffer, d->device);
    d->queue = SEND(d, new_queue, d->device);
    return d->queue ? LATTICE_OK : lt_fail(err, LATTICE_ERR_DEVICE, "metal: %s gives no command queue", d->base.name);
}

lattice_status lt_metal_open(lattice_runtime *runtime, const metal_api *api, int index, lt_gpu_device **device,
                             lattice_error *err)
{
    *device = NULL;
    metal_device *d = lt_alloc_zero(&runtime->mem, sizeof *d);
    if (!d) return lt_no_memory(err, sizeof *d, "a device");
    d->runtime = runtime;
    d->api = *api;
    lt_metal_messages(api, &d->m);
    d->base.driver = "metal";
    d->base.shim = lt_gpu_shim_metal();
    d->base.extra = LT_STR("");
    d->base.build = build;
    d->base.find = find;
    d->base.library_free = library_free;
    d->base.allocate = allocate;
    d->base.release = release;
    d->base.map = map;
    d->base.unmap = unmap;
    d->base.upload = upload;
    d->base.download = download;
    d->base.copy = copy;
    d->base.launch = launch;
    d->base.finish = finish;
    d->base.free = device_free;
    void *pool = api->push_pool();
    lattice_status status = start(d, index, err);
    api->pop_pool(pool);
    if (status != LATTICE_OK) {
        device_free(&d->base);
        return status;
    }
    *device = &d->base;
    return LATTICE_OK;
}

bool lt_metal_describe(const metal_api *api, char *text, size_t size)
{
    metal_device d = { .api = *api };
    lt_metal_messages(api, &d.m);
    void *pool = api->push_pool();
    objc_id device = api->default_device();
    if (device) {
        copy_name(&d, device, d.base.name, sizeof d.base.name);
        snprintf(text, size, "%s, %.1f GiB", d.base.name, (double)SEND(&d, working_set, device) / (double)(1 << 30));
        SEND(&d, release, device);
    } else {
        snprintf(text, size, "this machine has no Metal device");
    }
    api->pop_pool(pool);
    return device != NULL;
}

static lattice_status metal_open(lattice_runtime *runtime, int index, lt_gpu_device **device, lattice_error *err)
{
    metal_api api;
    char why[200];
    *device = NULL;
    if (!lt_metal_load(&api, why, sizeof why))
        return lt_fail(err, LATTICE_ERR_NOT_FOUND, "metal: no device can be used: %s", why);
    return lt_metal_open(runtime, &api, index, device, err);
}

static bool metal_describe(char *text, size_t size)
{
    metal_api api;
    return lt_metal_load(&api, text, size) && lt_metal_describe(&api, text, size);
}

const lt_gpu_driver lt_gpu_metal = { .name = "metal", .open = metal_open, .describe = metal_describe };
