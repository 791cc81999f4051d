#include "transports/base/deaths.h"
#include <errno.h>
#include <stdlib.h>

#define MOST 3

void ws_deaths_init(struct ws_deaths *d)
{
    const char *text = getenv("WSYNC_DEATHS");
    const unsigned long n = text ? strtoul(text, NULL, 10) : MOST;
    *d = (struct ws_deaths){.most = n < 1 ? 1 : n};
}

void ws_deaths_add(struct ws_deaths *d)
{
    d->at_ns[d->n++ % WS_DEATHS_KEPT] = ws_clock_ns();
}

bool ws_deaths_were(const struct ws_deaths *d, size_t times)
{
    return times > 0 && times <= WS_DEATHS_KEPT && d->n >= times &&
           d->at_ns[(d->n - 1) % WS_DEATHS_KEPT] - d->at_ns[(d->n - times) % WS_DEATHS_KEPT] <
               WS_DEATHS_WITHIN_NS;
}

int ws_deaths_error(const struct ws_deaths *d, const char *whose, const char *how, const char *outcome,
                    struct ws_error *err)
{
    return ws_error_set(err, EIO,
                        "the daemon of %s has died %zu times within %llu s, the last time of: %.600s; %s",
                        whose, d->most, WS_DEATHS_WITHIN_NS / WS_SECOND_NS, how, outcome);
}
