/* Why not: why a pull that has ended came by none of the strategies before the one that it used. The source
 * selection has recorded why those that were tried failed; for the others this looks at the store, the
 * devices and the sources. Called by the pull's thread, at its end. */
#ifndef WS_FS_PULL_WHY_NOT_H
#define WS_FS_PULL_WHY_NOT_H
#include "fs/pull/source_select.h"

/* "ipc: no unix: source; cuda_ipc, broadcast: there is no NVIDIA driver ..."; for a version in parts, the
 * text of its first part. May send a request to a source: without any lock. */
void ws_why_not(struct ws_source_select *sel, char out[WS_WHY_NOT_CHARS]);

#endif
