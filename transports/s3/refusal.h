/* Refusal: what a store says when it does not do what was asked, as an errno and a sentence with what to do. */
#ifndef WS_TRANSPORTS_S3_REFUSAL_H
#define WS_TRANSPORTS_S3_REFUSAL_H
#include "transports/http/client.h"
#include "transports/s3/xml.h"

enum ws_s3_refusal {
    WS_S3_FINAL,
    WS_S3_TEMPORARY, /* the same request may succeed later */
    WS_S3_EXPIRED,   /* and with other credentials */
};
/* reply: of a status that is no success, with what bucket.c keeps of its headers. -errno, as ws_s3_call has them. */
int ws_s3_refusal(const char *url, const char *path, const struct ws_http_reply *reply,
                  enum ws_s3_refusal *kind, struct ws_error *err);

#endif
