/* Probes: a small HTTP server of the mount, for load balancers, Kubernetes and Prometheus. It only reads:
 *
 *     GET /healthz                              the mount answers
 *     GET /metrics                              as the file metrics
 *     GET /v1/status                            as wsync status --json
 *     GET /ready/{model}[?behind=N]             all engines of the model
 *     GET /ready/{model}/{engine}[?behind=N]    one: 200 or 503 with the reason
 *
 * An engine is ready when it runs and serves the mount's current version, or with N: when it is at most N
 * behind what was released (published, where trainers do not release). It is asked now, so one that was
 * restarted with old weights is never called ready. */
#ifndef WS_FS_PROBES_H
#define WS_FS_PROBES_H
#include "fs/engines/controller.h"

struct ws_probes;
/* listen: HOST:PORT. tokens_file: whose tokens with the role read may have the metrics (access/token_table.h); NULL:
 * every client. -EADDRINUSE and what else bind says, -EINVAL. */
WS_MUST_USE int ws_probes_new(struct ws_probes **out, const char *listen, const char *tokens_file,
                              struct ws_control *c, struct ws_error *err);
void ws_probes_free(struct ws_probes *p); /* NULL is fine; before the control's end */

#endif
