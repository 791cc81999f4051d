/* The paths of the API, read and written in one place; tcp and ipc carry them.
 *   GET  /v1/models                         JSON of the catalog's models()
 *   GET  /v1/events?since=N[&timeout_ms=T]  the same once seq() > N (the carrier waits)
 *   GET  /v1/{model}/events?since=N         the same for one model
 *   GET  /v1/{model}/{version}/manifest[?run=R]
 *   GET  /v1/{model}/{version}/deltas[?run=R]           the deltas that lead to it: delta/listing.h
 *   GET  /v1/{model}/{version}/delta?base=B[&base_run=R][&part=I&parts=N][&level=L][&only=F][&run=R]
 *        not by ipc: one of them, as in delta/stream.h; level: how hard the next should be compressed for
 *        this client (zstd's, 0 to 3); only: of these blocks, as in delta/filter.h, or of more
 *   GET  /v1/{model}/{version}/files/{file}[?run=R]
 *        not by ipc
 *   GET  /v1/{model}/{version}/map[?run=R], POST .../unmap[?run=R]
 *        ipc only: descriptors, and giving them back
 *        map&copy=1: the peer only maps them, copies and closes; map&copies=1: it can do with that instead
 *   POST /v1/{model}/{version}/broadcast[?run=R]
 *        a place in a broadcast: transports/nccl/broadcast.c; an agent's, by its route
 * Anything else goes to the catalog's route: /v1/{model}/VERB and /v1/{model}/{version}/VERB are taken apart
 * for it. A poll with &who=NAME tells the catalog that the mount of that name is there.
 * Pure functions, callable from any thread. */
#ifndef WS_TRANSPORTS_PROTOCOL_API_H
#define WS_TRANSPORTS_PROTOCOL_API_H
/* Version of the publishers' routes (/v1/local/): each end sends it when a rank registers, and refuses another. */
#define WS_LOCAL_API 1
#include "transports/access/identity.h"
#include "transports/base/error.h"
#include "transports/base/version_id.h"
#include <stdbool.h>
#include <stdint.h>

enum ws_api_kind {
    WS_API_MODELS,
    WS_API_EVENTS,
    WS_API_MANIFEST,
    WS_API_DELTAS,
    WS_API_DELTA,
    WS_API_FILE,
    WS_API_MAP,
    WS_API_UNMAP,
    WS_API_OTHER
};
struct ws_api_request {
    enum ws_api_kind kind;
    char model[WS_MAX_NAME + 1]; /* empty: all */
    bool has_version;
    uint64_t version;
    char verb[32]; /* WS_API_OTHER: what is asked of the model or version; may be empty */
    char lineage[WS_LINEAGE_CHARS + 1]; /* empty: live lineage */
    char file[WS_MAX_NAME + 1];
    char mount_id[WS_MOUNT_ID_CHARS + 1];  /* of &who=; empty: the peer is no mount */
    char on_behalf[WS_IDENTITY_CHARS + 1]; /* of &as=: a node's agent passes on what this identity sent it */
    bool copy, copies;                     /* WS_API_MAP */
    struct ws_version_id base;             /* WS_API_DELTA; run empty: the version's own lineage */
    unsigned part, parts, level;
    const char *only; /* WS_API_DELTA: in the query; NULL: all blocks */
    size_t only_chars;
    uint64_t since;
    unsigned timeout_ms;
};
/* path is percent-decoded here; -EINVAL for a malformed one. */
WS_MUST_USE int ws_api_parse(const char *path, const char *query, struct ws_api_request *out,
                             struct ws_error *err);

/* The other way round; names are percent-encoded. */
#define WS_API_PATH_BYTES (6 * WS_MAX_NAME + 3 * WS_MOUNT_ID_CHARS + WS_LINEAGE_CHARS + 160)
/* model NULL: of all models; since 0: now, without waiting; mount_id NULL: the caller is no mount. */
void ws_api_models_path(char out[WS_API_PATH_BYTES], const char *model, uint64_t since, unsigned timeout_ms,
                        const char *mount_id);
/* verb: "manifest", "files", "map", "unmap", "loaded", ...; file only with "files"; run NULL or empty: the
 * live lineage. */
void ws_api_version_path(char out[WS_API_PATH_BYTES], const char *verb, const char *model, uint64_t version,
                         const char *file, const char *lineage);
/* Of map. copy: the peer only copies; else it would rather have descriptors to keep. */
void ws_api_map_path(char out[WS_API_PATH_BYTES], const char *model, uint64_t version, const char *lineage,
                     bool copy);
/* parts 1: all of it. */
void ws_api_delta_path(char out[WS_API_PATH_BYTES], const char *model, const struct ws_version_id *target,
                       const struct ws_version_id *base, unsigned part, unsigned parts, unsigned level);
/* Which mounts serve a version: GET; mount_id as in ws_fleet_serves. */
void ws_api_loaded_path(char out[WS_API_PATH_BYTES], const char *model, uint64_t version,
                        const char *mount_id);
/* Appends a name to a query, percent-encoded: "&as=NAME". -ENAMETOOLONG: it does not fit, and nothing is appended. */
WS_MUST_USE int ws_api_add_argument(char *out, size_t cap, const char *key, const char *name);
void ws_api_model_path(char out[WS_API_PATH_BYTES], const char *verb, const char *model);

#endif
