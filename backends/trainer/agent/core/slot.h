/* Slot: one half of the double buffer: the regions of one version, and the leases on them.
 *
 *     FREE -> WRITING    ranks copy into it
 *          -> HASHING    only this agent has it open
 *         (-> SEALED     other nodes still hash their parts)
 *          -> SERVED     readers may lease it
 *          -> RETIRED    it is not listed any more; leases may be left
 *          -> WRITING ...
 *
 * A slot is written again only when no lease is left and the kernel says that no other process has its regions
 * open or mapped (ws_region_idle). Where readers had descriptors of the regions, or the kernel grants no file
 * leases, that is no proof. Then the slot gets other regions first, and the old ones are closed, never written.
 * That also covers what ranks have mapped and pinned of the old regions. Not thread safe by itself: the agent's
 * lock guards all fields but the regions and their bytes. */
#ifndef WS_TRAINER_AGENT_CORE_SLOT_H
#define WS_TRAINER_AGENT_CORE_SLOT_H
#include "backends/trainer/agent/core/rank_deltas.h"
#include "backends/trainer/agent/core/view_records.h"
#include "backends/trainer/tensor/placement.h"
#include "transports/base/workers.h"
#include "transports/format/manifest.h"
#include "transports/protocol/catalog.h"
#include "transports/sign/key.h"
#include <stdatomic.h>

enum ws_slot_state {
    WS_SLOT_FREE,
    WS_SLOT_WRITING,
    WS_SLOT_HASHING,
    WS_SLOT_SEALED,
    WS_SLOT_SERVED,
    WS_SLOT_RETIRED
};
const char *ws_slot_state_name(enum ws_slot_state s);

struct ws_slot_lease {
    struct ws_lease base;
    struct ws_slot *slot;
    struct ws_slot_lease *next, *prev;
    char holder[96];
    bool lent;                  /* the reader has descriptors of the regions, and keeps them */
    void (*revoked)(void *arg); /* NULL: cannot be revoked */
    void *arg;
};

struct ws_slot {
    enum ws_slot_state state;
    uint64_t begun_ns; /* the time of day when ranks began the version that it has; 0: they did not */
    uint64_t id;       /* of its regions: changes before any of them is exchanged */
    uint64_t version;
    char lineage[WS_LINEAGE_CHARS + 1];
    char placement_id[33];               /* of what the regions hold */
    char base_id[WS_BASE_ID_CHARS + 1];  /* the base whose frozen tensors they hold, or are to hold */
    bool fresh;                          /* sidecars and frozen tensors are not written yet */
    struct ws_version_id content;        /* the version that they hold all of; no lineage: unknown */
    char content_digest[33];             /* of content or, while they are written, of content_before */
    struct ws_version_id content_before; /* while they are written: what they held before */
    bool is_pinned;                      /* by a rank of libwsync 0.1.0, which cannot be asked to unmap it */
    size_t n_files;
    _Atomic(uint64_t) total_bytes;      /* shown, also while it is laid out */
    struct ws_region **regions;         /* one a file, NULL for size 0 */
    struct ws_region *record;           /* core/slot_record.h; NULL: the version ends with the agent */
    struct ws_manifest *manifest;       /* SERVED and RETIRED; while WRITING it collects the ranks' hashes */
    unsigned char **hashed;             /* a byte a block: its hash is in the manifest */
    struct ws_rank_deltas *rank_deltas; /* from the ranks' commits */
    struct ws_view_records *view_records; /* from the derivation of a view's version */
    char *json;
    size_t json_bytes;
    struct ws_slot_lease *leases;
    unsigned n_leases;
};

/* Has it the regions of that placement? */
bool ws_slot_fits(const struct ws_slot *s, const struct ws_placement *l);
/* Frees its regions. */
void ws_slot_empty(struct ws_slot *s);
/* Where its regions fit, but hold frozen tensors of another base: marks those to be written again. */
void ws_slot_rebase(struct ws_slot *s, const struct ws_placement *l);
/* Do its regions fit and hold bytes that the next version needs? changes: ranks only write what changed. */
bool ws_slot_is_useful(const struct ws_slot *s, const struct ws_placement *l, bool changes);
/* Where the memory of new regions is accounted for: reserve before they are made, release when the old ones are
 * closed. */
struct ws_slot_budget {
    int (*reserve)(void *arg, uint64_t bytes, struct ws_error *err);
    void (*release)(void *arg, uint64_t bytes);
    void *arg;
};
/* Both may take seconds: the slot is WRITING and only the caller uses it. They fault the memory in, so that it
 * is charged to this process.
 *
 * exchange: regions that fit, but must not be written again, give way to others with the same bytes, one after
 * the other. -ENOMEM: the slot is as usable as before. */
WS_MUST_USE int ws_slot_exchange(struct ws_slot *s, const struct ws_placement *l, unsigned n_threads,
                                 const struct ws_slot_budget *budget, struct ws_error *err);
/* lay_out: an empty slot gets regions, with headers and generated files in them. -ENOMEM: it is empty. */
WS_MUST_USE int ws_slot_lay_out(struct ws_slot *s, const struct ws_placement *l, unsigned n_threads,
                                struct ws_error *err);
/* Starts the manifest of a version in a prepared slot. */
WS_MUST_USE int ws_slot_begin(struct ws_slot *s, const struct ws_placement *l, const char *model,
                              uint64_t version, const char *lineage, struct ws_error *err);
/* Records the hash of a block that one rank filled alone; -EINVAL when there is no such block. */
WS_MUST_USE int ws_slot_record_hash(struct ws_slot *s, uint64_t file, uint64_t block, uint64_t hash);
/* 0: no other process can write or read it; -EBUSY: one can; -EPERM: the kernel cannot tell, so its regions are
 * not to be written again. Leases do not count here. */
WS_MUST_USE int ws_slot_idle(const struct ws_slot *s);
/* Will its regions be written again as they are, by what is known now? Not asked while it is prepared. */
bool ws_slot_is_reusable(const struct ws_slot *s);
/* Hashes the blocks that have no hash yet, seals the manifest, signs it (key NULL: does not), makes its JSON. */
WS_MUST_USE int ws_slot_seal(struct ws_slot *s, struct ws_workers *workers, const struct ws_secret_key *key,
                             struct ws_error *err);
/* Its version, whose manifest is sealed, is served from here on / it is not listed any more. nodes: of a part of a model that spans
 * nodes, as JSON; else NULL. */
void ws_slot_serve(struct ws_slot *s, const char *nodes);
void ws_slot_retire(struct ws_slot *s);
/* Frees manifest and JSON (n_leases must be 0). */
void ws_slot_clear(struct ws_slot *s);
void ws_slot_free(struct ws_slot *s); /* NULL is fine */

/* revoked NULL: cannot be revoked. NULL: no memory. */
struct ws_slot_lease *ws_slot_lease_new(struct ws_slot *s, const char *holder, void (*revoked)(void *),
                                        void *arg);
void ws_slot_lease_free(struct ws_slot_lease *h);
bool ws_slot_has_firm_leases(const struct ws_slot *s); /* leases that cannot be revoked */
void ws_slot_revoke(struct ws_slot *s); /* calls revoked of all leases, each of which may free its own */
/* "pid 12 (engine), pid 14": the processes that have it, for messages. */
void ws_slot_holders(const struct ws_slot *s, char *out, size_t cap);

#endif
