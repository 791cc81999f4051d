#include "transports/http/connections.h"
#include "transports/base/clock.h"
#include "transports/base/limits.h"
#include "transports/base/log.h"
#include "transports/http/tcp_progress.h"
#include <netdb.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>

#define LOOK_NS      (WS_SECOND_NS / 2)
#define LATE_NS      (30 * WS_SECOND_NS) /* what lies unread for so long is no excuse any more */
#define YOUNG_NS     (100 * WS_MS_NS)    /* a stranger's first request is on its way, or a handshake */
#define SHAKING_NS   WS_SECOND_NS        /* the same, while there is room: links may be long */
#define MOST_ENDING  128U /* and MOST_WAITING: libmicrohttpd's own list of work is kept short */
#define MOST_WAITING 64U
#define AT_ONCE      16U /* connections that are ended when all places are taken */

enum doing { SENDS_HEAD, SENDS_BODY, IS_SERVED, IS_IDLE };

struct ws_http_link {
    TAILQ_ENTRY(ws_http_link) in_all, in_strangers;
    int sock;
    _Atomic uint64_t body_bytes;
    /* guarded by the list's lock */
    struct ws_http_peer *peer;     /* NULL: no memory */
    struct ws_http_holder *holder; /* NULL: not known, or an identity that many share */
    enum doing doing;
    bool is_known, is_stranger;
    atomic_bool is_ending;    /* set with the lock, read without */
    uint64_t since_ns;        /* it does that */
    uint64_t silent_ns;       /* a stranger: since when */
    uint64_t received;        /* when its last request had come whole */
    uint64_t acked, acked_ns; /* what its reader had taken, and since when no more; 0: nothing is owed */
    uint64_t window_acked, window_ns; /* the same when the rate was looked at last */
};

void ws_http_connections_init(struct ws_http_connections *c, unsigned max, bool has_tls)
{
    const unsigned most = has_tls ? WS_MAX_STRANGERS_TLS : WS_MAX_STRANGERS;
    *c = (struct ws_http_connections){.max = max, .max_strangers = max / 2 < most ? max / 2 : most};
    c->max_of_address = c->max_strangers / 2 < WS_MAX_STRANGERS_OF_ADDRESS ? c->max_strangers / 2
                                                                           : WS_MAX_STRANGERS_OF_ADDRESS;
    TAILQ_INIT(&c->all);
    TAILQ_INIT(&c->strangers);
    pthread_mutex_init(&c->lock, NULL);
}

void ws_http_connections_destroy(struct ws_http_connections *c)
{
    pthread_mutex_destroy(&c->lock);
}

/* --- strangers; all with the lock, and a time that was taken with it: none in the list is later --- */

static void set_stranger(struct ws_http_connections *c, struct ws_http_link *l, bool is_stranger,
                         uint64_t now)
{
    if (l->is_stranger == is_stranger)
        return;
    l->is_stranger = is_stranger;
    l->silent_ns = now;
    if (is_stranger)
        TAILQ_INSERT_TAIL(&c->strangers, l, in_strangers);
    else
        TAILQ_REMOVE(&c->strangers, l, in_strangers);
    c->n_strangers += is_stranger ? 1U : -1U;
    if (l->peer)
        l->peer->n_strangers += is_stranger ? 1U : -1U;
}

static void set_holder(struct ws_http_connections *c, struct ws_http_link *l, const char *owner)
{
    if (strcmp(l->holder ? l->holder->name : "", owner) == 0)
        return;
    ws_http_holder_remove(l->holder);
    l->holder = owner[0] && !l->is_ending ? ws_http_holders_add(&c->holders, owner) : NULL;
}

static void log_ending(struct ws_http_connections *c, const struct ws_http_link *l, enum ws_http_ending why,
                       uint64_t now)
{
    struct sockaddr_storage a;
    socklen_t n = sizeof(a);
    char host[NI_MAXHOST] = "?";
    if (c->logged_ns && now - c->logged_ns < WS_SECOND_NS) {
        c->unlogged++;
        return;
    }
    if (getpeername(l->sock, (struct sockaddr *)&a, &n) == 0)
        (void)getnameinfo((struct sockaddr *)&a, n, host, sizeof(host), NULL, 0, NI_NUMERICHOST);
    ws_log(WS_LOG_WARN, "http", "connection ended reason=%s from=%s more=%u", ws_http_ending_name(why), host,
           c->unlogged);
    c->logged_ns = now;
    c->unlogged = 0;
}

/* libmicrohttpd closes a connection that is shut down, and then reports it as ended. */
static void shut_down(struct ws_http_connections *c, struct ws_http_link *l, uint64_t now)
{
    (void)shutdown(l->sock, SHUT_RDWR);
    set_stranger(c, l, false, now);
    set_holder(c, l, "");
    l->is_ending = true;
    c->n_ending++;
}

