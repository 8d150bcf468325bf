/* Writing vectors. See output.h. */
#include "cli/output.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "engine/vector_types.h"
#include "format/json.h"

enum { FLUSH_AT = 1 << 18, NPY_HEADER = 128 };

static const char *shown_path(const cli_output *output)
{
    return output->path ? output->part.data : "standard output";
}

static lattice_status write_all(const cli_output *output, int fd, const char *data, size_t size, lattice_error *err)
{
    const int error = lt_write_all(fd, data, size);
    return error == 0 ? LATTICE_OK : lt_fail(err, LATTICE_ERR_IO, "%s: %s", shown_path(output), strerror(error));
}

static lattice_status read_all(const cli_output *output, void *data, size_t size, uint64_t offset, lattice_error *err)
{
    char *to = data;
    while (size > 0) {
        ssize_t n = pread(output->fd, to, size, (off_t)offset);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return lt_fail(err, LATTICE_ERR_IO, "%s: %s", shown_path(output), n < 0 ? strerror(errno) : "cut short");
        to += n;
        offset += (uint64_t)n;
        size -= (size_t)n;
    }
    return LATTICE_OK;
}

/* ------------------------------------------------------------------ rows */

static size_t row_values(const cli_output *output)
{
    return output->type == CLI_UBINARY ? (output->dim + 7) / 8 : output->dim;
}

static size_t npy_row_size(const cli_output *output)
{
    return row_values(output) * (output->type == CLI_FLOAT ? sizeof(float) : 1);
}

/* The format of numpy.lib.format, version 1.0, padded to a fixed size so that the number of rows can be written at the end. */
static void npy_header(const cli_output *output, uint64_t rows, char header[NPY_HEADER])
{
    static const char *const types[] = { "<f4", "|i1", "|u1" };
    memset(header, ' ', NPY_HEADER);
    memcpy(header, "\x93NUMPY\x01\x00", 8);
    header[8] = NPY_HEADER - 10;
    header[9] = 0;
    char text[NPY_HEADER];
    int n = snprintf(text, sizeof text, "{'descr': '%s', 'fortran_order': False, 'shape': (%llu, %zu), }", types[output->type],
                     (unsigned long long)rows, row_values(output));
    memcpy(header + 10, text, (size_t)n);
    header[NPY_HEADER - 1] = '\n';
}

static int quantised(const cli_output *output, const float *vector, float scale, size_t i)
{
    return output->type == CLI_INT8 ? lt_int8_value(vector, scale, i) : lt_ubinary_value(vector, output->dim, i);
}

static void append_npy(cli_output *output, const float *vector, float scale)
{
    if (output->type == CLI_FLOAT) {
        lt_buf_append(&output->buffer, vector, output->dim * sizeof(float));
        return;
    }
    for (size_t i = 0; i < row_values(output); i++) lt_buf_byte(&output->buffer, (char)quantised(output, vector, scale, i));
}

static void append_jsonl(cli_output *output, const float *vector, float scale, uint32_t tokens)
{
    lt_json_writer w = lt_json_writer_on(&output->buffer);
    lt_json_write_begin(&w, '{');
    lt_json_write_key(&w, "index");
    lt_json_write_uint(&w, output->rows);
    lt_json_write_key(&w, "tokens");
    lt_json_write_uint(&w, tokens);
    lt_json_write_key(&w, "embedding");
    if (output->type == CLI_FLOAT) {
        lt_json_write_floats(&w, vector, output->dim);
    } else {
        lt_json_write_begin(&w, '[');
        for (size_t i = 0; i < row_values(output); i++) lt_json_write_int(&w, quantised(output, vector, scale, i));
        lt_json_write_end(&w, ']');
    }
    lt_json_write_end(&w, '}');
    lt_buf_byte(&output->buffer, '\n');
}

