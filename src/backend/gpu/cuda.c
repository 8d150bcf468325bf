/* An NVIDIA device through the driver API: memory, uploads, kernels, launches on one stream. */
#include <stdio.h>

#include "backend/gpu/cuda_api.h"
#include "backend/gpu/template.h"

enum { STAGING = 32 << 20, MAX_ARGS = 256 };

lattice_status lt_cuda_fail(const cuda_device *d, cu_result result, const char *what, lattice_error *err)
{
    const char *name = "unknown error", *text = "";
    if (d->cu.error_name) d->cu.error_name(result, &name);
    if (d->cu.error_text) d->cu.error_text(result, &text);
    return lt_fail(err, result == CU_OUT_OF_MEMORY ? LATTICE_ERR_NO_MEMORY : LATTICE_ERR_DEVICE, "cuda: %s: %s: %s", what, name,
                   text);
}

#define CU_TRY(d, what, expr)                                                                                                    \
    do {                                                                                                                         \
        cu_result cu_try_ = (expr);                                                                                              \
        if (cu_try_ != CU_OK) return lt_cuda_fail((d), cu_try_, (what), err);                                                    \
    } while (0)

/* Every call comes from a thread that may not have used the device before. */
static cuda_device *enter(lt_gpu_device *device)
{
    cuda_device *d = (cuda_device *)device;
    d->cu.context_set(d->context);
    return d;
}

/* ------------------------------------------------------------------ kernels */

typedef struct library {
    void *modules[LT_GPU_UNITS];
} library;

static void library_free(lt_gpu_device *device, void *from)
{
    cuda_device *d = enter(device);
    library *l = from;
    for (int u = 0; u < LT_GPU_UNITS; u++) {
        if (l->modules[u]) d->cu.module_unload(l->modules[u]);
    }
    lt_free(&d->runtime->mem, l);
}

static lattice_status build(lt_gpu_device *device, lt_str source, void **out, lattice_error *err)
{
    cuda_device *d = enter(device);
    library *l = lt_alloc_zero(&d->runtime->mem, sizeof *l);
    if (!l) return lt_no_memory(err, sizeof *l, "kernels");
    lt_cuda_code code;
    lt_cuda_code_init(&code, &d->runtime->mem);
    lattice_status status = lt_cuda_compile(d->runtime, &d->target, source, &code, err);
    for (int u = 0; u < LT_GPU_UNITS && status == LATTICE_OK; u++) {
        if (code.units[u].len == 0) continue;
        cu_result result = d->cu.module_load(&l->modules[u], code.units[u].data);
        if (result != CU_OK) status = lt_cuda_fail(d, result, "loading the kernels", err);
    }
    lt_cuda_code_free(&code);
    if (status != LATTICE_OK) {
        library_free(device, l);
        return status;
    }
    *out = l;
    return LATTICE_OK;
}

static lattice_status find(lt_gpu_device *device, void *from, const char *name, void **kernel, lattice_error *err)
{
    cuda_device *d = enter(device);
    const library *l = from;
    cu_result result = CU_OK;
    for (int u = 0; u < LT_GPU_UNITS; u++) {
        if (!l->modules[u]) continue;
        result = d->cu.module_function(kernel, l->modules[u], name);
        if (result == CU_OK) return LATTICE_OK;
    }
    return lt_cuda_fail(d, result, name, err);
}

