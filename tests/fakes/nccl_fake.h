/* A stand-in for NCCL: libnccl.so.2, over the stand-in driver (fake.h). Ranks are joined by unix sockets, one
 * between each two; a collective runs in its stream's order, as a host function. Like NCCL, nothing here has
 * a deadline: a rank that waits for one that does not come, or that has died, waits until its communicator is
 * aborted, and ncclCommGetAsyncError reports a broken socket. WSYNC_FAKE_NCCL configures it; nccl_plan.c has
 * the grammar. */
#ifndef WS_TESTS_NCCL_FAKE_H
#define WS_TESTS_NCCL_FAKE_H
#pragma GCC visibility push(default)
#include <cuda.h>
#include <nccl.h>
ncclResult_t ncclGroupStart(void); /* nccl.h declares them as older C does */
ncclResult_t ncclGroupEnd(void);
#pragma GCC visibility pop
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define NCCL_FAKE_NAME_BYTES 96
#define NCCL_FAKE_MAX_RANKS  64

/* --- nccl_plan.c --- */
struct nccl_plan {
    int version;
    bool one_gpu;             /* several ranks may be on one */
    int slow_rank, hang_rank; /* or -1 */
    unsigned slow_ms, hang_at;
};
const struct nccl_plan *nccl_plan(void);
ncclResult_t nccl_enter(const char *name);
#define NCCL_ENTER()                                                                                         \
    do {                                                                                                     \
        ncclResult_t enter_rc = nccl_enter(__func__);                                                        \
        if (enter_rc != ncclSuccess)                                                                         \
            return enter_rc;                                                                                 \
    } while (0)
/* The driver that the process has opened; NULL: none, or not the stand-in. */
struct nccl_driver {
    __typeof__(&cuCtxGetDevice) device;
    __typeof__(&cuDeviceGetUuid_v2) uuid;
    CUresult (*host_work)(CUstream stream, CUhostFn run, CUhostFn drop, void *arg);
    void *(*at)(CUdeviceptr address);
};
const struct nccl_driver *nccl_driver(void);

/* --- nccl_comm.c --- */
struct ncclComm {
    char name[NCCL_FAKE_NAME_BYTES]; /* the name of the ranks' sockets */
    int rank, n_ranks, device;
    bool blocking;
    CUuuid uuid;
    int fds[NCCL_FAKE_MAX_RANKS]; /* by rank; -1: none, or broken */
    pthread_t thread;
    bool joined;
    atomic_bool aborted; /* waiting operations give up */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    /* guarded by lock */
    unsigned refs;
    bool finalized;
    ncclResult_t state;   /* ncclInProgress: being made */
    unsigned in_progress; /* number of queries that are still answered with ncclInProgress */
    char text[256];
    uint64_t issued, turn; /* collectives: the number called; the next one to run */
    unsigned n_shrinks;
};
void nccl_comm_put(ncclComm_t comm);
/* The first failure is kept. */
void nccl_comm_fail(ncclComm_t comm, ncclResult_t rc, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Whether a collective may be called now. */
ncclResult_t nccl_comm_ready(ncclComm_t comm);
/* The result of a call that has started an operation. */
ncclResult_t nccl_comm_begun(ncclComm_t comm);

/* --- nccl_wire.c: bytes between ranks; 0, -ECANCELED: aborted, or -EPIPE --- */
int nccl_listen(const ncclComm_t comm);
int nccl_connect(const ncclComm_t comm, int rank, int *fd);
int nccl_accept(const ncclComm_t comm, int listener, int *fd);
int nccl_send(const ncclComm_t comm, int fd, const void *p, size_t n);
int nccl_receive(const ncclComm_t comm, int fd, void *p, size_t n);

/* --- nccl_group.c --- */
/* In a group: the group's end waits for comm, not this call. */
bool nccl_group_wait(ncclComm_t comm);
ncclResult_t nccl_comm_wait(ncclComm_t comm); /* until it is created, or has failed */

#endif
