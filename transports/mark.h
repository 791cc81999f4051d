/* Mark: a version of some model, by number and lineage. */
#ifndef WS_TRANSPORTS_MARK_H
#define WS_TRANSPORTS_MARK_H
#include "transports/limits.h"
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

struct ws_mark {
    uint64_t version;
    char run[WS_RUN_CHARS + 1]; /* empty: none */
};

static inline struct ws_mark ws_mark_of(uint64_t version, const char *run)
{
    struct ws_mark m = {.version = version};
    snprintf(m.run, sizeof(m.run), "%s", run);
    return m;
}

/* false where either is none */
static inline bool ws_mark_is(const struct ws_mark *a, const struct ws_mark *b)
{
    return a->run[0] && a->version == b->version && strcmp(a->run, b->run) == 0;
}

#endif
