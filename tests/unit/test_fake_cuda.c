/* The stand-in for CUDA's driver: the behaviour that other tests rely on. */
#ifdef WS_HAVE_CUDA
#include "tests/fakes/opened.h"
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <cmocka.h>

#define BYTES (1UL << 20)

static struct opened cu;

static void fill(unsigned char *p, size_t n, unsigned seed)
{
    for (size_t i = 0; i < n; i++)
        p[i] = (unsigned char)(i * 31 + i / 251 + seed);
}

static unsigned char *pinned(size_t n)
{
    void *p;
    OK(cu.host_alloc(&p, n, 0));
    return p;
}

static CUdeviceptr device_memory(size_t n)
{
    CUdeviceptr p;
    OK(cu.mem_alloc(&p, n));
    CHECK(p % 512 == 0);
    return p;
}

static CUstream stream(unsigned flags)
{
    CUstream s;
    OK(cu.stream_create(&s, flags));
    return s;
}

static CUevent event(void)
{
    CUevent e;
    OK(cu.event_create(&e, CU_EVENT_DISABLE_TIMING));
    return e;
}

static CUdeviceptr at(const void *host)
{
    return (CUdeviceptr)(uintptr_t)host;
}

/* A gate in a stream: a host function that waits until the gate opens. */
struct gate {
    atomic_int open, passed;
};

static void pass(void *arg)
{
    struct gate *g = arg;
    while (!atomic_load(&g->open))
        usleep(100);
    atomic_store(&g->passed, 1);
}

static void devices(void)
{
    CUuuid a, b;
    char bus[16], name[64];
    size_t total, left;
    int n, can, version;
    CUcontext one, current;
    const char *text;

    load_driver(&cu, "devices=2,memory=64M,driver=12040,peer=0");
    GIVES(CUDA_ERROR_NOT_INITIALIZED, cu.device_count(&n));
    OK(cu.driver_version(&version));
    CHECK(version == 12040);
    OK(cu.init(0));
    OK(cu.device_count(&n));
    CHECK(n == 2);
    OK(cu.device_uuid(&a, 0));
    OK(cu.device_uuid(&b, 1));
    CHECK(memcmp(a.bytes, b.bytes, 16));
    OK(cu.device_bus(bus, sizeof(bus), 1));
    OK(cu.device_name(name, sizeof(name), 1));
    GIVES(CUDA_ERROR_INVALID_DEVICE, cu.device_name(name, sizeof(name), 2));
    OK(cu.can_access_peer(&can, 0, 1));
    CHECK(!can);
    GIVES(CUDA_ERROR_INVALID_CONTEXT, cu.mem_info(&left, &total));
    OK(cu.primary_retain(&one, 1));
    OK(cu.ctx_push(one));
    OK(cu.mem_info(&left, &total));
    CHECK(total == 64UL << 20 && left == total);
    OK(cu.ctx_pop(&current));
    CHECK(current == one);
    GIVES(CUDA_ERROR_INVALID_CONTEXT, cu.ctx_pop(&current));
    OK(cu.primary_release(1));
    OK(cu.error_name(CUDA_ERROR_OUT_OF_MEMORY, &text));
    CHECK(!strcmp(text, "CUDA_ERROR_OUT_OF_MEMORY"));
}

