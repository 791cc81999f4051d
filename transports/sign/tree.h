/* Tree: a cryptographic hash of every block of a version, and a signature over all of them. With it a block is
 * checked as it arrives, whoever sent it.
 *
 *     leaf  BLAKE2b-256 of: the byte 0; number of the file in the manifest, from 0; number of the block in the file;
 *           its length; its bytes
 *     root  BLAKE2b-256 of: the byte 1; number of leaves; the leaves, file by file, block by block
 *
 * Numbers are 8 bytes, little endian. Two levels are enough: a reader of a version needs all leaves. R of
 * statement.h is the root. A leaf does not name the version, so that the leaf of a block that did not change is
 * taken over from the version before.
 *
 * As JSON, which GET /v1/{model}/{version}/signature answers:
 *
 *     {"format":1,"manifest":"64 hex digits","signature":"KEY SIGNATURE","leaves":["64 hex digits a block", ...]}
 *
 * manifest: M of statement.h. leaves: a text a file, in the manifest's order. It comes after the version is
 * announced, because all of it has to be hashed first.
 *
 * A tree is built by one thread, then never changes. */
#ifndef WS_TRANSPORTS_SIGN_TREE_H
#define WS_TRANSPORTS_SIGN_TREE_H
#include "transports/sign/statement.h"
#include <jansson.h>
#include <stdatomic.h>

struct ws_tree {
    size_t n_files;
    size_t *n_blocks;                        /* by file */
    unsigned char (**leaves)[WS_HASH_BYTES]; /* by file, by block */
    unsigned char manifest_id[WS_HASH_BYTES];
    char signature[WS_SIGNATURE_CHARS + 1]; /* empty: not signed yet */
};
/* Room for the leaves of a version. NULL: no memory. */
struct ws_tree *ws_tree_new(const struct ws_manifest *m);
void ws_tree_free(struct ws_tree *t); /* NULL is fine */
void ws_tree_leaf(size_t file, size_t block, const void *bytes, size_t n, unsigned char out[WS_HASH_BYTES]);
/* The same, in small pieces: false once *stop is set. */
bool ws_tree_leaf_until(size_t file, size_t block, const void *bytes, size_t n, const atomic_bool *stop,
                        unsigned char out[WS_HASH_BYTES]);
/* Are these the block's bytes? */
bool ws_tree_has(const struct ws_tree *t, size_t file, size_t block, const void *bytes, size_t n);
/* Once all leaves are in. */
void ws_tree_sign(struct ws_tree *t, const struct ws_secret_key *k);
json_t *ws_tree_to_json(const struct ws_tree *t); /* new reference; NULL: no memory */
/* Takes only a tree of that manifest by a key that is trusted. -EBADMSG, with a whole sentence; -ENOMEM. */
WS_MUST_USE int ws_tree_from_json(const json_t *json, const struct ws_manifest *m,
                                  const struct ws_trust *trust, struct ws_tree **out, struct ws_error *err);

#endif
