/* Operations one by one, over odd sizes, against the CPU: small plans of random weights, on the emulated device and, where there
 * is one, on an NVIDIA GPU. */
#include <ftw.h>
#include <unistd.h>

#include "model_fixture.h"

#include "backend/gpu/gpu.h"
#include "backend/gpu/template.h"
#include "format/q8_0.h"
#include "gpu/emulator.h"

enum { ROWS = 97 /* of every table */, MAX_TENSORS = 16, TOKENS = 256 };

/* A plan over tables and weights that are written into a checkpoint of their own. */
typedef struct bed {
    lattice_runtime *runtime;
    char folder[64];
    lt_checkpoint *checkpoint;
    lt_plan plan;
    struct {
        size_t rows, cols, bytes;
        lt_dtype dtype;
        void *data;
    } tensors[MAX_TENSORS];
    size_t n_tensors;
    uint64_t random;
} bed;

/* Uniform in [-1, 1]. */
static float draw(bed *b)
{
    b->random = b->random * 6364136223846793005u + 1442695040888963407u;
    return (float)(b->random >> 40) / 8388608.0f - 1;
}

static void begin(bed *b, uint64_t seed)
{
    lattice_error err;
    lattice_runtime_options o = lattice_runtime_options_default();
    *b = (bed){ .random = seed, .folder = "/tmp/lattice-ops-XXXXXX" };
    o.n_threads = 2;
    assert_ok_err(lattice_runtime_create(&o, &b->runtime, &err), &err);
    assert_non_null(mkdtemp(b->folder));
    lt_plan_init(&b->plan, &lt_malloc_allocator);
}

