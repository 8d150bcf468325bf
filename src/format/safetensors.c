/* Reading and checking a safetensors header.
 *
 * The JSON is walked once into an array of tensors; what concerns one tensor is checked there, then the array is sorted by
 * offset and must tile the data. Everything below the public function reports its fault without the file's name: the public
 * function puts file and tensor in front, in one place. */
#include "format/safetensors.h"

#include "format/json.h"
#include "format/int8.h"
#include "format/q8_0.h"

/* ------------------------------------------------------------------ types */

typedef struct dtype_entry {
    const char *name;
    lt_dtype dtype;
    unsigned bits; /* of an element; 0: blocks */
} dtype_entry;

/* Every type that safetensors files have, and our own Q8_0 and INT8_ROWS. Those that are LT_OTHER can be listed but not computed with. */
// clang-format off
static const dtype_entry dtypes[] = {
    { "F32", LT_F32, 32 },        { "F16", LT_F16, 16 },        { "BF16", LT_BF16, 16 },
    { "Q8_0", LT_Q8_0, 0 },       { "I8", LT_I8, 8 },           { "U8", LT_U8, 8 },
    { "I16", LT_I16, 16 },        { "I32", LT_I32, 32 },        { "I64", LT_I64, 64 },
    { "F64", LT_F64, 64 },        { "BOOL", LT_BOOL, 8 },
    { "INT8_ROWS", LT_INT8_ROWS, 0 },
    { "U16", LT_OTHER, 16 },      { "U32", LT_OTHER, 32 },      { "U64", LT_OTHER, 64 },
    { "C64", LT_OTHER, 64 },      { "F8_E4M3", LT_OTHER, 8 },   { "F8_E5M2", LT_OTHER, 8 },
    { "F8_E8M0", LT_OTHER, 8 },   { "F8_E4M3FNUZ", LT_OTHER, 8 }, { "F8_E5M2FNUZ", LT_OTHER, 8 },
    { "F6_E2M3", LT_OTHER, 6 },   { "F6_E3M2", LT_OTHER, 6 },   { "F4", LT_OTHER, 4 },
};
// clang-format on
#define N_DTYPES (sizeof dtypes / sizeof *dtypes)

const char *lt_dtype_name(lt_dtype dtype)
{
    for (size_t i = 0; i < N_DTYPES; i++)
        if (dtypes[i].dtype == dtype && dtype != LT_OTHER) return dtypes[i].name;
    return "other";
}

size_t lt_dtype_size(lt_dtype dtype)
{
    for (size_t i = 0; i < N_DTYPES; i++)
        if (dtypes[i].dtype == dtype && dtype != LT_OTHER) return dtypes[i].bits / 8;
    return 0;
}

static const dtype_entry *find_dtype(lt_str name)
{
    for (size_t i = 0; i < N_DTYPES; i++)
        if (lt_str_is(name, dtypes[i].name)) return &dtypes[i];
    return NULL;
}

/* ------------------------------------------------------------------ order */

int lt_name_compare(lt_str a, lt_str b)
{
    size_t n = a.len < b.len ? a.len : b.len;
    int order = n ? memcmp(a.data, b.data, n) : 0;
    return order ? order : (a.len > b.len) - (a.len < b.len);
}

static void sift_down(const void **items, size_t root, size_t n, int (*compare)(const void *a, const void *b))
{
    for (size_t child; (child = 2 * root + 1) < n; root = child) {
        if (child + 1 < n && compare(items[child], items[child + 1]) < 0) child++;
        if (compare(items[root], items[child]) >= 0) return;
        const void *swap = items[root];
        items[root] = items[child];
        items[child] = swap;
    }
}

void lt_sort_pointers(const void **items, size_t n, int (*compare)(const void *a, const void *b))
{
    size_t sorted = 1; /* most files are in order already */
    while (sorted < n && compare(items[sorted - 1], items[sorted]) <= 0) sorted++;
    if (sorted >= n) return;
    for (size_t i = n / 2; i-- > 0;) sift_down(items, i, n, compare);
    for (size_t end = n; end-- > 1;) {
        const void *largest = items[0];
        items[0] = items[end];
        items[end] = largest;
        sift_down(items, 0, end, compare);
    }
}

static int by_name(const void *a, const void *b)
{
    return lt_name_compare(((const lt_tensor *)a)->name, ((const lt_tensor *)b)->name);
}

static int by_offset(const void *a, const void *b)
{
    const lt_tensor *s = a, *t = b;
    if (s->offset != t->offset) return s->offset < t->offset ? -1 : 1;
    return (s->size > t->size) - (s->size < t->size); /* an empty tensor stands before the one that begins at its place */
}

/* ------------------------------------------------------------------ the header */

