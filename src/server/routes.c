/* The routes of the server. */
#include "server/exchange.h"

// clang-format off
const lt_route lt_routes[] = {
    /* method, path,             errors,        open,  quick */
    { "POST", "/v1/embeddings",  LT_API_OPENAI, false, false, lt_openai_embeddings },
    { "GET",  "/v1/models",      LT_API_OPENAI, false, true,  lt_openai_models },
    { "GET",  "/info",           LT_API_TEI,    false, true,  lt_info },
    { "GET",  "/health",         LT_API_PLAIN,  true,  true,  lt_health },
    { 0 },
};
// clang-format on
