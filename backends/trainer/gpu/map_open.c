/* Opening a version on GPUs: a lease at the agent, each rank's segments once, and the marks (events) that say
 * when their bytes are there. At the end the agent is asked again whether the version is still offered, so
 * that the map is of one version. */
#include "backends/trainer/gpu/map.h"
#include "transports/base/clock.h"
#include "transports/ipc/client.h"
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define CALL_MS     (WS_MADE_MS + WS_REPLY_TIMEOUT_MS)
#define READY_MS    60000 /* for the trainer's streams to come to the marks */
#define FIRST_NS    20000L
#define SLOWEST_NS  2000000L
#define CHECK_EVERY 64 /* looks at a mark; then the agent is asked whether the version is still offered */

/* The connection and its lease outlive a call that fails: they end when nothing is mapped any more. */
static int call(struct wsync_gpu_map *m, const char *verb, json_t *body, json_t **reply, int *fds, size_t max,
                size_t *n, struct ws_error *err)
{
    char path[64];
    snprintf(path, sizeof(path), "/v1/local/gpu/%s", verb);
    if (reply)
        *reply = NULL;
    int rc = m->lost ? ws_error_set(err, ENOTCONN, "the agent has not answered before")
             : body  ? ws_ipc_request_send_leased(m->sock, "POST", path, body, NULL, 0, &m->lost, err)
                     : ws_error_set(err, ENOMEM, "no memory for a request");
    json_decref(body);
    return rc == 0 ? ws_ipc_reply_recv_leased(m->sock, CALL_MS, reply, fds, max, n, &m->lost, err) : rc;
}

static json_t *lease_json(const struct wsync_gpu_map *m)
{
    return json_pack("{s:I}", "lease", (json_int_t)m->lease);
}

static int check(struct wsync_gpu_map *m, struct ws_error *err)
{
    return call(m, "check", lease_json(m), NULL, NULL, 0, NULL, err);
}

/* --- the agent's replies --- */

static int read_text(const json_t *o, const char *key, char *out, size_t cap)
{
    const char *text = json_string_value(json_object_get(o, key));
    int n = snprintf(out, cap, "%s", text ? text : "");
    return text && n >= 0 && (size_t)n < cap ? 0 : -EPROTO;
}

static int take_rank(struct wsync_gpu_map *m, const json_t *o, struct ws_error *err)
{
    struct ws_gpu_map_rank *r = &m->ranks[m->n_ranks++];
    *r = (struct ws_gpu_map_rank){.lock_fd = -1};
    r->rank = (unsigned)json_integer_value(json_object_get(o, "rank"));
    if (read_text(o, "pid_namespace", r->pid_namespace, sizeof(r->pid_namespace)) < 0 ||
        read_text(o, "ipc_namespace", r->ipc_namespace, sizeof(r->ipc_namespace)) < 0)
        return ws_error_set(err, EPROTO, "the agent's answer is not understood");
    int rc = ws_gpu_listing_from_json(o, &r->listing, err);
    if (rc < 0)
        return rc;
    r->segments = calloc(r->listing->n_segments + 1, sizeof(*r->segments));
    if (!r->segments)
        return ws_error_set(err, ENOMEM, "no memory for %zu segments", r->listing->n_segments);
    for (size_t i = 0; i < r->listing->n_segments; i++)
        r->segments[i].device = -1;
    return 0;
}

static int take_version(struct wsync_gpu_map *m, const json_t *o, struct ws_error *err)
{
    const json_t *ranks = json_object_get(o, "ranks");
    size_t n = json_array_size(ranks);
    m->lease = (uint64_t)json_integer_value(json_object_get(o, "lease"));
    m->version = (uint64_t)json_integer_value(json_object_get(o, "version"));
    if (read_text(o, "run", m->lineage, sizeof(m->lineage)) < 0 || n == 0 || n > WS_MAX_RANKS)
        return ws_error_set(err, EPROTO, "the agent's answer is not understood");
    m->ranks = calloc(n, sizeof(*m->ranks));
    int rc = m->ranks ? 0 : ws_error_set(err, ENOMEM, "no memory for %zu ranks", n);
    for (size_t i = 0; rc == 0 && i < n; i++)
        rc = take_rank(m, json_array_get(ranks, i), err);
    return rc;
}

