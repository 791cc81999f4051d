/* Communicators: created by all ranks together, on a thread; smaller ones are made from those whose ranks
 * have survived. */
#include "tests/fakes/nccl_fake.h"
#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#define HELLO_MAGIC 0x6c6c6f6565U

struct hello {
    uint64_t magic;
    int rank, n_ranks;
    CUuuid uuid;
};

void nccl_comm_fail(ncclComm_t comm, ncclResult_t rc, const char *format, ...)
{
    va_list ap;
    pthread_mutex_lock(&comm->lock);
    if (comm->state == ncclSuccess || comm->state == ncclInProgress) {
        comm->state = rc;
        va_start(ap, format);
        vsnprintf(comm->text, sizeof(comm->text), format, ap);
        va_end(ap);
    }
    pthread_cond_broadcast(&comm->changed);
    pthread_mutex_unlock(&comm->lock);
}

void nccl_comm_put(ncclComm_t comm)
{
    pthread_mutex_lock(&comm->lock);
    bool last = --comm->refs == 0;
    pthread_mutex_unlock(&comm->lock);
    if (!last)
        return;
    for (int i = 0; i < comm->n_ranks; i++)
        if (comm->fds[i] >= 0)
            close(comm->fds[i]);
    pthread_cond_destroy(&comm->changed);
    pthread_mutex_destroy(&comm->lock);
    free(comm);
}

/* Both send their ranks; the connecting one first. */
static int greet(ncclComm_t comm, int fd, bool first, struct hello *other)
{
    struct hello own = {HELLO_MAGIC, comm->rank, comm->n_ranks, comm->uuid};
    int rc = first ? nccl_send(comm, fd, &own, sizeof(own)) : 0;
    if (rc == 0)
        rc = nccl_receive(comm, fd, other, sizeof(*other));
    if (rc == 0 && !first)
        rc = nccl_send(comm, fd, &own, sizeof(own));
    return rc;
}

static int meet(ncclComm_t comm, int listener, struct hello *hellos)
{
    for (int n = 0; n < comm->n_ranks - 1; n++) {
        struct hello h;
        bool first = n < comm->rank; /* connects to lower ranks; higher ranks connect to this one */
        int fd, rc = first ? nccl_connect(comm, n, &fd) : nccl_accept(comm, listener, &fd);
        if (rc == 0)
            rc = greet(comm, fd, first, &h);
        if (rc == 0 && (h.magic != HELLO_MAGIC || h.n_ranks != comm->n_ranks || h.rank < 0 ||
                        h.rank >= comm->n_ranks || comm->fds[h.rank] >= 0))
            rc = -EPROTO;
        if (rc) {
            if (fd >= 0)
                close(fd);
            return rc;
        }
        comm->fds[h.rank] = fd;
        hellos[h.rank] = h;
    }
    return 0;
}

static bool has_duplicates(const ncclComm_t comm, const struct hello *hellos, int *one, int *two)
{
    for (*one = 0; *one < comm->n_ranks; ++*one)
        for (*two = *one + 1; *two < comm->n_ranks; ++*two)
            if (!memcmp(&hellos[*one].uuid, &hellos[*two].uuid, sizeof(CUuuid)))
                return true;
    return false;
}

static void *join_ranks(void *arg)
{
    ncclComm_t comm = arg;
    struct hello hellos[NCCL_FAKE_MAX_RANKS];
    int one, two, listener = nccl_listen(comm), rc = listener < 0 ? listener : 0;

    hellos[comm->rank] = (struct hello){HELLO_MAGIC, comm->rank, comm->n_ranks, comm->uuid};
    if (rc == 0)
        rc = meet(comm, listener, hellos);
    if (listener >= 0)
        close(listener);
    if (rc == -EPROTO || rc == -EADDRINUSE)
        nccl_comm_fail(comm, ncclInvalidUsage, "the ranks do not agree on who they are");
    else if (rc == -EPIPE)
        nccl_comm_fail(comm, ncclRemoteError, "a rank ended while the communicator was made");
    else if (rc)
        nccl_comm_fail(comm, ncclSystemError, "sockets: %s", strerror(-rc));
    else if (!nccl_plan()->one_gpu && has_duplicates(comm, hellos, &one, &two))
        nccl_comm_fail(comm, ncclInvalidUsage,
                       "Duplicate GPU detected : rank %d and rank %d both on one CUDA device", one, two);
    pthread_mutex_lock(&comm->lock);
    if (comm->state == ncclInProgress)
        comm->state = ncclSuccess;
    pthread_cond_broadcast(&comm->changed);
    pthread_mutex_unlock(&comm->lock);
    return NULL;
}