static lattice_status launch(lt_gpu_device *device, const lt_gpu_launch *l, lattice_error *err)
{
    cuda_device *d = enter(device);
    cu_pointer pointers[LT_GPU_MAX_BUFFERS];
    void *parameters[LT_GPU_MAX_BUFFERS + 1];
    unsigned char args[MAX_ARGS];
    if (l->args_size > sizeof args || l->grid[0] > INT32_MAX || l->grid[1] > 65535)
        return lt_fail(err, LATTICE_ERR_DEVICE, "cuda: a grid of %zu x %zu is too large", l->grid[0], l->grid[1]);
    if (l->shared_bytes > 48 << 10) /* more than every kernel may have has to be asked for */
        CU_TRY(d, "shared memory", d->cu.function_set(l->kernel, CU_FUNCTION_MAX_DYNAMIC_SHARED, (int)l->shared_bytes));
    memcpy(args, l->args, l->args_size);
    for (int i = 0; i < l->n_buffers; i++) {
        pointers[i] = lt_cuda_pointer(l->buffers[i]);
        parameters[i] = &pointers[i];
    }
    parameters[l->n_buffers] = args;
    cu_launch_attribute attributes[2];
    unsigned n_attributes = 0;
    if (l->early && d->target.major >= 9 && d->target.driver_version >= CU_DRIVER_RECORDS_PROGRAMMATIC)
        attributes[n_attributes++] = (cu_launch_attribute){ .id = CU_LAUNCH_PROGRAMMATIC, .value.number = 1 };
    if (l->cluster > 1)
        attributes[n_attributes++] =
            (cu_launch_attribute){ .id = CU_LAUNCH_CLUSTER, .value.cluster = { (unsigned)l->cluster, 1, 1 } };
    const cu_launch settings = {
        .grid = { (unsigned)l->grid[0], (unsigned)l->grid[1], 1 },
        .block = { (unsigned)l->threads, 1, 1 },
        .shared_bytes = (unsigned)l->shared_bytes,
        .stream = d->stream,
        .attributes = attributes,
        .n_attributes = n_attributes,
    };
    CU_TRY(d, "a launch", d->cu.launch(&settings, l->kernel, parameters, NULL));
    return LATTICE_OK;
}

static lattice_status finish(lt_gpu_device *device, lattice_error *err)
{
    cuda_device *d = enter(device);
    CU_TRY(d, "waiting for the device", d->cu.stream_finish(d->stream));
    return LATTICE_OK;
}

/* ------------------------------------------------------------------ memory */

static lattice_status allocate(lt_gpu_device *device, size_t size, void **memory, lattice_error *err)
{
    cuda_device *d = enter(device);
    char what[64];
    cu_pointer pointer = 0;
    snprintf(what, sizeof what, "%zu bytes of device memory", size);
    *memory = NULL;
    CU_TRY(d, what, d->cu.allocate(&pointer, size > 0 ? size : 1));
    *memory = (void *)(uintptr_t)pointer;
    return LATTICE_OK;
}

static void release(lt_gpu_device *device, void *memory)
{
    if (!memory) return;
    cuda_device *d = enter(device);
    d->cu.stream_finish(d->stream);
    d->cu.release((cu_pointer)(uintptr_t)memory);
}

typedef struct copy_task {
    char *to;
    const char *from;
    size_t size;
} copy_task;

/* Reading a mapped file takes page faults, so all threads share in it. */
static void copy_part(void *arg, int thread, int n_threads)
{
    const copy_task *task = arg;
    size_t begin = task->size / (size_t)n_threads * (size_t)thread;
    size_t end = thread + 1 == n_threads ? task->size : task->size / (size_t)n_threads * ((size_t)thread + 1);
    memcpy(task->to + begin, task->from + begin, end - begin);
}

static lattice_status open_staging(cuda_device *d, lattice_error *err)
{
    for (int i = 0; i < 2; i++) {
        if (d->staging[i]) continue;
        CU_TRY(d, "pinned memory", d->cu.host_allocate(&d->staging[i], STAGING));
        CU_TRY(d, "an event", d->cu.event_create(&d->staged[i], 2 /* no timing */));
        CU_TRY(d, "an event", d->cu.event_record(d->staged[i], d->stream));
    }
    return LATTICE_OK;
}

/* Through two pinned buffers in turn: while one is on its way, the other is filled. */
static lattice_status upload(lt_gpu_device *device, lt_gpu_ref to, const void *data, size_t size, lattice_error *err)
{
    enum { SHARE = 1 << 20 }; /* below, one thread copies */
    cuda_device *d = enter(device);
    LT_TRY(open_staging(d, err));
    for (size_t done = 0; done < size;) {
        size_t part = size - done < STAGING ? size - done : STAGING;
        int i = d->next_staging;
        d->next_staging = 1 - i;
        CU_TRY(d, "an upload", d->cu.event_finish(d->staged[i]));
        copy_task task = { d->staging[i], (const char *)data + done, part };
        if (part >= SHARE)
            lt_pool_run(d->runtime->pool, copy_part, &task);
        else
            memcpy(task.to, task.from, part);
        CU_TRY(d, "an upload", d->cu.upload(lt_cuda_pointer(lt_gpu_at(to, done)), d->staging[i], part, d->stream));
        CU_TRY(d, "an upload", d->cu.event_record(d->staged[i], d->stream));
        done += part;
    }
    return LATTICE_OK;
}

