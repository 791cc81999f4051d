/* Replicas: the pieces that several ranks hold, found while the placement is made; what of them an audit
 * compares (audit.h). Pieces overlap in no other way: ws_claims_settle refuses it. Pure functions. */
#ifndef WS_TRAINER_TENSOR_REPLICAS_H
#define WS_TRAINER_TENSOR_REPLICAS_H
#include "backends/trainer/tensor/registration.h"

/* One piece. Its bytes are those of the piece as a dense tensor of its own in the file's dtype, in chunks of
 * WS_BLOCK_BYTES, however its holders have them. */
struct ws_replica {
    uint64_t id;             /* a hash of name, dtype, shape and piece: the same on all nodes */
    struct ws_tensor tensor; /* name is owned */
    struct ws_piece piece;
    uint64_t bytes;
    unsigned n_holders; /* that know audits */
    uint64_t before;    /* bytes of all holders of all replicas before this one */
    bool here, spans;   /* this node has a holder; holders are on several nodes */
    unsigned node;      /* of the last holder that was located, plus 1 */
};
struct ws_replicas {
    struct ws_replica *list; /* by id, once they are settled */
    size_t n, cap;
    uint64_t bytes;  /* of all holders */
    int every;       /* wsync_config.audit of the first rank that knows audits */
    bool warns;      /* likewise audit_warns */
    unsigned silent; /* the first rank that knows none; WS_MAX_RANKS or more: all do */
};
/* A part of all holders' bytes, in the order of `before`. */
struct ws_replica_window {
    uint64_t from, to;
};

/* Notes one tensor's: entries of all ranks, of one name, dtype and shape. Sets their replica. -ENOMEM. */
WS_MUST_USE int ws_replicas_note(struct ws_replicas *r, struct ws_registration *const *regs,
                                 struct ws_entry *const *entries, size_t n, struct ws_error *err);
/* All are noted. */
void ws_replicas_settle(struct ws_replicas *r, struct ws_registration *const *regs, unsigned world_size);
/* Which node each rank is on; NULL: all are on this one, `own`. */
void ws_replicas_locate(struct ws_replicas *r, struct ws_registration *const *regs, unsigned world_size,
                        const unsigned *node_of, unsigned own);
void ws_replicas_clear(struct ws_replicas *r);
/* NULL: there is none of that id. */
const struct ws_replica *ws_replicas_find(const struct ws_replicas *r, uint64_t id);

/* What an audit compares: all, or the turn-th share, so that all holders together hash at most half of
 * `offload` bytes, but for a chunk. */
struct ws_replica_window ws_replicas_all(const struct ws_replicas *r);
struct ws_replica_window ws_replicas_share(const struct ws_replicas *r, uint64_t offload, uint64_t turn);
/* The chunks of one replica that lie in it: n of them from *first on. */
uint64_t ws_replica_chunks(const struct ws_replica *r, const struct ws_replica_window *w, uint64_t *first);

#endif
