/* Control: what a write to a control file does and what a read of a control file shows. Between the
 * FUSE front (which carries text) and store, engines and switch (which do). */
#ifndef WS_FS_ENGINES_CONTROL_H
#define WS_FS_ENGINES_CONTROL_H
#include "fs/engines/control_options.h"
#include "fs/store/store.h"

struct ws_control;
WS_MUST_USE int ws_control_new(struct ws_control **out, struct ws_store *store,
                               const struct ws_control_options *options, struct ws_error *err);
/* Begins to open the added sources that the settings have kept, on a thread of its own: a folder on a server
 * that is away would hold up the start. Called after the mount's own sources, which come first. */
void ws_control_open_kept(struct ws_control *c);
/* Until that is done, timeout_ms at most. */
void ws_control_wait_kept(struct ws_control *c, unsigned timeout_ms);
/* Until versions that were current for a daemon before, and are known here, are current again, or a try has failed; timeout_ms at most. */
void ws_control_wait_restored(struct ws_control *c, unsigned timeout_ms);
/* Until no command, switch or catching up runs, timeout_ms at most, or until control is stopped. False: one does. */
bool ws_control_wait_idle(struct ws_control *c, unsigned timeout_ms);
/* Reads and sets the config anew, in the background: what follows is in last_error, events and status. */
void ws_control_reload(struct ws_control *c);
/* The end has two steps, because the store's threads report events to control until the store is freed: stop
 * cancels what runs and waits for it, free gives the memory back after ws_store_free. */
void ws_control_stop(struct ws_control *c);
void ws_control_free(struct ws_control *c);

/* The control files, by place. */
enum ws_view {
    WS_VIEW_CTL,        /* root, model: grammar; write: a command */
    WS_VIEW_STATUS,     /* root, model */
    WS_VIEW_EVENTS,     /* root, model: append-only text; poll()-able */
    WS_VIEW_METRICS,    /* root: Prometheus text */
    WS_VIEW_LAST_ERROR, /* root, model */
    WS_VIEW_VERSION,    /* model: what the engines serve; write N|latest|previous: switch */
    WS_VIEW_ENGINES,    /* model */
    WS_VIEW_POLICY,     /* model; write manual|pull|follow */
    WS_VIEW_MANIFEST,   /* version: .wsync/manifest.json */
    WS_VIEW_STATE,      /* version: .wsync/state */
    WS_VIEW_PROGRESS,   /* version: .wsync/progress */
    WS_VIEW_CHANGED,    /* version: .wsync/changed; takes long */
    WS_VIEW_CUDA_IPC, /* version: .wsync/cuda_ipc.json, where an agent of this host shares it; asks the agent
                       */
    WS_VIEW_HISTORY, /* model: how the last versions came; after those before it, whose numbers inodes have */
    WS_VIEW_COUNT
};
/* Text of a view now (malloc'ed, caller frees). model NULL: the root's; v only for version views. */
WS_MUST_USE int ws_control_read(struct ws_control *c, enum ws_view view, struct ws_model *model,
                                struct ws_version *v, char **text, size_t *len);
/* One write: runs the command on a thread of its own and calls done exactly once (from that thread, or
 * at once for grammar errors) with 0 or -errno. `cancel` (caller's, lives until done) is set when the
 * writer was interrupted. The text is copied. Records last_error, an event on failure, and an entry of the audit
 * log. */
struct ws_writer {
    uid_t uid;
    pid_t pid;
    bool any_file; /* it could read every file that the daemon can, and may name it; others only those below
                      options.files */
};
void ws_control_write(struct ws_control *c, enum ws_view view, struct ws_model *model, const char *text,
                      size_t len, const struct ws_writer *writer, const atomic_bool *cancel,
                      void (*done)(void *arg, int result), void *arg);
/* A reader looked for a name that a version has not got here: last_error says why, and an event if that is new. */
void ws_control_record_absent(struct ws_control *c, struct ws_version *v, const struct ws_error *why);
/* events grow: size now and a listener that is called after each line (for FUSE poll). */
uint64_t ws_control_events_size(struct ws_control *c, struct ws_model *model);
void ws_control_on_event(struct ws_control *c, void (*listener)(void *arg, struct ws_model *model),
                         void *arg);

#endif
