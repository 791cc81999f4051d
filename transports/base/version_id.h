/* Version id: which version of a model is meant, by number and lineage. A number alone means another version in
 * another lineage. Pure functions. */
#ifndef WS_TRANSPORTS_BASE_VERSION_ID_H
#define WS_TRANSPORTS_BASE_VERSION_ID_H
#include "transports/base/limits.h"
#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

struct ws_version_id {
    uint64_t version;
    char lineage[WS_LINEAGE_CHARS + 1]; /* empty: none */
};

static inline struct ws_version_id ws_version_id_make(uint64_t version, const char *lineage)
{
    struct ws_version_id id = {.version = version};
    snprintf(id.lineage, sizeof(id.lineage), "%s", lineage);
    return id;
}

/* As engines get it: "42@RUN". A number alone would be the same in a lineage that was abandoned. */
#define WS_VERSION_ID_TEXT (20 + 1 + WS_LINEAGE_CHARS + 1)
static inline void ws_version_id_text(const struct ws_version_id *id, char out[WS_VERSION_ID_TEXT])
{
    snprintf(out, WS_VERSION_ID_TEXT, "%" PRIu64 "@%s", id->version, id->lineage);
}

/* False where either has no lineage. */
static inline bool ws_version_id_equal(const struct ws_version_id *a, const struct ws_version_id *b)
{
    return a->lineage[0] && a->version == b->version && strcmp(a->lineage, b->lineage) == 0;
}

#endif
