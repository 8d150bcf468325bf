/* Weights on the device: one allocation, each operand's segments one behind the other.
 *
 * Matrices and tables keep their stored type, so that a product reads no more bytes than there are; where products are made in
 * bfloat16, matrices of other types but Q8_0 are rounded to it here. Vectors become float32. Segments in Q8_0 become one matrix
 * of panels. When a tensor has been copied, its mapped pages are given back.
 *
 * A device that shares the host's memory reads matrices and tables where the file is mapped, a joined operand piece by piece. */
#include <string.h>

#include "backend/cpu/kernels.h"
#include "backend/gpu/gpu.h"
#include "format/q8_0.h"

enum { ALIGN = 256, CHUNK = 1 << 20 };
/* Scratch of products whose W is unpacked: a part of W that the device's cache still holds when it is multiplied. */
enum { SCRATCH = 32 << 20 };

static lt_gpu_type stored_type(lt_dtype dtype)
{
    switch (dtype) {
    case LT_F32: return LT_GPU_F32;
    case LT_F16: return LT_GPU_F16;
    case LT_Q8_0: return LT_GPU_Q8_0;
    default: return LT_GPU_BF16;
    }
}

/* Bytes of rows of a matrix; false: they cannot be counted. */
static bool matrix_bytes(lt_gpu_type type, size_t rows, size_t cols, size_t *bytes)
{
    if (type == LT_GPU_Q8_0) return lt_q8_0_size(rows, cols, bytes);
    return lt_mul(rows, cols, bytes) && lt_mul(*bytes, lt_gpu_type_size(type), bytes);
}

static void mark_uses(lt_program *p)
{
    for (size_t i = 0; i < p->plan->n_ops; i++) {
        const lt_op *op = &p->plan->ops[i];
        for (int k = 0; k < 4; k++) {
            if (op->weight[k] == LT_NONE) continue;
            lt_gpu_weight *w = &p->weights[op->weight[k]];
            if (op->code == LT_OP_EMBED) {
                w->is_table = true;
            } else if (op->code == LT_OP_LINEAR && k == 0) {
                w->is_matrix = true;
            } else {
                w->is_vector = true;
                w->is_taps = op->code == LT_OP_CONV;
            }
        }
    }
}

static void unmap_weight(lt_program *p, lt_gpu_weight *w)
{
    for (int s = 0; s < LT_MAX_SEGMENTS; s++) {
        if (w->pieces[s].memory) p->device->unmap(p->device, w->pieces[s].memory);
        w->pieces[s] = (lt_gpu_ref){ NULL, 0 };
    }
}

/* The segment's first row; of Q8_0, the tensor's. */
static lattice_status segment_data(const lt_weight *source, const lt_segment *segment, const uint8_t **data, lattice_error *err)
{
    const void *mapped;
    LT_TRY(lt_checkpoint_data(segment->checkpoint, segment->tensor, &mapped, err));
    *data = mapped;
    if (source->dtype != LT_Q8_0) *data += segment->first_row * source->cols * lt_dtype_size(source->dtype);
    return LATTICE_OK;
}

/* Leaves w->pieces[0].memory NULL where the device cannot read the weight as it is stored: by its type, by its alignment, by its
 * place in memory, or a table that is not in one piece. */
static lattice_status map_weight(lt_program *p, const lt_weight *source, lt_gpu_weight *w, lattice_error *err)
{
    size_t align = w->type == LT_GPU_Q8_0 ? 16 : lt_gpu_type_size(w->type), bytes;
    if (!p->device->map || w->is_vector || w->type != stored_type(source->dtype) || source->plus_one) return LATTICE_OK;
    if (w->is_table && source->n_segments > 1) return LATTICE_OK;
    for (int s = 0; s < source->n_segments; s++) {
        const lt_segment *segment = &source->segments[s];
        const uint8_t *data;
        LT_TRY(segment_data(source, segment, &data, err));
        bool fits = matrix_bytes(w->type, lt_segment_rows(segment, source->cols), source->cols, &bytes) &&
                    (w->type != LT_GPU_Q8_0 || segment->n_rows == 0);
        if (fits && (uintptr_t)data % align == 0 && p->device->map(p->device, data, bytes, &w->pieces[s])) continue;
        w->pieces[s].memory = NULL;
        unmap_weight(p, w);
        return LATTICE_OK;
    }
    w->ref = w->pieces[0];
    return LATTICE_OK;
}

