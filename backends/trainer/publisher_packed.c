/* packed_cuda_ipc: one buffer a dtype and device, which holds copies of the parameters back to back. */
#include "backends/trainer/dense.h"
#include "backends/trainer/publisher_share.h"
#include "transports/gather.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define LARGE (1UL << 20) /* by a copy of its own */
#define ROOM  (2UL << 20) /* what a driver shares at least: nothing else is to lie in it */

static uint64_t up(uint64_t n, uint64_t to)
{
    return (n + to - 1) / to * to;
}

static struct ws_packed_buffer *buffer_of(struct ws_share_set *set, int device, enum ws_dtype dtype)
{
    for (size_t i = 0; i < set->n_buffers; i++)
        if (set->buffers[i].device == device && set->buffers[i].dtype == dtype)
            return &set->buffers[i];
    struct ws_packed_buffer *more =
        realloc(set->buffers, (set->n_buffers + 1) * sizeof(*more)); /* dtypes times devices: few */
    if (!more)
        return NULL;
    set->buffers = more;
    more[set->n_buffers] = (struct ws_packed_buffer){.device = device, .dtype = dtype};
    return &more[set->n_buffers++];
}

/* The piece as it lies in the trainer's memory. */
static void source_runs(const struct ws_shared_piece *a, struct ws_runs *out)
{
    struct ws_gpu_piece p = {.tensor = a->registered->tensor,
                             .piece = a->registered->piece,
                             .data_dtype = a->data_dtype,
                             .conversion = a->layout.conversion};
    memcpy(p.strides, a->layout.strides, sizeof(p.strides));
    ws_gpu_piece_runs(&p, out);
}

/* Does its device's kernel move it into a buffer? */
static bool is_gathered(const struct ws_publisher_share *s, const struct ws_shared_piece *a,
                        const struct ws_runs *r)
{
    const void *aligned = (const void *)WS_PACKED_ALIGNMENT;
    return s->ops->has_kernels(a->device, NULL) == 0 &&
           ws_gather_takes(r, a->data, 0, r->bytes, aligned, WS_GATHER_PACKED);
}

static bool converts(const struct ws_publisher_share *s, const struct ws_shared_piece *a)
{
    struct ws_runs runs;
    source_runs(a, &runs);
    return is_gathered(s, a, &runs);
}

/* Where each piece goes; its segment is the buffer's number until segments are made. */
static int lay_out(struct ws_publisher_share *s, struct ws_share_set *set, struct ws_share_offer *o,
                   struct ws_error *err)
{
    struct ws_gpu_listing *l = &o->listing;
    static const int64_t contiguous[WSYNC_MAX_DIMS];
    int rc = 0;
    for (size_t i = 0; i < set->n_buffers; i++)
        set->buffers[i].used = 0;
    for (size_t i = 0; rc == 0 && i < o->n_pieces; i++) {
        struct ws_gpu_piece *p = &l->pieces[i];
        l->n_pieces++;
        rc = ws_share_describe(&o->pieces[i], p, err);
        if (rc == 0 && p->conversion != WS_KEEP && converts(s, &o->pieces[i])) {
            p->conversion = WS_KEEP;
            p->data_dtype = p->tensor.dtype;
        }
        struct ws_packed_buffer *b = rc == 0 ? buffer_of(set, o->pieces[i].device, p->data_dtype) : NULL;
        if (rc == 0 && !b)
            rc = ws_error_set(err, ENOMEM, "no memory for a list of buffers");
        if (rc < 0)
            break;
        ws_strides_meant(contiguous, false, p->piece.size, p->tensor.n_dims, p->strides);
        p->segment = (size_t)(b - set->buffers);
        p->at = up(b->used, WS_PACKED_ALIGNMENT);
        b->used = p->at + ws_gpu_piece_data_bytes(p);
    }
    return rc;
}

