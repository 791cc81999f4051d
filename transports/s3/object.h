/* Object: what is done with one object of a bucket, or found in a bucket. Errors as ws_s3_call's; any thread. */
#ifndef WS_TRANSPORTS_S3_OBJECT_H
#define WS_TRANSPORTS_S3_OBJECT_H
#include "transports/s3/bucket.h"

/* All of an object in JSON, at most `limit` bytes, with a NUL behind; malloc'ed. *etag, where etag is not NULL, is what it was at the
 * last call (empty: none): where the object is still that, 0 with *text NULL; else it is what it is now. is_once: it is not tried again. */
WS_MUST_USE int ws_s3_get(struct ws_s3_bucket *b, const char *key, size_t limit, char etag[128], bool is_once,
                          const atomic_bool *cancel, char **text, size_t *n, struct ws_error *err);
/* Replaces it: readers see the old or the new one. */
WS_MUST_USE int ws_s3_put(struct ws_s3_bucket *b, const char *key, const void *bytes, size_t n,
                          const atomic_bool *cancel, struct ws_error *err);
/* The same, but only where it still is what etag says (empty: where there is none); etag becomes what it is then. -ESTALE:
 * another process has written it; -EOPNOTSUPP: the store does not do that. One that does not know of conditions
 * replaces it in any case. */
WS_MUST_USE int ws_s3_put_if(struct ws_s3_bucket *b, const char *key, const void *bytes, size_t n,
                             char etag[128], struct ws_error *err);
/* One that is not there is fine. is_once: as above. */
WS_MUST_USE int ws_s3_remove(struct ws_s3_bucket *b, const char *key, bool is_once, struct ws_error *err);
WS_MUST_USE int ws_s3_size(struct ws_s3_bucket *b, const char *key, const atomic_bool *cancel, uint64_t *size,
                           struct ws_error *err);
/* Calls found with each key below a folder ("v1/"), without the bucket's prefix; not 0 ends it and is returned. The
 * list may be behind what was written or removed a moment ago. */
WS_MUST_USE int ws_s3_list(struct ws_s3_bucket *b, const char *folder,
                           int (*found)(void *arg, const char *key), void *arg, struct ws_error *err);

#endif
