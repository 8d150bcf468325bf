/* The answer of an exchange as libmicrohttpd's response. */
#ifndef LT_SERVER_ANSWER_HEADERS_H
#define LT_SERVER_ANSWER_HEADERS_H

#include <sys/types.h>

#include "server/exchange.h"

struct MHD_Response;

/* Takes exchange->out over; with `reader`, the body is what it gives. NULL: no memory. */
struct MHD_Response *lt_make_response(lt_exchange *exchange, double now,
                                      ssize_t (*reader)(void *exchange, uint64_t position, char *to, size_t most));

#endif
