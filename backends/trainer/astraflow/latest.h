/* Newest: which model a listener for AstraFlow's receivers is about, and what is newest of it: all that their
 * protocol can ask for. Any thread. */
#ifndef WS_TRAINER_ASTRAFLOW_LATEST_H
#define WS_TRAINER_ASTRAFLOW_LATEST_H
#include "transports/base/version_id.h"
#include "transports/protocol/catalog.h"

struct ws_topic {
    struct ws_catalog catalog;
    char *model; /* NULL: the only one that there is */
};
struct ws_newest {
    char model[WS_MAX_NAME + 1];
    struct ws_mark mark;
};
/* -ENOENT: nothing was published yet; -EINVAL: there are several models and none is named. */
WS_MUST_USE int ws_newest_find(const struct ws_topic *t, struct ws_newest *out, struct ws_error *err);
/* Finds and holds it; revoked as in catalog.h. */
WS_MUST_USE int ws_newest_hold(const struct ws_topic *t, const char *holder, void (*revoked)(void *),
                               void *arg, struct ws_newest *what, struct ws_hold **out, struct ws_error *err);
/* Gives it back and forgets it; *hold NULL is fine. */
void ws_newest_drop(const struct ws_topic *t, struct ws_hold **hold);

#endif
