/* The embedding cache in memory: what is found, what makes room, and that nothing else changes for those who use it. */
#include "support.h"

#include <pthread.h>

#include "base/runtime.h"
#include "engine/cache.h"

typedef struct opened {
    lattice_runtime *runtime;
    lattice_model *model;
    lattice_cache *cache;
    size_t dim;
} opened;

static void open_all(opened *o, const char *folder, const lattice_allocator *mem, const lattice_cache_options *options)
{
    lattice_error err;
    lattice_runtime_options runtime_options = lattice_runtime_options_default();
    runtime_options.n_threads = 2;
    runtime_options.allocator = mem;
    *o = (opened){ 0 };
    assert_ok_err(lattice_runtime_create(&runtime_options, &o->runtime, &err), &err);
    assert_ok_err(lattice_model_open(o->runtime, folder, NULL, &o->model, &err), &err);
    assert_ok_err(lattice_cache_open(o->runtime, options, &o->cache, &err), &err);
    o->dim = lattice_embed_dim(o->model, NULL);
}

static void close_all(opened *o)
{
    lattice_cache_close(o->cache);
    lattice_model_close(o->model);
    lattice_runtime_free(o->runtime);
}

static lattice_cache_stats stats_of(lattice_cache *cache)
{
    lattice_cache_stats stats;
    lattice_cache_get_stats(cache, &stats);
    return stats;
}

enum { MAX_DIM = 512 };

/* The vector of one text; *cached says whether it came from the cache. */
static void embed(const opened *o, const char *text, lattice_embed_options options, float *out, bool *cached)
{
    lattice_text t = { text, strlen(text) };
    lattice_usage usage = { 0 };
    lattice_error err;
    assert_ok_err(lattice_embed(o->model, &t, 1, &options, out, &usage, &err), &err);
    *cached = usage.n_cached == 1;
}

static lattice_embed_options with(lattice_cache *cache)
{
    lattice_embed_options options = lattice_embed_options_default();
    options.cache = cache;
    return options;
}

/* ------------------------------------------------------------------ what is found */

static void inv6_the_cache_is_keyed_by_token_ids_never_by_text(void **state)
{
    (void)state;
    opened o;
    open_all(&o, FIXTURE("bert-cls"), NULL, NULL);
    float first[MAX_DIM], second[MAX_DIM];
    bool cached;
    embed(&o, "hello world", with(o.cache), first, &cached);
    assert_false(cached);
    embed(&o, "  hello   world ", with(o.cache), second, &cached); /* another text, the same ids */
    assert_true(cached);
    assert_memory_equal(first, second, o.dim * sizeof *first);

    lattice_encode_options encode = lattice_encode_options_default();
    lattice_encoding encoding;
    lattice_text text = { "hello world", 11 };
    assert_ok(lattice_encode(lattice_model_tokenizer(o.model), text, NULL, &encode, &encoding, NULL));
    lattice_ids ids = { encoding.ids, encoding.n };
    lattice_usage usage = { 0 };
    lattice_embed_options options = with(o.cache);
    assert_ok(lattice_embed_ids(o.model, &ids, 1, &options, second, &usage, NULL));
    assert_int_equal(usage.n_cached, 1);
    assert_int_equal(usage.n_tokens, encoding.n);
    assert_memory_equal(first, second, o.dim * sizeof *first);
    lattice_encoding_free(&encoding);

    embed(&o, "hello [SEP] world", with(o.cache), first, &cached);
    assert_false(cached);
    options.literal = true; /* the same text, other ids */
    embed(&o, "hello [SEP] world", options, second, &cached);
    assert_false(cached);
    assert_memory_not_equal(first, second, o.dim * sizeof *first);
    lattice_cache_stats stats = stats_of(o.cache);
    assert_int_equal(stats.hits, 2);
    assert_int_equal(stats.misses, 3);
    assert_int_equal(stats.entries, 3);
    close_all(&o);
}

static void what_shapes_a_vector_separates_it(void **state)
{
    (void)state;
    opened o;
    open_all(&o, FIXTURE("bert-cls"), NULL, NULL);
    lattice_embed_options options[5];
    for (int i = 0; i < 5; i++) options[i] = with(o.cache);
    options[1].pooling = LATTICE_POOLING_MAX;
    options[2].dim = o.dim / 2;
    options[3].no_normalize = true;
    options[4].pooling = LATTICE_POOLING_LASTTOKEN;
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < 5; i++) {
            float kept[MAX_DIM], computed[MAX_DIM];
            bool cached;
            embed(&o, "one text", options[i], kept, &cached);
            assert_int_equal(cached, round == 1);
            lattice_embed_options plain = options[i];
            plain.cache = NULL;
            embed(&o, "one text", plain, computed, &cached);
            assert_memory_equal(kept, computed, lattice_embed_dim(o.model, &plain) * sizeof *kept);
        }
    }
    close_all(&o);
}

