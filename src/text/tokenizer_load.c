/* Loading a tokenizer: tokenizer.json in one pass, its members in any order, or the older vocab.txt of BERT.
 *
 * What depends on several members (ids of added tokens on the vocabulary, the model's tables on the pre-tokenizer) is prepared
 * when all have been read. `version`, `truncation` and `padding` are passed over: callers decide on length. */
#include "base/file.h"
#include "text/tokenizer_parts.h"

/* Reads a part from the text `null`, for what a file leaves out. */
static lattice_status read_null_post(lt_tokenizer *t, const char *name, lattice_error *err)
{
    lt_json json;
    lt_json_open(&json, t->mem, name, "null", 4, err);
    lattice_status status = lt_post_read(t->mem, &json, &t->post, err);
    lt_json_close(&json);
    return status;
}

static lattice_status read_null_decoder(lt_tokenizer *t, const char *name, lattice_error *err)
{
    lt_json json;
    lt_json_open(&json, t->mem, name, "null", 4, err);
    lattice_status status = lt_decoder_read(t->mem, &json, &t->decoder, err);
    lt_json_close(&json);
    return status;
}

/* ------------------------------------------------------------------ what needs all parts */

/* The spelling of a token of the model. Added tokens are spelled as they stand in the text, with the white space they took. */
static lt_str spelling_in_model(const void *tokenizer, uint32_t id)
{
    const lt_tokenizer *t = tokenizer;
    return lt_added_by_id(t->added, id) ? (lt_str){ NULL, 0 } : lt_subword_token(t->model, id);
}

static lattice_status prepare(lt_tokenizer *t, const char *path, lattice_error *err)
{
    if (!t->post) LT_TRY(read_null_post(t, path, err));
    if (!t->decoder) LT_TRY(read_null_decoder(t, path, err));
    lt_post_set_spelling(t->post, spelling_in_model, t);
    bool bytes = lt_pretokenizer_ends_byte_level(t->pre) && strcmp(lt_subword_kind(t->model), "BPE") == 0 &&
                 !lt_subword_falls_back_to_bytes(t->model);
    if (bytes) lt_pretokenizer_keep_bytes(t->pre);
    LT_TRY(lt_subword_prepare(t->model, bytes, err));

    lt_regex_scratch *regex = NULL;
    LT_TRY(lt_regex_scratch_create(t->mem, &regex, err));
    lt_normalizer_scratch scratch;
    lt_normalizer_scratch_init(&scratch, t->mem, regex);
    lattice_status status = lt_added_prepare(t->added, t->model, t->normalizer, &scratch, err);
    lt_normalizer_scratch_free(&scratch);
    lt_regex_scratch_free(regex);
    LT_TRY(status);
    bool marks;
    t->local =
        lt_normalizer_is_local(t->normalizer, &marks) && lt_pretokenizer_is_local(t->pre, marks) && lt_added_is_local(t->added);
    return LATTICE_OK;
}

/* ------------------------------------------------------------------ tokenizer.json */

static lattice_status read_members(lt_tokenizer *t, lt_json *json, lattice_error *err)
{
    LT_TRY(lt_json_begin_object(json));
    for (lt_str key;;) {
        bool more;
        LT_TRY(lt_json_next_member(json, &key, &more));
        if (!more) break;
        if (lt_str_is(key, "added_tokens")) {
            LT_TRY(lt_added_read(t->added, json, err));
        } else if (lt_str_is(key, "normalizer")) {
            LT_TRY(lt_normalizer_read(t->mem, json, &t->normalizer, err));
        } else if (lt_str_is(key, "pre_tokenizer")) {
            LT_TRY(lt_pretokenizer_read(t->mem, json, &t->pre, err));
        } else if (lt_str_is(key, "post_processor")) {
            LT_TRY(lt_post_read(t->mem, json, &t->post, err));
        } else if (lt_str_is(key, "decoder")) {
            LT_TRY(lt_decoder_read(t->mem, json, &t->decoder, err));
        } else if (lt_str_is(key, "model")) {
            LT_TRY(lt_subword_read(t->mem, json, &t->model, err));
        } else {
            LT_TRY(lt_json_skip(json));
        }
    }
    if (!t->model) return lt_fail(err, LATTICE_ERR_FORMAT, "%s: no model", json->name);
    return lt_json_end(json);
}

lattice_status lt_tokenizer_load_json(lt_tokenizer *t, const char *name, const void *text, size_t size, lattice_error *err)
{
    lt_json json;
    lt_json_open(&json, t->mem, name, text, size, err);
    lattice_status status = read_members(t, &json, err);
    lt_json_close(&json);
    return status == LATTICE_OK ? prepare(t, name, err) : status;
}