static lattice_status place_weights(lt_program *p, lattice_error *err)
{
    size_t total = 0;
    lt_gpu_type type = p->compute == LATTICE_COMPUTE_BF16 ? LT_GPU_BF16 : LT_GPU_F32; /* of products */
    for (size_t i = 0; i < p->plan->n_weights; i++) {
        const lt_weight *source = &p->plan->weights[i];
        lt_gpu_weight *w = &p->weights[i];
        bool packed = source->dtype == LT_Q8_0;
        if (source->dtype != LT_F32 && source->dtype != LT_F16 && source->dtype != LT_BF16 && (!packed || w->is_vector))
            return lt_fail(err, LATTICE_ERR_UNSUPPORTED, "gpu: tensor '%.*s' has type %s",
                           LT_STR_ARG(source->segments[0].tensor->name), lt_dtype_name(source->dtype));
        if (w->is_vector && (w->is_matrix || w->is_table))
            return lt_fail(err, LATTICE_ERR_UNSUPPORTED, "gpu: tensor '%.*s' is a vector and a matrix",
                           LT_STR_ARG(source->segments[0].tensor->name));
        w->type = w->is_vector                                                    ? LT_GPU_F32
                  : w->is_matrix && !packed && p->compute == LATTICE_COMPUTE_BF16 ? LT_GPU_BF16
                                                                                  : stored_type(source->dtype);
        size_t numbers, bytes, stored;
        if (!lt_mul(source->rows, source->cols, &numbers) || !matrix_bytes(w->type, source->rows, source->cols, &bytes) ||
            numbers > UINT32_MAX * (uint64_t)64 || source->rows > UINT32_MAX / 2 || source->cols > UINT32_MAX / 2 ||
            !lt_add(bytes, ALIGN, &bytes) || !lt_add(total, lt_gpu_round(bytes - ALIGN, ALIGN), &total))
            return lt_fail(err, LATTICE_ERR_UNSUPPORTED, "gpu: tensor '%.*s' is too large",
                           LT_STR_ARG(source->segments[0].tensor->name));
        LT_TRY(map_weight(p, source, w, err));
        if (w->pieces[0].memory)
            total -= lt_gpu_round(bytes - ALIGN, ALIGN);
        else
            w->ref.offset = total - lt_gpu_round(bytes - ALIGN, ALIGN);
        if (matrix_bytes(stored_type(source->dtype), source->rows, source->cols, &stored)) p->stored_bytes += stored;
        if (w->is_matrix && w->type != type) {
            size_t row = source->cols * lt_gpu_type_size(type), all = lt_gpu_round(source->rows, 16) * row;
            size_t most = SCRATCH > 16 * row ? SCRATCH : 16 * row, scratch = all < most ? all : most;
            if (scratch > p->scratch_weight_bytes) p->scratch_weight_bytes = scratch;
        }
    }
    p->weight_bytes = total > 0 ? total : ALIGN;
    LT_TRY(p->device->allocate(p->device, p->weight_bytes, &p->weight_memory, err));
    for (size_t i = 0; i < p->plan->n_weights; i++) {
        if (!p->weights[i].pieces[0].memory) p->weights[i].ref.memory = p->weight_memory;
    }
    return LATTICE_OK;
}

