/* The routes of what is shared on GPUs, by the unix socket only, all POST to /v1/local/. A rank's, between its
 * begin and its commit, and later:
 *
 *   share         {version, run, strategy, listing, pid_namespace, ipc_namespace, no_marks, on_demand,
 *                 timeout_ms} (gpu/listing.h), and one descriptor: each process that opens the version gets a
 *                 copy of it
 *   share/fds     {version, segment, from}   and the descriptors of parts from that one on
 *   share/commit  {version}                  the last request for a version on demand (on_demand.c)
 *   unshare       {version?, timeout_ms?}    waits until no process has it open; without version: all of the
 *                                            rank's
 *
 * Of any process of this host:
 *
 *   gpu/look      {model, version, run?}     version 0: the newest. Replies {version, run, strategy, agent,
 *                 model, ranks: [{rank, pid, pid_namespace, ipc_namespace, segments, tensors, marks}..]}
 *   gpu/open      {model, version, run?}     the same and {lease}, which ends by gpu/close or with the
 *                                            connection
 *   gpu/fds       {lease, rank, segment, from}   replies with descriptors of parts; without segment: the
 *                                            rank's own
 *   gpu/check     {lease}                    is the version still offered?
 *   gpu/close     {lease, refused?}          refused: why it could not be opened after all
 *
 * Of a rank's second connection, for versions on demand: gpu/wanted, gpu/unmade. */
#include "backends/trainer/agent/core/features.h"
#include "backends/trainer/agent/core/models.h"
#include "backends/trainer/agent/gpu/share.h"
#include "transports/base/clock.h"
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define MAX_LEASES 4096 /* of one version */
#define YEAR_MS    31536000000ULL
#define POLL_NS    500000000ULL /* after processes that ended without their connection */

static const char *body_text(const struct ws_rank_call *q, const char *key)
{
    const char *text = json_string_value(json_object_get(q->body, key));
    return text ? text : "";
}

static int copy_fd(int fd, int *out, struct ws_error *err)
{
    *out = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (*out >= 0)
        return 0;
    return ws_error_set(err, errno == EMFILE ? ENFILE : errno, /* not the caller's table */
                        "the agent can keep no more descriptors: %s; raise its limit of open files (ulimit "
                        "-n, LimitNOFILE=)",
                        strerror(errno));
}

/* --- ranks --- */

static int check_writing(const struct ws_rank_call *q, struct ws_error *err)
{
    const struct ws_agent_model *m = q->session->model;
    if (m && q->session->writing && m->writing &&
        m->writing_version == ws_agent_number(q->body, "version", 0))
        return 0;
    if (m && q->session->lost)
        return ws_error_set(err, ECANCELED, "%s; the next version may be offloaded", m->why);
    return ws_error_set(err, EINVAL, "begin a version before it is shared");
}

/* Its memory is the trainer's own, and is about to be another version. */
static void take_back_older(struct ws_rank_call *q, bool *announce)
{
    struct ws_agent_model *m = q->session->model;
    struct ws_gpu_version *ended = NULL;
    for (struct ws_gpu_version *v = *ws_gpu_versions(m); v; v = v->next)
        if (v->state == WS_GPU_OFFERED && !v->packed && ws_gpu_version_has_rank(v, q->session)) {
            ws_gpu_version_end(m, v, "the trainer shares a newer one in the same memory", announce);
            ended = v;
        }
    if (ended)
        ws_gpu_on_demand_abandon(q->a, m, ended, q->session);
    ws_gpu_versions_sweep(m);
}

