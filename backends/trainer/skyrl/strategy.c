#include "backends/trainer/skyrl/strategy.h"
#include "backends/trainer/api/last_error.h"
#include "transports/transport.h"
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

/* Is there one of the urls on this machine? kind: S_IFSOCK or S_IFDIR. */
static int on_this_host(const wsync_sync_info *info, mode_t kind, const char *what, struct ws_error *why)
{
    char url[WS_MAX_URL + 1] = "";
    int rc = 0;
    for (size_t i = 0; i < info->source.n_urls; i++) {
        struct stat st;
        rc = ws_sync_info_source(info, i, url, sizeof(url), why);
        if (rc < 0)
            return rc;
        const char *path = strchr(url, ':') + 1;
        if (stat(path, &st) != 0)
            rc = ws_error_set(why, errno, "there is no %s at %s on this host: %s", what, path,
                              strerror(errno));
        else if ((st.st_mode & S_IFMT) != kind)
            rc = ws_error_set(why, kind == S_IFDIR ? ENOTDIR : ENOTSOCK, "%s is no %s", path, what);
        else
            return 0;
    }
    return rc;
}

static int ipc_reaches(const wsync_sync_info *info, struct ws_error *why)
{
    int rc = on_this_host(info, S_IFSOCK, "agent's socket", why);
    if (rc < 0)
        ws_error_prefix(why, "ipc reaches an agent on the same host only; use tcp from elsewhere");
    return rc;
}

static int dir_reaches(const wsync_sync_info *info, struct ws_error *why)
{
    return on_this_host(info, S_IFDIR, "folder", why);
}

static const struct ws_strategy table[] = {
    [WSYNC_TCP] = {.way = &ws_ways[WS_WAY_TCP],
                   .request_type = "WeightUpdateRequest",
                   .sync_info_type = "SourceSyncInfo",
                   .info = WS_INFO_SOURCE},
    [WSYNC_IPC] = {.way = &ws_ways[WS_WAY_IPC],
                   .request_type = "WeightUpdateRequest",
                   .sync_info_type = "SourceSyncInfo",
                   .info = WS_INFO_SOURCE,
                   .reaches = ipc_reaches},
    [WSYNC_DIR] = {.way = &ws_ways[WS_WAY_DIR],
                   .request_type = "WeightUpdateRequest",
                   .sync_info_type = "SourceSyncInfo",
                   .info = WS_INFO_SOURCE,
                   .reaches = dir_reaches},
    [WSYNC_BROADCAST] = {.way = &ws_ways[WS_WAY_BROADCAST],
                         .request_type = "BroadcastWeightUpdateRequest",
                         .sync_info_type = "BroadcastInitInfo",
                         .info = WS_INFO_BROADCAST,
                         .may_pack = true},
    [WSYNC_CUDA_IPC] = {.way = &ws_ways[WS_WAY_CUDA_IPC],
                        .request_type = "CudaIpcWeightUpdateRequest",
                        .sync_info_type = "CudaIpcInitInfo",
                        .info = WS_INFO_CUDA_IPC,
                        .may_pack = true},
    [WSYNC_PACKED_CUDA_IPC] = {.way = &ws_ways[WS_WAY_PACKED_CUDA_IPC],
                               .request_type = "PackedCudaIpcWeightUpdateRequest",
                               .sync_info_type = "CudaIpcInitInfo",
                               .info = WS_INFO_CUDA_IPC,
                               .may_pack = true,
                               .must_pack = true},
};
#define N_STRATEGIES (sizeof(table) / sizeof(table[0]))
/* A way's number is its strategy's. By ucx only mounts read: it is none of SkyRL's. */
_Static_assert(N_STRATEGIES == WS_WAY_UCX && WSYNC_TCP + 0 == WS_WAY_TCP && WSYNC_IPC + 0 == WS_WAY_IPC &&
                   WSYNC_DIR + 0 == WS_WAY_DIR && WSYNC_BROADCAST + 0 == WS_WAY_BROADCAST &&
                   WSYNC_CUDA_IPC + 0 == WS_WAY_CUDA_IPC,
               "ways.h and wsync.h have one order");

const struct ws_strategy *ws_strategy_by_id(wsync_strategy_id id)
{
    return (size_t)id < N_STRATEGIES ? &table[id] : NULL;
}

static const struct ws_strategy *named(const char *name)
{
    const struct ws_way *way = ws_way_find(name);
    return way && (size_t)way->id < N_STRATEGIES ? &table[way->id] : NULL;
}

#define NAMES "tcp, ipc, dir, broadcast, cuda_ipc, packed_cuda_ipc"

int ws_strategy_expect(const char *expected, size_t len, struct ws_error *err)
{
    if (expected && !named(expected))
        return ws_error_set(err, EINVAL, "there is no strategy '%.50s'; there are " NAMES, expected);
    if (len > WS_MAX_REQUEST_BYTES)
        return ws_error_set(err, EBADMSG, "it has %zu bytes; at most %lu", len, WS_MAX_REQUEST_BYTES);
    return 0;
}

