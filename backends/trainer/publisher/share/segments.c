/* cuda_ipc: the allocations and mappings that parameters lie in, each once. Mappings side by side, as
 * expandable segments are, become one segment of several descriptors. */
#include "backends/trainer/publisher/share/share.h"
#include "transports/base/vector.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

WS_VECTOR(extents, struct ws_device_extent); /* by address */

/* The first that ends behind p. */
static size_t first_behind(const struct extents *e, const unsigned char *p)
{
    size_t low = 0, high = e->len;
    while (low < high) {
        size_t mid = (low + high) / 2;
        if (e->ptr[mid].base + e->ptr[mid].bytes <= p)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

/* Finds what [low, high) lies in. */
static int cover(const struct ws_device_ops *ops, struct extents *e, const unsigned char *low,
                 const unsigned char *high, struct ws_error *err)
{
    int rc = 0;
    while (rc == 0 && low < high) {
        size_t at = first_behind(e, low);
        struct ws_device_extent x;
        if (at < e->len && e->ptr[at].base <= low) {
            low = e->ptr[at].base + e->ptr[at].bytes;
            continue;
        }
        rc = ops->extent(low, &x, err);
        if (rc == 0 && (x.bytes == 0 || x.base > low || x.base + x.bytes <= low))
            rc = ws_error_set(err, EIO, "the driver knows no allocation of %p", (const void *)low);
        if (rc == 0 && extents_insert(e, x, at) < 0)
            rc = ws_error_set(err, ENOMEM, "no memory for a list of %zu allocations", e->len + 1);
    }
    return rc;
}

static bool goes_on(const struct ws_device_extent *a, const struct ws_device_extent *b)
{
    return a->by_fd && b->by_fd && a->device == b->device && a->base + a->bytes == b->base;
}

static int share_extent(struct ws_publisher_share *s, const struct ws_device_extent *x,
                        struct ws_publisher_share_offer *o, struct ws_gpu_segment *to, struct ws_error *err)
{
    to->bytes += x->bytes;
    if (!x->by_fd)
        return s->ops->share(x, to->handle, err);
    to->parts[to->n_parts++] = x->bytes;
    o->parts[o->n_parts++] = *x;
    return 0;
}

static int share_extents(struct ws_publisher_share *s, const struct extents *e,
                         struct ws_publisher_share_offer *o, const unsigned char **bases,
                         struct ws_error *err)
{
    struct ws_gpu_listing *l = &o->listing;
    int rc = 0;
    for (size_t i = 0, end; rc == 0 && i < e->len; i = end) {
        const struct ws_device_extent *x = &e->ptr[i];
        struct ws_gpu_segment *to = &l->segments[l->n_segments];
        for (end = i + 1; end < e->len && goes_on(&e->ptr[end - 1], &e->ptr[end]);)
            end++;
        bases[l->n_segments++] = x->base;
        memcpy(to->uuid, s->uuids[x->device], WS_DEVICE_UUID_BYTES);
        to->parts = x->by_fd ? calloc(end - i, sizeof(*to->parts)) : NULL;
        if (x->by_fd && !to->parts)
            return ws_error_set(err, ENOMEM, "no memory for %zu mappings", end - i);
        for (size_t k = i; rc == 0 && k < end; k++)
            rc = share_extent(s, &e->ptr[k], o, to, err);
    }
    return rc;
}

static int place(const struct ws_gpu_listing *l, const unsigned char *const *bases,
                 const struct ws_shared_piece *a, struct ws_gpu_piece *p, struct ws_error *err)
{
    const unsigned char *data = a->data;
    uint64_t before, after;
    size_t low = 0, high = l->n_segments;
    while (high - low > 1) { /* the last that begins at data or before */
        size_t mid = (low + high) / 2;
        if (bases[mid] <= data)
            low = mid;
        else
            high = mid;
    }
    p->segment = low;
    p->at = (uint64_t)(data - bases[low]);
    int rc = ws_gpu_piece_extent(p, &before, &after);
    if (rc == 0 && (before > p->at || after > l->segments[low].bytes - p->at))
        rc = -EINVAL;
    return rc == 0 ? 0
                   : ws_error_set(err, EINVAL,
                                  "the data of the parameter %s reaches beyond its allocation on the GPU",
                                  a->registered->tensor.name);
}

static int find_all(struct ws_publisher_share *s, const struct ws_publisher_share_offer *o, struct extents *e,
                    struct ws_error *err)
{
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < o->n_pieces; i++) {
        const unsigned char *data = o->pieces[i].data;
        const char *name = o->pieces[i].registered->tensor.name;
        uint64_t before, after;
        if (ws_gpu_piece_extent(&o->listing.pieces[i], &before, &after) < 0)
            return ws_error_set(err, EINVAL, "the strides of the parameter %s make no sense", name);
        rc = cover(s->ops, e, data - before, data + after, err);
        if (rc == -EOPNOTSUPP)
            (void)ws_error_prefix(err,
                                  "%s cannot be shared by cuda_ipc; use share packed_cuda_ipc, which "
                                  "copies",
                                  name);
    }
    return rc;
}

int ws_publisher_share_segments(struct ws_publisher_share *s, struct ws_publisher_share_offer *o,
                                struct ws_error *err)
{
    struct ws_gpu_listing *l = &o->listing;
    struct extents e = {0};
    const unsigned char **bases = NULL;
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < o->n_pieces; i++) {
        l->n_pieces++;
        o->pieces[i].shared_at = o->pieces[i].data;
        rc = ws_publisher_share_describe(&o->pieces[i], &l->pieces[i], err);
    }
    if (rc == 0)
        rc = find_all(s, o, &e, err);
    if (rc == 0) {
        l->segments = calloc(e.len + 1, sizeof(*l->segments));
        o->parts = calloc(e.len + 1, sizeof(*o->parts));
        bases = calloc(e.len + 1, sizeof(*bases));
        if (!l->segments || !o->parts || !bases)
            rc = ws_error_set(err, ENOMEM, "no memory for %zu allocations", e.len);
    }
    if (rc == 0)
        rc = share_extents(s, &e, o, bases, err);
    for (size_t i = 0; rc == 0 && i < o->n_pieces; i++)
        rc = place(l, bases, &o->pieces[i], &l->pieces[i], err);
    free(bases);
    extents_reset(&e);
    return rc;
}
