#include "backends/trainer/agent/derive/blocks.h"
#include "transports/delta/encode.h"
#include "transports/simd/copy.h"
#include <assert.h>
#include <stdlib.h>

struct ws_derived_blocks {
    struct ws_slot *slot;
    const unsigned char **files[2];     /* of the slot, and of the base */
    size_t *first;                      /* by file: its first block, counted over all files; and of all */
    _Atomic(uint32_t) *left;            /* by block: bytes that are not written */
    _Atomic(size_t) n_left;             /* blocks */
    struct ws_delta_comparer *comparer; /* NULL: nothing is compared */
    struct ws_view_records *records;
    uint64_t most_bytes;
    atomic_bool is_full; /* no more records */
};

static const unsigned char **files_of(const struct ws_manifest *m, struct ws_region *const *regions)
{
    const unsigned char **files = calloc(m->n_files + 1, sizeof(*files));
    for (size_t i = 0; files && i < m->n_files; i++)
        files[i] = regions[i] ? ws_region_data(regions[i]) : NULL;
    return files;
}

static bool count(struct ws_derived_blocks *b, const struct ws_manifest *m)
{
    size_t n = 0;
    b->first = calloc(m->n_files + 1, sizeof(*b->first));
    for (size_t i = 0; b->first && i < m->n_files; i++) {
        b->first[i] = n;
        n += m->files[i].n_blocks;
    }
    b->left = calloc(n + 1, sizeof(*b->left));
    if (!b->first || !b->left)
        return false;
    b->first[m->n_files] = n;
    atomic_init(&b->n_left, n);
    for (size_t i = 0; i < m->n_files; i++)
        for (size_t k = 0; k < m->files[i].n_blocks; k++)
            atomic_init(&b->left[b->first[i] + k], (uint32_t)ws_manifest_block_bytes(&m->files[i], k));
    return true;
}

/* Where there is no memory the encoder compares afterwards. */
static void compare_with(struct ws_derived_blocks *b, const struct ws_derived_base *base, unsigned n_workers)
{
    const struct ws_manifest *m = b->slot->manifest;
    const struct ws_lease *l = &base->lease->base;
    b->most_bytes = base->most_bytes;
    b->files[1] = files_of(l->manifest, l->regions);
    b->records = ws_view_records_new(l->manifest->digest, b->first[m->n_files]);
    if (!b->files[1] || !b->records)
        return;
    const struct ws_delta_side from = {l->manifest, b->files[1]}, to = {m, b->files[0]};
    b->comparer = ws_delta_comparer_new(&from, &to, base->level, n_workers);
}

struct ws_derived_blocks *ws_derived_blocks_new(struct ws_slot *slot, const struct ws_derived_base *base,
                                                unsigned n_workers)
{
    struct ws_derived_blocks *b = calloc(1, sizeof(*b));
    if (!b)
        return NULL;
    b->slot = slot;
    b->files[0] = files_of(slot->manifest, slot->regions);
    if (!b->files[0] || !count(b, slot->manifest)) {
        ws_derived_blocks_free(b);
        return NULL;
    }
    if (base->lease)
        compare_with(b, base, n_workers);
    return b;
}

void ws_derived_blocks_free(struct ws_derived_blocks *b)
{
    if (!b)
        return;
    ws_delta_comparer_free(b->comparer);
    ws_view_records_free(b->records);
    free(b->files[0]);
    free(b->files[1]);
    free(b->first);
    free(b->left);
    free(b);
}

static void compare(struct ws_derived_blocks *b, size_t file, size_t block, unsigned worker)
{
    if (!b->comparer || ws_delta_comparer_is_equal(b->comparer, file, block) || atomic_load(&b->is_full))
        return;
    struct ws_delta_record *r = ws_delta_comparer_block(b->comparer, file, block, worker);
    if (!r || ws_view_records_put(b->records, b->first[file] + block, r) > b->most_bytes)
        atomic_store(&b->is_full, true);
}

static void finish(struct ws_derived_blocks *b, size_t file, size_t block, unsigned worker)
{
    const struct ws_manifest_file *f = &b->slot->manifest->files[file];
    const uint64_t hash =
        ws_hash(b->files[0][file] + block * WS_BLOCK_BYTES, ws_manifest_block_bytes(f, block));
    const int rc = ws_slot_record_hash(b->slot, file, block, hash);
    assert(rc == 0); /* there is such a block */
    (void)rc;
    compare(b, file, block, worker);
    atomic_fetch_sub(&b->n_left, 1);
}

void ws_derived_blocks_written(struct ws_derived_blocks *b, size_t file, uint64_t begin, uint64_t end,
                               unsigned worker)
{
    while (begin < end) {
        const size_t block = begin / WS_BLOCK_BYTES;
        const uint64_t next = (block + 1) * WS_BLOCK_BYTES, to = end < next ? end : next;
        const uint32_t n = (uint32_t)(to - begin);
        const uint32_t left = atomic_fetch_sub(&b->left[b->first[file] + block], n);
        assert(left >= n);
        if (left == n)
            finish(b, file, block, worker);
        begin = to;
    }
}

void ws_derived_blocks_end(struct ws_derived_blocks *b)
{
    assert(atomic_load(&b->n_left) == 0);
    ws_view_records_free(b->slot->view_records);
    b->slot->view_records = b->records;
    b->records = NULL;
}