static void append_text(cli_output *output, const float *vector, float scale, uint32_t tokens)
{
    lt_buf_printf(&output->buffer, "%5llu %4u tokens ", (unsigned long long)output->rows, tokens);
    for (size_t i = 0; i < row_values(output); i++) {
        if (output->type == CLI_FLOAT)
            lt_buf_printf(&output->buffer, " %7.4f", (double)vector[i]);
        else
            lt_buf_printf(&output->buffer, " %4d", quantised(output, vector, scale, i));
    }
    lt_buf_byte(&output->buffer, '\n');
}

lattice_status cli_output_flush(cli_output *output, lattice_error *err)
{
    if (output->buffer.failed) return lt_no_memory(err, output->buffer.len, "output");
    LT_TRY(write_all(output, output->fd, output->buffer.data, output->buffer.len, err));
    lt_buf_clear(&output->buffer);
    return LATTICE_OK;
}

lattice_status cli_output_row(cli_output *output, const float *vector, uint32_t tokens, lattice_error *err)
{
    size_t begin = output->buffer.len;
    float scale = output->type == CLI_INT8 ? lt_int8_scale(vector, output->dim) : 0;
    switch (output->format) {
    case CLI_JSONL: append_jsonl(output, vector, scale, tokens); break;
    case CLI_NPY: append_npy(output, vector, scale); break;
    case CLI_TEXT: append_text(output, vector, scale, tokens); break;
    }
    if (output->buffer.failed) return lt_no_memory(err, output->buffer.len, "output");
    if (output->expected.data) {
        lt_str row = { output->buffer.data + begin, output->buffer.len - begin };
        if (!lt_str_eq(row, lt_buf_str(&output->expected))) {
            output->buffer.len = begin;
            return lt_fail(err, LATTICE_ERR_INVALID_ARGUMENT,
                           "%s: row %llu comes out differently now: another model, input, option, build or instruction set",
                           shown_path(output), (unsigned long long)output->rows);
        }
        lt_buf_free(&output->expected);
    }
    output->rows++;
    return output->buffer.len >= FLUSH_AT ? cli_output_flush(output, err) : LATTICE_OK;
}

/* ------------------------------------------------------------------ resuming */

static lattice_status expect_row(cli_output *output, uint64_t offset, uint64_t size, lattice_error *err)
{
    lt_buf_clear(&output->expected);
    if (!lt_buf_reserve(&output->expected, (size_t)size)) return lt_no_memory(err, (size_t)size, "a row");
    LT_TRY(read_all(output, output->expected.data, (size_t)size, offset, err));
    output->expected.len = (size_t)size;
    return LATTICE_OK;
}

/* Complete lines, and where the last of them begins and ends. */
static lattice_status count_lines(cli_output *output, uint64_t size, uint64_t *lines, uint64_t *last, uint64_t *end,
                                  lattice_error *err)
{
    char *block = lt_alloc(cli_memory, FLUSH_AT);
    if (!block) return lt_no_memory(err, FLUSH_AT, "a block");
    lattice_status status = LATTICE_OK;
    *lines = *last = *end = 0;
    for (uint64_t at = 0; at < size;) {
        size_t n = size - at < FLUSH_AT ? (size_t)(size - at) : FLUSH_AT;
        LT_GO(read_all(output, block, n, at, err));
        for (const char *c = block; (c = memchr(c, '\n', (size_t)(block + n - c))); c++) {
            *last = *end;
            *end = at + (uint64_t)(c - block) + 1;
            ++*lines;
        }
        at += n;
    }
done:
    lt_free(cli_memory, block);
    return status;
}

static lattice_status npy_rows(cli_output *output, uint64_t size, uint64_t *rows, lattice_error *err)
{
    *rows = 0;
    if (size < NPY_HEADER) return LATTICE_OK;
    char found[NPY_HEADER + 1], same[NPY_HEADER];
    LT_TRY(read_all(output, found, NPY_HEADER, 0, err));
    found[NPY_HEADER] = 0;
    *rows = (size - NPY_HEADER) / npy_row_size(output);
    /* 0 rows while it is written, the whole number in a file that was finished; all else must be as these options write it. */
    const char *shape = strstr(found + 10, "'shape': (");
    npy_header(output, shape ? strtoull(shape + 10, NULL, 10) : 0, same);
    if (memcmp(found, same, NPY_HEADER) != 0)
        return lt_fail(err, LATTICE_ERR_FORMAT, "%s: not the npy file that these options write", shown_path(output));
    return LATTICE_OK;
}

