#include "fs/store/desired.h"
#include "transports/base/name.h"
#include "transports/base/number.h"
#include "transports/format/manifest.h"
#include <errno.h>

static int version_from_json(const json_t *object, struct ws_version_id *out)
{
    const char *run = json_string_value(json_object_get(object, "run"));
    uint64_t version;
    if (!run || !ws_lineage_is_safe(run) || ws_number_read(json_object_get(object, "version"), &version) < 0)
        return -EPROTO;
    *out = ws_version_id_make(version, run);
    return 0;
}

static int phase_from_json(const json_t *release, enum ws_desired_phase *out)
{
    static const char *const names[] = {"", "preparing", "committed", "aborted"};
    const char *name = json_string_value(json_object_get(release, "phase"));
    for (size_t i = WS_DESIRED_PREPARING; name && i < sizeof(names) / sizeof(names[0]); i++)
        if (strcmp(name, names[i]) == 0)
            *out = (enum ws_desired_phase)i;
    return *out == WS_DESIRED_NONE ? -EPROTO : 0;
}

static bool names_this_mount(const json_t *mounts, const char *mount_id)
{
    const json_t *name;
    size_t i;
    json_array_foreach(mounts, i, name)
    {
        if (json_is_string(name) && ws_name_matches_mount(json_string_value(name), mount_id))
            return true;
    }
    return false;
}

int ws_desired_from_json(const json_t *model, const char *mount_id, struct ws_desired *out)
{
    const json_t *release = json_object_get(model, "release"), *released = json_object_get(model, "released");
    const json_t *wanted = json_object_get(model, "wanted"), *one;
    size_t i;
    *out = (struct ws_desired){0};
    if (release && (ws_number_read(json_object_get(release, "id"), &out->release) < 0 ||
                    phase_from_json(release, &out->phase) < 0 || version_from_json(release, &out->to) < 0))
        return -EPROTO;
    if (released && (ws_number_read(json_object_get(released, "by"), &out->released_by) < 0 ||
                     version_from_json(released, &out->released) < 0))
        return -EPROTO;
    out->quarantines = json_is_true(json_object_get(released, "quarantine"));
    json_array_foreach(wanted, i, one)
    {
        if (!mount_id || out->n_wanted == WS_MAX_WANTED ||
            !names_this_mount(json_object_get(one, "mounts"), mount_id))
            continue;
        struct ws_wanted *w = &out->wanted[out->n_wanted];
        if (ws_number_read(json_object_get(one, "id"), &w->id) < 0 || version_from_json(one, &w->version) < 0)
            return -EPROTO;
        out->n_wanted++;
    }
    return 0;
}

void ws_desired_inherit(struct ws_desired *o, const struct ws_desired *before)
{
    if (o->released_by || !before->released_by)
        return;
    o->released_by = before->released_by;
    o->released = before->released;
    o->quarantines = before->quarantines;
    o->inherited = true;
}

static bool is_same(const struct ws_version_id *a, const struct ws_version_id *b)
{
    return ws_version_id_equal(a, b) || (!a->lineage[0] && !b->lineage[0]);
}

bool ws_desired_is_same(const struct ws_desired *a, const struct ws_desired *b)
{
    bool same = a->release == b->release && a->phase == b->phase && is_same(&a->to, &b->to) &&
                a->released_by == b->released_by && is_same(&a->released, &b->released) &&
                a->quarantines == b->quarantines && a->inherited == b->inherited &&
                a->n_wanted == b->n_wanted;
    for (size_t i = 0; same && i < a->n_wanted; i++)
        same = a->wanted[i].id == b->wanted[i].id;
    return same;
}

bool ws_desired_wants(const struct ws_desired *o, uint64_t wanted_id)
{
    for (size_t i = 0; i < o->n_wanted; i++)
        if (o->wanted[i].id == wanted_id)
            return true;
    return false;
}
