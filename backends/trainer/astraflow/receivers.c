#include "backends/trainer/astraflow/receivers.h"
#include "transports/base/clock.h"
#include "transports/base/log.h"
#include "transports/base/state_file.h"
#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MAX_RECEIVERS WS_MAX_CLIENTS
#define TAKE_OVER_S   10   /* one that was cut has ended by then */
#define SETTLE_MS     5000 /* what it was sent is read by then */

struct entry {
    struct entry *next; /* the one that was quiet for longest comes first */
    struct ws_receiver r;
    uint64_t registered;
    bool busy;
    struct ws_push *running; /* borrowed, while busy */
    struct ws_push *unread;  /* one that failed, until the receiver has read it */
    struct ws_version_id last_received;
    uint64_t n_completed, n_failed;
    char error[WS_ERROR_TEXT / 4];
};

struct ws_receivers {
    char *path;
    pthread_mutex_t saving; /* taken before lock */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    /* guarded by lock */
    struct entry *entries;
    size_t n_entries;
    uint64_t last_registered;
    bool stopped;
};

/* --- the list; under lock --- */

static struct entry **find(struct ws_receivers *all, const char *instance)
{
    struct entry **at = &all->entries;
    while (*at && strcmp((*at)->r.instance, instance) != 0)
        at = &(*at)->next;
    return at;
}

static void append(struct ws_receivers *all, struct entry *e)
{
    struct entry **at = &all->entries;
    while (*at)
        at = &(*at)->next;
    e->next = NULL;
    *at = e;
}

static struct entry *take_out(struct entry **at)
{
    struct entry *e = *at;
    *at = e->next;
    return e;
}

static void free_entry(struct entry *e)
{
    ws_push_free(e->unread);
    free(e);
}

static bool make_room(struct ws_receivers *all)
{
    struct entry **at = &all->entries;
    if (all->n_entries < MAX_RECEIVERS)
        return true;
    while (*at && (*at)->busy)
        at = &(*at)->next;
    if (!*at)
        return false;
    free_entry(take_out(at));
    all->n_entries--;
    return true;
}

static int put(struct ws_receivers *all, const struct ws_receiver *r, struct ws_error *err)
{
    struct entry **at = find(all, r->instance), *e = NULL;
    if (*at) {
        e = take_out(at);
        if (e->running)
            ws_push_cut(e->running, EINTR);
        ws_push_free(e->unread); /* of ports that it listens on no more */
        e->unread = NULL;
    } else {
        if (!make_room(all))
            return ws_error_set(err, EBUSY, "there are %d receivers already", MAX_RECEIVERS);
        e = calloc(1, sizeof(*e));
        if (!e)
            return ws_error_set(err, ENOMEM, "no memory for a receiver");
        all->n_entries++;
    }
    e->r = *r;
    e->last_received = (struct ws_version_id){0};
    e->error[0] = 0;
    e->registered = ++all->last_registered;
    append(all, e);
    return 0;
}

/* --- the file --- */

static json_t *receiver_json(const struct ws_receiver *r)
{
    char address[INET_ADDRSTRLEN] = "";
    json_t *ports = json_array();
    (void)inet_ntop(AF_INET, &r->data.address, address, sizeof(address));
    for (unsigned i = 0; i < r->data.n_ports; i++)
        json_array_append_new(ports, json_integer(r->data.ports[i]));
    return json_pack("{s:s,s:s,s:o,s:s,s:I,s:s}", "instance", r->instance, "address", address, "ports", ports,
                     "zmq", r->zmq, "buffer_length", (json_int_t)r->buffer_bytes, "layout", r->layout);
}

static bool receiver_from_json(const json_t *json, struct ws_receiver *r)
{
    const char *instance, *address, *zmq, *layout;
    const json_t *ports, *port;
    json_int_t bytes;
    size_t i;
    *r = (struct ws_receiver){0};
    if (json_unpack((json_t *)(uintptr_t)json, "{s:s,s:s,s:o,s:s,s:I,s:s}", "instance", &instance, "address",
                    &address, "ports", &ports, "zmq", &zmq, "buffer_length", &bytes, "layout",
                    &layout) != 0 ||
        strlen(instance) >= sizeof(r->instance) || strlen(zmq) >= sizeof(r->zmq) ||
        strlen(layout) >= sizeof(r->layout) || bytes <= 0 ||
        inet_pton(AF_INET, address, &r->data.address) != 1 || !json_is_array(ports) ||
        json_array_size(ports) == 0 || json_array_size(ports) > WS_MAX_STREAMS)
        return false;
    snprintf(r->instance, sizeof(r->instance), "%s", instance);
    snprintf(r->zmq, sizeof(r->zmq), "%s", zmq);
    snprintf(r->layout, sizeof(r->layout), "%s", layout);
    r->buffer_bytes = (uint64_t)bytes;
    json_array_foreach(ports, i, port)
    {
        json_int_t n = json_integer_value(port);
        if (n <= 0 || n > UINT16_MAX)
            return false;
        r->data.ports[r->data.n_ports++] = (uint16_t)n;
    }
    return true;
}

