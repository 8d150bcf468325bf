/* All fixtures on an NVIDIA GPU, in float32 and in bfloat16, against the CPU and the golden values. Skipped where there is none.
 */
#include "gpu_checks.h"

static const gpu_subject cuda = { .device = "cuda", .max_tokens = BATCH_TOKENS, .prints = true };

static bool has_cuda(void)
{
    char text[256];
    return lt_gpu_cuda.describe(text, sizeof text);
}

static void check(const char *folder, bool in_bf16)
{
    if (!has_cuda()) skip();
    gpu_check_fixture(&cuda, folder, LATTICE_COMPUTE_F32, 40);
    if (in_bf16) gpu_check_fixture(&cuda, folder, LATTICE_COMPUTE_BF16, 40);
}

#define FIXTURE_TEST(name, folder, in_bf16)                                                                                      \
    static void name(void **state)                                                                                               \
    {                                                                                                                            \
        (void)state;                                                                                                             \
        check(FIXTURE(folder), in_bf16);                                                                                         \
    }

/* The random weights of Qwen3.5's fixtures magnify a rounding some 400 times (norms of outputs near zero): rounding to bfloat16
 * leaves cosines of 0.6 on the CPU, too, so they say nothing there. */

FIXTURE_TEST(bert_equals_the_cpu, "bert-cls", true)
FIXTURE_TEST(bert_in_f16_equals_the_cpu, "bert-mean-f16", true)
FIXTURE_TEST(roberta_equals_the_cpu, "roberta-max", true)
FIXTURE_TEST(xlmr_equals_the_cpu, "xlmr-mean", true)
FIXTURE_TEST(cross_encoder_of_one_label_equals_the_cpu, "cross-encoder-1", true)
FIXTURE_TEST(cross_encoder_of_three_labels_equals_the_cpu, "cross-encoder-3", true)
FIXTURE_TEST(xlmr_cross_encoder_equals_the_cpu, "xlmr-cross-encoder", true)
FIXTURE_TEST(qwen3_embedding_equals_the_cpu, "qwen3-embedding", true)
FIXTURE_TEST(qwen3_embedding_of_head_dim_80_equals_the_cpu, "qwen3-embedding-hd80-sharded-bf16", true)
FIXTURE_TEST(qwen3_reranker_equals_the_cpu, "qwen3-reranker", true)
FIXTURE_TEST(qwen35_equals_the_cpu, "qwen3.5-text", false)
FIXTURE_TEST(qwen35_in_bf16_equals_the_cpu, "qwen3.5-vl-layout-bf16", false)

#define QUANTISED_TEST(name, folder, compute)                                                                                    \
    static void name(void **state)                                                                                               \
    {                                                                                                                            \
        (void)state;                                                                                                             \
        if (!has_cuda()) skip();                                                                                                 \
        gpu_check_quantised(&cuda, FIXTURE(folder), LATTICE_COMPUTE_##compute);                                                  \
    }

QUANTISED_TEST(bert_in_q8_0_equals_the_cpu, "bert-cls", F32)
QUANTISED_TEST(xlmr_cross_encoder_in_q8_0_equals_the_cpu, "xlmr-cross-encoder", F32)
QUANTISED_TEST(qwen3_embedding_in_q8_0_equals_the_cpu, "qwen3-embedding", AUTO)
QUANTISED_TEST(qwen3_reranker_in_q8_0_equals_the_cpu, "qwen3-reranker", AUTO)
QUANTISED_TEST(qwen35_in_q8_0_equals_the_cpu, "qwen3.5-text", F32)

/* With a pattern, the tests that it fits: for compute-sanitizer, under which all of them take long. */
int main(int argc, char **argv)
{
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bert_equals_the_cpu),
        cmocka_unit_test(bert_in_f16_equals_the_cpu),
        cmocka_unit_test(roberta_equals_the_cpu),
        cmocka_unit_test(xlmr_equals_the_cpu),
        cmocka_unit_test(cross_encoder_of_one_label_equals_the_cpu),
        cmocka_unit_test(cross_encoder_of_three_labels_equals_the_cpu),
        cmocka_unit_test(xlmr_cross_encoder_equals_the_cpu),
        cmocka_unit_test(qwen3_embedding_equals_the_cpu),
        cmocka_unit_test(qwen3_embedding_of_head_dim_80_equals_the_cpu),
        cmocka_unit_test(qwen3_reranker_equals_the_cpu),
        cmocka_unit_test(qwen35_equals_the_cpu),
        cmocka_unit_test(qwen35_in_bf16_equals_the_cpu),
        cmocka_unit_test(bert_in_q8_0_equals_the_cpu),
        cmocka_unit_test(xlmr_cross_encoder_in_q8_0_equals_the_cpu),
        cmocka_unit_test(qwen3_embedding_in_q8_0_equals_the_cpu),
        cmocka_unit_test(qwen3_reranker_in_q8_0_equals_the_cpu),
        cmocka_unit_test(qwen35_in_q8_0_equals_the_cpu),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
