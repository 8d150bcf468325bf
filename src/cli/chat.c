/* lattice chat: a conversation on the terminal, or with lines of standard input.
 *
 * Nothing that has been computed is computed again: forks of the session are kept where the conversation begins (behind the
 * system message, or as a saved session has it) and behind the last question. What an answer leaves in the session may differ
 * from what history keeps of it (thoughts are dropped, texts may be cut into other tokens): then the next turn goes on from
 * there. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/sampling.h"
#include "format/json.h"

typedef struct chat_arguments {
    cli_common common;
    cli_sampling sampling;
    const char *system, *session;
    bool think;
} chat_arguments;

#define AT(field) offsetof(chat_arguments, field)
// clang-format off
static const cli_option options[] = {
    CLI_OPTION_MODEL(chat_arguments),
    { "system", 0, CLI_STRING, AT(system), "TEXT", NULL, NULL, 0, 0, "what the model is told before the conversation" },
    { "session", 0, CLI_STRING, AT(session), "FILE", NULL, NULL, 0, 0, "go on from a conversation that /save has written" },
    { "think",  0, CLI_FLAG,   AT(think),  NULL, NULL, NULL, 0, 0, "let the model think before it answers, where it can" },
    CLI_OPTIONS_SAMPLING(chat_arguments),
    CLI_OPTIONS_RUN(chat_arguments),
    CLI_OPTIONS_JSON(chat_arguments, "has no effect: answers are text"),
    CLI_OPTIONS_LOG(chat_arguments),
    { 0 },
};
// clang-format on
#undef AT

typedef struct job {
    const chat_arguments *arguments;
    lattice_model *model;
    lattice_session *base;    /* where the conversation begins */
    lattice_session *turn;    /* a fork behind the last question, or NULL */
    lattice_session *session; /* where it stands */
    lattice_generate_options options;
    lattice_text *stop;
    lattice_message *messages; /* since the beginning; contents are owned */
    size_t n, capacity;
    bool terminal, failed;
} job;

/* The session that answers: an interruption stops it alone. Between answers it ends the program as usual. */
static lattice_session *volatile answering;

static void interrupted(int signal_number)
{
    lattice_session *session = answering;
    if (session) {
        lattice_session_cancel(session);
        return;
    }
    signal(signal_number, SIG_DFL);
    raise(signal_number);
}

static void catch_interrupts(void)
{
    struct sigaction action = { .sa_handler = interrupted, .sa_flags = SA_RESTART };
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
}

/* ------------------------------------------------------------------ history */

static void drop_messages(job *j, size_t n)
{
    while (j->n > n) {
        j->n--;
        lt_free(cli_memory, (void *)(uintptr_t)j->messages[j->n].content.data);
    }
}

static lattice_status add_message(job *j, const char *role, lattice_text content, lattice_error *err)
{
    char *copy = lt_alloc(cli_memory, content.length + 1);
    if (!copy || !LT_GROW(cli_memory, j->messages, j->capacity, j->n + 1)) {
        lt_free(cli_memory, copy);
        return lt_no_memory(err, content.length, "a message");
    }
    memcpy(copy, content.data, content.length);
    copy[content.length] = '\0';
    j->messages[j->n++] = (lattice_message){ role, { copy, content.length } };
    return LATTICE_OK;
}

/* In the place of *to, which may be NULL. */
static lattice_status fork_to(lattice_session **to, const lattice_session *from, lattice_error *err)
{
    lattice_session *copy;
    LT_TRY(lattice_session_fork(from, &copy, err));
    lattice_session_free(*to);
    *to = copy;
    return LATTICE_OK;
}

static lattice_status make_base(job *j, lattice_error *err)
{
    const chat_arguments *a = j->arguments;
    if (a->session) return lattice_session_load(j->model, a->session, NULL, &j->base, err);
    LT_TRY(lattice_session_create(j->model, NULL, &j->base, err));
    if (!a->system) return LATTICE_OK;
    const lattice_chat_options o = { .no_prompt = true };
    const lattice_message message = { "system", { a->system, strlen(a->system) } };
    lattice_encoding encoding;
    LT_TRY(lattice_chat_encode(j->model, &message, 1, &o, &encoding, err));
    lattice_status status = lattice_session_prefill(j->base, encoding.ids, encoding.n, err);
    lattice_encoding_free(&encoding);
    return status;
}

static lattice_status begin(job *j, lattice_error *err)
{
    drop_messages(j, 0);
    lattice_session_free(j->turn);
    j->turn = NULL;
    if (!j->base) LT_TRY(make_base(j, err));
    return fork_to(&j->session, j->base, err);
}

static void write_message(lt_json_writer *w, const lattice_message *message)
{
    lt_json_write_begin(w, '{');
    lt_json_write_key(w, "role");
    lt_json_write_z(w, message->role);
    lt_json_write_key(w, "content");
    lt_json_write_str(w, (lt_str){ message->content.data, message->content.length });
    lt_json_write_end(w, '}');
}