static uint16_t bf16_of(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

/* A random tensor [rows, cols], around `middle`. Those in Q8_0 are to be asked for first, as files have them. */
static int weight(bed *b, size_t rows, size_t cols, lt_dtype dtype, float middle, float spread)
{
    size_t n = rows * cols, bytes = n * lt_dtype_size(dtype), i = b->n_tensors++;
    assert_true(i < MAX_TENSORS);
    float *x = malloc(lt_q8_0_panels(rows) * 16 * cols * sizeof *x);
    for (size_t k = 0; k < n; k++) x[k] = middle + spread * draw(b);
    if (dtype == LT_Q8_0) assert_true(lt_q8_0_size(rows, cols, &bytes));
    uint8_t *data = calloc(1, bytes);
    for (size_t k = 0; k < n && dtype != LT_Q8_0; k++) {
        uint16_t half = dtype == LT_F16 ? lt_float_to_half(x[k]) : bf16_of(x[k]);
        memcpy(data + k * lt_dtype_size(dtype), dtype == LT_F32 ? (void *)&x[k] : &half, lt_dtype_size(dtype));
    }
    for (size_t row = 0; row < rows && dtype == LT_Q8_0; row += 16) {
        uint8_t *scales = data + lt_q8_0_scales_offset(rows, cols) + row * (cols / 32) * 2;
        assert_true(lt_q8_0_encode(x + row * cols, rows - row < 16 ? rows - row : 16, cols, data + row * cols,
                                   (uint16_t *)(void *)scales));
    }
    free(x);
    b->tensors[i].rows = rows;
    b->tensors[i].cols = cols;
    b->tensors[i].bytes = bytes;
    b->tensors[i].dtype = dtype;
    b->tensors[i].data = data;
    lt_weight w = { .rows = rows, .cols = cols, .n_segments = 1, .dtype = dtype };
    return lt_plan_weight(&b->plan, &w);
}

static int value(bed *b, size_t width)
{
    return lt_plan_value(&b->plan, LT_ROWS_TOKENS, width, "v");
}

/* Rows of a random table. */
static int embed(bed *b, size_t width, lt_dtype dtype)
{
    lt_op op = lt_op_new(LT_OP_EMBED);
    op.weight[0] = weight(b, ROWS, width, dtype, 0, 1);
    op.out[0] = value(b, width);
    lt_plan_op(&b->plan, op);
    return op.out[0];
}

/* A GPU takes plans with attention only: one head that nothing reads, for plans about something else. */
static void idle_attention(bed *b)
{
    int x = embed(b, 96, LT_F32);
    lt_op op = lt_op_new(LT_OP_ATTENTION);
    for (size_t i = 0; i < 3; i++) op.in[i] = (lt_operand){ .value = x, .column = 32 * i, .head_stride = 32 };
    op.n_heads = op.n_kv_heads = 1;
    op.head_dim = 32;
    op.scale = 0.2f;
    op.causal = true;
    op.out[0] = x;
    lt_plan_op(&b->plan, op);
}

static void end_body(bed *b, int hidden)
{
    lt_plan_end_body(&b->plan, hidden);
    lt_plan_end_tail(&b->plan, LT_TAIL_TOKENS, hidden);
}

/* Writes the checkpoint and points the plan's weights into it. */
static void write_checkpoint(bed *b)
{
    static const char *const names[] = { [LT_F32] = "F32", [LT_F16] = "F16", [LT_BF16] = "BF16", [LT_Q8_0] = "Q8_0" };
    char path[100];
    lattice_error err;
    lt_buf header;
    size_t at = 0;
    lt_buf_init(&header, &lt_malloc_allocator);
    lt_buf_printf(&header,
                  "{\"__metadata__\":{\"" LT_QUANTIZATION_KEY "\":\"q8_0\",\"" LT_LAYOUT_KEY "\":\"" LT_Q8_0_LAYOUT "\"}");
    for (size_t i = 0; i < b->n_tensors; i++) {
        char shape[48];
        snprintf(shape, sizeof shape, b->tensors[i].cols == 1 ? "%zu" : "%zu,%zu", b->tensors[i].rows, b->tensors[i].cols);
        lt_buf_printf(&header, ",\"t%zu\":{\"dtype\":\"%s\",\"shape\":[%s],\"data_offsets\":[%zu,%zu]}", i,
                      names[b->tensors[i].dtype], shape, at, at + b->tensors[i].bytes);
        at += b->tensors[i].bytes;
    }
    lt_buf_printf(&header, "}");
    while (header.len % 64 != 56) lt_buf_printf(&header, " ");
    snprintf(path, sizeof path, "%s/model.safetensors", b->folder);
    FILE *f = fopen(path, "wb");
    uint64_t length = header.len;
    assert_int_equal(fwrite(&length, 1, 8, f) + fwrite(header.data, 1, header.len, f), 8 + header.len);
    for (size_t i = 0; i < b->n_tensors; i++) {
        assert_int_equal(fwrite(b->tensors[i].data, 1, b->tensors[i].bytes, f), b->tensors[i].bytes);
        free(b->tensors[i].data);
    }
    fclose(f);
    lt_buf_free(&header);
    assert_ok_err(lt_checkpoint_open(&lt_malloc_allocator, b->folder, true, &b->checkpoint, &err), &err);
    for (size_t i = 0; i < b->n_tensors; i++) {
        char name[24];
        snprintf(name, sizeof name, "t%zu", i);
        b->plan.weights[i].segments[0] =
            (lt_segment){ .checkpoint = b->checkpoint, .tensor = lt_checkpoint_find(b->checkpoint, lt_str_of(name)) };
        assert_non_null(b->plan.weights[i].segments[0].tensor);
    }
}

static int remove_one(const char *path, const struct stat *info, int kind, struct FTW *at)
{
    (void)info;
    (void)kind;
    (void)at;
    return remove(path);
}

static void end(bed *b)
{
    lt_plan_free(&b->plan);
    lt_checkpoint_close(b->checkpoint);
    lattice_runtime_free(b->runtime);
    assert_int_equal(nftw(b->folder, remove_one, 4, FTW_DEPTH | FTW_PHYS), 0);
}

/* ------------------------------------------------------------------ running */

typedef struct side {
    lt_backend *backend;
    lt_program *program;
    lt_state *states[4];
} side;

static void open_sides(bed *b, lt_gpu_device *device, lattice_compute compute, side sides[2])
{
    lattice_error err;
    const lt_compile_options o = { .max_tokens = TOKENS, .max_seqs = 8 };
    assert_ok_err(lt_cpu_backend_create(b->runtime, NULL, LATTICE_COMPUTE_F32, &sides[0].backend, &err), &err);
    assert_ok_err(lt_gpu_backend_create(b->runtime, device, compute, &sides[1].backend, &err), &err);
    for (int i = 0; i < 2; i++)
        assert_ok_err(sides[i].backend->compile(sides[i].backend, &b->plan, &o, &sides[i].program, &err), &err);
}

static void close_sides(side sides[2])
{
    for (int i = 0; i < 2; i++) {
        for (size_t s = 0; s < 4; s++) {
            if (sides[i].states[s]) sides[i].backend->states->free(sides[i].states[s]);
        }
        sides[i].backend->program_free(sides[i].program);
        sides[i].backend->free(sides[i].backend);
    }
}

/* Sequences of these lengths, behind `past` rows of their states (NULL: without states), through both; the largest difference
 * relative to the largest value. */
static double difference(bed *b, side sides[2], const size_t *lengths, size_t n, const size_t *past)
{
    lattice_error err;
    test_batch *t = malloc(sizeof *t);
    float *out[2];
    size_t width = b->plan.values[b->plan.hidden].width;
    batch_clear(t);
    for (size_t s = 0; s < n; s++) {
        uint32_t ids[TOKENS];
        for (size_t i = 0; i < lengths[s]; i++) ids[i] = (uint32_t)((s * 31 + (past ? past[s] : 0) * 7 + i * 13) % ROWS);
        size_t row = t->batch.n_tokens;
        batch_add(t, ids, NULL, lengths[s]);
        for (size_t i = 0; i < lengths[s] && past; i++) t->positions[row + i] += (uint32_t)past[s];
    }
    for (int i = 0; i < 2; i++) {
        out[i] = malloc(t->batch.n_tokens * width * sizeof(float));
        for (size_t k = 0; k < t->batch.n_tokens * width; k++) out[i][k] = NAN;
        t->batch.states = past ? sides[i].states : NULL;
        t->batch.past_lens = past;
        for (size_t s = 0; s < n && past; s++) {
            const lt_state_ops *ops = sides[i].backend->states;
            if (!sides[i].states[s]) assert_ok_err(ops->create(sides[i].program, &sides[i].states[s], &err), &err);
            assert_ok_err(ops->reserve(sides[i].states[s], lengths[s], &err), &err);
        }
        assert_ok_err(sides[i].backend->run(sides[i].program, &t->batch, LT_TAIL_TOKENS, out[i], NULL, &err), &err);
        for (size_t s = 0; s < n && past; s++) sides[i].backend->states->commit(sides[i].states[s]);
    }
    double most = 0, largest_of = 0;
    for (size_t k = 0; k < t->batch.n_tokens * width; k++) {
        double d = fabs((double)out[1][k] - out[0][k]);
        if (!(d <= most)) most = d;
        largest_of = fmax(largest_of, fabs((double)out[0][k]));
    }
    for (int i = 0; i < 2; i++) free(out[i]);
    free(t);
    return most / largest_of;
}

/* The same batch without states, then three sequences through states: a long, an odd and a whole piece, then single tokens. */
static void check(bed *b, lt_gpu_device *device, lattice_compute compute, const char *what, bool stateful)
{
    static const size_t batches[][4] = { { 1 }, { 3 }, { 1, 1, 1, 1 }, { 7 }, { 5, 1, 17, 16 }, { 9, 33 }, { 64 }, { 65 } };
    static const size_t counts[] = { 1, 1, 4, 1, 4, 2, 1, 1 };
    const double tolerance = compute == LATTICE_COMPUTE_BF16 ? 0.02 : 2e-5;
    side sides[2] = { 0 };
    write_checkpoint(b);
    open_sides(b, device, compute, sides);
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        double d = difference(b, sides, batches[i], counts[i], NULL);
        if (!(d <= tolerance)) fail_msg("%s, batch %zu: %.2e of the largest value", what, i, d);
    }
    size_t past[3] = { 0, 0, 0 };
    for (size_t step = 0; step < 6 && stateful; step++) {
        const size_t lengths[3] = { step == 0 ? 130 : 1, step == 0 ? 3 : 1, step == 0 ? 64 : 1 };
        double d = difference(b, sides, lengths, 3, past);
        if (!(d <= tolerance)) fail_msg("%s, step %zu: %.2e of the largest value", what, step, d);
        for (size_t s = 0; s < 3; s++) past[s] += lengths[s];
    }
    close_sides(sides);
    end(b);
}

