/* Versions on demand, at the rank: a thread asks the agent, by a connection of its own, whether a reader
 * wants the bytes of a shared version, and fills a slot out of the shared memory. One lock serialises it with
 * the publisher's calls. */
#include "backends/trainer/publisher/share/share.h"
#include "backends/trainer/publisher/version_step.h"
#include "transports/base/workers.h"
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define POLL_MS  2000
#define AGAIN_NS 200000000L /* before the next try when the agent does not answer */

struct ws_on_demand {
    struct wsync_publisher *publisher;
    pthread_t thread;
    atomic_bool stop;
    pthread_mutex_t turn; /* the publisher's */
    pthread_mutex_t lock; /* of sock, for a moment */
    int sock;             /* -1: not connected */
};

bool ws_publisher_is_on_demand(const struct wsync_publisher *p)
{
    return p->share && p->share->on_demand;
}

void ws_publisher_lock(struct wsync_publisher *p)
{
    if (p->share && p->share->demand && p->pid == getpid())
        pthread_mutex_lock(&p->share->demand->turn);
}

void ws_publisher_unlock(struct wsync_publisher *p)
{
    if (p->share && p->share->demand && p->pid == getpid())
        pthread_mutex_unlock(&p->share->demand->turn);
}

/* --- what a version is made of --- */

void ws_on_demand_forget(struct ws_publisher_share_set *set)
{
    for (size_t i = 0; set->host && i < set->n_params; i++)
        free(set->host[i]);
    free(set->host);
    free(set->params);
    free(set->overflows);
    set->overflows = NULL;
    set->host = NULL;
    set->params = NULL;
    set->n_params = 0;
}

static wsync_param param_of(const struct ws_shared_piece *a, const struct ws_registered_piece *r)
{
    const struct ws_tensor *t = &r->tensor;
    wsync_param p = {.name = t->name,
                     .dtype = (wsync_dtype)t->dtype,
                     .n_dims = t->n_dims,
                     .data = a->data,
                     .converts = a->layout.conversion != WS_SAME_TYPE,
                     .data_dtype = (wsync_dtype)a->data_dtype,
                     .file = r->file_name};
    memcpy(p.shape, t->shape, sizeof(p.shape));
    if (r->piece.range) {
        p.piece = (wsync_piece){.kind = WSYNC_RANGE, .start = r->piece.start, .count = r->piece.count};
    } else if (ws_dtype_bits(t->dtype) % 8 == 0) {
        p.piece = (wsync_piece){.kind = WSYNC_BOX, .strided = 1};
        memcpy(p.piece.offset, r->piece.offset, sizeof(p.piece.offset));
        memcpy(p.piece.size, r->piece.size, sizeof(p.piece.size));
        memcpy(p.piece.strides, a->layout.strides, sizeof(p.piece.strides));
    }
    return p;
}

/* The host's memory is the caller's again when the offload returns. */
static int copy_host(struct ws_publisher_share_set *set, size_t i, const struct ws_shared_piece *a,
                     struct ws_error *err)
{
    struct ws_gpu_piece piece;
    uint64_t before, after;
    int rc = ws_publisher_share_describe(a, &piece, err);
    if (rc < 0)
        return rc;
    free((char *)(uintptr_t)piece.tensor.name);
    piece.tensor.name = a->registered->tensor.name;
    if (ws_gpu_piece_extent(&piece, &before, &after) < 0)
        return ws_error_set(err, EINVAL, "the strides of the parameter %s make no sense", piece.tensor.name);
    set->host[i] = malloc(before + after + 1);
    if (!set->host[i])
        return ws_error_set(err, ENOMEM, "no memory for %" PRIu64 " bytes of %s", before + after,
                            piece.tensor.name);
    memcpy(set->host[i], (const unsigned char *)a->data - before, before + after);
    set->params[i].data = set->host[i] + before;
    return 0;
}

static bool is_shared(const struct ws_publisher_share_offer *o, const struct ws_registered_piece *r,
                      size_t *at)
{
    while (*at < o->n_pieces && o->pieces[*at].registered < r)
        ++*at;
    return *at < o->n_pieces && o->pieces[*at].registered == r;
}

