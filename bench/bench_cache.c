/* The embedding cache: time of a hit, and hit rates of its policies.
 *
 *   bench_cache [--json] [--model FOLDER] [ENTRIES…]     10 000 and 1 000 000 entries unless given
 *
 * A hit is what lattice_embed_ids does when a vector is there: hash the ids, find and compare, copy 384 floats. Two threads ask
 * for random entries; each hit is timed by itself, less what two readings of the clock take by themselves. The ids of a text (8
 * to 39 of them) are made just before, as a tokenizer would leave them: in the nearest cache. With --model also the whole call of
 * lattice_embed_ids.
 *
 * Floor: what the machine takes for the same memory without any cache around it. A slot's line among as many slots, an entry's
 * lines from a place known beforehand, and one behind the other, which is what a hit cannot do without. The entry again when its
 * pages (of 4 KiB) were touched just before: the difference is translating addresses.
 *
 * Hit rates: a Zipf trace (exponent 1) over 100 000 texts, a cache of a tenth of them. */
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/cache.h"

enum { DIM = 384, THREADS = 2, HITS = 1 << 19, MAX_IDS = 40 };
static const lt_hash128 space = { 0x243f6a8885a308d3u, 0x13198a2e03707344u };

static uint64_t next_random(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u); /* splitmix64 */
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static size_t ids_of(uint64_t text, uint32_t ids[MAX_IDS])
{
    uint64_t state = text * 2654435761u + 1;
    size_t n = 8 + next_random(&state) % (MAX_IDS - 8);
    for (size_t i = 0; i < n; i++) ids[i] = (uint32_t)(next_random(&state) % 30522);
    ids[1] = (uint32_t)text;
    return n;
}

static uint64_t nanoseconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* The cheapest clock that waits for what came before it: on virtual machines clock_gettime alone takes 60 ns. */
static uint64_t ticks(void)
{
#if defined(__x86_64__)
    unsigned core;
    uint64_t t = __builtin_ia32_rdtscp(&core);
    __asm__ volatile("lfence" ::: "memory");
    return t;
#else
    return nanoseconds();
#endif
}

static double ns_per_tick;
static uint32_t empty_ticks; /* between two readings with nothing in between, which is taken off */

