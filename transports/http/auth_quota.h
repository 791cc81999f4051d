/* Auth quota: connections that have not shown the server's token share a part of its connections. A client that
 * opens many and sends nothing, or half a request, so leaves room for probes, mounts and ranks. When the part is
 * full, the oldest of them is closed for the newest. Thread safe. */
#ifndef WS_TRANSPORTS_HTTP_AUTH_QUOTA_H
#define WS_TRANSPORTS_HTTP_AUTH_QUOTA_H
#include <pthread.h>
#include <stdbool.h>

struct ws_http_unauthenticated; /* one connection */
struct ws_http_auth_quota {
    unsigned max;
    pthread_mutex_t lock;
    /* guarded by lock */
    struct ws_http_unauthenticated *newest, *oldest;
    unsigned n;
    bool is_logged; /* that it was full */
};
void ws_http_auth_quota_init(struct ws_http_auth_quota *q, unsigned max);
void ws_http_auth_quota_destroy(struct ws_http_auth_quota *q);
/* A new connection; freed by ws_http_auth_quota_remove. NULL: no memory; the other functions take NULL. */
struct ws_http_unauthenticated *ws_http_auth_quota_add(struct ws_http_auth_quota *q, int sock);
/* It has shown the token and no longer counts. */
void ws_http_auth_quota_pass(struct ws_http_auth_quota *q, struct ws_http_unauthenticated *c);
/* Before its socket is closed. */
void ws_http_auth_quota_remove(struct ws_http_auth_quota *q, struct ws_http_unauthenticated *c);

#endif
