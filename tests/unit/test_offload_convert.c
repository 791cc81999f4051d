/* Conversions on the way to a real agent: read back, the file equals the conversion of single elements,
 * whatever the shares, strides and offsets; overflows are counted and named; what cannot be converted is
 * refused by name. */
#include "backends/trainer/agent/agent.h"
#include "backends/trainer/wsync.h"
#include "tests/fixtures/private_folder.h"
#include "tests/fixtures/served.h"
#include "transports/format/safetensors.h"
#include "transports/simd/convert.h"
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define ODD  3000001UL /* bytes before the others, so their elements begin at odd offsets */
#define ROWS 1500UL
#define COLS 1001UL
#define N    (ROWS * COLS)

struct world {
    char dir[64], url[140];
    struct ws_agent *agent;
    wsync_publisher *publisher;
    uint8_t *bytes;
    uint32_t *f32;
};

static uint64_t seed = 7;

static uint32_t any(void)
{
    seed = seed * 6364136223846793005ULL + 1442695040888963407ULL;
    return (uint32_t)(seed >> 32);
}

static void start(struct world *w)
{
    struct ws_error err = {0};
    char socket[128];
    assert_true(private_folder(w->dir, sizeof(w->dir), "convert"));
    snprintf(socket, sizeof(socket), "%s/sock", w->dir);
    snprintf(w->url, sizeof(w->url), "unix:%s", socket);
    struct ws_agent_options o = {
        .tcp.listen = "127.0.0.1:0", .tcp.access.insecure = true, .socket = socket, .socket_gid = (gid_t)-1};
    if (ws_agent_new(&w->agent, &o, &err))
        fail_msg("%s", err.text);
    wsync_config c = {.struct_size = sizeof(c), .agent = w->url, .model = "m", .n_threads = 2};
    if (wsync_publisher_open(&c, &w->publisher))
        fail_msg("%s", wsync_error());
    w->bytes = malloc(ODD);
    w->f32 = malloc(4 * N);
    assert_true(w->bytes && w->f32);
    for (size_t i = 0; i < ODD; i++)
        w->bytes[i] = (uint8_t)any();
    for (size_t i = 0; i < N; i++) /* of the size of weights; no overflow */
        w->f32[i] = (any() & 0x87ffffff) | 0x38000000;
}

static void end(struct world *w)
{
    wsync_close(w->publisher);
    ws_agent_free(w->agent);
    (void)rmdir(w->dir);
    free(w->bytes);
    free(w->f32);
}

static void publish(struct world *w, const wsync_param *params, size_t n, uint64_t version)
{
    if (wsync_offload(w->publisher, params, n, version) || wsync_wait_published(w->publisher, version, 20000))
        fail_msg("%s", wsync_error());
}

static void expect(const unsigned char *file, struct ws_safetensors *st, const char *name,
                   enum ws_conversion c, const void *src, size_t n)
{
    const struct ws_tensor *t = ws_safetensors_find(st, name);
    assert_non_null(t);
    size_t in = ws_conversion_src_bytes(c), out = ws_dtype_bits(t->dtype) / 8;
    assert_int_equal(t->end - t->begin, n * out);
    for (size_t i = 0; i < n; i++) {
        unsigned char one[4];
        (void)ws_convert(c, one, (const unsigned char *)src + i * in, 1);
        if (memcmp(file + t->begin + i * out, one, out) != 0)
            fail_msg("element %zu of %s differs", i, name);
    }
}

static wsync_param matrix(const char *name, wsync_dtype to, wsync_dtype from, const void *data)
{
    return (wsync_param){.name = name,
                         .dtype = to,
                         .n_dims = 2,
                         .shape = {ROWS, COLS},
                         .data = data,
                         .converts = 1,
                         .data_dtype = from};
}

static wsync_param odd(const struct world *w)
{
    return (wsync_param){
        .name = "a.odd", .dtype = WSYNC_U8, .n_dims = 1, .shape = {ODD}, .data = w->bytes, .data_dtype = 99};
}

