/* All pieces of an opened version to device memory at once: one after the other costs a wait each, which with
 * many small ones is most of the time. */
#include "backends/trainer/api/last_error.h"
#include "backends/trainer/gpu/map.h"
#include "transports/device/copies.h"
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

/* The pieces on one device; alone[i]: that one has to be copied by itself. */
static int copy_device(struct wsync_gpu_map *m, int device, void *const *dst, size_t n, bool *alone,
                       struct ws_error *err)
{
    struct ws_copies copies;
    struct ws_error ignored;
    struct ws_queue *q;
    int rc = ws_map_queue(m, device, &q, err);
    if (rc < 0)
        return rc;
    ws_copies_begin(&copies, q, 0);
    for (size_t i = 0; rc == 0 && i < n; i++) {
        struct ws_runs runs;
        if (!dst[i] || m->tensors[i].device != device)
            continue;
        ws_gpu_piece_runs(m->pieces[i].piece, &runs);
        rc = ws_copies_add(&copies, &runs, m->tensors[i].data, dst[i], 0, err);
        alone[i] = rc == -EOPNOTSUPP;
        rc = alone[i] ? 0 : rc;
    }
    if (rc == 0)
        rc = ws_copies_send(&copies, err);
    int end = m->ops->finish(q, rc == 0 ? err : &ignored); /* also what was queued before a failure */
    ws_copies_end(&copies);
    return rc < 0 ? rc : end;
}

static bool has_any(const struct wsync_gpu_map *m, int device, void *const *dst, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (dst[i] && m->tensors[i].device == device)
            return true;
    return false;
}

int wsync_gpu_map_copy_all(wsync_gpu_map *m, void *const *dst, size_t n)
{
    struct ws_error *err = ws_last_error();
    int rc = ws_map_check(m, err);
    if (rc < 0)
        return rc;
    if (n > m->n)
        return ws_error_set(err, EINVAL, "there are %zu pieces, not %zu", m->n, n);
    bool *alone = calloc(n + 1, sizeof(*alone));
    if (!alone)
        return ws_error_set(err, ENOMEM, "no memory for a list of %zu pieces", n);
    for (unsigned d = 0; rc == 0 && d < m->ops->count(); d++)
        if (has_any(m, (int)d, dst, n))
            rc = copy_device(m, (int)d, dst, n, alone, err);
    for (size_t i = 0; rc == 0 && i < n; i++)
        if (alone[i])
            rc = wsync_gpu_map_copy(m, i, dst[i], ws_gpu_piece_bytes(m->pieces[i].piece));
    free(alone);
    return rc;
}
