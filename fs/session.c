#include "fs/session.h"
#include "fs/background.h"
#include "fs/connection.h"
#include "fs/ending.h"
#include "fs/fuse/broker.h"
#include "fs/fuse/exclusions.h"
#include "fs/fuse/fs.h"
#include "fs/fuse/given.h"
#include "fs/fuse/invalidate.h"
#include "fs/fuse/life.h"
#include "fs/fuse/reads.h"
#include "fs/fuse/version_cache.h"
#include "fs/heart.h"
#include "fs/kept.h"
#include "fs/parts.h"
#include "fs/pull/lazy.h"
#include "fs/readiness.h"
#include "fs/relay.h"
#include "fs/supervised.h"
#include "fs/supervisor.h"
#include "fs/switch/settings_lock.h"
#include "fs/user.h"
#include "transports/base/audit_log.h"
#include "transports/base/log.h"
#include "transports/base/workers.h"
#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_WORKERS 16

static void cut_here(void *fs)
{
    ws_connection_cut(fs);
}

static int check_supervised(const struct ws_fs *fs, struct ws_error *err)
{
    if (!fs->options.supervised || fs->reads == WS_READS_PASSTHROUGH)
        return 0;
    return ws_error_set(err, ENOTSUP,
                        "--supervised is for reads by FUSE passthrough, which go on while a daemon is "
                        "replaced, and complete files are "
                        "read by %s here; leave it out",
                        fs->mode_text);
}

/* Forks, and goes on in each daemon; in the supervisor when all is over. */
static int supervise(struct ws_fs *fs, const sigset_t *signals, bool *is_daemon, struct ws_error *err)
{
    struct ws_kept kept;
    *is_daemon = true;
    if (!fs->options.supervised)
        return 0;
    ws_kept_none(&kept);
    if (ws_kept())
        kept = *ws_kept();
    else
        fs->life = ws_life_new(&kept.fds[WS_KEPT_LIFE]);
    if (!fs->life)
        return ws_error_set(err, ENOMEM, "no memory for a supervisor");
    kept.fds[WS_KEPT_CONNECTION] = fuse_session_fd(fs->session);
    kept.fds[WS_KEPT_SETTINGS] = fs->settings;
    kept.fds[WS_KEPT_BEACON] = fs->beacon;
    kept.fds[WS_KEPT_READ_AHEAD] = fs->read_ahead;
    kept.dev = fs->place.at ? fs->place.dev : 0;
    kept.start = fs->start;
    kept.signals = *signals;
    ws_kept_end();
    const struct ws_supervisor_options o = {.kept = &kept,
                                            .life = fs->life,
                                            .what = fs->options.mountpoint,
                                            .hung_s = fs->options.hung_s,
                                            .cut = cut_here,
                                            .arg = fs};
    int rc = ws_supervisor_run(&o, is_daemon, err);
    if (rc < 0 || !*is_daemon)
        return rc;
    rc = ws_life_attach(fs->life, fs->session);
    fs->side.next_id += ws_life_first_side_id(fs->life);
    return rc < 0 ? ws_error_set(err, -rc, "libfuse does not let others read for it") : 0;
}

static void reload(void *arg)
{
    const struct ws_fs *fs = arg;
    ws_control_reload(fs->control);
}

static void end_session(void *arg)
{
    const struct ws_fs *fs = arg;
    fuse_session_exit(fs->session);
}

static int serve(struct ws_fs *fs, struct ws_readiness *s, struct ws_error *err)
{
    pthread_t thread;
    struct ws_ending *ending = NULL;
    struct fuse_loop_config *config = fuse_loop_cfg_create();
    ws_readiness_await(fs);
    int rc = config ? ws_thread_start(&thread, ws_readiness_run, s) : -ENOMEM;
    const bool started = rc == 0;
    if (rc == 0)
        rc = ws_heart_start(&fs->heart, fs, ws_supervised_channel());
    if (rc == 0)
        rc =
            ws_ending_watch(&ending, &(struct ws_ending_options){.place = fs->place.at ? &fs->place : NULL,
                                                                 .end_control = ws_parts_end_control,
                                                                 .end_session = end_session,
                                                                 .reload = fs->options.config ? reload : NULL,
                                                                 .arg = fs,
                                                                 .session = pthread_self()});
    if (rc == 0) {
        fuse_loop_cfg_set_clone_fd(config, 0);
        fuse_loop_cfg_set_max_threads(config, MAX_WORKERS);
        fuse_loop_cfg_set_idle_threads(config, MAX_WORKERS);
        rc = fuse_session_loop_mt(fs->session, config);
    }
    atomic_store(&fs->has_ended, true);
    if (ws_life_differs())
        rc = -EPROTO;
    if (rc < 0) {
        (void)ws_error_set(err, -rc, "cannot serve the mount on %s: %s", fs->options.mountpoint,
                           ws_life_differs()
                               ? "the kernel was told of other ways than this binary's when it was mounted"
                               : strerror(-rc));
        ws_supervised_give_up(err);
    }
    if (config)
        fuse_loop_cfg_destroy(config);
    ws_ending_over(ending);
    ws_connection_end(fs);
    if (started)
        pthread_join(thread, NULL);
    if (s->rc < 0)
        return ws_readiness_error(s, err);
    return rc;
}

