/* Collectives, each a host function in the stream's order, and groups of them. A communicator's collectives
 * run in the order of their calls, in whatever streams. */
#include "tests/fakes/nccl_fake.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define GROUP_MOST 256

struct header { /* before the bytes of a collective */
    uint64_t number, bytes;
};

struct op {
    ncclComm_t comm;
    const void *from;
    void *to;
    size_t n;
    ncclDataType_t type;
    ncclRedOp_t reduction;
    int root; /* -1: an all-reduce */
    CUstream stream;
    uint64_t number;
};

static _Thread_local unsigned depth;
static _Thread_local size_t n_ops, n_comms;
static _Thread_local struct op *ops[GROUP_MOST];
static _Thread_local ncclComm_t comms[GROUP_MOST];

static size_t bytes_of(ncclDataType_t type)
{
    static const unsigned char bytes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
    return (unsigned)type < sizeof(bytes) ? bytes[type] : 0;
}

/* The stand-in's address of these bytes of a device. */
static void *seen(const void *p, size_t bytes)
{
    const struct nccl_driver *cu = nccl_driver();
    char *first = cu->at((uintptr_t)p), *last = cu->at((uintptr_t)p + bytes - 1);
    return first && last == first + bytes - 1 ? first : NULL;
}

static int send_part(struct op *o, int rank, const void *p, size_t bytes)
{
    struct header h = {o->number, bytes};
    int rc = nccl_send(o->comm, o->comm->fds[rank], &h, sizeof(h));
    return rc ? rc : nccl_send(o->comm, o->comm->fds[rank], p, bytes);
}

static int receive_part(struct op *o, int rank, void *p, size_t bytes)
{
    struct header h;
    int rc = nccl_receive(o->comm, o->comm->fds[rank], &h, sizeof(h));
    if (rc == 0 && (h.number != o->number || h.bytes != bytes)) {
        nccl_comm_fail(o->comm, ncclInvalidUsage,
                       "rank %d sends %lu bytes by its collective %lu, rank %d wants %lu by %lu", rank,
                       h.bytes, h.number, o->comm->rank, bytes, o->number);
        return -EPROTO;
    }
    return rc ? rc : nccl_receive(o->comm, o->comm->fds[rank], p, bytes);
}

static int broadcast(struct op *o, size_t bytes)
{
    void *to = seen(o->to, bytes);
    const void *from = o->root == o->comm->rank ? seen(o->from, bytes) : to;
    int rc = to && from ? 0 : -EFAULT;

    if (o->root != o->comm->rank)
        return rc ? rc : receive_part(o, o->root, to, bytes);
    for (int i = 0; i < o->comm->n_ranks && rc == 0; i++)
        if (i != o->root)
            rc = send_part(o, i, from, bytes);
    if (rc == 0 && to != from)
        memmove(to, from, bytes);
    return rc;
}

#define REDUCE(type)                                                                                         \
    do {                                                                                                     \
        type *a = into;                                                                                      \
        const type *b = with;                                                                                \
        for (size_t i = 0; i < o->n; i++)                                                                    \
            a[i] = o->reduction == ncclSum   ? (type)(a[i] + b[i])                                           \
                   : o->reduction == ncclMax ? (a[i] > b[i] ? a[i] : b[i])                                   \
                                             : (a[i] < b[i] ? a[i] : b[i]);                                  \
    } while (0)

static void reduce(const struct op *o, void *into, const void *with)
{
    switch ((int)o->type) {
    case ncclInt8:
        REDUCE(int8_t);
        break;
    case ncclUint8:
        REDUCE(uint8_t);
        break;
    case ncclInt32:
        REDUCE(int32_t);
        break;
    case ncclUint32:
        REDUCE(uint32_t);
        break;
    case ncclInt64:
        REDUCE(int64_t);
        break;
    case ncclUint64:
        REDUCE(uint64_t);
        break;
    case ncclFloat32:
        REDUCE(float);
        break;
    case ncclFloat64:
        REDUCE(double);
        break;
    }
}

static bool can_reduce(ncclDataType_t type, ncclRedOp_t reduction)
{
    return (type <= ncclUint64 || type == ncclFloat32 || type == ncclFloat64) &&
           (reduction == ncclSum || reduction == ncclMax || reduction == ncclMin);
}

/* Rank 0 reduces. */
static int all_reduce(struct op *o, size_t bytes)
{
    void *from = seen(o->from, bytes), *to = seen(o->to, bytes);
    void *sum = malloc(2 * bytes);
    int rc = !from || !to ? -EFAULT : sum ? 0 : -ENOMEM;

    if (rc == 0 && o->comm->rank) {
        rc = send_part(o, 0, from, bytes);
        if (rc == 0)
            rc = receive_part(o, 0, to, bytes);
    } else if (rc == 0) {
        memcpy(sum, from, bytes);
        for (int i = 1; i < o->comm->n_ranks && rc == 0; i++) {
            rc = receive_part(o, i, (char *)sum + bytes, bytes);
            if (rc == 0)
                reduce(o, sum, (char *)sum + bytes);
        }
        for (int i = 1; i < o->comm->n_ranks && rc == 0; i++)
            rc = send_part(o, i, sum, bytes);
        if (rc == 0)
            memcpy(to, sum, bytes);
    }
    free(sum);
    return rc;
}

