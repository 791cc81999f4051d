/* Delta: what changed from one version, the base, to another, the target: a record for each block that
 * differs. It grows while it is made or fetched, and any number of threads read it meanwhile.
 *
 * A block without a record is unchanged once the delta is whole. Before that, and in a delta that was given
 * up, such a block may be anything. That does no harm: what a chain of deltas makes of a block is checked
 * against the manifest's hash. Thread safe. */
#ifndef WS_TRANSPORTS_DELTA_DELTA_H
#define WS_TRANSPORTS_DELTA_DELTA_H
#include "transports/base/version_id.h"
#include "transports/delta/coming.h"
#include "transports/format/manifest.h"
#include <sys/queue.h>

/* The two versions of a delta, and the digests of their manifests. */
struct ws_delta_link {
    struct ws_version_id base, target;
    char base_digest[33], target_digest[33];
};
/* The target's of one that is not complete yet, whose delta comes while it is written (wsync-delta(5), "Provisional"). */
#define WS_PROVISIONAL_DIGEST "00000000000000000000000000000000"
/* That leads from one version to the other, by what their manifests say of them. */
struct ws_delta_link ws_delta_link_between(const struct ws_manifest *base, const struct ws_manifest *target);

enum ws_delta_state { WS_DELTA_GROWING, WS_DELTA_WHOLE, WS_DELTA_GIVEN_UP };
const char *ws_delta_state_name(enum ws_delta_state s); /* "growing", "whole", "given-up" */

struct ws_delta;
/* Empty and growing, with one reference. Of the target only the number of blocks of each file is kept.
 * -ENOMEM. */
WS_MUST_USE int ws_delta_new(struct ws_delta **out, const struct ws_delta_link *link,
                             const struct ws_manifest *target, struct ws_error *err);
struct ws_delta *ws_delta_get(struct ws_delta *d);
void ws_delta_put(struct ws_delta *d); /* NULL is fine */
const struct ws_delta_link *ws_delta_link(const struct ws_delta *d);
uint64_t ws_delta_blocks(const struct ws_delta *d); /* of the target */

/* The delta owns the record from here on, also on failure. -EINVAL: there is no such block; -EEXIST: it has a
 * record already. A record that was begun (below) is whole with this. */
WS_MUST_USE int ws_delta_add(struct ws_delta *d, struct ws_delta_record *r);
void ws_delta_end(struct ws_delta *d, enum ws_delta_state state); /* once; nothing is added afterwards */
/* Of one that is whole, or will be: each record was seen to make its block of the target from the base's bytes, by the block's hash, or was
 * made of both. So it names each element that changed. Where a source has made a wrong one, no target came of it. */
void ws_delta_set_verified(struct ws_delta *d);
bool ws_delta_is_verified(const struct ws_delta *d);
/* All records of a part (part, parts: as ws_delta_next's) are here, though the delta grows on: who reads that part need
 * not wait for the rest. Mounts that fetch their parts from each other would wait for good. parts: WS_MAX_STREAMS at
 * most; of several divisions the first counts. */
void ws_delta_end_part(struct ws_delta *d, unsigned part, unsigned parts);

/* --- a record that comes piece by piece (coming.h) --- */

/* Begins with a record whose head is in *r and whose data is to be filled in. The delta owns it then, and *r is the one to fill: of
 * an earlier try where that had the same head, with c->filled bytes. NULL: it is the caller's as before, since its block has a
 * record, or is none, or another reader fills it. */
struct ws_delta_coming *ws_delta_coming_begin(struct ws_delta *d, struct ws_delta_record **r);
/* So many bytes of data are there. Who waits for them is told now and then. */
void ws_delta_coming_fill(struct ws_delta *d, struct ws_delta_coming *c, size_t filled);
/* Its reader ends: after ws_delta_add, or since its connection broke. is_damaged: nobody goes on with it. */
void ws_delta_coming_leave(struct ws_delta *d, struct ws_delta_coming *c, bool is_damaged);
/* One of a part of which there is something to send, with a reference; NULL: there is none. */
struct ws_delta_coming *ws_delta_coming_get(struct ws_delta *d, unsigned part, unsigned parts,
                                            const struct ws_delta_filter *filter);
void ws_delta_coming_release(struct ws_delta *d, struct ws_delta_coming *c); /* NULL is fine */

/* The number of a block among those of all files. */
uint64_t ws_delta_number(const struct ws_delta *d, size_t file, size_t block);
/* The record of a block, or NULL. It lives as long as the delta. */
const struct ws_delta_record *ws_delta_at(const struct ws_delta *d, size_t file, size_t block);
/* The next record at or after *i, in the order of arrival, of those whose block (counted over all files)
 * leaves `part` when divided by `parts`; *i goes behind it. NULL: there is none yet. */
const struct ws_delta_record *ws_delta_next(const struct ws_delta *d, size_t *i, unsigned part,
                                            unsigned parts);
/* Call it before ws_delta_next: if the delta had ended by then, NULL from that is final. */
enum ws_delta_state ws_delta_state(const struct ws_delta *d);
enum ws_delta_state ws_delta_part_state(struct ws_delta *d, unsigned part,
                                        unsigned parts); /* the same, of a part */

/* Is notified once, when there are more than i records, one of the part comes, or the delta, or the part, has ended; or, where
 * `coming` is set, when more of that than `sent` is there or it has ended. By the thread that added, filled or ended, with the delta's
 * lock held. */
struct ws_delta_waiter {
    void (*notify)(void *arg);
    void *arg;
    const struct ws_delta_filter *filter; /* borrowed; NULL: any that comes */
    const struct ws_delta_coming *coming; /* borrowed; NULL: the next record */
    size_t sent;                          /* of its data */
    /* the delta's, guarded by its lock */
    size_t next; /* the i that it waits behind */
    unsigned part, parts;
    LIST_ENTRY(ws_delta_waiter) entry;
    bool waiting;
};
/* false: that is so already: w is not notified. */
bool ws_delta_wait(struct ws_delta *d, size_t i, unsigned part, unsigned parts, struct ws_delta_waiter *w);
/* w is not notified once this has returned. true: it was still waiting. */
bool ws_delta_wait_cancel(struct ws_delta *d, struct ws_delta_waiter *w);
/* Blocks until the delta has ended; false at the timeout. */
bool ws_delta_wait_ended(struct ws_delta *d, unsigned timeout_ms);

/* One that sends the delta to a client, which may take it slowly. Is notified once, with the delta's lock held, when
 * the delta is dropped: it should let it go soon, since what a cache has dropped is to be free. */
struct ws_delta_sender {
    void (*dropped)(void *arg);
    void *arg;
    LIST_ENTRY(ws_delta_sender) entry; /* guarded by the delta's lock */
};
bool ws_delta_sender_add(struct ws_delta *d, struct ws_delta_sender *s); /* false: it was dropped already */
void ws_delta_sender_remove(struct ws_delta *d,
                            struct ws_delta_sender *s); /* it is not notified afterwards */
void ws_delta_drop(struct ws_delta *d);                 /* puts it, too */

struct ws_delta_stats {
    enum ws_delta_state state;
    uint64_t bytes;     /* on the wire, with all heads */
    uint64_t n_changed; /* elements */
    uint64_t n_records, n_blocks_whole;
};
void ws_delta_stats(const struct ws_delta *d, struct ws_delta_stats *out);

#endif
