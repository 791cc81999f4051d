/* Derivation: one version of a view, from the source's slot into one of the view's. A lease keeps the source's bytes while
 * they are read; it can be revoked, so that the trainer waits no longer than for any reader, and then the version is
 * given up. What did not change since the version that the slot held is not quantised again: blocks of the source with
 * the same hashes make the same rows. Used by one thread, the deriver's. */
#ifndef WS_TRAINER_AGENT_DERIVE_DERIVATION_H
#define WS_TRAINER_AGENT_DERIVE_DERIVATION_H
#include "backends/trainer/agent/core/state.h"
#include "transports/base/workers.h"
#include "transports/quant/derive.h"

/* What a version of a view was made of. */
struct ws_derived {
    struct ws_version_id id;    /* no lineage: none */
    struct ws_manifest *source; /* owned */
    uint64_t headers;           /* a hash of the source's headers */
};

struct ws_derivation {
    struct ws_agent *agent;
    struct ws_agent_model *source, *view;
    const struct ws_agent_view *terms;
    struct ws_version_id id;
    struct ws_workers *workers;
    const struct ws_derived *known; /* what the view's slots were made of: n_known */
    size_t n_known;
    atomic_bool stop; /* the source's slot is wanted, or the agent stops */
    /* --- results, when it returns 0 --- */
    struct ws_derived made;
    struct ws_slot *slot; /* WRITING; all bytes and hashes are in it, and its manifest is not sealed */
    uint64_t bytes_done, bytes_kept; /* of the source's tensors: read, and not read as they had not changed */
};

/* Not under lock; view->preparing is set, and only the caller uses the view's slots that are not served. -ESTALE: the
 * trainer took the source's slot. -ECANCELED: the agent stops. Else as ws_derive_new, ws_derive_run, ws_slots_acquire
 * and ws_slots_prepare. On failure the slot is free again. */
WS_MUST_USE int ws_derivation_run(struct ws_derivation *d, struct ws_error *err);
/* Under lock: the model's newest version, where a slot serves it; NULL: none does. */
struct ws_slot *ws_derivation_find_newest(const struct ws_agent_model *source);
void ws_derived_reset(struct ws_derived *d);

#endif
