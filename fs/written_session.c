#include "fs/written_session.h"
#include "fs/ending.h"
#include "fs/fuse/beacon.h"
#include "fs/written/folder.h"
#include "transports/base/log.h"
#include "transports/base/workers.h"
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define MAX_WORKERS 32
#define RETRY_US    250000

struct session {
    struct ws_written written;
    struct ws_place place;
    atomic_bool ends;
};

static void end_control(void *arg)
{
    struct session *s = arg;
    atomic_store(&s->ends, true);
}

static void end_session(void *arg)
{
    const struct session *s = arg;
    fuse_session_exit(s->written.session);
}

static void *retry(void *arg)
{
    struct session *s = arg;
    while (!atomic_load(&s->ends)) {
        ws_written_folder_retry(&s->written);
        usleep(RETRY_US);
    }
    return NULL;
}

static int mount_session(struct session *s, const struct ws_written_session_options *o, struct ws_error *err)
{
    struct fuse_args args = FUSE_ARGS_INIT(0, NULL);
    const char *others = geteuid() == 0 ? ",allow_other" : "";
    char text[128];
    snprintf(text, sizeof(text), "-osubtype=wsync,fsname=wsync-share,default_permissions,nosuid,nodev%s",
             others);
    int rc = fuse_opt_add_arg(&args, "wsync") || fuse_opt_add_arg(&args, text)
                 ? ws_error_set(err, ENOMEM, "out of memory")
                 : 0;
    if (rc == 0)
        s->written.session = fuse_session_new(&args, &ws_written_ops, sizeof(ws_written_ops), &s->written);
    fuse_opt_free_args(&args);
    if (rc == 0 && !s->written.session)
        rc = ws_error_set(err, EIO, "libfuse did not start a session");
    errno = 0;
    if (rc == 0 && fuse_session_mount(s->written.session, o->dir) != 0)
        rc = ws_error_set(err, errno ? errno : EIO, "cannot mount on %s: %s", o->dir,
                          errno ? strerror(errno) : "libfuse said why above");
    if (rc < 0)
        return rc;
    rc = ws_place_record(&s->place, o->dir, fuse_session_fd(s->written.session));
    if (rc < 0)
        return ws_error_set(err, -rc, "cannot mount on %s: what is there now cannot be told: %s", o->dir,
                            strerror(-rc));
    (void)ws_beacon_light(s->place.dev);
    return 0;
}

/* Those that share there at the same moment take turns, and the second finds the first one's mount. */
static int start(struct session *s, const struct ws_written_session_options *o, struct ws_error *err)
{
    const int turn = ws_place_turn(o->dir);
    int rc = ws_place_check(o->dir, err);
    if (rc == 0)
        rc = ws_written_init(&s->written, o->dir, o->pattern, err);
    if (rc == 0) {
        s->written.marker = o->marker;
        s->written.publish = o->publish;
        s->written.arg = o->arg;
        rc = mount_session(s, o, err);
    }
    if (turn >= 0)
        close(turn);
    return rc;
}

static int serve(struct session *s, const struct ws_written_session_options *o, struct ws_error *err)
{
    struct ws_ending *ending = NULL;
    struct fuse_loop_config *config = fuse_loop_cfg_create();
    pthread_t thread;
    int rc = config ? ws_thread_start(&thread, retry, s) : -ENOMEM;
    const bool started = rc == 0;
    if (rc == 0)
        rc = ws_ending_watch(&ending, &(struct ws_ending_options){.place = &s->place,
                                                                  .end_control = end_control,
                                                                  .end_session = end_session,
                                                                  .arg = s,
                                                                  .session = pthread_self()});
    if (rc == 0) {
        if (o->ready)
            o->ready(o->arg);
        fuse_loop_cfg_set_clone_fd(config, 0);
        fuse_loop_cfg_set_max_threads(config, MAX_WORKERS);
        fuse_loop_cfg_set_idle_threads(config, MAX_WORKERS);
        rc = fuse_session_loop_mt(s->written.session, config);
    }
    if (config)
        fuse_loop_cfg_destroy(config);
    atomic_store(&s->ends, true);
    if (started)
        pthread_join(thread, NULL);
    ws_ending_over(ending);
    return rc < 0 ? ws_error_set(err, -rc, "cannot serve %s: %s", o->dir, strerror(-rc)) : 0;
}

int ws_written_session_run(const struct ws_written_session_options *o, struct ws_error *err)
{
    struct session s = {0};
    sigset_t before;
    ws_ending_block_signals(&before);
    int rc = start(&s, o, err);
    if (rc == 0)
        rc = serve(&s, o, err);
    if (s.place.at && ws_place_detach(&s.place) == -EPERM)
        fuse_session_unmount(s.written.session);
    if (s.written.session)
        fuse_session_destroy(s.written.session);
    if (s.written.nodes)
        ws_written_free(&s.written);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return rc;
}
