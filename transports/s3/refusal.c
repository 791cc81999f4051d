#include "transports/s3/refusal.h"
#include <curl/curl.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* By S3's code. NULL: S3's own message alone. */
static const struct {
    const char *code;
    int number;
    enum ws_s3_refusal kind;
    const char *remedy;
} known[] = {
    {"NoSuchKey", ENOENT, WS_S3_FINAL, NULL},
    {"NoSuchUpload", ENOENT, WS_S3_FINAL, NULL},
    {"PreconditionFailed", ESTALE, WS_S3_FINAL, "another process has written it meanwhile"},
    {"ConditionalRequestConflict", ECONNRESET, WS_S3_TEMPORARY, NULL},
    {"NotImplemented", EOPNOTSUPP, WS_S3_FINAL, NULL},
    {"NoSuchBucket", ENXIO, WS_S3_FINAL, "there is no such bucket: make it, or correct its name"},
    {"AccessDenied", EACCES, WS_S3_FINAL,
     "the keys may not do this: allow s3:GetObject, and for who writes s3:PutObject, s3:DeleteObject and "
     "s3:ListBucket, on this prefix"},
    {"AllAccessDisabled", EACCES, WS_S3_FINAL, NULL},
    {"AccountProblem", EACCES, WS_S3_FINAL, NULL},
    {"InvalidAccessKeyId", EACCES, WS_S3_EXPIRED,
     "the store does not know this key: correct AWS_ACCESS_KEY_ID"},
    {"SignatureDoesNotMatch", EACCES, WS_S3_EXPIRED,
     "the secret is not the key's: correct AWS_SECRET_ACCESS_KEY, or a proxy in between changes requests"},
    {"ExpiredToken", EACCES, WS_S3_EXPIRED, "the session's token has expired: get new credentials"},
    {"InvalidToken", EACCES, WS_S3_EXPIRED, "the session's token is not accepted: correct AWS_SESSION_TOKEN"},
    {"TokenRefreshRequired", EACCES, WS_S3_EXPIRED, "the session's token has expired: get new credentials"},
    {"AuthorizationHeaderMalformed", EINVAL, WS_S3_FINAL, "set AWS_REGION to the region of the bucket"},
    {"PermanentRedirect", EINVAL, WS_S3_FINAL, "set AWS_REGION to the region of the bucket"},
    {"TemporaryRedirect", EINVAL, WS_S3_FINAL, "set AWS_REGION to the region of the bucket"},
    {"IllegalLocationConstraintException", EINVAL, WS_S3_FINAL, "set AWS_REGION to the region of the bucket"},
    {"SlowDown", ECONNRESET, WS_S3_TEMPORARY, NULL},
    {"Throttling", ECONNRESET, WS_S3_TEMPORARY, NULL},
    {"ThrottlingException", ECONNRESET, WS_S3_TEMPORARY, NULL},
    {"RequestLimitExceeded", ECONNRESET, WS_S3_TEMPORARY, NULL},
    {"TooManyRequests", ECONNRESET, WS_S3_TEMPORARY, NULL},
    {"RequestTimeout", ECONNRESET, WS_S3_TEMPORARY, NULL},
    {"InternalError", ECONNRESET, WS_S3_TEMPORARY, NULL},
    {"ServiceUnavailable", ECONNRESET, WS_S3_TEMPORARY, NULL},
    {"OperationAborted", ECONNRESET, WS_S3_TEMPORARY, NULL},
    {"IncompleteBody", ECONNRESET, WS_S3_TEMPORARY, NULL},
    {"BadDigest", ECONNRESET, WS_S3_TEMPORARY, "what the store received is not what was sent"},
    {"XAmzContentSHA256Mismatch", ECONNRESET, WS_S3_TEMPORARY,
     "what the store received is not what was sent"},
    {"QuotaExceeded", ENOSPC, WS_S3_FINAL, "make room there, or keep fewer anchors"},
    {"StorageFull", ENOSPC, WS_S3_FINAL, "make room there, or keep fewer anchors"},
    {"XMinioStorageFull", ENOSPC, WS_S3_FINAL, "make room there, or keep fewer anchors"},
    {"EntityTooLarge", EFBIG, WS_S3_FINAL, NULL},
};

static int by_status(long status, enum ws_s3_refusal *kind)
{
    *kind = status == 408 || status == 429 || (status >= 500 && status != 501 && status != 507)
                ? WS_S3_TEMPORARY
                : WS_S3_FINAL;
    switch (status) {
    case 401:
    case 403:
        return EACCES;
    case 404:
        return ENOENT;
    case 412:
        return ESTALE;
    case 413:
        return EFBIG;
    case 501:
        return EOPNOTSUPP;
    case 507:
        return ENOSPC;
    default:
        return *kind == WS_S3_TEMPORARY ? ECONNRESET : EPROTO;
    }
}

static int skewed(const char *url, const char *date, struct ws_error *err)
{
    const time_t theirs = date ? curl_getdate(date, NULL) : -1, ours = time(NULL);
    if (theirs < 0)
        return ws_error_set(err, EACCES,
                            "%s refuses the time of this host (RequestTimeTooSkewed): set its clock, by NTP",
                            url);
    return ws_error_set(err, EACCES,
                        "%s refuses the time of this host, whose clock is %lld s %s the store's "
                        "(RequestTimeTooSkewed): set it, by NTP",
                        url, llabs((long long)(ours - theirs)), ours > theirs ? "ahead of" : "behind");
}

int ws_s3_refusal(const char *url, const char *path, const struct ws_http_reply *reply,
                  enum ws_s3_refusal *kind, struct ws_error *err)
{
    const char *region = reply->kept[3];
    char code[64], message[256];
    int number = by_status(reply->status, kind);
    (void)ws_s3_xml_get(reply->text, "Code", code, sizeof(code));
    (void)ws_s3_xml_get(reply->text, "Message", message, sizeof(message));
    if (strcmp(code, "RequestTimeTooSkewed") == 0) {
        *kind = WS_S3_FINAL;
        return skewed(url, reply->kept[2], err);
    }
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        if (strcmp(code, known[i].code) != 0)
            continue;
        *kind = known[i].kind;
        number = known[i].number;
        if (number == EINVAL && region)
            return ws_error_set(err, number,
                                "%s answered %ld %s: the bucket is in %.40s; set AWS_REGION to that", url,
                                reply->status, code, region);
        return ws_error_set(err, number, "%s%s answered %ld %s: %s", url, path, reply->status, code,
                            known[i].remedy ? known[i].remedy
                            : message[0]    ? message
                                            : "no reason was given");
    }
    if (reply->status == 301 || reply->status == 307)
        return ws_error_set(err, EINVAL,
                            "%s%s answered %ld: the bucket is elsewhere%s%.40s: set AWS_REGION or "
                            "AWS_ENDPOINT_URL_S3",
                            url, path, reply->status, region ? ", in " : "", region ? region : "");
    return ws_error_set(err, number, "%s%s answered %ld%s%s: %.200s", url, path, reply->status,
                        code[0] ? " " : "", code,
                        message[0]       ? message
                        : reply->text[0] ? reply->text
                                         : "without a reason");
}
