#include "transports/ucx/serve.h"
#include "transports/access/identity.h"
#include "transports/base/clock.h"
#include "transports/base/text.h"
#include "transports/base/workers.h"
#include "transports/ucx/engine.h"
#include "transports/ucx/hex.h"
#include "transports/ucx/share.h"
#include "transports/ucx/wire.h"
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define MAX_SESSIONS 1024
#define MAX_SENDING  64 /* pieces that one reader has asked for at a time */
#define LOOK_MS      1000
#define LOOK_SOON_MS 10

/* Memory that is registered while any lease has it. */
struct registration {
    struct registration *next;
    struct ws_region *region;
    struct ws_ucx_memory *memory;
    unsigned users;
};

/* A lease, and the worker of its reader. Used by the server's thread, but for what is atomic. */
struct session {
    struct session *next;
    struct ws_ucx_server *server;
    struct ws_lease *lease;
    struct registration **files; /* one a file; NULL for size 0 */
    size_t n_files;
    struct ws_ucx_worker *worker;
    char key[WS_UCX_KEY_CHARS + 1];
    char owner[WS_IDENTITY_CHARS + 1]; /* the identity that asked for it */
    unsigned sending;
    uint64_t asked_ns, end_ns; /* end_ns: it was revoked, and ends then at the latest; 0: it stands */
    bool over;
    bool ends;     /* its worker does: the lease is given back when that is gone */
    bool is_armed; /* nothing has happened to its worker since, and its descriptor says when something does */
    atomic_bool revoked;
};

/* What a request has the thread do. It is on the caller's stack. */
struct order {
    struct order *next;
    struct session *opens;                       /* or: */
    const char *ends;                            /* the session with this key */
    unsigned char address[WS_UCX_ADDRESS_BYTES]; /* the reader's, then this end's */
    size_t n_address;
    bool done;
    int rc;
    struct ws_error err;
};

struct ws_ucx_server {
    struct ws_catalog catalog;
    pthread_t thread;
    bool runs; /* the thread is to be joined */
    int wake;  /* eventfd */
    struct session *sessions;
    struct registration *registrations;
    struct pollfd *polled;
    _Atomic uint64_t bytes, pieces, refused;
    atomic_uint n_sessions;
    pthread_mutex_t lock;
    pthread_cond_t answered;
    /* guarded by lock */
    struct order *orders;
    bool stop;
};

static void wake(const struct ws_ucx_server *s)
{
    (void)!write(s->wake, &(uint64_t){1}, sizeof(uint64_t));
}

/* Called by the catalog, from any thread, perhaps with its lock. */
static void on_revoked(void *arg)
{
    struct session *n = arg;
    atomic_store(&n->revoked, true);
    wake(n->server);
}

/* --- memory --- */

static int registered(struct ws_ucx_server *s, struct ws_region *region, struct registration **out,
                      struct ws_error *err)
{
    struct registration *r = s->registrations;
    while (r && r->region != region)
        r = r->next;
    if (!r) {
        r = calloc(1, sizeof(*r));
        if (!r)
            return ws_error_set(err, ENOMEM, "no memory for a registration");
        r->region = region;
        const int rc = ws_ucx_memory_new(&r->memory, ws_region_data(region), ws_region_size(region), err);
        if (rc < 0) {
            free(r);
            return rc;
        }
        r->next = s->registrations;
        s->registrations = r;
    }
    r->users++;
    *out = r;
    return 0;
}

static void let_go(struct ws_ucx_server *s, struct registration *r)
{
    struct registration **at = &s->registrations;
    if (!r || --r->users > 0)
        return;
    while (*at != r)
        at = &(*at)->next;
    *at = r->next;
    ws_ucx_memory_free(r->memory);
    free(r);
}

/* --- requests of readers --- */

static void on_piece_sent(void *arg, int rc)
{
    struct session *n = arg;
    (void)rc;
    n->sending--;
}

static void ignore_sent(void *arg, int rc)
{
    (void)arg;
    (void)rc;
}

