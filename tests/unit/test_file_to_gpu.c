/* wsync_file_to_gpu: a file's bytes in device memory, for any offset and size, pinned or not; refusals and
 * failures. */
#include "backends/trainer/wsync.h"
#include "tests/fixtures/gpu.h"
#include "transports/device/device.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include <errno.h>
#include <pthread.h>

#define CHUNK      ((size_t)4 << 20) /* the code's own value: sizes around it are tried */
#define FILE_BYTES (5 * CHUNK + 77)

static unsigned char *content;
static int file;

#define EXPECT(condition) GPU_CHECK(condition, "%s", wsync_error())

static void compare(int device, const unsigned char *p, const unsigned char *want, size_t bytes)
{
    unsigned char *got = malloc(bytes + 1);
    EXPECT(got);
    gpu_read(device, got, p, bytes);
    EXPECT(memcmp(got, want, bytes) == 0);
    free(got);
}

static void load_sizes(int device)
{
    static const struct {
        uint64_t offset, bytes;
    } parts[] = {{0, 1},         {5, 4096},         {0, CHUNK - 1}, {3, CHUNK},
                 {1, CHUNK + 1}, {4096, 4 * CHUNK}, {0, FILE_BYTES}};
    unsigned char *p = gpu_alloc(device, FILE_BYTES + 1);
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
        EXPECT(wsync_file_to_gpu(file, parts[i].offset, parts[i].bytes, p + 1) == 0);
        compare(device, p + 1, content + parts[i].offset, parts[i].bytes);
    }
    EXPECT(wsync_file_to_gpu(file, FILE_BYTES, 0, p) == 0);
    ws_cuda_device.release(device, p);
}

static void load_on_first(void)
{
    load_sizes(0);
}

static void load_on_both(void)
{
    load_sizes(0);
    load_sizes(1);
}

static void *load_again(void *arg)
{
    for (int i = 0; i < 3; i++)
        EXPECT(wsync_file_to_gpu(file, 0, FILE_BYTES, arg) == 0);
    return NULL;
}

static void load_at_once(void)
{
    pthread_t threads[2];
    unsigned char *p[2];
    for (int i = 0; i < 2; i++) {
        p[i] = gpu_alloc(i, FILE_BYTES);
        EXPECT(pthread_create(&threads[i], NULL, load_again, p[i]) == 0);
    }
    for (int i = 0; i < 2; i++) {
        EXPECT(pthread_join(threads[i], NULL) == 0);
        compare(i, p[i], content, FILE_BYTES);
        ws_cuda_device.release(i, p[i]);
    }
}

static void load_unpinned(void)
{
    unsigned char *p = gpu_alloc(0, FILE_BYTES);
    EXPECT(wsync_file_to_gpu(file, 0, FILE_BYTES, p) == 0);
    compare(0, p, content, FILE_BYTES);
    ws_cuda_device.release(0, p);
}

static void refuse(void)
{
    unsigned char *p = gpu_alloc(0, FILE_BYTES), on_host[8];
    EXPECT(wsync_file_to_gpu(file, 0, 8, on_host) == -EINVAL && strstr(wsync_error(), "no memory of a GPU"));
    EXPECT(wsync_file_to_gpu(file, 0, 8, NULL) == -EINVAL);
    EXPECT(wsync_file_to_gpu(file, 78, FILE_BYTES - 77, p) == -ENODATA &&
           strstr(wsync_error(), "ends at byte"));
    EXPECT(wsync_file_to_gpu(file, UINT64_MAX, 8, p) == -EINVAL);
    EXPECT(wsync_file_to_gpu(file, 1, INT64_MAX, p) == -EINVAL);
    EXPECT(wsync_file_to_gpu(-1, 0, 8, p) == -EBADF);
    EXPECT(wsync_file_to_gpu(file, 0, FILE_BYTES, p) == 0); /* and it works again */
    compare(0, p, content, FILE_BYTES);
    ws_cuda_device.release(0, p);
}

static void fail_to_copy(void)
{
    unsigned char *p = gpu_alloc(0, FILE_BYTES);
    EXPECT(wsync_file_to_gpu(file, 0, FILE_BYTES, p) < 0 && strstr(wsync_error(), "copying"));
}

static void test_sizes(void **state)
{
    (void)state;
    gpu_run(load_on_first, NULL);
}

static void test_other_device(void **state)
{
    (void)state;
    gpu_run(load_on_both, "devices=2,delay=300,seed=3");
}

static void test_at_once(void **state)
{
    (void)state;
    gpu_run(load_at_once, "devices=2,delay=100,seed=4");
}

static void test_unpinned(void **state)
{
    (void)state;
    gpu_run(load_unpinned, "fail=cuMemHostAlloc:1:2:1000");
}

static void test_refused(void **state)
{
    (void)state;
    gpu_run(refuse, NULL);
}

static void test_fails(void **state)
{
    (void)state;
    gpu_run(fail_to_copy, "fail=cuMemcpyAsync:3:1:1000");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sizes),    cmocka_unit_test(test_other_device), cmocka_unit_test(test_at_once),
        cmocka_unit_test(test_unpinned), cmocka_unit_test(test_refused),      cmocka_unit_test(test_fails),
    };
    content = malloc(FILE_BYTES);
    file = memfd_create("file", MFD_CLOEXEC);
    if (!content || file < 0)
        return 1;
    for (size_t i = 0; i < FILE_BYTES; i++)
        content[i] = (unsigned char)(i * 2654435761U >> 13);
    if (write(file, content, FILE_BYTES) != (ssize_t)FILE_BYTES)
        return 1;
    int failed = cmocka_run_group_tests_name("file_to_gpu", tests, NULL, NULL);
    close(file);
    free(content);
    return failed;
}
