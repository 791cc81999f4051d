/* tcp, the mount's side: a source, and its requests in JSON. */
#include "transports/tcp/pull.h"
#include "transports/access/loopback.h"
#include "transports/base/json_size.h"
#include "transports/base/secret.h"
#include "transports/http/client.h"
#include "transports/http/status.h"
#include "transports/http/url.h"
#include "transports/protocol/api.h"
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- the source --- */

static void tcp_close(struct ws_source *source)
{
    struct ws_tcp_source *s = (struct ws_tcp_source *)source;
    const char *strings[] = {s->options.ca_file, s->options.cert_file, s->options.key_file,
                             s->options.token_file, s->options.below};
    for (size_t i = 0; i < sizeof(strings) / sizeof(strings[0]); i++)
        free((char *)(uintptr_t)strings[i]);
    ws_tcp_headers_destroy(&s->headers);
    free(s->head.url);
    free(s);
}

static char *copy_of(const char *text)
{
    return text ? strdup(text) : NULL;
}

static int tcp_open(const char *url, const struct ws_source_options *o, struct ws_source **out,
                    struct ws_error *err)
{
    unsigned port;
    int rc = ws_http_check_url("a source", url, err);
    if (rc < 0)
        return rc;
    const bool is_local = ws_loopback_port(url, &port);
    if (o->token && *o->token && !is_local && !o->insecure && strncmp(url, "https://", 8) != 0)
        return ws_error_set(
            err, EACCES,
            "the token would go to %.200s in clear text, for all to read on the way: write https://, "
            "or say insecure where the network is trusted",
            url);
    struct ws_tcp_source *s = calloc(1, sizeof(*s));
    if (!s)
        return ws_error_set(err, ENOMEM, "no memory for a source");
    s->head.ops = &ws_tcp_ops;
    s->head.url = strdup(url);
    s->options = *o;
    s->options.mount_id = NULL; /* in the head */
    s->options.token = NULL;    /* in the headers */
    s->options.token_file = copy_of(o->token_file);
    s->options.below = copy_of(o->below);
    s->options.ca_file = copy_of(o->ca_file);
    s->options.cert_file = copy_of(o->cert_file);
    s->options.key_file = copy_of(o->key_file);
    if (s->head.url)
        for (size_t n = strlen(url); n > 0 && s->head.url[n - 1] == '/'; n--)
            s->head.url[n - 1] = 0;
    const bool ok = s->head.url && !o->token_file == !s->options.token_file && !o->below == !s->options.below;
    if (!ok || ws_tcp_headers_init(&s->headers, s->head.url, o->token, s->options.token_file,
                                   s->options.below) < 0) {
        tcp_close(&s->head);
        return ws_error_set(err, ENOMEM, "no memory for a source");
    }
    *out = &s->head;
    return 0;
}

int ws_tcp_set_up(CURL *c, struct ws_tcp_source *s, struct ws_http_transfer *t, char *why,
                  struct ws_tcp_guard *guard)
{
    curl_easy_reset(c); /* keeps the connection */
    if (!t->headers)
        t->headers = ws_tcp_headers_now(&s->headers);
    t->agent = "wsync/" WS_VERSION;
    t->ca_file = s->options.ca_file;
    t->cert_file = s->options.cert_file;
    t->key_file = s->options.key_file;
    t->connect_ms = s->options.connect_timeout_ms;
    t->why = why;
    CURLcode bad = ws_http_set_up(c, t) < 0;
    bad |= curl_easy_setopt(c, CURLOPT_NOPROGRESS, 0L);
    bad |= curl_easy_setopt(c, CURLOPT_XFERINFOFUNCTION, ws_tcp_guard_look);
    bad |= curl_easy_setopt(c, CURLOPT_XFERINFODATA, guard);
    return bad ? -ENOMEM : 0;
}

int ws_tcp_errno_from_curl(const struct ws_source *source, CURLcode code)
{
    const bool is_no_http = code == CURLE_UNSUPPORTED_PROTOCOL || code == CURLE_WEIRD_SERVER_REPLY ||
                            code == CURLE_SSL_CONNECT_ERROR;
    return is_no_http && atomic_load(&((const struct ws_tcp_source *)source)->has_spoken)
               ? ECONNRESET
               : ws_http_errno_from_curl(code);
}

