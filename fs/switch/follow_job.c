#include "fs/switch/follow_job.h"
#include "fs/engines/job.h"
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PARTS_TRIES 200 /* for a version whose parts the agents list one after the other: 10 s */
#define PARTS_MS    50

struct ws_follow_job *ws_follow_job_new(struct ws_control *c, size_t room)
{
    struct ws_follow_job *job = calloc(1, sizeof(*job) + room * sizeof(job->items[0]));
    if (job)
        job->control = c;
    return job;
}

void ws_follow_job_add(struct ws_follow_job *job, struct ws_controller *ctl, struct ws_model *m,
                       struct ws_version *v)
{
    job->items[job->n++] = (struct ws_switch_item){.controller = ctl, .model = ws_model_get(m), .version = v};
}

void ws_follow_job_free(struct ws_follow_job *job)
{
    for (size_t i = 0; job && i < job->n; i++)
        ws_switch_item_release(&job->items[i]);
    free(job);
}

void ws_follow_job_start(struct ws_follow_job *e, void (*fn)(void *job))
{
    if (e->n == 0 || ws_job_start(e->control, fn, e) < 0)
        ws_follow_job_free(e);
}

struct ws_version *ws_follow_find(struct ws_model *m, const struct ws_version_id *to, struct ws_error *err)
{
    char name[WS_MAX_NAME + 1];
    snprintf(name, sizeof(name), "%" PRIu64, to->version);
    struct ws_version *v = ws_version_find(m, name, err);
    if (v && strcmp(ws_version_lineage(v), to->lineage) != 0) {
        ws_version_put(v);
        v = NULL;
    }
    if (!v) {
        snprintf(name, sizeof(name), "%" PRIu64 "@%s", to->version, to->lineage);
        v = ws_version_find(m, name, err);
    }
    return v;
}

bool ws_follow_lacks_parts(struct ws_model *m)
{
    char missing[WS_ERROR_TEXT / 2];
    return ws_model_missing_parts(m, missing, sizeof(missing));
}

struct ws_version *ws_follow_find_when_whole(const struct ws_control *c, struct ws_model *m,
                                             const struct ws_version_id *to, struct ws_error *err)
{
    struct ws_version *v = ws_follow_find(m, to, err);
    for (int i = 0; !v && i < PARTS_TRIES && ws_follow_lacks_parts(m) && !atomic_load(&c->stop); i++) {
        (void)poll(NULL, 0, PARTS_MS);
        v = ws_follow_find(m, to, err);
    }
    return v;
}