/* ------------------------------------------------------------------ operations */

typedef struct product_case {
    const char *name;
    size_t k, n;
    lt_dtype dtype;
    lt_activation activation;
    bool bias, residual, glu, norm;
    lattice_compute compute;
} product_case;

static void products(lt_gpu_device *(*open)(lattice_runtime *))
{
    static const product_case cases[] = {
        { "f32", 37, 29, LT_F32, LT_ACT_GELU, true, true, false, false, LATTICE_COMPUTE_F32 },
        { "f16", 40, 13, LT_F16, LT_ACT_RELU, true, false, false, true, LATTICE_COMPUTE_F32 },
        { "f32 glu", 24, 17, LT_F32, LT_ACT_SILU, false, true, true, true, LATTICE_COMPUTE_F32 },
        { "bf16", 264, 71, LT_BF16, LT_ACT_TANH, true, true, false, true, LATTICE_COMPUTE_F32 },
        { "bf16 of odd width", 61, 35, LT_BF16, LT_ACT_NONE, false, true, false, true, LATTICE_COMPUTE_F32 },
        { "bf16 glu", 1288, 33, LT_BF16, LT_ACT_SILU, false, false, true, true, LATTICE_COMPUTE_F32 },
        { "bf16 in bf16", 520, 65, LT_BF16, LT_ACT_NONE, false, true, false, false, LATTICE_COMPUTE_BF16 },
        { "bf16 in whole chunks", 544, 97, LT_BF16, LT_ACT_GELU, true, true, false, true, LATTICE_COMPUTE_BF16 },
        { "bf16 glu in whole chunks", 96, 41, LT_BF16, LT_ACT_SILU, false, false, true, true, LATTICE_COMPUTE_BF16 },
        { "q8_0", 96, 37, LT_Q8_0, LT_ACT_GELU_TANH, true, true, false, true, LATTICE_COMPUTE_F32 },
        { "q8_0 long", 6176, 19, LT_Q8_0, LT_ACT_NONE, false, true, false, true, LATTICE_COMPUTE_F32 },
        { "q8_0 glu", 160, 48, LT_Q8_0, LT_ACT_SILU, false, true, true, true, LATTICE_COMPUTE_F32 },
        { "q8_0 glu of odd rows", 64, 41, LT_Q8_0, LT_ACT_SILU, false, false, true, false, LATTICE_COMPUTE_F32 },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const product_case *c = &cases[i];
        bed b;
        begin(&b, 11 + i);
        int w = weight(&b, c->glu ? 2 * c->n : c->n, c->k, c->dtype, 0, 1.5f / sqrtf((float)c->k));
        int x = embed(&b, c->k, LT_F32);
        idle_attention(&b);
        int residual = c->residual ? embed(&b, c->n, LT_F32) : LT_NONE;
        if (c->norm) {
            lt_op norm = lt_op_new(LT_OP_ADD_NORM);
            norm.in[0] = lt_all(x);
            norm.weight[0] = weight(&b, c->k, 1, LT_F32, 1, 0.5f);
            norm.eps = 1e-6f;
            norm.out[0] = x = value(&b, c->k);
            lt_plan_op(&b.plan, norm);
        }
        lt_op op = lt_op_new(LT_OP_LINEAR);
        op.in[0] = lt_all(x);
        if (c->residual) op.in[1] = lt_all(residual);
        op.weight[0] = w;
        if (c->bias) op.weight[1] = weight(&b, c->n, 1, LT_F32, 0, 1);
        op.activation = c->activation;
        op.glu = c->glu;
        op.out[0] = value(&b, c->n);
        lt_plan_op(&b.plan, op);
        end_body(&b, op.out[0]);
        check(&b, open(b.runtime), c->compute, c->name, false);
    }
}

