/* One thread sends one report after the other: each is a small POST, and a trainer that waits for
 * them wants the newest, not all at once. A report that no source takes is lost, with a line. */
#include "fs/report.h"
#include "fs/route.h"
#include "transports/log.h"
#include "transports/workers.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define MAX_REPORTS 1024

struct ws_report {
    struct ws_version *version; /* counted */
    json_t *body;
    struct ws_report *next;
};

static void free_report(struct ws_report *r)
{
    json_decref(r->body);
    ws_version_put(r->version);
    free(r);
}

void ws_version_report(struct ws_version *v, json_t *body)
{
    struct ws_report *r = calloc(1, sizeof(*r));
    struct ws_store *s = v->store;
    bool taken;

    if (!r) {
        json_decref(body);
        return;
    }
    r->version = ws_version_get(v);
    r->body = body;
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

/* To the first source of the version that takes it. */
static void send_report(struct ws_report *r)
{
    struct ws_version *v = r->version;
    struct ws_error err = {0};
    struct ws_route route;
    struct ws_leg leg = {0};
    int rc = -ENOENT;

    ws_route_init(&route, v);
    for (unsigned tries = 0; rc < 0 && tries < WS_MAX_SOURCES; tries++) {
        if (ws_route_take(&route, &leg, &err) < 0)
            break;
        rc = ws_source_report(leg.watch->source, v->model->name, v->number, v->run, r->body, &err);
        if (rc < 0)
            route.refused |= ws_bit(leg.watch->index);
        ws_route_end(&leg);
    }
    ws_route_release(&route);
    if (rc < 0)
        ws_log(WS_LOG_WARN, "store", "no source took the report model=%s version=%lu error=\"%s\"",
               v->model->name, v->number, err.text);
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
        s->n_reports--;
        if (!s->reports)
            s->last_report = &s->reports;
        pthread_mutex_unlock(&s->lock);
        send_report(r);
        free_report(r);
        pthread_mutex_lock(&s->lock);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

int ws_reporter_start(struct ws_store *s, struct ws_error *err)
{
    int rc = ws_thread_start(&s->reporter, reporter_main, s);

    if (rc < 0)
        return ws_error_set(err, -rc, "cannot start the thread of the reports: %s", strerror(-rc));
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
