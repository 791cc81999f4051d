/* Handover: the memory of a version that goes is given, with its bytes, to its successor, which patches it in
 * place instead of filling memory of its own. The reaper hands it over after the last reference and the
 * kernel's names are gone, and only if no other process ever had any of it, which the kernel's lease
 * confirms. Else the memory goes back to the pool. */
#ifndef WS_FS_STORE_HANDOVER_H
#define WS_FS_STORE_HANDOVER_H
#include "fs/store/events.h"
#include "fs/store/state.h"

struct ws_handover;
/* These with store->lock. May a version's memory go to another one? */
bool ws_handover_may_go(const struct ws_version *from);
/* Could another process ever read it? Then it is not patched in place: pages that the process has put into a pipe or a
 * socket would change, and the kernel does not show that they are there. */
bool ws_handover_was_read(struct ws_version *from);
/* Retires `from` in favour of successor, whose pull calls this. with_parts: of a version in parts (part_view.h) to one that
 * is laid out alike and has its files; what from has for them goes on, too, and none is shown. NULL: no memory, and `from`
 * stays. */
struct ws_handover *ws_handover_new(struct ws_version *from, struct ws_version *successor, bool with_parts,
                                    struct ws_store_events *ev);
/* Waits until the memory was handed over or refused, for a second at most or until *stop, and frees h. True:
 * regions and own_bytes are the successor's, and *here has, by file, the bitmap of blocks with `from`'s
 * bytes; the caller frees the array and its members. Without any lock. */
bool ws_handover_wait(struct ws_handover *h, const atomic_bool *stop, _Atomic(uint64_t) ***here);
/* Called by the reaper for a version that is over: hands its memory over if a handover waits for it and may
 * have it. True: it was handed over. Without any lock. */
bool ws_handover_resolve(struct ws_version *v);

#endif
