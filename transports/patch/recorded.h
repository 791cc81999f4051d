/* Recorded: the delta from one version to another as a mount shows it, read whole and checked: .wsync/changes-from-BASE of the
 * target's folder. One thread. */
#ifndef WS_TRANSPORTS_PATCH_RECORDED_H
#define WS_TRANSPORTS_PATCH_RECORDED_H
#include "transports/delta/stream.h"
#include "transports/patch/version_folder.h"

struct ws_recorded {
    size_t n;
    struct ws_delta_record **list; /* at most one of a block */
};

/* target: with a manifest. base: the manifest of the base's folder; the delta is that of its digest. -ENOENT: the mount has no such delta; -EOPNOTSUPP, -E2BIG: nor should another way be tried, and err says why; -EBADMSG: it is damaged, or between other
 * versions than these manifests'; -ENOMEM. */
WS_MUST_USE int ws_recorded_read(struct ws_recorded *out, const struct ws_version_folder *target,
                                 const struct ws_manifest *base, struct ws_error *err);
void ws_recorded_free(struct ws_recorded *r); /* one that is all zero, too */

#endif
