/* Config: the file of -o config=, what operators want of this mount, as the commands that would set it:
 *
 *     # models of the trainer at node 7
 *     add critic dir:/data/critic          as in /ctl
 *     model actor                          what follows is as in actor/ctl
 *     policy follow-released
 *     commit quorum=3
 *     strategy ipc,tcp
 *     need ep:0/16                         as -o need=actor=ep:0/16; taken at the start only
 *     engine add e1 sglang http://127.0.0.1:30000 group=g
 *     pin 41
 *
 * A folder is all of its *.conf, in the order of their names. It is read at the start and at SIGHUP. All of it is checked
 * before any of it is set: a line that is not understood ends the start, and a reload leaves everything as it was; the
 * error has file and line. Then policy, commit and strategy are set where the file has them, and a model that it names has
 * the file's engines and no others: engines that are as they were go on untouched. Sources and pins are added to what is
 * there. What the file had set and names no more is taken back (declared.h). Words and engines that are set by hand later
 * hold until the next reading, sources and pins until they are removed by hand; the status shows how all that differs. Private to control and its files. */
#ifndef WS_FS_CONTROL_CONFIG_H
#define WS_FS_CONTROL_CONFIG_H
#include "fs/engines/controller.h"

/* At the start, before any source is there. -EINVAL: FILE:LINE and what to do; or why it cannot be read. */
WS_MUST_USE int ws_config_start(struct ws_control *c, struct ws_error *err);
/* Reads and sets it anew, on a thread of its own; waits for switches that run. Nothing where there is no file. */
void ws_config_reload(struct ws_control *c);
/* A version has appeared: is it to be pinned? */
void ws_config_version_known(struct ws_control *c, struct ws_controller *ctl, struct ws_version *v);
/* Lines of the status: of the mount's (ctl the root's), or how a model differs. Takes the control's lock. */
void ws_config_print(struct ws_control *c, struct ws_controller *ctl, FILE *f);
void ws_config_free(struct ws_control *c);

#endif
