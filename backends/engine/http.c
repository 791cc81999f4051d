/* HTTP to an engine: what a request becomes for libcurl, and what libcurl says becomes an errno. */
#include "backends/engine/http.h"
#include "backends/engine/http_loop.h"
#include "transports/base/below.h"
#include "transports/base/limits.h"
#include "transports/base/log.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define MAX_DEPTH      64
#define FIRST_BYTES    4096UL
#define SHORTEST_TOKEN 8 /* that is looked for in replies */
#define MAX_CA_BYTES   (1UL << 20)
#define KEEP_S         4L /* a connection without a call, or a name's address: uvicorn closes after 5 s */

struct body {
    char *bytes;
    size_t used, room;
    bool too_big, no_memory;
};

/* --- addresses --- */

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

int ws_http_check_url(const char *url, struct ws_error *err)
{
    CURLU *u;
    int rc = 0;

    ws_http_ensure_curl();
    if (strlen(url) > WS_MAX_URL)
        return ws_error_set(err, EINVAL, "the engine's URL is longer than %d bytes", WS_MAX_URL);
    u = curl_url();
    if (!u)
        return ws_error_set(err, ENOMEM, "no memory to look at the engine's URL");
    /* The text is repeated only once it is known to hold no credentials. */
    if (curl_url_set(u, CURLUPART_URL, url, CURLU_NON_SUPPORT_SCHEME))
        rc = ws_error_set(err, EINVAL, "this is no URL; write http://HOST:PORT");
    else if (part_is_there(u, CURLUPART_USER) || part_is_there(u, CURLUPART_PASSWORD))
        rc = ws_error_set(err, EINVAL,
                          "the engine's URL holds credentials, which would show in status "
                          "and logs; leave them out and name a file with token-file=");
    else if (!scheme_is_http(u))
        rc = ws_error_set(err, EINVAL, "an engine is reached by http:// or https://, not by '%s'", url);
    else if (part_is_there(u, CURLUPART_QUERY) || part_is_there(u, CURLUPART_FRAGMENT))
        rc = ws_error_set(err, EINVAL,
                          "the engine's URL has a query or a fragment, which would show in status and logs; "
                          "write http://HOST:PORT");
    curl_url_cleanup(u);
    return rc;
}

/* One address out of "http://host:1/" and "/path". */
static char *join(const char *url, const char *path)
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
        out = join(whole, "");
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

/* --- one call --- */

static size_t take_bytes(char *bytes, size_t one, size_t n, void *arg)
{
    struct body *b = arg;
    size_t room = b->room ? b->room : FIRST_BYTES;

    (void)one; /* always 1 */
    if (n > WS_MAX_REPLY_BYTES - b->used) {
        b->too_big = true;
        return 0;
    }
    while (room < b->used + n + 1)
        room *= 2;
    if (room != b->room) {
        char *more = realloc(b->bytes, room);
        if (!more) {
            b->no_memory = true;
            return 0;
        }
        b->bytes = more;
        b->room = room;
    }
    memcpy(b->bytes + b->used, bytes, n);
    b->used += n;
    b->bytes[b->used] = '\0';
    return n;
}

/* What an engine says ends up in messages, and some repeat the key that they did not like. */
static void blank_token(char *text, const char *token)
{
    size_t n = token ? strlen(token) : 0;

    for (char *p = text; n >= SHORTEST_TOKEN && (p = strstr(p, token)); p += n)
        memset(p, '*', n);
}

/* Over all connections that libcurl tried: it asks again, by itself, when one that it had kept turns out to
 * be closed. */
static bool was_sent(CURL *easy)
{
    long bytes = 0;

    return curl_easy_getinfo(easy, CURLINFO_REQUEST_SIZE, &bytes) != CURLE_OK || bytes > 0;
}

/* libcurl's codes become an errno here and nowhere else. */
static int explain(CURL *easy, CURLcode code, const struct ws_http_request *r, const struct body *b,
                   struct ws_error *err)
{
    const char *why = curl_easy_strerror(code);

