/* Restore: carries out what the settings of a daemon before say of versions that sources list only now: pins,
 * and the version that was current. */
#ifndef WS_FS_SWITCH_RESTORE_H
#define WS_FS_SWITCH_RESTORE_H
#include "fs/engines/controller.h"

/* Reads the settings into the controllers, before there are threads. What is wrong with them is reported and left
 * out. */
void ws_restore_settings(struct ws_control *c);
/* A version has become known: pinned again, and made current again once it is here. Returns soon. */
void ws_restore_version(struct ws_control *c, struct ws_controller *ctl, struct ws_model *m,
                        struct ws_version *v);
/* The same, where a try has failed and it is time for the next. */
void ws_restore_again(struct ws_control *c, struct ws_controller *ctl, struct ws_model *m);
/* Is a version known here that was current for a daemon before, and has no try to make it current failed? */
bool ws_restore_is_due(struct ws_control *c, struct ws_controller *ctl);

#endif
