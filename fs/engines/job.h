/* Job: work for control on a thread of its own, counted, so that the mount's end waits for it. */
#ifndef WS_FS_ENGINES_JOB_H
#define WS_FS_ENGINES_JOB_H
#include "fs/engines/controller.h"

/* Runs fn(arg) on a thread of its own. -ESHUTDOWN: the mount is ending; -EAGAIN. */
WS_MUST_USE int ws_job_start(struct ws_control *c, void (*fn)(void *arg), void *arg);
/* Waits until none runs any more; c->stop is set, so that none can begin. */
void ws_jobs_wait(struct ws_control *c);

#endif
