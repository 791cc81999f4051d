#include "fs/pull/block_table.h"
#include "fs/store/content.h"
#include "fs/store/parents.h"
#include "fs/store/part_view.h"
#include "fs/store/wants.h"
#include "transports/format/subset.h"
#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#define MANY_BLOCKS 1024 /* from here on stripes are of extents */

unsigned ws_block_stripe(size_t number, size_t n_blocks, unsigned n_stripes)
{
    return (unsigned)(number / (n_blocks < MANY_BLOCKS ? 1 : WS_EXTENT_BLOCKS) % n_stripes);
}

static unsigned stripe_of(const struct ws_block_table *t, size_t file, size_t block)
{
    return ws_block_stripe(t->first[file] + block, t->n_blocks, t->n_stripes);
}

/* Claims missing blocks of a stripe, from the first one in [first, end). */
static bool claim(struct ws_block_table *t, unsigned stripe, size_t file, size_t first, size_t end,
                  struct ws_extent *extent)
{
    assert(t->n_lanes > 0);
    struct ws_block *b = t->blocks[file];
    size_t most = (t->n_missing + 2 * t->n_lanes - 1) / (2 * t->n_lanes);

    if (most > WS_EXTENT_BLOCKS)
        most = WS_EXTENT_BLOCKS;
    while (first < end && (b[first].state != WS_BLOCK_MISSING || stripe_of(t, file, first) != stripe))
        first++;
    if (first >= end)
        return false;
    *extent = (struct ws_extent){.file = file, .first = first, .stripe = stripe};
    while (extent->n < most && first + extent->n < end && b[first + extent->n].state == WS_BLOCK_MISSING &&
           stripe_of(t, file, first + extent->n) == stripe)
        b[first + extent->n++].state = WS_BLOCK_TAKEN;
    t->n_missing -= extent->n;
    return true;
}

/* Blocks of a file that belong to the phase: [0, end). */
static size_t phase_end(const struct ws_block_table *t, const struct ws_block_cursor *at)
{
    const struct ws_manifest_file *f = &t->manifest->files[at->file];

    if (at->phase == SIDECARS)
        return f->header_bytes ? 0 : f->n_blocks;
    return at->phase == HEADERS ? ws_content_header_blocks(f) : f->n_blocks;
}

static bool claim_of_stripe(struct ws_block_table *t, unsigned stripe, struct ws_extent *extent)
{
    struct ws_block_cursor *at = &t->next[stripe];

    for (; at->phase != END; at->phase++, at->file = 0) {
        for (; at->file < t->manifest->n_files; at->file++, at->block = 0) {
            if (claim(t, stripe, at->file, at->block, phase_end(t, at), extent)) {
                at->block = extent->first + extent->n;
                return true;
            }
        }
    }
    return false;
}

bool ws_block_table_claim_next(struct ws_block_table *t, struct ws_extent *extent)
{
    const unsigned own = extent->stripe;

    for (unsigned k = 0; k < t->n_stripes; k++)
        if (claim_of_stripe(t, (own + k) % t->n_stripes, extent))
            return true;
    return false;
}

void ws_block_table_give_back(struct ws_block_table *t, const struct ws_extent *extent)
{
    for (size_t b = extent->first; b < extent->first + extent->n; b++) {
        if (t->blocks[extent->file][b].state == WS_BLOCK_TAKEN) {
            t->blocks[extent->file][b].state = WS_BLOCK_MISSING;
            t->n_missing++;
            t->next[extent->stripe] = (struct ws_block_cursor){0};
        }
    }
}

int ws_block_table_init(struct ws_block_table *t, struct ws_version *v)
{
    const struct ws_manifest *m = atomic_load(&v->manifest);
    size_t total = 0;

    *t = (struct ws_block_table){.version = v, .manifest = m};
    t->blocks = calloc(m->n_files ? m->n_files : 1, sizeof(*t->blocks));
    t->first = calloc(m->n_files ? m->n_files : 1, sizeof(*t->first));
    for (size_t i = 0; t->blocks && t->first && i < m->n_files; i++) {
        size_t n = m->files[i].n_blocks;
        t->first[i] = total;
        total += n;
        t->blocks[i] = calloc(n ? n : 1, sizeof(**t->blocks));
        if (!t->blocks[i])
            return -ENOMEM;
        for (size_t b = 0; b < n; b++) {
            const bool here = ws_content_has(t->version, i, b, 1) || !ws_version_wants(t->version, i, b);
            t->blocks[i][b].state = here ? WS_BLOCK_HERE : WS_BLOCK_MISSING;
            t->n_missing += !here;
        }
    }
    t->n_left = t->n_missing;
    t->n_blocks = total;
    pthread_mutex_lock(&t->version->store->lock);
    t->n_stripes = ws_parents_stripes(t->version);
    pthread_mutex_unlock(&t->version->store->lock);
    return t->blocks && t->first ? 0 : -ENOMEM;
}

void ws_block_table_release(struct ws_block_table *t)
{
    for (size_t i = 0; t->blocks && i < t->manifest->n_files; i++)
        free(t->blocks[i]);
    free(t->blocks);
    free(t->first);
}

/* Claims the first missing blocks of a part that have bytes of blocks [first, first + n) of a file of the whole. */
static bool claim_for_whole(struct ws_block_table *t, unsigned stripe, size_t whole_file, size_t first,
                            size_t n, struct ws_extent *extent)
{
    const struct ws_part_view *view = ws_part_view(t->version);
    const char *name = ws_node_part_map_file(view->parts->map, whole_file)->name;
    const uint64_t at = first * WS_BLOCK_BYTES;
    bool found = false;

    for (size_t i = 0; i < t->manifest->n_files && !found; i++) {
        struct ws_node_part_range r;
        size_t segment = 0;
        const bool may_have =
            ws_subset_is(view->parts->map) || ws_node_part_is_of(t->manifest->files[i].name, name);
        while (!found && may_have &&
               ws_node_part_map_find(view->parts->map, view->index, i, &segment, whole_file, at,
                                     n * WS_BLOCK_BYTES, &r))
            found = claim(t, stripe, i, (size_t)(r.at / WS_BLOCK_BYTES),
                          (size_t)((r.at + r.n - 1) / WS_BLOCK_BYTES) + 1, extent);
    }
    return found;
}

bool ws_block_table_claim_awaited(struct ws_block_table *t, unsigned stripe, struct ws_extent *extent)
{
    const struct ws_version *v = t->version, *whole = ws_part_view(v) ? ws_part_view(v)->whole : NULL;
    bool found = false;

    for (const struct ws_waiter *w = v->waiters; w && !found; w = w->next) {
        size_t file = w->file;
        if (file >= t->manifest->n_files || w->n == 0)
            continue;
        size_t n_blocks = t->manifest->files[file].n_blocks;
        if (w->first < n_blocks)
            found = claim(t, stripe, file, w->first, w->n < n_blocks - w->first ? w->first + w->n : n_blocks,
                          extent);
    }
    for (const struct ws_waiter *w = whole ? whole->waiters : NULL; w && !found; w = w->next) {
        const struct ws_manifest *m = atomic_load(&whole->manifest);
        if (w->file >= m->n_files || w->n == 0)
            continue;
        size_t n_blocks = m->files[w->file].n_blocks;
        if (w->first < n_blocks)
            found = claim_for_whole(t, stripe, w->file, w->first,
                                    w->n < n_blocks - w->first ? w->n : n_blocks - w->first, extent);
    }
    return found;
}
