#include "fs/store/growing.h"
#include "fs/store/waiters.h"
#include <stdlib.h>

#define KEPT_BACK (64UL << 10)

struct ws_growing {
    _Atomic(uint64_t) n_attempts;
    struct growing_block {
        _Atomic(uint64_t) which; /* 0: none */
        _Atomic(uint64_t) attempt, bytes;
    } lanes[WS_MAX_STREAMS];
};

static uint64_t which_of(size_t file, size_t block)
{
    return (uint64_t)(file + 1) << 40 | block;
}

void ws_growing_new(struct ws_version *v)
{
    struct ws_growing *none = NULL, *g = atomic_load(&v->growing) ? NULL : calloc(1, sizeof(*g));

    if (g && !atomic_compare_exchange_strong(&v->growing, &none, g))
        free(g);
}

void ws_growing_free(struct ws_version *v)
{
    free(atomic_exchange(&v->growing, NULL));
}

void ws_growing_store(struct ws_version *v, unsigned lane, size_t file, size_t block, uint64_t n)
{
    struct ws_growing *g = atomic_load(&v->growing);
    struct growing_block *b = g ? &g->lanes[lane] : NULL;
    const uint64_t which = which_of(file, block);

    if (!b)
        return;
    const bool begins = atomic_load(&b->which) != which;
    const uint64_t before = begins ? 0 : atomic_load(&b->bytes);
    atomic_store(&b->bytes, n);
    if (begins) { /* its lane has ended the one before: it is of no block yet */
        atomic_store(&b->attempt, atomic_fetch_add(&g->n_attempts, 1) + 1);
        atomic_store(&b->which, which);
    }
    if (n / WS_GROWING_STEP != before / WS_GROWING_STEP)
        ws_waiters_wake(v);
}

void ws_growing_end(struct ws_version *v, unsigned lane)
{
    struct ws_growing *g = atomic_load(&v->growing);

    if (g)
        atomic_store(&g->lanes[lane].which, 0);
}

uint64_t ws_growing_bytes(const struct ws_version *v, size_t file, size_t block, uint64_t *attempt)
{
    struct ws_growing *g = atomic_load(&v->growing);
    const struct ws_manifest *m = atomic_load(&v->manifest);
    const uint64_t which = which_of(file, block);

    for (unsigned i = 0; g && m && i < WS_MAX_STREAMS; i++) {
        struct growing_block *b = &g->lanes[i];
        if (atomic_load(&b->which) != which)
            continue;
        *attempt = atomic_load(&b->attempt);
        const uint64_t n = atomic_load(&b->bytes), len = ws_manifest_block_bytes(&m->files[file], block),
                       most = len > KEPT_BACK ? len - KEPT_BACK : 0;
        if (atomic_load(&b->attempt) == *attempt && atomic_load(&b->which) == which)
            return n < most ? n : most;
    }
    return 0;
}
