/* AstraFlow: serves a model to AstraFlow's own receivers, unmodified, from the same slots under the same
 * leases as other readers. Receivers register by HTTP and ask for transfers; the bytes go out over
 * connections that we open to them (push.h), and a ZMQ message says that all are there.
 *
 * The protocol has no authentication: a client that reaches the port can have the weights sent to an address
 * of its choice. So this is a listener of its own, which is off unless asked for. Nor has the protocol a
 * field for a model's name: one listener is one model.
 *
 * A thread a connection, since a transfer's reply comes after its last byte: no receiver waits for another.
 * A trainer never waits for one: its lease is revoked, the transfer is cut, and the reply says so. */
#ifndef WS_TRAINER_ASTRAFLOW_LISTENER_H
#define WS_TRAINER_ASTRAFLOW_LISTENER_H
#include "transports/protocol/catalog.h"

struct ws_astraflow_options {
    const char *listen; /* "HOST:PORT" */
    char *model;        /* NULL: the only one that there is */
    char *state;        /* file of the registrations; NULL: they are forgotten at the end */
    unsigned stall_ms;  /* how long a receiver may take nothing; 0: WS_REPLY_TIMEOUT_MS */
};
struct ws_astraflow;
/* Starts serving; returns at once. catalog is borrowed, strings are copied. */
WS_MUST_USE int ws_astraflow_new(struct ws_astraflow **out, const struct ws_catalog *catalog,
                                 const struct ws_astraflow_options *options, struct ws_error *err);
void ws_astraflow_wake(struct ws_astraflow *f); /* something was published */
/* {"listen", "model", "receivers": [...]}, for the agent's status. */
json_t *ws_astraflow_status(struct ws_astraflow *f);
/* Cuts the transfers, answers, and gives up every lease; NULL is fine. */
void ws_astraflow_free(struct ws_astraflow *f);

#endif