static int lease(struct wsync_gpu_map *m, const char *agent, uint64_t version, struct ws_error *err)
{
    json_t *reply = NULL;
    int rc = ws_ipc_connect(agent, &m->sock, err);
    if (rc == 0)
        rc = call(m, "open", json_pack("{s:s,s:I}", "model", m->model, "version", (json_int_t)version),
                  &reply, NULL, 0, NULL, err);
    if (rc == 0)
        rc = take_version(m, reply, err);
    json_decref(reply);
    return rc;
}

/* --- memory --- */

static int take_hold(struct wsync_gpu_map *m, struct ws_gpu_map_rank *r, struct ws_error *err)
{
    json_t *body = lease_json(m);
    size_t n = 0;
    json_object_set_new(body, "rank", json_integer(r->rank));
    int rc = call(m, "fds", body, NULL, &r->lock_fd, 1, &n, err);
    if (rc == 0 && n != 1) {
        r->lock_fd = -1;
        rc = ws_error_set(err, EPROTO, "the agent sent no descriptor");
    }
    return rc;
}

static int fetch_fds(struct wsync_gpu_map *m, const struct ws_gpu_map_rank *r, size_t segment, int *fds,
                     size_t want, size_t *got, struct ws_error *err)
{
    int rc = 0;
    while (rc == 0 && *got < want) {
        json_t *body = lease_json(m);
        size_t n = 0;
        json_object_set_new(body, "rank", json_integer(r->rank));
        json_object_set_new(body, "segment", json_integer((json_int_t)segment));
        json_object_set_new(body, "from", json_integer((json_int_t)*got));
        rc = call(m, "fds", body, NULL, fds + *got, want - *got, &n, err);
        *got += n;
        if (rc == 0 && n == 0)
            rc = ws_error_set(err, EPROTO, "the agent sent no descriptors");
    }
    return rc;
}

static int open_parts(struct wsync_gpu_map *m, const struct ws_gpu_map_rank *r, size_t i, int device,
                      void **base, struct ws_error *err)
{
    const struct ws_gpu_segment *s = &r->listing->segments[i];
    int *fds = calloc(s->n_parts, sizeof(*fds));
    size_t n = 0;
    if (!fds)
        return ws_error_set(err, ENOMEM, "no memory for %zu descriptors", s->n_parts);
    int rc = fetch_fds(m, r, i, fds, s->n_parts, &n, err);
    if (rc == 0)
        rc = m->ops->open_fds(device, fds, s->parts, n, base, err);
    while (n > 0)
        close(fds[--n]);
    free(fds);
    return rc;
}

/* Another container than the trainer's? Then that is the reason, whatever the driver said. */
static int explain(const struct ws_gpu_map_rank *r, int rc, struct ws_error *err)
{
    static const struct {
        const char *file, *name, *advice;
    } kinds[] = {{"pid", "PID", "--pid=container:NAME or host, shareProcessNamespace"},
                 {"ipc", "IPC", "--ipc=container:NAME or host, hostIPC"}};
    for (size_t i = 0; i < 2; i++) {
        const char *theirs = i == 0 ? r->pid_namespace : r->ipc_namespace;
        char path[32], mine[64];
        snprintf(path, sizeof(path), "/proc/self/ns/%s", kinds[i].file);
        ssize_t n = readlink(path, mine, sizeof(mine) - 1);
        mine[n < 0 ? 0 : n] = 0;
        if (!*theirs || !*mine || strcmp(theirs, mine) == 0)
            continue;
        struct ws_error said = *err;
        return ws_error_set(err, EXDEV,
                            "the trainer's rank %u is in another %s namespace (%s) than this process (%s): "
                            "let them share it (%s), or use ipc or tcp; the driver said: %.300s",
                            r->rank, kinds[i].name, theirs, mine, kinds[i].advice, said.text);
    }
    return rc;
}

static int open_segment(struct wsync_gpu_map *m, struct ws_gpu_map_rank *r, size_t i, struct ws_error *err)
{
    const struct ws_gpu_segment *s = &r->listing->segments[i];
    struct ws_gpu_map_segment *to = &r->segments[i];
    int device;
    int rc = ws_device_by_uuid(m->ops, s->uuid, &device, err);
    if (rc < 0)
        return rc;
    rc = s->n_parts ? open_parts(m, r, i, device, &to->base, err)
                    : m->ops->open(device, s->handle, &to->base, err);
    if (rc < 0)
        return explain(r, rc, err);
    to->device = device;
    return 0;
}

