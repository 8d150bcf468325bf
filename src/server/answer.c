/* Answers: each API's shape and status of an error, and the texts they share. */
#include <stdarg.h>
#include <stdio.h>

#include "server/exchange.h"

/* ------------------------------------------------------------------ errors */

typedef struct problem_form {
    unsigned status[4]; /* by lt_api */
    const char *openai_type, *openai_code, *tei_type;
} problem_form;

// clang-format off
static const problem_form forms[] = {
    /*                           OpenAI TEI Cohere plain */
    [LT_PROBLEM_MALFORMED]    = { { 400, 400, 400, 400 }, "invalid_request_error", NULL,                 "Validation" },
    [LT_PROBLEM_INVALID]      = { { 400, 422, 400, 400 }, "invalid_request_error", NULL,                 "Validation" },
    [LT_PROBLEM_TOO_LONG]     = { { 400, 413, 400, 400 }, "invalid_request_error", "context_length_exceeded", "Validation" },
    [LT_PROBLEM_BATCH]        = { { 422, 413, 422, 422 }, "invalid_request_error", "batch_too_large",    "Validation" },
    [LT_PROBLEM_BODY]         = { { 413, 413, 413, 413 }, "invalid_request_error", "request_too_large",  "Validation" },
    [LT_PROBLEM_UNAUTHORIZED] = { { 401, 401, 401, 401 }, "invalid_request_error", "invalid_api_key",    "Unauthorized" },
    [LT_PROBLEM_NOT_FOUND]    = { { 404, 404, 404, 404 }, "invalid_request_error", "not_found",          "NotFound" },
    [LT_PROBLEM_NO_MODEL]     = { { 404, 404, 404, 404 }, "invalid_request_error", "model_not_found",    "NotFound" },
    [LT_PROBLEM_METHOD]       = { { 405, 405, 405, 405 }, "invalid_request_error", "method_not_allowed", "Validation" },
    [LT_PROBLEM_BUSY]         = { { 429, 429, 429, 429 }, "rate_limit_error",      "rate_limit_exceeded","overloaded" },
    [LT_PROBLEM_BACKEND]      = { { 500, 424, 500, 500 }, "server_error",          NULL,                 "Backend" },
    [LT_PROBLEM_TIMEOUT]      = { { 504, 504, 504, 504 }, "server_error",          "timeout",            "Backend" },
    [LT_PROBLEM_GONE]         = { { 499, 499, 499, 499 }, "invalid_request_error", "client_closed_request", "Validation" },
};
// clang-format on

static void write_openai(lt_json_writer *w, const problem_form *form, lt_str message, const char *param)
{
    lt_json_write_begin(w, '{');
    lt_json_write_key(w, "error");
    lt_json_write_begin(w, '{');
    lt_json_write_key(w, "message");
    lt_json_write_str(w, message);
    lt_json_write_key(w, "type");
    lt_json_write_z(w, form->openai_type);
    lt_json_write_key(w, "param");
    if (param)
        lt_json_write_z(w, param);
    else
        lt_json_write_null(w);
    lt_json_write_key(w, "code");
    if (form->openai_code)
        lt_json_write_z(w, form->openai_code);
    else
        lt_json_write_null(w);
    lt_json_write_end(w, '}');
    lt_json_write_end(w, '}');
}

/* Writes the text of an error; returns its status. */
static unsigned write_error(lt_api api, lt_problem problem, const char *param, lt_str message, lt_buf *out)
{
    const problem_form *form = &forms[problem];
    lt_json_writer w = lt_json_writer_on(out);
    if (api == LT_API_OPENAI) {
        write_openai(&w, form, message, param);
        return form->status[api];
    }
    lt_json_write_begin(&w, '{');
    lt_json_write_key(&w, api == LT_API_COHERE ? "message" : "error");
    lt_json_write_str(&w, message);
    if (api == LT_API_TEI) {
        lt_json_write_key(&w, "error_type");
        lt_json_write_z(&w, form->tei_type);
    }
    lt_json_write_end(&w, '}');
    return form->status[api];
}

void lt_answer_error(lt_exchange *exchange, lt_problem problem, const char *param, const char *format, ...)
{
    char line[640];
    va_list args;
    va_start(args, format);
    lt_str message = { line, lt_format_line(line, sizeof line, format, args) };
    va_end(args);
    lt_buf_free(&exchange->out);
    exchange->status = write_error(exchange->api, problem, param, message, &exchange->out);
    exchange->content_type = "application/json";
}

static lt_problem problem_of(const lt_exchange *exchange, lattice_status status)
{
    switch (status) {
    case LATTICE_ERR_FORMAT: return LT_PROBLEM_MALFORMED;
    case LATTICE_ERR_INVALID_ARGUMENT:
    case LATTICE_ERR_UNSUPPORTED: return LT_PROBLEM_INVALID;
    case LATTICE_ERR_TOO_LONG: return LT_PROBLEM_TOO_LONG;
    case LATTICE_ERR_BUSY: return LT_PROBLEM_BUSY;
    case LATTICE_ERR_CANCELLED:
        return atomic_load(&exchange->gone) && !atomic_load(&exchange->expired) ? LT_PROBLEM_GONE : LT_PROBLEM_TIMEOUT;
    default: return LT_PROBLEM_BACKEND;
    }
}

static lt_str message_of(lt_problem problem, const lattice_error *err)
{
    if (problem == LT_PROBLEM_GONE) return LT_STR("the client has closed the connection");
    if (problem == LT_PROBLEM_TIMEOUT) return LT_STR("the answer took longer than the server allows");
    return lt_str_of(err->message);
}

void lt_answer_status(lt_exchange *exchange, const char *param, const lattice_error *err)
{
    lt_problem problem = problem_of(exchange, err->code);
    lt_buf_free(&exchange->out);
    exchange->status = write_error(exchange->api, problem, param, message_of(problem, err), &exchange->out);
    exchange->content_type = "application/json";
}

void lt_write_status(const lt_exchange *exchange, const lattice_error *err, lt_buf *out)
{
    lt_problem problem = problem_of(exchange, err->code);
    write_error(exchange->api, problem, NULL, message_of(problem, err), out);
}

void lt_answer_json(lt_exchange *exchange)
{
    if (exchange->out.failed) {
        lt_answer_error(exchange, LT_PROBLEM_BACKEND, NULL, "no memory for the answer");
        return;
    }
    exchange->status = 200;
    exchange->content_type = "application/json";
}

bool lt_read_body(lt_exchange *exchange, lattice_status (*reader)(lt_json *json, void *request), void *request)
{
    lattice_error err = { 0 };
    lt_json json;
    const char *text = exchange->body.data ? exchange->body.data : "";
    lt_json_open(&json, exchange->server->mem, "request", text, exchange->body.len, &err);
    lattice_status status = reader(&json, request);
    lt_json_close(&json);
    if (status != LATTICE_OK) lt_answer_status(exchange, NULL, &err);
    return status == LATTICE_OK;
}