static void models_instruction_sets_and_arithmetic_have_fingerprints_of_their_own(void **state)
{
    (void)state;
    lattice_runtime *runtime;
    lattice_error err;
    assert_ok_err(lattice_runtime_create(NULL, &runtime, &err), &err);
    struct {
        const char *folder, *isa;
        lattice_compute compute;
    } cases[] = { { FIXTURE("bert-cls"), NULL, LATTICE_COMPUTE_F32 },
                  { FIXTURE("bert-mean-f16"), NULL, LATTICE_COMPUTE_F32 },
                  { FIXTURE("bert-cls"), "scalar", LATTICE_COMPUTE_F32 },
                  { FIXTURE("bert-cls"), "scalar", LATTICE_COMPUTE_BF16 } };
    lt_hash128 prints[4];
    for (size_t i = 0; i < 4; i++) {
        lattice_model_options options = lattice_model_options_default();
        options.isa = cases[i].isa;
        options.compute = cases[i].compute;
        lattice_model *model, *again;
        assert_ok_err(lattice_model_open(runtime, cases[i].folder, &options, &model, &err), &err);
        assert_ok_err(lt_model_fingerprint(model, &prints[i], &err), &err);
        for (size_t j = 0; j < i; j++) assert_false(lt_hash128_eq(prints[i], prints[j]));
        options.no_mmap = true; /* changes no vector */
        lt_hash128 print;
        assert_ok_err(lattice_model_open(runtime, cases[i].folder, &options, &again, &err), &err);
        assert_ok_err(lt_model_fingerprint(again, &print, &err), &err);
        assert_true(lt_hash128_eq(print, prints[i]));
        lattice_model_close(model);
        lattice_model_close(again);
    }
    lattice_runtime_free(runtime);
}

static void a_list_may_be_found_in_part(void **state)
{
    (void)state;
    enum { N = 1500 }; /* several windows */
    opened o;
    open_all(&o, FIXTURE("bert-cls"), NULL, NULL);
    static char texts[N][32];
    static lattice_text list[N];
    static uint32_t tokens[N], plain_tokens[N];
    for (int i = 0; i < N; i++) {
        snprintf(texts[i], sizeof texts[i], "text number %d", i % 1000);
        list[i] = (lattice_text){ texts[i], strlen(texts[i]) };
    }
    float *plain = malloc(N * o.dim * sizeof *plain), *kept = malloc(N * o.dim * sizeof *kept);
    lattice_usage usage = { .text_tokens = plain_tokens };
    assert_ok(lattice_embed(o.model, list, N, NULL, plain, &usage, NULL));
    uint64_t all_tokens = usage.n_tokens;
    lattice_embed_options options = with(o.cache);
    for (int i = 0; i < 300; i += 3) {
        bool cached;
        embed(&o, texts[i], options, kept, &cached);
    }
    for (int round = 0; round < 2; round++) {
        memset(kept, 0, N * o.dim * sizeof *kept);
        usage = (lattice_usage){ .text_tokens = tokens };
        assert_ok(lattice_embed(o.model, list, N, &options, kept, &usage, NULL));
        assert_memory_equal(kept, plain, N * o.dim * sizeof *kept);
        assert_memory_equal(tokens, plain_tokens, sizeof tokens);
        assert_int_equal(usage.n_tokens, all_tokens);
        assert_true(round ? usage.n_cached == N : usage.n_cached >= 100);
    }
    free(plain);
    free(kept);
    close_all(&o);
}

/* ------------------------------------------------------------------ making room */

static const lt_hash128 space = { 1, 2 };

static void store(lattice_cache *cache, uint32_t id, size_t dim)
{
    float vector[64];
    for (size_t i = 0; i < dim; i++) vector[i] = (float)id;
    uint32_t ids[] = { 101, id, 102 };
    lt_cache_key key = lt_cache_key_of(space, ids, 3);
    lt_cache_store(cache, &key, vector, dim);
}

static bool find(lattice_cache *cache, uint32_t id, size_t dim)
{
    float vector[64] = { 0 };
    uint32_t ids[] = { 101, id, 102 };
    lt_cache_key key = lt_cache_key_of(space, ids, 3);
    if (!lt_cache_find(cache, &key, 0, vector, dim)) return false;
    for (size_t i = 0; i < dim; i++) assert_true(vector[i] == (float)id);
    return true;
}

static lattice_cache *open_cache(lattice_runtime **runtime, lattice_cache_options options)
{
    lattice_cache *cache;
    lattice_error err;
    assert_ok_err(lattice_runtime_create(NULL, runtime, &err), &err);
    assert_ok_err(lattice_cache_open(*runtime, &options, &cache, &err), &err);
    return cache;
}

