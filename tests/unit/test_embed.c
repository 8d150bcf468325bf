/* The public interface end to end: open a model, texts to vectors, against the fixtures' golden values. */
#include "model_copy.h"

#include <math.h>
#include <pthread.h>

#include "backend/cpu/kernels.h"
#include "engine/lower_case.h"
#include "engine/model.h"
#include "format/json.h"

/* ------------------------------------------------------------------ golden.json */

typedef struct golden_case {
    char *text, *prompt_name; /* prompt_name NULL: none */
    size_t length;
    uint32_t ids[600];
    size_t n_ids;
    float embedding[512];
    size_t dim;
    float cut[2][64]; /* the first cut_dim values, normalised again */
    size_t cut_dim[2], n_cuts;
} golden_case;

typedef struct golden {
    golden_case *cases;
    size_t n, capacity, max_length;
    char *file;
} golden;

static char *copy_string(lt_json *j, size_t *length)
{
    lt_str s;
    assert_ok(lt_json_string(j, &s));
    char *copy = malloc(s.len + 1);
    if (s.len) memcpy(copy, s.data, s.len);
    copy[s.len] = 0;
    if (length) *length = s.len;
    return copy;
}

static void read_case(lt_json *j, golden_case *c)
{
    memset(c, 0, sizeof *c);
    assert_ok(lt_json_begin_object(j));
    lt_str key;
    for (bool more; lt_json_next_member(j, &key, &more) == LATTICE_OK && more;) {
        if (lt_str_is(key, "text")) {
            c->text = copy_string(j, &c->length);
        } else if (lt_str_is(key, "prompt_name")) {
            c->prompt_name = copy_string(j, NULL);
        } else if (lt_str_is(key, "ids")) {
            assert_ok(lt_json_begin_array(j));
            for (bool item; lt_json_next_element(j, &item) == LATTICE_OK && item;)
                assert_ok(lt_json_uint32(j, &c->ids[c->n_ids++]));
        } else if (lt_str_is(key, "embedding")) {
            assert_ok(lt_json_begin_array(j));
            for (bool item; lt_json_next_element(j, &item) == LATTICE_OK && item;)
                assert_ok(lt_json_float(j, &c->embedding[c->dim++]));
        } else if (lt_str_is(key, "embedding_dims")) {
            assert_ok(lt_json_begin_object(j));
            for (bool cut; lt_json_next_member(j, &key, &cut) == LATTICE_OK && cut; c->n_cuts++) {
                assert_ok(lt_json_begin_array(j));
                for (bool item; lt_json_next_element(j, &item) == LATTICE_OK && item;)
                    assert_ok(lt_json_float(j, &c->cut[c->n_cuts][c->cut_dim[c->n_cuts]++]));
            }
        } else {
            assert_ok(lt_json_skip(j));
        }
    }
}

/* The cases under `list` ("cases" or "prompt_cases"). */
static golden golden_read(const char *path, const char *list)
{
    golden g = { 0 };
    size_t size;
    char *text = lt_test_read_file(path, &size);
    lt_json *j = malloc(sizeof *j);
    lattice_error err;
    lt_json_open(j, &lt_malloc_allocator, path, text, size, &err);
    assert_ok(lt_json_begin_object(j));
    lt_str key;
    for (bool more; lt_json_next_member(j, &key, &more) == LATTICE_OK && more;) {
        if (lt_str_is(key, list)) {
            assert_ok(lt_json_begin_array(j));
            for (bool item; lt_json_next_element(j, &item) == LATTICE_OK && item;) {
                assert_true(LT_GROW(&lt_malloc_allocator, g.cases, g.capacity, g.n + 1));
                read_case(j, &g.cases[g.n++]);
            }
        } else if (lt_str_is(key, "max_length")) {
            assert_ok(lt_json_size(j, &g.max_length));
        } else {
            assert_ok(lt_json_skip(j));
        }
    }
    assert_ok_err(lt_json_end(j), &err);
    lt_json_close(j);
    free(j);
    free(text);
    assert_true(g.n > 0);
    return g;
}

static void golden_free(golden *g)
{
    for (size_t i = 0; i < g->n; i++) {
        free(g->cases[i].text);
        free(g->cases[i].prompt_name);
    }
    free(g->cases);
}

/* ------------------------------------------------------------------ models */

typedef struct opened {
    lattice_runtime *runtime;
    lattice_model *model;
    lattice_model_info info;
} opened;

static opened open_with(const char *folder, int threads, const lattice_model_options *options)
{
    opened o = { 0 };
    lattice_error err;
    lattice_runtime_options runtime_options = lattice_runtime_options_default();
    runtime_options.n_threads = threads;
    assert_ok_err(lattice_runtime_create(&runtime_options, &o.runtime, &err), &err);
    assert_ok_err(lattice_model_open(o.runtime, folder, options, &o.model, &err), &err);
    lattice_model_get_info(o.model, &o.info);
    return o;
}

static opened open_model(const char *folder)
{
    return open_with(folder, 2, NULL);
}

static void close_model(opened *o)
{
    lattice_model_close(o->model);
    lattice_runtime_free(o->runtime);
}

static lattice_text text_of(const char *z)
{
    return (lattice_text){ z, strlen(z) };
}

/* |Δ| <= 5e-6 everywhere and cosine >= 0.999999: the tolerances of float32 arithmetic. */
static void assert_embedding(const float *x, const golden_case *c)
{
    double dot = 0, xx = 0, yy = 0;
    for (size_t i = 0; i < c->dim; i++) {
        if (!(fabsf(x[i] - c->embedding[i]) <= 5e-6f))
            fail_msg("'%s': [%zu] is %.9g, expected %.9g", c->text, i, (double)x[i], (double)c->embedding[i]);
        dot += (double)x[i] * c->embedding[i];
        xx += (double)x[i] * x[i];
        yy += (double)c->embedding[i] * c->embedding[i];
    }
    assert_true(dot / sqrt(xx * yy) >= 0.999999);
}

/* Embeds with one text a call's row; returns malloc'd [n][dim]. */
static float *embed(opened *o, const lattice_text *texts, size_t n, const lattice_embed_options *options)
{
    lattice_error err;
    size_t dim = lattice_embed_dim(o->model, options);
    assert_true(dim > 0);
    float *out = malloc((n * dim + 1) * sizeof *out);
    assert_ok_err(lattice_embed(o->model, texts, n, options, out, NULL, &err), &err);
    return out;
}

/* ------------------------------------------------------------------ golden values */

static void check_cases(opened *o, const golden *g)
{
    lattice_text *texts = malloc(g->n * sizeof *texts);
    for (size_t i = 0; i < g->n; i++) texts[i] = (lattice_text){ g->cases[i].text, g->cases[i].length };
    uint32_t *counts = malloc(g->n * sizeof *counts);
    lattice_usage usage = { .text_tokens = counts };
    lattice_error err;
    size_t dim = o->info.embedding_dim;
    float *out = malloc(g->n * dim * sizeof *out);
    assert_ok_err(lattice_embed(o->model, texts, g->n, NULL, out, &usage, &err), &err);
    uint64_t total = 0;
    for (size_t i = 0; i < g->n; i++) {
        assert_int_equal(g->cases[i].dim, dim);
        assert_int_equal(counts[i], g->cases[i].n_ids);
        total += counts[i];
        assert_embedding(out + i * dim, &g->cases[i]);
    }
    assert_int_equal(usage.n_tokens, total);
    free(out);
    free(counts);
    free(texts);
}

