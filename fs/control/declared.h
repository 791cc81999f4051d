/* Declared: what the config had set when it was set last, kept with the settings as lines `config COMMAND`. What it
 * names no more is taken back, also where the file was changed while no daemon ran: words go back to what a model has
 * that comes for the first time, engines, sources and pins go. What an operator has set to something else meanwhile
 * stays. Private to control and its files. */
#ifndef WS_FS_CONTROL_DECLARED_H
#define WS_FS_CONTROL_DECLARED_H
#include "fs/control/config_file.h"

/* What was set last; the caller's. NULL: nothing, or no memory. */
struct ws_config_model *ws_declared_read(struct ws_control *c);
/* Records what the config says now. beside: what was set last is recorded, too, as some of it may not be taken back
 * yet. -ENOMEM. */
WS_MUST_USE int ws_declared_record(struct ws_control *c, const struct ws_config_model *all, bool beside,
                                   struct ws_error *err);
/* Takes back what `before` has and `all` does not. -EBUSY: a switch has the engines; then it is called again. */
WS_MUST_USE int ws_declared_take_back(struct ws_control *c, const struct ws_config_model *before,
                                      const struct ws_config_model *all, struct ws_error *err);
/* Without a config: what one had set is as set by hand from now on. */
void ws_declared_forget(struct ws_control *c);

#endif