static uint16_t to_bf16(float value)
{
    uint32_t u;
    memcpy(&u, &value, sizeof u);
    if ((u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)(u >> 16 | 0x40);
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

/* Numbers [first, first + n) of a segment, as the device has them, into `to`. floats: [n] scratch. */
static void convert(const lt_weight *source, const lt_gpu_weight *w, const uint8_t *data, size_t first, size_t n, void *to,
                    float *floats, const lt_kernels *kernels)
{
    float *values = w->type == LT_GPU_F32 ? to : floats;
    kernels->convert(values, data + first * lt_dtype_size(source->dtype), source->dtype, n);
    for (size_t i = 0; i < n && source->plus_one; i++) values[i] += 1;
    for (size_t i = 0; i < n && w->type == LT_GPU_BF16; i++) ((uint16_t *)to)[i] = to_bf16(values[i]);
}

/* [channels][taps] as [taps][channels]. */
static lattice_status upload_taps(lt_program *p, const lt_weight *source, const lt_gpu_weight *w, const uint8_t *data,
                                  const lt_kernels *kernels, lattice_error *err)
{
    const size_t channels = source->rows, taps = source->cols;
    float *turned = lt_alloc_array(&p->runtime->mem, channels * taps, sizeof *turned);
    if (!turned) return lt_no_memory(err, channels * taps * sizeof *turned, "the taps of a convolution");
    for (size_t c = 0; c < channels; c++) {
        for (size_t j = 0; j < taps; j++)
            kernels->convert(turned + j * channels + c, data + (c * taps + j) * lt_dtype_size(source->dtype), source->dtype, 1);
    }
    lattice_status status = p->device->upload(p->device, w->ref, turned, channels * taps * sizeof *turned, err);
    lt_free(&p->runtime->mem, turned);
    return status;
}

/* ------------------------------------------------------------------ Q8_0 */

/* Rows of a segment as rows of the joined matrix in `to`, byte by byte: where its rows are not whole panels of either. */
static void move_rows(const lt_weight *source, const lt_segment *segment, const uint8_t *from, size_t row, uint8_t *to)
{
    size_t cols = source->cols, blocks = cols / LT_Q8_0_BLOCK, n = lt_segment_rows(segment, cols);
    const uint8_t *from_scales = from + lt_q8_0_scales_offset(segment->tensor->n_elements / cols, cols);
    uint8_t *to_scales = to + lt_q8_0_scales_offset(source->rows, cols);
    for (size_t i = 0; i < n; i++) {
        size_t a = segment->first_row + i, b = row + i, pa = a / LT_Q8_0_PANEL, pb = b / LT_Q8_0_PANEL;
        const uint8_t *quants = from + pa * LT_Q8_0_PANEL * cols + a % LT_Q8_0_PANEL * 4;
        uint8_t *moved = to + pb * LT_Q8_0_PANEL * cols + b % LT_Q8_0_PANEL * 4;
        for (size_t c = 0; c < cols / 4; c++) memcpy(moved + c * LT_Q8_0_PANEL * 4, quants + c * LT_Q8_0_PANEL * 4, 4);
        for (size_t c = 0; c < blocks; c++)
            memcpy(to_scales + ((pb * blocks + c) * LT_Q8_0_PANEL + b % LT_Q8_0_PANEL) * 2,
                   from_scales + ((pa * blocks + c) * LT_Q8_0_PANEL + a % LT_Q8_0_PANEL) * 2, 2);
    }
}

static lattice_status upload_rows_of_q8(lt_program *p, const lt_weight *source, const lt_gpu_weight *w, lattice_error *err)
{
    size_t bytes, row = 0;
    if (!lt_q8_0_size(source->rows, source->cols, &bytes)) return lt_no_memory(err, SIZE_MAX, "a weight");
    uint8_t *joined = lt_alloc_zero(&p->runtime->mem, bytes);
    if (!joined) return lt_no_memory(err, bytes, "a joined weight");
    lattice_status status = LATTICE_OK;
    for (int s = 0; s < source->n_segments && status == LATTICE_OK; s++) {
        const uint8_t *data;
        status = segment_data(source, &source->segments[s], &data, err);
        if (status == LATTICE_OK) move_rows(source, &source->segments[s], data, row, joined);
        row += lt_segment_rows(&source->segments[s], source->cols);
    }
    if (status == LATTICE_OK) status = p->device->upload(p->device, w->ref, joined, bytes, err);
    lt_free(&p->runtime->mem, joined);
    return status;
}

/* Panels of all segments one behind the other, then their scales. */
static lattice_status upload_q8(lt_program *p, const lt_weight *source, const lt_gpu_weight *w, lattice_error *err)
{
    size_t cols = source->cols, quants = LT_Q8_0_PANEL * cols, scales = cols / LT_Q8_0_BLOCK * LT_Q8_0_PANEL * 2, panel = 0;
    bool whole = true;
    for (int s = 0; s < source->n_segments; s++)
        whole = whole && source->segments[s].first_row % LT_Q8_0_PANEL == 0 &&
                (s + 1 == source->n_segments || lt_segment_rows(&source->segments[s], cols) % LT_Q8_0_PANEL == 0);
    if (!whole) return upload_rows_of_q8(p, source, w, err);
    for (int s = 0; s < source->n_segments; s++) {
        const lt_segment *segment = &source->segments[s];
        size_t n = lt_q8_0_panels(lt_segment_rows(segment, cols)), first = segment->first_row / LT_Q8_0_PANEL;
        const uint8_t *data;
        LT_TRY(segment_data(source, segment, &data, err));
        LT_TRY(p->device->upload(p->device, lt_gpu_at(w->ref, panel * quants), data + first * quants, n * quants, err));
        LT_TRY(p->device->upload(p->device, lt_gpu_at(w->ref, lt_q8_0_scales_offset(source->rows, cols) + panel * scales),
                                 data + lt_q8_0_scales_offset(segment->tensor->n_elements / cols, cols) + first * scales,
                                 n * scales, err));
        panel += n;
        if (segment->n_rows == 0) lt_checkpoint_forget(segment->checkpoint, segment->tensor);
    }
    return LATTICE_OK;
}

static lattice_status upload_weight(lt_program *p, const lt_weight *source, const lt_gpu_weight *w, void *scratch, float *floats,
                                    lattice_error *err)
{
    const lt_kernels *kernels = lt_kernels_find(NULL);
    if (w->type == LT_GPU_Q8_0) return upload_q8(p, source, w, err);
    size_t size = lt_gpu_type_size(w->type), done = 0;
    bool as_stored = !source->plus_one && !w->is_taps && w->type == stored_type(source->dtype);
    for (int s = 0; s < source->n_segments; s++) {
        const lt_segment *segment = &source->segments[s];
        const uint8_t *data;
        LT_TRY(segment_data(source, segment, &data, err));
        size_t n = lt_segment_rows(segment, source->cols) * source->cols;
        if (as_stored) {
            LT_TRY(p->device->upload(p->device, lt_gpu_at(w->ref, done * size), data, n * size, err));
        } else if (w->is_taps) {
            LT_TRY(upload_taps(p, source, w, data, kernels, err));
        } else {
            for (size_t first = 0; first < n; first += CHUNK) {
                size_t part = n - first < CHUNK ? n - first : CHUNK;
                convert(source, w, data, first, part, scratch, floats, kernels);
                LT_TRY(p->device->upload(p->device, lt_gpu_at(w->ref, (done + first) * size), scratch, part * size, err));
            }
        }
        done += n;
        if (segment->n_rows == 0) lt_checkpoint_forget(segment->checkpoint, segment->tensor);
    }
    return LATTICE_OK;
}

lattice_status lt_gpu_weights_upload(lt_program *p, lattice_error *err)
{
    const lattice_allocator *mem = &p->runtime->mem;
    p->weights = lt_alloc_zero(mem, (p->plan->n_weights + 1) * sizeof *p->weights);
    if (!p->weights) return lt_no_memory(err, p->plan->n_weights * sizeof *p->weights, "weights");
    mark_uses(p);
    LT_TRY(place_weights(p, err));
    float *scratch = lt_alloc_array(mem, CHUNK, sizeof(float)), *floats = lt_alloc_array(mem, CHUNK, sizeof(float));
    lattice_status status = scratch && floats ? LATTICE_OK : lt_no_memory(err, CHUNK * sizeof(float), "uploading weights");
    for (size_t i = 0; status == LATTICE_OK && i < p->plan->n_weights; i++) {
        if (!p->weights[i].pieces[0].memory)
            status = upload_weight(p, &p->plan->weights[i], &p->weights[i], scratch, floats, err);
    }
    lt_free(mem, scratch);
    lt_free(mem, floats);
    return status;
}

void lt_gpu_weights_free(lt_program *p)
{
    for (size_t i = 0; p->weights && i < p->plan->n_weights; i++) {
        unmap_weight(p, &p->weights[i]);
        p->device->release(p->device, p->weights[i].unpacked);
    }
    p->device->release(p->device, p->weight_memory);
    lt_free(&p->runtime->mem, p->weights);
}
