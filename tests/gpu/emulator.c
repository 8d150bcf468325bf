/* Threads as fibers with a hand-written switch.
 *
 * A fiber runs until it waits: at a barrier of the group, which opens when all threads have come, or at an operation of its
 * simdgroup, which is done when all 32 lanes have. When nobody can go on and not all have ended, threads of the group wait for
 * different things, which a GPU would answer with a hang: that is reported. */
#include "emulator.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { MAX_THREADS = 1024, LANES = 32, STACK = 128 << 10, MAX_ARGUMENTS = 9 };
enum { EXCHANGE = 64 /* kinds of operations from here on */ };

typedef uint32_t vector __attribute__((vector_size(16)));

typedef enum fiber_state { READY, WAITING, ENDED } fiber_state;

typedef struct fiber {
    void *stack_pointer;
    fiber_state state;
} fiber;

typedef struct simdgroup {
    uint32_t arrived, kind, turn;
    float slots[LANES], results[2][LANES]; /* of this operation and the one before: slow lanes read theirs late */
} simdgroup;

/* One access: by whom, and between which barriers. */
typedef struct access {
    uint32_t turn, thread, group_epoch, simd_epoch; /* turn: of which group; others are gone */
} access;

typedef struct word {
    access write, read, other_read; /* other_read: the last by another thread than `read` */
} word;

static struct {
    fiber fibers[MAX_THREADS];
    simdgroup simdgroups[MAX_THREADS / LANES];
    char *stacks;
    void *scheduler; /* its stack pointer */
    uint32_t n, current, at_barrier, ended;
    void *kernel;
    void *const *arguments;
    int n_arguments;
    vector group;
    const char *fault;
    /* Checked kernels: what last touched each word of the group's memory. */
    char *memory;
    size_t memory_size;
    word *words;
    size_t n_words;
    uint32_t turn, group_epoch, simd_epochs[MAX_THREADS / LANES];
} e;

unsigned lt_emulator_order;

#if defined(__x86_64__)
/* Saves the callee's registers on the old stack and takes those of the new one. */
__asm__(".globl lt_emulator_switch\n"
        "lt_emulator_switch:\n"
        " push %rbp\n push %rbx\n push %r12\n push %r13\n push %r14\n push %r15\n"
        " mov %rsp, (%rdi)\n mov %rsi, %rsp\n"
        " pop %r15\n pop %r14\n pop %r13\n pop %r12\n pop %rbx\n pop %rbp\n ret\n");
void lt_emulator_switch(void **save, void *to);
#else
static void lt_emulator_switch(void **save, void *to)
{
    (void)save;
    (void)to;
    abort();
}
#endif

/* Called by compiled kernels, which find them in the program. */
__attribute__((visibility("default"))) void lt_emulate_barrier(uint32_t kind);
__attribute__((visibility("default"))) float lt_emulate_simd(float x, uint32_t kind);

static void to_scheduler(void)
{
    lt_emulator_switch(&e.fibers[e.current].stack_pointer, e.scheduler);
}

#define P void *
#define TAIL vector, uint32_t, uint32_t, uint32_t, uint32_t
#define BUILTINS e.group, e.current, e.current % LANES, e.current / LANES, e.n / LANES

static void begin(void)
{
    void *const *a = e.arguments;
    switch (e.n_arguments) {
    case 3: ((void (*)(P, P, P, TAIL))e.kernel)(a[0], a[1], a[2], BUILTINS); break;
    case 4: ((void (*)(P, P, P, P, TAIL))e.kernel)(a[0], a[1], a[2], a[3], BUILTINS); break;
    case 5: ((void (*)(P, P, P, P, P, TAIL))e.kernel)(a[0], a[1], a[2], a[3], a[4], BUILTINS); break;
    case 6: ((void (*)(P, P, P, P, P, P, TAIL))e.kernel)(a[0], a[1], a[2], a[3], a[4], a[5], BUILTINS); break;
    case 7: ((void (*)(P, P, P, P, P, P, P, TAIL))e.kernel)(a[0], a[1], a[2], a[3], a[4], a[5], a[6], BUILTINS); break;
    case 8: ((void (*)(P, P, P, P, P, P, P, P, TAIL))e.kernel)(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], BUILTINS); break;
    case 9:
        ((void (*)(P, P, P, P, P, P, P, P, P, TAIL))e.kernel)(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8], BUILTINS);
        break;
    default: e.fault = "a kernel with so many arguments is not emulated";
    }
    e.fibers[e.current].state = ENDED;
    e.ended++;
    to_scheduler();
    abort();
}

