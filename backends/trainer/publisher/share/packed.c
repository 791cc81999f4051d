/* packed_cuda_ipc: one buffer a dtype and device, which holds copies of the parameters back to back. */
#include "backends/trainer/publisher/share/share.h"
#include "transports/base/vector.h"
#include "transports/device/copies.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define ROOM (2UL << 20) /* a driver shares at least this much: no other allocation may lie in it */

static uint64_t up(uint64_t n, uint64_t to)
{
    return (n + to - 1) / to * to;
}

static struct ws_packed_buffer *buffer_of(struct ws_publisher_share_set *set, int device, enum ws_dtype dtype)
{
    for (size_t i = 0; i < set->n_buffers; i++)
        if (set->buffers[i].device == device && set->buffers[i].dtype == dtype)
            return &set->buffers[i];
    struct ws_packed_buffer *buffers = ws_vector_room(set->buffers, set->n_buffers, sizeof(*buffers));
    if (!buffers)
        return NULL;
    set->buffers = buffers;
    buffers[set->n_buffers] = (struct ws_packed_buffer){.device = device, .dtype = dtype};
    return &buffers[set->n_buffers++];
}

/* The piece as it lies in the trainer's memory. */
static void source_runs(const struct ws_shared_piece *a, struct ws_box_extents *out)
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
                        const struct ws_box_extents *r)
{
    const void *aligned = (const void *)WS_PACKED_ALIGNMENT;
    return s->ops->has_kernels(a->device, NULL) == 0 &&
           ws_gather_supports(r, a->data, 0, r->bytes, aligned, WS_GATHER_PACKED);
}

static bool converts(const struct ws_publisher_share *s, const struct ws_shared_piece *a)
{
    struct ws_box_extents runs;
    source_runs(a, &runs);
    return is_gathered(s, a, &runs);
}

/* Where each piece goes; its segment is the buffer's number until segments are made. */
static int lay_out(struct ws_publisher_share *s, struct ws_publisher_share_set *set,
                   struct ws_publisher_share_offer *o, struct ws_error *err)
{
    struct ws_gpu_listing *l = &o->listing;
    static const int64_t contiguous[WSYNC_MAX_DIMS];
    int rc = 0;
    for (size_t i = 0; i < set->n_buffers; i++)
        set->buffers[i].used = 0;
    for (size_t i = 0; rc == 0 && i < o->n_pieces; i++) {
        struct ws_gpu_piece *p = &l->pieces[i];
        l->n_pieces++;
        rc = ws_publisher_share_describe(&o->pieces[i], p, err);
        if (rc == 0 && p->conversion != WS_SAME_TYPE && converts(s, &o->pieces[i])) {
            p->conversion = WS_SAME_TYPE;
            p->data_dtype = p->tensor.dtype;
        }
        struct ws_packed_buffer *b = rc == 0 ? buffer_of(set, o->pieces[i].device, p->data_dtype) : NULL;
        if (rc == 0 && !b)
            rc = ws_error_set(err, ENOMEM, "no memory for a list of buffers");
        if (rc < 0 || !b)
            break;
        ws_piece_strides(contiguous, false, p->piece.size, p->tensor.n_dims, p->strides);
        p->segment = (size_t)(b - set->buffers);
        p->at = up(b->used, WS_PACKED_ALIGNMENT);
        b->used = p->at + ws_gpu_piece_data_bytes(p);
    }
    return rc;
}

