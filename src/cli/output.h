/* Vectors to a file or standard output: JSON lines, NumPy's npy, or rounded text.
 *
 * --output FILE is written as FILE.part and renamed when it is whole, so that a reader never sees half of it. An interrupted run
 * leaves FILE.part; resuming counts its complete rows, drops a torn one, and repeats the last complete row to see that model,
 * options and input are still the same: vectors do not depend on their batch, so it must come out byte for byte. */
#ifndef CLI_OUTPUT_H
#define CLI_OUTPUT_H

#include "cli/cli.h"

typedef enum cli_format { CLI_JSONL, CLI_NPY, CLI_TEXT } cli_format;

typedef enum cli_vector_type {
    CLI_FLOAT,
    CLI_INT8,    /* round(127 x / max|x|), a scale of its own for each vector */
    CLI_UBINARY, /* one bit a value, 1 where x > 0, most significant first, the last byte padded with zeros */
} cli_vector_type;

typedef struct cli_output {
    cli_format format;
    cli_vector_type type;
    size_t dim;
    const char *path; /* NULL: straight to `sink` */
    lt_buf part;      /* FILE.part */
    int fd;           /* where rows are written */
    int sink;         /* without a path: standard output, or the device or pipe that --output names */
    bool open;
    uint64_t rows;   /* written, those of a resumed file counted */
    lt_buf buffer;   /* rows not handed to the system yet */
    lt_buf expected; /* resuming: the row that must come out first; data NULL: none */
} cli_output;

/* Opens; `rows` says how many inputs are to be passed over. resume only with a path. */
lattice_status cli_output_open(cli_output *output, const char *path, cli_format format, cli_vector_type type, size_t dim,
                               bool resume, lattice_error *err);
/* Appends one vector with its token count. */
lattice_status cli_output_row(cli_output *output, const float *vector, uint32_t tokens, lattice_error *err);
/* Hands what is buffered to the system. */
lattice_status cli_output_flush(cli_output *output, lattice_error *err);
/* Completes the file and puts it in its place. */
lattice_status cli_output_finish(cli_output *output, lattice_error *err);
/* Frees. Not finished: what was written stays in FILE.part (nothing written: no file stays); *kept says so. */
void cli_output_close(cli_output *output, bool *kept);

#endif
