/* Dir: a folder of checkpoints as a source, dir:FOLDER; dir_scan.h says what a version is there. */
#ifndef WS_TRANSPORTS_DIR_DIR_H
#define WS_TRANSPORTS_DIR_DIR_H
#include "transports/protocol/source.h"

#define WS_DIR_LINEAGE "dir" /* the lineage of all of its versions */

extern const struct ws_transport_ops ws_dir_ops;

#endif
