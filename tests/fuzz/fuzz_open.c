/* A checkpoint's folder, down to a forward pass: config.json, a NUL, the header of model.safetensors, and perhaps a NUL and
 * model.safetensors.index.json. The tensors' bytes are zeros, as many as the header claims. What a family accepts must compile,
 * and run a batch of three tokens in every tail that reads nothing but them. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "backend/backend.h"
#include "base/runtime.h"
#include "model/family.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Of the safetensors file: more is not what a small input is about. */
enum { MOST_DATA = 1 << 21, MOST_FLOATS = 1 << 20, MOST_LAYERS = 64 };

static char folder[64];
static lattice_runtime *runtime;

static void remove_folder(void)
{
    static const char *const names[] = { "config.json", "model.safetensors", "model.safetensors.index.json" };
    char path[128];
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        unlink(path);
    }
    rmdir(folder);
    lattice_runtime_free(runtime);
}

static void begin(void)
{
    struct stat memory;
    snprintf(folder, sizeof folder, "%s/lattice-fuzz-XXXXXX", stat("/dev/shm", &memory) == 0 ? "/dev/shm" : "/tmp");
    lattice_runtime_options options = lattice_runtime_options_default();
    options.n_threads = 1;
    options.log_level = LATTICE_LOG_ERROR;
    if (!mkdtemp(folder) || lattice_runtime_create(&options, &runtime, NULL) != LATTICE_OK) abort();
    atexit(remove_folder);
}

static void write_file(const char *name, const void *prefix, size_t prefix_size, const void *data, size_t size, size_t zeros)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    int file = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (file < 0 || (prefix_size && write(file, prefix, prefix_size) != (ssize_t)prefix_size) ||
        (size && write(file, data, size) != (ssize_t)size) || ftruncate(file, (off_t)(prefix_size + size + zeros)) != 0)
        abort();
    close(file);
}

/* The largest number behind a comma or bracket of "data_offsets": where the data end, if the header is one. */
static size_t claimed_bytes(const uint8_t *text, size_t n)
{
    size_t most = 0, number = 0;
    for (size_t i = 0; i < n; i++) {
        number = text[i] >= '0' && text[i] <= '9' && number < MOST_DATA ? 10 * number + (size_t)(text[i] - '0') : 0;
        if (number > most && number <= MOST_DATA && i + 1 < n && text[i + 1] == ']') most = number;
    }
    return most;
}

static void run(lt_plan *plan, const lt_config *config, lt_backend *backend, lt_program *program)
{
    static const lt_tail_kind tails[] = { LT_TAIL_TOKENS, LT_TAIL_POOLED, LT_TAIL_SCORES, LT_TAIL_LOGITS };
    static const uint32_t ids[3] = { 0, 0, 0 }, positions[3] = { 0, 1, 2 };
    static const size_t starts[2] = { 0, 3 }, rows[1] = { 2 };
    lattice_error err;
    if (config->vocab_size == 0) abort();
    for (size_t i = 0; i < sizeof tails / sizeof *tails; i++) {
        if (!plan->tails[tails[i]].present) continue;
        const lt_value *result = &plan->values[plan->tails[tails[i]].result];
        if (result->width > MOST_FLOATS) continue;
        lt_batch batch = {
            .n_tokens = 3, .n_seqs = 1, .n_out = 1, .ids = ids, .positions = positions, .seq_starts = starts, .out_rows = rows
        };
        float *out = malloc(3 * result->width * sizeof *out);
        if (out) backend->run(program, &batch, tails[i], out, NULL, &err);
        free(out);
    }
}

static void open_and_run(void)
{
    const lattice_allocator *mem = &runtime->mem;
    const lt_compile_options room = { .max_tokens = 8, .max_seqs = 2 };
    const uint32_t no_yes[2] = { 0, 1 };
    lattice_error err;
    lt_config config;
    lt_checkpoint *checkpoint = NULL;
    lt_plan plan;
    lt_plan_init(&plan, mem);
    lattice_status status = lt_config_read(mem, folder, &config, &err);
    const lt_family *family = status == LATTICE_OK && config.n_layers <= MOST_LAYERS ? lt_family_find(&config) : NULL;
    if (family && lt_checkpoint_open(mem, folder, true, &checkpoint, &err) == LATTICE_OK &&
        family->record(runtime, &config, NULL, checkpoint, no_yes, config.head == LT_HEAD_LM ? 2 : 0, &plan, &err) ==
            LATTICE_OK) {
        lt_backend *backend = NULL;
        lt_program *program = NULL;
        if (lt_cpu_backend_create(runtime, NULL, LATTICE_COMPUTE_F32, &backend, &err) != LATTICE_OK) abort();
        if (backend->compile(backend, &plan, &room, &program, &err) == LATTICE_OK) run(&plan, &config, backend, program);
        if (program) backend->program_free(program);
        backend->free(backend);
    }
    lt_plan_free(&plan);
    lt_checkpoint_close(checkpoint);
    lt_config_free(&config);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!runtime) begin();
    const uint8_t *end = data + size, *header = size ? memchr(data, 0, size) : NULL;
    if (!header) return 0;
    write_file("config.json", NULL, 0, data, (size_t)(header - data), 0);
    header++;
    const uint8_t *index = header < end ? memchr(header, 0, (size_t)(end - header)) : NULL;
    const uint64_t n = (uint64_t)((index ? index : end) - header);
    write_file("model.safetensors", &n, sizeof n, header, (size_t)n, claimed_bytes(header, (size_t)n));
    char path[128];
    snprintf(path, sizeof path, "%s/model.safetensors.index.json", folder);
    unlink(path);
    if (index) write_file("model.safetensors.index.json", NULL, 0, index + 1, (size_t)(end - index - 1), 0);
    open_and_run();
    return 0;
}
