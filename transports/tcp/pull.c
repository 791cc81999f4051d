/* tcp, the mount's side: libcurl. A lane is one easy handle whose connection is kept; the bytes that it
 * receives are hashed and stored where they belong in the same pass. */
#include "transports/base/clock.h"
#include "transports/base/text.h"
#include "transports/delta/stream.h"
#include "transports/http/status.h"
#include "transports/protocol/api.h"
#include "transports/simd/copy.h"
#include "transports/tcp/tcp.h"
#include <assert.h>
#include <curl/curl.h>
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>

#define BUFFER_BYTES  (128L << 10) /* received, hashed and stored while it is in the second-level cache */
#define STALL_SECONDS 10L          /* a transfer that moves nothing for so long has lost its peer */
#define FLOOR_BYTES_S 1024UL       /* ... and one below this is kept open by it, not served */

struct tcp_source {
    struct ws_source head;
    struct ws_source_options options; /* strings are ours */
    struct curl_slist *headers;
};

struct tcp_lane {
    struct ws_lane head;
    CURL *curl;
    struct ws_hasher *hasher;
    char error[CURL_ERROR_SIZE];
};

static pthread_once_t once = PTHREAD_ONCE_INIT;

static void start_curl(void)
{
    (void)curl_global_init(CURL_GLOBAL_ALL);
}

/* --- the source --- */

static void tcp_close(struct ws_source *source)
{
    struct tcp_source *s = (struct tcp_source *)source;
    const char *strings[] = {s->options.token, s->options.ca_file, s->options.cert_file, s->options.key_file};
    for (size_t i = 0; i < sizeof(strings) / sizeof(strings[0]); i++)
        free((char *)(uintptr_t)strings[i]);
    curl_slist_free_all(s->headers);
    free(s->head.url);
    free(s);
}

static char *copy_of(const char *text)
{
    return text ? strdup(text) : NULL;
}

static int check_url(const char *url, struct ws_error *err)
{
    CURLU *u = curl_url();
    char *user = NULL, *query = NULL;
    int rc = 0;
    if (!u)
        return ws_error_set(err, ENOMEM, "no memory for a URL");
    if (curl_url_set(u, CURLUPART_URL, url, 0) != CURLUE_OK)
        rc = ws_error_set(err, EINVAL, "'%s' is no URL; write http://HOST:PORT", url);
    else if (curl_url_get(u, CURLUPART_USER, &user, 0) == CURLUE_OK)
        rc = ws_error_set(err, EINVAL, "credentials do not belong into a source's URL; use token-file=");
    else if (curl_url_get(u, CURLUPART_QUERY, &query, 0) == CURLUE_OK)
        rc = ws_error_set(err, EINVAL, "'%s' has a query; a source is only http://HOST:PORT", url);
    curl_free(user);
    curl_free(query);
    curl_url_cleanup(u);
    return rc;
}

static int tcp_open(const char *url, const struct ws_source_options *o, struct ws_source **out,
                    struct ws_error *err)
{
    pthread_once(&once, start_curl);
    int rc = check_url(url, err);
    if (rc < 0)
        return rc;
    struct tcp_source *s = calloc(1, sizeof(*s));
    if (!s)
        return ws_error_set(err, ENOMEM, "no memory for a source");
    s->head.ops = &ws_tcp_ops;
    s->head.url = strdup(url);
    s->options = *o;
    s->options.who = NULL; /* in the head */
    s->options.token = copy_of(o->token);
    s->options.ca_file = copy_of(o->ca_file);
    s->options.cert_file = copy_of(o->cert_file);
    s->options.key_file = copy_of(o->key_file);
    if (s->head.url)
        for (size_t n = strlen(url); n > 0 && s->head.url[n - 1] == '/'; n--)
            s->head.url[n - 1] = 0;
    bool ok = s->head.url && !o->token == !s->options.token;
    if (ok && s->options.token) {
        char *line = NULL;
        ok = asprintf(&line, "Authorization: Bearer %s", s->options.token) > 0 &&
             (s->headers = curl_slist_append(NULL, line));
        free(line);
    }
    if (!ok) {
        tcp_close(&s->head);
        return ws_error_set(err, ENOMEM, "no memory for a source");
    }
    *out = &s->head;
    return 0;
}

