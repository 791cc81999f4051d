/* One copy: with copies=1 memory holds one version of a model, and the next one takes its place.
 *
 * An engine that has loaded holds a copy of its own; the file is needed again only to go back. So the mount has one set
 * of regions for a model. Their holder is the version whose bytes they are, or become: a version that is being pulled
 * into them holds them from the first byte on. From holder to holder they go in one step, under store->lock
 * (ws_one_copy_move): the old holder loses its name to a new version with the same manifest, which is KNOWN again and
 * is `current` where the old one was, and the pull of the new holder changes the bytes. It does so by deltas where it
 * can (fs/pull/delta_apply.h), block by block: the new block is made aside and checked, what it replaces goes to the way
 * back (way_back.h), then it gets fresh pages (ws_region_renew) and is written. Where there is no delta the memory is
 * given back and the version is pulled whole: that leaves no way back, and says so first.
 *
 * Between two versions every block is one of two things: the new version's, verified, and marked as here; or what it was,
 * untouched. Blocks that are fetched whole are made aside like others. A version is read only when all its blocks are of
 * the first kind. The state is the process's alone: it ends with the
 * daemon, as all memory of a mount does, and the next one pulls anew.
 *
 * Nothing is patched under a reader. Whoever reads a version's bytes has a reference to it; only switches, which are
 * counted (n_switches), and the pulls that wait for its memory (leaving) have one and read nothing. So when name,
 * current, previous, those switches and those pulls have the only references, no thread of this process reads. New opens
 * are refused meanwhile (ESTALE), what the front has open of it is closed, and then the kernel's lease shows that no
 * process has a file of it open or mapped (ws_region_unheld). The references are counted again under the lock in which the
 * memory goes.
 *
 * Which version the copy goes to is one's to say who switches, stages or pulls by command (ws_version_direct). Else it
 * stays at the current version, or comes back to it; without a current one it goes to newer versions as they are opened.
 * Others are refused: ESTALE. A pinned version is never replaced.
 *
 * Of a version in parts (part_view.h) the parts go on with the whole (one_copy_parts.h), where any of them can be patched
 * and all are laid out alike: each is patched by its own pull, or has its blocks fetched whole, keeps what its bytes were, and knows which of its blocks are
 * which of the three. The three are said of the part's blocks then. The whole can be had again where all parts can. Else the memory is given
 * back. */
#ifndef WS_FS_STORE_ONE_COPY_H
#define WS_FS_STORE_ONE_COPY_H
#include "fs/store/state.h"

/* These with store->lock. Has its model one copy? With copies=auto all models do, once two copies of all of them do not fit. */
bool ws_one_copy_applies(struct ws_version *v);
/* Its model had two copies before another model came, and has another in memory that is current or newer: so it may go. */
bool ws_one_copy_is_spare(const struct ws_version *v);
/* The other version of its model whose memory it would take; NULL: there is none. */
struct ws_version *ws_one_copy_holder(const struct ws_version *v);
/* It has the memory, or is a part of what has, and its pull was cut: the version whose bytes all blocks still are that are
 * not here. NULL: none. */
struct ws_version *ws_one_copy_untouched(struct ws_version *v);
/* May the copy go to v? -ESTALE, -EBUSY (pinned): err says where it is and what moves it. */
WS_MUST_USE int ws_one_copy_may_take(const struct ws_version *v, struct ws_error *err);
/* Does what is here become v without a source? v may be a part that is shown. */
bool ws_one_copy_knows_way(struct ws_version *v);

/* Without any lock, by the pull of `to`, which has no memory: takes the memory of `from`, of which the caller has one
 * reference, once nobody reads it; waits for that as long as a read waits without progress (deadline=). here NULL: the
 * memory is given back, and `from` shows `why` as the reason why there is no way back to it. Else *here has, by file, the
 * bitmap of blocks with `from`'s bytes, the caller's. -EBUSY: err names who reads; -ECANCELED; -ENOENT: from has no
 * name or memory any more; what ws_one_copy_may_take says. On failure nothing has changed. */
WS_MUST_USE int ws_one_copy_move(struct ws_version *from, struct ws_version *to, const atomic_bool *stop,
                                 _Atomic(uint64_t) ***here, const char *why, struct ws_error *err);
/* The same of a version in parts to another that is laid out alike, and has its files; parts: that one's, which get what
 * lies in their places. */
WS_MUST_USE int ws_one_copy_move_parts(struct ws_version *from, struct ws_version *to,
                                       struct ws_version *const *parts, const atomic_bool *stop,
                                       struct ws_error *err);

#endif
