/* The embedding cache's file: kept over processes, kills and damage; and the flat file. */
#include "support.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "base/runtime.h"
#include "engine/cache.h"
#include "engine/cache_flat.h"

enum { DIM = 96, N_IDS = 5 };
static const lt_hash128 space = { 11, 22 };

typedef struct opened {
    lattice_runtime *runtime;
    lattice_cache *cache;
} opened;

static atomic_int warnings;
static char last_warning[512];

static void count_warnings(void *user, lattice_log_level level, const char *message)
{
    (void)user;
    if (level > LATTICE_LOG_WARNING) return;
    atomic_fetch_add(&warnings, 1);
    snprintf(last_warning, sizeof last_warning, "%s", message);
}

static lattice_status try_open(opened *o, lattice_cache_options options, lattice_error *err)
{
    lattice_runtime_options runtime_options = lattice_runtime_options_default();
    runtime_options.n_threads = 1;
    runtime_options.log = count_warnings;
    atomic_store(&warnings, 0);
    last_warning[0] = '\0';
    assert_ok(lattice_runtime_create(&runtime_options, &o->runtime, err));
    return lattice_cache_open(o->runtime, &options, &o->cache, err);
}

static opened open_path(const char *path)
{
    opened o;
    lattice_error err;
    lattice_cache_options options = lattice_cache_options_default();
    options.path = path;
    assert_ok_err(try_open(&o, options, &err), &err);
    return o;
}

static void close_it(opened *o)
{
    lattice_cache_close(o->cache);
    lattice_runtime_free(o->runtime);
    *o = (opened){ 0 };
}

static lattice_cache_stats stats_of(const opened *o)
{
    lattice_cache_stats stats;
    lattice_cache_get_stats(o->cache, &stats);
    return stats;
}

/* What would be computed for text number i. */
static void make(uint32_t i, uint32_t ids[N_IDS], float vector[DIM])
{
    for (uint32_t k = 0; k < N_IDS; k++) ids[k] = i * 31 + k;
    for (uint32_t k = 0; k < DIM; k++) vector[k] = (float)(i * 1000 + k) / 7.0f;
}

static void store(const opened *o, uint32_t i)
{
    uint32_t ids[N_IDS];
    float vector[DIM];
    make(i, ids, vector);
    lt_cache_key key = lt_cache_key_of(space, ids, N_IDS);
    lt_cache_store(o->cache, &key, vector, DIM);
}

/* Whether it is there; what is served must be what would be computed. */
static bool find(const opened *o, uint32_t i)
{
    uint32_t ids[N_IDS];
    float right[DIM], found[DIM];
    make(i, ids, right);
    lt_cache_key key = lt_cache_key_of(space, ids, N_IDS);
    if (!lt_cache_find(o->cache, &key, 0, found, DIM)) return false;
    assert_memory_equal(found, right, sizeof right);
    return true;
}

static uint32_t count_found(const opened *o, uint32_t n)
{
    uint32_t found = 0;
    for (uint32_t i = 0; i < n; i++) found += find(o, i);
    return found;
}

static void fill(const char *path, uint32_t n)
{
    opened o = open_path(path);
    for (uint32_t i = 0; i < n; i++) store(&o, i);
    close_it(&o);
}

/* ------------------------------------------------------------------ keeping */

static void a_file_outlives_its_process(void **state)
{
    (void)state;
    lt_test_folder folder = lt_test_folder_create();
    char path[256];
    lt_test_path(&folder, "cache", path);
    opened o = open_path(path);
    for (uint32_t i = 0; i < 500; i++) store(&o, i);
    lattice_cache_stats stats = stats_of(&o);
    assert_true(stats.disk);
    assert_int_equal(stats.entries, 500);
    close_it(&o);

    o = open_path(path);
    assert_int_equal(stats_of(&o).entries, 0);
    assert_int_equal(stats_of(&o).disk_entries, 500);
    assert_int_equal(count_found(&o, 600), 500);
    assert_int_equal(count_found(&o, 500), 500); /* now from memory */
    stats = stats_of(&o);
    assert_int_equal(stats.hits, 1000);
    assert_int_equal(stats.disk_hits, 500);
    assert_int_equal(stats.misses, 100);
    assert_true(stats.disk_bytes >= 500 * DIM * 4);
    assert_ok(lattice_cache_clear(o.cache, NULL));
    assert_int_equal(count_found(&o, 500), 0);
    close_it(&o);
    o = open_path(path);
    assert_int_equal(stats_of(&o).disk_entries, 0);
    assert_int_equal(atomic_load(&warnings), 0);
    close_it(&o);
    lt_test_folder_remove(&folder);
}

