#include "transports/s3/credentials.h"
#include "transports/access/loopback.h"
#include "transports/base/below.h"
#include "transports/base/clock.h"
#include "transports/base/log.h"
#include "transports/base/secret.h"
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#define RENEW_NS  (300 * WS_SECOND_NS) /* before they expire */
#define AGAIN_NS  (20 * WS_SECOND_NS)  /* after a fetch that failed, while the old ones are good */
#define CALL_MS   2000
#define TRIES     3
#define MAX_TOKEN (16UL << 10)
#define INSTANCE  "http://169.254.169.254"
#define CONTAINER "http://169.254.170.2"

struct ws_s3_credentials {
    struct ws_http_client *http;
    const atomic_bool *stop;
    pthread_mutex_t lock;
    pthread_cond_t change;
    /* guarded by lock */
    struct ws_s3_keys keys; /* key_id NULL: none yet */
    uint64_t look_ns; /* of the time of day: when others are looked for; 0: not before they are refused */
    bool is_fetching;
};

void ws_s3_keys_release(struct ws_s3_keys *k)
{
    ws_secret_free(k->key_id);
    ws_secret_free(k->secret);
    ws_secret_free(k->session);
    *k = (struct ws_s3_keys){0};
}

static int make_keys(struct ws_s3_keys *out, const char *id, const char *secret, const char *session,
                     struct ws_error *err)
{
    *out = (struct ws_s3_keys){.key_id = ws_secret_copy(id),
                               .secret = ws_secret_copy(secret),
                               .session = ws_secret_copy(session && *session ? session : NULL)};
    ws_secret_leave_no_core();
    if (out->key_id && out->secret && (out->session || !session || !*session))
        return 0;
    ws_s3_keys_release(out);
    return ws_error_set(err, ENOMEM, "no memory for credentials");
}

/* --- where they are; each: 1 found, 0 not there, or -errno --- */

static const char *from_environment(const char *name)
{
    const char *value = getenv(name);
    return value && *value ? value : NULL;
}

static int find_in_environment(struct ws_s3_keys *out, struct ws_error *err)
{
    const char *id = from_environment("AWS_ACCESS_KEY_ID");
    const char *secret = from_environment("AWS_SECRET_ACCESS_KEY");
    if (!id && !secret)
        return 0;
    if (!id || !secret)
        return ws_error_set(err, EINVAL,
                            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY belong together: %s is not set",
                            id ? "AWS_SECRET_ACCESS_KEY" : "AWS_ACCESS_KEY_ID");
    int rc = make_keys(out, id, secret, from_environment("AWS_SESSION_TOKEN"), err);
    return rc < 0 ? rc : 1;
}

static int find_in_profile(struct ws_s3_keys *out, struct ws_error *err)
{
    struct ws_s3_profile p;
    int rc = ws_s3_profile_read(&p, err);
    if (rc < 0)
        return rc;
    if (p.key_id && p.secret)
        rc = make_keys(out, p.key_id, p.secret, p.session, err);
    else if (p.key_id || p.secret)
        rc = ws_error_set(err, EINVAL,
                          "the profile '%s' has one of aws_access_key_id and aws_secret_access_key alone",
                          p.name);
    else if (p.other[0])
        rc = ws_error_set(
            err, EINVAL,
            "the profile '%s' gets its credentials by %s, which wsync does not do: export them, as "
            "aws configure export-credentials --format env prints them, or use a role of the instance "
            "or the container",
            p.name, p.other);
    const bool found = out->key_id != NULL;
    ws_s3_profile_release(&p);
    return rc < 0 ? rc : found;
}

static bool is_stopped(const struct ws_s3_credentials *c)
{
    return c->stop && atomic_load(c->stop);
}

/* 0: an answer of 200. header: one, or NULL. */
static int ask(struct ws_s3_credentials *c, const char *method, const char *url, const char *path,
               const char *header, struct ws_http_reply *out, struct ws_error *err)
{
    const char *headers[2] = {header, NULL};
    const struct ws_http_request r = {.what = "a server of credentials",
                                      .url = url,
                                      .path = path,
                                      .method = method,
                                      .headers = headers,
                                      .timeout_ms = CALL_MS,
                                      .n_cancel = 1,
                                      .cancel = &c->stop};
    int rc = -ECANCELED;
    *out = (struct ws_http_reply){0};
    for (int i = 0; i < TRIES && !is_stopped(c); i++) {
        rc = ws_http_call(c->http, &r, out, err);
        if (rc == -ECANCELED || (rc == 0 && out->status < 500 && out->status != 429))
            break;
        if (rc == 0 && i + 1 < TRIES)
            ws_http_reply_release(out);
    }
    if (rc == 0 && out->status != 200) {
        rc = ws_error_set(err, out->status == 404 ? ENOENT : EACCES, "%s%s answered %ld", url, path,
                          out->status);
        ws_http_reply_release(out);
    }
    return rc;
}