static void check_fixture(const char *folder, const char *golden_path)
{
    golden g = golden_read(golden_path, "cases");
    size_t n;
    const lt_kernels *const *sets = lt_kernels_available(&n);
    for (size_t s = 0; s < n; s++) {
        for (int threads = LT_ROUNDS(1, 2); threads <= 2; threads++) {
            lattice_model_options options = lattice_model_options_default();
            options.isa = sets[s]->isa;
            options.compute = LATTICE_COMPUTE_F32;
            opened o = open_with(folder, threads, &options);
            assert_int_equal(o.info.max_length, g.max_length);
            check_cases(&o, &g);
            close_model(&o);
        }
    }
    golden_free(&g);
}

static void texts_of_bert_cls_give_the_reference_vectors(void **state)
{
    (void)state;
    check_fixture(FIXTURE("bert-cls"), FIXTURE("bert-cls/golden.json"));
}

static void texts_of_bert_mean_f16_give_the_reference_vectors(void **state)
{
    (void)state;
    check_fixture(FIXTURE("bert-mean-f16"), FIXTURE("bert-mean-f16/golden.json"));
}

static void texts_of_roberta_max_give_the_reference_vectors(void **state)
{
    (void)state;
    check_fixture(FIXTURE("roberta-max"), FIXTURE("roberta-max/golden.json"));
}

static void texts_of_xlmr_mean_give_the_reference_vectors(void **state)
{
    (void)state;
    check_fixture(FIXTURE("xlmr-mean"), FIXTURE("xlmr-mean/golden.json"));
}

static void texts_of_qwen3_embedding_give_the_reference_vectors(void **state)
{
    (void)state;
    check_fixture(FIXTURE("qwen3-embedding"), FIXTURE("qwen3-embedding/golden.json"));
    check_fixture(FIXTURE("qwen3-embedding-hd80-sharded-bf16"), FIXTURE("qwen3-embedding-hd80-sharded-bf16/golden.json"));
}

static void qwen3_vectors_are_cut_and_normalised_again(void **state)
{
    (void)state;
    golden g = golden_read(FIXTURE("qwen3-embedding/golden.json"), "cases");
    opened o = open_model(FIXTURE("qwen3-embedding"));
    for (size_t i = 0; i < g.n; i++) {
        const golden_case *c = &g.cases[i];
        assert_int_equal(c->n_cuts, 2);
        for (size_t k = 0; k < c->n_cuts; k++) {
            lattice_embed_options options = lattice_embed_options_default();
            options.dim = c->cut_dim[k];
            lattice_text text = { c->text, c->length };
            float *out = embed(&o, &text, 1, &options);
            for (size_t j = 0; j < c->cut_dim[k]; j++) assert_true(fabsf(out[j] - c->cut[k][j]) <= 5e-6f);
            free(out);
        }
    }
    close_model(&o);
    golden_free(&g);
}

/* The appended <|endoftext|> stays, whatever the limit: a cut text's vector is that of its first ids and this one. */
static void cut_qwen3_texts_keep_their_last_token(void **state)
{
    (void)state;
    opened o = open_model(FIXTURE("qwen3-embedding"));
    lattice_text text = text_of("The quick brown fox jumps over the lazy dog.");
    lattice_encode_options all = lattice_encode_options_default();
    lattice_encoding e;
    lattice_error err;
    assert_ok_err(lattice_encode(lattice_model_tokenizer(o.model), text, NULL, &all, &e, &err), &err);
    assert_true(e.n > 8);
    uint32_t end = e.ids[e.n - 1], wanted_ids[6];
    memcpy(wanted_ids, e.ids, 5 * sizeof *e.ids);
    wanted_ids[5] = end;
    lattice_encoding_free(&e);
    lattice_embed_options options = lattice_embed_options_default();
    options.max_length = 6;
    float *out = embed(&o, &text, 1, &options), wanted[64];
    lattice_ids ids = { wanted_ids, 6 };
    assert_ok_err(lattice_embed_ids(o.model, &ids, 1, NULL, wanted, NULL, &err), &err);
    assert_memory_equal(out, wanted, sizeof wanted);
    free(out);
    close_model(&o);
}

/* inference_config.json bounds the rotary table and with it the texts. */
static void rotary_table_bounds_the_length(void **state)
{
    (void)state;
    lt_test_folder folder = copy_model(FIXTURE("qwen3-embedding"));
    write_text(&folder, "inference_config.json", "{\"rope_table_max_seq_len\": 20}");
    opened o = open_model(folder.path);
    assert_int_equal(o.info.max_positions, 20);
    uint32_t ids[21];
    for (uint32_t i = 0; i < 21; i++) ids[i] = 100 + i;
    lattice_ids whole = { ids, 20 }, longer = { ids, 21 };
    float out[64];
    lattice_error err;
    assert_ok_err(lattice_embed_ids(o.model, &whole, 1, NULL, out, NULL, &err), &err);
    assert_int_equal(lattice_embed_ids(o.model, &longer, 1, NULL, out, NULL, &err), LATTICE_ERR_TOO_LONG);
    assert_non_null(strstr(err.message, "20"));
    close_model(&o);
    lt_test_folder_remove(&folder);
}

/* Where the published model is installed: LATTICE_MINILM, else the folder that scripts/fetch-model fills. */
static void texts_of_all_minilm_l6_v2_give_the_reference_vectors(void **state)
{
    (void)state;
    const char *folder = getenv("LATTICE_MINILM"), *data = getenv("XDG_DATA_HOME"), *home = getenv("HOME");
    char path[512];
    if (folder)
        snprintf(path, sizeof path, "%s", folder);
    else if (data && data[0] == '/')
        snprintf(path, sizeof path, "%s/lattice/models/all-minilm-l6-v2", data);
    else
        snprintf(path, sizeof path, "%s/.local/share/lattice/models/all-minilm-l6-v2", home ? home : "");
    if (access(path, R_OK) != 0) {
        print_message("skipped: all-minilm-l6-v2 is not installed (scripts/fetch-model)\n");
        skip();
    }
    golden g = golden_read(FIXTURE("real/all-minilm-l6-v2.json"), "cases");
    assert_int_equal(g.n, 159);
    opened o = open_model(path);
    for (size_t i = 0; i < g.n; i++) {
        lattice_encode_options options = lattice_encode_options_default();
        options.max_length = g.max_length;
        lattice_encoding e;
        lattice_error err;
        lattice_text text = { g.cases[i].text, g.cases[i].length };
        assert_ok_err(lattice_encode(lattice_model_tokenizer(o.model), text, NULL, &options, &e, &err), &err);
        assert_int_equal(e.n, g.cases[i].n_ids);
        assert_memory_equal(e.ids, g.cases[i].ids, e.n * sizeof *e.ids);
        lattice_encoding_free(&e);
    }
    golden some = g;
    some.n = LT_ROUNDS(g.n, 12); /* these are millions of weights */
    check_cases(&o, &some);
    close_model(&o);
    golden_free(&g);
}

static void check_prompts(opened *o, const golden *g)
{
    for (size_t i = 0; i < g->n; i++) {
        lattice_embed_options options = lattice_embed_options_default();
        options.prompt_name = g->cases[i].prompt_name;
        lattice_text text = { g->cases[i].text, g->cases[i].length };
        float *out = embed(o, &text, 1, &options);
        assert_embedding(out, &g->cases[i]);
        free(out);
    }
}

