/* Written: a folder that a framework writes into, while versions are made of what it writes. The mount is over the folder
 * and passes everything on to it; new folders whose names match the pattern lie in memory of the daemon's own where it
 * may have some, and end with it. */
#ifndef WS_FS_WRITTEN_WRITTEN_H
#define WS_FS_WRITTEN_WRITTEN_H
#include "transports/base/error.h"
#include "transports/base/pattern.h"
#include <stdbool.h>
#include <stdint.h>

enum ws_written_outcome {
    WS_WRITTEN_PUBLISHED,
    WS_WRITTEN_LEFT_OUT, /* it never will be; said */
    WS_WRITTEN_FAILED,   /* now; said */
};

struct ws_written_options {
    const char *at;     /* the folder */
    const char *marker; /* NULL: none */
    const struct ws_pattern *pattern;
    /* Publishes what lies in the folder, which is whole, and which nobody changes until this returns. The descriptor
     * is the caller's. One call at a time, on a thread of its own. */
    enum ws_written_outcome (*publish)(void *arg, int folder, const char *name, uint64_t number);
    void (*ready)(void *arg); /* the mount answers */
    void (*stop)(void *arg);  /* a call of publish that runs returns soon, and so does any later one */
    void *arg;
    bool allow_other, debug;
};

/* Mounts and serves until it is unmounted, or SIGINT or SIGTERM comes. -EBUSY: a live mount is there. */
WS_MUST_USE int ws_written_run(const struct ws_written_options *o, struct ws_error *err);

#endif
