/* NCCL, opened at run time: a communicator of processes that have a device each, of which nothing here ever
 * waits: what is begun is asked after, so that whoever uses it can give up when it likes. The library is
 * libnccl.so.2; $WSYNC_LIBNCCL names another (tests). A communicator is used by one thread at a time. */
#ifndef WS_TRANSPORTS_NCCL_DRIVER_H
#define WS_TRANSPORTS_NCCL_DRIVER_H
#include "transports/nccl/broadcast_plan.h"

/* Is there a library that can be used? 0, or -ENOTSUP and why: this build, no library, one of another major
 * release than this build's headers, too old a one. Opens it at the first call; devices are not asked for. */
WS_MUST_USE int ws_nccl_available(struct ws_error *why);
/* Its release as a number (22803), 0 where it is not available. Members of a communicator need the same. */
int ws_nccl_release(void);

struct ws_comm;
struct ws_queue;
/* Begins to become a member; poll tells when it is one. */
WS_MUST_USE int ws_comm_new(struct ws_comm **out, const unsigned char id[WS_NCCL_ID_BYTES], int device,
                            unsigned rank, unsigned n_ranks, struct ws_error *err);
/* 0: all that was begun is done (of a broadcast: it is in its queue); -EAGAIN: not yet; else the communicator
 * is of no use any more: -ECONNABORTED another member's end, -EIO. */
WS_MUST_USE int ws_comm_poll(struct ws_comm *c, struct ws_error *err);
/* Queues a broadcast of bytes from rank 0's device memory to everybody's. Nothing may be put into the queue
 * until poll says 0. */
WS_MUST_USE int ws_comm_broadcast(struct ws_comm *c, struct ws_queue *q, void *data, size_t bytes,
                                  struct ws_error *err);
/* Begins the end that all members make together once they have no more to send. */
WS_MUST_USE int ws_comm_finalize(struct ws_comm *c, struct ws_error *err);
/* After a finalize that poll said was done; else aborts: what is queued ends, whatever the others do. NULL is
 * fine. */
void ws_comm_free(struct ws_comm *c);

#endif
