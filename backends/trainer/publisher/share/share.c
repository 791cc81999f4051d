/* A publisher's share on GPUs: each version's memory is offered to the agent before the version is committed,
 * and used for another version when no reader has it open any more.
 *
 * The agent knows the readers. So that this knowledge outlives the agent, each process that opens a version
 * also holds a lock on a file of this process (flock, by a descriptor that the agent passes on): the kernel
 * knows when the last reader has released it. */
#include "backends/trainer/publisher/share/share.h"
#include "backends/trainer/api/last_error.h"
#include "transports/base/clock.h"
#include "transports/base/log.h"
#include "transports/base/vector.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define STREAMS            64        /* the most streams that a search looks back through */
#define READERS_TIMEOUT_MS 2000      /* for readers of a buffer that the next version needs */
#define LOCK_POLL_NS       10000000L /* between two looks at the lock, where the agent cannot name the readers */

/* --- life --- */

static int take_devices(struct ws_publisher_share *s, struct ws_error *err)
{
    struct ws_device_info info;
    int rc = s->ops->available(err);
    s->n_devices = rc == 0 ? s->ops->count() : 0;
    s->queues = calloc(s->n_devices + 1, sizeof(struct ws_device_queue *));
    s->uuids = calloc(s->n_devices + 1, sizeof(*s->uuids));
    if (rc == 0 && (!s->queues || !s->uuids))
        rc = ws_error_set(err, ENOMEM, "no memory for a list of devices");
    for (unsigned d = 0; rc == 0 && d < s->n_devices; d++) {
        rc = s->ops->describe((int)d, &info, err);
        if (rc == 0)
            memcpy(s->uuids[d], info.uuid, sizeof(info.uuid));
    }
    return rc;
}

int ws_publisher_share_open(struct wsync_publisher *p, const char *strategy, bool on_demand,
                            struct ws_error *err)
{
    if ((!strategy || !*strategy) && on_demand)
        return ws_error_set(err, EINVAL, "wsync_config.on_demand is for what is shared: set share, too");
    if (!strategy || !*strategy)
        return 0;
    bool packed = strcmp(strategy, "packed_cuda_ipc") == 0;
    if (!packed && strcmp(strategy, "cuda_ipc") != 0)
        return ws_error_set(err, EINVAL, "wsync_config.share is cuda_ipc or packed_cuda_ipc, not '%.50s'",
                            strategy);
    struct ws_publisher_share *s = p->share = calloc(1, sizeof(*s));
    if (!s)
        return ws_error_set(err, ENOMEM, "no memory for a publisher");
    s->ops = ws_device_by_kind(WS_CUDA);
    s->packed = packed;
    s->on_demand = on_demand;
    s->sets[0].lock_fd = s->sets[1].lock_fd = -1;
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < 2; i++) {
        s->sets[i].lock_fd = memfd_create("wsync-gpu", MFD_CLOEXEC);
        if (s->sets[i].lock_fd < 0)
            rc = ws_error_set(err, errno, "cannot make a file for locks: %s", strerror(errno));
    }
    if (rc == 0 && on_demand)
        rc = ws_on_demand_new(&s->demand, err);
    if (rc == 0 && take_devices(s, err) < 0) {
        (void)ws_error_prefix(err, "cannot share by %s", strategy);
        rc = -err->code;
    }
    return rc;
}

static void free_events(struct ws_publisher_share *s, struct ws_publisher_share_set *set)
{
    for (size_t i = 0; i < set->n_events; i++)
        s->ops->event_free(set->events[i]);
    free(set->events);
    set->events = NULL;
    set->n_events = 0;
}

int ws_publisher_share_queue(struct ws_publisher_share *s, int device, struct ws_device_queue **out,
                             struct ws_error *err)
{
    int rc = s->queues[device] ? 0 : s->ops->queue_new(device, &s->queues[device], err);
    *out = s->queues[device];
    return rc;
}

/* --- unsharing --- */