static void reply_code(struct session *n, uint64_t id, int code)
{
    const struct ws_ucx_reply r = {.mark = WS_UCX_REPLY_MARK, .code = (uint32_t)code, .id = id};
    (void)!ws_ucx_send(n->worker, &r, sizeof(r), NULL, NULL, 0, ignore_sent, NULL);
}

/* In a time that does not depend on where they differ. */
static bool is_key(const struct session *n, const char key[WS_UCX_KEY_CHARS])
{
    unsigned char differ = 0;
    for (size_t i = 0; i < WS_UCX_KEY_CHARS; i++)
        differ |= (unsigned char)(n->key[i] ^ key[i]);
    return differ == 0;
}

/* 0, or the errno of the answer. */
static int check_request(const struct session *n, const struct ws_ucx_request *q)
{
    const struct ws_manifest *m = n->lease->manifest;
    if (atomic_load(&n->revoked))
        return ESTALE;
    if (q->id == 0 || q->file >= m->n_files || q->bytes == 0 || q->bytes > WS_UCX_PIECE_BYTES ||
        q->at > m->files[q->file].size_bytes || q->bytes > m->files[q->file].size_bytes - q->at)
        return ERANGE;
    return n->sending >= MAX_SENDING ? EBUSY : 0;
}

static bool on_request(void *arg, const struct ws_ucx_message *m)
{
    struct session *n = arg;
    struct ws_ucx_server *s = n->server;
    struct ws_ucx_request q;
    if (m->n_header != sizeof(q)) {
        atomic_fetch_add(&s->refused, 1);
        return false;
    }
    memcpy(&q, m->header, sizeof(q));
    if (q.mark != WS_UCX_REQUEST_MARK || !is_key(n, q.key)) {
        atomic_fetch_add(&s->refused, 1);
        return false;
    }
    n->asked_ns = ws_clock_ns();
    const int code = check_request(n, &q);
    if (code) {
        atomic_fetch_add(&s->refused, 1);
        reply_code(n, q.id, code);
        return false;
    }
    const struct ws_ucx_reply r = {.mark = WS_UCX_REPLY_MARK, .id = q.id};
    const struct registration *file = n->files[q.file];
    n->sending++;
    if (ws_ucx_send(n->worker, &r, sizeof(r), file->memory, ws_region_data(file->region) + q.at, q.bytes,
                    on_piece_sent, n) < 0) {
        n->sending--;
        reply_code(n, q.id, ENOMEM);
        return false;
    }
    atomic_fetch_add(&s->bytes, q.bytes);
    atomic_fetch_add(&s->pieces, 1);
    return false;
}

/* --- sessions --- */

/* Its worker is gone: nothing touches the memory any more. Called by the thread. */
static void close_session(struct session *n)
{
    for (size_t i = 0; n->files && i < n->n_files; i++)
        let_go(n->server, n->files[i]);
    free(n->files);
}

/* Of a session that was closed, or never opened. Any thread. */
static void free_session(struct session *n)
{
    n->server->catalog.ops->release(n->server->catalog.self, n->lease);
    free(n);
}

/* The first of its owner's? */
static bool is_first(const struct ws_ucx_server *s, const struct session *n)
{
    const struct session *i = s->sessions;
    while (strcmp(i->owner, n->owner) != 0)
        i = i->next;
    return i == n;
}

/* May the owner have one more? */
static int check_share(const struct ws_ucx_server *s, const char *owner, struct ws_error *err)
{
    unsigned own = 0, others = 0;
    for (const struct session *n = s->sessions; n; n = n->next) {
        const bool is_own = strcmp(n->owner, owner) == 0;
        own += is_own;
        others += !is_own && is_first(s, n);
    }
    if (atomic_load(&s->n_sessions) >= MAX_SESSIONS)
        return ws_error_set(err, EBUSY, "%d readers have a lease by ucx already", MAX_SESSIONS);
    if (own >= ws_ucx_share(MAX_SESSIONS, others))
        return ws_error_set(err, EBUSY,
                            "%s%s has %u of %d leases by ucx, its share beside %u other identities",
                            owner[0] ? "the identity " : "who names none", owner, own, MAX_SESSIONS, others);
    return 0;
}