static void norms(lt_gpu_device *(*open)(lattice_runtime *))
{
    for (int kind = 0; kind < 4; kind++) {
        bool layer = kind % 2 == 0, sum = kind >= 2;
        bed b;
        begin(&b, 40 + (uint64_t)kind);
        int x = embed(&b, 45, LT_F16), y = embed(&b, 45, LT_BF16);
        idle_attention(&b);
        lt_op op = lt_op_new(LT_OP_ADD_NORM);
        op.in[0] = lt_all(x);
        op.in[1] = lt_all(y);
        op.weight[0] = weight(&b, 45, 1, LT_F32, 1, 0.5f);
        if (layer) op.weight[1] = weight(&b, 45, 1, LT_F32, 0, 0.5f);
        op.eps = 1e-5f;
        op.out[0] = value(&b, 45);
        op.out[1] = value(&b, 45);
        lt_plan_op(&b.plan, op);
        end_body(&b, op.out[sum ? 1 : 0]);
        check(&b, open(b.runtime), LATTICE_COMPUTE_F32, layer ? "layer norm" : "rms norm", false);
    }
}

static void attentions(lt_gpu_device *(*open)(lattice_runtime *))
{
    static const struct {
        size_t head_dim, n_heads, n_kv_heads, rotary;
        bool causal, gated;
    } cases[] = { { 32, 3, 3, 0, false, false }, { 36, 5, 1, 12, true, false }, { 64, 6, 2, 64, true, true },
                  { 80, 3, 1, 80, true, false }, { 128, 4, 2, 32, true, true }, { 256, 8, 2, 64, true, true } };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const size_t d = cases[i].head_dim, heads = cases[i].n_heads, kv = cases[i].n_kv_heads,
                     stride = cases[i].gated ? 2 * d : d;
        bed b;
        begin(&b, 60 + i);
        int x = embed(&b, heads * stride + 2 * kv * d, LT_F32);
        const lt_operand q = { .value = x, .column = 0, .head_stride = stride };
        const lt_operand k = { .value = x, .column = heads * stride, .head_stride = d };
        const lt_operand v = { .value = x, .column = heads * stride + kv * d, .head_stride = d };
        if (cases[i].rotary) {
            lt_op rope = lt_op_new(LT_OP_QK_NORM_ROPE);
            rope.in[0] = q;
            rope.in[1] = k;
            rope.weight[0] = weight(&b, d, 1, LT_F32, 1, 0.3f);
            rope.weight[1] = weight(&b, d, 1, LT_F32, 1, 0.3f);
            rope.out[0] = x;
            rope.n_heads = heads;
            rope.n_kv_heads = kv;
            rope.head_dim = d;
            rope.rotary_dim = cases[i].rotary;
            rope.rope_theta = 1e4;
            rope.max_positions = 512;
            rope.eps = 1e-6f;
            lt_plan_op(&b.plan, rope);
        }
        lt_op op = lt_op_new(LT_OP_ATTENTION);
        op.in[0] = q;
        op.in[1] = k;
        op.in[2] = v;
        op.n_heads = heads;
        op.n_kv_heads = kv;
        op.head_dim = d;
        op.scale = 1.0f / sqrtf((float)d);
        op.causal = cases[i].causal;
        op.out[0] = x;
        lt_plan_op(&b.plan, op);
        int mixed = x;
        if (cases[i].gated) {
            lt_op gate = lt_op_new(LT_OP_GATE);
            gate.in[0] = q;
            gate.in[1] = (lt_operand){ .value = x, .column = d, .head_stride = stride };
            gate.n_heads = heads;
            gate.head_dim = d;
            gate.out[0] = mixed = value(&b, heads * d);
            lt_plan_op(&b.plan, gate);
        }
        lt_op out = lt_op_new(LT_OP_LINEAR); /* reads the queries' place only */
        out.in[0] = lt_all(mixed);
        out.weight[0] = weight(&b, 40, heads * d, LT_F32, 0, 1.5f / sqrtf((float)(heads * d)));
        out.out[0] = value(&b, 40);
        lt_plan_op(&b.plan, out);
        end_body(&b, out.out[0]);
        if (cases[i].causal) { /* a model that generates, so that steps are joined */
            lt_op select = lt_op_new(LT_OP_SELECT);
            select.in[0] = lt_all(out.out[0]);
            select.out[0] = lt_plan_value(&b.plan, LT_ROWS_OUT, 40, "selected");
            lt_plan_op(&b.plan, select);
            lt_plan_end_tail(&b.plan, LT_TAIL_LOGITS, select.out[0]);
        }
        char what[48];
        snprintf(what, sizeof what, "attention %zu, %zu over %zu", d, heads, kv);
        check(&b, open(b.runtime), LATTICE_COMPUTE_F32, what, cases[i].causal);
    }
}

