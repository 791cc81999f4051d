/* A version is the same in two sources when model, run, number and digest are. A source that lists
 * another digest under the same number serves something else: it is left out as a source of what we
 * hold. Of what we do not hold, the sources disagree (fs/store/offers.h) unless it is the only one: then it
 * takes the place of what it listed before. */
#include "fs/store/listing.h"
#include "fs/store/model.h"
#include "fs/store/node_parts.h"
#include "fs/store/offers.h"
#include "fs/store/rings.h"
#include "fs/store/version.h"
#include "transports/base/log.h"
#include "transports/base/name.h"
#include "transports/base/number.h"
#include <errno.h>
#include <inttypes.h>
#include <string.h>

struct entry {
    uint64_t number;
    const char *run;
    struct ws_offer offer;
    bool partial; /* the source has only the delta to it */
    bool on_gpus; /* it is shared there */
};

static int read_entry(const json_t *json, struct entry *e)
{
    e->run = json_string_value(json_object_get(json, "run"));
    if (ws_offer_read(json, &e->offer) < 0 ||
        ws_number_read(json_object_get(json, "version"), &e->number) < 0 ||
        ws_number_read(json_object_get(json, "bytes"), &e->offer.bytes) < 0 || !e->run ||
        !ws_run_is_safe(e->run))
        return -EPROTO;
    (void)ws_number_read(json_object_get(json, "created_ns"), &e->offer.created_ns);
    e->partial = json_is_false(json_object_get(json, "anchor"));
    e->on_gpus = json_is_string(json_object_get(json, "gpu"));
    return 0;
}