/* ------------------------------------------------------------------ vocab.txt */

enum { UNK, CLS, SEP, PAD, MASK, N_SPECIAL };

typedef struct bert_options {
    bool lowercase, chinese;
    lt_maybe strip_accents;
    char special[N_SPECIAL][128]; /* spellings */
} bert_options;

/* A token of tokenizer_config.json: its spelling, or an object with the member `content`. */
static lattice_status read_spelling(lt_json *json, char out[128])
{
    lt_str s = { NULL, 0 };
    char copy[128];
    if (lt_json_peek(json) == LT_JSON_NULL) return lt_json_null(json);
    if (lt_json_peek(json) == LT_JSON_STRING) {
        LT_TRY(lt_json_string(json, &s));
    } else {
        LT_TRY(lt_json_begin_object(json));
        for (lt_str key;;) {
            bool more;
            LT_TRY(lt_json_next_member(json, &key, &more));
            if (!more) break;
            if (!lt_str_is(key, "content")) {
                LT_TRY(lt_json_skip(json));
                continue;
            }
            LT_TRY(lt_json_string(json, &s));
            if (s.len >= sizeof copy || memchr(s.data, 0, s.len))
                return lt_json_fail(json, "a special token of %zu bytes", s.len);
            memcpy(copy, s.data, s.len);
            s.data = copy;
        }
    }
    if (!s.data) return lt_json_fail(json, "a special token without content");
    if (s.len >= 128 || memchr(s.data, 0, s.len)) return lt_json_fail(json, "a special token of %zu bytes", s.len);
    memcpy(out, s.data, s.len);
    out[s.len] = '\0';
    return LATTICE_OK;
}

/* {"100": {"content": "[UNK]", "lstrip": …}, …}: the ids are those of the vocabulary. */
static lattice_status read_added_decoder(lt_tokenizer *t, lt_json *json, lattice_error *err)
{
    LT_TRY(lt_json_begin_object(json));
    for (lt_str id;;) {
        bool more;
        LT_TRY(lt_json_next_member(json, &id, &more));
        if (!more) return LATTICE_OK;
        lt_added_token token = { .normalized = true };
        lt_buf content;
        lt_buf_init(&content, t->mem);
        lattice_status status = lt_json_begin_object(json);
        while (status == LATTICE_OK) {
            lt_str key, s;
            bool more_members;
            LT_GO(lt_json_next_member(json, &key, &more_members));
            if (!more_members) break;
            if (lt_str_is(key, "content")) {
                LT_GO(lt_json_string(json, &s));
                lt_buf_clear(&content);
                lt_buf_append(&content, s.data, s.len);
            } else {
                bool *flag = lt_str_is(key, "single_word")  ? &token.single_word
                             : lt_str_is(key, "lstrip")     ? &token.lstrip
                             : lt_str_is(key, "rstrip")     ? &token.rstrip
                             : lt_str_is(key, "normalized") ? &token.normalized
                             : lt_str_is(key, "special")    ? &token.special
                                                            : NULL;
                LT_GO(flag ? lt_json_bool(json, flag) : lt_json_skip(json));
            }
        }
        if (status == LATTICE_OK && content.failed) status = lt_no_memory(err, content.len, "an added token");
        token.content = lt_buf_str(&content);
        if (status == LATTICE_OK) status = lt_added_add(t->added, &token, err);
    done:
        lt_buf_free(&content);
        if (status != LATTICE_OK) return status;
    }
}

static lattice_status read_bert_options(lt_tokenizer *t, const char *name, const void *text, size_t size, bert_options *o,
                                        lattice_error *err)
{
    static const char *const names[N_SPECIAL] = { "unk_token", "cls_token", "sep_token", "pad_token", "mask_token" };
    lt_json json;
    lt_json_open(&json, t->mem, name, text, size, err);
    lattice_status status = LATTICE_OK;
    LT_GO(lt_json_begin_object(&json));
    for (lt_str key;;) {
        bool more, value;
        LT_GO(lt_json_next_member(&json, &key, &more));
        if (!more) break;
        int special = 0;
        while (special < N_SPECIAL && !lt_str_is(key, names[special])) special++;
        if (special < N_SPECIAL) {
            LT_GO(read_spelling(&json, o->special[special]));
        } else if (lt_str_is(key, "do_lower_case") && lt_json_peek(&json) == LT_JSON_BOOL) {
            LT_GO(lt_json_bool(&json, &o->lowercase));
        } else if (lt_str_is(key, "tokenize_chinese_chars") && lt_json_peek(&json) == LT_JSON_BOOL) {
            LT_GO(lt_json_bool(&json, &o->chinese));
        } else if (lt_str_is(key, "strip_accents") && lt_json_peek(&json) == LT_JSON_BOOL) {
            LT_GO(lt_json_bool(&json, &value));
            o->strip_accents = value ? LT_TRUE : LT_FALSE;
        } else if (lt_str_is(key, "added_tokens_decoder") && lt_json_peek(&json) == LT_JSON_OBJECT) {
            LT_GO(read_added_decoder(t, &json, err));
        } else {
            LT_GO(lt_json_skip(&json));
        }
    }
    status = lt_json_end(&json);
done:
    lt_json_close(&json);
    return status;
}