static void copies(void)
{
    open_driver(&cu, "delay=300");
    unsigned char *in = pinned(BYTES), *out = pinned(BYTES), pageable[4096];
    CUdeviceptr a = device_memory(BYTES), b = device_memory(BYTES);
    CUstream s = stream(CU_STREAM_NON_BLOCKING);

    fill(in, BYTES, 3);
    OK(cu.copy(a, at(in), BYTES, s));
    OK(cu.copy(b, a, BYTES, s));
    OK(cu.fill(b + 100, 0xab, 50, s));
    OK(cu.copy(at(out), b, BYTES, s));
    OK(cu.stream_synchronize(s));
    CHECK(!memcmp(in, out, 100) && !memcmp(in + 150, out + 150, BYTES - 150));
    for (int i = 100; i < 150; i++)
        CHECK(out[i] == 0xab);

    fill(pageable, sizeof(pageable), 9);
    OK(cu.copy(a, at(pageable), sizeof(pageable), s)); /* read during the call */
    memset(pageable, 0, sizeof(pageable));
    OK(cu.copy(at(pageable), a, sizeof(pageable), s)); /* written before it returns */
    fill(in, sizeof(pageable), 9);
    CHECK(!memcmp(pageable, in, sizeof(pageable)));

    GIVES(CUDA_ERROR_INVALID_VALUE, cu.copy(at(out), a, BYTES + 1, s));
    GIVES(CUDA_ERROR_INVALID_VALUE, cu.fill(a + BYTES - 1, 0, 2, s));
    GIVES(CUDA_ERROR_INVALID_HANDLE, cu.copy(at(out), a, 1, (CUstream)(uintptr_t)0x1234));
    OK(cu.stream_destroy(s));
    GIVES(CUDA_ERROR_INVALID_HANDLE, cu.stream_synchronize(s));
    OK(cu.mem_free(a));
    GIVES(CUDA_ERROR_INVALID_VALUE, cu.mem_free(a));
    OK(cu.mem_free(b));
    OK(cu.host_free(in));
    OK(cu.host_free(out));
}

/* Copies a box between all kinds of memory: dst(z, y, x) = src. */
static void boxes(void)
{
    open_driver(&cu, "delay=100");
    enum { W = 24, H = 5, D = 3, ROW = 40, ROWS = 7, ALL = ROW * ROWS * (D + 1) };
    unsigned char *in = pinned(ALL), *out = pinned(ALL), plain[ALL];
    CUdeviceptr dev = device_memory(ALL);
    CUDA_MEMCPY3D c = {.srcMemoryType = CU_MEMORYTYPE_UNIFIED,
                       .dstMemoryType = CU_MEMORYTYPE_UNIFIED,
                       .srcXInBytes = 4,
                       .srcY = 1,
                       .srcZ = 1,
                       .srcDevice = dev,
                       .srcPitch = ROW,
                       .srcHeight = ROWS,
                       .dstPitch = W,
                       .dstHeight = H,
                       .WidthInBytes = W,
                       .Height = H,
                       .Depth = D};
    unsigned char *ends[] = {out, plain};

    fill(in, ALL, 1);
    for (int e = 0; e < 2; e++) {
        OK(cu.copy(dev, at(in), ALL, NULL));
        c.dstDevice = at(ends[e]);
        OK(cu.copy_3d(&c, NULL));
        OK(cu.stream_synchronize(NULL));
        for (int z = 0; z < D; z++)
            for (int y = 0; y < H; y++)
                CHECK(!memcmp(ends[e] + (z * H + y) * W, in + ((z + 1) * ROWS + y + 1) * ROW + 4, W));
    }
    c.srcPitch = W;
    GIVES(CUDA_ERROR_INVALID_VALUE, cu.copy_3d(&c, NULL));

    CUDA_MEMCPY2D flat = {.srcMemoryType = CU_MEMORYTYPE_HOST,
                          .srcHost = plain,
                          .srcPitch = W,
                          .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                          .dstDevice = dev,
                          .dstPitch = ROW,
                          .WidthInBytes = W,
                          .Height = H};
    OK(cu.copy_2d(&flat, NULL));
    memset(plain, 0, W * H);
    OK(cu.from_device(in, dev, ALL));
    for (int y = 0; y < H; y++)
        CHECK(!memcmp(in + y * ROW, out + y * W, W));
    flat.dstMemoryType = CU_MEMORYTYPE_HOST;
    flat.dstHost = (void *)(uintptr_t)dev;
    GIVES(CUDA_ERROR_INVALID_VALUE, cu.copy_2d(&flat, NULL));
}

