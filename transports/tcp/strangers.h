/* Strangers: connections that have not asked for anything that they may have. They never take more than a
 * part of the connections that a server has, so that whoever opens many and sends nothing, or half a request,
 * leaves room for probes, mounts and ranks: the one that came first is closed for the one that comes. Thread
 * safe. */
#ifndef WS_TRANSPORTS_TCP_STRANGERS_H
#define WS_TRANSPORTS_TCP_STRANGERS_H
#include <pthread.h>
#include <stdbool.h>

struct ws_tcp_stranger;
struct ws_tcp_strangers {
    unsigned most;
    pthread_mutex_t lock;
    /* guarded by lock */
    struct ws_tcp_stranger *newest, *oldest;
    unsigned n;
    bool said;
};
void ws_tcp_strangers_init(struct ws_tcp_strangers *s, unsigned most);
void ws_tcp_strangers_destroy(struct ws_tcp_strangers *s);
/* Somebody has connected; freed by ws_tcp_stranger_left. NULL, where there is no memory, is fine everywhere.
 */
struct ws_tcp_stranger *ws_tcp_stranger_came(struct ws_tcp_strangers *s, int sock);
void ws_tcp_stranger_is_known(struct ws_tcp_strangers *s, struct ws_tcp_stranger *who);
/* Before its socket is closed. */
void ws_tcp_stranger_left(struct ws_tcp_strangers *s, struct ws_tcp_stranger *who);

#endif
