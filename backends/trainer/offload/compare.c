#include "backends/trainer/offload/compare.h"
#include "transports/device/block_diff.h"
#include "transports/device/block_hash.h"
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define ROOM_A_BLOCK (1U << 18) /* changes, on average: an eighth of a block of 2-byte elements */
#define NOT_COMPARED UINT32_MAX
#define LINE         256UL

/* Memory on both sides of the link, as large as it was ever needed. */
struct pair {
    unsigned char *device, *host;
    size_t bytes;
};

struct block {
    unsigned char *bytes;   /* the new ones, on the device */
    uint32_t len, compared; /* compared: its number in the list, or NOT_COMPARED */
};

struct round {
    unsigned char *staged;
    uint32_t *at, *changes, *at_host, *changes_host;
    uint64_t *sums, *lanes, *lanes_host;
    struct pair lists, counts; /* counts: of parts, then of blocks; of tiles where the host does not look */
    struct ws_block_diff diff;
    struct block blocks[WS_COMPARE_BLOCKS];
    unsigned n;
    struct ws_block_diff_result found;
    struct ws_device_event *listed, *compared, *packed, *hashed, *fetched;
};

struct ws_compare {
    const struct ws_device_ops *ops;
    int device;
    unsigned most;
    uint32_t room;
    struct ws_device_queue *compares, *hashes, *fetches;
    struct round rounds[WS_COMPARE_ROUNDS], *now;
    uint64_t device_bytes, copied_bytes, whole_bytes;
};

/* --- its memory --- */

static void free_pair(struct ws_compare *c, struct pair *p)
{
    c->ops->release(c->device, p->device);
    c->ops->release_pinned(c->device, p->host);
    *p = (struct pair){0};
}

static int grow_pair(struct ws_compare *c, struct pair *p, size_t bytes, struct ws_error *err)
{
    size_t room = p->bytes ? p->bytes : 64UL << 10;
    if (bytes <= p->bytes)
        return 0;
    while (room < bytes)
        room *= 2;
    free_pair(c, p);
    int rc = c->ops->alloc(c->device, room, (void **)&p->device, err);
    if (rc == 0)
        rc = c->ops->alloc_pinned(c->device, room, (void **)&p->host, err);
    p->bytes = rc == 0 ? room : 0;
    return rc;
}

static int alloc_device(struct ws_compare *c, void **out, size_t bytes, struct ws_error *err)
{
    c->device_bytes += bytes;
    return c->ops->alloc(c->device, bytes, out, err);
}

static int open_round(struct ws_compare *c, struct round *r, struct ws_error *err)
{
    const size_t parts = WS_BLOCK_BYTES / WS_HASH_PART, numbers = c->room * sizeof(uint32_t);
    struct ws_device_event **events[] = {&r->listed, &r->compared, &r->packed, &r->hashed, &r->fetched};
    int rc = alloc_device(c, (void **)&r->staged, c->most * WS_BLOCK_BYTES, err);
    if (rc == 0)
        rc = alloc_device(c, (void **)&r->at, numbers, err);
    if (rc == 0)
        rc = alloc_device(c, (void **)&r->changes, numbers, err);
    if (rc == 0)
        rc = alloc_device(c, (void **)&r->sums, c->most * parts * 8 * sizeof(uint64_t), err);
    if (rc == 0)
        rc = alloc_device(c, (void **)&r->lanes, c->most * 8 * sizeof(uint64_t), err);
    if (rc == 0)
        rc = c->ops->alloc_pinned(c->device, numbers, (void **)&r->at_host, err);
    if (rc == 0)
        rc = c->ops->alloc_pinned(c->device, numbers, (void **)&r->changes_host, err);
    if (rc == 0)
        rc = c->ops->alloc_pinned(c->device, c->most * 8 * sizeof(uint64_t), (void **)&r->lanes_host, err);
    for (size_t i = 0; rc == 0 && i < sizeof(events) / sizeof(events[0]); i++)
        rc = c->ops->event_new(c->device, false, events[i], err);
    return rc;
}