static void wipe(struct ws_http_reply *reply)
{
    if (reply->text)
        explicit_bzero(reply->text, strlen(reply->text));
    ws_http_reply_release(reply);
}

/* Both kinds of servers have the same words. */
static int keys_from_json(const json_t *json, const char *url, struct ws_s3_keys *out, struct ws_error *err)
{
    const char *id = json_string_value(json_object_get(json, "AccessKeyId"));
    const char *secret = json_string_value(json_object_get(json, "SecretAccessKey"));
    const char *expires = json_string_value(json_object_get(json, "Expiration"));
    struct tm tm = {0};
    if (!id || !secret)
        return ws_error_set(err, EPROTO, "%s sent no credentials", url);
    int rc = make_keys(out, id, secret, json_string_value(json_object_get(json, "Token")), err);
    if (rc == 0 && expires && strptime(expires, "%Y-%m-%dT%H:%M:%S", &tm))
        out->expires_ns = (uint64_t)timegm(&tm) * WS_SECOND_NS;
    return rc;
}

/* By http only where nobody else can listen on the way. */
static bool is_container_address(const char *url)
{
    static const char *const known[] = {CONTAINER, "http://169.254.170.23", "http://[fd00:ec2::23]"};
    unsigned port;
    if (strncasecmp(url, "https://", 8) == 0 || ws_loopback_port(url, &port))
        return true;
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        const size_t n = strlen(known[i]);
        if (strncmp(url, known[i], n) == 0 && (!url[n] || strchr("/:?", url[n])))
            return true;
    }
    return false;
}

/* *out: "Authorization: ...", in secret memory, or NULL. */
static int container_header(char **out, struct ws_error *err)
{
    const char *file = from_environment("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE");
    const char *token = from_environment("AWS_CONTAINER_AUTHORIZATION_TOKEN");
    char *text = NULL;
    size_t n = 0;
    int rc = 0;
    *out = NULL;
    if (file && (rc = ws_below_read(NULL, file, MAX_TOKEN, &text, &n, err)) < 0)
        return rc;
    if (text)
        token = text;
    if (token) {
        const size_t length = strcspn(token, "\r\n");
        if ((*out = ws_secret_alloc(length + 32)))
            snprintf(*out, length + 32, "Authorization: %.*s", (int)length, token);
        else
            rc = ws_error_set(err, ENOMEM, "no memory for credentials");
    }
    if (text)
        explicit_bzero(text, n);
    free(text);
    return rc;
}

static int find_in_container(struct ws_s3_credentials *c, struct ws_s3_keys *out, struct ws_error *err)
{
    const char *relative = from_environment("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI");
    const char *full = from_environment("AWS_CONTAINER_CREDENTIALS_FULL_URI");
    const char *url = relative ? CONTAINER : full;
    struct ws_http_reply reply;
    char *header;
    if (!url)
        return 0;
    if (!is_container_address(url))
        return ws_error_set(
            err, EINVAL,
            "AWS_CONTAINER_CREDENTIALS_FULL_URI=%s would send credentials in clear text: it is https, "
            "or an address of this host or of the container's agent",
            url);
    int rc = container_header(&header, err);
    if (rc == 0)
        rc = ask(c, NULL, url, relative ? relative : "", header, &reply, err);
    ws_secret_free(header);
    if (rc < 0)
        return rc;
    rc = keys_from_json(reply.json, url, out, err);
    wipe(&reply);
    return rc < 0 ? rc : 1;
}

static int find_in_instance(struct ws_s3_credentials *c, struct ws_s3_keys *out, struct ws_error *err)
{
    static const char roles[] = "/latest/meta-data/iam/security-credentials/";
    const char *disabled = from_environment("AWS_EC2_METADATA_DISABLED");
    const char *given = from_environment("AWS_EC2_METADATA_SERVICE_ENDPOINT"),
               *url = given ? given : INSTANCE;
    struct ws_http_reply reply;
    char header[512], path[512];
    if (disabled && strcasecmp(disabled, "true") == 0)
        return 0;
    int rc =
        ask(c, "PUT", url, "/latest/api/token", "X-aws-ec2-metadata-token-ttl-seconds: 21600", &reply, err);
    if (rc < 0)
        return rc == -ECANCELED ? rc : 0; /* this is no instance */
    snprintf(header, sizeof(header), "X-aws-ec2-metadata-token: %.400s", reply.text);
    wipe(&reply);
    rc = ask(c, NULL, url, roles, header, &reply, err);
    if (rc == 0) {
        snprintf(path, sizeof(path), "%s%.*s", roles, (int)strcspn(reply.text, "\r\n"), reply.text);
        ws_http_reply_release(&reply);
        rc = ask(c, NULL, url, path, header, &reply, err);
    }
    explicit_bzero(header, sizeof(header));
    if (rc < 0)
        return rc == -ENOENT ? 0 : rc; /* an instance without a role */
    rc = keys_from_json(reply.json, url, out, err);
    wipe(&reply);
    return rc < 0 ? rc : 1;
}