static void what_one_process_computes_another_finds(void **state)
{
    (void)state;
    lt_test_folder folder = lt_test_folder_create();
    char path[256];
    lt_test_path(&folder, "cache", path);
    fill(path, 1);
    pid_t child = fork();
    if (child == 0) {
        fill(path, 50);
        _exit(0);
    }
    int status;
    waitpid(child, &status, 0);
    assert_int_equal(status, 0);
    opened o = open_path(path);
    assert_int_equal(count_found(&o, 50), 50);
    child = fork(); /* inherits nothing of use: opens anew after closing */
    if (child == 0) {
        execl("/proc/self/exe", "test_cache_disk", "--write", path, "100", (char *)NULL);
        _exit(1);
    }
    waitpid(child, &status, 0);
    assert_int_equal(status, 0);
    assert_int_equal(count_found(&o, 100), 100); /* while this process had it open */
    close_it(&o);
    lt_test_folder_remove(&folder);
}

static void the_file_stays_within_its_limit(void **state)
{
    (void)state;
    lt_test_folder folder = lt_test_folder_create();
    char path[256];
    lattice_cache_options options = lattice_cache_options_default();
    options.path = lt_test_path(&folder, "cache", path);
    options.max_entries = 10;
    options.max_disk_bytes = 1 << 20;
    opened o;
    lattice_error err;
    enum { N = 6000 }; /* 3 MB */
    assert_ok_err(try_open(&o, options, &err), &err);
    for (uint32_t i = 0; i < N; i++) {
        store(&o, i);
        if (i % 50 == 49) usleep(200); /* several transactions */
    }
    close_it(&o);
    assert_ok_err(try_open(&o, options, &err), &err);
    uint64_t kept = stats_of(&o).disk_entries;
    assert_in_range(kept, 1000, 2500);
    assert_int_equal(count_found(&o, N), kept);
    assert_int_equal(atomic_load(&warnings), 0);
    close_it(&o);
    lt_test_folder_remove(&folder);
}

static void a_model_finds_its_vectors_again_after_reopening(void **state)
{
    (void)state;
    lt_test_folder folder = lt_test_folder_create();
    char path[256];
    lt_test_path(&folder, "cache", path);
    float first[DIM * 4], second[DIM * 4];
    lattice_text texts[] = { { "one text", 8 }, { "another", 7 } };
    for (int round = 0; round < 2; round++) {
        opened o = open_path(path);
        lattice_model *model;
        lattice_error err;
        assert_ok_err(lattice_model_open(o.runtime, FIXTURE("bert-cls"), NULL, &model, &err), &err);
        lattice_embed_options options = lattice_embed_options_default();
        options.cache = o.cache;
        lattice_usage usage = { 0 };
        assert_true(lattice_embed_dim(model, NULL) <= DIM * 2);
        assert_ok_err(lattice_embed(model, texts, 2, &options, round ? second : first, &usage, &err), &err);
        assert_int_equal(usage.n_cached, round ? 2 : 0);
        if (round) assert_memory_equal(first, second, lattice_embed_dim(model, NULL) * 2 * sizeof *first);
        lattice_model_close(model);
        close_it(&o);
    }
    lt_test_folder_remove(&folder);
}

/* ------------------------------------------------------------------ kills */

