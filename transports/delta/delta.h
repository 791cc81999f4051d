/* Delta: what changed from one version, the base, to another, the target: a record for each block that
 * differs. It grows while it is made or fetched, and is read meanwhile by any number of threads.
 *
 * A block without a record is unchanged once the delta is whole; before that, or when it was given up, nobody
 * knows. What a chain of deltas makes of a block is checked with the manifest's hash, so that is no danger.
 * Thread safe. */
#ifndef WS_TRANSPORTS_DELTA_DELTA_H
#define WS_TRANSPORTS_DELTA_DELTA_H
#include "transports/base/version_id.h"
#include "transports/delta/record.h"
#include "transports/format/manifest.h"

/* From where to where. Digests: of the manifests. */
struct ws_delta_link {
    struct ws_mark base, target;
    char base_digest[33], target_digest[33];
};

enum ws_delta_state { WS_DELTA_GROWING, WS_DELTA_WHOLE, WS_DELTA_GIVEN_UP };
const char *ws_delta_state_name(enum ws_delta_state s); /* "growing", "whole", "given-up" */

struct ws_delta;
/* Empty and growing, with one reference. n_blocks: of each of n_files files of the target. -ENOMEM. */
WS_MUST_USE int ws_delta_new(struct ws_delta **out, const struct ws_delta_link *link,
                             const struct ws_manifest *target, struct ws_error *err);
struct ws_delta *ws_delta_get(struct ws_delta *d);
void ws_delta_put(struct ws_delta *d); /* NULL is fine */
const struct ws_delta_link *ws_delta_link(const struct ws_delta *d);
uint64_t ws_delta_blocks(const struct ws_delta *d); /* of the target */

/* Takes the record over, also on failure: -EINVAL there is no such block, -EEXIST it has one. */
WS_MUST_USE int ws_delta_add(struct ws_delta *d, struct ws_delta_record *r);
void ws_delta_end(struct ws_delta *d, enum ws_delta_state state); /* once; nothing is added afterwards */

/* The record of a block, or NULL. It lives as long as the delta. */
const struct ws_delta_record *ws_delta_at(const struct ws_delta *d, size_t file, size_t block);
/* The next record at or after *i, in the order of arrival, of those whose block (counted over all files)
 * leaves `part` when divided by `parts`; *i goes behind it. NULL: there is none yet. */
const struct ws_delta_record *ws_delta_next(const struct ws_delta *d, size_t *i, unsigned part,
                                            unsigned parts);
enum ws_delta_state ws_delta_state(
    const struct ws_delta *d); /* asked before ws_delta_next: then NULL is final */

/* Told once, when more came after record i or the delta has ended; from the thread that did it. */
struct ws_delta_watch {
    void (*more)(void *arg);
    void *arg;
    struct ws_delta_watch *next, *prev; /* the delta's */
    bool waits;
};
/* false: there is more than i already, or it has ended: nobody is told. */
bool ws_delta_wait(struct ws_delta *d, size_t i, struct ws_delta_watch *w);
/* Afterwards it is not called. true: it still waited, and was not told. */
bool ws_delta_unwait(struct ws_delta *d, struct ws_delta_watch *w);
/* Waits itself; false at the timeout. */
bool ws_delta_wait_ended(struct ws_delta *d, unsigned timeout_ms);

struct ws_delta_figures {
    enum ws_delta_state state;
    uint64_t bytes;     /* on the wire, with all heads */
    uint64_t n_changed; /* elements */
    uint64_t n_records, n_blocks_whole;
};
void ws_delta_figures(const struct ws_delta *d, struct ws_delta_figures *out);

#endif
