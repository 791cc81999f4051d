#include "transports/s3/bucket.h"
#include "transports/access/loopback.h"
#include "transports/base/clock.h"
#include "transports/base/limits.h"
#include "transports/base/log.h"
#include "transports/base/secret.h"
#include "transports/base/text.h"
#include "transports/http/transfer.h"
#include "transports/http/url.h"
#include "transports/s3/credentials.h"
#include "transports/s3/refusal.h"
#include <gnutls/crypto.h>
#include <gnutls/gnutls.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <strings.h>
#include <time.h>

#define TRIES         5
#define PAUSE_MS      250U   /* before the second try; doubles */
#define MAX_PAUSE_MS  30000U /* that a store may ask for */
#define LOOK_MS       50U
#define STALL_S       20U
#define SILENT_TRIES  3             /* so many that ended because nothing moved are enough */
#define LEAST_BYTES_S 16384U        /* a store that moves less a second is as good as silent */
#define LONGEST_MS    (600U * 1000) /* of a call that may be silent while the store works */
#define URL_BYTES     (WS_MAX_URL + 4096)

struct ws_s3_bucket {
    struct ws_s3_place place;
    char *url; /* keys are added to it */
    char scope[16 + WS_S3_REGION_CHARS];
    char *ca_file;
    const atomic_bool *stop;
    unsigned stall_s;
    struct ws_http_client *http;
    struct ws_s3_credentials *credentials;
};

/* --- opening --- */

static const char *first_of(const char *a, const char *b)
{
    const char *value = getenv(a);
    if (!value || !*value)
        value = b ? getenv(b) : NULL;
    return value && *value ? value : NULL;
}

/* Where it is: the environment first, then the profile. */
static int locate(struct ws_s3_bucket *b, const struct ws_s3_options *o, struct ws_error *err)
{
    const char *region = first_of("AWS_REGION", "AWS_DEFAULT_REGION");
    const char *endpoint = first_of("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL");
    struct ws_s3_profile p;
    unsigned port;
    int rc = ws_s3_profile_read(&p, err);
    if (rc < 0)
        return rc;
    if (!region)
        region = p.region[0] ? p.region : b->place.is_google ? "auto" : "us-east-1";
    if (!endpoint && p.endpoint[0])
        endpoint = p.endpoint;
    if (strlen(region) > WS_S3_REGION_CHARS ||
        strspn(region, "abcdefghijklmnopqrstuvwxyz0123456789-_") != strlen(region))
        rc = ws_error_set(err, EINVAL, "'%.100s' is no region; set AWS_REGION to one like us-east-1", region);
    if (rc == 0 && endpoint)
        rc = ws_http_check_url("the object store (AWS_ENDPOINT_URL)", endpoint, err);
    if (rc == 0 && !(b->url = ws_s3_place_url(&b->place, endpoint, region)))
        rc = ws_error_set(err, ENOMEM, "no memory for an object store");
    snprintf(b->scope, sizeof(b->scope), "aws:amz:%s:s3", region);
    if (rc == 0 && strncasecmp(b->url, "https://", 8) != 0 && !ws_loopback_port(b->url, &port) &&
        !o->insecure)
        rc = ws_error_set(
            err, EACCES,
            "the weights, and a session's token, would go to %.200s in clear text, for all to read on "
            "the way: write https://, or say insecure where the network is trusted",
            endpoint);
    ws_s3_profile_release(&p);
    return rc;
}

