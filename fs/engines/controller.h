/* Controller: what the mount keeps for one model: its engines, its policy, its events and its last error. It is
 * found by the model's name, so that it outlives the model's coming and going, and is freed with control only.
 * Also control itself, as its own files see it; all other files include fs/engines/control.h. */
#ifndef WS_FS_ENGINES_CONTROLLER_H
#define WS_FS_ENGINES_CONTROLLER_H
#include "fs/engines/adapters.h"
#include "fs/engines/control_options.h"
#include "fs/engines/engines.h"
#include "fs/engines/event_log.h"
#include "fs/engines/grammar.h"
#include "fs/store/store.h"
#include "transports/base/vector.h"
#include <pthread.h>
#include <stdio.h>

/* The last is what the word follow means where nothing is released yet: as FOLLOW_PUBLISHED until something is, and
 * FOLLOW_RELEASED from then on. */
enum ws_policy {
    WS_POLICY_MANUAL,
    WS_POLICY_PULL,
    WS_POLICY_FOLLOW_RELEASED,
    WS_POLICY_FOLLOW_PUBLISHED,
    WS_POLICY_FOLLOW_UNTIL_RELEASE
};
static inline bool ws_policy_follows(enum ws_policy p)
{
    return p >= WS_POLICY_FOLLOW_RELEASED;
}
/* Does the mount take part in releases? */
static inline bool ws_policy_follows_releases(enum ws_policy p)
{
    return p == WS_POLICY_FOLLOW_RELEASED || p == WS_POLICY_FOLLOW_UNTIL_RELEASE;
}

/* What a switch does if an engine fails: `all` rolls back; the others continue without the engine while
 * enough are left. */
enum ws_commit { WS_COMMIT_ALL, WS_COMMIT_QUORUM, WS_COMMIT_ROLLING };

struct ws_last_error {
    uint64_t real_ns; /* 0: none yet */
    char command[WS_MAX_COMMAND + 1];
    int code;
    char text[WS_ERROR_TEXT];
};

WS_VECTOR(ws_pins, struct ws_version_id);

struct ws_controller {
    struct ws_controller *next;
    char *name;         /* of the model; NULL: the mount's own */
    atomic_bool cancel; /* of the switch that runs */
    struct ws_event_log *events;
    /* guarded by the control's lock */
    struct ws_engine *engines;     /* in the order of adding */
    struct ws_added_source *added; /* changes under the control's `adding`, too */
    unsigned n_engines;
    enum ws_policy policy;
    enum ws_commit commit;
    unsigned commit_n; /* quorum: engines that must be left; rolling: those that may be out of service */
    bool switching, catching_up; /* the latter: the reconciler or `engine sync` brings engines along */
    bool is_lent;         /* its engines are in a switch of another model, which they serve beside it */
    const void *claimant; /* which switch has it; NULL: none */
    unsigned
        preparing; /* releases whose version the model's one copy becomes: no engine is brought to another */
    uint64_t generation; /* counts begins and ends of both: what was seen in an earlier one is out of date */
    struct ws_version_id
        target;          /* that was current for a daemon before, or is where a switch goes (switch/goal.h) */
    bool goes_forward;   /* a switch goes there: the settings call it current, whatever is */
    struct ws_pins pins; /* of a daemon before, not known here yet */
    struct ws_adapters adapters; /* of a model whose versions engines load as adapters */
    char *
        declared; /* what the config set last, as lines of the settings; NULL: nothing. Only the thread that sets
                       the config writes it */
    char *
        needed; /* the patterns with which a daemon before loaded the engines, empty for all tensors (switch/needed.h);
                     NULL: this one's */
    bool restoring; /* `target` is being pulled */
    struct ws_backoff restore_backoff;
    uint64_t gone_ns; /* since when no source lists it, while sources list others */
    bool gone_reported;
    unsigned follow_every, follow_interval_s; /* how far, and how long, it stays behind at least */
    uint64_t followed_ns;
    struct ws_backoff follow_backoff;     /* following failed for a while only */
    uint64_t refused_id, refused_release; /* version (and release) that following is done with */
    uint64_t preparing_release;           /* that is being prepared, or was */
    uint64_t prepared_release;            /* whose preparing ended last */
    uint64_t answered_release;            /* release that this mount is done with, as it reports to agents */
    uint64_t left_release;                /* that was committed while this mount prepared it still */
    uint64_t missing_release;             /* release whose version was gone */
    uint64_t inherited_release; /* that a daemon before followed last, until the model is known; 0: none */
    struct ws_version_id inherited; /* its version */
    bool inherited_quarantine;      /* it left the model behind, in quarantine (switch/follow.h) */
    struct ws_desired desired;      /* as it was seen last */
    uint64_t signed_ns; /* time of the youngest signed version that was current, also of a daemon before */
    struct ws_last_error last_error;
    uint64_t posted_error; /* the hash of the one that agents were told; 0: of none */
    uint64_t switches_ok, switches_failed;
};

