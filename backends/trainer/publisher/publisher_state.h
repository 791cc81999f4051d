/* A publisher's inside, shared by its files: publisher (its life), version_step (begin, commit, abandon),
 * publisher_register (what it told the agent that it holds), publisher_put (the copies), share/
 * (what is shared on GPUs), publisher_audit (the hashes of its replicas), publisher_call (a request to the
 * agent). */
#ifndef WS_TRAINER_PUBLISHER_PUBLISHER_STATE_H
#define WS_TRAINER_PUBLISHER_PUBLISHER_STATE_H
#include "backends/trainer/offload/copy_plan.h"
#include "backends/trainer/publisher/base_checkpoint.h"
#include "backends/trainer/publisher/pinned_slots.h"
#include "backends/trainer/tensor/piece.h"
#include "backends/trainer/wsync.h"
#include "transports/ipc/ipc.h"
#include <sys/types.h>

/* One registered piece: what was told to the agent, and what it answered. */
struct ws_registered {
    struct ws_tensor tensor; /* name is owned; begin: in the file */
    struct ws_piece piece;
    char *file_name;
    size_t file;
    bool writes;
};

/* How a piece lies in the trainer's memory: the rank's own affair, the agent is not told. */
struct ws_layout {
    enum ws_conversion conversion;
    int64_t strides[WS_MAX_DIMS]; /* of a box, in elements of the source */
};

struct wsync_publisher {
    int sock;  /* -1: the agent has gone, and the next registration connects anew */
    pid_t pid; /* that opened it: threads and the connection are that process's, not its children's */
    char *agent, *model, *run_asked;
    char run[WS_RUN_CHARS + 1];
    bool new_run; /* until something was published in it */
    unsigned rank, world_size, max_slots, timeout_ms;
    uint64_t shard_bytes;
    struct ws_workers *workers;
    struct ws_base *base;
    void (*progress)(void *arg, uint64_t done_bytes, uint64_t total_bytes);
    void *progress_arg;
    int (*interrupted)(void *arg);
    void *interrupted_arg;
    /* the registration */
    struct ws_registered *params; /* in the caller's order */
    size_t n_params;
    size_t *by_name;                   /* indices into params, by name */
    struct ws_registered *base_places; /* writes and file of base tensors */
    bool *base_was_held;               /* of base tensors: ranks held them in the last version */
    size_t *sidecar_files;
    uint64_t *file_sizes;
    size_t n_files;
    bool in_part; /* the trainer spans nodes: each piece is a dense tensor of this node's part */
    /* copies of all of them: compiled at the first offload, kept while layouts stay the same */
    struct ws_copy_plan *plan;
    struct ws_layout *layouts; /* that it was compiled for */
    const void **sources;      /* of params, sidecars, base tensors */
    unsigned char **data;      /* of files, while a plan runs */
    /* the version that is begun; overflows: the last one that was */
    bool *put;                   /* by params */
    _Atomic uint64_t *overflows; /* by params */
    bool begun, fresh;
    uint64_t version;
    struct ws_region **regions;
    struct ws_block_hash *hashes;
    size_t n_hashes;
    struct ws_publisher_audit *audit; /* what it is asked to hash of its replicas; NULL: nothing */
    /* GPUs */
    int device;               /* of the first parameter that is on one; -1: all are on the host */
    int *devices;             /* of sources, -1: on the host */
    bool *file_is_pinned;     /* while a plan runs */
    bool keeps;               /* regions are the pinned ones */
    struct ws_pinned *pinned; /* NULL: nothing has been on a GPU */
    struct ws_carrier *carrier;
    char gpu_report[WS_ERROR_TEXT];
    unsigned n_registrations;
    unsigned n_connections;           /* that there were: which one is it? */
    struct ws_publisher_share *share; /* share/share.c; NULL: nothing is shared on GPUs */
    bool gpu_delta;                   /* asked for */
    struct ws_publisher_delta *delta; /* of this registration; NULL: not yet */
    char no_delta[WS_ERROR_TEXT / 2]; /* its memory is needed for something else */
    int audit_every;                  /* wsync_config.audit */
    bool audit_warns, audit_said;     /* said: that this agent knows no audits */
};

/* POST /v1/local/{verb}; steals body. fds: room for descriptors of the reply, or NULL. -ECONNRESET: the agent
 * has gone; -EPROTO: it is of another release, which its socket may be, too. */
int ws_publisher_call(struct wsync_publisher *p, const char *verb, json_t *body, json_t **reply, int *fds,
                      size_t max, size_t *n, struct ws_error *err);

/* The same with descriptors that go along, which stay the caller's. */
int ws_publisher_send(struct wsync_publisher *p, const char *verb, json_t *body, const int *fds, size_t n,
                      json_t **reply, struct ws_error *err);

/* The same where the agent is asked to wait: again and again for a while, so that one that answers no more is
 * noticed. body is borrowed. timeout_ms negative: no limit. */
int ws_publisher_wait(struct wsync_publisher *p, const char *verb, const json_t *body, int64_t timeout_ms,
                      struct ws_error *err);

/* Is the connection there, with somebody at its other end? One that is not is closed, and what was registered
 * by it is forgotten. */
bool ws_publisher_is_connected(struct wsync_publisher *p);

WS_MUST_USE int ws_publisher_register(struct wsync_publisher *p, const wsync_param *params, size_t n,
                                      struct ws_error *err);
