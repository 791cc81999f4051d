#include "backends/trainer/offload/d2h.h"
#include "transports/base/log.h"
#include "transports/base/vector.h"
#include "transports/device/copies.h"
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_LANES   16 /* devices of one process */
#define LINE        256UL
#define SMALL       4096UL
#define SMALL_LINE  8UL
#define LONG_WITHIN (1UL << 20) /* from here on a copy within the device's memory is as fast as a kernel */

/* A copy that waits for the gather kernel of its round. */
struct after {
    unsigned char *to;
    const unsigned char *staged;
    uint64_t bytes;
};
WS_VECTOR(afters, struct after);

struct round {
    unsigned char *staged; /* device memory; NULL: there are no kernels */
    unsigned char *bounce; /* pinned */
    uint64_t n_staged, n_bounced;
    struct ws_gather items;
    void *items_pinned, *items_device;
    size_t items_bytes; /* room */
    struct afters afters;
    struct ws_device_event *gathered, *done;
    bool used;
};

struct lane {
    const struct ws_device_ops *ops;
    int device;
    struct ws_device_queue *gathers, *copies;
    bool has_kernels, bounce_is_pinned;
    struct round rounds[WS_D2H_ROUNDS];
    uint64_t *counters; /* device memory */
    size_t n_counters;
};

struct ws_d2h {
    struct lane lanes[MAX_LANES];
    unsigned n_lanes, now;
    size_t n_sources;
    uint64_t direct, gathered, raw;
    bool counts;                 /* something was gathered, and may have overflowed */
    char why[WS_ERROR_TEXT / 4]; /* there are no kernels */
};

int ws_d2h_new(struct ws_d2h **out, struct ws_error *err)
{
    *out = calloc(1, sizeof(**out));
    return *out ? 0 : ws_error_set(err, ENOMEM, "no memory for copies from a GPU");
}

/* --- a lane: one device --- */

static void close_round(struct lane *l, struct round *r)
{
    l->ops->release(l->device, r->staged);
    l->ops->release(l->device, r->items_device);
    l->ops->release_pinned(l->device, r->items_pinned);
    if (l->bounce_is_pinned)
        l->ops->release_pinned(l->device, r->bounce);
    else
        free(r->bounce);
    if (r->gathered)
        l->ops->event_free(r->gathered);
    if (r->done)
        l->ops->event_free(r->done);
    ws_gather_free(&r->items);
    afters_reset(&r->afters);
}

static void close_lane(struct lane *l)
{
    if (l->gathers)
        l->ops->queue_free(l->gathers);
    if (l->copies)
        l->ops->queue_free(l->copies);
    for (unsigned i = 0; i < WS_D2H_ROUNDS; i++)
        close_round(l, &l->rounds[i]);
    l->ops->release(l->device, l->counters);
}

static void no_kernels(struct ws_d2h *c, struct lane *l, const char *why)
{
    if (l->has_kernels || !c->why[0])
        ws_log(
            WS_LOG_WARN, "publisher",
            "no gather kernels on device %d: small, strided and converted tensors go by way of the CPU: %s",
            l->device, why);
    l->has_kernels = false;
    snprintf(c->why, sizeof(c->why), "%s", why);
}

