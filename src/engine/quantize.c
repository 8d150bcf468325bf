/* Writing a checkpoint with its matrices in Q8_0, or in int8 by rows: docs/quantised.md describes the result.
 *
 * The plan of the open model says what each tensor is. Matrices and tables whose rows divide into blocks are quantised, other
 * tensors in use copied as they are, the rest left out. The new file is written from its beginning to its end in large pieces, a
 * panel of 16 rows in memory at a time beside the scales of one tensor; all of it into a temporary folder that is renamed when it
 * is whole.
 *
 * By rows, the matrices that the plan marks get one scale a row, and those whose input is a hidden state that a trace has are
 * smoothed: m = √(max|w| / max|x|) of each column of the input (calibrate.h), up to a constant. Tables become Q8_0 beside them.
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/folder.h"
#include "base/sha256.h"
#include "engine/calibrate.h"
#include "engine/model.h"
#include "format/int8.h"
#include "format/json.h"
#include "format/q8_0.h"

typedef struct output_tensor {
    const lt_tensor *from;
    const lt_op *op; /* by rows: the product that it is a matrix of, or part of one; else NULL */
    bool quantised;
    size_t size, offset; /* in the new file's data */
} output_tensor;

typedef struct quantizer {
    const lattice_allocator *mem;
    lattice_model *model;
    const lattice_quantize_options *options;
    lt_new_folder folder;
    output_tensor *tensors; /* quantised ones first, so that they all begin at multiples of 64 */
    size_t n, n_quantised;
    uint64_t done, total; /* bytes read */
    lt_replace file;
    uint8_t *piece; /* [LT_PIECE] */
    size_t filled;
    lt_sha256 sum; /* of the data */
    float *rows;   /* [16][most columns] */
    uint8_t *quants;
    uint16_t *scales; /* of one tensor */
    bool by_rows;
    float *numbers; /* of one tensor by rows: its scales, then its sums */
    float *inputs;  /* [most columns] */
    float *largest; /* [plan.n_trace][hidden], see calibrate.h */
} quantizer;

lattice_quantize_options lattice_quantize_options_default(void)
{
    return (lattice_quantize_options){ .type = "q8_0" };
}

/* ------------------------------------------------------------------ what becomes of each tensor */

/* A place where the plan uses a tensor: weight k of an operation, whole or in part. Begins as zeros. */
typedef struct use {
    const lt_op *op;
    int k;
    const lt_segment *segment;
    size_t next_op;
    int next_k, next_segment;
} use;

static bool next_use(const lt_plan *plan, const lt_tensor *tensor, use *u)
{
    for (; u->next_op < plan->n_ops; u->next_op++, u->next_k = 0) {
        const lt_op *op = &plan->ops[u->next_op];
        for (; u->next_k < 4; u->next_k++, u->next_segment = 0) {
            const lt_weight *w = op->weight[u->next_k] != LT_NONE ? &plan->weights[op->weight[u->next_k]] : NULL;
            while (w && u->next_segment < w->n_segments) {
                const lt_segment *segment = &w->segments[u->next_segment++];
                if (segment->tensor != tensor) continue;
                u->op = op, u->k = u->next_k, u->segment = segment;
                return true;
            }
        }
    }
    return false;
}

/* Used as a matrix or a table by the plan; *used: at all. */
static bool is_matrix(const lt_plan *plan, const lt_tensor *tensor, bool *used)
{
    bool matrix = false;
    for (use u = { 0 }; next_use(plan, tensor, &u);) {
        *used = true;
        matrix |= u.op->code == LT_OP_EMBED || (u.op->code == LT_OP_LINEAR && u.k == 0);
    }
    return matrix;
}

/* The one product by rows that a tensor is a matrix of; NULL: none, several, or it is a table too. */
static const lt_op *op_by_rows(const lt_plan *plan, const lt_tensor *tensor)
{
    const lt_op *found = NULL;
    for (use u = { 0 }; next_use(plan, tensor, &u);) {
        if (found || u.op->code != LT_OP_LINEAR || u.k > 0 || !u.op->int8 || u.op->glu || u.segment->n_rows > 0) return NULL;
        found = u.op;
    }
    return found;
}