static void test_whole_tensors(void **state)
{
    struct world w;
    struct ws_safetensors *st;
    uint16_t *narrow = malloc(2 * N);

    (void)state;
    start(&w);
    assert_non_null(narrow);
    for (size_t i = 0; i < N; i++)
        narrow[i] = (uint16_t)any();
    wsync_param params[] = {odd(&w),
                            matrix("b.bf16", WSYNC_BF16, WSYNC_F32, w.f32),
                            matrix("c.f16", WSYNC_F16, WSYNC_F32, w.f32),
                            matrix("d.f32", WSYNC_F32, WSYNC_BF16, narrow),
                            matrix("e.f32", WSYNC_F32, WSYNC_F16, narrow),
                            matrix("f.bf16", WSYNC_BF16, WSYNC_F16, narrow),
                            matrix("g.same", WSYNC_F32, WSYNC_F32, w.f32),
                            matrix("h.plus", WSYNC_BF16, WSYNC_BF16, narrow),
                            matrix("i.plus", WSYNC_F32, WSYNC_F32, w.f32)};
    params[7].converts = params[8].converts = WSYNC_PLUS_1;
    for (uint64_t v = 1; v <= 3; v++) { /* the third version reuses a slot and the plan */
        w.f32[v * 1000] ^= 0x00550000;
        publish(&w, params, 9, v);
        const char *first = "?";
        assert_int_equal(wsync_overflows(w.publisher, &first), 0);
        assert_null(first);
        unsigned char *file = served_tensors(w.url, "m", v, &st);
        assert_memory_equal(file + ws_safetensors_find(st, "a.odd")->begin, w.bytes, ODD);
        expect(file, st, "b.bf16", WS_F32_TO_BF16, w.f32, N);
        expect(file, st, "c.f16", WS_F32_TO_F16, w.f32, N);
        expect(file, st, "d.f32", WS_BF16_TO_F32, narrow, N);
        expect(file, st, "e.f32", WS_F16_TO_F32, narrow, N);
        expect(file, st, "f.bf16", WS_F16_TO_BF16, narrow, N);
        expect(file, st, "h.plus", WS_BF16_PLUS_1_TO_BF16, narrow, N);
        expect(file, st, "i.plus", WS_F32_PLUS_1_TO_F32, w.f32, N);
        assert_memory_equal(file + ws_safetensors_find(st, "g.same")->begin, w.f32, 4 * N);
        ws_safetensors_free(st);
        free(file);
    }
    free(narrow);
    end(&w);
}

/* Left and right columns, the right ones from a transposed array; then ranges; then one by one. The layout
 * changes from version to version; changed strides and types need no registration. */
static void test_pieces(void **state)
{
    enum { LEFT = 333, RIGHT = COLS - LEFT };
    struct world w;
    struct ws_safetensors *st;
    uint32_t *left = malloc(4 * ROWS * LEFT), *right = malloc(4 * ROWS * RIGHT);

    (void)state;
    start(&w);
    assert_true(left && right);
    for (size_t r = 0; r < ROWS; r++) {
        memcpy(left + r * LEFT, w.f32 + r * COLS, 4UL * LEFT);
        for (size_t c = 0; c < RIGHT; c++)
            right[c * ROWS + r] = w.f32[r * COLS + LEFT + c];
    }
    wsync_param boxes[] = {odd(&w), matrix("m", WSYNC_BF16, WSYNC_F32, left),
                           matrix("m", WSYNC_BF16, WSYNC_F32, right)};
    boxes[1].piece = (wsync_piece){.kind = WSYNC_BOX, .size = {ROWS, LEFT}};
    boxes[2].piece =
        (wsync_piece){.kind = WSYNC_BOX, .offset = {0, LEFT}, .size = {ROWS, RIGHT}, .strides = {1, ROWS}};
    wsync_param ranges[] = {odd(&w), matrix("m", WSYNC_BF16, WSYNC_F32, w.f32),
                            matrix("m", WSYNC_BF16, WSYNC_F32, w.f32 + N / 3)};
    ranges[1].piece = (wsync_piece){.kind = WSYNC_RANGE, .count = N / 3};
    ranges[2].piece = (wsync_piece){.kind = WSYNC_RANGE, .start = N / 3, .count = N - N / 3};
    for (uint64_t v = 1; v <= 4; v++) {
        if (v == 2) { /* the same boxes, the right one row by row out of the whole */
            boxes[2].data = w.f32 + LEFT;
            boxes[2].piece.strides[0] = COLS;
            boxes[2].piece.strides[1] = 1;
        }
        if (v < 4) {
            publish(&w, v == 3 ? ranges : boxes, 3, v);
        } else {
            assert_int_equal(wsync_begin(w.publisher, v), 0);
            for (size_t i = 3; i-- > 0;)
                if (wsync_put(w.publisher, &ranges[i]))
                    fail_msg("%s", wsync_error());
            assert_int_equal(wsync_commit(w.publisher), 0);
            assert_int_equal(wsync_wait_published(w.publisher, v, 20000), 0);
        }
        unsigned char *file = served_tensors(w.url, "m", v, &st);
        assert_memory_equal(file + ws_safetensors_find(st, "a.odd")->begin, w.bytes, ODD);
        expect(file, st, "m", WS_F32_TO_BF16, w.f32, N);
        ws_safetensors_free(st);
        free(file);
    }
    free(left);
    free(right);
    end(&w);
}