static int open_rounds(struct ws_d2h *c, struct lane *l, struct ws_error *err)
{
    struct ws_error why = {0};
    int rc = 0;
    l->bounce_is_pinned = true;
    for (unsigned i = 0; rc == 0 && i < WS_D2H_ROUNDS; i++) {
        struct round *r = &l->rounds[i];
        ws_gather_init(&r->items);
        if (l->has_kernels && l->ops->alloc(l->device, WS_D2H_STAGING_BYTES, (void **)&r->staged, &why) < 0)
            no_kernels(c, l, why.text);
        if (l->bounce_is_pinned &&
            l->ops->alloc_pinned(l->device, WS_D2H_STAGING_BYTES, (void **)&r->bounce, &why) < 0) {
            for (unsigned k = 0; k < i; k++) { /* all of one kind */
                l->ops->release_pinned(l->device, l->rounds[k].bounce);
                l->rounds[k].bounce = malloc(WS_D2H_STAGING_BYTES);
            }
            l->bounce_is_pinned = false;
            ws_log(WS_LOG_WARN, "publisher", "not even a small buffer can be pinned, copies are slow: %s",
                   why.text);
        }
        if (!l->bounce_is_pinned)
            r->bounce = malloc(WS_D2H_STAGING_BYTES);
        rc = l->ops->event_new(l->device, false, &r->gathered, err);
        if (rc == 0)
            rc = l->ops->event_new(l->device, false, &r->done, err);
    }
    for (unsigned i = 0; rc == 0 && i < WS_D2H_ROUNDS; i++) {
        if (!l->has_kernels) {
            l->ops->release(l->device, l->rounds[i].staged);
            l->rounds[i].staged = NULL;
        }
        if (!l->rounds[i].bounce)
            rc = ws_error_set(err, ENOMEM, "no memory for copies from a GPU");
    }
    return rc;
}

static struct lane *find_lane(const struct ws_d2h *c, int device)
{
    for (unsigned i = 0; i < c->n_lanes; i++)
        if (c->lanes[i].device == device)
            return (struct lane *)(uintptr_t)&c->lanes[i];
    return NULL;
}

static int open_lane(struct ws_d2h *c, int device, struct lane **out, struct ws_error *err)
{
    struct ws_error why = {0};
    if (c->n_lanes == MAX_LANES)
        return ws_error_set(err, E2BIG, "one rank's parameters are on more than %d devices", MAX_LANES);
    struct lane *l = &c->lanes[c->n_lanes];
    *l = (struct lane){.ops = ws_device_by_kind(WS_CUDA), .device = device};
    l->has_kernels = l->ops->has_kernels(device, &why) == 0;
    if (!l->has_kernels)
        no_kernels(c, l, why.text);
    int rc = l->ops->queue_new(device, &l->gathers, err);
    if (rc == 0)
        rc = l->ops->queue_new(device, &l->copies, err);
    if (rc == 0)
        rc = open_rounds(c, l, err);
    if (rc < 0) {
        close_lane(l);
        return rc;
    }
    c->n_lanes++;
    *out = l;
    return 0;
}

static int zero_counters(struct ws_d2h *c, struct lane *l, struct ws_error *err)
{
    int rc = 0;
    if (!l->has_kernels)
        return 0;
    if (l->n_counters < c->n_sources) {
        l->ops->release(l->device, l->counters);
        l->counters = NULL;
        l->n_counters = 0;
        rc = l->ops->alloc(l->device, c->n_sources * sizeof(uint64_t), (void **)&l->counters, err);
        l->n_counters = rc == 0 ? c->n_sources : 0;
    }
    return rc == 0 ? l->ops->fill(l->gathers, l->counters, 0, c->n_sources * sizeof(uint64_t), err) : rc;
}

int ws_d2h_begin(struct ws_d2h *c, size_t n_sources, struct ws_error *err)
{
    int rc = 0;
    c->n_sources = n_sources;
    c->direct = c->gathered = c->raw = 0;
    c->counts = false;
    for (unsigned i = 0; rc == 0 && i < c->n_lanes; i++)
        rc = zero_counters(c, &c->lanes[i], err);
    return rc;
}

int ws_d2h_follow_stream(struct ws_d2h *c, int device, void *stream, struct ws_error *err)
{
    struct lane *l = find_lane(c, device);
    int rc = 0;
    if (!l) {
        rc = open_lane(c, device, &l, err);
        if (rc == 0)
            rc = zero_counters(c, l, err);
    }
    if (rc == 0)
        rc = l->ops->follow(l->gathers, stream, err);
    return rc == 0 ? l->ops->follow(l->copies, stream, err) : rc;
}

