/* Pre-tokenizers: a normalised text is cut into the spans that the model sees one by one. */
#ifndef LT_TEXT_PRETOKENIZER_H
#define LT_TEXT_PRETOKENIZER_H

#include "text/aligned.h"
#include "text/component.h"
#include "text/regex.h"

typedef struct lt_pretokenizer lt_pretokenizer; /* immutable */

/* Takes one span, never empty; what it refers to is valid during the call only. */
typedef lattice_status (*lt_span_fn)(void *arg, const lt_view *span, lattice_error *err);

/* Working memory of one thread: a text for each step that changes text. */
typedef struct lt_pretokenizer_scratch {
    const lattice_allocator *mem;
    lt_work *works;
    size_t n_works;
    lt_regex_scratch *regex; /* borrowed */
} lt_pretokenizer_scratch;

lattice_status lt_pretokenizer_scratch_init(lt_pretokenizer_scratch *scratch, const lattice_allocator *mem,
                                            const lt_pretokenizer *pre, lt_regex_scratch *regex, lattice_error *err);
void lt_pretokenizer_scratch_trim(lt_pretokenizer_scratch *scratch); /* after a giant text */
void lt_pretokenizer_scratch_free(lt_pretokenizer_scratch *scratch);

/* Reads the value at `json`, an object or null (*pre NULL: the whole text is one span). */
lattice_status lt_pretokenizer_read(const lattice_allocator *mem, lt_json *json, lt_pretokenizer **pre, lattice_error *err);
/* BertPreTokenizer, for vocab.txt. */
lattice_status lt_pretokenizer_bert(const lattice_allocator *mem, lt_pretokenizer **pre, lattice_error *err);
void lt_pretokenizer_free(lt_pretokenizer *pre);

/* Whether the last step is ByteLevel: a model that works on bytes can then be given the bytes themselves. */
bool lt_pretokenizer_ends_byte_level(const lt_pretokenizer *pre);
/* Leaves the alphabet of GPT-2 out: the last step hands on raw bytes. Before any use. */
void lt_pretokenizer_keep_bytes(lt_pretokenizer *pre);
/* Whether a text cut before a space that follows an ASCII letter or digit is cut into the same spans as when it is whole; `marks`:
 * that space may be U+2581 already. */
bool lt_pretokenizer_is_local(const lt_pretokenizer *pre, bool marks);

/* Cuts `view` and hands the spans on in order. A failure of `fn` ends it. */
lattice_status lt_pretokenize(const lt_pretokenizer *pre, lt_pretokenizer_scratch *scratch, const lt_view *view, bool track,
                              lt_span_fn fn, void *arg, lattice_error *err);

#endif
