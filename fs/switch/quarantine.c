#include "fs/switch/quarantine.h"

bool ws_quarantine_holds(struct ws_control *c, struct ws_controller *ctl, struct ws_model *m)
{
    struct ws_desired o;
    struct ws_version *current = ws_model_current(m);
    struct ws_version_id id = {0};
    ws_model_desired(m, &o);
    if (current) {
        id = ws_version_id(current);
        ws_version_put(current);
    }
    pthread_mutex_lock(&c->lock);
    if (!current)
        id = ctl->target; /* a daemon before had it, and may have been left behind */
    const bool tried = ctl->answered_release == o.released_by || ctl->left_release == o.released_by;
    const bool follows = ws_policy_follows_releases(ctl->policy);
    pthread_mutex_unlock(&c->lock);
    return o.released_by && o.quarantines && tried && follows && id.lineage[0] &&
           !ws_version_id_equal(&id, &o.released);
}
