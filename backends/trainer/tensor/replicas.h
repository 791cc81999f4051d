/* Replicas: the pieces that several ranks hold, found while the placement is made, and which of them an audit
 * compares (audit.h). Pieces overlap in no other way, because ws_piece_assign_writers refuses it. Pure
 * functions. */
#ifndef WS_TRAINER_TENSOR_REPLICAS_H
#define WS_TRAINER_TENSOR_REPLICAS_H
#include "backends/trainer/tensor/registration.h"

/* One piece that several ranks hold. Its bytes are those of the piece as a dense tensor in the file's dtype,
 * in chunks of WS_BLOCK_BYTES, whatever the layout in its holders' memory is. */
struct ws_replica {
    uint64_t id;             /* a hash of name, dtype, shape and piece: the same on all nodes */
    struct ws_tensor tensor; /* name is owned */
    struct ws_piece piece;
    uint64_t bytes;
    unsigned n_holders;    /* whose libwsync does audits */
    uint64_t bytes_before; /* bytes of all holders of all replicas before this one */
    bool here, spans;      /* this node has a holder; holders are on several nodes */
    unsigned node;         /* node of the last holder that was located, plus 1 */
};
struct ws_replicas {
    struct ws_replica *list; /* by id, after ws_replicas_finish */
    size_t n;
    uint64_t bytes;                /* of all holders */
    int every;                     /* wsync_config.audit of the first rank whose libwsync does audits */
    bool warns;                    /* its audit_warns */
    unsigned first_without_audits; /* first rank whose libwsync does none; WS_MAX_RANKS or more: all do */
};
/* A part of all holders' bytes, in the order of `bytes_before`. */
struct ws_replica_window {
    uint64_t from, to;
};

/* Adds the replicas of one tensor: entries of all ranks with one name, dtype and shape. Sets the entries'
 * `replica`. -ENOMEM. */
WS_MUST_USE int ws_replicas_add(struct ws_replicas *r, struct ws_registration *const *regs,
                                struct ws_entry *const *entries, size_t n, struct ws_error *err);
/* All tensors are added: sorts, and adds up the bytes. */
void ws_replicas_finish(struct ws_replicas *r, struct ws_registration *const *regs, unsigned world_size);
/* node_of[rank]: the node of each rank; NULL: all ranks are on this one, `own`. */
void ws_replicas_locate(struct ws_replicas *r, struct ws_registration *const *regs, unsigned world_size,
                        const unsigned *node_of, unsigned own);
void ws_replicas_clear(struct ws_replicas *r);
/* NULL: there is none of that id. */
const struct ws_replica *ws_replicas_find(const struct ws_replicas *r, uint64_t id);

/* What an audit compares: everything, or the turn-th share. Of a share all holders together hash at most half
 * of `offload` bytes, and one chunk more. */
struct ws_replica_window ws_replicas_window_all(const struct ws_replicas *r);
struct ws_replica_window ws_replicas_window_turn(const struct ws_replicas *r, uint64_t offload,
                                                 uint64_t turn);
/* The chunks of one replica that lie in the window: returns how many, from *first on. */
uint64_t ws_replica_chunks(const struct ws_replica *r, const struct ws_replica_window *w, uint64_t *first);

#endif
