#include "fs/store/offers.h"
#include "fs/store/derived.h"
#include "fs/store/model.h"
#include "fs/store/node_parts.h"
#include "fs/store/poller.h"
#include "fs/store/retired.h"
#include "fs/store/rings.h"
#include "fs/store/version.h"
#include "transports/base/log.h"
#include "transports/dir/dir.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* A folder is hashed when its manifest is requested: until then its versions have no digest. */
static bool is_digest(const char *digest)
{
    return !digest[0] || (strlen(digest) == 32 && strspn(digest, "0123456789abcdef") == 32);
}

int ws_offer_from_json(const json_t *entry, struct ws_offer *out)
{
    const char *digest = json_string_value(json_object_get(entry, "digest"));
    const json_t *via = json_object_get(entry, "via"), *waits = json_object_get(entry, "waits"), *one;
    size_t i;

    *out = (struct ws_offer){0};
    if (digest && !is_digest(digest))
        return -EPROTO;
    if (digest)
        memcpy(out->digest, digest, strlen(digest) + 1);
    if (via && !json_is_array(via))
        return -EPROTO;
    json_array_foreach(via, i, one)
    {
        if (!json_is_integer(one) || i == WS_MAX_RELAYS)
            return -EPROTO;
        out->via[out->n_via++] = (uint64_t)json_integer_value(one);
    }
    json_array_foreach(waits, i, one)
    {
        if (!json_is_integer(one) || i == WS_MAX_RELAYS)
            return -EPROTO;
        out->ring_tokens[out->n_ring_tokens++] = (uint64_t)json_integer_value(one);
    }
    return 0;
}

/* --- with store->lock --- */

bool ws_offer_is_usable(const struct ws_store *s, const struct ws_offer *offer)
{
    for (unsigned i = 0; i < offer->n_via; i++) {
        if (offer->via[i] == s->id)
            return false;
    }
    return true;
}

void ws_offers_forget(struct ws_version *v, unsigned index)
{
    for (struct ws_offer **at = &v->offers; *at;) {
        struct ws_offer *o = *at;
        if (o->index != index) {
            at = &o->next;
            continue;
        }
        *at = o->next;
        free(o);
    }
}

void ws_offers_record(struct ws_version *v, unsigned index, const struct ws_offer *offer)
{
    struct ws_offer *o = malloc(sizeof(*o));

    ws_offers_forget(v, index);
    if (!o)
        return;
    *o = *offer;
    o->index = index;
    o->next = v->offers;
    v->offers = o;
}

void ws_offers_free(struct ws_version *v)
{
    while (v->offers)
        ws_offers_forget(v, v->offers->index);
}

static const char *source_url(const struct ws_version *v, const struct ws_offer *o)
{
    const struct ws_poller *p = v->store->pollers[o->index];

    return p ? p->source->url : "a source that was removed";
}

int ws_offers_agree(const struct ws_version *v, struct ws_error *err)
{
    const struct ws_offer *first = NULL;

    for (const struct ws_offer *o = v->offers; o; o = o->next) {
        if (!o->digest[0])
            continue;
        if (first && strcmp(first->digest, o->digest) != 0)
            return ws_error_set(
                err, EBADMSG,
                "the sources of %s/%lu disagree: %s lists it with the digest %s, %s with %s; compare with "
                "the digest that the trainer published, and remove the source that is wrong",
                v->model->name, v->number, source_url(v, o), o->digest, source_url(v, first), first->digest);
        first = o;
    }
    return 0;
}

const char *ws_offers_digest(const struct ws_version *v)
{
    const struct ws_offer *o = v->offers;

    while (o && !o->digest[0])
        o = o->next;
    return o ? o->digest : "";
}

const char *ws_offers_advice(const struct ws_version *v)
{
    return strcmp(v->lineage, WS_DIR_LINEAGE) == 0
               ? "its folder was changed while it was offered; write other weights into a folder with a new "
                 "number, or drop the version to pull what the folder has now"
               : "two trainers may publish under one run id; drop the version to pull what is listed now";
}

/* A version that is held here stays as it is when a source lists another digest. */
static int matches_what_is_held(const struct ws_version *v, struct ws_error *err)
{
    for (const struct ws_offer *o = v->offers; o; o = o->next) {
        if (o->digest[0] && v->digest[0] && strcmp(o->digest, v->digest) != 0)
            return ws_error_set(err, EBADMSG, "%s/%lu has the digest %s here, %s lists it with %s now: %s",
                                v->model->name, v->number, v->digest, source_url(v, o), o->digest,
                                ws_offers_advice(v));
    }
    return 0;
}

void ws_offers_reconcile(struct ws_model *m)
{
    for (struct ws_version *v = m->versions; v; v = v->next) {
        struct ws_error err = {0};
        bool agree = ws_offers_agree(v, &err) == 0 && matches_what_is_held(v, &err) == 0;
        if (agree != v->disputed)
            continue;
        v->disputed = !agree;
        if (!agree)
            ws_log(WS_LOG_WARN, "store", "%s", err.text);
        if (!ws_version_is_complete(v))
            continue;
        free(v->error);
        v->error = agree ? NULL : strdup(err.text);
        v->error_code = agree ? 0 : EBADMSG;
    }
}

