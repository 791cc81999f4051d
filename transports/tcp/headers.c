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
    h->given = token;
    if (token)
        return use_token(h, token);
    if (ws_loopback_port(url, &port))
        h->url = url;
    return 0;
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