/* A table of embeddings and nothing else. */
static bool is_table(const lt_plan *plan, const lt_tensor *tensor)
{
    bool table = false;
    for (use u = { 0 }; next_use(plan, tensor, &u);) {
        if (u.op->code != LT_OP_EMBED) return false;
        table = true;
    }
    return table;
}

static lattice_status list_tensors(quantizer *q, lattice_error *err)
{
    const lt_checkpoint *checkpoint = q->model->checkpoint;
    const size_t count = lt_checkpoint_count(checkpoint);
    q->tensors = lt_alloc_array(q->mem, count + 1, sizeof *q->tensors);
    if (!q->tensors) return lt_no_memory(err, count * sizeof *q->tensors, "the list of tensors");
    bool by_rows = false;
    for (int pass = 0; pass < 2; pass++) {
        for (size_t i = 0; i < count; i++) {
            const lt_tensor *tensor = lt_checkpoint_at(checkpoint, i);
            if (tensor->dtype == LT_Q8_0 || tensor->dtype == LT_INT8_ROWS)
                return lt_fail(err, LATTICE_ERR_INVALID_ARGUMENT, "%s: is quantised already", lt_checkpoint_folder(checkpoint));
            bool used = false, matrix = is_matrix(&q->model->plan, tensor, &used);
            output_tensor out = { .from = tensor, .size = tensor->size };
            if (q->by_rows && used) {
                out.op = op_by_rows(&q->model->plan, tensor);
                matrix = out.op || is_table(&q->model->plan, tensor);
            }
            out.quantised = matrix && tensor->rank == 2 && tensor->shape[1] > 0 &&
                            (out.op ? lt_int8_size : lt_q8_0_size)(tensor->shape[0], tensor->shape[1], &out.size);
            by_rows |= out.op != NULL;
            if (!used || out.quantised == (pass == 1)) continue;
            q->tensors[q->n++] = out;
            q->n_quantised += out.quantised;
            q->total += tensor->size;
        }
    }
    if (q->by_rows && !by_rows)
        return lt_fail(err, LATTICE_ERR_UNSUPPORTED, "%s: int8 by rows is for encoders; q8_0 is for every model",
                       lt_checkpoint_folder(checkpoint));
    size_t offset = 0;
    for (size_t i = 0; i < q->n; i++) {
        q->tensors[i].offset = offset;
        if (!lt_add(offset, q->tensors[i].size, &offset)) return lt_fail(err, LATTICE_ERR_FORMAT, "the checkpoint is too large");
    }
    return LATTICE_OK;
}

/* ------------------------------------------------------------------ the file */

static lattice_status flush(quantizer *q, lattice_error *err)
{
    LT_TRY(lt_replace_write(&q->file, q->piece, q->filled, err));
    q->filled = 0;
    return LATTICE_OK;
}

static lattice_status put(quantizer *q, const void *data, size_t size, lattice_error *err)
{
    for (const uint8_t *from = data; size > 0;) {
        const size_t n = size < LT_PIECE - q->filled ? size : LT_PIECE - q->filled;
        memcpy(q->piece + q->filled, from, n);
        q->filled += n;
        from += n;
        size -= n;
        if (q->filled == LT_PIECE) LT_TRY(flush(q, err));
    }
    return LATTICE_OK;
}

static lattice_status put_data(quantizer *q, const void *data, size_t size, lattice_error *err)
{
    lt_sha256_update(&q->sum, data, size);
    return put(q, data, size, err);
}

static void write_tensor(lt_json_writer *w, const output_tensor *t)
{
    lt_json_write_key_str(w, t->from->name);
    lt_json_write_begin(w, '{');
    lt_json_write_key(w, "dtype");
    lt_json_write_str(w, !t->quantised ? t->from->dtype_name : t->op ? LT_STR("INT8_ROWS") : LT_STR("Q8_0"));
    lt_json_write_key(w, "shape");
    lt_json_write_begin(w, '[');
    for (int d = 0; d < t->from->rank; d++) lt_json_write_uint(w, t->from->shape[d]);
    lt_json_write_end(w, ']');
    lt_json_write_key(w, "data_offsets");
    lt_json_write_begin(w, '[');
    lt_json_write_uint(w, t->offset);
    lt_json_write_uint(w, t->offset + t->size);
    lt_json_write_end(w, ']');
    lt_json_write_end(w, '}');
}

