#include "transports/ipc/listener.h"
#include "transports/ipc/client.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

static int is_taken(const char *path, struct ws_error *err)
{
    return ws_error_set(err, EADDRINUSE, "an agent serves %s already; stop it or choose another --socket",
                        path);
}

static void owner_path(const char *path, char out[sizeof(struct sockaddr_un) + 8])
{
    snprintf(out, sizeof(struct sockaddr_un) + 8, "%s.owner", path);
}

/* Its owner removes the file when it ends: what was locked may not be what is there. */
static int own(struct ws_ipc_listener *l, struct ws_error *err)
{
    char file[sizeof(struct sockaddr_un) + 8];
    struct stat locked, there;
    owner_path(l->path, file);
    for (;;) {
        l->owner = open(file, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
        if (l->owner < 0)
            return ws_error_set(err, errno, "cannot open %s: %s; choose another --socket", file,
                                strerror(errno));
        const int code = flock(l->owner, LOCK_EX | LOCK_NB) == 0 ? 0 : errno;
        if (code == 0 && fstat(l->owner, &locked) == 0 && lstat(file, &there) == 0 &&
            locked.st_dev == there.st_dev && locked.st_ino == there.st_ino)
            return 0;
        close(l->owner);
        l->owner = -1;
        if (code == EWOULDBLOCK)
            return is_taken(l->path, err);
        if (code && code != EINTR)
            return ws_error_set(err, code, "cannot lock %s: %s; choose another --socket", file,
                                strerror(code));
    }
}

/* Removes what an agent that was killed has left. An agent of 0.1.0 holds no lock: a connection to it tells. */
static int remove_stale(const char *path, struct ws_error *err)
{
    int probe;
    struct stat st;
    int rc = ws_ipc_probe(path, &probe, err);
    if (rc == 0) {
        close(probe);
        return is_taken(path, err);
    }
    if (lstat(path, &st) != 0)
        return 0;
    if (!S_ISSOCK(st.st_mode))
        return ws_error_set(err, EEXIST, "%s exists and is no socket; remove it or choose another --socket",
                            path);
    if (rc != -ECONNREFUSED && path[0] == '/') /* a connection cannot be tried by such a path */
        return ws_error_set(err, EADDRINUSE,
                            "an agent may serve %s: %s; stop it, remove what is there, or choose another "
                            "--socket",
                            path, strerror(-rc));
    (void)unlink(path);
    return 0;
}

static int listen_at(struct ws_ipc_listener *l, gid_t gid, struct ws_error *err)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct stat st;
    memcpy(address.sun_path, l->path, strlen(l->path) + 1);
    l->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    const mode_t mask = umask(0177);
    int rc = l->fd < 0 || bind(l->fd, (struct sockaddr *)&address, sizeof(address)) != 0 ? -errno : 0;
    umask(mask);
    if (rc == 0 && lstat(l->path, &st) == 0) {
        l->dev = st.st_dev;
        l->ino = st.st_ino;
    } else if (rc == 0) {
        rc = -errno;
    }
    if (rc == 0 && gid != (gid_t)-1 && (chown(l->path, (uid_t)-1, gid) != 0 || chmod(l->path, 0660) != 0))
        rc = -errno;
    if (rc == 0 && listen(l->fd, 128) != 0)
        rc = -errno;
    return rc < 0 ? ws_error_set(err, -rc, "cannot listen on %s: %s", l->path, strerror(-rc)) : 0;
}

int ws_ipc_listener_open(struct ws_ipc_listener *l, const char *path, gid_t gid, struct ws_error *err)
{
    const size_t most = sizeof(((struct sockaddr_un *)NULL)->sun_path) - 1;
    *l = (struct ws_ipc_listener){.fd = -1, .owner = -1};
    if (strlen(path) > most)
        return ws_error_set(err, ENAMETOOLONG, "the socket's path %s is longer than %zu bytes", path, most);
    if (!(l->path = strdup(path)))
        return ws_error_set(err, ENOMEM, "no memory for a server");
    int rc = own(l, err);
    if (rc == 0)
        rc = remove_stale(path, err);
    if (rc == 0)
        rc = listen_at(l, gid, err);
    if (rc < 0)
        ws_ipc_listener_close(l);
    return rc;
}

void ws_ipc_listener_close(struct ws_ipc_listener *l)
{
    char file[sizeof(struct sockaddr_un) + 8];
    struct stat st;
    if (l->ino && lstat(l->path, &st) == 0 && st.st_dev == l->dev && st.st_ino == l->ino)
        (void)unlink(l->path); /* not the socket of an agent that came later */
    if (l->fd >= 0)
        close(l->fd);
    if (l->owner >= 0) {
        owner_path(l->path, file);
        (void)unlink(file);
        close(l->owner);
    }
    free(l->path);
}
