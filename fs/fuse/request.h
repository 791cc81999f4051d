/* Call: a FUSE request that can be parked until bytes are here, and is then run again from its start. A FUSE
 * worker never waits for the network: whoever brings the bytes runs the call. An interrupt (a signal to the
 * reader, SIGKILL included) ends a parked call at once; a deadline ends it later. */
#ifndef WS_FS_FUSE_REQUEST_H
#define WS_FS_FUSE_REQUEST_H
#include "fs/fuse/fs.h"

#define WS_META_MS 10000 /* longest wait of what only looks at names and sizes */

struct ws_call {
    struct ws_fs *fs;
    fuse_req_t req;
    void (*run)(struct ws_call *c); /* replies or parks, exactly one of them */
    fuse_ino_t ino;
    char *name; /* owned; NULL where the operation has none */
    size_t size;
    off_t off;
    struct fuse_file_info fi;
    bool plus;
    /* parking: private to request.c */
    struct ws_wait wait;
    struct ws_version *held; /* what is waited for */
    pthread_mutex_t lock;
    int refs, tries;
    enum { WS_CALL_STARTING, WS_CALL_PARKED, WS_CALL_FINISHED } phase;
    bool interrupted;
    unsigned generation; /* of the parking: done may come, and the call be parked anew, before the one who
                            parked it looks */
};

/* Makes a call and runs it. name may be NULL (copied). Replies ENOMEM itself. */
void ws_call_start(fuse_req_t req, void (*run)(struct ws_call *), fuse_ino_t ino, const char *name,
                   size_t size, off_t off, const struct fuse_file_info *fi, bool plus);
/* Ends the call after its reply was sent. */
void ws_call_end(struct ws_call *c);
void ws_call_error(struct ws_call *c, int positive_errno); /* replies and ends */
/* Parks until ws_version_wait(v, file, first, n) is done, then runs again; replies with its error otherwise.
 * The call may be over and freed when this returns: the caller must not touch it any more. */
void ws_call_park(struct ws_call *c, struct ws_version *v, size_t file, size_t first, size_t n,
                  unsigned timeout_ms);

#endif