/* Pinned memory is read when the copy runs. */
static void lateness(void)
{
    open_driver(&cu, "delay=0");
    struct gate g = {0};
    CUstream s = stream(CU_STREAM_NON_BLOCKING);
    CUdeviceptr a = device_memory(64);
    unsigned char *in = pinned(64), out[64];

    OK(cu.host_function(s, pass, &g));
    memset(in, 1, 64);
    OK(cu.copy(a, at(in), 64, s));
    memset(in, 2, 64); /* too early: wrong bytes arrive */
    GIVES(CUDA_ERROR_NOT_READY, cu.stream_query(s));
    atomic_store(&g.open, 1);
    OK(cu.stream_synchronize(s));
    OK(cu.stream_query(s));
    OK(cu.from_device(out, a, 64));
    CHECK(out[0] == 2 && out[63] == 2);

    atomic_store(&g.open, 0);
    OK(cu.host_function(s, pass, &g));
    OK(cu.copy(a, at(in), 64, s));
    OK(cu.host_free(in)); /* and this breaks the context */
    atomic_store(&g.open, 1);
    GIVES(CUDA_ERROR_ILLEGAL_ADDRESS, cu.stream_synchronize(s));
    GIVES(CUDA_ERROR_ILLEGAL_ADDRESS, cu.mem_alloc(&a, 64));
}

static void event_rules(void)
{
    open_driver(&cu, "delay=0");
    struct gate g = {0}, behind = {.open = 1}, free_one = {.open = 1};
    CUstream a = stream(CU_STREAM_NON_BLOCKING), b = stream(CU_STREAM_NON_BLOCKING);
    CUevent e = event();

    OK(cu.event_query(e)); /* never recorded */
    OK(cu.stream_wait(b, e, 0));
    OK(cu.stream_synchronize(b));

    OK(cu.host_function(a, pass, &g));
    OK(cu.event_record(e, a));
    GIVES(CUDA_ERROR_NOT_READY, cu.event_query(e));
    OK(cu.stream_wait(b, e, 0));
    OK(cu.host_function(b, pass, &behind));
    /* Another record does not change what b waits for, and completes itself. */
    CUstream c = stream(CU_STREAM_NON_BLOCKING);
    OK(cu.event_record(e, c));
    OK(cu.stream_wait(c, e, 0));
    OK(cu.host_function(c, pass, &free_one));
    OK(cu.stream_synchronize(c));
    CHECK(atomic_load(&free_one.passed));
    OK(cu.event_synchronize(e));
    OK(cu.event_destroy(e)); /* while b still waits for its first record */
    usleep(20000);
    CHECK(!atomic_load(&behind.passed));
    OK(cu.stream_destroy(b));
    atomic_store(&g.open, 1);
    OK(cu.ctx_synchronize());
    CHECK(atomic_load(&behind.passed));
    GIVES(CUDA_ERROR_INVALID_HANDLE, cu.event_query(e));
    OK(cu.stream_destroy(a));
    OK(cu.stream_destroy(c));
}

static void default_stream(void)
{
    open_driver(&cu, "delay=0");
    struct gate g = {0}, legacy = {.open = 1}, apart = {.open = 1}, after = {.open = 1};
    CUstream blocking = stream(CU_STREAM_DEFAULT), other = stream(CU_STREAM_DEFAULT);
    CUstream free_one = stream(CU_STREAM_NON_BLOCKING);

    OK(cu.host_function(blocking, pass, &g));
    OK(cu.host_function(NULL, pass, &legacy));
    OK(cu.host_function(other, pass, &after));
    OK(cu.host_function(free_one, pass, &apart));
    OK(cu.stream_synchronize(free_one));
    usleep(20000);
    CHECK(atomic_load(&apart.passed) && !atomic_load(&legacy.passed) && !atomic_load(&after.passed));
    GIVES(CUDA_ERROR_NOT_READY, cu.stream_query(CU_STREAM_LEGACY));
    atomic_store(&g.open, 1);
    OK(cu.stream_synchronize(CU_STREAM_LEGACY));
    CHECK(atomic_load(&legacy.passed));
    OK(cu.stream_synchronize(other));
    OK(cu.stream_synchronize(CU_STREAM_PER_THREAD));
    CHECK(atomic_load(&after.passed));
}

