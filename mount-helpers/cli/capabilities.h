/* Capabilities: what root's process may do beyond what any user's may. A daemon finds out what it will need, and gives
 * the rest up before it starts a thread: Linux keeps capabilities by thread. A user's process has none to give up. */
#ifndef WS_MOUNT_HELPERS_CLI_CAPABILITIES_H
#define WS_MOUNT_HELPERS_CLI_CAPABILITIES_H
#include <linux/capability.h>
#include <stdint.h>
#include <sys/types.h>

#define CAPABILITY(number) (1ULL << (number))

/* The set of capabilities without which the path cannot be used: CAP_DAC_OVERRIDE or none. mode is R_OK or W_OK. Of
 * what is not there its folder is looked at. NULL needs none. It says which path it was. */
uint64_t capabilities_for_path(const char *path, int mode);
/* The same for a folder that this process writes to, and for what lies in the folder's `below` ("v1"). */
uint64_t capabilities_for_folder(const char *path, const char *below);
/* The set without which the process cannot listen at HOST:PORT (NULL: nowhere). */
uint64_t capabilities_for_listening(const char *address);
/* Makes the process a member of a group too, whose files it may then make without CAP_CHOWN. Where that is not
 * allowed, nothing happens. */
void capabilities_join(gid_t group);

/* From now on the process has no capability but those of keep, gets none by what it executes, and none of its future
 * threads and children do. Called while there is one thread. */
void capabilities_drop(uint64_t keep);

#endif