static void wait_here(void)
{
    e.fibers[e.current].state = WAITING;
    to_scheduler();
}

static void wake(uint32_t first, uint32_t n)
{
    for (uint32_t i = first; i < first + n; i++) e.fibers[i].state = READY;
}

/* The last lane wakes the others and goes on. */
static void simd_meet(simdgroup *s, uint32_t kind, void (*last)(simdgroup *s, uint32_t kind))
{
    if (s->arrived == 0) s->kind = kind;
    if (s->kind != kind) e.fault = "lanes of one simdgroup meet in different operations";
    if (++s->arrived < LANES) {
        wait_here();
        return;
    }
    s->arrived = 0;
    s->turn ^= 1;
    if (last) last(s, kind);
    wake(e.current / LANES * LANES, LANES);
}

static void reduce(simdgroup *s, uint32_t kind)
{
    float v[LANES];
    memcpy(v, s->slots, sizeof v);
    for (int o = LANES / 2; o > 0; o /= 2) {
        for (int i = 0; i < o; i++) v[i] = kind == 1 ? (v[i] > v[i + o] ? v[i] : v[i + o]) : v[i] + v[i + o];
    }
    for (int i = 0; i < LANES; i++) s->results[s->turn][i] = v[0];
}

/* kind: EXCHANGE + the mask by which a lane's number differs from that of the lane whose value it gets. */
static void exchange(simdgroup *s, uint32_t kind)
{
    for (uint32_t i = 0; i < LANES; i++) s->results[s->turn][i] = s->slots[i ^ (kind - EXCHANGE)];
}

float lt_emulate_simd(float x, uint32_t kind)
{
    simdgroup *s = &e.simdgroups[e.current / LANES];
    uint32_t turn = s->turn ^ 1; /* what it will be when all have come */
    s->slots[e.current % LANES] = x;
    simd_meet(s, kind, kind >= EXCHANGE ? exchange : reduce);
    return s->results[turn][e.current % LANES];
}

static void fence(simdgroup *s, uint32_t kind)
{
    (void)kind;
    e.simd_epochs[s - e.simdgroups]++;
}

void lt_emulate_barrier(uint32_t kind)
{
    if (kind == 1) {
        simd_meet(&e.simdgroups[e.current / LANES], 2, fence);
    } else if (++e.at_barrier < e.n) {
        wait_here();
    } else {
        e.at_barrier = 0;
        e.group_epoch++;
        wake(0, e.n);
    }
}

/* ------------------------------------------------------------------ checked kernels */

#if LT_EMULATOR_WATCHES
/* Whether a barrier of the group, or one of their simdgroup, stands between an access and the running thread. */
static bool is_ordered(const access *a)
{
    if (a->turn != e.turn || a->thread == e.current || a->group_epoch != e.group_epoch) return true;
    return a->thread / LANES == e.current / LANES && a->simd_epoch != e.simd_epochs[e.current / LANES];
}

static void touch(const void *address, size_t size, bool writes)
{
    size_t at = (size_t)((const char *)address - e.memory);
    if (!e.memory || (const char *)address < e.memory || at >= e.memory_size || !e.words || size == 0) return;
    const access now = { e.turn, e.current, e.group_epoch, e.simd_epochs[e.current / LANES] };
    for (size_t i = at / 4; i <= (at + size - 1) / 4 && i < e.n_words; i++) {
        word *w = &e.words[i];
        bool ordered = is_ordered(&w->write) && (!writes || (is_ordered(&w->read) && is_ordered(&w->other_read)));
        if (!ordered) e.fault = "a race: two threads of a group use one place of its memory without a barrier between them";
        if (writes) {
            w->write = now;
        } else {
            if (w->read.thread != e.current) w->other_read = w->read;
            w->read = now;
        }
    }
}

/* What clang's thread sanitizer calls at every access, defined here instead of in its library. */
#define HOOK(name, size, writes)                                                                                                 \
    __attribute__((visibility("default"))) void name(void *address);                                                             \
    void name(void *address)                                                                                                     \
    {                                                                                                                            \
        touch(address, size, writes);                                                                                            \
    }
