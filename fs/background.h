/* Background: a daemon that its caller does not wait for. */
#ifndef WS_FS_BACKGROUND_H
#define WS_FS_BACKGROUND_H
#include "transports/base/error.h"

/* Runs in a child process, in a session of its own and without the terminal, and returns once that has written 0, an int, to `ready`, or
 * has ended: then its error is this one's. log_file NULL: what it prints is discarded. */
struct ws_background {
    const char *log_file;
    int (*run)(void *arg, int ready, struct ws_error *err);
    void *arg;
};
WS_MUST_USE int ws_background_run(const struct ws_background *b, struct ws_error *err);

#endif