static void ten_thousand_entries_are_kept_by_default(void **state)
{
    (void)state;
    lattice_runtime *runtime;
    lattice_cache *cache = open_cache(&runtime, lattice_cache_options_default());
    for (uint32_t i = 0; i < 12000; i++) store(cache, i, 4);
    lattice_cache_stats stats = stats_of(cache);
    assert_int_equal(stats.entries, 10000);
    assert_int_equal(stats.max_entries, 10000);
    assert_int_equal(stats.evictions, 2000);
    assert_int_equal(stats.stores, 12000);
    lattice_cache_close(cache);
    lattice_runtime_free(runtime);
}

static void sieve_keeps_what_is_asked_for_again(void **state)
{
    (void)state;
    lattice_runtime *runtime;
    lattice_cache_options options = lattice_cache_options_default();
    options.max_entries = 400;
    lattice_cache *cache = open_cache(&runtime, options);
    for (uint32_t i = 0; i < 4000; i++) {
        store(cache, i, 8);
        for (uint32_t hot = 0; hot < 50 && hot <= i; hot++) assert_true(find(cache, hot, 8));
    }
    assert_int_equal(stats_of(cache).entries, 400);
    assert_false(find(cache, 60, 8));
    lattice_cache_close(cache);
    lattice_runtime_free(runtime);
}

static void flush_starts_over_at_capacity(void **state)
{
    (void)state;
    lattice_runtime *runtime;
    lattice_cache_options options = { .max_entries = 100, .policy = LATTICE_CACHE_FLUSH };
    lattice_cache *cache = open_cache(&runtime, options);
    for (uint32_t i = 0; i < 100; i++) store(cache, i, 8);
    for (uint32_t i = 0; i < 100; i++) assert_true(find(cache, i, 8));
    store(cache, 100, 8);
    assert_int_equal(stats_of(cache).entries, 1);
    assert_true(find(cache, 100, 8));
    assert_int_equal(stats_of(cache).evictions, 100);
    lattice_cache_close(cache);
    lattice_runtime_free(runtime);
}

static void a_byte_budget_holds_for_any_mix_of_sizes(void **state)
{
    (void)state;
    lattice_runtime *runtime;
    lattice_cache_options options = { .max_bytes = 40000 };
    lattice_cache *cache = open_cache(&runtime, options);
    for (uint32_t i = 0; i < 3000; i++) {
        store(cache, i, 1 + i * 7 % 64);
        lattice_cache_stats stats = stats_of(cache);
        assert_true(stats.bytes <= 40000);
        assert_true(find(cache, i, 1 + i * 7 % 64));
    }
    assert_true(stats_of(cache).bytes > 35000);
    assert_ok(lattice_cache_clear(cache, NULL));
    assert_int_equal(stats_of(cache).bytes, 0);
    assert_false(find(cache, 2999, 1 + 2999 * 7 % 64));
    lattice_cache_close(cache);
    lattice_runtime_free(runtime);

    options.max_bytes = 10; /* less than one vector */
    cache = open_cache(&runtime, options);
    store(cache, 1, 8);
    assert_false(find(cache, 1, 8));
    assert_int_equal(stats_of(cache).lost, 1);
    lattice_cache_close(cache);
    lattice_runtime_free(runtime);
}

/* Every order of adding and evicting leaves a table in which exactly what should be there is found. */
static void entries_stay_findable_while_others_go(void **state)
{
    (void)state;
    lattice_runtime *runtime;
    lattice_cache_options options = { .max_entries = 97 };
    lattice_cache *cache = open_cache(&runtime, options);
    uint64_t random = 1;
    for (int i = 0; i < LT_ROUNDS(20000, 2000); i++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        uint32_t id = (uint32_t)(random >> 40) % 300;
        if (!find(cache, id, 3)) {
            store(cache, id, 3);
            assert_true(find(cache, id, 3));
        }
        lattice_cache_stats stats = stats_of(cache);
        assert_true(stats.entries <= 97);
        if (i % 500 == 0) {
            uint64_t n = 0;
            for (uint32_t all = 0; all < 300; all++) n += find(cache, all, 3);
            assert_int_equal(n, stats.entries);
        }
    }
    lattice_cache_close(cache);
    lattice_runtime_free(runtime);
}

static void wrong_options_are_refused(void **state)
{
    (void)state;
    lattice_runtime *runtime;
    lattice_cache *cache;
    lattice_error err;
    assert_ok(lattice_runtime_create(NULL, &runtime, NULL));
    lattice_cache_options options = { .policy = (lattice_cache_policy)7 };
    assert_int_equal(lattice_cache_open(runtime, &options, &cache, &err), LATTICE_ERR_INVALID_ARGUMENT);
    assert_null(cache);
    lattice_cache_close(NULL);
    lattice_runtime_free(runtime);
}

