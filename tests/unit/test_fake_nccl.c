/* The stand-in for NCCL: ranks in processes of their own, each with a GPU of the stand-in driver. */
#ifdef WS_HAVE_NCCL
#include "tests/fakes/opened.h"
#include <nccl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>

#include <cmocka.h>

#define BYTES 700000UL
#define RANKS 3

#define SYMBOLS(X)                                                                                           \
    X(version, ncclGetVersion)                                                                               \
    X(unique_id, ncclGetUniqueId)                                                                            \
    X(init, ncclCommInitRankConfig)                                                                          \
    X(finalize, ncclCommFinalize)                                                                            \
    X(destroy, ncclCommDestroy)                                                                              \
    X(abort, ncclCommAbort)                                                                                  \
    X(shrink, ncclCommShrink)                                                                                \
    X(async_error, ncclCommGetAsyncError)                                                                    \
    X(broadcast, ncclBroadcast)                                                                              \
    X(all_reduce, ncclAllReduce)                                                                             \
    X(group_start, ncclGroupStart)                                                                           \
    X(group_end, ncclGroupEnd)                                                                               \
    X(count, ncclCommCount)                                                                                  \
    X(user_rank, ncclCommUserRank)                                                                           \
    X(error_string, ncclGetErrorString)                                                                      \
    X(last_error, ncclGetLastError)

static struct {
#define MEMBER(member, symbol) __typeof__(&symbol) member;
    SYMBOLS(MEMBER)
#undef MEMBER
} nccl;
static struct opened cu;
static CUstream stream;
static CUdeviceptr memory;
static int rank;

/* What a test's ranks tell each other. */
static struct shared {
    ncclUniqueId id;
    atomic_int has_id, arrived;
} * shared;

static void *pointer(CUdeviceptr p)
{
    return (void *)(uintptr_t)p; /* NOLINT(performance-no-int-to-ptr) */
}

static void open_both(int device, const char *told)
{
    CUcontext ctx;
    load_driver(&cu, "devices=3,delay=100");
    OK(cu.init(0));
    OK(cu.primary_retain(&ctx, device));
    OK(cu.ctx_push(ctx));
    setenv("WSYNC_FAKE_NCCL", told, 1);
    void *lib = open_fake("libnccl.so.2");
#define LOAD(member, symbol)                                                                                 \
    *(void **)&nccl.member = dlsym(lib, #symbol);                                                            \
    CHECK(nccl.member);
    SYMBOLS(LOAD)
#undef LOAD
    OK(cu.stream_create(&stream, CU_STREAM_NON_BLOCKING));
    OK(cu.mem_alloc(&memory, BYTES));
}

static ncclResult_t state_of(ncclComm_t comm)
{
    ncclResult_t rc;
    OK(nccl.async_error(comm, &rc));
    return rc;
}

static ncclResult_t settled(ncclComm_t comm)
{
    ncclResult_t rc;
    for (int i = 0; (rc = state_of(comm)) == ncclInProgress && i < 3000; i++)
        usleep(10000);
    return rc;
}

static ncclComm_t begin(int n, int blocking)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclComm_t comm;
    if (rank == 0) {
        OK(nccl.unique_id(&shared->id));
        atomic_store(&shared->has_id, 1);
    }
    while (!atomic_load(&shared->has_id))
        usleep(1000);
    config.blocking = blocking;
    GIVES(blocking ? ncclSuccess : ncclInProgress, nccl.init(&comm, n, shared->id, rank, &config));
    return comm;
}

static ncclComm_t join_all(int n)
{
    ncclComm_t comm = begin(n, 0);
    OK(settled(comm));
    return comm;
}

static ncclResult_t broadcast(ncclComm_t comm, size_t n, int root)
{
    return nccl.broadcast(pointer(memory), pointer(memory), n, ncclUint8, root, comm, (cudaStream_t)stream);
}

static void fill(unsigned char byte)
{
    OK(cu.fill(memory, byte, BYTES, stream));
}

static void check(unsigned char byte)
{
    unsigned char *host = malloc(BYTES);
    OK(cu.stream_synchronize(stream));
    OK(cu.from_device(host, memory, BYTES));
    for (size_t i = 0; i < BYTES; i++)
        CHECK(host[i] == byte);
    free(host);
}

