/* Source selection: which source a pull uses now, what it does when one fails, and when it gives up. The
 * threads of one pull share it; it has the one lock of a pull, which is taken after store->lock. An attempt
 * is one thread's use of one source. */
#ifndef WS_FS_PULL_SOURCE_SELECT_H
#define WS_FS_PULL_SOURCE_SELECT_H
#include "fs/store/poller.h"
#include "fs/store/transport_prefs.h"

#define WS_REASON_CHARS 160 /* why one strategy was not used */

struct ws_source_select {
    struct ws_version *version; /* the pull's */
    atomic_bool stop;
    bool turned_away;              /* the one copy of its model is for another version; the pull's thread's */
    atomic_bool way_is_gone;       /* bytes of files were wanted, and what is left has only a delta */
    _Atomic(uint64_t) progress_ns; /* when the last good block came */
    struct ws_pace pace;           /* of its bytes */
    struct ws_transport_prefs transport_prefs; /* never changes */
    atomic_int used;                           /* the strategy by which weights came last, or WS_NO_WAY */
    pthread_mutex_t lock;
    pthread_cond_t changed; /* anything in the pull; monotonic clock */
    /* guarded by lock */
    uint64_t refused;                         /* by index: sources that will not serve this version */
    unsigned turn;                            /* which of the alternatives is first; it only rises */
    struct ws_source_attempt *attempts;       /* those that have a source now */
    bool gone;                                /* a source has answered that it has the version no more */
    struct ws_error last;                     /* why the last attempt failed */
    uint64_t avoid_ns[WS_MAX_SOURCES];        /* until when a parent that failed is not asked */
    uint64_t watched_bytes;                   /* that came by all attempts, as parent_watch.c saw */
    char why_not[WS_N_WAYS][WS_REASON_CHARS]; /* by strategy: why it failed; empty: it was not tried */
    char part_why_not
        [WS_WHY_NOT_CHARS]; /* the pull's thread's: what its first part came by, or why no source was asked */
};

/* It does not move in memory while it has a source. */
struct ws_source_attempt {
    struct ws_poller *poller; /* of the source, counted; NULL: none */
    atomic_bool leave;        /* this use is to end: cancels requests to the source */
    struct ws_source_select *selection;
    struct ws_source_attempt *next, *prev;
    unsigned turn;
    uint64_t since_ns; /* when it began */
    uint64_t share_ns; /* its share of the deadline: the source may be silent for so long; 0: no limit */
    bool has_other;    /* another source answers */
    uint64_t lost_ns;  /* when its parent was lost, and no other has been asked since; 0: it was not */
    bool silent;       /* the source was silent for longer */
    unsigned failures; /* in a row */
    /* of parent_watch.c; guarded by selection->lock */
    uint64_t seen, moved_ns;                       /* what it saw last, and when that changed */
    uint64_t own_bytes, window_ns, window_watched; /* of its window: bytes, its begin, watched_bytes then */
    unsigned slow_windows;                         /* those before it, in a row, in which it was slow */
    /* set by the caller */
    const _Atomic(uint64_t) *came;         /* bytes as they come; may be set to 0 again; NULL: not counted */
    unsigned stripe;                       /* of what is fetched: which parents are asked (store/parents.h) */
    uint64_t skip;                         /* by index: sources that it does not want */
    bool needs_whole;                      /* bytes of files are fetched: no source that has only a delta */
    bool any_strategy;                     /* no weights are fetched, so sources by all strategies will do */
    bool by_ucx;                           /* bytes come by the ucx beside the source */
    bool optional;                         /* the pull continues without it if the source is silent */
    bool not_parents;                      /* parents are asked only where no other source answers */
    const struct ws_transport_prefs *only; /* sources by these; NULL: by the pull's */
};

void ws_source_select_init(struct ws_source_select *sel, struct ws_version *v); /* with store->lock */
void ws_source_select_release(struct ws_source_select *sel);
/* Begins an attempt: sources are tried in the order of their strategies, then of adding, those that answer
 * first. When none is left: -ESTALE, -ECANCELED, or the last one's error. -EHOSTUNREACH: the list has no
 * strategy by which a source serves; -EBADMSG: the sources disagree on the version's digest; -ENODATA: the attempt
 * needs_whole, and no source that is up has more than a delta (way_is_gone). */
WS_MUST_USE int ws_source_select_next(struct ws_source_select *sel, struct ws_source_attempt *attempt,
                                      struct ws_error *err);
/* As ws_version_comes_whole, for this pull, which some sources may have refused. With store->lock. */
bool ws_source_select_comes_whole(struct ws_source_select *sel);
/* Would another source be used for the stripe by now? An attempt that has a source. */
bool ws_source_select_has_moved(struct ws_source_select *sel, const struct ws_source_attempt *attempt);
/* An attempt ends in one of four ways. */
void ws_source_select_end(struct ws_source_attempt *attempt); /* done, or it has no source */
/* It failed with rc and err. 0: begin the next one, the pause before it is over; else rc is final. */
WS_MUST_USE int ws_source_select_failed(struct ws_source_select *sel, struct ws_source_attempt *attempt,
                                        int rc, struct ws_error *err);
/* The source sent other bytes than the manifest's, or is much slower than another. The next attempt is at
 * another source if there is one. */
void ws_source_select_distrust(struct ws_source_select *sel, struct ws_source_attempt *attempt);
/* The source has not got it yet, or did not answer. The next attempt is at another source if there is one. */
void ws_source_select_defer(struct ws_source_select *sel, struct ws_source_attempt *attempt);
/* Calls use at one source after the other until it succeeds or the selection gives up. use returns 0, or 1
 * for "not at this source, and no other is to be asked", which is returned; or its error. */
typedef int ws_source_use(void *arg, struct ws_source_attempt *attempt, struct ws_error *err);
WS_MUST_USE int ws_source_select_try(struct ws_source_select *sel, struct ws_source_attempt *attempt,
                                     ws_source_use *use, void *arg, struct ws_error *err);
/* Ends all attempts at the source with that index, and begins the next ones at another source if there is
 * one: ws_source_select_failed then returns 0 at once. With store->lock. */
void ws_source_select_leave(struct ws_source_select *sel, unsigned index);
/* Ends attempts at sources that were silent for their share of the deadline, since the attempt began and
 * since the last byte (last_ns), so that the next source has a share, too. When to look again, or WS_NEVER.
 * With store->lock. */
uint64_t ws_source_select_check_silence(struct ws_source_select *sel, uint64_t last_ns, uint64_t now_ns);
/* Which source has not answered, else why the last attempt failed. With store->lock. */
void ws_source_select_describe(struct ws_source_select *sel, char out[WS_ERROR_TEXT / 2]);
/* This attempt brought bytes that were needed. */
void ws_source_select_progress(struct ws_source_select *sel, struct ws_source_attempt *attempt);
/* Why a strategy failed. */
void ws_source_select_record_reason(struct ws_source_select *sel, int strategy, const char *why);
/* Ends all attempts, and wakes all threads of the pull. Callable with store->lock. */
void ws_source_select_stop(struct ws_source_select *sel);
/* -ECANCELED, with the sentence of a pull that was stopped. */
int ws_source_select_canceled(const struct ws_source_select *sel, struct ws_error *err);

#endif
