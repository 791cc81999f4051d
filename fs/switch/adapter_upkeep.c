#include "fs/switch/adapter_upkeep.h"
#include "fs/switch/adapter_steps.h"
#include "fs/switch/claim.h"
#include "transports/base/clock.h"
#include "transports/base/workers.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define ANSWER_MS 5000
#define CHANGES_NS                                                                                           \
    (30 * WS_SECOND_NS) /* for all that is loaded and unloaded; what goes on in the engine is seen later */
#define FIRST_WAIT_NS (2 * WS_SECOND_NS) /* before another try for an engine that could not be put right */
#define LAST_WAIT_NS  (60 * WS_SECOND_NS)
#define LOST_PATIENCE                                                                                        \
    WS_KEPT_PATIENCE /* looks, until what lost its files is unloaded: sources come one by one */

struct upkeep {
    struct ws_control *control;
    struct ws_engine *const *engines;
    struct kept_engine {
        bool due; /* in: it is looked at; out: it is not as it should be */
        bool
            loads; /* its target is as it should be, so that adapters may follow; else too many are unloaded alone */
        unsigned lost_looks; /* before this one */
    } * of;
};

static bool has_adapters(const struct ws_engine *e)
{
    for (size_t i = 0; i < e->members.n; i++)
        if (e->members.items[i].role == WS_MEMBER_ADAPTER)
            return true;
    return false;
}

static bool is_wanted(const struct ws_wanted_adapters *wanted, const char *name)
{
    for (size_t i = 0; i < wanted->n; i++)
        if (strcmp(wanted->items[i].name, name) == 0)
            return true;
    return false;
}

/* What an engine lists, and this mount had it load. */
struct own_adapter {
    const char *name;
    struct ws_version_id id;
    bool is_lost; /* its files are gone: the version is neither here nor at a source */
};

/* One model's adapters on one engine. */
struct keeping {
    struct ws_control *control;
    struct ws_engine *engine;
    const struct ws_engine_target *target;
    const struct ws_engine_adapters *listed;
    bool loads, changes;  /* changes: they are put right; else only looked at */
    unsigned lost_looks;  /* that found some without files, before this one */
    bool due, any_lost;   /* out: they are not as they should be; some have no files */
    struct ws_error lost; /* out: which, once sources had time to list what they have; else its code is 0 */
};

static bool is_lost(struct ws_model *m, const struct ws_version_id *id)
{
    struct ws_version *v = m ? ws_version_at(m, id->version, id->lineage) : NULL;
    const bool is_there = v && ws_version_is_named(v);
    if (v)
        ws_version_put(v);
    return !is_there;
}

/* Of that model. Returns how many. */
static size_t find_own(const struct keeping *k, const struct ws_controller *of, struct ws_model *m,
                       struct own_adapter own[WS_MAX_ENGINE_ADAPTERS])
{
    size_t n = 0;
    for (size_t i = 0; i < k->listed->n; i++) {
        const struct ws_engine_adapter *item = &k->listed->items[i];
        if (!ws_adapter_is_own(k->control, of, k->engine, item, &own[n].id))
            continue;
        own[n].name = item->name;
        own[n].is_lost = is_lost(m, &own[n].id);
        n++;
    }
    return n;
}

static void record_lost(struct keeping *k, const struct ws_controller *of, const struct own_adapter *a,
                        bool unloads)
{
    k->any_lost = true;
    if (k->lost_looks == 0)
        return;
    ws_error_set(&k->lost, ENOENT,
                 "adapter %s has lost its files, and requests to it fail: version %" PRIu64
                 " (run %s) of %s is neither here nor at a source that answers%s",
                 a->name, a->id.version, a->id.lineage, of->name,
                 unloads ? "; it was unloaded: write a version that is there to `version`" : "");
}

/* Which versions of the model are to be listed is not known before one is current. Until then those stay that have files, and
 * all while no source lists the model. */
static bool is_too_much(const struct keeping *k, struct ws_model *m, const struct ws_wanted_adapters *wanted,
                        const struct own_adapter *a)
{
    if (wanted->n > 0)
        return !is_wanted(wanted, a->name);
    struct ws_version *latest = a->is_lost && m && k->lost_looks > LOST_PATIENCE ? ws_model_latest(m) : NULL;
    if (latest)
        ws_version_put(latest);
    return latest;
}

static bool is_missing(const struct keeping *k, const struct ws_controller *of,
                       const struct ws_wanted_adapters *wanted)
{
    for (size_t i = 0; i < wanted->n; i++)
        if (wanted->items[i].is_here && !ws_adapter_is_listed(k->control, of, k->engine, k->listed,
                                                              wanted->items[i].name, &wanted->items[i].id))
            return true;
    return false;
}

static int keep_adapters(struct keeping *k, struct ws_controller *of, struct ws_model *m,
                         const struct ws_wanted_adapters *wanted, struct ws_error *err)
{
    struct own_adapter own[WS_MAX_ENGINE_ADAPTERS];
    const size_t n = find_own(k, of, m, own);
    int rc = 0;
    k->due = k->due || (k->loads && is_missing(k, of, wanted));
    if (k->changes && k->loads)
        rc = ws_adapter_load_missing(k->control, of, k->engine, k->target, k->listed, wanted, err);
    for (size_t i = 0; rc == 0 && i < n; i++) {
        const bool goes = is_too_much(k, m, wanted, &own[i]);
        k->due = k->due || goes;
        if (own[i].is_lost)
            record_lost(k, of, &own[i], goes && k->changes);
        if (goes && k->changes)
            rc = ws_adapter_unload(k->control, of, k->engine, k->target, own[i].name, err);
    }
    return rc;
}

