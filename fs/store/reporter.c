/* Each agent has a queue, and a thread while anything is in it, which sends one report after the other: each is a small
 * POST, and an agent that hangs delays what others are told by nothing. A report that an agent refuses is lost, with a
 * line in the log. When a source is back, the mount reports its state anew. A link may be down for so short a time that
 * only the report notices and the long poll does not; so a report that did not get through, or found the queue full,
 * makes the next listing count as the first one, and what waits behind it is dropped. */
#include "fs/store/reporter.h"
#include "fs/store/node_parts.h"
#include "fs/store/poller.h"
#include "transports/base/clock.h"
#include "transports/base/log.h"
#include "transports/base/workers.h"
#include "transports/protocol/api.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_REPORTS 256 /* that wait for one agent */

struct ws_report {
    json_t *body; /* its own: jansson does not count references for several threads */
    struct ws_report *next;
    char model[WS_MAX_NAME + 1];
    char path[];
};

static void free_report(struct ws_report *r)
{
    json_decref(r->body);
    free(r);
}

/* --- queues; with store->lock --- */

static void drop_queue(struct ws_poller *p)
{
    while (p->reports) {
        struct ws_report *r = p->reports;
        p->reports = r->next;
        p->n_reports--;
        p->store->n_reports--;
        free_report(r);
    }
}

/* It gets this mount's whole state with its next listing. */
static void begin_anew(struct ws_poller *p)
{
    p->reported = false;
    drop_queue(p);
}

static bool append(struct ws_poller *p, const char *model, const char *path, const json_t *body)
{
    struct ws_report **end = &p->reports;
    struct ws_report *r = p->n_reports < MAX_REPORTS ? calloc(1, sizeof(*r) + strlen(path) + 1) : NULL;

    if (!r || !(r->body = json_deep_copy(body))) {
        free(r);
        return false;
    }
    snprintf(r->model, sizeof(r->model), "%s", model);
    strcpy(r->path, path);
    while (*end)
        end = &(*end)->next;
    *end = r;
    p->n_reports++;
    p->store->n_reports++;
    return true;
}

static void send_report(struct ws_poller *p, const struct ws_report *r)
{
    struct ws_error err;
    json_t *reply = NULL;
    const int rc = ws_source_call(p->source, "POST", r->path, r->body, &reply, &err);

    json_decref(reply);
    if (rc < 0 && rc != -ENOTSUP)
        ws_log(WS_LOG_WARN, "store", "an agent did not take a report model=%s url=%s error=\"%s\"", r->model,
               p->source->url, err.text);
    if (ws_source_is_away(rc)) {
        pthread_mutex_lock(&p->store->lock);
        begin_anew(p);
        pthread_mutex_unlock(&p->store->lock);
    }
}

