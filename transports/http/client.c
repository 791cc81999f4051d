/* A call: what a request becomes for libcurl, and what becomes of the reply. */
#include "transports/http/client.h"
#include "transports/base/below.h"
#include "transports/base/json_size.h"
#include "transports/base/limits.h"
#include "transports/base/log.h"
#include "transports/base/secret.h"
#include "transports/http/client_loop.h"
#include "transports/http/transfer.h"
#include "transports/http/url.h"
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define SHORTEST_TOKEN 8 /* that is looked for in replies */
#define MAX_CA_BYTES   (1UL << 20)
#define BUFFER_BYTES   (256L << 10) /* of a body that its receiver takes as it comes */
#define KEEP_S         4L /* a connection without a call, or a name's address: uvicorn closes after 5 s */

/* Not by memmem: each call of it is as long as the rest of the text under a sanitizer. */
static void blank(char *text, const char *key, size_t n)
{
    const char *end = text + strlen(text);

    if (n < SHORTEST_TOKEN)
        return;
    for (char *p = text; (size_t)(end - p) >= n && (p = memchr(p, key[0], (size_t)(end - p) - n + 1));) {
        const bool found = memcmp(p, key, n) == 0;
        if (found)
            memset(p, '*', n);
        p += found ? n : 1;
    }
}

/* A token as JSON writes it. */
struct quoted {
    char *text; /* secret memory, of `room` bytes */
    size_t n, room;
};

static int add_quoted(const char *bytes, size_t n, void *arg)
{
    struct quoted *q = arg;

    if (n > q->room - q->n)
        return -1;
    memcpy(q->text + q->n, bytes, n);
    q->n += n;
    return 0;
}

void ws_http_blank_token(char *text, const char *token)
{
    const size_t n = token ? strlen(token) : 0;
    struct quoted q = {.room = 6 * n + 2}; /* \u0000 for each byte, and two quotation marks */
    json_t *value = token ? json_string(token) : NULL;

    if (token)
        blank(text, token, n);
    q.text = value ? ws_secret_alloc(q.room) : NULL;
    if (q.text && json_dump_callback(value, add_quoted, &q, JSON_ENCODE_ANY | JSON_ENSURE_ASCII) == 0)
        blank(text, q.text + 1, q.n - 2);
    else if (value)
        text[0] = 0; /* no memory to look for it: nothing is shown */
    if (value)
        explicit_bzero((char *)(uintptr_t)json_string_value(value), n);
    json_decref(value);
    ws_secret_free(q.text);
}

/* Where a reply goes. */
struct receiver {
    CURL *easy;
    const struct ws_http_request *request;
    struct ws_http_text text;
    struct ws_http_piece piece; /* its status is 0 until the first */
    bool is_stopped;
};

static size_t receive(char *bytes, size_t one, size_t n, void *arg)
{
    struct receiver *r = arg;
    struct curl_header *h;

    if (r->piece.status == 0) {
        curl_easy_getinfo(r->easy, CURLINFO_RESPONSE_CODE, &r->piece.status);
        if (curl_easy_header(r->easy, "Content-Range", 0, CURLH_HEADER, -1, &h) == CURLHE_OK)
            r->piece.content_range = h->value;
    }
    if (!r->request->came || (r->piece.status != 200 && r->piece.status != 206))
        return ws_http_receive_text(bytes, one, n, &r->text);
    r->piece.bytes = bytes;
    r->piece.n = n;
    r->is_stopped = r->request->came(r->request->arg, &r->piece) != 0;
    return r->is_stopped ? 0 : n;
}

/* Over all connections that libcurl tried: it asks again, by itself, when one that it had kept turns out to
 * be closed. */
static bool was_sent(CURL *easy)
{
    long bytes = 0;

    return curl_easy_getinfo(easy, CURLINFO_REQUEST_SIZE, &bytes) != CURLE_OK || bytes > 0;
}

static bool moved(CURL *easy)
{
    curl_off_t up = 0, down = 0;

    (void)curl_easy_getinfo(easy, CURLINFO_SIZE_UPLOAD_T, &up);
    (void)curl_easy_getinfo(easy, CURLINFO_SIZE_DOWNLOAD_T, &down);
    return up + down > 0;
}

/* The whole call took too long, though something moved. */
static bool ran_out(CURL *easy, const struct ws_http_request *r)
{
    curl_off_t us = 0;

    (void)curl_easy_getinfo(easy, CURLINFO_TOTAL_TIME_T, &us);
    return r->timeout_ms && us / 1000 >= r->timeout_ms;
}

