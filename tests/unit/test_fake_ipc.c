/* The stand-in for CUDA's driver between two processes: memory and events by handles, mapped memory by
 * descriptors, what is left when one of them ends. */
#ifdef WS_HAVE_CUDA
#include "tests/fakes/opened.h"
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#include <cmocka.h>

#define BYTES   300000UL
#define SEGMENT (2UL << 20)

static struct opened cu;
static int peer; /* this process's end of the pair's socket */

static void say(const void *p, size_t n)
{
    CHECK(send(peer, p, n, MSG_NOSIGNAL) == (ssize_t)n);
}

static void hear(void *p, size_t n)
{
    CHECK(recv(peer, p, n, MSG_WAITALL) == (ssize_t)n);
}

static void go(void)
{
    say("", 1);
}

static void wait_for_peer(void)
{
    char c;
    hear(&c, 1);
}

static void send_fd(int fd)
{
    union {
        struct cmsghdr head;
        char room[CMSG_SPACE(sizeof(int))];
    } control;
    struct iovec one = {"", 1};
    struct msghdr m = {
        .msg_iov = &one, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)};
    memset(&control, 0, sizeof(control));
    control.head = (struct cmsghdr){
        .cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
    memcpy(CMSG_DATA(&control.head), &fd, sizeof(fd));
    CHECK(sendmsg(peer, &m, 0) == 1);
}

static int receive_fd(void)
{
    union {
        struct cmsghdr head;
        char room[CMSG_SPACE(sizeof(int))];
    } control;
    char c;
    int fd;
    struct iovec one = {&c, 1};
    struct msghdr m = {
        .msg_iov = &one, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)};
    CHECK(recvmsg(peer, &m, 0) == 1 && m.msg_controllen == sizeof(control));
    memcpy(&fd, CMSG_DATA(&control.head), sizeof(fd));
    return fd;
}

/* Runs both in child processes; their exit statuses. */
static void in_pair(void (*one)(void), void (*two)(void), int status[2])
{
    void (*const fns[])(void) = {one, two};
    int ends[2];
    pid_t pids[2];

    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    fflush(NULL);
    for (int i = 0; i < 2; i++) {
        pids[i] = fork();
        if (pids[i] == 0) {
            alarm(60);
            peer = ends[i];
            close(ends[!i]);
            fns[i]();
            exit(0);
        }
    }
    close(ends[0]);
    close(ends[1]);
    for (int i = 0; i < 2; i++)
        assert_int_equal(waitpid(pids[i], &status[i], 0), pids[i]);
}

static void check_bytes(CUdeviceptr p, size_t n, unsigned char byte)
{
    unsigned char *host = malloc(n);
    OK(cu.from_device(host, p, n));
    for (size_t i = 0; i < n; i++)
        CHECK(host[i] == byte);
    free(host);
}

static void fill(CUdeviceptr p, size_t n, unsigned char byte)
{
    OK(cu.fill(p, byte, n, NULL));
    OK(cu.stream_synchronize(NULL));
}