static lt_gpu_device *open_emulated(lattice_runtime *runtime)
{
    lt_gpu_device *device;
    lattice_error err;
    assert_ok_err(lt_gpu_emulated.open(runtime, 0, &device, &err), &err);
    return device;
}

static void recurrences(lt_gpu_device *(*open)(lattice_runtime *))
{
    static const struct {
        size_t dk, dv, n_heads, n_key_heads, taps;
    } cases[] = { { 16, 24, 4, 2, 4 }, { 18, 33, 3, 3, 3 }, { 128, 128, 2, 1, 4 }, { 16, 8, 48, 24, 3 } };
    /* The last has as many heads as a GPU has multiprocessors, for which CUDA has a kernel of its own. */
    const size_t n = sizeof cases / sizeof *cases - (open == open_emulated);
    for (size_t i = 0; i < n; i++) {
        const size_t dk = cases[i].dk, dv = cases[i].dv, heads = cases[i].n_heads, keys = cases[i].n_key_heads;
        const size_t mix = 2 * keys * dk + heads * dv;
        bed b;
        begin(&b, 80 + i);
        int u = embed(&b, mix + heads * dv + 2 * heads, LT_F32);
        idle_attention(&b);
        lt_op conv = lt_op_new(LT_OP_CONV), delta = lt_op_new(LT_OP_GATED_DELTA), norm = lt_op_new(LT_OP_GATED_NORM);
        conv.in[0] = lt_all(u);
        conv.weight[0] = weight(&b, mix, cases[i].taps, LT_F32, 0, 0.7f);
        conv.out[0] = value(&b, mix);
        lt_plan_op(&b.plan, conv);
        delta.in[0] = (lt_operand){ .value = conv.out[0], .column = 0, .head_stride = dk };
        delta.in[1] = (lt_operand){ .value = conv.out[0], .column = keys * dk, .head_stride = dk };
        delta.in[2] = (lt_operand){ .value = conv.out[0], .column = 2 * keys * dk, .head_stride = dv };
        delta.in[3] = (lt_operand){ .value = u, .column = mix + heads * dv };
        delta.weight[0] = weight(&b, heads, 1, LT_F32, 0, 1);
        delta.weight[1] = weight(&b, heads, 1, LT_F32, 0, 1);
        delta.n_heads = heads;
        delta.n_kv_heads = keys;
        delta.head_dim = dk;
        delta.value_dim = dv;
        delta.out[0] = value(&b, heads * dv);
        lt_plan_op(&b.plan, delta);
        norm.in[0] = (lt_operand){ .value = delta.out[0], .head_stride = dv };
        norm.in[1] = (lt_operand){ .value = u, .column = mix, .head_stride = dv };
        norm.weight[0] = weight(&b, dv, 1, LT_F32, 1, 0.3f);
        norm.n_heads = heads;
        norm.head_dim = dv;
        norm.eps = 1e-6f;
        norm.out[0] = value(&b, heads * dv);
        lt_plan_op(&b.plan, norm);
        end_body(&b, norm.out[0]);
        lt_op select = lt_op_new(LT_OP_SELECT);
        select.in[0] = lt_all(norm.out[0]);
        select.out[0] = lt_plan_value(&b.plan, LT_ROWS_OUT, heads * dv, "selected");
        lt_plan_op(&b.plan, select);
        lt_plan_end_tail(&b.plan, LT_TAIL_LOGITS, select.out[0]);
        char what[48];
        snprintf(what, sizeof what, "delta rule %zu by %zu", dk, dv);
        check(&b, open(b.runtime), LATTICE_COMPUTE_F32, what, true);
    }
}

/* ------------------------------------------------------------------ devices */

/* Ids in the order of a row's logits: the largest first, equal ones by id. */
static const float *sorted_row;

static int by_logit(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    if (sorted_row[x] != sorted_row[y]) return sorted_row[x] < sorted_row[y] ? 1 : -1;
    return (x > y) - (x < y);
}