int ws_on_demand_record(struct wsync_publisher *p, struct ws_publisher_share_set *set,
                        const struct ws_publisher_share_offer *o, struct ws_error *err)
{
    struct ws_publisher_share *s = p->share;
    size_t at = 0;
    int rc = 0;
    ws_on_demand_forget(set);
    set->params = calloc(p->n_params + 1, sizeof(*set->params));
    set->host = calloc(p->n_params + 1, sizeof(*set->host));
    set->overflows = calloc(p->n_params + 1, sizeof(*set->overflows));
    if (!set->params || !set->host || !set->overflows)
        return ws_error_set(err, ENOMEM, "no memory for %zu parameters", p->n_params);
    set->n_params = p->n_params;
    set->registration = p->n_registrations;
    for (size_t i = 0; rc == 0 && i < p->n_params; i++) {
        const struct ws_registered_piece *r = &p->params[i];
        const struct ws_shared_piece *a = &s->recorded[i];
        const bool empty = ws_piece_elements(&r->piece, r->tensor.n_dims) == 0;
        set->params[i] = param_of(a, r);
        if (!a->data && !empty)
            rc = ws_error_set(err, EINVAL, "the parameter %s has no data", r->tensor.name);
        else if (is_shared(o, r, &at)) { /* this one's stream has waited for the caller's */
            const struct ws_gpu_piece *shared = &o->listing.pieces[at];
            set->params[i].data = o->pieces[at].shared_at;
            set->overflows[i] = o->pieces[at].overflows;
            p->overflows[i] = o->pieces[at].overflows;
            set->params[i].stream = s->ops->queue_stream(s->queues[o->pieces[at].device]);
            if (set->params[i].piece.kind == WSYNC_BOX)
                memcpy(set->params[i].piece.strides, shared->strides, sizeof(shared->strides));
            set->params[i].converts = shared->conversion != WS_SAME_TYPE;
            set->params[i].data_dtype = (wsync_dtype)shared->data_dtype;
        } else if (r->writes && !empty) {
            rc = copy_host(set, i, a, err);
        }
    }
    return rc;
}

/* --- making --- */

/* Locked. */
static int make(struct wsync_publisher *p, const struct ws_publisher_share_set *set, struct ws_error *err)
{
    const uint64_t before = p->version;
    void (*progress)(void *, uint64_t, uint64_t) = p->progress;
    int (*interrupted)(void *) = p->interrupted;
    struct ws_error ignored;
    if (!p->params || set->registration != p->n_registrations)
        return ws_error_set(err, ECANCELED, "rank %u has registered other tensors since", p->rank);
    uint64_t *overflows = malloc((p->n_params + 1) * sizeof(*overflows));
    if (!overflows)
        return ws_error_set(err, ENOMEM, "no memory for %zu parameters", p->n_params);
    memcpy(overflows, (const void *)p->overflows, p->n_params * sizeof(*overflows));
    p->progress = NULL; /* its callbacks belong to the caller's thread */
    p->interrupted = NULL;
    int rc = ws_publisher_locate(p, set->params, err);
    if (rc == 0)
        rc = ws_version_step_begin(p, set->version, true, err);
    if (rc == 0)
        rc = ws_publisher_put_all(p, set->params, err);
    if (rc == 0)
        rc = ws_version_step_commit(p, err);
    if (rc < 0 && p->begun)
        (void)ws_version_step_abandon(p, &ignored);
    for (size_t i = 0; i < p->n_params; i++) /* the requested ones are of the version before */
        p->overflows[i] =
            set->version == before && rc == 0 ? p->overflows[i] + set->overflows[i] : overflows[i];
    free(overflows);
    p->progress = progress;
    p->interrupted = interrupted;
    p->version = before;
    return rc;
}

/* Locked. Makes the requested version, or reports to the agent why it cannot. */
static int make_version(struct wsync_publisher *p, uint64_t version, struct ws_error *err)
{
    for (size_t i = 0; i < 2; i++) {
        const struct ws_publisher_share_set *set = &p->share->sets[i];
        if (set->shared && set->version == version)
            return make(p, set, err);
    }
    return ws_error_set(err, ECANCELED, "rank %u has taken version %" PRIu64 " back", p->rank, version);
}

static json_t *request_json(const struct wsync_publisher *p, unsigned timeout_ms)
{
    return json_pack("{s:s,s:I,s:I}", "model", p->model, "rank", (json_int_t)p->rank, "timeout_ms",
                     (json_int_t)timeout_ms);
}

static json_t *failed_json(const struct wsync_publisher *p, uint64_t version, const char *why)
{
    return json_pack("{s:s,s:I,s:s}", "model", p->model, "version", (json_int_t)version, "why", why);
}

