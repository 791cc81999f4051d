/* Histogram: how often a duration fell between fixed bounds, for Prometheus. Not synchronised: its owner's
 * lock guards it. */
#ifndef WS_FS_STORE_HISTOGRAM_H
#define WS_FS_STORE_HISTOGRAM_H
#include <stdint.h>
#include <stdio.h>

#define WS_HISTOGRAM_BUCKETS 10

struct ws_histogram {
    uint64_t counts[WS_HISTOGRAM_BUCKETS + 1]; /* up to each bound of 0.01 to 300 s, and above the last */
    double sum;                                /* seconds */
};

void ws_histogram_add(struct ws_histogram *h, double seconds);
uint64_t ws_histogram_count(const struct ws_histogram *h);
/* NAME_bucket, NAME_sum and NAME_count with labels ('model="m"', escaped). */
void ws_histogram_print(const struct ws_histogram *h, const char *name, const char *labels, FILE *f);

#endif