/* Buffers that are large enough; what is not used any more goes. */
static int make_room(struct ws_publisher_share *s, struct ws_share_set *set, struct ws_error *err)
{
    int rc = 0;
    for (size_t i = 0; i < set->n_buffers; i++) {
        struct ws_packed_buffer *b = &set->buffers[i];
        if (b->used <= b->room && (b->used > 0 || b->room == 0))
            continue;
        s->ops->release(b->device, b->data);
        b->data = NULL;
        b->room = 0;
    }
    for (size_t i = 0; rc == 0 && i < set->n_buffers; i++) {
        struct ws_packed_buffer *b = &set->buffers[i];
        if (b->used <= b->room)
            continue;
        rc = s->ops->alloc(b->device, up(b->used, ROOM), &b->data, err);
        if (rc == 0)
            b->room = up(b->used, ROOM);
        else
            (void)ws_error_prefix(err, "packed_cuda_ipc wants two buffers of %s of %zu MiB",
                                  ws_dtype_name(b->dtype), (size_t)(up(b->used, ROOM) >> 20));
    }
    return rc;
}

/* Segments of the buffers that are used, and their numbers into the pieces. */
static int make_segments(struct ws_publisher_share *s, const struct ws_share_set *set,
                         struct ws_share_offer *o, struct ws_error *err)
{
    struct ws_gpu_listing *l = &o->listing;
    size_t *segment_of = calloc(set->n_buffers + 1, sizeof(*segment_of));
    l->segments = calloc(set->n_buffers + 1, sizeof(*l->segments));
    int rc = segment_of && l->segments ? 0 : ws_error_set(err, ENOMEM, "no memory for a list of buffers");
    for (size_t i = 0; rc == 0 && i < set->n_buffers; i++) {
        const struct ws_packed_buffer *b = &set->buffers[i];
        struct ws_gpu_segment *to = &l->segments[l->n_segments];
        struct ws_extent x = {.base = b->data, .bytes = b->room, .device = b->device};
        if (b->used == 0)
            continue;
        rc = s->ops->share(&x, to->handle, err);
        memcpy(to->uuid, s->uuids[b->device], WS_UUID_BYTES);
        to->bytes = b->room;
        segment_of[i] = l->n_segments++;
    }
    for (size_t i = 0; rc == 0 && i < l->n_pieces; i++)
        l->pieces[i].segment = segment_of[l->pieces[i].segment];
    free(segment_of);
    return rc;
}

/* --- filling them: large stretches by copies, the rest by one launch of the gather kernel a device --- */

/* The pieces of one device that its kernel gathers. */
struct batch {
    struct ws_gather list;
    unsigned char *host, *device; /* items, units, counters */
    uint64_t *counters;           /* in host, as they are in the end */
};

static int copy_piece(struct ws_publisher_share *s, struct ws_shared_piece *a, unsigned char *dst,
                      struct batch *b, size_t index, struct ws_error *err)
{
    struct ws_runs runs;
    struct ws_dense dense;
    struct ws_queue *q;
    source_runs(a, &runs);
    ws_dense_of(&dense, &runs);
    const bool plain = dense.n_loops == 0 && a->layout.conversion == WS_KEEP && runs.bytes >= LARGE;
    a->shared_at = dst;
    int rc = ws_share_queue(s, a->device, &q, err);
    if (rc == 0 && !plain && is_gathered(s, a, &runs))
        return ws_gather_add(&b->list, &runs, a->data, 0, runs.bytes, dst, WS_GATHER_PACKED, (uint32_t)index,
                             err);
    return rc == 0 ? ws_dense_copy(q, dst, a->data, &dense, err) : rc;
}