/* It has a reference to the poller; nothing of the store is touched after n_reporters says so. */
static void *reporter_main(void *arg)
{
    struct ws_poller *p = arg;
    struct ws_store *s = p->store;

    pthread_mutex_lock(&s->lock);
    while (p->reports && !s->threads_stop && s->pollers[p->index] == p) {
        struct ws_report *r = p->reports;
        p->reports = r->next;
        p->n_reports--;
        pthread_mutex_unlock(&s->lock);
        send_report(p, r);
        free_report(r);
        pthread_mutex_lock(&s->lock);
        s->n_reports--;
        pthread_cond_broadcast(&s->changed);
    }
    drop_queue(p);
    p->reporting = false;
    pthread_mutex_unlock(&s->lock);
    ws_poller_put(p);
    pthread_mutex_lock(&s->lock);
    s->n_reporters--;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

static int start_reporter(struct ws_poller *p)
{
    pthread_t thread;
    const int rc = p->reporting ? 0 : ws_thread_start(&thread, reporter_main, ws_poller_get(p));

    if (rc < 0) {
        ws_poller_put(p); /* not the last one: it is in store->pollers */
    } else if (!p->reporting) {
        pthread_detach(thread);
        p->reporting = true;
        p->store->n_reporters++;
    }
    return rc;
}

static bool takes_reports(const struct ws_model *m, const struct ws_poller *p)
{
    return p && !p->is_static && p->reported && m->claims[p->index].direct;
}

void ws_model_report(struct ws_model *m, const struct ws_version_id *version, const char *verb, json_t *body)
{
    char path[WS_API_PATH_BYTES];
    struct ws_store *s = m->store;

    if (version)
        ws_api_version_path(path, verb, m->name, version->version, NULL, version->lineage);
    else
        ws_api_model_path(path, verb, m->name);
    pthread_mutex_lock(&s->lock);
    for (unsigned i = 0; body && !s->threads_stop && i < WS_MAX_SOURCES; i++) {
        struct ws_poller *p = s->pollers[i];
        if (takes_reports(m, p) && (!append(p, m->name, path, body) || start_reporter(p) < 0))
            begin_anew(p);
    }
    pthread_mutex_unlock(&s->lock);
    json_decref(body);
}

/* --- requests with an answer --- */

/* The poller of the first agent at *index or after it that lists the model, counted; *index is moved past it. */
static struct ws_poller *next_agent(struct ws_model *m, unsigned *index)
{
    struct ws_store *s = m->store;
    struct ws_poller *p = NULL;

    pthread_mutex_lock(&s->lock);
    for (; !p && *index < WS_MAX_SOURCES; ++*index)
        if (s->pollers[*index] && !s->pollers[*index]->is_static && m->claims[*index].direct)
            p = ws_poller_get(s->pollers[*index]);
    pthread_mutex_unlock(&s->lock);
    return p;
}

/* Those that hung lately come last. */
static unsigned by_hanging(struct ws_poller *const *all, unsigned n, unsigned turn,
                           struct ws_poller *out[WS_MAX_SOURCES])
{
    unsigned done = 0;

    for (int hung = 0; hung < 2; hung++)
        for (unsigned i = 0; i < n; i++) {
            struct ws_poller *p = all[(i + turn) % n];
            if (ws_poller_hung_lately(p) == hung)
                out[done++] = p;
        }
    return done;
}

int ws_model_query_signature(struct ws_model *m, const char *path, unsigned turn, json_t **reply,
                             struct ws_error *err)
{
    struct ws_store *s = m->store;
    int rc = ws_error_set(err, ENOENT, "no source of %s shows signatures", m->name);
    struct ws_poller *all[WS_MAX_SOURCES], *order[WS_MAX_SOURCES];
    unsigned n = 0;

    *reply = NULL;
    pthread_mutex_lock(&s->lock);
    for (unsigned i = 0; i < WS_MAX_SOURCES; i++)
        if (s->pollers[i] && (ws_model_is_hidden(m) ? m->claims[i].lineage[0] : m->claims[i].direct))
            all[n++] = ws_poller_get(s->pollers[i]);
    pthread_mutex_unlock(&s->lock);
    const unsigned n_ordered = by_hanging(all, n, turn, order);
    for (unsigned i = 0; i < n_ordered && rc < 0; i++) {
        struct ws_error why = {0};
        const int now = ws_source_call(order[i]->source, "GET", path, NULL, reply, &why);
        ws_poller_note_signature(order[i], now);
        if (now == -ENOTSUP || (now < 0 && rc == -EAGAIN))
            continue;
        rc = now;
        if (rc < 0 && err)
            *err = why;
    }
    for (unsigned i = 0; i < n; i++)
        ws_poller_put(all[i]);
    return rc;
}

int ws_model_query(struct ws_model *m, const char *path, const json_t *body, json_t **reply,
                   struct ws_error *err)
{
    struct ws_poller *p;
    int rc = ws_error_set(err, ENOENT, "no source of %s is an agent", m->name);

    *reply = NULL;
    for (unsigned i = 0; rc < 0 && (p = next_agent(m, &i));) {
        struct ws_error why;
        int now = ws_source_call(p->source, body ? "POST" : "GET", path, body, reply, &why);
        ws_poller_put(p);
        if (now == -ENOTSUP)
            continue;
        rc = now;
        if (rc < 0 && err)
            *err = why;
    }
    return rc;
}

void ws_store_drain(struct ws_store *s, unsigned timeout_ms)
{
    const uint64_t until = ws_clock_ns() + timeout_ms * WS_MS_NS;

    pthread_mutex_lock(&s->lock);
    while (s->n_reports > 0 && ws_cond_wait_until(&s->changed, &s->lock, until) != ETIMEDOUT)
        ;
    pthread_mutex_unlock(&s->lock);
}

void ws_reporter_stop(struct ws_store *s)
{
    pthread_mutex_lock(&s->lock);
    while (s->n_reporters > 0)
        pthread_cond_wait(&s->changed, &s->lock);
    pthread_mutex_unlock(&s->lock);
}
