#include "transports/access/token_hash.h"
#include <sodium.h>
#include <string.h>

#define PREFIX        "blake2b:"
#define SECRET_BYTES  32
#define SECRET_PREFIX "wsync_"

_Static_assert(WS_TOKEN_HASH_CHARS == sizeof(PREFIX) - 1 + 2 * (size_t)WS_TOKEN_HASH_BYTES, "");
_Static_assert(WS_TOKEN_SECRET_CHARS == sizeof(SECRET_PREFIX) - 1 + (SECRET_BYTES * 4 + 2) / 3, "");

void ws_token_hash(const char *secret, struct ws_token_hash *out)
{
    (void)crypto_generichash(out->bytes, sizeof(out->bytes), (const unsigned char *)secret, strlen(secret),
                             NULL, 0);
}

void ws_token_hash_print(const struct ws_token_hash *h, char out[WS_TOKEN_HASH_CHARS + 1])
{
    char *at = stpcpy(out, PREFIX);
    (void)sodium_bin2hex(at, 2 * WS_TOKEN_HASH_BYTES + 1, h->bytes, sizeof(h->bytes));
}

bool ws_token_hash_parse(const char *text, size_t n, struct ws_token_hash *out)
{
    size_t bytes = 0;
    const size_t prefix = strlen(PREFIX);
    return n == WS_TOKEN_HASH_CHARS && memcmp(text, PREFIX, prefix) == 0 &&
           sodium_hex2bin(out->bytes, sizeof(out->bytes), text + prefix, n - prefix, NULL, &bytes, NULL) ==
               0 &&
           bytes == sizeof(out->bytes);
}

bool ws_token_hash_equal(const struct ws_token_hash *a, const struct ws_token_hash *b)
{
    return sodium_memcmp(a->bytes, b->bytes, sizeof(a->bytes)) == 0;
}

void ws_token_secret_new(char out[WS_TOKEN_SECRET_CHARS + 1])
{
    unsigned char random[SECRET_BYTES];
    randombytes_buf(random, sizeof(random));
    char *at = stpcpy(out, SECRET_PREFIX);
    (void)sodium_bin2base64(at, WS_TOKEN_SECRET_CHARS + 1 - (sizeof(SECRET_PREFIX) - 1), random,
                            sizeof(random), sodium_base64_VARIANT_URLSAFE_NO_PADDING);
    sodium_memzero(random, sizeof(random));
}