/* A process is killed at some instant of writing; what the next one finds is what would be computed. */
static void a_killed_writer_leaves_a_sound_file(void **state)
{
    (void)state;
    lt_test_folder folder = lt_test_folder_create();
    char path[256];
    lt_test_path(&folder, "cache", path);
    const char *asked = getenv("LT_KILLS");
    int kills = asked ? atoi(asked) : LT_ROUNDS(20, 6);
    uint64_t random = 5;
    uint32_t most = 0;
    for (int k = 0; k < kills; k++) {
        pid_t child = fork();
        if (child == 0) {
            execl("/proc/self/exe", "test_cache_disk", "--write", path, "1000000", (char *)NULL);
            _exit(1);
        }
        random = random * 6364136223846793005u + 1442695040888963407u;
        usleep((useconds_t)(random >> 40) % LT_ROUNDS(60000, 300000));
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);
        opened o = open_path(path);
        if (atomic_load(&warnings)) fail_msg("kill %d: %s", k, last_warning);
        uint32_t found = count_found(&o, 3000);
        if (found > most) most = found;
        assert_true(found == most || found == 3000); /* what was written stays */
        close_it(&o);
    }
    assert_true(most > 0);
    lt_test_folder_remove(&folder);
}

/* ------------------------------------------------------------------ damage */

static bool is_aside(const lt_test_folder *folder, int n)
{
    char name[64], path[256];
    snprintf(name, sizeof name, "cache.damaged-%d", n);
    return access(lt_test_path(folder, name, path), F_OK) == 0;
}

/* Whatever byte of the file is changed: opening either still serves right vectors only, or sets the file aside and begins anew.
 */
static void a_damaged_file_is_set_aside_and_never_served(void **state)
{
    (void)state;
    lt_test_folder folder = lt_test_folder_create();
    char path[256];
    lt_test_path(&folder, "cache", path);
    enum { N = 300 };
    fill(path, N);
    size_t size;
    char *sound = lt_test_read_file(path, &size);
    uint64_t random = 99;
    int set_aside = 0;
    for (int i = 0; i < LT_ROUNDS(300, 60); i++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        char *bytes = malloc(size);
        memcpy(bytes, sound, size);
        size_t length = size, at = (size_t)(random >> 20) % size;
        if (i % 3 == 0) at %= 2 * 4096;                  /* heads */
        if (i % 3 == 1) at = at / 4096 * 4096 + at % 64; /* heads of pages */
        if (i % 10 == 9) {
            length = at; /* cut short */
        } else if (i % 10 == 8) {
            size_t n = size - at < 4096 ? size - at : 4096;
            memset(bytes + at, (int)(random & 0xff), n);
        } else {
            bytes[at] = (char)(bytes[at] ^ (1 << (random & 7)));
        }
        lt_test_write_file(path, bytes, length);
        free(bytes);
        opened o = open_path(path);
        uint32_t found = count_found(&o, N);
        bool aside = is_aside(&folder, 1);
        if (aside) {
            assert_int_equal(found, 0);
            assert_int_equal(atomic_load(&warnings), 1);
            assert_non_null(strstr(last_warning, "damaged"));
            set_aside++;
        }
        store(&o, 7);
        close_it(&o);
        o = open_path(path); /* and the next start has it */
        assert_int_equal(atomic_load(&warnings), 0);
        assert_true(find(&o, 7));
        close_it(&o);
        char name[256];
        remove(lt_test_path(&folder, "cache.damaged-1", name));
        assert_false(is_aside(&folder, 2));
    }
    assert_true(set_aside > LT_ROUNDS(60, 12));
    free(sound);
    lt_test_folder_remove(&folder);
}

