/* Snapshots of sessions: what comes of one goes on as the session would have; what does not fit, or is not whole, is refused. */
#include "session_fixture.h"

#include "engine/session.h"

enum { LONG = 200 };

static void make_ids(const subject *s, uint32_t ids[LONG], uint32_t seed)
{
    for (size_t i = 0; i < LONG; i++) {
        seed = seed * 1664525u + 1013904223u;
        ids[i] = (seed >> 8) % (uint32_t)s->model->config.vocab_size;
    }
}

static void same_sessions(const subject *s, const lattice_session *a, const lattice_session *b)
{
    size_t n, m;
    const uint32_t *x = lattice_session_ids(a, &n), *y = lattice_session_ids(b, &m);
    assert_int_equal(n, m);
    if (n > 0) assert_memory_equal(x, y, n * sizeof *x);
    const float *p = lattice_session_logits(a), *q = lattice_session_logits(b);
    assert_int_equal(p != NULL, q != NULL);
    if (p) assert_memory_equal(p, q, s->model->config.vocab_size * sizeof *p);
}

/* In bits: through memory and through a file, at any length, for every kind of model. */
static void a_restored_session_goes_on_as_the_saved_one(void **state)
{
    (void)state;
    static const char *const folders[] = { TEXT, VISION, FIXTURE("qwen3-reranker") };
    static const size_t lengths[] = { 0, 1, 63, 64, 65, 130 };
    for (size_t f = 0; f < 3; f++) {
        lattice_error err;
        subject s;
        uint32_t ids[LONG];
        open_subject(&s, folders[f]);
        make_ids(&s, ids, 3);
        for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
            char path[] = "/tmp/lattice-snapshot-XXXXXX";
            const int fd = mkstemp(path);
            assert_true(fd >= 0);
            close(fd);
            lattice_snapshot bytes;
            lattice_session *from_bytes, *from_file;
            lattice_session_reset(s.session);
            if (lengths[i] > 0) assert_ok_err(lattice_session_prefill(s.session, ids, lengths[i], &err), &err);
            assert_ok_err(lattice_session_save_bytes(s.session, &bytes, &err), &err);
            assert_ok_err(lattice_session_save(s.session, path, &err), &err);
            assert_ok_err(lattice_session_load_bytes(s.model, bytes.data, bytes.size, NULL, &from_bytes, &err), &err);
            lattice_snapshot_free(&bytes);
            assert_ok_err(lattice_session_load(s.model, path, NULL, &from_file, &err), &err);
            unlink(path);
            same_sessions(&s, from_bytes, s.session);
            same_sessions(&s, from_file, s.session);
            assert_ok_err(lattice_session_prefill(s.session, ids + lengths[i], 50, &err), &err);
            assert_ok_err(lattice_session_prefill(from_bytes, ids + lengths[i], 50, &err), &err);
            assert_ok_err(lattice_session_prefill(from_file, ids + lengths[i], 50, &err), &err);
            same_sessions(&s, from_bytes, s.session);
            same_sessions(&s, from_file, s.session);
            lattice_session_free(from_bytes);
            lattice_session_free(from_file);
        }
        close_subject(&s);
    }
}

/* Penalties of what was generated depend on where the prompt ended: that is kept, too. */
static void a_restored_generation_is_sampled_as_the_saved_one(void **state)
{
    (void)state;
    lattice_error err;
    subject s;
    lattice_session *restored;
    lattice_snapshot bytes;
    open_subject(&s, TEXT);
    start(&s, s.first);
    lattice_generate_options o = greedy(6);
    o.sampling.presence_penalty = 2;
    o.sampling.temperature = 1;
    lattice_generation whole[2], first = generate(&s, &o);
    assert_ok_err(lattice_session_save_bytes(s.session, &bytes, &err), &err);
    assert_ok_err(lattice_session_load_bytes(s.model, bytes.data, bytes.size, NULL, &restored, &err), &err);
    assert_ok_err(lattice_generate(s.session, &o, &whole[0], &err), &err);
    assert_ok_err(lattice_generate(restored, &o, &whole[1], &err), &err);
    assert_memory_equal(whole[0].ids, whole[1].ids, 6 * sizeof(uint32_t));
    lattice_generation_free(&first);
    lattice_generation_free(&whole[0]);
    lattice_generation_free(&whole[1]);
    lattice_snapshot_free(&bytes);
    lattice_session_free(restored);
    close_subject(&s);
}

