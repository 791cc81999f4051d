/* Who can read: mounts, sockets and ports of this host, a line each. */
#include "backends/trainer/api/agent_address.h"
#include "fs/written/written.h"
#include "mount-helpers/doctor/probe.h"
#include "transports/access/local_token.h"
#include "transports/access/loopback.h"
#include <arpa/inet.h>
#include <grp.h>
#include <mntent.h>
#include <netinet/in.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>

#define NAME         40
#define USUAL_PORT   18861
#define ANSWER_S     2
#define MOUNT_S      20 /* its files are read, and its engines asked */
#define SOCKET_S     5
#define PORT_S       10
#define FAMILY_WSYNC "fuse.wsync"

static const char *user(uid_t uid, char out[NAME])
{
    const struct passwd *p = getpwuid(uid);
    snprintf(out, NAME, p ? "%.38s" : "%.0s%u", p ? p->pw_name : "", (unsigned)uid);
    return out;
}

static const char *group(gid_t gid, char out[NAME])
{
    const struct group *g = getgrgid(gid);
    snprintf(out, NAME, g ? "%.38s" : "%.0s%u", g ? g->gr_name : "", (unsigned)gid);
    return out;
}

/* "root", or "ada and root". */
static const char *user_and_root(uid_t uid, char out[NAME + 16])
{
    char name[NAME];
    snprintf(out, NAME + 16, "%s%s", user(uid, name), uid == 0 ? "" : " and root");
    return out;
}

/* --- mounts --- */

/* false: it cannot be looked at. */
static bool one_mount(struct doctor *d, const struct mntent *m)
{
    char name[NAME], owner[NAME + 16];
    struct stat st;
    const bool allows_others = hasmntopt(m, "allow_other") != NULL;
    if (stat(m->mnt_dir, &st) != 0)
        return false; /* of another account, or dead: `wsync status` says which */
    if (!allows_others) {
        doctor_say(d, DOCTOR_OK, "mount", "%s: %s alone can read it", m->mnt_dir, user(st.st_uid, name));
        return true;
    }
    if (st.st_mode & S_IROTH)
        doctor_say(
            d, DOCTOR_NOTE, "mount",
            "%s: every account of this host can read it; -o group=NAME lets one group do so and nobody else",
            m->mnt_dir);
    else if (st.st_mode & S_IRGRP)
        doctor_say(d, DOCTOR_OK, "mount", "%s: %s and the group %s can read it", m->mnt_dir,
                   user_and_root(st.st_uid, owner), group(st.st_gid, name));
    else
        doctor_say(d, DOCTOR_OK, "mount", "%s: %s can read it", m->mnt_dir, user_and_root(st.st_uid, owner));
    return true;
}

/* It shows no models, and any account what the folder below shows. */
static void one_shared_folder(struct doctor *d, const struct mntent *m)
{
    char name[NAME];
    struct stat st;

    if (stat(m->mnt_dir, &st) != 0)
        return;
    if (hasmntopt(m, "allow_other"))
        doctor_say(d, DOCTOR_OK, "share",
                   "%s: every account can read the versions in it; who writes is as its modes say",
                   m->mnt_dir);
    else
        doctor_say(d, DOCTOR_OK, "share", "%s: %s alone can use it", m->mnt_dir, user(st.st_uid, name));
}

static void look_at_mount(struct doctor *d, void *entry)
{
    const struct mntent *m = entry;
    if (strcmp(m->mnt_fsname, WS_WRITTEN_FSNAME) == 0)
        one_shared_folder(d, m);
    else if (one_mount(d, m))
        doctor_adapters(d, m->mnt_dir);
}

static void mounts(struct doctor *d)
{
    FILE *f = setmntent("/proc/self/mounts", "re");
    for (struct mntent *m; f && (m = getmntent(f));)
        if (strcmp(m->mnt_type, FAMILY_WSYNC) == 0)
            doctor_probe(
                d, &(struct doctor_probe){"mount", m->mnt_dir, MOUNT_S, .run = look_at_mount, .arg = m});
    if (f)
        endmntent(f);
}

/* --- sockets --- */

static void look_at_socket(struct doctor *d, void *arg)
{
    const char *path = arg;
    char owner[NAME + 16], name[NAME];
    struct stat st;
    if (stat(path, &st) != 0 || !S_ISSOCK(st.st_mode))
        return;
    user_and_root(st.st_uid, owner);
    if (st.st_mode & S_IWOTH)
        doctor_say(d, DOCTOR_NOTE, "socket", "%s: every account of this host can publish and read by it",
                   path);
    else if (st.st_mode & S_IWGRP)
        doctor_say(d, DOCTOR_OK, "socket", "%s: %s and the group %s can publish and read by it", path, owner,
                   group(st.st_gid, name));
    else
        doctor_say(d, DOCTOR_OK, "socket", "%s: %s can publish and read by it", path, owner);
}

/* --- ports --- */

/* The status of GET /v1/models without a token; 0: what is there speaks no HTTP, or TLS, or nothing at all. */
static unsigned status_without_token(unsigned port)
{
    static const char request[] = "GET /v1/models HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    const struct sockaddr_in at = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const struct timeval limit = {.tv_sec = ANSWER_S};
    char answer[32] = "";
    unsigned status = 0;
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return 0;
    (void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    (void)setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
    if (connect(fd, (const struct sockaddr *)&at, sizeof(at)) != 0 ||
        send(fd, request, sizeof(request) - 1, MSG_NOSIGNAL) < 0 ||
        recv(fd, answer, sizeof(answer) - 1, MSG_WAITALL) <= 0 ||
        sscanf(answer, "HTTP/1.%*c %3u", &status) != 1)
        status = 0;
    close(fd);
    return status;
}

static void look_at_port(struct doctor *d, void *arg)
{
    const unsigned port = *(const unsigned *)arg;
    char url[40], owner_name[NAME], both[NAME + 16], secret[WS_TOKEN_SECRET_CHARS + 1];
    uid_t owner;
    snprintf(url, sizeof(url), "http://127.0.0.1:%u", port);
    if (!ws_loopback_owner(url, port, &owner))
        return;
    const unsigned status = status_without_token(port);
    user(owner, owner_name);
    if (status == 200)
        doctor_say(d, DOCTOR_NOTE, "port",
                   "%u: who reaches it can read; the server of %s was told --insecure", port, owner_name);
    else if (status == 401 && ws_local_token_find(url, secret, &owner))
        doctor_say(d, DOCTOR_OK, "port", "%u: %s can read, by the token that its server made", port,
                   user_and_root(owner, both));
    else if (status == 401)
        doctor_say(d, DOCTOR_OK, "port", "%u: who has a token or certificate of the server of %s can read",
                   port, owner_name);
    explicit_bzero(secret, sizeof(secret));
}

static void a_port(struct doctor *d, unsigned port)
{
    char what[32];
    snprintf(what, sizeof(what), "%u", port);
    doctor_probe(d, &(struct doctor_probe){"port", what, PORT_S, .run = look_at_port, .arg = &port});
}

void doctor_access(struct doctor *d, const struct cli_args *args)
{
    const char *agent = ws_agent_address(cli_get(args, "agent"));
    unsigned port = 0;
    mounts(d);
    if (strncmp(agent, "unix:", 5) == 0)
        doctor_probe(d, &(struct doctor_probe){"socket", agent + 5, SOCKET_S, .run = look_at_socket,
                                               .arg = (char *)(uintptr_t)agent + 5});
    a_port(d, USUAL_PORT);
    if (ws_loopback_port(agent, &port) && port != USUAL_PORT)
        a_port(d, port);
}