static void instructions_of_qwen3_are_prompts(void **state)
{
    (void)state;
    golden g = golden_read(FIXTURE("qwen3-embedding/golden.json"), "prompt_cases");
    opened o = open_model(FIXTURE("qwen3-embedding"));
    check_prompts(&o, &g);
    close_model(&o);
    golden_free(&g);
}

static void prompts_are_found_by_name_and_put_before_the_text(void **state)
{
    (void)state;
    golden g = golden_read(FIXTURE("bert-mean-f16/golden.json"), "prompt_cases");
    opened o = open_model(FIXTURE("bert-mean-f16"));
    check_prompts(&o, &g);
    /* The same prompt as a string, and ids as given. */
    lattice_embed_options options = lattice_embed_options_default();
    options.prompt = "query: ";
    lattice_text text = { g.cases[0].text, g.cases[0].length };
    float *out = embed(&o, &text, 1, &options), from_ids[48];
    assert_string_equal(g.cases[0].prompt_name, "query");
    assert_embedding(out, &g.cases[0]);
    lattice_ids ids = { g.cases[0].ids, g.cases[0].n_ids };
    lattice_error err;
    assert_ok_err(lattice_embed_ids(o.model, &ids, 1, NULL, from_ids, NULL, &err), &err);
    assert_memory_equal(out, from_ids, sizeof from_ids);
    free(out);
    options = lattice_embed_options_default();
    options.prompt_name = "nonsense";
    float unused[48];
    assert_int_equal(lattice_embed(o.model, &text, 1, &options, unused, NULL, &err), LATTICE_ERR_INVALID_ARGUMENT);
    assert_non_null(strstr(err.message, "'nonsense'"));
    assert_non_null(strstr(err.message, "query, passage"));
    close_model(&o);
    golden_free(&g);
}

/* The six poolings of one text, not normalised, chosen by the caller; joined in the documented order when several are. */
static void poolings_are_chosen_by_the_caller(void **state)
{
    (void)state;
    static const char *const names[6] = { "cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken" };
    size_t size;
    char *file = lt_test_read_file(FIXTURE("bert-cls/golden.json"), &size);
    lt_json *j = malloc(sizeof *j);
    float wanted[6][48];
    char *text = NULL;
    size_t length = 0, found = 0;
    lt_json_open(j, &lt_malloc_allocator, "golden.json", file, size, NULL);
    assert_ok(lt_json_begin_object(j));
    lt_str key;
    for (bool more; lt_json_next_member(j, &key, &more) == LATTICE_OK && more;) {
        if (!lt_str_is(key, "pooling_cases")) {
            assert_ok(lt_json_skip(j));
            continue;
        }
        assert_ok(lt_json_begin_object(j));
        for (bool member; lt_json_next_member(j, &key, &member) == LATTICE_OK && member;) {
            if (lt_str_is(key, "text")) {
                text = copy_string(j, &length);
            } else if (lt_str_is(key, "not_normalized")) {
                assert_ok(lt_json_begin_object(j));
                for (bool pooling; lt_json_next_member(j, &key, &pooling) == LATTICE_OK && pooling;) {
                    size_t k = 0, n = 0;
                    while (k < 6 && !lt_str_is(key, names[k])) k++;
                    assert_true(k < 6);
                    assert_ok(lt_json_begin_array(j));
                    for (bool item; lt_json_next_element(j, &item) == LATTICE_OK && item;)
                        assert_ok(lt_json_float(j, &wanted[k][n++]));
                    assert_int_equal(n, 48);
                    found++;
                }
            } else {
                assert_ok(lt_json_skip(j));
            }
        }
    }
    lt_json_close(j);
    free(j);
    free(file);
    assert_int_equal(found, 6);
    opened o = open_model(FIXTURE("bert-cls"));
    lattice_embed_options options = lattice_embed_options_default();
    options.no_normalize = true;
    lattice_text t = { text, length };
    for (unsigned k = 0; k <= 6; k++) {
        options.pooling = k < 6 ? 1u << k : 63;
        size_t dim = lattice_embed_dim(o.model, &options);
        assert_int_equal(dim, k < 6 ? 48 : 6 * 48);
        float *out = embed(&o, &t, 1, &options);
        for (size_t i = 0; i < dim; i++) {
            float w = k < 6 ? wanted[k][i] : wanted[i / 48][i % 48];
            assert_true(fabsf(out[i] - w) <= 1e-5f * fmaxf(1, fabsf(w)));
        }
        free(out);
    }
    options.pooling = 64;
    assert_int_equal(lattice_embed_dim(o.model, &options), 0);
    close_model(&o);
    free(text);
}

/* ------------------------------------------------------------------ the numerics contract */

static uint32_t random_state = 12345;

static size_t random_below(size_t n)
{
    random_state = random_state * 1664525u + 1013904223u;
    return (size_t)((uint64_t)(random_state >> 8) * n >> 24);
}

enum { N_TEXTS = LT_ROUNDS(40, 12) };

/* Texts of 0 to about 200 words: shorter and longer than the model's 128 tokens. */
static char *random_text(void)
{
    static const char *const words[] = { "hello ", "the ", "quick ", "brown ",    "fox ", "Paris ",
                                         "café ",  "x",    "1234 ",  "capital, ", "公园", "\n" };
    size_t n = random_below(4) ? random_below(24) : random_below(200);
    char *text = calloc(n + 1, 16);
    for (size_t i = 0; i < n; i++) strcat(text, words[random_below(sizeof words / sizeof words[0])]);
    return text;
}

/* A text's vector is the same bits alone and in any batch, order, budget and number of threads. */
static void check_same_bits(const char *folder, int thread_step)
{
    char *strings[N_TEXTS];
    float *alone[N_TEXTS];
    opened o = open_with(folder, 1, NULL);
    size_t dim = o.info.embedding_dim;
    for (size_t i = 0; i < N_TEXTS; i++) {
        strings[i] = random_text();
        lattice_text t = text_of(strings[i]);
        alone[i] = embed(&o, &t, 1, NULL);
    }
    close_model(&o);
    for (int threads = 1; threads <= 8; threads += thread_step) {
        lattice_model_options model_options = lattice_model_options_default();
        model_options.batch_tokens = 1 + random_below(3000);
        o = open_with(folder, threads, &model_options);
        for (int round = 0; round < 2; round++) {
            size_t order[N_TEXTS], n = 1 + random_below(N_TEXTS);
            lattice_text texts[N_TEXTS];
            for (size_t i = 0; i < n; i++) {
                order[i] = random_below(N_TEXTS);
                texts[i] = text_of(strings[order[i]]);
            }
            lattice_embed_options options = lattice_embed_options_default();
            options.batch_tokens = random_below(2) ? 1 + random_below(model_options.batch_tokens) : 0;
            float *out = embed(&o, texts, n, &options);
            for (size_t i = 0; i < n; i++) assert_memory_equal(out + i * dim, alone[order[i]], dim * sizeof *out);
            free(out);
        }
        close_model(&o);
    }
    for (size_t i = 0; i < N_TEXTS; i++) {
        free(strings[i]);
        free(alone[i]);
    }
}

static void vectors_are_the_same_bits_in_any_batch(void **state)
{
    (void)state;
    check_same_bits(FIXTURE("bert-cls"), LT_ROUNDS(1, 7));
    check_same_bits(FIXTURE("bert-mean-f16"), LT_ROUNDS(4, 7));
    check_same_bits(FIXTURE("roberta-max"), LT_ROUNDS(4, 7));
    check_same_bits(FIXTURE("xlmr-mean"), LT_ROUNDS(4, 7));
}