static void close_round(struct ws_compare *c, struct round *r)
{
    void *const device[] = {r->staged, r->at, r->changes, r->sums, r->lanes};
    void *const pinned[] = {r->at_host, r->changes_host, r->lanes_host};
    struct ws_device_event *const events[] = {r->listed, r->compared, r->packed, r->hashed, r->fetched};
    for (size_t i = 0; i < sizeof(device) / sizeof(device[0]); i++)
        c->ops->release(c->device, device[i]);
    for (size_t i = 0; i < sizeof(pinned) / sizeof(pinned[0]); i++)
        c->ops->release_pinned(c->device, pinned[i]);
    for (size_t i = 0; i < sizeof(events) / sizeof(events[0]); i++)
        if (events[i])
            c->ops->event_free(events[i]);
    free_pair(c, &r->lists);
    free_pair(c, &r->counts);
    ws_block_diff_free(&r->diff);
}

int ws_compare_new(struct ws_compare **out, int device, unsigned blocks, struct ws_error *err)
{
    struct ws_compare *c = calloc(1, sizeof(*c));
    if (!c)
        return ws_error_set(err, ENOMEM, "no memory for comparing on a GPU");
    c->ops = ws_device_by_kind(WS_CUDA);
    c->device = device;
    c->most = blocks < WS_COMPARE_BLOCKS ? blocks : WS_COMPARE_BLOCKS;
    c->room = c->most * ROOM_A_BLOCK;
    struct ws_device_queue **queues[] = {&c->compares, &c->hashes, &c->fetches};
    int rc = c->ops->has_kernels(device, err);
    for (size_t i = 0; rc == 0 && i < sizeof(queues) / sizeof(queues[0]); i++)
        rc = c->ops->queue_new(device, queues[i], err);
    for (size_t i = 0; rc == 0 && i < WS_COMPARE_ROUNDS; i++) {
        ws_block_diff_init(&c->rounds[i].diff);
        rc = open_round(c, &c->rounds[i], err);
    }
    if (rc < 0)
        ws_compare_free(c);
    else
        *out = c;
    return rc;
}

void ws_compare_free(struct ws_compare *c)
{
    if (!c)
        return;
    struct ws_device_queue *const queues[] = {c->compares, c->hashes, c->fetches};
    for (size_t i = 0; i < sizeof(queues) / sizeof(queues[0]); i++)
        if (queues[i])
            c->ops->queue_free(queues[i]);
    for (size_t i = 0; i < WS_COMPARE_ROUNDS; i++)
        close_round(c, &c->rounds[i]);
    free(c);
}

uint64_t ws_compare_device_bytes(const struct ws_compare *c)
{
    return c->device_bytes;
}

/* --- a round --- */

static struct round *round_of(const struct ws_compare *c, unsigned round)
{
    return (struct round *)(uintptr_t)&c->rounds[round % WS_COMPARE_ROUNDS];
}

void ws_compare_begin_round(struct ws_compare *c, unsigned round)
{
    c->now = round_of(c, round);
    ws_block_diff_clear(&c->now->diff);
    c->now->n = 0;
}

bool ws_compare_is_full(const struct ws_compare *c)
{
    return c->now->n == c->most;
}

int ws_compare_add(struct ws_compare *c, unsigned char *shadow, uint32_t len, bool compare,
                   const struct ws_element_widths *w, uint64_t offset, unsigned char **bytes,
                   struct ws_error *err)
{
    struct round *r = c->now;
    assert(!ws_compare_is_full(c) && ws_block_hash_supports(len));
    struct block *b = &r->blocks[r->n];
    *b = (struct block){.bytes = shadow, .len = len, .compared = NOT_COMPARED};
    if (compare || !shadow)
        b->bytes = r->staged + r->n * WS_BLOCK_BYTES;
    if (compare) {
        b->compared = r->diff.blocks.len;
        int rc = ws_block_diff_add(&r->diff, b->bytes, shadow, len, w, offset, err);
        if (rc < 0)
            return rc;
    }
    r->n++;
    *bytes = b->bytes;
    return 0;
}

/* Lists lie one behind the other; returns where this one goes. */
static size_t place(size_t *end, size_t bytes)
{
    const size_t at = (*end + LINE - 1) / LINE * LINE;
    *end = at + bytes;
    return at;
}

struct sent {
    struct ws_diff_args diff;
    struct ws_hash_args hash;
    uint32_t n_tiles;
    size_t list_bytes, count_bytes; /* count_bytes: that the host looks at */
};