/* The header's length and text, padded so that the data begins at a multiple of 64. The checksum is not known yet: its 64 digits,
 * zeros, are at *checksum of the file. */
static lattice_status put_header(quantizer *q, size_t *checksum, lattice_error *err)
{
    static const char zeros[] = "0000000000000000000000000000000000000000000000000000000000000000";
    const char *folder = lt_checkpoint_folder(q->model->checkpoint), *slash = strrchr(folder, '/');
    lt_buf header;
    lt_buf_init(&header, q->mem);
    lt_json_writer w = lt_json_writer_on(&header);
    lt_json_write_begin(&w, '{');
    lt_json_write_key(&w, "__metadata__");
    lt_json_write_begin(&w, '{');
    lt_json_write_key(&w, LT_CHECKSUM_KEY);
    *checksum = 8 + header.len + 1;
    lt_json_write_z(&w, zeros);
    const char *const members[][2] = { { LT_QUANTIZATION_KEY, q->by_rows ? LT_INT8_QUANTIZATION : "q8_0" },
                                       { LT_LAYOUT_KEY, LT_Q8_0_LAYOUT },
                                       { "lattice.source", slash && slash[1] ? slash + 1 : folder },
                                       { "lattice.version", lattice_version() } };
    for (size_t i = 0; i < sizeof members / sizeof *members; i++) {
        lt_json_write_key(&w, members[i][0]);
        lt_json_write_z(&w, members[i][1]);
    }
    lt_json_write_end(&w, '}');
    for (size_t i = 0; i < q->n; i++) write_tensor(&w, &q->tensors[i]);
    lt_json_write_end(&w, '}');
    while ((8 + header.len) % 64 != 0 && !header.failed) lt_buf_byte(&header, ' ');
    uint8_t length[8];
    for (size_t i = 0; i < 8; i++) length[i] = (uint8_t)((uint64_t)header.len >> 8 * i);
    lattice_status status = header.failed ? lt_no_memory(err, header.len, "a header") : put(q, length, sizeof length, err);
    if (status == LATTICE_OK) status = put(q, header.data, header.len, err);
    lt_buf_free(&header);
    return status;
}

static lattice_status report_progress(quantizer *q, size_t bytes, lattice_error *err)
{
    q->done += bytes;
    if (q->options->progress && !q->options->progress(q->options->progress_user, q->done, q->total))
        return lt_fail(err, LATTICE_ERR_CANCELLED, "cancelled");
    return LATTICE_OK;
}

static lattice_status put_quantised(quantizer *q, const output_tensor *t, const uint8_t *data, lattice_error *err)
{
    const size_t rows = t->from->shape[0], cols = t->from->shape[1], row_bytes = cols * lt_dtype_size(t->from->dtype);
    const size_t panel_scales = cols / LT_Q8_0_BLOCK * LT_Q8_0_PANEL;
    uint16_t *scales = q->scales;
    for (size_t row = 0; row < rows; row += LT_Q8_0_PANEL, scales += panel_scales) {
        const size_t n = rows - row < LT_Q8_0_PANEL ? rows - row : LT_Q8_0_PANEL;
        q->model->kernels->convert(q->rows, data + row * row_bytes, t->from->dtype, n * cols);
        if (!lt_q8_0_encode(q->rows, n, cols, q->quants, scales))
            return lt_fail(err, LATTICE_ERR_NOT_FINITE, "%s: tensor '%.*s' has a value that Q8_0 cannot hold in rows %zu to %zu",
                           lt_checkpoint_shard_name(q->model->checkpoint, t->from->shard), LT_STR_ARG(t->from->name), row,
                           row + n - 1);
        LT_TRY(put_data(q, q->quants, LT_Q8_0_PANEL * cols, err));
        LT_TRY(report_progress(q, n * row_bytes, err));
    }
    static const uint8_t padding[64];
    const size_t size = (size_t)(scales - q->scales) * sizeof *scales;
    LT_TRY(put_data(q, q->scales, size, err));
    return put_data(q, padding, t->size - lt_q8_0_scales_offset(rows, cols) - size, err);
}

/* m of every column of the product's input, from the largest weights of all its segments: 1 where the input is no hidden state of
 * the trace. */
