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
    struct ws_diff diff;
    struct block blocks[WS_COMPARER_BLOCKS];
    unsigned n;
    struct ws_diff_found found;
    struct ws_event *listed, *compared, *packed, *hashed, *brought;
};

struct ws_comparer {
    const struct ws_device_ops *ops;
    int device;
    unsigned most;
    uint32_t room;
    struct ws_queue *compares, *hashes, *brings;
    struct round rounds[WS_COMPARER_ROUNDS], *now;
    uint64_t device_bytes, came, whole;
};

/* --- its memory --- */

static void free_pair(struct ws_comparer *c, struct pair *p)
{
    c->ops->release(c->device, p->device);
    c->ops->release_pinned(c->device, p->host);
    *p = (struct pair){0};
}

static int grow_pair(struct ws_comparer *c, struct pair *p, size_t bytes, struct ws_error *err)
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

static int take_device(struct ws_comparer *c, void **out, size_t bytes, struct ws_error *err)
{
    c->device_bytes += bytes;
    return c->ops->alloc(c->device, bytes, out, err);
}

static int open_round(struct ws_comparer *c, struct round *r, struct ws_error *err)
{
    const size_t parts = WS_BLOCK_BYTES / WS_HASH_PART, numbers = c->room * sizeof(uint32_t);
    struct ws_event **events[] = {&r->listed, &r->compared, &r->packed, &r->hashed, &r->brought};
    int rc = take_device(c, (void **)&r->staged, c->most * WS_BLOCK_BYTES, err);
    if (rc == 0)
        rc = take_device(c, (void **)&r->at, numbers, err);
    if (rc == 0)
        rc = take_device(c, (void **)&r->changes, numbers, err);
    if (rc == 0)
        rc = take_device(c, (void **)&r->sums, c->most * parts * 8 * sizeof(uint64_t), err);
    if (rc == 0)
        rc = take_device(c, (void **)&r->lanes, c->most * 8 * sizeof(uint64_t), err);
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

static void close_round(struct ws_comparer *c, struct round *r)
{
    void *const device[] = {r->staged, r->at, r->changes, r->sums, r->lanes};
    void *const pinned[] = {r->at_host, r->changes_host, r->lanes_host};
    struct ws_event *const events[] = {r->listed, r->compared, r->packed, r->hashed, r->brought};
    for (size_t i = 0; i < sizeof(device) / sizeof(device[0]); i++)
        c->ops->release(c->device, device[i]);
    for (size_t i = 0; i < sizeof(pinned) / sizeof(pinned[0]); i++)
        c->ops->release_pinned(c->device, pinned[i]);
    for (size_t i = 0; i < sizeof(events) / sizeof(events[0]); i++)
        if (events[i])
            c->ops->event_free(events[i]);
    free_pair(c, &r->lists);
    free_pair(c, &r->counts);
    ws_diff_free(&r->diff);
}

int ws_comparer_new(struct ws_comparer **out, int device, unsigned blocks, struct ws_error *err)
{
    struct ws_comparer *c = calloc(1, sizeof(*c));
    if (!c)
        return ws_error_set(err, ENOMEM, "no memory for comparing on a GPU");
    c->ops = ws_device_of_kind(WS_CUDA);
    c->device = device;
    c->most = blocks < WS_COMPARER_BLOCKS ? blocks : WS_COMPARER_BLOCKS;
    c->room = c->most * ROOM_A_BLOCK;
    struct ws_queue **queues[] = {&c->compares, &c->hashes, &c->brings};
    int rc = c->ops->has_kernels(device, err);
    for (size_t i = 0; rc == 0 && i < sizeof(queues) / sizeof(queues[0]); i++)
        rc = c->ops->queue_new(device, queues[i], err);
    for (size_t i = 0; rc == 0 && i < WS_COMPARER_ROUNDS; i++) {
        ws_diff_init(&c->rounds[i].diff);
        rc = open_round(c, &c->rounds[i], err);
    }
    if (rc < 0)
        ws_comparer_free(c);
    else
        *out = c;
    return rc;
}

void ws_comparer_free(struct ws_comparer *c)
{
    if (!c)
        return;
    struct ws_queue *const queues[] = {c->compares, c->hashes, c->brings};
    for (size_t i = 0; i < sizeof(queues) / sizeof(queues[0]); i++)
        if (queues[i])
            c->ops->queue_free(queues[i]);
    for (size_t i = 0; i < WS_COMPARER_ROUNDS; i++)
        close_round(c, &c->rounds[i]);
    free(c);
}

uint64_t ws_comparer_bytes(const struct ws_comparer *c)
{
    return c->device_bytes;
}

/* --- a round --- */

static struct round *round_of(const struct ws_comparer *c, unsigned round)
{
    return (struct round *)(uintptr_t)&c->rounds[round % WS_COMPARER_ROUNDS];
}

void ws_comparer_round(struct ws_comparer *c, unsigned round)
{
    c->now = round_of(c, round);
    ws_diff_clear(&c->now->diff);
    c->now->n = 0;
}

bool ws_comparer_full(const struct ws_comparer *c)
{
    return c->now->n == c->most;
}

int ws_comparer_add(struct ws_comparer *c, unsigned char *kept, uint32_t len, bool compare,
                    const struct ws_widths *w, uint64_t offset, unsigned char **bytes, struct ws_error *err)
{
    struct round *r = c->now;
    assert(!ws_comparer_full(c) && ws_block_hash_takes(len));
    struct block *b = &r->blocks[r->n];
    *b = (struct block){.bytes = kept, .len = len, .compared = NOT_COMPARED};
    if (compare || !kept)
        b->bytes = r->staged + r->n * WS_BLOCK_BYTES;
    if (compare) {
        b->compared = r->diff.n_blocks;
        int rc = ws_diff_add(&r->diff, b->bytes, kept, len, w, offset, err);
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
static int make_lists(struct ws_comparer *c, struct round *r, struct sent *s, struct ws_error *err)
{
    const struct ws_diff *d = &r->diff;
    struct ws_hash_block hashes[WS_COMPARER_BLOCKS];
    size_t lists = 0, counts = 0;
    for (unsigned i = 0; i < r->n; i++)
        hashes[i] = (struct ws_hash_block){.bytes = r->blocks[i].bytes, .len = r->blocks[i].len};
    *s = (struct sent){.hash = {.sums = r->sums, .lanes = r->lanes, .n_blocks = r->n}};
    s->hash.n_parts = ws_block_hash_number(hashes, r->n);
    s->n_tiles = d->n_blocks ? d->tiles[d->n_parts] : 0;
    const struct {
        const void *from;
        size_t bytes;
    } all[] = {{hashes, r->n * sizeof(hashes[0])},
               {d->blocks, d->n_blocks * sizeof(d->blocks[0])},
               {d->parts, d->n_parts * sizeof(d->parts[0])},
               {d->tiles, d->n_blocks ? (d->n_parts + 1) * sizeof(d->tiles[0]) : 0}};
    size_t at[sizeof(all) / sizeof(all[0])];
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        at[i] = place(&lists, all[i].bytes);
    const size_t parts = place(&counts, d->n_parts * sizeof(uint32_t)),
                 blocks = place(&counts, d->n_blocks * sizeof(uint32_t));
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
                                    .parts = (void *)(r->lists.device + at[2]),
                                    .tiles = (void *)(r->lists.device + at[3]),
                                    .tile_changed = (void *)(r->counts.device + tiles),
                                    .part_changed = (void *)(r->counts.device + parts),
                                    .block_changed = (void *)(r->counts.device + blocks),
                                    .at = r->at,
                                    .changes = r->changes,
                                    .room = c->room,
                                    .n_parts = d->n_parts};
    r->found = (struct ws_diff_found){.part_changed = (void *)(r->counts.host + parts),
                                      .block_changed = (void *)(r->counts.host + blocks),
                                      .at = r->at_host,
                                      .changes = r->changes_host,
                                      .room = c->room};
    return 0;
}

static int hash(struct ws_comparer *c, struct round *r, struct sent *s, struct ws_error *err)
{
    const size_t bytes = r->n * 8 * sizeof(uint64_t);
    int rc = c->ops->follow_event(c->hashes, r->listed, err);
    if (rc == 0)
        rc = ws_block_hash_launch(c->hashes, &s->hash, err);
    if (rc == 0)
        rc = c->ops->copy(c->hashes, r->lanes_host, r->lanes, bytes, err);
    c->came += bytes;
    return rc == 0 ? c->ops->record(c->hashes, r->hashed, err) : rc;
}

static int compare(struct ws_comparer *c, struct round *r, const struct sent *s, struct ws_error *err)
{
    struct ws_queue *q = c->compares;
    if (r->diff.n_blocks == 0)
        return 0;
    int rc = c->ops->fill(q, r->counts.device, 0, s->count_bytes, err);
    if (rc == 0)
        rc = ws_diff_launch(q, WS_KERNEL_DIFF_COUNT, &s->diff, s->n_tiles, err);
    if (rc == 0)
        rc = c->ops->copy(q, r->counts.host, r->counts.device, s->count_bytes, err);
    if (rc == 0)
        rc = c->ops->record(q, r->compared, err);
    c->came += s->count_bytes;
    return rc == 0 ? ws_diff_launch(q, WS_KERNEL_DIFF_PACK, &s->diff, s->n_tiles, err) : rc;
}

int ws_comparer_send(struct ws_comparer *c, struct ws_carrier *carrier, unsigned round, struct ws_error *err)
{
    struct round *r = c->now;
    struct sent s;
    assert(r == round_of(c, round) && r->n > 0);
    int rc = make_lists(c, r, &s, err);
    if (rc == 0)
        rc = ws_carrier_precede(carrier, round, c->compares, err);
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

int ws_comparer_count(struct ws_comparer *c, unsigned round, struct ws_error *err)
{
    const struct round *r = round_of(c, round);
    return r->diff.n_blocks ? c->ops->event_wait(r->compared, err) : 0;
}

bool ws_comparer_packs(const struct ws_comparer *c, unsigned round, unsigned block)
{
    const struct round *r = round_of(c, round);
    return r->blocks[block].compared != NOT_COMPARED &&
           ws_diff_is_packed(&r->diff, &r->found, r->blocks[block].compared);
}

static int copy_whole(struct ws_comparer *c, struct round *r, unsigned block, unsigned char *dst,
                      struct ws_error *err)
{
    const struct block *b = &r->blocks[block];
    assert(block < r->n);
    c->came += b->len;
    c->whole += b->len;
    return c->ops->copy(c->brings, dst, b->bytes, b->len, err);
}

int ws_comparer_whole(struct ws_comparer *c, unsigned round, unsigned block, unsigned char *dst,
                      struct ws_error *err)
{
    struct round *r = round_of(c, round);
    int rc = c->ops->follow_event(c->brings, r->packed, err);
    return rc == 0 ? copy_whole(c, r, block, dst, err) : rc;
}

int ws_comparer_bring(struct ws_comparer *c, unsigned round, struct ws_error *err)
{
    struct round *r = round_of(c, round);
    const size_t bytes = r->diff.n_blocks ? ws_diff_packed(&r->diff, &r->found) * sizeof(uint32_t) : 0;
    int rc = c->ops->follow_event(c->brings, r->packed, err);
    if (rc == 0 && bytes > 0)
        rc = c->ops->copy(c->brings, r->at_host, r->at, bytes, err);
    if (rc == 0 && bytes > 0)
        rc = c->ops->copy(c->brings, r->changes_host, r->changes, bytes, err);
    c->came += 2 * bytes;
    return rc == 0 ? c->ops->record(c->brings, r->brought, err) : rc;
}

int ws_comparer_wait(struct ws_comparer *c, unsigned round, struct ws_error *err)
{
    struct round *r = round_of(c, round);
    int rc = c->ops->event_wait(r->brought, err);
    return rc == 0 ? c->ops->event_wait(r->hashed, err) : rc;
}

uint64_t ws_comparer_hash(const struct ws_comparer *c, unsigned round, unsigned block)
{
    const struct round *r = round_of(c, round);
    return ws_block_hash_of(r->lanes_host + 8 * (size_t)block, r->blocks[block].len);
}

int ws_comparer_encode(const struct ws_comparer *c, unsigned round, unsigned block, unsigned char *out,
                       size_t *out_bytes, uint32_t *n_changed, struct ws_error *err)
{
    const struct round *r = round_of(c, round);
    return ws_diff_encode(&r->diff, &r->found, r->blocks[block].compared, out, out_bytes, n_changed, err);
}

int ws_comparer_again(struct ws_comparer *c, unsigned round, unsigned block, unsigned char *dst,
                      struct ws_error *err)
{
    int rc = copy_whole(c, round_of(c, round), block, dst, err);
    return rc == 0 ? c->ops->finish(c->brings, err) : rc;
}

void ws_comparer_stop(struct ws_comparer *c)
{
    (void)c->ops->finish(c->compares, NULL);
    (void)c->ops->finish(c->hashes, NULL);
    (void)c->ops->finish(c->brings, NULL);
}

void ws_comparer_figures(struct ws_comparer *c, uint64_t *bytes, uint64_t *whole)
{
    *bytes = c->came;
    *whole = c->whole;
    c->came = c->whole = 0;
}