/* [{"role","content"}, …] */
static lattice_status save_text(const job *j, const char *path, lattice_error *err)
{
    lt_buf text;
    lt_buf_init(&text, cli_memory);
    lt_json_writer w = lt_json_writer_on(&text);
    const char *system = j->arguments->system;
    lt_json_write_begin(&w, '[');
    if (system) write_message(&w, &(lattice_message){ "system", { system, strlen(system) } });
    for (size_t i = 0; i < j->n; i++) write_message(&w, &j->messages[i]);
    lt_json_write_end(&w, ']');
    lt_buf_byte(&text, '\n');
    lt_replace file;
    lattice_status status =
        text.failed ? lt_no_memory(err, text.len, "a conversation") : lt_replace_begin(cli_memory, path, &file, err);
    if (status == LATTICE_OK) {
        status = lt_replace_write(&file, text.data, text.len, err);
        if (status == LATTICE_OK)
            status = lt_replace_commit(&file, err);
        else
            lt_replace_abort(&file);
    }
    lt_buf_free(&text);
    return status;
}

/* ------------------------------------------------------------------ answers */

static bool stream_text(void *user, const char *text, size_t length)
{
    job *j = user;
    fwrite(text, 1, length, stdout);
    if (fflush(stdout) != 0) j->failed = true;
    return !j->failed;
}

/* Does the session hold what the conversation begins with, and what then are the first ids behind that? */
static bool holds_beginning(const job *j, const lattice_session *session, const uint32_t *ids, size_t n, size_t *held)
{
    size_t base, all;
    if (!session) return false;
    (void)lattice_session_ids(j->base, &base);
    const uint32_t *own = lattice_session_ids(session, &all);
    *held = all - base; /* every session is a descendant of the base */
    return *held <= n && (*held == 0 || memcmp(own + base, ids, *held * sizeof *ids) == 0);
}

/* Puts the session where the conversation, of n ids behind the base, has been computed up to: *held of them. */
static lattice_status go_to(job *j, const uint32_t *ids, size_t n, size_t *held, lattice_error *err)
{
    if (holds_beginning(j, j->session, ids, n, held)) return LATTICE_OK;
    if (holds_beginning(j, j->turn, ids, n, held)) return fork_to(&j->session, j->turn, err);
    *held = 0;
    return fork_to(&j->session, j->base, err);
}

/* Brings the session to the end of the last message. */
static lattice_status end_turn(job *j, lattice_error *err)
{
    const lattice_chat_options o = { .no_prompt = true };
    lattice_encoding encoding;
    size_t held;
    LT_TRY(lattice_chat_encode(j->model, j->messages, j->n, &o, &encoding, err));
    lattice_status status = go_to(j, encoding.ids, encoding.n, &held, err);
    answering = j->session;
    if (status == LATTICE_OK && held < encoding.n)
        status = lattice_session_prefill(j->session, encoding.ids + held, encoding.n - held, err);
    answering = NULL;
    lattice_encoding_free(&encoding);
    return status;
}

/* And on to where the answer begins; a fork is kept at the end of the message. */
static lattice_status begin_answer(job *j, lattice_error *err)
{
    const lattice_chat_options o = { .think = j->arguments->think };
    lattice_encoding encoding;
    size_t base, all;
    LT_TRY(end_turn(j, err));
    LT_TRY(fork_to(&j->turn, j->session, err));
    LT_TRY(lattice_chat_encode(j->model, j->messages, j->n, &o, &encoding, err));
    (void)lattice_session_ids(j->base, &base);
    (void)lattice_session_ids(j->session, &all);
    lattice_status status = lattice_session_prefill(j->session, encoding.ids + (all - base), encoding.n - (all - base), err);
    lattice_encoding_free(&encoding);
    return status;
}

/* FILE.json: the texts; any other: a session that can be loaded again. */
static lattice_status save(job *j, const char *path, lattice_error *err)
{
    if (lt_str_ends(lt_str_of(path), ".json")) return save_text(j, path, err);
    LT_TRY(end_turn(j, err));
    return lattice_session_save(j->session, path, err);
}

static lattice_status answer(job *j, lattice_text question, lattice_error *err)
{
    const size_t before = j->n;
    lattice_generation g = { 0 };
    LT_TRY(add_message(j, "user", question, err));
    lattice_status status = begin_answer(j, err);
    answering = j->session;
    if (status == LATTICE_OK) status = lattice_generate(j->session, &j->options, &g, err);
    answering = NULL;
    if (status != LATTICE_OK) {
        drop_messages(j, before);
        return status;
    }
    if (g.length == 0 || g.text[g.length - 1] != '\n') putchar('\n');
    if (fflush(stdout) != 0) j->failed = true;
    if (g.finish == LATTICE_FINISH_CONTEXT) cli_note("the model's context is full; /reset begins anew");
    status = add_message(j, "assistant", (lattice_text){ g.text, g.length }, err);
    lattice_generation_free(&g);
    return status;
}

