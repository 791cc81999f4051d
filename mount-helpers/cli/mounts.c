#include "mount-helpers/cli/mounts.h"
#include "fs/written/written.h"
#include "transports/base/name.h"
#include "transports/base/vector.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <mntent.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FIRST_BYTES (64UL << 10) /* enough for most files of a mount */

/* Calls visit with each wsync mount's folder until it returns true; false: it never did. Folders that 'wsync share' has mounted show no
 * models. */
static bool each_mount(bool (*visit)(const char *dir, void *arg), void *arg)
{
    bool ended = false;
    FILE *f = setmntent("/proc/self/mounts", "re");
    if (!f)
        return false;
    for (const struct mntent *m; !ended && (m = getmntent(f));)
        ended = !strcmp(m->mnt_type, "fuse.wsync") && strcmp(m->mnt_fsname, WS_WRITTEN_FSNAME) != 0 &&
                visit(m->mnt_dir, arg);
    endmntent(f);
    return ended;
}

struct search {
    const char *path;    /* absolute */
    char best[PATH_MAX]; /* the innermost mount that path is on, or below */
};

static bool is_on(const char *dir, void *arg)
{
    struct search *s = arg;
    size_t n = strlen(dir);
    if (!strncmp(s->path, dir, n) && (s->path[n] == 0 || s->path[n] == '/') && n >= strlen(s->best))
        snprintf(s->best, sizeof s->best, "%s", dir);
    return false;
}

bool mounts_find(const char *path, char mount[PATH_MAX], char below[PATH_MAX])
{
    char real[PATH_MAX];
    struct search s = {.path = realpath(path, real)};
    if (!s.path) { /* below a dead mount nothing can be looked up: what is written must do */
        size_t n = strlen(path);
        while (n > 1 && path[n - 1] == '/')
            n--;
        snprintf(real, sizeof real, "%.*s", (int)n, path);
        s.path = real;
    }
    each_mount(is_on, &s);
    if (!s.best[0])
        return false;
    snprintf(mount, PATH_MAX, "%s", s.best);
    snprintf(below, PATH_MAX, "%s", s.path + strlen(s.best) + (s.path[strlen(s.best)] == '/'));
    return true;
}

const char *mounts_follow(const char *path, char out[PATH_MAX])
{
    if (!realpath(path, out))
        snprintf(out, PATH_MAX, "%s", path);
    return out;
}

struct tally {
    size_t n;
    char last[PATH_MAX];
};

static bool count_mount(const char *dir, void *arg)
{
    struct tally *t = arg;
    if (t->n++ == 0 || strcmp(t->last, dir)) /* one that is mounted over a dead one counts once */
        snprintf(t->last, sizeof t->last, "%s", dir);
    else
        t->n--;
    return false;
}

const char *mounts_named(const struct cli_args *args)
{
    const char *named = cli_get(args, "mount");
    if (!named)
        named = getenv("WSYNC_MOUNT");
    return named && *named ? named : NULL;
}

const char *mounts_at(const char *named)
{
    static char mount[PATH_MAX];
    char below[PATH_MAX];
    if (!mounts_find(named, mount, below) || below[0])
        exit(cli_fail("%s is not a wsync mount; 'findmnt -t fuse.wsync' lists those of this machine", named));
    return mount;
}

const char *mounts_pick(const struct cli_args *args)
{
    static char mount[PATH_MAX];
    if (mounts_named(args))
        return mounts_at(mounts_named(args));
    struct tally t = {0};
    each_mount(count_mount, &t);
    if (t.n == 0)
        exit(cli_fail("no wsync mount on this machine; mount one with 'wsync mount SOURCE DIR', "
                      "or name it with --mount DIR"));
    if (t.n > 1)
        exit(cli_fail("%zu wsync mounts on this machine; name one with --mount DIR or $WSYNC_MOUNT", t.n));
    snprintf(mount, sizeof mount, "%s", t.last);
    return mount;
}

