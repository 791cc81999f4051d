/* Saved: the file, its lock, and the thread that writes what changed (saved.h). */
#include "backends/trainer/agent/saved/saved.h"
#include "backends/trainer/agent/core/features.h"
#include "backends/trainer/agent/saved/saved_text.h"
#include "transports/base/clock.h"
#include "transports/base/log.h"
#include "transports/base/state_file.h"
#include "transports/base/workers.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define AGAIN_NS WS_SECOND_NS     /* after a failure */
#define CALM_NS  (100 * WS_MS_NS) /* mounts that register one after the other are written together */

struct saved {
    pthread_t thread;
    bool runs, has_lock; /* the thread; `writing` and `lock` */
    int lock;
    bool changed; /* guarded by the agent's lock */
    /* Held while the file is written; taken before the agent's lock. Guards: */
    pthread_mutex_t writing;
    char *last; /* what is in the file; NULL: not known */
    bool failed;
};

static struct saved *saved_of(const struct ws_agent *a)
{
    return a->feature_state[WS_FEATURE_saved];
}

void ws_saved_mark(struct ws_agent *a)
{
    if (!a->options.state || saved_of(a)->changed)
        return;
    saved_of(a)->changed = true;
    pthread_cond_broadcast(&a->changed);
}

/* Under lock: what `recording` says is in the file, or there is none. */
static void mark_recorded(struct ws_agent *a)
{
    for (struct ws_agent_model *m = a->models; m; m = m->next)
        m->fleet.recorded = m->fleet.recording;
}

static int write_text(struct ws_agent *a, struct saved *s, char *text, size_t n, struct ws_error *err)
{
    if (!text)
        return ws_error_set(err, ENOMEM, "no memory for the agent's state");
    if (s->last && strcmp(s->last, text) == 0) {
        free(text);
        return 0;
    }
    free(s->last);
    s->last = NULL;
    const int rc = ws_state_file_write(a->options.state, text, n);
    if (rc < 0) {
        free(text);
        return ws_error_set(err, -rc, "cannot write %s: %s; make room there, or name another file (--state)",
                            a->options.state, strerror(-rc));
    }
    s->last = text;
    return 0;
}

int ws_saved_write(struct ws_agent *a, struct ws_error *err)
{
    struct saved *s = saved_of(a);
    size_t n = 0;
    int rc = 0;
    if (!a->options.state) {
        struct ws_version_id to;
        bool quarantines;
        pthread_mutex_lock(&a->lock);
        for (struct ws_agent_model *m = a->models; m; m = m->next)
            m->fleet.recording = ws_fleet_newest_release(&m->fleet, &to, &quarantines);
        mark_recorded(a);
        pthread_mutex_unlock(&a->lock);
        return 0;
    }
    pthread_mutex_lock(&s->writing);
    pthread_mutex_lock(&a->lock);
    char *text = ws_saved_text(a, &n);
    pthread_mutex_unlock(&a->lock);
    rc = write_text(a, s, text, n, err);
    if (rc < 0 && !s->failed)
        ws_log(WS_LOG_WARN, "agent", "%s", err->text);
    if (rc == 0 && s->failed)
        ws_log(WS_LOG_INFO, "agent", "the state is written again file=%s", a->options.state);
    s->failed = rc < 0;
    if (rc == 0) {
        pthread_mutex_lock(&a->lock);
        mark_recorded(a);
        pthread_mutex_unlock(&a->lock);
    }
    pthread_mutex_unlock(&s->writing);
    return rc;
}

static void *saved_main(void *arg)
{
    struct ws_agent *a = arg;
    struct saved *s = saved_of(a);
    pthread_mutex_lock(&a->lock);
    while (!atomic_load(&a->stop)) {
        struct ws_error err;
        if (!s->changed) {
            pthread_cond_wait(&a->changed, &a->lock);
            continue;
        }
        s->changed = false;
        pthread_mutex_unlock(&a->lock);
        const int rc = ws_saved_write(a, &err);
        const uint64_t until = ws_clock_ns() + (rc < 0 ? AGAIN_NS : CALM_NS);
        pthread_mutex_lock(&a->lock);
        s->changed = s->changed || rc < 0;
        while (ws_agent_wait(a, until))
            ;
    }
    pthread_mutex_unlock(&a->lock);
    return NULL;
}