static void check_top(const lt_top *top, const float *row, size_t width, size_t n)
{
    uint32_t *ids = malloc(width * sizeof *ids);
    for (size_t i = 0; i < width; i++) ids[i] = (uint32_t)i;
    sorted_row = row;
    qsort(ids, width, sizeof *ids, by_logit);
    assert_int_equal(top->n, n);
    assert_true(top->finite);
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(top->list[i].id, ids[i]);
        assert_true(top->list[i].logit == row[ids[i]]);
    }
    free(ids);
}

/* Both sides of a model whose logits are x itself, at the last rows. */
static void open_logits(bed *b, int x, size_t width, lt_gpu_device *device, side sides[2])
{
    idle_attention(b);
    end_body(b, x);
    lt_op select = lt_op_new(LT_OP_SELECT);
    select.in[0] = lt_all(x);
    select.out[0] = lt_plan_value(&b->plan, LT_ROWS_OUT, width, "selected");
    lt_plan_op(&b->plan, select);
    lt_plan_end_tail(&b->plan, LT_TAIL_LOGITS, select.out[0]);
    write_checkpoint(b);
    open_sides(b, device, LATTICE_COMPUTE_F32, sides);
}

/* The likeliest tokens of rows, many of them equal, and the rows themselves, which stay until others have taken their place. */
static void likeliest(lt_gpu_device *(*open)(lattice_runtime *))
{
    static const size_t widths[] = { 33, 48, 1031, 2512 }, wanted[] = { 1, 5, 32 };
    enum { N = 4 };
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++) {
        const size_t width = widths[i];
        bed b;
        begin(&b, 40 + i);
        int x = embed(&b, width, LT_F32);
        float *table = b.tensors[0].data;
        for (size_t k = 0; k < ROWS * width; k++) table[k] = roundf(30 * table[k]);
        side sides[2] = { 0 };
        open_logits(&b, x, width, open(b.runtime), sides);
        lattice_error err;
        float *rows = malloc(N * width * sizeof *rows), *row = malloc(width * sizeof *row);
        lt_top tops[N];
        test_batch *t = malloc(sizeof *t);
        for (size_t k = 0; k < sizeof wanted / sizeof *wanted; k++) {
            batch_clear(t);
            for (uint32_t s = 0; s < N; s++) batch_add(t, &(uint32_t){ (uint32_t)(3 * k) + s }, NULL, 1);
            assert_ok_err(sides[0].backend->run(sides[0].program, &t->batch, LT_TAIL_LOGITS, rows, NULL, &err), &err);
            t->batch.tops = tops;
            t->batch.n_top = wanted[k];
            for (size_t s = 0; s < N; s++) tops[s].n = 0;
            assert_ok_err(sides[1].backend->run(sides[1].program, &t->batch, LT_TAIL_LOGITS, NULL, NULL, &err), &err);
            for (size_t s = 0; s < N; s++) check_top(&tops[s], rows + s * width, width, wanted[k]);
            assert_ok_err(sides[1].backend->fetch(sides[1].program, 2, row, &err), &err);
            assert_memory_equal(row, rows + 2 * width, width * sizeof *row);
            t->batch.tops = NULL; /* another run does not touch them */
            assert_ok_err(sides[1].backend->run(sides[1].program, &t->batch, LT_TAIL_LOGITS, rows, NULL, &err), &err);
            assert_ok_err(sides[1].backend->fetch(sides[1].program, 3, row, &err), &err);
            assert_memory_equal(row, rows + 3 * width, width * sizeof *row);
            assert_int_equal(sides[1].backend->fetch(sides[1].program, N, row, &err), LATTICE_ERR_INTERNAL);
        }
        free(t);
        free(rows);
        free(row);
        close_sides(sides);
        end(&b);
    }
}

/* What is not finite is seen. */
static void infinite(lt_gpu_device *(*open)(lattice_runtime *))
{
    static const float values[] = { NAN, INFINITY, -INFINITY };
    for (size_t i = 0; i < 3; i++) {
        bed b;
        begin(&b, 50);
        int x = embed(&b, 64, LT_F32);
        ((float *)b.tensors[0].data)[41] = values[i];
        side sides[2] = { 0 };
        open_logits(&b, x, 64, open(b.runtime), sides);
        lattice_error err;
        lt_top top = { .n = 0 };
        test_batch *t = malloc(sizeof *t);
        batch_clear(t);
        batch_add(t, &(uint32_t){ 0 }, NULL, 1);
        t->batch.tops = &top;
        t->batch.n_top = 1;
        assert_ok_err(sides[1].backend->run(sides[1].program, &t->batch, LT_TAIL_LOGITS, NULL, NULL, &err), &err);
        assert_int_equal(top.n, 1);
        assert_false(top.finite);
        free(t);
        close_sides(sides);
        end(&b);
    }
}

static void tops(lt_gpu_device *(*open)(lattice_runtime *))
{
    likeliest(open);
    infinite(open);
}

static lt_gpu_device *open_cuda(lattice_runtime *runtime)
{
    lt_gpu_device *device;
    lattice_error err;
    assert_ok_err(lt_gpu_cuda.open(runtime, 0, &device, &err), &err);
    return device;
}

/* ------------------------------------------------------------------ races */