/* Puts the lists together, in the host's half of the memory, with addresses of the device's. */
static int make_lists(struct ws_compare *c, struct round *r, struct sent *s, struct ws_error *err)
{
    const struct ws_block_diff *d = &r->diff;
    struct ws_hash_block hashes[WS_COMPARE_BLOCKS];
    size_t lists = 0, counts = 0;
    for (unsigned i = 0; i < r->n; i++)
        hashes[i] = (struct ws_hash_block){.bytes = r->blocks[i].bytes, .len = r->blocks[i].len};
    *s = (struct sent){.hash = {.sums = r->sums, .lanes = r->lanes, .n_blocks = r->n}};
    s->hash.n_parts = ws_block_hash_number(hashes, r->n);
    s->n_tiles = d->blocks.len ? d->tiles.ptr[d->spans.len] : 0;
    const struct {
        const void *from;
        size_t bytes;
    } all[] = {{hashes, r->n * sizeof(hashes[0])},
               {d->blocks.ptr, d->blocks.len * sizeof(d->blocks.ptr[0])},
               {d->spans.ptr, d->spans.len * sizeof(d->spans.ptr[0])},
               {d->tiles.ptr, d->blocks.len ? (d->spans.len + 1) * sizeof(d->tiles.ptr[0]) : 0}};
    size_t at[sizeof(all) / sizeof(all[0])];
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        at[i] = place(&lists, all[i].bytes);
    const size_t parts = place(&counts, d->spans.len * sizeof(uint32_t)),
                 blocks = place(&counts, d->blocks.len * sizeof(uint32_t));
    s->count_bytes = counts;
    const size_t tiles = place(&counts, s->n_tiles * sizeof(uint32_t));
    int rc = grow_pair(c, &r->lists, lists, err);
    if (rc == 0)
        rc = grow_pair(c, &r->counts, counts, err);
    if (rc < 0)
        return rc;
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        if (all[i].bytes > 0)
            memcpy(r->lists.host + at[i], all[i].from, all[i].bytes);
    s->list_bytes = lists;
    s->hash.blocks = (void *)(r->lists.device + at[0]);
    s->diff = (struct ws_diff_args){.blocks = (void *)(r->lists.device + at[1]),
                                    .spans = (void *)(r->lists.device + at[2]),
                                    .tiles = (void *)(r->lists.device + at[3]),
                                    .tile_changed = (void *)(r->counts.device + tiles),
                                    .span_changed = (void *)(r->counts.device + parts),
                                    .block_changed = (void *)(r->counts.device + blocks),
                                    .at = r->at,
                                    .changes = r->changes,
                                    .room = c->room,
                                    .n_spans = d->spans.len};
    r->found = (struct ws_block_diff_result){.span_changed = (void *)(r->counts.host + parts),
                                             .block_changed = (void *)(r->counts.host + blocks),
                                             .at = r->at_host,
                                             .changes = r->changes_host,
                                             .room = c->room};
    return 0;
}

static int hash(struct ws_compare *c, struct round *r, struct sent *s, struct ws_error *err)
{
    const size_t bytes = r->n * 8 * sizeof(uint64_t);
    int rc = c->ops->follow_event(c->hashes, r->listed, err);
    if (rc == 0)
        rc = ws_block_hash_launch(c->hashes, &s->hash, err);
    if (rc == 0)
        rc = c->ops->copy(c->hashes, r->lanes_host, r->lanes, bytes, err);
    c->copied_bytes += bytes;
    return rc == 0 ? c->ops->record(c->hashes, r->hashed, err) : rc;
}

static int compare(struct ws_compare *c, struct round *r, const struct sent *s, struct ws_error *err)
{
    struct ws_device_queue *q = c->compares;
    if (r->diff.blocks.len == 0)
        return 0;
    int rc = c->ops->fill(q, r->counts.device, 0, s->count_bytes, err);
    if (rc == 0)
        rc = ws_block_diff_launch(q, WS_KERNEL_DIFF_COUNT, &s->diff, s->n_tiles, err);
    if (rc == 0)
        rc = c->ops->copy(q, r->counts.host, r->counts.device, s->count_bytes, err);
    if (rc == 0)
        rc = c->ops->record(q, r->compared, err);
    c->copied_bytes += s->count_bytes;
    return rc == 0 ? ws_block_diff_launch(q, WS_KERNEL_DIFF_PACK, &s->diff, s->n_tiles, err) : rc;
}

