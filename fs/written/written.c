#include "fs/written/written.h"
#include "fs/ending.h"
#include "fs/fuse/beacon.h"
#include "fs/fuse/place.h"
#include "fs/written/committer.h"
#include "fs/written/ops.h"
#include "transports/base/clock.h"
#include "transports/base/log.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/syscall.h>
#include <unistd.h>

#define WORKERS 64 /* some wait for what is published */

struct served {
    struct written w;
    struct ws_place place;
};

/* A tmpfs that is mounted nowhere: nobody reaches it by a path, and it ends with us. -1: we may not. */
static int memory_new(void)
{
    const int fs = (int)syscall(SYS_fsopen, "tmpfs", 1u /* FSOPEN_CLOEXEC */);
    int fd = -1;

    if (fs < 0)
        return -1;
    /* Files get their full length first, mostly. A kernel without huge pages refuses the word, and does without. */
    (void)!syscall(SYS_fsconfig, fs, 1u /* FSCONFIG_SET_STRING */, "huge", "within_size", 0);
    if (syscall(SYS_fsconfig, fs, 1u /* FSCONFIG_SET_STRING */, "mode", "0755", 0) == 0 &&
        syscall(SYS_fsconfig, fs, 6u /* FSCONFIG_CMD_CREATE */, NULL, NULL, 0) == 0)
        fd = (int)syscall(SYS_fsmount, fs, 1u /* FSMOUNT_CLOEXEC */, 2u | 4u /* nosuid, nodev */);
    close(fs);
    return fd;
}

static void op_init(void *arg, struct fuse_conn_info *conn)
{
    (void)arg;
#if FUSE_VERSION >= FUSE_MAKE_VERSION(3, 17)
    if (conn->capable & FUSE_CAP_PASSTHROUGH) {
        conn->want |= FUSE_CAP_PASSTHROUGH;
        conn->max_backing_stack_depth = 1;
    }
#endif
    conn->max_write = 1 << 20;
    conn->want |= conn->capable & (unsigned)FUSE_CAP_PARALLEL_DIROPS;
}

static void end_control(void *arg)
{
    struct served *s = arg;

    pthread_mutex_lock(&s->w.lock);
    s->w.ends = true;
    pthread_cond_broadcast(&s->w.changed);
    pthread_mutex_unlock(&s->w.lock);
    s->w.options->stop(s->w.options->arg);
}

static void end_session(void *arg)
{
    struct served *s = arg;
    fuse_session_exit(s->w.session);
}

/* The folder below, once what a daemon that died has left on it is gone. */
static int open_below(struct written *w, struct ws_error *err)
{
    const char *at = w->options->at;
    const bool was_dead = ws_place_ask(ws_place_look, at) == WS_PLACE_IS_DEAD;
    struct stat st;
    const int rc = ws_place_check(at, err);

    if (rc < 0)
        return rc;
    if (was_dead)
        ws_log(WS_LOG_WARN, "share", "%s: who shared it before was killed; what was not published is gone",
               at);
    w->lower = open(at, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (w->lower < 0)
        return ws_error_set(err, errno, "cannot open the folder %s: %m", at);
    w->root.fd = w->lower;
    w->memory = memory_new();
    if (w->memory >= 0 && fstat(w->memory, &st) == 0)
        w->memory_dev = st.st_dev;
    else
        ws_log(WS_LOG_INFO, "share",
               "no memory of its own without CAP_SYS_ADMIN: versions are written into %s", at);
    return 0;
}

static int mount_it(struct served *s, const struct fuse_lowlevel_ops *ops, struct ws_error *err)
{
    const struct ws_written_options *o = s->w.options;
    char text[128];
    char *words[] = {"wsync", text};
    struct fuse_args args = FUSE_ARGS_INIT(2, words);

    snprintf(text, sizeof(text),
             "-osubtype=wsync,fsname=" WS_WRITTEN_FSNAME ",default_permissions,nosuid,nodev%s%s",
             o->allow_other ? ",allow_other" : "", o->debug ? ",debug" : "");
    s->w.session = fuse_session_new(&args, ops, sizeof(*ops), &s->w);
    fuse_opt_free_args(&args);
    if (!s->w.session)
        return ws_error_set(err, EIO, "libfuse did not start a session");
    errno = 0;
    if (fuse_session_mount(s->w.session, o->at) != 0)
        return ws_error_set(err, errno ? errno : EIO, "cannot mount on %s: %s", o->at,
                            errno ? strerror(errno) : "libfuse said why above");
    const int rc = ws_place_record(&s->place, o->at, fuse_session_fd(s->w.session));
    if (rc < 0)
        return ws_error_set(err, -rc, "cannot mount on %s: %s", o->at, strerror(-rc));
    (void)ws_beacon_light(s->place.dev);
    return 0;
}

static int serve(struct served *s, struct ws_error *err)
{
    struct ws_ending *ending = NULL;
    struct fuse_loop_config *config = fuse_loop_cfg_create();
    pthread_t committer;
    int rc = config ? -pthread_create(&committer, NULL, written_commit, &s->w) : -ENOMEM;
    const bool started = rc == 0;

    if (rc == 0)
        rc = ws_ending_watch(&ending, &(struct ws_ending_options){.place = &s->place,
                                                                  .end_control = end_control,
                                                                  .end_session = end_session,
                                                                  .arg = s,
                                                                  .session = pthread_self()});
    if (rc == 0) {
        fuse_loop_cfg_set_clone_fd(config, 0);
        fuse_loop_cfg_set_max_threads(config, WORKERS);
        fuse_loop_cfg_set_idle_threads(config, WORKERS);
        s->w.options->ready(s->w.options->arg);
        rc = fuse_session_loop_mt(s->w.session, config);
    }
    end_control(s);
    if (started)
        pthread_join(committer, NULL);
    ws_ending_over(ending);
    if (config)
        fuse_loop_cfg_destroy(config);
    return rc < 0
               ? ws_error_set(err, -rc, "cannot serve the mount on %s: %s", s->w.options->at, strerror(-rc))
               : 0;
}

int ws_written_run(const struct ws_written_options *o, struct ws_error *err)
{
    static struct served s; /* large, and one a process */
    struct fuse_lowlevel_ops ops = {.init = op_init};
    const int turn = ws_place_turn(o->at);

    s = (struct served){.w = {.options = o, .lower = -1, .memory = -1}};
    pthread_mutex_init(&s.w.lock, NULL);
    ws_cond_init(&s.w.changed);
    written_name_ops(&ops);
    written_file_ops(&ops);
    umask(0);
    ws_ending_block_signals(NULL);
    int rc = open_below(&s.w, err);
    if (rc == 0)
        rc = mount_it(&s, &ops, err);
    if (turn >= 0)
        close(turn);
    if (rc == 0)
        rc = serve(&s, err);
    if (s.w.session) {
        fuse_session_unmount(s.w.session);
        fuse_session_destroy(s.w.session);
    }
    written_free(&s.w);
    return rc;
}