int ws_s3_bucket_open(struct ws_s3_bucket **out, const char *url, const struct ws_s3_options *o,
                      struct ws_error *err)
{
    struct ws_s3_bucket *b = calloc(1, sizeof(*b));
    if (!b)
        return ws_error_set(err, ENOMEM, "no memory for an object store");
    b->stop = o->stop;
    b->stall_s = o->stall_s ? o->stall_s : STALL_S;
    int rc = ws_s3_place_parse(url, &b->place, err);
    if (rc == 0)
        rc = locate(b, o, err);
    if (rc == 0)
        rc = ws_http_client_new(&b->http, err);
    if (rc == 0 && (!(b->credentials = ws_s3_credentials_new(b->http, o->stop)) ||
                    (o->ca_file && !(b->ca_file = strdup(o->ca_file)))))
        rc = ws_error_set(err, ENOMEM, "no memory for an object store");
    if (rc < 0) {
        ws_s3_bucket_free(b);
        return rc;
    }
    *out = b;
    return 0;
}

void ws_s3_bucket_free(struct ws_s3_bucket *b)
{
    if (!b)
        return;
    ws_s3_credentials_free(b->credentials);
    ws_http_client_free(b->http);
    free(b->ca_file);
    free(b->url);
    free(b);
}

const char *ws_s3_bucket_prefix(const struct ws_s3_bucket *b)
{
    return b->place.prefix;
}

/* --- one try --- */

/* What comes of an object. */
struct receipt {
    const struct ws_s3_request *request;
    uint64_t n; /* bytes of a range, of all tries */
    bool is_stopped, is_too_big, lacks_memory;
    const char *violation;
};

/* bytes A-B/SIZE, with nothing else. */
static bool is_range(const char *text, uint64_t first, uint64_t last)
{
    uint64_t a, b;
    if (!text || strncmp(text, "bytes ", 6) != 0)
        return false;
    text += 6;
    return ws_text_digits(&text, &a) == 0 && *text++ == '-' && ws_text_digits(&text, &b) == 0 &&
           *text == '/' && a == first && b == last;
}

static int take_range(struct receipt *t, const struct ws_http_piece *p)
{
    const struct ws_s3_request *r = t->request;
    const uint64_t left = r->n - t->n;
    if (p->status != 206 || p->n > left)
        t->violation = p->status != 206 ? "it ignores ranges" : "it sent more bytes than were asked for";
    else if (r->came(r->arg, p->bytes, p->n))
        t->is_stopped = true;
    else
        t->n += p->n;
    return t->violation || t->is_stopped;
}

static int take_whole(struct receipt *t, const struct ws_http_piece *p)
{
    struct ws_bytes *to = t->request->whole;
    t->is_too_big = p->n > t->request->limit - to->len;
    t->lacks_memory = !t->is_too_big && ws_bytes_reserve(to, p->n + 1) < 0;
    if (t->is_too_big || t->lacks_memory)
        return 1;
    memcpy(to->ptr + to->len, p->bytes, p->n);
    to->len += p->n;
    to->ptr[to->len] = 0;
    return 0;
}

struct receiver {
    struct receipt *receipt;
    uint64_t first; /* of this try */
    bool checked;
};

static int on_piece(void *arg, const struct ws_http_piece *p)
{
    struct receiver *v = arg;
    struct receipt *t = v->receipt;
    const struct ws_s3_request *r = t->request;
    if (r->whole)
        return take_whole(t, p);
    if (!v->checked && p->status == 206 && !is_range(p->content_range, v->first, r->first + r->n - 1))
        t->violation = "it sent another range than was asked for";
    v->checked = true;
    return t->violation ? 1 : take_range(t, p);
}

static void hash_header(char out[96], const char *bytes, size_t n)
{
    unsigned char hash[32];
    size_t at = (size_t)sprintf(out, "x-amz-content-sha256: ");
    /* Of what is in memory it cannot fail; a hash that were wrong the store would refuse. */
    if (gnutls_hash_fast(GNUTLS_DIG_SHA256, bytes ? bytes : "", n, hash) < 0)
        memset(hash, 0, sizeof(hash));
    for (size_t i = 0; i < sizeof(hash); i++)
        at += (size_t)sprintf(out + at, "%02x", hash[i]);
}