static void export_memory(void)
{
    CUdeviceptr a, b, mine;
    CUipcMemHandle handle;
    int capable;

    open_driver(&cu, "");
    OK(cu.mem_alloc(&a, BYTES));
    OK(cu.mem_alloc(&b, 100));
    fill(a, BYTES, 1);
    fill(b, 100, 2);
    OK(cu.pointer_attribute(&capable, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, a));
    CHECK(capable);
    OK(cu.ipc_mem_handle(&handle, a));
    GIVES(CUDA_ERROR_INVALID_CONTEXT, cu.ipc_mem_open(&mine, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    say(&a, sizeof(a));
    say(&handle, sizeof(handle));
    OK(cu.ipc_mem_handle(&handle, b + 10));
    say(&handle, sizeof(handle));
    wait_for_peer();
    check_bytes(a, BYTES, 3);
    OK(cu.mem_free(b));
    go();
    wait_for_peer();
    kill(getpid(), SIGKILL);
}

static void import_memory(void)
{
    CUipcMemHandle a, b;
    CUdeviceptr theirs, pa, pb, again;

    open_driver(&cu, "");
    hear(&theirs, sizeof(theirs));
    hear(&a, sizeof(a));
    hear(&b, sizeof(b));
    OK(cu.ipc_mem_open(&pa, a, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    OK(cu.ipc_mem_open(&pb, b, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    CHECK(pa != theirs);
    check_bytes(pa, BYTES, 1);
    check_bytes(pb, 100, 2);
    GIVES(CUDA_ERROR_INVALID_VALUE, cu.fill(pa, 0, BYTES + 1, NULL));
    OK(cu.ipc_mem_open(&again, a, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    CHECK(again == pa);
    OK(cu.ipc_mem_close(pa));
    GIVES(CUDA_ERROR_INVALID_VALUE, cu.ipc_mem_handle(&b, pa)); /* not exportable by this process */
    fill(pa, BYTES, 3);
    go();
    wait_for_peer();
    OK(cu.ipc_mem_close(pb)); /* freed there; what it reads as is undefined */
    GIVES(CUDA_ERROR_INVALID_VALUE, cu.ipc_mem_open(&pb, b, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    go();
    char c;
    CHECK(recv(peer, &c, 1, 0) <= 0); /* its process has ended */
    check_bytes(pa, BYTES, 3);
    OK(cu.ipc_mem_close(pa));
    GIVES(CUDA_ERROR_INVALID_VALUE, cu.ipc_mem_close(pa));
    GIVES(CUDA_ERROR_INVALID_VALUE, cu.fill(pa, 0, 1, NULL));
    int rc = CUDA_SUCCESS;
    for (int i = 0; i < 500 && rc == CUDA_SUCCESS; i++) { /* its files are closed a moment after its socket */
        rc = (int)cu.ipc_mem_open(&pa, a, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
        if (rc == CUDA_SUCCESS)
            OK(cu.ipc_mem_close(pa));
        usleep(10000);
    }
    CHECK(rc == CUDA_ERROR_INVALID_VALUE);
}

static void test_memory(void **state)
{
    int status[2];
    (void)state;
    in_pair(export_memory, import_memory, status);
    assert_true(WIFSIGNALED(status[0]) && WTERMSIG(status[0]) == SIGKILL);
    assert_int_equal(status[1], 0);
}

static void hold_open(void *arg)
{
    while (!atomic_load((atomic_int *)arg))
        usleep(100);
}

static void export_event(void)
{
    CUevent e, plain;
    CUstream s;
    CUdeviceptr p;
    CUipcEventHandle handle;
    CUipcMemHandle memory;
    atomic_int open = 0;

    open_driver(&cu, "");
    GIVES(CUDA_ERROR_INVALID_VALUE, cu.event_create(&e, CU_EVENT_INTERPROCESS));
    OK(cu.event_create(&plain, CU_EVENT_DISABLE_TIMING));
    GIVES(CUDA_ERROR_INVALID_HANDLE, cu.ipc_event_handle(&handle, plain));
    OK(cu.event_create(&e, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING));
    OK(cu.ipc_event_handle(&handle, e));
    OK(cu.stream_create(&s, CU_STREAM_NON_BLOCKING));
    OK(cu.mem_alloc(&p, BYTES));
    OK(cu.ipc_mem_handle(&memory, p));
    OK(cu.host_function(s, hold_open, &open));
    OK(cu.fill(p, 7, BYTES, s));
    OK(cu.event_record(e, s));
    say(&handle, sizeof(handle));
    say(&memory, sizeof(memory));
    wait_for_peer();
    atomic_store(&open, 1);
    wait_for_peer();
    OK(cu.event_synchronize(e)); /* recorded by the other process */
    OK(cu.event_query(e));
    check_bytes(p, BYTES, 8);
    go();
}

static void import_event(void)
{
    CUevent e;
    CUstream s;
    CUdeviceptr p;
    CUipcEventHandle handle;
    CUipcMemHandle memory;

    open_driver(&cu, "");
    hear(&handle, sizeof(handle));
    hear(&memory, sizeof(memory));
    OK(cu.ipc_event_open(&e, handle));
    OK(cu.ipc_mem_open(&p, memory, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    GIVES(CUDA_ERROR_NOT_READY, cu.event_query(e));
    OK(cu.stream_create(&s, CU_STREAM_NON_BLOCKING));
    OK(cu.stream_wait(s, e, 0));
    unsigned char *host;
    OK(cu.host_alloc((void **)&host, BYTES, 0));
    OK(cu.copy((CUdeviceptr)(uintptr_t)host, p, BYTES, s));
    OK(cu.fill(p, 8, BYTES, s));
    OK(cu.event_record(e, s));
    GIVES(CUDA_ERROR_NOT_READY, cu.stream_query(s));
    go();
    OK(cu.stream_synchronize(s));
    CHECK(host[0] == 7 && host[BYTES - 1] == 7);
    go();
    wait_for_peer();
    OK(cu.event_destroy(e));
    OK(cu.ipc_mem_close(p));
}

static void test_events(void **state)
{
    int status[2];
    (void)state;
    in_pair(export_event, import_event, status);
    assert_int_equal(status[0], 0);
    assert_int_equal(status[1], 0);
}

static const CUmemAllocationProp shareable = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                              .requestedHandleTypes =
                                                  CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                              .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
static const CUmemAccessDesc access_here = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0},
                                            .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};

/* Two segments side by side, as PyTorch's expandable segments. */
static void export_mapping(void)
{
    CUdeviceptr p, start;
    CUmemGenericAllocationHandle segments[2], again;
    CUipcMemHandle legacy;
    CUmemAllocationProp prop;
    size_t step, size;
    unsigned long long types;
    int capable, fd;

    open_driver(&cu, "memory=8M");
    OK(cu.vmm_granularity(&step, &shareable, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    CHECK(step == SEGMENT);
    OK(cu.vmm_reserve(&p, 8 * SEGMENT, 0, 0, 0));
    for (int i = 0; i < 2; i++) {
        OK(cu.vmm_create(&segments[i], SEGMENT, &shareable, 0));
        OK(cu.vmm_map(p + (unsigned)i * SEGMENT, SEGMENT, 0, segments[i], 0));
        OK(cu.vmm_release(segments[i])); /* the mapping keeps it */
    }
    GIVES(CUDA_ERROR_INVALID_VALUE, cu.vmm_map(p, SEGMENT, 0, segments[0], 0));
    OK(cu.vmm_access(p, 2 * SEGMENT, &access_here, 1));
    fill(p, 2 * SEGMENT, 5);
    GIVES(CUDA_ERROR_INVALID_VALUE, cu.fill(p + SEGMENT, 0, SEGMENT + 1, NULL));
    OK(cu.pointer_attribute(&capable, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, p));
    CHECK(!capable);
    GIVES(CUDA_ERROR_INVALID_VALUE, cu.ipc_mem_handle(&legacy, p));
    OK(cu.pointer_attribute(&types, CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, p));
    CHECK(types == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    OK(cu.mem_range(&start, &size, p + SEGMENT + 5));
    CHECK(start == p + SEGMENT && size == SEGMENT);
    OK(cu.pointer_attribute(&size, CU_POINTER_ATTRIBUTE_RANGE_SIZE, p + SEGMENT));
    CHECK(size == 8 * SEGMENT);
    for (unsigned i = 0; i < 2; i++) {
        OK(cu.vmm_retain(&again, (void *)(uintptr_t)(p + i * SEGMENT + 17)));
        OK(cu.vmm_properties(&prop, again));
        CHECK(prop.location.id == 0);
        OK(cu.vmm_export(&fd, again, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
        send_fd(fd);
        close(fd);
        OK(cu.vmm_release(again));
    }
    wait_for_peer();
    check_bytes(p, 2 * SEGMENT, 6);
    OK(cu.vmm_unmap(p, 2 * SEGMENT));
    GIVES(CUDA_ERROR_INVALID_VALUE, cu.vmm_release(segments[0]));
    OK(cu.vmm_unreserve(p, 8 * SEGMENT));
    size_t left, total;
    OK(cu.mem_info(&left, &total));
    CHECK(left == total);
    go();
}

static void import_mapping(void)
{
    CUdeviceptr p;

    open_driver(&cu, "");
    OK(cu.vmm_reserve(&p, 2 * SEGMENT, 0, 0, 0));
    for (unsigned i = 0; i < 2; i++) {
        CUmemGenericAllocationHandle h;
        int fd = receive_fd();
        OK(cu.vmm_import(&h, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
        close(fd);
        OK(cu.vmm_map(p + i * SEGMENT, SEGMENT, 0, h, 0));
        OK(cu.vmm_release(h));
    }
    OK(cu.vmm_access(p, 2 * SEGMENT, &access_here, 1));
    check_bytes(p, 2 * SEGMENT, 5);
    fill(p, 2 * SEGMENT, 6);
    go();
    wait_for_peer();
    check_bytes(p, 2 * SEGMENT, 6); /* kept, though the exporter has released it */
    CUmemAccessDesc none = access_here;
    none.flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
    OK(cu.vmm_access(p + SEGMENT, SEGMENT, &none, 1));
    OK(cu.fill(p, 1, SEGMENT, NULL));
    OK(cu.stream_synchronize(NULL));
    OK(cu.fill(p, 1, 2 * SEGMENT, NULL));
    GIVES(CUDA_ERROR_ILLEGAL_ADDRESS, cu.stream_synchronize(NULL));
}

static void test_mappings(void **state)
{
    int status[2];
    (void)state;
    in_pair(export_mapping, import_mapping, status);
    assert_int_equal(status[0], 0);
    assert_int_equal(status[1], 0);
}

static void export_afar(void)
{
    CUdeviceptr p;
    CUipcMemHandle handle;
    open_driver(&cu, "");
    OK(cu.mem_alloc(&p, 1));
    OK(cu.ipc_mem_handle(&handle, p));
    say(&handle, sizeof(handle));
    wait_for_peer();
}

static CUipcMemHandle afar;

static void open_afar(void)
{
    CUdeviceptr p;
    open_driver(&cu, "");
    GIVES(CUDA_ERROR_INVALID_VALUE, cu.ipc_mem_open(&p, afar, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    _exit(0); /* leak checks do not work in such a namespace */
}

static void leave_namespace(void)
{
    if (!unshare(CLONE_NEWPID)) /* for the next child; needs privileges */
        CHECK(in_child(open_afar) == 0);
    _exit(0);
}

static void import_afar(void)
{
    hear(&afar, sizeof(afar));
    CHECK(in_child(leave_namespace) == 0);
    setenv("CUDA_VISIBLE_DEVICES", "1", 1); /* and where the device is not visible */
    CUdeviceptr p;
    open_driver(&cu, "");
    GIVES(CUDA_ERROR_INVALID_VALUE, cu.ipc_mem_open(&p, afar, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    go();
}

static void test_afar(void **state)
{
    int status[2];
    (void)state;
    in_pair(export_afar, import_afar, status);
    assert_int_equal(status[0], 0);
    assert_int_equal(status[1], 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_events),
        cmocka_unit_test(test_mappings),
        cmocka_unit_test(test_afar),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
#else
#include <stdio.h>

int main(void)
{
    puts("1..1\nok 1 - the stand-in for CUDA's driver between processes # SKIP built without CUDA's headers");
    return 0;
}
#endif
