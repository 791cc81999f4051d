#include "fs/written/descriptors.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_DEPTH 1000 /* of processes below one another */

/* What a line of fdinfo says: "flags:\t0100002", "ino:\t42". */
static bool read_number(const char *text, const char *name, int base, uint64_t *out)
{
    const char *at = strstr(text, name);

    if (at)
        *out = strtoull(at + strlen(name), NULL, base);
    return at != NULL;
}

/* 1: it is that file, open for writing; 0: it is not, or is gone; -1: it cannot be told. */
static int look_at(int folder, const char *name, uint64_t ino)
{
    char text[1024];
    uint64_t number, flags;
    const int fd = openat(folder, name, O_RDONLY | O_CLOEXEC);

    if (fd < 0)
        return errno == ENOENT || errno == ESRCH ? 0 : -1;
    const ssize_t n = read(fd, text, sizeof(text) - 1);
    close(fd);
    if (n < 0)
        return errno == ENOENT || errno == ESRCH ? 0 : -1;
    text[n] = '\0';
    if (n == 0)
        return 0;
    if (!read_number(text, "ino:", 10, &number) || !read_number(text, "flags:", 8, &flags))
        return -1; /* Linux before 5.14 */
    return number == ino && (flags & O_ACCMODE) != O_RDONLY;
}

/* 1: it has that file mapped and shared, which outlives its descriptor. */
static int look_at_maps(int proc, const char *pid, uint64_t ino)
{
    char path[300], *line = NULL, sharing;
    size_t room = 0;
    uint64_t number;
    int found = 0;

    snprintf(path, sizeof(path), "%s/maps", pid);
    const int fd = openat(proc, path, O_RDONLY | O_CLOEXEC);
    FILE *maps = fd < 0 ? NULL : fdopen(fd, "r");
    if (!maps) {
        found = errno == ENOENT || errno == ESRCH ? 0 : -1;
        if (fd >= 0)
            close(fd);
        return found;
    }
    /* "7f00-7f01 rw-s 00000000 00:2a 42   /path": private ones are never written to the file */
    while (found == 0 && (errno = 0, getline(&line, &room, maps)) > 0)
        if (sscanf(line, "%*s %*3s%c %*s %*s %" SCNu64, &sharing, &number) == 2)
            found = sharing == 's' && number == ino;
    if (found == 0 && errno && errno != ESRCH)
        found = -1;
    free(line);
    fclose(maps);
    return found;
}

static int look_at_descriptors(int proc, const char *pid, uint64_t ino)
{
    char path[300];
    const struct dirent *d;
    int found = 0;

    snprintf(path, sizeof(path), "%s/fdinfo", pid);
    const int fd = openat(proc, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *names = fd < 0 ? NULL : fdopendir(fd);
    if (!names) {
        found = errno == ENOENT || errno == ESRCH ? 0 : -1;
        if (fd >= 0)
            close(fd);
        return found;
    }
    while (found == 0 && (d = readdir(names)))
        found = d->d_name[0] == '.' ? 0 : look_at(fd, d->d_name, ino);
    closedir(names);
    return found;
}

/* 0: it has none, or is gone. */
static pid_t parent_of(int proc, pid_t pid)
{
    char path[32], text[512];

    snprintf(path, sizeof(path), "%d/stat", (int)pid);
    const int fd = openat(proc, path, O_RDONLY | O_CLOEXEC);
    const ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof(text) - 1);
    if (fd >= 0)
        close(fd);
    if (n <= 0)
        return 0;
    text[n] = '\0';
    const char *at = strrchr(text, ')'); /* behind the name: ") S 1 ..." */
    return at && strlen(at) > 4 ? (pid_t)strtol(at + 4, NULL, 10) : 0;
}

static bool descends_from(int proc, pid_t pid, pid_t from)
{
    for (int i = 0; pid > 0 && i < MAX_DEPTH; i++) {
        pid = parent_of(proc, pid);
        if (pid == from)
            return true;
    }
    return false;
}

bool written_is_open_anywhere(uint64_t ino, pid_t by)
{
    DIR *proc = opendir("/proc");
    const struct dirent *d;
    int found = proc ? 0 : -1;

    while (found == 0 && (d = readdir(proc))) {
        if (d->d_name[0] < '1' || d->d_name[0] > '9')
            continue;
        found = look_at_descriptors(dirfd(proc), d->d_name, ino);
        if (found == 0)
            found = look_at_maps(dirfd(proc), d->d_name, ino);
        if (found < 0 && descends_from(dirfd(proc), by, (pid_t)strtol(d->d_name, NULL, 10)))
            found = 0;
    }
    if (proc)
        closedir(proc);
    return found != 0;
}
