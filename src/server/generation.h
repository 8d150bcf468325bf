/* Generating text for every API: what a request asks for, and how it becomes turns of the scheduler. An API reads its body into
 * an lt_text_request and writes its answer in callbacks. */
#ifndef LT_SERVER_GENERATION_H
#define LT_SERVER_GENERATION_H

#include "server/exchange.h"
#include "server/inputs.h"

/* A new token and its alternatives, [n_top] behind each other in `tops`. */
typedef struct lt_token_entry {
    uint32_t id;
    float logprob;
} lt_token_entry;

typedef struct lt_text_request lt_text_request;

/* What is generated behind one prompt: a conversation has one, a list of prompts one each. */
typedef struct lt_choice {
    lt_text_request *request;
    size_t index;
    lattice_encoding ids;   /* the prompt's */
    size_t n_base, n_found; /* ids up to the end of the last message; those that were kept from an earlier turn */
    lattice_session *session;
    lattice_generator *generator;
    const lattice_generation *result; /* once it is done */
    const char *finish_reason;        /* "stop" or "length" */
    lattice_error err;                /* code LATTICE_OK: none */
    lt_token_entry *entries;          /* tokens that no event has told of yet, with logprobs */
    lattice_logprob *tops;            /* [n_entries][top_logprobs] */
    size_t n_entries, entries_capacity, tops_capacity;
    size_t n_new;  /* tokens generated */
    bool has_role; /* the stream has said whose text it is */
    bool failed;   /* an allocation */
    lt_turn turn;
} lt_choice;

enum { LT_MAX_PROMPTS = LT_MAX_TURNS }; /* of a request */

struct lt_text_request {
    lt_exchange *exchange;
    lt_inputs inputs;       /* texts: the messages' contents, or the prompts */
    const char *model_name; /* NULL: any */
    int model;
    lattice_message *messages; /* [n_messages] of a conversation */
    size_t n_messages, messages_capacity;
    bool is_chat, has_prompt;

    /* Sampling: what a body leaves out is the checkpoint's. */
    double temperature, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty;
    bool has_temperature, has_top_p, has_min_p, has_repetition_penalty, has_top_k, has_seed;
    size_t top_k;
    uint64_t seed;
    size_t max_tokens; /* 0: until the session is full */
    lattice_text *stop;
    size_t n_stop, stop_capacity;
    bool ignore_end; /* go on past end tokens */
    bool logprobs;
    size_t top_logprobs;
    bool think;
    bool stream, include_usage;

    /* Of a stream: by the scheduler's thread, a piece of text; then as a post, the last event of a choice. */
    void (*write_text)(lt_choice *choice, lt_str text);
    void (*write_end)(lt_choice *choice);
    /* By the post of the choice that is done last: the sum of a stream, or the whole answer. */
    void (*write_usage)(lt_text_request *request);
    void (*write_all)(lt_text_request *request);

    lt_choice *choices; /* [n_choices] */
    size_t n_choices;
    atomic_size_t n_going; /* choices that are not done */
};

/* A new one, freed with the exchange; NULL: the answer (an error) is set. */
lt_text_request *lt_text_request_create(lt_exchange *exchange);
/* Starts what has been read; from then on the callbacks answer. */
void lt_text_request_run(lt_text_request *request);
/* Members that chat and completion have in common. */
lattice_status lt_read_text_option(lt_json *json, lt_text_request *request, lt_str key);

#endif
