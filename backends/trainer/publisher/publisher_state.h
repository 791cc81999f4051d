/* A publisher's inside, shared by its files:
 *   publisher           its life, and the public calls
 *   version_step        begin, commit and abandon of one version
 *   publisher_register  what this rank holds, and where the agent placed it
 *   publisher_put       the copies
 *   publisher_delta     the shadow and history of gpu_delta
 *   publisher_compare   offload and delta in one pass
 *   publisher_audit     the hashes of replicas
 *   publisher_call      a request to the agent
 *   share/              what is shared on GPUs
 * A publisher belongs to one thread at a time. With versions on demand a second thread takes turns with it
 * (ws_publisher_lock). */
#ifndef WS_TRAINER_PUBLISHER_PUBLISHER_STATE_H
#define WS_TRAINER_PUBLISHER_PUBLISHER_STATE_H
#include "backends/trainer/offload/copy_plan.h"
#include "backends/trainer/publisher/base_checkpoint.h"
#include "backends/trainer/publisher/pass_choice.h"
#include "backends/trainer/publisher/pinned_slots.h"
#include "backends/trainer/tensor/piece.h"
#include "backends/trainer/wsync.h"
#include "transports/ipc/client.h"
#include <sys/types.h>

/* One registered piece: what this rank registered, and where the agent placed it. */
struct ws_registered_piece {
    struct ws_tensor tensor; /* name is owned; begin: in the file */
    struct ws_piece piece;
    char *file_name;
    size_t file;
    bool writes;
};

/* How a piece lies in the trainer's memory. Only this rank needs to know. */
struct ws_source_layout {
    enum ws_conversion conversion;
    int64_t strides[WS_MAX_DIMS]; /* of a box, in elements of the source */
};

#define WS_OFFLOAD_HOW 96

struct wsync_publisher {
    int sock;  /* -1: the agent has ended, and the next registration connects anew */
    pid_t pid; /* the process that opened it and owns its threads and connection */
    char *agent, *model, *lineage_requested;
    char lineage[WS_LINEAGE_CHARS + 1];
    bool new_run; /* until something was published in it */
    unsigned rank, world_size, max_slots, timeout_ms;
    uint64_t shard_bytes;
    struct ws_workers *workers;
    struct ws_base_checkpoint *base;
    const char *const *expected; /* n_expected names, the caller's */
    size_t n_expected;
    void (*progress)(void *arg, uint64_t done_bytes, uint64_t total_bytes);
    void *progress_arg;
    int (*interrupted)(void *arg);
    void *interrupted_arg;
    /* the registration */
    struct ws_registered_piece *params; /* in the caller's order */
    size_t n_params;
    size_t *by_name;                         /* indices into params, by name */
    struct ws_registered_piece *base_places; /* writes and file of base tensors */
    bool *base_was_held;                     /* of base tensors: ranks held them in the last version */
    size_t *sidecar_files;
    uint64_t *file_sizes;
    size_t n_files;
    bool is_node_part; /* the trainer spans nodes: each piece is a dense tensor of this node's part */
    /* the plan that copies all of them: compiled at the first offload, used while layouts stay the same */
    struct ws_copy_plan *plan;
    struct ws_source_layout *layouts; /* that it was compiled for */
    const void **sources;             /* of params, sidecars, base tensors */
    unsigned char **data;             /* of files, while a plan runs */
    /* the version that is begun; overflows: of the last one that was begun */
    bool *put;                   /* by params */
    _Atomic uint64_t *overflows; /* by params */
    bool begun, fresh;
    uint64_t version;
    uint64_t last_begun; /* in this lineage: the last that was begun, or came too late; 0: none */
    uint64_t begins;     /* the version that a call is about to begin; 0: none is */
    struct ws_region **regions;
    struct ws_block_hashes hashes;
    struct ws_publisher_audit *audit; /* the replicas that the agent wants hashed; NULL: none */
    /* GPUs */
    int device;                     /* of the first parameter that is on one; -1: all are on the host */
    int *devices;                   /* of sources, -1: on the host */
    bool *file_is_pinned;           /* while a plan runs */
    bool uses_pinned;               /* regions belong to `pinned` */
    struct ws_pinned_slots *pinned; /* NULL: nothing has been on a GPU */
    struct ws_d2h *d2h;
    char gpu_report[WS_ERROR_TEXT];
    unsigned n_registrations;
    unsigned n_connections;               /* opened so far, so the number of the present one */
    struct ws_publisher_share *share;     /* share/share.c; NULL: nothing is shared on GPUs */
    bool gpu_delta;                       /* wsync_config.gpu_delta */
    struct ws_publisher_delta *delta;     /* of this registration; NULL: not yet */
    char no_delta[WS_ERROR_TEXT / 2];     /* why its memory was freed permanently; empty: it was not */
    enum ws_prefer prefer;                /* wsync_config.prefer */
    bool puts_all;                        /* the version is an offload: all parameters are put at once */
    struct ws_publisher_compare *compare; /* of this registration; NULL: not yet, or versions are copied */
    int audit_every;                      /* wsync_config.audit */
    bool audit_warns, audit_logged;       /* logged: that this agent does no audits */
};

