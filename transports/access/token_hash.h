/* Token hash: secrets of 256 random bits, and what is kept of them. libsodium makes both: BLAKE2b needs no salt
 * and no repetition where the secret is random and cannot be guessed. Callable from any thread. */
#ifndef WS_TRANSPORTS_ACCESS_TOKEN_HASH_H
#define WS_TRANSPORTS_ACCESS_TOKEN_HASH_H
#include <stdbool.h>
#include <stddef.h>

#define WS_TOKEN_HASH_BYTES   32
#define WS_TOKEN_HASH_CHARS   72 /* "blake2b:" and 64 hex digits */
#define WS_TOKEN_SECRET_CHARS 49 /* "wsync_" and 43 of base64 */

struct ws_token_hash {
    unsigned char bytes[WS_TOKEN_HASH_BYTES];
};

void ws_token_hash(const char *secret, struct ws_token_hash *out);
void ws_token_hash_print(const struct ws_token_hash *h, char out[WS_TOKEN_HASH_CHARS + 1]);
bool ws_token_hash_parse(const char *text, size_t n, struct ws_token_hash *out); /* false: it is none */
/* In a time that does not depend on where they differ. */
bool ws_token_hash_equal(const struct ws_token_hash *a, const struct ws_token_hash *b);
/* A new secret; the caller wipes it. */
void ws_token_secret_new(char out[WS_TOKEN_SECRET_CHARS + 1]);

#endif
