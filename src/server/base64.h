/* Base64 (RFC 4648, with padding), as embeddings are sent in. */
#ifndef LT_SERVER_BASE64_H
#define LT_SERVER_BASE64_H

#include "format/json.h"

/* Appends the text of data[0..n). */
void lt_base64_append(lt_buf *out, const void *data, size_t n);
/* The same as a JSON string. */
void lt_write_base64(lt_json_writer *w, const void *data, size_t n);

#endif
