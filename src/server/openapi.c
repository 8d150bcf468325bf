/* GET /openapi.json: the routes and the bodies they take, as OpenAPI 3 describes them. */
#include <string.h>

#include "server/exchange.h"
#include "server/page.h"

/* What is said of a path: a sentence, and the members of its body's JSON schema (NULL: it takes none). */
typedef struct description {
    const char *path, *summary, *schema;
} description;

#define TEXT "{\"type\":\"string\"}"
#define NUMBER "{\"type\":\"number\"}"
#define COUNT "{\"type\":\"integer\",\"minimum\":1}"
#define FLAG "{\"type\":\"boolean\"}"
#define TEXTS "{\"type\":\"array\",\"items\":" TEXT "}"
#define TEXT_OR_TEXTS "{\"oneOf\":[" TEXT "," TEXTS "]}"
#define IDS "{\"type\":\"array\",\"items\":{\"type\":\"integer\",\"minimum\":0}}"
#define ID_LISTS "{\"type\":\"array\",\"items\":" IDS "}"
#define ANY_INPUT "{\"oneOf\":[" TEXT "," TEXTS "," IDS "," ID_LISTS "]}"
#define DIRECTION ",\"truncation_direction\":{\"enum\":[\"Left\",\"Right\"]}"
#define OBJECT(required, properties) "\"type\":\"object\",\"required\":[" required "],\"properties\":{" properties "}"
#define TEI_EMBED                                                                                                                \
    OBJECT("\"inputs\"", "\"inputs\":" ANY_INPUT ",\"model\":" TEXT ",\"normalize\":" FLAG ",\"truncate\":" FLAG DIRECTION       \
                         ",\"prompt_name\":" TEXT ",\"dimensions\":" COUNT)
#define COHERE_RERANK                                                                                                            \
    OBJECT("\"query\",\"documents\"",                                                                                            \
           "\"query\":" TEXT ",\"documents\":{\"type\":\"array\",\"items\":{\"oneOf\":[" TEXT                                    \
           ",{\"type\":\"object\",\"required\":[\"text\"],\"properties\":{\"text\":" TEXT "}}]}},\"model\":" TEXT                \
           ",\"top_n\":" COUNT ",\"return_documents\":" FLAG ",\"instruction\":" TEXT)

#define GENERATION                                                                                                               \
    "\"model\":" TEXT ",\"max_tokens\":" COUNT ",\"max_completion_tokens\":" COUNT ",\"temperature\":" NUMBER                    \
    ",\"top_p\":" NUMBER ",\"top_k\":{\"type\":\"integer\"},\"min_p\":" NUMBER ",\"presence_penalty\":" NUMBER                   \
    ",\"frequency_penalty\":" NUMBER ",\"repetition_penalty\":" NUMBER                                                           \
    ",\"seed\":{\"type\":\"integer\"},\"stop\":" TEXT_OR_TEXTS ",\"stream\":" FLAG                                               \
    ",\"stream_options\":{\"type\":\"object\",\"properties\":{\"include_usage\":" FLAG "}}"

// clang-format off
static const description descriptions[] = {
    { "/v1/embeddings", "Vectors of texts, as OpenAI's API gives them",
      OBJECT("\"input\"", "\"input\":" ANY_INPUT ",\"model\":" TEXT ",\"dimensions\":" COUNT
             ",\"encoding_format\":{\"enum\":[\"float\",\"base64\"]},\"user\":" TEXT ",\"truncate\":" FLAG ",\"prompt_name\":" TEXT) },
    { "/v1/chat/completions", "The answer in a conversation, as OpenAI's API gives it; with `stream`, as server-sent events",
      OBJECT("\"messages\"", "\"messages\":{\"type\":\"array\",\"items\":{" OBJECT("\"role\",\"content\"",
             "\"role\":{\"enum\":[\"system\",\"developer\",\"user\",\"assistant\"]},\"content\":" TEXT) "}}," GENERATION
             ",\"logprobs\":" FLAG ",\"top_logprobs\":" COUNT) },
    { "/v1/completions", "Text that goes on from a prompt, as OpenAI's API gives it; with `stream`, as server-sent events",
      OBJECT("\"prompt\"", "\"prompt\":" ANY_INPUT "," GENERATION ",\"logprobs\":{\"type\":\"integer\",\"minimum\":0}") },
    { "/v1/models", "The models that are served", NULL },
    { "/v1/rerank", "Documents by their relevance for a query, as Cohere's and Jina's APIs give them", COHERE_RERANK },
    { "/v2/rerank", "Documents by their relevance for a query, as Cohere's API gives them", COHERE_RERANK },
    { "/v2/embed", "Vectors of texts by type, as Cohere's API gives them",
      OBJECT("\"texts\"", "\"texts\":" TEXTS ",\"model\":" TEXT ",\"input_type\":" TEXT
             ",\"embedding_types\":{\"type\":\"array\",\"items\":{\"enum\":[\"float\",\"int8\",\"uint8\",\"binary\",\"ubinary\",\"base64\"]}}"
             ",\"truncate\":{\"enum\":[\"NONE\",\"START\",\"END\"]},\"output_dimension\":" COUNT) },
    { "/", "Vectors of texts, as Text Embeddings Inference gives them", TEI_EMBED },
    { "/embed", "Vectors of texts, as Text Embeddings Inference gives them", TEI_EMBED },
    { "/embed_all", "Vectors of all tokens", TEI_EMBED },
    { "/rerank", "Texts by their relevance for a query; with `documents` in place of `texts`, as /v2/rerank",
      OBJECT("\"query\"", "\"query\":" TEXT ",\"texts\":" TEXTS ",\"model\":" TEXT ",\"raw_scores\":" FLAG ",\"return_text\":" FLAG
             ",\"truncate\":" FLAG DIRECTION) },
    { "/predict", "Labels of texts or pairs of texts",
      OBJECT("\"inputs\"", "\"inputs\":{\"oneOf\":[" TEXT "," TEXTS ",{\"type\":\"array\",\"items\":" TEXTS "}]},\"model\":" TEXT
             ",\"raw_scores\":" FLAG ",\"truncate\":" FLAG DIRECTION) },
    { "/similarity", "Cosines between a sentence and others",
      OBJECT("\"inputs\"", "\"inputs\":{" OBJECT("\"source_sentence\",\"sentences\"", "\"source_sentence\":" TEXT ",\"sentences\":" TEXTS)
             "},\"model\":" TEXT ",\"parameters\":{\"type\":\"object\"}") },
    { "/tokenize", "Tokens of texts",
      OBJECT("\"inputs\"", "\"inputs\":" TEXT_OR_TEXTS ",\"model\":" TEXT ",\"add_special_tokens\":" FLAG) },
    { "/decode", "Texts of token ids",
      OBJECT("\"ids\"", "\"ids\":{\"oneOf\":[" IDS "," ID_LISTS "]},\"model\":" TEXT ",\"skip_special_tokens\":" FLAG) },
    { "/info", "What is served, and the limits", NULL },
    { "/health", "Answers when the models are loaded", NULL },
    { "/metrics", "Numbers for Prometheus", NULL },
    { "/openapi.json", "This description", NULL },
};
// clang-format on

