#include "transports/delta/filter.h"
#include "transports/base/text.h"
#include "transports/base/vector.h"
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct run {
    uint64_t first, end;
};
WS_VECTOR(runs, struct run);

struct ws_delta_filter {
    struct runs runs; /* ascending, none empty */
};

static int parse_run(const char **at, uint64_t from, struct run *out)
{
    uint64_t gap, n;

    if (ws_text_digits(at, &gap) < 0 || *(*at)++ != '.' || ws_text_digits(at, &n) < 0 || n == 0 ||
        gap > UINT64_MAX - from || n > UINT64_MAX - from - gap)
        return -EINVAL;
    *out = (struct run){from + gap, from + gap + n};
    return 0;
}

int ws_delta_filter_parse(const char *text, size_t n, struct ws_delta_filter **out)
{
    struct ws_delta_filter *f = n <= WS_DELTA_FILTER_CHARS ? calloc(1, sizeof(*f)) : NULL;
    char *copy = f ? strndup(text, n) : NULL;
    const char *at = copy;
    struct run run = {0};
    int rc = n > WS_DELTA_FILTER_CHARS ? -EINVAL : copy ? 0 : -ENOMEM;

    *out = NULL;
    while (rc == 0) {
        rc = parse_run(&at, run.end, &run);
        if (rc == 0)
            rc = runs_append(&f->runs, run);
        if (rc == 0 && !*at)
            break;
        if (rc == 0 && *at++ != ',')
            rc = -EINVAL;
    }
    free(copy);
    if (rc == 0)
        *out = f;
    else
        ws_delta_filter_free(f);
    return rc;
}

void ws_delta_filter_free(struct ws_delta_filter *f)
{
    if (f)
        runs_reset(&f->runs);
    free(f);
}

bool ws_delta_filter_has(const struct ws_delta_filter *f, uint64_t block)
{
    size_t low = 0, high = f->runs.len;

    while (high > low) {
        const size_t middle = low + (high - low) / 2;
        if (f->runs.ptr[middle].end <= block)
            low = middle + 1;
        else
            high = middle;
    }
    return low < f->runs.len && f->runs.ptr[low].first <= block;
}

/* With gaps of fewer than `least` blocks closed. -E2BIG: it is too long. */
static int print(const struct runs *all, uint64_t least, char *out)
{
    size_t used = 0;
    uint64_t from = 0;

    for (size_t i = 0, next; i < all->len; i = next) {
        const uint64_t first = all->ptr[i].first;
        for (next = i + 1; next < all->len && all->ptr[next].first - all->ptr[next - 1].end < least;)
            next++;
        const uint64_t end = all->ptr[next - 1].end;
        const int n = snprintf(out + used, WS_DELTA_FILTER_CHARS + 1 - used, "%s%" PRIu64 ".%" PRIu64,
                               i ? "," : "", first - from, end - first);
        if (n < 0 || (size_t)n > WS_DELTA_FILTER_CHARS - used)
            return -E2BIG;
        used += (size_t)n;
        from = end;
    }
    return 0;
}

char *ws_delta_filter_text(bool (*wants)(void *arg, uint64_t block), void *arg, uint64_t n_blocks)
{
    struct runs all = {0};
    char *out = calloc(1, WS_DELTA_FILTER_CHARS + 1);
    int rc = out ? 0 : -ENOMEM;

    for (uint64_t b = 0; b < n_blocks && rc == 0; b++) {
        if (!wants(arg, b))
            continue;
        if (all.len && all.ptr[all.len - 1].end == b)
            all.ptr[all.len - 1].end++;
        else
            rc = runs_append(&all, (struct run){b, b + 1});
    }
    if (rc == 0 && all.len == 0) /* a filter has a run; this one is of no block */
        rc = runs_append(&all, (struct run){n_blocks, n_blocks + 1});
    if (rc == 0)
        for (uint64_t least = 1; print(&all, least, out) < 0;)
            least *= 2;
    runs_reset(&all);
    if (rc == 0)
        return out;
    free(out);
    return NULL;
}