/* Waits until no process holds the lock any more. */
static int wait_for_holders(const struct ws_publisher_share_set *set, uint64_t deadline, struct ws_error *err)
{
    const struct timespec step = {.tv_nsec = LOCK_POLL_NS};
    while (flock(set->lock_fd, LOCK_EX | LOCK_NB) != 0) {
        if (errno != EWOULDBLOCK && errno != EINTR)
            return ws_error_set(err, errno, "cannot see which processes have version %" PRIu64 " on GPUs: %s",
                                set->version, strerror(errno));
        if (ws_clock_ms() >= deadline)
            return ws_error_set(err, ETIMEDOUT,
                                "a process still has version %" PRIu64
                                " on GPUs; the agent that knew which has ended: end or reload the engines "
                                "that opened it",
                                set->version);
        nanosleep(&step, NULL);
    }
    return flock(set->lock_fd, LOCK_UN) == 0 ? 0 : ws_error_set(err, errno, "cannot unlock a file");
}

/* Waits until no reader has the set's memory. timeout_ms negative: no limit. */
static int unshare_set(struct wsync_publisher *p, struct ws_publisher_share_set *set, int64_t timeout_ms,
                       struct ws_error *err)
{
    struct ws_error why;
    uint64_t deadline = timeout_ms < 0 ? UINT64_MAX : ws_clock_ms() + (uint64_t)timeout_ms;
    if (!set->shared)
        return 0;
    bool lost = set->lost || p->sock < 0 || set->connection != p->n_connections;
    if (!lost) {
        json_t *body = json_object();
        if (p->share->packed)
            json_object_set_new(body, "version", json_integer((json_int_t)set->version));
        int rc = body ? ws_publisher_wait(p, "unshare", body, timeout_ms, &why)
                      : ws_error_set(&why, ENOMEM, "no memory for a request");
        json_decref(body);
        lost = p->sock < 0;
        if (rc < 0 && !lost)
            return ws_error_set(err, why.code, "%s", why.text);
    }
    if (lost) {
        set->lost = true;
        int rc = wait_for_holders(set, deadline, err);
        if (rc < 0)
            return rc;
    }
    set->shared = set->lost = false;
    free_events(p->share, set);
    ws_on_demand_forget(set);
    return 0;
}

int wsync_unshare(wsync_publisher *p, int timeout_ms)
{
    struct ws_error *err = ws_last_error();
    int rc = 0;
    if (!p->share)
        return 0;
    ws_publisher_lock(p);
    ws_on_demand_make_requested(p);
    for (size_t i = 0; rc == 0 && i < 2; i++)
        rc = unshare_set(p, &p->share->sets[i], timeout_ms, err);
    ws_publisher_unlock(p);
    return rc;
}

/* Memory that readers still have stays until this process ends. */
void ws_publisher_share_close(struct wsync_publisher *p)
{
    struct ws_publisher_share *s = p->share;
    struct ws_error ignored;
    ws_on_demand_stop(p);
    for (size_t i = 0; s && i < 2; i++) {
        struct ws_publisher_share_set *set = &s->sets[i];
        if (unshare_set(p, set, 0, &ignored) == 0)
            ws_publisher_share_free_buffers(s, set);
        ws_on_demand_forget(set);
        free(set->buffers);
        free(set->events);
        if (set->lock_fd >= 0)
            close(set->lock_fd);
    }
    for (unsigned d = 0; s && s->queues && d < s->n_devices; d++)
        if (s->queues[d])
            s->ops->queue_free(s->queues[d]);
    if (s) {
        free(s->queues);
        free(s->uuids);
        free(s->recorded);
    }
    free(s);
    p->share = NULL;
}

/* --- pieces --- */

int ws_publisher_share_record(struct wsync_publisher *p, const wsync_param *a,
                              const struct ws_registered_piece *r, struct ws_error *err)
{
    struct ws_publisher_share *s = p->share;
    if (!s)
        return 0;
    if (s->n_recorded != p->n_params) {
        free(s->recorded);
        s->recorded = calloc(p->n_params + 1, sizeof(*s->recorded));
        s->n_recorded = s->recorded ? p->n_params : 0;
        if (!s->recorded)
            return ws_error_set(err, ENOMEM, "no memory for %zu parameters", p->n_params);
    }
    struct ws_shared_piece *n = &s->recorded[r - p->params];
    *n = (struct ws_shared_piece){
        .registered = r, .data = a->data, .stream = a->stream, .data_dtype = r->tensor.dtype, .device = -1};
    int rc = ws_publisher_layout(a, r, &n->layout, err);
    if (rc == 0 && ws_conversion_is_plus_1(n->layout.conversion))
        rc = ws_error_set(
            err, EOPNOTSUPP,
            "the parameter %s becomes itself plus 1 in the copy, and cannot be shared on GPUs, where it "
            "is as it is held: publish without config.share",
            a->name);
    if (rc == 0 && n->layout.conversion != WS_SAME_TYPE)
        n->data_dtype = (enum ws_dtype)a->data_dtype;
    return rc;
}

