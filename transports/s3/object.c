#include "transports/s3/object.h"
#include "transports/s3/place.h"
#include "transports/s3/xml.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int ws_s3_get(struct ws_s3_bucket *b, const char *key, size_t limit, char etag[128], bool is_once,
              const atomic_bool *cancel, char **text, size_t *n, struct ws_error *err)
{
    char header[160];
    struct ws_bytes whole = {0};
    struct ws_s3_reply reply;
    const bool asks = etag && etag[0];
    *text = NULL;
    *n = 0;
    snprintf(header, sizeof(header), "If-None-Match: %.127s", asks ? etag : "");
    int rc = ws_s3_call(b,
                        &(struct ws_s3_request){.key = key,
                                                .whole = &whole,
                                                .limit = limit,
                                                .is_no_markup = true,
                                                .is_once = is_once,
                                                .header = asks ? header : NULL,
                                                .cancel = cancel},
                        &reply, err);
    const bool is_same = rc == 0 && reply.status == 304;
    if (rc == 0 && !is_same && !whole.ptr && !(whole.ptr = calloc(1, 1)))
        rc = ws_error_set(err, ENOMEM, "no memory for an object");
    if (rc < 0 || is_same) {
        free(whole.ptr);
    } else {
        *text = whole.ptr;
        *n = whole.len;
        if (etag)
            snprintf(etag, 128, "%s", reply.etag);
    }
    ws_s3_reply_release(&reply);
    return rc;
}

int ws_s3_put(struct ws_s3_bucket *b, const char *key, const void *bytes, size_t n, const atomic_bool *cancel,
              struct ws_error *err)
{
    struct ws_s3_reply reply;
    int rc = ws_s3_call(b,
                        &(struct ws_s3_request){.method = "PUT",
                                                .key = key,
                                                .bytes = bytes,
                                                .n_bytes = n,
                                                .wants_etag = true,
                                                .is_no_markup = true,
                                                .cancel = cancel},
                        &reply, err);
    ws_s3_reply_release(&reply);
    return rc;
}

/* After an answer that was lost: did the store do it? */
static bool is_there(struct ws_s3_bucket *b, const char *key, const void *bytes, size_t n, char etag[128])
{
    struct ws_error err = {0};
    char *text = NULL;
    size_t len = 0;
    etag[0] = 0;
    const int rc = ws_s3_get(b, key, n, etag, false, NULL, &text, &len, &err);
    const bool is = rc == 0 && len == n && memcmp(text, bytes, n) == 0;
    free(text);
    return is;
}

int ws_s3_put_if(struct ws_s3_bucket *b, const char *key, const void *bytes, size_t n, char etag[128],
                 struct ws_error *err)
{
    char header[160], now[128];
    struct ws_s3_reply reply;
    if (etag[0])
        snprintf(header, sizeof(header), "If-Match: %.127s", etag);
    else
        snprintf(header, sizeof(header), "If-None-Match: *");
    int rc = ws_s3_call(b,
                        &(struct ws_s3_request){.method = "PUT",
                                                .key = key,
                                                .bytes = bytes,
                                                .n_bytes = n,
                                                .header = header,
                                                .wants_etag = true,
                                                .is_no_markup = true},
                        &reply, err);
    snprintf(now, sizeof(now), "%s", reply.etag);
    if (rc == -ESTALE && reply.was_sent_before && is_there(b, key, bytes, n, now))
        rc = 0;
    if (rc == 0)
        snprintf(etag, 128, "%s", now);
    ws_s3_reply_release(&reply);
    return rc;
}

int ws_s3_remove(struct ws_s3_bucket *b, const char *key, bool is_once, struct ws_error *err)
{
    struct ws_s3_reply reply;
    int rc = ws_s3_call(
        b, &(struct ws_s3_request){.method = "DELETE", .key = key, .is_no_markup = true, .is_once = is_once},
        &reply, err);
    ws_s3_reply_release(&reply);
    return rc == -ENOENT ? 0 : rc;
}

