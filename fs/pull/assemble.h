/* Assemble: has the parts of a version come, of which several agents have one each, into the memory of the whole
 * version (fs/store/part_view.h).
 *
 * First what describes the parts comes, as a rule that of the version before still holds, and a map is made of it. Then
 * the version has its files, and all parts are pulled into them at the same time, each as a version of its own: by
 * deltas, from several sources, as far as they have come there, checked by its own hashes and signatures. Blocks of the
 * whole are here as soon as their bytes are, so that readers of a file that fills do not wait for the rest. When all
 * parts are complete so is the whole, and its manifest is sealed.
 *
 * Where the model has one copy (fs/store/one_copy.h) whose parts are laid out alike and any of them can be patched
 * (assemble_in_place.h), the version takes its memory with what lies there, and each part's pull patches it. Else the memory of a version that
 * nobody wants may be patched so: what it was is not kept.
 *
 * A pull that fails leaves what has come. The parts stay as long as the version does, since the next one's deltas are
 * deltas of parts, and other mounts may want them. */
#ifndef WS_FS_PULL_ASSEMBLE_H
#define WS_FS_PULL_ASSEMBLE_H
#include "fs/pull/source_select.h"

/* 0: the version's manifest and bytes are here; -ESTALE: also where its parts have become others; else the error of a part's pull, and err names its agent.
 * -EPROTO, -EBADMSG: the parts do not belong together. Called by a pull's thread, without any lock. */
WS_MUST_USE int ws_assemble_run(struct ws_source_select *sel, const atomic_int *priority,
                                char how[WS_HOW_CHARS], struct ws_error *err);

#endif
