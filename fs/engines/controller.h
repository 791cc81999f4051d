/* Desk: what control keeps for one model: its engines, its policy, its events and its last error. Found by
 * name, so that it outlives the model's coming and going. And control itself, as its own files see it;
 * everybody else includes fs/engines/control.h. */
#ifndef WS_FS_ENGINES_CONTROLLER_H
#define WS_FS_ENGINES_CONTROLLER_H
#include "fs/engines/control_options.h"
#include "fs/engines/engines.h"
#include "fs/engines/event_log.h"
#include "fs/engines/grammar.h"
#include "fs/store/store.h"
#include <pthread.h>
#include <stdio.h>

enum ws_policy { WS_POLICY_MANUAL, WS_POLICY_PULL, WS_POLICY_FOLLOW };
const char *ws_policy_name(enum ws_policy p);

/* What a switch does with an engine that fails: `all` goes back; the others go on without it while enough are
 * left. */
enum ws_commit { WS_COMMIT_ALL, WS_COMMIT_QUORUM, WS_COMMIT_ROLLING };

struct ws_last_error {
    uint64_t real_ns; /* 0: none yet */
    char command[WS_MAX_COMMAND + 1];
    int code;
    char text[WS_ERROR_TEXT];
};

struct ws_desk {
    struct ws_desk *next;
    char *name;         /* of the model; NULL: the mount's own */
    atomic_bool cancel; /* of the switch that runs */
    struct ws_events *events;
    /* guarded by the control's lock */
    struct ws_engine *engines; /* in the order of adding */
    struct ws_added *added;    /* sources, too; changes with the control's adding held, too */
    unsigned n_engines;
    enum ws_policy policy;
    enum ws_commit commit;
    unsigned
        commit_n; /* quorum: engines that must be left; rolling: engines that may be out of service at once */
    bool switching, catching_up; /* the latter: by the keeper or `engine sync`, one engine */
    uint64_t turns; /* counts the begins and ends of such: what was seen before is of no use after */
    struct ws_mark wanted, *pins; /* of a daemon before, not known here yet; wanted: also of a first switch */
    size_t n_pins;
    bool restoring;                       /* `wanted` is being pulled */
    uint64_t restore_ns, restore_wait_ns; /* when that is tried next */
    uint64_t gone_ns;                     /* since when no source lists it, while sources list others */
    bool gone_told;
    unsigned follow_every, follow_interval_s; /* how far, and how long, it stays behind at least */
    uint64_t followed_ns;
    uint64_t not_before_ns, again_ns; /* following failed for a while only */
    uint64_t refused_id, refused_by;  /* version (and release) that following has come to an end with */
    uint64_t asked_by, prepared_by;   /* release that is prepared, or was; whose preparing came to an end */
    uint64_t answered_by; /* release that this mount has come to an end with, as agents are told */
    uint64_t missed_by;   /* release whose version was gone */
    uint64_t kept_by;     /* release that a daemon before followed last, until the model is known; 0: none */
    struct ws_mark kept;
    struct ws_orders orders; /* that were seen last */
    struct ws_last_error last_error;
    uint64_t switches_ok, switches_failed;
};

struct ws_control {
    struct ws_store *store;
    struct ws_control_options options;
    atomic_bool stop;
    uint64_t end_by_ns; /* set before stop: until when engines are brought back */
    atomic_bool cut;    /* it is over: calls of engines that began before the stop end, too */
    pthread_mutex_t lock;
    pthread_cond_t idle; /* n_jobs became 0 */
    unsigned n_jobs;     /* guarded by lock */
    bool has_opened;     /* the kept sources, or tried; guarded by lock, told by idle */
    struct ws_desk root;
    struct ws_desk *desks; /* guarded by lock; only ever added to */
    void (*listener)(void *arg, struct ws_model *model);
    void *listener_arg;
    struct ws_http_client *http; /* calls all engines */
    struct ws_keeper *keeper;
    char who[WS_WHO_CHARS + 1]; /* this mount, to agents */
    char *settings_path;        /* NULL: not kept */
    pthread_mutex_t saving;     /* one writer of that file at a time */
    bool given_up;              /* under saving: the file is a successor's */
    atomic_bool restoring;
    pthread_mutex_t adding;    /* sources are opened and removed one after the other; before lock */
    atomic_bool lacks_sources; /* some that were kept could not be opened */
};

/* The model's desk (made at need); NULL model: the root's. NULL: no memory. Takes the lock. */
struct ws_desk *ws_desk_of(struct ws_control *c, const char *model);
/* One line in the model's events and in the root's. */
__attribute__((format(printf, 3, 4))) void ws_desk_event(struct ws_control *c, struct ws_desk *d,
                                                         const char *format, ...);
/* A reason as it may stand between quotes in an event's line. */
const char *ws_desk_quotable(const char *text, char out[WS_ERROR_TEXT]);
/* Notes a failed command; returns -err->code. */
int ws_desk_fail(struct ws_control *c, struct ws_desk *d, const char *command, const struct ws_error *err);
/* A command has succeeded: the last error is none any more where it was of the same matter (a load, a pull,
 * or the same verb), so that a file that is not empty is worth an alert. Under the lock. */
void ws_desk_settle(struct ws_desk *d, const char *command);
/* "all", "quorum=3", "rolling=1". */
void ws_desk_commit_text(const struct ws_desk *d, char out[32]);
WS_MUST_USE int ws_desk_set_commit(struct ws_control *c, struct ws_desk *d, const char *word,
                                   struct ws_error *err);
/* word: "manual", "pull", "follow"; every NULL or a number of versions, interval NULL or of seconds: how far
 * and how long it stays behind what is published at least. -EINVAL. */
WS_MUST_USE int ws_desk_set_policy(struct ws_control *c, struct ws_desk *d, const char *word,
                                   const char *every, const char *interval, struct ws_error *err);
/* "follow every=5 min-interval=60". Under the lock. */
void ws_desk_policy_text(const struct ws_desk *d, char out[64]);
/* May a switch of n engines go on when that many are lost, by the commit setting? Under the lock, or while it
 * switches. */
bool ws_desk_is_enough(const struct ws_desk *d, size_t n, size_t lost);
/* Are as many engines as that in no doubt: none that a switch, or a daemon before, has left on its way?
 * Under the lock. */
bool ws_desk_is_settled(const struct ws_desk *d);
/* Are there engines that their own framework drives? Under the lock. */
bool ws_desk_is_external(const struct ws_desk *d);
void ws_desk_release(struct ws_desk *d);

#endif