static int do_share(struct ws_rank_call *q, struct ws_error *err)
{
    const char *strategy = body_text(q, "strategy");
    bool packed = strcmp(strategy, "packed_cuda_ipc") == 0, announce = false;
    struct ws_gpu_listing *listing = NULL;
    struct ws_gpu_share *s = NULL;
    int lock_fd = -1;
    if (!packed && strcmp(strategy, "cuda_ipc") != 0)
        return ws_error_set(err, EINVAL, "'%.50s' is no way to share on GPUs", strategy);
    if (q->n_in != 1)
        return ws_error_set(err, EINVAL, "share takes one descriptor, not %zu", q->n_in);
    int rc = ws_gpu_listing_from_json(json_object_get(q->body, "listing"), &listing, err);
    if (rc == 0)
        rc = copy_fd(q->fds_in[0], &lock_fd, err);
    if (rc < 0) {
        ws_gpu_listing_free(listing);
        return rc;
    }
    struct ws_gpu_version like = {.version = ws_agent_number(q->body, "version", 0),
                                  .packed = packed,
                                  .on_demand = json_is_true(json_object_get(q->body, "on_demand"))};
    snprintf(like.lineage, sizeof(like.lineage), "%s", body_text(q, "run"));
    pthread_mutex_lock(&q->a->lock);
    rc = like.on_demand ? ws_gpu_on_demand_check(q, err) : check_writing(q, err);
    if (rc == 0) {
        take_back_older(q, &announce);
        rc = ws_gpu_share_add(q->session, &like, listing, lock_fd, &s, err);
    } else {
        ws_gpu_listing_free(listing);
        close(lock_fd);
    }
    if (s) {
        snprintf(s->pid_namespace, sizeof(s->pid_namespace), "%s", body_text(q, "pid_namespace"));
        snprintf(s->ipc_namespace, sizeof(s->ipc_namespace), "%s", body_text(q, "ipc_namespace"));
        snprintf(s->no_marks, sizeof(s->no_marks), "%s", body_text(q, "no_marks"));
    }
    pthread_mutex_unlock(&q->a->lock);
    if (announce)
        ws_agent_announce(q->a);
    return rc;
}

static int store_fds(struct ws_rank_call *q, struct ws_gpu_share *s, struct ws_error *err)
{
    uint64_t segment = ws_agent_number(q->body, "segment", UINT64_MAX),
             from = ws_agent_number(q->body, "from", UINT64_MAX);
    if (segment >= s->listing->n_segments || from > s->listing->segments[segment].n_parts ||
        q->n_in > s->listing->segments[segment].n_parts - from)
        return ws_error_set(err, EINVAL, "there are no such parts of a segment");
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < q->n_in; i++) {
        int *to = &s->fds[segment][from + i];
        if (*to >= 0)
            return ws_error_set(err, EEXIST, "part %" PRIu64 " is here already", from + i);
        rc = copy_fd(q->fds_in[i], to, err);
        s->n_missing -= rc == 0;
    }
    return rc;
}

static int do_share_fds(struct ws_rank_call *q, struct ws_error *err)
{
    pthread_mutex_lock(&q->a->lock);
    struct ws_gpu_share *s = ws_gpu_share_gathering(q->session, ws_agent_number(q->body, "version", 0));
    int rc = s ? store_fds(q, s, err) : ws_error_set(err, EINVAL, "share comes before share/fds");
    pthread_mutex_unlock(&q->a->lock);
    return rc;
}

/* Ends this rank's versions. Returns one that readers still have open, or NULL. Under lock. */
static struct ws_gpu_version *end_rank_versions(struct ws_rank_call *q, bool *announce)
{
    const bool all = !json_object_get(q->body, "version");
    const uint64_t version = ws_agent_number(q->body, "version", 0);
    struct ws_gpu_version *left = NULL;
    for (struct ws_agent_model *m = q->a->models; m; m = m->next) {
        struct ws_gpu_version *making = NULL;
        for (struct ws_gpu_version *v = *ws_gpu_versions(m); v; v = v->next) {
            if (!ws_gpu_version_has_rank(v, q->session) || !(all || v->version == version))
                continue;
            ws_gpu_version_end(m, v, "the trainer took it back", announce);
            ws_gpu_version_prune_leases(q->a, v);
            left = v->leases ? v : left;
            making = ws_gpu_version_is_writing(m, v) ? v : making;
        }
        if (making)
            ws_gpu_on_demand_abandon(q->a, m, making, q->session);
        ws_gpu_versions_sweep(m); /* of what is left, none is freed */
    }
    return left;
}

