/* Where weights live on the CPU: mapped, packed once, or packed when touched.
 *
 * Vectors (biases, gains) become float32 when the plan is compiled. Tables of embeddings are read by rows from the mapping in
 * their stored type. A matrix is multiplied from panels of nr outputs; packing them takes a read of the whole matrix, so it is
 * done by all threads in the first run, and the mapped pages are given back, so that a weight is resident once. Where a processor
 * reads one stream faster than rows, the panels of larger matrices, and of those for logits, keep bfloat16 as it is stored beside
 * float32 arithmetic, in pairs; these are packed a part in every run, so that no answer waits for all of them. Where packed
 * copies would take more than the limits below, a panel is packed into a thread's scratch each time it is needed instead, and its
 * cost spreads over the rows of the tile. Q8_0 matrices and those in int8 by rows lie in the file as the integer products want
 * them and are multiplied as mapped; where they are dequantised instead, they are packed as 16-bit ones are. Under compute int8
 * an encoder's other matrices are packed as int8 by rows, all of them: the smallest form they can have. */
#include "backend/cpu/cpu.h"

/* float32 matrices, and bfloat16 that is kept as pairs: a packed copy replaces the mapped pages, byte for byte. */
#define PACK_LIMIT ((size_t)2 << 30)
/* 16-bit matrices: a packed copy in float32 is twice the size of what it replaces, in bfloat16 as large. It pays: MiniLM in BF16
 * with a packed copy takes, in float32, 0.87 of the time at 1x8, 0.75 at 1x32, 0.93 at 32x32 and the same from 1x512 on. Beyond
 * the limit memory matters more. */
#define PACK_LIMIT_16 ((size_t)512 << 20)

/* An op of the tail that gives logits. */
static bool is_head(const lt_plan *plan, size_t op)
{
    const lt_tail *tail = &plan->tails[LT_TAIL_LOGITS];
    return tail->present && op >= (size_t)tail->first_op && op < (size_t)tail->first_op + (size_t)tail->n_ops;
}

static void mark_uses(lt_cpu_weights *weights, const lt_plan *plan)
{
    for (size_t i = 0; i < plan->n_ops; i++) {
        const lt_op *op = &plan->ops[i];
        for (int k = 0; k < 4; k++) {
            if (op->weight[k] == LT_NONE) continue;
            lt_cpu_weight *w = &weights->list[op->weight[k]];
            if (op->code == LT_OP_EMBED) {
                w->is_table = true;
            } else if (op->code == LT_OP_LINEAR && k == 0) {
                w->is_head = is_head(plan, i) && (!w->is_matrix || w->is_head);
                w->is_matrix = true;
                w->is_glu = op->glu;
                w->admits_rows = op->int8 && !op->glu;
            } else {
                w->is_vector = true;
                w->is_taps = op->code == LT_OP_CONV;
            }
        }
    }
}

/* Coded matrices are read whole, whatever segment of them is used. */
static bool is_coded(const lt_weight *weight)
{
    return weight->dtype == LT_Q8_0 || weight->dtype == LT_INT8_ROWS;
}

/* The numbers of a tensor in int8 by rows, and that the segments of a joined operand ask the same of their common input. */
static lattice_status check_rows(const lt_cpu_weight *w, int s, lattice_error *err)
{
    const lt_tensor *tensor = w->source->segments[s].tensor, *first = w->source->segments[0].tensor;
    const size_t cols = w->source->cols;
    size_t index;
    const char *fault = lt_int8_fault(w->data[s], tensor->shape[0], cols, &index);
    if (fault)
        return lt_fail(err, LATTICE_ERR_FORMAT, "%s: tensor '%.*s' has %s %zu",
                       lt_checkpoint_shard_name(w->source->segments[s].checkpoint, tensor->shard), LT_STR_ARG(tensor->name),
                       fault, index);
    if (memcmp(w->data[s] + lt_int8_inputs_offset(tensor->shape[0], cols),
               w->data[0] + lt_int8_inputs_offset(first->shape[0], cols), cols * sizeof(float)) == 0)
        return LATTICE_OK;
    return lt_fail(err, LATTICE_ERR_FORMAT, "%s: tensor '%.*s' has other input factors than '%.*s', which has the same input",
                   lt_checkpoint_shard_name(w->source->segments[s].checkpoint, tensor->shard), LT_STR_ARG(tensor->name),
                   LT_STR_ARG(first->name));
}

