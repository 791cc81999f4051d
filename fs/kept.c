#include "fs/kept.h"
#include "fs/fuse/life.h"
#include "fs/fuse/packet.h"
#include "transports/base/file.h"
#include "transports/base/log.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define NAME "WSYNC_KEPT"

WS_VECTOR(words, char *);

static char folder[PATH_MAX] = "/"; /* where this process was started */
static struct ws_kept given;
static struct ws_kept_regions given_regions;
static bool is_given;

static void close_on_exec(const struct ws_kept *k, const struct ws_kept_regions *regions, bool closes)
{
    const int flags = closes ? FD_CLOEXEC : 0;
    for (size_t i = 0; i < WS_KEPT_FDS; i++)
        if (k->fds[i] >= 0)
            (void)fcntl(k->fds[i], F_SETFD, flags);
    for (size_t i = 0; i < regions->len; i++)
        (void)fcntl(regions->ptr[i].fd, F_SETFD, flags);
}

static bool read_given(int fd)
{
    struct ws_kept_region r;
    if (ws_file_read(fd, &given, sizeof(given), 0) != (ssize_t)sizeof(given) || given.wire != WS_LIFE_WIRE)
        return false;
    for (uint64_t at = sizeof(given); ws_file_read(fd, &r, sizeof(r), at) == (ssize_t)sizeof(r);
         at += sizeof(r))
        if (ws_kept_regions_append(&given_regions, r) < 0)
            close(r.fd);
    return true;
}

void ws_kept_begin(void)
{
    const char *text = getenv(NAME);
    const int fd = text ? (int)strtol(text, NULL, 10) : -1;
    if (!getcwd(folder, sizeof(folder)))
        snprintf(folder, sizeof(folder), "/");
    is_given = fd > STDERR_FILENO && read_given(fd);
    (void)unsetenv(NAME);
    if (!is_given)
        return;
    close(fd);
    close_on_exec(&given, &given_regions, true);
}

const struct ws_kept *ws_kept(void)
{
    return is_given ? &given : NULL;
}

void ws_kept_end(void)
{
    is_given = false;
}

void ws_kept_none(struct ws_kept *k)
{
    memset(k, 0, sizeof(*k));
    k->wire = WS_LIFE_WIRE;
    snprintf(k->release, sizeof(k->release), "%s", WS_VERSION);
    for (size_t i = 0; i < WS_KEPT_FDS; i++)
        k->fds[i] = -1;
}

/* What this process was started with; each of them, and the array, is left to the end of the process. */
static char **arguments(void)
{
    struct words all = {0};
    FILE *f = fopen("/proc/self/cmdline", "re");
    char *word = NULL;
    size_t cap = 0;
    int rc = f ? 0 : -errno;
    while (rc == 0 && getdelim(&word, &cap, 0, f) > 0) {
        rc = words_append(&all, word);
        word = NULL;
        cap = 0;
    }
    if (f)
        fclose(f);
    return rc == 0 && words_append(&all, NULL) == 0 ? all.ptr : NULL;
}

struct ws_kept_regions ws_kept_take_regions(void)
{
    const struct ws_kept_regions all = given_regions;
    given_regions = (struct ws_kept_regions){0};
    return all;
}

int ws_kept_exec(const struct ws_kept *k, const struct ws_kept_regions *regions, int binary)
{
    char **argv = arguments(), text[16];
    const int fd = memfd_create("wsync-kept", 0);
    int rc = argv && fd >= 0 ? ws_file_write(fd, k, sizeof(*k)) : -ENOMEM;
    if (rc == 0)
        rc = ws_file_write(fd, regions->ptr, regions->len * sizeof(*regions->ptr));
    snprintf(text, sizeof(text), "%d", fd);
    if (rc == 0 && setenv(NAME, text, 1) != 0)
        rc = -ENOMEM;
    close_on_exec(k, regions, false);
    if (rc == 0 && chdir(folder) == 0) {
        (void)execveat(binary, "", argv, environ, AT_EMPTY_PATH);
        rc = -errno;
        (void)chdir("/");
    }
    close_on_exec(k, regions, true);
    (void)unsetenv(NAME);
    if (fd >= 0)
        close(fd);
    return rc < 0 ? rc : -ENOENT;
}

void ws_kept_refuse(const struct ws_error *why)
{
    if (!is_given)
        return;
    if (given.is_trial) {
        (void)!ws_packet_send(given.fds[WS_KEPT_CLIENT], why, sizeof(*why), -1);
        _exit(1);
    }
    struct ws_kept back = given;
    back.is_undone = true;
    snprintf(back.why, sizeof(back.why), "%s", why->text);
    ws_log(WS_LOG_ERROR, "mount", "the supervisor becomes what it was: %s", why->text);
    const int rc = ws_kept_exec(&back, &given_regions, back.fds[WS_KEPT_FORMER]);
    ws_log(WS_LOG_ERROR, "mount", "it cannot, and the daemon goes on without it: %s", strerror(-rc));
}

void ws_kept_accept(void)
{
    const struct ws_error none = {0};
    (void)!ws_packet_send(given.fds[WS_KEPT_CLIENT], &none, sizeof(none), -1);
    _exit(0);
}