static void wait_for_abort(ncclComm_t comm)
{
    pthread_mutex_lock(&comm->lock);
    while (!atomic_load(&comm->aborted))
        pthread_cond_wait(&comm->changed, &comm->lock);
    pthread_mutex_unlock(&comm->lock);
}

static void wait_for_turn(struct op *o)
{
    ncclComm_t comm = o->comm;
    pthread_mutex_lock(&comm->lock);
    while (comm->turn < o->number)
        pthread_cond_wait(&comm->changed, &comm->lock);
    pthread_mutex_unlock(&comm->lock);
}

static void drop(void *arg)
{
    struct op *o = arg;
    pthread_mutex_lock(&o->comm->lock);
    o->comm->turn++;
    pthread_cond_broadcast(&o->comm->changed);
    pthread_mutex_unlock(&o->comm->lock);
    nccl_comm_put(o->comm);
    free(o);
}

static void run(void *arg)
{
    struct op *o = arg;
    ncclComm_t comm = o->comm;
    const struct nccl_plan *plan = nccl_plan();
    size_t bytes = o->n * bytes_of(o->type);

    wait_for_turn(o);
    if (plan->hang_rank == comm->rank && o->number + 1 >= plan->hang_at)
        wait_for_abort(comm);
    for (unsigned ms = 0; plan->slow_rank == comm->rank && ms < plan->slow_ms && !atomic_load(&comm->aborted);
         ms++)
        usleep(1000);
    int rc = !bytes ? 0 : o->root < 0 ? all_reduce(o, bytes) : broadcast(o, bytes);
    if (rc == -EFAULT)
        nccl_comm_fail(comm, ncclUnhandledCudaError, "the memory of collective %lu has gone", o->number);
    else if (rc == -EPIPE)
        nccl_comm_fail(comm, ncclRemoteError, "a rank ended, or closed its socket, in collective %lu",
                       o->number);
    if (rc && rc != -ECANCELED)
        wait_for_abort(comm); /* as in NCCL: the stream hangs */
    drop(o);
}

static ncclResult_t launch(struct op *o)
{
    ncclComm_t comm = o->comm;
    pthread_mutex_lock(&comm->lock);
    o->number = comm->issued++;
    comm->refs++;
    pthread_mutex_unlock(&comm->lock);
    return nccl_driver()->host_work(o->stream, run, drop, o) == CUDA_SUCCESS ? nccl_comm_begun(comm)
                                                                             : ncclUnhandledCudaError;
}

static ncclResult_t call(const struct op *like)
{
    size_t bytes = like->n * bytes_of(like->type);
    bool sends = like->root < 0 || like->root == like->comm->rank;
    if (!bytes_of(like->type) || like->root >= like->comm->n_ranks ||
        (bytes && (!seen(like->to, bytes) || (sends && !seen(like->from, bytes)))))
        return ncclInvalidArgument;
    ncclResult_t rc = nccl_comm_ready(like->comm);
    if (rc != ncclSuccess)
        return rc;
    struct op *o = depth && n_ops == GROUP_MOST ? NULL : malloc(sizeof(*o));
    if (!o)
        return ncclSystemError;
    *o = *like;
    if (!depth)
        return launch(o);
    ops[n_ops++] = o;
    return ncclSuccess;
}

ncclResult_t ncclBroadcast(const void *from, void *to, size_t n, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream)
{
    NCCL_ENTER();
    if (root < 0)
        return ncclInvalidArgument;
    return call(&(struct op){.comm = comm,
                             .from = from,
                             .to = to,
                             .n = n,
                             .type = type,
                             .root = root,
                             .stream = (CUstream)stream});
}

ncclResult_t ncclAllReduce(const void *from, void *to, size_t n, ncclDataType_t type, ncclRedOp_t reduction,
                           ncclComm_t comm, cudaStream_t stream)
{
    NCCL_ENTER();
    if (!can_reduce(type, reduction))
        return ncclInvalidArgument;
    return call(&(struct op){.comm = comm,
                             .from = from,
                             .to = to,
                             .n = n,
                             .type = type,
                             .reduction = reduction,
                             .root = -1,
                             .stream = (CUstream)stream});
}

bool nccl_group_wait(ncclComm_t comm)
{
    if (depth && n_comms < GROUP_MOST)
        comms[n_comms++] = comm;
    return depth;
}

ncclResult_t ncclGroupStart(void)
{
    NCCL_ENTER();
    depth++;
    return ncclSuccess;
}

ncclResult_t ncclGroupEnd(void)
{
    NCCL_ENTER();
    ncclResult_t rc = ncclSuccess, one;
    if (!depth)
        return ncclInvalidUsage;
    if (--depth)
        return ncclSuccess;
    for (size_t i = 0; i < n_comms; i++)
        if ((one = nccl_comm_wait(comms[i])) != ncclSuccess)
            rc = one;
    for (size_t i = 0; i < n_ops; i++)
        if ((one = launch(ops[i])) != ncclSuccess && (rc == ncclSuccess || rc == ncclInProgress))
            rc = one;
    n_comms = n_ops = 0;
    return rc;
}
