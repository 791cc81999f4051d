#include "backends/trainer/strategy.h"
#include "backends/trainer/last_error.h"
#include "transports/broadcast.h"
#include "transports/device.h"
#include "transports/transport.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

static int anywhere(const wsync_sync_info *info, struct ws_error *why)
{
    (void)info;
    (void)why;
    return 0;
}

/* Is there one of the urls on this machine? kind: S_IFSOCK or S_IFDIR. */
static int on_this_host(const wsync_sync_info *info, mode_t kind, const char *what, struct ws_error *why)
{
    char url[WS_MAX_URL + 1] = "";
    int rc = 0;
    for (size_t i = 0; info && i < info->source.n_urls; i++) {
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

static int ipc_available(const wsync_sync_info *info, struct ws_error *why)
{
    int rc = on_this_host(info, S_IFSOCK, "agent's socket", why);
    if (rc < 0)
        ws_error_prefix(why, "ipc reaches an agent on the same host only; use tcp from elsewhere");
    return rc;
}

static int dir_available(const wsync_sync_info *info, struct ws_error *why)
{
    return on_this_host(info, S_IFDIR, "folder", why);
}

static int gpu_available(const wsync_sync_info *info, struct ws_error *why)
{
    (void)info;
    int rc = ws_device_of_kind(WS_CUDA)->available(why);
    if (rc < 0)
        ws_error_prefix(why, "it needs a CUDA device; use tcp, ipc or dir");
    return rc;
}

static int broadcast_available(const wsync_sync_info *info, struct ws_error *why)
{
    (void)info;
    int rc = ws_broadcast_available(why);
    if (rc < 0)
        ws_error_prefix(why, "broadcast needs NCCL and a CUDA device on either side; use tcp, ipc or dir");
    return rc;
}

static const struct ws_strategy table[] = {
    [WSYNC_TCP] = {.about = {WSYNC_TCP, "tcp",
                             "the URL of an agent, of a mount that serves, or of an archive's "
                             "web server",
                             "WeightUpdateRequest", "SourceSyncInfo"},
                   .info = WS_INFO_SOURCE,
                   .schemes = {"http://", "https://"},
                   .available = anywhere},
    [WSYNC_IPC] = {.about = {WSYNC_IPC, "ipc", "the socket of an agent on the same host",
                             "WeightUpdateRequest", "SourceSyncInfo"},
                   .info = WS_INFO_SOURCE,
                   .schemes = {"unix:"},
                   .available = ipc_available},
    [WSYNC_DIR] = {.about = {WSYNC_DIR, "dir", "a folder of checkpoints, or an archive, that both sides see",
                             "WeightUpdateRequest", "SourceSyncInfo"},
                   .info = WS_INFO_SOURCE,
                   .schemes = {"dir:"},
                   .available = dir_available},
    [WSYNC_BROADCAST] = {.about = {WSYNC_BROADCAST, "broadcast", "NCCL, and a CUDA device on either side",
                                   "BroadcastWeightUpdateRequest", "BroadcastInitInfo"},
                         .info = WS_INFO_BROADCAST,
                         .may_pack = true,
                         .available = broadcast_available},
    [WSYNC_CUDA_IPC] = {.about = {WSYNC_CUDA_IPC, "cuda_ipc",
                                  "the CUDA device that the trainer holds the weights on",
                                  "CudaIpcWeightUpdateRequest", "CudaIpcInitInfo"},
                        .info = WS_INFO_CUDA_IPC,
                        .may_pack = true,
                        .handles = true,
                        .available = gpu_available},
    [WSYNC_PACKED_CUDA_IPC] = {.about = {WSYNC_PACKED_CUDA_IPC, "packed_cuda_ipc",
                                         "the CUDA device that the trainer holds the weights on",
                                         "PackedCudaIpcWeightUpdateRequest", "CudaIpcInitInfo"},
                               .info = WS_INFO_CUDA_IPC,
                               .may_pack = true,
                               .must_pack = true,
                               .handles = true,
                               .available = gpu_available},
};
#define N_STRATEGIES (sizeof(table) / sizeof(table[0]))

const struct ws_strategy *ws_strategy_of(wsync_strategy_id id)
{
    return (size_t)id < N_STRATEGIES ? &table[id] : NULL;
}

const struct ws_strategy *ws_strategy_named(const char *name)
{
    for (size_t i = 0; i < N_STRATEGIES; i++)
        if (strcmp(table[i].about.name, name) == 0)
            return &table[i];
    return NULL;
}

#define NAMES "tcp, ipc, dir, broadcast, cuda_ipc, packed_cuda_ipc"

int ws_strategy_expect(const char *expected, size_t len, struct ws_error *err)
{
    if (expected && !ws_strategy_named(expected))
        return ws_error_set(err, EINVAL, "there is no strategy '%.50s'; there are " NAMES, expected);
    if (len > WS_MAX_REQUEST_BYTES)
        return ws_error_set(err, EBADMSG, "it has %zu bytes; at most %lu", len, WS_MAX_REQUEST_BYTES);
    return 0;
}

int ws_strategy_settle(const char *said, const char *expected, const struct ws_strategy **out,
                       struct ws_error *err)
{
    if (!*said && !expected)
        return ws_error_set(err, EBADMSG, "it does not say which \"strategy\" it is for: " NAMES);
    if (*said && expected && strcmp(said, expected) != 0)
        return ws_error_set(err, EBADMSG, "it is for the strategy \"%.50s\", not for %s", said, expected);
    *out = ws_strategy_named(*said ? said : expected);
    return *out ? 0 : ws_error_set(err, EBADMSG, "there is no strategy \"%.50s\"; there are " NAMES, said);
}

int ws_sync_info_source(const wsync_sync_info *info, size_t i, char *out, size_t bytes, struct ws_error *err)
{
    const struct ws_strategy *s = ws_strategy_of(info->strategy);
    if (!s || s->info != WS_INFO_SOURCE)
        return ws_error_set(err, ENOTSUP, "weights by %s do not come from a source",
                            s ? s->about.name : "an unknown strategy");
    if (i >= info->source.n_urls)
        return ws_error_set(err, ERANGE, "it has %zu urls", info->source.n_urls);
    const char *url = info->source.urls[i];
    const char *only = s->schemes[0] && !s->schemes[1] ? s->schemes[0] : "";
    bool fits = false;
    for (const char *const *scheme = s->schemes; *scheme; scheme++)
        fits = fits || (strncmp(url, *scheme, strlen(*scheme)) == 0 && url[strlen(*scheme)]);
    bool bare = !fits && *only && url[0] == '/'; /* a plain path, of a socket or a folder */
    if (!fits && !bare)
        return ws_error_set(err, EINVAL, "\"%.200s\" is no url for %s, which has %s...", url, s->about.name,
                            s->schemes[0]);
    size_t n = strlen(url) + (bare ? strlen(only) : 0);
    if (n > WS_MAX_URL)
        return ws_error_set(err, EINVAL, "url %zu is longer than %d bytes", i, WS_MAX_URL);
    if (n >= bytes)
        return ws_error_set(err, ENOSPC, "url %zu takes %zu bytes, and there is room for %zu", i, n + 1,
                            bytes);
    snprintf(out, bytes, "%s%s", bare ? only : "", url);
    return 0;
}

int ws_sync_info_open(const wsync_sync_info *info, const struct ws_source_options *options,
                      struct ws_source **out, struct ws_error *err)
{
    char url[WS_MAX_URL + 1];
    *out = NULL;
    int rc = ws_sync_info_check(info, err);
    if (rc < 0)
        return rc;
    const struct ws_strategy *s = ws_strategy_of(info->strategy);
    rc = s->available(info, err);
    if (rc == 0 && s->info != WS_INFO_SOURCE)
        rc = ws_error_set(err, ENOTSUP, "its weights do not come from a source");
    if (rc < 0) {
        ws_error_prefix(err, "cannot use %s", s->about.name);
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

const wsync_strategy *wsync_strategy_at(size_t i)
{
    return i < N_STRATEGIES ? &table[i].about : NULL;
}

const wsync_strategy *wsync_strategy_find(const char *name)
{
    const struct ws_strategy *s = name ? ws_strategy_named(name) : NULL;
    return s ? &s->about : NULL;
}

int wsync_strategy_available(wsync_strategy_id id, const wsync_sync_info *info)
{
    struct ws_error *err = ws_last_error();
    const struct ws_strategy *s = ws_strategy_of(id);
    wsync_sync_info i;
    if (!s)
        return ws_error_set(err, EINVAL, "there is no strategy %d; there are " NAMES, (int)id);
    int rc = info ? ws_sync_info_take(&i, info, err) : 0;
    if (rc == 0 && info && i.strategy != id)
        rc = ws_error_set(err, EINVAL, "the sync info is for %s, not for %s",
                          ws_strategy_of(i.strategy)->about.name, s->about.name);
    return rc == 0 ? s->available(info ? &i : NULL, err) : rc;
}

int wsync_sync_info_source(const wsync_sync_info *info, size_t i, char *out, size_t bytes)
{
    wsync_sync_info copy;
    int rc = ws_sync_info_take(&copy, info, ws_last_error());
    return rc == 0 ? ws_sync_info_source(&copy, i, out, bytes, ws_last_error()) : rc;
}