static int errno_of_curl(CURLcode code)
{
    switch (code) {
    case CURLE_OK:
        return 0;
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_RESOLVE_PROXY:
    case CURLE_COULDNT_CONNECT:
        return EHOSTUNREACH;
    case CURLE_OPERATION_TIMEDOUT:
        return ETIMEDOUT;
    case CURLE_ABORTED_BY_CALLBACK:
        return ECANCELED;
    case CURLE_OUT_OF_MEMORY:
        return ENOMEM;
    case CURLE_SSL_CONNECT_ERROR:
    case CURLE_SSL_CERTPROBLEM:
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CACERT_BADFILE:
        return EACCES;
    case CURLE_WRITE_ERROR:
    case CURLE_FILESIZE_EXCEEDED:
        return EPROTO;
    default:
        return ECONNRESET;
    }
}

/* What watches over a request while it goes on. Silence is curl's to notice; a peer that sends a few bytes
 * now and then is not silent, and would keep a lane for ever. */
struct guard {
    const atomic_bool *cancel;  /* may be NULL */
    _Atomic(uint64_t) *came_ns; /* may be NULL */
    uint64_t told_ns, told_bytes;
    uint64_t stall_ns; /* 0: a trickle is fine */
    bool owed;         /* what comes now is at hand, its sender waits for nobody */
    uint64_t since_ns, since_bytes;
    bool trickles;
    int shortage; /* EMFILE, ENFILE: no descriptor was left for a socket, which curl calls unreachable */
};

/* Tells that bytes come, at no less than the floor since that was told last. */
static void tell_came(struct guard *g, uint64_t now, uint64_t bytes)
{
    const uint64_t more = bytes - g->told_bytes;
    if (g->told_ns == 0)
        g->told_ns = now;
    if (more < FLOOR_BYTES_S || more < (now - g->told_ns) / WS_MS_NS * FLOOR_BYTES_S / 1000)
        return;
    g->told_ns = now;
    g->told_bytes = bytes;
    atomic_store(g->came_ns, now);
}

static int on_progress(void *arg, curl_off_t total, curl_off_t received, curl_off_t c, curl_off_t d)
{
    struct guard *g = arg;
    const uint64_t now = ws_clock_ns(), bytes = (uint64_t)received;
    (void)total;
    (void)c;
    (void)d;
    if (g->cancel && atomic_load(g->cancel))
        return 1;
    if (g->came_ns)
        tell_came(g, now, bytes);
    if (!g->owed || g->stall_ns == 0 || g->since_ns == 0) {
        g->since_ns = now;
        g->since_bytes = bytes;
    } else if (now - g->since_ns >= g->stall_ns) {
        const uint64_t more = bytes - g->since_bytes;
        g->trickles = more > 0 && more < g->stall_ns / WS_MS_NS * FLOOR_BYTES_S / 1000;
        g->since_ns = now;
        g->since_bytes = bytes;
    }
    return g->trickles;
}

static curl_socket_t on_socket(void *arg, curlsocktype purpose, struct curl_sockaddr *a)
{
    struct guard *g = arg;
    const int sock = socket(a->family, a->socktype | SOCK_CLOEXEC, a->protocol);
    (void)purpose;
    if (sock < 0 && (errno == EMFILE || errno == ENFILE))
        g->shortage = errno;
    return sock < 0 ? CURL_SOCKET_BAD : sock;
}

static const char *why_of(const struct guard *g, CURLcode code, const char *buffer)
{
    if (g->shortage && code == CURLE_COULDNT_CONNECT)
        return g->shortage == EMFILE
                   ? "this process is out of file descriptors: raise LimitNOFILE=, ulimit -n"
                   : "this machine is out of file descriptors: raise fs.file-max";
    return buffer[0] ? buffer : curl_easy_strerror(code);
}