static void expect(lattice_model *model, const lattice_snapshot *bytes, lattice_status wanted, const char *message)
{
    lattice_error err = { 0 };
    lattice_session *session;
    lattice_status status = lattice_session_load_bytes(model, bytes->data, bytes->size, NULL, &session, &err);
    if (status != wanted || !strstr(err.message, message))
        fail_msg("%s: \"%s\"; wanted %s: \"%s\"", lattice_status_text(status), err.message, lattice_status_text(wanted), message);
    assert_null(session);
}

/* Every byte that changes, and every cut, is noticed. */
static void damaged_snapshots_are_refused(void **state)
{
    (void)state;
    lattice_error err;
    subject s;
    lattice_snapshot bytes;
    open_subject(&s, TEXT);
    start(&s, s.first);
    assert_ok_err(lattice_session_save_bytes(s.session, &bytes, &err), &err);
    for (size_t at = 0; at < bytes.size; at += at < 256 ? 1 : bytes.size / 300 + 1) {
        lattice_session *session;
        bytes.data[at] ^= 0x10;
        lattice_status status = lattice_session_load_bytes(s.model, bytes.data, bytes.size, NULL, &session, &err);
        if (status != LATTICE_ERR_FORMAT && !(status == LATTICE_ERR_UNSUPPORTED && at >= 16 && at < 24))
            fail_msg("byte %zu: %s", at, lattice_status_text(status));
        bytes.data[at] ^= 0x10;
    }
    const size_t size = bytes.size;
    for (bytes.size = 0; bytes.size < size; bytes.size += bytes.size < 300 ? 1 : size / 50 + 1)
        expect(s.model, &bytes, LATTICE_ERR_FORMAT, bytes.size < 128 ? "not a saved session" : "bytes, but should have");
    bytes.size = size;
    bytes.data[size / 2] ^= 1;
    expect(s.model, &bytes, LATTICE_ERR_FORMAT, "checksum");
    bytes.data[size / 2] ^= 1;
    bytes.data[16] = 9;
    expect(s.model, &bytes, LATTICE_ERR_UNSUPPORTED, "version 9");
    lattice_snapshot_free(&bytes);
    close_subject(&s);
}

/* Whole, but not what it should be: what somebody could have made on purpose. */
static void snapshots_that_lie_are_refused(void **state)
{
    (void)state;
    enum { NAMES = 24, VOCABULARY = 72, N = 80, PROMPT = 88, LOGITS = 96, STATE = 104, TOTAL = 112, IDS = 120 };
    static const struct {
        size_t at;
        uint64_t value;
        size_t bytes;
        lattice_status status;
        const char *message;
    } lies[] = {
        { VOCABULARY, 5, 8, LATTICE_ERR_UNSUPPORTED, "another model" },
        { N, 8, 8, LATTICE_ERR_FORMAT, "sizes" },
        { N, UINT64_MAX, 8, LATTICE_ERR_TOO_LONG, "more than" },
        { N, 1 << 20, 8, LATTICE_ERR_TOO_LONG, "more than" },
        { PROMPT, 1000, 8, LATTICE_ERR_FORMAT, "sizes" },
        { LOGITS, 0, 8, LATTICE_ERR_FORMAT, "sizes" },
        { LOGITS, 2, 8, LATTICE_ERR_FORMAT, "sizes" },
        { STATE, 64, 8, LATTICE_ERR_FORMAT, "sizes" },
        { TOTAL, 64, 8, LATTICE_ERR_FORMAT, "should have 64" },
        { IDS, 1807, 4, LATTICE_ERR_FORMAT, "1807" },
        { NAMES, 0x36316662, 4, LATTICE_ERR_UNSUPPORTED, "compute bf16" },
        { NAMES, 0x4141414141414141, 8, LATTICE_ERR_UNSUPPORTED, "compute AAAAAAA;" },
    };
    lattice_error err;
    subject s;
    lattice_snapshot bytes;
    open_subject(&s, TEXT);
    start(&s, s.first);
    assert_ok_err(lattice_session_save_bytes(s.session, &bytes, &err), &err);
    unsigned char *copy = malloc(bytes.size);
    memcpy(copy, bytes.data, bytes.size);
    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
        memcpy(bytes.data, copy, bytes.size);
        memcpy(bytes.data + lies[i].at, &lies[i].value, lies[i].bytes);
        lt_snapshot_seal(bytes.data, bytes.size);
        expect(s.model, &bytes, lies[i].status, lies[i].message);
    }
    memcpy(bytes.data, copy, bytes.size);
    const float nan = NAN;
    memcpy(bytes.data + IDS + 4 * s.first->n, &nan, sizeof nan);
    lt_snapshot_seal(bytes.data, bytes.size);
    expect(s.model, &bytes, LATTICE_ERR_FORMAT, "not finite");
    free(copy);
    lattice_snapshot_free(&bytes);
    close_subject(&s);
}

