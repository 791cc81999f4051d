/* Shown delta: what changed from one version of a model, the base, to another that is here, as .wsync/changes-from-BASE shows it to
 * programs that hold the base's weights. It is the delta that the pull fetched, where there is one of both versions and a program can
 * read it without the base's bytes, or these are here; else one that is made here:
 * - both versions are here: they are compared, once for all who ask;
 * - the one copy of the model (store/one_copy.h) has gone from the base to the target: by the way back (store/way_back.h), block by block.
 * A version need not come after its base: a program may go back.
 *
 * What is made is kept in model->shown for others who ask (the ranks of an engine), bounded by delta-cache= as fetched deltas are; the
 * newest one also beyond that while a switch holds its base. It is the cache's memory while it is made, and what is beyond
 * delta-cache= as long as that is kept. Making it ends early as a comparison does (store/comparison.h). A delta that was handed out stays until it is put. Any thread, without locks. */
#ifndef WS_FS_PULL_SHOWN_DELTA_H
#define WS_FS_PULL_SHOWN_DELTA_H
#include "fs/store/store.h"
#include "transports/delta/delta.h"

/* There is none with need=learn (-EOPNOTSUPP): what is read is learned, and a program that asks reads blocks of tensors that it does not
 * need.
 *
 * Is there one, or can one be made? Takes no time. false: why says what is missing. */
bool ws_shown_delta_exists(struct ws_version *base, struct ws_version *target, struct ws_error *why);
/* A whole delta, counted. Making one takes as long as reading both versions. -ENOENT, -EOPNOTSUPP: there is none, and err says why;
 * -EFBIG: it would be half as large as the version; -ESTALE: one of both versions went meanwhile; -ENOSPC: the cache has no room for it; -ENOMEM. */
WS_MUST_USE int ws_shown_delta_get(struct ws_delta **out, struct ws_version *base, struct ws_version *target,
                                   struct ws_error *err);

#endif
