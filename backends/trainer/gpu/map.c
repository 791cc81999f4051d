/* wsync_map_gpu and the functions on its maps. */
#include "backends/trainer/gpu/map.h"
#include "backends/trainer/api/agent_address.h"
#include "backends/trainer/api/last_error.h"
#include "transports/device/copies.h"
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHUNK (8UL << 20) /* for conversions by way of the host */

/* --- pieces, in order --- */

static int by_place(const void *x, const void *y)
{
    const struct ws_gpu_map_piece *a = x, *b = y;
    const struct ws_piece *p = &a->piece->piece, *q = &b->piece->piece;
    int c = strcmp(a->piece->tensor.name, b->piece->tensor.name);
    if (c == 0 && p->start != q->start)
        c = p->start < q->start ? -1 : 1;
    for (unsigned d = 0; c == 0 && d < WS_MAX_DIMS; d++)
        if (p->offset[d] != q->offset[d])
            c = p->offset[d] < q->offset[d] ? -1 : 1;
    return c ? c : a->rank->rank < b->rank->rank ? -1 : a->rank->rank > b->rank->rank;
}

static void show(const struct ws_gpu_map_piece *of, wsync_gpu_tensor *to)
{
    const struct ws_gpu_piece *p = of->piece;
    const struct ws_tensor *t = &p->tensor;
    const struct ws_gpu_map_segment *s = &of->rank->segments[p->segment];
    const bool whole_bytes = ws_dtype_bits(t->dtype) % 8 == 0;
    *to = (wsync_gpu_tensor){.name = t->name,
                             .dtype = (wsync_dtype)t->dtype,
                             .n_dims = t->n_dims,
                             .data = (const unsigned char *)s->base + p->at,
                             .device = s->device,
                             .gpu_uuid = of->rank->listing->segments[p->segment].uuid,
                             .converts = p->conversion != WS_SAME_TYPE,
                             .data_dtype = (wsync_dtype)p->data_dtype};
    memcpy(to->shape, t->shape, sizeof(to->shape));
    to->piece.kind = p->piece.range ? WSYNC_RANGE : whole_bytes ? WSYNC_BOX : WSYNC_WHOLE;
    to->piece.start = p->piece.start;
    to->piece.count = p->piece.count;
    if (to->piece.kind != WSYNC_BOX)
        return;
    to->piece.strided = 1;
    memcpy(to->piece.offset, p->piece.offset, sizeof(to->piece.offset));
    memcpy(to->piece.size, p->piece.size, sizeof(to->piece.size));
    memcpy(to->piece.strides, p->strides, sizeof(to->piece.strides));
}

static int list_pieces(struct wsync_gpu_map *m, struct ws_error *err)
{
    size_t n = 0;
    for (size_t k = 0; k < m->n_ranks; k++)
        n += m->ranks[k].listing->n_pieces;
    m->pieces = calloc(n + 1, sizeof(*m->pieces));
    m->tensors = calloc(n + 1, sizeof(*m->tensors));
    if (!m->pieces || !m->tensors)
        return ws_error_set(err, ENOMEM, "no memory for %zu tensors", n);
    for (size_t k = 0; k < m->n_ranks; k++)
        for (size_t i = 0; i < m->ranks[k].listing->n_pieces; i++)
            m->pieces[m->n++] = (struct ws_gpu_map_piece){&m->ranks[k], &m->ranks[k].listing->pieces[i]};
    qsort(m->pieces, m->n, sizeof(m->pieces[0]), by_place);
    for (size_t i = 0; i < m->n; i++)
        show(&m->pieces[i], &m->tensors[i]);
    return 0;
}

/* --- public --- */

static void end(struct wsync_gpu_map *m)
{
    for (unsigned d = 0; m->queues && d < m->ops->count(); d++)
        if (m->queues[d])
            m->ops->queue_free(m->queues[d]);
    ws_gpu_map_close(m);
    free(m->queues);
    free(m->pieces);
    free(m->tensors);
    free(m);
}

int wsync_map_gpu(const char *agent, const char *model, uint64_t version, wsync_gpu_map **out)
{
    struct ws_error *err = ws_last_error();
    *out = NULL;
    agent = ws_agent_address(agent);
    if (!model || !ws_name_is_model(model))
        return ws_error_set(err, EINVAL, "'%.100s' cannot be a model: %s", model ? model : "",
                            WS_MODEL_NAME_RULE);
    if (strncmp(agent, "unix:", 5) != 0 && agent[0] != '/')
        return ws_error_set(
            err, EXDEV, "%.200s is no agent of this host: GPUs' memory is reached by unix:/PATH only", agent);
    struct wsync_gpu_map *m = calloc(1, sizeof(*m));
    if (!m)
        return ws_error_set(err, ENOMEM, "no memory for a map");
    m->ops = ws_device_by_kind(WS_CUDA);
    m->pid = getpid();
    m->sock = -1;
    int rc = m->ops->available(err);
    if (rc == 0 && !(m->queues = calloc(m->ops->count() + 1, sizeof(struct ws_device_queue *))))
        rc = ws_error_set(err, ENOMEM, "no memory for a map");
    if (rc == 0)
        rc = ws_gpu_map_open(m, agent, model, version, err);
    if (rc == 0)
        rc = list_pieces(m, err);
    if (rc < 0)
        end(m);
    else
        *out = m;
    return rc;
}

uint64_t wsync_gpu_map_version(const wsync_gpu_map *m)
{
    return m->version;
}

const char *wsync_gpu_map_run(const wsync_gpu_map *m)
{
    return m->lineage;
}