static char *repeat(const char *unit, size_t n)
{
    size_t len = strlen(unit);
    char *text = malloc(n * len + 1);
    for (size_t i = 0; i < n; i++) memcpy(text + i * len, unit, len);
    text[n * len] = 0;
    return text;
}

/* Neighbours of nearly the same length do not leak into each other, and a long batch with cut texts stays finite. */
static void neighbours_do_not_leak(void **state)
{
    (void)state;
    static const char *const units[] = { "a ", "b ", "c ", "d ", "e ", "f ", "g ", "h " };
    static const size_t counts[] = { 123, 124, 125, 126, 36, 113, 139, 182 };
    opened o = open_model(FIXTURE("bert-cls"));
    lattice_text texts[8];
    char *strings[8];
    for (size_t i = 0; i < 8; i++) {
        strings[i] = repeat(units[i], counts[i]);
        texts[i] = text_of(strings[i]);
    }
    float *together = embed(&o, texts, 8, NULL);
    for (size_t i = 0; i < 8; i++) {
        float *alone = embed(&o, &texts[i], 1, NULL);
        for (size_t k = 0; k < 48; k++) assert_true(isfinite(alone[k]));
        assert_memory_equal(together + i * 48, alone, 48 * sizeof *alone);
        free(alone);
        free(strings[i]);
    }
    free(together);
    close_model(&o);
}

/* More texts than one window holds: the background fills the next window while this one computes. */
static void many_windows_keep_the_order_of_the_texts(void **state)
{
    (void)state;
    enum { N = 6000 };
    opened o = open_model(FIXTURE("bert-cls"));
    char(*strings)[24] = malloc(N * sizeof *strings);
    lattice_text *texts = malloc(N * sizeof *texts);
    for (size_t i = 0; i < N; i++) {
        snprintf(strings[i], sizeof strings[i], "number %zu", i * 7919 % N);
        texts[i] = text_of(strings[i]);
    }
    float *out = embed(&o, texts, N, NULL);
    for (size_t i = 0; i < N; i += 97) {
        float *alone = embed(&o, &texts[i], 1, NULL);
        assert_memory_equal(out + i * 48, alone, 48 * sizeof *alone);
        free(alone);
    }
    free(out);
    free(texts);
    free(strings);
    close_model(&o);
}

typedef struct caller {
    opened *o;
    const golden *g;
    size_t first;
    int failures;
} caller;

static void *call_from_thread(void *arg)
{
    caller *c = arg;
    for (size_t round = 0; round < 8; round++) {
        lattice_text texts[3];
        float out[3 * 48];
        for (size_t k = 0; k < 3; k++) {
            const golden_case *g = &c->g->cases[(c->first + round + k) % c->g->n];
            texts[k] = (lattice_text){ g->text, g->length };
        }
        if (lattice_embed(c->o->model, texts, 3, NULL, out, NULL, NULL) != LATTICE_OK) c->failures++;
        for (size_t k = 0; k < 3; k++)
            for (size_t i = 0; i < 48; i++)
                c->failures += !(fabsf(out[k * 48 + i] - c->g->cases[(c->first + round + k) % c->g->n].embedding[i]) <= 5e-6f);
    }
    return NULL;
}

static void eight_threads_share_one_model(void **state)
{
    (void)state;
    golden g = golden_read(FIXTURE("bert-cls/golden.json"), "cases");
    opened o = open_model(FIXTURE("bert-cls"));
    caller callers[8];
    pthread_t threads[8];
    for (size_t i = 0; i < 8; i++) {
        callers[i] = (caller){ &o, &g, i * 5, 0 };
        assert_int_equal(pthread_create(&threads[i], NULL, call_from_thread, &callers[i]), 0);
    }
    for (size_t i = 0; i < 8; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(callers[i].failures, 0);
    }
    close_model(&o);
    golden_free(&g);
}

/* ------------------------------------------------------------------ lengths */

static void longer_texts_are_cut_keeping_both_specials(void **state)
{
    (void)state;
    opened o = open_model(FIXTURE("bert-cls"));
    char *text = repeat("hello ", 512);
    lattice_encode_options encode = lattice_encode_options_default();
    encode.max_length = o.info.max_length;
    lattice_encoding e;
    lattice_error err;
    assert_ok_err(lattice_encode(lattice_model_tokenizer(o.model), text_of(text), NULL, &encode, &e, &err), &err);
    assert_int_equal(e.n, 128);
    assert_int_equal(e.ids[0], 2);
    assert_int_equal(e.ids[127], 3);
    lattice_ids ids = { e.ids, e.n };
    lattice_text t = text_of(text);
    float from_text[48], from_ids[48];
    uint32_t count;
    lattice_usage usage = { .text_tokens = &count };
    assert_ok_err(lattice_embed(o.model, &t, 1, NULL, from_text, &usage, &err), &err);
    assert_ok_err(lattice_embed_ids(o.model, &ids, 1, NULL, from_ids, NULL, &err), &err);
    assert_memory_equal(from_text, from_ids, sizeof from_ids);
    assert_int_equal(count, 128);
    assert_int_equal(usage.n_truncated, 1);
    lattice_encoding_free(&e);
    free(text);
    close_model(&o);
}

static void a_longer_text_is_an_error_when_not_to_be_cut(void **state)
{
    (void)state;
    opened o = open_model(FIXTURE("bert-cls"));
    char *text = repeat("a ", 200);
    lattice_text texts[2] = { text_of("short"), text_of(text) };
    lattice_embed_options options = lattice_embed_options_default();
    options.truncate = false;
    float out[2 * 48];
    lattice_error err;
    assert_int_equal(lattice_embed(o.model, texts, 2, &options, out, NULL, &err), LATTICE_ERR_TOO_LONG);
    assert_string_equal(err.message, "text 1 has 202 tokens, more than the limit of 128");
    options.first_index = 1000;
    assert_int_equal(lattice_embed(o.model, texts, 2, &options, out, NULL, &err), LATTICE_ERR_TOO_LONG);
    assert_non_null(strstr(err.message, "text 1001 "));
    options.max_length = 129;
    assert_int_equal(lattice_embed(o.model, texts, 1, &options, out, NULL, &err), LATTICE_ERR_INVALID_ARGUMENT);
    options = lattice_embed_options_default();
    options.batch_tokens = o.info.batch_tokens + 1;
    assert_int_equal(lattice_embed(o.model, texts, 1, &options, out, NULL, &err), LATTICE_ERR_INVALID_ARGUMENT);
    free(text);
    close_model(&o);
}

/* 514 positions stored serve 512 tokens of RoBERTa: the tiny one stores 130 and takes 128. */
static void roberta_positions_are_never_read_past_the_table(void **state)
{
    (void)state;
    opened o = open_model(FIXTURE("roberta-max"));
    assert_int_equal(o.info.max_positions, 128);
    uint32_t tokens[129];
    for (size_t i = 0; i < 129; i++) tokens[i] = 100;
    lattice_ids fits = { tokens, 128 }, longer = { tokens, 129 };
    float out[40];
    lattice_error err;
    assert_ok_err(lattice_embed_ids(o.model, &fits, 1, NULL, out, NULL, &err), &err);
    assert_int_equal(lattice_embed_ids(o.model, &longer, 1, NULL, out, NULL, &err), LATTICE_ERR_TOO_LONG);
    close_model(&o);
}