static lattice_status map_segments(lt_cpu_weights *weights, const lt_plan *plan, lattice_error *err)
{
    for (size_t i = 0; i < weights->n; i++) {
        lt_cpu_weight *w = &weights->list[i];
        w->source = &plan->weights[i];
        if (w->source->dtype != LT_F32 && w->source->dtype != LT_F16 && w->source->dtype != LT_BF16 &&
            (!is_coded(w->source) || w->is_vector)) {
            return lt_fail(err, LATTICE_ERR_UNSUPPORTED, "cpu: tensor '%.*s' has type %s",
                           LT_STR_ARG(w->source->segments[0].tensor->name), lt_dtype_name(w->source->dtype));
        }
        for (int s = 0; s < w->source->n_segments; s++) {
            const lt_segment *segment = &w->source->segments[s];
            const void *data;
            LT_TRY(lt_checkpoint_data(segment->checkpoint, segment->tensor, &data, err));
            if (is_coded(w->source)) {
                const size_t rows = lt_segment_rows(segment, w->source->cols), cols = w->source->cols;
                w->data[s] = data;
                weights->stored_bytes += w->source->dtype == LT_Q8_0 ? rows * cols / 32 * 34 : rows * (cols + 8);
                if (w->source->dtype == LT_INT8_ROWS) LT_TRY(check_rows(w, s, err));
                continue;
            }
            size_t row_size = w->source->cols * lt_dtype_size(w->source->dtype);
            w->data[s] = (const uint8_t *)data + segment->first_row * row_size;
            weights->stored_bytes += lt_segment_rows(segment, w->source->cols) * row_size;
        }
    }
    return LATTICE_OK;
}

/* [channels][taps] becomes [taps][channels], so that a vector of channels is read at once. */
static void convert_taps(const lt_cpu_weight *w, const lt_kernels *kernels)
{
    const size_t channels = w->source->rows, taps = w->source->cols, element = lt_dtype_size(w->source->dtype);
    for (size_t c = 0; c < channels; c++) {
        for (size_t j = 0; j < taps; j++)
            kernels->convert(w->vector + j * channels + c, w->data[0] + (c * taps + j) * element, w->source->dtype, 1);
    }
}

static lattice_status convert_vectors(lt_cpu_weights *weights, const lt_kernels *kernels, const lattice_allocator *mem,
                                      lattice_error *err)
{
    size_t total = 0;
    for (size_t i = 0; i < weights->n; i++) {
        const lt_weight *source = weights->list[i].source;
        size_t floats;
        if (weights->list[i].is_vector && (!lt_mul(source->rows, source->cols, &floats) || !lt_add(total, floats, &total))) {
            return lt_no_memory(err, SIZE_MAX, "vectors");
        }
    }
    weights->vectors = lt_alloc_array(mem, total > 0 ? total : 1, sizeof(float));
    if (!weights->vectors) return lt_no_memory(err, total * sizeof(float), "vectors");
    float *next = weights->vectors;
    for (size_t i = 0; i < weights->n; i++) {
        lt_cpu_weight *w = &weights->list[i];
        if (!w->is_vector) continue;
        w->vector = next;
        if (w->is_taps) {
            convert_taps(w, kernels);
            next += w->source->rows * w->source->cols;
            continue;
        }
        for (int s = 0; s < w->source->n_segments; s++) {
            size_t n = lt_segment_rows(&w->source->segments[s], 1);
            kernels->convert(next, w->data[s], w->source->dtype, n);
            for (size_t j = 0; j < n && w->source->plus_one; j++) next[j] += 1;
            next += n;
        }
    }
    return LATTICE_OK;
}

/* As integers: whole tensors, and a gate over up of one tensor each. */
static bool fits_bytes(const lt_cpu_weight *w, lattice_compute asked)
{
    if (!is_coded(w->source)) return asked == LATTICE_COMPUTE_INT8 && w->admits_rows && w->source->cols <= LT_INT8_MAX_COLS;
    if (asked != LATTICE_COMPUTE_AUTO && asked != LATTICE_COMPUTE_INT8) return false;
    for (int s = 0; s < w->source->n_segments; s++) {
        if (w->source->segments[s].n_rows > 0) return false;
    }
    return !w->is_glu ||
           (w->source->n_segments == 2 && lt_segment_rows(&w->source->segments[0], w->source->cols) * 2 == w->source->rows);
}

