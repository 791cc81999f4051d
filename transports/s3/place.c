#include "transports/s3/place.h"
#include "transports/base/text.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool is_letter(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

bool ws_s3_is_url(const char *url)
{
    return strncmp(url, "s3://", 5) == 0 || strncmp(url, "gs://", 5) == 0;
}

static bool is_bucket(const char *name, size_t n)
{
    if (n < 3 || n > WS_S3_BUCKET_CHARS || !is_letter(name[0]))
        return false;
    for (size_t i = 0; i < n; i++)
        if (!is_letter(name[i]) && name[i] != '-' && name[i] != '_' && (name[i] != '.' || name[i - 1] == '.'))
            return false;
    return true;
}

/* libcurl takes "." and ".." out of paths, and so would a proxy. */
static bool is_prefix(const char *prefix)
{
    for (const char *part = prefix; *part;) {
        const size_t n = strcspn(part, "/");
        if (n == 0 || (n == 1 && part[0] == '.') || (n == 2 && part[0] == '.' && part[1] == '.'))
            return false;
        for (size_t i = 0, k; i < n; i += k)
            if ((k = ws_utf8_length(part + i, n - i)) == 0 || (unsigned char)part[i] < ' ' || part[i] == 127)
                return false;
        part += n + (part[n] == '/');
    }
    return true;
}

int ws_s3_place_parse(const char *url, struct ws_s3_place *out, struct ws_error *err)
{
    *out = (struct ws_s3_place){.is_google = strncmp(url, "gs://", 5) == 0};
    if (strncmp(url, "az://", 5) == 0 || strncmp(url, "abfs", 4) == 0)
        return ws_error_set(
            err, ENOTSUP,
            "'%s': Azure's storage does not speak S3: name an S3 gateway before it by s3:// and "
            "AWS_ENDPOINT_URL_S3, or mount the container as a folder and name that (dir:)",
            url);
    if (!ws_s3_is_url(url))
        return ws_error_set(err, EINVAL, "'%s' is no object store; write s3://BUCKET/PREFIX", url);
    const char *bucket = url + 5, *prefix;
    const size_t n = strcspn(bucket, "/");
    if (!is_bucket(bucket, n))
        return ws_error_set(
            err, EINVAL,
            "'%s' names no bucket: write s3://BUCKET/PREFIX, with 3 to %d of a-z, 0-9, '.' and '-'", url,
            WS_S3_BUCKET_CHARS);
    memcpy(out->bucket, bucket, n);
    prefix = bucket + n + (bucket[n] == '/');
    size_t length = strlen(prefix);
    while (length > 0 && prefix[length - 1] == '/')
        length--;
    /* What an archive adds has its place, too: /v1/MODEL/VERSION/files/NAME. */
    if (length > WS_S3_KEY_BYTES - 600)
        return ws_error_set(err, EINVAL, "the prefix in '%.100s...' is longer than %d bytes", url,
                            WS_S3_KEY_BYTES - 600);
    memcpy(out->prefix, prefix, length);
    if (!is_prefix(out->prefix))
        return ws_error_set(err, EINVAL,
                            "the prefix in '%s' has an empty part, '.', '..', or what is no printable UTF-8",
                            url);
    return 0;
}

char *ws_s3_place_url(const struct ws_s3_place *place, const char *endpoint, const char *region)
{
    const char *end = strncmp(region, "cn-", 3) == 0 ? ".cn" : "";
    char *url = NULL;
    int n;
    if (!endpoint && place->is_google)
        endpoint = "https://storage.googleapis.com";
    if (endpoint)
        n = asprintf(&url, "%.*s/%s", (int)(strlen(endpoint) - (endpoint[strlen(endpoint) - 1] == '/')),
                     endpoint, place->bucket);
    else if (strchr(place->bucket, '.') || strchr(place->bucket, '_')) /* no certificate has such a name */
        n = asprintf(&url, "https://s3.%s.amazonaws.com%s/%s", region, end, place->bucket);
    else
        n = asprintf(&url, "https://%s.s3.%s.amazonaws.com%s", place->bucket, region, end);
    return n < 0 ? NULL : url;
}

char *ws_s3_encode(const char *text, bool is_path)
{
    char *out = malloc(3 * strlen(text) + 1), *at = out;
    for (const char *p = text; out && *p; p++)
        if (is_letter(*p) || strchr("-._~", *p) || (is_path && *p == '/'))
            *at++ = *p;
        else
            at += sprintf(at, "%%%02X", (unsigned char)*p);
    if (out)
        *at = 0;
    return out;
}