/* counters: one a piece. */
static int launch(struct ws_publisher_share *s, unsigned device, struct batch *b, size_t n,
                  struct ws_error *err)
{
    const size_t items = b->list.n * sizeof(b->list.items[0]),
                 units = up((b->list.n + 1) * sizeof(b->list.units[0]), 16), counters = n * sizeof(uint64_t);
    struct ws_queue *q = s->queues[device];
    void *p;
    b->host = calloc(1, items + units + counters);
    if (!b->host)
        return ws_error_set(err, ENOMEM, "no memory for a list of %u pieces to gather", b->list.n);
    int rc = s->ops->alloc((int)device, items + units + counters, &p, err);
    if (rc < 0)
        return rc;
    b->device = p;
    memcpy(b->host, b->list.items, items);
    memcpy(b->host + items, b->list.units, (b->list.n + 1) * sizeof(b->list.units[0]));
    b->counters = (uint64_t *)(void *)(b->host + items + units);
    struct ws_gather_args args = {.items = (const void *)b->device,
                                  .units = (const void *)(b->device + items),
                                  .overflows = (void *)(b->device + items + units),
                                  .n = b->list.n};
    rc = s->ops->copy(q, b->device, b->host, items + units + counters, err);
    if (rc == 0)
        rc = ws_gather_launch(q, &args, b->list.units[b->list.n], err);
    return rc == 0 ? s->ops->copy(q, b->counters, b->device + items + units, counters, err) : rc;
}

/* The parameters are the caller's again when an offload returns: so the copies end here, also after a
 * failure. */
static int finish_all(struct ws_publisher_share *s, struct ws_error *err)
{
    int rc = 0;
    for (unsigned d = 0; d < s->n_devices; d++)
        if (s->queues[d]) {
            struct ws_error why = {0};
            int now = s->ops->finish(s->queues[d], &why);
            if (now < 0 && rc == 0)
                rc = ws_error_set(err, why.code, "%s", why.text);
        }
    return rc;
}

static void take_counters(struct ws_share_offer *o, const struct batch *b)
{
    for (uint32_t i = 0; b->counters && i < b->list.n; i++)
        o->pieces[b->list.items[i].overflows].overflows = b->counters[b->list.items[i].overflows];
}

static int copy_all(struct ws_publisher_share *s, const struct ws_share_set *set, struct ws_share_offer *o,
                    struct ws_error *err)
{
    struct batch *batches = calloc(s->n_devices + 1, sizeof(*batches));
    struct ws_error ignored;
    int rc = batches ? 0 : ws_error_set(err, ENOMEM, "no memory for a list of devices");
    for (size_t i = 0; rc == 0 && i < o->n_pieces; i++) {
        const struct ws_gpu_piece *p = &o->listing.pieces[i];
        rc = copy_piece(s, &o->pieces[i], (unsigned char *)set->buffers[p->segment].data + p->at,
                        &batches[o->pieces[i].device], i, err);
    }
    for (unsigned d = 0; rc == 0 && d < s->n_devices; d++)
        if (batches[d].list.n > 0)
            rc = launch(s, d, &batches[d], o->n_pieces, err);
    int end = finish_all(s, rc == 0 ? err : &ignored);
    rc = rc == 0 ? end : rc;
    for (unsigned d = 0; batches && d < s->n_devices; d++) {
        if (rc == 0)
            take_counters(o, &batches[d]);
        s->ops->release((int)d, batches[d].device);
        free(batches[d].host);
        ws_gather_free(&batches[d].list);
    }
    free(batches);
    return rc;
}

int ws_share_packed(struct ws_publisher_share *s, struct ws_share_set *set, struct ws_share_offer *o,
                    struct ws_error *err)
{
    int rc = lay_out(s, set, o, err);
    if (rc == 0)
        rc = make_room(s, set, err);
    if (rc == 0)
        rc = copy_all(s, set, o, err);
    return rc == 0 ? make_segments(s, set, o, err) : rc;
}

void ws_share_free_buffers(struct ws_publisher_share *s, struct ws_share_set *set)
{
    for (size_t i = 0; i < set->n_buffers; i++)
        s->ops->release(set->buffers[i].device, set->buffers[i].data);
    free(set->buffers);
    set->buffers = NULL;
    set->n_buffers = 0;
}
