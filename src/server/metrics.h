/* Counters and histograms of requests, for /metrics. All atomic: any thread adds, any thread reads. */
#ifndef LT_SERVER_METRICS_H
#define LT_SERVER_METRICS_H

#include <stdatomic.h>
#include <stdint.h>

enum { LT_METRIC_ROUTES = 40, LT_METRIC_STATUSES = 16, LT_METRIC_BOUNDS = 14 };

typedef struct lt_metrics {
    /* By place in lt_routes; the last one is for requests that no route fits. */
    atomic_uint_fast64_t requests[LT_METRIC_ROUTES][LT_METRIC_STATUSES]; /* by lt_metric_statuses */
    atomic_uint_fast64_t latency[LT_METRIC_ROUTES][LT_METRIC_BOUNDS + 1];
    atomic_uint_fast64_t latency_us[LT_METRIC_ROUTES];
    atomic_uint_fast64_t tokens;
    atomic_uint_fast64_t connections; /* open now */
    double started;
} lt_metrics;

/* The statuses that are counted one by one; the last, 0, stands for all others. */
extern const unsigned lt_metric_statuses[LT_METRIC_STATUSES];
/* Upper bounds of the latency histogram, seconds. */
extern const double lt_metric_bounds[LT_METRIC_BOUNDS];

/* Counts an answered request. */
void lt_metrics_count(lt_metrics *metrics, int route, unsigned status, double seconds, uint64_t tokens);

#endif
