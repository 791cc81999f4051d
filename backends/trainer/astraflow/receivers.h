/* Receivers: the AstraFlow receivers that have registered, and what each is doing. The registrations are kept
 * in a small file: a receiver registers once in its life, and an agent that forgot it would refuse it for ever.
 * A receiver has one buffer, so one transfer at a time goes to it, and a newer request ends the one before. Any
 * thread. */
#ifndef WS_TRAINER_ASTRAFLOW_RECEIVERS_H
#define WS_TRAINER_ASTRAFLOW_RECEIVERS_H
#include "backends/trainer/astraflow/push.h"
#include "transports/base/version_id.h"
#include <jansson.h>

struct ws_receiver {    /* a registration */
    char instance[272]; /* "HOST:PORT" */
    struct ws_push_target data;
    char zmq[40]; /* "tcp://A.B.C.D:PORT" */
    uint64_t buffer_bytes;
    char layout[17]; /* ws_flat_view's, of what it has made room for */
};

struct ws_receivers;
/* Reads the file; path NULL: they are kept in memory only. A damaged file is moved aside and logged. */
WS_MUST_USE int ws_receivers_new(struct ws_receivers **out, const char *path, struct ws_error *err);
/* Adds it, or takes the place of the one with this instance, whose transfer is cut. When there are
 * WS_MAX_CLIENTS, the one that was quiet for longest is forgotten; -EBUSY: none is. */
WS_MUST_USE int ws_receivers_put(struct ws_receivers *all, const struct ws_receiver *r, struct ws_error *err);

struct ws_receiver_transfer { /* a transfer to one */
    struct ws_receiver receiver;
    struct ws_version_id last_received; /* what it got last from this agent; empty run: unknown */
    uint64_t registered;                /* which registration */
};
/* Cuts a transfer to it that runs, and waits until nothing of an earlier one is on its way: a few seconds.
 * From now on the push is its transfer, for others to cut; to be ended by ws_receivers_end. -ENOENT: not
 * registered; -EBUSY: it still reads what was sent earlier. */
WS_MUST_USE int ws_receivers_begin(struct ws_receivers *all, const char *instance, struct ws_push *push,
                                   struct ws_receiver_transfer *out, struct ws_error *err);
/* Takes the push. got NULL: it failed, and `error` says why; error NULL too: nothing was tried. */
void ws_receivers_end(struct ws_receivers *all, const struct ws_receiver_transfer *errand,
                      struct ws_push *push, const struct ws_version_id *got, const char *error);
/* Has one of them this version? */
bool ws_receivers_have(struct ws_receivers *all, const struct ws_version_id *id);
/* Cuts all transfers; none begins any more. */
void ws_receivers_stop(struct ws_receivers *all);
/* [{"instance", "version", "busy", "transfers", "failures", "error"}, ...] */
json_t *ws_receivers_json(struct ws_receivers *all);
void ws_receivers_free(struct ws_receivers *all); /* no transfer runs any more; NULL is fine */

#endif
