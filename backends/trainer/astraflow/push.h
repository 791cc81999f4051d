/* Push: one transfer to one of AstraFlow's receivers, over TCP connections that we open: on each a header
 * (offset and length, little endian), the bytes, and one byte back that says that they are written.
 *
 *     new -> send (every byte is in the kernel's hands) -> wait (every stream is acknowledged) -> free
 *                 any failure, or cut from another thread -> leave -> settled -> free
 *
 * Bytes go out by send(), which copies: what was sent cannot change later, as it could with sendfile. Where a
 * transfer ends early the receiver may still be reading what was sent; leave ends our half of the connections
 * and settled says when the receiver has closed its own, so that no later transfer is mixed with this one.
 * Every wait ends: connecting, sending without progress, the acknowledgement, and all of it together. */
#ifndef WS_TRAINER_ASTRAFLOW_PUSH_H
#define WS_TRAINER_ASTRAFLOW_PUSH_H
#include "transports/base/error.h"
#include "transports/base/limits.h"
#include <netinet/in.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

struct ws_push_target {
    struct in_addr address;
    unsigned n_ports; /* one: all streams go there; more: a stream each */
    uint16_t ports[WS_MAX_STREAMS];
};

struct ws_push;
/* stall_ms: how long a receiver may take nothing. NULL: no memory, or no descriptor. */
struct ws_push *ws_push_new(unsigned stall_ms);
/* Ends the transfer soon; its functions then return -code. Any thread, at any time; the first code counts. */
void ws_push_cut(struct ws_push *p, int code);
/* Sends the parts one after another as one buffer (over 0 bytes), in chunks over the streams. They are read
 * until it returns. -ECONNREFUSED and the like, -ETIMEDOUT, -ECONNRESET, or the code of the cut. */
WS_MUST_USE int ws_push_send(struct ws_push *p, const struct ws_push_target *to, const struct iovec *parts,
                             size_t n_parts, struct ws_error *err);
/* Waits for all acknowledgements. */
WS_MUST_USE int ws_push_wait(struct ws_push *p, struct ws_error *err);
/* After a failure: no more bytes come. Does not wait. */
void ws_push_half_close(struct ws_push *p);
/* Has the receiver ended every connection of a push that was left? Waits for at most timeout_ms. */
WS_MUST_USE bool ws_push_wait_closed(struct ws_push *p, unsigned timeout_ms);
void ws_push_free(struct ws_push *p); /* closes; NULL is fine */

#endif