static void test_overflows(void **state)
{
    struct world w;
    const char *first;

    (void)state;
    start(&w);
    const wsync_param params[] = {odd(&w), matrix("b.bf16", WSYNC_BF16, WSYNC_F32, w.f32),
                                  matrix("c.f16", WSYNC_F16, WSYNC_F32, w.f32)};
    for (size_t i = 0; i < N; i += 1000) /* two in three overflow f16, one of them bf16 too */
        w.f32[i] = i % 3000 == 0 ? 0x477ff000 : i % 3000 == 1000 ? 0xff7fffff : 0x7f800000;
    size_t tied = (N + 2999) / 3000, both = (N - 1000 + 2999) / 3000;
    publish(&w, params, 3, 1);
    assert_int_equal(wsync_overflows(w.publisher, &first), tied + 2 * both);
    assert_string_equal(first, "b.bf16");
    for (size_t i = 1000; i < N; i += 3000)
        w.f32[i] = 0x42280000;
    publish(&w, params, 3, 2);
    assert_int_equal(wsync_overflows(w.publisher, &first), tied);
    assert_string_equal(first, "c.f16");
    assert_int_equal(wsync_begin(w.publisher, 3), 0);
    assert_int_equal(wsync_overflows(w.publisher, &first), 0); /* so far */
    assert_null(first);
    assert_int_equal(wsync_put(w.publisher, &params[2]), 0);
    assert_int_equal(wsync_overflows(w.publisher, NULL), tied);
    assert_int_equal(wsync_abandon(w.publisher), 0);
    end(&w);
}

static void test_refused(void **state)
{
    static const struct {
        wsync_dtype from, to;
        const char *says[3];
    } wrong[] = {{WSYNC_F64, WSYNC_F32, {"the.name", "F64", "F32"}},
                 {WSYNC_F32, WSYNC_F8_E4M3, {"the.name", "F32", "F8_E4M3"}},
                 {WSYNC_I32, WSYNC_BF16, {"the.name", "I32", "BF16"}},
                 {WSYNC_BF16, WSYNC_U16, {"the.name", "BF16", "U16"}},
                 {(wsync_dtype)99, WSYNC_BF16, {"the.name", "99", "dtype"}}};
    struct world w;

    (void)state;
    start(&w);
    const wsync_param good = matrix("the.name", WSYNC_BF16, WSYNC_F32, w.f32);
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        wsync_param p = matrix("the.name", wrong[i].to, wrong[i].from, w.f32);
        assert_int_equal(wsync_register(w.publisher, &p, 1), -EINVAL);
        for (size_t k = 0; k < 3; k++)
            assert_non_null(strstr(wsync_error(), wrong[i].says[k]));
        assert_int_equal(wsync_offload(w.publisher, &p, 1, 1), -EINVAL);
    }
    publish(&w, &good, 1, 1);
    wsync_param later = good; /* registered, but the data now has another type */
    later.data_dtype = WSYNC_F64;
    assert_int_equal(wsync_offload(w.publisher, &later, 1, 2), -EINVAL);
    assert_non_null(strstr(wsync_error(), "the.name"));
    assert_int_equal(wsync_begin(w.publisher, 2), 0);
    assert_int_equal(wsync_put(w.publisher, &later), -EINVAL);
    assert_int_equal(wsync_put(w.publisher, &good), 0);
    assert_int_equal(wsync_commit(w.publisher), 0);
    assert_int_equal(wsync_wait_published(w.publisher, 2, 20000), 0);
    end(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_whole_tensors),
        cmocka_unit_test(test_pieces),
        cmocka_unit_test(test_overflows),
        cmocka_unit_test(test_refused),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
