#include "transports/http/strangers.h"
#include "transports/base/log.h"
#include <stdlib.h>
#include <sys/socket.h>

struct ws_http_stranger {
    struct ws_http_stranger *newer, *older;
    int sock;
    bool listed;
};

void ws_http_strangers_init(struct ws_http_strangers *s, unsigned most)
{
    *s = (struct ws_http_strangers){.most = most};
    pthread_mutex_init(&s->lock, NULL);
}

void ws_http_strangers_destroy(struct ws_http_strangers *s)
{
    pthread_mutex_destroy(&s->lock);
}

/* With s->lock. */
static void unlist(struct ws_http_strangers *s, struct ws_http_stranger *who)
{
    if (!who->listed)
        return;
    *(who->newer ? &who->newer->older : &s->newest) = who->older;
    *(who->older ? &who->older->newer : &s->oldest) = who->newer;
    who->listed = false;
    s->n--;
}

/* With s->lock. libmicrohttpd closes what is shut down, and says that it left. */
static void show_out(struct ws_http_strangers *s, struct ws_http_stranger *who)
{
    (void)shutdown(who->sock, SHUT_RDWR);
    unlist(s, who);
    if (!s->said)
        ws_log(
            WS_LOG_WARN, "http",
            "more than %u connections ask for nothing that they may have: the oldest of them are closed from "
            "now on",
            s->most);
    s->said = true;
}

struct ws_http_stranger *ws_http_stranger_came(struct ws_http_strangers *s, int sock)
{
    struct ws_http_stranger *who = calloc(1, sizeof(*who));

    if (!who)
        return NULL;
    who->sock = sock;
    who->listed = true;
    pthread_mutex_lock(&s->lock);
    who->older = s->newest;
    *(s->newest ? &s->newest->newer : &s->oldest) = who;
    s->newest = who;
    if (++s->n > s->most)
        show_out(s, s->oldest);
    pthread_mutex_unlock(&s->lock);
    return who;
}

void ws_http_stranger_is_known(struct ws_http_strangers *s, struct ws_http_stranger *who)
{
    if (!who)
        return;
    pthread_mutex_lock(&s->lock);
    unlist(s, who);
    pthread_mutex_unlock(&s->lock);
}

void ws_http_stranger_left(struct ws_http_strangers *s, struct ws_http_stranger *who)
{
    ws_http_stranger_is_known(s, who);
    free(who);
}
