/* Kinds of memory: a device's properties, what cannot be used and why, boxes and pieces copied from it
 * compared with the same on the host. */
#include "tests/fixtures/gpu.h"
#include "transports/device/copies.h"
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static const struct ws_device_ops *const ops = &ws_cuda_device;

static void says(const struct ws_error *err, const char *words)
{
    GPU_CHECK(strstr(err->text, words), "\"%s\" does not say \"%s\"", err->text, words);
}

static void described(void)
{
    struct ws_error err = {0};
    struct ws_device_info info;
    int device = -1, host = 0;
    GPU_CHECK(ops->available(&err) == 0, "%s", err.text);
    GPU_CHECK(ops->count() > 0, "no devices");
    GPU_CHECK(ops->describe(0, &info, &err) == 0, "%s", err.text);
    GPU_CHECK(info.name[0] && info.total_bytes >= info.free_bytes && info.major > 0, "%s", info.name);
    GPU_CHECK(strlen(info.uuid) == WS_DEVICE_UUID_BYTES - 4 && strncmp(info.uuid, "GPU-", 4) == 0, "%s",
              info.uuid);
    GPU_CHECK(ws_device_by_uuid(ops, info.uuid, &device, &err) == 0 && device == 0, "%s", err.text);
    GPU_CHECK(ws_device_by_uuid(ops, "GPU-of-nobody", &device, &err) == -ENODEV, "found");
    says(&err, info.uuid); /* which there are */
    GPU_CHECK(ops->describe(99, &info, &err) == -ENODEV, "described");
    void *p = gpu_alloc(0, 1000);
    GPU_CHECK(ws_device_by_address(p, &device) == WS_CUDA && device == 0, "whose is it?");
    GPU_CHECK(ws_device_by_address((char *)p + 999, &device) == WS_CUDA, "its last byte");
    GPU_CHECK(ws_device_by_address(&host, &device) == WS_HOST &&
                  ws_device_by_address(NULL, &device) == WS_HOST,
              "the host's");
    ops->release(0, p);
}

static void test_described(void **state)
{
    (void)state;
    gpu_run(described, NULL);
}

/* When host memory is full the error says how much is used. */
static void full(void)
{
    struct ws_error err = {0};
    struct ws_device_info info;
    void *p;
    GPU_CHECK(ops->available(&err) == 0, "%s", err.text);
    GPU_CHECK(ops->describe(0, &info, &err) == 0, "%s", err.text);
    GPU_CHECK(ops->alloc(0, info.total_bytes + (1UL << 30), &p, &err) == -ENOMEM, "%s", err.text);
    says(&err, "MiB free");
}

static void test_full(void **state)
{
    (void)state;
    gpu_run(full, NULL);
}

static void too_old(void)
{
    struct ws_error err = {0};
    GPU_CHECK(ops->available(&err) == -ENOTSUP, "%s", err.text);
    says(&err, "CUDA 11.4");
    GPU_CHECK(ops->count() == 0, "devices");
}

static void test_old_driver(void **state)
{
    (void)state;
    gpu_run(too_old, "driver=11040");
}

static void no_devices(void)
{
    struct ws_error err = {0};
    setenv("CUDA_VISIBLE_DEVICES", "", 1);
    GPU_CHECK(ops->available(&err) == -ENODEV, "%s", err.text);
    says(&err, "no device");
}

static void test_no_devices(void **state)
{
    (void)state;
    gpu_run(no_devices, "devices=1");
}

static void no_driver(void)
{
    struct ws_error err = {0};
    setenv("WSYNC_LIBCUDA", "/nowhere/libcuda.so.1", 1);
    GPU_CHECK(ops->available(&err) == -ENOTSUP, "%s", err.text);
    says(&err, "WSYNC_LIBCUDA");
    setenv("WSYNC_LIBCUDA", "libc.so.6", 1); /* the first answer is kept: a process tries once */
    GPU_CHECK(ops->available(&err) == -ENOTSUP, "%s", err.text);
}

static void not_a_driver(void)
{
    struct ws_error err = {0};
    setenv("WSYNC_LIBCUDA", "libm.so.6", 1);
    GPU_CHECK(ops->available(&err) == -ENOTSUP, "%s", err.text);
    says(&err, "cuInit");
}

static void test_no_driver(void **state)
{
    (void)state;
    gpu_run(no_driver, "devices=1");
    gpu_run(not_a_driver, "devices=1");
}

static void apart(void)
{
    struct ws_error err = {0};
    GPU_CHECK(ops->available(&err) == 0, "%s", err.text);
    GPU_CHECK(ops->reaches(0, 0, &err) == 0, "%s", err.text);
    GPU_CHECK(ops->reaches(0, 1, &err) == -EXDEV, "%s", err.text);
    says(&err, "peer access");
}

static void together(void)
{
    struct ws_error err = {0};
    GPU_CHECK(ops->available(&err) == 0, "%s", err.text);
    for (int i = 0; i < 2; i++) /* again is fine */
        GPU_CHECK(ops->reaches(0, 1, &err) == 0, "%s", err.text);
}

