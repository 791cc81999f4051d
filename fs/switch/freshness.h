/* Freshness: a source cannot lead a mount back. Lists of versions, and releases, are not signed, so they are hints: a
 * source may replay an old one. Where versions must be signed, following goes to none whose signed time is before that
 * of the youngest that was current here. An operator's command at the mount may. The settings keep the time. */
#ifndef WS_FS_SWITCH_FRESHNESS_H
#define WS_FS_SWITCH_FRESHNESS_H
#include "fs/engines/controller.h"

/* May following go to this version, whose manifest is here? -EPERM: it is older. */
WS_MUST_USE int ws_freshness_check(struct ws_control *c, struct ws_controller *ctl, struct ws_version *v,
                                   struct ws_error *err);
/* It is current now. */
void ws_freshness_record(struct ws_control *c, struct ws_controller *ctl, struct ws_version *v);

#endif
