/* The mount's side of ipc: requests to an agent on the same host, and descriptors from it. */
#include "transports/ipc/client.h"
#include "transports/ipc/ipc.h"
#include "transports/protocol/api.h"
#include "transports/simd/copy.h"
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* Longer than a version that is made on demand may take. */
#define CALL_MS (WS_MADE_MS + WS_REPLY_TIMEOUT_MS)

/* Two connections, since a long poll must not delay a map. Leases live on the second. */
enum { POLLS, CALLS, N_CONNECTIONS };

struct connection {
    pthread_mutex_t lock; /* held for one call: requests on a connection are answered in turn */
    int sock;             /* guarded by lock; -1: not connected */
};

struct ipc_source {
    struct ws_source head;
    const char *path;            /* in head.url */
    struct ws_ipc_account named; /* may serve it, too */
    const atomic_bool *stop;
    int64_t call_ms; /* for the answer of a call */
    struct connection connections[N_CONNECTIONS];
};

struct ipc_lane {
    struct ws_lane head;
    int sock; /* its own connection: its lease ends with it */
    struct ws_region **regions;
    size_t n_regions;
    char digest[33]; /* of the version that is mapped */
};

static int ipc_open(const char *url, const struct ws_source_options *options, struct ws_source **out,
                    struct ws_error *err)
{
    if (strlen(url + 5) == 0)
        return ws_error_set(err, EINVAL, "'%s' names no socket; write unix:/run/wsync/agent.sock", url);
    struct ipc_source *s = calloc(1, sizeof(*s));
    if (!s || !(s->head.url = strdup(url))) {
        free(s);
        return ws_error_set(err, ENOMEM, "no memory for a source");
    }
    s->head.ops = &ws_ipc_ops;
    s->path = s->head.url + 5;
    s->stop = options->stop;
    s->call_ms = options->reply_timeout_ms ? options->reply_timeout_ms : CALL_MS;
    s->named = (struct ws_ipc_account){options->has_agent_uid, options->agent_uid};
    for (size_t i = 0; i < N_CONNECTIONS; i++) {
        pthread_mutex_init(&s->connections[i].lock, NULL);
        s->connections[i].sock = -1;
    }
    *out = &s->head;
    return 0;
}

static void ipc_close(struct ws_source *source)
{
    struct ipc_source *s = (struct ipc_source *)source;
    for (size_t i = 0; i < N_CONNECTIONS; i++) {
        if (s->connections[i].sock >= 0)
            close(s->connections[i].sock);
        pthread_mutex_destroy(&s->connections[i].lock);
    }
    free(s->head.url);
    free(s);
}

#define STEP_MS 200

/* Waits until the reply begins or is late, which ws_ipc_reply_recv then says. An agent that is stopped does not
 * hold up a mount that ends. */
static int await_reply(int sock, int64_t timeout_ms, const atomic_bool *stop, struct ws_error *err)
{
    struct pollfd p = {.fd = sock, .events = POLLIN};
    for (int64_t waited = 0; stop && waited < timeout_ms; waited += STEP_MS) {
        if (poll(&p, 1, STEP_MS) > 0)
            return 0;
        if (atomic_load(stop))
            return ws_error_set(err, ECANCELED, "the agent did not answer before the mount was told to end");
    }
    return 0;
}

static int request(int sock, const char *method, const char *path, const json_t *body_in, int64_t timeout_ms,
                   const atomic_bool *stop, json_t **body, int *fds, size_t max_fds, size_t *n_fds,
                   bool *late, struct ws_error *err)
{
    if (body)
        *body = NULL;
    if (n_fds)
        *n_fds = 0;
    int rc = ws_ipc_request_send(sock, method, path, body_in, NULL, 0, err);
    if (rc == 0) {
        rc = await_reply(sock, timeout_ms, stop, err);
        *late = rc < 0;
    }
    return rc == 0 ? ws_ipc_reply_recv(sock, stop ? STEP_MS : timeout_ms, body, fds, max_fds, n_fds, err)
                   : rc;
}

/* A source's ENOENT means that it is there and lacks what was requested: a missing socket gets another code. */
static int connect_to(const struct ipc_source *s, int *sock, struct ws_error *err)
{
    const int rc = ws_ipc_connect_to(s->path, &s->named, sock, err);
    if (rc == -ENOENT && err)
        err->code = ECONNREFUSED;
    return rc == -ENOENT ? -ECONNREFUSED : rc;
}

