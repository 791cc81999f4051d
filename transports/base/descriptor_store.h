/* Descriptor store: keeps descriptors of this process beyond its death, for the one that comes after it. The service manager has such a
 * store (systemd: FileDescriptorStoreMax=), or the process that supervises this one (descriptor_keeper.h); both are sent messages of
 * sd_notify(3), each a datagram:
 *
 *     FDSTORE=1 FDNAME=NAME          with one descriptor: keep it
 *     FDSTOREREMOVE=1 FDNAME=NAME    close it
 *     BARRIER=1                      with one end of a pipe: close it, now that what came before was done
 *
 * A process has one store, or none; then all functions do nothing. What the process before has left is "found": it is taken, name by name,
 * or dropped. A store that does not answer, or is gone, is given up, and the log says so. Functions are thread safe, but for those of what
 * was found: these are for one thread, at the start. */
#ifndef WS_TRANSPORTS_BASE_DESCRIPTOR_STORE_H
#define WS_TRANSPORTS_BASE_DESCRIPTOR_STORE_H
#include "transports/base/error.h"
#include <stdbool.h>
#include <stddef.h>

#define WS_DESCRIPTOR_NAME_CHARS 63   /* no ':', no control character */
#define WS_DESCRIPTORS           4096 /* that a store keeps */

struct ws_named_descriptor {
    char name[WS_DESCRIPTOR_NAME_CHARS + 1];
    int fd;
};

/* The store behind a socket, with what is in it; both are the store's from here on. Once a process. */
void ws_descriptor_store_use(int sock, struct ws_named_descriptor *found, size_t n);
/* That of the service manager, where it says that it keeps some ($FDSTORE), and there is none yet. */
void ws_descriptor_store_use_manager(void);
bool ws_descriptor_store_is_on(void);

/* Has a duplicate of it kept under a name that no other has. -errno: it is not kept. */
WS_MUST_USE int ws_descriptor_store_put(const char *name, int fd);
/* Is no longer kept, when this returns. */
void ws_descriptor_store_remove(const char *name);

/* The name of one that was found, begins so, and was not taken; NULL: there is none. Valid until the next call of these. */
const char *ws_descriptor_store_next(const char *prefix);
/* The caller's; it is kept on. -1: nothing of that name was found. */
int ws_descriptor_store_take(const char *name);
/* What was not taken is no longer kept. */
void ws_descriptor_store_drop_rest(void);

#endif
