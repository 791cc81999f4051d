#include "fs/takeover.h"
#include "fs/engines/own_folder.h"
#include "fs/fuse/life.h"
#include "fs/fuse/packet.h"
#include "fs/fuse/place.h"
#include "transports/base/clock.h"
#include "transports/base/log.h"
#include "transports/base/text.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#define SYSTEM_FOLDER "/run"
#define MOST_WAITING  4
#define HEAR_S        2   /* for a client to say what it wants */
#define WAIT_S        300 /* for the outcome: longer than the supervisor's own limits together */

struct hello { /* of all wires */
    uint32_t wire;
    char release[WS_RELEASE_CHARS + 1];
};

struct answer {
    struct hello hello;
    int32_t code;
    char text[WS_ERROR_TEXT];
};

static struct hello own_hello(void)
{
    struct hello h = {.wire = WS_LIFE_WIRE};
    snprintf(h.release, sizeof(h.release), "%s", WS_VERSION);
    return h;
}

static int address_of(dev_t dev, struct sockaddr_un *out)
{
    const char *own = getenv("XDG_RUNTIME_DIR"), *folder = geteuid() == 0 ? SYSTEM_FOLDER : own;
    *out = (struct sockaddr_un){.sun_family = AF_UNIX};
    if (!folder)
        return -ENOENT;
    const int n = snprintf(out->sun_path, sizeof(out->sun_path), "%s/wsync-mounts/%u:%u", folder, major(dev),
                           minor(dev));
    return n < (int)sizeof(out->sun_path) ? 0 : -ENAMETOOLONG;
}