static size_t byte_panels(const lt_cpu_weight *w)
{
    size_t n = 0;
    for (int s = 0; s < w->source->n_segments; s++)
        n += lt_q8_0_panels(lt_segment_rows(&w->source->segments[s], w->source->cols));
    return n;
}

/* Bytes of the segments packed as int8 by rows; false: too many. */
static bool packed_rows_size(const lt_cpu_weight *w, size_t *total)
{
    *total = 0;
    for (int s = 0; s < w->source->n_segments; s++) {
        size_t bytes;
        if (!lt_int8_size(lt_segment_rows(&w->source->segments[s], w->source->cols), w->source->cols, &bytes)) return false;
        if (!lt_add(*total, bytes, total)) return false;
    }
    return true;
}

/* Can be kept in panels of pairs beside float32 arithmetic. */
static bool fits_pairs(const lt_cpu_weight *w, const lt_kernels *kernels)
{
    return kernels->pack_pairs && w->source->dtype == LT_BF16 && w->source->cols % 2 == 0;
}

static bool is_wide(const lt_cpu_weight *w)
{
    return w->source->dtype == LT_F32;
}

/* Bytes of the panels of such matrices as of panel_form; SIZE_MAX when they do not fit a size_t. by_pairs: of those that can be
 * kept so. */
static size_t packed_size(const lt_cpu_weights *weights, const lt_kernels *kernels, bool head, bool wide, bool by_pairs)
{
    size_t total = 0;
    for (size_t i = 0; i < weights->n; i++) {
        const lt_cpu_weight *w = &weights->list[i];
        size_t bytes;
        if (!w->is_matrix || w->is_bytes || w->is_head != head || is_wide(w) != wide) continue;
        if (by_pairs && !fits_pairs(w, kernels)) continue;
        const size_t rows = by_pairs ? w->source->cols / 2 : lt_panel_rows(kernels, w->source->cols);
        bool fits = lt_mul(w->n_panels * kernels->nr, rows, &bytes) && lt_mul(bytes, sizeof(float), &bytes) &&
                    lt_add(total, bytes, &total);
        if (!fits) return SIZE_MAX;
    }
    return total;
}

typedef enum form { PACKED_WHEN_TOUCHED, PACKED_ONCE, KEPT_AS_PAIRS } form;

/* Of the matrices of the logits, or of all others, of 4-byte or of smaller types. */
static form panel_form(const lt_cpu_weights *weights, const lt_kernels *kernels, lt_copies copies, bool head, bool wide)
{
    if (copies == LT_COPIES_NONE) return PACKED_WHEN_TOUCHED;
    const bool worth = copies == LT_COPIES_AS_STORED || lt_cpu_one_stream();
    const bool by_pairs = worth && !wide && packed_size(weights, kernels, head, wide, true) <= PACK_LIMIT;
    const bool once = !head && packed_size(weights, kernels, head, wide, false) <= (wide ? PACK_LIMIT : PACK_LIMIT_16);
    if (once && !(by_pairs && copies == LT_COPIES_AS_STORED)) return PACKED_ONCE;
    return by_pairs ? KEPT_AS_PAIRS : PACKED_WHEN_TOUCHED;
}

/* How each matrix is multiplied, and the bytes of those that are packed by rows. */
static bool choose_forms(lt_cpu_weights *weights, const lt_kernels *kernels, lattice_compute asked)
{
    for (size_t i = 0; i < weights->n; i++) {
        lt_cpu_weight *w = &weights->list[i];
        if (!w->is_matrix) continue;
        if (w->source->cols > weights->max_cols) weights->max_cols = w->source->cols;
        w->is_bytes = fits_bytes(w, asked);
        w->by_rows = w->is_bytes && w->source->dtype != LT_Q8_0;
        w->is_packed = w->by_rows && !is_coded(w->source);
        if (w->is_bytes) {
            size_t bytes;
            w->n_panels = byte_panels(w);
            weights->has_bytes = true;
            if (w->by_rows) weights->has_rows = true;
            if (!w->is_packed) continue;
            if (!packed_rows_size(w, &bytes) || !lt_add(weights->packed_bytes, bytes, &weights->packed_bytes)) return false;
        } else {
            w->n_panels =
                w->is_glu ? 2 * lt_ceil_div(w->source->rows / 2, kernels->nr) : lt_ceil_div(w->source->rows, kernels->nr);
        }
    }
    return true;
}

