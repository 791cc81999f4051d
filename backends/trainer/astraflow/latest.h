/* Latest: the newest version of the model that a listener for AstraFlow's receivers serves; their protocol can
 * ask for no other. Any thread. */
#ifndef WS_TRAINER_ASTRAFLOW_LATEST_H
#define WS_TRAINER_ASTRAFLOW_LATEST_H
#include "transports/base/version_id.h"
#include "transports/protocol/catalog.h"

struct ws_latest_scope {
    struct ws_catalog catalog;
    char *model; /* NULL: the only one that there is */
};
struct ws_latest {
    char model[WS_MAX_NAME + 1];
    struct ws_version_id version;
};
/* -ENOENT: nothing was published yet; -EINVAL: there are several models and none is named. */
WS_MUST_USE int ws_latest_find(const struct ws_latest_scope *t, struct ws_latest *out, struct ws_error *err);
/* Finds and leases it; revoked as in catalog.h. */
WS_MUST_USE int ws_latest_acquire(const struct ws_latest_scope *t, const char *holder,
                                  void (*revoked)(void *), void *arg, struct ws_latest *what,
                                  struct ws_lease **out, struct ws_error *err);
/* Releases it and sets *lease NULL; *lease NULL is fine. */
void ws_latest_release(const struct ws_latest_scope *t, struct ws_lease **lease);

#endif