int ws_publisher_share_describe(const struct ws_shared_piece *a, struct ws_gpu_piece *out,
                                struct ws_error *err)
{
    const struct ws_registered_piece *r = a->registered;
    *out = (struct ws_gpu_piece){.tensor = r->tensor,
                                 .piece = r->piece,
                                 .data_dtype = a->data_dtype,
                                 .conversion = a->layout.conversion};
    memcpy(out->strides, a->layout.strides, sizeof(out->strides));
    out->tensor.name = strdup(r->tensor.name);
    return out->tensor.name ? 0 : ws_error_set(err, ENOMEM, "no memory for the name of a tensor");
}

/* The pieces that this rank writes and that are on a device. */
static int collect(struct wsync_publisher *p, struct ws_publisher_share_offer *o, struct ws_error *err)
{
    struct ws_publisher_share *s = p->share;
    o->pieces = calloc(s->n_recorded + 1, sizeof(*o->pieces));
    o->listing.pieces = calloc(s->n_recorded + 1, sizeof(*o->listing.pieces));
    if (!o->pieces || !o->listing.pieces)
        return ws_error_set(err, ENOMEM, "no memory for %zu parameters", s->n_recorded);
    for (size_t i = 0; i < s->n_recorded; i++) {
        struct ws_shared_piece *n = &s->recorded[i];
        const struct ws_registered_piece *r = &p->params[i];
        if (p->put[i] && r->writes && n->data && ws_piece_elements(&r->piece, r->tensor.n_dims) > 0 &&
            ws_device_by_address(n->data, &n->device) == WS_CUDA && (unsigned)n->device < s->n_devices)
            o->pieces[o->n_pieces++] = *n;
    }
    return 0;
}

/* Does the queue wait for this stream already? Neighbours mostly have the same stream. */
static bool is_ordered(const struct ws_publisher_share_offer *o, size_t i)
{
    for (size_t k = i; k > 0 && i - k < STREAMS; k--)
        if (o->pieces[k - 1].device == o->pieces[i].device && o->pieces[k - 1].stream == o->pieces[i].stream)
            return true;
    return false;
}

/* Queues wait for the streams that write the pieces. */
static int order_after_streams(struct ws_publisher_share *s, const struct ws_publisher_share_offer *o,
                               struct ws_error *err)
{
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < o->n_pieces; i++) {
        struct ws_device_queue *q;
        if (is_ordered(o, i))
            continue;
        rc = ws_publisher_share_queue(s, o->pieces[i].device, &q, err);
        if (rc == 0)
            rc = s->ops->follow(q, o->pieces[i].stream, err);
    }
    return rc;
}

/* --- marks: where the streams are when the version is committed --- */

static int record_event(struct ws_publisher_share *s, struct ws_publisher_share_set *set, int device,
                        struct ws_gpu_event *out, struct ws_error *err)
{
    struct ws_device_event *m = NULL;
    struct ws_device_event **events =
        ws_vector_room(set->events, set->n_events, sizeof(struct ws_device_event *));
    if (!events)
        return ws_error_set(err, ENOMEM, "no memory for a mark");
    set->events = events;
    int rc = s->ops->event_new(device, true, &m, err);
    if (rc == 0)
        rc = s->ops->record(s->queues[device], m, err);
    if (rc == 0)
        rc = s->ops->event_share(m, out->handle, err);
    memcpy(out->uuid, s->uuids[device], WS_DEVICE_UUID_BYTES);
    if (rc == 0)
        events[set->n_events++] = m;
    else if (m)
        s->ops->event_free(m);
    return rc;
}

/* Where a mark cannot be shared, this waits for the work instead. */
static int record_events(struct ws_publisher_share *s, struct ws_publisher_share_set *set,
                         struct ws_publisher_share_offer *o, struct ws_error *err)
{
    struct ws_gpu_listing *l = &o->listing;
    struct ws_error why;
    int rc = 0;
    s->no_events[0] = 0;
    l->events = calloc(s->n_devices + 1, sizeof(*l->events));
    if (!l->events)
        return ws_error_set(err, ENOMEM, "no memory for marks");
    for (unsigned d = 0; rc == 0 && d < s->n_devices; d++) {
        if (!s->queues[d])
            continue;
        if (record_event(s, set, (int)d, &l->events[l->n_events], &why) == 0) {
            l->n_events++;
            continue;
        }
        snprintf(s->no_events, sizeof(s->no_events), "%s", why.text);
        rc = s->ops->finish(s->queues[d], err);
    }
    return rc;
}