static lattice_status smooth(quantizer *q, const lt_op *op, lattice_error *err)
{
    const lt_plan *plan = &q->model->plan;
    const lt_weight *w = &plan->weights[op->weight[0]];
    const size_t cols = w->cols, row_bytes = cols * lt_dtype_size(w->dtype);
    int trace = 0;
    for (const lt_op *from = plan->ops; from < op; from++) {
        if (from->out[0] == op->in[0].value) trace = from->trace;
    }
    if (cols != plan->values[plan->hidden].width) trace = 0;
    for (size_t c = 0; c < cols; c++) q->inputs[c] = trace > 0 ? 0 : 1;
    if (trace == 0) return LATTICE_OK;
    for (int s = 0; s < w->n_segments; s++) {
        const void *data;
        LT_TRY(lt_checkpoint_data(w->segments[s].checkpoint, w->segments[s].tensor, &data, err));
        for (size_t row = 0; row < w->segments[s].tensor->shape[0]; row++) {
            q->model->kernels->convert(q->rows, (const uint8_t *)data + row * row_bytes, w->dtype, cols);
            for (size_t c = 0; c < cols; c++) q->inputs[c] = fmaxf(q->inputs[c], fabsf(q->rows[c]));
        }
    }
    const float *largest = q->largest + (size_t)(trace - 1) * cols;
    double sum = 0;
    for (size_t c = 0; c < cols; c++) {
        q->inputs[c] = sqrtf(fmaxf(q->inputs[c], 1e-6f) / fmaxf(largest[c], 1e-6f));
        sum += (double)q->inputs[c];
    }
    if (!isfinite(sum)) return lt_fail(err, LATTICE_ERR_NOT_FINITE, "the model's weights are not finite, or too large");
    for (size_t c = 0; c < cols; c++) q->inputs[c] = (float)((double)q->inputs[c] * (double)cols / sum);
    return LATTICE_OK;
}

static lattice_status put_by_rows(quantizer *q, const output_tensor *t, const uint8_t *data, lattice_error *err)
{
    const size_t rows = t->from->shape[0], cols = t->from->shape[1], row_bytes = cols * lt_dtype_size(t->from->dtype);
    const size_t padded_rows = lt_int8_panels(rows) * LT_INT8_PANEL;
    LT_TRY(smooth(q, t->op, err));
    for (size_t row = 0; row < rows; row += LT_INT8_PANEL) {
        const size_t n = rows - row < LT_INT8_PANEL ? rows - row : LT_INT8_PANEL;
        q->model->kernels->convert(q->rows, data + row * row_bytes, t->from->dtype, n * cols);
        if (!lt_int8_encode(q->rows, n, cols, q->inputs, q->quants, q->numbers + row, q->numbers + padded_rows + row))
            return lt_fail(err, LATTICE_ERR_NOT_FINITE, "%s: tensor '%.*s' has a value that is not finite in rows %zu to %zu",
                           lt_checkpoint_shard_name(q->model->checkpoint, t->from->shard), LT_STR_ARG(t->from->name), row,
                           row + n - 1);
        LT_TRY(put_data(q, q->quants, LT_INT8_PANEL * lt_int8_padded(cols), err));
        LT_TRY(report_progress(q, n * row_bytes, err));
    }
    static const uint8_t padding[64];
    LT_TRY(put_data(q, q->numbers, 2 * padded_rows * sizeof(float), err));
    LT_TRY(put_data(q, q->inputs, cols * sizeof(float), err));
    return put_data(q, padding, t->size - lt_int8_inputs_offset(rows, cols) - cols * sizeof(float), err);
}

static lattice_status put_tensor(quantizer *q, const output_tensor *t, lattice_error *err)
{
    const void *data;
    LT_TRY(lt_checkpoint_data(q->model->checkpoint, t->from, &data, err));
    if (t->op && t->quantised) {
        LT_TRY(put_by_rows(q, t, data, err));
    } else if (t->quantised) {
        LT_TRY(put_quantised(q, t, data, err));
    } else {
        LT_TRY(put_data(q, data, t->size, err));
        LT_TRY(report_progress(q, t->size, err));
    }
    lt_checkpoint_forget(q->model->checkpoint, t->from);
    return LATTICE_OK;
}