static CUdeviceptr touched;

static void touch(void)
{
    struct rlimit none = {0, 0};
    setrlimit(RLIMIT_CORE, &none);
    signal(SIGSEGV, SIG_DFL);
    *(volatile unsigned char *)(uintptr_t)touched = 1;
}

static void child_has_no_driver(void)
{
    int n;
    GIVES(CUDA_ERROR_NOT_INITIALIZED, cu.device_count(&n));
    GIVES(CUDA_ERROR_NOT_INITIALIZED, cu.init(0));
    GIVES(CUDA_ERROR_NOT_INITIALIZED, cu.mem_alloc(&touched, 1));
    _exit(0);
}

static void faults_and_forks(void)
{
    open_driver(&cu, "");
    touched = device_memory(100);
    int status = in_child(touch);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
    CHECK(in_child(child_has_no_driver) == 0);
    OK(cu.mem_free(touched));
}

static void memory_ends(void)
{
    size_t left, total, size;
    CUdeviceptr a, b, base;
    unsigned kind;
    int device;
    void *host = aligned_alloc(4096, 8192);

    open_driver(&cu, "memory=1M,register=4096");
    a = device_memory(BYTES - 4096);
    OK(cu.mem_info(&left, &total));
    CHECK(left == 4096 && total == BYTES);
    GIVES(CUDA_ERROR_OUT_OF_MEMORY, cu.mem_alloc(&b, 8192));
    GIVES(CUDA_ERROR_OUT_OF_MEMORY, cu.mem_alloc(&b, BYTES * 2));
    b = device_memory(3000);
    CHECK(b % 4096); /* not page-aligned, like small allocations of CUDA */
    OK(cu.mem_range(&base, &size, b + 2999));
    CHECK(base == b && size == 3000);
    OK(cu.pointer_attribute(&kind, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, b + 1));
    OK(cu.pointer_attribute(&device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, b + 1));
    OK(cu.pointer_attribute(&base, CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR, b + 1));
    CHECK(kind == CU_MEMORYTYPE_DEVICE && device == 0 && base < b);
    GIVES(CUDA_ERROR_INVALID_VALUE, cu.pointer_attribute(&kind, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, at(host)));
    OK(cu.host_register(host, 100, 0));
    GIVES(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, cu.host_register((char *)host + 200, 100, 0));
    GIVES(CUDA_ERROR_OUT_OF_MEMORY, cu.host_register((char *)host + 4096, 4096, 0));
    OK(cu.pointer_attribute(&kind, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, at(host)));
    CHECK(kind == CU_MEMORYTYPE_HOST);
    OK(cu.host_unregister(host));
    GIVES(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, cu.host_unregister(host));
    GIVES(CUDA_ERROR_INVALID_VALUE, cu.host_register((void *)4096, 4096, 0));
    OK(cu.mem_free(a));
    OK(cu.mem_free(b));
    OK(cu.mem_info(&left, &total));
    CHECK(left == total);
    free(host);
}

struct add_args {
    CUdeviceptr words;
    uint64_t n, add;
};