static int linear(bed *b, int w, int x, size_t n)
{
    lt_op op = lt_op_new(LT_OP_LINEAR);
    op.in[0] = lt_all(x);
    op.weight[0] = w;
    op.out[0] = value(b, n);
    lt_plan_op(&b->plan, op);
    return op.out[0];
}

/* A plan that comes by every barrier: products of all kinds, gated attention with its rotation, the delta rule. */
static void record_all(bed *b)
{
    enum { D = 36, HEADS = 3, DK = 16, DV = 24, MIX = 2 * DK + 2 * DV };
    int packed = weight(b, 64, 64, LT_Q8_0, 0, 0.2f), half = weight(b, 64, 64, LT_BF16, 0, 0.2f);
    int h = embed(b, 64, LT_F32);
    lt_op norm = lt_op_new(LT_OP_ADD_NORM), rope = lt_op_new(LT_OP_QK_NORM_ROPE), attention = lt_op_new(LT_OP_ATTENTION);
    norm.in[0] = lt_all(h);
    norm.weight[0] = weight(b, 64, 1, LT_F32, 1, 0.2f);
    norm.eps = 1e-6f;
    norm.out[0] = value(b, 64);
    lt_plan_op(&b->plan, norm);
    h = linear(b, packed, linear(b, half, norm.out[0], 64), 64);
    int x = linear(b, weight(b, HEADS * 2 * D + 2 * D, 64, LT_F32, 0, 0.2f), h, HEADS * 2 * D + 2 * D);
    rope.in[0] = attention.in[0] = (lt_operand){ .value = x, .column = 0, .head_stride = 2 * D };
    rope.in[1] = attention.in[1] = (lt_operand){ .value = x, .column = HEADS * 2 * D, .head_stride = D };
    attention.in[2] = (lt_operand){ .value = x, .column = HEADS * 2 * D + D, .head_stride = D };
    for (int i = 0; i < 2; i++) rope.weight[i] = weight(b, D, 1, LT_F32, 1, 0.2f);
    rope.n_heads = attention.n_heads = HEADS;
    rope.n_kv_heads = attention.n_kv_heads = 1;
    rope.head_dim = attention.head_dim = D;
    rope.rotary_dim = 12;
    rope.rope_theta = 1e4;
    rope.max_positions = 512;
    rope.out[0] = attention.out[0] = x;
    attention.scale = 0.2f;
    attention.causal = true;
    lt_plan_op(&b->plan, rope);
    lt_plan_op(&b->plan, attention);
    lt_op gate = lt_op_new(LT_OP_GATE);
    gate.in[0] = attention.in[0];
    gate.in[1] = (lt_operand){ .value = x, .column = D, .head_stride = 2 * D };
    gate.n_heads = HEADS;
    gate.head_dim = D;
    gate.out[0] = value(b, HEADS * D);
    lt_plan_op(&b->plan, gate);
    int u = linear(b, weight(b, MIX + 2 * DV + 4, HEADS * D, LT_F32, 0, 0.2f), gate.out[0], MIX + 2 * DV + 4);
    lt_op conv = lt_op_new(LT_OP_CONV), delta = lt_op_new(LT_OP_GATED_DELTA), gated = lt_op_new(LT_OP_GATED_NORM);
    conv.in[0] = lt_all(u);
    conv.weight[0] = weight(b, MIX, 4, LT_F32, 0, 0.7f);
    conv.out[0] = value(b, MIX);
    for (size_t i = 0; i < 3; i++)
        delta.in[i] = (lt_operand){ .value = conv.out[0], .column = i * DK, .head_stride = i < 2 ? DK : DV };
    delta.in[3] = (lt_operand){ .value = u, .column = MIX + 2 * DV };
    delta.weight[0] = weight(b, 2, 1, LT_F32, 0, 1);
    delta.weight[1] = weight(b, 2, 1, LT_F32, 0, 1);
    delta.n_heads = 2;
    delta.n_kv_heads = 1;
    delta.head_dim = DK;
    delta.value_dim = DV;
    delta.out[0] = value(b, 2 * DV);
    gated.in[0] = (lt_operand){ .value = delta.out[0], .head_stride = DV };
    gated.in[1] = (lt_operand){ .value = u, .column = MIX, .head_stride = DV };
    gated.weight[0] = weight(b, DV, 1, LT_F32, 1, 0.3f);
    gated.n_heads = 2;
    gated.head_dim = DV;
    gated.eps = 1e-6f;
    gated.out[0] = value(b, 2 * DV);
    lt_plan_op(&b->plan, conv);
    lt_plan_op(&b->plan, delta);
    lt_plan_op(&b->plan, gated);
    end_body(b, gated.out[0]);
    lt_op select = lt_op_new(LT_OP_SELECT);
    select.in[0] = lt_all(gated.out[0]);
    select.out[0] = lt_plan_value(&b->plan, LT_ROWS_OUT, 2 * DV, "selected");
    lt_plan_op(&b->plan, select);
    lt_plan_end_tail(&b->plan, LT_TAIL_LOGITS, select.out[0]);
}

