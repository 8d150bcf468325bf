/* The Metal text of the template, compiled for the host and emulated: whole fixtures through the device-independent executor. */
#include "gpu_checks.h"

#include "gpu/emulator.h"

static const gpu_subject emulated = { .driver = &lt_gpu_emulated, .device = "emulated", .max_tokens = 96 };

static void check(const char *folder, lattice_compute compute, unsigned order)
{
    if (!lt_emulator_works()) skip();
    lt_emulator_order = order;
    gpu_check_fixture(&emulated, folder, compute, 4);
}

#define FIXTURE_TEST(name, folder, compute, order)                                                                               \
    static void name(void **state)                                                                                               \
    {                                                                                                                            \
        (void)state;                                                                                                             \
        check(FIXTURE(folder), LATTICE_COMPUTE_##compute, order);                                                                \
    }

FIXTURE_TEST(bert, "bert-cls", F32, 0)
FIXTURE_TEST(bert_in_f16, "bert-mean-f16", F32, 1)
FIXTURE_TEST(roberta, "roberta-max", BF16, 2)
FIXTURE_TEST(xlmr_cross_encoder, "xlmr-cross-encoder", F32, 3)
FIXTURE_TEST(cross_encoder_of_three_labels, "cross-encoder-3", F32, 4)
FIXTURE_TEST(qwen3_embedding, "qwen3-embedding", F32, 0)
FIXTURE_TEST(qwen3_embedding_of_head_dim_80, "qwen3-embedding-hd80-sharded-bf16", BF16, 1)
FIXTURE_TEST(qwen3_reranker, "qwen3-reranker", F32, 2)
FIXTURE_TEST(qwen35, "qwen3.5-text", F32, 3)
FIXTURE_TEST(qwen35_in_shards, "qwen3.5-vl-layout-bf16", F32, 0)

static void check_quantised(const char *folder, lattice_compute compute, unsigned order)
{
    if (!lt_emulator_works()) skip();
    lt_emulator_order = order;
    gpu_check_quantised(&emulated, folder, compute);
}

#define QUANTISED_TEST(name, folder, compute, order)                                                                             \
    static void name(void **state)                                                                                               \
    {                                                                                                                            \
        (void)state;                                                                                                             \
        check_quantised(FIXTURE(folder), LATTICE_COMPUTE_##compute, order);                                                      \
    }

QUANTISED_TEST(bert_in_q8_0, "bert-cls", F32, 1)
QUANTISED_TEST(cross_encoder_in_q8_0, "xlmr-cross-encoder", F32, 2)
QUANTISED_TEST(qwen3_embedding_in_q8_0, "qwen3-embedding", AUTO, 0)
QUANTISED_TEST(qwen3_reranker_in_q8_0, "qwen3-reranker", F32, 4)
QUANTISED_TEST(qwen35_in_q8_0, "qwen3.5-text", F32, 3)

/* With a pattern, the tests that it fits. */
int main(int argc, char **argv)
{
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bert),
        cmocka_unit_test(bert_in_f16),
        cmocka_unit_test(roberta),
        cmocka_unit_test(xlmr_cross_encoder),
        cmocka_unit_test(cross_encoder_of_three_labels),
        cmocka_unit_test(qwen3_embedding),
        cmocka_unit_test(qwen3_embedding_of_head_dim_80),
        cmocka_unit_test(qwen3_reranker),
        cmocka_unit_test(qwen35),
        cmocka_unit_test(qwen35_in_shards),
        cmocka_unit_test(bert_in_q8_0),
        cmocka_unit_test(cross_encoder_in_q8_0),
        cmocka_unit_test(qwen3_embedding_in_q8_0),
        cmocka_unit_test(qwen3_reranker_in_q8_0),
        cmocka_unit_test(qwen35_in_q8_0),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
