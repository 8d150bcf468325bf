/* lattice_runtime: what models and tokenizers borrow. */
#ifndef LT_BASE_RUNTIME_H
#define LT_BASE_RUNTIME_H

#include "base/memory.h"
#include "base/threads.h"

struct lattice_runtime {
    lattice_allocator mem;
    lt_pool *pool;
    lattice_log_fn log;
    void *log_user;
    lattice_log_level log_level;
    char *cache_dir; /* NULL: none */
    const struct lt_gpu_driver *gpu_driver; /* NULL: those of the build; tests bring their own */
};

/* Formats and hands to the log callback when `level` passes; at most 1023 bytes. */
void lt_log(const lattice_runtime *runtime, lattice_log_level level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