static ncclResult_t comm_new(const char *name, int rank, int n_ranks, bool blocking, ncclComm_t *out)
{
    const struct nccl_driver *cu = nccl_driver();
    sigset_t all, before;
    int device;
    CUuuid uuid;

    *out = NULL;
    if (n_ranks < 1 || n_ranks > NCCL_FAKE_MAX_RANKS || rank < 0 || rank >= n_ranks)
        return ncclInvalidArgument;
    if (!cu || cu->device(&device) != CUDA_SUCCESS || cu->uuid(&uuid, device) != CUDA_SUCCESS)
        return ncclUnhandledCudaError;
    ncclComm_t comm = calloc(1, sizeof(*comm));
    if (!comm)
        return ncclSystemError;
    *comm = (struct ncclComm){.rank = rank,
                              .n_ranks = n_ranks,
                              .device = device,
                              .blocking = blocking,
                              .uuid = uuid,
                              .refs = 1,
                              .state = ncclInProgress};
    snprintf(comm->name, sizeof(comm->name), "%s", name);
    memset(comm->fds, -1, sizeof(comm->fds));
    pthread_mutex_init(&comm->lock, NULL);
    pthread_cond_init(&comm->changed, NULL);
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    int rc = pthread_create(&comm->thread, NULL, join_ranks, comm);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (rc) {
        nccl_comm_put(comm);
        return ncclSystemError;
    }
    *out = comm;
    if (!blocking)
        return ncclInProgress;
    if (nccl_group_wait(comm))
        return ncclSuccess;
    ncclResult_t made = nccl_comm_wait(comm);
    if (made != ncclSuccess) {
        ncclCommAbort(comm);
        *out = NULL;
    }
    return made;
}

ncclResult_t ncclGetVersion(int *version)
{
    NCCL_ENTER();
    *version = nccl_plan()->version;
    return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    NCCL_ENTER();
    uint64_t random[2];
    if (getrandom(random, sizeof(random), 0) != sizeof(random))
        return ncclSystemError;
    memset(id, 0, sizeof(*id));
    snprintf(id->internal, sizeof(id->internal), "wsync-fake-nccl-%016lx%016lx", random[0], random[1]);
    return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *out, int n_ranks, ncclUniqueId id, int rank,
                                    ncclConfig_t *config)
{
    NCCL_ENTER();
    if (config && config->magic != 0xcafebeef)
        return ncclInvalidArgument;
    if (strncmp(id.internal, "wsync-fake-nccl-", 16) || !memchr(id.internal, '\0', NCCL_FAKE_NAME_BYTES))
        return ncclInvalidArgument;
    return comm_new(id.internal, rank, n_ranks, !config || config->blocking != 0, out);
}

ncclResult_t ncclCommInitRank(ncclComm_t *out, int n_ranks, ncclUniqueId id, int rank)
{
    NCCL_ENTER();
    return ncclCommInitRankConfig(out, n_ranks, id, rank, NULL);
}

static bool is_quiet(const ncclComm_t comm)
{
    return comm->turn == comm->issued;
}

static ncclResult_t state_of(ncclComm_t comm)
{
    if (comm->state == ncclSuccess && comm->in_progress) {
        comm->in_progress--;
        return ncclInProgress;
    }
    return comm->state == ncclSuccess && comm->finalized && !is_quiet(comm) ? ncclInProgress : comm->state;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *out)
{
    NCCL_ENTER();
    pthread_mutex_lock(&comm->lock);
    *out = state_of(comm);
    pthread_mutex_unlock(&comm->lock);
    return ncclSuccess;
}

ncclResult_t nccl_comm_wait(ncclComm_t comm)
{
    pthread_mutex_lock(&comm->lock);
    while (comm->state == ncclInProgress)
        pthread_cond_wait(&comm->changed, &comm->lock);
    ncclResult_t rc = comm->state;
    pthread_mutex_unlock(&comm->lock);
    return rc;
}

ncclResult_t nccl_comm_ready(ncclComm_t comm)
{
    pthread_mutex_lock(&comm->lock);
    ncclResult_t rc = comm->state == ncclInProgress || comm->in_progress || comm->finalized
                          ? ncclInvalidArgument
                          : comm->state;
    pthread_mutex_unlock(&comm->lock);
    return rc;
}

/* The owner of a non-blocking communicator polls until a call is over. */
ncclResult_t nccl_comm_begun(ncclComm_t comm)
{
    pthread_mutex_lock(&comm->lock);
    comm->in_progress = comm->blocking ? 0 : 1;
    pthread_mutex_unlock(&comm->lock);
    return comm->blocking ? ncclSuccess : ncclInProgress;
}

static void wait_until_quiet(ncclComm_t comm)
{
    pthread_mutex_lock(&comm->lock);
    while (!is_quiet(comm) && !atomic_load(&comm->aborted))
        pthread_cond_wait(&comm->changed, &comm->lock);
    pthread_mutex_unlock(&comm->lock);
}