bool ws_d2h_has_kernels(const struct ws_d2h *c, int device)
{
    const struct lane *l = find_lane(c, device);
    return l && l->has_kernels;
}

/* --- a round --- */

void ws_d2h_begin_round(struct ws_d2h *c, unsigned round)
{
    c->now = round % WS_D2H_ROUNDS;
    for (unsigned i = 0; i < c->n_lanes; i++) {
        struct round *r = &c->lanes[i].rounds[c->now];
        ws_gather_clear(&r->items);
        r->n_staged = r->n_bounced = r->afters.len = 0;
        r->used = false;
    }
}

static struct round *round_of(const struct ws_d2h *c, int device, struct lane **l)
{
    *l = find_lane(c, device);
    assert(*l);
    struct round *r = &(*l)->rounds[c->now];
    r->used = true;
    return r;
}

void ws_d2h_use_device(struct ws_d2h *c, int device)
{
    struct lane *l;
    (void)round_of(c, device, &l);
}

int ws_d2h_copy_direct(struct ws_d2h *c, int device, const struct ws_box_extents *r, const void *src,
                       uint64_t from, uint64_t bytes, unsigned char *dst, struct ws_error *err)
{
    struct lane *l;
    struct ws_box_cursor cursor;
    (void)round_of(c, device, &l);
    ws_box_cursor_seek(&cursor, r, src, from, bytes);
    c->direct += bytes;
    return ws_copies_cursor(l->copies, &cursor, dst, err);
}

/* Alike in its low bits to where it goes, so that the kernel's words and the copies are aligned on both
 * sides; what is small stands close together. More than ws_d2h_staging_bytes for a span is never taken. */
static unsigned char *allocate_staging(unsigned char *buffer, uint64_t *used, const void *to, uint64_t bytes)
{
    const uint64_t line = bytes < SMALL ? SMALL_LINE : LINE;
    uint64_t at = ((*used + line - 1) & ~(line - 1)) + ((uintptr_t)to & (line - 1));
    assert(at + bytes <= WS_D2H_STAGING_BYTES);
    *used = at + bytes;
    return buffer + at;
}

uint64_t ws_d2h_staging_bytes(uint64_t bytes)
{
    return bytes + 2 * (bytes < SMALL ? SMALL_LINE : LINE);
}

unsigned char *ws_d2h_stage(struct ws_d2h *c, int device, unsigned char *to, uint64_t bytes)
{
    struct lane *l;
    struct round *r = round_of(c, device, &l);
    unsigned char *staged = allocate_staging(r->staged, &r->n_staged, to, bytes);
    return afters_append(&r->afters, (struct after){to, staged, bytes}) == 0 ? staged : NULL;
}

/* Bounced bytes are packed on the device as on the host, so that one copy brings all of a round. */
unsigned char *ws_d2h_bounce(struct ws_d2h *c, int device, uint64_t bytes, const unsigned char **at)
{
    struct lane *l;
    struct round *r = round_of(c, device, &l);
    unsigned char *staged = allocate_staging(r->staged, &r->n_staged, NULL, bytes),
                  *to = allocate_staging(r->bounce, &r->n_bounced, NULL, bytes);
    struct after *last = r->afters.len ? &r->afters.ptr[r->afters.len - 1] : NULL;
    *at = to;
    if (last && to >= last->to && (uint64_t)(to - last->to) == (uint64_t)(staged - last->staged) &&
        last->to >= r->bounce && last->to < r->bounce + WS_D2H_STAGING_BYTES) {
        last->bytes = (uint64_t)(to - last->to) + bytes;
        return staged;
    }
    return afters_append(&r->afters, (struct after){to, staged, bytes}) == 0 ? staged : NULL;
}

static int gather(struct ws_d2h *c, struct round *round, const struct ws_box_extents *r, const void *src,
                  uint64_t from, uint64_t bytes, unsigned char *dst, enum ws_gather_form form, size_t source,
                  struct ws_error *err)
{
    assert(source < c->n_sources);
    c->counts = true;
    return ws_gather_add(&round->items, r, src, from, bytes, dst, form, (uint32_t)source, err);
}

