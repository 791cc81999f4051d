/* Ending: in which order a mount ends. At SIGTERM, SIGINT or SIGHUP (where that does not reload) control ends first, while the mount still
 * serves: engines in the middle of a switch read from it the version that they go back to. Where the mount is
 * no longer at its path (it was unmounted, maybe lazily) control ends at once, because the path, its settings
 * and its ports may be a successor's from then on. Files that are open go on being served.
 *
 *     serving --- a signal ----> control ends ----> the session ends
 *        '------- unmounted ---> control ends ----> the session ends with its last reader, or by a signal */
#ifndef WS_FS_ENDING_H
#define WS_FS_ENDING_H
#include "fs/fuse/place.h"
#include <pthread.h>
#include <signal.h>

struct ws_ending_options {
    const struct ws_place
        *place; /* borrowed until ws_ending_over; NULL: nobody here sees where it is mounted */
    void (*end_control)(void *arg);
    void (*reload)(void *arg); /* at SIGHUP, instead of the end; NULL: it ends the mount, too */
    void (*end_session)(
        void *arg); /* `session` sees it at its next EINTR, which it gets until ws_ending_over */
    void *arg;
    pthread_t session;
};
struct ws_ending;

/* Blocks the signals that end a mount (base/end_signals.h) in all threads that are started from now on. Called before any is. */
void ws_ending_block_signals(sigset_t *before);
WS_MUST_USE int ws_ending_watch(struct ws_ending **out, const struct ws_ending_options *o);
/* The session is over: returns when nothing is under way any more. NULL is fine. */
void ws_ending_over(struct ws_ending *e);

#endif