static void test_peers(void **state)
{
    (void)state;
    gpu_run(apart, "devices=2,peer=0");
    gpu_run(together, "devices=2,peer=1");
}

static void not_shared(void)
{
    struct ws_error err = {0};
    struct ws_device_extent e;
    unsigned char handle[WS_DEVICE_HANDLE_BYTES];
    int host = 0;
    void *p = gpu_alloc(0, 4096);
    int rc = ops->extent(p, &e, &err);
    if (rc == 0)
        rc = ops->share(&e, handle, &err);
    GPU_CHECK(rc < 0, "shared");
    GPU_CHECK(ops->extent(&host, &e, &err) == -EINVAL, "%s", err.text);
    ops->release(0, p);
}

static void test_not_shared(void **state)
{
    (void)state;
    gpu_run(not_shared, "legacy=0");
}

/* --- copies --- */

static uint64_t seed = 5;

static uint64_t any(uint64_t below)
{
    seed = seed * 6364136223846793005ULL + 1442695040888963407ULL;
    return (seed >> 24) % below;
}

/* A box of up to four dimensions with gaps, also reversed and repeated ones, as in its source. */
static void any_box(struct ws_box_extents *r, int64_t *low, int64_t *high)
{
    uint64_t size[4], offset[4] = {0};
    int64_t strides[4], step = 1;
    const unsigned n = 1 + (unsigned)any(4);
    const size_t widths[] = {1, 2, 4, 8};
    *low = *high = 0;
    for (unsigned d = n; d-- > 0;) {
        size[d] = 1 + any(d == n - 1 ? 70 : 9);
        strides[d] = any(12) == 0 ? -step : any(12) == 0 ? 0 : step;
        step *= (int64_t)(size[d] + any(3));
        *(strides[d] < 0 ? low : high) += strides[d] * (int64_t)(size[d] - 1);
    }
    ws_box_extents_init(r, &(struct ws_box){.n_dims = n,
                                            .shape = size,
                                            .offset = offset,
                                            .size = size,
                                            .src_strides = strides,
                                            .element_bytes = widths[any(4)]});
    *low *= (int64_t)r->element_bytes;
    *high = (*high + 1) * (int64_t)r->element_bytes;
}

static void on_host(const struct ws_box_extents *r, const void *src, unsigned char *dst)
{
    struct ws_box_cursor c;
    ws_box_cursor_seek(&c, r, src, 0, r->bytes);
    for (uint64_t n; (n = ws_box_cursor_ready(&c)) > 0;)
        ws_box_cursor_copy(&c, dst + c.dst + c.at, n);
}

static void boxes(void)
{
    enum { N = 40 };
    struct ws_error err = {0};
    struct ws_device_queue *q;
    GPU_CHECK(ops->available(&err) == 0, "%s", err.text);
    GPU_CHECK(ops->queue_new(0, &q, &err) == 0, "%s", err.text);
    for (int round = 0; round < 10; round++) {
        struct ws_copies copies;
        struct ws_box_extents runs[N];
        void *device[N], *dst[N];
        unsigned char *expected[N];
        ws_copies_begin(&copies, q, 0);
        for (int i = 0; i < N; i++) {
            int64_t low, high;
            any_box(&runs[i], &low, &high);
            unsigned char *host = malloc((size_t)(high - low));
            for (int64_t k = 0; k < high - low; k++)
                host[k] = (unsigned char)any(256);
            device[i] = gpu_put(0, host, (size_t)(high - low));
            dst[i] = gpu_alloc(0, runs[i].bytes);
            expected[i] = malloc(runs[i].bytes);
            on_host(&runs[i], host - low, expected[i]);
            free(host);
            GPU_CHECK(ws_copies_add(&copies, &runs[i], (char *)device[i] - low, dst[i], 0, &err) == 0, "%s",
                      err.text);
        }
        GPU_CHECK(ws_copies_send(&copies, &err) == 0 && ops->finish(q, &err) == 0, "%s", err.text);
        ws_copies_end(&copies);
        for (int i = 0; i < N; i++) {
            unsigned char *got = malloc(runs[i].bytes);
            gpu_read(0, got, dst[i], runs[i].bytes);
            GPU_CHECK(memcmp(got, expected[i], runs[i].bytes) == 0, "box %d of round %d", i, round);
            free(got);
            free(expected[i]);
            ops->release(0, device[i]);
            ops->release(0, dst[i]);
        }
    }
    ops->queue_free(q);
}

static void test_boxes(void **state)
{
    (void)state;
    gpu_run(boxes, NULL);
}

static void test_boxes_by_copies(void **state)
{
    (void)state;
    gpu_run(boxes, "kernels=0");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_described),       cmocka_unit_test(test_full),
        cmocka_unit_test(test_old_driver),      cmocka_unit_test(test_no_devices),
        cmocka_unit_test(test_no_driver),       cmocka_unit_test(test_peers),
        cmocka_unit_test(test_not_shared),      cmocka_unit_test(test_boxes),
        cmocka_unit_test(test_boxes_by_copies),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