static void a_text_of_megabytes_is_cut(void **state)
{
    (void)state;
    opened o = open_model(FIXTURE("bert-cls"));
    char *text = repeat("hello world, ", 400000), *start = repeat("hello world, ", 400);
    lattice_text texts[2] = { text_of(text), text_of(start) };
    float *out = embed(&o, texts, 2, NULL);
    assert_memory_equal(out, out + 48, 48 * sizeof *out);
    free(out);
    free(text);
    free(start);
    close_model(&o);
}

static void a_budget_smaller_than_a_text_gives_it_a_batch_alone(void **state)
{
    (void)state;
    lattice_model_options options = lattice_model_options_default();
    options.batch_tokens = 4;
    opened small = open_with(FIXTURE("bert-cls"), 2, &options), large = open_model(FIXTURE("bert-cls"));
    lattice_text text = text_of("The quick brown fox jumps over the lazy dog.");
    float *x = embed(&small, &text, 1, NULL), *y = embed(&large, &text, 1, NULL);
    assert_memory_equal(x, y, 48 * sizeof *x);
    free(x);
    free(y);
    close_model(&small);
    close_model(&large);
}

/* ------------------------------------------------------------------ dim, normalising, Dense */

static void dim_keeps_a_prefix_of_unit_length(void **state)
{
    (void)state;
    opened o = open_model(FIXTURE("bert-cls"));
    lattice_text text = text_of("hello world");
    lattice_embed_options options = lattice_embed_options_default();
    float *full = embed(&o, &text, 1, &options);
    options.dim = 20;
    assert_int_equal(lattice_embed_dim(o.model, &options), 20);
    float *cut = embed(&o, &text, 1, &options);
    double norm = 0, length = 0;
    for (size_t i = 0; i < 20; i++) norm += (double)full[i] * full[i];
    for (size_t i = 0; i < 20; i++) {
        assert_true(fabs(cut[i] - full[i] / sqrt(norm)) <= 1e-6);
        length += (double)cut[i] * cut[i];
    }
    assert_true(fabs(length - 1) <= 1e-6);
    options.dim = 49;
    lattice_error err;
    assert_int_equal(lattice_embed_dim(o.model, &options), 0);
    assert_int_equal(lattice_embed(o.model, &text, 1, &options, full, NULL, &err), LATTICE_ERR_INVALID_ARGUMENT);
    assert_non_null(strstr(err.message, "49"));
    free(full);
    free(cut);
    close_model(&o);
}

static const char dense_modules[] =
    "[{\"idx\":0,\"name\":\"0\",\"path\":\"\",\"type\":\"sentence_transformers.models.Transformer\"},"
    "{\"idx\":1,\"name\":\"1\",\"path\":\"1_Pooling\",\"type\":\"sentence_transformers.models.Pooling\"},"
    "{\"idx\":2,\"name\":\"2\",\"path\":\"2_Dense\",\"type\":\"sentence_transformers.models.Dense\"},"
    "{\"idx\":3,\"name\":\"3\",\"path\":\"3_Normalize\",\"type\":\"sentence_transformers.models.Normalize\"}]";

enum { DENSE_OUT = 70 };

/* 2_Dense with W[70, 48] and b[70] of made-up values, tanh. */
static void write_dense(const lt_test_folder *folder, float w[DENSE_OUT][48], float b[DENSE_OUT])
{
    char path[256], header[512];
    mkdir(lt_test_path(folder, "2_Dense", path), 0777);
    write_text(folder, "modules.json", dense_modules);
    write_text(
        folder, "2_Dense/config.json",
        "{\"in_features\":48,\"out_features\":70,\"bias\":true,\"activation_function\":\"torch.nn.modules.activation.Tanh\"}");
    for (size_t o = 0; o < DENSE_OUT; o++) {
        b[o] = (float)((int)(o * 37 % 11) - 5) / 20;
        for (size_t i = 0; i < 48; i++) w[o][i] = (float)((int)((o * 131 + i * 71) % 29) - 14) / 50;
    }
    size_t nw = sizeof(float) * DENSE_OUT * 48, nb = sizeof(float) * DENSE_OUT;
    int n = snprintf(header, sizeof header,
                     "{\"linear.weight\":{\"dtype\":\"F32\",\"shape\":[70,48],\"data_offsets\":[0,%zu]},"
                     "\"linear.bias\":{\"dtype\":\"F32\",\"shape\":[70],\"data_offsets\":[%zu,%zu]}}",
                     nw, nw, nw + nb);
    while (n % 8) header[n++] = ' ';
    char *file = malloc(8 + (size_t)n + nw + nb);
    uint64_t size = (uint64_t)n;
    memcpy(file, &size, 8);
    memcpy(file + 8, header, (size_t)n);
    memcpy(file + 8 + n, w, nw);
    memcpy(file + 8 + (size_t)n + nw, b, nb);
    lt_test_write_file(lt_test_path(folder, "2_Dense/model.safetensors", path), file, 8 + (size_t)n + nw + nb);
    free(file);
}

static void dense_modules_follow_the_pooling(void **state)
{
    (void)state;
    static float w[DENSE_OUT][48], b[DENSE_OUT];
    lt_test_folder folder = copy_model(FIXTURE("bert-cls"));
    write_dense(&folder, w, b);
    opened plain = open_model(FIXTURE("bert-cls")), o = open_model(folder.path);
    assert_int_equal(o.info.embedding_dim, DENSE_OUT);
    lattice_embed_options raw = lattice_embed_options_default();
    raw.no_normalize = true;
    lattice_text texts[40];
    for (size_t i = 0; i < 40; i++) texts[i] = text_of(i % 2 ? "hello world" : "What is the capital of France?");
    float *pooled = embed(&plain, texts, 40, &raw), *out = embed(&o, texts, 40, NULL);
    for (size_t t = 0; t < 40; t++) {
        double y[DENSE_OUT], norm = 0;
        for (size_t k = 0; k < DENSE_OUT; k++) {
            y[k] = b[k];
            for (size_t i = 0; i < 48; i++) y[k] += (double)w[k][i] * pooled[t * 48 + i];
            y[k] = tanh(y[k]);
            norm += y[k] * y[k];
        }
        for (size_t k = 0; k < DENSE_OUT; k++) assert_true(fabs(out[t * DENSE_OUT + k] - y[k] / sqrt(norm)) <= 5e-6);
    }
    float *alone = embed(&o, &texts[1], 1, NULL);
    assert_memory_equal(alone, out + DENSE_OUT, DENSE_OUT * sizeof *out);
    /* A pooling of another width does not fit the module. */
    raw.pooling = LATTICE_POOLING_CLS | LATTICE_POOLING_MEAN;
    assert_int_equal(lattice_embed_dim(o.model, &raw), 0);
    free(alone);
    free(pooled);
    free(out);
    close_model(&plain);
    close_model(&o);
    lt_test_folder_remove(&folder);
}

/* ------------------------------------------------------------------ prompts and case */

/* include_prompt false: the mean is over the tokens behind "query: ", whose [CLS] counts to the prompt and whose [SEP] does not.
 */