/* After a version: which tensors of the base were held, and so may not come from it in the next one. */
void ws_publisher_note_held(struct wsync_publisher *p);
/* Is this the very list that is registered? */
bool ws_publisher_has(const struct wsync_publisher *p, const wsync_param *params, size_t n);
/* The registered piece that a parameter is; NULL and err where there is none. */
struct ws_registered *ws_publisher_find(struct wsync_publisher *p, const wsync_param *param,
                                        struct ws_error *err);
void ws_publisher_forget(struct wsync_publisher *p);

/* Finds out which of the registered parameters' data is on which device. -EINVAL: it reaches out of its
 * allocation, or was freed. */
WS_MUST_USE int ws_publisher_locate(struct wsync_publisher *p, const wsync_param *params,
                                    struct ws_error *err);
/* How the data of a parameter lies. -EINVAL: it cannot be converted. */
WS_MUST_USE int ws_publisher_layout(const wsync_param *a, const struct ws_registered *r,
                                    struct ws_layout *out, struct ws_error *err);
/* gpu_delta. begin: the agent has answered begin so. run: for the plan that puts all; *out NULL: without.
 * export: adds what the agent is told to the body of commit, and returns a descriptor for it, the caller's,
 * or -1. commit: the version is committed. tell: a part of the report. */
void ws_publisher_delta_begin(struct wsync_publisher *p, const json_t *reply);
WS_MUST_USE int ws_publisher_delta_run(struct wsync_publisher *p, struct ws_copy_plan_delta **out,
                                       struct ws_error *err);
int ws_publisher_delta_export(struct wsync_publisher *p, json_t *body, struct ws_error *err);
void ws_publisher_delta_commit(struct wsync_publisher *p);
/* Its memory is needed; for good. */
void ws_publisher_delta_give_up(struct wsync_publisher *p, const char *why);
void ws_publisher_delta_tell(struct wsync_publisher *p, char *out, size_t bytes);
void ws_publisher_delta_free(struct ws_publisher_delta *d); /* NULL is fine */
/* Copies into the begun version's memory: all registered parameters, and what ws_publisher_put_fresh does;
 * one of them; rank 0's sidecars and frozen tensors, where the slot has not got them yet. */
WS_MUST_USE int ws_publisher_put_all(struct wsync_publisher *p, const wsync_param *params,
                                     struct ws_error *err);
WS_MUST_USE int ws_publisher_put(struct wsync_publisher *p, const wsync_param *param,
                                 const struct ws_registered *r, struct ws_error *err);
WS_MUST_USE int ws_publisher_put_fresh(struct wsync_publisher *p, struct ws_error *err);

/* Where a piece goes in a plan: to its place in the tensor that begins there, or alone, as a tensor of its
 * own. */
struct ws_copy_goal {
    size_t file;
    uint64_t begin;
    bool alone;
};
WS_MUST_USE int ws_publisher_plan(struct ws_copy_plan *plan, const struct wsync_publisher *p,
                                  const struct ws_registered *r, const struct ws_layout *l,
                                  const struct ws_copy_goal *goal, struct ws_error *err);
/* Of n parameters from the first-th on: those that only an audit reads reach out of no allocation. */
WS_MUST_USE int ws_publisher_check_audited(struct wsync_publisher *p, const wsync_param *params, size_t first,
                                           size_t n, struct ws_error *err);

/* publisher_audit.c. begin: the agent has answered begin so. hash: the next n registered parameters from the
 * first-th on have been put, and are in the caller's memory still. tell: adds what was found to the body of
 * commit. */
WS_MUST_USE int ws_publisher_audit_begin(struct wsync_publisher *p, const json_t *reply,
                                         struct ws_error *err);
WS_MUST_USE int ws_publisher_audit_hash(struct wsync_publisher *p, const wsync_param *params, size_t first,
                                        size_t n, struct ws_error *err);
bool ws_publisher_audits(const struct wsync_publisher *p, size_t i);
void ws_publisher_audit_tell(const struct wsync_publisher *p, json_t *body);
void ws_publisher_audit_end(struct wsync_publisher *p);

/* share/share.c. strategy: the config's share; NULL: nothing. -EINVAL, -ENOTSUP. */
WS_MUST_USE int ws_publisher_share_open(struct wsync_publisher *p, const char *strategy, bool on_demand,
                                        struct ws_error *err);
/* share/on_demand.c: keeps the thread away that makes versions on demand; nothing where there is none. */
bool ws_publisher_is_on_demand(const struct wsync_publisher *p);
void ws_publisher_lock(struct wsync_publisher *p);
void ws_publisher_unlock(struct wsync_publisher *p);
void ws_publisher_share_close(struct wsync_publisher *p);
/* Where the data of a piece is, for ws_publisher_share. */
WS_MUST_USE int ws_publisher_share_note(struct wsync_publisher *p, const wsync_param *a,
                                        const struct ws_registered *r, struct ws_error *err);
/* Tells the agent of the begun version's memory on GPUs, before its commit. params: all that is registered;
 * NULL: it was noted. -EBUSY names who has the buffers that it would go to. */
WS_MUST_USE int ws_publisher_share(struct wsync_publisher *p, const wsync_param *params,
                                   struct ws_error *err);
void ws_publisher_share_committed(struct wsync_publisher *p);

#endif
