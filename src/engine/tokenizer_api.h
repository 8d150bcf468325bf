/* The public tokenizer seen from inside the library: tokenizer_api.c wraps an lt_tokenizer with the runtime it came from. */
#ifndef LT_ENGINE_TOKENIZER_API_H
#define LT_ENGINE_TOKENIZER_API_H

#include "text/tokenizer.h"

/* The wrapped tokenizer; lives as long as the wrapper. */
const lt_tokenizer *lt_tokenizer_of(const lattice_tokenizer *tokenizer);

#endif
