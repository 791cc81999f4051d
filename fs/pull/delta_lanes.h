/* Delta lanes: fetch a delta's records, in parts at the same time, each on a thread with a connection of its own. The lane
 * that brings a record of the last delta of a chain patches its block (delta_patch.h). */
#ifndef WS_FS_PULL_DELTA_LANES_H
#define WS_FS_PULL_DELTA_LANES_H
#include "fs/pull/delta_apply_state.h"

/* Does the version take all records of a delta? Else those of blocks that do not come of it are not fetched, or dropped. */
bool ws_delta_lanes_take_all(const struct ws_delta_apply *p);
/* Fetches the delta of a step. True: all that is taken of it is here. Called by the pull's thread. */
bool ws_delta_lanes_fetch(struct ws_delta_apply *p, size_t i);
/* Keeps why a delta did not come, of the first that did not. Any thread. */
void ws_delta_lanes_record_error(struct ws_delta_apply *p, const struct ws_error *err);

#endif
