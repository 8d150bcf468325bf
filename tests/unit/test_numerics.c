/* The numerics contract: a text's vector is bit-identical alone or in any batch, whatever its neighbours, their order, the split
 * into batches and the number of threads, on one instruction set. Checked on checkpoints with random weights, whose sizes are
 * odd on purpose, long enough for tiles of rows, splits by columns and several blocks of keys. */
#include "model_fixture.h"

/* ------------------------------------------------------------------ random checkpoints */

typedef struct shape {
    size_t hidden, heads, intermediate, layers, vocabulary, positions;
    lt_dtype dtype;
    float spread;              /* of the matrices; the larger, the more attention peaks */
    size_t kv_heads, head_dim; /* of a Qwen3; else both 0: a BERT */
} shape;

static uint64_t random_state = 88172645463325252u;

static uint32_t random_bits(void)
{
    random_state ^= random_state << 13; /* xorshift64 */
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (uint32_t)(random_state >> 32);
}

static size_t random_below(size_t n)
{
    return random_bits() % n;
}

static float random_value(float spread)
{
    float sum = 0;
    for (int i = 0; i < 4; i++) sum += (float)random_bits() / 4294967296.0f - 0.5f;
    return sum * spread;
}

/* A value of the type, rounded towards zero: any value will do. */
static void put_value(FILE *data, lt_dtype dtype, float value)
{
    uint32_t bits;
    memcpy(&bits, &value, 4);
    if (dtype == LT_F32) {
        fwrite(&bits, 4, 1, data);
        return;
    }
    uint16_t half = (uint16_t)(bits >> 16); /* BF16 */
    if (dtype == LT_F16) {
        int exponent = (int)(bits >> 23 & 255) - 112;
        half = (uint16_t)((bits >> 16 & 0x8000) | (exponent > 0 ? (uint32_t)exponent << 10 | (bits >> 13 & 1023) : 0));
    }
    fwrite(&half, 2, 1, data);
}

typedef struct writer {
    FILE *header, *data;
    size_t offset;
    lt_dtype dtype;
} writer;

