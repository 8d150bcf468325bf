/* The splitting expressions of published tokenizers as hand-written matchers. */
#ifndef LT_TEXT_SPLIT_PATTERNS_H
#define LT_TEXT_SPLIT_PATTERNS_H

#include "base/bytes.h"

/* End of the match that starts at s[i], i < n. Every one of these expressions matches at every place of every text, so that the
 * matches follow each other without gaps. s is valid UTF-8. */
typedef size_t (*lt_split_matcher)(const uint8_t *s, size_t i, size_t n);

/* The matcher for an expression, NULL if it is not a known one. */
lt_split_matcher lt_split_matcher_for(lt_str expression);
/* The matcher of ByteLevel's own expression, GPT-2's. */
size_t lt_split_gpt2(const uint8_t *s, size_t i, size_t n);

/* The known expressions, for tests; NULL ends the list. */
extern const char *const lt_split_expressions[];

#endif