/* POST /v1/local/{verb}; takes over body. fds: room for the reply's descriptors, or NULL; the caller owns
 * what it gets. -ECONNRESET: the agent has ended; -EPROTO: what listens on its socket is an agent of another
 * release, or none. */
int ws_publisher_call(struct wsync_publisher *p, const char *verb, json_t *body, json_t **reply, int *fds,
                      size_t max, size_t *n, struct ws_error *err);

/* The same with descriptors that are sent along and stay the caller's. */
int ws_publisher_send(struct wsync_publisher *p, const char *verb, json_t *body, const int *fds, size_t n,
                      json_t **reply, struct ws_error *err);

/* The same for a request on which the agent waits. It is repeated in slices, so that an agent that answers no
 * more is noticed. body is borrowed. timeout_ms negative: no limit. */
int ws_publisher_wait(struct wsync_publisher *p, const char *verb, const json_t *body, int64_t timeout_ms,
                      struct ws_error *err);

/* Is there a connection whose other end is open? If not it is closed, and its registration is forgotten. */
bool ws_publisher_is_connected(struct wsync_publisher *p);

WS_MUST_USE int ws_publisher_register(struct wsync_publisher *p, const wsync_param *params, size_t n,
                                      struct ws_error *err);
/* After a version: records which tensors of the base ranks held. The next version may not take those from the
 * base. */
void ws_publisher_record_held(struct wsync_publisher *p);
/* Is exactly this list registered? */
bool ws_publisher_is_registered(const struct wsync_publisher *p, const wsync_param *params, size_t n);
/* The registered piece that belongs to a parameter; NULL with err: there is none. */
struct ws_registered_piece *ws_publisher_find(struct wsync_publisher *p, const wsync_param *param,
                                              struct ws_error *err);
/* Drops the registration and everything that was made for it. */
void ws_publisher_forget(struct wsync_publisher *p);

/* Finds the device of each registered parameter's data. -EINVAL: the data extends beyond its allocation, or
 * was freed. */
WS_MUST_USE int ws_publisher_locate(struct wsync_publisher *p, const wsync_param *params,
                                    struct ws_error *err);
/* How the data of a parameter lies. -EINVAL: it cannot be converted. */
WS_MUST_USE int ws_publisher_layout(const wsync_param *a, const struct ws_registered_piece *r,
                                    struct ws_source_layout *out, struct ws_error *err);

/* publisher_delta.c: gpu_delta.
 *   begin     after the agent has answered begin with `reply`
 *   run       for the plan that puts all parameters; *out NULL: it runs without deltas
 *   export    adds the list of changes to the body of commit; returns a descriptor that the caller owns, or
 *             -1
 *   commit    after the version was committed
 *   give_up   frees its memory permanently, for other uses
 *   describe  its part of wsync_gpu_report */
void ws_publisher_delta_begin(struct wsync_publisher *p, const json_t *reply);
WS_MUST_USE int ws_publisher_delta_run(struct wsync_publisher *p, struct ws_copy_plan_delta **out,
                                       struct ws_error *err);
int ws_publisher_delta_export(struct wsync_publisher *p, json_t *body, struct ws_error *err);
void ws_publisher_delta_commit(struct wsync_publisher *p);
void ws_publisher_delta_give_up(struct wsync_publisher *p, const char *why);
void ws_publisher_delta_describe(struct wsync_publisher *p, char *out, size_t bytes);
void ws_publisher_delta_free(struct ws_publisher_delta *d); /* NULL is fine */

/* publisher_compare.c: offload and delta in one pass.
 *   request   what begin asks the agent for: "no", or the version before "made": if deltas are, "taken": if
 *             readers take them, too
 *   begin     after the agent has answered; takes over the version before's descriptors
 *   run       for the plan that puts all parameters, from the host; NULL: it is copied
 *   gives     does the agent take records while that runs?
 *   give      gives it those of the blocks that were done since
 *   gave      after the plan: the error with which the connection ended meanwhile; 0: it did not
 *   ran       that plan has run, in so long
 *   end       nothing reads the version before any more
 *   export    adds the list of changes to the body of commit; returns a descriptor that the caller owns, or -1
 *   commit    after the version was committed
 *   how       how the last version was offloaded */
