#include "fs/store/part_description.h"
#include "transports/format/node_part_map.h"
#include <assert.h>
#include <stdlib.h>

#define KEPT_BYTES (64UL << 20) /* of each part, ... */
#define KEPT_SHARE 32           /* ... or this share of it, where that is more */

/* Bytes of the blocks that hold the first `described` bytes of a file. */
static uint64_t block_bytes(const struct ws_manifest_file *f, uint64_t described)
{
    const uint64_t bytes = ws_manifest_count_blocks(described) * WS_BLOCK_BYTES;

    return bytes < f->size_bytes ? bytes : f->size_bytes;
}

static bool keep_file(struct ws_part_described_file *to, const struct ws_manifest_file *f, uint64_t *left)
{
    const uint64_t bytes = block_bytes(f, to->described);

    if (bytes > *left)
        return true;
    *left -= bytes;
    to->is_kept = true;
    to->bytes = malloc(ws_manifest_count_blocks(to->described) * WS_BLOCK_BYTES);
    to->here = calloc(ws_manifest_count_blocks(to->described) / 64 + 1, sizeof(*to->here));
    return to->bytes && to->here;
}

struct ws_part_description *ws_part_description_new(const struct ws_manifest *m)
{
    struct ws_part_description *d = calloc(1, sizeof(*d));
    uint64_t left = m->total_bytes / KEPT_SHARE > KEPT_BYTES ? m->total_bytes / KEPT_SHARE : KEPT_BYTES;
    bool ok = d && (d->files = calloc(m->n_files + 1, sizeof(*d->files)));

    if (d)
        atomic_init(&d->refs, 1);
    for (size_t i = 0; ok && i < m->n_files; i++) {
        struct ws_part_described_file *f = &d->files[i];
        d->n_files = i + 1;
        f->described = ws_node_part_described(&m->files[i]);
        if (f->described > 0)
            ok = keep_file(f, &m->files[i], &left);
    }
    if (!ok)
        ws_part_description_put(d);
    return ok ? d : NULL;
}

void ws_part_description_put(struct ws_part_description *d)
{
    if (!d || atomic_fetch_sub(&d->refs, 1) != 1)
        return;
    for (size_t i = 0; i < d->n_files; i++) {
        free(d->files[i].bytes);
        free(d->files[i].here);
    }
    free(d->files);
    free(d);
}

struct ws_part_description *ws_part_description_get(struct ws_version *part)
{
    struct ws_part_description *d = atomic_load(&part->description);

    if (d)
        atomic_fetch_add(&d->refs, 1);
    return d;
}

bool ws_part_description_shows(const struct ws_version *part, size_t file, size_t first, size_t n)
{
    const struct ws_part_description *d = atomic_load(&part->description);

    return d && ws_part_description_has(d, file, first, n);
}

bool ws_part_description_has(const struct ws_part_description *d, size_t file, size_t first, size_t n)
{
    const struct ws_part_described_file *f = file < d->n_files ? &d->files[file] : NULL;
    bool has = f && f->is_kept && n > 0 && n <= ws_manifest_count_blocks(f->described) &&
               first <= ws_manifest_count_blocks(f->described) - n;

    for (size_t b = first; has && b < first + n; b++)
        has = atomic_load(&f->here[b / 64]) & ws_bit(b % 64);
    return has;
}

void ws_part_description_arrived(struct ws_part_description *d, size_t file, size_t block)
{
    struct ws_part_described_file *f = &d->files[file];

    assert(f->is_kept && block < ws_manifest_count_blocks(f->described));
    atomic_fetch_or(&f->here[block / 64], ws_bit(block % 64));
    if (ws_part_description_has(d, file, 0, ws_manifest_count_blocks(f->described)))
        atomic_store(&f->is_whole, true);
}

bool ws_part_description_is_whole(const struct ws_part_description *d)
{
    bool whole = true;

    for (size_t i = 0; whole && i < d->n_files; i++)
        whole = d->files[i].described == 0 || atomic_load(&d->files[i].is_whole);
    return whole;
}
