#include "fs/store/block_sums.h"
#include "transports/simd/copy.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#define MOST 64 /* blocks that have sums at a time: 16 MiB */

struct ws_block_sums {
    const struct ws_manifest *manifest; /* the version's, which has this */
    _Atomic(struct ws_sums *) **of;     /* by file, then block; NULL: nothing is known */
    atomic_uint n_free;                 /* how many more blocks may have some */
    _Atomic(uint64_t) n_left;           /* blocks that are not here */
    pthread_mutex_t lock;               /* taken alone */
    struct ws_sums *all;                /* of MOST blocks; NULL: none has any. Guarded by lock, as the rest */
    struct ws_sums *spare[MOST];        /* those that no block has */
    unsigned n_spare;
};

static uint64_t count_blocks(const struct ws_manifest *m)
{
    uint64_t n = 0;

    for (size_t i = 0; i < m->n_files; i++)
        n += m->files[i].n_blocks;
    return n;
}

static void init(struct ws_block_sums *b, const struct ws_manifest *m)
{
    b->manifest = m;
    atomic_store(&b->n_free, MOST);
    atomic_store(&b->n_left, count_blocks(m));
}

struct ws_block_sums *ws_block_sums_new(const struct ws_manifest *m)
{
    struct ws_block_sums *b = calloc(1, sizeof(*b));
    bool ok = b && (b->of = calloc(m->n_files + 1, sizeof(*b->of)));

    if (b) {
        init(b, m);
        pthread_mutex_init(&b->lock, NULL);
    }
    for (size_t i = 0; ok && i < m->n_files; i++)
        ok = (b->of[i] = calloc(m->files[i].n_blocks + 1, sizeof(*b->of[i])));
    if (ok)
        return b;
    ws_block_sums_free(b);
    return NULL;
}

/* No block has any. */
static void free_all(struct ws_block_sums *b)
{
    pthread_mutex_lock(&b->lock);
    ws_sums_free(b->all, MOST);
    b->all = NULL;
    b->n_spare = 0;
    pthread_mutex_unlock(&b->lock);
}

static void forget_all(struct ws_block_sums *b)
{
    for (size_t i = 0; b->of && i < b->manifest->n_files; i++)
        for (size_t k = 0; b->of[i] && k < b->manifest->files[i].n_blocks; k++)
            atomic_store(&b->of[i][k], NULL);
    free_all(b);
}

void ws_block_sums_free(struct ws_block_sums *b)
{
    if (!b)
        return;
    forget_all(b);
    for (size_t i = 0; b->of && i < b->manifest->n_files; i++)
        free(b->of[i]);
    free(b->of);
    pthread_mutex_destroy(&b->lock);
    free(b);
}

void ws_block_sums_rebase(struct ws_block_sums *b, const struct ws_manifest *m)
{
    forget_all(b);
    init(b, m);
}

/* One of nothing, for a block that had none; NULL: there are too many, or no memory. */
static struct ws_sums *take(struct ws_block_sums *b)
{
    struct ws_sums *s = NULL;
    unsigned n = atomic_load(&b->n_free);

    while (n > 0 && !atomic_compare_exchange_weak(&b->n_free, &n, n - 1))
        ;
    if (n == 0)
        return NULL;
    pthread_mutex_lock(&b->lock);
    if (!b->all && (b->all = ws_sums_new(MOST)))
        for (unsigned i = MOST; i > 0; i--)
            b->spare[b->n_spare++] = ws_sums_at(b->all, i - 1);
    if (b->n_spare > 0)
        s = b->spare[--b->n_spare];
    pthread_mutex_unlock(&b->lock);
    if (s)
        ws_sums_reset(s);
    else
        atomic_fetch_add(&b->n_free, 1);
    return s;
}

static void give_back(struct ws_block_sums *b, struct ws_sums *s)
{
    pthread_mutex_lock(&b->lock);
    b->spare[b->n_spare++] = s;
    pthread_mutex_unlock(&b->lock);
    atomic_fetch_add(&b->n_free, 1);
}

/* The block's; other threads may want it, too. */
static struct ws_sums *sums_of(struct ws_block_sums *b, size_t file, size_t block)
{
    struct ws_sums *s = atomic_load(&b->of[file][block]), *none = NULL;

    if (s || !(s = take(b)))
        return s;
    if (atomic_compare_exchange_strong(&b->of[file][block], &none, s))
        return s;
    give_back(b, s);
    return none;
}

void ws_block_sums_add(struct ws_block_sums *b, size_t file, uint64_t at, const unsigned char *bytes,
                       uint64_t n)
{
    while (n > 0) {
        const uint64_t room = WS_BLOCK_BYTES - at % WS_BLOCK_BYTES, here = n < room ? n : room;
        struct ws_sums *s = sums_of(b, file, (size_t)(at / WS_BLOCK_BYTES));
        if (s)
            ws_sums_add(s, (size_t)(at % WS_BLOCK_BYTES), bytes, (size_t)here);
        at += here;
        bytes += here;
        n -= here;
    }
}

void ws_block_sums_copy(struct ws_block_sums *b, const struct ws_block_sums_copy *c, size_t file, uint64_t at,
                        unsigned char *to, const unsigned char *bytes, uint64_t n)
{
    while (n > 0) {
        const uint64_t room = WS_BLOCK_BYTES - at % WS_BLOCK_BYTES, here = n < room ? n : room;
        struct ws_sums *s = sums_of(b, file, (size_t)(at / WS_BLOCK_BYTES));
        if (s) {
            ws_sums_copy(s, c->seam, c->hasher, (size_t)(at % WS_BLOCK_BYTES), to, bytes, (size_t)here);
        } else {
            ws_sums_flush(c->seam, c->hasher);
            ws_hasher_copy_unordered(c->hasher, to, bytes, (size_t)here);
        }
        at += here;
        to += here;
        bytes += here;
        n -= here;
    }
}

uint64_t ws_block_sums_hash(struct ws_block_sums *b, size_t file, size_t block, const unsigned char *data)
{
    const size_t len = ws_manifest_block_bytes(&b->manifest->files[file], block);
    struct ws_sums *s = atomic_exchange(&b->of[file][block], NULL);
    const uint64_t hash = s ? ws_sums_hash(s, data, len) : ws_hash(data, len);

    if (s)
        give_back(b, s);
    if (atomic_fetch_sub(&b->n_left, 1) == 1)
        free_all(b);
    return hash;
}
