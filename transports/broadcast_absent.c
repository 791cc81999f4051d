/* Broadcast in a build without NCCL's headers: it says so. */
#include "transports/broadcast.h"
#include <errno.h>

int ws_broadcast_available(struct ws_error *why)
{
    return ws_error_set(why, ENOTSUP,
                        "this build has no NCCL: nccl.h was not there when it was made (NCCL_HOME)");
}

int ws_broadcast_fetch(struct ws_source *s, struct ws_broadcast_fetch *f, struct ws_error *err)
{
    (void)s;
    f->how[0] = '\0';
    return ws_broadcast_available(err);
}
