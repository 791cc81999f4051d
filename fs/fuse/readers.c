#include "fs/fuse/readers.h"
#include "fs/fuse/version_cache.h"
#include "transports/base/text.h"
#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysmacros.h>

#define MOST_NAMED 8

void ws_readers_close(void *fs, struct ws_version *v)
{
    ws_version_cache_close(fs, v);
}

/* Does it map a file of that version? "7f00-7f01 r--s 00000000 00:2d 4398046511105 /path": in hexadecimal, but for the
 * inode. */
static bool maps(pid_t pid, const struct ws_fs *fs, uint64_t serial)
{
    char path[64], line[512];
    bool found = false, whole = true;
    snprintf(path, sizeof(path), "/proc/%d/maps", pid);
    FILE *f = fopen(path, "re");
    while (f && !found && fgets(line, sizeof(line), f)) {
        unsigned major_of, minor_of;
        uint64_t ino;
        found = whole &&
                sscanf(line, "%*s %*s %*s %x:%x %" SCNu64, &major_of, &minor_of, &ino) ==
                    3 && /* NOLINT(cert-err34-c) */
                makedev(major_of, minor_of) == fs->place.dev &&
                ws_ino_id(ino) == serial;
        whole = strchr(line, '\n') != NULL; /* else the next is the rest of a long path */
    }
    if (f)
        fclose(f);
    return found;
}

static void name(pid_t pid, char *out, size_t cap, size_t *n_named)
{
    char path[64], command[64] = "";
    const size_t n = strlen(out);
    if (n + 100 > cap || ++*n_named > MOST_NAMED)
        return;
    if (pid == 0) { /* as a daemon in a container sees those outside */
        snprintf(out + n, cap - n, "%sa process of another PID namespace", n ? ", " : "");
        return;
    }
    snprintf(path, sizeof(path), "/proc/%d/comm", pid);
    FILE *f = fopen(path, "re");
    if (f && fgets(command, sizeof(command), f))
        command[strcspn(command, "\n")] = 0;
    if (f)
        fclose(f);
    ws_text_clean(command);
    snprintf(out + n, cap - n, "%sprocess %d (%s)", n ? ", " : "", pid,
             command[0] ? command : "which has ended");
}

void ws_readers_describe(void *arg, struct ws_version *v, char *out, size_t cap)
{
    struct ws_fs *fs = arg;
    pid_t open[MOST_NAMED];
    size_t n_named = 0, n_open = ws_fs_openers(fs, v, open, MOST_NAMED);
    out[0] = 0;
    for (size_t i = 0; i < n_open; i++)
        name(open[i], out, cap, &n_named);
    DIR *all = opendir("/proc");
    for (const struct dirent *e; all && (e = readdir(all));) {
        const pid_t pid = (pid_t)strtol(e->d_name, NULL, 10);
        bool known = pid <= 0;
        for (size_t i = 0; i < n_open; i++)
            known = known || open[i] == pid;
        if (!known && maps(pid, fs, ws_version_serial(v)))
            name(pid, out, cap, &n_named);
    }
    if (all)
        closedir(all);
}
