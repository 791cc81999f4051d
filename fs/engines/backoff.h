/* Backoff: when what has failed is tried again: after a short wait first, then after twice that, up to a limit. All
 * zero: at once. The lock of its owner guards it. */
#ifndef WS_FS_ENGINES_BACKOFF_H
#define WS_FS_ENGINES_BACKOFF_H
#include "transports/base/clock.h"
#include <stdbool.h>

struct ws_backoff {
    uint64_t wait_ns, not_before_ns;
};

static inline void ws_backoff_failed(struct ws_backoff *b, uint64_t first_ns, uint64_t most_ns)
{
    const uint64_t wait_ns = b->wait_ns ? b->wait_ns * 2 : first_ns;
    b->wait_ns = wait_ns < most_ns ? wait_ns : most_ns;
    b->not_before_ns = ws_clock_ns() + b->wait_ns;
}

static inline void ws_backoff_reset(struct ws_backoff *b)
{
    *b = (struct ws_backoff){0};
}

static inline bool ws_backoff_is_over(const struct ws_backoff *b)
{
    return ws_clock_ns() >= b->not_before_ns;
}

#endif
