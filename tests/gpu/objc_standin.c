/* Objects are counted and never freed before lt_standin_reset, so that a message to one that is gone is seen. objc_msgSend looks
 * the method up and jumps to it, as the real one does: the caller's cast has to be the method's type, which METHOD checks when
 * this file is compiled. */
#include "objc_standin.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "emulator.h"

enum { MAX_INDEX = 31, MAX_ARGUMENTS = 9, MAX_POOLS = 16, MAX_POOLED = 256, ALIVE = 0x0b1ec7, GONE = 0xdead };
enum { NOT_ENQUEUED = 0, COMMITTED = 2, DONE = 4, FAILED = 5 }; /* MTLCommandBufferStatus */

typedef void (*method_address)(void);

typedef struct method {
    const char *selector;
    method_address address;
    size_t checked;
} method;

typedef struct class class;

typedef struct argument {
    objc_id buffer;
    size_t offset, size;
    void *bytes; /* of setBytes */
    bool set;
} argument;

typedef struct dispatch {
    objc_id pipeline;
    argument arguments[MAX_ARGUMENTS];
    int n;
    metal_size grid, threads;
} dispatch;

/* One kind of struct for all: what a class does not use is zero. */
struct objc_object {
    const class *class;
    unsigned state;
    long retains;
    struct objc_object *all;
    char *text;             /* string; error: description */
    long code;              /* error */
    bool fast_math;         /* options */
    void *kernels, *kernel; /* of the emulator */
    objc_id owner;          /* function and pipeline: library; commands: queue; encoder: commands */
    char *data;             /* buffer */
    size_t size;
    bool is_view;
    ns_uint status; /* commands */
    objc_id error;
    bool has_encoder, ended;
    dispatch *dispatches;
    size_t n_dispatches, capacity;
    argument arguments[MAX_INDEX]; /* encoder */
    objc_id pipeline;
};

struct class
{
    const char *name;
    const method *methods;
    void (*dealloc)(objc_id self);
};

struct objc_selector {
    const char *name;
};

standin_plan lt_standin_plan;

static struct {
    objc_id all, device;
    standin_counts counts;
    char fault[300];
    struct objc_selector selectors[64];
    int n_selectors;
    objc_id pools[MAX_POOLS][MAX_POOLED];
    size_t pooled[MAX_POOLS];
    objc_id committed[128]; /* oldest first; retained */
    size_t used_memory;
} s;