static int do_unshare(struct ws_rank_call *q, struct ws_error *err)
{
    uint64_t ms = ws_agent_number(q->body, "timeout_ms", YEAR_MS), now = ws_clock_ns();
    uint64_t deadline = now + (ms < YEAR_MS ? ms : YEAR_MS) * WS_MS_NS;
    const struct ws_gpu_version *left;
    bool announce = false;
    char holders[512];
    int rc = 0;
    pthread_mutex_lock(&q->a->lock);
    (void)end_rank_versions(q, &announce);
    if (announce) {
        pthread_mutex_unlock(&q->a->lock);
        ws_agent_announce(q->a);
        pthread_mutex_lock(&q->a->lock);
    }
    while (rc == 0 &&
           (left = end_rank_versions(q, &announce))) { /* anew: the lock is given up while it waits */
        now = ws_clock_ns();
        ws_gpu_version_holders(left, holders, sizeof(holders));
        if (atomic_load(&q->a->stop) || ws_ipc_peer_is_gone(q->peer))
            rc = ws_error_set(err, ECONNRESET, "the agent is stopping, or the rank has ended");
        else if (now >= deadline)
            rc = ws_error_set(err, ETIMEDOUT, "version %" PRIu64 " is still open on GPUs, by %s",
                              left->version, holders);
        else
            (void)ws_agent_wait(q->a, now + POLL_NS < deadline ? now + POLL_NS : deadline);
    }
    pthread_mutex_unlock(&q->a->lock);
    return rc;
}

/* --- readers that open a version --- */

static json_t *rank_json(const struct ws_gpu_share *s)
{
    json_t *o = ws_gpu_listing_to_json(s->listing);
    if (!o)
        return NULL;
    json_object_set_new(o, "rank", json_integer((json_int_t)s->rank));
    json_object_set_new(o, "pid", json_integer((json_int_t)s->pid));
    json_object_set_new(o, "pid_namespace", json_string(s->pid_namespace));
    json_object_set_new(o, "ipc_namespace", json_string(s->ipc_namespace));
    return o;
}

/* Without the lock: a reader keeps it, and its shares' listings never change. */
static json_t *version_json(const struct ws_agent *a, const struct ws_agent_model *m,
                            const struct ws_gpu_version *v)
{
    json_t *ranks = json_array();
    for (const struct ws_gpu_share *s = v->shares; s; s = s->next)
        json_array_append_new(ranks, rank_json(s));
    return json_pack("{s:s,s:I,s:s,s:s,s:s,s:o}", "model", m->name, "version", (json_int_t)v->version, "run",
                     v->lineage, "strategy", ws_gpu_version_strategy(v), "agent", a->options.socket, "ranks",
                     ranks);
}

static int show(struct ws_rank_call *q, bool lease, struct ws_error *err)
{
    struct ws_agent *a = q->a;
    struct ws_agent_model *m = NULL;
    uint64_t id = 0;
    bool announce = false;
    int rc = 0;
    pthread_mutex_lock(&a->lock);
    struct ws_gpu_version *v =
        ws_gpu_version_find(a, body_text(q, "model"), ws_agent_number(q->body, "version", 0),
                            body_text(q, "run"), &m, &announce, err);
    if (!v)
        rc = -err->code;
    else if (lease && v->n_leases >= MAX_LEASES)
        rc = ws_error_set(err, EBUSY, "version %" PRIu64 " of %s is open %u times", v->version, m->name,
                          v->n_leases);
    else if (lease)
        rc = ws_gpu_lease_new(a, v, q->session, &id, err);
    if (rc == 0) {
        assert(v);
        v->n_readers++;
        pthread_mutex_unlock(&a->lock);
        *q->reply = version_json(a, m, v);
        pthread_mutex_lock(&a->lock);
        v->n_readers--;
        ws_gpu_versions_sweep(m);
    }
    pthread_mutex_unlock(&a->lock);
    if (announce)
        ws_agent_announce(a);
    if (rc == 0 && !*q->reply)
        return ws_error_set(err, ENOMEM, "no memory for a list of tensors on GPUs");
    if (rc == 0 && lease)
        json_object_set_new(*q->reply, "lease", json_integer((json_int_t)id));
    return rc;
}

static int do_look(struct ws_rank_call *q, struct ws_error *err)
{
    return show(q, false, err);
}

static int do_open(struct ws_rank_call *q, struct ws_error *err)
{
    return show(q, true, err);
}

/* Under lock. A lease of this peer; still_offered: of a version that is. */
static struct ws_gpu_lease *find_lease(struct ws_rank_call *q, bool still_offered, struct ws_gpu_version **v,
                                       struct ws_agent_model **m, struct ws_error *err)
{
    struct ws_gpu_lease *l = ws_gpu_lease_find(q->a, q->session, ws_agent_number(q->body, "lease", 0), v, m);
    if (!l)
        ws_error_set(err, ENOENT, "there is no such lease");
    else if (still_offered && (*v)->state != WS_GPU_OFFERED)
        ws_error_set(err, ENOENT, "version %" PRIu64 " of %s is not shared on GPUs any more: %s",
                     (*v)->version, (*m)->name, (*v)->why);
    else
        return l;
    return NULL;
}

