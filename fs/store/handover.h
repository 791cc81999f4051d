/* Bequest: the memory of a version that goes, handed with what is in it to one that comes, which patches it
 * in place instead of filling memory of its own. The reaper hands it over, after the last reference and the
 * kernel's names are gone, when nobody but this process ever had any of it and the kernel's lease says so
 * too; else it goes the usual way. */
#ifndef WS_FS_STORE_HANDOVER_H
#define WS_FS_STORE_HANDOVER_H
#include "fs/store/events.h"
#include "fs/store/state.h"

struct ws_bequest;
/* Retires `from` in favour of heir, whose pull calls this. NULL: no memory, and from stays. With store->lock.
 */
struct ws_bequest *ws_bequest_new(struct ws_version *from, struct ws_version *heir, struct ws_changes *c);
/* Waits for it: true when regions and own_bytes are the heir's; *here: of each file the blocks that held
 * from's bytes (an array and its members, the caller's to free). Gives up after a while and at the pull's
 * stop. Frees b. Without any lock. */
bool ws_bequest_take(struct ws_bequest *b, const atomic_bool *stop, _Atomic(uint64_t) ***here);
/* The reaper's: true when v's memory was handed over. Without any lock. */
bool ws_bequest_settle(struct ws_version *v);

#endif
