/* Upload: one object of any size, written from its first byte to its last: by one request where it is small, else in
 * parts, some of them at once, that the store puts together at the end. Nothing of it is there before that. One thread
 * writes; others send. */
#ifndef WS_TRANSPORTS_S3_UPLOAD_H
#define WS_TRANSPORTS_S3_UPLOAD_H
#include "transports/s3/bucket.h"

#define WS_S3_PART_BYTES (16UL << 20) /* of a part, where 10,000 of them are enough */

struct ws_s3_upload;
/* size: the most that it will have. stop ends all of its calls, -ECANCELED; NULL: never. */
WS_MUST_USE int ws_s3_upload_new(struct ws_s3_upload **out, struct ws_s3_bucket *b, const char *key,
                                 uint64_t size, const atomic_bool *stop, struct ws_error *err);
/* Errors as ws_s3_call's, also those of bytes that were written before. */
WS_MUST_USE int ws_s3_upload_write(struct ws_s3_upload *u, const void *bytes, size_t n, struct ws_error *err);
/* Sends what is left of an upload in parts: only the call that puts them together remains. rc, and what is returned: as
 * below. */
WS_MUST_USE int ws_s3_upload_flush(struct ws_s3_upload *u, int rc, struct ws_error *err);
/* Frees it. Where rc, what writing it returned, is 0, the object is then there, and as long as what was written. Else
 * its parts are removed. Returns rc, or why it failed. */
WS_MUST_USE int ws_s3_upload_end(struct ws_s3_upload *u, int rc, struct ws_error *err);

#endif
