/* Snapshots of sessions. The input is laid over a snapshot of a small model, which is then sealed, so that its bytes get past the
 * checksum; and read as it is. Whatever is accepted must go on without touching what it should not. */
#include <stdlib.h>
#include <string.h>

#include "engine/session.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static lattice_model *model;
static lattice_snapshot whole;

static void prepare(void)
{
    lattice_runtime *runtime;
    lattice_session *session;
    lattice_runtime_options options = lattice_runtime_options_default();
    const uint32_t ids[] = { 1, 2, 3, 4, 5 };
    options.n_threads = 1;
    if (lattice_runtime_create(&options, &runtime, NULL) != LATTICE_OK ||
        lattice_model_open(runtime, LT_FIXTURES "/qwen3.5-text", NULL, &model, NULL) != LATTICE_OK ||
        lattice_session_create(model, NULL, &session, NULL) != LATTICE_OK ||
        lattice_session_prefill(session, ids, 5, NULL) != LATTICE_OK ||
        lattice_session_save_bytes(session, &whole, NULL) != LATTICE_OK)
        abort();
    lattice_session_free(session);
}

static void load(const unsigned char *data, size_t size)
{
    lattice_session *session;
    lattice_error err;
    if (lattice_session_load_bytes(model, data, size, NULL, &session, &err) != LATTICE_OK) {
        if (session) abort();
        return;
    }
    size_t n;
    lattice_session_ids(session, &n);
    for (size_t i = 0; i < n; i++)
        if (lattice_session_ids(session, &n)[i] >= model->config.vocab_size) abort();
    (void)lattice_session_step(session, 7, &err); /* may find logits that are not finite */
    lattice_session_free(session);
}

/* [2 bytes: where] [2 bytes: how much is cut off the end] what is laid over it */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!model) prepare();
    load(data, size);
    if (size < 4) return 0;
    const size_t cut = (size_t)(data[2] | data[3] << 8), length = cut < whole.size ? whole.size - cut : 0;
    const size_t at = (size_t)(data[0] | data[1] << 8) % 512, n = size - 4;
    unsigned char *copy = malloc(length + 1);
    if (!copy) abort();
    memcpy(copy, whole.data, length);
    if (at < length) memcpy(copy + at, data + 4, n < length - at ? n : length - at);
    lt_snapshot_seal(copy, length);
    load(copy, length);
    free(copy);
    return 0;
}
