#include "backends/engine/call.h"
#include "transports/base/clock.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LEAST_MS         5000U
#define FIRST_PAUSE_MS   5U
#define LONGEST_PAUSE_MS 250U

static int check_status(const struct ws_engine_target *t, const char *path, const struct ws_http_reply *reply,
                        struct ws_error *err)
{
    long status = reply->status;
    if (status == 401 || status == 403)
        return ws_error_set(err, EACCES,
                            "%s%s answered %ld: it wants a key; name the file that holds "
                            "its API key with token-file=, its admin key with admin-token-file=",
                            t->url, path, status);
    if (status == 404 || status == 405)
        return ws_error_set(err, EPROTO,
                            "%s answered %ld to %s: it is no engine of this kind, or of a release or with "
                            "settings that do not offer it",
                            t->url, status, path);
    if (status >= 300 && status < 400)
        return ws_error_set(err, EPROTO,
                            "%s%s answered with a redirect, which is not followed; use the "
                            "engine's own address",
                            t->url, path);
    if (status >= 500)
        return ws_error_set(err, EREMOTEIO, "%s%s failed with status %ld: %.300s", t->url, path, status,
                            reply->text[0] ? reply->text : "look into the engine's log");
    return 0;
}

/* Does a server answer so before it looks at its own state? A failure inside, or a gateway's, says no such
 * thing. */
static bool refuses_beforehand(long status)
{
    static const long statuses[] = {400, 401, 403, 404, 405, 413, 415, 422};
    bool found = false;

    for (size_t i = 0; i < sizeof(statuses) / sizeof(statuses[0]); i++)
        found = found || statuses[i] == status;
    return found;
}

int ws_call_http(const struct ws_engine_target *t, const char *path, const json_t *body, bool fresh,
                 unsigned timeout_ms, struct ws_http_reply *reply, struct ws_error *err)
{
    struct ws_http_request request = {
        .what = "an engine",
        .url = t->url,
        .path = path,
        .body = body,
        .token = ws_call_token(t, body != NULL),
        .hidden = {t->token, t->admin_token},
        .ca_file = t->ca_file,
        .ca_below = t->ca_below,
        .fresh = fresh,
        .timeout_ms = ws_call_within_ms(t, timeout_ms),
        .n_cancel = WS_CANCELS,
        .cancel = t->cancel,
    };
    int rc = ws_http_call(t->http, &request, reply, err);
    if (body && t->acted && (rc ? rc != -EHOSTUNREACH && rc != -EACCES : !refuses_beforehand(reply->status)))
        *t->acted = true;
    return rc;
}

static int call_json(const struct ws_engine_target *t, const char *path, const json_t *body, bool fresh,
                     unsigned timeout_ms, struct ws_http_reply *reply, struct ws_error *err)
{
    int rc = ws_call_http(t, path, body, fresh, timeout_ms, reply, err);
    if (rc)
        return rc;
    rc = check_status(t, path, reply, err);
    if (!rc && !json_is_object(reply->json))
        rc = ws_error_set(err, EPROTO, "%s%s answered %ld and no JSON object: this is no such engine", t->url,
                          path, reply->status);
    if (rc)
        ws_http_reply_release(reply);
    return rc;
}

int ws_call_get(const struct ws_engine_target *t, const char *path, struct ws_http_reply *reply,
                struct ws_error *err)
{
    return call_json(t, path, NULL, false, ws_call_short_ms(t), reply, err);
}

static int no_body(const struct ws_engine_target *t, const char *path, struct ws_error *err)
{
    return ws_error_set(err, EINVAL, "what %s%s is to be told is no UTF-8", t->url, path);
}

static int post(const struct ws_engine_target *t, const char *path, json_t *body, bool fresh,
                unsigned timeout_ms, struct ws_http_reply *reply, struct ws_error *err)
{
    if (!body)
        return no_body(t, path, err);
    int rc = call_json(t, path, body, fresh, timeout_ms, reply, err);
    json_decref(body);
    return rc;
}

int ws_call_post(const struct ws_engine_target *t, const char *path, json_t *body, unsigned timeout_ms,
                 struct ws_http_reply *reply, struct ws_error *err)
{
    return post(t, path, body, false, timeout_ms, reply, err);
}

int ws_call_post_once(const struct ws_engine_target *t, const char *path, json_t *body, unsigned timeout_ms,
                      struct ws_http_reply *reply, struct ws_error *err)
{
    return post(t, path, body, true, timeout_ms, reply, err);
}

int ws_call_explained(const struct ws_engine_target *t, const char *path, json_t *body, unsigned timeout_ms,
                      struct ws_http_reply *reply, struct ws_error *err)
{
    if (!body)
        return no_body(t, path, err);
    int rc = ws_call_http(t, path, body, true, timeout_ms, reply, err);
    json_decref(body);
    if (rc)
        return rc;
    if (!json_object_get(reply->json, "error") || reply->status == 401 || reply->status == 403)
        rc = check_status(t, path, reply, err);
    if (rc)
        ws_http_reply_release(reply);
    return rc;
}

