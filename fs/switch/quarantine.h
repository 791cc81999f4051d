/* Quarantine: engines that a release has left behind, and that are kept from serving until they are brought along. */
#ifndef WS_FS_SWITCH_QUARANTINE_H
#define WS_FS_SWITCH_QUARANTINE_H
#include "fs/engines/controller.h"
#include "fs/store/model.h"
#include <stdbool.h>

/* Is the model left behind by a release whose rest is to be kept from serving? It does not serve what was released, and
 * has tried to, or was not ready for it when it was committed. Takes the control's and the store's lock. Any thread. */
bool ws_quarantine_holds(struct ws_control *c, struct ws_controller *ctl, struct ws_model *m);

#endif
