/* Blob: a delta in AstraFlow's own form, for its receivers:
 *
 *     u64 count   u16 element_size   u16 flags, 1: indices are u64   i32 0
 *     count indices, u32 or u64, in units of element_size of the whole buffer, ascending
 *     count times the new element_size bytes
 *
 * Made from our delta (transports/delta/delta.h) and the bytes of its target. Most changes of a bf16 weight
 * are in its low byte, so elements of one byte take 5 bytes a change where AstraFlow's own sender spends 6;
 * the size that gives the smallest blob is taken. Never changes once made; freed with its last reference.
 * Any thread.
 */
#ifndef WS_TRAINER_ASTRAFLOW_BLOB_H
#define WS_TRAINER_ASTRAFLOW_BLOB_H
#include "backends/trainer/astraflow/flat_view.h"
#include "transports/delta/delta.h"
#include <stdatomic.h>

struct ws_blob {
    atomic_uint refs;
    struct ws_version_id base, target;
    uint64_t buffer_bytes; /* of the version's buffer */
    char layout[17];
    uint64_t count;
    unsigned element_bytes;
    size_t n_bytes;
    double seconds; /* that it took */
    unsigned char bytes[];
};
/* The delta is whole, the buffer is of its target, which is held. -E2BIG: it would take over half of the
 * buffer; -ENOMEM; -ECANCELED: *stop; -EBADMSG: the delta is damaged. */
WS_MUST_USE int ws_blob_new(struct ws_blob **out, const struct ws_delta *delta, const struct ws_lease *target,
                            const struct ws_flat_view *buffer, const atomic_bool *stop, struct ws_error *err);
struct ws_blob *ws_blob_get(struct ws_blob *b);
void ws_blob_put(struct ws_blob *b); /* NULL is fine */

#endif