#define HOOKS(size)                                                                                                              \
    HOOK(__tsan_read##size, size, false)                                                                                         \
    HOOK(__tsan_write##size, size, true)                                                                                         \
    HOOK(__tsan_unaligned_read##size, size, false)                                                                               \
    HOOK(__tsan_unaligned_write##size, size, true)
HOOKS(1)
HOOKS(2)
HOOKS(4)
HOOKS(8)
HOOKS(16)
/* And, since version 15, in the place of memory functions. */
__attribute__((visibility("default"))) void *__tsan_memmove(void *to, const void *from, size_t size);
void *__tsan_memmove(void *to, const void *from, size_t size)
{
    touch(from, size, false);
    touch(to, size, true);
    return memmove(to, from, size);
}
__attribute__((visibility("default"))) void *__tsan_memcpy(void *to, const void *from, size_t size);
void *__tsan_memcpy(void *to, const void *from, size_t size)
{
    return __tsan_memmove(to, from, size);
}
__attribute__((visibility("default"))) void *__tsan_memset(void *to, int byte, size_t size);
void *__tsan_memset(void *to, int byte, size_t size)
{
    touch(to, size, true);
    return memset(to, byte, size);
}
__attribute__((visibility("default"))) void __tsan_func_entry(void *caller);
void __tsan_func_entry(void *caller)
{
    (void)caller;
}
__attribute__((visibility("default"))) void __tsan_func_exit(void *unused); /* as gcc declares it */
void __tsan_func_exit(void *unused)
{
    (void)unused;
}
__attribute__((visibility("default"))) void __tsan_init(void);
void __tsan_init(void) {}
#endif

static void begin_checks(void *memory, size_t size)
{
    e.memory = memory;
    e.memory_size = size;
    if (e.n_words < size / 4 + 1) {
        free(e.words);
        e.n_words = size / 4 + 1;
        e.words = calloc(e.n_words, sizeof *e.words);
    }
}

static void prepare(uint32_t i)
{
    void **top = (void **)(void *)(e.stacks + (size_t)(i + 1) * STACK - 64);
    *--top = NULL;
    *--top = (void *)begin;
    top -= 6;
    memset(top, 0, 6 * sizeof *top);
    e.fibers[i] = (fiber){ top, READY };
}

/* Number i of the threads in the order asked for. */
static uint32_t in_order(uint32_t i)
{
    if (lt_emulator_order == 0) return i;
    if (lt_emulator_order == 1) return e.n - 1 - i;
    uint32_t groups = e.n / LANES,
             group = (i / LANES * 5 + lt_emulator_order) % groups; /* a permutation unless 5 divides groups */
    if (groups % 5 == 0) group = groups - 1 - i / LANES;
    return group * LANES + (lt_emulator_order % 2 ? LANES - 1 - i % LANES : i % LANES);
}

static bool run_group(void)
{
    e.ended = e.at_barrier = 0;
    e.turn++;
    memset(e.simdgroups, 0, sizeof e.simdgroups);
    for (uint32_t i = 0; i < e.n; i++) prepare(i);
    while (e.ended < e.n) {
        bool ran = false;
        for (uint32_t j = 0; j < e.n && !e.fault; j++) {
            uint32_t i = in_order(j);
            if (e.fibers[i].state != READY) continue;
            ran = true;
            e.current = i;
            lt_emulator_switch(&e.scheduler, e.fibers[i].stack_pointer);
        }
        if (e.fault) return false;
        if (!ran) {
            e.fault = "threads of a group wait at different barriers or simd operations";
            return false;
        }
    }
    return true;
}

bool lt_emulate(void *kernel, void *const *arguments, int n_arguments, uint32_t grid_x, uint32_t grid_y, uint32_t threads,
                void *group_memory, size_t group_memory_size, const char **fault)
{
    if (!e.stacks) {
        e.stacks =
            mmap(NULL, (size_t)MAX_THREADS * STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        for (size_t i = 0; i < MAX_THREADS; i++) mprotect(e.stacks + i * STACK, 4096, PROT_NONE);
    }
    e.fault = NULL;
    if (threads == 0 || threads % LANES || threads > MAX_THREADS) e.fault = "a group is not a multiple of 32 threads";
    e.n = threads;
    e.kernel = kernel;
    e.arguments = arguments;
    e.n_arguments = n_arguments;
    begin_checks(group_memory, group_memory_size);
    for (uint32_t y = 0; y < grid_y && !e.fault; y++) {
        for (uint32_t x = 0; x < grid_x && !e.fault; x++) {
            e.group = (vector){ x, y, 0, 0 };
            memset(group_memory, 0xff, group_memory_size); /* NaN: nothing is carried over from group to group */
            run_group();
        }
    }
    *fault = e.fault;
    return e.fault == NULL;
}