    if (b->too_big)
        return ws_error_set(err, EPROTO, "%s%s answered with more than %lu bytes: is this an engine?", r->url,
                            r->path, WS_MAX_REPLY_BYTES);
    if (b->no_memory || code == CURLE_OUT_OF_MEMORY)
        return ws_error_set(err, ENOMEM, "no memory for the reply of %s%s", r->url, r->path);
    ws_log(WS_LOG_DEBUG, "engine", "call failed url=%s%s curl=%d", r->url, r->path, (int)code);
    switch (code) {
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CACERT_BADFILE:
        return ws_error_set(err, EACCES, "the certificate of %s is not trusted: %s", r->url, why);
    case CURLE_URL_MALFORMAT:
        return ws_error_set(err, EINVAL, "'%s' cannot be called: %s", r->url, why);
    case CURLE_UNSUPPORTED_PROTOCOL: /* of the reply: the URL's is checked before */
    case CURLE_WEIRD_SERVER_REPLY:
    case CURLE_HTTP2:
    case CURLE_SSL_CONNECT_ERROR:
    case CURLE_BAD_CONTENT_ENCODING:
        return ws_error_set(err, EPROTO, "%s%s did not answer in HTTP: %s", r->url, r->path, why);
    default:
        break;
    }
    if (!was_sent(easy))
        return ws_error_set(err, EHOSTUNREACH,
                            "no connection to %s: %s; is the engine running, and is "
                            "this its address?",
                            r->url, why);
    if (code == CURLE_OPERATION_TIMEDOUT)
        return ws_error_set(err, ETIMEDOUT, "%s%s did not answer within %.1f s", r->url, r->path,
                            r->timeout_ms / 1000.0);
    return ws_error_set(err, ECONNRESET, "%s%s closed the connection without a reply: %s", r->url, r->path,
                        why);
}

/* libcurl is given the bytes: by a name it would open whatever that leads to by then. */
static int set_ca_below(CURL *easy, const struct ws_http_request *r, struct ws_error *err)
{
    char *text;
    size_t n;
    int rc = ws_below_read(r->ca_below, r->ca_file, MAX_CA_BYTES, &text, &n, err);

    if (rc == 0) {
        struct curl_blob blob = {.data = text, .len = n, .flags = CURL_BLOB_COPY};
        const CURLcode bad = curl_easy_setopt(easy, CURLOPT_CAINFO_BLOB, &blob);
        if (bad == CURLE_UNKNOWN_OPTION || bad == CURLE_NOT_BUILT_IN)
            rc = ws_error_set(err, ENOTSUP,
                              "this libcurl takes certificates from no memory (CURLOPT_CAINFO_BLOB), which "
                              "ca-file=%s needs below %s: have root add the engine without files=",
                              r->ca_file, r->ca_below);
        else if (bad)
            rc = ws_error_set(err, ENOMEM, "no memory for the certificates %s", r->ca_file);
        free(text);
    }
    return rc;
}

static int set_options(CURL *easy, const struct ws_http_request *r, const char *url, const char *text,
                       struct curl_slist *headers, struct body *body)
{
    unsigned connect_ms = r->timeout_ms < WS_CONNECT_TIMEOUT_MS ? r->timeout_ms : WS_CONNECT_TIMEOUT_MS;
    CURLcode bad = 0;

    bad |= curl_easy_setopt(easy, CURLOPT_URL, url);
    bad |= curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
    bad |= curl_easy_setopt(easy, CURLOPT_FOLLOWLOCATION, 0L);
    bad |= curl_easy_setopt(easy, CURLOPT_NOPROXY, "*"); /* an engine is a neighbour */
    bad |= curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
    bad |= curl_easy_setopt(easy, CURLOPT_QUICK_EXIT, 1L); /* a resolver that hangs is not waited for */
    bad |= curl_easy_setopt(easy, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    bad |= curl_easy_setopt(easy, CURLOPT_FRESH_CONNECT, r->fresh ? 1L : 0L); /* then it never asks again */
    bad |= curl_easy_setopt(easy, CURLOPT_FORBID_REUSE, r->fresh ? 1L : 0L);
    bad |= curl_easy_setopt(easy, CURLOPT_MAXAGE_CONN, KEEP_S);
    bad |= curl_easy_setopt(easy, CURLOPT_DNS_CACHE_TIMEOUT, KEEP_S);
    bad |= curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT_MS, (long)connect_ms);
    bad |= curl_easy_setopt(easy, CURLOPT_TIMEOUT_MS, (long)r->timeout_ms);
    bad |= curl_easy_setopt(easy, CURLOPT_HTTPHEADER, headers);
    bad |= curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, take_bytes);
    bad |= curl_easy_setopt(easy, CURLOPT_WRITEDATA, body);
    if (r->ca_file && !r->ca_below)
        bad |= curl_easy_setopt(easy, CURLOPT_CAINFO, r->ca_file);
    if (r->ca_file) /* instead of the folder of the system's, too; not every TLS library has one */
        (void)curl_easy_setopt(easy, CURLOPT_CAPATH, NULL);
    if (text) {
        bad |= curl_easy_setopt(easy, CURLOPT_POST, 1L);
        bad |= curl_easy_setopt(easy, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)strlen(text));
        bad |= curl_easy_setopt(easy, CURLOPT_POSTFIELDS, text);
    }
    return bad ? -ENOMEM : 0;
}

