/* Settings: what operators set by commands (engines, sources, policies, pins) and what the engines serve, kept over
 * the end of a daemon in a small file, as the commands that bring it back:
 *
 *     wsync-settings 1
 *     model "actor"
 *     policy follow
 *     commit all
 *     strategy ipc,tcp           where it was set
 *     source "dir:/models/a" others /models    an added one, whether root or others named it, below which folder it is
 *     engine add a vllm http://10.0.0.4:8000 pause=keep
 *     broken a                   it has no good weights: never resumed before a load that it confirms
 *     doubted a                  uncertain: a switch had it, or left it: it is brought to `current`
 *     current 42 RUN            also what the first switch ever goes to, while it runs
 *     pin 41 RUN
 *     signed 1700000000000000000 time of the youngest signed version that was current: none older is followed to
 *     end 0123456789abcdef       XXH3 of what is before
 *
 * An older daemon's `switching` is `doubted` for each engine of the model. Written whole to a file beside it
 * and renamed, so that there is always an old or a new one. Tokens are never in it, only the names of their
 * files. Lines of engines have the words of the commands, not what was shown of these. */
#ifndef WS_FS_SWITCH_SETTINGS_H
#define WS_FS_SWITCH_SETTINGS_H
#include "fs/engines/controller.h"

/* The path of a mount's settings below dir (NULL: /var/lib/wsync for root, else $XDG_STATE_HOME/wsync or
 * ~/.local/state/wsync). malloc'ed; NULL: dir is "none", or there is no home. */
char *ws_settings_path(const char *dir, const char *mountpoint);
/* One daemon owns them: takes the lock on the file beside them (NAME.lock, with its process id), or on
 * themselves where their folder is only read. Waits for a predecessor that is ending. *out: for
 * ws_settings_unlock; -1: they are not kept. -EBUSY: another daemon has them; else why they could not be kept
 * in a folder that was asked for. */
WS_MUST_USE int ws_settings_lock(const char *dir, const char *mountpoint, int *out, struct ws_error *err);
void ws_settings_unlock(int lock); /* -1 is fine */
/* Would they fit with that many bytes more, whatever happens to engines meanwhile? -E2BIG says what to do. */
WS_MUST_USE int ws_settings_fit(struct ws_control *c, size_t more, struct ws_error *err);
/* Writes them now. After a failure, what was set stays set until the daemon ends. */
WS_MUST_USE int ws_settings_write(struct ws_control *c, struct ws_error *err); /* -ENOSPC, -EROFS, ... */
void ws_settings_save(struct ws_control *c); /* the same; an error goes to the mount's last_error */
/* From now on no call writes anything: a successor may have the file. */
void ws_settings_close(struct ws_control *c);
/* Reads them at start. Policies and commit settings are set; pins and targets are left in the controllers for
 * versions that are not known yet, sources for ws_added_open; `engine add` lines are given to add, one after the
 * other. A line that is not understood, or that add refuses, is reported and kept in a copy. A damaged file is
 * moved aside and reported. 0 also where there is none. */
WS_MUST_USE int ws_settings_load(struct ws_control *c,
                                 bool (*add)(void *arg, struct ws_controller *ctl, const char *line),
                                 void *arg, struct ws_error *err);

#endif
