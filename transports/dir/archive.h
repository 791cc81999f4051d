/* Archive: versions and the deltas between them as plain files, laid out as the API's paths (api.h), so that
 * any web server that serves the folder and honours ranges is a source for http:, and dir:DIR another. In a bucket of
 * an object store (s3://BUCKET/PREFIX) the same are objects; archive_store.h is the table for either.
 *
 *     DIR/v1/models, DIR/v1/events       the listing (archive_listing.h)
 *     DIR/v1/MODEL/events                the same of one model
 *     DIR/v1/MODEL/13/manifest           the trainer's, byte for byte: its hashes show what a disk damaged
 *     DIR/v1/MODEL/13/deltas             {"deltas":[...]}: the chain back to its anchor, as delta/listing.h
 *                                        has it
 *     DIR/v1/MODEL/13/signature          where the trainer's agent signs: of an anchor sign/tree.h, of any other
 *                                        sign/delta_proof.h
 *     DIR/v1/MODEL/13/files/NAME         of an anchor, a version that was written whole
 *     DIR/v1/MODEL/13/delta              of any other: the stream from the version before (delta/stream.h)
 *
 * A version is written into a folder beside, made durable, renamed, and only then listed; a listing is
 * replaced by a rename. A version that is dropped first leaves the listing. So readers see whole versions only,
 * and what a crash leaves is removed when the archive is opened again. One process writes at a time (a lock on
 * DIR/v1/.lock). How the same holds without renames and locks, archive_bucket.c says. Not thread safe: one thread uses
 * an archive. */
#ifndef WS_TRANSPORTS_DIR_ARCHIVE_H
#define WS_TRANSPORTS_DIR_ARCHIVE_H
#include "transports/delta/delta.h"
#include "transports/dir/archive_store.h"
#include "transports/protocol/source.h"
#include <stdatomic.h>

extern const struct ws_transport_ops ws_archive_ops; /* reads one, by dir:, s3: or gs:: archive_source.c */

/* Is there an archive in this folder? */
bool ws_archive_exists(const char *dir);

struct ws_archive;
/* Makes the archive where there is none, in a folder, or a bucket by its URL; a folder itself may be missing, but not
 * its parent. options NULL: defaults. -EBUSY: another process writes it. -EBADMSG: its listing is damaged, nothing was
 * touched. Of a bucket also what its store refuses. */
WS_MUST_USE int ws_archive_open(struct ws_archive **out, const char *root,
                                const struct ws_archive_store_options *options, struct ws_error *err);
void ws_archive_close(struct ws_archive *a); /* NULL is fine */

/* A version to write; json is its manifest's text. */
struct ws_archive_version {
    const struct ws_manifest *manifest;
    const char *json;
    size_t json_bytes;
};

/* What is called while a version is written, on the thread that writes; all may be NULL. */
struct ws_archive_hooks {
    /* Copies a block's bytes; needed for an anchor. 0 or -errno, which ends it. */
    int (*block)(void *arg, size_t file, size_t block, unsigned char *dst, struct ws_error *err);
    /* *text: what is to be in the file "signature", malloc'ed; NULL: there is none to be. Called when all else of the
     * version but its manifest is written; may wait. */
    int (*signature)(void *arg, char **text, struct ws_error *err);
    void (*written)(void *arg, uint64_t bytes); /* so many bytes more were written */
    void *arg;
    const atomic_bool *stop; /* -ECANCELED */
};

/* Is this very version (by digest) in it? *depth: how many deltas lie between it and its anchor. */
bool ws_archive_has(const struct ws_archive *a, const struct ws_manifest *m, unsigned *depth);
/* Add a version: whole, or by the delta from one that is there. Nothing happens where it is there already. A
 * version with its number and other content is dropped, with all versions that are deltas on it. On failure the
 * archive is as it was, but for what was to be replaced. -ENOSPC and what else files fail with; -EBADMSG: bytes are not the
 * manifest's; of a delta also -ENOENT: its base is not in the archive, and -E2BIG: the chain would be too
 * long. Of a bucket also -EBUSY: another process writes it by now; -ESTALE: one did. */
WS_MUST_USE int ws_archive_add(struct ws_archive *a, const struct ws_archive_version *v,
                               const struct ws_archive_hooks *work, struct ws_error *err);
WS_MUST_USE int ws_archive_add_delta(struct ws_archive *a, const struct ws_archive_version *v,
                                     struct ws_delta *delta, const struct ws_archive_hooks *work,
                                     struct ws_error *err);
/* Removes all but the newest `keep` anchors of a model, and the versions that are deltas on them. */
WS_MUST_USE int ws_archive_prune(struct ws_archive *a, const char *model, unsigned keep,
                                 struct ws_error *err);

#endif