static void snapshots_of_other_models_and_arithmetic_are_refused(void **state)
{
    (void)state;
    lattice_error err;
    subject s, other;
    lattice_snapshot bytes;
    lattice_session *session;
    open_subject(&s, TEXT);
    open_subject(&other, VISION);
    start(&s, s.first);
    assert_ok_err(lattice_session_save_bytes(s.session, &bytes, &err), &err);
    expect(other.model, &bytes, LATTICE_ERR_UNSUPPORTED, "another model");
    const lattice_session_options few = { .max_length = s.first->n - 1 };
    assert_int_equal(lattice_session_load_bytes(s.model, bytes.data, bytes.size, &few, &session, &err), LATTICE_ERR_TOO_LONG);
    assert_int_equal(lattice_session_load(s.model, "/nonexistent/file", NULL, &session, &err), LATTICE_ERR_NOT_FOUND);
    assert_int_equal(lattice_session_save(s.session, "/nonexistent/file", &err), LATTICE_ERR_NOT_FOUND);
    lattice_model *same;
    lattice_model_options options = lattice_model_options_default();
    options.isa = "scalar";
    options.compute = LATTICE_COMPUTE_BF16;
    assert_ok_err(lattice_model_open(s.runtime, TEXT, &options, &same, &err), &err);
    expect(same, &bytes, LATTICE_ERR_UNSUPPORTED, "saved with compute f32; the model is open with bf16");
    lattice_model_close(same);
    options.compute = LATTICE_COMPUTE_F32;
    assert_ok_err(lattice_model_open(s.runtime, TEXT, &options, &same, &err), &err);
    lattice_model_info info;
    lattice_model_get_info(s.model, &info);
    if (strcmp(info.isa, "scalar") != 0) expect(same, &bytes, LATTICE_ERR_UNSUPPORTED, "open with scalar");
    lattice_model_close(same);
    lattice_snapshot_free(&bytes);
    close_subject(&other);
    close_subject(&s);
}

static char memory_path[] = "/tmp/lattice-snapshot-XXXXXX";

static lattice_status everything(lattice_model *model, const golden_case *c, lattice_error *err)
{
    const char *path = memory_path;
    lattice_session *a = NULL, *b = NULL, *d = NULL;
    lattice_snapshot bytes = { 0 };
    lattice_status status = lattice_session_create(model, NULL, &a, err);
    if (status == LATTICE_OK) status = lattice_session_prefill(a, c->ids, c->n, err);
    if (status == LATTICE_OK) status = lattice_session_save_bytes(a, &bytes, err);
    if (status == LATTICE_OK) status = lattice_session_save(a, path, err);
    if (status == LATTICE_OK) status = lattice_session_load(model, path, NULL, &b, err);
    if (status == LATTICE_OK) status = lattice_session_load_bytes(model, bytes.data, bytes.size, NULL, &d, err);
    lattice_snapshot_free(&bytes);
    lattice_session_free(a);
    lattice_session_free(b);
    lattice_session_free(d);
    return status;
}

static void without_memory_snapshots_fail_and_nothing_leaks(void **state)
{
    (void)state;
    const int fd = mkstemp(memory_path);
    assert_true(fd >= 0);
    close(fd);
    fail_every_request(everything, false);
    unlink(memory_path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_restored_session_goes_on_as_the_saved_one),
        cmocka_unit_test(a_restored_generation_is_sampled_as_the_saved_one),
        cmocka_unit_test(damaged_snapshots_are_refused),
        cmocka_unit_test(snapshots_that_lie_are_refused),
        cmocka_unit_test(snapshots_of_other_models_and_arithmetic_are_refused),
        cmocka_unit_test(without_memory_snapshots_fail_and_nothing_leaks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
