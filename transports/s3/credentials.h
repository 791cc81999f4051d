/* Credentials: the keys with which requests are signed, from where AWS's own programs look for them, in their order:
 *
 *     AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN
 *     the profile (profile.h)
 *     AWS_CONTAINER_CREDENTIALS_FULL_URI or ..._RELATIVE_URI, with AWS_CONTAINER_AUTHORIZATION_TOKEN[_FILE]
 *     the role of the instance (IMDSv2), unless AWS_EC2_METADATA_DISABLED
 *
 * Those that expire are fetched again some minutes before; files are read again when a store refuses what they had.
 * Thread safe: while one thread fetches, the others go on with what is still good. */
#ifndef WS_TRANSPORTS_S3_CREDENTIALS_H
#define WS_TRANSPORTS_S3_CREDENTIALS_H
#include "transports/http/client.h"
#include "transports/s3/profile.h"
#include <stdint.h>

struct ws_s3_keys {
    char *key_id, *secret, *session; /* secret memory; session NULL: none */
    uint64_t expires_ns;             /* time of day; 0: never, as far as is known */
};
void ws_s3_keys_release(struct ws_s3_keys *k);

struct ws_s3_credentials;
/* http and stop stay as long as it does. Nothing is looked for yet. NULL: no memory. */
struct ws_s3_credentials *ws_s3_credentials_new(struct ws_http_client *http, const atomic_bool *stop);
void ws_s3_credentials_free(struct ws_s3_credentials *c); /* NULL is fine */
/* A copy for the caller. -EACCES: there are none, and the error lists the places; -EINVAL: a profile or an address
 * that cannot be used; -ECANCELED: stopped; what else a call fails with. */
WS_MUST_USE int ws_s3_credentials_get(struct ws_s3_credentials *c, struct ws_s3_keys *out,
                                      struct ws_error *err);
/* The store says that these have expired, or knows them not: the next get looks for others. */
void ws_s3_credentials_refused(struct ws_s3_credentials *c, const struct ws_s3_keys *keys);

#endif
