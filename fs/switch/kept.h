/* Kept: versions of an adapter's model that engines still list for rollouts that are under way. Their files stay while an
 * engine lists them: it may read them again (load_drops_adapters in backends/engine/engine.h). */
#ifndef WS_FS_SWITCH_KEPT_H
#define WS_FS_SWITCH_KEPT_H
#include "fs/engines/controller.h"

/* Becomes the newest of those that are kept. Nothing where the mount ends. */
void ws_kept_push(struct ws_control *c, struct ws_controller *ctl, struct ws_version *v);
void ws_kept_remove(struct ws_control *c, struct ws_controller *ctl, const struct ws_version_id *id);
/* A version that a daemon before has kept is known again: it is pulled, and held. */
void ws_kept_restore(struct ws_control *c, struct ws_controller *ctl, struct ws_version *v);
/* A look: what no engine keeps or lists is held no more, nor what no source lists. */
void ws_kept_trim(struct ws_control *c, struct ws_controller *ctl);
/* At the mount's end, before the store's. */
void ws_kept_release_all(struct ws_control *c);

/* The adapters that an engine should list, the current version's first. */
struct ws_wanted_adapters {
    size_t n;
    struct ws_wanted_adapter {
        struct ws_version_id id;
        ws_adapter_name name;
        bool is_here; /* complete: it may be loaded */
    } items[WS_MAX_ADAPTERS_KEPT];
};
/* keep: how many versions of the controller's model. False: none is current, so that it is not known. */
bool ws_kept_find_wanted(struct ws_control *c, struct ws_controller *ctl, unsigned keep,
                         struct ws_wanted_adapters *out);

#endif