/* Finds the last complete row, keeps what is before it, and expects it to be written again. */
static lattice_status resume_at_last_row(cli_output *output, lattice_error *err)
{
    struct stat info;
    if (fstat(output->fd, &info) != 0) return lt_fail(err, LATTICE_ERR_IO, "%s: %s", shown_path(output), strerror(errno));
    uint64_t size = (uint64_t)info.st_size, rows = 0, last = 0, end = 0;
    if (output->format == CLI_NPY) {
        LT_TRY(npy_rows(output, size, &rows, err));
        end = NPY_HEADER + rows * npy_row_size(output);
        last = rows ? end - npy_row_size(output) : 0;
    } else {
        LT_TRY(count_lines(output, size, &rows, &last, &end, err));
    }
    if (rows) LT_TRY(expect_row(output, last, end - last, err));
    if (ftruncate(output->fd, (off_t)last) != 0 || lseek(output->fd, (off_t)last, SEEK_SET) < 0)
        return lt_fail(err, LATTICE_ERR_IO, "%s: %s", shown_path(output), strerror(errno));
    output->rows = rows ? rows - 1 : 0;
    return LATTICE_OK;
}

/* ------------------------------------------------------------------ opening and finishing */

static lattice_status open_part(cli_output *output, bool resume, lattice_error *err)
{
    lt_buf_printf(&output->part, "%s.part", output->path);
    if (output->part.failed) return lt_no_memory(err, 0, "a path");
    /* A whole file that is to be continued (its input has grown, or it was cut by hand) becomes the part again. */
    bool renamed = resume && !lt_path_exists(output->part.data) && lt_path_exists(output->path);
    if (renamed && rename(output->path, output->part.data) != 0)
        return lt_fail(err, LATTICE_ERR_IO, "%s: %s", output->path, strerror(errno));
    output->fd = open(output->part.data, O_RDWR | O_CREAT | O_CLOEXEC | (resume ? 0 : O_TRUNC), 0666);
    if (output->fd < 0) return lt_fail(err, LATTICE_ERR_IO, "%s: %s", output->part.data, strerror(errno));
    lattice_status status = resume ? resume_at_last_row(output, err) : LATTICE_OK;
    if (status != LATTICE_OK && renamed) rename(output->part.data, output->path);
    return status;
}

/* npy begins with the number of rows, which is known at the end: on its way to a pipe it rests in an unnamed file. */
static lattice_status open_stream(cli_output *output, lattice_error *err)
{
    output->fd = output->sink;
    if (output->format != CLI_NPY) return LATTICE_OK;
    FILE *file = tmpfile();
    if (!file) return lt_fail(err, LATTICE_ERR_IO, "a temporary file: %s", strerror(errno));
    output->fd = dup(fileno(file));
    fclose(file);
    return output->fd < 0 ? lt_fail(err, LATTICE_ERR_IO, "a temporary file: %s", strerror(errno)) : LATTICE_OK;
}

/* Standard output for NULL and "-"; a device or a named pipe is written to as it stands; anything else goes through a part. */
static lattice_status choose_target(cli_output *output, const char *path, bool resume, lattice_error *err)
{
    output->fd = output->sink = -1;
    struct stat info;
    if (!path || strcmp(path, "-") == 0) {
        output->sink = STDOUT_FILENO;
    } else if (stat(path, &info) == 0 && !S_ISREG(info.st_mode)) {
        if (S_ISDIR(info.st_mode)) return lt_fail(err, LATTICE_ERR_INVALID_ARGUMENT, "%s: is a folder", path);
        output->sink = open(path, O_WRONLY | O_CLOEXEC);
        if (output->sink < 0) return lt_fail(err, LATTICE_ERR_IO, "%s: %s", path, strerror(errno));
    } else {
        output->path = path;
        return open_part(output, resume, err);
    }
    if (resume) return lt_fail(err, LATTICE_ERR_INVALID_ARGUMENT, "only a regular file can be resumed");
    return open_stream(output, err);
}