int ws_call_plain(const struct ws_engine_target *t, const char *path, long busy, struct ws_http_reply *reply,
                  struct ws_error *err)
{
    struct ws_http_reply own;
    json_t *body = json_object();
    int rc = ws_call_http(t, path, body, true, ws_call_short_ms(t), &own, err);
    json_decref(body);
    if (rc)
        return rc;
    rc = check_status(t, path, &own, err);
    if (!rc && own.status != 200)
        rc = ws_error_set(err, own.status == busy ? EBUSY : EREMOTEIO, "%s refused %s: %ld %.300s", t->url,
                          path, own.status, own.text);
    if (!rc && reply)
        *reply = own;
    else
        ws_http_reply_release(&own);
    return rc;
}

static int check_page(const struct ws_engine_target *t, const char *path, const struct ws_http_reply *reply,
                      struct ws_error *err)
{
    int rc = check_status(t, path, reply, err);
    return rc || reply->status == 200 ? rc
                                      : ws_error_set(err, EREMOTEIO, "%s%s answered %ld: %.300s", t->url,
                                                     path, reply->status, reply->text);
}

int ws_call_page(const struct ws_engine_target *t, const char *path, struct ws_http_reply *reply,
                 struct ws_error *err)
{
    int rc = ws_call_http(t, path, NULL, false, ws_call_short_ms(t), reply, err);
    if (rc)
        return rc;
    rc = check_page(t, path, reply, err);
    if (rc)
        ws_http_reply_release(reply);
    return rc;
}

int ws_call_refuses(const struct ws_engine_target *t, const char *path, long status, bool *refuses,
                    struct ws_error *err)
{
    struct ws_http_reply reply;
    int rc = ws_call_http(t, path, NULL, false, ws_call_short_ms(t), &reply, err);
    if (rc)
        return rc;
    *refuses = reply.status == status;
    rc = *refuses ? 0 : check_page(t, path, &reply, err);
    ws_http_reply_release(&reply);
    return rc;
}

int ws_call_while_busy(const struct ws_engine_target *t, unsigned limit_ms,
                       int (*once)(const struct ws_engine_target *t, struct ws_error *err),
                       struct ws_error *err)
{
    const uint64_t end =
        ws_clock_ms() + ws_call_within_ms(t, limit_ms < t->timeout_ms ? limit_ms : t->timeout_ms);
    unsigned pause_ms = FIRST_PAUSE_MS;
    struct ws_error busy = {0}, why = {0};
    int rc;
    while ((rc = once(t, &why)) == -EBUSY && ws_clock_ms() < end) {
        busy = why;
        usleep(pause_ms * 1000);
        pause_ms = pause_ms * 2 < LONGEST_PAUSE_MS ? pause_ms * 2 : LONGEST_PAUSE_MS;
    }
    if (rc == -ETIMEDOUT && busy.code && ws_clock_ms() >= end) { /* there was no time left for the last one */
        rc = -EBUSY;
        why = busy;
    }
    if (rc == -EBUSY) {
        rc = -EREMOTEIO;
        why.code = EREMOTEIO;
    }
    if (rc && err)
        *err = why;
    return rc;
}

int ws_call_has_post(const struct ws_engine_target *t, const char *path, bool *has, struct ws_error *err)
{
    struct ws_http_reply reply;
    int rc = ws_call_http(t, path, NULL, false, ws_call_short_ms(t), &reply, err);
    if (rc)
        return rc;
    *has = reply.status == 405;
    if (reply.status != 404 && reply.status != 405 && reply.status != 501) /* it does not say */
        rc = check_status(t, path, &reply, err);
    ws_http_reply_release(&reply);
    return rc;
}

const char *ws_call_token(const struct ws_engine_target *t, bool changes)
{
    const char *first = changes ? t->admin_token : t->token;

    return first ? first : changes ? t->token : t->admin_token;
}

int ws_call_after_request(int rc, struct ws_error *err)
{
    if (rc != -EHOSTUNREACH)
        return rc;
    if (err)
        err->code = ECONNRESET;
    return -ECONNRESET;
}

unsigned ws_call_within_ms(const struct ws_engine_target *t, unsigned timeout_ms)
{
    const uint64_t now = ws_clock_ns(), left_ms = now < t->end_ns ? (t->end_ns - now) / WS_MS_NS + 1 : 1;

    return t->end_ns && left_ms < timeout_ms ? (unsigned)left_ms : timeout_ms;
}

unsigned ws_call_short_ms(const struct ws_engine_target *t)
{
    unsigned part = t->timeout_ms / 10;

    if (t->short_ms)
        return t->short_ms < t->timeout_ms ? t->short_ms : t->timeout_ms;
    return part > LEAST_MS ? part : LEAST_MS;
}

unsigned ws_call_pause_ms(const struct ws_engine_target *t)
{
    return t->short_ms ? ws_call_short_ms(t) : t->timeout_ms;
}

const char *ws_call_text(const struct ws_http_reply *reply, const char *key)
{
    const char *text = json_string_value(json_object_get(reply->json, key));

    return text ? text : "";
}

int ws_call_copy(const struct ws_engine_target *t, char *out, size_t room, const char *text, const char *what,
                 struct ws_error *err)
{
    size_t n = strlen(text);

    if (n >= room)
        return ws_error_set(err, EPROTO, "%s reports a %s of %zu bytes", t->url, what, n);
    memcpy(out, text, n + 1);
    return 0;
}
