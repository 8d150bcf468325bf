/* The readers of request bodies, one a route. Each fills the request that its API made, and is fuzzed by itself. */
#ifndef LT_SERVER_READERS_H
#define LT_SERVER_READERS_H

#include "format/json.h"

lattice_status lt_read_openai_embeddings(lt_json *json, void *request); /* lt_embedding */

#endif
