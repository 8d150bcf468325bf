/* WordPiece: greedy longest match (Wu et al. 2016), inside a word with the continuing prefix ("##").
 *
 * The vocabulary's table serves as it is: at each place the candidates are tried from the longest down, and how long a token can
 * be is known for each first byte, so few are. A word with any rest that matches nothing is one unknown token. */
#include "text/subword.h"

lattice_status lt_wordpiece_prepare(lt_subword *model, lattice_error *err)
{
    (void)err;
    lt_wordpiece *w = &model->wordpiece;
    memset(w->longest_first, 0, sizeof w->longest_first);
    memset(w->longest_next, 0, sizeof w->longest_next);
    for (size_t id = 0; id < model->vocab.size; id++) {
        lt_str token = lt_vocab_token(&model->vocab, (uint32_t)id);
        if (token.data == NULL || token.len == 0) continue;
        uint8_t first = (uint8_t)token.data[0];
        if (token.len > w->longest_first[first]) w->longest_first[first] = (uint32_t)token.len;
        if (token.len <= model->prefix.len || memcmp(token.data, model->prefix.data, model->prefix.len) != 0) continue;
        uint8_t next = (uint8_t)token.data[model->prefix.len];
        uint32_t length = (uint32_t)(token.len - model->prefix.len);
        if (length > w->longest_next[next]) w->longest_next[next] = length;
    }
    return LATTICE_OK;
}

static bool over_limit(const uint8_t *word, size_t size, size_t max_chars)
{
    if (size <= max_chars) return false;
    size_t chars = 0;
    for (size_t i = 0; i < size; i++) chars += (word[i] & 0xC0) != 0x80;
    return chars > max_chars;
}

lattice_status lt_wordpiece_encode(const lt_subword *model, lt_subword_scratch *scratch, const uint8_t *word, size_t size,
                                   lt_pieces *out, lattice_error *err)
{
    const lt_wordpiece *w = &model->wordpiece;
    size_t first = out->n, prefix = 0;
    bool unknown = over_limit(word, size, w->max_chars);
    for (size_t at = 0; at < size && !unknown;) {
        /* Inside the word the candidates are prefix‖rest, laid out once where `text` holds prefix‖word. */
        const uint8_t *text = word + at;
        size_t longest = at == 0 ? w->longest_first[word[0]] : w->longest_next[word[at]];
        if (longest > size - at) longest = size - at;
        if (at > 0 && model->prefix.len > 0) {
            prefix = model->prefix.len;
            lt_buf_clear(&scratch->text);
            lt_buf_append(&scratch->text, model->prefix.data, prefix);
            lt_buf_append(&scratch->text, word + at, longest);
            if (scratch->text.failed) return lt_no_memory(err, size, "a word");
            text = (const uint8_t *)scratch->text.data;
        }
        uint32_t id = LT_VOCAB_NO_ID;
        for (; longest > 0; longest--) {
            if (at + longest < size && (word[at + longest] & 0xC0) == 0x80) continue; /* inside a character */
            scratch->steps++;
            id = lt_vocab_find(&model->vocab, text, prefix + longest);
            if (id != LT_VOCAB_NO_ID) break;
        }
        if (id == LT_VOCAB_NO_ID) {
            unknown = true;
        } else if (!lt_pieces_add(out, id, at, at + longest)) {
            return lt_no_memory(err, sizeof(lt_piece), "tokens");
        }
        at += longest;
    }
    if (!unknown) return LATTICE_OK;
    out->n = first;
    if (model->unk_id == LT_VOCAB_NO_ID) return lt_subword_no_unknown(model, err);
    return lt_pieces_add(out, model->unk_id, 0, size) ? LATTICE_OK : lt_no_memory(err, sizeof(lt_piece), "tokens");
}