const char *mounts_pick_model(const struct cli_args *args, const char **model)
{
    static char mount[PATH_MAX], below[PATH_MAX];
    const char *first = cli_word(args, 0);
    const bool is_folder = cli_words(args) > 1 || (first && strchr(first, '/'));
    *model = is_folder ? cli_word(args, 1) : first;
    if (*model && !ws_name_is_offered(*model))
        exit(cli_usage("'%s' is no model: %s", *model, WS_MODEL_NAME_RULE));
    if (!is_folder)
        return mounts_pick(args);
    if (cli_get(args, "mount"))
        exit(cli_usage("the mount is named twice: '%s' and --mount %s", first, cli_get(args, "mount")));
    if (!mounts_find(first, mount, below))
        exit(cli_fail("%s is not on a wsync mount; 'findmnt -t fuse.wsync' lists those of this machine",
                      first));
    if (strchr(below, '/') || (below[0] && cli_words(args) > 1))
        exit(cli_usage("'%s' is neither a mount nor the folder of a model", first));
    if (below[0])
        *model = below;
    return mount;
}

char *mounts_read(const char *format, ...)
{
    char path[PATH_MAX];
    va_list ap;
    va_start(ap, format);
    vsnprintf(path, sizeof path, format, ap);
    va_end(ap);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return NULL;
    struct ws_bytes text = {0};
    int rc = ws_bytes_reserve(&text, FIRST_BYTES);
    for (ssize_t n = -1; rc == 0 && n != 0;) {
        n = read(fd, text.ptr + text.len, text.cap - text.len);
        if (n < 0 && errno != EINTR)
            rc = -errno;
        text.len += n > 0 ? (size_t)n : 0;
        if (rc == 0)
            rc = ws_bytes_reserve(&text, 1); /* for more, or for the NUL */
    }
    close(fd);
    if (rc < 0) {
        ws_bytes_reset(&text);
        errno = -rc;
        return NULL;
    }
    text.ptr[text.len] = 0;
    return text.ptr;
}

const char *mounts_hint(int code)
{
    return code == ENOTCONN || code == ECONNABORTED ? "; its daemon died: 'wsync mount' over it recovers it"
                                                    : "";
}

int mounts_write(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    ssize_t n = write(fd, text, strlen(text));
    int rc = n < 0 ? -errno : 0;
    close(fd);
    return rc;
}

char *mounts_value(const char *text, const char *key)
{
    size_t k = strlen(key);
    for (const char *line = text; line && *line;) {
        size_t n = strcspn(line, "\n");
        if (n > k && !strncmp(line, key, k) && line[k] == ' ')
            return strndup(line + k + 1, n - k - 1);
        line += n + (line[n] == '\n');
    }
    return NULL;
}

static int by_name(const struct dirent **a, const struct dirent **b)
{
    char *end_a, *end_b;
    uint64_t x = strtoull((*a)->d_name, &end_a, 10), y = strtoull((*b)->d_name, &end_b, 10);
    if (end_a != (*a)->d_name && end_b != (*b)->d_name && x != y)
        return x < y ? -1 : 1;
    return strcmp((*a)->d_name, (*b)->d_name);
}

static int is_shown(const struct dirent *d)
{
    return d->d_type == DT_DIR && d->d_name[0] != '.';
}

int mounts_each_folder(const char *path, bool may_be_gone, int (*visit)(void *arg, const char *name),
                       void *arg)
{
    struct dirent **names;
    int n = scandir(path, &names, is_shown, by_name);
    if (n < 0 && (errno == ENOENT || errno == ESTALE) && may_be_gone)
        return CLI_OK;
    if (n < 0)
        return cli_fail("cannot list %s: %s%s", path, strerror(errno), mounts_hint(errno));
    int code = CLI_OK;
    for (int i = 0; i < n; i++) {
        if (code == CLI_OK)
            code = visit(arg, names[i]->d_name);
        free(names[i]);
    }
    free(names);
    return code;
}

int mounts_each_model(const char *mount, int (*visit)(void *arg, const char *name), void *arg)
{
    static const char key[] = "model ";
    char *text = mounts_read("%s/status", mount), *save = NULL;
    int code = CLI_OK;

    if (!text)
        return cli_fail("cannot read %s/status: %s%s", mount, strerror(errno), mounts_hint(errno));
    for (char *line = strtok_r(text, "\n", &save); line && code == CLI_OK; line = strtok_r(NULL, "\n", &save))
        if (strncmp(line, key, strlen(key)) == 0)
            code = visit(arg, line + strlen(key));
    free(text);
    return code;
}