/* A long piece, a few tokens, and one token of a sequence; the first fault, or OK. */
static lattice_status run_watched(lattice_error *err)
{
    static const size_t lengths[] = { 70, 3, 1 };
    bed b;
    begin(&b, 5);
    record_all(&b);
    write_checkpoint(&b);
    lt_backend *backend;
    lt_program *program;
    lt_state *state = NULL;
    const lt_compile_options o = { .max_tokens = TOKENS, .max_seqs = 8 };
    assert_ok_err(lt_gpu_backend_create(b.runtime, open_emulated(b.runtime), LATTICE_COMPUTE_F32, &backend, err), err);
    assert_ok_err(backend->compile(backend, &b.plan, &o, &program, err), err);
    assert_ok_err(backend->states->create(program, &state, err), err);
    test_batch *t = malloc(sizeof *t);
    float out[TOKENS * 48];
    lattice_status status = LATTICE_OK;
    size_t past = 0;
    for (size_t i = 0; i < 3 && status == LATTICE_OK; past += lengths[i++]) {
        uint32_t ids[TOKENS] = { 0 };
        batch_clear(t);
        batch_add(t, ids, NULL, lengths[i]);
        for (size_t k = 0; k < lengths[i]; k++) t->positions[k] += (uint32_t)past;
        t->batch.states = &state;
        t->batch.past_lens = &past;
        assert_ok_err(backend->states->reserve(state, lengths[i], err), err);
        status = backend->run(program, &t->batch, LT_TAIL_TOKENS, out, NULL, err);
        if (status == LATTICE_OK) backend->states->commit(state);
    }
    if (status == LATTICE_OK) { /* rows enough that two of the likeliest tokens in succession are a lane's */
        enum { N = 8 };
        lt_top top[N] = { { 0 } };
        batch_clear(t);
        for (uint32_t s = 0; s < N; s++) batch_add(t, &s, NULL, 1);
        t->batch.states = NULL;
        t->batch.past_lens = NULL;
        t->batch.tops = top;
        t->batch.n_top = LT_TOP_MOST;
        status = backend->run(program, &t->batch, LT_TAIL_LOGITS, out, NULL, err);
    }
    backend->states->free(state);
    backend->program_free(program);
    backend->free(backend);
    free(t);
    end(&b);
    return status;
}

static int count_barriers(void)
{
    lt_str text = lt_gpu_template();
    int n = 0;
    for (const char *at = text.data; (at = strstr(at, "BARRIER();")) != NULL; at++) n++;
    return n;
}

/* Without any one of its barriers the template has a race that the watched kernels show; with all, none. */
static void every_barrier_is_needed_and_watched(void **state)
{
    (void)state;
    lattice_error err;
    if (!lt_emulator_works() || !LT_EMULATOR_WATCHES) skip();
    lt_emulated_checked = true;
    assert_ok_err(run_watched(&err), &err);
    const int n = count_barriers(), step = LT_TEST_LIGHT ? 5 : 1;
    assert_true(n >= 20);
    for (lt_emulated_without = 1; lt_emulated_without <= n; lt_emulated_without += step) {
        lattice_status status = run_watched(&err);
        if (status == LATTICE_OK) fail_msg("barrier %d of the template is not missed", lt_emulated_without);
        if (!strstr(err.message, "a race")) fail_msg("barrier %d: %s", lt_emulated_without, err.message);
    }
    lt_emulated_checked = false;
    lt_emulated_without = 0;
}

#define OPERATION_TEST(group)                                                                                                    \
    static void group##_equal_the_cpus_emulated(void **state)                                                                    \
    {                                                                                                                            \
        (void)state;                                                                                                             \
        if (!lt_emulator_works()) skip();                                                                                        \
        group(open_emulated);                                                                                                    \
    }                                                                                                                            \
    static void group##_equal_the_cpus_on_cuda(void **state)                                                                     \
    {                                                                                                                            \
        (void)state;                                                                                                             \
        char text[256];                                                                                                          \
        if (!lt_gpu_cuda.describe(text, sizeof text)) skip();                                                                    \
        group(open_cuda);                                                                                                        \
    }

OPERATION_TEST(products)
OPERATION_TEST(norms)
OPERATION_TEST(attentions)
OPERATION_TEST(recurrences)
OPERATION_TEST(tops)

/* With a pattern, the tests that it fits. */
int main(int argc, char **argv)
{
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_barrier_is_needed_and_watched), cmocka_unit_test(products_equal_the_cpus_emulated),
        cmocka_unit_test(norms_equal_the_cpus_emulated),       cmocka_unit_test(attentions_equal_the_cpus_emulated),
        cmocka_unit_test(recurrences_equal_the_cpus_emulated), cmocka_unit_test(products_equal_the_cpus_on_cuda),
        cmocka_unit_test(norms_equal_the_cpus_on_cuda),        cmocka_unit_test(attentions_equal_the_cpus_on_cuda),
        cmocka_unit_test(recurrences_equal_the_cpus_on_cuda),  cmocka_unit_test(tops_equal_the_cpus_emulated),
        cmocka_unit_test(tops_equal_the_cpus_on_cuda),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