static char *path_of(const struct ws_s3_bucket *b, const struct ws_s3_request *r)
{
    char *plain = NULL, *encoded = NULL, *path = NULL;
    if (asprintf(&plain, "/%s%s%s", r->key ? b->place.prefix : "", r->key && b->place.prefix[0] ? "/" : "",
                 r->key ? r->key : "") < 0)
        return NULL;
    encoded = ws_s3_encode(plain, true);
    if (!encoded || asprintf(&path, "%s%s%s", encoded, r->query ? "?" : "", r->query ? r->query : "") < 0)
        path = NULL;
    free(encoded);
    free(plain);
    return path;
}

/* As ws_http_call. */
static int send_once(struct ws_s3_bucket *b, const struct ws_s3_request *r, const char *path,
                     const char *hash, const struct ws_s3_keys *keys, struct receipt *t,
                     struct ws_http_reply *reply, struct ws_error *err)
{
    const struct ws_http_signer signer = {b->scope, keys->key_id, keys->secret};
    const atomic_bool *cancel[] = {r->cancel, b->stop};
    const bool may_take_long = r->method && strcmp(r->method, "POST") == 0;
    const char *headers[6] = {hash};
    char range[80];
    size_t n = 1;
    const size_t room = keys->session ? strlen(keys->session) + 32 : 0;
    char *session = room ? ws_secret_alloc(room) : NULL;
    struct receiver v = {.receipt = t, .first = r->first + t->n};
    if (room && !session)
        return ws_error_set(err, ENOMEM, "no memory to call an object store");
    if (session) {
        snprintf(session, room, "x-amz-security-token: %s", keys->session);
        headers[n++] = session;
    }
    if (r->bytes)
        headers[n++] = "Content-Type: application/octet-stream";
    if (r->came) {
        snprintf(range, sizeof(range), "Range: bytes=%" PRIu64 "-%" PRIu64, v.first, r->first + r->n - 1);
        headers[n++] = range;
    }
    if (r->header)
        headers[n++] = r->header;
    if (r->whole && r->whole->ptr) {
        r->whole->len = 0;
        r->whole->ptr[0] = 0;
    }
    const struct ws_http_request request = {
        .what = "an object store",
        .url = b->url,
        .path = path,
        .method = r->method,
        .bytes = r->method && strcmp(r->method, "DELETE") != 0 && strcmp(r->method, "HEAD") != 0
                     ? (r->bytes ? r->bytes : "")
                     : NULL,
        .n_bytes = r->n_bytes,
        .headers = headers,
        .signer = &signer,
        .keep = {"ETag", "Retry-After", "Date",
                 r->method && strcmp(r->method, "HEAD") == 0 ? "Content-Length" : "x-amz-bucket-region"},
        .came = r->came || r->whole ? on_piece : NULL,
        .arg = &v,
        .hidden = {keys->secret, keys->session},
        .ca_file = b->ca_file,
        .stall_s = b->stall_s,
        .least_bytes_s = may_take_long ? 0 : LEAST_BYTES_S,
        .timeout_ms = may_take_long ? LONGEST_MS : 0,
        .n_cancel = 2,
        .cancel = cancel,
    };
    int rc = ws_http_call(r->http ? r->http : b->http, &request, reply, err);
    ws_secret_free(session);
    return rc;
}

/* --- what became of it --- */

static bool is_success(const struct ws_s3_request *r, const struct ws_http_reply *reply)
{
    return (reply->status >= 200 && reply->status < 300) || (reply->status == 304 && r->header && !r->method);
}

