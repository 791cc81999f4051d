#include "fs/store/node_parts.h"
#include "fs/store/derived.h"
#include "fs/store/model.h"
#include "fs/store/part_view.h"
#include "fs/store/poller.h"
#include "fs/store/version.h"
#include "fs/store/waiters.h"
#include "fs/store/way_back.h"
#include "transports/base/clock.h"
#include "transports/base/log.h"
#include "transports/base/name.h"
#include "transports/format/node_part.h"
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WARN_NS 5000000000UL /* a source answers every WS_POLL_MS at least */

bool ws_model_is_hidden(const struct ws_model *m)
{
    return m->part_count > 0;
}

bool ws_version_is_offered(const struct ws_version *v)
{
    return v->sources || v->in_parts || ws_derived_source(v);
}

struct ws_model *ws_node_parts_find(struct ws_store *s, const char *name)
{
    struct ws_model *m;

    pthread_mutex_lock(&s->lock);
    m = ws_model_lookup(s, name);
    m = m && ws_model_is_hidden(m) ? ws_model_get(m) : NULL;
    pthread_mutex_unlock(&s->lock);
    return m;
}

/* --- which agent has which part --- */

void ws_node_parts_record(struct ws_model *m, const json_t *json)
{
    const json_t *nodes = json_object_get(json_object_get(json, "part"), "nodes"), *node;
    size_t i;

    json_array_foreach(nodes, i, node)
    {
        const char *name = json_string_value(node);
        if (!name || i >= WS_MAX_NODE_PARTS || (m->nodes[i] && strcmp(m->nodes[i], name) == 0))
            continue;
        free(m->nodes[i]);
        m->nodes[i] = strdup(name);
    }
}

static struct ws_model *find_part(const struct ws_model *m, unsigned index, unsigned count)
{
    char name[WS_MAX_NAME + 1];

    if (ws_node_part_model(name, m->name, index, count, NULL) < 0)
        return NULL;
    return ws_model_lookup(m->store, name);
}

/* Can a version be made of that part? */
static bool is_there(const struct ws_version *part)
{
    return part->sources || ws_version_is_complete(part) || ws_way_back_leads_to(part);
}

static struct ws_version *find_part_version(const struct ws_model *m, unsigned index, unsigned count,
                                            uint64_t number, const char *run)
{
    struct ws_model *part = find_part(m, index, count);
    struct ws_version *w = part ? ws_version_lookup(part, number, run) : NULL;

    return w && is_there(w) ? w : NULL;
}

struct ws_version *ws_node_parts_lookup(const struct ws_version *v, unsigned i)
{
    return find_part_version(v->model, i, v->parts ? v->parts->n : v->in_parts, v->number, v->lineage);
}

struct ws_model *ws_node_parts_base(const struct ws_model *part)
{
    return part->base ? ws_model_lookup(part->store, part->base) : NULL;
}

json_t *ws_node_parts_to_json(const struct ws_model *part)
{
    json_t *nodes = json_array();
    const struct ws_model *m = ws_node_parts_base(part);

    for (unsigned i = 0; m && i < part->part_count && m->nodes[i]; i++)
        json_array_append_new(nodes, json_string(m->nodes[i]));
    return json_pack("{s:i,s:i,s:o}", "index", (int)part->part_index, "count", (int)part->part_count, "nodes",
                     nodes);
}

/* "part 1 of 2 (of the agent n1:18861)" */
static void describe_part(const struct ws_model *m, unsigned index, unsigned count, char *out, size_t cap)
{
    if (count == 1) {
        snprintf(out, cap, "all that a source has of it");
        return;
    }
    snprintf(out, cap, "part %u of %u%s%.200s%s", index + 1, count, m->nodes[index] ? " (of the agent " : "",
             m->nodes[index] ? m->nodes[index] : "", m->nodes[index] ? ")" : "");
}

/* --- which versions there are --- */

/* Looks for all parts of a version of which the first known part is w. True: all are there; *out is the
 * version, made if it is new. */
static bool check_version(struct ws_model *m, const struct ws_version *w, unsigned count,
                          struct ws_version **out, struct ws_store_events *ev)
{
    uint64_t bytes = 0, created_ns = 0;
    char part[300], missing[WS_ERROR_TEXT / 2] = "";
    size_t used = 0;

