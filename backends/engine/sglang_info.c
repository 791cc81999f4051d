#include "backends/engine/sglang_info.h"
#include <errno.h>

int ws_sglang_info(const struct ws_engine_target *t, struct ws_http_reply *reply, struct ws_error *err)
{
    int rc = ws_call_get(t, "/server_info", reply, err);
    return rc == -EPROTO ? ws_call_get(t, "/get_server_info", reply, err)
                         : rc; /* its name in older releases */
}
