/* The readers of request bodies, one a route. Each fills the request that its API made, and is fuzzed by itself. */
#ifndef LT_SERVER_READERS_H
#define LT_SERVER_READERS_H

#include "format/json.h"

struct lt_scoring;

lattice_status lt_read_openai_embeddings(lt_json *json, void *request); /* lt_embedding */
lattice_status lt_read_openai_chat(lt_json *json, void *request);       /* lt_text_request */
lattice_status lt_read_openai_completion(lt_json *json, void *request); /* lt_text_request */
lattice_status lt_read_tei_embed(lt_json *json, void *request);         /* lt_embedding */
lattice_status lt_read_tei_similarity(lt_json *json, void *request);    /* lt_embedding */
lattice_status lt_read_cohere_embed(lt_json *json, void *request);      /* lt_embedding */
lattice_status lt_read_rerank(lt_json *json, void *request);            /* lt_scoring: TEI's, Cohere's and Jina's */
lattice_status lt_read_tei_predict(lt_json *json, void *request);       /* lt_scoring */
lattice_status lt_read_tei_tokenize(lt_json *json, void *request);      /* lt_tokenizing */
lattice_status lt_read_tei_decode(lt_json *json, void *request);        /* lt_tokenizing */

/* What only TEI's body of /rerank has. */
lattice_status lt_read_tei_rerank_member(lt_json *json, struct lt_scoring *scoring, lt_str key);
/* OpenAI's "usage" member where nothing is generated; Jina's rerank has it too. */
void lt_write_usage(lt_json_writer *w, uint64_t n_tokens);
/* Cohere's "meta" member. */
void lt_write_cohere_meta(lt_json_writer *w, const char *unit, uint64_t n);

#endif