    for (unsigned i = 0; i < count; i++) {
        const struct ws_version *p = find_part_version(m, i, count, w->number, w->lineage);
        if (p) {
            bytes += p->listed_bytes;
            created_ns = p->created_ns > created_ns ? p->created_ns : created_ns;
            continue;
        }
        m->missing_agent = m->missing_agent || !find_part(m, i, count);
        describe_part(m, i, count, part, sizeof(part));
        if (used < sizeof(missing))
            used += (size_t)snprintf(missing + used, sizeof(missing) - used, "%s%s", used ? ", " : "", part);
    }
    if (missing[0]) {
        if (w->number >= m->missing_number) {
            m->missing_number = w->number;
            snprintf(m->missing, sizeof(m->missing),
                     "%s/%" PRIu64
                     " lacks %s: add that agent to the mount's URLs, or check that it runs and can be "
                     "reached",
                     m->name, w->number, missing);
        }
        return false;
    }
    *out = ws_version_lookup(m, w->number, w->lineage);
    if (!*out) {
        *out = ws_version_new(m, w->number, w->lineage);
        if (!*out)
            return false;
        (*out)->listed_bytes = bytes;
        (*out)->created_ns = created_ns;
        ws_store_events_add(ev, WS_VERSION_KNOWN, m, *out);
    }
    return true;
}

/* Is w the first of the known parts of its version? */
static bool is_first(const struct ws_model *m, const struct ws_model *part, const struct ws_version *w)
{
    for (unsigned i = 0; i < part->part_index; i++)
        if (find_part_version(m, i, part->part_count, w->number, w->lineage))
            return false;
    return true;
}

static bool is_part_of(const struct ws_model *part, const struct ws_model *m)
{
    return part->base && strcmp(part->base, m->name) == 0;
}

/* The parts of a new version are listed one after the other, which is no reason for a warning. A part that no
 * source has ever listed is. */
static void warn_of_missing(struct ws_model *m)
{
    bool answered = true;

    for (unsigned i = 0; i < WS_MAX_SOURCES; i++)
        answered = answered && (!m->store->pollers[i] || m->store->pollers[i]->answered);
    if (!m->missing[0] || !m->missing_agent || m->warned) {
        m->missing_since_ns = 0;
        return;
    }
    if (!m->missing_since_ns)
        m->missing_since_ns = ws_clock_ns();
    if (!answered || ws_clock_ns() - m->missing_since_ns < WARN_NS)
        return;
    m->warned = true;
    ws_log(WS_LOG_WARN, "store", "%s", m->missing);
}

/* Where the nodes of a trainer have a part each, no source has what a need is of: a part has no whole tensors. */
static void refuse_need(struct ws_model *m, const struct ws_model *part)
{
    for (const struct ws_version *w = part->versions; w; w = w->next) {
        if (!w->sources || w->number < m->missing_number)
            continue;
        m->missing_number = w->number;
        snprintf(
            m->missing, sizeof(m->missing),
            "%s/%" PRIu64
            " comes in parts from the %u nodes of its trainer, and need= takes tensors of versions that "
            "a source has whole: leave need= out for %s, or mount an archive or a mount that serves it whole",
            m->name, w->number, part->part_count, m->name);
    }
}

void ws_node_parts_reconcile(struct ws_model *m, struct ws_store_events *ev)
{
    if (ws_model_is_hidden(m))
        return;
    m->missing[0] = '\0';
    m->missing_number = 0;
    m->missing_agent = false;
    for (struct ws_version *v = m->versions; v; v = v->next)
        v->in_parts = 0;
    for (struct ws_model *part = m->store->models; part; part = part->next) {
        if (!is_part_of(part, m))
            continue;
        if (m->need && part->part_count > 1) {
            refuse_need(m, part);
            continue;
        }
        for (struct ws_version *w = part->versions, *v; w; w = w->next) {
            if (!is_there(w) || !is_first(m, part, w))
                continue;
            if (m->lineage[0] && strcmp(w->lineage, m->lineage) != 0 &&
                !ws_version_lookup(m, w->number, w->lineage))
                continue; /* of an abandoned lineage */
            if (check_version(m, w, part->part_count, &v, ev))
                v->in_parts = part->part_count;
        }
    }
    /* A version that lacks a part and is older than a whole one is about to go. */
    for (const struct ws_version *v = m->versions; v; v = v->next)
        if (ws_version_is_offered(v) && v->live && v->number >= m->missing_number)
            m->missing[0] = '\0';
    warn_of_missing(m);
}