static const char metadata_key[] = "__metadata__"; /* no tensor, but an object of strings */

typedef struct header_reader {
    lt_json json;
    lt_safetensors *out;
    size_t data_size;
    lt_str tensor; /* the one being checked, for the message; data NULL: none */
    lattice_error *fault;
} header_reader;

static lattice_status read_metadata(header_reader *r)
{
    LT_TRY(lt_json_begin_object(&r->json));
    for (lt_str key, value;;) {
        bool more;
        LT_TRY(lt_json_next_member(&r->json, &key, &more));
        if (!more) return LATTICE_OK;
        lt_str *kept = lt_str_is(key, LT_QUANTIZATION_KEY) ? &r->out->quantization
                       : lt_str_is(key, LT_LAYOUT_KEY)     ? &r->out->layout
                       : lt_str_is(key, LT_CHECKSUM_KEY)   ? &r->out->checksum
                                                           : NULL;
        LT_TRY(lt_json_string(&r->json, &value)); /* the key is gone */
        if (!kept) continue;
        const char *copy = lt_arena_copy(&r->out->arena, value.data, value.len);
        if (!copy) return lt_no_memory(r->fault, value.len, "metadata");
        *kept = (lt_str){ copy, value.len };
    }
}

/* How a file is quantised must be known, and in which layout, before a block of it is read. */
static lattice_status check_quantization(header_reader *r)
{
    const lt_safetensors *out = r->out;
    r->tensor = lt_str_of(metadata_key);
    if (out->quantization.data && !lt_str_is(out->quantization, "q8_0") && !lt_str_is(out->quantization, LT_INT8_QUANTIZATION))
        return lt_fail(r->fault, LATTICE_ERR_UNSUPPORTED, "quantisation '%.*s' is not known; q8_0 and int8 are",
                       LT_STR_ARG(out->quantization));
    for (size_t i = 0; i < out->n; i++) {
        if (out->tensors[i].dtype != LT_Q8_0 && out->tensors[i].dtype != LT_INT8_ROWS) continue;
        const char *type = lt_dtype_name(out->tensors[i].dtype);
        r->tensor = out->tensors[i].name;
        if (!out->layout.data) return lt_fail(r->fault, LATTICE_ERR_FORMAT, "%s in a file without " LT_LAYOUT_KEY, type);
        if (!lt_str_is(out->layout, LT_Q8_0_LAYOUT))
            return lt_fail(r->fault, LATTICE_ERR_UNSUPPORTED, "layout '%.*s' of %s is not known; " LT_Q8_0_LAYOUT " is",
                           LT_STR_ARG(out->layout), type);
    }
    return LATTICE_OK;
}

static lattice_status read_shape(header_reader *r, lt_tensor *tensor)
{
    LT_TRY(lt_json_begin_array(&r->json));
    for (bool more;;) {
        LT_TRY(lt_json_next_element(&r->json, &more));
        if (!more) return LATTICE_OK;
        if (tensor->rank == LT_MAX_RANK)
            return lt_fail(r->fault, LATTICE_ERR_UNSUPPORTED, "more than %d dimensions", LT_MAX_RANK);
        LT_TRY(lt_json_size(&r->json, &tensor->shape[tensor->rank]));
        tensor->rank++;
    }
}

static lattice_status read_offsets(header_reader *r, size_t offsets[2])
{
    int n = 0;
    LT_TRY(lt_json_begin_array(&r->json));
    for (bool more;;) {
        LT_TRY(lt_json_next_element(&r->json, &more));
        if (!more) break;
        if (n == 2) return lt_fail(r->fault, LATTICE_ERR_FORMAT, "data_offsets has more than two numbers");
        LT_TRY(lt_json_size(&r->json, &offsets[n++]));
    }
    if (n < 2) return lt_fail(r->fault, LATTICE_ERR_FORMAT, "data_offsets has fewer than two numbers");
    return LATTICE_OK;
}

