#include "transports/tcp/headers.h"
#include "transports/access/local_token.h"
#include "transports/access/loopback.h"
#include "transports/base/clock.h"
#include "transports/base/log.h"
#include "transports/base/secret.h"
#include "transports/http/client.h"
#include "transports/http/transfer.h"
#include <errno.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LOOK_NS (200 * WS_MS_NS) /* between looks for a token that is not there, or is another by now */

static void free_one(struct ws_tcp_header_list *one)
{
    ws_http_free_headers(one->list);
    ws_secret_free(one->token);
    free(one);
}

/* Under lock, or before another thread knows of it. */
static int use_token(struct ws_tcp_headers *h, const char *token)
{
    struct ws_tcp_header_list *new = calloc(1, sizeof(*new));
    if (!new)
        return -ENOMEM;
    new->token = ws_secret_copy(token);
    if (!new->token || ws_http_add_bearer(&new->list, token) < 0) {
        free_one(new);
        return -ENOMEM;
    }
    new->before = h->newest;
    h->newest = new;
    return 0;
}

static bool is_new(const struct ws_tcp_headers *h, const char *token)
{
    return !h->newest || strcmp(token, h->newest->token) != 0;
}

int ws_tcp_headers_init(struct ws_tcp_headers *h, const char *url, const char *token, const char *file,
                        const char *below)
{
    unsigned port;
    pthread_mutex_init(&h->lock, NULL);
    const bool is_local = ws_loopback_port(url, &port);
    h->plain = is_local && strncmp(url, "http://", 7) == 0 ? url : NULL;
    h->is_given = token && *token;
    if (h->is_given) {
        h->file = (struct ws_bearer_file){.path = file, .below = below};
        return use_token(h, token);
    }
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
        free_one(old);
    }
    pthread_mutex_destroy(&h->lock);
}

/* Under lock. */
static void look(struct ws_tcp_headers *h)
{
    char token[WS_TOKEN_SECRET_CHARS + 1];
    h->looked_ns = ws_clock_ns();
    h->was_refused = false;
    uid_t owner;
    if (ws_local_token_find(h->url, token, &owner) && (!is_new(h, token) || use_token(h, token) == 0))
        h->owner = owner;
    sodium_memzero(token, sizeof(token));
}

/* Under lock. What cannot be used for want of memory is used at the file's next change. */
static void look_given(struct ws_tcp_headers *h, bool at_once)
{
    char *token = ws_bearer_file_look(&h->file, at_once);
    if (token && is_new(h, token) && use_token(h, token) == 0)
        ws_log(WS_LOG_INFO, "access", "token read file=%s", h->file.path);
    ws_secret_free(token);
}

/* Under lock. Does the account whose token it is listen there now? */
static bool still_reaches(const struct ws_tcp_headers *h)
{
    unsigned port;
    uid_t owner;
    return ws_loopback_port(h->url, &port) && ws_loopback_owner(h->url, port, &owner) && owner == h->owner;
}

/* Under lock. */
static struct curl_slist *newest(struct ws_tcp_headers *h)
{
    if (h->is_given)
        look_given(h, false);
    bool good = h->newest && (!h->url || still_reaches(h));
    if (h->url && (!good || h->was_refused) && ws_clock_ns() - h->looked_ns > LOOK_NS) {
        look(h);
        good = h->newest && still_reaches(h);
    }
    return good ? h->newest->list : NULL;
}

struct curl_slist *ws_tcp_headers_now(struct ws_tcp_headers *h)
{
    pthread_mutex_lock(&h->lock);
    struct curl_slist *list = newest(h);
    pthread_mutex_unlock(&h->lock);
    return list;
}

bool ws_tcp_headers_refused(struct ws_tcp_headers *h, const struct curl_slist *sent)
{
    pthread_mutex_lock(&h->lock);
    h->was_refused = true;
    if (h->is_given)
        look_given(h, true);
    const struct curl_slist *now = newest(h);
    pthread_mutex_unlock(&h->lock);
    return now && now != sent;
}

bool ws_tcp_headers_found(struct ws_tcp_headers *h, const struct curl_slist *sent,
                          char path[WS_LOCAL_TOKEN_PATH + 16])
{
    pthread_mutex_lock(&h->lock);
    const bool is_found = sent && h->url && !h->is_given;
    pthread_mutex_unlock(&h->lock);
    return is_found && ws_local_token_file(h->url, path);
}

void ws_tcp_headers_blank(struct ws_tcp_headers *h, char *text)
{
    pthread_mutex_lock(&h->lock);
    for (const struct ws_tcp_header_list *one = h->newest; one; one = one->before)
        ws_http_blank_token(text, one->token);
    pthread_mutex_unlock(&h->lock);
}