static void fault(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void fault(const char *format, ...)
{
    va_list list;
    va_start(list, format);
    vsnprintf(s.fault, sizeof s.fault, format, list);
    va_end(list);
    s.counts.faults++;
    fprintf(stderr, "stand-in: %s\n", s.fault);
}

/* ------------------------------------------------------------------ objects */

static objc_id create(const class *c)
{
    objc_id o = calloc(1, sizeof *o);
    *o = (struct objc_object){ .class = c, .state = ALIVE, .retains = 1, .all = s.all };
    s.all = o;
    s.counts.live++;
    return o;
}

static bool is_alive(objc_id o, const class *c, const char *what)
{
    if (o && o->state == ALIVE && (!c || o->class == c)) return true;
    fault("%s is %s", what, !o ? "nil" : o->state != ALIVE ? "gone" : "of another class");
    return false;
}

static objc_id object_retain(objc_id self, objc_sel cmd)
{
    (void)cmd;
    self->retains++;
    return self;
}

static void object_release(objc_id self, objc_sel cmd)
{
    (void)cmd;
    if (--self->retains > 0) return;
    if (self->class->dealloc) self->class->dealloc(self);
    self->state = GONE;
    s.counts.live--;
}

static void drop(objc_id o)
{
    if (o) object_release(o, NULL);
}

static objc_id autorelease(objc_id o)
{
    long depth = s.counts.pools;
    if (depth == 0)
        fault("an object of class %s is given without a pool", o->class->name);
    else if (s.pooled[depth - 1] == MAX_POOLED)
        fault("a pool holds more than %d objects", MAX_POOLED);
    else
        s.pools[depth - 1][s.pooled[depth - 1]++] = o;
    return o;
}

static void *push_pool(void)
{
    if (s.counts.pools == MAX_POOLS) {
        fault("pools are not popped");
        return NULL;
    }
    s.pooled[s.counts.pools++] = 0;
    return (void *)(uintptr_t)s.counts.pools;
}

static void pop_pool(void *pool)
{
    if (s.counts.pools == 0 || (uintptr_t)pool != (uintptr_t)s.counts.pools) {
        fault("a pool is popped that is not the innermost");
        return;
    }
    size_t depth = (size_t)s.counts.pools - 1;
    for (size_t i = 0; i < s.pooled[depth]; i++) drop(s.pools[depth][i]);
    s.counts.pools--;
}

/* ------------------------------------------------------------------ strings, errors, options */

static const class string_class, error_class, options_class, device_class, library_class, function_class, pipeline_class,
    buffer_class, queue_class, commands_class, encoder_class;

static void text_dealloc(objc_id self)
{
    free(self->text);
}

static objc_id make_string(const char *text)
{
    objc_id o = create(&string_class);
    o->text = strdup(text);
    return autorelease(o);
}

static objc_id string_with_utf8(objc_id self, objc_sel cmd, const char *text)
{
    (void)self;
    (void)cmd;
    return make_string(text);
}

static const char *string_utf8(objc_id self, objc_sel cmd)
{
    (void)cmd;
    return self->text;
}

static objc_id make_error(const char *text, long code)
{
    objc_id o = create(&error_class);
    o->text = strdup(text);
    o->code = code;
    return o;
}

static objc_id error_description(objc_id self, objc_sel cmd)
{
    (void)cmd;
    return make_string(self->text);
}

static ns_int error_code(objc_id self, objc_sel cmd)
{
    (void)cmd;
    return self->code;
}

static objc_id options_new(objc_id self, objc_sel cmd)
{
    (void)self;
    (void)cmd;
    objc_id o = create(&options_class);
    o->fast_math = true;
    return o;
}

static void options_set_fast_math(objc_id self, objc_sel cmd, bool on)
{
    (void)cmd;
    self->fast_math = on;
}

/* ------------------------------------------------------------------ device, kernels */

static objc_id default_device(void)
{
    if (lt_standin_plan.no_device) return NULL;
    if (s.device && s.device->state == ALIVE) return object_retain(s.device, NULL);
    return s.device = create(&device_class);
}

static objc_id device_name(objc_id self, objc_sel cmd)
{
    (void)self;
    (void)cmd;
    return make_string("Stand-in M0");
}

static uint64_t device_working_set(objc_id self, objc_sel cmd)
{
    (void)self;
    (void)cmd;
    return (uint64_t)12 << 30;
}

static ns_uint device_max_buffer(objc_id self, objc_sel cmd)
{
    (void)self;
    (void)cmd;
    return (ns_uint)8 << 30;
}

static objc_id device_new_queue(objc_id self, objc_sel cmd)
{
    (void)self;
    (void)cmd;
    return lt_standin_plan.no_queue ? NULL : create(&queue_class);
}

static objc_id refuse(objc_id *error, const char *text, long code)
{
    if (error) *error = autorelease(make_error(text, code));
    return NULL;
}

static objc_id device_new_library(objc_id self, objc_sel cmd, objc_id source, objc_id options, objc_id *error)
{
    (void)self;
    (void)cmd;
    lattice_error err;
    if (!is_alive(source, &string_class, "the source")) return NULL;
    if (options && !is_alive(options, &options_class, "the options")) return NULL;
    if (!options || options->fast_math) s.counts.fast_math = true;
    if (lt_standin_plan.compile_error) return refuse(error, lt_standin_plan.compile_error, 3);
    void *kernels;
    if (lt_emulated_build(lt_str_of(source->text), &kernels, &err) != LATTICE_OK) return refuse(error, err.message, 3);
    objc_id o = create(&library_class);
    o->kernels = kernels;
    return o;
}

static void library_dealloc(objc_id self)
{
    lt_emulated_library_free(self->kernels);
}

static bool is_named(const char *name, const char *wanted)
{
    return wanted && strcmp(name, wanted) == 0;
}

static objc_id library_new_function(objc_id self, objc_sel cmd, objc_id name)
{
    (void)cmd;
    if (!is_alive(name, &string_class, "a kernel's name") || is_named(name->text, lt_standin_plan.missing_kernel)) return NULL;
    void *kernel = lt_emulated_find(self->kernels, name->text);
    if (!kernel) return NULL;
    objc_id o = create(&function_class);
    o->owner = object_retain(self, NULL);
    o->kernel = kernel;
    o->text = strdup(name->text);
    return o;
}

static void function_dealloc(objc_id self)
{
    drop(self->owner);
    free(self->text);
}

static objc_id device_new_pipeline(objc_id self, objc_sel cmd, objc_id function, objc_id *error)
{
    (void)self;
    (void)cmd;
    if (!is_alive(function, &function_class, "a pipeline's function")) return NULL;
    if (is_named(function->text, lt_standin_plan.pipeline_error)) return refuse(error, "the kernel uses too many registers", 2);
    objc_id o = create(&pipeline_class);
    o->owner = object_retain(function->owner, NULL);
    o->kernel = function->kernel;
    return o;
}

static void owner_dealloc(objc_id self)
{
    drop(self->owner);
}

static ns_uint pipeline_simd_width(objc_id self, objc_sel cmd)
{
    (void)self;
    (void)cmd;
    return lt_standin_plan.simd_width ? lt_standin_plan.simd_width : 32;
}

static ns_uint pipeline_max_threads(objc_id self, objc_sel cmd)
{
    (void)self;
    (void)cmd;
    return lt_standin_plan.max_threads ? lt_standin_plan.max_threads : 1024;
}

/* ------------------------------------------------------------------ buffers */

static objc_id device_new_buffer(objc_id self, objc_sel cmd, ns_uint length, ns_uint options)
{
    if (options != 0) fault("a buffer of %lu bytes is not shared", length);
    if (length == 0 || length > device_max_buffer(self, cmd)) fault("a buffer of %lu bytes", length);
    if (lt_standin_plan.memory > 0 && s.used_memory + length > lt_standin_plan.memory) return NULL;
    objc_id o = create(&buffer_class);
    o->data = malloc(length);
    o->size = length;
    memset(o->data, 0xff, length); /* NaN: what nobody has written is seen */
    s.used_memory += length;
    return o;
}

static objc_id device_new_view(objc_id self, objc_sel cmd, void *bytes, ns_uint length, ns_uint options, objc_id deallocator)
{
    (void)self;
    (void)cmd;
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    if ((uintptr_t)bytes % page || length % page || length == 0)
        fault("a view of %lu bytes at %p is not of whole pages", length, bytes);
    if (options != 0 || deallocator) fault("a view with options %lu or a deallocator", options);
    unsigned char *resident = malloc(length / page + 1);
    bool mapped = mincore(bytes, length, resident) == 0;
    free(resident);
    if (!mapped) {
        fault("a view of memory that is not there");
        return NULL;
    }
    if (lt_standin_plan.refuses_views) return NULL;
    objc_id o = create(&buffer_class);
    o->data = bytes;
    o->size = length;
    o->is_view = true;
    s.counts.views++;
    return o;
}

static void buffer_dealloc(objc_id self)
{
    if (self->is_view) return;
    s.used_memory -= self->size;
    free(self->data);
}

static void *buffer_contents(objc_id self, objc_sel cmd)
{
    (void)cmd;
    if (self->is_view) fault("the contents of a view are asked for: they are the host's");
    return self->data;
}

/* ------------------------------------------------------------------ commands */

static objc_id queue_commands(objc_id self, objc_sel cmd)
{
    (void)cmd;
    objc_id o = create(&commands_class);
    o->owner = object_retain(self, NULL);
    return autorelease(o);
}

static void drop_arguments(argument *arguments, int n)
{
    for (int i = 0; i < n; i++) {
        drop(arguments[i].buffer);
        free(arguments[i].bytes);
        arguments[i] = (argument){ 0 };
    }
}

static void commands_dealloc(objc_id self)
{
    if (self->has_encoder) fault("a command buffer goes with its encoder open");
    for (size_t i = 0; i < self->n_dispatches; i++) {
        drop_arguments(self->dispatches[i].arguments, self->dispatches[i].n);
        drop(self->dispatches[i].pipeline);
    }
    free(self->dispatches);
    drop(self->error);
    drop(self->owner);
}

static objc_id commands_encoder(objc_id self, objc_sel cmd)
{
    (void)cmd;
    if (self->has_encoder) fault("a second encoder while the first is open");
    if (self->status != NOT_ENQUEUED) fault("an encoder of a committed command buffer");
    objc_id o = create(&encoder_class);
    o->owner = object_retain(self, NULL);
    self->has_encoder = true;
    return autorelease(o);
}

static void commands_commit(objc_id self, objc_sel cmd)
{
    (void)cmd;
    if (self->has_encoder) fault("committed with its encoder open");
    if (self->status != NOT_ENQUEUED) {
        fault("committed twice");
        return;
    }
    if (s.counts.pending == 64) fault("more than 64 command buffers wait");
    self->status = COMMITTED;
    s.committed[s.counts.pending++] = object_retain(self, NULL);
}

static void run_dispatch(objc_id commands, const dispatch *d)
{
    void *arguments[MAX_ARGUMENTS];
    const char *why;
    for (int i = 0; i < d->n; i++) {
        const argument *a = &d->arguments[i];
        if (a->buffer) is_alive(a->buffer, &buffer_class, "a buffer of a dispatch");
        arguments[i] = a->bytes ? a->bytes : a->buffer->data + a->offset;
    }
    if (!lt_emulated_run(d->pipeline->kernel, arguments, d->n, d->grid.width, d->grid.height, d->threads.width, &why)) {
        commands->status = FAILED;
        commands->error = make_error(why, 1);
    }
}

static void run_oldest(void)
{
    objc_id commands = s.committed[0];
    memmove(s.committed, s.committed + 1, (size_t)--s.counts.pending * sizeof *s.committed);
    if (++s.counts.commands == lt_standin_plan.fail_commands) {
        commands->status = FAILED;
        commands->error = make_error("Caused GPU Hang Error", lt_standin_plan.fail_code);
    }
    for (size_t i = 0; commands->status != FAILED && i < commands->n_dispatches; i++)
        run_dispatch(commands, &commands->dispatches[i]);
    if (commands->status != FAILED) commands->status = DONE;
    drop(commands);
}

static void commands_wait(objc_id self, objc_sel cmd)
{
    (void)cmd;
    if (self->status == NOT_ENQUEUED) {
        fault("waiting for what was not committed: it would never end");
        return;
    }
    while (self->status == COMMITTED) run_oldest();
}

static ns_uint commands_status(objc_id self, objc_sel cmd)
{
    (void)cmd;
    return self->status;
}

static objc_id commands_error(objc_id self, objc_sel cmd)
{
    (void)cmd;
    return self->error;
}

/* ------------------------------------------------------------------ encoder */

static void encoder_dealloc(objc_id self)
{
    if (!self->ended) fault("an encoder goes without endEncoding");
    drop_arguments(self->arguments, MAX_INDEX);
    drop(self->pipeline);
    drop(self->owner);
}

static bool is_open(objc_id self)
{
    if (self->ended) fault("encoding after endEncoding");
    return !self->ended;
}

/* Stricter than Metal: arguments are given anew after each pipeline. */
static void encoder_set_pipeline(objc_id self, objc_sel cmd, objc_id pipeline)
{
    (void)cmd;
    if (!is_open(self) || !is_alive(pipeline, &pipeline_class, "a pipeline")) return;
    drop_arguments(self->arguments, MAX_INDEX);
    object_retain(pipeline, NULL);
    drop(self->pipeline);
    self->pipeline = pipeline;
}

static argument *argument_at(objc_id self, ns_uint index)
{
    if (!is_open(self)) return NULL;
    if (index >= MAX_INDEX) {
        fault("argument %lu of 31", index);
        return NULL;
    }
    drop_arguments(&self->arguments[index], 1);
    self->arguments[index].set = true;
    return &self->arguments[index];
}

static void encoder_set_buffer(objc_id self, objc_sel cmd, objc_id buffer, ns_uint offset, ns_uint index)
{
    (void)cmd;
    argument *a = argument_at(self, index);
    if (!a || !is_alive(buffer, &buffer_class, "an argument")) return;
    if (offset >= buffer->size) fault("argument %lu begins at %lu of %zu bytes", index, offset, buffer->size);
    if (offset % 2) fault("argument %lu begins at the odd byte %lu", index, offset);
    a->buffer = object_retain(buffer, NULL);
    a->offset = offset;
}

static void encoder_set_bytes(objc_id self, objc_sel cmd, const void *bytes, ns_uint length, ns_uint index)
{
    (void)cmd;
    argument *a = argument_at(self, index);
    if (!a) return;
    if (length == 0 || length > 4096) fault("setBytes of %lu bytes", length);
    a->bytes = malloc(length);
    a->size = length;
    memcpy(a->bytes, bytes, length);
}

static void encoder_dispatch(objc_id self, objc_sel cmd, metal_size grid, metal_size threads)
{
    objc_id commands = self->owner;
    if (!is_open(self)) return;
    if (!self->pipeline) {
        fault("a dispatch without a pipeline");
        return;
    }
    if (grid.width == 0 || grid.height == 0 || grid.depth != 1 || threads.width == 0 || threads.height != 1 || threads.depth != 1)
        fault("a dispatch of %lu x %lu x %lu groups of %lu x %lu x %lu threads", grid.width, grid.height, grid.depth,
              threads.width, threads.height, threads.depth);
    if (threads.width > pipeline_max_threads(self->pipeline, cmd) || threads.width % 32)
        fault("a group of %lu threads", threads.width);
    if (commands->n_dispatches == commands->capacity) {
        commands->capacity = commands->capacity ? commands->capacity * 2 : 16;
        commands->dispatches = realloc(commands->dispatches, commands->capacity * sizeof *commands->dispatches);
    }
    dispatch *d = &commands->dispatches[commands->n_dispatches++];
    *d = (dispatch){ .pipeline = object_retain(self->pipeline, NULL), .grid = grid, .threads = threads };
    for (int i = 0; i < MAX_INDEX && self->arguments[i].set; i++) {
        if (i == MAX_ARGUMENTS) {
            fault("a kernel of more than %d arguments", MAX_ARGUMENTS);
            break;
        }
        d->arguments[d->n] = self->arguments[i];
        self->arguments[i].buffer = NULL; /* now the dispatch's */
        self->arguments[i].bytes = NULL;
        self->arguments[i].set = false;
        d->n++;
    }
    for (int i = 0; i < MAX_INDEX; i++) {
        if (self->arguments[i].set) fault("argument %d is set and one before it is not", i);
    }
    s.counts.dispatches++;
}

static void encoder_end(objc_id self, objc_sel cmd)
{
    (void)cmd;
    if (!is_open(self)) return;
    self->ended = true;
    self->owner->has_encoder = false;
}

/* ------------------------------------------------------------------ classes */

static bool object_responds(objc_id self, objc_sel cmd, objc_sel asked);

/* The type of metal.c's cast must be the method's. */
#define METHOD(message, name, function)                                                                                          \
    {                                                                                                                            \
        name, (method_address)function, sizeof(struct {                                                                          \
            _Static_assert(__builtin_types_compatible_p(__typeof__(((metal_messages *)0)->message.send), __typeof__(&function)), \
                           "another type than the method's");                                                                    \
            char c;                                                                                                              \
        })                                                                                                                       \
    }
#define OBJECT_METHODS                                                                                                           \
    METHOD(retain, "retain", object_retain), METHOD(release, "release", object_release),                                         \
        METHOD(responds, "respondsToSelector:", object_responds)
#define CLASS(kind, name, dealloc, ...)                                                                                          \
    static const method kind##_methods[] = { OBJECT_METHODS, __VA_ARGS__ __VA_OPT__(, ){ 0 } };                                  \
    static const class kind##_class = { name, kind##_methods, dealloc };

// clang-format off
CLASS(string, "NSString", text_dealloc, METHOD(utf8, "UTF8String", string_utf8))
CLASS(error, "NSError", text_dealloc,
      METHOD(description, "localizedDescription", error_description), METHOD(code, "code", error_code))
CLASS(options, "MTLCompileOptions", NULL, METHOD(set_fast_math, "setFastMathEnabled:", options_set_fast_math))
CLASS(device, "MTLDevice", NULL,
      METHOD(name, "name", device_name),
      METHOD(working_set, "recommendedMaxWorkingSetSize", device_working_set),
      METHOD(max_buffer, "maxBufferLength", device_max_buffer),
      METHOD(new_queue, "newCommandQueue", device_new_queue),
      METHOD(new_library, "newLibraryWithSource:options:error:", device_new_library),
      METHOD(new_pipeline, "newComputePipelineStateWithFunction:error:", device_new_pipeline),
      METHOD(new_buffer, "newBufferWithLength:options:", device_new_buffer),
      METHOD(new_view, "newBufferWithBytesNoCopy:length:options:deallocator:", device_new_view))
CLASS(library, "MTLLibrary", library_dealloc, METHOD(new_function, "newFunctionWithName:", library_new_function))
CLASS(function, "MTLFunction", function_dealloc)
CLASS(pipeline, "MTLComputePipelineState", owner_dealloc,
      METHOD(simd_width, "threadExecutionWidth", pipeline_simd_width),
      METHOD(max_threads, "maxTotalThreadsPerThreadgroup", pipeline_max_threads))
CLASS(buffer, "MTLBuffer", buffer_dealloc, METHOD(contents, "contents", buffer_contents))
CLASS(queue, "MTLCommandQueue", NULL, METHOD(command_buffer, "commandBuffer", queue_commands))
CLASS(commands, "MTLCommandBuffer", commands_dealloc,
      METHOD(compute_encoder, "computeCommandEncoder", commands_encoder),
      METHOD(commit, "commit", commands_commit),
      METHOD(wait, "waitUntilCompleted", commands_wait),
      METHOD(status, "status", commands_status),
      METHOD(error, "error", commands_error))
CLASS(encoder, "MTLComputeCommandEncoder", encoder_dealloc,
      METHOD(set_pipeline, "setComputePipelineState:", encoder_set_pipeline),
      METHOD(set_buffer, "setBuffer:offset:atIndex:", encoder_set_buffer),
      METHOD(set_bytes, "setBytes:length:atIndex:", encoder_set_bytes),
      METHOD(dispatch, "dispatchThreadgroups:threadsPerThreadgroup:", encoder_dispatch),
      METHOD(end_encoding, "endEncoding", encoder_end))
// clang-format on

/* The class objects, to which `new` and the like are sent. */
static const method string_class_methods[] = { METHOD(string, "stringWithUTF8String:", string_with_utf8), { 0 } };
static const method options_class_methods[] = { METHOD(new_object, "new", options_new), { 0 } };
static const class string_meta = { "NSString class", string_class_methods, NULL };
static const class options_meta = { "MTLCompileOptions class", options_class_methods, NULL };
static struct objc_object string_object = { .class = &string_meta, .state = ALIVE, .retains = 1 };
static struct objc_object options_object = { .class = &options_meta, .state = ALIVE, .retains = 1 };

static const class *const classes[] = { &string_class,   &error_class,    &options_class, &device_class, &library_class,
                                        &function_class, &pipeline_class, &buffer_class,  &queue_class,  &commands_class,
                                        &encoder_class,  &string_meta,    &options_meta };

static const method *find_method(const class *c, const char *name)
{
    const method *m = c->methods;
    while (m->selector && strcmp(m->selector, name) != 0) m++;
    return m->selector ? m : NULL;
}

static bool object_responds(objc_id self, objc_sel cmd, objc_sel asked)
{
    (void)cmd;
    return find_method(self->class, asked->name) != NULL;
}

/* ------------------------------------------------------------------ the runtime's functions */

static objc_id get_class(const char *name)
{
    if (strcmp(name, "NSString") == 0) return &string_object;
    if (strcmp(name, "MTLCompileOptions") == 0) return &options_object;
    fault("there is no class %s", name);
    return NULL;
}

static objc_sel selector(const char *name)
{
    bool known = false;
    for (size_t i = 0; i < sizeof classes / sizeof *classes && !known; i++) known = find_method(classes[i], name) != NULL;
    if (!known) fault("no class has a method %s", name);
    for (int i = 0; i < s.n_selectors; i++) {
        if (strcmp(s.selectors[i].name, name) == 0) return &s.selectors[i];
    }
    s.selectors[s.n_selectors].name = name;
    return &s.selectors[s.n_selectors++];
}

static uintptr_t nothing(void)
{
    return 0;
}

/* The address of the method, or of one that returns 0. */
__attribute__((used)) method_address lt_standin_lookup(objc_id self, objc_sel cmd);
method_address lt_standin_lookup(objc_id self, objc_sel cmd)
{
    const method *m = NULL;
    if (!self)
        fault("%s is sent to nil", cmd->name);
    else if (self->state != ALIVE)
        fault("%s is sent to an object that is gone", cmd->name);
    else if (!(m = find_method(self->class, cmd->name)))
        fault("%s has no method %s", self->class->name, cmd->name);
    return m ? m->address : (method_address)nothing;
}

void lt_standin_send(void);
#if defined(__x86_64__)
/* Keeps the arguments in registers, leaves those on the stack alone, and jumps to the method. */
__asm__(".globl lt_standin_send\n"
        "lt_standin_send:\n"
        " push %rdi\n push %rsi\n push %rdx\n push %rcx\n push %r8\n push %r9\n sub $8, %rsp\n"
        " call lt_standin_lookup\n"
        " add $8, %rsp\n pop %r9\n pop %r8\n pop %rcx\n pop %rdx\n pop %rsi\n pop %rdi\n"
        " jmp *%rax\n");
#else
void lt_standin_send(void)
{
    abort(); /* nor is the emulator there */
}
#endif

const metal_api lt_standin_api = {
    .get_class = get_class,
    .selector = selector,
    .send = lt_standin_send,
    .push_pool = push_pool,
    .pop_pool = pop_pool,
    .default_device = default_device,
};

standin_counts lt_standin_counts(void)
{
    return s.counts;
}

const char *lt_standin_fault(void)
{
    return s.fault;
}

void lt_standin_reset(void)
{
    while (s.all) {
        objc_id o = s.all;
        s.all = o->all;
        free(o);
    }
    memset(&s, 0, sizeof s);
    lt_standin_plan = (standin_plan){ 0 };
}

static lattice_status open_standin(lattice_runtime *runtime, int index, lt_gpu_device **device, lattice_error *err)
{
    return lt_metal_open(runtime, &lt_standin_api, index, device, err);
}

static bool describe(char *text, size_t size)
{
    return lt_metal_describe(&lt_standin_api, text, size);
}

const lt_gpu_driver lt_standin_driver = { .name = "metal", .open = open_standin, .describe = describe };