int ws_s3_size(struct ws_s3_bucket *b, const char *key, const atomic_bool *cancel, uint64_t *size,
               struct ws_error *err)
{
    struct ws_s3_reply reply;
    int rc =
        ws_s3_call(b, &(struct ws_s3_request){.method = "HEAD", .key = key, .cancel = cancel}, &reply, err);
    if (rc == 0)
        *size = reply.size;
    ws_s3_reply_release(&reply);
    return rc;
}

/* One page's keys; others than of the folder are none of ours. */
static int report(const char *text, const char *prefix, const char *folder,
                  int (*found)(void *arg, const char *key), void *arg, struct ws_error *err)
{
    const size_t n = strlen(prefix) + (prefix[0] != 0);
    char key[3 * WS_S3_KEY_BYTES + 1];
    for (const char *at = text; ws_s3_xml_next(&at, NULL, "Key", key, sizeof(key));) {
        if (!ws_s3_xml_decode_url(key))
            return ws_error_set(err, EPROTO, "the store's list has a key that cannot be read: %.100s", key);
        const bool is_below = strncmp(key, prefix, strlen(prefix)) == 0 && (n == 0 || key[n - 1] == '/') &&
                              strncmp(key + n, folder, strlen(folder)) == 0;
        const int rc = is_below ? found(arg, key + n) : 0;
        if (rc)
            return rc;
    }
    return 0;
}

/* *token: where the next page begins, as a query has it; NULL: there is none. */
static int list_page(struct ws_s3_bucket *b, const char *folder, char **token, struct ws_s3_reply *reply,
                     struct ws_error *err)
{
    const char *prefix = ws_s3_bucket_prefix(b);
    char *plain = NULL, *wanted = NULL, *query = NULL;
    char more[8], next[2048];
    int rc = 0;
    if (asprintf(&plain, "%s%s%s", prefix, prefix[0] ? "/" : "", folder) < 0)
        plain = NULL;
    wanted = plain ? ws_s3_encode(plain, false) : NULL;
    if (!wanted ||
        asprintf(&query, "%s%s%sencoding-type=url&list-type=2&prefix=%s", *token ? "continuation-token=" : "",
                 *token ? *token : "", *token ? "&" : "", wanted) < 0) {
        query = NULL;
        rc = ws_error_set(err, ENOMEM, "no memory to list an object store");
    }
    char *before = *token;
    *token = NULL;
    *reply = (struct ws_s3_reply){0};
    if (rc == 0)
        rc = ws_s3_call(b, &(struct ws_s3_request){.query = query, .root = "ListBucketResult"}, reply, err);
    if (rc == 0 && ws_s3_xml_get(reply->text, "IsTruncated", more, sizeof(more)) &&
        strcmp(more, "true") == 0) {
        if (!ws_s3_xml_get(reply->text, "NextContinuationToken", next, sizeof(next)))
            rc = ws_error_set(err, EPROTO, "the store's list goes on, and does not say where");
        else if (!(*token = ws_s3_encode(next, false)))
            rc = ws_error_set(err, ENOMEM, "no memory to list an object store");
        else if (before && strcmp(*token, before) == 0)
            rc = ws_error_set(err, EPROTO, "the store's list does not end");
    }
    free(before);
    free(plain);
    free(wanted);
    free(query);
    return rc;
}

int ws_s3_list(struct ws_s3_bucket *b, const char *folder, int (*found)(void *arg, const char *key),
               void *arg, struct ws_error *err)
{
    char *token = NULL;
    int rc;
    do {
        struct ws_s3_reply reply;
        rc = list_page(b, folder, &token, &reply, err);
        if (rc == 0)
            rc = report(reply.text, ws_s3_bucket_prefix(b), folder, found, arg, err);
        ws_s3_reply_release(&reply);
    } while (rc == 0 && token);
    free(token);
    return rc;
}
