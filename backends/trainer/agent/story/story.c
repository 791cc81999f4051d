/* Story: when the newest versions were begun, announced, and had their delta, for who asks where time went
 * (`wsync why`). Times are of this machine's day; the answer has its time now, by which the asker sees how far the two
 * clocks differ. */
#include "backends/trainer/agent/core/features.h"
#include "backends/trainer/agent/core/models.h"
#include "transports/base/clock.h"
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#define STORIES 64 /* of a model; the oldest gives way */

struct story {
    struct ws_version_id id;                   /* no run: none */
    uint64_t begun_ns, published_ns, delta_ns; /* 0: not yet, or never */
};
struct stories {
    struct story all[STORIES];
    unsigned next;
};

static struct stories *stories_of(const struct ws_agent_model *m)
{
    return m->feature_state[WS_FEATURE_story];
}

static struct story *find(const struct ws_agent_model *m, const struct ws_version_id *id)
{
    struct stories *s = stories_of(m);
    for (unsigned i = 0; i < STORIES; i++)
        if (s->all[i].id.lineage[0] && ws_version_id_equal(&s->all[i].id, id))
            return &s->all[i];
    return NULL;
}

static void published(struct ws_agent *a, struct ws_agent_model *m, struct ws_slot *s)
{
    struct stories *stories = stories_of(m);
    (void)a;
    stories->all[stories->next++ % STORIES] = (struct story){.id = ws_version_id_make(s->version, s->lineage),
                                                             .begun_ns = s->begun_ns,
                                                             .published_ns = ws_clock_day_ns()};
}

static void encoded(struct ws_agent *a, struct ws_agent_model *m, struct ws_delta *d,
                    const struct ws_lease *target)
{
    const struct ws_version_id id = ws_version_id_make(target->manifest->version, target->manifest->lineage);
    struct story *one = find(m, &id);
    (void)a;
    (void)d;
    if (one)
        one->delta_ns = ws_clock_day_ns();
}

static void put_time(json_t *out, const char *key, uint64_t ns)
{
    if (ns)
        json_object_set_new(out, key, json_integer((json_int_t)(ns / 1000)));
}

static int route(struct ws_agent *a, const struct ws_agent_request *r, json_t **reply, struct ws_error *err)
{
    const struct ws_api_request *q = r->q;
    if (strcmp(r->method, "GET") != 0 || !q->has_version || strcmp(q->verb, "story") != 0)
        return WS_ROUTE_OTHER;
    pthread_mutex_lock(&a->lock);
    struct ws_agent_model *m = ws_agent_model_find(a, q->model);
    const struct ws_version_id id =
        ws_version_id_make(q->version, q->lineage[0] || !m ? q->lineage : m->lineage);
    const struct story *one = m ? find(m, &id) : NULL;
    if (one) {
        *reply =
            json_pack("{s:s,s:I}", "run", one->id.lineage, "now_us", (json_int_t)(ws_clock_day_ns() / 1000));
        put_time(*reply, "begun_us", one->begun_ns);
        put_time(*reply, "published_us", one->published_ns);
        put_time(*reply, "delta_us", one->delta_ns);
    }
    pthread_mutex_unlock(&a->lock);
    return one ? 0
               : ws_error_set(err, ENOENT,
                              "this agent knows no times of %.100s/%" PRIu64
                              ": it keeps those of the last %d versions "
                              "that were published since it was started",
                              q->model, q->version, STORIES);
}

static const struct ws_api_route routes[] = {WS_API_ROUTE("GET", "/v1/{model}/{version}/story", READ), {0}};

const struct ws_agent_feature ws_feature_story = {
    .model_bytes = sizeof(struct stories),
    .published = published,
    .encoded = encoded,
    .routes = routes,
    .route = route,
};
