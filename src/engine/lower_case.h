/* Lower case of whole texts, for Sentence-Transformers' do_lower_case. */
#ifndef LT_ENGINE_LOWER_CASE_H
#define LT_ENGINE_LOWER_CASE_H

#include "base/bytes.h"

/* Appends `text` in lower case, as Python's str.lower() gives it; invalid UTF-8 becomes U+FFFD. */
void lt_lower_case_append(lt_buf *out, lt_str text);

#endif
