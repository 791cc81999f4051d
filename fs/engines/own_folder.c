#include "fs/engines/own_folder.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_LINKS 40 /* as many as the kernel follows */

static int resolve_parent(const char *path, char out[PATH_MAX], struct ws_error *err)
{
    char absolute[PATH_MAX], cwd[PATH_MAX];
    if (path[0] == '/')
        snprintf(absolute, sizeof(absolute), "%s", path);
    else if (getcwd(cwd, sizeof(cwd)))
        snprintf(absolute, sizeof(absolute), "%s/%s", cwd, path);
    else
        return ws_error_set(err, errno, "cannot find the working directory: %s", strerror(errno));
    char *slash = strrchr(absolute, '/');
    char parent[PATH_MAX];
    snprintf(parent, sizeof(parent), "%.*s", slash == absolute ? 1 : (int)(slash - absolute), absolute);
    char *real = realpath(parent, NULL);
    if (real)
        snprintf(out, PATH_MAX, "%s/%s", strcmp(real, "/") == 0 ? "" : real, slash + 1);
    else
        snprintf(out, PATH_MAX, "%s", absolute);
    free(real);
    return 0;
}

int ws_own_folder_resolve(const char *path, char out[PATH_MAX], struct ws_error *err)
{
    char *whole = realpath(path, NULL); /* where a link at its end leads */
    if (!whole)
        return resolve_parent(path, out, err);
    snprintf(out, PATH_MAX, "%s", whole);
    free(whole);
    return 0;
}

static bool is_below(const char *path, const char *mountpoint)
{
    const size_t n = strlen(mountpoint);
    return strncmp(path, mountpoint, n) == 0 && (path[n] == '/' || !path[n]);
}

/* Takes the first name off a path. */
static size_t next_name(const char *rest, const char **name)
{
    *name = rest + strspn(rest, "/");
    return strcspn(*name, "/");
}

/* Follows the links of a path as far as they lead to the mount, which is not asked: it may not answer yet. What is not there
 * leads nowhere else. */
static bool leads_below(const char *path, const char *mountpoint)
{
    char done[PATH_MAX] = "", rest[2 * PATH_MAX], at[PATH_MAX], target[2 * PATH_MAX];
    const char *name;
    size_t n;
    if (path[0] == '/' || !getcwd(at, sizeof(at)))
        at[0] = 0;
    snprintf(rest, sizeof(rest), "%s/%s", at, path);
    for (int links = 0; links <= MAX_LINKS && (n = next_name(rest, &name)) > 0;) {
        const char *following = name + n;
        char *last = strrchr(done, '/');
        if (n == 2 && memcmp(name, "..", 2) == 0) {
            if (last)
                *last = 0;
        } else if (n > 1 || name[0] != '.') {
            if (snprintf(at, sizeof(at), "%s/%.*s", done, (int)n, name) >= (int)sizeof(at))
                return false;
            if (is_below(at, mountpoint))
                return true;
            const ssize_t len = readlink(at, target, PATH_MAX - 1);
            if (len > 0) {
                links++;
                if (target[0] == '/')
                    done[0] = 0;
                snprintf(target + len, sizeof(target) - (size_t)len, "%s", following);
                memcpy(rest, target, sizeof(rest));
                continue;
            }
            memcpy(done, at, sizeof(done));
        }
        memmove(rest, following, strlen(following) + 1);
    }
    return false;
}

int ws_own_folder_check(const char *mountpoint, const char *path, struct ws_error *err)
{
    if (!leads_below(path, mountpoint))
        return 0;
    return ws_error_set(err, EINVAL,
                        "%.1000s lies below %.1000s, the mount's own folder, where this mount cannot look "
                        "itself; name one elsewhere",
                        path, mountpoint);
}

int ws_own_folder_check_source(const char *mountpoint, const struct ws_source_spec *source,
                               struct ws_error *err)
{
    char from_root[PATH_MAX];
    int rc = source->token_file ? ws_own_folder_check(mountpoint, source->token_file, err) : 0;
    const bool is_path = strncmp(source->url, "dir:", 4) == 0 || strncmp(source->url, "unix:", 5) == 0;
    if (rc < 0 || !is_path)
        return rc;
    const char *path = strchr(source->url, ':') + 1;
    rc = ws_own_folder_check(mountpoint, path, err);
    if (rc == 0 && path[0] != '/') { /* a daemon works in / */
        snprintf(from_root, sizeof(from_root), "/%s", path);
        rc = ws_own_folder_check(mountpoint, from_root, err);
    }
    return rc;
}
