#include "fs/store/parent_watcher.h"
#include "fs/store/model.h"
#include "fs/store/parents.h"
#include "fs/store/poller.h"
#include "transports/base/log.h"
#include "transports/protocol/source.h"
#include "transports/transport.h"

#define WATCH_MS 500
#define PROBE_MS 2500 /* lost packets of the handshake come again after one second and three */

/* The answer is not looked at: who refuses a stranger is alive. */
static bool is_alive(const struct ws_poller *p)
{
    struct ws_source_options o = p->store->options.source;
    struct ws_source *source;
    json_t *reply = NULL;
    struct ws_error err;

    o.token = "";
    o.connect_timeout_ms = o.reply_timeout_ms = PROBE_MS;
    o.stop = &p->store->stop;
    if (ws_source_open(p->source->url, &o, &source, &err) < 0)
        return true; /* cannot tell; its share of the deadline holds */
    const int rc = ws_source_call(source, "GET", "/healthz", NULL, &reply, &err);
    json_decref(reply);
    ws_source_close(source);
    return !ws_source_is_away(rc);
}

/* Pulls leave it, and the agent is told, which names another parent. With store->lock. */
static void leave_dead(struct ws_poller *p)
{
    struct ws_store *s = p->store;
    struct ws_model *m = p->model ? ws_model_lookup(s, p->model) : NULL;

    ws_log(WS_LOG_INFO, "store", "a parent does not answer url=%s", p->source->url);
    p->up = p->is_said_up = false;
    for (unsigned b = 0; b < WS_ID_BUCKETS; b++)
        for (struct ws_version *v = s->ids[b]; v; v = v->next_id)
            if (v->pull)
                s->puller->leave(v->pull, p->index);
    if (m)
        ws_parents_blame(m, p);
}

/* Without any lock. */
static void judge(struct ws_poller *p)
{
    struct ws_store *s = p->store;
    const bool alive = is_alive(p);

    pthread_mutex_lock(&s->lock);
    p->is_suspect = false;
    if (!alive && s->pollers[p->index] == p)
        leave_dead(p);
    pthread_mutex_unlock(&s->lock);
}

void ws_parent_watcher_run(struct ws_store *s, const atomic_bool *stop, bool *has_suspects)
{
    unsigned seed = (unsigned)ws_clock_ns();

    while (!atomic_load(stop)) {
        struct ws_poller *silent[WS_MAX_SOURCES];
        uint64_t mask = 0;
        unsigned n = 0;
        pthread_mutex_lock(&s->lock);
        for (unsigned b = 0; s->n_pulls > 0 && b < WS_ID_BUCKETS; b++)
            for (struct ws_version *v = s->ids[b]; v; v = v->next_id)
                if (v->pull)
                    mask |= s->puller->watch_parents(v->pull, ws_clock_ns());
        *has_suspects = false;
        for (unsigned i = 0; i < WS_MAX_SOURCES; i++)
            if (s->pollers[i] && (mask & ws_bit(i) || s->pollers[i]->is_suspect))
                silent[n++] = ws_poller_get(s->pollers[i]);
        pthread_mutex_unlock(&s->lock);
        for (unsigned i = 0; i < n; i++) {
            judge(silent[i]);
            ws_poller_put(silent[i]);
        }
        ws_store_pause(s, stop, has_suspects, WATCH_MS, &seed);
    }
}