/* Through the pinned buffers in turn (the driver's own way for other memory is slower): while one part is copied on, the next is
 * on its way. */
static lattice_status download(lt_gpu_device *device, void *data, lt_gpu_ref from, size_t size, lattice_error *err)
{
    enum { FEW = 4 << 20, PART = 256 << 10, SHARE = 2 << 20 };
    cuda_device *d = enter(device);
    LT_TRY(open_staging(d, err));
    const size_t most = size <= FEW ? PART : FEW;
    const int first = d->next_staging; /* part number n goes through buffer (first + n) % 2 */
    int n_asked = 0, n_done = 0;
    for (size_t asked = 0, done = 0; done < size; n_done++) {
        for (; asked < size && n_asked < n_done + 2; n_asked++) {
            const int i = (first + n_asked) % 2;
            size_t part = size - asked < most ? size - asked : most;
            CU_TRY(d, "a download", d->cu.event_finish(d->staged[i]));
            CU_TRY(d, "a download", d->cu.download(d->staging[i], lt_cuda_pointer(lt_gpu_at(from, asked)), part, d->stream));
            CU_TRY(d, "a download", d->cu.event_record(d->staged[i], d->stream));
            asked += part;
        }
        const int i = (first + n_done) % 2;
        copy_task task = { (char *)data + done, d->staging[i], size - done < most ? size - done : most };
        CU_TRY(d, "a download", d->cu.event_finish(d->staged[i]));
        if (task.size >= SHARE)
            lt_pool_run(d->runtime->pool, copy_part, &task);
        else
            memcpy(task.to, task.from, task.size);
        done += task.size;
    }
    d->next_staging = (first + n_asked) % 2;
    return LATTICE_OK;
}

static lattice_status copy(lt_gpu_device *device, lt_gpu_ref to, lt_gpu_ref from, size_t size, lattice_error *err)
{
    cuda_device *d = enter(device);
    CU_TRY(d, "a copy", d->cu.copy(lt_cuda_pointer(to), lt_cuda_pointer(from), size, d->stream));
    return LATTICE_OK;
}

/* ------------------------------------------------------------------ recordings: graphs */

static lattice_status record_begin(lt_gpu_device *device, lattice_error *err)
{
    cuda_device *d = enter(device);
    CU_TRY(d, "recording", d->cu.capture_begin(d->stream, 2 /* whatever other threads do */));
    return LATTICE_OK;
}

static lattice_status record_end(lt_gpu_device *device, void **recording, lattice_error *err)
{
    cuda_device *d = enter(device);
    void *graph = NULL;
    cu_result result = d->cu.capture_end(d->stream, &graph);
    if (result == CU_OK && recording) result = d->cu.graph_make(recording, graph, 0);
    if (graph) d->cu.graph_free(graph);
    return result == CU_OK ? LATTICE_OK : lt_cuda_fail(d, result, "recording", err);
}

static lattice_status replay(lt_gpu_device *device, void *recording, lattice_error *err)
{
    cuda_device *d = enter(device);
    CU_TRY(d, "replaying", d->cu.graph_launch(recording, d->stream));
    return LATTICE_OK;
}

static void recording_free(lt_gpu_device *device, void *recording)
{
    cuda_device *d = enter(device);
    d->cu.stream_finish(d->stream);
    d->cu.graph_made_free(recording);
}

/* ------------------------------------------------------------------ opening */

static void device_free(lt_gpu_device *device)
{
    cuda_device *d = (cuda_device *)device;
    if (d->context) {
        d->cu.context_set(d->context);
        if (d->stream) d->cu.stream_finish(d->stream);
        lt_cuda_blas_close(d);
        for (int i = 0; i < 2; i++) {
            if (d->staged[i]) d->cu.event_destroy(d->staged[i]);
            if (d->staging[i]) d->cu.host_release(d->staging[i]);
        }
        if (d->stream) d->cu.stream_destroy(d->stream);
        d->cu.context_set(NULL);
        d->cu.context_release(d->device);
    }
    lt_cuda_unload(&d->cu.handle);
    lt_free(&d->runtime->mem, d);
}

