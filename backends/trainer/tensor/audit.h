/* Audit: what the holders of replicas say that they hold, and whether it is the same. Pure functions.
 *
 * Every holder hashes the bytes that it would write (publisher_audit.c), chunk by chunk, and says so at its
 * commit; once all have committed the agent compares (audit/audit.c). */
#ifndef WS_TRAINER_TENSOR_AUDIT_H
#define WS_TRAINER_TENSOR_AUDIT_H
#include "backends/trainer/tensor/replicas.h"

struct ws_audit_hash {
    uint64_t replica, chunk, hash; /* replica: its id */
    unsigned rank, n;              /* n: of so many holders, rank the first of them */
};
struct ws_audit {
    struct ws_audit_hash *list;
    size_t n, cap;
};
struct ws_audit_result {
    uint64_t compared, different, alone; /* chunks; alone: not all holders said theirs */
    char text[WS_ERROR_TEXT / 2];        /* the first difference; else what is alone; else "" */
};

WS_MUST_USE int ws_audit_add(struct ws_audit *a, const struct ws_audit_hash *h, struct ws_error *err);
void ws_audit_clear(struct ws_audit *a); /* keeps nothing */
/* Compares; sorts the list. window: what was asked for; NULL: nobody knows, and nothing is alone. all_nodes:
 * what is alone is looked for among replicas that span nodes, else among those of this node only. */
void ws_audit_compare(struct ws_audit *a, const struct ws_replicas *r, const struct ws_replica_window *window,
                      bool all_nodes, struct ws_audit_result *out);

/* What other nodes have to be told, of what this node's ranks have said and agree about: [[replica, chunk,
 * hash, rank, n]..], of replicas that span nodes. Sorts the list. NULL: no memory. */
json_t *ws_audit_json(struct ws_audit *a, const struct ws_replicas *r);
WS_MUST_USE int ws_audit_of_json(struct ws_audit *a, const json_t *list, struct ws_error *err);

#endif