static int open_session(struct ws_ucx_server *s, struct order *o)
{
    struct session *n = o->opens;
    const int may = check_share(s, n->owner, &o->err);
    if (may < 0)
        return may;
    n->n_files = n->lease->manifest->n_files;
    n->files = calloc(n->n_files + 1, sizeof(struct registration *));
    struct pollfd *polled = realloc(s->polled, (atomic_load(&s->n_sessions) + 2) * sizeof(*polled));
    if (polled)
        s->polled = polled;
    int rc = n->files && polled ? 0 : ws_error_set(&o->err, ENOMEM, "no memory for a lease by ucx");
    for (size_t i = 0; rc == 0 && i < n->n_files; i++)
        if (n->lease->regions[i])
            rc = registered(s, n->lease->regions[i], &n->files[i], &o->err);
    if (rc == 0)
        rc = ws_ucx_worker_new(&n->worker, on_request, n, &o->err);
    if (rc == 0)
        rc = ws_ucx_connect(n->worker, o->address, o->n_address, &o->err);
    if (rc == 0)
        rc = ws_ucx_worker_address(n->worker, o->address, &o->n_address, &o->err);
    if (rc < 0) {
        ws_ucx_worker_free(n->worker);
        close_session(n);
        return rc;
    }
    n->asked_ns = ws_clock_ns();
    n->next = s->sessions;
    s->sessions = n;
    atomic_fetch_add(&s->n_sessions, 1);
    return 0;
}

static int end_session(const struct ws_ucx_server *s, struct order *o)
{
    for (struct session *n = s->sessions; n; n = n->next)
        if (!n->ends && strlen(o->ends) == WS_UCX_KEY_CHARS && is_key(n, o->ends)) {
            n->over = true;
            n->end_ns = ws_clock_ns() + WS_UCX_GRACE_MS * WS_MS_NS;
            return 0;
        }
    return ws_error_set(&o->err, ESTALE, "there is no lease by ucx with that key (any more)");
}

/* Does it end now? */
static bool is_over(struct session *n, uint64_t now_ns)
{
    if (!n->over && !n->end_ns && atomic_load(&n->revoked)) {
        n->end_ns = now_ns + WS_UCX_GRACE_MS * WS_MS_NS;
        reply_code(n, 0, ESTALE);
        n->is_armed = false; /* the thread sends it */
    }
    if (ws_ucx_failure(n->worker) < 0) /* then nothing is under way any more */
        return true;
    const bool has_heard = n->end_ns && now_ns + (WS_UCX_GRACE_MS - LOOK_SOON_MS) * WS_MS_NS >= n->end_ns;
    return (n->over && n->sending == 0) || (has_heard && n->sending == 0) ||
           (n->end_ns && now_ns >= n->end_ns) || now_ns >= n->asked_ns + WS_UCX_IDLE_MS * WS_MS_NS;
}

/* No reader waits for another one, which may be silent, to end. */
static void end_those_over(struct ws_ucx_server *s, bool all)
{
    const uint64_t now_ns = ws_clock_ns();
    for (struct session **at = &s->sessions; *at;) {
        struct session *n = *at;
        if (!n->ends && (all || is_over(n, now_ns))) {
            n->ends = true;
            n->is_armed = false;
            ws_ucx_worker_end(n->worker);
        }
        if (!n->ends || !ws_ucx_worker_is_gone(n->worker)) {
            at = &n->next;
            continue;
        }
        *at = n->next;
        atomic_fetch_sub(&s->n_sessions, 1);
        close_session(n);
        free_session(n);
    }
}

/* --- the thread --- */