/* A success that is none: a page of another server's, or S3's error behind the status 200. 0 or -errno. */
static int check_success(const struct ws_s3_bucket *b, const struct ws_s3_request *r, const struct receipt *t,
                         const struct ws_http_reply *reply, const char *path, struct ws_error *err)
{
    char code[64];
    if (reply->status == 304)
        return 0;
    if (!r->came && !r->whole && ws_s3_xml_has(reply->text, "Error") &&
        ws_s3_xml_get(reply->text, "Code", code, 64))
        return ws_error_set(err, ECONNRESET, "%s%s answered %ld, and in its text the error %s", b->url, path,
                            reply->status, code);
    if (r->came && t->n < r->n)
        return ws_error_set(err, ECONNRESET, "%s%s sent %" PRIu64 " bytes too few", b->url, path,
                            r->n - t->n);
    if (r->whole && reply->status != 200)
        return ws_error_set(err, EPROTO,
                            "%s%s does not keep to the protocol: it answered %ld, a part, where "
                            "all was asked for",
                            b->url, path, reply->status);
    const char *text = r->whole && r->whole->ptr ? r->whole->ptr : reply->text;
    if ((r->root && !ws_s3_xml_has(text, r->root)) || (r->wants_etag && !reply->kept[0]) ||
        (r->is_no_markup && text[0] == '<'))
        return ws_error_set(
            err, EPROTO,
            "%s%s answered %ld, but not as S3 does (\"%.60s\"): is there a proxy in between, or is it "
            "another server?",
            b->url, path, reply->status, text);
    return 0;
}

static int fail_receipt(const struct ws_s3_bucket *b, const char *path, const struct receipt *t,
                        struct ws_error *err)
{
    if (t->violation)
        return ws_error_set(err, EPROTO, "%s%s does not keep to the protocol: %s", b->url, path,
                            t->violation);
    if (t->is_too_big)
        return ws_error_set(err, EFBIG, "%s%s is larger than %zu bytes", b->url, path, t->request->limit);
    if (t->lacks_memory)
        return ws_error_set(err, ENOMEM, "no memory for %s%s", b->url, path);
    return ws_error_set(err, ECANCELED, "the transfer was stopped");
}

static bool is_away(int rc)
{
    return rc == -EHOSTUNREACH || rc == -ETIMEDOUT || rc == -ECONNRESET || rc == -EPROTO;
}

static bool is_cancelled(const struct ws_s3_bucket *b, const struct ws_s3_request *r)
{
    return (b->stop && atomic_load(b->stop)) || (r->cancel && atomic_load(r->cancel));
}

/* Seconds, or a date. */
static unsigned asked_pause_ms(const char *retry_after)
{
    uint64_t seconds;
    if (!retry_after)
        return 0;
    if (ws_text_u64(retry_after, &seconds) < 0) {
        const time_t then = curl_getdate(retry_after, NULL), now = time(NULL);
        seconds = then > now ? (uint64_t)(then - now) : 0;
    }
    return seconds < MAX_PAUSE_MS / 1000 ? (unsigned)seconds * 1000 : MAX_PAUSE_MS;
}

/* Not all at the same moment: the half is up to chance. */
static void pause_between(const struct ws_s3_bucket *b, const struct ws_s3_request *r, unsigned i,
                          unsigned asked_ms)
{
    const unsigned most = PAUSE_MS << i;
    unsigned ms = most / 2 + (unsigned)(ws_clock_ns() / 1000 % (most / 2 + 1));
    if (ms < asked_ms)
        ms = asked_ms;
    for (; ms > 0 && !is_cancelled(b, r); ms -= ms < LOOK_MS ? ms : LOOK_MS)
        (void)poll(NULL, 0, (int)(ms < LOOK_MS ? ms : LOOK_MS));
}

static int make_reply(const struct ws_s3_request *r, struct ws_http_reply *from, struct ws_s3_reply *out)
{
    const bool is_head = r->method && strcmp(r->method, "HEAD") == 0;
    out->status = from->status;
    out->text = from->text;
    from->text = NULL;
    if (from->kept[0])
        snprintf(out->etag, sizeof(out->etag), "%s", from->kept[0]);
    if (is_head && (!from->kept[3] || ws_text_u64(from->kept[3], &out->size) < 0))
        return -EPROTO;
    return 0;
}

