/* A version is the same at two sources when model, lineage, number and digest are the same. A source that
 * lists another digest under the same number has another version: it is no source of the one that is held
 * here. If nothing of it is here, the sources disagree (fs/store/offers.h), or, where that source is the only
 * one, its new version takes the place of the old one. */
#include "fs/store/listing.h"
#include "fs/store/derived.h"
#include "fs/store/model.h"
#include "fs/store/node_parts.h"
#include "fs/store/offers.h"
#include "fs/store/retired.h"
#include "fs/store/rings.h"
#include "fs/store/version.h"
#include "transports/base/clock.h"
#include "transports/base/log.h"
#include "transports/base/machine.h"
#include "transports/base/name.h"
#include "transports/base/number.h"
#include "transports/base/text.h"
#include <errno.h>
#include <inttypes.h>
#include <string.h>

struct entry {
    uint64_t number;
    const char *lineage;
    struct ws_offer offer;
    bool partial; /* the source has only a delta to it */
    bool on_gpus; /* the source shares it on GPUs */
};

static int read_entry(const json_t *json, struct entry *e)
{
    e->lineage = json_string_value(json_object_get(json, "run"));
    if (ws_offer_from_json(json, &e->offer) < 0 ||
        ws_number_read(json_object_get(json, "version"), &e->number) < 0 ||
        ws_number_read(json_object_get(json, "bytes"), &e->offer.bytes) < 0 || !e->lineage ||
        !ws_lineage_is_safe(e->lineage))
        return -EPROTO;
    (void)ws_number_read(json_object_get(json, "created_ns"), &e->offer.created_ns);
    e->partial = json_is_false(json_object_get(json, "anchor"));
    e->on_gpus = json_is_string(json_object_get(json, "gpu"));
    return 0;
}

/* Checks everything before anything is changed. */
static int check(const struct ws_poller *p, const json_t *listing, uint64_t *seq, struct ws_error *err)
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
            (json_array_size(versions) && (!run || !ws_lineage_is_safe(run))))
            goto bad;
        json_array_foreach(versions, k, version)
        {
            if (read_entry(version, &e) < 0)
                goto bad;
        }
    }
    return 0;
bad:
    return ws_error_set(err, EPROTO, "the answer of %s is not a list of models; is it a wsync agent?",
                        p->source->url);
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

static void set_listed(struct ws_version *v, const struct ws_offer *o)
{
    if (o->digest[0])
        memcpy(v->digest, o->digest, sizeof(v->digest));
    v->listed_bytes = o->bytes;
    v->created_ns = o->created_ns;
}

/* The version of an entry, made if it is new. NULL: no memory, or WS_MAX_VERSIONS are there. */
static struct ws_version *find_or_make(struct ws_model *m, const struct entry *e, struct ws_store_events *ev)
{
    struct ws_version *v = ws_version_lookup(m, e->number, e->lineage);

    if (v && is_another(v, e->offer.digest))
        return v; /* it stays as it is until ws_listing_renew */
    if (!v) {
        v = ws_version_new(m, e->number, e->lineage);
        if (!v)
            return NULL;
        v->known_ns = ws_clock_ns();
        ws_store_events_add(ev, WS_VERSION_KNOWN, m, v);
    }
    set_listed(v, &e->offer);
    return v;
}

void ws_listing_renew(struct ws_model *m, struct ws_store_events *ev)
{
    for (struct ws_version *v = m->versions, *next; v; v = next) {
        const struct ws_offer *o = v->offers;
        next = v->next;
        while (o && !is_another(v, o->digest))
            o = o->next;
        if (!o || is_held(v) || ws_offers_agree(v, NULL) < 0)
            continue;
        set_listed(v, o); /* which the new one begins with */
        ws_version_retire(v, ev);
    }
}

/* Of a source that an agent named, nothing holds that a source of the operator's does not say: only that it has a
 * version that one of those lists, with the digest that is listed there. What lies about that is asked in vain once. */
