#include "transports/tcp/headers.h"
#include "transports/access/local_token.h"
#include "transports/access/loopback.h"
#include "transports/base/clock.h"
#include "transports/base/secret.h"
#include "transports/http/client.h"
#include "transports/http/transfer.h"
#include <errno.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LOOK_NS (200 * WS_MS_NS) /* between looks for a token that is not there, or is another by now */

/* Under lock, or before another thread knows of it. */
static int use_token(struct ws_tcp_headers *h, const char *token)
{
    struct ws_tcp_header_list *new = calloc(1, sizeof(*new));
    if (!new || ws_http_add_bearer(&new->list, token) < 0) {
        free(new);
        return -ENOMEM;
    }
    new->before = h->newest;
    h->newest = new;
    return 0;
}

int ws_tcp_headers_init(struct ws_tcp_headers *h, const char *url, const char *token)
{
    unsigned port;
    pthread_mutex_init(&h->lock, NULL);
    const bool is_local = ws_loopback_port(url, &port);
    h->plain = is_local && strncmp(url, "http://", 7) == 0 ? url : NULL;
    h->given = token && *token ? token : NULL;
    if (h->given)
        return use_token(h, token);
    if (is_local && !token)
        h->url = url;
    return 0;
}

int ws_tcp_headers_check(struct ws_tcp_headers *h, struct ws_error *err)
{
    unsigned port;
    uid_t now = 0;
    int rc = 0;
    if (!h->plain || !ws_loopback_port(h->plain, &port))
        return 0;
    const bool listens = ws_loopback_owner(h->plain, port, &now);
    pthread_mutex_lock(&h->lock);
    if (!listens && h->is_pinned)
        rc = ws_error_set(err, EHOSTUNREACH, "nobody listens at %s", h->plain);
    else if (listens && (!h->is_pinned || now == 0 || now == geteuid()))
        h->account = now;
    else if (listens && now != h->account)
        rc = ws_error_set(
            err, EPERM,
            "another account, %u, listens at %s by now, where %u did: end that, or if it is meant, "
            "name the source anew",
            (unsigned)now, h->plain, (unsigned)h->account);
    h->is_pinned = h->is_pinned || listens;
    pthread_mutex_unlock(&h->lock);
    return rc;
}

void ws_tcp_headers_destroy(struct ws_tcp_headers *h)
{
    while (h->newest) {
        struct ws_tcp_header_list *old = h->newest;
        h->newest = old->before;
        ws_http_free_headers(old->list);
        free(old);
    }
    ws_secret_free(h->token);
    pthread_mutex_destroy(&h->lock);
}

/* Under lock. */
static void look(struct ws_tcp_headers *h)
{
    char token[WS_TOKEN_SECRET_CHARS + 1];
    h->looked_ns = ws_clock_ns();
    h->was_refused = false;
    uid_t owner;
    const bool found = ws_local_token_find(h->url, token, &owner);
    const bool is_new = found && (!h->token || strcmp(token, h->token) != 0);
    char *copy = is_new ? ws_secret_copy(token) : NULL;
    if (is_new && copy && use_token(h, token) == 0) {
        ws_secret_free(h->token);
        h->token = copy;
        h->owner = owner;
    } else {
        ws_secret_free(copy);
        h->owner = found && !is_new ? owner : h->owner;
    }
    sodium_memzero(token, sizeof(token));
}

/* Under lock. Does the account whose token it is listen there now? */
static bool still_reaches(const struct ws_tcp_headers *h)
{
    unsigned port;
    uid_t owner;
    return ws_loopback_port(h->url, &port) && ws_loopback_owner(h->url, port, &owner) && owner == h->owner;
}

struct curl_slist *ws_tcp_headers_now(struct ws_tcp_headers *h)
{
    pthread_mutex_lock(&h->lock);
    bool good = h->newest && (!h->url || still_reaches(h));
    if (h->url && (!good || h->was_refused) && ws_clock_ns() - h->looked_ns > LOOK_NS) {
        look(h);
        good = h->newest && still_reaches(h);
    }
    struct curl_slist *list = good ? h->newest->list : NULL;
    pthread_mutex_unlock(&h->lock);
    return list;
}

void ws_tcp_headers_refused(struct ws_tcp_headers *h)
{
    pthread_mutex_lock(&h->lock);
    h->was_refused = true;
    pthread_mutex_unlock(&h->lock);
}

void ws_tcp_headers_blank(struct ws_tcp_headers *h, char *text)
{
    pthread_mutex_lock(&h->lock);
    ws_http_blank_token(text, h->given ? h->given : h->token);
    pthread_mutex_unlock(&h->lock);
}