static void what_is_no_cache_is_refused_and_left_alone(void **state)
{
    (void)state;
    lt_test_folder folder = lt_test_folder_create();
    char path[256], text[20000];
    memset(text, 'x', sizeof text);
    lt_test_path(&folder, "notes.txt", path);
    lt_test_write_file(path, text, sizeof text);
    opened o;
    lattice_error err;
    lattice_cache_options options = { .path = path };
    assert_int_equal(try_open(&o, options, &err), LATTICE_ERR_FORMAT);
    assert_non_null(strstr(err.message, "notes.txt"));
    close_it(&o);
    size_t size;
    char *after = lt_test_read_file(path, &size);
    assert_int_equal(size, sizeof text);
    assert_memory_equal(after, text, size);
    free(after);

    options.path = folder.path;
    assert_int_equal(try_open(&o, options, &err), LATTICE_ERR_FORMAT);
    close_it(&o);
    options.path = lt_test_path(&folder, "no/such/folder/cache", path);
    assert_int_equal(try_open(&o, options, &err), LATTICE_ERR_NOT_FOUND);
    close_it(&o);
    options.path = lt_test_path(&folder, "absent", path);
    options.read_only = true;
    assert_int_equal(try_open(&o, options, &err), LATTICE_ERR_NOT_FOUND);
    close_it(&o);
    assert_int_not_equal(access(path, F_OK), 0);
    lt_test_folder_remove(&folder);
}

/* ------------------------------------------------------------------ disks that fail */

/* Stands in for a full disk: a process whose files may not grow. */
static void a_full_disk_is_warned_of_once_and_memory_goes_on(void **state)
{
    (void)state;
    lt_test_folder folder = lt_test_folder_create();
    char path[256];
    lt_test_path(&folder, "cache", path);
    fill(path, 10);
    pid_t child = fork();
    if (child == 0) {
        execl("/proc/self/exe", "test_cache_disk", "--full", path, (char *)NULL);
        _exit(1);
    }
    int status;
    waitpid(child, &status, 0);
    assert_int_equal(status, 0);
    opened o = open_path(path);
    assert_int_equal(atomic_load(&warnings), 0);
    assert_true(count_found(&o, 10) == 10);
    close_it(&o);
    lt_test_folder_remove(&folder);
}

static void a_file_that_may_only_be_read_is_read(void **state)
{
    (void)state;
    lt_test_folder folder = lt_test_folder_create();
    char path[256];
    lt_test_path(&folder, "cache", path);
    fill(path, 20);
    opened o;
    lattice_error err;
    lattice_cache_options options = { .path = path, .read_only = true };
    assert_ok_err(try_open(&o, options, &err), &err);
    assert_int_equal(count_found(&o, 20), 20);
    store(&o, 20);
    assert_true(find(&o, 20));
    assert_int_not_equal(lattice_cache_clear(o.cache, &err), LATTICE_OK);
    close_it(&o);
    o = open_path(path);
    assert_int_equal(stats_of(&o).disk_entries, 20);
    close_it(&o);

    if (geteuid() == 0) { /* root may write anything: another user may not */
        chmod(folder.path, 0755);
        chmod(path, 0444);
        pid_t child = fork();
        if (child == 0) {
            if (setuid(65534) != 0) _exit(0);
            execl("/proc/self/exe", "test_cache_disk", "--denied", path, (char *)NULL);
            _exit(1);
        }
        int status;
        waitpid(child, &status, 0);
        assert_int_equal(status, 0);
    }
    lt_test_folder_remove(&folder);
}

static void memory_may_run_out_while_opening_and_using_a_file(void **state)
{
    (void)state;
    lt_test_folder folder = lt_test_folder_create();
    char path[256];
    lt_test_path(&folder, "cache", path);
    fill(path, 3);
    for (long n = 1;; n++) {
        lt_test_allocator a = lt_test_allocator_failing_at(0);
        lattice_allocator mem = lt_test_allocator_hooks(&a);
        lattice_runtime_options runtime_options = lattice_runtime_options_default();
        runtime_options.n_threads = 1;
        runtime_options.allocator = &mem;
        opened o = { 0 };
        assert_ok(lattice_runtime_create(&runtime_options, &o.runtime, NULL));
        a.fail_at = atomic_load(&a.requests) + n;
        lattice_cache_options options = { .path = path };
        lattice_status status = lattice_cache_open(o.runtime, &options, &o.cache, NULL);
        bool whole = false;
        if (status == LATTICE_OK) {
            bool all = count_found(&o, 3) == 3;
            store(&o, 2);
            store(&o, (uint32_t)n + 10);
            lattice_cache_stats stats = stats_of(&o);
            whole = all && stats.stores == 2 && stats.lost == 0;
        } else {
            assert_int_equal(status, LATTICE_ERR_NO_MEMORY);
        }
        close_it(&o);
        assert_int_equal(lt_test_allocator_live(&a), 0);
        if (whole) break;
        assert_true(n < 1000);
    }
    lt_test_folder_remove(&folder);
}

