#include "transports/ipc/place.h"
#include "transports/ipc/ipc.h"
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

/* The file leaves with its owner: what was locked may not be what is there. */
static int own(struct ws_ipc_place *p, struct ws_error *err)
{
    char file[sizeof(struct sockaddr_un) + 8];
    struct stat locked, there;
    owner_path(p->path, file);
    for (;;) {
        p->owner = open(file, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
        if (p->owner < 0)
            return ws_error_set(err, errno, "cannot open %s: %s; choose another --socket", file,
                                strerror(errno));
        const int code = flock(p->owner, LOCK_EX | LOCK_NB) == 0 ? 0 : errno;
        if (code == 0 && fstat(p->owner, &locked) == 0 && lstat(file, &there) == 0 &&
            locked.st_dev == there.st_dev && locked.st_ino == there.st_ino)
            return 0;
        close(p->owner);
        p->owner = -1;
        if (code == EWOULDBLOCK)
            return is_taken(p->path, err);
        if (code && code != EINTR)
            return ws_error_set(err, code, "cannot lock %s: %s; choose another --socket", file,
                                strerror(code));
    }
}

/* What an agent has left that was killed. One of 0.1.0 has no lock, and is asked. */
static int make_room(const char *path, struct ws_error *err)
{
    int probe;
    struct stat st;
    int rc = ws_ipc_connect(path, &probe, err);
    if (rc == 0) {
        close(probe);
        return is_taken(path, err);
    }
    if (lstat(path, &st) != 0)
        return 0;
    if (!S_ISSOCK(st.st_mode))
        return ws_error_set(err, EEXIST, "%s exists and is no socket; remove it or choose another --socket",
                            path);
    if (rc != -ECONNREFUSED && path[0] == '/') /* nobody is asked by another path */
        return ws_error_set(err, EADDRINUSE,
                            "an agent may serve %s: %s; stop it, remove what is there, or choose another "
                            "--socket",
                            path, strerror(-rc));
    (void)unlink(path);
    return 0;
}

static int listen_at(struct ws_ipc_place *p, gid_t gid, struct ws_error *err)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct stat st;
    memcpy(address.sun_path, p->path, strlen(p->path) + 1);
    p->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    const mode_t mask = umask(0177);
    int rc =
        p->listener < 0 || bind(p->listener, (struct sockaddr *)&address, sizeof(address)) != 0 ? -errno : 0;
    umask(mask);
    if (rc == 0 && lstat(p->path, &st) == 0) {
        p->dev = st.st_dev;
        p->ino = st.st_ino;
    } else if (rc == 0) {
        rc = -errno;
    }
    if (rc == 0 && gid != (gid_t)-1 && (chown(p->path, (uid_t)-1, gid) != 0 || chmod(p->path, 0660) != 0))
        rc = -errno;
    if (rc == 0 && listen(p->listener, 128) != 0)
        rc = -errno;
    return rc < 0 ? ws_error_set(err, -rc, "cannot listen on %s: %s", p->path, strerror(-rc)) : 0;
}

int ws_ipc_place_take(struct ws_ipc_place *p, const char *path, gid_t gid, struct ws_error *err)
{
    const size_t most = sizeof(((struct sockaddr_un *)NULL)->sun_path) - 1;
    *p = (struct ws_ipc_place){.listener = -1, .owner = -1};
    if (strlen(path) > most)
        return ws_error_set(err, ENAMETOOLONG, "the socket's path %s is longer than %zu bytes", path, most);
    if (!(p->path = strdup(path)))
        return ws_error_set(err, ENOMEM, "no memory for a server");
    int rc = own(p, err);
    if (rc == 0)
        rc = make_room(path, err);
    if (rc == 0)
        rc = listen_at(p, gid, err);
    if (rc < 0)
        ws_ipc_place_leave(p);
    return rc;
}

void ws_ipc_place_leave(struct ws_ipc_place *p)
{
    char file[sizeof(struct sockaddr_un) + 8];
    struct stat st;
    if (p->ino && lstat(p->path, &st) == 0 && st.st_dev == p->dev && st.st_ino == p->ino)
        (void)unlink(p->path); /* not the socket of an agent that replaced us */
    if (p->listener >= 0)
        close(p->listener);
    if (p->owner >= 0) {
        owner_path(p->path, file);
        (void)unlink(file);
        close(p->owner);
    }
    free(p->path);
}
