/* Using a map is a search for the first segment of a range, and a walk. */
#include "transports/format/node_part_segments.h"
#include "transports/format/subset.h"
#include "transports/simd/copy.h"
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

size_t ws_node_part_map_n_files(const struct ws_node_part_map *m)
{
    return m->whole->n_files;
}

const struct ws_node_part_file *ws_node_part_map_file(const struct ws_node_part_map *m, size_t i)
{
    return &m->whole->files[i];
}

struct ws_node_part_map *ws_node_part_map_get(struct ws_node_part_map *m)
{
    unsigned before = atomic_fetch_add_explicit(&m->refs, 1, memory_order_relaxed);
    assert(before > 0);
    return m;
}

void ws_node_part_map_put(struct ws_node_part_map *m)
{
    if (!m || atomic_fetch_sub_explicit(&m->refs, 1, memory_order_acq_rel) != 1)
        return;
    for (size_t k = 0; m->segments && k < m->n_parts; k++) {
        for (size_t i = 0; m->segments[k] && i < m->n_files[k]; i++) {
            for (size_t j = 0; j < m->segments[k][i].len; j++) {
                free(m->segments[k][i].ptr[j].box);
                free(m->segments[k][i].ptr[j].own);
            }
            ws_node_part_segments_reset(&m->segments[k][i]);
        }
        free(m->segments[k]);
    }
    free(m->segments);
    free(m->n_files);
    ws_node_part_free(m->whole);
    ws_subset_free(m->subset);
    free(m);
}

int ws_node_part_map_manifest(const struct ws_node_part_map *m, const char *model,
                              const struct ws_manifest *const *parts, struct ws_manifest **out,
                              struct ws_error *err)
{
    int rc = ws_manifest_new(out, model, parts[0]->version, parts[0]->lineage, err);
    for (size_t i = 0; rc == 0 && i < ws_node_part_map_n_files(m); i++) {
        const struct ws_node_part_file *f = ws_node_part_map_file(m, i);
        struct ws_manifest_file *ignored;
        rc = ws_manifest_add(*out, f->name, f->size_bytes, f->header_bytes, &ignored, err);
        if (rc == 0)
            (*out)->total_bytes += f->size_bytes;
    }
    for (size_t k = 0; rc == 0 && k < m->n_parts; k++) {
        for (size_t i = 0; rc == 0 && i < parts[k]->n_frozen; i++)
            rc = ws_subset_has_tensor(m, parts[k]->frozen[i])
                     ? ws_manifest_freeze(*out, parts[k]->frozen[i], err)
                     : 0;
        if (rc == 0 && parts[k]->created_ns > (*out)->created_ns)
            (*out)->created_ns = parts[k]->created_ns;
    }
    if (rc < 0) {
        ws_manifest_free(*out);
        *out = NULL;
    }
    return rc;
}

/* --- ranges --- */

static const struct ws_node_part_segments *list_of(const struct ws_node_part_map *m,
                                                   const struct ws_node_part_range *r)
{
    assert(r->part < m->n_parts && r->file < m->n_files[r->part]);
    return &m->segments[r->part][r->file];
}

/* The segment that has a byte. */
static size_t segment_at(const struct ws_node_part_segments *list, uint64_t at)
{
    size_t low = 0, high = list->len;
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (list->ptr[middle].at <= at)
            low = middle;
        else
            high = middle;
    }
    return low;
}

struct walk {
    const struct ws_node_part_segments *list;
    size_t next;
    uint64_t at, end;
};

static struct walk walk_init(const struct ws_node_part_map *m, const struct ws_node_part_range *r)
{
    const struct ws_node_part_segments *list = list_of(m, r);
    return (struct walk){.list = list, .next = segment_at(list, r->at), .at = r->at, .end = r->at + r->n};
}

/* The next segment and its bytes in the range; NULL: that was the last. */
static const struct ws_node_part_segment *walk_on(struct walk *w, uint64_t *at, uint64_t *n)
{
    if (w->at >= w->end)
        return NULL;
    assert(w->next < w->list->len);
    const struct ws_node_part_segment *s = &w->list->ptr[w->next++];
    const uint64_t end = s->at + s->n < w->end ? s->at + s->n : w->end;
    *at = w->at;
    *n = end - w->at;
    w->at = end;
    return s;
}

typedef void on_run(void *arg, size_t file, uint64_t to, uint64_t at, uint64_t n);

/* The runs of a segment that is in a file of the whole. */
static void each_run(const struct ws_node_part_segment *s, uint64_t at, uint64_t n, on_run *run, void *arg)
{
    struct ws_box_cursor c;
    uint64_t ready;
    if (!s->box) {
        run(arg, s->file, s->to + (at - s->at), at, n);
        return;
    }
    ws_box_cursor_seek(&c, s->box, s->box, at - s->at, n); /* what it is packed in is not looked at */
    while ((ready = ws_box_cursor_ready(&c)) > 0) {
        run(arg, s->file, s->to + c.dst + c.at, at, ready);
        at += ready;
        ws_box_cursor_skip(&c, ready);
    }
}

