/* One thread sends one report after the other: each is a small POST, and a trainer that waits for them needs
 * the newest, not all at once. A report that an agent refuses is lost, with a line in the log. When a source
 * is back, the mount reports its state anew. A link may be down for so short a time that only the report
 * notices and the long poll does not; so a report that did not get through makes the next listing count as
 * the first one. */
#include "fs/store/reporter.h"
#include "fs/store/poller.h"
#include "transports/base/clock.h"
#include "transports/base/log.h"
#include "transports/base/workers.h"
#include "transports/protocol/api.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define MAX_REPORTS 1024

struct ws_report {
    struct ws_model *model; /* counted */
    json_t *body;
    struct ws_report *next;
    char path[];
};

static void free_report(struct ws_report *r)
{
    json_decref(r->body);
    ws_model_put(r->model);
    free(r);
}

void ws_model_report(struct ws_model *m, const struct ws_version_id *version, const char *verb, json_t *body)
{
    char path[WS_API_PATH_BYTES];
    struct ws_store *s = m->store;
    bool taken;

    if (version)
        ws_api_version_path(path, verb, m->name, version->version, NULL, version->lineage);
    else
        ws_api_model_path(path, verb, m->name);
    struct ws_report *r = calloc(1, sizeof(*r) + strlen(path) + 1);
    if (!r || !body) {
        free(r);
        json_decref(body);
        return;
    }
    r->model = ws_model_get(m);
    r->body = body;
    strcpy(r->path, path);
    pthread_mutex_lock(&s->lock);
    taken = !s->threads_stop && s->n_reports < MAX_REPORTS;
    if (taken) {
        *s->last_report = r;
        s->last_report = &r->next;
        s->n_reports++;
        pthread_cond_signal(&s->reporter_changed);
    }
    pthread_mutex_unlock(&s->lock);
    if (!taken)
        free_report(r);
}

/* The poller of the first agent at *index or after it that lists the model, counted; *index is moved past it.
 * only_reported: leaves out agents that get this mount's whole state with their next listing. */
static struct ws_poller *next_agent(struct ws_model *m, bool only_reported, unsigned *index)
{
    struct ws_store *s = m->store;
    struct ws_poller *p = NULL;

    pthread_mutex_lock(&s->lock);
    for (; !p && *index < WS_MAX_SOURCES; ++*index)
        if (s->pollers[*index] && !s->pollers[*index]->is_static && m->claims[*index].direct &&
            (s->pollers[*index]->reported || !only_reported))
            p = ws_poller_get(s->pollers[*index]);
    pthread_mutex_unlock(&s->lock);
    return p;
}

static void send_report(struct ws_report *r)
{
    struct ws_poller *p;

    for (unsigned i = 0; (p = next_agent(r->model, true, &i));) {
        struct ws_error err;
        json_t *reply = NULL;
        int rc = ws_source_call(p->source, "POST", r->path, r->body, &reply, &err);
        json_decref(reply);
        if (rc < 0 && rc != -ENOTSUP)
            ws_log(WS_LOG_WARN, "store", "an agent did not take a report model=%s url=%s error=\"%s\"",
                   r->model->name, p->source->url, err.text);
        if (ws_source_is_away(rc)) {
            pthread_mutex_lock(&p->store->lock);
            p->reported = false;
            pthread_mutex_unlock(&p->store->lock);
        }
        ws_poller_put(p);
    }
}

int ws_model_query_signature(struct ws_model *m, const char *path, unsigned turn, json_t **reply,
                             struct ws_error *err)
{
    struct ws_store *s = m->store;
    int rc = ws_error_set(err, ENOENT, "no source of %s shows signatures", m->name);
    struct ws_poller *all[WS_MAX_SOURCES];
    unsigned n = 0;

    *reply = NULL;
    pthread_mutex_lock(&s->lock);
    for (unsigned i = 0; i < WS_MAX_SOURCES; i++)
        if (s->pollers[i] && m->claims[i].direct)
            all[n++] = ws_poller_get(s->pollers[i]);
    pthread_mutex_unlock(&s->lock);
    for (unsigned i = 0; i < n && rc < 0; i++) {
        struct ws_error why = {0};
        const int now = ws_source_call(all[(i + turn) % n]->source, "GET", path, NULL, reply, &why);
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
    for (unsigned i = 0; rc < 0 && (p = next_agent(m, false, &i));) {
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

static void *reporter_main(void *arg)
{
    struct ws_store *s = arg;

    pthread_mutex_lock(&s->lock);
    while (!s->threads_stop) {
        struct ws_report *r = s->reports;
        if (!r) {
            pthread_cond_wait(&s->reporter_changed, &s->lock);
            continue;
        }
        s->reports = r->next;
        if (!s->reports)
            s->last_report = &s->reports;
        pthread_mutex_unlock(&s->lock);
        send_report(r);
        free_report(r);
        pthread_mutex_lock(&s->lock);
        s->n_reports--;
        pthread_cond_broadcast(&s->changed);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

int ws_reporter_start(struct ws_store *s, struct ws_error *err)
{
    int rc = ws_thread_start(&s->reporter, reporter_main, s);

    if (rc < 0)
        return ws_error_set(err, -rc, "cannot start the store's reporter thread: %s", strerror(-rc));
    return 0;
}

void ws_reporter_stop(struct ws_store *s)
{
    struct ws_report *r;

    pthread_join(s->reporter, NULL);
    pthread_mutex_lock(&s->lock);
    r = s->reports;
    s->reports = NULL;
    s->last_report = &s->reports;
    pthread_mutex_unlock(&s->lock);
    while (r) {
        struct ws_report *next = r->next;
        free_report(r);
        r = next;
    }
}
