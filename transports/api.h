/* The paths of the API, read and written in one place; tcp and ipc carry them.
 *   GET  /v1/models                         JSON of the catalog's models()
 *   GET  /v1/events?since=N[&timeout_ms=T]  the same once seq() > N (the carrier waits)
 *   GET  /v1/{model}/events?since=N         the same for one model
 *   GET  /v1/{model}/{version}/manifest[?run=R]
 *   GET  /v1/{model}/{version}/files/{file}[?run=R]     not by ipc
 *   POST /v1/{model}/{version}/map, .../unmap[?run=R]   ipc only: descriptors, and giving them back
 *   POST /v1/{model}/{version}/loaded[?run=R]           a report; goes to the catalog's route
 * anything else goes to the catalog's route. Pure functions, callable from any thread. */
#ifndef WS_TRANSPORTS_API_H
#define WS_TRANSPORTS_API_H
#include "transports/error.h"
#include "transports/limits.h"
#include <stdint.h>

enum ws_api_kind {
    WS_API_MODELS,
    WS_API_EVENTS,
    WS_API_MANIFEST,
    WS_API_FILE,
    WS_API_MAP,
    WS_API_UNMAP,
    WS_API_LOADED,
    WS_API_OTHER
};
struct ws_api_request {
    enum ws_api_kind kind;
    char model[WS_MAX_NAME + 1]; /* empty: all */
    uint64_t version;
    char run[WS_RUN_CHARS + 1]; /* empty: live lineage */
    char file[WS_MAX_NAME + 1];
    uint64_t since;
    unsigned timeout_ms;
};
/* path is percent-decoded here; -EINVAL for a malformed one. */
WS_MUST_USE int ws_api_parse(const char *path, const char *query, struct ws_api_request *out,
                             struct ws_error *err);

/* The other way round; names are percent-encoded. */
#define WS_API_PATH_BYTES (6 * WS_MAX_NAME + WS_RUN_CHARS + 128)
/* model NULL: of all models; since 0: now, without waiting. */
void ws_api_models_path(char out[WS_API_PATH_BYTES], const char *model, uint64_t since, unsigned timeout_ms);
/* kind: one of a version's; file only with WS_API_FILE; run NULL or empty: the live lineage. */
void ws_api_version_path(char out[WS_API_PATH_BYTES], enum ws_api_kind kind, const char *model,
                         uint64_t version, const char *file, const char *run);

unsigned ws_http_status(int negative_errno); /* -ESTALE -> 410 */
int ws_errno_of_http(unsigned status);       /* 410 -> ESTALE; 2xx -> 0 */

#endif