typedef struct crowd {
    const opened *o;
    uint32_t from;
} crowd;

static void *use(void *arg)
{
    crowd *c = arg;
    for (uint32_t i = 0; i < LT_ROUNDS(3000u, 400u); i++) {
        if (!find(c->o, (c->from + i) % 1000)) store(c->o, (c->from + i) % 1000);
        if (i % 500 == 0) stats_of(c->o);
    }
    return NULL;
}

static void threads_share_a_file(void **state)
{
    (void)state;
    lt_test_folder folder = lt_test_folder_create();
    char path[256];
    lattice_cache_options options = { .path = lt_test_path(&folder, "cache", path), .max_entries = 50 };
    opened o;
    assert_ok(try_open(&o, options, NULL));
    pthread_t threads[4];
    crowd crowds[4];
    for (uint32_t i = 0; i < 4; i++) {
        crowds[i] = (crowd){ &o, i * 250 };
        pthread_create(&threads[i], NULL, use, &crowds[i]);
    }
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    assert_int_equal(atomic_load(&warnings), 0);
    close_it(&o);
    lt_test_folder_remove(&folder);
}

/* ------------------------------------------------------------------ the flat file */

/* {hash u64, dim u32, dim float32}, put together by hand: FNV-1a of ids 1, 2 as little-endian u32. */
static void the_flat_file_has_the_layout_of_the_original(void **state)
{
    (void)state;
    const uint32_t ids[] = { 1, 2 };
    uint64_t hash = 14695981039346656037u;
    const uint8_t bytes[] = { 1, 0, 0, 0, 2, 0, 0, 0 };
    for (int i = 0; i < 8; i++) hash = (hash ^ bytes[i]) * 1099511628211u;
    assert_int_equal(lt_flat_hash(ids, 2), hash);
    assert_true(lt_flat_hash(NULL, 0) == 0xcbf29ce484222325u);

    lt_test_folder folder = lt_test_folder_create();
    char path[256], flat[256];
    lt_test_path(&folder, "cache", path);
    lt_test_path(&folder, "flat", flat);
    for (int on_disk = 0; on_disk < 2; on_disk++) {
        opened o;
        lattice_cache_options options = { .path = on_disk ? path : NULL };
        assert_ok(try_open(&o, options, NULL));
        const float vector[] = { 1.5f, -2.0f, 0.25f };
        lt_cache_key key = lt_cache_key_of(space, ids, 2);
        lt_cache_store(o.cache, &key, vector, 3);
        uint64_t n;
        lattice_error err;
        assert_ok_err(lattice_cache_export(o.cache, flat, NULL, NULL, &n, &err), &err);
        assert_int_equal(n, 1);
        size_t size;
        char *file = lt_test_read_file(flat, &size);
        assert_int_equal(size, 24);
        const uint32_t dim = 3;
        assert_memory_equal(file, &hash, 8);
        assert_memory_equal(file + 8, &dim, 4);
        assert_memory_equal(file + 12, vector, 12);
        free(file);
        close_it(&o);
    }
    lt_test_folder_remove(&folder);
}

