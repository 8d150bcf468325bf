/* Added tokens: spellings that are recognised in a text before it is cut into words. */
#ifndef LT_TEXT_ADDED_H
#define LT_TEXT_ADDED_H

#include "text/model.h"
#include "text/normalizer.h"

typedef struct lt_added_token {
    lt_str content;
    uint32_t id;
    bool special, normalized, single_word, lstrip, rstrip;
} lt_added_token;

typedef struct lt_added lt_added; /* immutable after prepare */

lattice_status lt_added_create(const lattice_allocator *mem, lt_added **added, lattice_error *err);
void lt_added_free(lt_added *added);

/* Reads the `added_tokens` array. */
lattice_status lt_added_read(lt_added *added, lt_json *json, lattice_error *err);
/* One more; the content is copied. `has_id`: token->id is what the file says. */
lattice_status lt_added_add(lt_added *added, const lt_added_token *token, lattice_error *err);

/* Gives every token its id, as Hugging Face does: that of the model's vocabulary, else the next free one (what the file says is
 * not asked); normalises those that are to be matched in normalised text; builds the matchers. */
lattice_status lt_added_prepare(lt_added *added, const lt_subword *model, const lt_normalizer *normalizer,
                                lt_normalizer_scratch *scratch, lattice_error *err);

/* Tokens by id and by content; NULL: none. */
const lt_added_token *lt_added_by_id(const lt_added *added, uint32_t id);
const lt_added_token *lt_added_by_content(const lt_added *added, lt_str content);
size_t lt_added_size(const lt_added *added); /* largest id + 1, 0 if there are none */
/* Whether no token reaches over a place where a text may be cut: before a space that follows a letter or digit. */
bool lt_added_is_local(const lt_added *added);

/* One pass over a text for the tokens matched before (normalized false) or after (true) normalising. */
typedef struct lt_added_matches {
    const lt_added *added;
    const uint8_t *text;
    size_t n, at, done; /* searched up to, returned up to */
    bool normalized, literal;
} lt_added_matches;

lt_added_matches lt_added_begin(const lt_added *added, bool normalized, bool literal, const uint8_t *text, size_t n);
/* The next token: text before it is [*before, *start), it covers [*start, *end). NULL: none is left, and the rest of the text
 * starts at *before. */
const lt_added_token *lt_added_next(lt_added_matches *matches, size_t *before, size_t *start, size_t *end);

#endif
