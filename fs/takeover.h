/* Takeover: `wsync mount --takeover DIR`: a running supervised mount goes on with the binary that is called. What is called sends itself, as a
 * descriptor, to the mount's supervisor (fs/supervisor.h), and waits for what becomes of it.
 *
 * The supervisor listens at /run/wsync-mounts/MAJOR:MINOR, the mount's device, others' than root's below $XDG_RUNTIME_DIR. The folder
 * is its user's alone, since whoever is heard there has the supervisor run what he likes; it is none of the folders that containers
 * share for an agent's socket. Root is heard, and the supervisor's user. Both sides say first of which wire (life.h) and release they are. */
#ifndef WS_FS_TAKEOVER_H
#define WS_FS_TAKEOVER_H
#include "fs/kept.h"

/* The supervisor's side. */

/* A descriptor, and the number of its name; or -errno: nobody will be heard. */
int ws_takeover_listen(dev_t dev, ino_t *ino);
/* The device may be another mount's by now, whose name is left alone. */
void ws_takeover_unlisten(dev_t dev, ino_t ino);
/* Somebody has connected: who it is, the binary, and its release. Who may not, or has another wire, is answered. -errno: there is nothing to be done.
 * Waits 2 s at most. */
WS_MUST_USE int ws_takeover_accept(int socket, int *client, int *binary, char release[WS_RELEASE_CHARS + 1]);
/* Closes client, which gets code (0: done) and the sentence. -1 is fine. */
void ws_takeover_answer(int client, int code, const char *text);

/* The other side. Returns once the mount is served by this process's binary, or by the one before again. said: a sentence. */
WS_MUST_USE int ws_takeover(const char *dir, char said[WS_ERROR_TEXT], struct ws_error *err);

#endif