void ws_node_part_map_each(const struct ws_node_part_map *m, const struct ws_node_part_range *range,
                           void (*run)(void *arg, size_t file, uint64_t to, uint64_t at, uint64_t n),
                           void *arg)
{
    struct walk w = walk_init(m, range);
    const struct ws_node_part_segment *s;
    uint64_t at, n;
    while ((s = walk_on(&w, &at, &n)))
        if (!s->own && !s->left_out)
            each_run(s, at, n, run, arg);
}

struct scattering {
    const struct ws_node_part_target *target;
    const unsigned char *src;
    uint64_t begin; /* of the range */
};

#define STREAM_BYTES 1024         /* longer runs do not go through the cache */
#define PIECE_BYTES  (16UL << 10) /* of a run, which stay in the cache while they are looked at once more */

/* Pieces end at multiples of PIECE_BYTES in the file. */
static void scatter_run(void *arg, size_t file, uint64_t to, uint64_t at, uint64_t n)
{
    const struct scattering *c = arg;
    const struct ws_node_part_target *t = c->target;
    const unsigned char *src = c->src + (at - c->begin);
    while (n > 0) {
        const uint64_t room = PIECE_BYTES - to % PIECE_BYTES, here = n < room || !t->stored ? n : room;
        if (t->stored) /* it reads them into the cache */
            t->stored(t->arg, file, to, src, here);
        if (here >= STREAM_BYTES)
            ws_copy_unordered(t->files[file] + to, src, here);
        else
            memcpy(t->files[file] + to, src, here);
        to += here;
        src += here;
        n -= here;
    }
}

struct storing {
    const struct ws_node_part_store *store;
    const unsigned char *src;
    uint64_t begin; /* of the range */
};

static void store_run(void *arg, size_t file, uint64_t to, uint64_t at, uint64_t n)
{
    const struct storing *c = arg;
    c->store->run(c->store->arg, file, to, c->src + (at - c->begin), n);
}

struct gathering {
    unsigned char *const *files;
    unsigned char *dst;
    uint64_t begin; /* of the range */
};

static void gather_run(void *arg, size_t file, uint64_t to, uint64_t at, uint64_t n)
{
    const struct gathering *c = arg;
    memcpy(c->dst + (at - c->begin), c->files[file] + to, n);
}

void ws_node_part_map_scatter(const struct ws_node_part_map *m, const struct ws_node_part_range *range,
                              const unsigned char *src, const struct ws_node_part_target *target)
{
    struct scattering c = {.target = target, .src = src, .begin = range->at};
    ws_node_part_map_each(m, range, scatter_run, &c);
    ws_copy_order();
}

bool ws_node_part_map_store(const struct ws_node_part_map *m, const struct ws_node_part_range *range,
                            const unsigned char *src, const struct ws_node_part_store *store)
{
    struct storing c = {.store = store, .src = src, .begin = range->at};
    struct walk w = walk_init(m, range);
    const struct ws_node_part_segment *s;
    uint64_t at, n;
    bool fits = true;
    while ((s = walk_on(&w, &at, &n))) {
        const unsigned char *bytes = src + (at - range->at);
        assert(!s->left_out);
        if (!s->own) {
            each_run(s, at, n, store_run, &c);
            continue;
        }
        store->own(store->arg, bytes, n);
        fits = fits && memcmp(bytes, s->own + (at - s->at), n) == 0;
    }
    return fits;
}

void ws_node_part_map_gather(const struct ws_node_part_map *m, const struct ws_node_part_range *range,
                             unsigned char *dst, unsigned char *const *files)
{
    struct gathering c = {.files = files, .dst = dst, .begin = range->at};
    struct walk w = walk_init(m, range);
    const struct ws_node_part_segment *s;
    uint64_t at, n;
    ws_node_part_map_each(m, range, gather_run, &c);
    while ((s = walk_on(&w, &at, &n)))
        if (s->own)
            memcpy(dst + (at - range->at), s->own + (at - s->at), n);
}

bool ws_node_part_map_fits(const struct ws_node_part_map *m, const struct ws_node_part_range *range,
                           const unsigned char *src)
{
    struct walk w = walk_init(m, range);
    const struct ws_node_part_segment *s;
    uint64_t at, n;
    bool fits = true;
    while (fits && (s = walk_on(&w, &at, &n)))
        fits = !s->own || memcmp(src + (at - range->at), s->own + (at - s->at), n) == 0;
    return fits;
}

bool ws_node_part_map_find(const struct ws_node_part_map *m, unsigned part, size_t part_file, size_t *segment,
                           size_t file, uint64_t at, uint64_t n, struct ws_node_part_range *out)
{
    *out = (struct ws_node_part_range){.part = part, .file = part_file};
    const struct ws_node_part_segments *list = list_of(m, out);
    for (; *segment < list->len; (*segment)++) {
        const struct ws_node_part_segment *s = &list->ptr[*segment];
        if (s->own || s->left_out || s->file != file || s->to >= at + n)
            continue;
        const uint64_t skip = at > s->to ? at - s->to : 0, end = at + n - s->to;
        const uint64_t first = s->box ? ws_box_extents_before(s->box, skip) : skip;
        const uint64_t last = s->box ? ws_box_extents_before(s->box, end) : end;
        out->at = s->at + first;
        out->n = (last < s->n ? last : s->n) - (first < s->n ? first : s->n);
        if (out->n == 0)
            continue;
        (*segment)++;
        return true;
    }
    return false;
}