/* Floats of the packed panels of the matrices of the logits, or of all others; false: too many. */
static bool choose_panels(lt_cpu_weights *weights, const lt_kernels *kernels, lt_copies copies, bool head, size_t *floats)
{
    const form forms[] = { panel_form(weights, kernels, copies, head, false), panel_form(weights, kernels, copies, head, true) };
    *floats = 0;
    for (size_t i = 0; i < weights->n; i++) {
        lt_cpu_weight *w = &weights->list[i];
        size_t more;
        if (!w->is_matrix || w->is_bytes || w->is_head != head) continue;
        const form f = forms[is_wide(w)];
        w->by_pairs = f == KEPT_AS_PAIRS && fits_pairs(w, kernels);
        w->is_packed = f == PACKED_ONCE || w->by_pairs;
        if (!w->is_packed) continue;
        if (!lt_mul(w->n_panels, lt_cpu_panel_floats(w, kernels), &more) || !lt_add(*floats, more, floats)) return false;
    }
    return true;
}

static bool add_floats(size_t *bytes, size_t floats)
{
    size_t more;
    return lt_mul(floats, sizeof(float), &more) && lt_add(*bytes, more, bytes);
}

/* When a packed matrix is made, in this order. */
typedef enum pack_time { FIRST_RUN, BY_AND_BY, FOR_LOGITS } pack_time;

static pack_time time_of(const lt_cpu_weight *w)
{
    return !w->by_pairs ? FIRST_RUN : w->is_head ? FOR_LOGITS : BY_AND_BY;
}

static lattice_status place_panels(lt_cpu_weights *weights, const lt_compile_options *options, const lt_kernels *kernels,
                                   lattice_compute asked, lattice_error *err)
{
    size_t floats, head_floats, total;
    if (!choose_forms(weights, kernels, asked) || !choose_panels(weights, kernels, options->copies, false, &floats) ||
        !choose_panels(weights, kernels, options->copies, true, &head_floats))
        return lt_no_memory(err, SIZE_MAX, "packed weights");
    const size_t byte_forms = weights->packed_bytes;
    if (!add_floats(&weights->packed_bytes, floats) || !add_floats(&weights->packed_head_bytes, head_floats) ||
        !lt_add(weights->packed_bytes, weights->packed_head_bytes, &total))
        return lt_no_memory(err, SIZE_MAX, "packed weights");
    if (total == 0) return LATTICE_OK;
    LT_TRY(lt_reserve_create(total, &weights->panels, err));
    uint8_t *next_byte = weights->panels.base; /* first what is a multiple of 64 bytes */
    float *next = (float *)(void *)(next_byte + byte_forms);
    for (pack_time time = FIRST_RUN; time <= FOR_LOGITS; time++) {
        for (size_t i = 0; i < weights->n; i++) {
            lt_cpu_weight *w = &weights->list[i];
            if (!w->is_packed || time_of(w) != time) continue;
            w->first_item = weights->n_items;
            weights->n_items += w->n_panels;
            if (!w->is_bytes) {
                w->panels = next;
                next += w->n_panels * lt_cpu_panel_floats(w, kernels);
            }
            for (int s = 0; w->is_bytes && s < w->source->n_segments; s++) {
                size_t bytes = 0;
                (void)lt_int8_size(lt_segment_rows(&w->source->segments[s], w->source->cols), w->source->cols, &bytes);
                w->bytes[s] = next_byte;
                next_byte += bytes;
            }
        }
        if (time == FIRST_RUN) weights->n_first_items = weights->n_items;
        if (time == BY_AND_BY) weights->n_body_items = weights->n_items;
    }
    return LATTICE_OK;
}

lattice_status lt_cpu_weights_bind(lt_cpu_weights *weights, const lt_plan *plan, const lt_compile_options *options,
                                   const lt_kernels *kernels, lattice_compute asked, const lattice_allocator *mem,
                                   lattice_error *err)
{
    *weights = (lt_cpu_weights){ .n = plan->n_weights, .self_fetching = lt_cpu_self_fetching() };
    weights->list = lt_alloc_zero(mem, (plan->n_weights + 1) * sizeof *weights->list);
    if (!weights->list) return lt_no_memory(err, plan->n_weights * sizeof *weights->list, "weights");
    mark_uses(weights, plan);
    LT_TRY(map_segments(weights, plan, err));
    LT_TRY(convert_vectors(weights, kernels, mem, err));
    return place_panels(weights, options, kernels, asked, err);
}

void lt_cpu_weights_free(lt_cpu_weights *weights, const lattice_allocator *mem)
{
    lt_reserve_free(&weights->panels);
    lt_free(mem, weights->vectors);
    lt_free(mem, weights->list);
    *weights = (lt_cpu_weights){ 0 };
}

