#include "backends/trainer/publisher_state.h"
#include <errno.h>
#include <stdio.h>

int ws_publisher_call(struct wsync_publisher *p, const char *verb, json_t *body, json_t **reply, int *fds,
                      size_t max, size_t *n, struct ws_error *err)
{
    char path[64];
    snprintf(path, sizeof(path), "/v1/local/%s", verb);
    if (!body)
        return ws_error_set(err, ENOMEM, "no memory for a request");
    int rc = ws_ipc_call(p->sock, "POST", path, body, NULL, 0, reply, fds, max, n, err);
    json_decref(body);
    return rc;
}
