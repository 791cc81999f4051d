#include "fs/store/renewal.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define LOCKS 64

struct ws_renewal {
    const struct ws_manifest *manifest; /* the version's, which has this */
    pthread_rwlock_t locks[LOCKS];
    bool any;
    atomic_uchar **due; /* by file, then block */
};

struct ws_renewal *ws_renewal_new(const struct ws_manifest *m)
{
    struct ws_renewal *r = calloc(1, sizeof(*r));
    pthread_rwlockattr_t attr;
    bool ok = r && (r->due = calloc(m->n_files + 1, sizeof(*r->due)));

    if (r) { /* who renews is not kept waiting by readers that come after */
        r->manifest = m;
        pthread_rwlockattr_init(&attr);
        pthread_rwlockattr_setkind_np(&attr, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
        for (unsigned i = 0; i < LOCKS; i++)
            pthread_rwlock_init(&r->locks[i], &attr);
        pthread_rwlockattr_destroy(&attr);
    }
    for (size_t i = 0; ok && i < m->n_files; i++)
        ok = (r->due[i] = calloc(m->files[i].n_blocks + 1, sizeof(*r->due[i])));
    if (ok)
        return r;
    ws_renewal_free(r);
    return NULL;
}

void ws_renewal_free(struct ws_renewal *r)
{
    if (!r)
        return;
    for (size_t i = 0; r->due && i < r->manifest->n_files; i++)
        free(r->due[i]);
    for (unsigned i = 0; i < LOCKS; i++)
        pthread_rwlock_destroy(&r->locks[i]);
    free(r->due);
    free(r);
}

void ws_renewal_rebase(struct ws_renewal *r, const struct ws_manifest *m)
{
    r->manifest = m;
    r->any = false;
}

void ws_renewal_reset(struct ws_renewal *r, size_t file, bool due)
{
    for (size_t b = 0; b < r->manifest->files[file].n_blocks; b++)
        atomic_store(&r->due[file][b], due);
    r->any = r->any || due;
}

bool ws_renewal_is_any(const struct ws_renewal *r)
{
    return r->any;
}

static unsigned index_of(size_t file, size_t block)
{
    return (unsigned)((file * 31 + block) % LOCKS);
}

uint64_t ws_renewal_lock_of(const struct ws_renewal *r, size_t file, size_t block)
{
    return atomic_load_explicit(&r->due[file][block], memory_order_acquire) ? 1UL << index_of(file, block)
                                                                            : 0;
}

void ws_renewal_hold(struct ws_renewal *r, uint64_t locks)
{
    for (unsigned i = 0; locks && i < LOCKS; i++)
        if (locks & 1UL << i)
            pthread_rwlock_rdlock(&r->locks[i]);
}

void ws_renewal_let_go(struct ws_renewal *r, uint64_t locks)
{
    for (unsigned i = 0; locks && i < LOCKS; i++)
        if (locks & 1UL << i)
            pthread_rwlock_unlock(&r->locks[i]);
}

int ws_renewal_run(struct ws_renewal *r, struct ws_region *region, size_t file, size_t block,
                   unsigned char *scratch, struct ws_error *err)
{
    const uint64_t at = block * WS_BLOCK_BYTES, n = ws_manifest_block_bytes(&r->manifest->files[file], block);
    pthread_rwlock_t *lock = &r->locks[index_of(file, block)];
    int rc = 0;

    pthread_rwlock_wrlock(lock);
    if (atomic_load(&r->due[file][block])) {
        memcpy(scratch, ws_region_data(region) + at, n);
        rc = ws_region_renew(region, at, n, err);
        if (rc == 0) {
            memcpy(ws_region_data(region) + at, scratch, n);
            atomic_store_explicit(&r->due[file][block], 0, memory_order_release);
        }
    }
    pthread_rwlock_unlock(lock);
    return rc;
}
