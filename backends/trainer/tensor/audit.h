/* Audit: compares the hashes that the holders of replicas have sent. Pure functions.
 *
 * Every holder hashes the bytes that it would write (publisher_audit.c), chunk by chunk, and sends the hashes
 * with its commit. Once all have committed, the agent compares them (agent/audit/audit.c). */
#ifndef WS_TRAINER_TENSOR_AUDIT_H
#define WS_TRAINER_TENSOR_AUDIT_H
#include "backends/trainer/tensor/replicas.h"
#include "transports/base/vector.h"

struct ws_audit_hash {
    uint64_t replica, chunk, hash; /* replica: its id */
    unsigned rank, n;              /* n: how many holders have this hash, of which rank is the first */
};
WS_VECTOR(ws_audit, struct ws_audit_hash);
struct ws_audit_result {
    uint64_t compared, different, incomplete; /* chunks; incomplete: not all holders sent a hash */
    char text[WS_ERROR_TEXT / 2]; /* the first difference, else the first incomplete chunk, else "" */
};

/* n hashes, copied. -ENOMEM. */
WS_MUST_USE int ws_audit_add(struct ws_audit *a, const struct ws_audit_hash *h, size_t n,
                             struct ws_error *err);
/* Compares, and sorts the list. window: what was audited; NULL: unknown, and nothing counts as incomplete.
 * all_nodes: looks for incomplete chunks among replicas that span nodes, else among those of this node. */
void ws_audit_compare(struct ws_audit *a, const struct ws_replicas *r, const struct ws_replica_window *window,
                      bool all_nodes, struct ws_audit_result *out);

/* What other nodes need of this node's hashes: [[replica, chunk, hash, rank, n]..] of the replicas that span
 * nodes, where this node's ranks agree. Sorts the list. NULL: no memory. */
json_t *ws_audit_to_json(struct ws_audit *a, const struct ws_replicas *r);
WS_MUST_USE int ws_audit_from_json(struct ws_audit *a, const json_t *list, struct ws_error *err);

#endif
