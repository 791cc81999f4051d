#include "transports/ipc/peer.h"
#include "transports/base/text.h"
#include <errno.h>
#include <pwd.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#define SYSTEM_FOLDER "/run/wsync"
#define REMEDY                                                                                               \
    "if that account is meant, name it: " WS_AGENT_USER_VARIABLE                                             \
    "=%s, --agent-user, or -o agent-user= of a mount"

int ws_ipc_account_parse(const char *text, struct ws_ipc_account *out, struct ws_error *err)
{
    struct passwd entry, *found = NULL;
    char buffer[4096];
    uint64_t number;
    *out = (struct ws_ipc_account){0};
    if (getpwnam_r(text, &entry, buffer, sizeof(buffer), &found) == 0 && found)
        *out = (struct ws_ipc_account){true, found->pw_uid};
    else if (ws_text_u64(text, &number) == 0 && number < UINT32_MAX)
        *out = (struct ws_ipc_account){true, (uid_t)number};
    return out->is_named ? 0 : ws_error_set(err, EINVAL, "there is no account '%.100s'", text);
}

static bool owns_system_folder(uid_t uid)
{
    struct stat st;
    return lstat(SYSTEM_FOLDER, &st) == 0 && S_ISDIR(st.st_mode) && st.st_uid == uid;
}

/* 1: it is trusted; 0: it is not. */
static int is_trusted(uid_t uid, const struct ws_ipc_account *named, struct ws_error *err)
{
    const char *text = getenv(WS_AGENT_USER_VARIABLE);
    struct ws_ipc_account account;
    if (uid == 0 || uid == geteuid() || (named && named->is_named && named->uid == uid) ||
        owns_system_folder(uid))
        return 1;
    if (!text || !*text)
        return 0;
    const int rc = ws_ipc_account_parse(text, &account, err);
    if (rc < 0)
        return ws_error_prefix(err, "the environment's " WS_AGENT_USER_VARIABLE);
    return account.uid == uid;
}

static const char *name_of(uid_t uid, char out[64])
{
    struct passwd entry, *found = NULL;
    char buffer[4096];
    if (getpwuid_r(uid, &entry, buffer, sizeof(buffer), &found) == 0 && found)
        snprintf(out, 64, "%.60s", found->pw_name);
    else
        snprintf(out, 64, "%u", (unsigned)uid);
    return out;
}

static int check_owner(const char *folder, uid_t uid, const struct ws_ipc_account *named,
                       struct ws_error *err)
{
    char name[64];
    const int trusted = is_trusted(uid, named, err);
    if (trusted != 0)
        return trusted < 0 ? trusted : 0;
    name_of(uid, name);
    return ws_error_set(
        err, EPERM,
        "the folder %.150s of the agent's socket belongs to %s, who could put an agent of their own there: "
        "use another socket, or " REMEDY,
        folder, name, name);
}

int ws_ipc_check_folder(const char *path, const struct ws_ipc_account *named, struct ws_error *err)
{
    char folder[256];
    struct stat link, st;
    const char *slash = strrchr(path, '/');
    if (!slash)
        return 0;
    snprintf(folder, sizeof(folder), "%.*s", slash == path ? 1 : (int)(slash - path), path);
    if (lstat(folder, &link) != 0 || stat(folder, &st) != 0)
        return 0; /* connecting says why */
    int rc = check_owner(folder, st.st_uid, named, err);
    if (rc == 0 && link.st_uid != st.st_uid)
        rc = check_owner(folder, link.st_uid, named, err);
    if (rc == 0 && st.st_mode & S_IWOTH && !(st.st_mode & S_ISVTX))
        rc = ws_error_set(
            err, EPERM,
            "every account may write the folder %.150s, and put an agent of its own there: chmod o-w it, "
            "or use another socket",
            folder);
    return rc;
}

int ws_ipc_check_peer(int sock, const char *path, const struct ws_ipc_account *named, struct ws_error *err)
{
    struct ucred peer;
    socklen_t size = sizeof(peer);
    char name[64];
    if (getsockopt(sock, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0)
        return ws_error_set(err, errno, "cannot tell who serves unix:%s: %s", path, strerror(errno));
    const int trusted = is_trusted(peer.uid, named, err);
    if (trusted != 0)
        return trusted < 0 ? trusted : 0;
    name_of(peer.uid, name);
    return ws_error_set(
        err, EPERM,
        "the agent at unix:%.120s is run by %s, neither root nor this account, and nothing was sent to it: "
        "use another socket, or " REMEDY,
        path, name, name);
}