int ws_d2h_gather(struct ws_d2h *c, int device, const struct ws_box_extents *r, const void *src,
                  uint64_t from, uint64_t bytes, unsigned char *dst, enum ws_gather_form form, size_t source,
                  struct ws_error *err)
{
    struct lane *l;
    struct round *round = round_of(c, device, &l);
    if (!dst)
        return ws_error_set(err, ENOMEM, "no memory for copies from a GPU");
    c->gathered += bytes;
    return gather(c, round, r, src, from, bytes, dst, form, source, err);
}

int ws_d2h_copy_on_device(struct ws_d2h *c, int device, const struct ws_box_extents *r, const void *src,
                          uint64_t from, uint64_t bytes, unsigned char *dst, size_t source,
                          struct ws_error *err)
{
    struct lane *l;
    struct ws_box_cursor cursor;
    struct round *round = round_of(c, device, &l);
    const bool plain = r->conversion == WS_SAME_TYPE && r->n_loops == 0 && bytes >= LONG_WITHIN;
    if (l->has_kernels && !plain && ws_gather_supports(r, src, from, bytes, dst, WS_GATHER_PLACED))
        return gather(c, round, r, src, from, bytes, dst, WS_GATHER_PLACED, source, err);
    assert(r->conversion == WS_SAME_TYPE);
    ws_box_cursor_seek(&cursor, r, src, from, bytes);
    return ws_copies_cursor(l->copies, &cursor, dst, err);
}

int ws_d2h_copy_raw(struct ws_d2h *c, int device, const struct ws_box_extents *raw, const void *src,
                    uint64_t from, uint64_t bytes, const unsigned char **at, struct ws_error *err)
{
    struct lane *l;
    struct ws_box_cursor cursor;
    struct round *r = round_of(c, device, &l);
    unsigned char *to = allocate_staging(r->bounce, &r->n_bounced, NULL, bytes);
    ws_box_cursor_seek(&cursor, raw, src, from, bytes);
    c->raw += bytes;
    *at = to;
    return ws_copies_cursor(l->copies, &cursor, to - from, err);
}

/* --- sending --- */

static int make_items_room(struct lane *l, struct round *r, size_t bytes, struct ws_error *err)
{
    size_t room = r->items_bytes ? r->items_bytes : 256UL << 10;
    if (bytes <= r->items_bytes)
        return 0;
    while (room < bytes)
        room *= 2;
    l->ops->release(l->device, r->items_device);
    l->ops->release_pinned(l->device, r->items_pinned);
    r->items_device = r->items_pinned = NULL;
    r->items_bytes = 0;
    int rc = l->ops->alloc(l->device, room, &r->items_device, err);
    if (rc == 0)
        rc = l->ops->alloc_pinned(l->device, room, &r->items_pinned, err);
    r->items_bytes = rc == 0 ? room : 0;
    return rc;
}

static int launch(struct lane *l, struct round *r, struct ws_error *err)
{
    const struct ws_gather *g = &r->items;
    size_t items = g->items.len * sizeof(g->items.ptr[0]),
           units = (g->items.len + 1) * sizeof(g->units.ptr[0]);
    int rc = make_items_room(l, r, items + units, err);
    if (rc < 0)
        return rc;
    memcpy(r->items_pinned, g->items.ptr, items);
    memcpy((char *)r->items_pinned + items, g->units.ptr, units);
    struct ws_gather_args args = {.items = r->items_device,
                                  .units = (void *)((char *)r->items_device + items),
                                  .overflows = l->counters,
                                  .n = g->items.len};
    rc = l->ops->copy(l->gathers, r->items_device, r->items_pinned, items + units, err);
    if (rc == 0)
        rc = ws_gather_launch(l->gathers, &args, g->units.ptr[g->items.len], err);
    if (rc == 0)
        rc = l->ops->record(l->gathers, r->gathered, err);
    return rc == 0 ? l->ops->follow_event(l->copies, r->gathered, err) : rc;
}

