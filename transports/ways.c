#include "transports/ways.h"
#include "transports/device/device.h"
#include "transports/dir/archive.h"
#include "transports/dir/dir.h"
#include "transports/ipc/ipc.h"
#include "transports/nccl/broadcast.h"
#include "transports/tcp/tcp.h"
#include "transports/ucx/engine.h"
#include "transports/ucx/ucx.h"
#include <string.h>

static int gpu_available(struct ws_error *why)
{
    int rc = ws_device_by_kind(WS_CUDA)->available(why);
    if (rc < 0)
        ws_error_prefix(why, "it needs a CUDA device; use tcp, ipc or dir");
    return rc;
}

static int broadcast_available(struct ws_error *why)
{
    int rc = ws_broadcast_available(why);
    if (rc < 0)
        ws_error_prefix(why, "broadcast needs NCCL and a CUDA device on either side; use tcp, ipc or dir");
    return rc;
}

const struct ws_way ws_ways[WS_N_WAYS] = {
    [WS_WAY_TCP] = {.id = WS_WAY_TCP,
                    .name = "tcp",
                    .needs = "the URL of an agent, of a mount that serves, or of an archive's web server",
                    .transport = &ws_tcp_ops},
    [WS_WAY_IPC] = {.id = WS_WAY_IPC,
                    .name = "ipc",
                    .needs = "the socket of an agent on the same host",
                    .transport = &ws_ipc_ops},
    [WS_WAY_DIR] =
        {.id = WS_WAY_DIR,
         .name = "dir",
         .needs =
             "a folder of checkpoints, or an archive in a folder or an object store, that both sides see",
         .transport = &ws_dir_ops,
         .other = &ws_archive_ops},
    [WS_WAY_BROADCAST] = {.id = WS_WAY_BROADCAST,
                          .name = "broadcast",
                          .needs = "NCCL, and a CUDA device on either side",
                          .available = broadcast_available},
    [WS_WAY_CUDA_IPC] = {.id = WS_WAY_CUDA_IPC,
                         .name = "cuda_ipc",
                         .needs = "the CUDA device that the trainer holds the weights on",
                         .handles = true,
                         .available = gpu_available},
    [WS_WAY_PACKED_CUDA_IPC] = {.id = WS_WAY_PACKED_CUDA_IPC,
                                .name = "packed_cuda_ipc",
                                .needs = "the CUDA device that the trainer holds the weights on",
                                .handles = true,
                                .available = gpu_available},
    [WS_WAY_UCX] = {.id = WS_WAY_UCX,
                    .name = "ucx",
                    .needs = "UCX of one release on both sides, an agent with --ucx, and a mount with -o ucx",
                    .transport = &ws_ucx_ops,
                    .available = ws_ucx_available},
};

const struct ws_way *ws_way_find(const char *name)
{
    for (size_t i = 0; i < WS_N_WAYS; i++)
        if (strcmp(ws_ways[i].name, name) == 0)
            return &ws_ways[i];
    return NULL;
}

static bool has_scheme(const char *url, const struct ws_transport_ops *transport)
{
    for (const char *const *scheme = transport ? transport->schemes : NULL; scheme && *scheme; scheme++)
        if (strncmp(url, *scheme, strlen(*scheme)) == 0)
            return true;
    return false;
}

int ws_way_from_url(const char *url)
{
    while (strncmp(url, "fault:", 6) == 0) { /* fault decorates the URL after its plan */
        const char *colon = strchr(url + 6, ':');
        if (!colon)
            return WS_NO_WAY;
        url = colon + 1;
    }
    for (int id = 0; id < WS_N_WAYS; id++)
        if (has_scheme(url, ws_ways[id].transport) || has_scheme(url, ws_ways[id].other))
            return id;
    return WS_NO_WAY;
}

const char *ws_way_name(int id)
{
    return id == WS_NO_WAY ? "none" : ws_ways[id].name;
}

const char *const *ws_way_schemes(const struct ws_way *w)
{
    static const char *const none[] = {NULL};
    return w->transport ? w->transport->schemes : none;
}

int ws_way_available(const struct ws_way *w, struct ws_error *why)
{
    return w->available ? w->available(why) : 0;
}