int ws_strategy_resolve(const char *said, const char *expected, const struct ws_strategy **out,
                        struct ws_error *err)
{
    if (!*said && !expected)
        return ws_error_set(err, EBADMSG, "it does not say which \"strategy\" it is for: " NAMES);
    if (*said && expected && strcmp(said, expected) != 0)
        return ws_error_set(err, EBADMSG, "it is for the strategy \"%.50s\", not for %s", said, expected);
    *out = named(*said ? said : expected);
    return *out ? 0 : ws_error_set(err, EBADMSG, "there is no strategy \"%.50s\"; there are " NAMES, said);
}

int ws_sync_info_source(const wsync_sync_info *info, size_t i, char *out, size_t bytes, struct ws_error *err)
{
    const struct ws_strategy *s = ws_strategy_by_id(info->strategy);
    if (!s || s->info != WS_INFO_SOURCE)
        return ws_error_set(err, ENOTSUP, "weights by %s do not come from a source",
                            s ? s->way->name : "an unknown strategy");
    if (i >= info->source.n_urls)
        return ws_error_set(err, ERANGE, "it has %zu urls", info->source.n_urls);
    const char *url = info->source.urls[i];
    const char *const *schemes = ws_way_schemes(s->way);
    const char *only = !schemes[1] ? schemes[0] : "";
    bool fits = false;
    for (const char *const *scheme = schemes; *scheme; scheme++)
        fits = fits || (strncmp(url, *scheme, strlen(*scheme)) == 0 && url[strlen(*scheme)]);
    bool bare = !fits && *only && url[0] == '/'; /* a plain path, of a socket or a folder */
    if (!fits && !bare)
        return ws_error_set(err, EINVAL, "\"%.200s\" is no url for %s, which has %s...", url, s->way->name,
                            schemes[0]);
    size_t n = strlen(url) + (bare ? strlen(only) : 0);
    if (n > WS_MAX_URL)
        return ws_error_set(err, EINVAL, "url %zu is longer than %d bytes", i, WS_MAX_URL);
    if (n >= bytes)
        return ws_error_set(err, ENOSPC, "url %zu takes %zu bytes, and there is room for %zu", i, n + 1,
                            bytes);
    snprintf(out, bytes, "%s%s", bare ? only : "", url);
    return 0;
}

/* info: checked before; NULL: any. */
static int available(const struct ws_strategy *s, const wsync_sync_info *info, struct ws_error *why)
{
    int rc = ws_way_available(s->way, why);
    return rc == 0 && info && s->reaches ? s->reaches(info, why) : rc;
}

int ws_sync_info_open(const wsync_sync_info *info, const struct ws_source_options *options,
                      struct ws_source **out, struct ws_error *err)
{
    char url[WS_MAX_URL + 1];
    *out = NULL;
    int rc = ws_sync_info_check(info, err);
    if (rc < 0)
        return rc;
    const struct ws_strategy *s = ws_strategy_by_id(info->strategy);
    rc = available(s, info, err);
    if (rc == 0 && s->info != WS_INFO_SOURCE)
        rc = ws_error_set(err, ENOTSUP, "its weights do not come from a source");
    if (rc < 0) {
        ws_error_prefix(err, "cannot use %s", s->way->name);
        return rc;
    }
    for (size_t i = 0; i < info->source.n_urls; i++) {
        rc = ws_sync_info_source(info, i, url, sizeof(url), err);
        if (rc == 0)
            rc = ws_source_open(url, options, out, err);
        if (rc == 0)
            return 0;
    }
    return rc;
}

/* --- public --- */

static wsync_strategy described[N_STRATEGIES];
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void describe(void)
{
    for (size_t i = 0; i < N_STRATEGIES; i++)
        described[i] = (wsync_strategy){.id = (wsync_strategy_id)i,
                                        .name = table[i].way->name,
                                        .needs = table[i].way->needs,
                                        .request_type = table[i].request_type,
                                        .sync_info_type = table[i].sync_info_type};
}

const wsync_strategy *wsync_strategy_at(size_t i)
{
    pthread_once(&once, describe);
    return i < N_STRATEGIES ? &described[i] : NULL;
}

const wsync_strategy *wsync_strategy_find(const char *name)
{
    const struct ws_way *way = name ? ws_way_find(name) : NULL;
    return way ? wsync_strategy_at(way->id) : NULL;
}

int wsync_strategy_available(wsync_strategy_id id, const wsync_sync_info *info)
{
    struct ws_error *err = ws_last_error();
    const struct ws_strategy *s = ws_strategy_by_id(id);
    wsync_sync_info i;
    if (!s)
        return ws_error_set(err, EINVAL, "there is no strategy %d; there are " NAMES, (int)id);
    int rc = info ? ws_sync_info_copy(&i, info, err) : 0;
    if (rc == 0 && info && i.strategy != id)
        rc = ws_error_set(err, EINVAL, "the sync info is for %s, not for %s",
                          ws_strategy_by_id(i.strategy)->way->name, s->way->name);
    return rc == 0 ? available(s, info ? &i : NULL, err) : rc;
}

int wsync_sync_info_source(const wsync_sync_info *info, size_t i, char *out, size_t bytes)
{
    wsync_sync_info copy;
    int rc = ws_sync_info_copy(&copy, info, ws_last_error());
    return rc == 0 ? ws_sync_info_source(&copy, i, out, bytes, ws_last_error()) : rc;
}