ncclResult_t ncclCommFinalize(ncclComm_t comm)
{
    NCCL_ENTER();
    ncclResult_t rc = nccl_comm_ready(comm);
    if (rc != ncclSuccess)
        return rc;
    pthread_mutex_lock(&comm->lock);
    comm->finalized = true;
    pthread_mutex_unlock(&comm->lock);
    if (comm->blocking)
        wait_until_quiet(comm);
    return nccl_comm_begun(comm);
}

static void join_thread(ncclComm_t comm)
{
    if (!comm->joined)
        pthread_join(comm->thread, NULL);
    comm->joined = true;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
    NCCL_ENTER();
    if (!comm)
        return ncclSuccess;
    join_thread(comm);
    wait_until_quiet(comm);
    nccl_comm_put(comm);
    return ncclSuccess;
}

/* The other ranks see closed sockets. The communicator's thread has ended. */
static void hang_up(ncclComm_t comm)
{
    for (int i = 0; i < comm->n_ranks; i++)
        if (comm->fds[i] >= 0)
            shutdown(comm->fds[i], SHUT_RDWR);
}

static void stop(ncclComm_t comm)
{
    atomic_store(&comm->aborted, true);
    pthread_mutex_lock(&comm->lock);
    pthread_cond_broadcast(&comm->changed);
    pthread_mutex_unlock(&comm->lock);
}

ncclResult_t ncclCommAbort(ncclComm_t comm)
{
    NCCL_ENTER();
    if (!comm)
        return ncclSuccess;
    stop(comm);
    join_thread(comm);
    hang_up(comm);
    nccl_comm_put(comm); /* operations in streams have their own reference, and end */
    return ncclSuccess;
}

static uint64_t hashed(uint64_t hash, const void *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        hash = (hash ^ ((const unsigned char *)p)[i]) * 0x100000001b3;
    return hash;
}

/* The surviving ranks meet under a name that all of them derive from the same values. */
ncclResult_t ncclCommShrink(ncclComm_t comm, int *without, int n_without, ncclComm_t *out,
                            ncclConfig_t *config, int flags)
{
    NCCL_ENTER();
    bool gone[NCCL_FAKE_MAX_RANKS] = {false};
    int rank = 0, n = comm->n_ranks;
    char name[NCCL_FAKE_NAME_BYTES];
    uint64_t hash;

    *out = NULL;
    for (int i = 0; i < n_without; i++) {
        if (without[i] < 0 || without[i] >= comm->n_ranks || gone[without[i]] || without[i] == comm->rank)
            return ncclInvalidArgument;
        gone[without[i]] = true;
        n--;
    }
    for (int i = 0; i < comm->rank; i++)
        rank += !gone[i];
    join_thread(comm);
    if (flags & NCCL_SHRINK_ABORT) {
        stop(comm);
        hang_up(comm);
    } else if (nccl_comm_ready(comm) != ncclSuccess) {
        return ncclInvalidUsage;
    }
    pthread_mutex_lock(&comm->lock);
    while (!is_quiet(comm))
        pthread_cond_wait(&comm->changed, &comm->lock);
    hash = hashed(0xcbf29ce484222325, comm->name, strlen(comm->name));
    hash = hashed(hash, &(unsigned){++comm->n_shrinks}, sizeof(unsigned));
    pthread_mutex_unlock(&comm->lock);
    snprintf(name, sizeof(name), "wsync-fake-nccl-shrunk-%016lx", hashed(hash, gone, sizeof(gone)));
    bool blocking = config ? config->blocking != 0 : comm->blocking;
    return comm_new(name, rank, n, blocking, out);
}

ncclResult_t ncclCommCount(const ncclComm_t comm, int *n)
{
    *n = comm->n_ranks;
    return ncclSuccess;
}

ncclResult_t ncclCommUserRank(const ncclComm_t comm, int *rank)
{
    *rank = comm->rank;
    return ncclSuccess;
}

ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int *device)
{
    *device = comm->device;
    return ncclSuccess;
}

const char *ncclGetLastError(ncclComm_t comm)
{
    return comm ? comm->text : "";
}

const char *ncclGetErrorString(ncclResult_t rc)
{
    static const char *const texts[] = {
        [ncclSuccess] = "no error",
        [ncclUnhandledCudaError] = "unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
        [ncclSystemError] = "unhandled system error (run with NCCL_DEBUG=INFO for details)",
        [ncclInternalError] = "internal error - please report this issue to the NCCL developers",
        [ncclInvalidArgument] = "invalid argument (run with NCCL_DEBUG=WARN for details)",
        [ncclInvalidUsage] = "invalid usage (run with NCCL_DEBUG=WARN for details)",
        [ncclRemoteError] = "remote process exited or there was a network error",
        [ncclInProgress] = "NCCL operation in progress",
    };
    return (unsigned)rc < ncclNumResults ? texts[rc] : "unknown result code";
}
