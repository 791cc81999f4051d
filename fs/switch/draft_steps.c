#include "fs/switch/draft_steps.h"
#include "transports/base/clock.h"
#include <errno.h>
#include <inttypes.h>

static void post_event(struct ws_switch_engine *se, const char *what, const char *version, uint64_t start_ns,
                       int rc)
{
    char why[WS_ERROR_TEXT];
    ws_controller_event(se->run->control, se->draft->controller,
                        "%s model=%s version=%s engine=%s seconds=%.3f result=%s%s%.300s%s", what,
                        se->draft->controller->name, version, se->engine->name,
                        (double)(ws_clock_ns() - start_ns) * 1e-9, rc < 0 ? ws_errno_name(-rc) : "ok",
                        rc < 0 ? " why=\"" : "", rc < 0 ? ws_controller_quotable(se->err.text, why) : "",
                        rc < 0 ? "\"" : "");
}

/* process: that was there before the load, empty: not known. id NULL: it may have anything. */
static void record(const struct ws_switch_engine *se, const char *process, const struct ws_version_id *id)
{
    pthread_mutex_lock(&se->run->control->lock);
    if (id)
        ws_draft_loaded(&se->engine->draft, id, process);
    else
        ws_draft_forget(&se->engine->draft);
    pthread_mutex_unlock(&se->run->control->lock);
}

static int load(struct ws_switch_engine *se, struct ws_version *v, const char *what)
{
    const struct ws_version_id id = ws_version_id(v);
    const uint64_t start = ws_clock_ns();
    char path[PATH_MAX], text[WS_VERSION_ID_TEXT], number[24], process[WS_ENGINE_PROCESS_CHARS + 1];
    const struct ws_engine_ops *ops = se->engine->ops;
    struct ws_engine_call call;
    ws_engine_step_path(se, se->draft->model, v, path);
    ws_version_id_text(&id, text);
    snprintf(number, sizeof(number), "%" PRIu64, id.version);
    ws_engine_step_call(se, false, &call);
    /* Asked before: one that is started anew after the load, and has lost it, answers as another process then. */
    if (!ops->process || ops->process(&call.target, process, NULL) < 0)
        process[0] = 0;
    int rc = ops->load_draft(&call.target, path, text, &se->err);
    record(se, process, rc == 0 ? &id : NULL);
    post_event(se, what, number, start, rc);
    return rc;
}

int ws_draft_step_load(struct ws_switch_engine *se)
{
    const int rc = load(se, se->draft->version, "loaded");
    se->draft_told = rc != -EPROTO && rc != -EHOSTUNREACH && rc != -EAGAIN; /* else it was not sent */
    se->lost = rc < 0;
    return rc;
}

int ws_draft_step_bring_back(struct ws_switch_engine *se)
{
    struct ws_version *before = ws_model_current(se->draft->model);
    if (!before) {
        ws_controller_event(
            se->run->control, se->draft->controller,
            "draft-stays model=%s engine=%s why=\"no version of it was current before: nothing is known "
            "of what the engine was started with\"",
            se->draft->controller->name, se->engine->name);
        return 0;
    }
    const int rc = load(se, before, "loaded");
    ws_version_put(before);
    return rc < 0 ? ws_error_prefix(&se->err, "its draft model") : 0;
}