static lattice_status allocate(quantizer *q, lattice_error *err)
{
    const lt_plan *plan = &q->model->plan;
    size_t most_cols = 0, most_scales = 0, most_rows = 0, traced;
    for (size_t i = 0; i < q->n_quantised; i++) {
        if (q->tensors[i].op && q->tensors[i].from->shape[0] > most_rows) most_rows = q->tensors[i].from->shape[0];
        const size_t cols = q->tensors[i].from->shape[1], scales = q->tensors[i].size / 34 * 2 + 64;
        if (cols > most_cols) most_cols = cols;
        if (scales > most_scales) most_scales = scales;
    }
    q->piece = lt_alloc(q->mem, LT_PIECE);
    q->rows = lt_alloc_array(q->mem, LT_Q8_0_PANEL * sizeof(float), most_cols + 1);
    q->quants = lt_alloc_array(q->mem, LT_Q8_0_PANEL, most_cols + LT_INT8_GROUP);
    q->scales = lt_alloc(q->mem, most_scales + 1);
    if (!q->piece || !q->rows || !q->quants || !q->scales) return lt_no_memory(err, LT_PIECE + most_scales, "quantising");
    if (!q->by_rows) return LATTICE_OK;
    q->numbers = lt_alloc_array(q->mem, lt_int8_panels(most_rows) * LT_INT8_PANEL, 2 * sizeof(float));
    q->inputs = lt_alloc_array(q->mem, most_cols + 1, sizeof(float));
    q->largest = lt_mul(plan->n_trace, plan->values[plan->hidden].width, &traced)
                     ? lt_alloc_array(q->mem, traced + 1, sizeof(float))
                     : NULL;
    if (!q->numbers || !q->inputs || !q->largest) return lt_no_memory(err, most_rows * 2 * sizeof(float), "quantising");
    return lt_calibrate(q->model, q->largest, err);
}

/* The file's descriptor is still open: the digits go where the header has zeros. */
static lattice_status put_checksum(quantizer *q, size_t at, lattice_error *err)
{
    uint8_t digest[LT_SHA256_SIZE];
    char hex[2 * LT_SHA256_SIZE + 1];
    lt_sha256_final(&q->sum, digest);
    lt_sha256_hex(digest, hex);
    ssize_t written;
    do written = pwrite(q->file.fd, hex, 2 * LT_SHA256_SIZE, (off_t)at);
    while (written < 0 && errno == EINTR);
    if (written != 2 * LT_SHA256_SIZE) return lt_io_fail(err, q->file.path.data, "write", written < 0 ? errno : EIO);
    return LATTICE_OK;
}

static lattice_status write_weights(quantizer *q, lattice_error *err)
{
    size_t checksum;
    LT_TRY(allocate(q, err));
    lt_sha256_init(&q->sum);
    LT_TRY(put_header(q, &checksum, err));
    for (size_t i = 0; i < q->n; i++) LT_TRY(put_tensor(q, &q->tensors[i], err));
    LT_TRY(flush(q, err));
    return put_checksum(q, checksum, err);
}

/* ------------------------------------------------------------------ the other files */

static bool is_left_out(const char *name)
{
    static const char *const endings[] = { ".safetensors", ".safetensors.index.json",
                                           ".bin",         ".bin.index.json",
                                           ".pt",          ".pth",
                                           ".ckpt",        ".h5",
                                           ".msgpack",     ".ot",
                                           ".onnx",        ".gguf",
                                           ".tflite" };
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++) {
        if (lt_str_ends(lt_str_of(name), endings[i])) return true;
    }
    return name[0] == '.';
}

typedef struct copying {
    const lattice_allocator *mem;
    const char *to;
    bool top; /* of the checkpoint, whose weights are left out; modules in folders below keep theirs */
} copying;

static lattice_status copy_entry(void *user, const char *path, const char *name, lattice_error *err);

/* Modules are folders with a config.json. */
static lattice_status copy_module(const copying *c, const char *path, const char *to, lattice_error *err)
{
    lt_buf config;
    lt_buf_init(&config, c->mem);
    const bool joined = lt_path_join(&config, path, "config.json") != NULL, is_module = joined && lt_path_exists(config.data);
    lt_buf_free(&config);
    if (!joined) return lt_no_memory(err, strlen(path), "a path");
    if (!is_module) return LATTICE_OK;
    LT_TRY(lt_make_folders(to, err));
    copying inner = { .mem = c->mem, .to = to };
    return lt_folder_each(c->mem, path, copy_entry, &inner, err);
}