/* --- what this mount lists --- */

/* The source of a version with the fewest mounts in between; NULL: none. */
static const struct ws_offer *nearest(const struct ws_version *v)
{
    const struct ws_offer *best = NULL;

    for (const struct ws_offer *o = v->offers; o; o = o->next) {
        if (v->sources & ws_bit(o->index) && (!best || o->n_via < best->n_via))
            best = o;
    }
    return best;
}

/* NULL: this version is not to be listed. A complete version depends on no source. */
static json_t *version_json(const struct ws_version *v)
{
    const struct ws_manifest *m = atomic_load(&v->manifest);
    const struct ws_offer *o = ws_version_is_complete(v) ? NULL : nearest(v);
    unsigned n = o ? o->n_via : 0;
    json_t *via;

    /* its digest is known once it was made */
    const bool made_here = ws_version_comes_derived(v) || (!o && ws_derived_source(v));
    if (made_here)
        n = 0;
    if ((!v->digest[0] && !made_here) || n >= WS_MAX_RELAYS)
        return NULL;
    if (!ws_version_is_complete(v) && ((!o && !made_here) || v->disputed))
        return NULL;
    if (ws_model_is_hidden(v->model) && !ws_node_parts_can_serve(v))
        return NULL;
    via = json_array();
    for (unsigned i = 0; i < n; i++)
        json_array_append_new(via, json_integer((json_int_t)o->via[i]));
    json_array_append_new(via, json_integer((json_int_t)v->store->id));
    return json_pack("{s:I,s:s,s:s,s:I,s:I,s:o,s:o*}", "version", (json_int_t)v->number, "run", v->lineage,
                     "digest", v->digest, "bytes", (json_int_t)(m ? m->total_bytes : v->listed_bytes),
                     "created_ns", (json_int_t)v->created_ns, "via", via, "waits",
                     ws_version_is_complete(v) ? NULL : ws_rings_to_json(v));
}

/* What was released last is passed on, so that mounts that follow releases do not act on versions that are
 * only published. */
static void add_released(const struct ws_model *m, json_t *out)
{
    if (m->desired.released_by)
        json_object_set_new(out, "released",
                            json_pack("{s:I,s:I,s:s}", "by", (json_int_t)m->desired.released_by, "version",
                                      (json_int_t)m->desired.released.version, "run",
                                      m->desired.released.lineage));
}

/* Superseded lineages come first, being older. NULL: nothing of the model is to be listed. */
static json_t *model_json(const struct ws_model *m)
{
    const struct ws_version *newest = NULL;
    json_t *versions = json_array(), *out;

    for (int live = 0; live < 2; live++) {
        for (const struct ws_version *v = m->versions; v; v = v->next) {
            json_t *entry = v->live == live ? version_json(v) : NULL;
            if (!entry)
                continue;
            json_array_append_new(versions, entry);
            if (live)
                newest = v;
        }
    }
    if (json_array_size(versions) == 0) {
        json_decref(versions);
        return NULL;
    }
    out = json_pack("{s:s,s:I,s:s,s:s,s:o}", "name", m->name, "newest",
                    (json_int_t)(newest ? newest->number : 0), "run", m->lineage, "digest",
                    newest ? newest->digest : "", "versions", versions);
    add_released(m, out);
    json_t *retired = ws_retired_to_json(m);
    if (retired)
        json_object_set_new(out, "retired", retired);
    if (ws_model_is_hidden(m))
        json_object_set_new(out, "part", ws_node_parts_to_json(m));
    return out;
}

/* Who asks for a model gets its parts, too. */
static bool is_asked_for(const struct ws_model *m, const char *model)
{
    const struct ws_model *base = ws_model_is_hidden(m) ? ws_node_parts_base(m) : NULL;

    return strcmp(model, m->name) == 0 || (base && strcmp(model, base->name) == 0);
}

int ws_offers_list(struct ws_store *s, const char *model, uint64_t seq, json_t **out, struct ws_error *err)
{
    json_t *models = json_array();

    pthread_mutex_lock(&s->lock);
    for (const struct ws_model *m = s->models; m; m = m->next) {
        bool is = !model || is_asked_for(m, model);
        json_t *json = is ? model_json(m) : NULL;
        if (json)
            json_array_append_new(models, json);
    }
    pthread_mutex_unlock(&s->lock);
    if (model && json_array_size(models) == 0) {
        json_decref(models);
        return ws_error_set(err, ENOENT, "there is no model '%s' here", model);
    }
    *out = json_pack("{s:I,s:I,s:o}", "seq", (json_int_t)seq, "agent", (json_int_t)s->id, "models", models);
    return *out ? 0 : ws_error_set(err, ENOMEM, "no memory for the list of models");
}
