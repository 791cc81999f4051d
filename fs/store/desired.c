#include "fs/store/desired.h"
#include "transports/base/name.h"
#include "transports/base/number.h"
#include "transports/format/manifest.h"
#include <errno.h>

static int read_mark(const json_t *object, struct ws_mark *out)
{
    const char *run = json_string_value(json_object_get(object, "run"));
    uint64_t version;
    if (!run || !ws_run_is_safe(run) || ws_number_read(json_object_get(object, "version"), &version) < 0)
        return -EPROTO;
    *out = ws_mark_of(version, run);
    return 0;
}

static int read_phase(const json_t *release, enum ws_order_phase *out)
{
    static const char *const names[] = {"", "preparing", "committed", "aborted"};
    const char *name = json_string_value(json_object_get(release, "phase"));
    for (size_t i = WS_ORDER_PREPARING; name && i < sizeof(names) / sizeof(names[0]); i++)
        if (strcmp(name, names[i]) == 0)
            *out = (enum ws_order_phase)i;
    return *out == WS_ORDER_NONE ? -EPROTO : 0;
}

static bool names_us(const json_t *mounts, const char *who)
{
    const json_t *name;
    size_t i;
    json_array_foreach(mounts, i, name)
    {
        if (json_is_string(name) && ws_name_means_mount(json_string_value(name), who))
            return true;
    }
    return false;
}

int ws_orders_read(const json_t *model, const char *who, struct ws_orders *out)
{
    const json_t *release = json_object_get(model, "release"), *released = json_object_get(model, "released");
    const json_t *wanted = json_object_get(model, "wanted"), *one;
    size_t i;
    *out = (struct ws_orders){0};
    if (release && (ws_number_read(json_object_get(release, "id"), &out->release) < 0 ||
                    read_phase(release, &out->phase) < 0 || read_mark(release, &out->to) < 0))
        return -EPROTO;
    if (released && (ws_number_read(json_object_get(released, "by"), &out->released_by) < 0 ||
                     read_mark(released, &out->released) < 0))
        return -EPROTO;
    json_array_foreach(wanted, i, one)
    {
        if (!who || out->n_wanted == WS_MAX_WANTED || !names_us(json_object_get(one, "mounts"), who))
            continue;
        struct ws_wanted *w = &out->wanted[out->n_wanted];
        if (ws_number_read(json_object_get(one, "id"), &w->id) < 0 || read_mark(one, &w->version) < 0)
            return -EPROTO;
        out->n_wanted++;
    }
    return 0;
}

void ws_orders_keep(struct ws_orders *o, const struct ws_orders *before)
{
    if (o->released_by || !before->released_by)
        return;
    o->released_by = before->released_by;
    o->released = before->released;
    o->kept = true;
}

static bool is_same(const struct ws_mark *a, const struct ws_mark *b)
{
    return ws_mark_is(a, b) || (!a->run[0] && !b->run[0]);
}

bool ws_orders_same(const struct ws_orders *a, const struct ws_orders *b)
{
    bool same = a->release == b->release && a->phase == b->phase && is_same(&a->to, &b->to) &&
                a->released_by == b->released_by && is_same(&a->released, &b->released) &&
                a->kept == b->kept && a->n_wanted == b->n_wanted;
    for (size_t i = 0; same && i < a->n_wanted; i++)
        same = a->wanted[i].id == b->wanted[i].id;
    return same;
}

bool ws_orders_want(const struct ws_orders *o, uint64_t wanted_id)
{
    for (size_t i = 0; i < o->n_wanted; i++)
        if (o->wanted[i].id == wanted_id)
            return true;
    return false;
}
