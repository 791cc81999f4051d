#include "backends/engine/update.h"
#include "transports/clock.h"
#include <errno.h>
#include <string.h>
#include <time.h>

#define BACK_TRIES 2

/* After a load that failed: -errno of the load, with how the engine was left. */
static int go_back(const struct ws_engine_ops *ops, const struct ws_engine_target *t,
                   const struct ws_engine_serving *before, bool touched, int rc, struct ws_error *err)
{
    struct ws_error why = *err;
    bool good = !touched;
    for (int i = 0; !good && before->path[0] && i < BACK_TRIES; i++)
        good = ops->load(t, before->path, before->version[0] ? before->version : "default", NULL) == 0 &&
               ops->flush(t, NULL) == 0;
    bool runs = good && !(t->sleeping && !touched) && ops->resume(t, NULL) == 0;
    return ws_error_set(err, -rc, "%.700s; %s", why.text,
                        runs                      ? "it serves what it did before"
                        : t->sleeping && !touched ? "it sleeps on"
                        : good                    ? "it has its old weights and could not be resumed"
                               : "its weights are in doubt and it was left paused: restart it");
}

int ws_engine_update(const struct ws_engine_ops *ops, const struct ws_engine_target *target, const char *path,
                     const char *version, double *pause_seconds, struct ws_error *err)
{
    struct ws_engine_target t = *target;
    struct ws_engine_facts facts;
    struct ws_engine_serving before, after;
    struct ws_error own = {0};
    err = err ? err : &own;
    int rc = ops->probe(&t, &facts, &before, err);
    if (rc < 0)
        return rc;
    t.facts = &facts;
    t.sleeping = before.sleeping;
    const uint64_t start = ws_clock_ns();
    rc = ops->pause(&t, err);
    if (rc < 0)
        return rc == -EHOSTUNREACH || rc == -EACCES ? rc : go_back(ops, &t, &before, false, rc, err);
    rc = ops->load(&t, path, version, err);
    if ((rc == -ETIMEDOUT || rc == -ECONNRESET) && ops->tells_version &&
        ops->serving(&t, &after, NULL) == 0 && strcmp(after.version, version) == 0)
        rc = 0;
    const bool touched = rc != -EHOSTUNREACH && rc != -EAGAIN;
    if (rc == 0)
        rc = ops->flush(&t, err);
    if (rc < 0)
        return go_back(ops, &t, &before, touched, rc, err);
    rc = ops->resume(&t, err);
    if (pause_seconds)
        *pause_seconds = (double)(ws_clock_ns() - start) / 1e9;
    return rc;
}
