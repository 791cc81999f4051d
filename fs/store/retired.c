#include "fs/store/retired.h"
#include "fs/store/model.h"
#include "fs/store/node_parts.h"
#include "fs/store/one_copy.h"
#include "fs/store/version.h"
#include "fs/store/way_back.h"
#include "transports/base/name.h"
#include "transports/base/number.h"
#include <string.h>

static bool names(const struct ws_model *m, const struct ws_version_id *id)
{
    for (unsigned i = 0; i < WS_MAX_RETIRED; i++)
        if (ws_version_id_equal(&m->retired[i], id))
            return true;
    return false;
}

bool ws_retired_has(const struct ws_model *m, uint64_t number, const char *lineage)
{
    const struct ws_version_id id = ws_version_id_make(number, lineage);
    char base[WS_MAX_NAME + 1];
    const struct ws_model *of = ws_name_is_view(m->name, base, NULL) ? ws_model_lookup(m->store, base) : NULL;

    return names(m, &id) || (of && names(of, &id));
}

/* Of the model, or of a view of it. */
static void retire(struct ws_model *m, const struct ws_version_id *id, struct ws_store_events *ev)
{
    struct ws_version *v = ws_version_lookup(m, id->version, id->lineage);

    if (!v || v->retired)
        return;
    v->retired = true;
    ws_store_events_add(ev, WS_VERSION_RETIRED, m, v);
}

static void record(struct ws_model *m, const struct ws_version_id *id, struct ws_store_events *ev)
{
    char base[WS_MAX_NAME + 1];

    if (names(m, id))
        return;
    m->retired[m->n_retired++ % WS_MAX_RETIRED] = *id;
    for (struct ws_model *o = m->store->models; o; o = o->next)
        if (o == m || (ws_name_is_view(o->name, base, NULL) && strcmp(base, m->name) == 0))
            retire(o, id, ev);
}

void ws_retired_record(struct ws_model *m, const json_t *entry, struct ws_store_events *ev)
{
    const json_t *one;
    size_t i;

    json_array_foreach(json_object_get(entry, "retired"), i, one)
    {
        const char *lineage = json_string_value(json_object_get(one, "run"));
        uint64_t number;
        if (i == WS_MAX_RETIRED)
            break;
        if (ws_number_read(json_object_get(one, "version"), &number) < 0 || !lineage ||
            !ws_lineage_is_safe(lineage))
            continue;
        const struct ws_version_id id = ws_version_id_make(number, lineage);
        record(m, &id, ev);
    }
}

json_t *ws_retired_to_json(const struct ws_model *m)
{
    json_t *all = json_array();

    for (unsigned i = 0; i < WS_MAX_RETIRED; i++)
        if (m->retired[i].lineage[0])
            json_array_append_new(all, json_pack("{s:I,s:s}", "version", (json_int_t)m->retired[i].version,
                                                 "run", m->retired[i].lineage));
    if (json_array_size(all))
        return all;
    json_decref(all);
    return NULL;
}

bool ws_retired_hides(const struct ws_version *v)
{
    return v->retired && v != v->model->current && !v->pinned && v->n_switches == 0 &&
           !ws_version_is_archived(v);
}

/* Is it the one that the next version comes as a delta on? */
static bool is_next_base(const struct ws_version *v)
{
    if (!ws_version_is_complete(v))
        return false;
    for (const struct ws_version *w = v->model->versions; w; w = w->next)
        if (w != v && ws_version_is_complete(w) && ws_version_is_newer(w, v))
            return false;
    return true;
}

/* Where there is one copy of a model, its memory goes on to other versions by rules of its own. */
bool ws_retired_is_over(struct ws_version *v)
{
    return ws_retired_hides(v) && (ws_version_has_bytes(v) || v->state == WS_FAILED) && !v->pull &&
           v->n_base_for == 0 && atomic_load(&v->retained) == 0 && !ws_version_is_released(v) &&
           !ws_one_copy_applies(v) && !ws_way_back_leads_to(v) && !is_next_base(v);
}
