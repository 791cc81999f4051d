/* Acceptor: a thread that accepts connections from a listening socket. When the process is out of descriptors, it logs
 * that once, tries again ten times a second, and goes on once there are some; clients wait meanwhile. */
#ifndef WS_TRANSPORTS_HTTP_ACCEPTOR_H
#define WS_TRANSPORTS_HTTP_ACCEPTOR_H
#include "transports/base/error.h"
#include <stdbool.h>

struct ws_acceptor;
struct ws_acceptor_options {
    int listener;            /* stays the caller's */
    const char *part, *name; /* for the log; name: what is listened on */
    /* All by the acceptor's thread. */
    void (*came)(void *self, int sock); /* its owner from now on */
    bool (*has_room)(void *self);       /* for one more; NULL: always */
    void (*looks)(void *self);          /* once a second, and at each connection; or NULL */
    void *self;
};
/* 0 or a negative errno. */
WS_MUST_USE int ws_acceptor_new(struct ws_acceptor **out, const struct ws_acceptor_options *o);
void ws_acceptor_free(
    struct ws_acceptor *a); /* no function of the options is called any more; NULL is fine */

#endif