static int copy_fds(struct ws_rank_call *q, const struct ws_gpu_version *v, struct ws_error *err)
{
    const uint64_t rank = ws_agent_number(q->body, "rank", UINT64_MAX),
                   segment = ws_agent_number(q->body, "segment", UINT64_MAX),
                   from = ws_agent_number(q->body, "from", 0);
    const struct ws_gpu_share *s = v->shares;
    while (s && s->rank != rank)
        s = s->next;
    if (!s)
        return ws_error_set(err, EINVAL, "rank %" PRIu64 " shares nothing of it", rank);
    int rc = 0;
    if (!json_object_get(q->body, "segment")) {
        rc = copy_fd(s->lock_fd, &q->fds[0], err);
        *q->n_fds = rc == 0;
        return rc;
    }
    if (segment >= s->listing->n_segments || from > s->listing->segments[segment].n_parts)
        return ws_error_set(err, EINVAL, "there are no such parts of a segment");
    for (size_t i = from; rc == 0 && i < s->listing->segments[segment].n_parts && *q->n_fds < q->max; i++) {
        rc = copy_fd(s->fds[segment][i], &q->fds[*q->n_fds], err);
        *q->n_fds += rc == 0;
    }
    while (rc < 0 && *q->n_fds > 0)
        close(q->fds[--*q->n_fds]);
    return rc;
}

static int do_fds(struct ws_rank_call *q, struct ws_error *err)
{
    struct ws_gpu_version *v;
    struct ws_agent_model *m;
    pthread_mutex_lock(&q->a->lock);
    int rc = find_lease(q, true, &v, &m, err) ? copy_fds(q, v, err) : -err->code;
    pthread_mutex_unlock(&q->a->lock);
    return rc;
}

static int do_check(struct ws_rank_call *q, struct ws_error *err)
{
    struct ws_gpu_version *v;
    struct ws_agent_model *m;
    pthread_mutex_lock(&q->a->lock);
    int rc = find_lease(q, true, &v, &m, err) ? 0 : -err->code;
    pthread_mutex_unlock(&q->a->lock);
    return rc;
}

static int do_close(struct ws_rank_call *q, struct ws_error *err)
{
    struct ws_gpu_version *v;
    struct ws_agent_model *m;
    const char *refused = body_text(q, "refused");
    int rc = 0;
    pthread_mutex_lock(&q->a->lock);
    const struct ws_gpu_lease *l = find_lease(q, false, &v, &m, err);
    if (l) {
        if (*refused) {
            struct ws_error clean;
            ws_error_set(&clean, EIO, "process %d: %s", (int)q->session->pid, refused);
            memcpy(v->last_refusal, clean.text, sizeof(v->last_refusal));
        }
        ws_gpu_lease_end(q->a, v, l);
        ws_gpu_versions_sweep(m);
    } else {
        rc = -err->code;
    }
    pthread_mutex_unlock(&q->a->lock);
    return rc;
}

const struct ws_rank_route ws_gpu_rank_routes[] = {
    WS_RANK_ROUTE("share", PUBLISH, do_share),
    WS_RANK_ROUTE("share/fds", PUBLISH, do_share_fds),
    WS_RANK_ROUTE("unshare", PUBLISH, do_unshare),
    WS_RANK_ROUTE("gpu/look", READ, do_look),
    WS_RANK_ROUTE("gpu/open", READ, do_open),
    WS_RANK_ROUTE("gpu/fds", READ, do_fds),
    WS_RANK_ROUTE("gpu/check", READ, do_check),
    WS_RANK_ROUTE("gpu/close", READ, do_close),
    WS_RANK_ROUTE("share/commit", PUBLISH, ws_gpu_on_demand_do_commit),
    WS_RANK_ROUTE("gpu/wanted", PUBLISH, ws_gpu_on_demand_do_wanted),
    WS_RANK_ROUTE("gpu/unmade", PUBLISH, ws_gpu_on_demand_do_unmade),
    {0},
};
