/* Learned: which tensors of a model this mount's readers read (-o need=learn), by their names.
 *
 * Versions keep the files, names and offsets that they have at their source, so any engine opens them as ever. While nothing
 * is learned a version comes whole. What is read of it is learned. From when learning has ended on, only blocks with bytes of
 * learned tensors come, or with what the kernel reads ahead of them, and headers, and files that have none; all else is
 * fetched block by block as it is read (pull/lazy.h), and is learned by that. So to learn too little costs time, and to learn
 * too much costs bytes, and neither fails: what is learned only grows, until an operator has it forgotten. What comes of a
 * version is chosen once, by its first pull that gets so far.
 *
 * Reads are seen because the daemon answers them: files with tensors are not given to the kernel (passthrough, links), unless
 * all of their version's tensors are learned, when there is nothing more to see. A page that the kernel has is not read
 * again, but it was read once. The kernel reads ahead, at most WS_LEARNED_AHEAD each way on such a mount: so a tensor counts
 * as read when a byte further than that from both of its ends is read, or, as it is too short for that, any byte. Which
 * it is for nothing, mostly: a neighbour's short tensor is in a block that comes anyway. A tensor of which only that much of
 * one end is ever read stays unknown, and its block is fetched when it is.
 *
 * Learning ends when a switch has succeeded, as its engines have read all that they need; or WS_LEARNED_QUIET_NS after the
 * last tensor was read that was not known, since no other sign is common to all readers (they keep files mapped, open them
 * twice, close one before the next); or when an operator says so. A tensor that counts as any byte of it was read does
 * not begin that time, nor is a switch the end before another was read: it may have been a look at the header.
 *
 * A reader of all of every file learns all: then versions come whole. switch/learned_file.h keeps it over a restart. */
#ifndef WS_FS_STORE_LEARNED_H
#define WS_FS_STORE_LEARNED_H
#include "fs/store/state.h"

/* Two windows, each of which is doubled for a reader that says that it reads in sequence, as torch does. */
#define WS_LEARNED_AHEAD    (4UL * WS_LEARNED_AHEAD_KB << 10)
#define WS_LEARNED_QUIET_NS (30 * WS_SECOND_NS)

struct ws_learned;

/* Of the model of that name, made if there is none; it lives as long as the store. NULL: no memory. With store->lock. */
struct ws_learned *ws_learned_get(struct ws_store *s, const char *model);
void ws_learned_free_all(struct ws_store *s);
/* By a pull's thread, before memory is taken for a version with its manifest: sets what comes of it, where learning is over
 * and the version's headers are here. */
void ws_learned_choose(struct ws_version *v);

#endif
