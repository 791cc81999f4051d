/* Strangers: connections that have not asked for anything that they may have. They never take more than a
 * part of the connections that a server has, so that whoever opens many and sends nothing, or half a request,
 * leaves room for probes, mounts and ranks: the one that came first is closed for the one that comes. Thread
 * safe. */
#ifndef WS_TRANSPORTS_HTTP_STRANGERS_H
#define WS_TRANSPORTS_HTTP_STRANGERS_H
#include <pthread.h>
#include <stdbool.h>

struct ws_http_stranger;
struct ws_http_strangers {
    unsigned most;
    pthread_mutex_t lock;
    /* guarded by lock */
    struct ws_http_stranger *newest, *oldest;
    unsigned n;
    bool said;
};
void ws_http_strangers_init(struct ws_http_strangers *s, unsigned most);
void ws_http_strangers_destroy(struct ws_http_strangers *s);
/* Somebody has connected; freed by ws_http_stranger_left. NULL, where there is no memory, is fine everywhere.
 */
struct ws_http_stranger *ws_http_stranger_came(struct ws_http_strangers *s, int sock);
void ws_http_stranger_is_known(struct ws_http_strangers *s, struct ws_http_stranger *who);
/* Before its socket is closed. */
void ws_http_stranger_left(struct ws_http_strangers *s, struct ws_http_stranger *who);

#endif
