/* Statement: what a signature is over, byte by byte, so that another program can check it.
 *
 * A signature is Ed25519 over a text that says what kind of statement it is, and hashes of 32 bytes behind it:
 *
 *     "wsync signed manifest 1\n"  M
 *     "wsync signed blocks 1\n"    M  R        all blocks of the version (tree.h)
 *     "wsync signed delta 1\n"     M' M  D     what leads from the version M' to M (delta_proof.h)
 *
 * M, the id of a manifest, is the BLAKE2b-256 of: the bytes "wsync manifest id 1\n"; model; run; version;
 * created_ns; bytes of a block (4194304); number of files; of each file, in order of name, its name, size, header
 * bytes, number of blocks and their XXH3-64; number of frozen names; the names in order. Numbers are 8 bytes,
 * little endian; a string is its length as such a number and its bytes. So M stands for everything that a manifest
 * says, its lineage and its time too, and unlike the digest it cannot be met by another manifest.
 *
 * As text a signature is the id of the key (key.h), a space, and 128 lower-case hex digits. The manifest's JSON has
 * that of its own statement as the member "signature"; a reader that knows no signatures skips it.
 *
 * Pure functions, any thread. */
#ifndef WS_TRANSPORTS_SIGN_STATEMENT_H
#define WS_TRANSPORTS_SIGN_STATEMENT_H
#include "transports/format/manifest.h"
#include "transports/sign/trust.h"

#define WS_HASH_BYTES      32
#define WS_SIGNATURE_CHARS (WS_KEY_ID_CHARS + 1 + 2 * WS_SIGNATURE_BYTES)

enum ws_statement { WS_SIGNED_MANIFEST, WS_SIGNED_BLOCKS, WS_SIGNED_DELTA };
#define WS_STATEMENT_HASHES 3 /* at most */

/* hashes: as many as the kind has. */
void ws_statement_sign(const struct ws_secret_key *k, enum ws_statement kind,
                       const unsigned char hashes[][WS_HASH_BYTES], char out[WS_SIGNATURE_CHARS + 1]);
/* Is it by a key that is trusted for the model? *by: that key (NULL is fine). signature NULL: there is none.
 * -EBADMSG, with a sentence without the subject: "is not signed". */
WS_MUST_USE int ws_statement_check(const struct ws_trust *t, const char *model, enum ws_statement kind,
                                   const unsigned char hashes[][WS_HASH_BYTES], const char *signature,
                                   const struct ws_public_key **by, struct ws_error *err);

void ws_manifest_id(const struct ws_manifest *m, unsigned char out[WS_HASH_BYTES]);
/* Signs a sealed manifest. -ENOMEM. */
WS_MUST_USE int ws_manifest_sign(struct ws_manifest *m, const struct ws_secret_key *k, struct ws_error *err);
/* -EBADMSG, with a whole sentence. */
WS_MUST_USE int ws_manifest_check(const struct ws_manifest *m, const struct ws_trust *t,
                                  const struct ws_public_key **by, struct ws_error *err);

#endif