static void apply_hint(struct ws_poller *p, struct ws_model *m, const json_t *versions)
{
    const json_t *json;
    size_t i;

    json_array_foreach(versions, i, json)
    {
        struct entry e;
        if (read_entry(json, &e) < 0 || !ws_offer_is_usable(m->store, &e.offer) || !e.offer.digest[0])
            continue;
        struct ws_version *v = ws_version_lookup(m, e.number, e.lineage);
        if (!v || strcmp(v->digest, e.offer.digest) != 0)
            continue;
        ws_offers_record(v, p->index, &e.offer);
        v->sources |= ws_bit(p->index);
        if (e.partial)
            v->partial |= ws_bit(p->index);
    }
}

/* Does a source that an operator named list the model? */
static bool is_vouched_for(const struct ws_model *m)
{
    for (unsigned i = 0; i < WS_MAX_SOURCES; i++)
        if (m->store->pollers[i] && !m->store->pollers[i]->is_hint && m->claims[i].lineage[0])
            return true;
    return false;
}

/* Versions of a superseded lineage that are not held here are not made at all. A version that the source has
 * through this mount is left out. */
static void apply_versions(struct ws_poller *p, struct ws_model *m, const json_t *versions,
                           struct ws_store_events *ev)
{
    const json_t *json;
    size_t i;

    json_array_foreach(versions, i, json)
    {
        struct ws_version *v;
        struct entry e;
        if (read_entry(json, &e) < 0)
            continue;
        if (!ws_offer_is_usable(m->store, &e.offer)) {
            if (!p->circles)
                ws_log(WS_LOG_INFO, "store",
                       "a source's versions that come from this mount are left out url=%s", p->source->url);
            p->circles = true;
            continue;
        }
        /* An agent drops versions of an abandoned lineage soon; an archive keeps them for readers. */
        if (m->lineage[0] && strcmp(e.lineage, m->lineage) != 0 && !p->is_static &&
            !ws_version_lookup(m, e.number, e.lineage))
            continue;
        v = find_or_make(m, &e, ev);
        if (!v)
            continue;
        ws_offers_record(v, p->index, &e.offer);
        if (!v->pull && !ws_version_has_manifest(v) && !ws_offers_digest(v)[0])
            v->digest[0] = '\0'; /* a folder that has changed has none until it is hashed again */
        if (is_another(v, e.offer.digest) && is_held(v))
            continue;
        v->sources |= ws_bit(p->index);
        if (e.partial)
            v->partial |= ws_bit(p->index);
        if (e.on_gpus && strcmp(ws_source_transport(p->source), "ipc") == 0)
            v->on_gpus |= ws_bit(p->index);
        ws_rings_check(v, p->index, &e.offer);
    }
}

static void apply_claim(struct ws_model *m, unsigned index, const json_t *model)
{
    struct ws_model_claim *claim = &m->claims[index];
    const char *run = json_string_value(json_object_get(model, "run"));
    const json_t *json;
    size_t i;

    json_array_foreach(json_object_get(model, "versions"), i, json)
    {
        struct entry e;
        if (read_entry(json, &e) < 0 || !run || strcmp(e.lineage, run) != 0 ||
            !ws_offer_is_usable(m->store, &e.offer))
            continue;
        if (!claim->lineage[0])
            memcpy(claim->lineage, e.lineage, strlen(e.lineage) + 1);
        if (e.offer.created_ns > claim->created_ns)
            claim->created_ns = e.offer.created_ns;
        if (e.number > claim->newest)
            claim->newest = e.number;
    }
}

bool ws_listing_is_removed(const struct ws_store *s, const char *name)
{
    for (size_t i = 0; i < WS_MAX_MODELS; i++) {
        if (s->removed[i] && strcmp(s->removed[i], name) == 0)
            return true;
    }
    return false;
}

/* Of several sources of one model, the desired state of the one with the newest release holds. If two know
 * the same release, an agent's holds: a mount that serves passes on only what was released. */
static bool outranks(const struct ws_desired *a, const struct ws_desired *b)
{
    uint64_t newest = a->release > a->released_by ? a->release : a->released_by;
    uint64_t known = b->release > b->released_by ? b->release : b->released_by;

    return newest > known || (newest == known && (a->release || a->n_wanted) && !b->release && !b->n_wanted);
}

