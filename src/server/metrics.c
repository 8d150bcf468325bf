/* Counting requests; see metrics.h. The text of /metrics is written in operations.c. */
#include "server/metrics.h"

const unsigned lt_metric_statuses[LT_METRIC_STATUSES] = { 200, 204, 400, 401, 404, 405, 413, 422,
                                                          424, 429, 499, 500, 503, 504, 403, 0 };
const double lt_metric_bounds[LT_METRIC_BOUNDS] = { 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 60 };

void lt_metrics_count(lt_metrics *metrics, int route, unsigned status, double seconds, uint64_t tokens)
{
    int at = 0, bound = 0;
    while (lt_metric_statuses[at] != status && lt_metric_statuses[at] != 0) at++;
    while (bound < LT_METRIC_BOUNDS && seconds > lt_metric_bounds[bound]) bound++;
    atomic_fetch_add_explicit(&metrics->requests[route][at], 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&metrics->latency[route][bound], 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&metrics->latency_us[route], (uint_fast64_t)(seconds * 1e6), memory_order_relaxed);
    atomic_fetch_add_explicit(&metrics->tokens, tokens, memory_order_relaxed);
}
