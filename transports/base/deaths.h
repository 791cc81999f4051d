/* Deaths: when the daemons of one supervisor died, and whether that was too often. WSYNC_DEATHS says after how many within a minute
 * it gives up: 3 without it. Of one thread. */
#ifndef WS_TRANSPORTS_BASE_DEATHS_H
#define WS_TRANSPORTS_BASE_DEATHS_H
#include "transports/base/clock.h"
#include "transports/base/error.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define WS_DEATHS_WITHIN_NS (60 * WS_SECOND_NS)
#define WS_DEATHS_KEPT      64

struct ws_deaths {
    uint64_t at_ns[WS_DEATHS_KEPT]; /* the last n % WS_DEATHS_KEPT */
    size_t n, most;
};

void ws_deaths_init(struct ws_deaths *d);
void ws_deaths_add(struct ws_deaths *d); /* now */
/* Were the last `times` within a minute? */
bool ws_deaths_were(const struct ws_deaths *d, size_t times);
/* -EIO and its text, where it gives up: whose daemons they were, how the last one died, and what becomes of it. */
int ws_deaths_error(const struct ws_deaths *d, const char *whose, const char *how, const char *outcome,
                    struct ws_error *err);

#endif
