/* config.json, generation_config.json and inference_config.json; a first byte G or I chooses one of the latter two, so that the
 * fixtures are seeds as they are. What is accepted must keep the promises that models rely on. */
#include <stdlib.h>

#include "format/config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char base[] =
    "{\"model_type\":\"qwen3\",\"vocab_size\":100,\"hidden_size\":64,\"num_hidden_layers\":2,\"intermediate_size\":96,"
    "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"head_dim\":32,\"max_position_embeddings\":512,\"hidden_act\":\"silu\","
    "\"rms_norm_eps\":1e-6,\"rope_theta\":1000000}";

static void check(const lt_config *c)
{
    if (!c->vocab_size || !c->hidden_size || !c->n_layers || !c->intermediate_size || !c->n_heads || !c->head_dim) abort();
    if (!c->n_kv_heads || c->n_heads % c->n_kv_heads != 0 || lt_config_max_length(c) == 0) abort();
    if (c->rotary_dim % 2 != 0 || c->rotary_dim > c->head_dim) abort();
    for (size_t i = 0; i < c->n_eos_token_ids; i++)
        if (c->eos_token_ids[i] >= c->vocab_size) abort();
    for (size_t i = 0; i < c->n_labels; i++)
        if (!c->labels[i]) abort();
    for (size_t i = 0; c->layer_types && i < c->n_layers; i++)
        if (c->layer_types[i] == LT_LAYER_LINEAR_ATTENTION && c->linear_value_heads % c->linear_key_heads != 0) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    lt_config config;
    lattice_error err;
    if (size == 0) return 0;
    lattice_status status;
    if (data[0] == 'G' || data[0] == 'I') {
        status = lt_config_parse(&lt_malloc_allocator, "base", base, sizeof base - 1, &config, &err);
        if (status != LATTICE_OK) abort();
        status = (data[0] == 'G' ? lt_config_parse_generation : lt_config_parse_inference)(&lt_malloc_allocator, "fuzz", data + 1,
                                                                                           size - 1, &config, &err);
    } else {
        status = lt_config_parse(&lt_malloc_allocator, "fuzz", data, size, &config, &err);
    }
    if (status == LATTICE_OK) check(&config);
    lt_config_free(&config);
    return 0;
}