int ws_compare_send(struct ws_compare *c, struct ws_d2h *d2h, unsigned round, struct ws_error *err)
{
    struct round *r = c->now;
    struct sent s;
    assert(r == round_of(c, round) && r->n > 0);
    int rc = make_lists(c, r, &s, err);
    if (rc == 0)
        rc = ws_d2h_queue_after(d2h, round, c->compares, err);
    if (rc == 0)
        rc = c->ops->copy(c->compares, r->lists.device, r->lists.host, s.list_bytes, err);
    if (rc == 0)
        rc = c->ops->record(c->compares, r->listed, err);
    if (rc == 0)
        rc = hash(c, r, &s, err);
    if (rc == 0)
        rc = compare(c, r, &s, err);
    return rc == 0 ? c->ops->record(c->compares, r->packed, err) : rc;
}

int ws_compare_wait_counts(struct ws_compare *c, unsigned round, struct ws_error *err)
{
    const struct round *r = round_of(c, round);
    return r->diff.blocks.len ? c->ops->event_wait(r->compared, err) : 0;
}

bool ws_compare_can_encode(const struct ws_compare *c, unsigned round, unsigned block)
{
    const struct round *r = round_of(c, round);
    return r->blocks[block].compared != NOT_COMPARED &&
           ws_block_diff_is_packed(&r->diff, &r->found, r->blocks[block].compared);
}

static int copy_whole(struct ws_compare *c, struct round *r, unsigned block, unsigned char *dst,
                      struct ws_error *err)
{
    const struct block *b = &r->blocks[block];
    assert(block < r->n);
    c->copied_bytes += b->len;
    c->whole_bytes += b->len;
    return c->ops->copy(c->fetches, dst, b->bytes, b->len, err);
}

int ws_compare_copy_whole(struct ws_compare *c, unsigned round, unsigned block, unsigned char *dst,
                          struct ws_error *err)
{
    struct round *r = round_of(c, round);
    int rc = c->ops->follow_event(c->fetches, r->packed, err);
    return rc == 0 ? copy_whole(c, r, block, dst, err) : rc;
}

int ws_compare_copy_changes(struct ws_compare *c, unsigned round, struct ws_error *err)
{
    struct round *r = round_of(c, round);
    const size_t bytes =
        r->diff.blocks.len ? ws_block_diff_n_packed(&r->diff, &r->found) * sizeof(uint32_t) : 0;
    int rc = c->ops->follow_event(c->fetches, r->packed, err);
    if (rc == 0 && bytes > 0)
        rc = c->ops->copy(c->fetches, r->at_host, r->at, bytes, err);
    if (rc == 0 && bytes > 0)
        rc = c->ops->copy(c->fetches, r->changes_host, r->changes, bytes, err);
    c->copied_bytes += 2 * bytes;
    return rc == 0 ? c->ops->record(c->fetches, r->fetched, err) : rc;
}

int ws_compare_wait(struct ws_compare *c, unsigned round, struct ws_error *err)
{
    struct round *r = round_of(c, round);
    int rc = c->ops->event_wait(r->fetched, err);
    return rc == 0 ? c->ops->event_wait(r->hashed, err) : rc;
}

uint64_t ws_compare_hash(const struct ws_compare *c, unsigned round, unsigned block)
{
    const struct round *r = round_of(c, round);
    return ws_block_hash_finish(r->lanes_host + 8 * (size_t)block, r->blocks[block].len);
}

int ws_compare_encode(const struct ws_compare *c, unsigned round, unsigned block, unsigned char *out,
                      size_t *out_bytes, uint32_t *n_changed, struct ws_error *err)
{
    const struct round *r = round_of(c, round);
    return ws_block_diff_encode(&r->diff, &r->found, r->blocks[block].compared, out, out_bytes, n_changed,
                                err);
}

int ws_compare_copy_again(struct ws_compare *c, unsigned round, unsigned block, unsigned char *dst,
                          struct ws_error *err)
{
    int rc = copy_whole(c, round_of(c, round), block, dst, err);
    return rc == 0 ? c->ops->finish(c->fetches, err) : rc;
}

void ws_compare_stop(struct ws_compare *c)
{
    (void)c->ops->finish(c->compares, NULL);
    (void)c->ops->finish(c->hashes, NULL);
    (void)c->ops->finish(c->fetches, NULL);
}

void ws_compare_copied_bytes(struct ws_compare *c, uint64_t *bytes, uint64_t *whole)
{
    *bytes = c->copied_bytes;
    *whole = c->whole_bytes;
    c->copied_bytes = c->whole_bytes = 0;
}