/* --- small requests: JSON in and out --- */

/* Of an answer that is none of a server of wsync's, which give their reasons in JSON. */
static void say_who_answers(const char *url, char *out, size_t cap)
{
    unsigned port;
    uid_t owner;
    if (ws_loopback_port(url, &port) && ws_loopback_owner(url, port, &owner))
        snprintf(out, cap,
                 "without a reason, as no wsync agent does: a program of account %u listens on port %u of "
                 "this host; end it, or give the agent another port",
                 (unsigned)owner, port);
    else
        snprintf(out, cap, "without a reason");
}

int ws_tcp_status_error(struct ws_source *source, const char *url, long status,
                        const struct ws_http_text *body, const struct curl_slist *sent, struct ws_error *err)
{
    if (status == 401 && ws_tcp_headers_refused(&((struct ws_tcp_source *)source)->headers, sent))
        return ws_error_set(err, ECONNRESET, "%s takes another token by now, which is sent next", url);
    char unsaid[200], hint[WS_LOCAL_TOKEN_PATH + 200] = "", file[WS_LOCAL_TOKEN_PATH + 16];
    json_t *o = body->bytes.ptr && ws_json_is_modest(body->bytes.ptr, body->bytes.len)
                    ? json_loadb(body->bytes.ptr, body->bytes.len, 0, NULL)
                    : NULL;
    const char *text = json_string_value(json_object_get(o, "error"));
    const char *name = json_string_value(json_object_get(o, "errno"));
    int code = name ? ws_errno_from_name(name) : 0;
    if (text) /* of o, which is ours */
        ws_tcp_headers_blank(&((struct ws_tcp_source *)source)->headers, (char *)(uintptr_t)text);
    if (code <= 0)
        code = ws_errno_from_http((unsigned)status);
    if (code <= 0)
        code = EPROTO;
    if (!text)
        say_who_answers(source->url, unsaid, sizeof(unsaid));
    if (status == 401 && ws_tcp_headers_found(&((struct ws_tcp_source *)source)->headers, sent, file))
        snprintf(hint, sizeof(hint),
                 "; sent was the token of %s, which an agent that was killed may have left: if so, remove "
                 "that file, "
                 "and give token-file= with this agent's",
                 file);
    ws_error_set(err, code, "%s answered %ld: %.600s%s", url, status, text ? text : unsaid, hint);
    json_decref(o);
    return -code;
}

/* The source's headers, and that of a body of JSON. */
static int post_headers(const struct curl_slist *own, struct curl_slist **out)
{
    int rc = 0;
    for (const struct curl_slist *h = own; h && rc == 0; h = h->next)
        rc = ws_http_add_header(out, h->data);
    return rc < 0 ? rc : ws_http_add_header(out, "Content-Type: application/json");
}

/* The kernel's estimate for the connection that has just served a request. */
static void note_round_trip(struct ws_tcp_source *s, CURL *c)
{
    curl_socket_t sock = CURL_SOCKET_BAD;
    struct tcp_info info;
    socklen_t n = sizeof(info);
    if (curl_easy_getinfo(c, CURLINFO_ACTIVESOCKET, &sock) == CURLE_OK && sock != CURL_SOCKET_BAD &&
        getsockopt(sock, IPPROTO_TCP, TCP_INFO, &info, &n) == 0 && info.tcpi_rtt > 0)
        atomic_store(&s->head.rtt_us, info.tcpi_rtt);
}