/* A server that received no byte has done nothing; of any other server that is unknown. */
static int explain(CURL *easy, CURLcode code, const struct ws_http_request *r,
                   const struct ws_http_transfer *t, const struct receiver *to, struct ws_error *err)
{
    const char *why = ws_http_why(t, code);
    const int number = to->text.lacks_memory ? ENOMEM : ws_http_errno_from_curl(code);

    if (to->is_stopped)
        return ws_error_set(err, ECANCELED, "the call of %s%s was stopped by its receiver", r->url, r->path);
    if (to->text.is_too_big)
        return ws_error_set(err, EPROTO, "%s%s answered with more than %lu bytes: is this %s?", r->url,
                            r->path, WS_MAX_REPLY_BYTES, r->what);
    ws_log(WS_LOG_DEBUG, "http", "call failed url=%s%s curl=%d", r->url, r->path, (int)code);
    switch (number) {
    case ENOMEM:
        return ws_error_set(err, ENOMEM, "no memory for the reply of %s%s", r->url, r->path);
    case EACCES:
        return ws_error_set(err, EACCES, "the certificate of %s is not trusted: %s", r->url, why);
    case EINVAL:
        return ws_error_set(err, EINVAL, "'%s' cannot be called: %s", r->url, why);
    case EPROTO:
        return ws_error_set(err, EPROTO, "%s%s did not answer in HTTP: %s", r->url, r->path, why);
    default:
        break;
    }
    if (!was_sent(easy))
        return ws_error_set(err, EHOSTUNREACH,
                            "no connection to %s: %s; does it run, and is this its address?", r->url, why);
    if (number == ETIMEDOUT && r->stall_s && !ran_out(easy, r))
        return ws_error_set(err, ETIMEDOUT, "%s%s: %s for %u s", r->url, r->path,
                            moved(easy) ? "next to nothing moved" : "nothing moved", r->stall_s);
    if (number == ETIMEDOUT)
        return ws_error_set(err, ETIMEDOUT, "%s%s did not answer within %.1f s", r->url, r->path,
                            r->timeout_ms / 1000.0);
    return ws_error_set(err, ECONNRESET, "%s%s closed the connection %s: %s", r->url, r->path,
                        to->piece.status ? "in the middle of its reply" : "without a reply", why);
}

/* libcurl is given the bytes: by a name it would open whatever that leads to by then. */
static int set_ca_below(CURL *easy, const struct ws_http_request *r, struct ws_error *err)
{
    char *text;
    size_t n;
    int rc = ws_below_read(r->ca_below, r->ca_file, MAX_CA_BYTES, &text, &n, err);

    (void)curl_easy_setopt(easy, CURLOPT_CAPATH, NULL); /* nor the system's */
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

/* What is a call's own, and no other transfer's. */
static int set_options(CURL *easy, const struct ws_http_request *r, struct receiver *to)
{
    CURLcode bad = 0;

    bad |= curl_easy_setopt(easy, CURLOPT_QUICK_EXIT, 1L); /* a resolver that hangs is not waited for */
    bad |= curl_easy_setopt(easy, CURLOPT_FRESH_CONNECT, r->fresh ? 1L : 0L); /* then it never asks again */
    bad |= curl_easy_setopt(easy, CURLOPT_FORBID_REUSE, r->fresh ? 1L : 0L);
    bad |= curl_easy_setopt(easy, CURLOPT_MAXAGE_CONN, KEEP_S);
    bad |= curl_easy_setopt(easy, CURLOPT_DNS_CACHE_TIMEOUT, KEEP_S);
    bad |= curl_easy_setopt(easy, CURLOPT_LOW_SPEED_LIMIT,
                            r->stall_s ? (r->least_bytes_s ? (long)r->least_bytes_s : 1L) : 0L);
    bad |= curl_easy_setopt(easy, CURLOPT_LOW_SPEED_TIME, (long)r->stall_s);
    if (r->came)
        bad |= curl_easy_setopt(easy, CURLOPT_BUFFERSIZE, BUFFER_BYTES);
    bad |= curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, receive);
    bad |= curl_easy_setopt(easy, CURLOPT_WRITEDATA, to);
    return bad ? -ENOMEM : 0;
}

