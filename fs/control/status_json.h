/* Status_json: what the files status, engines, history and last_error of a mount say, as JSON whose keys and types are always the
 * same; wsync-control(7) has them. What a file does not say is null, 0, false or an empty list. What a newer mount says
 * beyond this is text under its own key. `wsync status --json` prints it, and the mount's web page shows it. */
#ifndef WS_FS_CONTROL_STATUS_JSON_H
#define WS_FS_CONTROL_STATUS_JSON_H
#include "fs/engines/control.h"
#include <jansson.h>

/* By the files' texts. New references; without memory parts are missing. */
json_t *ws_status_json_mount(const char *status, const char *last_error);
struct ws_status_texts {
    const char *status, *engines, *history, *last_error;
};
json_t *ws_status_json_model(const char *model, const struct ws_status_texts *texts);
/* Of this process's own mount and all of its models, with "mount" and "models" as the command adds them. NULL: no
 * memory. Any thread. */
json_t *ws_status_json(struct ws_control *c);

#endif