static void imported_vectors_are_served_only_on_request(void **state)
{
    (void)state;
    lt_test_folder folder = lt_test_folder_create();
    char path[256], flat[256];
    lt_test_path(&folder, "cache", path);
    lt_test_path(&folder, "flat", flat);
    uint32_t ids[N_IDS];
    float vector[DIM], found[DIM];
    make(4, ids, vector);
    lt_cache_key key = lt_cache_key_of(space, ids, N_IDS);
    for (int on_disk = 0; on_disk < 2; on_disk++) {
        opened o;
        lattice_cache_options options = { .path = on_disk ? path : NULL };
        assert_ok(try_open(&o, options, NULL));
        char data[12 + DIM * 4];
        uint64_t hash = lt_flat_hash(ids, N_IDS), n;
        const uint32_t dim = DIM;
        memcpy(data, &hash, 8);
        memcpy(data + 8, &dim, 4);
        memset(data + 12, 0, DIM * 4);
        lt_test_write_file(flat, data, sizeof data);
        assert_ok(lattice_cache_import(o.cache, flat, &n, NULL));
        memcpy(data + 12, vector, sizeof vector);
        lt_test_write_file(flat, data, sizeof data);
        assert_ok(lattice_cache_import(o.cache, flat, &n, NULL)); /* the later one counts */
        assert_int_equal(n, 1);
        assert_false(lt_cache_find(o.cache, &key, 0, found, DIM));
        assert_true(lt_cache_find(o.cache, &key, LT_CACHE_UNVERIFIED, found, DIM));
        assert_memory_equal(found, vector, sizeof vector);
        assert_false(lt_cache_find(o.cache, &key, LT_CACHE_UNVERIFIED, found, DIM - 1));
        lattice_cache_stats stats = stats_of(&o);
        assert_int_equal(stats.unverified_entries, 1);
        assert_int_equal(stats.unverified_hits, 1);
        assert_int_equal(stats.hits, 1);
        assert_int_equal(stats.misses, 2);
        assert_ok(lattice_cache_export(o.cache, flat, NULL, NULL, &n, NULL));
        assert_int_equal(n, 0); /* what came from elsewhere is not passed on */
        close_it(&o);
    }
    opened o = open_path(path);
    assert_int_equal(stats_of(&o).unverified_entries, 1);
    assert_true(lt_cache_find(o.cache, &key, LT_CACHE_UNVERIFIED, found, DIM));
    close_it(&o);
    lt_test_folder_remove(&folder);
}

static void wrong_flat_files_name_the_byte(void **state)
{
    (void)state;
    struct {
        const char *bytes;
        size_t size;
        const char *message;
    } cases[] = {
        { "12345678\1\0\0", 11, "head is cut short at byte 0" },
        { "12345678\0\0\0\0", 12, "0 dimensions at byte 8" },
        { "12345678\1\0\1\0", 12, "65537 dimensions at byte 8" },
        { "12345678\2\0\0\0\0\0\0\0\0\0\0", 19, "cut short at byte 12" },
        { "12345678\1\0\0\0\0\0\x80\x3f"
          "12345678\1\0\0\0\0\0\x80\x7f",
          32, "value at byte 28 is not finite" },
        { "12345678\1\0\0\0\0\0\x80\x3f!", 17, "head is cut short at byte 16" },
    };
    lt_test_folder folder = lt_test_folder_create();
    char flat[256];
    lt_test_path(&folder, "flat", flat);
    opened o;
    assert_ok(try_open(&o, lattice_cache_options_default(), NULL));
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        lt_test_write_file(flat, cases[i].bytes, cases[i].size);
        uint64_t n;
        lattice_error err;
        assert_int_equal(lattice_cache_import(o.cache, flat, &n, &err), LATTICE_ERR_FORMAT);
        if (!strstr(err.message, cases[i].message)) fail_msg("case %zu: %s", i, err.message);
        assert_int_equal(n, 0);
        assert_int_equal(stats_of(&o).unverified_entries, 0);
    }
    lt_test_write_file(flat, "", 0);
    uint64_t n = 1;
    assert_ok(lattice_cache_import(o.cache, flat, &n, NULL));
    assert_int_equal(n, 0);
    assert_int_equal(lattice_cache_import(o.cache, "/nonexistent", &n, NULL), LATTICE_ERR_NOT_FOUND);
    close_it(&o);
    lt_test_folder_remove(&folder);
}