static int add_header(struct curl_slist **list, const char *line)
{
    struct curl_slist *longer = curl_slist_append(*list, line);

    if (!longer)
        return -ENOMEM;
    *list = longer;
    return 0;
}

static int make_headers(const struct ws_http_request *r, struct curl_slist **out)
{
    char *line = NULL;
    /* Without "Expect:" curl waits a second for a 100 that many servers never send. */
    int rc = add_header(out, "Accept: application/json");

    if (!rc)
        rc = add_header(out, "Expect:");
    if (!rc && r->body)
        rc = add_header(out, "Content-Type: application/json");
    if (!rc && r->token) {
        if (asprintf(&line, "Authorization: Bearer %s", r->token) < 0)
            return -ENOMEM;
        rc = add_header(out, line);
        explicit_bzero(line, strlen(line));
        free(line);
    }
    return rc;
}

/* Is text nested no deeper than an engine's replies are? jansson goes 2,048 levels down on the caller's
 * stack, and frees what it made as deep. */
static bool is_shallow(const char *text, size_t n)
{
    bool quoted = false;
    for (size_t i = 0, depth = 0; i < n; i++) {
        if (text[i] == '"')
            quoted = !quoted;
        else if (quoted)
            i += text[i] == '\\';
        else if (text[i] == '{' || text[i] == '[')
            depth++;
        else if ((text[i] == '}' || text[i] == ']') && depth > 0)
            depth--;
        if (depth > MAX_DEPTH)
            return false;
    }
    return true;
}

int ws_http_call(struct ws_http *http, const struct ws_http_request *r, struct ws_http_reply *out,
                 struct ws_error *err)
{
    struct body body = {0};
    struct curl_slist *headers = NULL;
    char *text = r->body ? json_dumps(r->body, JSON_COMPACT) : NULL;
    char *url = join(r->url, r->path);
    CURL *easy = curl_easy_init();
    CURLcode code = CURLE_OK;
    int rc;

    *out = (struct ws_http_reply){0};
    if (!easy || !url || (r->body && !text) || make_headers(r, &headers) ||
        set_options(easy, r, url, text, headers, &body)) {
        rc = ws_error_set(err, ENOMEM, "no memory to call %s%s", r->url, r->path);
        goto out;
    }
    if (r->ca_file && r->ca_below && set_ca_below(easy, r, err) < 0) {
        err->code = EACCES; /* whatever it was, the engine has heard of nothing */
        rc = -EACCES;
        goto out;
    }
    rc = ws_http_run(http, easy, r, &code);
    if (rc == -ECANCELED)
        ws_error_set(err, ECANCELED, "the call of %s%s was interrupted", r->url, r->path);
    else if (rc)
        ws_error_set(err, -rc, "calling %s%s failed inside libcurl", r->url, r->path);
    else if (code != CURLE_OK)
        rc = explain(easy, code, r, &body, err);
    if (rc)
        goto out;
    if (!body.bytes && !(body.bytes = strdup(""))) {
        rc = ws_error_set(err, ENOMEM, "no memory for the reply of %s%s", r->url, r->path);
        goto out;
    }
    curl_easy_getinfo(easy, CURLINFO_RESPONSE_CODE, &out->status);
    blank_token(body.bytes, r->token);
    for (size_t i = 0; i < sizeof(r->hidden) / sizeof(r->hidden[0]); i++)
        blank_token(body.bytes, r->hidden[i]);
    if (is_shallow(body.bytes, body.used))
        out->json = json_loadb(body.bytes, body.used, JSON_REJECT_DUPLICATES, NULL);
    out->text = body.bytes;
    body.bytes = NULL;
out:
    curl_easy_cleanup(easy);
    curl_slist_free_all(headers);
    free(body.bytes);
    free(text);
    free(url);
    return rc;
}

void ws_http_reply_release(struct ws_http_reply *reply)
{
    json_decref(reply->json);
    free(reply->text);
    *reply = (struct ws_http_reply){0};
}