static void apply_desired(struct ws_poller *p, struct ws_model *m, const json_t *json,
                          struct ws_store_events *ev)
{
    struct ws_desired desired;
    if (ws_desired_from_json(json, p->source->mount_id, &desired) < 0) {
        ws_log(WS_LOG_WARN, "store", "an agent's desired state is malformed model=%s url=%s", m->name,
               p->source->url);
        return;
    }
    const bool vouches = m->desired_is_hint && !p->is_hint;
    if (m->desired_from != p->index && !outranks(&desired, &m->desired) && !vouches)
        return;
    m->desired_from = p->index;
    m->desired_is_hint = p->is_hint;
    if (!vouches)
        ws_desired_inherit(&desired, &m->desired);
    if (ws_desired_is_same(&desired, &m->desired))
        return;
    m->desired = desired;
    ws_store_events_add(ev, WS_MODEL_DESIRED, m, NULL);
}

/* What one node of a trainer has of a model: a version of a hidden model. */
static void apply_part(struct ws_poller *p, const json_t *json, struct ws_store_events *ev)
{
    struct ws_store *s = p->store;
    const char *name = json_string_value(json_object_get(json, "name"));
    char base[WS_MAX_NAME + 1];
    struct ws_model *m, *part;

    (void)ws_name_is_node_part(name, base, NULL, NULL);
    if (p->model ? strcmp(p->model, base) != 0 : ws_listing_is_removed(s, base))
        return;
    m = ws_model_add(s, base, ev);
    part = m ? ws_model_add(s, name, ev) : NULL;
    if (!part)
        return;
    if (p->is_hint && is_vouched_for(part)) {
        apply_hint(p, part, json_object_get(json, "versions"));
        return;
    }
    ws_node_parts_record(m, json);
    ws_retired_record(m, json, ev);
    apply_claim(m, p->index, json);
    apply_claim(part, p->index, json);
    ws_model_resolve_lineage(m);
    ws_model_resolve_lineage(part);
    apply_versions(p, part, json_object_get(json, "versions"), ev);
}

static bool read_id(const json_t *json, const char *number, const char *run, struct ws_version_id *out)
{
    const char *lineage = json_string_value(json_object_get(json, run));
    uint64_t version;

    if (ws_number_read(json_object_get(json, number), &version) < 0 || !lineage ||
        !ws_lineage_is_safe(lineage))
        return false;
    *out = ws_version_id_make(version, lineage);
    return true;
}

/* What is malformed is no reason to refuse the listing: the version comes as ever. */
static void apply_coming(struct ws_poller *p, struct ws_model *m, const json_t *json)
{
    struct ws_delta_link l = {.target_digest = WS_PROVISIONAL_DIGEST};
    const char *digest = json_string_value(json_object_get(json, "base_digest"));
    uint64_t n_blocks, machine = 0;

    if (!m->store->puller->coming || !digest || strlen(digest) != sizeof(l.base_digest) - 1 ||
        !read_id(json, "version", "run", &l.target) || !read_id(json, "base", "base_run", &l.base) ||
        ws_number_read(json_object_get(json, "blocks"), &n_blocks) < 0)
        return;
    memcpy(l.base_digest, digest, sizeof(l.base_digest));
    const bool tells = ws_text_hash(json_string_value(json_object_get(json, "machine")), &machine) == 0;
    m->store->puller->coming(p, m, &l, n_blocks, tells && machine && machine == ws_machine_hash());
}

static void apply_model(struct ws_poller *p, const json_t *json, struct ws_store_events *ev)
{
    struct ws_store *s = p->store;
    const char *name = json_string_value(json_object_get(json, "name"));
    struct ws_model *m, *whole; /* whole: that has the source's versions (needs.h) */

    if (ws_name_is_node_part(name, NULL, NULL, NULL)) {
        apply_part(p, json, ev);
        return;
    }
    if (p->model ? strcmp(p->model, name) != 0 : ws_listing_is_removed(s, name))
        return;
    m = ws_model_add(s, name, ev);
    whole = m && m->need ? ws_model_add_whole(m, ev) : m;
    if (!whole)
        return;
    if (p->is_hint && is_vouched_for(whole)) {
        apply_hint(p, whole, json_object_get(json, "versions"));
        return;
    }
    m->claims[p->index].direct = true;
    ws_retired_record(m, json, ev);
    apply_claim(m, p->index, json);
    ws_model_resolve_lineage(m);
    if (whole != m) {
        apply_claim(whole, p->index, json);
        ws_model_resolve_lineage(whole);
    }
    apply_versions(p, whole, json_object_get(json, "versions"), ev);
    if (!m->reported[p->index])
        ws_store_events_add(ev, WS_MODEL_LISTED, m, NULL);
    m->reported[p->index] = true;
    apply_desired(p, m, json, ev);
    apply_coming(p, m, json_object_get(json, "coming"));
}