/* The folder, which is ours alone, locked: a descriptor. */
static int lock_folder(const struct sockaddr_un *a)
{
    struct stat st = {0};
    char folder[sizeof(a->sun_path)];
    snprintf(folder, sizeof(folder), "%.*s", (int)(strrchr(a->sun_path, '/') - a->sun_path), a->sun_path);
    if (mkdir(folder, 0700) != 0 && errno != EEXIST)
        return -errno;
    const int fd = open(folder, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    int rc = fd < 0 || fstat(fd, &st) != 0 ? -errno : 0;
    if (rc == 0 && (st.st_uid != geteuid() || (st.st_mode & 077)))
        rc = -EPERM;
    if (rc == 0 && flock(fd, LOCK_EX) != 0)
        rc = -errno;
    if (rc == 0)
        return fd;
    if (fd >= 0)
        close(fd);
    return rc;
}

/* No mount that lives has our device: what has the name is one's that has ended. */
static int bind_anew(int fd, const struct sockaddr_un *a, ino_t *ino)
{
    struct stat st;
    (void)unlink(a->sun_path);
    if (bind(fd, (const struct sockaddr *)a, sizeof(*a)) != 0 || chmod(a->sun_path, 0600) != 0 ||
        listen(fd, MOST_WAITING) != 0 || lstat(a->sun_path, &st) != 0)
        return -errno;
    *ino = st.st_ino;
    return 0;
}

int ws_takeover_listen(dev_t dev, ino_t *ino)
{
    struct sockaddr_un a;
    int rc = address_of(dev, &a);
    const int folder = rc == 0 ? lock_folder(&a) : rc;
    if (folder < 0)
        return folder;
    const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    rc = fd < 0 ? -errno : bind_anew(fd, &a, ino);
    close(folder);
    if (rc == 0)
        return fd;
    if (fd >= 0)
        close(fd);
    return rc;
}

void ws_takeover_unlisten(dev_t dev, ino_t ino)
{
    struct sockaddr_un a;
    struct stat st;
    const int folder = address_of(dev, &a) == 0 ? lock_folder(&a) : -1;
    if (folder < 0)
        return;
    if (lstat(a.sun_path, &st) == 0 && st.st_ino == ino)
        (void)unlink(a.sun_path);
    close(folder);
}

void ws_takeover_answer(int client, int code, const char *text)
{
    struct answer a = {.hello = own_hello(), .code = code};
    if (client < 0)
        return;
    snprintf(a.text, sizeof(a.text), "%s", text);
    (void)!ws_packet_send(client, &a, sizeof(a), -1);
    close(client);
}

/* What keeps this one from being heard. */
static int check(int client, const struct hello *h, int binary, struct ws_error *err)
{
    struct ucred peer;
    struct stat st;
    socklen_t n = sizeof(peer);
    if (getsockopt(client, SOL_SOCKET, SO_PEERCRED, &peer, &n) != 0 ||
        (peer.uid != 0 && peer.uid != geteuid()))
        return ws_error_set(
            err, EPERM,
            "only root and the user who has mounted it may have another binary go on with a mount");
    if (h->wire != WS_LIFE_WIRE)
        return ws_error_set(err, EPROTO,
                            "release %s, which has mounted it, cannot hand the mount over to release %s (%u "
                            "and %u are what they "
                            "speak): unmount it, and mount it anew",
                            WS_VERSION, h->release, WS_LIFE_WIRE, h->wire);
    if (binary < 0 || fstat(binary, &st) != 0 || !S_ISREG(st.st_mode))
        return ws_error_set(err, EINVAL, "no binary came with the request");
    return 0;
}

int ws_takeover_accept(int socket, int *client, int *binary, char release[WS_RELEASE_CHARS + 1])
{
    const struct timeval limit = {.tv_sec = HEAR_S};
    struct hello h = {0};
    struct ws_error err = {0};
    *binary = -1;
    *client = accept4(socket, NULL, NULL, SOCK_CLOEXEC);
    if (*client < 0)
        return -errno;
    (void)setsockopt(*client, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    (void)setsockopt(*client, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
    int rc = ws_packet_recv(*client, &h, sizeof(h), binary);
    h.release[WS_RELEASE_CHARS] = 0;
    ws_text_clean(h.release);
    if (rc < 0)
        close(*client);
    else if ((rc = check(*client, &h, *binary, &err)) < 0)
        ws_takeover_answer(*client, -rc, err.text);
    if (rc < 0 && *binary >= 0)
        close(*binary);
    if (rc == 0)
        memcpy(release, h.release, WS_RELEASE_CHARS + 1);
    return rc;
}

/* --- the client --- */

static int connect_to(const char *dir, dev_t dev, struct ws_error *err)
{
    struct sockaddr_un a;
    int rc = address_of(dev, &a);
    const int fd = rc == 0 ? socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0) : -1;
    if (rc == 0 && (fd < 0 || connect(fd, (const struct sockaddr *)&a, sizeof(a)) != 0))
        rc = -errno;
    if (rc == 0)
        return fd;
    if (fd >= 0)
        close(fd);
    return ws_error_set(err, -rc,
                        "the mount on %s has no supervisor that could be asked (%s): it was mounted without "
                        "--supervised, by another user, by a "
                        "release without takeover, or in another container; unmount it, and mount it anew",
                        dir, strerror(-rc));
}

static int ask(int sock, struct answer *a, struct ws_error *err)
{
    const struct timeval limit = {.tv_sec = WAIT_S};
    const struct hello h = own_hello();
    const int binary = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    if (binary < 0)
        return ws_error_set(err, errno, "cannot open this binary, /proc/self/exe: %s", strerror(errno));
    (void)setsockopt(sock, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    int rc = ws_packet_send(sock, &h, sizeof(h), binary);
    close(binary);
    if (rc == 0)
        rc = ws_packet_recv(sock, a, sizeof(*a), NULL);
    a->text[sizeof(a->text) - 1] = 0;
    return rc < 0 ? ws_error_set(
                        err, -rc,
                        "the mount's supervisor has not said what became of it (%s); 'wsync status' says "
                        "whether the mount serves, and its log why",
                        strerror(-rc))
                  : 0;
}

int ws_takeover(const char *dir, char said[WS_ERROR_TEXT], struct ws_error *err)
{
    char at[PATH_MAX];
    struct answer a = {0};
    dev_t dev = 0;
    int rc = ws_own_folder_resolve(dir, at, err);
    if (rc < 0)
        return rc;
    if (!ws_place_has_wsync(at) || ws_place_device(at, &dev) < 0)
        return ws_error_set(err, EINVAL, "no wsync mount is on %s", at);
    const int sock = connect_to(at, dev, err);
    if (sock < 0)
        return sock;
    rc = ask(sock, &a, err);
    close(sock);
    if (rc < 0)
        return rc;
    snprintf(said, WS_ERROR_TEXT, "%s", a.text);
    return a.code == 0 ? 0 : ws_error_set(err, a.code, "the mount on %s was not taken over: %s", at, a.text);
}