/* ------------------------------------------------------------------ panels */

size_t lt_cpu_gather_floats(const lt_cpu_weights *weights, const lt_kernels *kernels)
{
    return (kernels->nr > LT_INT8_PANEL ? kernels->nr : LT_INT8_PANEL) * weights->max_cols;
}

/* The rows of panel `index`: n of them, from row `row` of a segment on, which is left after `here` of them. */
typedef struct panel_rows {
    int segment;
    size_t row, n, here;
} panel_rows;

static panel_rows rows_of_panel(const lt_cpu_weight *weight, const lt_kernels *kernels, size_t index)
{
    const lt_weight *source = weight->source;
    size_t end = weight->is_glu ? source->rows / 2 : source->rows;
    panel_rows p = { .row = (weight->is_glu ? index / 2 : index) * kernels->nr };
    p.n = end - p.row < kernels->nr ? end - p.row : kernels->nr;
    if (weight->is_glu && index % 2 == 1) p.row += end;
    size_t segment_rows = lt_segment_rows(&source->segments[0], source->cols);
    while (p.row >= segment_rows) {
        p.row -= segment_rows;
        segment_rows = lt_segment_rows(&source->segments[++p.segment], source->cols);
    }
    p.here = segment_rows - p.row < p.n ? segment_rows - p.row : p.n;
    return p;
}

const void *lt_cpu_panel_bytes(const lt_cpu_weight *weight, const lt_kernels *kernels, size_t index, size_t *size)
{
    panel_rows p = rows_of_panel(weight, kernels, index);
    if (is_coded(weight->source)) {
        size_t row = weight->source->segments[p.segment].first_row + p.row;
        *size = (p.here + row % LT_Q8_0_PANEL) * weight->source->cols;
        return weight->data[p.segment] + row / LT_Q8_0_PANEL * LT_Q8_0_PANEL * weight->source->cols;
    }
    size_t row_size = weight->source->cols * lt_dtype_size(weight->source->dtype);
    *size = p.here * row_size;
    return weight->data[p.segment] + p.row * row_size;
}

const void *lt_cpu_panel_rows(const lt_cpu_weight *weight, const lt_kernels *kernels, size_t index)
{
    panel_rows p = rows_of_panel(weight, kernels, index);
    if (p.here < kernels->nr || is_coded(weight->source)) return NULL;
    return weight->data[p.segment] + p.row * weight->source->cols * lt_dtype_size(weight->source->dtype);
}

static void read_row(const lt_cpu_weight *weight, const lt_kernels *kernels, int segment, size_t row, bool add, float *dst)
{
    const lt_weight *source = weight->source;
    const size_t cols = source->cols;
    if (source->dtype == LT_Q8_0) {
        const lt_segment *from = &source->segments[segment];
        lt_q8_0_decode_row(weight->data[segment], from->tensor->shape[0], cols, from->first_row + row, add, dst);
        return;
    }
    if (source->dtype == LT_INT8_ROWS) {
        const lt_segment *from = &source->segments[segment];
        lt_int8_decode_row(weight->data[segment], from->tensor->shape[0], cols, from->first_row + row, add, dst);
        return;
    }
    const uint8_t *from = weight->data[segment] + row * cols * lt_dtype_size(source->dtype);
    if (add)
        kernels->accumulate(dst, from, source->dtype, cols);
    else
        kernels->convert(dst, from, source->dtype, cols);
}

void lt_cpu_read_row(const lt_cpu_weight *weight, const lt_kernels *kernels, size_t row, bool add, float *dst)
{
    read_row(weight, kernels, 0, row, add, dst);
}

size_t lt_cpu_result_panels(const lt_cpu_weight *weight)
{
    return weight->is_glu ? weight->n_panels / 2 : weight->n_panels;
}

size_t lt_cpu_panel_column(const lt_cpu_weight *weight, const lt_kernels *kernels, size_t index)
{
    const lt_weight *source = weight->source;
    const size_t width = weight->is_glu ? source->rows / 2 : source->rows;
    if (!weight->is_bytes) return index * kernels->nr < width ? index * kernels->nr : width;
    size_t column = 0;
    for (int s = 0; s < source->n_segments && column < width; s++) {
        const size_t rows = lt_segment_rows(&source->segments[s], source->cols), panels = lt_q8_0_panels(rows);
        if (index < panels) return column + index * LT_Q8_0_PANEL;
        index -= panels;
        column += rows;
    }
    return width;
}

