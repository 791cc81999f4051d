/* Dir: a folder of checkpoints as a source, dir:FOLDER. What a version is there says dir.c. */
#ifndef WS_TRANSPORTS_DIR_H
#define WS_TRANSPORTS_DIR_H
#include "transports/source.h"

extern const struct ws_transport_ops ws_dir_ops;

#endif
