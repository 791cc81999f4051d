#include "fs/switch/prepare.h"
#include "fs/switch/follow.h"
#include "fs/switch/follow_job.h"
#include "fs/switch/preflight.h"
#include "fs/switch/presence.h"
#include "fs/switch/set.h"
#include <inttypes.h>

#define PREPARE_S 86400 /* the agent's deadline is shorter */

static void record_prepared(struct ws_control *c, struct ws_controller *ctl, uint64_t release)
{
    pthread_mutex_lock(&c->lock);
    ctl->prepared_release = release;
    pthread_mutex_unlock(&c->lock);
}

static int prepare_release(const struct ws_follow_job *job, const struct ws_switch_item *p,
                           const struct ws_switch_options *o, struct ws_error *err)
{
    int rc = ws_preflight(job->control, p->controller, err);
    if (rc == 0)
        rc = ws_set_check_release(job->control, p, job->release, err);
    return rc < 0 ? rc : ws_switch_prepare(job->control, p, o, err);
}

static int prepare_item(const struct ws_follow_job *job, struct ws_switch_item *p, struct ws_error *err)
{
    struct ws_control *c = job->control;
    const struct ws_switch_options o = {.deadline_s = PREPARE_S, .is_followed = true};
    p->version = ws_follow_find_when_whole(c, p->model, &job->to, err);
    if (!p->version)
        return -err->code; /* an old version, as one that went before this mount heard of the release */
    int rc = job->release ? prepare_release(job, p, &o, err)
                          : ws_switch_pull(c, p->version, WS_PRIORITY_SWITCH, &o, err);
    if (rc < 0)
        (void)ws_controller_fail(c, p->controller,
                                 job->release ? "prepare a release" : "fetch for another mount", err);
    ws_controller_event(c, p->controller, "%s model=%s version=%" PRIu64 " result=%s",
                        job->release ? "prepared" : "fetched", p->controller->name,
                        ws_version_number(p->version), rc < 0 ? ws_errno_name(-rc) : "ok");
    return rc;
}

static void prepare(void *arg)
{
    struct ws_follow_job *job = arg;
    struct ws_control *c = job->control;
    struct ws_switch_item *p = &job->items[0];
    struct ws_error err = {0};
    int rc = prepare_item(job, p, &err);
    if (job->release)
        record_prepared(c, p->controller, job->release);
    ws_presence_report(c, p->controller, p->model, &job->to,
                       rc < 0         ? "failed"
                       : job->release ? "prepared"
                                      : "fetched",
                       job->release, rc < 0 ? err.text : NULL);
    ws_follow_check(c, p->model); /* it may have been committed meanwhile */
    ws_follow_job_free(job);
}

void ws_prepare_start(struct ws_control *c, struct ws_controller *ctl, struct ws_model *m,
                      const struct ws_version_id *to, uint64_t release)
{
    struct ws_follow_job *job = ws_follow_job_new(c, 1);
    if (!job)
        return;
    job->release = release;
    job->to = *to;
    ws_follow_job_add(job, ctl, m, NULL);
    ws_follow_job_start(job, prepare);
}