static int make_headers(const struct ws_http_request *r, struct curl_slist **out)
{
    /* Without "Expect:" curl waits a second for a 100 that many servers never send. One that checks signatures sends
     * it, and libcurl could not sign this (transfer.h). */
    int rc = r->signer ? 0 : ws_http_add_header(out, "Accept: application/json");

    if (!rc && !r->signer)
        rc = ws_http_add_header(out, "Expect:");
    if (!rc && r->body)
        rc = ws_http_add_header(out, "Content-Type: application/json");
    for (const char *const *h = r->headers; !rc && h && *h; h++)
        rc = ws_http_add_header(out, *h);
    return !rc && r->token ? ws_http_add_bearer(out, r->token) : rc;
}

static int keep_headers(CURL *easy, const struct ws_http_request *r, struct ws_http_reply *out)
{
    struct curl_header *h;

    for (size_t i = 0; i < WS_HTTP_KEPT; i++)
        if (r->keep[i] && curl_easy_header(easy, r->keep[i], 0, CURLH_HEADER, -1, &h) == CURLHE_OK &&
            !(out->kept[i] = strdup(h->value)))
            return -ENOMEM;
    return 0;
}

int ws_http_call(struct ws_http_client *http, const struct ws_http_request *r, struct ws_http_reply *out,
                 struct ws_error *err)
{
    struct receiver to = {.request = r, .text.limit = WS_MAX_REPLY_BYTES};
    struct ws_bytes *body = &to.text.bytes;
    char *text = r->body ? json_dumps(r->body, JSON_COMPACT) : NULL;
    char *url = ws_http_join(r->url, r->path);
    struct ws_http_transfer t = {
        .url = url,
        .method = r->method,
        .body = r->bytes ? r->bytes : text,
        .n_body = r->bytes ? r->n_bytes
                  : text   ? strlen(text)
                           : 0,
        .signer = r->signer,
        .ca_file = r->ca_below ? NULL : r->ca_file,
        .connect_ms =
            r->timeout_ms && r->timeout_ms < WS_CONNECT_TIMEOUT_MS ? r->timeout_ms : WS_CONNECT_TIMEOUT_MS,
        .timeout_ms = r->timeout_ms,
    };
    CURL *easy = curl_easy_init();
    CURLcode code = CURLE_OK;
    int rc;

    *out = (struct ws_http_reply){0};
    to.easy = easy;
    if (!easy || !url || (r->body && !text) || make_headers(r, &t.headers) || ws_http_set_up(easy, &t) ||
        set_options(easy, r, &to)) {
        rc = ws_error_set(err, ENOMEM, "no memory to call %s%s", r->url, r->path);
        goto out;
    }
    if (r->ca_file && r->ca_below && set_ca_below(easy, r, err) < 0) {
        err->code = EACCES; /* in any case the server has received nothing */
        rc = -EACCES;
        goto out;
    }
    rc = ws_http_client_run(http, easy, r, &code);
    if (rc == -ECANCELED)
        ws_error_set(err, ECANCELED, "the call of %s%s was interrupted", r->url, r->path);
    else if (rc)
        ws_error_set(err, -rc, "calling %s%s failed inside libcurl", r->url, r->path);
    else if (code != CURLE_OK)
        rc = explain(easy, code, r, &t, &to, err);
    if (rc)
        goto out;
    if ((!body->ptr && !(body->ptr = strdup(""))) || keep_headers(easy, r, out)) {
        rc = ws_error_set(err, ENOMEM, "no memory for the reply of %s%s", r->url, r->path);
        goto out;
    }
    curl_easy_getinfo(easy, CURLINFO_RESPONSE_CODE, &out->status);
    ws_http_blank_token(body->ptr, r->token);
    for (size_t i = 0; i < sizeof(r->hidden) / sizeof(r->hidden[0]); i++)
        ws_http_blank_token(body->ptr, r->hidden[i]);
    if (ws_json_is_modest(body->ptr, body->len))
        out->json = json_loadb(body->ptr, body->len, JSON_REJECT_DUPLICATES, NULL);
    out->text = body->ptr;
    body->ptr = NULL;
out:
    if (rc)
        ws_http_reply_release(out);
    curl_easy_cleanup(easy);
    ws_http_free_headers(t.headers);
    free(body->ptr);
    free(text);
    free(url);
    return rc;
}

void ws_http_reply_release(struct ws_http_reply *reply)
{
    json_decref(reply->json);
    free(reply->text);
    for (size_t i = 0; i < WS_HTTP_KEPT; i++)
        free(reply->kept[i]);
    *reply = (struct ws_http_reply){0};
}
