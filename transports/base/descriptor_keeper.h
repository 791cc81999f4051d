/* Descriptor keeper: a store of descriptors (descriptor_store.h) in a process that supervises another one (respawn.h). It is made before
 * the first daemon is forked; each daemon then has the client's side of it. */
#ifndef WS_TRANSPORTS_BASE_DESCRIPTOR_KEEPER_H
#define WS_TRANSPORTS_BASE_DESCRIPTOR_KEEPER_H
#include "transports/base/descriptor_store.h"

struct ws_descriptor_keeper {
    int ends[2]; /* the supervisor's, the daemon's */
    struct ws_named_descriptor *all;
    size_t n, cap;
};

WS_MUST_USE int ws_descriptor_keeper_init(struct ws_descriptor_keeper *k, struct ws_error *err);
/* In the supervisor: does what daemons have sent, and does not wait for more. */
void ws_descriptor_keeper_receive(struct ws_descriptor_keeper *k);
/* In a daemon, right after it was forked: makes it the store of this process, which finds what is kept. */
void ws_descriptor_keeper_serve_this(struct ws_descriptor_keeper *k);
void ws_descriptor_keeper_release(struct ws_descriptor_keeper *k); /* in the supervisor */

#endif
