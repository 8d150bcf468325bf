/* The table of device.h over the emulator: memory is the host's, the template's Metal text is compiled by clang. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "backend/gpu/template.h"
#include "emulator.h"

int lt_emulated_devices = 1, lt_emulated_fail_device = -1, lt_emulated_meet;
long lt_emulated_fail_at, lt_emulated_launches, lt_emulated_launches_of[LT_EMULATED_MOST];
size_t lt_emulated_memory, lt_emulated_used_of[LT_EMULATED_MOST];
lattice_status lt_emulated_open_status;
bool lt_emulated_checked;
int lt_emulated_without;

/* The emulator runs one group at a time: several devices take turns. */
static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t met = PTHREAD_COND_INITIALIZER;
static unsigned arrived; /* devices */

void lt_emulated_reset(void)
{
    lt_emulated_devices = 1;
    lt_emulated_fail_device = -1;
    lt_emulated_meet = 0;
    lt_emulated_fail_at = lt_emulated_launches = 0;
    memset(lt_emulated_launches_of, 0, sizeof lt_emulated_launches_of);
    lt_emulated_memory = 0;
    lt_emulated_open_status = LATTICE_OK;
}

typedef struct emulated {
    lt_gpu_device base;
    lattice_runtime *runtime;
    int number;
    bool failed;
} emulated;

typedef struct library {
    void *handle;
    char *group_begin, *group_end;
} library;

typedef struct block {
    size_t size;
    char pad[256 - sizeof(size_t)];
} block;

/* No generic address space, as in Metal: a pointer without one is an error. A distinct address space of threadgroup memory keeps
 * clang from turning it into locals. Threadgroup arrays become statics, whose section is renamed so that its bounds are known. */
#define COMPILE                                                                                                                  \
    "cd %s && " LT_CLANG                                                                                                         \
    " -x cl -cl-std=clc++2021 -Xclang -cl-ext=-__opencl_c_generic_address_space,-__opencl_c_pipes,-__opencl_c_device_enqueue,"   \
    "-__opencl_c_program_scope_global_variables -cl-no-stdinc -march=native -fPIC -I" LT_METAL_STANDIN                           \
    " -Wall -Wconversion -Werror -Wno-unused-function -ffp-contract=off %s -c k.metal -o k.o "                                   \
    ">log 2>&1 && objcopy --rename-section .bss=tgmem,alloc,load,data,contents k.o && "                                          \
    "printf 'extern char __start_tgmem[] __attribute__((weak)), __stop_tgmem[] __attribute__((weak));\\n"                        \
    "char *lt_group_begin = __start_tgmem, *lt_group_end = __stop_tgmem;\\n' >g.c && " LT_CLANG                                  \
    " -fPIC -shared g.c k.o -o k.so -lm >>log 2>&1"

/* Accesses are watched in the address space of the host only, where threadgroup memory lies when there is no map; without
 * optimisation it stays in memory, too. */
#define PLAIN "-O2 -Xclang -ffake-address-space-map"
#define CHECKED "-O0 -fsanitize=thread"

/* Writes the source without barrier number lt_emulated_without; those of the shim's definitions do not count. */
static bool write_source(FILE *f, lt_str source)
{
    static const char *const names[] = { "K_BARRIER()", "K_SIMD_BARRIER()" };
    size_t from = 0;
    int count = 0;
    for (size_t i = 0; i < source.len && lt_emulated_without > 0; i++) {
        for (int n = 0; n < 2; n++) {
            size_t length = strlen(names[n]);
            if (source.len - i <= length || memcmp(source.data + i, names[n], length) != 0 || source.data[i + length] != ';')
                continue;
            if (++count != lt_emulated_without) continue;
            if (fwrite(source.data, 1, i, f) != i) return false;
            from = i + length;
        }
    }
    return fwrite(source.data + from, 1, source.len - from, f) == source.len - from;
}

static void remove_folder(const char *folder)
{
    static const char *const names[] = { "k.metal", "k.o", "k.so", "g.c", "log" };
    char path[300];
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        unlink(path);
    }
    rmdir(folder);
}