static void stop(struct ws_fs *fs)
{
    ws_parts_end_control(fs);
    ws_lazy_free(fs->lazy);
    fs->lazy = NULL;
    if (fs->store)
        ws_store_stop(fs->store); /* ends parked requests, which look at open files */
    ws_fs_close_all(fs);
    ws_fs_close_folders(fs);
    ws_heart_stop(fs->heart);
    ws_store_free(fs->store);
    ws_relay_free(fs->relay);
    ws_control_free(fs->control);
    ws_invalidate_stop(fs);
    ws_version_cache_free_all(fs);
    if (fs->session) {
        fuse_session_unmount(fs->session); /* closes the descriptor; does no more where the mount is gone */
        fuse_session_destroy(fs->session);
    }
    ws_broker_free(fs->broker);
    ws_life_free(fs->life);
    if (fs->read_ahead >= 0)
        close(fs->read_ahead);
    ws_side_free(&fs->side);
    pthread_mutex_destroy(&fs->lock);
}

/* The supervisor, whose daemon has unmounted, and has ended. */
static int let_go(struct ws_fs *fs, const sigset_t *signals)
{
    fuse_session_unmount(fs->session); /* does no more where the mount is gone */
    fuse_session_destroy(fs->session);
    ws_settings_unlock(fs->settings);
    ws_side_free(&fs->side);
    ws_life_free(fs->life);
    pthread_sigmask(SIG_SETMASK, signals, NULL);
    return 0;
}

static int run_session(const struct ws_mount_options *o, void (*ready)(void), int ready_pipe,
                       struct ws_error *err)
{
    const struct ws_kept *kept = ws_kept();
    struct ws_fs fs = {.options = *o, .settings = -1, .read_ahead = -1, .beacon = -1};
    struct ws_readiness s = {.fs = &fs, .ready = ready, .ready_pipe = ready_pipe};
    sigset_t signals;
    int rc = ws_exclusions_copies(o, err);
    if (rc == 0)
        rc = ws_exclusions_topology(o, err);
    if (rc == 0)
        rc = ws_names_init(&fs.names, &fs.options, err);
    if (rc == 0 && !kept)
        rc = ws_settings_lock(o->state, o->mountpoint, &fs.settings, err);
    if (rc < 0)
        return rc;
    ws_ending_block_signals(&signals);
    if (kept)
        signals = kept->signals;
    pthread_mutex_init(&fs.lock, NULL);
    ws_side_init(&fs.side);
    clock_gettime(CLOCK_REALTIME, &fs.start);
    ws_reads_choose(&fs);
    bool is_daemon = true;
    rc = ws_user_check_reach(o, err);
    if (rc == 0)
        rc = check_supervised(&fs, err);
    if (rc == 0)
        rc = ws_connection_begin(&fs, err);
    if (rc == 0 && kept && kept->is_trial)
        ws_kept_accept();
    if (rc < 0)
        ws_kept_refuse(err);
    if (rc == 0)
        rc = supervise(&fs, &signals, &is_daemon, err);
    if (rc == 0 && !is_daemon)
        return let_go(&fs, &signals);
    if (rc == 0)
        rc = ws_user_become(&fs, err);
    if (rc == 0)
        rc = ws_audit_log_start(err);
    if (rc == 0 && ws_invalidate_start(&fs) < 0)
        rc = ws_error_set(err, EAGAIN, "cannot start a thread");
    if (rc == 0)
        rc = ws_parts_start(&fs, err);
    if (rc == 0)
        rc = serve(&fs, &s, err);
    else {
        ws_supervised_give_up(err);
        if (fs.session)
            ws_connection_end(&fs);
    }
    stop(&fs);
    pthread_sigmask(SIG_SETMASK, &signals, NULL);
    return rc;
}

static int run(const struct ws_mount_options *o, void (*ready)(void), int ready_pipe, struct ws_error *err)
{
    char by[PATH_MAX + 8];
    snprintf(by, sizeof(by), "mount:%s", o->mountpoint);
    int rc = o->audit_log ? ws_audit_log_open(o->audit_log, by, err) : 0;
    if (rc == 0)
        rc = run_session(o, ready, ready_pipe, err);
    ws_audit_log_close();
    return rc;
}

static int run_behind(void *arg, int ready_pipe, struct ws_error *err)
{
    return run(arg, NULL, ready_pipe, err);
}

/* What a supervisor was before it became this binary is in the background already. */
static int run_kept(const struct ws_mount_options *o, void (*ready)(void), struct ws_error *err)
{
    if (o->foreground)
        return run(o, ready, -1, err);
    if (chdir("/") != 0)
        ws_log(WS_LOG_DEBUG, "mount", "stays in its folder");
    const int rc = run(o, NULL, -1, err);
    if (rc < 0) {
        ws_kept_refuse(err);
        ws_log(WS_LOG_ERROR, "mount", "%s", err->text);
    }
    _exit(rc < 0);
}

/* The wait for a descriptor comes first, while signals end the process. */
int ws_session_run(const struct ws_mount_options *options, void (*ready)(void), struct ws_error *err)
{
    if (ws_kept())
        return run_kept(options, ready, err);
    struct ws_mount_options o = *options;
    const bool receives = o.given < 0 && o.given_socket;
    int rc = receives                        ? ws_given_receive(o.given_socket, &o.given, err)
             : ws_mount_options_is_given(&o) ? 0
                                             : ws_place_check(o.mountpoint, err);
    if (rc < 0)
        return rc;
    const struct ws_background b = {.log_file = o.log_file, .run = run_behind, .arg = &o};
    rc = o.foreground ? run(&o, ready, -1, err) : ws_background_run(&b, err);
    if (receives && !o.foreground)
        close(o.given); /* the daemon has it */
    return rc;
}
