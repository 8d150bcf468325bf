/* Measuring: forward passes of a given shape, and what the machine can do at best. */
#include <string.h>

#include "backend/cpu/q8.h"
#include "base/clock.h"
#include "engine/batch.h"
#include "engine/model.h"
#include "engine/session.h"

/* ------------------------------------------------------------------ forward passes */

/* Ids spread over the vocabulary by a linear congruence (Knuth's constants), so that no two rows of the table stay in a cache by
 * chance. */
static bool fill_window(lt_window *window, const lattice_model *m, size_t n_seqs, size_t seq_len)
{
    uint32_t *ids = lt_alloc_array(m->mem, seq_len, sizeof *ids);
    uint64_t state = 1;
    bool added = ids != NULL;
    for (size_t s = 0; added && s < n_seqs; s++) {
        for (size_t i = 0; i < seq_len; i++) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            ids[i] = (uint32_t)((state >> 33) % m->config.vocab_size);
        }
        added = lt_window_add(window, ids, NULL, seq_len);
    }
    lt_free(m->mem, ids);
    return added;
}

static lattice_status run_batches(lattice_model *m, const lt_window *window, lt_packer *packer, float *out,
                                  const lt_run_hooks *hooks, lattice_error *err)
{
    if (!lt_packer_begin(packer, window)) return lt_no_memory(err, window->n * 8, "a batch");
    for (;;) {
        bool more;
        if (!lt_packer_next(packer, window, m->batch_tokens * lt_model_devices(m), lt_model_max_seqs(m), 0, &more))
            return lt_no_memory(err, m->batch_tokens * 12, "a batch");
        if (!more) return LATTICE_OK;
        packer->batch.pooling = m->sentence.pooling;
        LT_TRY(m->backend->run(m->program, &packer->batch, LT_TAIL_POOLED, out, hooks, err));
    }
}

static void report(const lattice_model *m, const lt_op_profile *profile, lattice_profile_row *rows, size_t capacity,
                   size_t *n_rows)
{
    size_t n = 0;
    for (size_t i = 0; i < m->plan.n_ops; i++) {
        if (profile[i].seconds == 0 && profile[i].flop == 0) continue; /* ops of other tails */
        if (n < capacity)
            rows[n] = (lattice_profile_row){ .operation = lt_op_name(m->plan.ops[i].code),
                                             .detail = m->op_details[i],
                                             .seconds = profile[i].seconds,
                                             .flop = profile[i].flop,
                                             .bytes = profile[i].bytes };
        n++;
    }
    *n_rows = n;
}

lattice_status lattice_bench_forward(lattice_model *m, size_t n_seqs, size_t seq_len, lattice_profile_row *profile,
                                     size_t capacity, size_t *n_rows, lattice_error *err)
{
    if (n_rows) *n_rows = 0;
    size_t total;
    if (n_seqs == 0 || seq_len == 0 || seq_len > m->max_positions || n_seqs >= (size_t)1 << 20 ||
        !lt_mul(n_seqs, seq_len, &total))
        return lt_fail(err, LATTICE_ERR_INVALID_ARGUMENT, "shape %zux%zu: sequences have 1 to %zu tokens", n_seqs, seq_len,
                       m->max_positions);
    if (!m->plan.tails[LT_TAIL_POOLED].present)
        return lt_fail(err, LATTICE_ERR_UNSUPPORTED, "%s: this model gives no embeddings", m->folder);
    lattice_status status = LATTICE_OK;
    lt_window window;
    lt_packer packer;
    lt_window_init(&window, m->mem);
    lt_packer_init(&packer, m->mem);
    size_t width = lt_model_pooled_width(m, 0), most = lt_model_max_seqs(m);
    size_t seqs = n_seqs < most ? n_seqs : most;
    float *out = lt_alloc_array(m->mem, seqs, width * sizeof(float));
    lt_op_profile *ops = profile && n_rows ? lt_alloc_zero(m->mem, m->plan.n_ops * sizeof *ops) : NULL;
    lt_window_clear(&window, 0);
    if (!out || (profile && n_rows && !ops) || !fill_window(&window, m, n_seqs, seq_len)) {
        status = lt_no_memory(err, total * 12, "a batch");
        goto done;
    }
    lt_run_hooks hooks = { .profile = ops };
    LT_GO(run_batches(m, &window, &packer, out, ops ? &hooks : NULL, err));
    if (ops) report(m, ops, profile, capacity, n_rows);
done:
    lt_free(m->mem, out);
    lt_free(m->mem, ops);
    lt_packer_free(&packer);
    lt_window_free(&window);
    return status;
}

double lattice_token_bytes(const lattice_model *m)
{
    const lt_tail *tail = &m->plan.tails[LT_TAIL_LOGITS];
    static const size_t starts[2] = { 0, 1 };
    const lt_batch one = { .n_tokens = 1, .n_seqs = 1, .n_out = 1, .seq_starts = starts, .past_lens = starts };
    double bytes = 0;
    if (!tail->present) return 0;
    for (size_t i = 0; i < m->plan.n_body; i++) bytes += lt_op_bytes(&m->plan, &m->plan.ops[i], &one);
    for (int i = 0; i < tail->n_ops; i++) bytes += lt_op_bytes(&m->plan, &m->plan.ops[tail->first_op + i], &one);
    return bytes;
}

/* ------------------------------------------------------------------ the machine's peak */

enum { PEAK_ROUNDS = 20000 };
static const size_t read_size = (size_t)512 << 20; /* twice the largest last-level caches */

