/* The model families that are built in. */
#include "model/family.h"

static const lt_family *const families[] = { &lt_family_bert, &lt_family_qwen3, &lt_family_qwen35 };

const lt_family *lt_family_find(const lt_config *config)
{
    for (size_t i = 0; i < sizeof families / sizeof families[0]; i++) {
        if (families[i]->matches(config)) return families[i];
    }
    return NULL;
}