static int keep_model(struct keeping *k, const struct ws_member *member, struct ws_error *err)
{
    struct ws_control *c = k->control;
    struct ws_controller *of = ws_controller_get(c, member->model);
    struct ws_wanted_adapters *wanted = malloc(sizeof(*wanted));
    int rc = of && wanted ? 0 : ws_error_set(err, ENOMEM, "no memory for a list of adapters");
    if (rc == 0) {
        struct ws_model *m = ws_store_find(c->store, member->model);
        (void)ws_kept_find_wanted(c, of, member->keep, wanted);
        rc = keep_adapters(k, of, m, wanted, err);
        if (m)
            ws_model_put(m);
    }
    free(wanted);
    return rc;
}

/* err NULL: they are as they should be. */
static void record(struct ws_control *c, struct ws_engine *e, int rc, const struct ws_error *err)
{
    char *text = err ? strdup(err->text) : NULL;
    pthread_mutex_lock(&c->lock);
    char *before = e->adapter_error;
    e->adapter_error = text;
    if (rc < 0)
        ws_backoff_failed(&e->adapter_backoff, FIRST_WAIT_NS, LAST_WAIT_NS);
    else
        ws_backoff_reset(&e->adapter_backoff);
    pthread_mutex_unlock(&c->lock);
    free(before);
}

static void count_lost(struct ws_control *c, struct ws_engine *e, bool any)
{
    pthread_mutex_lock(&c->lock);
    e->lost_looks = any ? e->lost_looks + 1 : 0;
    pthread_mutex_unlock(&c->lock);
}

static void keep(const struct upkeep *u, size_t i, bool changes)
{
    struct ws_control *c = u->control;
    struct ws_engine *e = u->engines[i];
    struct ws_engine_call call;
    struct ws_error err = {0};
    ws_engine_call_init(e, c, &call);
    if (changes)
        call.target.end_ns = ws_clock_ns() + CHANGES_NS;
    else
        ws_engine_call_limit(&call, ANSWER_MS);
    struct ws_engine_adapters *listed = ws_adapters_ask(c, e, &call.target, &err);
    int rc = 0;
    u->of[i].due = false;
    if (!listed) {
        record(c, e, -EIO, &err);
        return;
    }
    struct keeping k = {.control = c,
                        .engine = e,
                        .target = &call.target,
                        .listed = listed,
                        .loads = u->of[i].loads,
                        .changes = changes,
                        .lost_looks = u->of[i].lost_looks};
    for (size_t m = 0; rc == 0 && m < e->members.n; m++)
        if (e->members.items[m].role == WS_MEMBER_ADAPTER)
            rc = keep_model(&k, &e->members.items[m], &err);
    free(listed);
    if (!changes)
        count_lost(c, e, k.any_lost);
    if (changes || rc < 0 || !k.due)
        record(c, e, rc, rc < 0 ? &err : k.lost.code ? &k.lost : NULL);
    u->of[i].due = rc == 0 && k.due;
}

static void look(void *arg, size_t i)
{
    const struct upkeep *u = arg;
    if (u->of[i].due)
        keep(u, i, false);
}

static void put_right(void *arg, size_t i)
{
    const struct upkeep *u = arg;
    if (u->of[i].due)
        keep(u, i, true);
}

/* Under the lock: is it looked at, and may it load? Not one that may be paused, and cannot say. */
static struct kept_engine choose(const struct ws_engine *e, bool is_current)
{
    const enum ws_engine_state s = e->condition.state;
    const bool there = !e->removed && s != WS_ENGINE_UNKNOWN && s != WS_ENGINE_BROKEN &&
                       s != WS_ENGINE_PAUSED && !ws_condition_is_uncertain(&e->condition) &&
                       has_adapters(e) && ws_backoff_is_over(&e->adapter_backoff);
    return (struct kept_engine){there, s == WS_ENGINE_SERVING || !is_current, e->lost_looks};
}

void ws_adapter_upkeep(struct ws_control *c, struct ws_controller *ctl, struct ws_model *m,
                       struct ws_engine *const *engines, const bool *runs, size_t n)
{
    struct upkeep u = {.control = c, .engines = engines, .of = calloc(n + 1, sizeof(*u.of))};
    struct ws_switch_item item = {.controller = ctl, .model = m};
    struct ws_version *current = m ? ws_model_current(m) : NULL;
    struct ws_error err;
    bool any = false, waits;
    pthread_mutex_lock(&c->lock);
    const bool comes_back = !current && ctl->target.lineage[0];
    for (size_t i = 0; u.of && !ctl->switching && (!comes_back || ctl->gone_reported) && i < n; i++) {
        if (runs[i])
            u.of[i] = choose(engines[i], current || comes_back);
        any = any || u.of[i].due;
    }
    pthread_mutex_unlock(&c->lock);
    if (current)
        ws_version_put(current);
    if (any)
        ws_workers_run_at_once(look, &u, n);
    any = false;
    for (size_t i = 0; u.of && i < n; i++)
        any = any || u.of[i].due;
    if (any && !atomic_load(&c->stop) && ws_switch_claim(c, &item, 1, true, &waits, &err) == 0) {
        ws_workers_run_at_once(put_right, &u, n);
        ws_switch_claim_release(c, &item, 1, false, false);
    }
    free(u.of);
}