static void save(struct ws_receivers *all)
{
    if (!all->path)
        return;
    json_t *list = json_array(), *whole = json_pack("{s:i,s:o}", "wsync-astraflow", 1, "receivers", list);
    pthread_mutex_lock(&all->saving); /* so that the last to write knows all that came before */
    pthread_mutex_lock(&all->lock);
    for (const struct entry *e = all->entries; e; e = e->next)
        json_array_append_new(list, receiver_json(&e->r));
    pthread_mutex_unlock(&all->lock);
    char *text = whole ? json_dumps(whole, JSON_INDENT(1)) : NULL;
    int rc = text ? ws_state_file_write(all->path, text, strlen(text)) : -ENOMEM;
    pthread_mutex_unlock(&all->saving);
    json_decref(whole);
    free(text);
    if (rc < 0)
        ws_log(WS_LOG_WARN, "astraflow",
               "registrations cannot be kept in %s, an agent that is started anew will refuse these "
               "receivers: %s; make room there, or give another --state",
               all->path, strerror(-rc));
}

static int load(struct ws_receivers *all, struct ws_error *err)
{
    char *text, aside[4096];
    size_t n = 0, i;
    const json_t *one;
    struct ws_receiver r;
    int rc = ws_state_file_read(all->path, &text, &n, err);
    if (rc < 0 || !text)
        return rc;
    json_t *whole = json_loadb(text, n, JSON_REJECT_DUPLICATES, NULL),
           *list = json_object_get(whole, "receivers");
    bool good = json_is_array(list);
    free(text);
    json_array_foreach(list, i, one)
    {
        good = good && receiver_from_json(one, &r) && put(all, &r, err) == 0;
    }
    json_decref(whole);
    if (!good) { /* those before the damage stay */
        snprintf(aside, sizeof(aside), "%s.damaged", all->path);
        bool moved = rename(all->path, aside) == 0;
        ws_log(WS_LOG_WARN, "astraflow",
               "the registrations in %s are damaged; receivers that are not among the %zu that could be read "
               "have to be restarted; the file %s %s",
               all->path, all->n_entries, moved ? "is now" : "stays", moved ? aside : "where it is");
    }
    return 0;
}

int ws_receivers_new(struct ws_receivers **out, const char *path, struct ws_error *err)
{
    struct ws_receivers *all = calloc(1, sizeof(*all));
    if (!all || (path && !(all->path = strdup(path)))) {
        free(all);
        return ws_error_set(err, ENOMEM, "no memory for the receivers");
    }
    pthread_mutex_init(&all->saving, NULL);
    pthread_mutex_init(&all->lock, NULL);
    ws_cond_init(&all->changed);
    int rc = path ? load(all, err) : 0;
    if (rc < 0) {
        ws_receivers_free(all);
        return rc;
    }
    *out = all;
    return 0;
}

int ws_receivers_put(struct ws_receivers *all, const struct ws_receiver *r, struct ws_error *err)
{
    pthread_mutex_lock(&all->lock);
    int rc = put(all, r, err);
    pthread_mutex_unlock(&all->lock);
    if (rc == 0)
        save(all);
    return rc;
}

/* --- transfers --- */

/* Waits until no transfer uses the entry. Each time the lock was given up it may be another one, or gone. */
static struct entry *wait_for_turn(struct ws_receivers *all, const char *instance)
{
    const uint64_t end = ws_clock_ns() + TAKE_OVER_S * WS_SECOND_NS;
    for (;;) {
        struct entry *e = *find(all, instance);
        if (!e || !e->busy)
            return e;
        if (e->running)
            ws_push_cut(e->running, EINTR);
        if (ws_cond_wait_until(&all->changed, &all->lock, end) == ETIMEDOUT)
            return e;
    }
}

/* The receiver may still write what it was sent before: only when it has ended that may something new come.
 */
static int wait_until_read(struct ws_receivers *all, const char *instance, uint64_t registered,
                           struct ws_push *left, struct ws_error *err)
{
    pthread_mutex_unlock(&all->lock);
    bool settled = ws_push_wait_closed(left, SETTLE_MS);
    pthread_mutex_lock(&all->lock);
    struct entry *e = *find(all, instance);
    assert(e && e->busy); /* busy ones are not forgotten */
    if (settled || e->registered != registered) {
        ws_push_free(left);
        return 0;
    }
    e->unread = left;
    return ws_error_set(err, EBUSY, "%s has not read to the end what it was sent before; is it stuck?",
                        instance);
}

