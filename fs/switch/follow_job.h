/* Follow job: versions that are to be switched to or prepared, on a thread of its own with references of its own; and how what an
 * agent desires is found among the versions that are known here. */
#ifndef WS_FS_SWITCH_FOLLOW_JOB_H
#define WS_FS_SWITCH_FOLLOW_JOB_H
#include "fs/switch/switch.h"

struct ws_follow_job {
    struct ws_control *control;
    uint64_t release;        /* 0: a published version is followed */
    struct ws_version_id to; /* what is to be prepared, or fetched */
    size_t n;
    struct ws_switch_item items[];
};
/* NULL: no memory. */
struct ws_follow_job *ws_follow_job_new(struct ws_control *c, size_t room);
/* Takes the reference of v over. NULL: it is looked for later. */
void ws_follow_job_add(struct ws_follow_job *job, struct ws_controller *ctl, struct ws_model *m,
                       struct ws_version *v);
void ws_follow_job_free(struct ws_follow_job *job); /* NULL is fine */
/* fn frees it; so does this where there is nothing to do, or no thread for it. */
void ws_follow_job_start(struct ws_follow_job *job, void (*fn)(void *job));

/* A reference; NULL: err says why. */
struct ws_version *ws_follow_find(struct ws_model *m, const struct ws_version_id *to, struct ws_error *err);
/* The same, once the other agents have listed their parts, too: waits for a moment. */
struct ws_version *ws_follow_find_when_whole(const struct ws_control *c, struct ws_model *m,
                                             const struct ws_version_id *to, struct ws_error *err);
/* Does a version of the model lack a part? Several agents list a model that is made of parts, and what one of them
 * orders is whole here only when the others have listed their parts, too. */
bool ws_follow_lacks_parts(struct ws_model *m);

#endif