lattice_status cli_output_open(cli_output *output, const char *path, cli_format format, cli_vector_type type, size_t dim,
                               bool resume, lattice_error *err)
{
    memset(output, 0, sizeof *output);
    output->format = format;
    output->type = type;
    output->dim = dim;
    lt_buf_init(&output->part, cli_memory);
    lt_buf_init(&output->buffer, cli_memory);
    lt_buf_init(&output->expected, cli_memory);
    LT_TRY(choose_target(output, path, resume, err));
    output->open = true;
    if (format == CLI_NPY && output->rows == 0 && !output->expected.data) {
        char header[NPY_HEADER];
        npy_header(output, 0, header);
        lt_buf_append(&output->buffer, header, NPY_HEADER);
    }
    return LATTICE_OK;
}

static lattice_status copy_to_sink(cli_output *output, lattice_error *err)
{
    char block[16384];
    uint64_t size = NPY_HEADER + output->rows * npy_row_size(output);
    for (uint64_t at = 0; at < size;) {
        size_t n = size - at < sizeof block ? (size_t)(size - at) : sizeof block;
        LT_TRY(read_all(output, block, n, at, err));
        LT_TRY(write_all(output, output->sink, block, n, err));
        at += n;
    }
    return LATTICE_OK;
}

static lattice_status sync_folder(const char *path, lattice_error *err)
{
    char *copy = strdup(path);
    if (!copy) return lt_no_memory(err, strlen(path) + 1, "a path");
    int fd = open(dirname(copy), O_RDONLY | O_CLOEXEC);
    free(copy);
    if (fd < 0) return LATTICE_OK; /* a folder that may be written but not read: the rename stands, only later on disk */
    fsync(fd);
    close(fd);
    return LATTICE_OK;
}

lattice_status cli_output_finish(cli_output *output, lattice_error *err)
{
    if (output->expected.data)
        return lt_fail(err, LATTICE_ERR_INVALID_ARGUMENT, "%s: has %llu rows, but the input ends before", shown_path(output),
                       (unsigned long long)output->rows + 1);
    LT_TRY(cli_output_flush(output, err));
    if (output->format == CLI_NPY) {
        char header[NPY_HEADER];
        npy_header(output, output->rows, header);
        if (pwrite(output->fd, header, NPY_HEADER, 0) != NPY_HEADER)
            return lt_fail(err, LATTICE_ERR_IO, "%s: %s", shown_path(output), strerror(errno));
        if (!output->path) return copy_to_sink(output, err);
    }
    if (!output->path) return LATTICE_OK;
    if (fsync(output->fd) != 0 || rename(output->part.data, output->path) != 0)
        return lt_fail(err, LATTICE_ERR_IO, "%s: %s", output->path, strerror(errno));
    LT_TRY(sync_folder(output->path, err));
    lt_buf_clear(&output->part);
    return LATTICE_OK;
}

void cli_output_close(cli_output *output, bool *kept)
{
    bool keep = false;
    if (output->open && output->part.len) {
        /* Resuming that never came to its first row: what was taken off the end is put back. */
        if (output->expected.data) lt_buf_append(&output->buffer, output->expected.data, output->expected.len);
        lattice_error ignored;
        bool written = cli_output_flush(output, &ignored) == LATTICE_OK;
        keep = output->rows > 0 || output->expected.data;
        if (!keep) unlink(output->part.data);
        keep = keep && written;
    }
    if (kept) *kept = keep;
    if (output->fd >= 0 && output->fd != output->sink) close(output->fd);
    if (output->sink >= 0 && output->sink != STDOUT_FILENO) close(output->sink);
    lt_buf_free(&output->part);
    lt_buf_free(&output->buffer);
    lt_buf_free(&output->expected);
    output->open = false;
    output->fd = output->sink = -1;
}
