/* The public client of engines: requests to one server, by the client that everything here speaks HTTP with. */
#include "backends/trainer/api/engine_client.h"
#include "backends/engine/call.h"
#include "backends/trainer/api/last_error.h"
#include "transports/base/limits.h"
#include "transports/base/secret.h"
#include "transports/http/client.h"
#include "transports/http/url.h"
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *copy(wsync_engine_client *c, const char *text, bool *no_memory)
{
    const char *copied = text ? ws_arena_text(&c->arena, text, strlen(text)) : NULL;

    *no_memory = *no_memory || (text && !copied);
    return copied;
}

static const char *copy_token(const char *token, bool *no_memory)
{
    const char *copied = ws_secret_copy(token);

    *no_memory = *no_memory || (token && !copied);
    return copied;
}

/* A line break would end the header, and the server would read what follows as another one. */
static bool fits_header(const char *text)
{
    for (; text && *text; text++)
        if ((unsigned char)*text < ' ' || *text == 0x7f)
            return false;
    return true;
}

static int check(const wsync_engine *e, struct ws_error *err)
{
    int rc = e->url ? ws_http_check_url("an engine", e->url, err)
                    : ws_error_set(err, EINVAL, "an engine has no url");

    if (rc == 0 && (!fits_header(e->token) || !fits_header(e->admin_token)))
        rc = ws_error_set(err, EINVAL,
                          "a key for %s has a line break or another control character, which no header can "
                          "have: remove it",
                          e->url);
    if (rc == 0 && e->ca_file && access(e->ca_file, R_OK) < 0)
        rc = ws_error_set(err, errno, "cannot read the certificates %.300s of %s: %m", e->ca_file, e->url);
    return rc;
}

int wsync_engine_client_open(const wsync_engine *engine, wsync_engine_client **out)
{
    struct ws_error *err = ws_last_error();
    wsync_engine_client *c;
    bool no_memory = false;
    int rc = check(engine, err);

    *out = NULL;
    if (rc < 0)
        return rc;
    c = calloc(1, sizeof(*c));
    if (!c)
        return ws_error_set(err, ENOMEM, "out of memory for an engine's client");
    pthread_mutex_init(&c->lock, NULL);
    LIST_INIT(&c->running);
    c->pid = getpid();
    c->engine.kind = copy(c, engine->kind, &no_memory);
    c->engine.url = copy(c, engine->url, &no_memory);
    c->engine.token = copy_token(engine->token, &no_memory);
    c->engine.pause_mode = copy(c, engine->pause_mode, &no_memory);
    c->engine.admin_token = copy_token(engine->admin_token, &no_memory);
    c->engine.ca_file = copy(c, engine->ca_file, &no_memory);
    c->engine.cache = copy(c, engine->cache, &no_memory);
    rc = no_memory ? ws_error_set(err, ENOMEM, "out of memory for an engine's client")
                   : ws_http_client_new(&c->http, err);
    if (rc == 0)
        *out = c;
    else
        wsync_engine_client_close(c);
    return rc;
}

int ws_engine_client_check(const wsync_engine_client *c, struct ws_error *err)
{
    if (c->pid == getpid())
        return 0;
    return ws_error_set(
        err, EPERM,
        "this client of %s was opened by process %d, of which this one, %d, is a fork: open one here",
        c->engine.url, (int)c->pid, (int)getpid());
}

void ws_engine_client_begin(wsync_engine_client *c, struct ws_engine_running *r)
{
    atomic_init(&r->cancelled, false);
    pthread_mutex_lock(&c->lock);
    LIST_INSERT_HEAD(&c->running, r, link);
    pthread_mutex_unlock(&c->lock);
}

void ws_engine_client_end(wsync_engine_client *c, struct ws_engine_running *r)
{
    pthread_mutex_lock(&c->lock);
    LIST_REMOVE(r, link);
    pthread_mutex_unlock(&c->lock);
}

static int call(wsync_engine_client *c, const char *path, const json_t *body, unsigned timeout_ms,
                struct ws_http_reply *reply, struct ws_error *err)
{
    struct ws_engine_running r;
    const struct ws_engine_target t = {.http = c->http,
                                       .url = c->engine.url,
                                       .token = c->engine.token,
                                       .admin_token = c->engine.admin_token,
                                       .ca_file = c->engine.ca_file,
                                       .cancel = {&r.cancelled}};
    int rc;

    ws_engine_client_begin(c, &r);
    rc = ws_call_http(&t, path, body, true, timeout_ms, reply, err);
    ws_engine_client_end(c, &r);
    return rc;
}

int wsync_engine_request(wsync_engine_client *c, const char *path, const char *json, unsigned timeout_ms,
                         int *status, char **text)
{
    struct ws_error *err = ws_last_error();
    struct ws_http_reply reply = {0};
    json_error_t error;
    json_t *body = json ? json_loads(json, 0, &error) : NULL;
    int rc = ws_engine_client_check(c, err);

    *text = NULL;
    if (rc == 0 && (!path || path[0] != '/' || timeout_ms == 0))
        rc = ws_error_set(err, EINVAL, "'%.200s' is no path of a server, or there is no time for it",
                          path ? path : "");
    else if (rc == 0 && json && !json_is_object(body))
        rc = ws_error_set(err, EINVAL, "what %s%.200s is to be told is no JSON object: %s", c->engine.url,
                          path, body ? "it is something else" : error.text);
    if (rc == 0)
        rc = call(c, path, body, timeout_ms, &reply, err);
    json_decref(body);
    if (rc < 0)
        return rc;
    *status = (int)reply.status;
    *text = reply.text;
    reply.text = NULL;
    ws_http_reply_release(&reply);
    return 0;
}

void wsync_engine_client_cancel(wsync_engine_client *c)
{
    struct ws_engine_running *r;

    if (c->pid != getpid())
        return;
    pthread_mutex_lock(&c->lock);
    for (r = LIST_FIRST(&c->running); r; r = LIST_NEXT(r, link))
        atomic_store(&r->cancelled, true);
    pthread_mutex_unlock(&c->lock);
}

void wsync_engine_client_close(wsync_engine_client *c)
{
    /* In a fork the thread is missing, the connections are the parent's, and the rest goes with the process. */
    if (!c || c->pid != getpid())
        return;
    ws_http_client_free(c->http);
    pthread_mutex_destroy(&c->lock);
    ws_secret_free((char *)(uintptr_t)c->engine.token);
    ws_secret_free((char *)(uintptr_t)c->engine.admin_token);
    ws_arena_free(&c->arena);
    free(c);
}
