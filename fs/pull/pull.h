/* Pull: brings versions here, each on a thread of its own; a version has one pull at a time. */
#ifndef WS_FS_PULL_PULL_H
#define WS_FS_PULL_PULL_H
#include "fs/store/puller.h"

extern const struct ws_puller ws_puller; /* for ws_store_new */

#endif
