/* Post-processors (TemplateProcessing, BertProcessing, RobertaProcessing, ByteLevel, Sequence) and truncation. */
#ifndef LT_TEXT_POST_H
#define LT_TEXT_POST_H

#include "format/json.h"
#include "text/tokenizer.h"

typedef struct lt_post lt_post;

/* Reads the value at `json` (an object or null: no post-processor, texts and pairs are simply joined with type ids 0 and 1). Ids
 * of a template come from its own special_tokens. */
lattice_status lt_post_read(const lattice_allocator *mem, lt_json *json, lt_post **post, lattice_error *err);
/* The template `cls A sep` / `cls A sep B sep` of BERT, for vocab.txt. */
lattice_status lt_post_bert(const lattice_allocator *mem, uint32_t cls, uint32_t sep, lt_post **post, lattice_error *err);
void lt_post_free(lt_post *post);

/* How trimming (trim_offsets of ByteLevel and RobertaProcessing) learns a token's spelling, whose white space is what is trimmed: a
 * character of the text may be spelled otherwise, once normalised. Where it gives no data (added tokens, which are spelled as they
 * stand in the text), or is not set, the text under the span decides. `owner` is handed back and must outlive lt_post_apply. */
void lt_post_set_spelling(lt_post *post, lt_str (*spelling)(const void *owner, uint32_t id), const void *owner);

/* Special tokens added to a single text and to a pair. */
size_t lt_post_added(const lt_post *post, bool pair);

/* Builds *out from the encoded first and second sequence (second NULL: a single text): truncates to `max_length` (0: none;
 * longest first for pairs, as Hugging Face tokenizers does it), then adds special tokens if add_special, with type ids, sequence
 * numbers and, for ByteLevel and RobertaProcessing with trim_offsets, spans trimmed of white space (text_a, text_b: the input
 * bytes). Of a single giant text `first` is emptied: its arrays go to *out. */
lattice_status lt_post_apply(const lt_post *post, lt_tokens *first, const lt_tokens *second, lt_str text_a, lt_str text_b,
                             const lt_encode_options *options, lt_tokens *out, lattice_error *err);

#endif