static const description page = { "/", "A file of the web page", NULL };

static const description *find_description(const char *path, bool is_get)
{
    if (is_get && lt_page_find(path)) return &page;
    for (size_t i = 0; i < sizeof descriptions / sizeof *descriptions; i++)
        if (strcmp(descriptions[i].path, path) == 0) return &descriptions[i];
    return NULL;
}

static void write_operation(lt_json_writer *w, const lt_route *route)
{
    bool is_get = strcmp(route->method, "GET") == 0;
    const description *d = find_description(route->path, is_get);
    lt_json_write_key(w, is_get ? "get" : "post");
    lt_json_write_begin(w, '{');
    lt_json_write_key(w, "summary");
    lt_json_write_z(w, d ? d->summary : "");
    if (d && d->schema) {
        lt_json_write_key(w, "requestBody");
        lt_json_write_begin(w, '{');
        lt_json_write_key(w, "required");
        lt_json_write_bool(w, true);
        lt_json_write_key(w, "content");
        lt_json_write_begin(w, '{');
        lt_json_write_key(w, "application/json");
        lt_json_write_begin(w, '{');
        lt_json_write_key(w, "schema");
        lt_json_write_begin(w, '{');
        lt_buf_append_z(w->out, d->schema);
        for (int i = 0; i < 4; i++) lt_json_write_end(w, '}');
    }
    lt_json_write_key(w, "responses");
    lt_json_write_begin(w, '{');
    lt_json_write_key(w, "200");
    lt_json_write_begin(w, '{');
    lt_json_write_key(w, "description");
    lt_json_write_z(w, "the answer");
    lt_json_write_end(w, '}');
    lt_json_write_key(w, "default");
    lt_json_write_begin(w, '{');
    lt_json_write_key(w, "description");
    lt_json_write_z(w, "an error in the shape of the route's API");
    lt_json_write_end(w, '}');
    lt_json_write_end(w, '}');
    lt_json_write_end(w, '}');
}

static bool is_first_of_path(const lt_route *route)
{
    for (const lt_route *other = lt_routes; other < route; other++)
        if (strcmp(other->path, route->path) == 0) return false;
    return true;
}

void lt_openapi(lt_exchange *ex)
{
    lt_json_writer w = lt_json_writer_on(&ex->out);
    lt_json_write_begin(&w, '{');
    lt_json_write_key(&w, "openapi");
    lt_json_write_z(&w, "3.0.3");
    lt_json_write_key(&w, "info");
    lt_json_write_begin(&w, '{');
    lt_json_write_key(&w, "title");
    lt_json_write_z(&w, "lattice");
    lt_json_write_key(&w, "version");
    lt_json_write_z(&w, lattice_version());
    lt_json_write_end(&w, '}');
    lt_json_write_key(&w, "paths");
    lt_json_write_begin(&w, '{');
    for (const lt_route *r = lt_routes; r->path; r++) {
        if (!is_first_of_path(r)) continue;
        lt_json_write_key(&w, r->path);
        lt_json_write_begin(&w, '{');
        for (const lt_route *same = r; same->path; same++)
            if (strcmp(same->path, r->path) == 0) write_operation(&w, same);
        lt_json_write_end(&w, '}');
    }
    lt_json_write_end(&w, '}');
    lt_json_write_end(&w, '}');
    lt_answer_json(ex);
}