static lattice_status build(lt_gpu_device *device, lt_str source, void **out, lattice_error *err)
{
    emulated *d = (emulated *)device;
    char folder[] = "/tmp/lattice-metal-XXXXXX", path[300], command[4096], log[400] = "";
    if (!mkdtemp(folder)) return lt_fail(err, LATTICE_ERR_DEVICE, "emulated: no temporary folder");
    snprintf(path, sizeof path, "%s/k.metal", folder);
    FILE *f = fopen(path, "wb");
    if (!f || !write_source(f, source) || fclose(f) != 0)
        return lt_fail(err, LATTICE_ERR_DEVICE, "emulated: the source cannot be written");
    snprintf(command, sizeof command, COMPILE, folder, lt_emulated_checked ? CHECKED : PLAIN);
    library *l = calloc(1, sizeof *l);
    snprintf(path, sizeof path, "%s/k.so", folder);
    if (system(command) == 0 && !(l->handle = dlopen(path, RTLD_NOW | RTLD_LOCAL))) fprintf(stderr, "%s\n", dlerror());
    lattice_status status = LATTICE_OK;
    if (!l->handle) {
        snprintf(path, sizeof path, "%s/log", folder);
        FILE *text = fopen(path, "rb");
        if (text) {
            log[fread(log, 1, sizeof log - 1, text)] = '\0';
            fclose(text);
        }
        status = lt_fail(err, LATTICE_ERR_DEVICE, "emulated: the Metal text does not compile: %s", log);
        free(l);
    } else {
        l->group_begin = *(char **)dlsym(l->handle, "lt_group_begin");
        l->group_end = *(char **)dlsym(l->handle, "lt_group_end");
        *out = l;
    }
    (void)d;
    remove_folder(folder);
    return status;
}

typedef struct kernel {
    library *library;
    void *function;
} kernel;

static kernel kernels[256]; /* handed out and never taken back: a test program has few */
static size_t n_kernels;

static lattice_status find(lt_gpu_device *device, void *from, const char *name, void **out, lattice_error *err)
{
    (void)device;
    library *l = from;
    void *function = dlsym(l->handle, name);
    if (!function || n_kernels == sizeof kernels / sizeof *kernels)
        return lt_fail(err, LATTICE_ERR_DEVICE, "emulated: no kernel '%s'", name);
    for (size_t i = 0; i < n_kernels; i++) {
        if (kernels[i].function == function) kernels[i].function = NULL;
    }
    size_t i = 0;
    while (i < n_kernels && kernels[i].function) i++;
    if (i == n_kernels) n_kernels++;
    kernels[i] = (kernel){ l, function };
    *out = &kernels[i];
    return LATTICE_OK;
}

static void library_free(lt_gpu_device *device, void *from)
{
    (void)device;
    library *l = from;
    for (size_t i = 0; i < n_kernels; i++) {
        if (kernels[i].library == l) kernels[i] = (kernel){ 0 };
    }
    dlclose(l->handle);
    free(l);
}

static lattice_status allocate(lt_gpu_device *device, size_t size, void **memory, lattice_error *err)
{
    emulated *d = (emulated *)device;
    *memory = NULL;
    if (lt_emulated_memory > 0 && (size > lt_emulated_memory || lt_emulated_used_of[d->number] > lt_emulated_memory - size))
        return lt_fail(err, LATTICE_ERR_NO_MEMORY, "emulated: no memory for %zu bytes", size);
    block *b = malloc(sizeof *b + size);
    if (!b) return lt_no_memory(err, size, "emulated memory");
    b->size = size;
    lt_emulated_used_of[d->number] += size;
    memset(b + 1, 0xff, size); /* NaN: what was never written is seen */
    *memory = b + 1;
    return LATTICE_OK;
}

static void release(lt_gpu_device *device, void *memory)
{
    if (!memory) return;
    block *b = (block *)memory - 1;
    lt_emulated_used_of[((emulated *)device)->number] -= b->size;
    free(b);
}

/* Every access is checked against the allocation it belongs to. */
static void *address(lt_gpu_ref ref, size_t size)
{
    const block *b = (const block *)ref.memory - 1;
    if (ref.offset > b->size || size > b->size - ref.offset) abort();
    return (char *)ref.memory + ref.offset;
}

static lattice_status upload(lt_gpu_device *device, lt_gpu_ref to, const void *data, size_t size, lattice_error *err)
{
    (void)device;
    (void)err;
    memcpy(address(to, size), data, size);
    return LATTICE_OK;
}

static lattice_status download(lt_gpu_device *device, void *data, lt_gpu_ref from, size_t size, lattice_error *err)
{
    (void)device;
    (void)err;
    memcpy(data, address(from, size), size);
    return LATTICE_OK;
}

static lattice_status copy(lt_gpu_device *device, lt_gpu_ref to, lt_gpu_ref from, size_t size, lattice_error *err)
{
    (void)device;
    (void)err;
    memcpy(address(to, size), address(from, size), size);
    return LATTICE_OK;
}

