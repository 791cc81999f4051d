#include "transports/nccl/driver.h"
#include "transports/base/library.h"
#include "transports/base/log.h"
#include "transports/device/device.h"
#include <assert.h>
#include <dlfcn.h>
#include <errno.h>
#include <nccl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(WS_NCCL_ID_BYTES == NCCL_UNIQUE_ID_BYTES, "an id has as many bytes as NCCL says");

#define OLDEST NCCL_VERSION(2, 18, 0) /* communicators that do not block had to settle */

/* X(member, symbol) */
#define WS_NCCL_SYMBOLS(X)                                                                                   \
    X(version, ncclGetVersion)                                                                               \
    X(unique_id, ncclGetUniqueId)                                                                            \
    X(init, ncclCommInitRankConfig)                                                                          \
    X(async_error, ncclCommGetAsyncError)                                                                    \
    X(broadcast, ncclBroadcast)                                                                              \
    X(finalize, ncclCommFinalize)                                                                            \
    X(destroy, ncclCommDestroy)                                                                              \
    X(abort, ncclCommAbort)                                                                                  \
    X(error_string, ncclGetErrorString)                                                                      \
    X(last_error, ncclGetLastError)

struct nccl {
#define MEMBER(member, symbol) __typeof__(&symbol) member;
    WS_NCCL_SYMBOLS(MEMBER)
#undef MEMBER
    int release;
};

struct ws_nccl_comm {
    ncclComm_t comm;
    int device;
    bool finalizing, finalized;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
/* guarded by lock, but for reading once loaded is set */
static struct nccl nccl;
static atomic_bool loaded;
static bool tried;
static char why_not[WS_ERROR_TEXT];

static const char *library(void)
{
    const char *other = getenv("WSYNC_LIBNCCL");
    return other && *other ? other : "libnccl.so.2";
}

static int check_release(struct ws_error *why)
{
    char have[WS_NCCL_RELEASE_TEXT], want[WS_NCCL_RELEASE_TEXT];
    if (nccl.version(&nccl.release) != ncclSuccess)
        return ws_error_set(why, ENOTSUP, "NCCL (%s) does not report its release", library());
    ws_nccl_release_format(nccl.release, have);
    ws_nccl_release_format(nccl.release / 10000 == NCCL_MAJOR ? OLDEST : NCCL_VERSION_CODE, want);
    if (nccl.release / 10000 != NCCL_MAJOR)
        return ws_error_set(why, ENOTSUP,
                            "NCCL (%s) is of release %s, and this build is for %s: another major release is "
                            "another interface",
                            library(), have, want);
    if (nccl.release < OLDEST)
        return ws_error_set(why, ENOTSUP, "NCCL (%s) is of release %s, and %s is the oldest that will do",
                            library(), have, want);
    return 0;
}

/* Under lock. */
static int load(struct ws_error *why)
{
    static const struct ws_library_symbol symbols[] = {
#define ENTRY(member, symbol) {#symbol, offsetof(struct nccl, member)},
        WS_NCCL_SYMBOLS(ENTRY)
#undef ENTRY
    };
    const char *missing;
    void *handle;
    struct ws_error err = {0};
    int rc = ws_library_open(library(), 0, symbols, sizeof(symbols) / sizeof(symbols[0]), &nccl, &handle,
                             &missing, &err);
    if (rc < 0 && missing)
        return ws_error_set(why, -rc, "NCCL (%s) has no %s: release 2.18 or newer has", library(), missing);
    if (rc < 0)
        return ws_error_set(why, -rc, "there is no NCCL on this machine: %s", err.text);
    rc = check_release(why);
    if (rc < 0)
        dlclose(handle);
    return rc;
}

int ws_nccl_available(struct ws_error *why)
{
    struct ws_error err = {0};
    if (atomic_load(&loaded))
        return 0;
    pthread_mutex_lock(&lock);
    if (!tried) {
        tried = true;
        if (load(&err) == 0)
            atomic_store(&loaded, true);
        else
            snprintf(why_not, sizeof(why_not), "%s", err.text);
    }
    pthread_mutex_unlock(&lock);
    return atomic_load(&loaded) ? 0 : ws_error_set(why, ENOTSUP, "%s", why_not);
}

int ws_nccl_release(void)
{
    return atomic_load(&loaded) ? nccl.release : 0;
}

static int errno_of(ncclResult_t rc)
{
    switch (rc) {
    case ncclInProgress:
        return EAGAIN;
    case ncclRemoteError: /* a member has ended, or left */
    case ncclSystemError: /* its connection has */
        return ECONNABORTED;
    case ncclInvalidArgument:
    case ncclInvalidUsage:
        return EINVAL;
    default:
        return EIO;
    }
}

/* NCCL's result as -errno, with its own words. */
__attribute__((format(printf, 4, 5))) static int result(ncclResult_t rc, ncclComm_t comm,
                                                        struct ws_error *err, const char *format, ...)
{
    char what[WS_ERROR_TEXT / 4];
    va_list args;
    if (rc == ncclSuccess)
        return 0;
    if (rc == ncclInProgress)
        return -EAGAIN;
    va_start(args, format);
    vsnprintf(what, sizeof(what), format, args);
    va_end(args);
    const char *last = nccl.last_error(comm);
    return ws_error_set(err, errno_of(rc), "%s: %s%s%s", what, nccl.error_string(rc),
                        last && *last ? ": " : "", last ? last : "");
}

int ws_nccl_id_new(int device, unsigned char out[WS_NCCL_ID_BYTES], struct ws_error *err)
{
    ncclUniqueId id;
    int rc = ws_nccl_available(err);
    if (rc == 0)
        rc = ws_cuda_device.enter(device, err);
    if (rc < 0)
        return rc;
    rc = result(nccl.unique_id(&id), NULL, err, "NCCL makes no id of a communicator");
    ws_cuda_device.leave();
    if (rc == 0)
        memcpy(out, id.internal, WS_NCCL_ID_BYTES);
    return rc;
}

int ws_nccl_comm_new(struct ws_nccl_comm **out, const unsigned char id[WS_NCCL_ID_BYTES], int device,
                     unsigned rank, unsigned n_ranks, struct ws_error *err)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclUniqueId unique;
    memcpy(unique.internal, id, WS_NCCL_ID_BYTES);
    config.blocking = 0;
    int rc = ws_nccl_available(err);
    struct ws_nccl_comm *c = rc == 0 ? calloc(1, sizeof(*c)) : NULL;
    if (rc == 0 && !c)
        rc = ws_error_set(err, ENOMEM, "no memory for a communicator");
    if (rc == 0)
        rc = ws_cuda_device.enter(device, err);
    if (rc == 0) {
        c->device = device;
        rc = result(nccl.init(&c->comm, (int)n_ranks, unique, (int)rank, &config), NULL, err,
                    "becoming rank %u of %u of a communicator", rank, n_ranks);
        ws_cuda_device.leave();
    }
    if (rc < 0 && rc != -EAGAIN) {
        if (c)
            ws_nccl_comm_free(c);
        return rc;
    }
    *out = c;
    return 0;
}