int ws_d2h_send(struct ws_d2h *c, struct ws_error *err)
{
    int rc = 0;
    for (unsigned i = 0; rc == 0 && i < c->n_lanes; i++) {
        struct lane *l = &c->lanes[i];
        struct round *r = &l->rounds[c->now];
        if (r->items.items.len > 0)
            rc = launch(l, r, err);
        for (size_t k = 0; rc == 0 && k < r->afters.len; k++)
            rc = l->ops->copy(l->copies, r->afters.ptr[k].to, r->afters.ptr[k].staged, r->afters.ptr[k].bytes,
                              err);
        if (rc == 0 && r->used)
            rc = l->ops->record(l->copies, r->done, err);
    }
    return rc;
}

int ws_d2h_wait(struct ws_d2h *c, unsigned round, struct ws_error *err)
{
    int rc = 0;
    for (unsigned i = 0; rc == 0 && i < c->n_lanes; i++) {
        struct round *r = &c->lanes[i].rounds[round % WS_D2H_ROUNDS];
        if (r->used)
            rc = c->lanes[i].ops->event_wait(r->done, err);
    }
    return rc;
}

int ws_d2h_queue_after(struct ws_d2h *c, unsigned round, struct ws_device_queue *q, struct ws_error *err)
{
    struct lane *l = find_lane(c, q->device);
    const struct round *r = l ? &l->rounds[round % WS_D2H_ROUNDS] : NULL;
    return r && r->used ? q->ops->follow_event(q, r->done, err) : 0;
}

int ws_d2h_end(struct ws_d2h *c, _Atomic uint64_t *overflows, size_t n, struct ws_error *err)
{
    int rc = 0;
    uint64_t *counts = c->counts ? calloc(c->n_sources + 1, sizeof(*counts)) : NULL;
    if (c->counts && !counts)
        return ws_error_set(err, ENOMEM, "no memory for counts of overflows");
    for (unsigned i = 0; rc == 0 && c->counts && i < c->n_lanes; i++) {
        struct lane *l = &c->lanes[i];
        if (!l->has_kernels)
            continue;
        rc = l->ops->copy(l->gathers, counts, l->counters, c->n_sources * sizeof(*counts), err);
        if (rc == 0)
            rc = l->ops->finish(l->gathers, err);
        for (size_t k = 0; rc == 0 && k < n && k < c->n_sources; k++)
            if (counts[k] > 0)
                atomic_fetch_add_explicit(&overflows[k], counts[k], memory_order_relaxed);
    }
    free(counts);
    return rc;
}

void ws_d2h_stop(struct ws_d2h *c)
{
    for (unsigned i = 0; i < c->n_lanes; i++) {
        (void)c->lanes[i].ops->finish(c->lanes[i].gathers, NULL);
        (void)c->lanes[i].ops->finish(c->lanes[i].copies, NULL);
    }
}

void ws_d2h_describe(const struct ws_d2h *c, char *out, size_t bytes)
{
    const struct {
        const char *how;
        uint64_t n;
    } ways[] = {
        {"direct", c->direct}, {"gathered by a kernel", c->gathered}, {"raw, by way of the CPU", c->raw}};
    size_t at = 0;
    out[0] = 0;
    for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]) && at < bytes; i++)
        if (ways[i].n > 0)
            at += (size_t)snprintf(out + at, bytes - at, "%s%.1f MB %s", at ? ", " : "",
                                   (double)ways[i].n / 1e6, ways[i].how);
    if (c->why[0] && at < bytes)
        snprintf(out + at, bytes - at, "; no kernels: %s", c->why);
}

void ws_d2h_free(struct ws_d2h *c)
{
    if (!c)
        return;
    for (unsigned i = 0; i < c->n_lanes; i++)
        close_lane(&c->lanes[i]);
    free(c);
}
