/* Draft: which version the draft model of an engine has. Engines do not say it, so it is what the mount has loaded, this
 * daemon or one before, for as long as the process answers that loaded it. What cannot be told is not known. Pure. */
#ifndef WS_FS_ENGINES_DRAFT_H
#define WS_FS_ENGINES_DRAFT_H
#include "backends/engine/engine.h"
#include "transports/base/version_id.h"
#include <stdio.h>

#define WS_DRAFT_WORD       "draft " /* of its line in the settings */
#define WS_DRAFT_LINE_BYTES (WS_VERSION_ID_TEXT + WS_ENGINE_PROCESS_CHARS + 16) /* beside the engine's name */

/* Guarded by the control's lock. */
struct ws_draft {
    struct ws_version_id id;                   /* no lineage: not known */
    char process[WS_ENGINE_PROCESS_CHARS + 1]; /* that loaded it; empty: the engine does not say */
    bool is_kept; /* by a daemon before: the engine has not answered this one yet */
};

/* It has that version. process: that says so; empty: not known. */
void ws_draft_loaded(struct ws_draft *d, const struct ws_version_id *id, const char *process);
void ws_draft_forget(struct ws_draft *d);
/* The engine has answered. process: as it says now, empty: it does not; restarted: it names another version of its target
 * than before; is_current: it names the current one, as no engine does that was started anew. */
void ws_draft_seen(struct ws_draft *d, const char *process, bool restarted, bool is_current);
/* "42@RUN", or "unknown". */
const char *ws_draft_text(const struct ws_draft *d, char out[WS_VERSION_ID_TEXT]);
/* A line of the settings, where it is known; and back from what is behind the engine's name. False: it is none. */
void ws_draft_print(const struct ws_draft *d, const char *engine, FILE *f);
WS_MUST_USE bool ws_draft_read(struct ws_draft *d, const char *text);

#endif