/* *done: /exit. What a command, or one answer, fails with is reported, and the conversation goes on. */
static lattice_status take_line(job *j, lattice_text line, bool *done, lattice_error *err)
{
    *done = false;
    if (line.length == 0) return LATTICE_OK;
    if (strcmp(line.data, "/exit") == 0) {
        *done = true;
        return LATTICE_OK;
    }
    if (strcmp(line.data, "/reset") == 0) return begin(j, err);
    lattice_status status;
    if (strncmp(line.data, "/save ", 6) == 0 && line.length > 6) {
        status = save(j, line.data + 6, err);
        if (status == LATTICE_OK) cli_note("saved to %s", line.data + 6);
    } else if (line.data[0] == '/') {
        status =
            lt_fail(err, LATTICE_ERR_INVALID_ARGUMENT, "unknown command '%s'; there are /reset, /save FILE and /exit", line.data);
    } else {
        status = answer(j, line, err);
    }
    if (j->failed) return lt_fail(err, LATTICE_ERR_IO, "standard output: %s", strerror(errno));
    if (status == LATTICE_ERR_TOO_LONG || status == LATTICE_ERR_CANCELLED || (line.data[0] == '/' && status != LATTICE_OK)) {
        cli_fail(err);
        return LATTICE_OK;
    }
    return status;
}

static lattice_status converse(job *j, lattice_error *err)
{
    char *line = NULL;
    size_t capacity = 0;
    lattice_status status = begin(j, err);
    for (bool done = false; status == LATTICE_OK && !done;) {
        if (j->terminal) fputs("> ", stderr);
        ssize_t n = getline(&line, &capacity, stdin);
        if (n < 0) {
            if (ferror(stdin)) status = lt_fail(err, LATTICE_ERR_IO, "standard input: %s", strerror(errno));
            break;
        }
        while (n > 0 && (line[n - 1] == '\n' || line[n - 1] == '\r')) line[--n] = '\0';
        status = take_line(j, (lattice_text){ line, (size_t)n }, &done, err);
    }
    free(line);
    return status;
}

static lattice_status chat(job *j, lattice_runtime *runtime, const char *folder, lattice_error *err)
{
    const chat_arguments *a = j->arguments;
    lattice_model_options model_options = cli_model_options(&a->common);
    LT_TRY(lattice_model_open(runtime, folder, &model_options, &j->model, err));
    j->options = cli_generate_options(&a->sampling, j->model, j->stop);
    j->options.on_text = stream_text;
    j->options.user = j;
    catch_interrupts();
    return converse(j, err);
}

static int run(void *opaque, char **operands, size_t n_operands)
{
    (void)operands;
    (void)n_operands;
    job j = { .arguments = opaque, .terminal = isatty(STDIN_FILENO) && isatty(STDERR_FILENO) };
    const chat_arguments *a = j.arguments;
    if (!a->common.model) return cli_usage(&cli_chat_command, "no model given: -m MODEL");
    if (a->session && a->system) return cli_usage(&cli_chat_command, "--system comes first: it cannot follow a --session");
    int code = cli_check_sampling(&cli_chat_command, &a->sampling);
    if (code != CLI_DONE) return code;
    lattice_runtime *runtime = NULL;
    lattice_error err = { 0 };
    lt_buf folder;
    lt_buf_init(&folder, cli_memory);
    j.stop = lt_alloc_array(cli_memory, a->sampling.stop.n + 1, sizeof *j.stop);
    lattice_status status = j.stop ? cli_find_model(a->common.model, &folder, &err) : lt_no_memory(&err, 0, "stop strings");
    if (status == LATTICE_OK) status = cli_runtime(&a->common, &runtime, &err);
    if (status == LATTICE_OK) status = chat(&j, runtime, folder.data, &err);
    if (status != LATTICE_OK) code = cli_fail(&err);
    drop_messages(&j, 0);
    lt_free(cli_memory, j.messages);
    lt_free(cli_memory, j.stop);
    lattice_session_free(j.session);
    lattice_session_free(j.turn);
    lattice_session_free(j.base);
    lattice_model_close(j.model);
    lattice_runtime_free(runtime);
    lt_buf_free(&folder);
    return code;
}

const cli_command cli_chat_command = {
    .name = "chat",
    .operands = "",
    .summary = "a conversation with a language model",
    .description = "Answers line after line of standard input, with what was said before in mind.\n"
                   "Lines that begin with a slash are for the program: /reset goes back to the beginning,\n"
                   "/save FILE writes the conversation so that --session FILE goes on with it, or, where\n"
                   "FILE ends in .json, its texts; /exit ends. Ctrl-C stops an answer, not the program.",
    .examples = "  lattice chat -m ./qwen3.5 --system \"You are terse.\"\n"
                "  echo \"Define gravity.\" | lattice chat -m ./tiny-dictionary --temperature 0",
    .options = options,
    .arguments_size = sizeof(chat_arguments),
    .max_operands = 0,
    .run = run,
};
