/* Written: a folder that a framework writes into, while versions are made of what it writes. The mount is over the folder
 * and passes everything on to it; new folders whose names match the pattern lie in memory of the daemon's own where it
 * may have some, and end with it.
 *
 * Several nodes may write one version, each into a folder of its own (part): each node's publish waits for all the others'. The
 * first node's folder is whole when its marker or index is there, which its framework writes when all nodes have written. That of another
 * node cannot be told: it is taken for whole as soon as nobody writes into it, and who then does write ends the publish that waits
 * (give_way), which is begun anew. So nobody waits for what waits for him, and no version is made of what was there before. */
#ifndef WS_FS_WRITTEN_WRITTEN_H
#define WS_FS_WRITTEN_WRITTEN_H
#include "transports/base/error.h"
#include "transports/base/pattern.h"
#include "transports/base/version_id.h"
#include "transports/format/commit_rule.h"
#include <stdbool.h>
#include <stdint.h>

#define WS_WRITTEN_FSNAME "wsync-share" /* of the mount, in /proc/self/mounts */

enum ws_written_outcome {
    WS_WRITTEN_PUBLISHED,
    WS_WRITTEN_LEFT_OUT, /* it never will be; said */
    WS_WRITTEN_FAILED,   /* now; said */
};

struct ws_written_options {
    const char *at;           /* the folder */
    const char *marker;       /* NULL: none */
    enum ws_commit_part part; /* of several nodes that write one version together */
    const struct ws_pattern *pattern;
    /* Publishes what lies in the folder, which is whole, and which nobody changes until this returns. The descriptor
     * is the caller's. id: its number; its run is set where it is published and that is known. One call at a time, on a
     * thread of its own. */
    enum ws_written_outcome (*publish)(void *arg, int folder, const char *name, struct ws_version_id *id);
    /* The folder of a version that was published is removed, or called something else. Must not block. */
    void (*retire)(void *arg, const struct ws_version_id *id);
    /* Of a part: the call of publish that runs returns soon, WS_WRITTEN_FAILED, so that its folder can be changed. */
    void (*give_way)(void *arg);
    void (*ready)(void *arg); /* the mount answers */
    void (*stop)(void *arg);  /* a call of publish that runs returns soon, and so does any later one */
    void *arg;
    bool allow_other, debug;
};

/* Mounts and serves until it is unmounted, or SIGINT or SIGTERM comes. -EBUSY: a live mount is there. */
WS_MUST_USE int ws_written_run(const struct ws_written_options *o, struct ws_error *err);

#endif