static int call(struct ipc_source *s, int which, const char *method, const char *path, const json_t *body_in,
                int64_t timeout_ms, json_t **body, int *fds, size_t max_fds, size_t *n_fds,
                struct ws_error *err)
{
    bool late = false;
    struct connection *c = &s->connections[which];
    int rc = 0;
    pthread_mutex_lock(&c->lock);
    if (c->sock >= 0) { /* an agent that has ended leaves a dead connection */
        struct pollfd p = {.fd = c->sock, .events = POLLRDHUP};
        if (poll(&p, 1, 0) != 0) {
            close(c->sock);
            c->sock = -1;
        }
    }
    if (c->sock < 0)
        rc = connect_to(s, &c->sock, err);
    if (rc == 0) {
        rc = request(c->sock, method, path, body_in, timeout_ms, s->stop, body, fds, max_fds, n_fds, &late,
                     err);
        if (late || rc == -ECONNRESET || rc == -EBADMSG || rc == -ETIMEDOUT || rc == -EPIPE ||
            rc == -EMFILE) {
            close(c->sock);
            c->sock = -1;
        }
    }
    pthread_mutex_unlock(&c->lock);
    return rc;
}

static int ipc_models(struct ws_source *source, const char *model, uint64_t since, unsigned timeout_ms,
                      const atomic_bool *cancel, json_t **out, struct ws_error *err)
{
    char path[WS_API_PATH_BYTES];
    /* The wait cannot be interrupted: it is cut into short ones. */
    unsigned step = timeout_ms > 900 ? 900 : timeout_ms;
    for (unsigned waited = 0;; waited += step) {
        ws_api_models_path(path, model, since, step, source->mount_id);
        int rc = call((struct ipc_source *)source, since ? POLLS : CALLS, "GET", path, NULL,
                      step + WS_REPLY_TIMEOUT_MS, out, NULL, 0, NULL, err);
        if (rc < 0)
            return rc;
        if (!json_is_object(*out)) {
            json_decref(*out);
            *out = NULL;
            return ws_error_set(err, EPROTO, "%s sent no list of models", source->url);
        }
        json_int_t seq = json_integer_value(json_object_get(*out, "seq"));
        if (since == 0 || (uint64_t)seq != since || waited + step >= timeout_ms ||
            (cancel && atomic_load(cancel)))
            return 0;
        json_decref(*out);
        *out = NULL;
    }
}

static int parse_manifest(json_t *body, struct ws_manifest **out, struct ws_error *err)
{
    char *text = json_dumps(body, JSON_COMPACT);
    int rc = text ? ws_manifest_from_json(text, strlen(text), out, err)
                  : ws_error_set(err, EPROTO, "the agent sent no manifest");
    free(text);
    return rc;
}

static int ipc_manifest(struct ws_source *source, const char *model, uint64_t version, const char *lineage,
                        const atomic_bool *cancel, struct ws_manifest **out, struct ws_error *err)
{
    (void)cancel;
    char path[WS_API_PATH_BYTES];
    json_t *body = NULL;
    ws_api_version_path(path, "manifest", model, version, NULL, lineage);
    int rc = call((struct ipc_source *)source, CALLS, "GET", path, NULL, CALL_MS, &body, NULL, 0, NULL, err);
    if (rc < 0)
        return rc;
    rc = parse_manifest(body, out, err);
    json_decref(body);
    return rc;
}

/* The descriptors of a map reply become regions, one a file in the manifest's order. */
static int import_all(const struct ws_manifest *m, int *fds, size_t n_fds, struct ws_region **regions,
                      struct ws_error *err)
{
    size_t used = 0;
    int rc = 0;
    memset(regions, 0, m->n_files * sizeof(regions[0]));
    for (size_t i = 0; rc == 0 && i < m->n_files; i++) {
        if (m->files[i].size_bytes == 0)
            continue;
        if (used == n_fds)
            rc = ws_error_set(err, EPROTO, "the agent sent %zu descriptors, too few", n_fds);
        else
            rc = ws_region_import(&regions[i], fds[used++], m->files[i].size_bytes, false, err);
    }
    while (used < n_fds)
        close(fds[used++]);
    for (size_t i = 0; rc < 0 && i < m->n_files; i++) {
        ws_region_free(regions[i]);
        regions[i] = NULL;
    }
    return rc;
}

/* sock: a lane's own connection, and the regions are only copied from; -1: the source's, and they are passed on
 * to readers. */
static int receive_map(struct ipc_source *s, int sock, const struct ws_manifest *m,
                       struct ws_region **regions, struct ws_error *err)
{
    char path[WS_API_PATH_BYTES];
    struct ws_manifest *theirs = NULL;
    json_t *body = NULL;
    size_t n_fds = 0;
    int *fds = calloc(m->n_files + 1, sizeof(*fds));
    bool late = false;
    if (!fds)
        return ws_error_set(err, ENOMEM, "no memory for %zu descriptors", m->n_files);
    ws_api_map_path(path, m->model, m->version, m->lineage, sock >= 0);
    int rc = sock >= 0 ? request(sock, "GET", path, NULL, CALL_MS, s->stop, &body, fds, m->n_files, &n_fds,
                                 &late, err)
                       : call(s, CALLS, "GET", path, NULL, CALL_MS, &body, fds, m->n_files, &n_fds, err);
    if (rc == 0) {
        rc = parse_manifest(body, &theirs, err);
        if (rc == 0 && strcmp(theirs->digest, m->digest) != 0)
            rc = ws_error_set(err, ESTALE, "%s/%llu at the agent is another one by now", m->model,
                              (unsigned long long)m->version);
        if (rc == 0)
            rc = import_all(m, fds, n_fds, regions, err);
        else
            for (size_t i = 0; i < n_fds; i++)
                close(fds[i]);
    }
    ws_manifest_free(theirs);
    json_decref(body);
    free(fds);
    return rc;
}

