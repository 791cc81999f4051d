/* A version is the same in two sources when model, run, number and digest are. A source that lists
 * another digest under the same number serves something else: it is left out as a source of what we
 * hold, and takes the place of what we do not. */
#include "fs/listing.h"
#include "fs/model.h"
#include "fs/version.h"
#include "transports/log.h"
#include "transports/name.h"
#include <errno.h>
#include <inttypes.h>
#include <string.h>

struct entry {
    uint64_t number, bytes, created_ns;
    const char *run, *digest;
    bool partial; /* the source has only the delta to it */
};

static int read_u64(const json_t *object, const char *key, uint64_t *out)
{
    const json_t *value = json_object_get(object, key);

    if (!json_is_integer(value) || json_integer_value(value) < 0)
        return -EPROTO;
    *out = (uint64_t)json_integer_value(value);
    return 0;
}

/* A folder is hashed when its manifest is asked for: until then its versions have no digest. */
static bool is_digest(const char *digest)
{
    return !digest[0] || (strlen(digest) == 32 && strspn(digest, "0123456789abcdef") == 32);
}

static int read_entry(const json_t *json, struct entry *e)
{
    e->run = json_string_value(json_object_get(json, "run"));
    e->digest = json_string_value(json_object_get(json, "digest"));
    if (!e->digest)
        e->digest = "";
    e->created_ns = 0;
    if (read_u64(json, "version", &e->number) < 0 || read_u64(json, "bytes", &e->bytes) < 0 || !e->run ||
        !ws_run_is_safe(e->run) || !is_digest(e->digest))
        return -EPROTO;
    (void)read_u64(json, "created_ns", &e->created_ns);
    e->partial = json_is_false(json_object_get(json, "anchor"));
    return 0;
}

/* Looks at everything once before anything is changed. */
static int check(const struct ws_watch *w, const json_t *listing, uint64_t *seq, struct ws_error *err)
{
    const json_t *models = json_object_get(listing, "models"), *model, *version;
    size_t i, k;

    if (read_u64(listing, "seq", seq) < 0 || !json_is_array(models))
        goto bad;
    json_array_foreach(models, i, model)
    {
        const char *name = json_string_value(json_object_get(model, "name"));
        const char *run = json_string_value(json_object_get(model, "run"));
        const json_t *versions = json_object_get(model, "versions");
        struct entry e;
        if (!name || !ws_name_is_model(name) || !json_is_array(versions) ||
            (json_array_size(versions) && (!run || !ws_run_is_safe(run))))
            goto bad;
        json_array_foreach(versions, k, version)
        {
            if (read_entry(version, &e) < 0)
                goto bad;
        }
    }
    return 0;
bad:
    return ws_error_set(err, EPROTO,
                        "%s answered with something that is no list of models; is it a wsync agent?",
                        w->source->url);
}

/* --- with store->lock --- */

void ws_listing_forget(struct ws_model *m, unsigned index)
{
    for (struct ws_version *v = m->versions; v; v = v->next)
        v->sources &= ~ws_bit(index), v->partial &= ~ws_bit(index);
    m->claims[index] = (struct ws_claim){0};
}

/* The version of an entry, made when it is new. NULL: it cannot be taken. */
static struct ws_version *version_of(struct ws_model *m, const struct entry *e, struct ws_changes *c)
{
    struct ws_version *v = ws_version_named(m, e->number, e->run);

    if (v && v->digest[0] && e->digest[0] && strcmp(v->digest, e->digest) != 0) {
        if (v == m->current || v->pull || v->pinned || ws_version_has_bytes(v)) {
            ws_log(WS_LOG_WARN, "store",
                   "a source lists another digest for a version that is held: left out model=%s "
                   "version=%" PRIu64,
                   m->name, e->number);
            return NULL;
        }
        v->sources = v->partial = 0;
        ws_version_retire(v, c);
        v = NULL;
    }
    if (!v) {
        v = ws_version_new(m, e->number, e->run);
        if (!v)
            return NULL;
        ws_changes_add(c, WS_VERSION_KNOWN, m, v);
    }
    if (e->digest[0])
        memcpy(v->digest, e->digest, sizeof(v->digest));
    v->listed_bytes = e->bytes;
    v->created_ns = e->created_ns;
    return v;
}