typedef struct peak_job {
    const lt_kernels *kernels;
    double (*peak)(size_t iterations); /* operations done */
    lt_pool *pool;
    const float *buffer; /* NULL: `peak` */
    size_t n_floats;
    double *flop; /* [threads] */
    float *sums;  /* [threads], so that the reads are not left out */
} peak_job;

static void run_peak(void *arg, int thread, int n_threads)
{
    peak_job *job = arg;
    if (!job->buffer) {
        job->flop[thread] = job->peak(PEAK_ROUNDS);
        return;
    }
    size_t begin = job->n_floats * (size_t)thread / (size_t)n_threads,
           end = job->n_floats * ((size_t)thread + 1) / (size_t)n_threads;
    job->sums[thread] = job->kernels->peak_read(job->buffer + begin, end - begin);
}

typedef struct touch_job {
    float *buffer;
    size_t n_floats;
} touch_job;

/* Each thread writes the part that it will read. */
static void run_touch(void *arg, int thread, int n_threads)
{
    touch_job *job = arg;
    size_t begin = job->n_floats * (size_t)thread / (size_t)n_threads,
           end = job->n_floats * ((size_t)thread + 1) / (size_t)n_threads;
    for (size_t i = begin; i < end; i++) job->buffer[i] = 1;
}

/* The best of repeated runs within `seconds`: other programs only ever take away. */
static double best_rate(peak_job *job, double seconds)
{
    double best = 0, begun = lt_clock_seconds();
    int threads = lt_pool_threads(job->pool);
    for (int run = 0; run < 3 || lt_clock_seconds() - begun < seconds; run++) {
        double start = lt_clock_seconds();
        lt_pool_run(job->pool, run_peak, job);
        double spent = lt_clock_seconds() - start, work = 0;
        if (job->buffer)
            work = (double)job->n_floats * sizeof(float);
        else
            for (int t = 0; t < threads; t++) work += job->flop[t];
        if (spent > 0 && work / spent > best) best = work / spent;
    }
    return best / 1e9;
}

/* Memory to be read, present before it is measured. */
static lattice_status make_buffer(peak_job *job, size_t size, lt_reserve *buffer, lattice_error *err)
{
    LT_TRY(lt_reserve_create(size, buffer, err));
    touch_job touch = { buffer->base, size / sizeof(float) };
    lt_pool_run(job->pool, run_touch, &touch);
    job->buffer = buffer->base;
    job->n_floats = size / sizeof(float);
    return LATTICE_OK;
}

lattice_status lattice_measure_peak(lattice_runtime *runtime, const char *isa, double seconds, lattice_machine_peak *peak,
                                    lattice_error *err)
{
    const lt_kernels *kernels = lt_kernels_find(isa);
    if (!kernels) return lt_fail(err, LATTICE_ERR_UNSUPPORTED, "instruction set '%s' is not available", isa);
    size_t threads = (size_t)lt_pool_threads(runtime->pool);
    peak_job job = { .kernels = kernels, .peak = kernels->peak_flop, .pool = runtime->pool };
    lt_reserve buffer = { 0 };
    lattice_status status = LATTICE_OK;
    job.flop = lt_alloc_array(&runtime->mem, threads, sizeof *job.flop);
    job.sums = lt_alloc_array(&runtime->mem, threads, sizeof *job.sums);
    if (!job.flop || !job.sums) {
        status = lt_no_memory(err, threads * sizeof *job.flop, "measuring");
        goto done;
    }
    peak->gflops_f32 = best_rate(&job, seconds / 2);
    peak->gflops_bf16 = 0;
    if (kernels->bf16) {
        job.peak = kernels->bf16->peak_flop;
        peak->gflops_bf16 = best_rate(&job, seconds / 2);
    }
    job.peak = lt_q8_kernels_for(kernels)->peak;
    peak->gops_int8 = best_rate(&job, seconds / 2);
    LT_GO(make_buffer(&job, read_size, &buffer, err));
    peak->read_gb_s = best_rate(&job, seconds / 2);
done:
    lt_reserve_free(&buffer);
    lt_free(&runtime->mem, job.flop);
    lt_free(&runtime->mem, job.sums);
    return status;
}

/* ------------------------------------------------------------------ decoding */

lattice_status lattice_bench_decode(lattice_session *session, const uint32_t *ids, size_t n, double *token_seconds,
                                    double *read_seconds, lattice_error *err)
{
    lattice_runtime *runtime = session->model->runtime;
    const size_t bytes = (size_t)lattice_token_bytes(session->model);
    peak_job job = { .kernels = lt_kernels_find(NULL), .pool = runtime->pool };
    lt_reserve buffer = { 0 };
    lattice_status status = LATTICE_OK;
    job.sums = lt_alloc_array(&runtime->mem, (size_t)lt_pool_threads(runtime->pool), sizeof *job.sums);
    if (!job.sums) return lt_no_memory(err, sizeof *job.sums, "measuring");
    LT_GO(make_buffer(&job, bytes, &buffer, err));
    for (size_t i = 0; i < n; i++) {
        double start = lt_clock_seconds();
        LT_GO(lattice_session_step(session, ids[i], err));
        token_seconds[i] = lt_clock_seconds() - start;
        start = lt_clock_seconds();
        lt_pool_run(runtime->pool, run_peak, &job);
        read_seconds[i] = lt_clock_seconds() - start;
    }
done:
    lt_reserve_free(&buffer);
    lt_free(&runtime->mem, job.sums);
    return status;
}