/* Bytes of a tensor by its shape and type. */
static lattice_status byte_size(header_reader *r, lt_tensor *tensor, const dtype_entry *type, size_t *bytes)
{
    static const char overflow[] = "the product of the shape overflows";
    size_t n = 1;
    for (int i = 0; i < tensor->rank; i++)
        if (!lt_mul(n, tensor->shape[i], &n)) return lt_fail(r->fault, LATTICE_ERR_FORMAT, overflow);
    tensor->n_elements = n;
    if (type->dtype == LT_Q8_0) {
        if (tensor->rank != 2 || tensor->shape[1] % LT_Q8_0_BLOCK != 0)
            return lt_fail(r->fault, LATTICE_ERR_FORMAT, "Q8_0 needs two dimensions, the last of them divisible by 32");
        if (!lt_q8_0_size(tensor->shape[0], tensor->shape[1], bytes)) return lt_fail(r->fault, LATTICE_ERR_FORMAT, overflow);
        return LATTICE_OK;
    }
    if (type->dtype == LT_INT8_ROWS) {
        if (tensor->rank != 2) return lt_fail(r->fault, LATTICE_ERR_FORMAT, "INT8_ROWS needs two dimensions");
        if (!lt_int8_size(tensor->shape[0], tensor->shape[1], bytes))
            return lt_fail(r->fault, LATTICE_ERR_FORMAT, "INT8_ROWS of that shape is too large");
        return LATTICE_OK;
    }
    size_t bits;
    if (!lt_mul(n, type->bits, &bits)) return lt_fail(r->fault, LATTICE_ERR_FORMAT, overflow);
    if (bits % 8 != 0)
        return lt_fail(r->fault, LATTICE_ERR_FORMAT, "%zu elements of type %s do not fill whole bytes", n, type->name);
    *bytes = bits / 8;
    return LATTICE_OK;
}

static lattice_status read_tensor(header_reader *r, lt_tensor *tensor)
{
    const dtype_entry *type = NULL;
    bool has_shape = false, has_offsets = false;
    size_t offsets[2] = { 0, 0 };
    LT_TRY(lt_json_begin_object(&r->json));
    for (lt_str key;;) {
        bool more;
        LT_TRY(lt_json_next_member(&r->json, &key, &more));
        if (!more) break;
        if (lt_str_is(key, "dtype")) {
            lt_str name;
            LT_TRY(lt_json_string(&r->json, &name));
            type = find_dtype(name);
            if (!type) return lt_fail(r->fault, LATTICE_ERR_FORMAT, "unknown dtype '%.*s'", LT_STR_ARG(name));
        } else if (lt_str_is(key, "shape")) {
            LT_TRY(read_shape(r, tensor));
            has_shape = true;
        } else if (lt_str_is(key, "data_offsets")) {
            LT_TRY(read_offsets(r, offsets));
            has_offsets = true;
        } else {
            LT_TRY(lt_json_skip(&r->json));
        }
    }
    if (!type || !has_shape || !has_offsets)
        return lt_fail(r->fault, LATTICE_ERR_FORMAT, "no %s", !type ? "dtype" : !has_shape ? "shape" : "data_offsets");

    tensor->dtype = type->dtype;
    tensor->dtype_name = lt_str_of(type->name);
    if (offsets[1] < offsets[0])
        return lt_fail(r->fault, LATTICE_ERR_FORMAT, "data_offsets [%zu, %zu] are reversed", offsets[0], offsets[1]);
    if (offsets[1] > r->data_size)
        return lt_fail(r->fault, LATTICE_ERR_FORMAT, "ends at data byte %zu, past the file's %zu", offsets[1], r->data_size);
    tensor->offset = offsets[0];
    tensor->size = offsets[1] - offsets[0];
    size_t bytes = 0;
    LT_TRY(byte_size(r, tensor, type, &bytes));
    if (bytes != tensor->size)
        return lt_fail(r->fault, LATTICE_ERR_FORMAT, "takes %zu bytes, but its shape and type %s need %zu", tensor->size,
                       type->name, bytes);
    return LATTICE_OK;
}

static lattice_status read_members(header_reader *r)
{
    lt_safetensors *out = r->out;
    LT_TRY(lt_json_begin_object(&r->json));
    for (lt_str key;;) {
        bool more;
        r->tensor.data = NULL;
        LT_TRY(lt_json_next_member(&r->json, &key, &more));
        if (!more) break;
        if (lt_str_is(key, metadata_key)) {
            r->tensor = lt_str_of(metadata_key);
            LT_TRY(read_metadata(r));
            continue;
        }
        if (!LT_GROW(out->mem, out->tensors, out->capacity, out->n + 1))
            return lt_no_memory(r->fault, (out->n + 1) * sizeof *out->tensors, "the list of tensors");
        char *name = lt_arena_copy(&out->arena, key.data, key.len);
        if (!name) return lt_no_memory(r->fault, key.len, "a tensor's name");
        lt_tensor *tensor = &out->tensors[out->n];
        *tensor = (lt_tensor){ .name = { name, key.len } };
        r->tensor = tensor->name;
        LT_TRY(read_tensor(r, tensor));
        out->n++;
    }
    return lt_json_end(&r->json);
}