static int find(struct ws_s3_credentials *c, struct ws_s3_keys *out, struct ws_error *err)
{
    *out = (struct ws_s3_keys){0};
    int rc = find_in_environment(out, err);
    if (rc == 0)
        rc = find_in_profile(out, err);
    if (rc == 0)
        rc = find_in_container(c, out, err);
    if (rc == 0)
        rc = find_in_instance(c, out, err);
    if (rc == 0)
        return is_stopped(c)
                   ? ws_error_set(err, ECANCELED, "the search for credentials was stopped")
                   : ws_error_set(
                         err, EACCES,
                         "there are no credentials for the object store: set AWS_ACCESS_KEY_ID and "
                         "AWS_SECRET_ACCESS_KEY, or AWS_PROFILE with ~/.aws/credentials, or give the "
                         "container or the instance a role");
    return rc < 0 ? rc : 0;
}

/* --- the ones that are used --- */

struct ws_s3_credentials *ws_s3_credentials_new(struct ws_http_client *http, const atomic_bool *stop)
{
    struct ws_s3_credentials *c = calloc(1, sizeof(*c));
    if (!c)
        return NULL;
    c->http = http;
    c->stop = stop;
    pthread_mutex_init(&c->lock, NULL);
    pthread_cond_init(&c->change, NULL);
    return c;
}

void ws_s3_credentials_free(struct ws_s3_credentials *c)
{
    if (!c)
        return;
    ws_s3_keys_release(&c->keys);
    pthread_cond_destroy(&c->change);
    pthread_mutex_destroy(&c->lock);
    free(c);
}

/* Under lock. */
static bool is_good(const struct ws_s3_credentials *c)
{
    return c->keys.key_id && (!c->keys.expires_ns || ws_clock_day_ns() < c->keys.expires_ns);
}

/* Under lock, which is let go of meanwhile. */
static int fetch(struct ws_s3_credentials *c, struct ws_error *err)
{
    struct ws_s3_keys keys;
    c->is_fetching = true;
    pthread_mutex_unlock(&c->lock);
    int rc = find(c, &keys, err);
    pthread_mutex_lock(&c->lock);
    c->is_fetching = false;
    pthread_cond_broadcast(&c->change);
    if (rc == 0) {
        const uint64_t now = ws_clock_day_ns();
        ws_s3_keys_release(&c->keys);
        c->keys = keys;
        c->look_ns = !keys.expires_ns                       ? 0
                     : keys.expires_ns > now + 2 * RENEW_NS ? keys.expires_ns - RENEW_NS
                     : keys.expires_ns > now                ? now + (keys.expires_ns - now) / 2
                                                            : now + AGAIN_NS;
        return 0;
    }
    c->look_ns = ws_clock_day_ns() + AGAIN_NS;
    if (!is_good(c))
        return rc;
    ws_log(WS_LOG_WARN, "s3", "credentials could not be renewed; the old ones are good for %" PRIu64 " s: %s",
           c->keys.expires_ns ? (uint64_t)((c->keys.expires_ns - ws_clock_day_ns()) / WS_SECOND_NS) : 0,
           err ? err->text : "");
    return 0;
}

int ws_s3_credentials_get(struct ws_s3_credentials *c, struct ws_s3_keys *out, struct ws_error *err)
{
    struct ws_error own = {0};
    int rc = 0;
    pthread_mutex_lock(&c->lock);
    while (c->is_fetching && !is_good(c))
        pthread_cond_wait(&c->change, &c->lock);
    if (!c->is_fetching && (!is_good(c) || (c->look_ns && ws_clock_day_ns() >= c->look_ns)))
        rc = fetch(c, err ? err : &own);
    if (rc == 0)
        rc = make_keys(out, c->keys.key_id, c->keys.secret, c->keys.session, err);
    pthread_mutex_unlock(&c->lock);
    return rc;
}

void ws_s3_credentials_refused(struct ws_s3_credentials *c, const struct ws_s3_keys *keys)
{
    pthread_mutex_lock(&c->lock);
    if (c->keys.secret && strcmp(c->keys.secret, keys->secret) == 0 && !c->is_fetching)
        ws_s3_keys_release(&c->keys);
    pthread_mutex_unlock(&c->lock);
}
