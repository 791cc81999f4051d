/* Catalog: what a server offers, seen from the transports. The agent implements it (later a mount
 * too); tcp_serve and ipc_serve carry it. All functions may be called from any thread.
 *
 * A hold is a lease on one version's bytes. Revocable holds (TCP) may be revoked when the slot is
 * wanted: `revoked` is called once, from any thread, and the holder must stop reading soon and drop;
 * the memory stays mapped until it has dropped. Holds of ipc are not revocable. */
#ifndef WS_TRANSPORTS_CATALOG_H
#define WS_TRANSPORTS_CATALOG_H
#include "transports/bundle.h"
#include "transports/delta.h"
#include "transports/error.h"
#include "transports/region.h"
#include <jansson.h>

struct ws_hold {
    const struct ws_manifest *manifest; /* valid while held */
    const char *manifest_json;          /* the same as text, made once */
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
     * (HTTP 410). holder: who, for status ("tcp 10.0.0.3:4123"). revoked NULL: not revocable. */
    int (*hold)(void *self, const char *model, uint64_t version, const char *run, const char *holder,
                void (*revoked)(void *arg), void *arg, struct ws_hold **out, struct ws_error *err);
    void (*drop)(void *self, struct ws_hold *hold);
    /* The deltas that lead to a version, newest first, also of one whose bytes are gone: delta_offer.h. New
     * reference, never NULL but for want of memory. NULL: there are none ever. */
    json_t *(*deltas)(void *self, const char *model, uint64_t version, const char *run);
    /* One of them, with a reference; runs may be NULL, as in hold. level: what a client would like the next
     * ones to be compressed with. -ENOENT. NULL like deltas. */
    int (*delta)(void *self, const char *model, uint64_t version, const char *run, const struct ws_mark *base,
                 unsigned level, struct ws_delta **out, struct ws_error *err);
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