static bool take_orders(struct ws_ucx_server *s)
{
    pthread_mutex_lock(&s->lock);
    const bool stop = s->stop;
    while (s->orders) {
        struct order *o = s->orders;
        s->orders = o->next;
        pthread_mutex_unlock(&s->lock);
        const int rc = stop       ? ws_error_set(&o->err, EAGAIN, "the agent ends")
                       : o->opens ? open_session(s, o)
                                  : end_session(s, o);
        pthread_mutex_lock(&s->lock);
        o->rc = rc;
        o->done = true;
        pthread_cond_broadcast(&s->answered);
    }
    pthread_mutex_unlock(&s->lock);
    return !stop;
}

/* Only the workers to which something happened are looked at: a wake costs the same however many readers there are. */
static void sleep_until_something(struct ws_ucx_server *s)
{
    struct pollfd first = {.fd = s->wake, .events = POLLIN}, *p = s->polled ? s->polled : &first;
    nfds_t n_polled = 0;
    int ms = -1;
    p[n_polled++] = first;
    for (struct session *n = s->sessions; n; n = n->next) {
        if (!n->is_armed && !(n->is_armed = ws_ucx_arm(n->worker)))
            return;
        p[n_polled++] = (struct pollfd){.fd = ws_ucx_descriptor(n->worker), .events = POLLIN};
        ms = n->end_ns || n->ends || ms == LOOK_SOON_MS ? LOOK_SOON_MS : LOOK_MS;
    }
    if (poll(p, n_polled, ms) <= 0)
        return;
    if (p[0].revents)
        (void)!read(s->wake, &(uint64_t){0}, sizeof(uint64_t));
    for (struct session *n = s->sessions; n; n = n->next)
        n->is_armed = !(++p)->revents;
}

/* True: something happened. */
static bool progress_all(const struct ws_ucx_server *s)
{
    bool moved = false;
    for (struct session *n = s->sessions; n; n = n->next)
        while (!n->is_armed && ws_ucx_progress(n->worker))
            moved = true;
    return moved;
}

static void *serve(void *arg)
{
    struct ws_ucx_server *s = arg;
    while (take_orders(s)) {
        const bool moved = progress_all(s);
        end_those_over(s, false);
        if (!moved)
            sleep_until_something(s);
    }
    for (end_those_over(s, true); s->sessions; end_those_over(s, true))
        (void)poll(NULL, 0, 1);
    return NULL;
}

/* Has the thread do it, and waits. */
static int give_order(struct ws_ucx_server *s, struct order *o, struct ws_error *err)
{
    pthread_mutex_lock(&s->lock);
    if (s->stop) {
        pthread_mutex_unlock(&s->lock);
        return ws_error_set(err, EAGAIN, "the agent ends");
    }
    o->next = s->orders;
    s->orders = o;
    wake(s);
    while (!o->done)
        pthread_cond_wait(&s->answered, &s->lock);
    pthread_mutex_unlock(&s->lock);
    if (o->rc < 0 && err)
        *err = o->err;
    return o->rc;
}

/* --- the API --- */

static int check_release(const json_t *body, struct ws_error *err)
{
    const char *theirs = json_string_value(json_object_get(body, "release"));
    if (!theirs)
        return ws_error_set(err, EINVAL, "a request for a lease by ucx names the reader's release of UCX");
    if (strcmp(theirs, ws_ucx_release()) != 0)
        return ws_error_set(err, EOPNOTSUPP,
                            "both ends need UCX of one release: the agent's is %s, the reader's %.20s",
                            ws_ucx_release(), theirs);
    return 0;
}

