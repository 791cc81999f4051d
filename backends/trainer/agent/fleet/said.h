/* Said: what a mount says beside its state, as the agent keeps it: known members only, each bounded, so that no report
 * takes more than some KiB. */
#ifndef WS_TRAINER_AGENT_FLEET_SAID_H
#define WS_TRAINER_AGENT_FLEET_SAID_H
#include <jansson.h>

#define WS_SAID_TEXT 300 /* bytes of one text */

/* A new object of those texts, printable, and of those numbers above 0; lists end with NULL. NULL: nothing was said, or
 * there is no memory. */
json_t *ws_said_take(const json_t *said, const char *const *texts, const char *const *numbers);
/* What a report's "came" says: how the version that it is about came to the mount. */
json_t *ws_said_take_came(const json_t *said);
/* What "last_error" says. */
json_t *ws_said_take_error(const json_t *said);

#endif