int ws_nccl_comm_poll(struct ws_nccl_comm *c, struct ws_error *err)
{
    ncclResult_t now = ncclSuccess;
    int rc = result(nccl.async_error(c->comm, &now), c->comm, err, "asking after a communicator");
    if (rc == 0)
        rc = result(now, c->comm, err, "the communicator failed");
    if (rc == 0 && c->finalizing)
        c->finalized = true;
    return rc;
}

int ws_nccl_comm_broadcast(struct ws_nccl_comm *c, struct ws_device_queue *q, void *data, size_t bytes,
                           struct ws_error *err)
{
    assert(!c->finalizing);
    int rc = ws_cuda_device.enter(c->device, err);
    if (rc < 0)
        return rc;
    rc = result(nccl.broadcast(data, data, bytes, ncclUint8, 0, c->comm, q->ops->queue_stream(q)), c->comm,
                err, "broadcasting %zu bytes", bytes);
    ws_cuda_device.leave();
    return rc == -EAGAIN ? 0 : rc;
}

int ws_nccl_comm_finalize(struct ws_nccl_comm *c, struct ws_error *err)
{
    int rc = ws_cuda_device.enter(c->device, err);
    if (rc < 0)
        return rc;
    rc = result(nccl.finalize(c->comm), c->comm, err, "ending a communicator");
    ws_cuda_device.leave();
    if (rc < 0 && rc != -EAGAIN)
        return rc;
    c->finalizing = true;
    return 0;
}

void ws_nccl_comm_free(struct ws_nccl_comm *c)
{
    if (!c)
        return;
    if (c->comm && ws_cuda_device.enter(c->device, NULL) == 0) {
        (void)(c->finalized ? nccl.destroy(c->comm) : nccl.abort(c->comm));
        ws_cuda_device.leave();
    }
    free(c);
}
