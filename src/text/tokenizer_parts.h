/* The inside of a tokenizer, shared by the files that load it and that run it. */
#ifndef LT_TEXT_TOKENIZER_PARTS_H
#define LT_TEXT_TOKENIZER_PARTS_H

#include "text/added.h"
#include "text/decoder.h"
#include "text/model.h"
#include "text/normalizer.h"
#include "text/post.h"
#include "text/pretokenizer.h"
#include "text/tokenizer.h"

struct lt_tokenizer {
    const lattice_allocator *mem;
    lt_added *added;
    lt_normalizer *normalizer; /* NULL: none */
    lt_pretokenizer *pre;      /* NULL: none */
    lt_subword *model;
    lt_post *post;
    lt_decoder *decoder;
    bool local; /* a text may be cut before a space that follows a letter or digit: its parts give the tokens of the whole */
};

/* Reads tokenizer.json, or vocab.txt with tokenizer_config.json, of the folder into the parts. */
lattice_status lt_tokenizer_load(lt_tokenizer *tokenizer, const char *folder, lattice_error *err);

/* The same from memory; config NULL: none. `name`s are for messages. */
lattice_status lt_tokenizer_load_json(lt_tokenizer *tokenizer, const char *name, const void *text, size_t size, lattice_error *err);
lattice_status lt_tokenizer_load_vocab(lt_tokenizer *tokenizer, const char *name, const void *vocab, size_t size, const char *config_name,
                                       const void *config, size_t config_size, lattice_error *err);

#endif
