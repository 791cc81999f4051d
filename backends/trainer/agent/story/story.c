/* Story: when the newest versions were begun, announced, had their delta, and were loaded, for who asks where time went
 * (`wsync why`, the web page). Times are of this machine's day; the answer has its time now, by which the asker sees how far the two
 * clocks differ. */
#include "backends/trainer/agent/story/story.h"
#include "backends/trainer/agent/core/features.h"
#include "backends/trainer/agent/core/models.h"
#include "transports/base/clock.h"
#include "transports/base/number.h"
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#define STORIES 64 /* of a model; the oldest gives way */

struct story {
    struct ws_version_id id;                   /* no run: none */
    uint64_t begun_ns, published_ns, delta_ns; /* 0: not yet, or never */
    uint64_t bytes, delta_bytes;
    uint64_t n_mounts, loaded_ns,
        moved; /* mounts that loaded it; when the last one did; what they fetched for it */
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
                                                             .bytes = s->total_bytes,
                                                             .published_ns = ws_clock_day_ns()};
}

static void encoded(struct ws_agent *a, struct ws_agent_model *m, struct ws_delta *d,
                    const struct ws_lease *target)
{
    const struct ws_version_id id = ws_version_id_make(target->manifest->version, target->manifest->lineage);
    struct story *one = find(m, &id);
    struct ws_delta_stats stats;
    (void)a;
    ws_delta_stats(d, &stats);
    if (!one || stats.state != WS_DELTA_WHOLE)
        return;
    one->delta_ns = ws_clock_day_ns();
    one->delta_bytes = stats.bytes;
}

void ws_story_loaded(struct ws_agent_model *m, const struct ws_version_id *id, const json_t *came)
{
    struct story *one = find(m, id);
    uint64_t moved = 0;
    if (!one)
        return;
    (void)ws_number_read(json_object_get(came, "moved"), &moved);
    one->n_mounts++;
    one->loaded_ns = ws_clock_day_ns();
    one->moved = moved > UINT64_MAX / 2 - one->moved ? UINT64_MAX / 2 : one->moved + moved;
}

static void put_time(json_t *out, const char *key, uint64_t ns)
{
    if (ns)
        json_object_set_new(out, key, json_integer((json_int_t)(ns / 1000)));
}

static json_t *story_json(const struct story *one)
{
    json_t *out =
        json_pack("{s:I,s:s,s:I,s:I,s:I,s:I}", "version", (json_int_t)one->id.version, "run", one->id.lineage,
                  "bytes", (json_int_t)one->bytes, "delta_bytes", (json_int_t)one->delta_bytes, "mounts",
                  (json_int_t)one->n_mounts, "moved", (json_int_t)one->moved);
    put_time(out, "begun_us", one->begun_ns);
    put_time(out, "published_us", one->published_ns);
    put_time(out, "delta_us", one->delta_ns);
    put_time(out, "loaded_us", one->loaded_ns);
    return out;
}

/* Oldest first. */
static void model_status(const struct ws_agent *a, const struct ws_agent_model *m, json_t *out)
{
    const struct stories *s = stories_of(m);
    json_t *all = json_array();
    (void)a;
    for (unsigned i = 0; i < STORIES; i++) {
        const struct story *one = &s->all[(s->next + i) % STORIES];
        if (one->id.lineage[0])
            json_array_append_new(all, story_json(one));
    }
    json_object_set_new(out, "history", all);
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
        *reply = story_json(one);
        json_object_set_new(*reply, "now_us", json_integer((json_int_t)(ws_clock_day_ns() / 1000)));
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
    .model_status = model_status,
    .routes = routes,
    .route = route,
};
