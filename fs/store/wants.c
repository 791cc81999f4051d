#include "fs/store/wants.h"
#include "fs/store/content.h"
#include "fs/store/part_view.h"
#include <stdlib.h>

#define BITS 64

struct ws_block_set *ws_block_set_new(const struct ws_manifest *m)
{
    struct ws_block_set *w = calloc(1, sizeof(*w) + m->n_files * sizeof(*w->blocks));

    for (size_t i = 0; w && i < m->n_files; i++) {
        w->blocks[i] = calloc(m->files[i].n_blocks / BITS + 1, sizeof(uint64_t));
        w->n_files++;
        if (!w->blocks[i]) {
            ws_block_set_free(w);
            w = NULL;
        }
    }
    return w;
}

void ws_block_set_add(struct ws_block_set *w, const struct ws_manifest *m, size_t file, size_t first,
                      size_t end)
{
    for (size_t b = first; b < end; b++) {
        const uint64_t bit = 1UL << (b % BITS);
        if (!(w->blocks[file][b / BITS] & bit))
            w->bytes += ws_manifest_block_bytes(&m->files[file], b);
        w->blocks[file][b / BITS] |= bit;
    }
}

void ws_block_set_free(struct ws_block_set *w)
{
    for (size_t i = 0; w && i < w->n_files; i++)
        free(w->blocks[i]);
    free(w);
}

static const struct ws_block_set *get(const struct ws_version *v)
{
    return atomic_load_explicit(&v->wanted, memory_order_acquire);
}

bool ws_version_wants(const struct ws_version *v, size_t file, size_t block)
{
    const struct ws_block_set *w = get(v);

    return w ? w->blocks[file][block / BITS] >> (block % BITS) & 1 : ws_part_view_wants(v, file, block);
}

uint64_t ws_version_wanted_bytes(const struct ws_version *v)
{
    const struct ws_block_set *w = get(v);

    return w ? w->bytes : ws_part_view_bytes(v);
}

bool ws_version_has_wanted(struct ws_version *v)
{
    const struct ws_manifest *m = atomic_load(&v->manifest);
    const struct ws_block_set *w = get(v);
    bool has = true;

    if (!w) /* a part counts blocks that do not come as here */
        return ws_content_bytes(v) == m->total_bytes;
    for (size_t i = 0; i < m->n_files && has; i++)
        for (size_t k = 0; k < (m->files[i].n_blocks + BITS - 1) / BITS && has; k++)
            has = !(w->blocks[i][k] & ~atomic_load(&v->files[i].here[k]));
    return has;
}

bool ws_version_wants_less(const struct ws_version *v, const struct ws_version *w)
{
    const struct ws_manifest *m = atomic_load(&v->manifest);
    const struct ws_block_set *wanted = get(v);
    bool less = false;

    for (size_t i = 0; wanted && i < m->n_files && !less; i++)
        for (size_t k = 0; k < (m->files[i].n_blocks + BITS - 1) / BITS && !less; k++)
            less = atomic_load(&w->files[i].here[k]) & ~wanted->blocks[i][k];
    return less;
}

static size_t end_of(const struct ws_version *v, size_t file, size_t first, size_t n)
{
    const size_t n_blocks = ((struct ws_manifest *)atomic_load(&v->manifest))->files[file].n_blocks;

    return first < n_blocks && n < n_blocks - first ? first + n : n_blocks;
}

bool ws_version_waits_for_none(struct ws_version *v, size_t file, size_t first, size_t n)
{
    const struct ws_block_set *w = get(v);
    bool waits = false;

    if (!w)
        return ws_content_has(v, file, first, n);
    for (size_t b = first, end = end_of(v, file, first, n); b < end && !waits; b++)
        waits = ws_version_wants(v, file, b) && !ws_content_has(v, file, b, 1);
    return !waits;
}

bool ws_version_leaves_blocks_out(struct ws_version *v, size_t file, size_t first, size_t n)
{
    bool leaves = false;

    if (!get(v))
        return false;
    for (size_t b = first, end = end_of(v, file, first, n); b < end && !leaves; b++)
        leaves = !ws_version_wants(v, file, b) && !ws_content_has(v, file, b, 1);
    return leaves;
}