void ws_node_parts_unlist(struct ws_model *m, struct ws_store_events *ev)
{
    for (struct ws_model *part = m->store->models, *next; part; part = next) {
        next = part->next;
        if (is_part_of(part, m))
            ws_model_unlist(part, ev);
    }
    for (struct ws_version *v = m->versions; v; v = v->next)
        v->in_parts = 0;
}

struct ws_version *ws_node_parts_get(struct ws_version *v, unsigned i, unsigned n, struct ws_error *err)
{
    struct ws_version *w = find_part_version(v->model, i, n, v->number, v->lineage);
    char part[300];

    if (w)
        return ws_version_get(w);
    describe_part(v->model, i, n, part, sizeof(part));
    ws_error_set(err, ESTALE, "%s/%" PRIu64 " lacks %s: no source lists it any more", v->model->name,
                 v->number, part);
    return NULL;
}

struct ws_version *ws_node_parts_whole(const struct ws_version *part)
{
    struct ws_model *m = ws_node_parts_base(part->model);

    return m ? ws_version_lookup(m, part->number, part->lineage) : NULL;
}

struct ws_version *ws_node_parts_shown(const struct ws_version *whole, unsigned i)
{
    struct ws_model *part = whole->parts ? find_part(whole->model, i, whole->parts->n) : NULL;
    struct ws_version *w = part ? ws_version_lookup(part, whole->number, whole->lineage) : NULL;

    return w && ws_part_view(w) && ws_part_view(w)->whole == whole ? w : NULL;
}

void ws_node_parts_retire(struct ws_version *whole, struct ws_store_events *ev)
{
    for (unsigned i = 0; whole->parts && i < whole->parts->n; i++) {
        struct ws_version *w = ws_node_parts_shown(whole, i);
        if (w)
            ws_version_retire(w, ev);
    }
}

struct ws_version *ws_node_parts_late(const struct ws_version *whole)
{
    for (struct ws_model *part = whole->in_parts ? whole->store->models : NULL; part; part = part->next) {
        struct ws_version *w =
            is_part_of(part, whole->model) ? ws_version_lookup(part, whole->number, whole->lineage) : NULL;
        if (w && w->pull)
            return w;
    }
    return NULL;
}

struct ws_waiter *ws_node_parts_give_up(const struct ws_version *whole, int rc)
{
    struct ws_waiter *chain = NULL;

    for (struct ws_model *part = whole->store->models; part; part = part->next) {
        struct ws_version *w =
            is_part_of(part, whole->model) ? ws_version_lookup(part, whole->number, whole->lineage) : NULL;
        struct ws_waiter *more = w && !w->pull ? ws_waiters_collect(w, rc) : NULL, **end = &more;
        while (*end)
            end = &(*end)->next;
        *end = chain;
        chain = more;
    }
    return chain;
}

bool ws_node_parts_can_serve(const struct ws_version *part)
{
    const struct ws_version *whole = ws_part_view(part) ? NULL : ws_node_parts_whole(part);

    return ws_part_view(part) || (whole && ws_version_comes_in_parts(whole));
}

/* Does the source list a part of the version? */
static bool lists_part(const struct ws_version *v, unsigned index)
{
    for (unsigned i = 0; i < v->in_parts; i++) {
        const struct ws_version *w = find_part_version(v->model, i, v->in_parts, v->number, v->lineage);
        if (w && (w->sources & ws_bit(index)))
            return true;
    }
    return false;
}

bool ws_version_comes_in_parts(const struct ws_version *v)
{
    bool whole = false;

    if (ws_version_is_complete(v))
        return false;
    if (v->parts)
        return true; /* a pull has begun so */
    if (!v->in_parts || ws_version_has_bytes(v))
        return false;
    for (unsigned i = 0; i < WS_MAX_SOURCES; i++) {
        const struct ws_poller *p = v->store->pollers[i];
        whole = whole || (p && p->up && (v->sources & ws_bit(i)) && !lists_part(v, i));
    }
    return !whole;
}

bool ws_model_missing_parts(struct ws_model *m, char *out, size_t cap)
{
    pthread_mutex_lock(&m->store->lock);
    snprintf(out, cap, "%s", m->missing);
    pthread_mutex_unlock(&m->store->lock);
    return out[0] != '\0';
}

bool ws_version_is_made_first(struct ws_version *v)
{
    bool is;

    pthread_mutex_lock(&v->store->lock);
    is = ws_version_comes_in_parts(v) || ws_version_comes_derived(v) ||
         (ws_name_is_view(v->model->name, NULL, NULL) && !v->digest[0]); /* its source has not made it */
    pthread_mutex_unlock(&v->store->lock);
    return is;
}