void ws_on_demand_make_requested(struct wsync_publisher *p)
{
    struct ws_error why;
    if (!ws_publisher_is_on_demand(p))
        return;
    for (int i = 0, rc = 0; rc == 0 && i < 2 && p->sock >= 0; i++) {
        json_t *reply = NULL;
        if (ws_publisher_call(p, "gpu/wanted", request_json(p, 0), &reply, NULL, 0, NULL, &why) < 0)
            return;
        const json_t *found = json_object_get(reply, "version");
        const uint64_t version = (uint64_t)json_integer_value(found);
        rc = found ? make_version(p, version, &why) : -ENOENT;
        if (found && rc < 0 && p->sock >= 0)
            (void)ws_publisher_call(p, "gpu/unmade", failed_json(p, version, why.text), NULL, NULL, 0, NULL,
                                    &why);
        json_decref(reply);
    }
}

/* --- the thread --- */

static void set_sock(struct ws_on_demand *d, int sock)
{
    pthread_mutex_lock(&d->lock);
    if (d->sock >= 0)
        close(d->sock);
    d->sock = sock;
    if (atomic_load(&d->stop) && sock >= 0)
        (void)shutdown(sock, SHUT_RDWR);
    pthread_mutex_unlock(&d->lock);
}

static int call(struct ws_on_demand *d, const char *path, json_t *body, json_t **reply)
{
    struct ws_error ignored;
    int rc = body ? ws_ipc_call(d->sock, "POST", path, body, NULL, 0, POLL_MS + WS_REPLY_TIMEOUT_MS, reply,
                                NULL, 0, NULL, &ignored)
                  : -ENOMEM;
    json_decref(body);
    return rc;
}

static int look(struct ws_on_demand *d)
{
    struct wsync_publisher *p = d->publisher;
    struct ws_error why = {0};
    json_t *reply = NULL;
    int rc = call(d, "/v1/local/gpu/wanted", request_json(p, POLL_MS), &reply);
    const json_t *found = rc == 0 ? json_object_get(reply, "version") : NULL;
    if (found && !atomic_load(&d->stop)) {
        const uint64_t version = (uint64_t)json_integer_value(found);
        pthread_mutex_lock(&d->turn);
        int made = make_version(p, version, &why);
        pthread_mutex_unlock(&d->turn);
        if (made < 0)
            rc = call(d, "/v1/local/gpu/unmade", failed_json(p, version, why.text), NULL);
    }
    json_decref(reply);
    return rc;
}

static void *run(void *arg)
{
    struct ws_on_demand *d = arg;
    const struct timespec pause = {.tv_nsec = AGAIN_NS};
    struct ws_error ignored;
    while (!atomic_load(&d->stop)) {
        int sock;
        if (d->sock < 0 && ws_ipc_connect(d->publisher->agent, &sock, &ignored) == 0)
            set_sock(d, sock);
        if (d->sock >= 0 && look(d) == 0)
            continue;
        set_sock(d, -1);
        if (!atomic_load(&d->stop))
            nanosleep(&pause, NULL);
    }
    return NULL;
}

int ws_on_demand_start(struct wsync_publisher *p, struct ws_error *err)
{
    struct ws_on_demand *d = p->share->demand;
    if (d->publisher)
        return 0;
    d->publisher = p;
    int rc = ws_thread_start(&d->thread, run, d);
    if (rc == 0)
        return 0;
    d->publisher = NULL;
    return ws_error_set(err, -rc, "cannot start a thread: %s", strerror(-rc));
}

int ws_on_demand_new(struct ws_on_demand **out, struct ws_error *err)
{
    struct ws_on_demand *d = *out = calloc(1, sizeof(*d));
    if (!d)
        return ws_error_set(err, ENOMEM, "no memory for a publisher");
    d->sock = -1;
    pthread_mutex_init(&d->turn, NULL);
    pthread_mutex_init(&d->lock, NULL);
    return 0;
}

void ws_on_demand_stop(struct wsync_publisher *p)
{
    struct ws_on_demand *d = p->share ? p->share->demand : NULL;
    if (!d)
        return;
    if (d->publisher) {
        atomic_store(&d->stop, true);
        pthread_mutex_lock(&d->lock);
        if (d->sock >= 0)
            (void)shutdown(d->sock, SHUT_RDWR);
        pthread_mutex_unlock(&d->lock);
        pthread_join(d->thread, NULL);
        set_sock(d, -1);
    }
    pthread_mutex_destroy(&d->turn);
    pthread_mutex_destroy(&d->lock);
    free(d);
    p->share->demand = NULL;
}
