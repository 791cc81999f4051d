#include "fs/store/node_parts.h"
#include "fs/store/model.h"
#include "fs/store/poller.h"
#include "fs/store/version.h"
#include "transports/base/clock.h"
#include "transports/base/log.h"
#include "transports/format/node_part.h"
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WARN_NS 5000000000UL /* sources are heard of every WS_POLL_MS at least */

bool ws_model_is_hidden(const struct ws_model *m)
{
    return m->part_count > 0;
}

bool ws_version_is_offered(const struct ws_version *v)
{
    return v->sources || v->in_parts;
}

/* --- who has what --- */

void ws_parts_note(struct ws_model *m, const json_t *json)
{
    const json_t *nodes = json_object_get(json_object_get(json, "part"), "nodes"), *node;
    size_t i;

    json_array_foreach(nodes, i, node)
    {
        const char *name = json_string_value(node);
        if (!name || i >= WS_MAX_PARTS || (m->nodes[i] && strcmp(m->nodes[i], name) == 0))
            continue;
        free(m->nodes[i]);
        m->nodes[i] = strdup(name);
    }
}

static struct ws_model *part_of(const struct ws_model *m, unsigned index, unsigned count)
{
    char name[WS_MAX_NAME + 1];

    if (ws_part_model(name, m->name, index, count, NULL) < 0)
        return NULL;
    return ws_model_at(m->store, name, NULL);
}

static struct ws_version *part_version(const struct ws_model *m, unsigned index, unsigned count,
                                       uint64_t number, const char *run)
{
    struct ws_model *part = part_of(m, index, count);
    struct ws_version *w = part ? ws_version_named(part, number, run) : NULL;

    return w && (w->sources || ws_version_is_complete(w)) ? w : NULL;
}

/* "part 1 of 2 (node n1:18861)" */
static void name_part(const struct ws_model *m, unsigned index, unsigned count, char *out, size_t cap)
{
    snprintf(out, cap, "part %u of %u%s%.200s%s", index + 1, count, m->nodes[index] ? " (of the agent " : "",
             m->nodes[index] ? m->nodes[index] : "", m->nodes[index] ? ")" : "");
}

/* --- which versions there are --- */

/* A version of which the first known part is w. True: all are there. */
static bool look(struct ws_model *m, const struct ws_version *w, unsigned count, struct ws_version **out,
                 struct ws_changes *c)
{
    uint64_t bytes = 0, created_ns = 0;
    char part[300], missing[WS_ERROR_TEXT / 2] = "";
    size_t used = 0;

    for (unsigned i = 0; i < count; i++) {
        const struct ws_version *p = part_version(m, i, count, w->number, w->run);
        if (p) {
            bytes += p->listed_bytes;
            created_ns = p->created_ns > created_ns ? p->created_ns : created_ns;
            continue;
        }
        m->lacks_agent = m->lacks_agent || !part_of(m, i, count);
        name_part(m, i, count, part, sizeof(part));
        if (used < sizeof(missing))
            used += (size_t)snprintf(missing + used, sizeof(missing) - used, "%s%s", used ? ", " : "", part);
    }
    if (missing[0]) {
        if (w->number >= m->lacking_number) {
            m->lacking_number = w->number;
            snprintf(m->lacking, sizeof(m->lacking),
                     "%s/%" PRIu64
                     " lacks %s: add that agent to the mount's URLs, or see whether it is up and "
                     "within reach",
                     m->name, w->number, missing);
        }
        return false;
    }
    *out = ws_version_named(m, w->number, w->run);
    if (!*out) {
        *out = ws_version_new(m, w->number, w->run);
        if (!*out)
            return false;
        (*out)->listed_bytes = bytes;
        (*out)->created_ns = created_ns;
        ws_changes_add(c, WS_VERSION_KNOWN, m, *out);
    }
    return true;
}

/* Is it the first of the parts that are known of a version? */
static bool is_first(const struct ws_model *m, const struct ws_model *part, const struct ws_version *w)
{
    for (unsigned i = 0; i < part->part_index; i++)
        if (part_version(m, i, part->part_count, w->number, w->run))
            return false;
    return true;
}

