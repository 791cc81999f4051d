/* Slot: one half of the double buffer: the regions of one version, and who holds them.
 *
 *     FREE -> WRITING (ranks copy) -> HASHING (nobody but us has it open) -> SERVED -> RETIRED -> WRITING ...
 *                                                                        \-> SEALED (other nodes hash) ->
 * SERVED
 *
 * A slot is written again only when no hold is left and the kernel says that no other process has its regions
 * open or mapped (ws_region_idle). Where readers had descriptors of them, or the kernel grants no leases,
 * that is no proof: then the slot gets other regions first, and those are closed, never written, which also
 * keeps away what ranks have mapped and pinned of them. Not thread safe by itself: the agent's lock guards
 * all fields but the regions and their bytes. */
#ifndef WS_TRAINER_AGENT_CORE_SLOT_H
#define WS_TRAINER_AGENT_CORE_SLOT_H
#include "backends/trainer/agent/core/rank_deltas.h"
#include "backends/trainer/tensor/placement.h"
#include "transports/base/workers.h"
#include "transports/format/manifest.h"
#include "transports/protocol/catalog.h"
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

struct ws_slot_hold {
    struct ws_hold base;
    struct ws_slot *slot;
    struct ws_slot_hold *next, *prev;
    char holder[96];
    bool lent;                  /* he has descriptors of the regions and keeps them */
    void (*revoked)(void *arg); /* NULL: cannot be revoked */
    void *arg;
};

struct ws_slot {
    enum ws_slot_state state;
    uint64_t id; /* of its regions: another number from when any of them is about to be another one */
    uint64_t version;
    char run[WS_RUN_CHARS + 1];
    char placement_id[33];              /* of what the regions hold */
    char base_id[WS_BASE_ID_CHARS + 1]; /* whose frozen tensors they hold, or are to */
    bool fresh;                         /* sidecars and frozen tensors are not in it yet */
    struct ws_mark has;                 /* the version that they have all of; no run: none that is known */
    struct ws_mark had;                 /* while they are written: before */
    bool kept;                          /* by a rank that cannot be told to let go of its regions (0.1.0) */
    size_t n_files;
    _Atomic(uint64_t) total_bytes;   /* shown, also while it is laid out */
    struct ws_region **regions;      /* one a file, NULL for size 0 */
    struct ws_manifest *manifest;    /* SERVED and RETIRED; while WRITING it collects the ranks' hashes */
    unsigned char **hashed;          /* a byte a block: its hash is in the manifest */
    struct ws_rank_records *records; /* that ranks gave with it */
    char *json;
    size_t json_bytes;
    struct ws_slot_hold *holds;
    unsigned n_holds;
};

/* Has it the regions of that placement? */
bool ws_slot_fits(const struct ws_slot *s, const struct ws_placement *l);
/* Gives its memory back. */
void ws_slot_empty(struct ws_slot *s);
/* Where its regions fit, but hold frozen tensors of another base: they are to be written again. */
void ws_slot_rebase(struct ws_slot *s, const struct ws_placement *l);
/* Are there bytes in its regions, which fit, that the next version needs? changes: ranks only write what
 * changed. */
bool ws_slot_has_use(const struct ws_slot *s, const struct ws_placement *l, bool changes);
/* The two of these may take seconds: the slot is WRITING and only the caller uses it. Memory is faulted in
 * here, so that it is charged to this process.
 *
 * exchange: regions that fit, but must not be written again, give way to others with the same bytes, one
 * after the other; take is asked for the memory of each before, and give gets it back when the old one is
 * closed. -ENOMEM: the slot is of use as it is. */
struct ws_slot_room {
    int (*take)(void *arg, uint64_t bytes, struct ws_error *err);
    void (*give)(void *arg, uint64_t bytes);
    void *arg;
};
WS_MUST_USE int ws_slot_exchange(struct ws_slot *s, const struct ws_placement *l, unsigned n_threads,
                                 const struct ws_slot_room *room, struct ws_error *err);
/* lay_out: an empty slot gets regions, with headers and generated files in them. -ENOMEM: it is empty. */
WS_MUST_USE int ws_slot_lay_out(struct ws_slot *s, const struct ws_placement *l, unsigned n_threads,
                                struct ws_error *err);
/* Starts the manifest of a version in a prepared slot. */
WS_MUST_USE int ws_slot_begin(struct ws_slot *s, const struct ws_placement *l, const char *model,
                              uint64_t version, const char *run, struct ws_error *err);
/* Notes the hash of a block that one rank filled alone; -EINVAL when there is no such block. */
WS_MUST_USE int ws_slot_note_hash(struct ws_slot *s, uint64_t file, uint64_t block, uint64_t hash);
/* Is nobody else able to write or read it? 0; -EBUSY; -EPERM: nobody knows, its regions are not to be written
 * again. Holds do not count here. */
WS_MUST_USE int ws_slot_idle(const struct ws_slot *s);
/* Will its regions be written again, as far as is known now? Not asked while it is prepared. */
bool ws_slot_stays(const struct ws_slot *s);
/* Hashes the blocks that have no hash yet, seals the manifest, makes its JSON. */
WS_MUST_USE int ws_slot_seal(struct ws_slot *s, struct ws_workers *workers, struct ws_error *err);
/* Forgets manifest and JSON (n_holds must be 0). */
void ws_slot_clear(struct ws_slot *s);
void ws_slot_free(struct ws_slot *s); /* NULL is fine */

struct ws_slot_hold *ws_slot_take(struct ws_slot *s, const char *holder, void (*revoked)(void *), void *arg);
void ws_slot_drop(struct ws_slot_hold *h);
bool ws_slot_has_firm_holds(const struct ws_slot *s); /* holds that cannot be revoked */
void ws_slot_revoke(struct ws_slot *s); /* calls revoked of all holds, which may drop their own */
/* "pid 12 (engine), pid 14": who has it, for people. */
void ws_slot_holders(const struct ws_slot *s, char *out, size_t cap);

#endif