static void wait_for_failure(ncclComm_t comm, ncclResult_t rc)
{
    for (int i = 0; i < 2000 && state_of(comm) == ncclSuccess; i++)
        usleep(10000);
    GIVES(rc, state_of(comm));
}

static void collectives(void)
{
    int version, n, mine;
    open_both(rank, "version=22800");
    OK(nccl.version(&version));
    CHECK(version == 22800);
    ncclComm_t comm = join_all(RANKS);
    OK(nccl.count(comm, &n));
    OK(nccl.user_rank(comm, &mine));
    CHECK(n == RANKS && mine == rank);
    for (int root = 0; root < RANKS; root++) {
        fill((unsigned char)(rank * 10 + root)); /* before it in the stream */
        GIVES(ncclInProgress, broadcast(comm, BYTES, root));
        GIVES(ncclInvalidArgument, broadcast(comm, BYTES, root)); /* the last result was not queried */
        OK(settled(comm));
        check((unsigned char)(root * 10 + root));
    }
    uint64_t value = 1UL << (8 * rank);
    OK(cu.to_device(memory, &value, sizeof(value)));
    OK(nccl.group_start());
    OK(nccl.all_reduce(pointer(memory), pointer(memory), 1, ncclUint64, ncclSum, comm, (cudaStream_t)stream));
    OK(nccl.broadcast(pointer(memory + 8), pointer(memory + 8), 8, ncclUint8, 0, comm, (cudaStream_t)stream));
    GIVES(ncclInProgress, nccl.group_end());
    OK(settled(comm));
    OK(cu.stream_synchronize(stream));
    OK(cu.from_device(&value, memory, sizeof(value)));
    CHECK(value == 0x010101);
    nccl.finalize(comm);
    OK(settled(comm));
    OK(nccl.destroy(comm));
    OK(cu.mem_free(memory));
}

/* Rank 2 dies in the second broadcast; the others abort, and continue without it. */
static void a_rank_dies(void)
{
    open_both(rank, rank == 2 ? "die=ncclBroadcast:2" : "");
    ncclComm_t comm = join_all(RANKS), smaller;
    fill((unsigned char)(rank + 1));
    GIVES(ncclInProgress, broadcast(comm, BYTES, 0));
    OK(settled(comm));
    check(1);
    GIVES(ncclInProgress, broadcast(comm, BYTES, 0)); /* rank 2's end */
    settled(comm);                                    /* which may already be known */
    if (rank == 0) {
        wait_for_failure(comm, ncclRemoteError);
        CHECK(strlen(nccl.last_error(comm)) > 10);
        GIVES(CUDA_ERROR_NOT_READY, cu.stream_query(stream)); /* it hangs there, as with NCCL */
    }
    GIVES(ncclInProgress, nccl.shrink(comm, (int[]){2}, 1, &smaller, NULL, NCCL_SHRINK_ABORT));
    OK(cu.stream_synchronize(stream));
    OK(settled(smaller));
    OK(nccl.abort(comm));
    fill((unsigned char)(rank + 5));
    GIVES(ncclInProgress, broadcast(smaller, BYTES, 1));
    OK(settled(smaller));
    check(6);
    OK(nccl.destroy(smaller));
}

/* One rank never comes: the others' communicator is not created, until they give up. */
static void a_rank_is_missing(void)
{
    if (rank == 2)
        return;
    open_both(rank, "");
    ncclComm_t comm = begin(RANKS, 0);
    usleep(100000);
    GIVES(ncclInProgress, state_of(comm));
    GIVES(ncclInvalidArgument, broadcast(comm, BYTES, 0));
    OK(nccl.abort(comm));
}

/* Rank 1 hangs; rank 0 aborts, with more work queued in its stream. */
static void a_rank_hangs(void)
{
    open_both(rank, "hang=1:1");
    ncclComm_t comm = join_all(2);
    GIVES(ncclInProgress, broadcast(comm, BYTES, 1));
    OK(settled(comm));
    usleep(50000);
    GIVES(CUDA_ERROR_NOT_READY, cu.stream_query(stream));
    OK(nccl.abort(comm));
    OK(cu.stream_synchronize(stream));
}