/* Versions of a superseded lineage that are not held get no name: they are not made at all. */
static void take_versions(struct ws_model *m, unsigned index, const json_t *versions, struct ws_changes *c)
{
    const json_t *json;
    size_t i;

    json_array_foreach(versions, i, json)
    {
        struct ws_version *v;
        struct entry e;
        if (read_entry(json, &e) < 0)
            continue;
        if (m->run[0] && strcmp(e.run, m->run) != 0 && !ws_version_named(m, e.number, e.run))
            continue;
        v = version_of(m, &e, c);
        if (v)
            v->sources |= ws_bit(index);
        if (v && e.partial)
            v->partial |= ws_bit(index);
    }
}

static void take_claim(struct ws_model *m, unsigned index, const json_t *model)
{
    struct ws_claim *claim = &m->claims[index];
    const char *run = json_string_value(json_object_get(model, "run"));
    const json_t *json;
    size_t i;

    json_array_foreach(json_object_get(model, "versions"), i, json)
    {
        struct entry e;
        if (read_entry(json, &e) < 0 || !run || strcmp(e.run, run) != 0)
            continue;
        if (!claim->run[0])
            memcpy(claim->run, e.run, strlen(e.run) + 1);
        if (e.created_ns > claim->created_ns)
            claim->created_ns = e.created_ns;
        if (e.number > claim->newest)
            claim->newest = e.number;
    }
}

static bool is_removed(const struct ws_store *s, const char *name)
{
    for (size_t i = 0; i < WS_MAX_MODELS; i++) {
        if (s->removed[i] && strcmp(s->removed[i], name) == 0)
            return true;
    }
    return false;
}

/* Of several agents that serve one model the one with the newest release counts. */
static void take_orders(struct ws_watch *w, struct ws_model *m, const json_t *json, struct ws_changes *c)
{
    struct ws_orders orders;
    if (ws_orders_read(json, w->source->who, &orders) < 0) {
        ws_log(WS_LOG_WARN, "store", "an agent's orders are malformed model=%s url=%s", m->name,
               w->source->url);
        return;
    }
    if (m->orders_from != w->index && orders.release <= m->orders.release)
        return;
    m->orders_from = w->index;
    if (ws_orders_same(&orders, &m->orders))
        return;
    m->orders = orders;
    ws_changes_add(c, WS_MODEL_ORDERS, m, NULL);
}

static void take_model(struct ws_watch *w, const json_t *json, struct ws_changes *c)
{
    struct ws_store *s = w->store;
    const char *name = json_string_value(json_object_get(json, "name"));
    struct ws_model *m;

    if (w->model ? strcmp(w->model, name) != 0 : is_removed(s, name))
        return;
    m = ws_model_at(s, name, c);
    if (!m) {
        ws_log(WS_LOG_WARN, "store", "a model is one more than the limit or than memory model=%s", name);
        return;
    }
    take_claim(m, w->index, json);
    ws_model_settle_lineage(m);
    take_versions(m, w->index, json_object_get(json, "versions"), c);
    if (!m->told[w->index])
        ws_changes_add(c, WS_MODEL_LISTED, m, NULL);
    m->told[w->index] = true;
    take_orders(w, m, json, c);
}

static void take(struct ws_watch *w, const json_t *models, uint64_t agent, bool is_static)
{
    struct ws_store *s = w->store;
    struct ws_changes changes;
    const json_t *model;
    size_t i;

    ws_changes_init(&changes);
    pthread_mutex_lock(&s->lock);
    if (s->watches[w->index] == w) { /* not unlisted meanwhile */
        w->told = w->told && w->agent == agent;
        w->agent = agent;
        w->is_static = is_static;
        for (struct ws_model *m = s->models; m; m = m->next) {
            ws_listing_forget(m, w->index);
            m->told[w->index] = m->told[w->index] && w->told; /* it may list the model only later */
        }
        json_array_foreach(models, i, model)
        {
            take_model(w, model, &changes);
        }
        w->told = true;
        for (struct ws_model *m = s->models, *next; m; m = next) {
            next = m->next;
            ws_model_settle(m, &changes);
        }
    }
    pthread_mutex_unlock(&s->lock);
    ws_changes_tell(&changes, s);
}

int ws_listing_apply(struct ws_watch *w, const json_t *listing, uint64_t *seq, struct ws_error *err)
{
    uint64_t agent = 0;
    int rc = check(w, listing, seq, err);

    (void)read_u64(listing, "agent", &agent);
    if (rc == 0)
        take(w, json_object_get(listing, "models"), agent, json_is_true(json_object_get(listing, "static")));
    return rc;
}

void ws_listing_clear(struct ws_watch *w)
{
    take(w, NULL, w->agent, w->is_static);
}
