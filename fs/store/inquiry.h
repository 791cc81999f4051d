/* Inquiry: asks the sources now what they have of a model, for one who was told of a version before this mount was: the
 * call of a framework that names a folder overtakes what the agent announces.
 *
 * A source is asked once at a time, for all who want to know, however many names they look for: who comes meanwhile waits
 * for the next time, as the answer that is under way may be older than what they were told. So floods of names cost a
 * source WS_INQUIRY_RATE requests a second at most, and a mount one thread a source. Who waits has an answer within
 * WS_INQUIRY_MS, whatever the sources do: a source that leaves one without an answer for longer, or has just refused one,
 * is not waited for. */
#ifndef WS_FS_STORE_INQUIRY_H
#define WS_FS_STORE_INQUIRY_H
#include "fs/store/store.h"
#include <sys/queue.h>

#define WS_INQUIRY_MS    2000
#define WS_INQUIRY_RATE  50   /* a second, and as many at once */
#define WS_MAX_INQUIRIES 4096 /* that wait at a time */

struct ws_inquiry {
    void (*done)(
        struct ws_inquiry *q); /* set by the caller: look again. On a thread of the store, without a lock */
    /* the store's */
    const char *model;
    uint64_t number, since_ns, deadline_ns;
    uint64_t sources; /* bit i: the one with index i is waited for */
    bool any, first, queued;
    LIST_ENTRY(ws_inquiry) link;
};

/* What the store keeps of it for each source; guarded by store->lock. */
struct ws_inquirer {
    uint64_t wanted_ns, began_ns; /* when it was last asked for, and last begun */
    uint64_t ended_ns;            /* when the last one that has ended had begun */
    uint64_t failed_ns;           /* when the last one ended that failed; 0: the last one did not */
    uint64_t paid_ns;             /* what has been asked is paid for then, at WS_INQUIRY_RATE */
    bool runs;                    /* there is a thread */
};

/* Asks all sources of the model, which need not be known yet; its name lives as long as q. number NULL: waits for all of
 * them; else for that version of the live run, or all. 0: done will be called, unless cancel has returned true. -ENOENT: nobody is there to ask. -EAGAIN: too many wait. */
WS_MUST_USE int ws_inquiry_start(struct ws_store *s, const char *model, const uint64_t *number,
                                 struct ws_inquiry *q);
/* Asks nobody, and waits until each source has answered once, or failed to. 0: done will be called, by until_ns at the latest, unless
 * cancel has returned true. -EALREADY: they have, or it is later. -EAGAIN: too many wait. */
WS_MUST_USE int ws_inquiry_await_first(struct ws_store *s, uint64_t until_ns, struct ws_inquiry *q);
bool ws_inquiry_cancel(struct ws_store *s, struct ws_inquiry *q); /* true: done will not be called */

/* With store->lock: takes out those that are over, and returns them as a list for complete, which is called without it. */
struct ws_inquiry *ws_inquiries_collect(struct ws_store *s);
/* The same for the deadline thread (waiters.c): also those that are due, or all. *next: the next deadline, where it is earlier. */
struct ws_inquiry *ws_inquiries_collect_due(struct ws_store *s, uint64_t now, bool all, uint64_t *next);
void ws_inquiries_complete(struct ws_inquiry *chain);

#endif