static void export_tells_models_apart(void **state)
{
    (void)state;
    lt_test_folder folder = lt_test_folder_create();
    char flat[256];
    lt_test_path(&folder, "flat", flat);
    opened o;
    lattice_error err;
    assert_ok(try_open(&o, lattice_cache_options_default(), NULL));
    lattice_model *model;
    assert_ok_err(lattice_model_open(o.runtime, FIXTURE("bert-cls"), NULL, &model, &err), &err);
    lattice_embed_options options = lattice_embed_options_default();
    options.cache = o.cache;
    lattice_text texts[] = { { "one text", 8 }, { "another", 7 } };
    float vectors[DIM * 4];
    assert_ok(lattice_embed(model, texts, 2, &options, vectors, NULL, NULL));
    uint64_t n;
    assert_ok(lattice_cache_export(o.cache, flat, NULL, NULL, &n, NULL));
    assert_int_equal(n, 2);
    options.pooling = LATTICE_POOLING_MAX;
    assert_ok(lattice_embed(model, texts, 1, &options, vectors, NULL, NULL));
    assert_int_equal(lattice_cache_export(o.cache, flat, NULL, NULL, &n, &err), LATTICE_ERR_INVALID_ARGUMENT);
    assert_ok(lattice_cache_export(o.cache, flat, model, NULL, &n, NULL));
    assert_int_equal(n, 2);
    assert_ok(lattice_cache_export(o.cache, flat, model, &options, &n, NULL));
    assert_int_equal(n, 1);
    lattice_model_close(model);
    close_it(&o);
    lt_test_folder_remove(&folder);
}

/* ------------------------------------------------------------------ processes of their own */

static int write_until_killed(const char *path, uint32_t n)
{
    opened o = open_path(path);
    for (uint32_t i = 0; i < n; i++) {
        store(&o, i);
        if (i % 20 == 19) usleep(100);
    }
    close_it(&o);
    return 0;
}

/* Writing fails where the file would grow; everything stays in memory, and there is one warning. */
static int run_full(const char *path)
{
    signal(SIGXFSZ, SIG_IGN);
    opened o = open_path(path);
    struct stat info;
    if (stat(path, &info) != 0) return 2;
    struct rlimit limit = { (rlim_t)info.st_size, (rlim_t)info.st_size };
    if (setrlimit(RLIMIT_FSIZE, &limit) != 0) return 3;
    for (uint32_t i = 10; i < 2000; i++) {
        store(&o, i);
        if (i % 100 == 0) usleep(2000);
    }
    if (count_found(&o, 2000) != 2000) return 4;
    close_it(&o);
    return atomic_load(&warnings) == 1 && strstr(last_warning, "without writing") ? 0 : 5;
}

static int run_denied(const char *path)
{
    opened o = open_path(path);
    if (atomic_load(&warnings) != 1) return 2;
    store(&o, 30);
    if (!find(&o, 30)) return 3;
    close_it(&o);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 4 && strcmp(argv[1], "--write") == 0) return write_until_killed(argv[2], (uint32_t)atoi(argv[3]));
    if (argc == 3 && strcmp(argv[1], "--full") == 0) return run_full(argv[2]);
    if (argc == 3 && strcmp(argv[1], "--denied") == 0) return run_denied(argv[2]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_file_outlives_its_process),
        cmocka_unit_test(what_one_process_computes_another_finds),
        cmocka_unit_test(the_file_stays_within_its_limit),
        cmocka_unit_test(a_model_finds_its_vectors_again_after_reopening),
        cmocka_unit_test(a_killed_writer_leaves_a_sound_file),
        cmocka_unit_test(a_damaged_file_is_set_aside_and_never_served),
        cmocka_unit_test(what_is_no_cache_is_refused_and_left_alone),
        cmocka_unit_test(a_full_disk_is_warned_of_once_and_memory_goes_on),
        cmocka_unit_test(a_file_that_may_only_be_read_is_read),
        cmocka_unit_test(memory_may_run_out_while_opening_and_using_a_file),
        cmocka_unit_test(threads_share_a_file),
        cmocka_unit_test(the_flat_file_has_the_layout_of_the_original),
        cmocka_unit_test(imported_vectors_are_served_only_on_request),
        cmocka_unit_test(wrong_flat_files_name_the_byte),
        cmocka_unit_test(export_tells_models_apart),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