/* --- start and stop --- */

static int take_lock(struct ws_agent *a, struct ws_error *err)
{
    const char *path = a->options.state;
    struct stat st;
    long owner;
    if (lstat(path, &st) == 0 &&
        S_ISLNK(st.st_mode)) /* the lock would be beside it, and the rename would end it */
        return ws_error_set(
            err, ELOOP,
            "the state cannot be kept in %s: it is a symbolic link; name the file that it leads to "
            "(--state)",
            path);
    const int rc = ws_state_file_lock(path, &saved_of(a)->lock, &owner);
    if (rc == -EBUSY && owner > 0)
        return ws_error_set(err, EBUSY,
                            "another agent (process %ld) has the state in %s: end it, or name another file "
                            "(--state)",
                            owner, path);
    if (rc == -EBUSY)
        return ws_error_set(
            err, EBUSY, "another agent has the state in %s: end it, or name another file (--state)", path);
    return rc < 0 ? ws_error_set(err, -rc, "the state cannot be kept in %s: %s; name another file (--state)",
                                 path, strerror(-rc))
                  : 0;
}

static int load(struct ws_agent *a, struct ws_error *err)
{
    const char *path = a->options.state;
    struct ws_error why;
    char *text;
    size_t n;
    int rc = ws_state_file_read(path, &text, &n, &why);
    if (rc == 0 && text) {
        pthread_mutex_lock(&a->lock);
        rc = ws_saved_read(a, text, n, &why);
        pthread_mutex_unlock(&a->lock);
    }
    free(text);
    if (rc == -EPROTO)
        return ws_error_set(
            err, EPROTO,
            "the state in %s is of a newer release: %s; start that release, or name another file "
            "(--state)",
            path, why.text);
    if (rc == -EBADMSG)
        return ws_error_set(
            err, EBADMSG,
            "the state in %s is not used, since %s: put a copy of it back, or move the file away "
            "to begin without what was released and published",
            path, why.text);
    return rc < 0 ? ws_error_set(err, -rc, "the state in %s is not used: %s", path, why.text) : 0;
}

static int start(struct ws_agent *a, struct ws_error *err)
{
    struct saved *s = saved_of(a);
    if (!a->options.state)
        return 0;
    int rc = take_lock(a, err);
    if (rc < 0)
        return rc;
    pthread_mutex_init(&s->writing, NULL);
    s->has_lock = true;
    rc = load(a, err);
    if (rc == 0)
        rc = ws_saved_write(a, err); /* a disk that is full or read-only shows now */
    if (rc < 0)
        return rc;
    s->runs = ws_thread_start(&s->thread, saved_main, a) == 0;
    return s->runs ? 0 : ws_error_set(err, EAGAIN, "cannot start the agent's threads");
}

static void stop(struct ws_agent *a)
{
    struct saved *s = saved_of(a);
    if (s->runs)
        pthread_join(s->thread, NULL);
}

/* Where it cannot be written training goes on; the log has why. */
static void sealed(struct ws_agent *a)
{
    struct ws_error err;
    if (a->options.state && ws_saved_write(a, &err) < 0)
        ws_log(WS_LOG_DEBUG, "agent", "a number is announced that the state file lacks");
}

/* What came while others stopped is written, too. */
static void end(struct ws_agent *a)
{
    struct saved *s = saved_of(a);
    if (!s->has_lock)
        return;
    if (s->runs)
        sealed(a);
    close(s->lock);
    pthread_mutex_destroy(&s->writing);
    free(s->last);
}

static void put_status(const struct ws_agent *a, json_t *out)
{
    if (a->options.state)
        json_object_set_new(out, "state", json_string(a->options.state));
}

const struct ws_agent_feature ws_feature_saved = {
    .agent_bytes = sizeof(struct saved),
    .start = start,
    .stop = stop,
    .end = end,
    .sealed = sealed,
    .announced = ws_saved_mark,
    .status = put_status,
};
