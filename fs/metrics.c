/* The mount's figures in Prometheus' text format. */
#include "fs/desk.h"
#include "transports/clock.h"
#include <inttypes.h>
#include <string.h>

struct printer {
    struct ws_control *control;
    FILE *f;
};

static void one(FILE *f, const char *name, const char *type, uint64_t value)
{
    fprintf(f, "# TYPE wsync_%s %s\nwsync_%s %" PRIu64 "\n", name, type, name, value);
}

static void current_version(void *arg, struct ws_model *m)
{
    struct printer *p = arg;
    struct ws_version *v = ws_model_current(m);
    fprintf(p->f, "wsync_current_version{model=\"%s\"} %" PRIu64 "\n", ws_model_name(m),
            v ? ws_version_number(v) : 0);
    if (v)
        ws_version_put(v);
}

static void behind(void *arg, struct ws_model *m)
{
    struct printer *p = arg;
    struct ws_version *current = ws_model_current(m), *latest = ws_model_latest(m);
    uint64_t n = latest ? ws_version_number(latest) : 0, at = current ? ws_version_number(current) : 0;
    fprintf(p->f, "wsync_behind{model=\"%s\"} %" PRIu64 "\n", ws_model_name(m), n > at ? n - at : 0);
    if (current)
        ws_version_put(current);
    if (latest)
        ws_version_put(latest);
}

/* How old the weights are that engines serve. */
static void age(void *arg, struct ws_model *m)
{
    struct printer *p = arg;
    struct ws_version *v = ws_model_current(m);
    struct ws_version_info i;
    uint64_t now = ws_clock_day_ns();
    if (!v)
        return;
    ws_version_info(v, &i);
    if (i.created_ns && i.created_ns < now)
        fprintf(p->f, "wsync_age_seconds{model=\"%s\"} %.3f\n", ws_model_name(m),
                (double)(now - i.created_ns) * 1e-9);
    ws_version_put(v);
}

/* {model="M",engine="E" and no end: others may follow. */
static void labels(const struct ws_desk *d, const struct ws_engine *e, FILE *f)
{
    fprintf(f, "{model=\"%s\",engine=\"", d->name);
    for (const char *p = e->name; *p; p++)
        fprintf(f, *p == '"' || *p == '\\' ? "\\%c" : "%c", *p);
    fputc('"', f);
}

static void pauses(const struct ws_desk *d, const struct ws_engine *e, FILE *f)
{
    uint64_t sum = 0;
    for (size_t b = 0; b <= WS_PAUSE_BUCKETS; b++) {
        fputs("wsync_pause_seconds_bucket", f);
        labels(d, e, f);
        sum += e->pauses[b];
        if (b < WS_PAUSE_BUCKETS)
            fprintf(f, ",le=\"%g\"} %" PRIu64 "\n", ws_pause_bounds[b], sum);
        else
            fprintf(f, ",le=\"+Inf\"} %" PRIu64 "\n", sum);
    }
    fputs("wsync_pause_seconds_sum", f);
    labels(d, e, f);
    fprintf(f, "} %.6f\nwsync_pause_seconds_count", e->pause_sum);
    labels(d, e, f);
    fprintf(f, "} %" PRIu64 "\n", sum);
}

static void engines(struct ws_control *c, FILE *f)
{
    fprintf(f, "# TYPE wsync_engines gauge\n");
    for (const struct ws_desk *d = c->desks; d; d = d->next)
        for (enum ws_engine_state s = WS_ENGINE_SERVING; s < WS_ENGINE_STATES; s++) {
            unsigned n = 0;
            for (const struct ws_engine *e = d->engines; e; e = e->next)
                n += e->state == s;
            fprintf(f, "wsync_engines{model=\"%s\",state=\"%s\"} %u\n", d->name, ws_engine_state_name(s), n);
        }
    fprintf(f, "# TYPE wsync_switches_total counter\n");
    for (const struct ws_desk *d = c->desks; d; d = d->next)
        fprintf(f,
                "wsync_switches_total{model=\"%s\",result=\"ok\"} %" PRIu64
                "\nwsync_switches_total{model=\"%s\",result=\"failed\"} %" PRIu64 "\n",
                d->name, d->switches_ok, d->name, d->switches_failed);
    fprintf(f, "# TYPE wsync_pause_seconds histogram\n");
    for (const struct ws_desk *d = c->desks; d; d = d->next)
        for (const struct ws_engine *e = d->engines; e; e = e->next)
            pauses(d, e, f);
}

void ws_view_metrics(struct ws_control *c, FILE *f)
{
    struct ws_store_stats s;
    struct printer p = {c, f};
    ws_store_stats(c->store, &s);
    one(f, "cache_bytes", "gauge", s.cache_bytes);
    one(f, "used_bytes", "gauge", s.used_bytes);
    one(f, "waiting_bytes", "gauge", s.waiting_bytes);
    one(f, "moved_bytes_total", "counter", s.moved_bytes);
    one(f, "pulls_total", "counter", s.pulls_ok);
    one(f, "pulls_failed_total", "counter", s.pulls_failed);
    one(f, "retries_total", "counter", s.retries);
    one(f, "bad_blocks_total", "counter", s.bad_blocks);
    fprintf(f, "# TYPE wsync_current_version gauge\n");
    ws_store_each(c->store, current_version, &p);
    fprintf(f, "# TYPE wsync_behind gauge\n");
    ws_store_each(c->store, behind, &p);
    fprintf(f, "# TYPE wsync_age_seconds gauge\n");
    ws_store_each(c->store, age, &p);
    pthread_mutex_lock(&c->lock);
    engines(c, f);
    pthread_mutex_unlock(&c->lock);
}
