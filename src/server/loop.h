/* The event loop: listening, accepting, moving bytes, watching clients that wait for an answer. */
#ifndef LT_SERVER_LOOP_H
#define LT_SERVER_LOOP_H

#include "server/exchange.h"

typedef struct lt_loop lt_loop;

/* Opens the sockets of the server's options; from then on clients may connect. */
lattice_status lt_loop_create(lt_server *server, lt_loop **loop, lattice_error *err);
/* Runs until options.stop_fd is readable and what is in flight has been answered, or its time of grace is over. */
void lt_loop_run(lt_loop *loop);
void lt_loop_free(lt_loop *loop);

#endif