/* *status: of the answer; 0: there is none. */
static int request_once(struct ws_tcp_source *s, const char *path, const json_t *post, unsigned timeout_ms,
                        size_t limit, const atomic_bool *cancel, struct ws_http_text *out, long *status,
                        struct ws_error *err)
{
    char url[WS_MAX_URL + WS_API_PATH_BYTES], why[CURL_ERROR_SIZE];
    struct curl_slist *headers = NULL;
    char *body = post ? json_dumps(post, JSON_COMPACT) : NULL;
    struct ws_tcp_guard guard = {.cancel = cancel};
    struct ws_http_transfer t = {
        .url = url, .body = body, .n_body = body ? strlen(body) : 0, .timeout_ms = timeout_ms};
    struct curl_slist *const own = ws_tcp_headers_now(&s->headers);
    CURL *c = curl_easy_init();
    int rc = ws_tcp_headers_check(&s->headers, err);
    *status = 0;
    *out = (struct ws_http_text){.limit = limit};
    if (rc < 0)
        goto out;
    rc = c && (!post || (body && post_headers(own, &headers) == 0)) ? 0 : -ENOMEM;
    snprintf(url, sizeof(url), "%s%s", s->head.url, path);
    t.headers = post ? headers : own;
    if (rc == 0)
        rc = ws_tcp_set_up(c, s, &t, why, &guard);
    if (rc < 0 || curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, ws_http_receive_text) ||
        curl_easy_setopt(c, CURLOPT_WRITEDATA, out)) {
        rc = ws_error_set(err, ENOMEM, "no memory for a request to %s", s->head.url);
        goto out;
    }
    CURLcode code = curl_easy_perform(c);
    curl_easy_getinfo(c, CURLINFO_RESPONSE_CODE, status);
    if (code == CURLE_OK) {
        atomic_store(&s->has_spoken, true);
        note_round_trip(s, c);
    }
    if (out->is_too_big)
        rc = ws_error_set(err, EPROTO, "%s sent more than %zu bytes", url, limit);
    else if (out->lacks_memory)
        rc = ws_error_set(err, ENOMEM, "no memory for the reply of %s", url);
    else if (code != CURLE_OK)
        rc = ws_error_set(err, ws_tcp_errno_from_curl(&s->head, code), "cannot ask %s: %s", url,
                          ws_http_why(&t, code));
    else if (*status != 200)
        rc = ws_tcp_status_error(&s->head, url, *status, out, own, err);
    else
        rc = ws_tcp_headers_check(&s->headers, err);
out:
    if (c)
        curl_easy_cleanup(c);
    ws_http_free_headers(headers);
    free(body);
    if (rc < 0) {
        free(out->bytes.ptr);
        *out = (struct ws_http_text){0};
    }
    return rc;
}

/* What was refused for a token that has been exchanged since was not done, and is asked for once more. */
static int request(struct ws_tcp_source *s, const char *path, const json_t *post, unsigned timeout_ms,
                   size_t limit, const atomic_bool *cancel, struct ws_http_text *out, struct ws_error *err)
{
    long status;
    int rc = request_once(s, path, post, timeout_ms, limit, cancel, out, &status, err);
    if (rc == -ECONNRESET && status == 401)
        rc = request_once(s, path, post, timeout_ms, limit, cancel, out, &status, err);
    return rc;
}

/* Of a reply, whose text is freed. -EPROTO: it would take more memory than any peer's needs; *out NULL: it is no JSON. */
static int parse(const struct ws_tcp_source *s, const char *path, struct ws_http_text *text, size_t flags,
                 json_t **out, struct ws_error *err)
{
    const char *bytes = text->bytes.ptr ? text->bytes.ptr : "";
    const bool modest = ws_json_is_modest(bytes, text->bytes.len);
    *out = modest ? json_loadb(bytes, text->bytes.len, JSON_REJECT_DUPLICATES | flags, NULL) : NULL;
    free(text->bytes.ptr);
    return modest
               ? 0
               : ws_error_set(err, EPROTO,
                              "%s%s answered with JSON that would take more than %lu bytes of memory, or is "
                              "nested too deep; is it a wsync agent?",
                              s->head.url, path, WS_MAX_JSON_BYTES);
}

static unsigned reply_ms(const struct ws_tcp_source *s)
{
    return s->options.reply_timeout_ms ? s->options.reply_timeout_ms : WS_REPLY_TIMEOUT_MS;
}

