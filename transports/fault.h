/* Fault: a transport that decorates another source with faults: "fault:PLAN:URL" is the source of URL. Faults are
 * drawn from a seed. For tests and for trying out a deployment.
 *
 * PLAN is comma-separated:
 *     seed=N     of all random draws
 *     delay=MS   each fetch
 *     cut=P      percent of fetches that end early with -ECONNRESET
 *     flip=P     percent of blocks with one flipped bit in dst, hash to match the flipped bytes; of a delta's
 *                records, in their data
 *     lie=P      right bytes, wrong hash; of a delta, records that are left out
 *     reorder    blocks in random order
 *     fail=P     percent of control calls that fail
 *     stale=N    after N blocks everything is -ESTALE
 *     rate=N     MB/s, over all lanes */
#ifndef WS_TRANSPORTS_FAULT_H
#define WS_TRANSPORTS_FAULT_H
#include "transports/protocol/source.h"

extern const struct ws_transport_ops ws_fault_ops;

#endif