/* --- marks --- */

static int wait_for_mark(struct wsync_gpu_map *m, struct ws_device_event *mark, uint64_t deadline,
                         struct ws_error *err)
{
    struct timespec step = {.tv_nsec = FIRST_NS};
    int rc;
    for (unsigned looks = 1; (rc = m->ops->event_done(mark, err)) == -EAGAIN; looks++) {
        if (ws_clock_ms() >= deadline)
            return ws_error_set(err, ETIMEDOUT,
                                "the trainer's streams have not written version %" PRIu64
                                " of %s within %d s",
                                m->version, m->model, READY_MS / 1000);
        nanosleep(&step, NULL);
        step.tv_nsec = step.tv_nsec < SLOWEST_NS ? 2 * step.tv_nsec : SLOWEST_NS;
        if (looks % CHECK_EVERY == 0 && (rc = check(m, err)) < 0)
            return rc;
    }
    return rc;
}

static int wait_for_marks(struct wsync_gpu_map *m, const struct ws_gpu_map_rank *r, uint64_t deadline,
                          struct ws_error *err)
{
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < r->listing->n_events; i++) {
        const struct ws_gpu_event *given = &r->listing->events[i];
        struct ws_device_event *mark = NULL;
        int device;
        rc = ws_device_by_uuid(m->ops, given->uuid, &device, err);
        if (rc == 0 && (rc = m->ops->event_open(device, given->handle, &mark, err)) < 0)
            rc = explain(r, rc, err);
        if (rc == 0)
            rc = wait_for_mark(m, mark, deadline, err);
        if (mark)
            m->ops->event_free(mark);
    }
    return rc;
}

/* --- opening and closing --- */

static int open_all(struct wsync_gpu_map *m, struct ws_error *err)
{
    const uint64_t deadline = ws_clock_ms() + READY_MS;
    int rc = 0;
    for (size_t k = 0; rc == 0 && k < m->n_ranks; k++) {
        struct ws_gpu_map_rank *r = &m->ranks[k];
        rc = take_hold(m, r, err);
        for (size_t i = 0; rc == 0 && i < r->listing->n_segments; i++)
            rc = open_segment(m, r, i, err);
    }
    for (size_t k = 0; rc == 0 && k < m->n_ranks; k++)
        rc = wait_for_marks(m, &m->ranks[k], deadline, err);
    return rc;
}

static void unmap(struct wsync_gpu_map *m)
{
    for (size_t k = 0; m->ranks && k < m->n_ranks; k++) {
        struct ws_gpu_map_rank *r = &m->ranks[k];
        for (size_t i = 0; r->segments && i < r->listing->n_segments; i++) {
            if (r->segments[i].device >= 0)
                m->ops->close(r->segments[i].device, r->segments[i].base);
            r->segments[i].device = -1;
        }
    }
}

int ws_gpu_map_open(struct wsync_gpu_map *m, const char *agent, const char *model, uint64_t version,
                    struct ws_error *err)
{
    struct ws_error gone;
    snprintf(m->model, sizeof(m->model), "%s", model);
    int rc = lease(m, agent, version, err);
    if (rc < 0)
        return rc;
    rc = open_all(m, err);
    if (m->lost) /* the agent cannot be asked any more */
        return rc;
    int still = check(m, &gone); /* if the trainer ended or took the version back, that is the reason */
    if (still < 0) {
        if (err)
            *err = gone;
        return still;
    }
    if (rc < 0) {
        unmap(m);
        json_t *body = lease_json(m);
        json_object_set_new(body, "refused", json_string(err ? err->text : ""));
        (void)call(m, "close", body, NULL, NULL, 0, NULL, &gone);
    }
    return rc;
}

void ws_gpu_map_close(struct wsync_gpu_map *m)
{
    unmap(m);
    for (size_t k = 0; m->ranks && k < m->n_ranks; k++) { /* then only it is said to be closed */
        struct ws_gpu_map_rank *r = &m->ranks[k];
        free(r->segments);
        ws_gpu_listing_free(r->listing);
        if (r->lock_fd >= 0)
            close(r->lock_fd);
    }
    if (m->sock >= 0)
        close(m->sock);
    free(m->ranks);
}
