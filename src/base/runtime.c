/* The runtime: allocator, thread pool, log and cache folder, borrowed by every model and tokenizer. */
#include "base/runtime.h"

#include <stdarg.h>
#include <string.h>

enum { MAX_THREADS = 4096, LOG_LINE = 1024 };

lattice_runtime_options lattice_runtime_options_default(void)
{
    return (lattice_runtime_options){ .log_level = LATTICE_LOG_WARNING };
}

lattice_status lattice_runtime_create(const lattice_runtime_options *options, lattice_runtime **runtime, lattice_error *err)
{
    if (!runtime) return lt_fail(err, LATTICE_ERR_INVALID_ARGUMENT, "lattice_runtime_create: runtime is NULL");
    *runtime = NULL;
    lattice_runtime_options chosen = options ? *options : lattice_runtime_options_default();
    if (chosen.n_threads < 0 || chosen.n_threads > MAX_THREADS) {
        return lt_fail(err, LATTICE_ERR_INVALID_ARGUMENT, "n_threads is %d: expected 0 (one per CPU) to %d", chosen.n_threads,
                       MAX_THREADS);
    }
    const lattice_allocator *mem = chosen.allocator ? chosen.allocator : &lt_malloc_allocator;
    if (!mem->allocate || !mem->resize || !mem->release) {
        return lt_fail(err, LATTICE_ERR_INVALID_ARGUMENT, "the allocator lacks allocate, resize or release");
    }

    lattice_status status = LATTICE_OK;
    lattice_runtime *made = lt_alloc_zero(mem, sizeof *made);
    if (!made) return lt_no_memory(err, sizeof *made, "the runtime");
    made->mem = *mem;
    made->log = chosen.log;
    made->log_user = chosen.log_user;
    made->log_level = chosen.log_level;
    if (chosen.cache_dir) {
        size_t size = strlen(chosen.cache_dir) + 1;
        made->cache_dir = lt_alloc(&made->mem, size);
        if (!made->cache_dir) {
            status = lt_no_memory(err, size, "the cache folder's name");
            goto done;
        }
        memcpy(made->cache_dir, chosen.cache_dir, size);
    }
    int n_threads = chosen.n_threads ? chosen.n_threads : lt_available_cpus();
    LT_GO(lt_pool_create(&made->mem, n_threads, &made->pool, err));
    *runtime = made;
    made = NULL;
done:
    lattice_runtime_free(made);
    return status;
}

void lattice_runtime_free(lattice_runtime *runtime)
{
    if (!runtime) return;
    lt_pool_free(runtime->pool);
    lattice_allocator mem = runtime->mem;
    lt_free(&mem, runtime->cache_dir);
    lt_free(&mem, runtime);
}

int lattice_runtime_threads(const lattice_runtime *runtime)
{
    return lt_pool_threads(runtime->pool);
}

void lt_log(const lattice_runtime *runtime, lattice_log_level level, const char *format, ...)
{
    if (!runtime->log || level > runtime->log_level) return;
    char line[LOG_LINE];
    va_list args;
    va_start(args, format);
    lt_format_line(line, sizeof line, format, args);
    va_end(args);
    runtime->log(runtime->log_user, level, line);
}
