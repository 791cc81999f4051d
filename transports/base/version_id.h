/* Mark: a version of some model, by number and lineage. */
#ifndef WS_TRANSPORTS_BASE_VERSION_ID_H
#define WS_TRANSPORTS_BASE_VERSION_ID_H
#include "transports/base/limits.h"
#include <inttypes.h>
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

/* As engines are told it: "42@RUN". A number alone would be the same in a lineage that was abandoned. */
#define WS_MARK_TEXT (20 + 1 + WS_RUN_CHARS + 1)
static inline void ws_mark_text(const struct ws_mark *m, char out[WS_MARK_TEXT])
{
    snprintf(out, WS_MARK_TEXT, "%" PRIu64 "@%s", m->version, m->run);
}

/* false where either is none */
static inline bool ws_mark_is(const struct ws_mark *a, const struct ws_mark *b)
{
    return a->run[0] && a->version == b->version && strcmp(a->run, b->run) == 0;
}

#endif
