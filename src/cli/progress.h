/* A progress bar: on a terminal only, for work that takes over a second, on standard error. */
#ifndef CLI_PROGRESS_H
#define CLI_PROGRESS_H

#include <stdint.h>

/* Starts (total 0: not known; unit NULL: bytes, shown as MB). One at a time. */
void cli_progress_begin(const char *label, const char *unit, uint64_t total);
/* Draws when a second has passed since begin and a tenth since the last time. */
void cli_progress_update(uint64_t done);
/* Wipes the bar so that another line can be printed; the next update draws it again. */
void cli_progress_wipe(void);
void cli_progress_end(void);

#endif