/* ------------------------------------------------------------------ faults */

/* Wherever memory runs out: no leak, and a vector that comes is the right one, whether the cache could keep it or not. */
static void memory_may_run_out_at_any_request(void **state)
{
    (void)state;
    float right[MAX_DIM];
    bool cached;
    opened plain;
    open_all(&plain, FIXTURE("bert-cls"), NULL, NULL);
    embed(&plain, "a text", lattice_embed_options_default(), right, &cached);
    size_t dim = plain.dim;
    close_all(&plain);

    bool lost = false;
    for (long n = 1;; n++) {
        lt_test_allocator a = lt_test_allocator_failing_at(0);
        lattice_allocator mem = lt_test_allocator_hooks(&a);
        opened o;
        lattice_runtime_options runtime_options = lattice_runtime_options_default();
        runtime_options.n_threads = 1;
        runtime_options.allocator = &mem;
        assert_ok(lattice_runtime_create(&runtime_options, &o.runtime, NULL));
        assert_ok(lattice_model_open(o.runtime, FIXTURE("bert-cls"), NULL, &o.model, NULL));
        a.fail_at = atomic_load(&a.requests) + n;
        lattice_status status = lattice_cache_open(o.runtime, NULL, &o.cache, NULL);
        bool whole = false;
        if (status == LATTICE_OK) {
            float vector[MAX_DIM];
            lattice_text text = { "a text", 6 };
            lattice_embed_options options = with(o.cache);
            status = lattice_embed(o.model, &text, 1, &options, vector, NULL, NULL);
            if (status == LATTICE_OK) {
                assert_memory_equal(vector, right, dim * sizeof *right);
                lattice_cache_stats stats = stats_of(o.cache);
                assert_int_equal(stats.stores + stats.lost, 1);
                lost |= stats.lost == 1;
                whole = stats.stores == 1;
            }
        }
        if (status != LATTICE_OK) assert_int_equal(status, LATTICE_ERR_NO_MEMORY);
        close_all(&o);
        assert_int_equal(lt_test_allocator_live(&a), 0);
        if (whole) break;
    }
    assert_true(lost); /* the embedding went on without storing at least once */
}

typedef struct crowd {
    lattice_cache *cache;
    uint32_t seed;
} crowd;

static void *use_cache(void *arg)
{
    crowd *c = arg;
    uint64_t random = c->seed;
    for (int i = 0; i < LT_ROUNDS(40000, 4000); i++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        uint32_t id = (uint32_t)(random >> 40) % 500;
        if (!find(c->cache, id, 16)) store(c->cache, id, 16);
        if (i % 1000 == 999) stats_of(c->cache);
        if (i % 3000 == 2999) assert_ok(lattice_cache_clear(c->cache, NULL));
    }
    return NULL;
}

static void threads_share_a_cache(void **state)
{
    (void)state;
    for (int policy = 0; policy < 2; policy++) {
        lattice_runtime *runtime;
        lattice_cache_options options = { .max_entries = 200, .policy = (lattice_cache_policy)policy };
        lattice_cache *cache = open_cache(&runtime, options);
        pthread_t threads[4];
        crowd crowds[4];
        for (uint32_t i = 0; i < 4; i++) {
            crowds[i] = (crowd){ cache, i + 1 };
            pthread_create(&threads[i], NULL, use_cache, &crowds[i]);
        }
        for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
        lattice_cache_stats stats = stats_of(cache);
        assert_true(stats.entries <= 200);
        assert_true(stats.hits > 0 && stats.evictions > 0);
        lattice_cache_close(cache);
        lattice_runtime_free(runtime);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(inv6_the_cache_is_keyed_by_token_ids_never_by_text),
        cmocka_unit_test(what_shapes_a_vector_separates_it),
        cmocka_unit_test(models_instruction_sets_and_arithmetic_have_fingerprints_of_their_own),
        cmocka_unit_test(a_list_may_be_found_in_part),
        cmocka_unit_test(ten_thousand_entries_are_kept_by_default),
        cmocka_unit_test(sieve_keeps_what_is_asked_for_again),
        cmocka_unit_test(flush_starts_over_at_capacity),
        cmocka_unit_test(a_byte_budget_holds_for_any_mix_of_sizes),
        cmocka_unit_test(entries_stay_findable_while_others_go),
        cmocka_unit_test(wrong_options_are_refused),
        cmocka_unit_test(memory_may_run_out_at_any_request),
        cmocka_unit_test(threads_share_a_cache),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
