/* Conversations as token ids, in ChatML:
 *
 *     <|im_start|>{role}\n{content}<|im_end|>\n   for every message, then   <|im_start|>assistant\n
 *
 * The markers are tokens; roles and contents are encoded by themselves and literally, so that nothing in a content can become a
 * marker. Where the checkpoint's chat template mentions <think>, the answer begins with an empty thought, or an open one. */
#include <string.h>

#include "base/file.h"
#include "engine/model.h"

lattice_chat_options lattice_chat_options_default(void)
{
    return (lattice_chat_options){ 0 };
}

static bool mentions(const lt_file *file, const char *word)
{
    size_t n = strlen(word);
    for (size_t i = 0; i + n <= file->size; i++)
        if (memcmp(file->data + i, word, n) == 0) return true;
    return false;
}

lattice_status lt_chat_open(lattice_model *m, lattice_error *err)
{
    static const char *const names[] = { "chat_template.jinja", "tokenizer_config.json" };
    lattice_status status = LATTICE_OK;
    lt_buf path;
    lt_buf_init(&path, m->mem);
    for (size_t i = 0; i < 2 && status == LATTICE_OK && !m->thinks; i++) {
        lt_file file;
        if (!lt_path_join(&path, m->folder, names[i])) {
            status = lt_no_memory(err, strlen(m->folder), "a path");
            break;
        }
        if (!lt_path_exists(path.data)) continue;
        status = lt_file_open(m->mem, path.data, false, &file, err);
        if (status != LATTICE_OK) break;
        m->thinks = mentions(&file, "<think>");
        lt_file_close(&file);
        if (i == 0) break; /* the file of its own is what counts */
    }
    lt_buf_free(&path);
    return status;
}

typedef struct rendering {
    lattice_model *model;
    const lt_tokenizer *tokenizer;
    lt_scratch *scratch;
    lt_tokens tokens;
    lt_buf text;
    uint32_t start, end; /* the markers */
    uint32_t *ids;
    size_t n, capacity;
} rendering;

static lattice_status add_ids(rendering *r, const uint32_t *ids, size_t n, lattice_error *err)
{
    if (!LT_GROW(r->model->mem, r->ids, r->capacity, r->n + n)) return lt_no_memory(err, n * sizeof *ids, "token ids");
    if (n > 0) memcpy(r->ids + r->n, ids, n * sizeof *ids);
    r->n += n;
    return LATTICE_OK;
}

/* Encodes r->text, without anything added. */
static lattice_status add_text(rendering *r, bool literal, lattice_error *err)
{
    const lt_encode_options options = { .literal = literal, .no_spans = true };
    if (r->text.failed) return lt_no_memory(err, r->text.len, "a conversation");
    LT_TRY(lt_tokenizer_encode(r->tokenizer, r->scratch, lt_buf_str(&r->text), NULL, &options, &r->tokens, err));
    return add_ids(r, r->tokens.ids, r->tokens.n, err);
}

/* What is behind the last </think> of an answer, and the line ends there. */
static lattice_text without_thought(lattice_text content)
{
    static const char close[] = "</think>";
    const size_t n = sizeof close - 1;
    for (size_t at = content.length; at >= n; at--) {
        if (memcmp(content.data + at - n, close, n) != 0) continue;
        while (at < content.length && content.data[at] == '\n') at++;
        return (lattice_text){ content.data + at, content.length - at };
    }
    return content;
}

static lattice_status add_message(rendering *r, const lattice_message *message, lattice_error *err)
{
    bool is_answer = strcmp(message->role, "assistant") == 0;
    if (!is_answer && strcmp(message->role, "system") != 0 && strcmp(message->role, "user") != 0)
        return lt_fail(err, LATTICE_ERR_INVALID_ARGUMENT, "role '%s' is not system, user or assistant", message->role);
    lattice_text content = is_answer && r->model->thinks ? without_thought(message->content) : message->content;
    LT_TRY(add_ids(r, &r->start, 1, err));
    lt_buf_clear(&r->text);
    lt_buf_append_z(&r->text, message->role);
    lt_buf_byte(&r->text, '\n');
    lt_buf_append(&r->text, content.data, content.length);
    LT_TRY(add_text(r, true, err));
    LT_TRY(add_ids(r, &r->end, 1, err));
    lt_buf_clear(&r->text);
    lt_buf_byte(&r->text, '\n');
    return add_text(r, true, err);
}

static lattice_status render(rendering *r, const lattice_message *messages, size_t n, const lattice_chat_options *options,
                             lattice_error *err)
{
    bool found = lt_tokenizer_find(r->tokenizer, LT_STR("<|im_start|>"), &r->start) &&
                 lt_tokenizer_find(r->tokenizer, LT_STR("<|im_end|>"), &r->end);
    if (!found)
        return lt_fail(err, LATTICE_ERR_UNSUPPORTED, "%s: the vocabulary has no <|im_start|> and <|im_end|>", r->model->folder);
    for (size_t i = 0; i < n; i++) LT_TRY(add_message(r, &messages[i], err));
    if (options->no_prompt) return LATTICE_OK;
    LT_TRY(add_ids(r, &r->start, 1, err));
    lt_buf_clear(&r->text);
    lt_buf_append_z(&r->text, "assistant\n");
    if (r->model->thinks) lt_buf_append_z(&r->text, options->think ? "<think>\n" : "<think>\n\n</think>\n\n");
    return add_text(r, false, err);
}

static lattice_status hand_over(rendering *r, lattice_encoding *out, lattice_error *err)
{
    const lattice_allocator *mem = r->model->mem;
    const size_t n = r->n, room = n ? n : 1;
    *out = (lattice_encoding){ .n = n, .ids = r->ids, .owner = r->model->tokenizer };
    r->ids = NULL;
    out->type_ids = lt_alloc_zero(mem, room * sizeof *out->type_ids);
    out->offsets = lt_alloc_zero(mem, room * sizeof *out->offsets);
    out->special = lt_alloc_zero(mem, room);
    if (out->type_ids && out->offsets && out->special) return LATTICE_OK;
    lattice_encoding_free(out);
    return lt_no_memory(err, room * sizeof *out->offsets, "an encoding");
}

lattice_status lattice_chat_encode(lattice_model *model, const lattice_message *messages, size_t n,
                                   const lattice_chat_options *options, lattice_encoding *out, lattice_error *err)
{
    *out = (lattice_encoding){ 0 };
    const lattice_chat_options defaults = lattice_chat_options_default();
    if (!model->tokenizer) return lt_fail(err, LATTICE_ERR_UNSUPPORTED, "%s: opened without a tokenizer", model->folder);
    rendering r = { .model = model, .tokenizer = lt_tokenizer_of(model->tokenizer) };
    LT_TRY(lt_take_scratch(model->tokenizer, &r.scratch, err));
    lt_tokens_init(&r.tokens, model->mem);
    lt_buf_init(&r.text, model->mem);
    lattice_status status = render(&r, messages, n, options ? options : &defaults, err);
    if (status == LATTICE_OK) status = hand_over(&r, out, err);
    lt_free(model->mem, r.ids);
    lt_buf_free(&r.text);
    lt_tokens_free(&r.tokens);
    lt_give_back_scratch(model->tokenizer, r.scratch);
    return status;
}