const char *ws_publisher_compare_request(struct wsync_publisher *p);
void ws_publisher_compare_begin(struct wsync_publisher *p, const json_t *reply, const int *fds, size_t n);
struct ws_copy_plan_compare *ws_publisher_compare_run(struct wsync_publisher *p);
bool ws_publisher_compare_gives(const struct wsync_publisher *p);
void ws_publisher_compare_give(struct wsync_publisher *p);
int ws_publisher_compare_gave(const struct wsync_publisher *p, struct ws_error *err);
void ws_publisher_compare_ran(struct wsync_publisher *p, uint64_t took_ns);
void ws_publisher_compare_end(struct wsync_publisher *p);
int ws_publisher_compare_export(struct wsync_publisher *p, json_t *body, struct ws_error *err);
void ws_publisher_compare_commit(struct wsync_publisher *p);
const char *ws_publisher_compare_how(const struct wsync_publisher *p);
void ws_publisher_compare_free(struct ws_publisher_compare *c); /* NULL is fine */

/* publisher_put.c: copies into the begun version's memory.
 *   put_all    all registered parameters, and what put_fresh copies
 *   put        one parameter
 *   put_fresh  rank 0's sidecars and frozen tensors, where the slot does not have them yet */
WS_MUST_USE int ws_publisher_put_all(struct wsync_publisher *p, const wsync_param *params,
                                     struct ws_error *err);
WS_MUST_USE int ws_publisher_put(struct wsync_publisher *p, const wsync_param *param,
                                 const struct ws_registered_piece *r, struct ws_error *err);
WS_MUST_USE int ws_publisher_put_fresh(struct wsync_publisher *p, struct ws_error *err);

/* Where a piece goes in a plan: to its place in the tensor that begins there, or alone, as a dense tensor of
 * its own. */
struct ws_copy_target {
    size_t file;
    uint64_t begin;
    bool alone;
};
WS_MUST_USE int ws_publisher_plan(struct ws_copy_plan *plan, const struct wsync_publisher *p,
                                  const struct ws_registered_piece *r, const struct ws_source_layout *l,
                                  const struct ws_copy_target *target, struct ws_error *err);
/* Checks n parameters, from the first-th on, that only an audit reads: none may extend beyond its
 * allocation. */
WS_MUST_USE int ws_publisher_check_audited(struct wsync_publisher *p, const wsync_param *params, size_t first,
                                           size_t n, struct ws_error *err);

/* publisher_audit.c: the hashes of replicas.
 *   begin   after the agent has answered begin with `reply`
 *   hash    n registered parameters, from the first-th on, were put and are still in the caller's memory
 *   report  adds the hashes to the body of commit
 *   audits  does the agent want hashes of parameter i? */
WS_MUST_USE int ws_publisher_audit_begin(struct wsync_publisher *p, const json_t *reply,
                                         struct ws_error *err);
WS_MUST_USE int ws_publisher_audit_hash(struct wsync_publisher *p, const wsync_param *params, size_t first,
                                        size_t n, struct ws_error *err);
bool ws_publisher_audits(const struct wsync_publisher *p, size_t i);
void ws_publisher_audit_report(const struct wsync_publisher *p, json_t *body);
void ws_publisher_audit_end(struct wsync_publisher *p);

/* share/share.c. strategy: wsync_config.share; NULL: nothing is shared. -EINVAL, -ENOTSUP. */
WS_MUST_USE int ws_publisher_share_open(struct wsync_publisher *p, const char *strategy, bool on_demand,
                                        struct ws_error *err);
void ws_publisher_share_close(struct wsync_publisher *p);
/* share/on_demand.c: the lock keeps the thread out that makes versions on demand. Without that thread it does
 * nothing. */
bool ws_publisher_is_on_demand(const struct wsync_publisher *p);
void ws_publisher_lock(struct wsync_publisher *p);
void ws_publisher_unlock(struct wsync_publisher *p);
/* Records where the data of a piece is, for ws_publisher_share. */
WS_MUST_USE int ws_publisher_share_record(struct wsync_publisher *p, const wsync_param *a,
                                          const struct ws_registered_piece *r, struct ws_error *err);
/* Offers the begun version's memory on GPUs to the agent, before the commit. params: everything that is
 * registered; NULL: it was recorded. -EBUSY names the reader that still has the buffers. */
WS_MUST_USE int ws_publisher_share(struct wsync_publisher *p, const wsync_param *params,
                                   struct ws_error *err);
void ws_publisher_share_committed(struct wsync_publisher *p);

#endif