static int tcp_models(struct ws_source *source, const char *model, uint64_t since, unsigned timeout_ms,
                      const atomic_bool *cancel, json_t **out, struct ws_error *err)
{
    struct ws_tcp_source *s = (struct ws_tcp_source *)source;
    char path[WS_API_PATH_BYTES];
    struct ws_http_text text;
    ws_api_models_path(path, model, since, timeout_ms, source->mount_id);
    int rc = request(s, path, NULL, since ? timeout_ms + 2 * WS_LEASE_GRACE_MS : reply_ms(s),
                     WS_MAX_REPLY_BYTES, cancel, &text, err);
    if (rc < 0)
        return rc;
    rc = parse(s, path, &text, 0, out, err);
    if (rc < 0)
        return rc;
    if (!json_is_object(*out)) {
        json_decref(*out);
        *out = NULL;
        return ws_error_set(err, EPROTO, "%s sent no list of models; is it a wsync agent?", s->head.url);
    }
    return 0;
}

static int tcp_manifest(struct ws_source *source, const char *model, uint64_t version, const char *lineage,
                        const atomic_bool *cancel, struct ws_manifest **out, struct ws_error *err)
{
    struct ws_tcp_source *s = (struct ws_tcp_source *)source;
    char path[WS_API_PATH_BYTES];
    struct ws_http_text text;
    ws_api_version_path(path, "manifest", model, version, NULL, lineage);
    int rc = request(s, path, NULL, reply_ms(s), WS_MAX_MANIFEST_BYTES, cancel, &text, err);
    if (rc == 0)
        rc = ws_manifest_from_json(text.bytes.ptr ? text.bytes.ptr : "", text.bytes.len, out, err);
    free(text.bytes.ptr);
    return rc;
}

static int tcp_deltas(struct ws_source *source, const char *model, const struct ws_version_id *version,
                      const atomic_bool *cancel, struct ws_delta_entry out[WS_MAX_DELTA_ENTRIES], size_t *n,
                      struct ws_error *err)
{
    struct ws_tcp_source *s = (struct ws_tcp_source *)source;
    char path[WS_API_PATH_BYTES];
    struct ws_http_text text;
    ws_api_version_path(path, "deltas", model, version->version, NULL, version->lineage);
    int rc = request(s, path, NULL, reply_ms(s), WS_MAX_REPLY_BYTES, cancel, &text, err);
    if (rc < 0)
        return rc;
    json_t *reply;
    rc = parse(s, path, &text, 0, &reply, err);
    if (rc < 0)
        return rc;
    rc = ws_delta_listing_read(json_object_get(reply, "deltas"), out, n);
    json_decref(reply);
    return rc < 0 ? ws_error_set(err, EPROTO, "%s sent no list of deltas", s->head.url) : 0;
}

static int tcp_call(struct ws_source *source, const char *method, const char *path, const json_t *body,
                    json_t **reply, struct ws_error *err)
{
    struct ws_tcp_source *s = (struct ws_tcp_source *)source;
    bool post = strcmp(method, "POST") == 0;
    json_t *nothing = post && !body ? json_object() : NULL;
    struct ws_http_text text;
    int rc = request(s, path, post && !body ? nothing : body, reply_ms(s), WS_MAX_REPLY_BYTES,
                     s->options.stop, &text, err);
    json_decref(nothing);
    if (rc < 0)
        return rc;
    rc = parse(s, path, &text, JSON_DECODE_ANY, reply, err);
    if (rc < 0)
        return rc;
    return *reply ? 0
                  : ws_error_set(err, EPROTO, "%s%s answered with no JSON; is it a wsync agent?", s->head.url,
                                 path);
}

const struct ws_transport_ops ws_tcp_ops = {
    .name = "tcp",
    .schemes = (const char *const[]){"http://", "https://", NULL},
    .open = tcp_open,
    .close = tcp_close,
    .models = tcp_models,
    .manifest = tcp_manifest,
    .lane_open = ws_tcp_lane_open,
    .lane_close = ws_tcp_lane_close,
    .fetch = ws_tcp_fetch,
    .deltas = tcp_deltas,
    .delta = ws_tcp_fetch_delta,
    .call = tcp_call,
};
