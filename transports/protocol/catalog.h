/* Catalog: what a server offers, seen from the transports. The agent implements it, and so does a mount that
 * serves other mounts; tcp/serve.c and ipc/serve.c carry it. All functions may be called from any thread.
 *
 * A lease keeps one version's bytes in place. A revocable lease (tcp) may be revoked when the slot is wanted:
 * `revoked` is called once, from any thread, and the holder must stop reading soon and release. The memory stays
 * mapped until it has released. Leases of ipc are not revocable. */
#ifndef WS_TRANSPORTS_PROTOCOL_CATALOG_H
#define WS_TRANSPORTS_PROTOCOL_CATALOG_H
#include "transports/base/error.h"
#include "transports/delta/delta.h"
#include "transports/format/manifest.h"
#include "transports/memory/region.h"
#include "transports/protocol/api_routes.h"
#include <jansson.h>

struct ws_lease {
    const struct ws_manifest *manifest; /* valid until released */
    const char *manifest_json; /* the same as text, made once; NULL: a server that needs it makes it */
    size_t manifest_json_bytes;
    struct ws_region *const *regions; /* one a file, in the manifest's order; NULL for size 0 */
    /* NULL: bytes are read from the regions. Else there are none, and this gathers bytes that may be read (`here`) and
     * lie in one block. (Carried by tcp alone.) */
    void (*read)(struct ws_lease *lease, size_t file, uint64_t at, size_t n, void *out);
};

/* The begin of a block. */
struct ws_some {
    uint64_t n; /* so many bytes of it may be read */
    uint64_t
        attempt; /* the one by which it comes, set at the first call: 0 before. By another one there is nothing more of
                       * it before it is here */
    bool is_here; /* all of it. Where some was read before, that has to be compared with what it became */
};

#define WS_ROUTE_HELD 2

struct ws_catalog_ops {
    /* Grows by one at every change of what `models` returns. */
    uint64_t (*seq)(void *self);
    /* The whole state, not what changed, so that the next event makes a lost one good:
     * {"seq":7,"agent":1,"models":[{"name":"actor","newest":2,"run":"r1","digest":"..",
     *   "versions":[{"version":1,"run":"r1","digest":"..","bytes":123,"created_ns":1}, ...]}]}
     * agent: another number after a restart (may be missing); versions oldest first; model NULL: all. New
     * reference. -ENOENT. */
    int (*models)(void *self, const char *model, json_t **out, struct ws_error *err);
    /* Leases a version. lineage NULL: the model's live lineage. -ENOENT: unknown. -ESTALE: gone (HTTP 410).
     * -EINPROGRESS: it is being made because of this call; try again when seq grows. holder: the client, for
     * status ("tcp 10.0.0.3:4123"). revoked NULL: not revocable. */
    int (*lease)(void *self, const char *model, uint64_t version, const char *lineage, const char *holder,
                 void (*revoked)(void *arg), void *arg, struct ws_lease **out, struct ws_error *err);
    void (*release)(void *self, struct ws_lease *lease);
    /* May descriptors of what is leased go to a peer, which keeps them as long as it likes? -EOPNOTSUPP: the peer
     * must copy, and err says why; never where it cannot copy (can_copy false). NULL: they may. */
    int (*lend)(void *self, struct ws_lease *lease, bool can_copy, struct ws_error *err);
    /* The deltas that lead to a version, newest first, also of one whose bytes are gone: delta/listing.h. New
     * reference. look: those that are known now; else -EAGAIN where they are not known yet: try again shortly.
     * -ENOMEM. NULL: there are never any. */
    int (*deltas)(void *self, const char *model, uint64_t version, const char *lineage, bool look,
                  json_t **out, struct ws_error *err);
    /* One of them, with a reference; lineage may be NULL, as in lease. level: how hard the client would like the
     * next ones to be compressed. -ENOENT. NULL as for deltas. */
    int (*delta)(void *self, const char *model, uint64_t version, const char *lineage,
                 const struct ws_version_id *base, unsigned level, struct ws_delta **out,
                 struct ws_error *err);
    /* (Carried by tcp alone.) May this part of a lease be read now: blocks [first, first + n) of a file; n 0: the
     * manifest? NULL in the table: all of a lease may be read at once. Returns
     *     1     yes, and the lease says where it is
     *     0     not yet. With `arrived` it is requested, ahead of what no client waits for, and arrived is called
     *           once, from any thread, within a bounded time: check again then. With arrived NULL this only checks
     *     < 0   why it will not come; later calls return the same
     * One thread at a time calls this for a lease, with one request at a time. The caller may hold a lock that
     * `revoked` and `arrived` take. */
    int (*here)(void *self, struct ws_lease *lease, size_t file, size_t first, size_t n,
                void (*arrived)(void *arg), void *arg, struct ws_error *err);
    /* NULL: a block is read when it is here. Else how many of the first bytes of a block may be read, which may not be here,
     * and of which the caller has read `from` (struct ws_some).
     *     1     *some says it: more than `from`
     *     0     no more yet, as for `here`
     *     < 0   as for `here`
     * What was read of a block that is not here is that only if another call, with arrived NULL, does not say 0 afterwards. */
    int (*some)(void *self, struct ws_lease *lease, size_t file, size_t block, uint64_t from,
                struct ws_some *some, void (*arrived)(void *arg), void *arg, struct ws_error *err);
    /* Cancels the request of `here` or `some`. True: arrived will not be called; false: it was, or is just being called. */
    bool (*forget)(void *self, struct ws_lease *lease);
    /* The mount mount_id of this identity polls now, and will again within ms milliseconds. NULL: the catalog does
     * not track mounts. */
    void (*seen)(void *self, const struct ws_identity *who, const char *mount_id, unsigned ms);
    /* The routes that the catalog has besides ws_api_routes: tables, ended by NULL. NULL: none. */
    const struct ws_api_route *const *(*routes)(void *self);
    /* One of them, for a client that has its role (GET and POST; path from its slash, without query). body is NULL or
     * parsed JSON (borrowed). *reply: JSON to send (new reference) or NULL, else *text: malloc'ed text/plain
     * (metrics). Returns 0, or -errno for the HTTP status: ENOENT 404, EINVAL 400, ESTALE 410, EBUSY 409, EAGAIN
     * 503, EPERM 403. Where the body has hold_ms, WS_ROUTE_HELD: there is nothing to say yet. (Carried by tcp alone, as
     * is hold_ms.) It is asked again when the server is told (ws_tcp_server_wake_held), and after so long without
     * hold_ms in its body. */
    int (*route)(void *self, const struct ws_identity *who, const char *method, const char *path,
                 const char *query, const json_t *body, json_t **reply, char **text, struct ws_error *err);
    /* The error for a request that is none of its routes: what it is instead, or where to look. */
    int (*no_route)(void *self, const char *method, const char *path, struct ws_error *err);
};

struct ws_catalog {
    const struct ws_catalog_ops *ops;
    void *self;
};

#endif
