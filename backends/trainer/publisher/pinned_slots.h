/* Pinned slots: the memory of slots that stays mapped, and pinned by the GPU's driver, from one version to
 * the next. Pinning some gigabytes takes longer than filling them.
 *
 * Memory that readers have is not written again: the agent says by number which slots stay this rank's, and
 * the mappings of all others are released. The mappings are of the agent's own open files, so the agent does
 * not see them when it asks whether a slot is idle. Between versions the CPU cannot write to them, and no
 * copies are queued. They belong to one publisher; one thread at a time. */
#ifndef WS_TRAINER_PUBLISHER_PINNED_SLOTS_H
#define WS_TRAINER_PUBLISHER_PINNED_SLOTS_H
#include "transports/device/device.h"
#include "transports/memory/region.h"
#include <jansson.h>

struct ws_pinned_slots;
struct ws_pinned_slots *ws_pinned_slots_new(void); /* NULL: no memory */
/* Maps and pins the descriptor's memory, or finds the mapping of an earlier version. Takes over fd, on
 * failure too. *out is writable and stays the set's. slot: its number; 0: the agent gave none. */
WS_MUST_USE int ws_pinned_slots_map(struct ws_pinned_slots *set, uint64_t slot, int fd, uint64_t bytes,
                                    const struct ws_device_ops *ops, int device, struct ws_region **out,
                                    struct ws_error *err);
/* Is the region pinned? If not, why_not says why, until the next map. */
bool ws_pinned_slots_has(const struct ws_pinned_slots *set, const struct ws_region *r);
const char *ws_pinned_slots_why_not(const struct ws_pinned_slots *set);
/* Releases the mappings of all slots but these; NULL: the agent listed none, and all stay. Not between map
 * and finish_version. */
void ws_pinned_slots_retain(struct ws_pinned_slots *set, const json_t *slots);
/* The numbers of the mapped slots; a new reference. */
json_t *ws_pinned_slots_to_json(const struct ws_pinned_slots *set);
/* Nothing writes to the version any more. Releases mappings that some versions have not used. */
void ws_pinned_slots_finish_version(struct ws_pinned_slots *set);
void ws_pinned_slots_free(struct ws_pinned_slots *set); /* NULL is fine */

#endif