static int ipc_map(struct ws_source *source, const struct ws_manifest *m, struct ws_region **regions,
                   struct ws_error *err)
{
    return receive_map((struct ipc_source *)source, -1, m, regions, err);
}

static void ipc_unmap(struct ws_source *source, const char *model, uint64_t version, const char *lineage)
{
    struct ipc_source *s = (struct ipc_source *)source;
    struct connection *c = &s->connections[CALLS];
    char path[WS_API_PATH_BYTES];
    pthread_mutex_lock(&c->lock);
    bool connected = c->sock >= 0;
    pthread_mutex_unlock(&c->lock);
    if (!connected)
        return; /* the lease ended with the connection */
    ws_api_version_path(path, "unmap", model, version, NULL, lineage);
    (void)call(s, CALLS, "POST", path, NULL, WS_REPLY_TIMEOUT_MS, NULL, NULL, 0, NULL, NULL);
}

/* --- lanes: for memory that is copied (link mode), from a mapping of the lane's own --- */

static int ipc_lane_open(struct ws_source *source, struct ws_lane **out, struct ws_error *err)
{
    struct ipc_lane *l = calloc(1, sizeof(*l));
    if (!l)
        return ws_error_set(err, ENOMEM, "no memory for a lane");
    int rc = connect_to((struct ipc_source *)source, &l->sock, err);
    if (rc < 0) {
        free(l);
        return rc;
    }
    l->head.source = source;
    *out = &l->head;
    return 0;
}

static void drop_mapping(struct ipc_lane *l)
{
    for (size_t i = 0; l->regions && i < l->n_regions; i++)
        ws_region_free(l->regions[i]);
    free(l->regions);
    l->regions = NULL;
    l->n_regions = 0;
    l->digest[0] = 0;
}

static void ipc_lane_close(struct ws_lane *lane)
{
    struct ipc_lane *l = (struct ipc_lane *)lane;
    drop_mapping(l);
    close(l->sock);
    free(l);
}

static int map_version(struct ipc_lane *l, const struct ws_manifest *m, struct ws_error *err)
{
    if (l->regions && strcmp(l->digest, m->digest) == 0)
        return 0;
    drop_mapping(l);
    l->regions = calloc(m->n_files, sizeof(struct ws_region *));
    if (!l->regions)
        return ws_error_set(err, ENOMEM, "no memory for %zu regions", m->n_files);
    l->n_regions = m->n_files;
    int rc = receive_map((struct ipc_source *)l->head.source, l->sock, m, l->regions, err);
    if (rc != 0)
        drop_mapping(l);
    else
        memcpy(l->digest, m->digest, sizeof(l->digest));
    return rc;
}

static int ipc_fetch(struct ws_lane *lane, const struct ws_fetch *f, struct ws_error *err)
{
    struct ipc_lane *l = (struct ipc_lane *)lane;
    int rc = map_version(l, f->manifest, err);
    for (size_t i = f->first; rc == 0 && i < f->first + f->n; i++) {
        if (f->cancel && atomic_load(f->cancel))
            return ws_error_set(err, ECANCELED, "the transfer was stopped");
        size_t at = i * WS_BLOCK_BYTES, n = ws_manifest_block_bytes(&f->manifest->files[f->file], i);
        uint64_t hash = ws_copy_hash(ws_fetch_dst(f, i), ws_region_data(l->regions[f->file]) + at, n);
        ws_fetch_came(f, n);
        if (f->block(f->arg, i, hash))
            rc = ws_error_set(err, ECANCELED, "the transfer was stopped");
    }
    return rc;
}

static int ipc_call(struct ws_source *source, const char *method, const char *path, const json_t *body,
                    json_t **reply, struct ws_error *err)
{
    int rc = call((struct ipc_source *)source, CALLS, method, path, body,
                  ((struct ipc_source *)source)->call_ms, reply, NULL, 0, NULL, err);
    if (rc == 0 && !*reply)
        *reply = json_null();
    return rc;
}

const struct ws_transport_ops ws_ipc_ops = {
    .name = "ipc",
    .schemes = (const char *const[]){"unix:", NULL},
    .open = ipc_open,
    .close = ipc_close,
    .models = ipc_models,
    .manifest = ipc_manifest,
    .map = ipc_map,
    .unmap = ipc_unmap,
    .lane_open = ipc_lane_open,
    .lane_close = ipc_lane_close,
    .fetch = ipc_fetch,
    .call = ipc_call,
};