static void apply_models(struct ws_poller *p, const json_t *models, struct ws_store_events *ev)
{
    const json_t *model;
    size_t i;

    for (struct ws_model *m = p->store->models; m; m = m->next)
        ws_listing_forget(m, p->index);
    json_array_foreach(models, i, model)
    {
        apply_model(p, model, ev);
    }
}

/* What hints said before may be vouched for now, or no more. */
static void apply_hints_again(struct ws_poller *p, struct ws_store_events *ev)
{
    struct ws_store *s = p->store;

    for (unsigned i = 0; i < WS_MAX_SOURCES && !p->is_hint; i++)
        if (s->pollers[i] && s->pollers[i]->listing)
            apply_models(s->pollers[i], s->pollers[i]->listing, ev);
}

/* Did another one come meanwhile that is newer? Which of two is, only one agent's numbers tell; of none, the later word is. */
static bool is_overtaken(const struct ws_poller *p, uint64_t agent, uint64_t seq, uint64_t asked_ns)
{
    return p->applied_ns > asked_ns && p->agent == agent && seq < p->applied_seq;
}

static void apply(struct ws_poller *p, const json_t *models, uint64_t agent, bool is_static, uint64_t seq,
                  uint64_t asked_ns)
{
    struct ws_store *s = p->store;
    struct ws_store_events events;

    ws_store_events_init(&events);
    pthread_mutex_lock(&s->lock);
    /* not unlisted meanwhile */
    if (s->pollers[p->index] == p && !is_overtaken(p, agent, seq, asked_ns)) {
        p->applied_seq = seq;
        p->applied_ns = ws_clock_ns();
        p->reported = p->reported && p->agent == agent;
        p->agent = agent;
        p->is_static = is_static;
        p->up = true; /* who sees what it lists sees that it answers */
        p->contact_ns = ws_clock_ns();
        p->error[0] = '\0';
        for (struct ws_model *m = s->models; m; m = m->next)
            m->reported[p->index] =
                m->reported[p->index] && p->reported; /* it may list the model only later */
        if (p->is_hint) {
            json_decref(p->listing);
            p->listing = json_deep_copy(models);
        }
        apply_models(p, models, &events);
        apply_hints_again(p, &events);
        p->reported = true;
        for (struct ws_model *m = s->models; m; m = m->next)
            ws_node_parts_reconcile(m, &events);
        ws_derived_reconcile(s, &events);
        for (struct ws_model *m = s->models, *next; m; m = next) {
            next = m->next;
            ws_listing_renew(m, &events);
            ws_offers_reconcile(m);
            ws_store_events_add(&events, WS_MODEL_OFFERS, m, NULL);
            ws_model_reconcile(m, &events);
        }
        ws_model_forget_parts(s, &events);
    }
    pthread_mutex_unlock(&s->lock);
    ws_store_events_notify(&events, s);
}

int ws_listing_apply(struct ws_poller *p, const json_t *listing, uint64_t asked_ns, uint64_t *seq,
                     struct ws_error *err)
{
    uint64_t agent = 0;
    int rc = check(p, listing, seq, err);

    (void)ws_number_read(json_object_get(listing, "agent"), &agent);
    if (rc == 0)
        apply(p, json_object_get(listing, "models"), agent, json_is_true(json_object_get(listing, "static")),
              *seq, asked_ns);
    return rc;
}

void ws_listing_clear(struct ws_poller *p, uint64_t asked_ns)
{
    pthread_mutex_lock(&p->store->lock);
    const uint64_t agent = p->agent;
    const bool is_static = p->is_static;
    pthread_mutex_unlock(&p->store->lock);
    apply(p, NULL, agent, is_static, 0, asked_ns);
}