static void kernels(void)
{
    open_driver(&cu, "delay=200,devices=1");
    enum { N = 1000 };
    uint64_t host[N];
    CUmodule m;
    CUfunction f;
    CUstream s = stream(CU_STREAM_NON_BLOCKING);
    struct add_args a = {.words = device_memory(sizeof(host)), .n = N, .add = 5};
    void *args[] = {&a};

    GIVES(CUDA_ERROR_INVALID_IMAGE, cu.module_load(&m, "something else"));
    OK(cu.module_load(&m, "WSYNC-FAKE"));
    GIVES(CUDA_ERROR_NOT_FOUND, cu.module_function(&f, m, "nobody"));
    OK(cu.module_function(&f, m, "fake_add_words"));
    OK(cu.fill(a.words, 0, sizeof(host), s));
    OK(cu.launch(f, 4, 1, 1, 32, 1, 1, 0, s, args, NULL));
    a.add = 7; /* arguments are copied at the call */
    OK(cu.launch(f, 4, 1, 1, 32, 1, 1, 0, s, args, NULL));
    OK(cu.copy(at(host), a.words, sizeof(host), s));
    for (int i = 0; i < N; i++)
        CHECK(host[i] == 12);
    touched = a.words;
    int status = in_child(touch); /* closed again */
    CHECK(WIFSIGNALED(status));
    GIVES(CUDA_ERROR_INVALID_VALUE, cu.launch(f, 1, 1, 1, 2048, 1, 1, 0, s, args, NULL));
}

static void injected(void)
{
    CUdeviceptr a;
    CUstream s;

    open_driver(&cu, "fail=cuMemAlloc_v2:2:2:1,fault=cuMemsetD8Async:2,lost=cuStreamQuery:2:214,devices=2");
    a = device_memory(64);
    GIVES(CUDA_ERROR_OUT_OF_MEMORY, cu.mem_alloc(&a, 64));
    a = device_memory(64);
    s = stream(CU_STREAM_NON_BLOCKING);
    OK(cu.fill(a, 1, 64, s));
    OK(cu.stream_synchronize(s));
    OK(cu.fill(a, 1, 64, s));
    GIVES(CUDA_ERROR_ILLEGAL_ADDRESS, cu.stream_synchronize(s));
    GIVES(CUDA_ERROR_ILLEGAL_ADDRESS, cu.mem_free(a));
    CUcontext other;
    OK(cu.primary_retain(&other, 1)); /* another device is not affected */
    OK(cu.ctx_push(other));
    OK(cu.mem_alloc(&a, 64));
    OK(cu.stream_query(NULL));
    GIVES(CUDA_ERROR_ECC_UNCORRECTABLE, cu.stream_query(NULL));
    GIVES(CUDA_ERROR_ECC_UNCORRECTABLE, cu.mem_free(a));
}

static void dies(void)
{
    open_driver(&cu, "die=cuMemAlloc_v2:2");
    device_memory(1);
    device_memory(1);
}

static void misspelt(void)
{
    fclose(stderr);
    open_driver(&cu, "fail=cuMemAloc:1:2");
}

#define RUN(name, fn)                                                                                        \
    static void test_##name(void **state)                                                                    \
    {                                                                                                        \
        (void)state;                                                                                         \
        assert_int_equal(in_child(fn), 0);                                                                   \
    }
RUN(devices, devices)
RUN(copies, copies)
RUN(boxes, boxes)
RUN(lateness, lateness)
RUN(events, event_rules)
RUN(default_stream, default_stream)
RUN(faults_and_forks, faults_and_forks)
RUN(memory_ends, memory_ends)
RUN(kernels, kernels)
RUN(injected, injected)

static void test_ends_of_processes(void **state)
{
    (void)state;
    int status = in_child(dies);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    status = in_child(misspelt);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_devices),
        cmocka_unit_test(test_copies),
        cmocka_unit_test(test_boxes),
        cmocka_unit_test(test_lateness),
        cmocka_unit_test(test_events),
        cmocka_unit_test(test_default_stream),
        cmocka_unit_test(test_faults_and_forks),
        cmocka_unit_test(test_memory_ends),
        cmocka_unit_test(test_kernels),
        cmocka_unit_test(test_injected),
        cmocka_unit_test(test_ends_of_processes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
#else
#include <stdio.h>

int main(void)
{
    puts("1..1\nok 1 - the stand-in for CUDA's driver # SKIP built without CUDA's headers");
    return 0;
}
#endif
