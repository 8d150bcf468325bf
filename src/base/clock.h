/* Monotonic time in seconds, for measuring only. */
#ifndef LT_BASE_CLOCK_H
#define LT_BASE_CLOCK_H

double lt_clock_seconds(void);

#endif
