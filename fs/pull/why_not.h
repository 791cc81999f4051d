/* Why not: why a pull that has ended came by none of the strategies that are before the one it took. What was
 * tried, the route has noted; of the others this asks the store, the devices and the source. Called by the
 * pull's thread, at its end. */
#ifndef WS_FS_PULL_WHY_NOT_H
#define WS_FS_PULL_WHY_NOT_H
#include "fs/pull/source_select.h"

/* "ipc: no unix: source; cuda_ipc, broadcast: there is no NVIDIA driver ..."; of a version in parts, what its
 * first part says. May ask a source: without any lock. */
void ws_why_not(struct ws_route *r, char out[WS_WHY_NOT_CHARS]);

#endif
