#include "fs/switch/settings_lock.h"
#include "transports/base/clock.h"
#include "transports/base/limits.h"
#include "transports/base/log.h"
#include "transports/base/name.h"
#include "transports/base/state_file.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#define OWN_WAIT_MS 45000 /* for a predecessor: longer than its control takes to end */
#define OWN_LOOK_US 50000

char *ws_settings_path(const char *dir, const char *mountpoint)
{
    char own[2048], file[WS_MAX_NAME + 1], *path = NULL;
    const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    if (dir && strcmp(dir, "none") == 0)
        return NULL;
    if (!dir && geteuid() == 0)
        dir = "/var/lib/wsync";
    if (!dir && state && *state)
        snprintf(own, sizeof(own), "%s/wsync", state);
    else if (!dir && home && *home)
        snprintf(own, sizeof(own), "%s/.local/state/wsync", home);
    else if (!dir)
        return NULL;
    ws_name_to_file(mountpoint[1] ? mountpoint + 1 : mountpoint, file);
    if (asprintf(&path, "%s/%.240s", dir ? dir : own, file) < 0)
        return NULL;
    return path;
}

static int open_lock(const char *path, int *code)
{
    char beside[4096];
    snprintf(beside, sizeof(beside), "%s.lock", path);
    int rc = ws_state_file_make_folder(path);
    int fd = rc == 0 ? open(beside, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600) : -1;
    *code = fd >= 0 ? 0 : rc < 0 ? -rc : errno;
    return fd >= 0 ? fd : open(path, O_RDONLY | O_CLOEXEC);
}

static int lock_in_time(int fd, const char *path, struct ws_error *err)
{
    const uint64_t until = ws_clock_ns() + OWN_WAIT_MS * WS_MS_NS;
    char pid[32] = "";
    for (bool told = false; flock(fd, LOCK_EX | LOCK_NB) != 0; told = true) {
        if (errno != EWOULDBLOCK && errno != EINTR)
            return ws_error_set(err, errno,
                                "cannot lock the settings in %s: %s; put them on a local file system with "
                                "state=DIR",
                                path, strerror(errno));
        ssize_t n = pread(fd, pid, sizeof(pid) - 1, 0);
        pid[n > 0 ? strspn(pid, "0123456789") : 0] = 0;
        if (ws_clock_ns() > until)
            return ws_error_set(err, EBUSY,
                                "another daemon (process %s) owns the settings in %s: end it, or mount with "
                                "another state=DIR",
                                pid[0] ? pid : "unknown", path);
        if (!told)
            ws_log(WS_LOG_INFO, "mount", "waiting for the daemon that owns the settings file=%s process=%s",
                   path, pid[0] ? pid : "unknown");
        usleep(OWN_LOOK_US);
    }
    return 0;
}

int ws_settings_lock(const char *dir, const char *mountpoint, int *out, struct ws_error *err)
{
    char *path = ws_settings_path(dir, mountpoint), pid[32];
    int code = 0, rc = 0, fd = path ? open_lock(path, &code) : -1;
    *out = -1;
    if (fd >= 0)
        rc = lock_in_time(fd, path, err);
    else if (path && dir && code != ENOSPC && code != EDQUOT) /* room may come */
        rc = ws_error_set(err, code,
                          "the settings cannot be kept in %s: %s; name another folder with state=DIR, or "
                          "state=none",
                          path, strerror(code));
    else if (path)
        ws_log(WS_LOG_WARN, "mount", "the settings cannot be kept in %s: %s", path, strerror(code));
    if (fd >= 0 && rc == 0 && code == 0) {
        int n = snprintf(pid, sizeof(pid), "%d\n", (int)getpid());
        if (ftruncate(fd, 0) != 0 || pwrite(fd, pid, (size_t)n, 0) != n)
            ws_log(WS_LOG_DEBUG, "mount", "the lock of %s does not say whose it is", path);
    }
    if (fd >= 0 && rc < 0)
        close(fd);
    else
        *out = fd;
    free(path);
    return rc;
}

void ws_settings_unlock(int lock)
{
    if (lock >= 0)
        close(lock);
}
