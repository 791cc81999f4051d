/* Settings: what operators set by commands (engines, sources, policies, pins) and what the engines serve, kept over
 * the end of a daemon in a small file, as the commands that bring it back:
 *
 *     wsync-settings 1
 *     model "actor"
 *     policy follow-released
 *     commit all
 *     strategy ipc,tcp           where it was set
 *     source "dir:/models/a" others /models    an added one, whether root or others named it, below which folder it is
 *     config pin 41              what the config's file had set last (control/declared.h)
 *     engine add a vllm http://10.0.0.4:8000 pause=keep
 *     broken a                   it has no good weights: never resumed before a load that it confirms
 *     doubted a                  uncertain: a switch had it, or left it: it is brought to `current`
 *     draft a 42 RUN 1.7957e+09  what its draft model was switched to, by which process of the engine's (engines/draft.h)
 *     needed ep:0/16             which tensors the engines were loaded with, where that is not all (switch/needed.h)
 *     current 42 RUN            also what the first switch ever goes to, while it runs
 *     pin 41 RUN
 *     peer http://10.0.0.7:18863 that an agent named last (store/parents.h): asked where no source answers
 *     signed 1700000000000000000 time of the youngest signed version that was current: none older is followed to
 *     adapters RUN 1 42          of an adapter's model: the run's versions of these numbers have the shorter names (engines/adapters.h)
 *     stray 7 7                  ... under whose shorter names others have loaded files: no version gets these
 *     kept 41 RUN                ... and one that engines list beside the current version
 *     end 0123456789abcdef       XXH3 of what is before
 *
 * An older daemon's `switching` is `doubted` for each engine of the model. Written whole to a file beside it
 * and renamed, so that there is always an old or a new one. Tokens are never in it, only the names of their
 * files. Lines of engines have the words of the commands, not what was shown of these. */
#ifndef WS_FS_SWITCH_SETTINGS_H
#define WS_FS_SWITCH_SETTINGS_H
#include "fs/engines/controller.h"

/* Would they fit with that many bytes more, whatever happens to engines meanwhile? -E2BIG says what to do. */
WS_MUST_USE int ws_settings_fit(struct ws_control *c, size_t more, struct ws_error *err);
/* Writes them now. After a failure, what was set stays set until the daemon ends. */
WS_MUST_USE int ws_settings_write(struct ws_control *c, struct ws_error *err); /* -ENOSPC, -EROFS, ... */
void ws_settings_save(struct ws_control *c); /* the same; an error goes to the mount's last_error */
/* From now on no call writes anything: a successor may have the file. */
void ws_settings_close(struct ws_control *c);
/* Brings an engine back, by its line. False: it cannot. */
typedef bool ws_settings_add(void *arg, struct ws_controller *ctl, const char *line);
/* Reads them at start. Policies and commit settings are set; pins and targets are left in the controllers for
 * versions that are not known yet, sources for ws_added_open; `engine add` lines are given to add, one after the
 * other. A line that is not understood, or that add refuses, is reported and kept in a copy. A damaged file is
 * moved aside and reported. 0 also where there is none. */
WS_MUST_USE int ws_settings_load(struct ws_control *c, ws_settings_add *add, void *arg, struct ws_error *err);
/* The same of a text in memory, which is changed. NULL, or why none of it holds. left_out: the last line that is not
 * understood or was refused, as it may be shown; empty: there is none. */
const char *ws_settings_parse(struct ws_control *c, char *text, size_t n, ws_settings_add *add, void *arg,
                              char left_out[WS_MAX_COMMAND + 1]);

#endif
