#include "transports/http/url.h"
#include "transports/base/limits.h"
#include "transports/http/transfer.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool part_is_there(CURLU *u, CURLUPart part)
{
    char *value = NULL;
    bool there = curl_url_get(u, part, &value, 0) == CURLUE_OK;

    curl_free(value);
    return there;
}

static bool scheme_is_http(CURLU *u)
{
    char *scheme = NULL;
    bool http = curl_url_get(u, CURLUPART_SCHEME, &scheme, 0) == CURLUE_OK &&
                (!strcmp(scheme, "http") || !strcmp(scheme, "https"));

    curl_free(scheme);
    return http;
}

int ws_http_check_url(const char *what, const char *url, struct ws_error *err)
{
    CURLU *u;
    int rc = 0;

    ws_http_ensure_curl();
    if (strlen(url) > WS_MAX_URL)
        return ws_error_set(err, EINVAL, "the URL of %s is longer than %d bytes", what, WS_MAX_URL);
    u = curl_url();
    if (!u)
        return ws_error_set(err, ENOMEM, "no memory to look at the URL of %s", what);
    /* The text is repeated only once it is known to hold no credentials. */
    if (curl_url_set(u, CURLUPART_URL, url, CURLU_NON_SUPPORT_SCHEME))
        rc = ws_error_set(err, EINVAL, "this is no URL; write http://HOST:PORT");
    else if (part_is_there(u, CURLUPART_USER) || part_is_there(u, CURLUPART_PASSWORD))
        rc = ws_error_set(err, EINVAL,
                          "the URL of %s holds credentials, which would show in status and logs; leave them "
                          "out and name a file with token-file=",
                          what);
    else if (!scheme_is_http(u))
        rc = ws_error_set(err, EINVAL, "%s is reached by http:// or https://, not by '%s'", what, url);
    else if (part_is_there(u, CURLUPART_QUERY) || part_is_there(u, CURLUPART_FRAGMENT))
        rc = ws_error_set(err, EINVAL,
                          "the URL of %s has a query or a fragment, which would show in status and logs; "
                          "write http://HOST:PORT",
                          what);
    curl_url_cleanup(u);
    return rc;
}

char *ws_http_join(const char *url, const char *path)
{
    size_t n = strlen(url);
    char *whole = NULL;

    while (n > 0 && url[n - 1] == '/')
        n--;
    return asprintf(&whole, "%.*s%s", (int)n, url, path) < 0 ? NULL : whole;
}

/* Scheme, host and port as libcurl writes them, without the slash at the end; NULL: no memory. */
static char *plain_url(const char *url)
{
    CURLU *u = curl_url();
    char *whole = NULL, *out = NULL;

    if (u && !curl_url_set(u, CURLUPART_URL, url, 0) &&
        !curl_url_get(u, CURLUPART_URL, &whole, CURLU_DEFAULT_PORT))
        out = ws_http_join(whole, "");
    curl_free(whole);
    curl_url_cleanup(u);
    return out;
}

bool ws_http_is_same(const char *url, const char *other)
{
    char *a = plain_url(url), *b = plain_url(other);
    bool same = a && b ? strcmp(a, b) == 0 : strcmp(url, other) == 0;

    free(a);
    free(b);
    return same;
}