lattice_status lt_tokenizer_load_vocab(lt_tokenizer *t, const char *name, const void *vocab, size_t size, const char *config_name,
                                       const void *config, size_t config_size, lattice_error *err)
{
    bert_options o = { .lowercase = true,
                       .chinese = true,
                       .strip_accents = LT_ABSENT,
                       .special = { "[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]" } };
    if (config) LT_TRY(read_bert_options(t, config_name, config, config_size, &o, err));
    LT_TRY(lt_subword_read_vocab_txt(t->mem, name, vocab, size, &t->model, err));
    uint32_t ids[N_SPECIAL];
    for (int k = 0; k < N_SPECIAL; k++) {
        lt_str spelling = lt_str_of(o.special[k]);
        bool found = lt_subword_find(t->model, spelling, &ids[k]);
        if (!found && (k == CLS || k == SEP || k == UNK))
            return lt_fail(err, LATTICE_ERR_FORMAT, "%s: the special token '%s' is missing", name, o.special[k]);
        lt_added_token token = { .content = spelling, .special = true };
        if (found) LT_TRY(lt_added_add(t->added, &token, err));
    }
    LT_TRY(lt_normalizer_bert(t->mem, o.chinese, o.strip_accents, o.lowercase, &t->normalizer, err));
    LT_TRY(lt_pretokenizer_bert(t->mem, &t->pre, err));
    LT_TRY(lt_post_bert(t->mem, ids[CLS], ids[SEP], &t->post, err));
    LT_TRY(lt_decoder_wordpiece(t->mem, &t->decoder, err));
    return prepare(t, name, err);
}

/* ------------------------------------------------------------------ folders */

static lattice_status load_files(lt_tokenizer *t, const char *folder, const char *json, const char *vocab, const char *config,
                                 lattice_error *err)
{
    lt_file file, config_file = { 0 };
    if (lt_path_exists(json)) {
        LT_TRY(lt_file_open(t->mem, json, true, &file, err));
        lattice_status status = lt_tokenizer_load_json(t, json, file.data, file.size, err);
        lt_file_close(&file);
        return status;
    }
    if (!lt_path_exists(vocab))
        return lt_fail(err, LATTICE_ERR_NOT_FOUND, "%s: neither tokenizer.json nor vocab.txt is there", folder);
    bool has_config = lt_path_exists(config);
    LT_TRY(lt_file_open(t->mem, vocab, true, &file, err));
    lattice_status status = has_config ? lt_file_open(t->mem, config, true, &config_file, err) : LATTICE_OK;
    if (status == LATTICE_OK) {
        status = lt_tokenizer_load_vocab(t, vocab, file.data, file.size, config, has_config ? config_file.data : NULL,
                                         config_file.size, err);
        if (has_config) lt_file_close(&config_file);
    }
    lt_file_close(&file);
    return status;
}

lattice_status lt_tokenizer_load(lt_tokenizer *t, const char *folder, lattice_error *err)
{
    lt_buf json, vocab, config;
    lt_buf_init(&json, t->mem);
    lt_buf_init(&vocab, t->mem);
    lt_buf_init(&config, t->mem);
    lattice_status status;
    if (lt_path_join(&json, folder, "tokenizer.json") && lt_path_join(&vocab, folder, "vocab.txt") &&
        lt_path_join(&config, folder, "tokenizer_config.json")) {
        status = load_files(t, folder, json.data, vocab.data, config.data, err);
    } else {
        status = lt_no_memory(err, strlen(folder), "a path");
    }
    lt_buf_free(&json);
    lt_buf_free(&vocab);
    lt_buf_free(&config);
    return status;
}