/* --- to the agent --- */

static void namespace_of(const char *kind, char out[64])
{
    char path[64];
    snprintf(path, sizeof(path), "/proc/self/ns/%s", kind);
    ssize_t n = readlink(path, out, 63);
    out[n < 0 ? 0 : n] = 0;
}

static json_t *offer_json(const struct wsync_publisher *p, const struct ws_publisher_share_offer *o)
{
    char pid[64], ipc[64];
    namespace_of("pid", pid);
    namespace_of("ipc", ipc);
    return json_pack("{s:I,s:s,s:s,s:s,s:s,s:s,s:b,s:I,s:o}", "version", (json_int_t)p->version, "run",
                     p->lineage, "strategy", p->share->packed ? "packed_cuda_ipc" : "cuda_ipc",
                     "pid_namespace", pid, "ipc_namespace", ipc, "no_marks", p->share->no_events, "on_demand",
                     (int)p->share->on_demand, "timeout_ms", (json_int_t)p->timeout_ms, "listing",
                     ws_gpu_listing_to_json(&o->listing));
}

/* Opens the set's file once more and locks it: each process with a copy of this descriptor holds the lock. */
static int locked_copy(const struct ws_publisher_share_set *set, int *fd, struct ws_error *err)
{
    char path[64];
    snprintf(path, sizeof(path), "/proc/self/fd/%d", set->lock_fd);
    *fd = open(path, O_RDWR | O_CLOEXEC);
    if (*fd >= 0 && flock(*fd, LOCK_SH | LOCK_NB) == 0)
        return 0;
    int code = errno;
    if (*fd >= 0)
        close(*fd);
    return ws_error_set(err, code, "cannot lock the file that readers of a version on GPUs hold: %s",
                        strerror(code));
}

/* Few are open at once: there may be thousands. */
static int send_parts(struct wsync_publisher *p, size_t segment, size_t from,
                      const struct ws_device_extent *parts, size_t n, struct ws_error *err)
{
    int fds[WS_MAX_FDS_PER_FRAME], rc = 0;
    size_t got = 0;
    for (; rc == 0 && got < n; got += rc == 0)
        rc = p->share->ops->share_fd(&parts[got], &fds[got], err);
    if (rc == 0)
        rc = ws_publisher_send(p, "share/fds",
                               json_pack("{s:I,s:I,s:I}", "version", (json_int_t)p->version, "segment",
                                         (json_int_t)segment, "from", (json_int_t)from),
                               fds, n, NULL, err);
    while (got > 0)
        close(fds[--got]);
    return rc;
}

static int send_fds(struct wsync_publisher *p, const struct ws_publisher_share_offer *o, struct ws_error *err)
{
    const struct ws_gpu_listing *l = &o->listing;
    const struct ws_device_extent *next = o->parts;
    int rc = 0;
    for (size_t i = 0; i < l->n_segments; i++)
        for (size_t from = 0, n; rc == 0 && from < l->segments[i].n_parts; from += n, next += n) {
            n = l->segments[i].n_parts - from;
            n = n < WS_MAX_FDS_PER_FRAME ? n : WS_MAX_FDS_PER_FRAME;
            rc = send_parts(p, i, from, next, n, err);
        }
    return rc;
}

static int send_offer(struct wsync_publisher *p, struct ws_publisher_share_set *set,
                      const struct ws_publisher_share_offer *o, struct ws_error *err)
{
    int fd;
    int rc = locked_copy(set, &fd, err);
    if (rc < 0)
        return rc;
    set->lost = set->lost || (set->shared && set->connection != p->n_connections);
    set->shared = true;
    set->version = p->version;
    set->connection = p->n_connections;
    rc = ws_publisher_send(p, "share", offer_json(p, o), &fd, 1, NULL, err);
    close(fd);
    return rc == 0 ? send_fds(p, o, err) : rc;
}

static void free_offer(struct ws_publisher_share_offer *o)
{
    free(o->parts);
    free(o->pieces);
    ws_gpu_listing_clear(&o->listing);
}