/* Looks at everything once before anything is changed. */
static int check(const struct ws_watch *w, const json_t *listing, uint64_t *seq, struct ws_error *err)
{
    const json_t *models = json_object_get(listing, "models"), *model, *version;
    size_t i, k;

    if (ws_number_read(json_object_get(listing, "seq"), seq) < 0 || !json_is_array(models))
        goto bad;
    json_array_foreach(models, i, model)
    {
        const char *name = json_string_value(json_object_get(model, "name"));
        const char *run = json_string_value(json_object_get(model, "run"));
        const json_t *versions = json_object_get(model, "versions");
        struct entry e;
        if (!name || !ws_name_is_offered(name) || !json_is_array(versions) ||
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
    for (struct ws_version *v = m->versions; v; v = v->next) {
        v->sources &= ~ws_bit(index);
        v->partial &= ~ws_bit(index);
        v->on_gpus &= ~ws_bit(index);
        ws_offers_forget(v, index);
    }
    m->claims[index] = (struct ws_model_claim){0};
}

static bool is_held(const struct ws_version *v)
{
    return v == v->model->current || v->pull || v->pinned || ws_version_has_bytes(v);
}

static bool is_another(const struct ws_version *v, const char *digest)
{
    return v->digest[0] && digest[0] && strcmp(v->digest, digest) != 0;
}

static void describe(struct ws_version *v, const struct ws_offer *o)
{
    if (o->digest[0])
        memcpy(v->digest, o->digest, sizeof(v->digest));
    v->listed_bytes = o->bytes;
    v->created_ns = o->created_ns;
}

/* The version of an entry, made when it is new. NULL: it cannot be taken. */
static struct ws_version *version_of(struct ws_model *m, const struct entry *e, struct ws_changes *c)
{
    struct ws_version *v = ws_version_named(m, e->number, e->run);

    if (v && is_another(v, e->offer.digest))
        return v; /* it stays what it is, for now */
    if (!v) {
        v = ws_version_new(m, e->number, e->run);
        if (!v)
            return NULL;
        ws_changes_add(c, WS_VERSION_KNOWN, m, v);
    }
    describe(v, &e->offer);
    return v;
}

void ws_listing_renew(struct ws_model *m, struct ws_changes *c)
{
    for (struct ws_version *v = m->versions, *next; v; v = next) {
        const struct ws_offer *o = v->offers;
        next = v->next;
        while (o && !is_another(v, o->digest))
            o = o->next;
        if (!o || is_held(v) || ws_offers_agree(v, NULL) < 0)
            continue;
        describe(v, o); /* which the new one begins with */
        ws_version_retire(v, c);
    }
}

/* Versions of a superseded lineage that are not held get no name: they are not made at all. What the source
 * has through this mount is none of its own. */
static void take_versions(struct ws_watch *w, struct ws_model *m, const json_t *versions,
                          struct ws_changes *c)
{
    const json_t *json;
    size_t i;

    json_array_foreach(versions, i, json)
    {
        struct ws_version *v;
        struct entry e;
        if (read_entry(json, &e) < 0)
            continue;
        if (!ws_offer_is_fit(m->store, &e.offer)) {
            if (!w->circles)
                ws_log(WS_LOG_INFO, "store", "a source lists what it has from this mount: left out url=%s",
                       w->source->url);
            w->circles = true;
            continue;
        }
        /* What an agent still holds of an abandoned lineage goes soon; an archive keeps it to be read. */
        if (m->run[0] && strcmp(e.run, m->run) != 0 && !w->is_static && !ws_version_named(m, e.number, e.run))
            continue;
        v = version_of(m, &e, c);
        if (!v)
            continue;
        ws_offers_note(v, w->index, &e.offer);
        if (!v->pull && !ws_version_has_manifest(v) && !ws_offers_digest(v)[0])
            v->digest[0] = '\0'; /* a folder that was written to has none until it is hashed again */
        if (is_another(v, e.offer.digest) && is_held(v))
            continue;
        v->sources |= ws_bit(w->index);
        if (e.partial)
            v->partial |= ws_bit(w->index);
        if (e.on_gpus && strcmp(ws_source_transport(w->source), "ipc") == 0)
            v->on_gpus |= ws_bit(w->index);
        ws_rings_heard(v, w->index, &e.offer);
    }
}

static void take_claim(struct ws_model *m, unsigned index, const json_t *model)
{
    struct ws_model_claim *claim = &m->claims[index];
    const char *run = json_string_value(json_object_get(model, "run"));
    const json_t *json;
    size_t i;

    json_array_foreach(json_object_get(model, "versions"), i, json)
    {
        struct entry e;
        if (read_entry(json, &e) < 0 || !run || strcmp(e.run, run) != 0 ||
            !ws_offer_is_fit(m->store, &e.offer))
            continue;
        if (!claim->run[0])
            memcpy(claim->run, e.run, strlen(e.run) + 1);
        if (e.offer.created_ns > claim->created_ns)
            claim->created_ns = e.offer.created_ns;
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

/* Of several sources that serve one model the one with the newest release counts; of two that know the same,
 * an agent, whose orders are whole: a mount that serves passes on only what was released. */
static bool outranks(const struct ws_orders *a, const struct ws_orders *b)
{
    uint64_t newest = a->release > a->released_by ? a->release : a->released_by;
    uint64_t known = b->release > b->released_by ? b->release : b->released_by;

    return newest > known || (newest == known && (a->release || a->n_wanted) && !b->release && !b->n_wanted);
}

static void take_orders(struct ws_watch *w, struct ws_model *m, const json_t *json, struct ws_changes *c)
{
    struct ws_orders orders;
    if (ws_orders_read(json, w->source->who, &orders) < 0) {
        ws_log(WS_LOG_WARN, "store", "an agent's orders are malformed model=%s url=%s", m->name,
               w->source->url);
        return;
    }
    if (m->orders_from != w->index && !outranks(&orders, &m->orders))
        return;
    m->orders_from = w->index;
    ws_orders_keep(&orders, &m->orders);
    if (ws_orders_same(&orders, &m->orders))
        return;
    m->orders = orders;
    ws_changes_add(c, WS_MODEL_ORDERS, m, NULL);
}

/* What one node of a trainer has of a model: a hidden model of its own. */
static void take_part(struct ws_watch *w, const json_t *json, struct ws_changes *c)
{
    struct ws_store *s = w->store;
    const char *name = json_string_value(json_object_get(json, "name"));
    char base[WS_MAX_NAME + 1];
    struct ws_model *m, *part;

    (void)ws_name_is_part(name, base, NULL, NULL);
    if (w->model ? strcmp(w->model, base) != 0 : is_removed(s, base))
        return;
    m = ws_model_at(s, base, c);
    part = m ? ws_model_at(s, name, c) : NULL;
    if (!part) {
        ws_log(WS_LOG_WARN, "store", "a model is one more than the limit or than memory model=%s", name);
        return;
    }
    ws_parts_note(m, json);
    take_claim(m, w->index, json);
    take_claim(part, w->index, json);
    ws_model_settle_lineage(m);
    ws_model_settle_lineage(part);
    take_versions(w, part, json_object_get(json, "versions"), c);
}

static void take_model(struct ws_watch *w, const json_t *json, struct ws_changes *c)
{
    struct ws_store *s = w->store;
    const char *name = json_string_value(json_object_get(json, "name"));
    struct ws_model *m;

    if (ws_name_is_part(name, NULL, NULL, NULL)) {
        take_part(w, json, c);
        return;
    }
    if (w->model ? strcmp(w->model, name) != 0 : is_removed(s, name))
        return;
    m = ws_model_at(s, name, c);
    if (!m) {
        ws_log(WS_LOG_WARN, "store", "a model is one more than the limit or than memory model=%s", name);
        return;
    }
    m->claims[w->index].direct = true;
    take_claim(m, w->index, json);
    ws_model_settle_lineage(m);
    take_versions(w, m, json_object_get(json, "versions"), c);
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
        for (struct ws_model *m = s->models; m; m = m->next)
            ws_parts_settle(m, &changes);
        for (struct ws_model *m = s->models, *next; m; m = next) {
            next = m->next;
            ws_listing_renew(m, &changes);
            ws_offers_settle(m);
            ws_changes_add(&changes, WS_MODEL_OFFERS, m, NULL);
            ws_model_settle(m, &changes);
        }
        ws_model_forget_parts(s, &changes);
    }
    pthread_mutex_unlock(&s->lock);
    ws_changes_tell(&changes, s);
}

int ws_listing_apply(struct ws_watch *w, const json_t *listing, uint64_t *seq, struct ws_error *err)
{
    uint64_t agent = 0;
    int rc = check(w, listing, seq, err);

    (void)ws_number_read(json_object_get(listing, "agent"), &agent);
    if (rc == 0)
        take(w, json_object_get(listing, "models"), agent, json_is_true(json_object_get(listing, "static")));
    return rc;
}

void ws_listing_clear(struct ws_watch *w)
{
    take(w, NULL, w->agent, w->is_static);
}
