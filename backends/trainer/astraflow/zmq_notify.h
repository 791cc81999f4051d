/* ZMQ notify: tells a receiver over ZMQ that every byte of a transfer is there. The receiver waits for this
 * message after the HTTP reply. The message names no transfer, so a transfer that failed must send none. For
 * one thread. */
#ifndef WS_TRAINER_ASTRAFLOW_ZMQ_NOTIFY_H
#define WS_TRAINER_ASTRAFLOW_ZMQ_NOTIFY_H
#include "transports/base/error.h"

#define WS_ASTRAFLOW_RANK 0 /* the same in the reply to a registration and in this message */

struct ws_zmq_notify;
/* Begins to connect to "tcp://A.B.C.D:PORT"; zmq is a context. */
WS_MUST_USE int ws_zmq_notify_new(struct ws_zmq_notify **out, void *zmq, const char *endpoint,
                                  struct ws_error *err);
/* Sends it, once there is a connection: waits some seconds at most. -ETIMEDOUT. */
WS_MUST_USE int ws_zmq_notify_send(struct ws_zmq_notify *d, struct ws_error *err);
void ws_zmq_notify_free(struct ws_zmq_notify *d); /* what was sent still goes out; NULL is fine */

#endif