/* What a reader has not taken is dropped, not kept for it by the kernel. */
static void end(struct ws_http_connections *c, struct ws_http_link *l, enum ws_http_ending why, uint64_t now)
{
    const struct linger drop = {.l_onoff = 1, .l_linger = 0};
    if (l->is_ending)
        return;
    log_ending(c, l, why, now);
    if (why == WS_HTTP_ENDS_READER)
        (void)setsockopt(l->sock, SOL_SOCKET, SO_LINGER, &drop, sizeof(drop));
    shut_down(c, l, now);
    atomic_fetch_add(&c->ended[why], 1);
}

/* What it sent and the process has not read yet is the server's delay. */
static bool waits_for_us(const struct ws_http_link *l, uint64_t since_ns, uint64_t now)
{
    return now - since_ns < LATE_NS && ws_tcp_unread(l->sock) > 0;
}

/* The stranger that has been silent for longest, and for that long at least; of one address, or, with NULL, rather
 * one of an address that has more than its part. NULL: none. */
static struct ws_http_link *longest_silent(struct ws_http_connections *c, const struct ws_http_peer *of,
                                           uint64_t at_least_ns, uint64_t now)
{
    struct ws_http_link *first = NULL;
    for (struct ws_http_link *l = TAILQ_FIRST(&c->strangers); l; l = TAILQ_NEXT(l, in_strangers)) {
        const bool over = !of && l->peer && l->peer->n_strangers > c->max_of_address;
        if (now - l->silent_ns < at_least_ns)
            break;
        if ((of && l->peer != of) || (first && !over) || waits_for_us(l, l->silent_ns, now))
            continue;
        first = l;
        if (over || of)
            break;
    }
    return first;
}

static bool end_longest_silent(struct ws_http_connections *c, uint64_t now)
{
    struct ws_http_link *l = longest_silent(c, NULL, YOUNG_NS, now);
    if (l)
        end(c, l, WS_HTTP_ENDS_ROOM, now);
    return l;
}

/* Of an identity with more than half of all places. */
static bool end_of_largest(struct ws_http_connections *c, uint64_t now)
{
    const struct ws_http_holder *largest = ws_http_holders_largest(&c->holders);
    struct ws_http_link *l = TAILQ_FIRST(&c->all);
    if (!largest || largest->n_connections <= c->max / 2)
        return false;
    while (l && l->holder != largest)
        l = TAILQ_NEXT(l, in_all);
    if (l)
        end(c, l, WS_HTTP_ENDS_ROOM, now);
    return l;
}

bool ws_http_connections_have_room(struct ws_http_connections *c, unsigned n_waiting)
{
    bool room = n_waiting < MOST_WAITING;
    pthread_mutex_lock(&c->lock);
    const uint64_t now = ws_clock_ns();
    if (c->n + n_waiting >= c->max) {
        for (unsigned i = c->n_ending; i < AT_ONCE && (end_longest_silent(c, now) || end_of_largest(c, now));
             i++)
            ;
        room = false;
    } else if (c->n_strangers + n_waiting >= c->max_strangers) {
        room = room && end_longest_silent(c, now) && c->n_ending < MOST_ENDING;
    }
    pthread_mutex_unlock(&c->lock);
    return room;
}

/* --- one connection --- */

struct ws_http_link *ws_http_connections_add(struct ws_http_connections *c, int sock,
                                             const struct sockaddr *address)
{
    struct ws_http_link *l = calloc(1, sizeof(*l)), *other;
    if (!l)
        return NULL;
    l->sock = sock;
    l->doing = SENDS_HEAD;
    pthread_mutex_lock(&c->lock);
    const uint64_t now = ws_clock_ns();
    l->since_ns = now;
    l->peer = address ? ws_http_peers_add(&c->peers, address) : NULL;
    TAILQ_INSERT_TAIL(&c->all, l, in_all);
    c->n++;
    set_stranger(c, l, true, now);
    if (l->peer && l->peer->n_strangers > c->max_of_address &&
        (other = longest_silent(c, l->peer, SHAKING_NS, now)))
        end(c, other, WS_HTTP_ENDS_ADDRESS, now);
    pthread_mutex_unlock(&c->lock);
    return l;
}

void ws_http_connections_remove(struct ws_http_connections *c, struct ws_http_link *l)
{
    if (!l)
        return;
    pthread_mutex_lock(&c->lock);
    set_stranger(c, l, false, 0);
    set_holder(c, l, "");
    ws_http_peers_remove(&c->peers, l->peer);
    TAILQ_REMOVE(&c->all, l, in_all);
    c->n--;
    c->n_ending -= l->is_ending;
    pthread_mutex_unlock(&c->lock);
    free(l);
}

static void begin(struct ws_http_connections *c, struct ws_http_link *l, enum doing doing)
{
    if (!l)
        return;
    const uint64_t received = doing == IS_SERVED ? ws_tcp_bytes_received(l->sock) : 0;
    pthread_mutex_lock(&c->lock);
    const uint64_t now = ws_clock_ns();
    if (l->doing != doing) {
        l->doing = doing;
        l->since_ns = now;
        if (doing == IS_SERVED) /* before it is answered: the next one may follow the answer at once */
            l->received = received;
        atomic_store(&l->body_bytes, 0);
        set_stranger(c, l, !l->is_known && !l->is_ending && doing != IS_SERVED, now);
    }
    pthread_mutex_unlock(&c->lock);
}