/* Tensors, in order of offset, must touch: no overlap, no hole, nothing behind the last. */
static lattice_status check_tiling(header_reader *r)
{
    const lt_safetensors *out = r->out;
    const lt_tensor **order = out->by_name; /* sorted by name only afterwards */
    size_t expected = 0;
    lt_sort_pointers((const void **)order, out->n, by_offset);
    for (size_t i = 0; i < out->n; i++) {
        const lt_tensor *tensor = order[i];
        r->tensor = tensor->name;
        if (tensor->offset < expected) {
            lt_str other = order[i - 1]->name;
            return lt_fail(r->fault, LATTICE_ERR_FORMAT, "begins at data byte %zu, inside tensor '%.*s' that ends at %zu",
                           tensor->offset, LT_STR_ARG(other), expected);
        }
        if (tensor->offset > expected)
            return lt_fail(r->fault, LATTICE_ERR_FORMAT, "begins at data byte %zu, leaving a hole of %zu bytes before it",
                           tensor->offset, tensor->offset - expected);
        expected += tensor->size;
    }
    if (expected < r->data_size)
        return lt_fail(r->fault, LATTICE_ERR_FORMAT, "ends at data byte %zu, and %zu bytes follow that no tensor uses", expected,
                       r->data_size - expected);
    return LATTICE_OK;
}

/* ------------------------------------------------------------------ public */

lattice_status lt_safetensors_header_length(const char *name, const uint8_t *first8, size_t available, uint64_t file_size,
                                            size_t *length, lattice_error *err)
{
    if (available < 8 || file_size < 8)
        return lt_fail(err, LATTICE_ERR_FORMAT, "%s: %llu bytes are too few for a safetensors file", name,
                       (unsigned long long)file_size);
    uint64_t n = 0;
    for (int i = 7; i >= 0; i--) n = n << 8 | first8[i];
    if (n == 0) return lt_fail(err, LATTICE_ERR_FORMAT, "%s: the header's length is 0", name);
    if (n > file_size - 8)
        return lt_fail(err, LATTICE_ERR_FORMAT, "%s: the header's length %llu goes past the file's %llu bytes", name,
                       (unsigned long long)n, (unsigned long long)file_size);
    if (n > LT_SAFETENSORS_MAX_HEADER)
        return lt_fail(err, LATTICE_ERR_FORMAT, "%s: the header's length %llu is over the limit of %zu", name,
                       (unsigned long long)n, LT_SAFETENSORS_MAX_HEADER);
    *length = (size_t)n;
    return LATTICE_OK;
}

lattice_status lt_safetensors_parse(const lattice_allocator *mem, const char *name, const void *header, size_t length,
                                    uint64_t file_size, lt_safetensors *out, lattice_error *err)
{
    *out = (lt_safetensors){ .mem = mem, .data_offset = 8 + length };
    lt_arena_init(&out->arena, mem);
    if (length == 0 || file_size < 8 || length > file_size - 8 || file_size > SIZE_MAX)
        return lt_fail(err, LATTICE_ERR_FORMAT, "%s: the header does not fit in the file", name);

    lattice_error fault = { 0 };
    header_reader r = { .out = out, .data_size = (size_t)file_size - 8 - length, .fault = &fault };
    lattice_status status;
    lt_json_open(&r.json, mem, "header", header, length, &fault);
    if (*(const char *)header != '{') {
        status = lt_fail(&fault, LATTICE_ERR_FORMAT, "the header is not a JSON object");
        goto done;
    }
    LT_GO(read_members(&r));
    out->by_name = lt_alloc_array(mem, out->n + 1, sizeof *out->by_name);
    if (!out->by_name) {
        status = lt_no_memory(&fault, (out->n + 1) * sizeof *out->by_name, "the order of tensors");
        goto done;
    }
    for (size_t i = 0; i < out->n; i++) out->by_name[i] = &out->tensors[i];
    LT_GO(check_tiling(&r));
    LT_GO(check_quantization(&r));
    lt_sort_pointers((const void **)out->by_name, out->n, by_name);
    for (size_t i = 0; i < out->n; i++) out->tensors[i].offset += 8 + length;
done:
    lt_json_close(&r.json);
    if (status == LATTICE_OK) return status;
    if (r.tensor.data)
        return lt_fail(err, status, "%s: %s'%.*s': %s", name, lt_str_is(r.tensor, metadata_key) ? "" : "tensor ",
                       LT_STR_ARG(r.tensor), fault.message);
    return lt_fail(err, status, "%s: %s", name, fault.message);
}

void lt_safetensors_free(lt_safetensors *file)
{
    if (!file->mem) return;
    lt_free(file->mem, file->tensors);
    lt_free(file->mem, file->by_name);
    lt_arena_free(&file->arena);
    *file = (lt_safetensors){ 0 };
}

const lt_tensor *lt_safetensors_find(const lt_safetensors *file, lt_str name)
{
    size_t low = 0, high = file->n;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        int order = lt_name_compare(file->by_name[middle]->name, name);
        if (order == 0) return file->by_name[middle];
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return NULL;
}
