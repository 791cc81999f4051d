/* Request: a FUSE request that can be parked until bytes are here, and is then run again from its start. A FUSE
 * worker never waits for the network: the thread that brings the bytes runs the request. An interrupt (a
 * signal to the reader, SIGKILL included) ends a parked request at once; a deadline ends it later. */
#ifndef WS_FS_FUSE_REQUEST_H
#define WS_FS_FUSE_REQUEST_H
#include "fs/fuse/fs.h"
#include "fs/store/inquiry.h"

#define WS_LIST_MS 10000 /* longest wait of what only lists a folder */

struct ws_request {
    struct ws_fs *fs;
    fuse_req_t req;
    void (*run)(struct ws_request *rq); /* replies or parks, exactly one of them */
    fuse_ino_t ino;
    char *name; /* owned; NULL where the operation has none */
    size_t size;
    off_t off;
    struct fuse_file_info fi;
    bool plus;
    bool has_asked; /* ws_request_ask was through */
    /* parking: private to request.c */
    struct ws_waiter wait;
    struct ws_inquiry inquiry;
    bool asks;                     /* it waits for that */
    struct ws_version *waited_for; /* what is waited for */
    pthread_mutex_t lock;
    int refs, tries;
    enum { WS_REQUEST_STARTING, WS_REQUEST_PARKED, WS_REQUEST_FINISHED } phase;
    bool interrupted;
    unsigned generation; /* of the parking: the waiter may be done, and the request be parked anew, before
                            ws_request_park has looked */
};

/* Makes a request and runs it. name may be NULL (copied). Replies ENOMEM itself. */
void ws_request_start(fuse_req_t req, void (*run)(struct ws_request *), fuse_ino_t ino, const char *name,
                      size_t size, off_t off, const struct fuse_file_info *fi, bool plus);
/* Frees the request after its reply was sent. */
void ws_request_end(struct ws_request *rq);
void ws_request_error(struct ws_request *rq, int positive_errno); /* replies and ends */
/* Parks until ws_version_await(v, file, first, n) is done, then runs again; replies with its error otherwise.
 * The request may be over and freed when this returns: the caller must not touch it any more. */
void ws_request_park(struct ws_request *rq, struct ws_version *v, size_t file, size_t first, size_t n,
                     unsigned timeout_ms);
/* Parks until the sources were asked for a version of the model (ws_inquiry_start), then runs again, with has_asked. False:
 * it is not parked, as nobody is there to ask, and has_asked is set; true: the caller must not touch it any more. */
bool ws_request_ask(struct ws_request *rq, const char *model, const uint64_t *number);
/* In a daemon that took over, which does not know at once all that the one before has shown: parks until each source has
 * answered once, then runs again. False: all have, or are not waited for any more, or this is the first daemon. */
bool ws_request_await_sources(struct ws_request *rq);
/* As ws_request_error, for what leads nowhere as far as is known: ENOENT and ESTALE wait for the sources first. */
void ws_request_deny(struct ws_request *rq, int positive_errno);

#endif
