/* The routes of the server. */
#include "server/exchange.h"

// clang-format off
const lt_route lt_routes[] = {
    /* method, path,                  errors,         open,  quick, handler */
    { "POST", "/v1/embeddings",        LT_API_OPENAI,  false, false, lt_openai_embeddings },
    { "POST", "/v1/chat/completions",  LT_API_OPENAI,  false, false, lt_openai_chat },
    { "POST", "/v1/completions",       LT_API_OPENAI,  false, false, lt_openai_completion },
    { "GET",  "/v1/models",            LT_API_OPENAI,  false, true,  lt_openai_models },
    { "POST", "/v1/rerank",            LT_API_COHERE,  false, false, lt_rerank_route },
    { "POST", "/v2/rerank",            LT_API_COHERE,  false, false, lt_rerank_route },
    { "POST", "/v2/embed",             LT_API_COHERE,  false, false, lt_cohere_embed },
    { "POST", "/",                     LT_API_TEI,     false, false, lt_tei_embed },
    { "POST", "/embed",                LT_API_TEI,     false, false, lt_tei_embed },
    { "POST", "/embed_all",            LT_API_TEI,     false, false, lt_tei_embed_all },
    { "POST", "/rerank",               LT_API_TEI,     false, false, lt_rerank_route },
    { "POST", "/predict",              LT_API_TEI,     false, false, lt_tei_predict },
    { "POST", "/similarity",           LT_API_TEI,     false, false, lt_tei_similarity },
    { "POST", "/tokenize",             LT_API_TEI,     false, false, lt_tei_tokenize },
    { "POST", "/decode",               LT_API_TEI,     false, false, lt_tei_decode },
    { "GET",  "/",                     LT_API_PLAIN,   true,  true,  lt_page },
    { "GET",  "/page.css",             LT_API_PLAIN,   true,  true,  lt_page },
    { "GET",  "/page.js",              LT_API_PLAIN,   true,  true,  lt_page },
    { "GET",  "/info",                 LT_API_TEI,     false, true,  lt_info },
    { "GET",  "/health",               LT_API_PLAIN,   true,  true,  lt_health },
    { "GET",  "/metrics",              LT_API_PLAIN,   false, true,  lt_metrics_route },
    { "GET",  "/openapi.json",         LT_API_PLAIN,   false, true,  lt_openapi },
    { 0 },
};
// clang-format on
