/* Bucket: an open object store, and one request to it at a time: signed, sent again where that may help, and what was
 * refused as a sentence that says what to do.
 *
 * A request is repeated up to four times, after pauses that double and that the store may ask to be longer
 * (Retry-After): after connections that failed or were cut, what the store calls temporary (SlowDown, 429, 5xx), and
 * answers that are none of S3's (an error page with the status 200). What it had received of an object stays: only the
 * rest is asked for again. Credentials that have expired are fetched again once. Thread safe; any number at once.
 *
 * A try in which less than 16 KiB a second move for 20 s is ended; after three such, a request has failed. So a store
 * that is silent costs a minute, and one that drips no more than the time of its bytes at that rate. What puts the
 * parts of an upload together, and may send a space now and then while it does, has ten minutes instead. */
#ifndef WS_TRANSPORTS_S3_BUCKET_H
#define WS_TRANSPORTS_S3_BUCKET_H
#include "transports/base/vector.h"
#include "transports/http/client.h"
#include <stdint.h>

struct ws_s3_options {
    bool insecure;           /* http:// beyond loopback is fine */
    const char *ca_file;     /* NULL: the system's authorities; copied */
    const atomic_bool *stop; /* ends all calls, -ECANCELED; NULL: never */
    unsigned stall_s;        /* a try that moves next to nothing for so long has failed; 0: 20 */
};

struct ws_s3_bucket;
/* Looks up where the store is and with what to sign (credentials.h); asks it nothing yet. -EINVAL: the URL, a setting
 * in the environment or in a profile. -EACCES: it would be spoken to in clear text. */
WS_MUST_USE int ws_s3_bucket_open(struct ws_s3_bucket **out, const char *url,
                                  const struct ws_s3_options *options, struct ws_error *err);
void ws_s3_bucket_free(struct ws_s3_bucket *b); /* no call runs any more; NULL is fine */
const char *ws_s3_bucket_prefix(const struct ws_s3_bucket *b);

struct ws_s3_request {
    const char *method; /* NULL: GET */
    const char *key;    /* below the prefix; NULL: the bucket itself */
    const char *query;  /* in its canonical form (transfer.h); NULL: none */
    const char *bytes;  /* what is sent; NULL: nothing */
    size_t n_bytes;
    const char *header; /* one more; NULL: none */
    /* Bytes [first, first + n) alone, given to came in their order; what came is not given again. not 0: -ECANCELED. */
    int (*came)(void *arg, const char *bytes, size_t n);
    void *arg;
    uint64_t first, n;
    /* The whole object, of at most `limit` bytes, with a NUL behind. */
    struct ws_bytes *whole;
    size_t limit;
    bool is_no_markup; /* what begins with '<' is a page of another server's */
    const char *root;  /* the element that a reply in XML has, or it is none of S3's; NULL: no matter */
    bool wants_etag;   /* likewise, of a reply's header */
    bool is_once;      /* is not repeated */
    const atomic_bool *cancel;   /* NULL: never */
    struct ws_http_client *http; /* NULL: the bucket's own */
};
struct ws_s3_reply {
    long status;          /* 2xx, 304 */
    char *text;           /* XML; never NULL */
    char etag[128];       /* empty: none */
    uint64_t size;        /* Content-Length of a HEAD */
    bool was_sent_before; /* it was repeated: the store may have done it before. Set where it failed, too */
};
/* 0 where the store did it: the caller releases the reply. -ENOENT: no such object (NoSuchUpload, too); -ENXIO: no
 * such bucket; -EACCES: keys, rights or this host's clock, as the error says; -EINVAL: another region; -EPROTO: is it
 * S3?; -ESTALE: an If-Match or If-None-Match does not hold; -EOPNOTSUPP: the store says that it cannot do that; -ENOSPC,
 * -EFBIG; -ECONNRESET also for what the store calls temporary; -EHOSTUNREACH, -ETIMEDOUT;
 * -ECANCELED; -EFBIG: more than limit. */
WS_MUST_USE int ws_s3_call(struct ws_s3_bucket *b, const struct ws_s3_request *r, struct ws_s3_reply *out,
                           struct ws_error *err);
void ws_s3_reply_release(struct ws_s3_reply *reply);

#endif