static void prompt_tokens_are_left_out_of_pooling_when_the_checkpoint_says_so(void **state)
{
    (void)state;
    lt_test_folder folder = copy_model(FIXTURE("bert-mean-f16"));
    write_text(&folder, "1_Pooling/config.json",
               "{\"word_embedding_dimension\":48,\"pooling_mode_cls_token\":false,\"pooling_mode_mean_tokens\":true,"
               "\"pooling_mode_max_tokens\":false,\"pooling_mode_mean_sqrt_len_tokens\":false,\"include_prompt\":false}");
    golden g = golden_read(FIXTURE("bert-mean-f16/golden.json"), "prompt_cases");
    const golden_case *c = &g.cases[0]; /* [CLS] query : hello world [SEP] */
    size_t prompt = 0;
    while (c->ids[prompt] != 30) prompt++; /* the id of ":" */
    prompt++;
    opened o = open_model(folder.path);
    lattice_embed_options options = lattice_embed_options_default();
    options.prompt_name = c->prompt_name;
    lattice_text text = { c->text, c->length };
    float *out = embed(&o, &text, 1, &options);
    uint32_t positions[64];
    for (uint32_t i = 0; i < 64; i++) positions[i] = i;
    size_t starts[2] = { 0, c->n_ids };
    lt_batch batch = { .n_tokens = c->n_ids, .n_seqs = 1, .ids = c->ids, .positions = positions, .seq_starts = starts };
    float *hidden = malloc(c->n_ids * 48 * sizeof *hidden);
    lattice_error err;
    assert_ok_err(o.model->backend->run(o.model->program, &batch, LT_TAIL_TOKENS, hidden, NULL, &err), &err);
    double mean[48] = { 0 }, norm = 0;
    for (size_t i = prompt; i < c->n_ids; i++)
        for (size_t k = 0; k < 48; k++) mean[k] += hidden[i * 48 + k];
    for (size_t k = 0; k < 48; k++) norm += mean[k] * mean[k];
    for (size_t k = 0; k < 48; k++) assert_true(fabs(out[k] - mean[k] / sqrt(norm)) <= 5e-6);
    free(hidden);
    free(out);
    close_model(&o);
    golden_free(&g);
    lt_test_folder_remove(&folder);
}

static void default_prompts_apply_unless_none_is_asked_for(void **state)
{
    (void)state;
    lt_test_folder folder = copy_model(FIXTURE("bert-mean-f16"));
    write_text(&folder, "config_sentence_transformers.json",
               "{\"prompts\":{\"query\":\"query: \",\"passage\":\"passage: \"},\"default_prompt_name\":\"passage\"}");
    golden prompts = golden_read(FIXTURE("bert-mean-f16/golden.json"), "prompt_cases"),
           cases = golden_read(FIXTURE("bert-mean-f16/golden.json"), "cases");
    opened o = open_model(folder.path);
    lattice_text text = text_of("hello world");
    lattice_embed_options options = lattice_embed_options_default();
    float *out = embed(&o, &text, 1, &options);
    assert_string_equal(prompts.cases[1].prompt_name, "passage");
    assert_embedding(out, &prompts.cases[1]);
    free(out);
    options.prompt_name = "";
    out = embed(&o, &text, 1, &options);
    assert_embedding(out, &cases.cases[0]);
    free(out);
    close_model(&o);
    golden_free(&prompts);
    golden_free(&cases);
    lt_test_folder_remove(&folder);
}

static void lower_case_is_pythons(void **state)
{
    (void)state;
    static const char *const pairs[][2] = {
        { "HELLO World 1", "hello world 1" },
        { "ÀÉÎ ŞİMŞEK", "àéî şi\xCC\x87mşek" },
        { "ΟΔΥΣΣΕΥΣ, ΣΑΣ Σ", "οδυσσευς, σας σ" },
        { "ΑΣ'Α ΑΣ.", "ασ'α ας." },
        { "ẞ Ǆ \xF0\x90\x90\x80", "ß ǆ \xF0\x90\x90\xA8" },
        { "\xFFX", "\xEF\xBF\xBDx" },
    };
    lt_buf out;
    lt_buf_init(&out, &lt_malloc_allocator);
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        lt_buf_clear(&out);
        lt_lower_case_append(&out, lt_str_of(pairs[i][0]));
        assert_string_equal(out.data, pairs[i][1]);
    }
    lt_buf_free(&out);
}

static void texts_are_lower_cased_when_the_checkpoint_says_so(void **state)
{
    (void)state;
    lt_test_folder folder = copy_model(FIXTURE("roberta-max"));
    write_text(&folder, "sentence_bert_config.json", "{\"max_seq_length\":128,\"do_lower_case\":true}");
    opened plain = open_model(FIXTURE("roberta-max")), lower = open_model(folder.path);
    lattice_text upper_text = text_of("The CAPITAL of France"), lower_text = text_of("the capital of france");
    float *a = embed(&lower, &upper_text, 1, NULL), *b = embed(&plain, &lower_text, 1, NULL),
          *c = embed(&plain, &upper_text, 1, NULL);
    assert_memory_equal(a, b, 40 * sizeof *a);
    assert_memory_not_equal(a, c, 40 * sizeof *a);
    free(a);
    free(b);
    free(c);
    close_model(&plain);
    close_model(&lower);
    lt_test_folder_remove(&folder);
}

/* ------------------------------------------------------------------ odd texts */

static void texts_without_words_give_the_vector_of_the_specials(void **state)
{
    (void)state;
    static const char *const texts[] = { "", " ", "\n", "\x01\x02\x7f", "\t \r\n" };
    opened o = open_model(FIXTURE("bert-cls"));
    uint32_t specials[2] = { 2, 3 };
    lattice_ids ids = { specials, 2 };
    float wanted[48];
    lattice_error err;
    assert_ok_err(lattice_embed_ids(o.model, &ids, 1, NULL, wanted, NULL, &err), &err);
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        lattice_text t = text_of(texts[i]);
        float *out = embed(&o, &t, 1, NULL);
        assert_memory_equal(out, wanted, sizeof wanted);
        free(out);
    }
    lattice_text nothing = { NULL, 0 };
    float *out = embed(&o, &nothing, 1, NULL);
    assert_memory_equal(out, wanted, sizeof wanted);
    free(out);
    close_model(&o);
}

static void invalid_utf8_is_read_as_replacement_characters(void **state)
{
    (void)state;
    static const char *const bad[] = { "a \xE6\xAD b", "a \xF0\x9F\x99 b", "a \xED\xA0\x80 b" };
    static const char *const good[] = { "a \xEF\xBF\xBD b", "a \xEF\xBF\xBD b", "a \xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD b" };
    opened o = open_model(FIXTURE("roberta-max"));
    for (size_t i = 0; i < 3; i++) {
        lattice_text x = text_of(bad[i]), y = text_of(good[i]);
        float *a = embed(&o, &x, 1, NULL), *b = embed(&o, &y, 1, NULL);
        assert_memory_equal(a, b, 40 * sizeof *a);
        free(a);
        free(b);
    }
    close_model(&o);
}

static void a_nul_does_not_end_a_text(void **state)
{
    (void)state;
    opened o = open_model(FIXTURE("roberta-max"));
    lattice_text whole = { "a\0b", 3 }, cut = { "a", 1 };
    float *a = embed(&o, &whole, 1, NULL), *b = embed(&o, &cut, 1, NULL);
    assert_memory_not_equal(a, b, 40 * sizeof *a);
    free(a);
    free(b);
    close_model(&o);
}

