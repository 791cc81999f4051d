/* Driver: NCCL, opened at run time. A communicator joins processes that have a device each. No call here waits:
 * what a call begins is polled, so that the caller can give up at any time. The library is libnccl.so.2;
 * $WSYNC_LIBNCCL names another (tests). One thread at a time uses a communicator. */
#ifndef WS_TRANSPORTS_NCCL_DRIVER_H
#define WS_TRANSPORTS_NCCL_DRIVER_H
#include "transports/base/error.h"
#include <stddef.h>

#define WS_NCCL_ID_BYTES     128
#define WS_NCCL_ID_TEXT      (2 * WS_NCCL_ID_BYTES + 1) /* an id as text, and its end */
#define WS_NCCL_RELEASE_TEXT 16

/* Is there a library that can be used? 0, or -ENOTSUP and why: this build, no library, one of another major
 * release than this build's headers, too old a one. Opens it at the first call; no device is needed. */
WS_MUST_USE int ws_nccl_available(struct ws_error *why);
/* Its release as a number (22803), 0 where it is not available. All members of a communicator need the same. */
int ws_nccl_release(void);

/* A release as text, "2.28.3" (driver_text.c). */
void ws_nccl_release_format(int release, char out[WS_NCCL_RELEASE_TEXT]);
/* A new communicator's id, by which processes that know nothing else of each other become its members. */
WS_MUST_USE int ws_nccl_id_new(int device, unsigned char out[WS_NCCL_ID_BYTES], struct ws_error *err);
/* An id as text, and back (driver_text.c). -EPROTO: it is none. */
void ws_nccl_id_format(const unsigned char id[WS_NCCL_ID_BYTES], char out[WS_NCCL_ID_TEXT]);
WS_MUST_USE int ws_nccl_id_parse(const char *text, unsigned char out[WS_NCCL_ID_BYTES]);

struct ws_nccl_comm;
struct ws_device_queue;
/* Begins to join; poll says when it has joined. */
WS_MUST_USE int ws_nccl_comm_new(struct ws_nccl_comm **out, const unsigned char id[WS_NCCL_ID_BYTES],
                                 int device, unsigned rank, unsigned n_ranks, struct ws_error *err);
/* 0: all that was begun is done (of a broadcast: it is in its queue); -EAGAIN: not yet; else the communicator
 * cannot be used any more: -ECONNABORTED: another member has ended; -EIO. */
WS_MUST_USE int ws_nccl_comm_poll(struct ws_nccl_comm *c, struct ws_error *err);
/* Queues a broadcast of bytes from rank 0's device memory to all members'. Nothing else may be queued until poll
 * says 0. */
WS_MUST_USE int ws_nccl_comm_broadcast(struct ws_nccl_comm *c, struct ws_device_queue *q, void *data,
                                       size_t bytes, struct ws_error *err);
/* Begins the end, which all members make together after the last broadcast. */
WS_MUST_USE int ws_nccl_comm_finalize(struct ws_nccl_comm *c, struct ws_error *err);
/* After a finalize that poll says is done, ends the communicator; else aborts it: what is queued ends, whatever
 * other members do. NULL is fine. */
void ws_nccl_comm_free(struct ws_nccl_comm *c);

#endif