static int lend(struct ws_ucx_server *s, const char *owner, const struct ws_api_request *q,
                const json_t *body, json_t **reply, struct ws_error *err)
{
    struct session *n = calloc(1, sizeof(*n));
    struct order *o = calloc(1, sizeof(*o));
    char *text = malloc(2 * WS_UCX_ADDRESS_BYTES + 1), key[WS_UCX_KEY_CHARS + 1];
    char digest[sizeof(((struct ws_manifest *)NULL)->digest)];
    int rc = n && o && text ? 0 : ws_error_set(err, ENOMEM, "no memory for a lease by ucx");
    if (rc == 0 && ws_ucx_hex_parse(json_string_value(json_object_get(body, "address")), o->address,
                                    sizeof(o->address), &o->n_address) < 0)
        rc = ws_error_set(err, EINVAL, "a request for a lease by ucx has the address of the reader's worker");
    if (rc == 0 && ws_text_random(n->key, WS_UCX_KEY_CHARS / 2) < 0)
        rc = ws_error_set(err, EIO, "the system gives no random bytes for a key");
    if (rc == 0) {
        n->server = s;
        snprintf(n->owner, sizeof(n->owner), "%s", owner);
        rc = s->catalog.ops->lease(s->catalog.self, q->model, q->version, q->lineage[0] ? q->lineage : NULL,
                                   "ucx", on_revoked, n, &n->lease, err);
    }
    if (rc < 0) {
        free(n);
        free(o);
        free(text);
        return rc;
    }
    memcpy(key, n->key, sizeof(key));
    snprintf(digest, sizeof(digest), "%s", n->lease->manifest->digest);
    o->opens = n;
    rc = give_order(s, o, err);
    if (rc == 0) {
        ws_ucx_hex_format(o->address, o->n_address, text);
        *reply = json_pack("{s:s,s:s,s:s,s:s,s:i}", "release", ws_ucx_release(), "address", text, "key", key,
                           "digest", digest, "idle_ms", WS_UCX_IDLE_MS);
    } else {
        free_session(n);
    }
    free(o);
    free(text);
    return rc;
}

int ws_ucx_server_offer(struct ws_ucx_server *s, const char *owner, const struct ws_api_request *q,
                        const json_t *body, json_t **reply, struct ws_error *err)
{
    const char *key = json_string_value(json_object_get(body, "key"));
    if (key && json_is_true(json_object_get(body, "end"))) {
        struct order *o = calloc(1, sizeof(*o));
        if (!o)
            return ws_error_set(err, ENOMEM, "no memory for a request");
        o->ends = key;
        const int rc = give_order(s, o, err);
        free(o);
        return rc;
    }
    const int rc = check_release(body, err);
    return rc < 0 ? rc : lend(s, owner, q, body, reply, err);
}

/* --- life --- */

int ws_ucx_server_new(struct ws_ucx_server **out, const struct ws_catalog *catalog, struct ws_error *err)
{
    int rc = ws_ucx_available(err);
    if (rc < 0)
        return rc;
    if (catalog->ops->here)
        return ws_error_set(err, ENOTSUP, "versions that arrive are not served by ucx");
    struct ws_ucx_server *s = calloc(1, sizeof(*s));
    if (!s)
        return ws_error_set(err, ENOMEM, "no memory for a server");
    s->catalog = *catalog;
    pthread_mutex_init(&s->lock, NULL);
    ws_cond_init(&s->answered);
    s->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (s->wake < 0 || ws_thread_start(&s->thread, serve, s) < 0) {
        ws_ucx_server_free(s);
        return ws_error_set(err, EAGAIN, "cannot start the thread that serves by ucx");
    }
    s->runs = true;
    *out = s;
    return 0;
}

void ws_ucx_server_stats(struct ws_ucx_server *s, struct ws_ucx_server_stats *out)
{
    *out = (struct ws_ucx_server_stats){.bytes = atomic_load(&s->bytes),
                                        .pieces = atomic_load(&s->pieces),
                                        .refused = atomic_load(&s->refused),
                                        .leases = atomic_load(&s->n_sessions)};
}

void ws_ucx_server_stop(struct ws_ucx_server *s)
{
    pthread_mutex_lock(&s->lock);
    s->stop = true;
    pthread_mutex_unlock(&s->lock);
    if (s->runs) {
        wake(s);
        pthread_join(s->thread, NULL);
    }
    s->runs = false;
}

void ws_ucx_server_free(struct ws_ucx_server *s)
{
    if (!s)
        return;
    ws_ucx_server_stop(s);
    if (s->wake >= 0)
        close(s->wake);
    pthread_cond_destroy(&s->answered);
    pthread_mutex_destroy(&s->lock);
    free(s->polled);
    free(s);
}
