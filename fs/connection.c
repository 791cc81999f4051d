#include "fs/connection.h"
#include "fs/fuse/beacon.h"
#include "fs/fuse/broker.h"
#include "fs/fuse/life.h"
#include "fs/fuse/ops_checked.h"
#include "fs/fuse/reads.h"
#include "fs/kept.h"
#include "fs/supervised.h"
#include "transports/base/log.h"
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* libfuse takes the descriptor over. */
static int use_connection(struct ws_fs *fs, int fd, struct ws_error *err)
{
    char name[32];
    (void)fcntl(fd, F_SETFD, FD_CLOEXEC);
    (void)fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK); /* libfuse takes EAGAIN for the end */
    snprintf(name, sizeof(name), "/dev/fd/%d", fd);
    return fuse_session_mount(fs->session, name) == 0
               ? 0
               : ws_error_set(err, EIO, "libfuse did not take descriptor %d, and said why above", fd);
}

/* What a supervisor had before it became this binary. */
static int use_kept(struct ws_fs *fs, const struct ws_kept *k, struct ws_error *err)
{
    fs->place = (struct ws_place){fs->options.mountpoint, k->dev, k->fds[WS_KEPT_CONNECTION]};
    fs->settings = k->fds[WS_KEPT_SETTINGS];
    fs->beacon = k->fds[WS_KEPT_BEACON];
    fs->read_ahead = k->fds[WS_KEPT_READ_AHEAD];
    fs->start = k->start;
    fs->life = ws_life_open(k->fds[WS_KEPT_LIFE]);
    if (!fs->life)
        return ws_error_set(err, EPROTO,
                            "release %s wrote what its daemons know in another way than %s reads it",
                            k->release, WS_VERSION);
    return use_connection(fs, k->fds[WS_KEPT_CONNECTION], err);
}

/* Where another daemon was faster, its mount is not covered. */
static int mount_session(struct ws_fs *fs, struct ws_error *err)
{
    const struct ws_mount_options *o = &fs->options;
    const int turn = ws_place_turn(o->mountpoint);
    int rc = ws_place_check(o->mountpoint, err);
    errno = 0;
    if (rc == 0 && fuse_session_mount(fs->session, o->mountpoint) != 0)
        rc = ws_error_set(
            err, errno ? errno : EIO, "cannot mount on %s: %s%s", o->mountpoint,
            errno ? strerror(errno) : "libfuse said why above",
            o->allow_other && geteuid() ? "; allow_other needs user_allow_other in /etc/fuse.conf" : "");
    if (turn >= 0)
        close(turn);
    return rc;
}

int ws_connection_begin(struct ws_fs *fs, struct ws_error *err)
{
    struct fuse_args args = FUSE_ARGS_INIT(0, NULL);
    char text[4096];
    const struct ws_mount_options *o = &fs->options;
    int bad = fuse_opt_add_arg(&args, "wsync");
    snprintf(text, sizeof(text), "-osubtype=wsync,default_permissions,nosuid,nodev%s%s",
             o->allow_other ? ",allow_other" : "", o->debug ? ",debug" : "");
    bad |= fuse_opt_add_arg(&args, text);
    char name[512];
    size_t n = 0;
    for (const char *p = o->fsname ? o->fsname : o->source; *p && n + 2 < sizeof(name); p++) {
        if (*p == ',' || *p == '\\')
            name[n++] = '\\';
        name[n++] = *p;
    }
    name[n] = 0;
    snprintf(text, sizeof(text), "-ofsname=%s", name);
    bad |= fuse_opt_add_arg(&args, text);
    const bool given = ws_mount_options_is_given(o);
    fs->session =
        bad ? NULL : fuse_session_new(&args, given ? ws_ops_checked() : &ws_fs_ops, sizeof(ws_fs_ops), fs);
    fuse_opt_free_args(&args);
    if (!fs->session)
        return ws_error_set(err, EIO, "libfuse did not start a session");
    const struct ws_kept *kept = ws_kept();
    int rc = kept    ? use_kept(fs, kept, err)
             : given ? use_connection(fs, fs->options.given, err)
                     : mount_session(fs, err);
    if (rc < 0 || given || kept)
        return rc;
    rc = ws_place_record(&fs->place, o->mountpoint, fuse_session_fd(fs->session));
    if (rc == 0 && (fs->beacon = ws_beacon_light(fs->place.dev)) < 0) /* the process's end puts it out */
        ws_log(WS_LOG_DEBUG, "mount", "'wsync umount' will not wait for this daemon's end");
    if (rc < 0)
        return ws_error_set(err, -rc, "cannot mount on %s: what is there now cannot be told: %s",
                            o->mountpoint, strerror(-rc));
    ws_reads_open_ahead(fs);
    return 0;
}

void ws_connection_cut(struct ws_fs *fs)
{
    int ends[2];
    fuse_session_exit(fs->session);
    if (pipe2(ends, O_CLOEXEC) != 0)
        return;
    close(ends[0]);
    (void)dup3(ends[1], fuse_session_fd(fs->session), O_CLOEXEC);
    close(ends[1]);
}

void ws_connection_end(struct ws_fs *fs)
{
    static pthread_mutex_t one_at_a_time = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&one_at_a_time);
    int rc = fs->broker ? ws_broker_detach(fs->broker) : ws_place_detach(&fs->place);
    if (rc ==
        -EPERM) /* not root: libfuse's helper unmounts, and closing the descriptor ends the connection */
        fuse_session_unmount(fs->session);
    else if (rc < 0) {
        ws_connection_cut(fs);
        ws_supervised_say(WS_WORD_CUT);
    }
    pthread_mutex_unlock(&one_at_a_time);
}

bool ws_connection_is_over(const struct ws_fs *fs)
{
    return atomic_load(&fs->has_ended) || fuse_session_exited(fs->session);
}
