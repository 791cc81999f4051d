/* Place: what an s3:// or gs:// URL names, and the server that has it. Pure functions, but for what the caller passes
 * in. Any thread.
 *
 *     s3://BUCKET[/PREFIX]     of Amazon's S3, or of what AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL names
 *     gs://BUCKET[/PREFIX]     the same API of Google's Cloud Storage, with HMAC keys
 *
 * At Amazon a bucket is a host, elsewhere the first part of the path, which all servers know. */
#ifndef WS_TRANSPORTS_S3_PLACE_H
#define WS_TRANSPORTS_S3_PLACE_H
#include "transports/base/error.h"
#include <stdbool.h>
#include <stddef.h>

#define WS_S3_BUCKET_CHARS 63
#define WS_S3_REGION_CHARS 63
#define WS_S3_KEY_BYTES    1024 /* the longest that S3 has */

struct ws_s3_place {
    char bucket[WS_S3_BUCKET_CHARS + 1];
    char prefix[WS_S3_KEY_BYTES + 1]; /* of its keys; without a slash at either end; may be empty */
    bool is_google;
};

bool ws_s3_is_url(const char *url); /* s3:// or gs:// */
/* -EINVAL: no name of a bucket, or a prefix that no key can have. -ENOTSUP: az://, and the error says what to do
 * instead. */
WS_MUST_USE int ws_s3_place_parse(const char *url, struct ws_s3_place *out, struct ws_error *err);
/* What keys are added to, malloc'ed: "https://BUCKET.s3.REGION.amazonaws.com", "ENDPOINT/BUCKET". endpoint NULL: none
 * was named. NULL: no memory. */
char *ws_s3_place_url(const struct ws_s3_place *place, const char *endpoint, const char *region);
/* A part of a path or of a query as signatures want it (RFC 3986): all but unreserved characters encoded, and of a
 * path its slashes. malloc'ed; NULL: no memory. */
char *ws_s3_encode(const char *text, bool is_path);

#endif
