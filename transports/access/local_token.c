#include "transports/access/local_token.h"
#include "transports/access/loopback.h"
#include "transports/base/state_file.h"
#include <errno.h>
#include <fcntl.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define SYSTEM_FOLDER "/run/wsync"
#define HOLD_TRIES    200
#define HOLD_STEP_NS  10000000L

/* --- folders --- */

/* 0: a folder of this account's, or root's, that nobody else may write. */
static int check_folder(const char *path, uid_t owner, struct ws_error *err)
{
    struct stat st;
    if (lstat(path, &st) != 0)
        return ws_error_set(err, errno, "cannot look at %s: %s", path, strerror(errno));
    if (!S_ISDIR(st.st_mode) || (st.st_uid != owner && st.st_uid != 0))
        return ws_error_set(err, EPERM, "%s is not a folder of this account's: another one may have made it",
                            path);
    if (st.st_mode & S_IWOTH || (st.st_mode & S_IWGRP && st.st_gid != 0))
        return ws_error_set(err, EPERM, "other accounts may write the folder %s: chmod go-w it", path);
    return 0;
}

static bool owns(const char *path)
{
    struct stat st;
    return lstat(path, &st) == 0 && S_ISDIR(st.st_mode) && st.st_uid == geteuid();
}

/* Of one account's files; index 0, 1, ...: the next place. False: there is no other. */
static bool folder_of(uid_t uid, unsigned index, char out[WS_LOCAL_TOKEN_PATH])
{
    const char *runtime = uid == geteuid() ? getenv("XDG_RUNTIME_DIR") : NULL;
    if (index == 0)
        snprintf(out, WS_LOCAL_TOKEN_PATH, SYSTEM_FOLDER);
    else if (index == 1 && uid != 0 && runtime && runtime[0] == '/')
        snprintf(out, WS_LOCAL_TOKEN_PATH, "%.200s/wsync", runtime);
    else if (index == 1 && uid != 0)
        snprintf(out, WS_LOCAL_TOKEN_PATH, "/run/user/%u/wsync", (unsigned)uid);
    else if (index == 2 && uid != 0)
        snprintf(out, WS_LOCAL_TOKEN_PATH, "/tmp/wsync-%u", (unsigned)uid);
    else
        return false;
    return true;
}

bool ws_local_token_folder(unsigned index, char out[WS_LOCAL_TOKEN_PATH])
{
    return folder_of(geteuid(), index, out);
}

int ws_local_folder(char out[WS_LOCAL_TOKEN_PATH], struct ws_error *err)
{
    const uid_t self = geteuid();
    const char *runtime = getenv("XDG_RUNTIME_DIR");
    const bool system = self == 0 || owns(SYSTEM_FOLDER);
    (void)folder_of(self, system ? 0 : runtime && runtime[0] == '/' ? 1 : 2, out);
    if (mkdir(out, system ? 0755 : 0700) != 0 && errno != EEXIST)
        return ws_error_set(err, errno, "cannot make the folder %s: %s", out, strerror(errno));
    return check_folder(out, self, err);
}

/* --- files --- */

/* The secret of a file that belongs to this account and that nobody else can read. A descriptor; -1: it is none. */
static int open_token(const char *path, uid_t owner, char secret[WS_TOKEN_SECRET_CHARS + 1])
{
    struct stat st;
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);
    secret[0] = 0;
    if (fd < 0)
        return -1;
    bool good = fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_uid == owner && !(st.st_mode & 077) &&
                read(fd, secret, WS_TOKEN_SECRET_CHARS) == WS_TOKEN_SECRET_CHARS;
    for (size_t i = 0; good && i < WS_TOKEN_SECRET_CHARS; i++)
        good = secret[i] > ' ' && secret[i] < 127;
    secret[good ? WS_TOKEN_SECRET_CHARS : 0] = 0;
    if (good)
        return fd;
    close(fd);
    return -1;
}

