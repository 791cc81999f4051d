#include "fs/engines/own_folder.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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

int ws_own_folder_check(const char *mountpoint, const char *path, struct ws_error *err)
{
    char real[PATH_MAX];
    const bool is_named =
        is_below(path, mountpoint); /* a mount that runs is not asked for what it would show */
    const int rc = is_named ? 0 : ws_own_folder_resolve(path, real, err);
    if (rc < 0 || (!is_named && !is_below(real, mountpoint)))
        return rc;
    return ws_error_set(err, EINVAL,
                        "%.1000s lies below %.1000s, the mount's own folder, where this mount cannot look "
                        "itself; name one elsewhere",
                        path, mountpoint);
}

int ws_own_folder_check_source(const char *mountpoint, const struct ws_source_spec *source,
                               struct ws_error *err)
{
    const char *path = strchr(source->url, ':');
    int rc = source->token_file ? ws_own_folder_check(mountpoint, source->token_file, err) : 0;
    if (rc == 0 && path && path[1] == '/' && path[2] != '/')
        rc = ws_own_folder_check(mountpoint, path + 1, err);
    return rc;
}
