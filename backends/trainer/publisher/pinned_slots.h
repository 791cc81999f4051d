/* Pinned: slots' memory that stays mapped, and known to the GPU's driver, from one version to the next,
 * because pinning some gigabytes takes longer than filling them. Memory that readers got is not written
 * again: the agent says which slots stay, by their numbers, and what belongs to others is let go. The
 * mappings are of the agent's own open files, so its question whether a slot is idle does not see them;
 * between versions they cannot be written by the CPU, and nobody queues copies. One publisher's, by one
 * thread at a time. */
#ifndef WS_TRAINER_PUBLISHER_PINNED_SLOTS_H
#define WS_TRAINER_PUBLISHER_PINNED_SLOTS_H
#include "transports/device/device.h"
#include "transports/memory/region.h"
#include <jansson.h>

struct ws_pinned;
struct ws_pinned *ws_pinned_new(void); /* NULL: no memory */
/* The region of that descriptor, which is taken over, also on failure: writable, and the set's own. slot:
 * whose it is; 0: not told. */
WS_MUST_USE int ws_pinned_take(struct ws_pinned *set, uint64_t slot, int fd, uint64_t bytes,
                               const struct ws_device_ops *ops, int device, struct ws_region **out,
                               struct ws_error *err);
/* Is it pinned? Else why not, until the next take. */
bool ws_pinned_has(const struct ws_pinned *set, const struct ws_region *r);
const char *ws_pinned_why_not(const struct ws_pinned *set);
/* Lets go of what is not of one of these slots; NULL: they were not told. Not between take and rest. */
void ws_pinned_keep(struct ws_pinned *set, const json_t *slots);
/* The slots that it has mapped, by their numbers; a new reference. */
json_t *ws_pinned_slots(const struct ws_pinned *set);
/* The version is done: nothing is written any more. What has not been taken for some versions is let go. */
void ws_pinned_rest(struct ws_pinned *set);
void ws_pinned_free(struct ws_pinned *set); /* NULL is fine */

#endif
