/* A request to the tokenizer. */
#ifndef LT_SERVER_TOKENIZING_H
#define LT_SERVER_TOKENIZING_H

#include "server/inputs.h"

typedef struct lt_tokenizing {
    const lattice_allocator *mem;
    lt_inputs inputs; /* texts, or ids */
    const char *model_name;
    bool special; /* add special tokens; decoding: leave them out */
} lt_tokenizing;

#endif
