#include "fs/user.h"
#include "fs/fuse/broker.h"
#include "fs/switch/settings_lock.h"
#include "transports/base/log.h"
#include "transports/memory/region.h"
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* What root's daemon has left there is not that user's. */
static int check_settings(const struct ws_mount_options *o, struct ws_error *err)
{
    char *path = ws_settings_path(o->state, o->mountpoint), *slash = path ? strrchr(path, '/') : NULL;
    int rc = 0;
    if (slash) {
        const bool is_there = access(path, F_OK) == 0;
        rc = is_there && access(path, R_OK) != 0 ? -errno : 0;
        *slash = 0;
        if (rc == 0 && access(path, W_OK | X_OK) != 0)
            rc = -errno;
    }
    if (rc < 0)
        (void)ws_error_set(err, -rc,
                           "the user %s of run-as= cannot keep the mount's settings in %s: %s; 'chown -R %s "
                           "%s', or name another "
                           "folder with state=DIR, or state=none",
                           o->run_as.name, path, strerror(-rc), o->run_as.name, path);
    free(path);
    return rc;
}

int ws_user_check_reach(const struct ws_mount_options *o, struct ws_error *err)
{
    const int rc = o->run_as.name ? ws_run_as_reaches(&o->run_as, o->mountpoint) : 0;
    return rc < 0 ? ws_error_set(err, -rc,
                                 "the user %s of run-as= cannot reach %s: %s; the folders above it want the "
                                 "mode x for that user",
                                 o->run_as.name, o->mountpoint, strerror(-rc))
                  : 0;
}

int ws_user_become(struct ws_fs *fs, struct ws_error *err)
{
    const struct ws_run_as *who = &fs->options.run_as;
    if (!who->name)
        return 0;
    const int memory = ws_region_tmpfs();
    if (memory >= 0 && fchownat(memory, "", who->uid, who->gid, AT_EMPTY_PATH) != 0)
        return ws_error_set(err, errno, "cannot give the memory for versions to the user %s: %s", who->name,
                            strerror(errno));
    int rc = ws_broker_start(&fs->broker, fuse_session_fd(fs->session), &fs->place, who, err);
    if (rc == 0)
        rc = ws_run_as_become(who, err);
    if (rc == 0)
        rc = check_settings(&fs->options, err);
    if (rc == 0)
        ws_log(WS_LOG_INFO, "mount", "without privileges user=%s broker=%s", who->name,
               fs->reads == WS_READS_PASSTHROUGH ? "passthrough,unmount" : "unmount");
    return rc;
}