/* Makes the buffers large enough, and frees those that are not used any more. */
static int make_room(struct ws_publisher_share *s, struct ws_publisher_share_set *set, struct ws_error *err)
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
static int make_segments(struct ws_publisher_share *s, const struct ws_publisher_share_set *set,
                         struct ws_publisher_share_offer *o, struct ws_error *err)
{
    struct ws_gpu_listing *l = &o->listing;
    size_t *segment_of = calloc(set->n_buffers + 1, sizeof(*segment_of));
    l->segments = calloc(set->n_buffers + 1, sizeof(*l->segments));
    int rc = segment_of && l->segments ? 0 : ws_error_set(err, ENOMEM, "no memory for a list of buffers");
    for (size_t i = 0; rc == 0 && i < set->n_buffers; i++) {
        const struct ws_packed_buffer *b = &set->buffers[i];
        struct ws_gpu_segment *to = &l->segments[l->n_segments];
        struct ws_device_extent x = {.base = b->data, .bytes = b->room, .device = b->device};
        if (b->used == 0)
            continue;
        rc = s->ops->share(&x, to->handle, err);
        memcpy(to->uuid, s->uuids[b->device], WS_DEVICE_UUID_BYTES);
        to->bytes = b->room;
        segment_of[i] = l->n_segments++;
    }
    for (size_t i = 0; rc == 0 && i < l->n_pieces; i++)
        l->pieces[i].segment = segment_of[l->pieces[i].segment];
    free(segment_of);
    return rc;
}

/* What is on one device: small, strided and converted pieces by one launch of the kernel. */
static int copy_device(struct ws_publisher_share *s, const struct ws_publisher_share_set *set,
                       struct ws_publisher_share_offer *o, int device, struct ws_error *err)
{
    struct ws_copies copies;
    struct ws_error ignored;
    struct ws_device_queue *q;
    int rc = ws_publisher_share_queue(s, device, &q, err);
    if (rc < 0)
        return rc;
    ws_copies_begin(&copies, q, o->n_pieces);
    for (size_t i = 0; rc == 0 && i < o->n_pieces; i++) {
        struct ws_shared_piece *a = &o->pieces[i];
        const struct ws_gpu_piece *p = &o->listing.pieces[i];
        struct ws_box_extents runs;
        if (a->device != device)
            continue;
        unsigned char *to = (unsigned char *)set->buffers[p->segment].data + p->at;
        a->shared_at = to;
        source_runs(a, &runs);
        if (p->conversion != WS_SAME_TYPE) { /* shared in the dtype that the rank holds */
            const struct ws_box_extents held = runs;
            ws_box_extents_raw(&runs, &held);
        }
        rc = ws_copies_add(&copies, &runs, a->data, to, i, err);
    }
    if (rc == 0)
        rc = ws_copies_send(&copies, err);
    /* The caller may change the parameters once an offload returns, so the copies are waited for here. */
    int end = s->ops->finish(q, rc == 0 ? err : &ignored);
    rc = rc < 0 ? rc : end;
    for (size_t i = 0; rc == 0 && i < o->n_pieces; i++)
        if (o->pieces[i].device == device)
            o->pieces[i].overflows = ws_copies_overflows(&copies, i);
    ws_copies_end(&copies);
    return rc;
}

static int copy_all(struct ws_publisher_share *s, const struct ws_publisher_share_set *set,
                    struct ws_publisher_share_offer *o, struct ws_error *err)
{
    int rc = 0;
    for (unsigned d = 0; rc == 0 && d < s->n_devices; d++)
        if (s->queues[d]) /* something is on it */
            rc = copy_device(s, set, o, (int)d, err);
    return rc;
}

int ws_publisher_share_packed(struct wsync_publisher *p, struct ws_publisher_share_set *set,
                              struct ws_publisher_share_offer *o, struct ws_error *err)
{
    struct ws_publisher_share *s = p->share;
    struct ws_error why = {0};
    int rc = lay_out(s, set, o, err);
    if (rc == 0 && make_room(s, set, &why) < 0) {
        rc = ws_error_set(err, why.code, "%s", why.text);
        if (rc == -ENOMEM && p->delta) { /* shadows only make offloads shorter: they go first */
            ws_publisher_delta_give_up(p, why.text);
            rc = make_room(s, set, err);
        }
    }
    if (rc == 0)
        rc = copy_all(s, set, o, err);
    return rc == 0 ? make_segments(s, set, o, err) : rc;
}

void ws_publisher_share_free_buffers(struct ws_publisher_share *s, struct ws_publisher_share_set *set)
{
    for (size_t i = 0; i < set->n_buffers; i++)
        s->ops->release(set->buffers[i].device, set->buffers[i].data);
    free(set->buffers);
    set->buffers = NULL;
    set->n_buffers = 0;
}