/* One try, and whether another may do better. *asked_ms: how long the store asks to wait. */
static int try_once(struct ws_s3_bucket *b, const struct ws_s3_request *r, const char *path, const char *hash,
                    struct receipt *t, bool *was_renewed, bool *may_repeat, unsigned *asked_ms,
                    struct ws_s3_reply *out, struct ws_error *err)
{
    struct ws_s3_keys keys;
    struct ws_http_reply reply = {0};
    int rc = ws_s3_credentials_get(b->credentials, &keys, err);
    *asked_ms = 0;
    *may_repeat = false;
    if (rc < 0)
        return rc;
    rc = send_once(b, r, path, hash, &keys, t, &reply, err);
    if (t->violation || t->is_too_big || t->lacks_memory || t->is_stopped) {
        rc = fail_receipt(b, path, t, err);
        *may_repeat = t->violation && !t->is_stopped; /* by a page of a proxy, maybe */
        t->violation = NULL;
    } else if (rc < 0) {
        *may_repeat = is_away(rc);
    } else if (is_success(r, &reply)) {
        rc = check_success(b, r, t, &reply, path, err);
        *may_repeat = rc < 0;
        if (rc == 0 && make_reply(r, &reply, out) < 0)
            rc = ws_error_set(err, EPROTO, "%s%s: no Content-Length", b->url, path);
    } else {
        enum ws_s3_refusal kind;
        rc = ws_s3_refusal(b->url, path, &reply, &kind, err);
        *asked_ms = asked_pause_ms(reply.kept[1]);
        *may_repeat = kind == WS_S3_TEMPORARY || (kind == WS_S3_EXPIRED && !*was_renewed);
        if (kind == WS_S3_EXPIRED) {
            *was_renewed = true;
            ws_s3_credentials_refused(b->credentials, &keys);
        }
    }
    ws_http_reply_release(&reply);
    ws_s3_keys_release(&keys);
    return rc;
}

int ws_s3_call(struct ws_s3_bucket *b, const struct ws_s3_request *r, struct ws_s3_reply *out,
               struct ws_error *err)
{
    struct receipt t = {.request = r};
    bool was_renewed = false, may_repeat;
    struct ws_error own = {0};
    unsigned asked_ms, n_silent = 0;
    char hash[96];
    char *path = path_of(b, r);
    int rc;
    *out = (struct ws_s3_reply){0};
    err = err ? err : &own;
    if (!path)
        return ws_error_set(err, ENOMEM, "no memory to call an object store");
    hash_header(hash, r->bytes, r->n_bytes);
    for (unsigned i = 0;; i++) {
        const uint64_t had = t.n;
        if (is_cancelled(b, r)) {
            rc = ws_error_set(err, ECANCELED, "the call of %s%s was interrupted", b->url, path);
            break;
        }
        rc = try_once(b, r, path, hash, &t, &was_renewed, &may_repeat, &asked_ms, out, err);
        if (rc == 0 || !may_repeat || r->is_once)
            break;
        n_silent += rc == -ETIMEDOUT;
        /* A connection that is cut, or stands still, again and again gets on all the same; one that drips does not. */
        if (t.n > had && (rc != -ETIMEDOUT || t.n - had >= (uint64_t)b->stall_s * LEAST_BYTES_S))
            i = n_silent = 0;
        if (i + 1 >= TRIES || n_silent >= SILENT_TRIES) {
            rc = ws_error_prefix(err, "tried %u times", i + 1);
            break;
        }
        ws_log(WS_LOG_DEBUG, "s3", "again try=%u: %s", i + 2, err->text);
        out->was_sent_before = true;
        pause_between(b, r, i, asked_ms);
    }
    free(path);
    return rc;
}

void ws_s3_reply_release(struct ws_s3_reply *reply)
{
    free(reply->text);
    *reply = (struct ws_s3_reply){0};
}
