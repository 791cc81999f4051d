/* Lazy: reads bytes of a version that is not here, and does not come for that (-o open=lazy): for audits of versions that may
 * be larger than memory, of which a few tensors are looked at.
 *
 * A block that a reader asks for is fetched whole and checked, as by a pull, and stays in memory of its own beside the cache
 * as long as none of the WS_LAZY_BLOCKS that were read last takes its place. It is never the version's: that has its state
 * as before, no space in the cache, and is not complete after all of it was read. A pull of it, by a command, a switch or a
 * policy, goes its own way, and reads are answered out of it from then on.
 *
 * So are reads of what does not come of a version, which may be complete by then (need=learn, store/learned.h).
 *
 * A source that says nothing costs a reader of its versions deadline=, and no other reader's anything: threads are left for reads
 * of other sources, and what has waited behind a read that fails so fails with it.
 *
 * Only what a source has whole can be read so. Versions in parts, subsets (store/needs.h), and views that are made here do not
 * exist anywhere as they are shown: they are pulled at the first read, as with open=stream. */
#ifndef WS_FS_PULL_LAZY_H
#define WS_FS_PULL_LAZY_H
#include "fs/store/store.h"

#define WS_LAZY_BLOCKS  16 /* 64 MiB */
#define WS_LAZY_THREADS 8
#define WS_LAZY_EACH    4 /* threads for the reads of versions that have the same sources */

struct ws_lazy;
/* One read, the caller's until done is called. */
struct ws_lazy_read {
    struct ws_version *version; /* with its manifest; the caller has a reference */
    size_t file;
    uint64_t at, n; /* bytes of the file; n > 0 */
    unsigned char *out;
    /* On a thread of this, exactly once, without any lock. rc: 0, and out has the bytes; or what the source's error is,
     * with err: -ESTALE gone there, -ENODATA it has only a delta, -EBADMSG wrong bytes, -ECANCELED the mount ends. */
    void (*done)(struct ws_lazy_read *r, int rc, const struct ws_error *err);
    /* this room's: */
    struct ws_lazy_read *next;
    uint64_t sources, since_ns; /* of its version; when it was submitted, or had a block last */
    uint64_t heard_ns;          /* when one of them had answered last, as it was submitted */
};

/* Starts its threads. all: it is for all versions, not only for what does not come of them. */
WS_MUST_USE int ws_lazy_new(struct ws_lazy **out, struct ws_store *s, bool all, struct ws_error *err);
/* Ends all reads, and is freed. Before ws_store_stop; NULL is fine. */
void ws_lazy_free(struct ws_lazy *l);
/* Is it to be read so now: not of what is here, comes with a pull, or has first to be made? Else reads wait for a pull. */
bool ws_lazy_applies(const struct ws_lazy *l, struct ws_version *v, size_t file, uint64_t at, uint64_t n);
void ws_lazy_submit(struct ws_lazy *l, struct ws_lazy_read *r);

#endif
