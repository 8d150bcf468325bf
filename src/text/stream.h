/* Streaming detokenisation: tokens in one by one, text out in whole characters.
 *
 * Bytes of a character that is not complete yet are held back, so that an emoji split over tokens comes out once, whole; what is
 * still incomplete at the end becomes U+FFFD. With the ByteLevel decoder the pieces joined are exactly the text of all tokens
 * decoded at once. Other decoders look at neighbours (a leading space, a run of byte tokens), so the tokens since the last text
 * are decoded again with the few before them, and a text that ends in U+FFFD waits for the next token, as in Hugging Face's
 * DecodeStream. */
#ifndef LT_TEXT_STREAM_H
#define LT_TEXT_STREAM_H

#include "text/decoder.h"
#include "text/tokenizer.h"

typedef struct lt_stream lt_stream;

/* `decoder` is borrowed. One thread at a time. */
lattice_status lt_stream_create(const lattice_allocator *mem, const lt_decoder *decoder, lt_stream **stream, lattice_error *err);
/* The same for a tokenizer's ids. skip_special drops special tokens, as lt_tokenizer_decode does. */
lattice_status lt_stream_create_for(const lt_tokenizer *tokenizer, bool skip_special, lt_stream **stream, lattice_error *err);
void lt_stream_free(lt_stream *stream);

/* Takes the spelling of the next token and appends the text that is whole now, which may be nothing. */
lattice_status lt_stream_push(lt_stream *stream, lt_str token, lt_buf *out, lattice_error *err);

/* The same by id, for a stream made by lt_stream_create_for. Unknown ids are skipped. */
lattice_status lt_stream_push_id(lt_stream *stream, uint32_t id, lt_buf *out, lattice_error *err);

/* Appends what was held back, incomplete characters as U+FFFD, and starts anew. */
lattice_status lt_stream_flush(lt_stream *stream, lt_buf *out, lattice_error *err);

#endif
