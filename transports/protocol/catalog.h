/* Catalog: what a server offers, seen from the transports. The agent implements it, and a mount that
 * serves other mounts; tcp/serve.c and ipc/serve.c carry it. All functions may be called from any thread.
 *
 * A hold is a lease on one version's bytes. Revocable holds (TCP) may be revoked when the slot is
 * wanted: `revoked` is called once, from any thread, and the holder must stop reading soon and drop;
 * the memory stays mapped until it has dropped. Holds of ipc are not revocable. */
#ifndef WS_TRANSPORTS_PROTOCOL_CATALOG_H
#define WS_TRANSPORTS_PROTOCOL_CATALOG_H
#include "transports/base/error.h"
#include "transports/delta/delta.h"
#include "transports/format/manifest.h"
#include "transports/memory/region.h"
#include <jansson.h>

struct ws_hold {
    const struct ws_manifest *manifest; /* valid while held */
    const char *manifest_json;          /* the same as text, made once; NULL: whoever needs it makes it */
    size_t manifest_json_bytes;
    struct ws_region *const *regions; /* one a file, in the manifest's order; NULL for size 0 */
};

struct ws_catalog_ops {
    /* Grows by one at every change of what `models` returns. */
    uint64_t (*seq)(void *self);
    /* The state, never deltas, so a lost event is made good by the next:
     * {"seq":7,"agent":1,"models":[{"name":"actor","newest":2,"run":"r1","digest":"..",
     *   "versions":[{"version":1,"run":"r1","digest":"..","bytes":123,"created_ns":1}, ...]}]}
     * agent: another number after a restart (may be missing); versions oldest first; model NULL: all. New
     * reference. -ENOENT. */
    int (*models)(void *self, const char *model, json_t **out, struct ws_error *err);
    /* version as number; run NULL: the model's live lineage. -ENOENT never heard of; -ESTALE gone
     * (HTTP 410); -EINPROGRESS: it is being made because of this, ask again when seq grows. holder: who, for
     * status ("tcp 10.0.0.3:4123"). revoked NULL: not revocable. */
    int (*hold)(void *self, const char *model, uint64_t version, const char *run, const char *holder,
                void (*revoked)(void *arg), void *arg, struct ws_hold **out, struct ws_error *err);
    void (*drop)(void *self, struct ws_hold *hold);
    /* May descriptors of what is held go to a peer, who keeps them as long as he likes? -EOPNOTSUPP: he is to
     * copy, and err says why. Not one who cannot (can_copy). NULL: they may. */
    int (*lend)(void *self, struct ws_hold *hold, bool can_copy, struct ws_error *err);
    /* The deltas that lead to a version, newest first, also of one whose bytes are gone: delta/listing.h. New
     * reference. look: those that are known now; else -EAGAIN where they are
     * not yet: ask again shortly. -ENOMEM.
     * NULL: there are none ever. */
    int (*deltas)(void *self, const char *model, uint64_t version, const char *run, bool look, json_t **out,
                  struct ws_error *err);
    /* One of them, with a reference; runs may be NULL, as in hold. level: what a client would like the next
     * ones to be compressed with. -ENOENT. NULL like deltas. */
    int (*delta)(void *self, const char *model, uint64_t version, const char *run, const struct ws_mark *base,
                 unsigned level, struct ws_delta **out, struct ws_error *err);
    /* (Carried by tcp alone.) Of what is held, may this be read now: blocks [first, first + n) of a file; n
     * 0: the manifest? NULL in the table: all that is held may, at once. 1: yes, and hold says where it is.
     * 0: not yet; with `arrived` it is asked for, ahead of what nobody waits for, and arrived is called once,
     * from any thread, within a bounded time: look again then. With arrived NULL this is only a look. Else
     * why it will not come, and it stays said. One thread at a time asks about a hold, one question at a
     * time. The caller may hold a lock that `revoked` and `arrived` take. */
    int (*here)(void *self, struct ws_hold *hold, size_t file, size_t first, size_t n,
                void (*arrived)(void *arg), void *arg, struct ws_error *err);
    /* Takes the question back. True: arrived will not be called; false: it was, or is just being called. */
    bool (*forget)(void *self, struct ws_hold *hold);
    /* The mount who polls now and will be heard of again within ms milliseconds. NULL: nobody wants to know.
     */
    void (*seen)(void *self, const char *who, unsigned ms);
    /* A route that the transports do not know (GET and POST; path without query, from its slash).
     * body is NULL or parsed JSON (borrowed). *reply: JSON to send (new reference) or NULL, else
     * *text: malloc'ed text/plain (metrics). Returns 0, or -errno for the HTTP status: ENOENT 404,
     * EINVAL 400, ESTALE 410, EBUSY 409, EAGAIN 503, EPERM 403. */
    int (*route)(void *self, const char *method, const char *path, const char *query, const json_t *body,
                 json_t **reply, char **text, struct ws_error *err);
};

struct ws_catalog {
    const struct ws_catalog_ops *ops;
    void *self;
};

#endif
