#include "backends/engine/update.h"
#include "backends/engine/cpu_reload.h"
#include "backends/engine/load.h"
#include "transports/base/clock.h"
#include "transports/format/folder.h"
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define BACK_TRIES 2
#define AT_START   "default" /* what an engine reports that has loaded nothing */

/* The version that the engine gets for the length of the update. It could report the caller's version without
 * this load: because it reports it now, or because it is restarted in between. */
static void make_label(const struct ws_engine_serving *before, const struct ws_engine_facts *facts,
                       const char *version, char out[64])
{
    if (facts->labels && (strcmp(version, before->version) == 0 || strcmp(version, AT_START) == 0))
        snprintf(out, 64, "wsync-%" PRIx64, ws_clock_ns());
    else
        snprintf(out, 64, "%s", version);
}

/* After a load that failed: loads the old path again. Returns the load's -errno; err says in which state the
 * engine was left. */
static int go_back(const struct ws_engine_ops *ops, const struct ws_engine_target *t,
                   const struct ws_engine_serving *before, bool touched, int rc, struct ws_error *err)
{
    struct ws_error why = *err;
    const char *version = before->version[0] ? before->version : AT_START;
    bool good = !touched, sent = true; /* one that is busy with the load was waited for long enough */
    for (int i = 0; !good && sent && before->path[0] && i < BACK_TRIES; i++)
        good =
            ws_engine_load(ops, t, before->path, version, NULL, &sent, NULL) == 0 && ops->flush(t, NULL) == 0;
    bool runs = good && !(t->sleeping && !touched) && ops->resume(t, NULL) == 0 &&
                (!touched || ws_engine_confirm(ops, t, version, NULL) == 0);
    return ws_error_set(err, -rc, "%.700s; %s", why.text,
                        runs                      ? "it serves what it did before"
                        : t->sleeping && !touched ? "it sleeps on"
                        : good                    ? "it has its old weights and could not be resumed"
                               : "its weights are in doubt and it was left paused: restart it");
}

/* A path that is not readable here cannot be looked at: then nothing says what it has. */
static int check_reload(const struct ws_engine_facts *facts, const char *url, const char *path,
                        struct ws_error *err)
{
    struct ws_folder *folder = NULL;
    if (!(facts->frees_int8_scales || facts->leaves_experts) || ws_folder_open(path, &folder, NULL) < 0)
        return 0;
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < folder->n_files; i++)
        rc = folder->files[i].st ? ws_cpu_reload_check(facts, url, &folder->files[i].st, 1, err) : 0;
    ws_folder_free(folder);
    return rc;
}

int ws_engine_update(const struct ws_engine_ops *ops, const struct ws_engine_target *target, const char *path,
                     const char *version, double *pause_seconds, struct ws_error *err)
{
    struct ws_engine_target t = *target;
    struct ws_engine_facts facts;
    struct ws_engine_serving before;
    struct ws_error own = {0};
    char label[sizeof(before.version)];
    bool acted = false, touched = false;
    err = err ? err : &own;
    int rc = ops->probe(&t, &facts, &before, err);
    if (rc < 0)
        return rc;
    if (before.sleep_unknown)
        return ws_error_set(
            err, EAGAIN,
            "%s is paused, and its /metrics do not say whether it sleeps: resume it where it was "
            "paused on purpose, else restart it",
            t.url);
    rc = check_reload(&facts, t.url, path, err);
    if (rc < 0)
        return rc;
    t.facts = &facts;
    t.sleeping = before.sleeping;
    make_label(&before, &facts, version, label);
    const uint64_t start = ws_clock_ns();
    t.acted = &acted;
    rc = ops->pause(&t, err);
    t.acted = NULL;
    if (rc < 0)
        return !acted ? rc : go_back(ops, &t, &before, false, rc, err);
    rc = ws_engine_load(ops, &t, path, label, NULL, &touched, err);
    if (rc == 0)
        rc = ops->flush(&t, err);
    if (rc < 0)
        return go_back(ops, &t, &before, touched, rc, err);
    rc = ops->resume(&t, err);
    if (pause_seconds)
        *pause_seconds = (double)(ws_clock_ns() - start) / 1e9;
    if (rc == 0)
        rc = ws_engine_confirm(ops, &t, label, err);
    if (rc == 0 && strcmp(label, version) != 0)
        rc = ops->label(&t, version, err);
    return rc;
}