bool lt_emulated_run(void *kernel_of, void *const *arguments, int n, size_t grid_x, size_t grid_y, size_t threads,
                     const char **fault)
{
    const kernel *k = kernel_of;
    size_t group_size = (size_t)(k->library->group_end - k->library->group_begin);
    return lt_emulate(k->function, arguments, n, (uint32_t)grid_x, (uint32_t)grid_y, (uint32_t)threads, k->library->group_begin,
                      group_size, fault);
}

static lattice_status launch_in_turn(emulated *d, const lt_gpu_launch *l, lattice_error *err)
{
    void *arguments[LT_GPU_MAX_BUFFERS + 1];
    const char *fault;
    lt_emulated_launches_of[d->number]++;
    bool fails = ++lt_emulated_launches >= lt_emulated_fail_at && lt_emulated_fail_at > 0 &&
                 (lt_emulated_fail_device < 0 || lt_emulated_fail_device == d->number);
    d->failed = d->failed || fails;
    if (d->failed) return lt_fail(err, LATTICE_ERR_DEVICE, "emulated: injected fault");
    for (int i = 0; i < l->n_buffers; i++) arguments[i] = address(l->buffers[i], 0);
    arguments[l->n_buffers] = (void *)(uintptr_t)l->args;
    if (!lt_emulated_run(l->kernel, arguments, l->n_buffers + 1, l->grid[0], l->grid[1], l->threads, &fault))
        return lt_fail(err, LATTICE_ERR_DEVICE, "emulated: %s", fault);
    return LATTICE_OK;
}

/* With the turn, which is given up meanwhile. */
static bool meet_others(const emulated *d)
{
    struct timespec end;
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += 120;
    arrived |= 1u << d->number;
    if (__builtin_popcount(arrived) >= lt_emulated_meet) {
        lt_emulated_meet = 0;
        arrived = 0;
        pthread_cond_broadcast(&met);
    }
    while (lt_emulated_meet > 0) {
        if (pthread_cond_timedwait(&met, &turn, &end) != 0) return false;
    }
    return true;
}

static lattice_status launch(lt_gpu_device *device, const lt_gpu_launch *l, lattice_error *err)
{
    pthread_mutex_lock(&turn);
    lattice_status status = LATTICE_OK;
    if (lt_emulated_meet > 0 && !meet_others((emulated *)device))
        status = lt_fail(err, LATTICE_ERR_DEVICE, "emulated: the other devices have nothing to do");
    if (status == LATTICE_OK) status = launch_in_turn((emulated *)device, l, err);
    pthread_mutex_unlock(&turn);
    return status;
}

static lattice_status finish(lt_gpu_device *device, lattice_error *err)
{
    (void)device;
    (void)err;
    return LATTICE_OK;
}

static void device_free(lt_gpu_device *device)
{
    emulated *d = (emulated *)device;
    lt_free(&d->runtime->mem, d);
}

static lattice_status open_emulated(lattice_runtime *runtime, int index, lt_gpu_device **device, lattice_error *err)
{
    *device = NULL;
    if (lt_emulated_open_status != LATTICE_OK)
        return lt_fail(err, lt_emulated_open_status, "emulated: the device does not start");
    if (index >= lt_emulated_devices) return lt_fail(err, LATTICE_ERR_NOT_FOUND, "emulated: there is no device %d", index);
    emulated *d = lt_alloc_zero(&runtime->mem, sizeof *d);
    if (!d) return lt_no_memory(err, sizeof *d, "a device");
    d->runtime = runtime;
    d->number = index;
    d->base = (lt_gpu_device){
        .driver = "emulated",
        .name = "emulated Metal",
        .shim = lt_gpu_shim_metal(),
        .extra = LT_STR(""),
        .build = build,
        .find = find,
        .library_free = library_free,
        .allocate = allocate,
        .release = release,
        .upload = upload,
        .download = download,
        .copy = copy,
        .launch = launch,
        .finish = finish,
        .free = device_free,
    };
    *device = &d->base;
    return LATTICE_OK;
}

static bool describe(char *text, size_t size)
{
    snprintf(text, size, "emulated Metal");
    return true;
}

const lt_gpu_driver lt_gpu_emulated = { .name = "emulated", .open = open_emulated, .describe = describe };

bool lt_emulator_works(void)
{
#if defined(__x86_64__)
    return access(LT_CLANG, X_OK) == 0 && system("objcopy --version >/dev/null 2>&1") == 0;
#else
    return false;
#endif
}

lattice_status lt_emulated_build(lt_str source, void **out, lattice_error *err)
{
    return build(NULL, source, out, err);
}

void *lt_emulated_find(void *from, const char *name)
{
    void *out = NULL;
    return find(NULL, from, name, &out, NULL) == LATTICE_OK ? out : NULL;
}

void lt_emulated_library_free(void *from)
{
    library_free(NULL, from);
}