/* Loads and initialises the driver; false and the reason where there is none, or no device. */
static bool start_driver(cuda_driver_api *cu, int *count, char *text, size_t size)
{
    if (!lt_cuda_load_driver(cu, text, size)) return false;
    cu_result result = cu->init(0);
    *count = 0;
    if (result == CU_OK) result = cu->device_count(count);
    if (result == CU_OK && *count > 0) return true;
    const char *why = "no device";
    if (result != CU_OK) cu->error_text(result, &why);
    snprintf(text, size, "%s", why ? why : "the driver does not start");
    lt_cuda_unload(&cu->handle);
    return false;
}

static lattice_status open_device(cuda_device *d, int index, lattice_error *err)
{
    size_t bytes = 0;
    CU_TRY(d, "the device", d->cu.device_get(&d->device, index));
    CU_TRY(d, "its name", d->cu.device_name(d->base.name, (int)sizeof d->base.name, d->device));
    CU_TRY(d, "its memory", d->cu.device_memory(&bytes, d->device));
    d->base.memory_bytes = bytes;
    CU_TRY(d, "its version", d->cu.device_attribute(&d->target.major, CU_ATTRIBUTE_MAJOR, d->device));
    CU_TRY(d, "its version", d->cu.device_attribute(&d->target.minor, CU_ATTRIBUTE_MINOR, d->device));
    CU_TRY(d, "its multiprocessors", d->cu.device_attribute(&d->target.processors, CU_ATTRIBUTE_PROCESSORS, d->device));
    CU_TRY(d, "the driver's version", d->cu.driver_version(&d->target.driver_version));
    CU_TRY(d, "a context", d->cu.context_retain(&d->context, d->device));
    CU_TRY(d, "a context", d->cu.context_set(d->context));
    CU_TRY(d, "a stream", d->cu.stream_create(&d->stream, 1 /* not ordered with the default stream */));
    lt_cuda_blas_open(d);
    return LATTICE_OK;
}

static lattice_status cuda_open(lattice_runtime *runtime, int index, lt_gpu_device **device, lattice_error *err)
{
    *device = NULL;
    cuda_device *d = lt_alloc_zero(&runtime->mem, sizeof *d);
    if (!d) return lt_no_memory(err, sizeof *d, "a device");
    char text[200];
    int count;
    lattice_status status = LATTICE_OK;
    d->runtime = runtime;
    if (!start_driver(&d->cu, &count, text, sizeof text))
        status = lt_fail(err, LATTICE_ERR_NOT_FOUND, "cuda: no device can be used: %s", text);
    else if (index >= count)
        status = lt_fail(err, LATTICE_ERR_NOT_FOUND, "cuda: there is no device %d; this machine has %d", index, count);
    else
        status = open_device(d, index, err);
    if (status != LATTICE_OK) {
        device_free(&d->base);
        return status;
    }
    d->base.driver = "cuda";
    d->base.shim = lt_gpu_shim_cuda();
    lt_cuda_own_kernels(d);
    d->base.build = build;
    d->base.find = find;
    d->base.library_free = library_free;
    d->base.allocate = allocate;
    d->base.release = release;
    d->base.upload = upload;
    d->base.download = download;
    d->base.copy = copy;
    d->base.launch = launch;
    d->base.finish = finish;
    d->base.record_begin = record_begin;
    d->base.record_end = record_end;
    d->base.replay = replay;
    d->base.recording_free = recording_free;
    d->base.free = device_free;
    *device = &d->base;
    return LATTICE_OK;
}

static bool cuda_describe(char *text, size_t size)
{
    cuda_driver_api cu = { 0 };
    int count;
    if (!start_driver(&cu, &count, text, size)) return false;
    size_t length = 0;
    text[0] = '\0';
    for (int i = 0; i < count && length < size; i++) {
        cu_device device = 0;
        char name[96] = "";
        size_t bytes = 0;
        if (cu.device_get(&device, i) != CU_OK) continue;
        cu.device_name(name, (int)sizeof name, device);
        cu.device_memory(&bytes, device);
        int n = snprintf(text + length, size - length, "%s%s, %zu GiB", i > 0 ? "; " : "", name, bytes >> 30);
        if (n > 0) length += (size_t)n;
    }
    lt_cuda_unload(&cu.handle);
    return true;
}

const lt_gpu_driver lt_gpu_cuda = { .name = "cuda", .open = cuda_open, .describe = cuda_describe };