static void pack_panel(const lt_cpu_weight *weight, const lt_kernels *kernels, size_t index, bool by_pairs, float *panel,
                       float *gather)
{
    const lt_weight *source = weight->source;
    const size_t cols = source->cols, row_size = cols * lt_dtype_size(source->dtype);
    panel_rows p = rows_of_panel(weight, kernels, index);
    const bool together = p.here == p.n && !is_coded(source);
    const void *rows = together ? weight->data[p.segment] + p.row * row_size : (const void *)gather;
    /* Else the panel's rows lie in several segments or in blocks: bring them together, as float32 or pairs as stored. */
    for (size_t i = 0; i < p.n && !together; i++, p.row++) {
        while (p.row == lt_segment_rows(&source->segments[p.segment], cols)) {
            p.row = 0;
            p.segment++;
        }
        if (by_pairs)
            memcpy((uint8_t *)gather + i * row_size, weight->data[p.segment] + p.row * row_size, row_size);
        else
            read_row(weight, kernels, p.segment, p.row, false, gather + i * cols);
    }
    if (by_pairs)
        kernels->pack_pairs(rows, cols, p.n, cols, panel);
    else
        kernels->pack_panel(rows, together ? source->dtype : LT_F32, cols, p.n, cols, panel);
}

void lt_cpu_pack_panel(const lt_cpu_weight *weight, const lt_kernels *kernels, size_t index, float *panel, float *gather)
{
    pack_panel(weight, kernels, index, false, panel, gather);
}

/* Panel `index` of a matrix packed as int8 by rows. A weight that is not finite makes its row's scale NaN, and so every result.
 */
static void pack_rows(const lt_cpu_weight *w, const lt_kernels *kernels, size_t index, float *gather)
{
    const size_t cols = w->source->cols;
    int s = 0;
    size_t rows = lt_segment_rows(&w->source->segments[0], cols);
    while (index >= lt_int8_panels(rows)) {
        index -= lt_int8_panels(rows);
        rows = lt_segment_rows(&w->source->segments[++s], cols);
    }
    const size_t row = index * LT_INT8_PANEL, n = rows - row < LT_INT8_PANEL ? rows - row : LT_INT8_PANEL;
    float *numbers = (float *)(void *)(w->bytes[s] + lt_int8_scales_offset(rows, cols)) + row;
    for (size_t i = 0; i < n; i++) read_row(w, kernels, s, row + i, false, gather + i * cols);
    (void)lt_int8_encode(gather, n, cols, NULL, w->bytes[s] + row * lt_int8_padded(cols), numbers,
                         numbers + lt_int8_panels(rows) * LT_INT8_PANEL);
}

static bool has_item(const lt_cpu_weight *w, size_t item)
{
    return w->is_packed && item >= w->first_item && item - w->first_item < w->n_panels;
}

void lt_cpu_weights_pack(lt_cpu_weights *weights, const lt_kernels *kernels, size_t first, size_t end, atomic_size_t *counter,
                         float *gather)
{
    enum { CHUNK = 4 };
    const lt_cpu_weight *w = weights->list;
    for (;;) {
        size_t item = first + atomic_fetch_add_explicit(counter, CHUNK, memory_order_relaxed);
        if (item >= end) return;
        for (size_t last = end - item < CHUNK ? end : item + CHUNK; item < last; item++) {
            if (!has_item(w, item)) {
                for (w = weights->list; !has_item(w, item);) w++;
            }
            size_t index = item - w->first_item;
            if (w->by_rows)
                pack_rows(w, kernels, index, gather);
            else
                pack_panel(w, kernels, index, w->by_pairs, w->panels + index * lt_cpu_panel_floats(w, kernels), gather);
        }
    }
}

void lt_cpu_weights_forget(const lt_cpu_weights *weights, size_t first, size_t end)
{
    for (size_t i = 0; i < weights->n; i++) {
        const lt_cpu_weight *w = &weights->list[i];
        const size_t last = w->first_item + w->n_panels;
        if (!w->is_packed || last <= first || last > end) continue;
        for (int s = 0; s < w->source->n_segments; s++) {
            if (w->source->segments[s].n_rows > 0) continue; /* a table may be using the tensor's other rows */
            lt_checkpoint_forget(w->source->segments[s].checkpoint, w->source->segments[s].tensor);
        }
    }
}