static lattice_status copy_entry(void *user, const char *path, const char *name, lattice_error *err)
{
    const copying *c = user;
    struct stat info;
    if (name[0] == '.' || (c->top && is_left_out(name))) return LATTICE_OK;
    if (stat(path, &info) != 0) return lt_io_fail(err, path, "open", errno);
    lt_buf to;
    lt_buf_init(&to, c->mem);
    lattice_status status = LATTICE_OK;
    if (!lt_path_join(&to, c->to, name))
        status = lt_no_memory(err, strlen(name), "a path");
    else if (S_ISREG(info.st_mode))
        status = lt_copy_file(c->mem, path, to.data, err);
    else if (S_ISDIR(info.st_mode) && c->top)
        status = copy_module(c, path, to.data, err);
    lt_buf_free(&to);
    return status;
}

/* ------------------------------------------------------------------ all */

static lattice_status write_folder(quantizer *q, const char *folder, lattice_error *err)
{
    lt_buf path;
    lt_buf_init(&path, q->mem);
    lattice_status status = LATTICE_OK;
    if (!lt_path_join(&path, q->folder.temporary.data, "model.safetensors")) status = lt_no_memory(err, strlen(folder), "a path");
    if (status == LATTICE_OK) status = lt_replace_begin(q->mem, path.data, &q->file, err);
    if (status == LATTICE_OK) {
        status = write_weights(q, err);
        if (status == LATTICE_OK)
            status = lt_replace_commit(&q->file, err);
        else
            lt_replace_abort(&q->file);
    }
    lt_buf_free(&path);
    if (status != LATTICE_OK) return status;
    copying top = { .mem = q->mem, .to = q->folder.temporary.data, .top = true };
    return lt_folder_each(q->mem, folder, copy_entry, &top, err);
}

static void fill_report(const quantizer *q, lattice_quantize_report *report)
{
    *report = (lattice_quantize_report){ .n_quantized = q->n_quantised,
                                         .n_kept = q->n - q->n_quantised,
                                         .n_left_out = lt_checkpoint_count(q->model->checkpoint) - q->n,
                                         .bytes_before = q->total };
    for (size_t i = 0; i < q->n; i++) report->bytes_after += q->tensors[i].size;
}

lattice_status lattice_quantize(lattice_runtime *runtime, const char *folder, const char *out_folder,
                                const lattice_quantize_options *options, lattice_quantize_report *report, lattice_error *err)
{
    const lattice_quantize_options defaults = lattice_quantize_options_default();
    quantizer q = { .mem = &runtime->mem, .options = options ? options : &defaults };
    q.by_rows = q.options->type && strcmp(q.options->type, LT_INT8_QUANTIZATION) == 0;
    if (!q.options->type || (strcmp(q.options->type, "q8_0") != 0 && !q.by_rows))
        return lt_fail(err, LATTICE_ERR_UNSUPPORTED, "quantisation '%s' is not known; q8_0 and int8 are",
                       q.options->type ? q.options->type : "");
    lattice_model_options model_options = lattice_model_options_default();
    model_options.tokenizer_optional = true;
    if (q.by_rows) { /* it calibrates, and the result is to be the same everywhere */
        model_options.compute = LATTICE_COMPUTE_F32;
        model_options.device = "cpu";
    }
    LT_TRY(lattice_model_open(runtime, folder, &model_options, &q.model, err));
    lattice_status status = list_tensors(&q, err);
    if (status == LATTICE_OK) status = lt_new_folder_begin(q.mem, out_folder, &q.folder, err);
    if (status == LATTICE_OK) {
        status = write_folder(&q, folder, err);
        if (status == LATTICE_OK)
            status = lt_new_folder_commit(&q.folder, err);
        else
            lt_new_folder_abort(&q.folder);
    }
    if (status == LATTICE_OK && report) fill_report(&q, report);
    lt_free(q.mem, q.piece);
    lt_free(q.mem, q.rows);
    lt_free(q.mem, q.quants);
    lt_free(q.mem, q.scales);
    lt_free(q.mem, q.numbers);
    lt_free(q.mem, q.inputs);
    lt_free(q.mem, q.largest);
    lt_free(q.mem, q.tensors);
    lattice_model_close(q.model);
    return status;
}