static void put_tensor(writer *w, const char *name, size_t rows, size_t cols, float mean, float spread)
{
    size_t n = rows * (cols ? cols : 1), bytes = n * lt_dtype_size(w->dtype);
    fprintf(w->header, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[%zu", w->offset ? "," : "", name, lt_dtype_name(w->dtype), rows);
    if (cols) fprintf(w->header, ",%zu", cols);
    fprintf(w->header, "],\"data_offsets\":[%zu,%zu]}", w->offset, w->offset + bytes);
    for (size_t i = 0; i < n; i++) put_value(w->data, w->dtype, mean + random_value(spread));
    w->offset += bytes;
}

static void put_linear(writer *w, const char *stem, size_t rows, size_t cols, float spread)
{
    char name[128];
    snprintf(name, sizeof name, "%s.weight", stem);
    put_tensor(w, name, rows, cols, 0, spread);
    snprintf(name, sizeof name, "%s.bias", stem);
    put_tensor(w, name, rows, 0, 0, 0.1f);
}

static void put_norm(writer *w, const char *stem, size_t n)
{
    char name[128];
    snprintf(name, sizeof name, "%s.weight", stem);
    put_tensor(w, name, n, 0, 1, 0.2f);
    snprintf(name, sizeof name, "%s.bias", stem);
    put_tensor(w, name, n, 0, 0, 0.2f);
}

static void put_bert(writer *w, const shape *s)
{
    char stem[96];
    put_tensor(w, "embeddings.word_embeddings.weight", s->vocabulary, s->hidden, 0, 1);
    put_tensor(w, "embeddings.position_embeddings.weight", s->positions, s->hidden, 0, 1);
    put_tensor(w, "embeddings.token_type_embeddings.weight", 2, s->hidden, 0, 1);
    put_norm(w, "embeddings.LayerNorm", s->hidden);
    for (size_t layer = 0; layer < s->layers; layer++) {
        static const char *const squares[] = { "attention.self.query", "attention.self.key", "attention.self.value",
                                               "attention.output.dense" };
        for (int i = 0; i < 4; i++) {
            snprintf(stem, sizeof stem, "encoder.layer.%zu.%s", layer, squares[i]);
            put_linear(w, stem, s->hidden, s->hidden, s->spread);
        }
        snprintf(stem, sizeof stem, "encoder.layer.%zu.attention.output.LayerNorm", layer);
        put_norm(w, stem, s->hidden);
        snprintf(stem, sizeof stem, "encoder.layer.%zu.intermediate.dense", layer);
        put_linear(w, stem, s->intermediate, s->hidden, s->spread);
        snprintf(stem, sizeof stem, "encoder.layer.%zu.output.dense", layer);
        put_linear(w, stem, s->hidden, s->intermediate, s->spread);
        snprintf(stem, sizeof stem, "encoder.layer.%zu.output.LayerNorm", layer);
        put_norm(w, stem, s->hidden);
    }
}

static void put_qwen3(writer *w, const shape *s)
{
    const size_t q_dim = s->heads * s->head_dim, kv_dim = s->kv_heads * s->head_dim;
    const struct {
        const char *name;
        size_t rows, cols;
    } tensors[] = {
        { "input_layernorm", s->hidden, 0 },
        { "self_attn.q_proj", q_dim, s->hidden },
        { "self_attn.k_proj", kv_dim, s->hidden },
        { "self_attn.v_proj", kv_dim, s->hidden },
        { "self_attn.q_norm", s->head_dim, 0 },
        { "self_attn.k_norm", s->head_dim, 0 },
        { "self_attn.o_proj", s->hidden, q_dim },
        { "post_attention_layernorm", s->hidden, 0 },
        { "mlp.gate_proj", s->intermediate, s->hidden },
        { "mlp.up_proj", s->intermediate, s->hidden },
        { "mlp.down_proj", s->hidden, s->intermediate },
    };
    put_tensor(w, "model.embed_tokens.weight", s->vocabulary, s->hidden, 0, 1);
    for (size_t layer = 0; layer < s->layers; layer++) {
        for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++) {
            char name[96];
            bool gain = tensors[i].cols == 0;
            snprintf(name, sizeof name, "model.layers.%zu.%s.weight", layer, tensors[i].name);
            put_tensor(w, name, tensors[i].rows, tensors[i].cols, gain ? 1 : 0, gain ? 0.2f : s->spread);
        }
    }
    put_tensor(w, "model.norm.weight", s->hidden, 0, 1, 0.2f);
}

static int print_config(const shape *s, char *text, size_t size)
{
    if (s->kv_heads > 0) {
        return snprintf(
            text, size,
            "{\"architectures\":[\"Qwen3Model\"],\"model_type\":\"qwen3\",\"hidden_act\":\"silu\",\"hidden_size\":%zu,"
            "\"intermediate_size\":%zu,\"rms_norm_eps\":1e-6,\"max_position_embeddings\":%zu,"
            "\"num_attention_heads\":%zu,\"num_key_value_heads\":%zu,\"head_dim\":%zu,\"num_hidden_layers\":%zu,"
            "\"rope_theta\":10000,\"tie_word_embeddings\":true,\"vocab_size\":%zu}",
            s->hidden, s->intermediate, s->positions, s->heads, s->kv_heads, s->head_dim, s->layers, s->vocabulary);
    }
    return snprintf(text, size,
                    "{\"architectures\":[\"BertModel\"],\"model_type\":\"bert\",\"hidden_act\":\"gelu\",\"hidden_size\":%zu,"
                    "\"intermediate_size\":%zu,\"layer_norm_eps\":1e-12,\"max_position_embeddings\":%zu,"
                    "\"num_attention_heads\":%zu,\"num_hidden_layers\":%zu,\"pad_token_id\":0,\"type_vocab_size\":2,"
                    "\"vocab_size\":%zu}",
                    s->hidden, s->intermediate, s->positions, s->heads, s->layers, s->vocabulary);
}

/* Writes config.json and model.safetensors. */
static void write_checkpoint(const lt_test_folder *folder, const shape *s)
{
    char path[256], text[1024];
    int length = print_config(s, text, sizeof text);
    lt_test_write_file(lt_test_path(folder, "config.json", path), text, (size_t)length);

    char *header = NULL, *data = NULL;
    size_t header_size, data_size;
    writer w = { .header = open_memstream(&header, &header_size), .data = open_memstream(&data, &data_size), .dtype = s->dtype };
    fputc('{', w.header);
    if (s->kv_heads > 0) {
        put_qwen3(&w, s);
    } else {
        put_bert(&w, s);
    }
    fputc('}', w.header);
    while (ftell(w.header) % 8) fputc(' ', w.header);
    fclose(w.header);
    fclose(w.data);
    uint64_t size = header_size;
    FILE *f = fopen(lt_test_path(folder, "model.safetensors", path), "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(&size, 8, 1, f), 1);
    assert_int_equal(fwrite(header, 1, header_size, f), header_size);
    assert_int_equal(fwrite(data, 1, data_size, f), data_size);
    assert_int_equal(fclose(f), 0);
    free(header);
    free(data);
}

/* ------------------------------------------------------------------ texts */

enum { N_TEXTS = LT_ROUNDS(24, 9), ALL_POOLINGS = 63 };

typedef struct text {
    uint32_t ids[GOLDEN_TOKENS], type_ids[GOLDEN_TOKENS];
    size_t n;
} text;

static text *random_texts(const shape *s)
{
    text *texts = calloc(N_TEXTS, sizeof *texts);
    for (size_t i = 0; i < N_TEXTS; i++) {
        size_t most = i % 3 == 0 ? s->positions : i % 3 == 1 ? 40 : 8;
        texts[i].n = 1 + random_below(most);
        for (size_t t = 0; t < texts[i].n; t++) {
            texts[i].ids[t] = (uint32_t)random_below(s->vocabulary);
            texts[i].type_ids[t] = (uint32_t)random_below(2);
        }
    }
    return texts;
}

/* Every text by itself with one thread: [N_TEXTS][6 hidden]. */
static float *single_vectors(const char *folder, const char *isa, lattice_compute compute, const text *texts)
{
    static const lt_compile_options room = { .max_tokens = BATCH_TOKENS, .max_seqs = BATCH_SEQS };
    lattice_error err;
    opened m;
    model_open_as(&m, folder, isa, compute, 1, &room, NULL, 0);
    test_batch *b = malloc(sizeof *b);
    float *out = malloc(N_TEXTS * 6 * m.hidden * sizeof(float));
    for (size_t i = 0; i < N_TEXTS; i++) {
        batch_clear(b);
        batch_add(b, texts[i].ids, texts[i].type_ids, texts[i].n);
        b->batch.pooling = ALL_POOLINGS;
        assert_ok_err(m.backend->run(m.program, &b->batch, LT_TAIL_POOLED, out + i * 6 * m.hidden, NULL, &err), &err);
        for (size_t j = 0; j < 6 * m.hidden; j++) assert_true(isfinite(out[i * 6 * m.hidden + j]));
    }
    free(b);
    model_close(&m);
    return out;
}

/* Random order and random split into batches; every vector and every token's last hidden state must have the same bits. */
static void check_random_split(opened *m, const text *texts, const float *single, test_batch *b, float *out, float *tokens)
{
    lattice_error err;
    size_t order[N_TEXTS], width = 6 * m->hidden;
    for (size_t i = 0; i < N_TEXTS; i++) order[i] = i;
    for (size_t i = N_TEXTS - 1; i > 0; i--) {
        size_t j = random_below(i + 1), k = order[i];
        order[i] = order[j];
        order[j] = k;
    }
    for (size_t begin = 0; begin < N_TEXTS;) {
        size_t end = begin + 1 + random_below(N_TEXTS - begin);
        batch_clear(b);
        b->batch.pooling = ALL_POOLINGS;
        for (size_t i = begin; i < end; i++) batch_add(b, texts[order[i]].ids, texts[order[i]].type_ids, texts[order[i]].n);
        assert_ok_err(m->backend->run(m->program, &b->batch, LT_TAIL_POOLED, out, NULL, &err), &err);
        assert_ok_err(m->backend->run(m->program, &b->batch, LT_TAIL_TOKENS, tokens, NULL, &err), &err);
        for (size_t i = begin; i < end; i++) {
            const float *wanted = single + order[i] * width;
            if (memcmp(out + (i - begin) * width, wanted, width * sizeof(float)) != 0) {
                fail_msg("text %zu of %zu tokens has other bits in a batch of %zu tokens", order[i], texts[order[i]].n,
                         b->batch.n_tokens);
            }
            /* The first pooling is cls, the last lasttoken: the token tail must agree with them. */
            size_t first = b->starts[i - begin], last = b->starts[i - begin + 1] - 1;
            assert_memory_equal(tokens + first * m->hidden, wanted, m->hidden * sizeof(float));
            assert_memory_equal(tokens + last * m->hidden, wanted + 5 * m->hidden, m->hidden * sizeof(float));
        }
        begin = end;
    }
}

static void check_shape_as(const shape *s, lattice_compute compute, lt_copies copies)
{
    lt_test_folder folder = lt_test_folder_create();
    write_checkpoint(&folder, s);
    size_t n_sets;
    const lt_kernels *const *sets = lt_kernels_available(&n_sets);
    text *texts = random_texts(s);
    test_batch *b = malloc(sizeof *b);
    float *out = malloc(N_TEXTS * 6 * s->hidden * sizeof(float)), *tokens = malloc(BATCH_TOKENS * s->hidden * sizeof(float));
    lt_compile_options room = { .max_tokens = BATCH_TOKENS, .max_seqs = BATCH_SEQS, .copies = copies };
    for (size_t k = 0; k < n_sets; k++) {
        if (compute == LATTICE_COMPUTE_BF16 && !sets[k]->bf16) continue;
        float *single = single_vectors(folder.path, sets[k]->isa, compute, texts);
        for (int n_threads = 1; n_threads <= 8; n_threads += LT_ROUNDS(1, 7)) {
            opened m;
            model_open_as(&m, folder.path, sets[k]->isa, compute, n_threads, &room, NULL, 0);
            /* What is packed a part in every run is tried as it grows, and when all of it is there. */
            for (int turn = 0; turn < (copies == LT_COPIES_AS_STORED ? 4 : 1); turn++)
                check_random_split(&m, texts, single, b, out, tokens);
            model_close(&m);
        }
        free(single);
    }
    free(out);
    free(tokens);
    free(b);
    free(texts);
    lt_test_folder_remove(&folder);
}

static void check_shape(const shape *s, lt_copies copies)
{
    check_shape_as(s, LATTICE_COMPUTE_F32, copies);
}

static void random_batches_orders_splits_and_threads_give_the_same_bits(void **state)
{
    (void)state;
    check_shape(&(shape){ 36, 3, 100, 2, 300, 200, LT_F32, 0.4f, 0, 0 }, LT_COPIES_AUTO);
    check_shape(&(shape){ 80, 2, 56, 1, 200, 400, LT_F32, 0.8f, 0, 0 }, LT_COPIES_AUTO);
}

static void sixteen_bit_weights_give_the_same_bits(void **state)
{
    (void)state;
    check_shape(&(shape){ 36, 3, 100, 2, 300, 150, LT_F16, 0.4f, 0, 0 }, LT_COPIES_AUTO);
    check_shape(&(shape){ 36, 3, 100, 2, 300, 150, LT_BF16, 0.4f, 0, 0 }, LT_COPIES_AUTO);
}

/* The single vectors come from packed copies: packing when touched must not change a bit. */
static void weights_packed_when_touched_give_the_same_bits(void **state)
{
    (void)state;
    check_shape(&(shape){ 36, 3, 100, 2, 300, 150, LT_F32, 0.4f, 0, 0 }, LT_COPIES_NONE);
    check_shape(&(shape){ 36, 3, 100, 2, 300, 150, LT_BF16, 0.4f, 0, 0 }, LT_COPIES_NONE);
}

static void panels_that_keep_bfloat16_give_the_same_bits(void **state)
{
    (void)state;
    check_shape(&(shape){ 36, 3, 100, 2, 300, 150, LT_BF16, 0.4f, 0, 0 }, LT_COPIES_AS_STORED);
    check_shape(&(shape){ 44, 4, 70, 2, 300, 150, LT_BF16, 0.4f, 1, 34 }, LT_COPIES_AS_STORED);
}

/* Grouped and causal heads, whose width is not a whole number of vectors; rows over and under what is split by columns. */
static void decoders_give_the_same_bits(void **state)
{
    (void)state;
    check_shape(&(shape){ 36, 6, 100, 2, 300, 300, LT_F32, 0.4f, 2, 20 }, LT_COPIES_AUTO);
    check_shape(&(shape){ 44, 4, 70, 2, 300, 150, LT_BF16, 0.4f, 1, 34 }, LT_COPIES_AUTO);
    check_shape(&(shape){ 36, 6, 100, 2, 300, 300, LT_F32, 0.4f, 2, 20 }, LT_COPIES_NONE);
    check_shape(&(shape){ 40, 2, 56, 1, 200, 400, LT_BF16, 0.8f, 2, 36 }, LT_COPIES_NONE);
}

/* Odd numbers of inputs leave half a pair empty; rounding happens anew for every split. */
static void products_of_bfloat16_give_the_same_bits(void **state)
{
    (void)state;
    check_shape_as(&(shape){ 33, 3, 101, 2, 200, 150, LT_F32, 0.4f, 0, 0 }, LATTICE_COMPUTE_BF16, LT_COPIES_AUTO);
    check_shape_as(&(shape){ 36, 3, 99, 1, 200, 150, LT_BF16, 0.4f, 0, 0 }, LATTICE_COMPUTE_BF16, LT_COPIES_NONE);
    check_shape_as(&(shape){ 44, 4, 70, 1, 200, 150, LT_BF16, 0.4f, 1, 34 }, LATTICE_COMPUTE_BF16, LT_COPIES_NONE);
}

static void products_in_int8_by_rows_give_the_same_bits(void **state)
{
    (void)state;
    check_shape_as(&(shape){ 33, 3, 101, 2, 200, 150, LT_F32, 0.4f, 0, 0 }, LATTICE_COMPUTE_INT8, LT_COPIES_AUTO);
    check_shape_as(&(shape){ 48, 3, 96, 1, 200, 150, LT_BF16, 0.4f, 0, 0 }, LATTICE_COMPUTE_INT8, LT_COPIES_NONE);
    /* So short that most batches go through the layers in pieces of whole sequences. */
    check_shape_as(&(shape){ 36, 3, 100, 2, 200, 44, LT_F32, 0.4f, 0, 0 }, LATTICE_COMPUTE_INT8, LT_COPIES_AUTO);
}

/* ------------------------------------------------------------------ reports from the field */

/* Equal texts of the lengths given, one id a text, in one batch: each finite and bit-identical to its single run. */
static void check_lengths(const size_t *lengths, size_t n)
{
    const shape s = { 48, 4, 96, 2, 300, 728, LT_F32, 0.4f, 0, 0 };
    lt_test_folder folder = lt_test_folder_create();
    write_checkpoint(&folder, &s);
    static const lt_compile_options room = { .max_tokens = BATCH_TOKENS, .max_seqs = BATCH_SEQS };
    lattice_error err;
    opened m;
    model_open(&m, folder.path, NULL, 2, &room);
    test_batch *b = malloc(sizeof *b);
    float together[8 * 48], alone[48];
    for (int reversed = 0; reversed < 2; reversed++) {
        uint32_t ids[728];
        batch_clear(b);
        for (size_t k = 0; k < n; k++) {
            size_t i = reversed ? n - 1 - k : k;
            for (size_t t = 0; t < lengths[i]; t++) ids[t] = (uint32_t)(10 + i);
            batch_add(b, ids, NULL, lengths[i]);
        }
        assert_ok_err(m.backend->run(m.program, &b->batch, LT_TAIL_POOLED, together, NULL, &err), &err);
        for (size_t k = 0; k < n; k++) {
            size_t i = reversed ? n - 1 - k : k;
            for (size_t t = 0; t < lengths[i]; t++) ids[t] = (uint32_t)(10 + i);
            batch_clear(b);
            batch_add(b, ids, NULL, lengths[i]);
            assert_ok_err(m.backend->run(m.program, &b->batch, LT_TAIL_POOLED, alone, NULL, &err), &err);
            for (size_t j = 0; j < 48; j++) assert_true(isfinite(alone[j]));
            assert_memory_equal(together + k * 48, alone, sizeof alone);
        }
    }
    free(b);
    model_close(&m);
    lt_test_folder_remove(&folder);
}

static void batch_neighbours_never_leak(void **state)
{
    (void)state;
    static const size_t lengths[] = { 253, 254, 255, 256 };
    check_lengths(lengths, 4);
}

static void long_batches_never_overflow(void **state)
{
    (void)state;
    static const size_t lengths[] = { 142, 452, 555, 728 };
    check_lengths(lengths, 4);
    static const size_t truncated[] = { 142, 452, 512, 512 };
    check_lengths(truncated, 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_batches_orders_splits_and_threads_give_the_same_bits),
        cmocka_unit_test(sixteen_bit_weights_give_the_same_bits),
        cmocka_unit_test(weights_packed_when_touched_give_the_same_bits),
        cmocka_unit_test(panels_that_keep_bfloat16_give_the_same_bits),
        cmocka_unit_test(decoders_give_the_same_bits),
        cmocka_unit_test(products_of_bfloat16_give_the_same_bits),
        cmocka_unit_test(products_in_int8_by_rows_give_the_same_bits),
        cmocka_unit_test(batch_neighbours_never_leak),
        cmocka_unit_test(long_batches_never_overflow),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
