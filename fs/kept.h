/* Kept: what the supervisor of a mount hands over to itself when it becomes another binary (fs/supervisor.h): descriptors, and where things stand. It
 * is bytes in a memfd, struct ws_kept and each region, whose number is in WSYNC_KEPT, beside the arguments, the folder and the environment with which the mount was
 * started: the binary reads its options anew, and finds the mount there.
 *
 * The same is tried in a child first, which does no more than that (is_trial). */
#ifndef WS_FS_KEPT_H
#define WS_FS_KEPT_H
#include "fs/kept_regions.h"
#include "transports/base/error.h"
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <time.h>

#define WS_RELEASE_CHARS 59

enum ws_kept_fd {
    WS_KEPT_CONNECTION, /* of /dev/fuse */
    WS_KEPT_LIFE,       /* life.h */
    WS_KEPT_SETTINGS,   /* the lock */
    WS_KEPT_BEACON,
    WS_KEPT_READ_AHEAD,
    WS_KEPT_SOCKET,  /* on which takeovers are asked for (fs/takeover.h) */
    WS_KEPT_CHANNEL, /* to the daemon */
    WS_KEPT_CLIENT,  /* who waits for the outcome */
    WS_KEPT_FORMER,  /* the binary to go back to */
    WS_KEPT_FDS
};

struct ws_kept {
    uint32_t wire;                      /* WS_LIFE_WIRE */
    char release[WS_RELEASE_CHARS + 1]; /* of the binary that wrote this */
    int32_t fds[WS_KEPT_FDS];           /* -1: none */
    pid_t daemon;                       /* 0: none */
    dev_t dev;                          /* 0: the place is not known */
    ino_t socket_ino;                   /* of WS_KEPT_SOCKET's name */
    struct timespec start;
    sigset_t signals; /* that were blocked before the supervisor began */
    bool is_trial, is_undone;
    char why[WS_ERROR_TEXT]; /* is_undone: of what */
};

/* The first call is before any folder is left. */
void ws_kept_begin(void);
/* NULL: nothing was handed over to this process. */
const struct ws_kept *ws_kept(void);
/* The regions that were handed over; the caller's from here on. */
struct ws_kept_regions ws_kept_take_regions(void);
/* This process becomes the binary (a descriptor). -errno: it is what it was. */
WS_MUST_USE int ws_kept_exec(const struct ws_kept *k, const struct ws_kept_regions *regions, int binary);
/* What was handed over cannot be used: the supervisor goes back, and a trial ends. Returns where nothing was handed over. */
void ws_kept_refuse(const struct ws_error *why);
/* It is in use: nothing is handed over to this process any more. */
void ws_kept_end(void);
/* Of a trial: it could be. Ends the process. */
void ws_kept_accept(void);
void ws_kept_none(struct ws_kept *k); /* no descriptors, and zeros */

#endif