static void no_texts_are_no_work(void **state)
{
    (void)state;
    opened o = open_model(FIXTURE("bert-cls"));
    lattice_error err;
    lattice_usage usage = { .n_tokens = 7 };
    assert_ok_err(lattice_embed(o.model, NULL, 0, NULL, NULL, &usage, &err), &err);
    assert_int_equal(usage.n_tokens, 0);
    close_model(&o);
}

/* ------------------------------------------------------------------ ids */

static void wrong_ids_are_named(void **state)
{
    (void)state;
    opened o = open_model(FIXTURE("bert-cls"));
    uint32_t good[] = { 2, 704, 3 }, bad[] = { 2, 2000, 3 };
    lattice_ids inputs[2] = { { good, 3 }, { bad, 3 } }, none = { good, 0 };
    float out[96];
    lattice_error err;
    assert_int_equal(lattice_embed_ids(o.model, inputs, 2, NULL, out, NULL, &err), LATTICE_ERR_INVALID_ARGUMENT);
    assert_string_equal(err.message, "text 1: token id 2000 is outside the model's vocabulary of 2000");
    assert_int_equal(lattice_embed_ids(o.model, &none, 1, NULL, out, NULL, &err), LATTICE_ERR_INVALID_ARGUMENT);
    assert_non_null(strstr(err.message, "no tokens"));
    close_model(&o);
}

static void ids_need_no_tokenizer(void **state)
{
    (void)state;
    lt_test_folder folder = copy_model(FIXTURE("bert-cls"));
    char path[256];
    unlink(lt_test_path(&folder, "tokenizer.json", path));
    golden g = golden_read(FIXTURE("bert-cls/golden.json"), "cases");
    lattice_runtime_options runtime_options = lattice_runtime_options_default();
    lattice_runtime *runtime;
    lattice_model *model;
    lattice_error err;
    assert_ok_err(lattice_runtime_create(&runtime_options, &runtime, &err), &err);
    assert_int_equal(lattice_model_open(runtime, folder.path, NULL, &model, &err), LATTICE_ERR_NOT_FOUND);
    assert_null(model);
    lattice_model_options options = lattice_model_options_default();
    options.tokenizer_optional = true;
    assert_ok_err(lattice_model_open(runtime, folder.path, &options, &model, &err), &err);
    lattice_ids ids = { g.cases[1].ids, g.cases[1].n_ids };
    float out[48];
    assert_ok_err(lattice_embed_ids(model, &ids, 1, NULL, out, NULL, &err), &err);
    assert_embedding(out, &g.cases[1]);
    lattice_text text = text_of("hello");
    assert_int_equal(lattice_embed(model, &text, 1, NULL, out, NULL, &err), LATTICE_ERR_NOT_FOUND);
    assert_null(lattice_model_tokenizer(model));
    lattice_model_close(model);
    lattice_runtime_free(runtime);
    golden_free(&g);
    lt_test_folder_remove(&folder);
}

/* ------------------------------------------------------------------ progress, faults */

typedef struct progress_log {
    size_t calls, last, stop_at;
} progress_log;

static bool log_progress(void *user, size_t done, size_t total)
{
    progress_log *log = user;
    assert_int_equal(total, 50);
    assert_true(done > log->last && done <= total);
    log->last = done;
    log->calls++;
    return log->stop_at == 0 || done < log->stop_at;
}

static void progress_is_reported_between_batches_and_can_cancel(void **state)
{
    (void)state;
    opened o = open_model(FIXTURE("bert-cls"));
    lattice_text texts[50];
    for (size_t i = 0; i < 50; i++) texts[i] = text_of("hello world");
    progress_log log = { 0 };
    lattice_embed_options options = lattice_embed_options_default();
    options.batch_tokens = 70; /* ten texts of seven tokens */
    options.progress = log_progress;
    options.progress_user = &log;
    float out[50 * 48];
    lattice_error err;
    assert_ok_err(lattice_embed(o.model, texts, 50, &options, out, NULL, &err), &err);
    assert_int_equal(log.calls, 5);
    assert_int_equal(log.last, 50);
    log = (progress_log){ .stop_at = 20 };
    assert_int_equal(lattice_embed(o.model, texts, 50, &options, out, NULL, &err), LATTICE_ERR_CANCELLED);
    assert_int_equal(log.last, 20);
    /* The model is as good as before. */
    log = (progress_log){ 0 };
    assert_ok_err(lattice_embed(o.model, texts, 50, &options, out, NULL, &err), &err);
    close_model(&o);
}

/* A broken row of the table spoils the texts that use it, and only those. */
static void check_broken_weight(uint32_t bits, const char *what)
{
    lt_test_folder folder = copy_model(FIXTURE("bert-cls"));
    spoil(&folder, "embeddings.word_embeddings.weight", 704 * 48 + 5, bits);
    opened o = open_model(folder.path);
    lattice_text texts[3] = { text_of("Paris"), text_of("a"), text_of("hello world") };
    float out[3 * 48];
    lattice_error err;
    assert_int_equal(lattice_embed(o.model, texts, 3, NULL, out, NULL, &err), LATTICE_ERR_NOT_FINITE);
    assert_non_null(strstr(err.message, folder.path));
    assert_non_null(strstr(err.message, "text 2 "));
    assert_ok_err(lattice_embed(o.model, texts, 2, NULL, out, NULL, &err), &err);
    assert_int_equal(lattice_model_check(o.model, &err), LATTICE_ERR_NOT_FINITE);
    assert_non_null(strstr(err.message, "'embeddings.word_embeddings.weight'"));
    assert_non_null(strstr(err.message, what));
    assert_non_null(strstr(err.message, "[704, 5]"));
    close_model(&o);
    lt_test_folder_remove(&folder);
}

static void a_broken_weight_is_an_error_naming_the_text(void **state)
{
    (void)state;
    check_broken_weight(0x7FC00000u, "NaN");
    check_broken_weight(0x7F800000u, "infinite");
    opened o = open_model(FIXTURE("bert-cls"));
    lattice_error err;
    assert_ok_err(lattice_model_check(o.model, &err), &err);
    close_model(&o);
}

static void unknown_devices_and_sets_are_refused_by_name(void **state)
{
    (void)state;
    lattice_runtime *runtime;
    lattice_model *model;
    lattice_error err;
    lattice_runtime_options runtime_options = lattice_runtime_options_default();
    assert_ok_err(lattice_runtime_create(&runtime_options, &runtime, &err), &err);
    lattice_model_options options = lattice_model_options_default();
    options.device = "toaster";
    assert_int_equal(lattice_model_open(runtime, FIXTURE("bert-cls"), &options, &model, &err), LATTICE_ERR_INVALID_ARGUMENT);
    assert_non_null(strstr(err.message, "toaster"));
    options.device = "cpu";
    options.isa = "mmx";
    assert_int_equal(lattice_model_open(runtime, FIXTURE("bert-cls"), &options, &model, &err), LATTICE_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.message, "mmx"));
    assert_int_equal(lattice_model_open(runtime, "/nonexistent", NULL, &model, &err), LATTICE_ERR_NOT_FOUND);
    assert_non_null(strstr(err.message, "/nonexistent"));
    lattice_runtime_free(runtime);
}

