/* Wanted versions: for how long, and on which mounts (wanted.h). */
#include "backends/trainer/agent/mounts/wanted.h"
#include "backends/trainer/agent/core/features.h"
#include "backends/trainer/agent/mounts/releases.h"
#include "transports/base/clock.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define WANTED_NS  60000000000UL /* a version is wanted no longer without a request for so long */
#define MAX_WANTED 8             /* versions of a model at a time */
#define MAX_NAMED  64            /* mounts */

/* A version that a client needs on certain mounts. */
struct ws_wanted_version {
    struct ws_wanted_version *next;
    uint64_t id;
    struct ws_version_id target;
    json_t *mounts; /* array of names; ours alone, as jansson does not count references for several threads */
    uint64_t until_ns;
};

static struct ws_wanted_version **wanted_of(const struct ws_agent_model *m)
{
    return &((struct ws_wanted *)m->feature_state[WS_FEATURE_fleet])->versions;
}

static void free_wanted_version(struct ws_wanted_version *w)
{
    json_decref(w->mounts);
    free(w);
}

void ws_wanted_free(struct ws_agent_model *m)
{
    for (struct ws_wanted_version *w = *wanted_of(m), *next; w; w = next) {
        next = w->next;
        free_wanted_version(w);
    }
}

void ws_wanted_list(const struct ws_agent_model *m, json_t *out)
{
    uint64_t now = ws_clock_ns();
    json_t *wanted = json_array();
    for (const struct ws_wanted_version *w = *wanted_of(m); w; w = w->next)
        if (w->until_ns > now)
            json_array_append_new(wanted, json_pack("{s:I,s:I,s:s,s:o}", "id", (json_int_t)w->id, "version",
                                                    (json_int_t)w->target.version, "run", w->target.lineage,
                                                    "mounts", json_deep_copy(w->mounts)));
    if (json_array_size(wanted))
        json_object_set(out, "wanted", wanted);
    json_decref(wanted);
}

int ws_wanted_add(struct ws_agent *a, struct ws_agent_model *m, const struct ws_version_id *to,
                  const json_t *body, bool *listing_changed, struct ws_error *err)
{
    json_t *names = json_object_get(body, "mounts");
    const json_t *name;
    uint64_t now = ws_clock_ns();
    size_t i, n = 0;
    if (!json_is_array(names) || json_array_size(names) == 0 || json_array_size(names) > MAX_NAMED)
        return ws_error_set(err, EINVAL, "mounts is a list of 1 to %d names", MAX_NAMED);
    json_array_foreach(names, i, name)
    {
        if (!json_is_string(name) || json_string_length(name) > WS_MOUNT_ID_CHARS)
            return ws_error_set(err, EINVAL, "mounts is a list of names");
    }
    for (struct ws_wanted_version **at = wanted_of(m), *w; (w = *at);) {
        bool same = w->target.version == to->version && strcmp(w->target.lineage, to->lineage) == 0 &&
                    json_equal(w->mounts, names);
        if (same && w->until_ns > now) {
            w->until_ns = now + WANTED_NS;
            return 0;
        }
        if (w->until_ns > now) {
            n++;
            at = &w->next;
            continue;
        }
        *at = w->next;
        free_wanted_version(w);
    }
    struct ws_wanted_version *w = n < MAX_WANTED ? calloc(1, sizeof(*w)) : NULL;
    if (!w)
        return ws_error_set(err, EAGAIN, "%d versions of %s are wanted already", MAX_WANTED, m->name);
    *w = (struct ws_wanted_version){.next = *wanted_of(m),
                                    .id = ws_releases_new_id(a),
                                    .target = *to,
                                    .mounts = json_deep_copy(names),
                                    .until_ns = now + WANTED_NS};
    *wanted_of(m) = w;
    json_array_foreach(names, i, name)
    { /* others are not asked again, and would never say it again */
        ws_fleet_reset_reports(&m->fleet, to, json_string_value(name));
    }
    *listing_changed = true;
    return 0;
}
