/* The public steps of an engine's client: the routes of its kind, for callers that move weights themselves. */
#include "backends/trainer/api/engine_client.h"
#include "backends/trainer/api/engine_options.h"
#include "backends/trainer/api/last_error.h"
#include "backends/trainer/api/struct_abi.h"
#include "transports/base/clock.h"
#include <errno.h>
#include <stdio.h>

/* One step under way. */
struct step {
    const struct ws_engine_ops *ops;
    struct ws_engine_target target;
    struct ws_engine_running running;
    bool acted;
};

/* After 0 the caller ends it. */
static int begin(wsync_engine_client *c, unsigned timeout_ms, struct step *s, struct ws_error *err)
{
    int rc = ws_engine_client_check(c, err);

    *s = (struct step){0};
    if (rc == 0 && timeout_ms == 0)
        rc = ws_error_set(err, EINVAL, "there is no time for a request to %s", c->engine.url);
    if (rc == 0)
        rc = ws_engine_options_read(&c->engine, &s->ops, &s->target, err);
    if (rc < 0)
        return rc;
    s->target.http = c->http;
    s->target.timeout_ms = s->target.short_ms = timeout_ms;
    s->target.end_ns = ws_clock_ns() + timeout_ms * WS_MS_NS;
    s->target.cancel[0] = &s->running.cancelled;
    s->target.acted = &s->acted;
    ws_engine_client_begin(c, &s->running);
    return 0;
}

static void end(wsync_engine_client *c, struct step *s, int *acted)
{
    ws_engine_client_end(c, &s->running);
    if (acted)
        *acted = s->acted;
}

typedef int operation(const struct ws_engine_target *t, struct ws_error *err);
static operation *pause_of(const struct ws_engine_ops *ops)
{
    return ops->pause;
}

static operation *resume_of(const struct ws_engine_ops *ops)
{
    return ops->resume;
}

static operation *flush_of(const struct ws_engine_ops *ops)
{
    return ops->flush;
}

static int run(wsync_engine_client *c, operation *(*choose)(const struct ws_engine_ops *ops),
               unsigned timeout_ms, int *acted)
{
    struct ws_error *err = ws_last_error();
    struct step s;
    int rc = begin(c, timeout_ms, &s, err);

    if (acted)
        *acted = 0;
    if (rc < 0)
        return rc;
    rc = choose(s.ops)(&s.target, err);
    end(c, &s, acted);
    return rc;
}

int wsync_engine_pause(wsync_engine_client *c, unsigned timeout_ms, int *acted)
{
    return run(c, pause_of, timeout_ms, acted);
}

int wsync_engine_resume(wsync_engine_client *c, unsigned timeout_ms, int *acted)
{
    return run(c, resume_of, timeout_ms, acted);
}

int wsync_engine_flush(wsync_engine_client *c, unsigned timeout_ms)
{
    return run(c, flush_of, timeout_ms, NULL);
}

int wsync_engine_set_version(wsync_engine_client *c, const char *version, unsigned timeout_ms, int *acted)
{
    struct ws_error *err = ws_last_error();
    struct step s;
    int rc = version ? begin(c, timeout_ms, &s, err) : ws_error_set(err, EINVAL, "an engine has no version");

    if (acted)
        *acted = 0;
    if (rc < 0)
        return rc;
    rc = s.ops->label(&s.target, version, err);
    end(c, &s, acted);
    return rc;
}

static void report(const struct ws_engine_serving *now, wsync_engine_state *out)
{
    snprintf(out->version, sizeof(out->version), "%s", now->version);
    snprintf(out->path, sizeof(out->path), "%s", now->path);
    out->paused = now->reports_paused ? now->paused : -1;
    out->sleeping = now->reports_paused && !now->sleep_unknown ? now->sleeping : -1;
}

int wsync_engine_query(wsync_engine_client *c, unsigned timeout_ms, wsync_engine_state *out)
{
    struct ws_error *err = ws_last_error();
    wsync_engine_state state;
    struct ws_engine_serving now;
    struct step s;
    int rc = ws_struct_abi_copy(&state, sizeof(state), out, "wsync_engine_state", err);

    if (rc == 0)
        rc = begin(c, timeout_ms, &s, err);
    if (rc < 0)
        return rc;
    rc = s.ops->serving(&s.target, &now, err);
    if (rc == 0 && s.ops->start_path)
        (void)s.ops->start_path(&s.target, &now, NULL);
    end(c, &s, NULL);
    if (rc < 0)
        return rc;
    report(&now, &state);
    ws_struct_abi_give(out, &state, sizeof(state));
    return 0;
}