/* Opens and embeds with an allocator that fails from request n on. */
static lattice_status open_and_embed(const lattice_allocator *mem, const char *folder)
{
    lattice_error err;
    lattice_runtime *runtime;
    lattice_runtime_options runtime_options = lattice_runtime_options_default();
    runtime_options.n_threads = 2;
    runtime_options.allocator = mem;
    lattice_status status = lattice_runtime_create(&runtime_options, &runtime, &err);
    if (status != LATTICE_OK) return status;
    lattice_model *model = NULL;
    status = lattice_model_open(runtime, folder, NULL, &model, &err);
    if (status == LATTICE_OK) {
        lattice_text texts[2] = { text_of("hello world"), text_of("The quick brown fox") };
        float out[2 * 64];
        status = lattice_embed(model, texts, 2, NULL, out, NULL, &err);
    }
    if (status != LATTICE_OK) assert_int_equal(err.code, status);
    lattice_model_close(model);
    lattice_runtime_free(runtime);
    return status;
}

static void check_every_allocation(const char *folder)
{
    for (long n = 1;; n++) {
        lt_test_allocator a = lt_test_allocator_failing_at(n);
        lattice_allocator mem = lt_test_allocator_hooks(&a);
        lattice_status status = open_and_embed(&mem, folder);
        assert_int_equal(lt_test_allocator_live(&a), 0);
        if (status == LATTICE_OK) {
            assert_true(atomic_load(&a.requests) < n);
            break;
        }
        if (status != LATTICE_ERR_NO_MEMORY) fail_msg("request %ld failing: %s", n, lattice_status_text(status));
    }
}

static void every_failing_allocation_is_out_of_memory_without_a_leak(void **state)
{
    (void)state;
    check_every_allocation(FIXTURE("bert-cls"));
    check_every_allocation(FIXTURE("bert-mean-f16"));
}

/* ------------------------------------------------------------------ descriptions and measuring */

static void a_model_describes_itself(void **state)
{
    (void)state;
    opened o = open_model(FIXTURE("bert-mean-f16"));
    size_t length;
    lattice_error err;
    assert_ok_err(lattice_model_describe(o.model, true, true, NULL, 0, &length, &err), &err);
    char *json = malloc(length + 1);
    assert_ok_err(lattice_model_describe(o.model, true, true, json, length + 1, &length, &err), &err);
    assert_int_equal(strlen(json), length);
    lt_json *j = malloc(sizeof *j);
    lt_json_open(j, &lt_malloc_allocator, "description", json, length, &err);
    assert_ok_err(lt_json_skip(j), &err);
    assert_ok_err(lt_json_end(j), &err);
    lt_json_close(j);
    free(j);
    static const char *const parts[] = {
        "\"family\":\"bert\"",       "\"hidden_size\":48",  "\"pooling\":\"mean\"", "\"query\":\"query: \"",
        "\"tensor_types\":{\"F16\"", "\"admissible\":true", "\"plan\":[",           "\"kind\":\"WordPiece\""
    };
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        if (!strstr(json, parts[i])) fail_msg("%s is not in %s", parts[i], json);
    }
    char small[8];
    assert_ok_err(lattice_model_describe(o.model, false, false, small, sizeof small, &length, &err), &err);
    assert_int_equal(strlen(small), 7);
    free(json);
    close_model(&o);
}

static void forward_passes_are_profiled(void **state)
{
    (void)state;
    opened o = open_model(FIXTURE("bert-cls"));
    lattice_profile_row rows[64];
    size_t n;
    lattice_error err;
    assert_ok_err(lattice_bench_forward(o.model, 3, 17, rows, 64, &n, &err), &err);
    assert_true(n > 10 && n <= 64);
    double flop = 0;
    for (size_t i = 0; i < n; i++) {
        assert_true(rows[i].seconds >= 0);
        if (strcmp(rows[i].operation, "linear") == 0) flop += rows[i].flop;
    }
    /* 2 · tokens · weights of the products: three layers of 48 x (3·48 + 48 + 2·96). */
    assert_true(fabs(flop - 2.0 * 51 * 3 * 48 * (4 * 48 + 2 * 96)) < 1);
    assert_int_equal(lattice_bench_forward(o.model, 1, 129, NULL, 0, NULL, &err), LATTICE_ERR_INVALID_ARGUMENT);
    assert_ok_err(lattice_bench_forward(o.model, 2000, 20, NULL, 0, NULL, &err), &err); /* more than one batch */
    lattice_machine_peak peak;
    assert_ok_err(lattice_measure_peak(o.runtime, NULL, 0.01, &peak, &err), &err);
    assert_true(peak.gflops_f32 > 0.1 && peak.read_gb_s > 0.1);
    close_model(&o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts_of_bert_cls_give_the_reference_vectors),
        cmocka_unit_test(texts_of_bert_mean_f16_give_the_reference_vectors),
        cmocka_unit_test(texts_of_roberta_max_give_the_reference_vectors),
        cmocka_unit_test(texts_of_xlmr_mean_give_the_reference_vectors),
        cmocka_unit_test(texts_of_qwen3_embedding_give_the_reference_vectors),
        cmocka_unit_test(qwen3_vectors_are_cut_and_normalised_again),
        cmocka_unit_test(cut_qwen3_texts_keep_their_last_token),
        cmocka_unit_test(rotary_table_bounds_the_length),
        cmocka_unit_test(texts_of_all_minilm_l6_v2_give_the_reference_vectors),
        cmocka_unit_test(instructions_of_qwen3_are_prompts),
        cmocka_unit_test(prompts_are_found_by_name_and_put_before_the_text),
        cmocka_unit_test(poolings_are_chosen_by_the_caller),
        cmocka_unit_test(vectors_are_the_same_bits_in_any_batch),
        cmocka_unit_test(neighbours_do_not_leak),
        cmocka_unit_test(many_windows_keep_the_order_of_the_texts),
        cmocka_unit_test(eight_threads_share_one_model),
        cmocka_unit_test(longer_texts_are_cut_keeping_both_specials),
        cmocka_unit_test(a_longer_text_is_an_error_when_not_to_be_cut),
        cmocka_unit_test(roberta_positions_are_never_read_past_the_table),
        cmocka_unit_test(a_text_of_megabytes_is_cut),
        cmocka_unit_test(a_budget_smaller_than_a_text_gives_it_a_batch_alone),
        cmocka_unit_test(dim_keeps_a_prefix_of_unit_length),
        cmocka_unit_test(dense_modules_follow_the_pooling),
        cmocka_unit_test(prompt_tokens_are_left_out_of_pooling_when_the_checkpoint_says_so),
        cmocka_unit_test(default_prompts_apply_unless_none_is_asked_for),
        cmocka_unit_test(lower_case_is_pythons),
        cmocka_unit_test(texts_are_lower_cased_when_the_checkpoint_says_so),
        cmocka_unit_test(texts_without_words_give_the_vector_of_the_specials),
        cmocka_unit_test(invalid_utf8_is_read_as_replacement_characters),
        cmocka_unit_test(a_nul_does_not_end_a_text),
        cmocka_unit_test(no_texts_are_no_work),
        cmocka_unit_test(wrong_ids_are_named),
        cmocka_unit_test(ids_need_no_tokenizer),
        cmocka_unit_test(progress_is_reported_between_batches_and_can_cancel),
        cmocka_unit_test(a_broken_weight_is_an_error_naming_the_text),
        cmocka_unit_test(unknown_devices_and_sets_are_refused_by_name),
        cmocka_unit_test(every_failing_allocation_is_out_of_memory_without_a_leak),
        cmocka_unit_test(a_model_describes_itself),
        cmocka_unit_test(forward_passes_are_profiled),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