static void sizes_differ(void)
{
    open_both(rank, "");
    ncclComm_t comm = join_all(2);
    GIVES(ncclInProgress, broadcast(comm, rank ? BYTES : BYTES / 2, 0));
    settled(comm);
    if (rank == 1)
        wait_for_failure(comm, ncclInvalidUsage);
    atomic_fetch_add(&shared->arrived, 1);
    while (atomic_load(&shared->arrived) < 2)
        usleep(1000);
    OK(nccl.abort(comm));
    OK(cu.stream_synchronize(stream));
}

static void one_gpu(void)
{
    open_both(0, "");
    ncclComm_t comm = begin(2, 0);
    GIVES(ncclInvalidUsage, settled(comm));
    CHECK(!strncmp(nccl.last_error(comm), "Duplicate GPU detected", 22));
    OK(nccl.abort(comm));
}

static void one_gpu_allowed(void)
{
    open_both(0, "one_gpu=1,slow=1:20");
    ncclComm_t comm = begin(2, 1); /* the communicator blocks */
    fill((unsigned char)(rank + 1));
    OK(broadcast(comm, BYTES, 1));
    check(2);
    OK(nccl.destroy(comm));
}

static void never(void *arg)
{
    (void)arg;
    CHECK(!"run in a context that is broken");
}

/* A context that breaks discards what is queued in it. */
static void context_breaks(void)
{
    open_both(rank, "hang=0:1");
    ncclComm_t comm = join_all(2);
    GIVES(ncclInProgress, broadcast(comm, BYTES, 0));
    OK(cu.host_function(stream, never, NULL));
    if (settled(comm) == ncclSuccess) /* the other rank may have given up already */
        broadcast(comm, BYTES, 0);
    CUdeviceptr p;
    CUstream other;
    OK(cu.stream_create(&other, CU_STREAM_NON_BLOCKING));
    OK(cu.vmm_reserve(&p, 2UL << 20, 0, 0, 0));
    CUmemGenericAllocationHandle h;
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
    OK(cu.vmm_create(&h, 2UL << 20, &prop, 0));
    OK(cu.vmm_map(p, 2UL << 20, 0, h, 0));
    OK(cu.fill(p, 0, 1, other)); /* without access */
    GIVES(CUDA_ERROR_ILLEGAL_ADDRESS, cu.stream_synchronize(other));
    OK(nccl.abort(comm));
}

/* Runs the ranks, each in a process. Rank `dies` must end by a signal, the others successfully. */
static void run_ranks(void (*fn)(void), int n, int dies)
{
    pid_t pids[RANKS];
    int status;

    shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(shared != MAP_FAILED);
    fflush(NULL);
    for (int i = 0; i < n; i++) {
        pids[i] = fork();
        if (pids[i] == 0) {
            alarm(60);
            rank = i;
            fn();
            exit(0);
        }
    }
    for (int i = 0; i < n; i++) {
        assert_int_equal(waitpid(pids[i], &status, 0), pids[i]);
        if (i == dies)
            assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        else
            assert_int_equal(status, 0);
    }
    munmap(shared, sizeof(*shared));
}

#define RUN(fn, n, dies)                                                                                     \
    static void test_##fn(void **state)                                                                      \
    {                                                                                                        \
        (void)state;                                                                                         \
        run_ranks(fn, n, dies);                                                                              \
    }
RUN(collectives, 3, -1)
RUN(a_rank_dies, 3, 2)
RUN(a_rank_is_missing, 3, -1)
RUN(a_rank_hangs, 2, -1)
RUN(sizes_differ, 2, -1)
RUN(one_gpu, 2, -1)
RUN(one_gpu_allowed, 2, -1)
RUN(context_breaks, 2, -1)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_collectives),       cmocka_unit_test(test_a_rank_dies),
        cmocka_unit_test(test_a_rank_is_missing), cmocka_unit_test(test_a_rank_hangs),
        cmocka_unit_test(test_sizes_differ),      cmocka_unit_test(test_one_gpu),
        cmocka_unit_test(test_one_gpu_allowed),   cmocka_unit_test(test_context_breaks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
#else
#include <stdio.h>

int main(void)
{
    puts("1..1\nok 1 - the stand-in for NCCL # SKIP built without NCCL's headers");
    return 0;
}
#endif