void ws_http_link_sends_head(struct ws_http_connections *c, struct ws_http_link *l)
{
    begin(c, l, SENDS_HEAD);
}

void ws_http_link_sends_body(struct ws_http_connections *c, struct ws_http_link *l)
{
    begin(c, l, SENDS_BODY);
}

void ws_http_link_sent(struct ws_http_link *l, size_t n)
{
    if (l)
        atomic_fetch_add(&l->body_bytes, n);
}

void ws_http_link_is_served(struct ws_http_connections *c, struct ws_http_link *l)
{
    begin(c, l, IS_SERVED);
}

void ws_http_link_is_idle(struct ws_http_connections *c, struct ws_http_link *l)
{
    begin(c, l, IS_IDLE);
}

void ws_http_link_is_known(struct ws_http_connections *c, struct ws_http_link *l, bool is_known,
                           const char *owner)
{
    if (!l)
        return;
    pthread_mutex_lock(&c->lock);
    l->is_known = is_known;
    set_holder(c, l, is_known ? owner : "");
    if (is_known)
        set_stranger(c, l, false, 0);
    pthread_mutex_unlock(&c->lock);
}

void ws_http_link_end(struct ws_http_connections *c, struct ws_http_link *l, enum ws_http_ending why)
{
    if (!l)
        return;
    pthread_mutex_lock(&c->lock);
    end(c, l, why, ws_clock_ns());
    pthread_mutex_unlock(&c->lock);
}

bool ws_http_link_is_ending(const struct ws_http_link *l)
{
    return l && atomic_load(&l->is_ending);
}

/* --- slow ones; all with the lock --- */

/* Between requests libmicrohttpd does not say that a head has begun; the kernel's count does. */
static void see_next_head(struct ws_http_link *l, uint64_t now)
{
    if (l->doing == IS_IDLE && ws_tcp_bytes_received(l->sock) > l->received) {
        l->doing = SENDS_HEAD;
        l->since_ns = now;
    }
}

static bool sends_too_slowly(const struct ws_http_link *l, uint64_t now)
{
    const uint64_t bytes = atomic_load(&l->body_bytes), spent = now - l->since_ns;
    const uint64_t allowed = l->doing == SENDS_HEAD ? WS_HEAD_MS * WS_MS_NS
                             : l->doing == SENDS_BODY
                                 ? WS_BODY_MS * WS_MS_NS + bytes * WS_SECOND_NS / WS_BODY_RATE
                                 : UINT64_MAX;
    return spent > allowed && !waits_for_us(l, l->since_ns + allowed, now);
}

/* Only while there is something for it to take: a request that waits, or whose answer is on its way to us, owes it
 * nothing. */
static bool reads_too_slowly(struct ws_http_link *l, uint64_t now)
{
    if (ws_tcp_unacked(l->sock) == 0) {
        l->acked_ns = 0;
        return false;
    }
    const uint64_t acked = ws_tcp_bytes_acked(l->sock);
    if (l->acked_ns == 0) {
        l->window_acked = acked;
        l->window_ns = now;
    }
    if (l->acked_ns == 0 || acked != l->acked) {
        l->acked = acked;
        l->acked_ns = now;
    }
    if (now - l->acked_ns > WS_READER_MS * WS_MS_NS)
        return true;
    if (now - l->window_ns < WS_READER_RATE_MS * WS_MS_NS)
        return false;
    const uint64_t taken = acked - l->window_acked;
    l->window_acked = acked;
    l->window_ns = now;
    return taken < WS_READER_RATE * (WS_READER_RATE_MS / 1000);
}

/* libmicrohttpd does not see the end of what it reads where that comes with the last request. */
static bool has_left(const struct ws_http_link *l, uint64_t now)
{
    return l->doing == IS_IDLE && now - l->since_ns > WS_SECOND_NS && ws_tcp_peer_has_left(l->sock);
}

static void look_at(struct ws_http_connections *c, struct ws_http_link *l, uint64_t now)
{
    if (l->is_ending)
        return;
    see_next_head(l, now);
    if (has_left(l, now))
        shut_down(c, l, now);
    else if (sends_too_slowly(l, now))
        end(c, l, l->doing == SENDS_HEAD ? WS_HTTP_ENDS_HEAD : WS_HTTP_ENDS_BODY, now);
    else if (reads_too_slowly(l, now))
        end(c, l, WS_HTTP_ENDS_READER, now);
}

void ws_http_connections_look(struct ws_http_connections *c)
{
    pthread_mutex_lock(&c->lock);
    const uint64_t now = ws_clock_ns();
    if (now - c->looked_ns >= LOOK_NS) {
        c->looked_ns = now;
        for (struct ws_http_link *l = TAILQ_FIRST(&c->all); l; l = TAILQ_NEXT(l, in_all))
            look_at(c, l, now);
    }
    pthread_mutex_unlock(&c->lock);
}