struct ws_config_model;
struct ws_control {
    struct ws_store *store;
    struct ws_control_options options;
    atomic_bool stop;
    uint64_t end_by_ns;    /* set before stop: the limit for rolling engines back */
    atomic_bool calls_cut; /* it is over: calls of engines that began before the stop end, too */
    pthread_mutex_t lock;
    pthread_cond_t idle; /* n_jobs became 0 */
    unsigned n_jobs;     /* guarded by lock */
    bool has_opened;     /* the kept sources, or tried; guarded by lock, told by idle */
    struct ws_controller root;
    struct ws_controller *controllers; /* guarded by lock; only ever added to */
    void (*listener)(void *arg, struct ws_model *model);
    void *listener_arg;
    struct ws_http_client *http; /* calls all engines */
    struct ws_reconciler *reconciler;
    char mount_id[WS_MOUNT_ID_CHARS + 1]; /* this mount, to agents */
    char *settings_path;                  /* NULL: not kept */
    pthread_mutex_t saving;               /* one writer of that file at a time */
    bool is_closed;                       /* under saving: the file is a successor's */
    uint64_t saved_changes, saved_ns;     /* the reconciler's (switch/learned_file.c) */
    atomic_bool restoring;
    pthread_mutex_t configuring;      /* one thread at a time sets what the config says; before all others */
    pthread_mutex_t config_lock;      /* of the next two; before lock */
    struct ws_config_model *config;   /* what it says; NULL: nothing */
    char config_error[WS_ERROR_TEXT]; /* of the last reading; empty: none */
    pthread_mutex_t adding;           /* sources are opened and removed one after the other; before lock */
    atomic_bool lacks_sources;        /* some that were kept could not be opened */
};

/* The model's controller, made at need. model NULL: the root's. Returns NULL where there is no memory. Takes the
 * lock. */
struct ws_controller *ws_controller_get(struct ws_control *c, const char *model);
/* One line in the model's events and in the root's. */
__attribute__((format(printf, 3, 4))) void ws_controller_event(struct ws_control *c,
                                                               struct ws_controller *ctl, const char *format,
                                                               ...);
/* A reason as it may stand between quotes in an event's line. */
const char *ws_controller_quotable(const char *text, char out[WS_ERROR_TEXT]);
/* Records a failed command as the last error, and as an event; returns -err->code. */
int ws_controller_fail(struct ws_control *c, struct ws_controller *ctl, const char *command,
                       const struct ws_error *err);
/* A command has succeeded: the last error is cleared where it was of the same matter (a load, a pull, or the
 * same verb), so that a last_error that is not empty is worth an alert. Under the lock. */
void ws_controller_clear_error(struct ws_controller *ctl, const char *command);
/* "all", "quorum=3", "rolling=1". c NULL, here and for a policy: ctl is the caller's own and of no mount. */
void ws_controller_commit_text(const struct ws_controller *ctl, char out[32]);
WS_MUST_USE int ws_controller_set_commit(struct ws_control *c, struct ws_controller *ctl, const char *word,
                                         struct ws_error *err);
/* As the command has them; each may be NULL. */
struct ws_policy_options {
    const char *every,
        *min_interval; /* versions, seconds: how far it stays behind what is published at least */
    const char *until; /* "release" */
};
#define WS_POLICY_CHARS 96
/* word: "manual", "pull", "follow-released", "follow-published", or "follow", the last with until=release. -EINVAL. */
WS_MUST_USE int ws_controller_set_policy(struct ws_control *c, struct ws_controller *ctl, const char *word,
                                         const struct ws_policy_options *o, struct ws_error *err);
enum ws_policy ws_controller_policy(struct ws_control *c, const struct ws_controller *ctl);
/* "follow-published every=5 min-interval=60". Under the lock. */
void ws_controller_policy_text(const struct ws_controller *ctl, char out[WS_POLICY_CHARS]);
/* Whether a switch of n engines may continue with that many lost, by the commit setting. Under the lock, or
 * while it switches. */
bool ws_controller_has_quorum(const struct ws_controller *ctl, size_t n, size_t lost);
/* Are enough engines certain, by the commit setting: not left in the middle of a switch, by this daemon or one
 * before? Under the lock. */
bool ws_controller_is_certain(const struct ws_controller *ctl);
/* Are there engines that their own framework drives? Under the lock. */
bool ws_controller_is_external(const struct ws_controller *ctl);
void ws_controller_release(struct ws_controller *ctl);

#endif
