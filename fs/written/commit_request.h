/* Commit request: asks the wsync share that has a folder mounted to publish a version's folder in it, and hears what became of
 * it. For who would rather know than be told nothing, as fsync(2) of the folder does. */
#ifndef WS_FS_WRITTEN_COMMIT_REQUEST_H
#define WS_FS_WRITTEN_COMMIT_REQUEST_H
#include "transports/base/error.h"
#include <stdint.h>
#include <sys/ioctl.h>

enum ws_commit_state {
    WS_COMMIT_DONE,      /* it is published: number */
    WS_COMMIT_DONE_PART, /* its part is whole, and is published with those of the other nodes */
    WS_COMMIT_BEFORE,    /* it was published before, and nothing of it is new: number */
    WS_COMMIT_PARTIAL,   /* it is not whole: text */
    WS_COMMIT_REFUSED,   /* it is no version's folder, or could not be published now: text */
};
struct ws_commit_reply {
    uint64_t number;
    uint32_t state; /* enum ws_commit_state */
    char text[500];
};
#define WS_COMMIT_IOCTL _IOR('w', 0x53, struct ws_commit_reply)

/* Waits until the folder was published, or could not be: 120 s at most. -ENOTTY: it is in no folder that is shared; or what the system
 * says. Any thread. */
WS_MUST_USE int ws_commit_request(const char *path, struct ws_commit_reply *out, struct ws_error *err);

#endif
