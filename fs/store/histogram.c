#include "fs/store/histogram.h"
#include <inttypes.h>
#include <stddef.h>

static const double bounds[WS_HISTOGRAM_BUCKETS] = {0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300};

void ws_histogram_add(struct ws_histogram *h, double seconds)
{
    size_t b = 0;
    while (b < WS_HISTOGRAM_BUCKETS && seconds > bounds[b])
        b++;
    h->counts[b]++;
    h->sum += seconds;
}

uint64_t ws_histogram_count(const struct ws_histogram *h)
{
    uint64_t n = 0;
    for (size_t b = 0; b <= WS_HISTOGRAM_BUCKETS; b++)
        n += h->counts[b];
    return n;
}

void ws_histogram_print(const struct ws_histogram *h, const char *name, const char *labels, FILE *f)
{
    uint64_t n = 0;
    for (size_t b = 0; b < WS_HISTOGRAM_BUCKETS; b++) {
        n += h->counts[b];
        fprintf(f, "%s_bucket{%s,le=\"%g\"} %" PRIu64 "\n", name, labels, bounds[b], n);
    }
    n += h->counts[WS_HISTOGRAM_BUCKETS];
    fprintf(f, "%s_bucket{%s,le=\"+Inf\"} %" PRIu64 "\n", name, labels, n);
    fprintf(f, "%s_sum{%s} %.6f\n%s_count{%s} %" PRIu64 "\n", name, labels, h->sum, name, labels, n);
}
