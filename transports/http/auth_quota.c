#include "transports/http/auth_quota.h"
#include "transports/base/log.h"
#include <stdlib.h>
#include <sys/socket.h>

struct ws_http_unauthenticated {
    struct ws_http_unauthenticated *newer, *older;
    int sock;
    bool listed;
};

void ws_http_auth_quota_init(struct ws_http_auth_quota *q, unsigned max)
{
    *q = (struct ws_http_auth_quota){.max = max};
    pthread_mutex_init(&q->lock, NULL);
}

void ws_http_auth_quota_destroy(struct ws_http_auth_quota *q)
{
    pthread_mutex_destroy(&q->lock);
}

/* With q->lock. */
static void unlist(struct ws_http_auth_quota *q, struct ws_http_unauthenticated *c)
{
    if (!c->listed)
        return;
    *(c->newer ? &c->newer->older : &q->newest) = c->older;
    *(c->older ? &c->older->newer : &q->oldest) = c->newer;
    c->listed = false;
    q->n--;
}

/* With q->lock. libmicrohttpd closes a connection that is shut down, and then reports it as ended. */
static void close_oldest(struct ws_http_auth_quota *q)
{
    struct ws_http_unauthenticated *c = q->oldest;

    (void)shutdown(c->sock, SHUT_RDWR);
    unlist(q, c);
    if (!q->is_logged)
        ws_log(WS_LOG_WARN, "http",
               "more than %u connections have shown no token: the oldest of them are closed from now on",
               q->max);
    q->is_logged = true;
}

struct ws_http_unauthenticated *ws_http_auth_quota_add(struct ws_http_auth_quota *q, int sock)
{
    struct ws_http_unauthenticated *c = calloc(1, sizeof(*c));

    if (!c)
        return NULL;
    c->sock = sock;
    c->listed = true;
    pthread_mutex_lock(&q->lock);
    c->older = q->newest;
    *(q->newest ? &q->newest->newer : &q->oldest) = c;
    q->newest = c;
    if (++q->n > q->max)
        close_oldest(q);
    pthread_mutex_unlock(&q->lock);
    return c;
}

void ws_http_auth_quota_pass(struct ws_http_auth_quota *q, struct ws_http_unauthenticated *c)
{
    if (!c)
        return;
    pthread_mutex_lock(&q->lock);
    unlist(q, c);
    pthread_mutex_unlock(&q->lock);
}

void ws_http_auth_quota_remove(struct ws_http_auth_quota *q, struct ws_http_unauthenticated *c)
{
    ws_http_auth_quota_pass(q, c);
    free(c);
}