/* Frees the set's memory for the next version. A version on demand has no other place, and waits. Another one
 * is not shared if readers keep the memory for READERS_TIMEOUT_MS, or were waited for before: -EBUSY. */
static int reclaim_memory(struct wsync_publisher *p, struct ws_publisher_share_set *set, struct ws_error *err)
{
    struct ws_error ignored;
    if (!p->share->packed) { /* the memory is the caller's and stays: only marks are given back */
        (void)unshare_set(p, set, 0, &ignored);
        return 0;
    }
    int64_t timeout_ms = p->timeout_ms;
    if (!p->share->on_demand && timeout_ms > READERS_TIMEOUT_MS)
        timeout_ms = READERS_TIMEOUT_MS;
    int rc = unshare_set(p, set, set->stuck ? 0 : timeout_ms, err);
    set->stuck = rc == -ETIMEDOUT && !p->share->on_demand;
    if (rc == -ETIMEDOUT) {
        err->code = EBUSY;
        return ws_error_prefix(err, "no free buffer on the GPU");
    }
    return rc;
}

/* On demand nothing else follows: the version is announced when all ranks have come here. */
static int finish_on_demand(struct wsync_publisher *p, struct ws_publisher_share_set *set, int rc,
                            struct ws_error *err)
{
    struct ws_error ignored;
    if (rc == 0)
        rc = ws_publisher_call(p, "share/commit", json_pack("{s:I}", "version", (json_int_t)p->version), NULL,
                               NULL, 0, NULL, err);
    if (rc == 0)
        rc = ws_on_demand_start(p, err);
    if (rc == 0)
        p->share->turn ^= p->share->packed;
    else
        (void)unshare_set(p, set, 0, &ignored);
    return rc;
}

/* Where memory cannot be shared the version is published all the same: readers fetch it from the host. */
static void log_unshared(struct wsync_publisher *p, const struct ws_error *why)
{
    struct ws_publisher_share *s = p->share;
    if (strcmp(s->refused, why->text) != 0)
        ws_log(WS_LOG_WARN, "publisher", "not shared on GPUs: %s", why->text);
    snprintf(s->refused, sizeof(s->refused), "%s", why->text);
    size_t n = strlen(p->gpu_report);
    snprintf(p->gpu_report + n, sizeof(p->gpu_report) - n, "; not shared: %s", why->text);
}

int ws_publisher_share(struct wsync_publisher *p, const wsync_param *params, struct ws_error *err)
{
    struct ws_publisher_share *s = p->share;
    struct ws_publisher_share_offer o = {0};
    int rc = 0;
    if (!s)
        return 0;
    for (size_t i = 0; params && rc == 0 && i < p->n_params; i++)
        rc = ws_publisher_share_record(p, &params[i], &p->params[i], err);
    if (rc == 0)
        rc = collect(p, &o, err);
    if (rc == 0 && (o.n_pieces > 0 || s->on_demand)) {
        struct ws_publisher_share_set *set = &s->sets[s->packed ? s->turn : 0];
        ws_on_demand_make_requested(p);
        rc = reclaim_memory(p, set, err);
        if (rc == -EBUSY && !s->on_demand) { /* the next version takes the other one */
            log_unshared(p, err);
            s->turn ^= 1;
            free_offer(&o);
            return 0;
        }
        if (rc == 0)
            rc = order_after_streams(s, &o, err);
        if (rc == 0)
            rc = s->packed ? ws_publisher_share_packed(p, set, &o, err)
                           : ws_publisher_share_segments(s, &o, err);
        if (rc == 0 && !s->packed)
            rc = record_events(s, set, &o, err);
        if (rc == 0 && s->on_demand)
            rc = ws_on_demand_record(p, set, &o, err);
        if (rc == 0)
            rc = send_offer(p, set, &o, err);
        if (rc == -EOPNOTSUPP && !s->on_demand) {
            log_unshared(p, err);
            rc = unshare_set(p, set, 0, err);
        }
        if (s->on_demand)
            rc = finish_on_demand(p, set, rc, err);
    }
    free_offer(&o);
    return rc;
}

void ws_publisher_share_committed(struct wsync_publisher *p)
{
    if (p->share && !p->share->on_demand && p->share->sets[p->share->turn].version == p->version)
        p->share->turn ^= p->share->packed;
}
