/* A language model's speed in its two phases. See bench_session.h.
 *
 * Decoding is limited by reading the weights, and what memory gives swings within minutes on shared machines: as many bytes are
 * read after each token, and the share is the median of the ratios. */
#include "cli/bench_session.h"

#include <stdlib.h>

#include "base/clock.h"
#include "format/json.h"

/* The first steps touch and pack memory. */
enum { PIECE = 50, PROMPT = 32, MAX_RUNS = 1000, WARM_UP = 32 };

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, size_t n)
{
    qsort(values, n, sizeof *values, compare);
    return values[n / 2];
}

/* Ids spread over the vocabulary: what they are does not matter for time. */
static uint32_t next_id(uint64_t *state, size_t vocab_size)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((*state >> 33) % vocab_size);
}

typedef struct timing {
    lattice_runtime *runtime;
    lattice_session *session;
    lattice_model_info info;
    uint32_t *ids;
    double *times, *reads, *shares; /* [decode], or [MAX_RUNS] */
    uint64_t state;
} timing;

static lattice_status check_interrupt(lattice_error *err)
{
    return cli_interrupted ? lt_fail(err, LATTICE_ERR_CANCELLED, "interrupted") : LATTICE_OK;
}

static lattice_status time_decode(timing *t, cli_bench_session *bench, lattice_error *err)
{
    uint32_t ids[PIECE];
    lattice_session_reset(t->session);
    LT_TRY(lattice_session_prefill(t->session, t->ids, PROMPT, err));
    for (size_t i = 0; i < WARM_UP; i++) LT_TRY(lattice_session_step(t->session, next_id(&t->state, t->info.vocab_size), err));
    for (size_t done = 0, n; done < bench->decode; done += n) {
        n = bench->decode - done < PIECE ? bench->decode - done : PIECE;
        LT_TRY(check_interrupt(err));
        for (size_t i = 0; i < n; i++) ids[i] = next_id(&t->state, t->info.vocab_size);
        LT_TRY(lattice_bench_decode(t->session, ids, n, t->times + done, t->reads + done, err));
    }
    for (size_t i = 0; i < bench->decode; i++) t->shares[i] = t->reads[i] / t->times[i];
    bench->decode_ms = median(t->times, bench->decode) * 1e3;
    bench->read_gb_s = bench->token_bytes / median(t->reads, bench->decode) / 1e9;
    bench->read_share = median(t->shares, bench->decode);
    return LATTICE_OK;
}

static lattice_status time_prefill(timing *t, cli_bench_session *bench, lattice_error *err)
{
    size_t runs = 0;
    double begun = 0;
    for (size_t i = 0; runs < MAX_RUNS && (runs < 3 || lt_clock_seconds() - begun < bench->seconds); i++) {
        LT_TRY(check_interrupt(err));
        lattice_session_reset(t->session);
        const double start = lt_clock_seconds();
        LT_TRY(lattice_session_prefill(t->session, t->ids, bench->prefill, err));
        if (i == 0)
            begun = lt_clock_seconds(); /* the first run touches and packs memory */
        else
            t->times[runs++] = lt_clock_seconds() - start;
    }
    bench->prefill_ms = median(t->times, runs) * 1e3;
    return LATTICE_OK;
}

lattice_status cli_bench_session_run(lattice_runtime *runtime, lattice_model *model, cli_bench_session *bench, lattice_error *err)
{
    timing t = { .runtime = runtime, .state = 1 };
    lattice_model_get_info(model, &t.info);
    const size_t most = bench->prefill > PROMPT ? bench->prefill : PROMPT,
                 room = bench->decode > MAX_RUNS ? bench->decode : MAX_RUNS;
    lattice_status status = LATTICE_OK;
    t.ids = lt_alloc_array(cli_memory, most, sizeof *t.ids);
    t.times = lt_alloc_array(cli_memory, room, sizeof *t.times);
    t.reads = lt_alloc_array(cli_memory, room, sizeof *t.reads);
    t.shares = lt_alloc_array(cli_memory, room, sizeof *t.shares);
    if (!t.ids || !t.times || !t.reads || !t.shares) LT_GO(lt_no_memory(err, most * sizeof *t.ids, "a prompt"));
    for (size_t i = 0; i < most; i++) t.ids[i] = next_id(&t.state, t.info.vocab_size);
    LT_GO(lattice_session_create(model, NULL, &t.session, err));
    bench->token_bytes = lattice_token_bytes(model);
    if (bench->prefill) LT_GO(time_prefill(&t, bench, err));
    if (bench->decode) LT_GO(time_decode(&t, bench, err));
done:
    lattice_session_free(t.session);
    lt_free(cli_memory, t.ids);
    lt_free(cli_memory, t.times);
    lt_free(cli_memory, t.reads);
    lt_free(cli_memory, t.shares);
    return status;
}

void cli_bench_session_print(const cli_bench_session *bench, lt_buf *out)
{
    if (bench->prefill)
        lt_buf_printf(out, "prefill of %zu tokens: %.1f ms, %.1f tokens/s\n", bench->prefill, bench->prefill_ms,
                      (double)bench->prefill / bench->prefill_ms * 1e3);
    if (bench->decode) {
        const double rate = bench->token_bytes / bench->decode_ms / 1e6;
        lt_buf_printf(
            out,
            "decoding of %zu tokens: %.2f ms a token, %.2f tokens/s; %.1f MB a token are %.1f GB/s, %.1f%% of the %.1f GB/s "
            "that reading as much gave in turns with it\n",
            bench->decode, bench->decode_ms, 1e3 / bench->decode_ms, bench->token_bytes / 1e6, rate, 100 * bench->read_share,
            bench->read_gb_s);
    }
}

static void write_member(lt_json_writer *w, const char *key, double value)
{
    lt_json_write_key(w, key);
    lt_json_write_double(w, value);
}

void cli_bench_session_write(const cli_bench_session *bench, lt_buf *out, bool comma)
{
    lt_json_writer w = { out, comma };
    if (bench->prefill) {
        lt_json_write_key(&w, "prefill");
        lt_json_write_begin(&w, '{');
        write_member(&w, "tokens", (double)bench->prefill);
        write_member(&w, "ms", bench->prefill_ms);
        write_member(&w, "tok_per_s", (double)bench->prefill / bench->prefill_ms * 1e3);
        lt_json_write_end(&w, '}');
    }
    if (!bench->decode) return;
    lt_json_write_key(&w, "decode");
    lt_json_write_begin(&w, '{');
    write_member(&w, "tokens", (double)bench->decode);
    write_member(&w, "ms", bench->decode_ms);
    write_member(&w, "tok_per_s", 1e3 / bench->decode_ms);
    write_member(&w, "token_bytes", bench->token_bytes);
    write_member(&w, "read_gb_s", bench->read_gb_s);
    write_member(&w, "read_share", bench->read_share);
    lt_json_write_end(&w, '}');
}