int ws_receivers_begin(struct ws_receivers *all, const char *instance, struct ws_push *push,
                       struct ws_receiver_transfer *out, struct ws_error *err)
{
    int rc = 0;
    pthread_mutex_lock(&all->lock);
    struct entry *e = wait_for_turn(all, instance);
    if (all->stopped)
        rc = ws_error_set(err, ESHUTDOWN, "the agent is stopping");
    else if (!e)
        rc = ws_error_set(err, ENOENT, "%.200s is not registered here; restart it", instance);
    else if (e->busy)
        rc = ws_error_set(err, EBUSY, "another transfer to %s does not end", instance);
    if (rc < 0 || !e) {
        pthread_mutex_unlock(&all->lock);
        return rc;
    }
    e->busy = true;
    struct ws_push *left = e->unread;
    e->unread = NULL;
    if (left)
        rc = wait_until_read(all, instance, e->registered, left, err);
    /* busy, so it is still there; a registration meanwhile is taken as it is */
    if (rc == 0) {
        e->running = push;
        if (all->stopped)
            ws_push_cut(push, ESHUTDOWN);
        *out = (struct ws_receiver_transfer){
            .receiver = e->r, .last_received = e->last_received, .registered = e->registered};
        struct entry **at = find(all, instance);
        append(all, take_out(at));             /* the most recently active one */
        pthread_cond_broadcast(&all->changed); /* a transfer that waits for its turn can cut it now */
    } else {
        e->busy = false;
        pthread_cond_broadcast(&all->changed);
    }
    pthread_mutex_unlock(&all->lock);
    return rc;
}

void ws_receivers_end(struct ws_receivers *all, const struct ws_receiver_transfer *errand,
                      struct ws_push *push, const struct ws_version_id *got, const char *error)
{
    pthread_mutex_lock(&all->lock);
    struct entry *e = *find(all, errand->receiver.instance);
    assert(e && e->busy && e->running == push && !(got && error));
    e->busy = false;
    e->running = NULL;
    e->n_completed += got != NULL;
    e->n_failed += error != NULL;
    if (e->registered == errand->registered && (got || error)) {
        if (got)
            e->last_received = *got;
        snprintf(e->error, sizeof(e->error), "%s", error ? error : "");
        if (!got) {
            ws_push_half_close(push);
            e->unread = push;
            push = NULL;
        }
    }
    pthread_cond_broadcast(&all->changed);
    pthread_mutex_unlock(&all->lock);
    ws_push_free(push);
}

bool ws_receivers_have(struct ws_receivers *all, const struct ws_version_id *id)
{
    bool found = false;
    pthread_mutex_lock(&all->lock);
    for (const struct entry *e = all->entries; e && !found; e = e->next)
        found = ws_version_id_equal(&e->last_received, id);
    pthread_mutex_unlock(&all->lock);
    return found;
}

void ws_receivers_stop(struct ws_receivers *all)
{
    pthread_mutex_lock(&all->lock);
    all->stopped = true;
    for (struct entry *e = all->entries; e; e = e->next)
        if (e->running)
            ws_push_cut(e->running, ESHUTDOWN);
    pthread_cond_broadcast(&all->changed);
    pthread_mutex_unlock(&all->lock);
}

json_t *ws_receivers_json(struct ws_receivers *all)
{
    json_t *list = json_array();
    pthread_mutex_lock(&all->lock);
    for (const struct entry *e = all->entries; e; e = e->next)
        json_array_append_new(
            list, json_pack("{s:s,s:o,s:b,s:I,s:I,s:s}", "instance", e->r.instance, "version",
                            e->last_received.lineage[0] ? json_integer((json_int_t)e->last_received.version)
                                                        : json_null(),
                            "busy", (int)e->busy, "transfers", (json_int_t)e->n_completed, "failures",
                            (json_int_t)e->n_failed, "error", e->error));
    pthread_mutex_unlock(&all->lock);
    return list;
}

void ws_receivers_free(struct ws_receivers *all)
{
    if (!all)
        return;
    for (struct entry *e = all->entries, *next; e; e = next) {
        next = e->next;
        assert(!e->busy);
        free_entry(e);
    }
    pthread_cond_destroy(&all->changed);
    pthread_mutex_destroy(&all->lock);
    pthread_mutex_destroy(&all->saving);
    free(all->path);
    free(all);
}
