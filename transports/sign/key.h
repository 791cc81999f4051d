/* Key: with which versions are signed, and which mounts trust. Ed25519, by libsodium.
 *
 * A key is a file of one line, so that it can be copied by hand:
 *
 *     wsync-secret-key-1 NAME SEED      64 lower-case hex digits; the file has mode 0600
 *     wsync-public-key-1 NAME KEY       64 lower-case hex digits
 *
 * NAME is for people: 1 to WS_KEY_NAME_CHARS of [A-Za-z0-9._@-]. It is not signed and proves nothing. The id of a
 * key is the first 8 bytes of the BLAKE2b-256 of the public key's 32 bytes, in hex; it says which key to try.
 *
 * A secret key lives in memory that is locked and in no core dump, and is in no log and no error sentence. A key
 * never changes once it is read; any thread may use it. */
#ifndef WS_TRANSPORTS_SIGN_KEY_H
#define WS_TRANSPORTS_SIGN_KEY_H
#include "transports/base/error.h"
#include <stdbool.h>
#include <stddef.h>

#define WS_KEY_NAME_CHARS  64
#define WS_KEY_ID_CHARS    16
#define WS_KEY_LINE_CHARS  200 /* more than any key's line has */
#define WS_KEY_BYTES       32  /* of a public key, and of a secret key's seed */
#define WS_SIGNATURE_BYTES 64

struct ws_public_key {
    unsigned char bytes[WS_KEY_BYTES];
    char id[WS_KEY_ID_CHARS + 1];
    char name[WS_KEY_NAME_CHARS + 1];
};
/* From a line, with or without its end. -EBADMSG: it is no such line. */
WS_MUST_USE int ws_public_key_parse(const char *line, size_t n, struct ws_public_key *out,
                                    struct ws_error *err);
WS_MUST_USE int ws_public_key_read(const char *path, struct ws_public_key *out, struct ws_error *err);
/* Its line, with the end. */
void ws_public_key_print(const struct ws_public_key *k, char out[WS_KEY_LINE_CHARS]);
bool ws_public_key_verifies(const struct ws_public_key *k, const unsigned char signature[WS_SIGNATURE_BYTES],
                            const void *message, size_t n);

struct ws_secret_key;
/* A new one. -EINVAL: the name; -ENOMEM: no memory that can be locked. */
WS_MUST_USE int ws_secret_key_new(const char *name, struct ws_secret_key **out, struct ws_error *err);
/* From a line; the caller clears it. */
WS_MUST_USE int ws_secret_key_parse(const char *line, size_t n, struct ws_secret_key **out,
                                    struct ws_error *err);
/* -EACCES: others than its owner can read or write the file, or it is another user's. */
WS_MUST_USE int ws_secret_key_read(const char *path, struct ws_secret_key **out, struct ws_error *err);
/* Makes the file, which must not be there. */
WS_MUST_USE int ws_secret_key_write(const struct ws_secret_key *k, const char *path, struct ws_error *err);
const struct ws_public_key *ws_secret_key_public(const struct ws_secret_key *k);
void ws_secret_key_sign(const struct ws_secret_key *k, const void *message, size_t n,
                        unsigned char out[WS_SIGNATURE_BYTES]);
void ws_secret_key_free(struct ws_secret_key *k); /* NULL is fine */

/* Lower-case hex, both ways: 2 n digits and a NUL; -EINVAL: text is not exactly 2 n digits. */
void ws_hex_print(const unsigned char *bytes, size_t n, char *out);
WS_MUST_USE int ws_hex_parse(const char *text, size_t chars, unsigned char *out, size_t n);

#endif