static bool read_token(const char *path, uid_t owner, char secret[WS_TOKEN_SECRET_CHARS + 1])
{
    const int fd = open_token(path, owner, secret);
    if (fd >= 0)
        close(fd);
    return fd >= 0;
}

static int write_token(const char *path)
{
    char line[WS_TOKEN_SECRET_CHARS + 2];
    ws_token_secret_new(line);
    (void)strcat(line, "\n");
    const int rc = ws_state_file_write(path, line, strlen(line));
    sodium_memzero(line, sizeof(line));
    return rc;
}

static bool is_at(const char *path, int fd)
{
    struct stat st, now;
    return fstat(fd, &st) == 0 && lstat(path, &now) == 0 && st.st_dev == now.st_dev &&
           st.st_ino == now.st_ino;
}

/* Another server may be removing the file just now, or replacing it. A descriptor, or -errno. */
static int hold(const char *path, char secret[WS_TOKEN_SECRET_CHARS + 1])
{
    for (unsigned i = 0; i < HOLD_TRIES; i++) {
        int fd = open_token(path, geteuid(), secret);
        const int rc = fd < 0 ? write_token(path) : 0;
        if (rc < 0)
            return rc;
        if (fd < 0)
            fd = open_token(path, geteuid(), secret);
        if (fd >= 0 && flock(fd, LOCK_SH | LOCK_NB) == 0 && is_at(path, fd))
            return fd;
        if (fd >= 0)
            close(fd);
        nanosleep(&(struct timespec){.tv_nsec = HOLD_STEP_NS}, NULL);
    }
    return -EBUSY;
}

int ws_local_token_make(unsigned port, char path[WS_LOCAL_TOKEN_PATH], struct ws_token_hash *hash,
                        struct ws_error *err)
{
    char folder[WS_LOCAL_TOKEN_PATH], secret[WS_TOKEN_SECRET_CHARS + 1];
    int rc = ws_local_folder(folder, err);
    if (rc < 0)
        return ws_error_prefix(
            err, "there is no place for the token of this server: give --tokens FILE, or --insecure");
    snprintf(path, WS_LOCAL_TOKEN_PATH, "%.230s/%u.token", folder, port);
    rc = hold(path, secret);
    if (rc >= 0)
        ws_token_hash(secret, hash);
    sodium_memzero(secret, sizeof(secret));
    return rc < 0 ? ws_error_set(err, -rc, "cannot write the token of this server to %s: %s", path,
                                 strerror(-rc))
                  : rc;
}

void ws_local_token_end(const char *path, int held)
{
    if (flock(held, LOCK_EX | LOCK_NB) == 0 && is_at(path, held))
        (void)unlink(path);
    close(held);
}

/* ws_local_token_find, with the file that has the token. */
static bool find(const char *url, char secret[WS_TOKEN_SECRET_CHARS + 1], uid_t *owner,
                 char path[WS_LOCAL_TOKEN_PATH + 16])
{
    char folder[WS_LOCAL_TOKEN_PATH];
    unsigned port;
    if (!ws_loopback_port(url, &port) || !ws_loopback_owner(url, port, owner))
        return false;
    for (unsigned i = 0; folder_of(*owner, i, folder); i++) {
        snprintf(path, WS_LOCAL_TOKEN_PATH + 16, "%s/%u.token", folder, port);
        if (check_folder(folder, *owner, NULL) == 0 && read_token(path, *owner, secret))
            return true;
    }
    return false;
}

bool ws_local_token_find(const char *url, char secret[WS_TOKEN_SECRET_CHARS + 1], uid_t *owner)
{
    char path[WS_LOCAL_TOKEN_PATH + 16];
    return find(url, secret, owner, path);
}

bool ws_local_token_file(const char *url, char path[WS_LOCAL_TOKEN_PATH + 16])
{
    char secret[WS_TOKEN_SECRET_CHARS + 1];
    uid_t owner;
    const bool found = find(url, secret, &owner, path);
    sodium_memzero(secret, sizeof(secret));
    return found;
}