static int ascending(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

static void calibrate(void)
{
    enum { READINGS = 10001 };
    static uint32_t times[READINGS];
    uint64_t ns = nanoseconds(), begin = ticks();
    while (nanoseconds() - ns < 20000000) {}
    ns_per_tick = (double)(nanoseconds() - ns) / (double)(ticks() - begin);
    for (size_t i = 0; i < READINGS; i++) {
        uint64_t t = ticks();
        times[i] = (uint32_t)(ticks() - t);
    }
    qsort(times, READINGS, sizeof *times, ascending);
    empty_ticks = times[READINGS / 2];
}

static void fail(const char *what)
{
    fprintf(stderr, "bench_cache: %s\n", what);
    exit(1);
}

static lattice_cache *open_cache(lattice_runtime *runtime, size_t entries, lattice_cache_policy policy)
{
    lattice_cache_options options = lattice_cache_options_default();
    options.max_entries = entries;
    options.policy = policy;
    lattice_cache *cache;
    lattice_error err;
    if (lattice_cache_open(runtime, &options, &cache, &err) != LATTICE_OK) fail(err.message);
    return cache;
}

/* ------------------------------------------------------------------ hits */

typedef struct asker {
    pthread_t thread;
    lattice_cache *cache;
    uint64_t entries, seed;
    uint32_t *times; /* [HITS] ticks */
    size_t missed;
    lattice_model *model; /* NULL: the cache alone */
} asker;

static void *ask(void *arg)
{
    asker *a = arg;
    uint64_t state = a->seed;
    float vector[DIM];
    lattice_embed_options options = lattice_embed_options_default();
    options.cache = a->cache;
    for (size_t i = 0; i < HITS; i++) {
        uint32_t ids[MAX_IDS];
        size_t n = ids_of(next_random(&state) % a->entries, ids);
        bool found;
        uint64_t begin = ticks();
        if (a->model) {
            lattice_usage usage = { 0 };
            lattice_ids input = { ids, n };
            found = lattice_embed_ids(a->model, &input, 1, &options, vector, &usage, NULL) == LATTICE_OK && usage.n_cached == 1;
        } else {
            lt_cache_key key = lt_cache_key_of(space, ids, n);
            found = lt_cache_find(a->cache, &key, 0, vector, DIM);
        }
        a->times[i] = (uint32_t)(ticks() - begin);
        a->missed += !found;
    }
    return NULL;
}

static unsigned percentile(const uint32_t *times, size_t n, double share)
{
    double t = times[(size_t)((double)(n - 1) * share)];
    return t > empty_ticks ? (unsigned)((t - empty_ticks) * ns_per_tick + 0.5) : 0;
}

static void print_hits(const char *what, uint64_t entries, uint32_t *times, size_t n, bool json)
{
    qsort(times, n, sizeof *times, ascending);
    unsigned p50 = percentile(times, n, 0.5), p90 = percentile(times, n, 0.9), p99 = percentile(times, n, 0.99);
    unsigned p999 = percentile(times, n, 0.999);
    if (json)
        printf("{\"what\":\"%s\",\"entries\":%llu,\"threads\":%d,\"p50_ns\":%u,\"p90_ns\":%u,\"p99_ns\":%u,\"p999_ns\":%u}\n",
               what, (unsigned long long)entries, THREADS, p50, p90, p99, p999);
    else
        printf("%-6s %9llu entries, %d threads: p50 %4u ns   p90 %4u   p99 %4u   p99.9 %5u\n", what, (unsigned long long)entries,
               THREADS, p50, p90, p99, p999);
}

static void measure_hits(lattice_runtime *runtime, uint64_t entries, lattice_model *model, bool json)
{
    lattice_cache *cache = open_cache(runtime, entries, LATTICE_CACHE_SIEVE);
    lt_hash128 in = space;
    lattice_error err;
    if (model) {
        lattice_model_info info;
        lattice_model_get_info(model, &info);
        if (info.embedding_dim != DIM) fail("the model's vectors do not have 384 dimensions");
        lt_vector_shape shape = { .pooling = model->sentence.pooling, .dim = DIM, .normalize = model->sentence.normalize };
        if (lt_cache_space(model, &shape, &in, &err) != LATTICE_OK) fail(err.message);
    }
    float vector[DIM];
    for (size_t i = 0; i < DIM; i++) vector[i] = (float)i;
    for (uint64_t text = 0; text < entries; text++) {
        uint32_t ids[MAX_IDS];
        size_t n = ids_of(text, ids);
        lt_cache_key key = lt_cache_key_of(in, ids, n);
        lt_cache_store(cache, &key, vector, DIM);
    }
    asker askers[THREADS];
    uint32_t *times = malloc(sizeof *times * HITS * THREADS);
    if (!times) fail("out of memory");
    for (size_t i = 0; i < THREADS; i++) {
        askers[i] = (asker){ .cache = cache, .entries = entries, .seed = i + 1, .times = times + i * HITS, .model = model };
        if (pthread_create(&askers[i].thread, NULL, ask, &askers[i]) != 0) fail("no thread");
    }
    size_t missed = 0;
    for (size_t i = 0; i < THREADS; i++) {
        pthread_join(askers[i].thread, NULL);
        missed += askers[i].missed;
    }
    if (missed) fail("an entry was not found");
    print_hits(model ? "call" : "hit", entries, times, (size_t)HITS * THREADS, json);
    free(times);
    lattice_cache_close(cache);
}

/* ------------------------------------------------------------------ the floor */

enum { HEADER_BYTES = sizeof(lt_cache_entry), ENTRY_BYTES = HEADER_BYTES + (DIM + 24) * 4 }; /* of a text of average length */

typedef struct place { /* as large as what an entry takes of a table that is half full */
    const char *entry;
    uint64_t rest[3];
} place;

typedef struct reach {
    pthread_t thread;
    const place *places; /* [n] */
    uint64_t n, seed;
    uint32_t *times;         /* [HITS] ticks */
    bool slot, entry, touch; /* touch: the entry's pages, just before */
} reach;

static void *reach_out(void *arg)
{
    reach *r = arg;
    uint64_t state = r->seed;
    float vector[DIM];
    for (size_t i = 0; i < HITS; i++) {
        const place *at = &r->places[next_random(&state) % r->n];
        const char *entry = r->slot ? NULL : at->entry;
        if (r->touch) { /* elsewhere in the same 4 KiB */
            const uintptr_t first = (uintptr_t)entry ^ 2048, last = ((uintptr_t)entry + ENTRY_BYTES - 1) ^ 2048;
            (void)*(const volatile char *)first;
            (void)*(const volatile char *)last;
        }
        uint64_t begin = ticks();
        if (r->slot) entry = *(const char *const volatile *)&at->entry;
        if (r->entry) {
            for (size_t line = 0; line < ENTRY_BYTES; line += 64) __builtin_prefetch(entry + line);
            memcpy(vector, entry + HEADER_BYTES, sizeof vector);
        }
        __asm__ volatile("" ::"r"(entry), "r"(vector) : "memory");
        r->times[i] = (uint32_t)(ticks() - begin);
    }
    return NULL;
}

static unsigned time_reach(const place *places, uint64_t n, bool slot, bool entry, bool touch, uint32_t *times)
{
    reach all[THREADS];
    for (size_t i = 0; i < THREADS; i++) {
        all[i] = (reach){
            .places = places, .n = n, .seed = i + 1, .times = times + i * HITS, .slot = slot, .entry = entry, .touch = touch
        };
        if (pthread_create(&all[i].thread, NULL, reach_out, &all[i]) != 0) fail("no thread");
    }
    for (size_t i = 0; i < THREADS; i++) pthread_join(all[i].thread, NULL);
    qsort(times, (size_t)HITS * THREADS, sizeof *times, ascending);
    return percentile(times, (size_t)HITS * THREADS, 0.5);
}

static void measure_floor(lattice_runtime *runtime, uint64_t entries, bool json)
{
    lt_slab_pool *pool;
    lattice_error err;
    if (lt_slab_pool_create(&runtime->mem, &pool, &err) != LATTICE_OK) fail(err.message);
    place *places = malloc(entries * sizeof *places);
    uint32_t *times = malloc(sizeof *times * HITS * THREADS);
    if (!places || !times) fail("out of memory");
    for (uint64_t i = 0; i < entries; i++) {
        char *entry = lt_slab_alloc(pool, ENTRY_BYTES);
        if (!entry) fail("out of memory");
        memset(entry, 1, ENTRY_BYTES);
        places[i] = (place){ .entry = entry };
    }
    uint64_t state = 3;
    for (uint64_t i = entries - 1; i > 0; i--) { /* in random order */
        uint64_t k = next_random(&state) % (i + 1);
        place other = places[k];
        places[k] = places[i];
        places[i] = other;
    }
    unsigned slot = time_reach(places, entries, true, false, false, times);
    unsigned entry = time_reach(places, entries, false, true, false, times);
    unsigned touched = time_reach(places, entries, false, true, true, times);
    unsigned both = time_reach(places, entries, true, true, false, times);
    if (json)
        printf("{\"what\":\"floor\",\"entries\":%llu,\"slot_ns\":%u,\"entry_ns\":%u,\"touched_ns\":%u,\"both_ns\":%u}\n",
               (unsigned long long)entries, slot, entry, touched, both);
    else
        printf("floor  %9llu entries: a slot %u ns, an entry %u (%u in pages just touched), one behind the other %u (p50)\n",
               (unsigned long long)entries, slot, entry, touched, both);
    for (uint64_t i = 0; i < entries; i++) lt_slab_release(pool, (void *)(uintptr_t)places[i].entry, ENTRY_BYTES);
    free(places);
    free(times);
    lt_slab_pool_free(pool);
}

/* ------------------------------------------------------------------ hit rates */

/* Ranks by the inverse of the distribution: cumulative[i] is the weight of the first i + 1 texts. */
static double hit_rate(lattice_runtime *runtime, lattice_cache_policy policy, const double *cumulative, size_t texts,
                       size_t requests)
{
    lattice_cache *cache = open_cache(runtime, texts / 10, policy);
    uint64_t state = 7;
    for (size_t r = 0; r < requests; r++) {
        double at = (double)(next_random(&state) >> 11) * 0x1p-53 * cumulative[texts - 1];
        size_t low = 0, high = texts - 1;
        while (low < high) {
            size_t middle = (low + high) / 2;
            if (cumulative[middle] > at)
                high = middle;
            else
                low = middle + 1;
        }
        uint32_t ids[MAX_IDS];
        float vector[8] = { 0 };
        size_t n = ids_of(low, ids);
        lt_cache_key key = lt_cache_key_of(space, ids, n);
        if (!lt_cache_find(cache, &key, 0, vector, 8)) lt_cache_store(cache, &key, vector, 8);
    }
    lattice_cache_stats stats;
    lattice_cache_get_stats(cache, &stats);
    lattice_cache_close(cache);
    return (double)stats.hits / (double)(stats.hits + stats.misses);
}

static void compare_policies(lattice_runtime *runtime, bool json)
{
    enum { TEXTS = 100000, REQUESTS = 2000000 };
    double *cumulative = malloc(sizeof *cumulative * TEXTS), sum = 0;
    if (!cumulative) fail("out of memory");
    for (size_t i = 0; i < TEXTS; i++) cumulative[i] = sum += 1 / (double)(i + 1);
    double sieve = hit_rate(runtime, LATTICE_CACHE_SIEVE, cumulative, TEXTS, REQUESTS);
    double flush = hit_rate(runtime, LATTICE_CACHE_FLUSH, cumulative, TEXTS, REQUESTS);
    if (json)
        printf("{\"what\":\"hit rate\",\"texts\":%d,\"entries\":%d,\"sieve\":%.4f,\"flush\":%.4f}\n", TEXTS, TEXTS / 10, sieve,
               flush);
    else
        printf("Zipf over %d texts, %d entries: hit rate %.4f with SIEVE, %.4f with flush-all\n", TEXTS, TEXTS / 10, sieve,
               flush);
    free(cumulative);
}

int main(int argc, char **argv)
{
    bool json = false;
    const char *folder = NULL;
    uint64_t sizes[8] = { 10000, 1000000 };
    size_t n_sizes = 0;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--json") == 0)
            json = true;
        else if (strcmp(argv[i], "--model") == 0 && i + 1 < argc)
            folder = argv[++i];
        else if (n_sizes < 8 && strtoull(argv[i], NULL, 10) > 0)
            sizes[n_sizes++] = strtoull(argv[i], NULL, 10);
        else
            fail("usage: bench_cache [--json] [--model FOLDER] [ENTRIES…]");
    }
    if (n_sizes == 0) n_sizes = 2;
    lattice_runtime *runtime;
    lattice_model *model = NULL;
    lattice_error err;
    if (lattice_runtime_create(NULL, &runtime, &err) != LATTICE_OK) fail(err.message);
    calibrate();
    if (folder && lattice_model_open(runtime, folder, NULL, &model, &err) != LATTICE_OK) fail(err.message);
    for (size_t i = 0; i < n_sizes; i++) {
        measure_hits(runtime, sizes[i], NULL, json);
        measure_floor(runtime, sizes[i], json);
        if (model) measure_hits(runtime, sizes[i], model, json);
    }
    compare_policies(runtime, json);
    lattice_model_close(model);
    lattice_runtime_free(runtime);
    return 0;
}
