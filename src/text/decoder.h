/* Decoders (ByteLevel, WordPiece, Metaspace, BPEDecoder, Replace, ByteFallback, Fuse, Strip, Sequence): spellings back to text.
 */
#ifndef LT_TEXT_DECODER_H
#define LT_TEXT_DECODER_H

#include "format/json.h"

typedef struct lt_decoder lt_decoder;

/* Reads the value at `json` (an object or null: spellings are joined by spaces, as Hugging Face does). */
lattice_status lt_decoder_read(const lattice_allocator *mem, lt_json *json, lt_decoder **decoder, lattice_error *err);
/* The decoder of vocab.txt models: prefix "##", clean-up on. */
lattice_status lt_decoder_wordpiece(const lattice_allocator *mem, lt_decoder **decoder, lattice_error *err);
void lt_decoder_free(lt_decoder *decoder);

/* True when every token stands for bytes of its own (ByteLevel alone): text is the tokens' bytes one after the other, repaired.
 * lt_decoder_bytes then appends those of one token, unrepaired. */
bool lt_decoder_is_bytes(const lt_decoder *decoder);
void lt_decoder_bytes(lt_str token, lt_buf *out);

/* Appends the text of n spellings. */
lattice_status lt_decoder_decode(const lt_decoder *decoder, const lt_str *tokens, size_t n, lt_buf *out, lattice_error *err);

#endif