/* What every request has in common. */
static void set_up(CURL *c, const struct tcp_source *s, char *error, struct guard *guard)
{
    unsigned connect_ms =
        s->options.connect_timeout_ms ? s->options.connect_timeout_ms : WS_CONNECT_TIMEOUT_MS;
    curl_easy_reset(c); /* keeps the connection */
    error[0] = 0;
    curl_easy_setopt(c, CURLOPT_ERRORBUFFER, error);
    curl_easy_setopt(c, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(c, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(c, CURLOPT_PROXY, "");
    curl_easy_setopt(c, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    curl_easy_setopt(c, CURLOPT_CONNECTTIMEOUT_MS, (long)connect_ms);
    curl_easy_setopt(c, CURLOPT_TCP_NODELAY, 1L);
    curl_easy_setopt(c, CURLOPT_USERAGENT, "wsync/" WS_VERSION);
    if (s->headers) {
        curl_easy_setopt(c, CURLOPT_HTTPHEADER, s->headers);
        curl_easy_setopt(c, CURLOPT_UNRESTRICTED_AUTH, 0L);
    }
    if (s->options.ca_file) { /* instead of the folder of the system's, too */
        curl_easy_setopt(c, CURLOPT_CAINFO, s->options.ca_file);
        curl_easy_setopt(c, CURLOPT_CAPATH, NULL);
    }
    if (s->options.cert_file)
        curl_easy_setopt(c, CURLOPT_SSLCERT, s->options.cert_file);
    if (s->options.key_file)
        curl_easy_setopt(c, CURLOPT_SSLKEY, s->options.key_file);
    curl_easy_setopt(c, CURLOPT_OPENSOCKETFUNCTION, on_socket);
    curl_easy_setopt(c, CURLOPT_OPENSOCKETDATA, guard);
    curl_easy_setopt(c, CURLOPT_NOPROGRESS, 0L);
    curl_easy_setopt(c, CURLOPT_XFERINFOFUNCTION, on_progress);
    curl_easy_setopt(c, CURLOPT_XFERINFODATA, guard);
}

/* --- small requests: JSON in and out --- */

struct text {
    char *p;
    size_t n, limit;
};

static size_t on_text(char *data, size_t size, size_t n, void *arg)
{
    struct text *t = arg;
    n *= size;
    if (t->n + n > t->limit)
        return 0;
    char *more = realloc(t->p, t->n + n + 1);
    if (!more)
        return 0;
    memcpy(more + t->n, data, n);
    t->p = more;
    t->n += n;
    t->p[t->n] = 0;
    return n;
}

/* The sentence in an error body {"error":..,"errno":..}, else the status. */
static int status_error(const char *url, long status, const struct text *body, struct ws_error *err)
{
    json_t *o = body->p ? json_loadb(body->p, body->n, 0, NULL) : NULL;
    const char *text = json_string_value(json_object_get(o, "error"));
    const char *name = json_string_value(json_object_get(o, "errno"));
    int code = name ? ws_errno_of(name) : 0;
    if (code <= 0)
        code = ws_errno_of_http((unsigned)status);
    if (code <= 0)
        code = EPROTO;
    ws_error_set(err, code, "%s answered %ld: %.600s", url, status, text ? text : "without a reason");
    json_decref(o);
    return -code;
}

static int request(struct tcp_source *s, const char *path, const json_t *post, unsigned timeout_ms,
                   size_t limit, const atomic_bool *cancel, struct text *out, struct ws_error *err)
{
    char url[WS_MAX_URL + WS_API_PATH_BYTES], why[CURL_ERROR_SIZE];
    struct curl_slist *headers = NULL;
    char *body = post ? json_dumps(post, JSON_COMPACT) : NULL;
    long status = 0;
    int rc = 0;
    struct guard guard = {.cancel = cancel};
    CURL *c = curl_easy_init();
    *out = (struct text){.limit = limit};
    snprintf(url, sizeof(url), "%s%s", s->head.url, path);
    if (!c || (post && !body)) {
        rc = ws_error_set(err, ENOMEM, "no memory for a request to %s", s->head.url);
        goto out;
    }
    set_up(c, s, why, &guard);
    curl_easy_setopt(c, CURLOPT_URL, url);
    curl_easy_setopt(c, CURLOPT_TIMEOUT_MS, (long)timeout_ms);
    curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, on_text);
    curl_easy_setopt(c, CURLOPT_WRITEDATA, out);
    if (body) {
        for (struct curl_slist *h = s->headers; h; h = h->next)
            headers = curl_slist_append(headers, h->data);
        headers = curl_slist_append(headers, "Content-Type: application/json");
        curl_easy_setopt(c, CURLOPT_HTTPHEADER, headers);
        curl_easy_setopt(c, CURLOPT_POSTFIELDS, body);
    }
    CURLcode code = curl_easy_perform(c);
    curl_easy_getinfo(c, CURLINFO_RESPONSE_CODE, &status);
    if (code == CURLE_WRITE_ERROR)
        rc = ws_error_set(err, EPROTO, "%s sent more than %zu bytes", url, limit);
    else if (code != CURLE_OK)
        rc = ws_error_set(err, errno_of_curl(code), "cannot ask %s: %s", url, why_of(&guard, code, why));
    else if (status != 200)
        rc = status_error(url, status, out, err);
out:
    if (c)
        curl_easy_cleanup(c);
    curl_slist_free_all(headers);
    free(body);
    if (rc < 0) {
        free(out->p);
        *out = (struct text){0};
    }
    return rc;
}

static unsigned reply_ms(const struct tcp_source *s)
{
    return s->options.reply_timeout_ms ? s->options.reply_timeout_ms : WS_REPLY_TIMEOUT_MS;
}

static int tcp_models(struct ws_source *source, const char *model, uint64_t since, unsigned timeout_ms,
                      const atomic_bool *cancel, json_t **out, struct ws_error *err)
{
    struct tcp_source *s = (struct tcp_source *)source;
    char path[WS_API_PATH_BYTES];
    struct text text;
    ws_api_models_path(path, model, since, timeout_ms, source->who);
    int rc = request(s, path, NULL, since ? timeout_ms + 2 * WS_LEASE_GRACE_MS : reply_ms(s),
                     WS_MAX_REPLY_BYTES, cancel, &text, err);
    if (rc < 0)
        return rc;
    json_error_t why;
    *out = json_loadb(text.p ? text.p : "", text.n, JSON_REJECT_DUPLICATES, &why);
    free(text.p);
    if (!json_is_object(*out)) {
        json_decref(*out);
        *out = NULL;
        return ws_error_set(err, EPROTO, "%s sent no list of models; is it a wsync agent?", s->head.url);
    }
    return 0;
}

static int tcp_manifest(struct ws_source *source, const char *model, uint64_t version, const char *run,
                        const atomic_bool *cancel, struct ws_manifest **out, struct ws_error *err)
{
    struct tcp_source *s = (struct tcp_source *)source;
    char path[WS_API_PATH_BYTES];
    struct text text;
    ws_api_version_path(path, "manifest", model, version, NULL, run);
    int rc = request(s, path, NULL, reply_ms(s), WS_MAX_MANIFEST_BYTES, cancel, &text, err);
    if (rc == 0)
        rc = ws_manifest_from_json(text.p ? text.p : "", text.n, out, err);
    free(text.p);
    return rc;
}

static int tcp_deltas(struct ws_source *source, const char *model, const struct ws_mark *version,
                      const atomic_bool *cancel, struct ws_delta_offer out[WS_MAX_OFFERS], size_t *n,
                      struct ws_error *err)
{
    struct tcp_source *s = (struct tcp_source *)source;
    char path[WS_API_PATH_BYTES];
    struct text text;
    ws_api_version_path(path, "deltas", model, version->version, NULL, version->run);
    int rc = request(s, path, NULL, reply_ms(s), WS_MAX_REPLY_BYTES, cancel, &text, err);
    if (rc < 0)
        return rc;
    json_t *reply = json_loadb(text.p ? text.p : "", text.n, JSON_REJECT_DUPLICATES, NULL);
    free(text.p);
    rc = ws_delta_offers_read(json_object_get(reply, "deltas"), out, n);
    json_decref(reply);
    return rc < 0 ? ws_error_set(err, EPROTO, "%s sent no list of deltas", s->head.url) : 0;
}

static int tcp_call(struct ws_source *source, const char *method, const char *path, const json_t *body,
                    json_t **reply, struct ws_error *err)
{
    struct tcp_source *s = (struct tcp_source *)source;
    bool post = strcmp(method, "POST") == 0;
    json_t *nothing = post && !body ? json_object() : NULL;
    struct text text;
    int rc = request(s, path, post && !body ? nothing : body, reply_ms(s), WS_MAX_REPLY_BYTES,
                     s->options.stop, &text, err);
    json_decref(nothing);
    if (rc < 0)
        return rc;
    *reply = json_loadb(text.p ? text.p : "", text.n, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, NULL);
    free(text.p);
    return *reply ? 0
                  : ws_error_set(err, EPROTO, "%s%s answered with no JSON; is it a wsync agent?", s->head.url,
                                 path);
}

/* --- lanes --- */

static int tcp_lane_open(struct ws_source *source, struct ws_lane **out, struct ws_error *err)
{
    struct tcp_lane *l = calloc(1, sizeof(*l));
    if (l) {
        l->head.source = source;
        l->curl = curl_easy_init();
        l->hasher = ws_hasher_new();
    }
    if (!l || !l->curl || !l->hasher) {
        if (l && l->curl)
            curl_easy_cleanup(l->curl);
        if (l)
            ws_hasher_free(l->hasher);
        free(l);
        return ws_error_set(err, ENOMEM, "no memory for a lane to %s", source->url);
    }
    *out = &l->head;
    return 0;
}

static uint64_t stall_ns(const struct ws_lane *lane)
{
    const unsigned ms = ((const struct tcp_source *)lane->source)->options.stall_ms;
    return ms ? ms * WS_MS_NS : (uint64_t)STALL_SECONDS * 1000 * WS_MS_NS;
}

static int trickled(const struct ws_lane *lane, const char *what, struct ws_error *err)
{
    return ws_error_set(err, ETIMEDOUT, "%s sends %s at less than %lu bytes a second", lane->source->url,
                        what, FLOOR_BYTES_S);
}

static void tcp_lane_close(struct ws_lane *lane)
{
    struct tcp_lane *l = (struct tcp_lane *)lane;
    curl_easy_cleanup(l->curl);
    ws_hasher_free(l->hasher);
    free(l);
}

/* Where the next received byte goes. Nothing is ever stored outside [at, end). */
struct sink {
    struct tcp_lane *lane;
    const struct ws_fetch *fetch;
    const struct ws_bundle_file *file;
    uint64_t at, end; /* of the file */
    size_t block;
    struct guard guard;
    bool checked, stopped;
    struct text refusal; /* the body of a response that is no 206 */
    const char *lie;     /* what was wrong with the answer */
};

/* "bytes 5-9/100". RFC 9110, 14.4. */
static bool is_content_range(const char *text, uint64_t *first, uint64_t *last, uint64_t *size)
{
    return strncmp(text, "bytes ", 6) == 0 && (text += 6, ws_text_digits(&text, first) == 0) &&
           *text++ == '-' && ws_text_digits(&text, last) == 0 && *text++ == '/' &&
           ws_text_u64(text, size) == 0;
}

/* Before the first byte: is this the answer to the question? */
static bool check_answer(struct sink *k)
{
    long status = 0;
    struct curl_header *h;
    curl_easy_getinfo(k->lane->curl, CURLINFO_RESPONSE_CODE, &status);
    k->checked = true;
    if (status != 206 && !(status == 200 && k->at == 0 && k->end == k->file->size_bytes))
        return true; /* the body is kept as the reason */
    if (status == 206) {
        uint64_t a = 0, b = 0, size = 0;
        if (curl_easy_header(k->lane->curl, "Content-Range", 0, CURLH_HEADER, -1, &h) != CURLHE_OK ||
            !is_content_range(h->value, &a, &b, &size) || a != k->at || b + 1 != k->end ||
            size != k->file->size_bytes) {
            k->lie = "it sent another range than was asked for";
            return false;
        }
    }
    return true;
}

static size_t on_bytes(char *data, size_t size, size_t n, void *arg)
{
    struct sink *k = arg;
    long status = 0;
    n *= size;
    if (!k->checked && !check_answer(k))
        return 0;
    curl_easy_getinfo(k->lane->curl, CURLINFO_RESPONSE_CODE, &status);
    if (status != 206 && status != 200)
        return on_text(data, 1, n, &k->refusal);
    if (n > k->end - k->at) {
        k->lie = "it sent more bytes than were asked for";
        return 0;
    }
    ws_fetch_came(k->fetch, n);
    for (size_t left = n; left > 0;) {
        uint64_t block_end = k->block * WS_BLOCK_BYTES + ws_block_len(k->file, k->block);
        size_t piece = left < block_end - k->at ? left : (size_t)(block_end - k->at);
        ws_hasher_copy(k->lane->hasher, k->fetch->dst + k->at, data, piece);
        k->at += piece;
        data += piece;
        left -= piece;
        if (k->at < block_end)
            continue;
        uint64_t hash = ws_hasher_digest(k->lane->hasher);
        ws_hasher_reset(k->lane->hasher);
        if (k->fetch->block(k->fetch->arg, k->block++, hash)) {
            k->stopped = true;
            return 0;
        }
    }
    return n;
}

static int fetch_result(struct sink *k, CURLcode code, struct ws_error *err)
{
    struct tcp_lane *l = k->lane;
    const char *url = l->head.source->url;
    long status = 0;
    curl_easy_getinfo(l->curl, CURLINFO_RESPONSE_CODE, &status);
    if (k->stopped)
        return ws_error_set(err, ECANCELED, "the transfer was stopped");
    if (k->guard.trickles)
        return trickled(&l->head, k->file->name, err);
    if (k->lie)
        return ws_error_set(err, EPROTO, "%s does not keep to the protocol: %s", url, k->lie);
    if (code != CURLE_OK)
        return ws_error_set(err, errno_of_curl(code), "the transfer of %s from %s ended early: %s",
                            k->file->name, url, why_of(&k->guard, code, l->error));
    if (status != 206 && status != 200) {
        int rc = status_error(url, status, &k->refusal, err);
        (void)ws_error_prefix(err, "%s/%" PRIu64 "/%s", k->fetch->manifest->model,
                              k->fetch->manifest->version, k->file->name);
        return rc;
    }
    if (k->at != k->end)
        return ws_error_set(err, ECONNRESET, "%s sent %" PRIu64 " bytes too few of %s", url, k->end - k->at,
                            k->file->name);
    return 0;
}

static int tcp_fetch(struct ws_lane *lane, const struct ws_fetch *f, struct ws_error *err)
{
    struct tcp_lane *l = (struct tcp_lane *)lane;
    const struct ws_manifest *m = f->manifest;
    const struct ws_bundle_file *file = &m->files[f->file];
    size_t last = f->first + f->n - 1;
    struct sink k = {
        .lane = l,
        .fetch = f,
        .file = file,
        .at = f->first * WS_BLOCK_BYTES,
        .end = last * WS_BLOCK_BYTES + ws_block_len(file, last),
        .block = f->first,
        .guard = {.cancel = f->cancel, .came_ns = f->came_ns, .stall_ns = stall_ns(lane), .owed = true},
        .refusal.limit = 64 << 10};
    char path[WS_API_PATH_BYTES], url[WS_MAX_URL + WS_API_PATH_BYTES], range[64];
    ws_api_version_path(path, "files", m->model, m->version, file->name, m->run);
    snprintf(url, sizeof(url), "%s%s", lane->source->url, path);
    snprintf(range, sizeof(range), "%" PRIu64 "-%" PRIu64, k.at, k.end - 1);
    set_up(l->curl, (struct tcp_source *)lane->source, l->error, &k.guard);
    curl_easy_setopt(l->curl, CURLOPT_URL, url);
    curl_easy_setopt(l->curl, CURLOPT_RANGE, range);
    curl_easy_setopt(l->curl, CURLOPT_BUFFERSIZE, BUFFER_BYTES);
    curl_easy_setopt(l->curl, CURLOPT_LOW_SPEED_LIMIT, 1L);
    curl_easy_setopt(l->curl, CURLOPT_LOW_SPEED_TIME, STALL_SECONDS);
    curl_easy_setopt(l->curl, CURLOPT_WRITEFUNCTION, on_bytes);
    curl_easy_setopt(l->curl, CURLOPT_WRITEDATA, &k);
    ws_hasher_reset(l->hasher);
    CURLcode code = curl_easy_perform(l->curl);
    int rc = fetch_result(&k, code, err);
    free(k.refusal.p);
    return rc;
}

/* --- deltas --- */

struct delta_sink {
    struct tcp_lane *lane;
    struct ws_delta_reader *reader;
    struct guard guard; /* a record comes whole; between records its maker may still be at work */
    struct ws_error err;
    int rc;              /* of the reader */
    struct text refusal; /* the body of a response that is no 200 */
};

static size_t on_delta(char *data, size_t size, size_t n, void *arg)
{
    struct delta_sink *k = arg;
    long status = 0;
    n *= size;
    curl_easy_getinfo(k->lane->curl, CURLINFO_RESPONSE_CODE, &status);
    if (status != 200)
        return on_text(data, 1, n, &k->refusal);
    k->rc = ws_delta_read(k->reader, data, n, &k->err);
    k->guard.owed = ws_delta_reader_is_inside(k->reader);
    return k->rc ? 0 : n;
}

static int delta_result(struct delta_sink *k, const struct ws_delta_fetch *f, CURLcode code,
                        struct ws_error *err)
{
    struct tcp_lane *l = k->lane;
    const char *url = l->head.source->url;
    long status = 0;
    bool whole = false;
    curl_easy_getinfo(l->curl, CURLINFO_RESPONSE_CODE, &status);
    if (k->rc < 0)
        return ws_error_set(err, -k->rc, "the delta of %s/%" PRIu64 " from %s: %s", f->model,
                            f->link.target.version, url, k->err.text);
    if (k->rc > 0)
        return ws_error_set(err, ECANCELED, "the transfer was stopped");
    if (k->guard.trickles)
        return trickled(&l->head, "a delta", err);
    if (code != CURLE_OK)
        return ws_error_set(err, errno_of_curl(code), "the delta of %s/%" PRIu64 " from %s ended early: %s",
                            f->model, f->link.target.version, url, why_of(&k->guard, code, l->error));
    if (status != 200) {
        int rc = status_error(url, status, &k->refusal, err);
        (void)ws_error_prefix(err, "the delta of %s/%" PRIu64, f->model, f->link.target.version);
        return rc;
    }
    if (!ws_delta_reader_ended(k->reader, &whole))
        return ws_error_set(err, ECONNRESET, "%s sent a delta without its end", url);
    return whole ? 0
                 : ws_error_set(err, ENODATA, "the delta of %s/%" PRIu64 " was given up by %s", f->model,
                                f->link.target.version, url);
}

static int tcp_delta(struct ws_lane *lane, const struct ws_delta_fetch *f, struct ws_error *err)
{
    struct tcp_lane *l = (struct tcp_lane *)lane;
    struct delta_sink k = {.lane = l,
                           .guard = {.cancel = f->cancel, .came_ns = f->came_ns, .stall_ns = stall_ns(lane)},
                           .refusal.limit = 64 << 10};
    char path[WS_API_PATH_BYTES], url[WS_MAX_URL + WS_API_PATH_BYTES];
    k.reader = ws_delta_reader_new(&f->link, f->n_blocks, &f->taker);
    if (!k.reader)
        return ws_error_set(err, ENOMEM, "no memory for a delta");
    ws_api_delta_path(path, f->model, &f->link.target, &f->link.base, f->part, f->parts, f->level);
    snprintf(url, sizeof(url), "%s%s", lane->source->url, path);
    set_up(l->curl, (struct tcp_source *)lane->source, l->error, &k.guard);
    curl_easy_setopt(l->curl, CURLOPT_URL, url);
    curl_easy_setopt(l->curl, CURLOPT_BUFFERSIZE, BUFFER_BYTES);
    curl_easy_setopt(l->curl, CURLOPT_LOW_SPEED_LIMIT, 1L);
    curl_easy_setopt(l->curl, CURLOPT_LOW_SPEED_TIME, STALL_SECONDS);
    curl_easy_setopt(l->curl, CURLOPT_WRITEFUNCTION, on_delta);
    curl_easy_setopt(l->curl, CURLOPT_WRITEDATA, &k);
    CURLcode code = curl_easy_perform(l->curl);
    int rc = delta_result(&k, f, code, err);
    ws_delta_reader_free(k.reader);
    free(k.refusal.p);
    return rc;
}

const struct ws_transport_ops ws_tcp_ops = {
    .name = "tcp",
    .schemes = (const char *const[]){"http://", "https://", NULL},
    .open = tcp_open,
    .close = tcp_close,
    .models = tcp_models,
    .manifest = tcp_manifest,
    .lane_open = tcp_lane_open,
    .lane_close = tcp_lane_close,
    .fetch = tcp_fetch,
    .deltas = tcp_deltas,
    .delta = tcp_delta,
    .call = tcp_call,
};
