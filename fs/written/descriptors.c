#include "fs/written/descriptors.h"
#include "transports/memory/file_lease.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
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

static int look_at_process(int proc, const char *pid, uint64_t ino)
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
        found = look_at_process(dirfd(proc), d->d_name, ino);
        if (found < 0 && descends_from(dirfd(proc), by, (pid_t)strtol(d->d_name, NULL, 10)))
            found = 0;
    }
    if (proc)
        closedir(proc);
    return found != 0;
}

/* A line of /proc/PID/maps: "7f00-7f10 rw-s 00000000 00:2a 42   /path": its second field are the rights, its fifth is the number. */
static bool is_written_mapping(const char *line, uint64_t ino)
{
    const char *fields[5];

    for (size_t i = 0; i < 5; i++) {
        fields[i] = line;
        line += strcspn(line, " ");
        line += strspn(line, " ");
    }
    const char *rights = fields[1];
    return strcspn(rights, " ") == 4 && rights[1] == 'w' && rights[3] == 's' &&
           strtoull(fields[4], NULL, 10) == ino;
}

bool written_is_mapped_by(uint64_t ino, pid_t by)
{
    char path[32], *line = NULL;
    size_t room = 0;
    bool is = false;

    snprintf(path, sizeof(path), "/proc/%d/maps", (int)by);
    FILE *f = fopen(path, "re");
    while (f && !is && getline(&line, &room, f) >= 0)
        is = is_written_mapping(line, ino);
    free(line);
    if (f)
        fclose(f);
    return is;
}

static bool is_among(const struct written_inos *inos, ino_t ino)
{
    for (size_t i = 0; i < inos->len; i++)
        if (inos->ptr[i] == ino)
            return true;
    return false;
}

static int check_file(int folder, const char *name, const struct written_inos *open_ones,
                      struct ws_error *err)
{
    struct stat st;

    if (fstatat(folder, name, &st, AT_SYMLINK_NOFOLLOW) < 0 || !S_ISREG(st.st_mode) ||
        is_among(open_ones, st.st_ino))
        return 0;
    const int fd = openat(folder, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    const bool busy = fd >= 0 && ws_file_lease_try(fd, F_RDLCK) == -EBUSY;
    if (fd >= 0)
        close(fd);
    return busy ? ws_error_set(err, EBUSY,
                               "a process has %s mapped and may go on writing: it is published once that "
                               "unmaps it, or ends",
                               name)
                : 0;
}

int written_check_mapped(int folder, const struct written_inos *open_ones, struct ws_error *err)
{
    const int fd = openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *names = fd < 0 ? NULL : fdopendir(fd);
    const struct dirent *d;
    int rc = 0;

    while (names && rc == 0 && (d = readdir(names)))
        rc = check_file(fd, d->d_name, open_ones, err);
    if (names)
        closedir(names);
    else if (fd >= 0)
        close(fd);
    return rc;
}
