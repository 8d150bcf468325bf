/* lattice bench --decode and --prefill: a language model's speed in its two phases. */
#ifndef CLI_BENCH_SESSION_H
#define CLI_BENCH_SESSION_H

#include "cli/cli.h"

typedef struct cli_bench_session {
    size_t decode, prefill; /* tokens; 0: not asked for */
    double seconds;         /* spent on prefill */
    /* Results; 0 where not asked for. Milliseconds of a token, or of a whole prompt: the median. */
    double decode_ms, prefill_ms;
    double token_bytes; /* that a token needs: every weight in use once, and what the operations read and write */
    double read_gb_s;   /* reading as many bytes after each token, the median */
    double read_share;  /* time of reading over that of the token, the median */
} cli_bench_session;

lattice_status cli_bench_session_run(lattice_runtime *runtime, lattice_model *model, cli_bench_session *bench,
                                     lattice_error *err);
/* Lines, or members of the JSON object that is open. */
void cli_bench_session_print(const cli_bench_session *bench, lt_buf *out);
void cli_bench_session_write(const cli_bench_session *bench, lt_buf *out, bool comma);

#endif
