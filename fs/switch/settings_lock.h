/* Settings lock: where the settings of a mount (settings.h) are, and which daemon owns them. */
#ifndef WS_FS_SWITCH_SETTINGS_LOCK_H
#define WS_FS_SWITCH_SETTINGS_LOCK_H
#include "transports/base/error.h"

/* The path of a mount's settings below dir (NULL: /var/lib/wsync for root, else $XDG_STATE_HOME/wsync or
 * ~/.local/state/wsync). malloc'ed; NULL: dir is "none", or there is no home. */
char *ws_settings_path(const char *dir, const char *mountpoint);
/* One daemon owns them: takes the lock on the file beside them (NAME.lock, with its process id), or on
 * themselves where their folder is only read. Waits for a predecessor that is ending. *out: for
 * ws_settings_unlock; -1: they are not kept. -EBUSY: another daemon has them; else why they could not be kept
 * in a folder that was asked for. */
WS_MUST_USE int ws_settings_lock(const char *dir, const char *mountpoint, int *out, struct ws_error *err);
void ws_settings_unlock(int lock); /* -1 is fine */

#endif
