/* The answer of an exchange as libmicrohttpd's response. */
#ifndef LT_SERVER_ANSWER_HEADERS_H
#define LT_SERVER_ANSWER_HEADERS_H

#include "server/exchange.h"

struct MHD_Response;

/* Takes exchange->out over. NULL: no memory. */
struct MHD_Response *lt_make_response(lt_exchange *exchange, double now);

#endif