const wsync_gpu_tensor *wsync_gpu_map_tensor(const wsync_gpu_map *m, size_t i)
{
    return i < m->n ? &m->tensors[i] : NULL;
}

void wsync_unmap_gpu(wsync_gpu_map *m)
{
    if (!m)
        return;
    if (m->pid == getpid())
        end(m);
    else if (m->sock >= 0) /* of a fork: the driver's mappings are its parent's */
        close(m->sock);
}

/* --- copies --- */

int ws_gpu_map_check_process(const struct wsync_gpu_map *m, struct ws_error *err)
{
    return m->pid == getpid()
               ? 0
               : ws_error_set(err, EPERM, "this map was opened by process %d, of which this one is a fork",
                              (int)m->pid);
}

int ws_gpu_map_queue(struct wsync_gpu_map *m, int device, struct ws_device_queue **out, struct ws_error *err)
{
    int rc = m->queues[device] ? 0 : m->ops->queue_new(device, &m->queues[device], err);
    *out = m->queues[device];
    return rc;
}

struct conversion {
    struct ws_device_queue *q;
    enum ws_conversion how;
    struct ws_box_extents raw; /* the source's elements, and how they lie */
    const void *src;
    bool to_host;
    unsigned char *data, *converted; /* a chunk, each, pinned */
};

/* Elements [first, first + n): converted on the CPU. */
static int convert_chunk(const struct conversion *c, uint64_t first, uint64_t n, unsigned char *dst,
                         size_t bytes, struct ws_error *err)
{
    const struct ws_device_ops *ops = c->q->ops;
    const uint64_t from = first * c->raw.element_bytes;
    struct ws_box_cursor cursor;
    ws_box_cursor_seek(&cursor, &c->raw, c->src, from, n * c->raw.element_bytes);
    int rc = ws_copies_cursor(c->q, &cursor, c->data - from, err);
    if (rc == 0)
        rc = ops->finish(c->q, err);
    if (rc < 0)
        return rc;
    (void)ws_convert(c->how, c->to_host ? dst : c->converted, c->data, n);
    if (!c->to_host)
        rc = ops->copy(c->q, dst, c->converted, bytes, err);
    if (rc == 0 && !c->to_host)
        rc = ops->finish(c->q, err); /* the chunk is written again */
    return rc;
}

static int convert(struct ws_device_queue *q, const struct ws_box_extents *runs, const void *src,
                   unsigned char *dst, struct ws_error *err)
{
    const uint64_t most = CHUNK / 4, all = runs->bytes / runs->element_bytes;
    struct conversion c = {.q = q, .how = runs->conversion, .src = src};
    void *chunks;
    int device,
        rc = q->ops->alloc_pinned(q->device, 2 * CHUNK, &chunks, err); /* no element is wider than 4 */
    if (rc < 0)
        return rc;
    c.to_host = ws_device_by_address(dst, &device) == WS_HOST;
    c.data = chunks;
    c.converted = c.data + CHUNK;
    ws_box_extents_raw(&c.raw, runs);
    for (uint64_t at = 0, n; rc == 0 && at < all; at += n) {
        n = all - at < most ? all - at : most;
        rc = convert_chunk(&c, at, n, dst + at * runs->element_bytes, n * runs->element_bytes, err);
    }
    q->ops->release_pinned(q->device, chunks);
    return rc;
}

/* By copies, which reach the host's memory too. */
static int copy_piece(struct ws_device_queue *q, const struct ws_box_extents *runs, const void *src,
                      void *dst, struct ws_error *err)
{
    struct ws_box_cursor cursor;
    struct ws_error ignored;
    ws_box_cursor_seek(&cursor, runs, src, 0, runs->bytes);
    int rc = ws_copies_cursor(q, &cursor, dst, err);
    int end = q->ops->finish(q, rc == 0 ? err : &ignored); /* also what was queued before a failure */
    return rc < 0 ? rc : end;
}

int wsync_gpu_map_copy(wsync_gpu_map *m, size_t i, void *dst, size_t bytes)
{
    struct ws_error *err = ws_last_error();
    struct ws_box_extents runs;
    struct ws_device_queue *q;
    int rc = ws_gpu_map_check_process(m, err);
    if (rc < 0)
        return rc;
    if (i >= m->n || !dst)
        return ws_error_set(err, EINVAL, "there is no tensor %zu, or no place for it", i);
    const struct ws_gpu_piece *p = m->pieces[i].piece;
    const wsync_gpu_tensor *t = &m->tensors[i];
    if (bytes != ws_gpu_piece_bytes(p))
        return ws_error_set(err, EINVAL, "this piece of %s has %" PRIu64 " bytes, not %zu", t->name,
                            ws_gpu_piece_bytes(p), bytes);
    rc = ws_gpu_map_queue(m, t->device, &q, err);
    if (rc < 0)
        return rc;
    ws_gpu_piece_runs(p, &runs);
    return runs.conversion == WS_SAME_TYPE ? copy_piece(q, &runs, t->data, dst, err)
                                           : convert(q, &runs, t->data, dst, err);
}

int wsync_gpu_map_copy_all(wsync_gpu_map *m, void *const *dst, size_t n)
{
    int rc = 0;
    if (n > m->n)
        return ws_error_set(ws_last_error(), EINVAL, "there are %zu pieces, not %zu", m->n, n);
    for (size_t i = 0; rc == 0 && i < n; i++)
        if (dst[i])
            rc = wsync_gpu_map_copy(m, i, dst[i], ws_gpu_piece_bytes(m->pieces[i].piece));
    return rc;
}
