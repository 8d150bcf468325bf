/* The public tokenizer seen from inside the library: tokenizer_api.c wraps an lt_tokenizer with the runtime it came from. */
#ifndef LT_ENGINE_TOKENIZER_API_H
#define LT_ENGINE_TOKENIZER_API_H

#include "text/tokenizer.h"

/* The wrapped tokenizer; lives as long as the wrapper. */
const lt_tokenizer *lt_tokenizer_of(const lattice_tokenizer *tokenizer);

/* Takes an idle scratch, or makes one; every scratch taken is given back. */
lattice_status lt_take_scratch(lattice_tokenizer *tokenizer, lt_scratch **scratch, lattice_error *err);
void lt_give_back_scratch(lattice_tokenizer *tokenizer, lt_scratch *scratch);

#endif
