/* Derived files: the files of a view (fs/store/derived.h), and their bytes out of those of a version that is here.
 *
 * Tensors are cut into pieces of some rows, which workers do in any order; texts and sidecars are copied. The manifest
 * has nothing of this host: whoever makes the same view of the same version makes the same digest. It names no frozen
 * tensors. */
#ifndef WS_FS_PULL_DERIVED_FILES_H
#define WS_FS_PULL_DERIVED_FILES_H
#include "fs/store/derived.h"

struct ws_derived_files;

/* source: complete, and the caller's as long as the files are. -ENOENT: it has no config.json; what ws_derive_new says: err
 * names the tensor, and what can be done. */
WS_MUST_USE int ws_derived_files_new(struct ws_derived_files **out, const struct ws_derived_view *derived,
                                     struct ws_version *source, struct ws_error *err);
/* Without hashes until they are made. */
const struct ws_manifest *ws_derived_files_manifest(const struct ws_derived_files *f);
/* Fills the regions, by file of the manifest, hashes them and seals the manifest. *progress_ns moves on while it works.
 * -EBADMSG: a weight is NaN or infinite; -ECANCELED: *stop, which it looks at every few milliseconds. */
WS_MUST_USE int ws_derived_files_make(struct ws_derived_files *f, struct ws_region *const *regions,
                                      const atomic_bool *stop, _Atomic(uint64_t) *progress_ns,
                                      struct ws_error *err);
/* The manifest is the caller's from now on. */
struct ws_manifest *ws_derived_files_take_manifest(struct ws_derived_files *f);
void ws_derived_files_free(struct ws_derived_files *f); /* NULL is fine */

#endif