static bool belongs(const struct ws_model *part, const struct ws_model *m)
{
    char base[WS_MAX_NAME + 1];

    return ws_model_is_hidden(part) && ws_name_is_part(part->name, base, NULL, NULL) &&
           strcmp(base, m->name) == 0;
}

/* Parts of a new version are listed one after the other; what nobody has ever listed is another matter. */
static void warn(struct ws_model *m)
{
    bool answered = true;

    for (unsigned i = 0; i < WS_MAX_SOURCES; i++)
        answered = answered && (!m->store->watches[i] || m->store->watches[i]->answered);
    if (!m->lacking[0] || !m->lacks_agent || m->warned) {
        m->lacking_since_ns = 0;
        return;
    }
    if (!m->lacking_since_ns)
        m->lacking_since_ns = ws_clock_ns();
    if (!answered || ws_clock_ns() - m->lacking_since_ns < WARN_NS)
        return;
    m->warned = true;
    ws_log(WS_LOG_WARN, "store", "%s", m->lacking);
}

void ws_parts_settle(struct ws_model *m, struct ws_changes *c)
{
    if (ws_model_is_hidden(m))
        return;
    m->lacking[0] = '\0';
    m->lacking_number = 0;
    m->lacks_agent = false;
    for (struct ws_version *v = m->versions; v; v = v->next)
        v->in_parts = 0;
    for (struct ws_model *part = m->store->models; part; part = part->next) {
        if (!belongs(part, m))
            continue;
        for (struct ws_version *w = part->versions, *v; w; w = w->next) {
            if (!(w->sources || ws_version_is_complete(w)) || !is_first(m, part, w))
                continue;
            if (m->run[0] && strcmp(w->run, m->run) != 0 && !ws_version_named(m, w->number, w->run))
                continue; /* of a lineage that was abandoned */
            if (look(m, w, part->part_count, &v, c))
                v->in_parts = part->part_count;
        }
    }
    /* What lacks a part and is older than what is whole is on its way out. */
    for (const struct ws_version *v = m->versions; v; v = v->next)
        if (ws_version_is_offered(v) && v->live && v->number >= m->lacking_number)
            m->lacking[0] = '\0';
    warn(m);
}

void ws_parts_unlist(struct ws_model *m, struct ws_changes *c)
{
    for (struct ws_model *part = m->store->models, *next; part; part = next) {
        next = part->next;
        if (belongs(part, m))
            ws_model_unlist(part, c);
    }
    for (struct ws_version *v = m->versions; v; v = v->next)
        v->in_parts = 0;
}

struct ws_version *ws_parts_get(struct ws_version *v, unsigned i, struct ws_error *err)
{
    struct ws_version *w = part_version(v->model, i, v->in_parts, v->number, v->run);
    char part[300];

    if (w)
        return ws_version_get(w);
    name_part(v->model, i, v->in_parts ? v->in_parts : i + 1, part, sizeof(part));
    ws_error_set(err, ESTALE, "%s/%" PRIu64 " lacks %s: it is gone there", v->model->name, v->number, part);
    return NULL;
}

bool ws_version_comes_in_parts(const struct ws_version *v)
{
    bool whole = false;

    if (!v->in_parts || ws_version_is_complete(v) || ws_version_has_bytes(v))
        return false;
    for (unsigned i = 0; i < WS_MAX_SOURCES; i++) {
        const struct ws_watch *w = v->store->watches[i];
        whole = whole || (w && w->up && (v->sources & ws_bit(i)));
    }
    return !whole;
}

bool ws_model_lacks(struct ws_model *m, char *out, size_t cap)
{
    pthread_mutex_lock(&m->store->lock);
    snprintf(out, cap, "%s", m->lacking);
    pthread_mutex_unlock(&m->store->lock);
    return out[0] != '\0';
}

bool ws_version_is_to_be_made(struct ws_version *v)
{
    bool is;

    pthread_mutex_lock(&v->store->lock);
    is = ws_version_comes_in_parts(v);
    pthread_mutex_unlock(&v->store->lock);
    return is;
}
