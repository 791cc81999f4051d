#include "backends/trainer/api/engine_options.h"
#include <errno.h>
#include <string.h>

int ws_engine_options_read(const wsync_engine *e, const struct ws_engine_ops **ops,
                           struct ws_engine_target *t, struct ws_error *err)
{
    const struct ws_engine_ops *found = e->kind ? ws_engine_find(e->kind) : NULL;
    bool known = !e->pause_mode;

    *t = (struct ws_engine_target){.url = e->url,
                                   .token = e->token,
                                   .admin_token = e->admin_token,
                                   .ca_file = e->ca_file,
                                   .pause_mode = e->pause_mode};
    if (!found || found == &ws_engine_remote)
        return ws_error_set(err, EINVAL, "there is no kind of engine '%.50s' here; it is sglang or vllm",
                            e->kind ? e->kind : "");
    for (const char *const *m = found->pause_modes; !known && *m; m++)
        known = strcmp(*m, e->pause_mode) == 0;
    if (!known)
        return ws_error_set(err, EINVAL, "'%.50s' is no pause mode of %s", e->pause_mode, found->kind);
    *ops = found;
    return ws_engine_cache_parse(e->cache, &t->cache, err);
}
