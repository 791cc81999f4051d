/* Desired state: what agents want of this mount for one model: the release that is under way, the version
 * that was released last, and versions that engines of other mounts need here. Agents put it into the listing
 * that the mount polls. It is state, not messages: what a poll misses, the next one reads. Pure. */
#ifndef WS_FS_STORE_DESIRED_H
#define WS_FS_STORE_DESIRED_H
#include "transports/base/error.h"
#include "transports/base/version_id.h"
#include <jansson.h>

enum ws_desired_phase { WS_DESIRED_NONE, WS_DESIRED_PREPARING, WS_DESIRED_COMMITTED, WS_DESIRED_ABORTED };
#define WS_MAX_WANTED 8

struct ws_desired {
    uint64_t release; /* its id, the same in every model that it names; 0: none yet */
    enum ws_desired_phase phase;
    struct ws_version_id to; /* the version that it is about */
    uint64_t released_by;    /* id of the last release that was committed; 0: trainers do not release */
    struct ws_version_id released;
    bool quarantines; /* engines that serve something older are to be kept from it (wsync release --quorum) */
    bool inherited; /* the last three are of an agent that has ended; the present one has released nothing */
    size_t n_wanted;
    struct ws_wanted {
        uint64_t id;
        struct ws_version_id version;
    } wanted[WS_MAX_WANTED];
};

/* From a model's entry in a listing. mount_id: this mount, HOST:MOUNTPOINT; NULL: it has none. -EPROTO: the
 * entry is malformed. */
WS_MUST_USE int ws_desired_from_json(const json_t *model, const char *mount_id, struct ws_desired *out);
/* A restarted agent does not know what was released before. The release is inherited, so that a mount that
 * follows releases does not act on versions that are only published. */
void ws_desired_inherit(struct ws_desired *o, const struct ws_desired *before);
bool ws_desired_is_same(const struct ws_desired *a, const struct ws_desired *b);
bool ws_desired_wants(const struct ws_desired *o, uint64_t wanted_id);

#endif
