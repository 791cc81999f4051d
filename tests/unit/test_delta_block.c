/* The difference of a block: applying encode(a, b) to a gives b, bit for bit, for every width, length and
 * alignment; all implementations of the loops give the same bytes; the format is that of the head comment;
 * damaged deltas are refused or change nothing outside the block. */
#include "transports/base/cpu_features.h"
#include "transports/delta/block.h"
#include "transports/delta/block_impl.h"
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define GUARD 64
#define FILL  0xa5

static uint64_t seed = 88172645463325252ULL;

static uint64_t any(void)
{
    seed ^= seed << 13;
    seed ^= seed >> 7;
    return seed ^= seed << 17;
}

static unsigned char *any_bytes(size_t n)
{
    unsigned char *p = malloc(n + 8);
    assert_non_null(p);
    for (size_t i = 0; i < n; i += 8) {
        const uint64_t v = any();
        memcpy(p + i, &v, sizeof(v));
    }
    return p;
}

struct work {
    struct ws_delta_block_encoder *coder;
    struct ws_delta_edit *edit[2];
    struct ws_hasher *hasher;
};

static void open_work(struct work *w)
{
    *w = (struct work){
        ws_delta_block_encoder_new(), {ws_delta_edit_new(), ws_delta_edit_new()}, ws_hasher_new()};
    assert_true(w->coder && w->edit[0] && w->edit[1] && w->hasher);
}

static void close_work(struct work *w)
{
    ws_delta_block_encoder_free(w->coder);
    ws_delta_edit_free(w->edit[0]);
    ws_delta_edit_free(w->edit[1]);
    ws_hasher_free(w->hasher);
}

static struct ws_element_widths *widths_of(size_t n, const struct ws_element_width_extent *runs)
{
    struct ws_element_widths *w = malloc(sizeof(*w) + n * sizeof(runs[0]));
    assert_non_null(w);
    w->n = n;
    memcpy(w->extents, runs, n * sizeof(runs[0]));
    return w;
}

static struct ws_element_widths *all_of(unsigned width)
{
    return widths_of(1, &(struct ws_element_width_extent){0, width});
}

/* Encodes, applies to a copy between guards, compares. Returns the delta's bytes; SIZE_MAX: too large. */
static size_t round_trip(struct work *k, const unsigned char *a, const unsigned char *b, size_t len,
                         const struct ws_element_widths *w, uint64_t offset)
{
    unsigned char *out = malloc(len + WS_DELTA_PAD_BYTES + 1), *to = malloc(len + 2 * GUARD);
    struct ws_error err = {0};
    size_t bytes;
    uint32_t changed;
    assert_true(out && to);
    int rc = ws_delta_block_encode(k->coder, a, b, len, w, offset, out, &bytes, &changed);
    assert_true(rc == 0 || rc == -E2BIG);
    assert_int_equal(changed == 0, memcmp(a, b, len) == 0);
    if (rc == 0) {
        assert_true(bytes < len || len == 0);
        assert_int_equal(bytes == 0, changed == 0);
        memset(to, FILL, len + 2 * GUARD);
        memcpy(to + GUARD, a, len);
        assert_int_equal(ws_delta_edit_read(k->edit[0], out, bytes, len, &err), 0);
        assert_int_equal(ws_delta_edit_changed(k->edit[0]), changed);
        uint64_t hash = ws_delta_edit_apply(k->hasher, to + GUARD, NULL, len, k->edit, 1);
        assert_memory_equal(to + GUARD, b, len);
        assert_int_equal(hash, ws_hash(b, len));
        for (size_t i = 0; i < GUARD; i++)
            assert_true(to[i] == FILL && to[GUARD + len + i] == FILL);
        memset(to + GUARD, 0, len);
        assert_int_equal(ws_delta_edit_apply(k->hasher, to + GUARD, a, len, k->edit, 1), hash);
        assert_memory_equal(to + GUARD, b, len);
    }
    free(out);
    free(to);
    return rc == 0 ? bytes : SIZE_MAX;
}

/* b is a with each element changed with probability p by up to `most` units. */
static unsigned char *stepped(const unsigned char *a, size_t len, unsigned width, double p, unsigned most)
{
    unsigned char *b = malloc(len + 8);
    assert_non_null(b);
    memcpy(b, a, len);
    for (size_t i = 0; i + width <= len; i += width) {
        if ((double)(any() >> 11) > p * 9007199254740992.0)
            continue;
        uint32_t v = 0;
        memcpy(&v, b + i, width);
        v += any() & 1 ? 1 + (uint32_t)(any() % most) : 0U - 1 - (uint32_t)(any() % most);
        memcpy(b + i, &v, width);
    }
    return b;
}

static void test_round_trips(void **state)
{
    static const double shares[] = {0, 0.001, 0.015, 0.1, 0.5, 1};
    static const unsigned sizes[] = {1, 3, 100, 1U << 30};
    struct work k;
    (void)state;
    open_work(&k);
    for (unsigned width = 1; width <= 4; width *= 2) {
        struct ws_element_widths *w = all_of(width);
        for (size_t len = 0; len < 200000; len += len < 300 ? 1 : 1 + any() % 60000) {
            unsigned char *a = any_bytes(len);
            unsigned char *b = stepped(a, len, width, shares[any() % 6], sizes[any() % 4]);
            (void)round_trip(&k, a, b, len, w, any() % 5 * WS_BLOCK_BYTES);
            free(a);
            free(b);
        }
        free(w);
    }
    close_work(&k);
}

static void test_whole_blocks(void **state)
{
    struct work k;
    struct ws_element_widths *w = all_of(2);
    (void)state;
    open_work(&k);
    unsigned char *a = any_bytes(WS_BLOCK_BYTES);
    for (unsigned i = 0; i < 4; i++) {
        unsigned char *b = stepped(a, WS_BLOCK_BYTES, 2, (double[]){0.001, 0.015, 0.1, 1}[i], 1);
        size_t bytes = round_trip(&k, a, b, WS_BLOCK_BYTES, w, 0);
        print_message("share %g: %zu bytes\n", (double[]){0.001, 0.015, 0.1, 1}[i], bytes);
        if (i == 1) /* 31,457 changes */
            assert_true(bytes < 38000);
        free(b);
    }
    unsigned char *other = any_bytes(WS_BLOCK_BYTES);
    assert_true(round_trip(&k, a, other, WS_BLOCK_BYTES, w, 0) == SIZE_MAX); /* sent whole */
    free(other);
    free(a);
    free(w);
    close_work(&k);
}

/* Two blocks of a file with ranges of all widths that begin anywhere, and one element across the blocks'
 * border. */
static void test_mixed_widths(void **state)
{
    struct work k;
    (void)state;
    open_work(&k);
    for (unsigned round = 0; round < 300; round++) {
        struct ws_element_width_extent runs[40] = {{0, 1}};
        size_t n = 1;
        for (uint64_t at = any() % 50; n < 40; at += 1 + any() % 200)
            if (at > runs[n - 1].begin)
                runs[n++] = (struct ws_element_width_extent){at, 1U << any() % 3};
        struct ws_element_widths *w = widths_of(n, runs);
        size_t len = 1 + any() % 3000, offset = any() % 2000;
        unsigned char *a = any_bytes(len), *b = stepped(a, len, 1, any() % 2 ? 0.02 : 0.3, 2);
        (void)round_trip(&k, a, b, len, w, offset);
        free(a);
        free(b);
        free(w);
    }
    close_work(&k);
}

static void test_bit_patterns(void **state)
{
    static const uint16_t odd[] = {0x7fc0, 0x7fc1, 0xffc0, 0x7f80, 0xff80, 0x8000,
                                   0x0000, 0x0001, 0x8001, 0x7f7f, 0xffff};
    enum { N = sizeof(odd) / sizeof(odd[0]) };
    uint16_t a[N * N * 40] = {0}, b[N * N * 40] = {0};
    struct work k;
    struct ws_element_widths *w = all_of(2);
    (void)state;
    open_work(&k);
    for (size_t i = 0; i < N * N; i++) {
        a[i * 40] = odd[i / N];
        b[i * 40] = odd[i % N];
    }
    assert_true(round_trip(&k, (void *)a, (void *)b, sizeof(a), w, 0) < sizeof(a) / 20);
    free(w);
    close_work(&k);
}

static void test_chain(void **state)
{
    struct work k;
    struct ws_element_widths *one = all_of(4),
                             *two =
                                 widths_of(3, (struct ws_element_width_extent[]){{0, 1}, {3, 2}, {40001, 4}});
    size_t len = 150001;
    (void)state;
    open_work(&k);
    unsigned char *a = any_bytes(len), *b = stepped(a, len, 1, 0.05, 3), *c = stepped(b, len, 2, 0.05, 3);
    unsigned char *first = malloc(len + 8), *second = malloc(len + 8);
    size_t n_first, n_second;
    uint32_t changed;
    assert_int_equal(ws_delta_block_encode(k.coder, a, b, len, one, 0, first, &n_first, &changed), 0);
    assert_int_equal(ws_delta_block_encode(k.coder, b, c, len, two, 0, second, &n_second, &changed), 0);
    assert_int_equal(ws_delta_edit_read(k.edit[0], first, n_first, len, NULL), 0);
    assert_int_equal(ws_delta_edit_read(k.edit[1], second, n_second, len, NULL), 0);
    unsigned char *to = malloc(len);
    assert_int_equal(ws_delta_edit_apply(k.hasher, to, a, len, k.edit, 2), ws_hash(c, len));
    assert_memory_equal(to, c, len);
    memcpy(to, a, len);
    assert_int_equal(ws_delta_edit_apply(k.hasher, to, NULL, len, k.edit, 2), ws_hash(c, len));
    assert_memory_equal(to, c, len);
    free(to);
    free(first);
    free(second);
    free(a);
    free(b);
    free(c);
    free(one);
    free(two);
    close_work(&k);
}

/* --- every implementation of the loops --- */

static size_t all_codes(const struct ws_delta_block_impl **codes)
{
    const size_t n = ws_cpu_vector(NULL) + 1;
    for (size_t i = 0; i < n; i++)
        codes[i] = ws_delta_block_impls[i];
    return n;
}

/* Numbers whose lengths are up to `most` bits, a few of them longer. */
static void any_numbers(uint32_t *v, size_t n, unsigned most)
{
    for (size_t i = 0; i < n; i++)
        v[i] = (uint32_t)(any() & (((uint64_t)1 << (any() % 9 ? any() % (most + 1) : any() % 33)) - 1));
}

static void assert_same_packing(const struct ws_delta_block_impl *c, const uint32_t *v, size_t n)
{
    const struct ws_delta_block_impl *p = &ws_delta_block_portable;
    const size_t room = 4 * n + WS_DELTA_PAD_BYTES;
    unsigned char *x = malloc(room + GUARD), *y = malloc(room + GUARD);
    uint32_t *back = malloc((n + GUARD) * 4), lengths[2][33] = {{0}};
    for (unsigned bits = 0; bits <= 32; bits++) {
        const size_t bytes = (n * bits + 7) / 8;
        memset(x, FILL, room + GUARD);
        memset(y, FILL, room + GUARD);
        p->pack(x, v, n, bits);
        c->pack(y, v, n, bits);
        assert_memory_equal(x, y, room + GUARD);                /* nothing behind them */
        unsigned char *in = malloc(bytes + WS_DELTA_PAD_BYTES); /* where a sanitizer sees what is read */
        memset(in, FILL, bytes + WS_DELTA_PAD_BYTES);
        memcpy(in, x, bytes);
        memset(back, FILL, (n + GUARD) * 4);
        c->unpack(back, in, n, bits);
        for (size_t i = 0; i < n; i++)
            assert_int_equal(back[i], bits == 32 ? v[i] : v[i] & ((1U << bits) - 1));
        for (size_t i = n; i < n + GUARD; i++)
            assert_int_equal(back[i], FILL * 0x01010101U);
        free(in);
        unsigned char *long_x = malloc(10 * n + 1), *long_y = malloc(10 * n + 1);
        const size_t len = p->patches(long_x, 10 * n, v, n, bits);
        assert_true(len <= 10 * n);
        for (size_t less = 0; less < 3; less++) { /* into just as much room, and less than that */
            unsigned char *out = malloc(len + 1);
            out[len] = FILL;
            assert_int_equal(c->patches(out, len - (less < len ? less : len), v, n, bits),
                             less && len ? SIZE_MAX : len);
            assert_int_equal(out[len], FILL);
            if (less == 0)
                assert_memory_equal(out, long_x, len);
            free(out);
        }
        free(long_x);
        free(long_y);
    }
    for (size_t step = 1; step < 5; step++) {
        p->lengths(lengths[0], v, n, step);
        c->lengths(lengths[1], v, n, step);
    }
    assert_memory_equal(lengths[0], lengths[1], sizeof(lengths[0]));
    free(x);
    free(y);
    free(back);
}

static void assert_same_places(const struct ws_delta_block_impl *c, const uint32_t *v, size_t n)
{
    uint32_t *x = malloc(n * 4 + 1), *y = malloc(n * 4 + 1);
    memcpy(x, v, n * 4);
    memcpy(y, v, n * 4);
    const uint64_t end = ws_delta_block_portable.places(x, n);
    assert_true(c->places(y, n) == end);
    assert_memory_equal(x, y, n * 4);
    if (end <= UINT32_MAX) { /* they ascend */
        c->gaps(y, n);
        assert_memory_equal(y, v, n * 4);
    }
    free(x);
    free(y);
}

static void test_numbers(void **state)
{
    const struct ws_delta_block_impl *codes[3];
    size_t n_codes = all_codes(codes);
    (void)state;
    for (size_t c = 0; c < n_codes; c++)
        for (size_t n = 0; n < 700; n += n < 80 ? 1 : 61)
            for (unsigned most = 0; most <= 32; most += 1 + (unsigned)(any() % 6)) {
                uint32_t *v = malloc(n * 4 + 1);
                any_numbers(v, n, most);
                assert_same_packing(codes[c], v, n);
                assert_same_places(codes[c], v, n);
                for (size_t i = 0; i < n; i++) /* sums around 2^31 and 2^32 */
                    v[i] = any() % 40 ? (uint32_t)(any() % 300) : (uint32_t)(any() >> (32 + any() % 8));
                assert_same_places(codes[c], v, n);
                free(v);
            }
}

static void assert_same_loops(const struct ws_delta_block_impl *c, const unsigned char *a,
                              const unsigned char *b, size_t n, unsigned width)
{
    const struct ws_delta_block_impl *p = &ws_delta_block_portable;
    size_t room = n + WS_DELTA_SLACK;
    uint32_t *x = calloc(room, 4), *y = calloc(room, 4), *dx = calloc(room, 4), *dy = calloc(room, 4);
    size_t found = p->find(x, a, b, n, width, 7);
    assert_int_equal(c->find(y, a, b, n, width, 7), found);
    assert_memory_equal(x, y, found * 4);
    assert_int_equal(p->find_changes(x, dx, a, b, n, width), found);
    assert_int_equal(c->find_changes(y, dy, a, b, n, width), found);
    assert_memory_equal(x, y, found * 4);
    assert_memory_equal(dx, dy, found * 4);
    size_t right = 0;
    for (size_t i = 0; i < n; i++) { /* by the head comment of block.h */
        uint32_t old = 0, new = 0;
        memcpy(&old, a + i * width, width);
        memcpy(&new, b + i * width, width);
        if (old == new)
            continue;
        int64_t d = (int64_t)(int32_t)((new - old) << (32 - 8 * width)) >> (32 - 8 * width);
        assert_int_equal(x[right], i);
        assert_int_equal(dx[right], d > 0 ? 2 * d - 1 : -2 * d - 2);
        right++;
    }
    assert_int_equal(right, found);
    memcpy(y, x, found * 4);
    c->gaps(y, found);
    uint64_t end = c->places(y, found);
    assert_memory_equal(x, y, found * 4);
    assert_true(end == (found ? x[found - 1] + 1ULL : 0));
    unsigned char *to = malloc(n * width + 1);
    memcpy(to, a, n * width);
    size_t half = c->apply(to, x, dx, found, width, (uint32_t)(n / 2));
    half += c->apply(to, x + half, dx + half, found - half, width, (uint32_t)n);
    assert_int_equal(half, found);
    assert_memory_equal(to, b, n * width);
    free(to);
    free(x);
    free(y);
    free(dx);
    free(dy);
}

static void test_all_codes_agree(void **state)
{
    const struct ws_delta_block_impl *codes[3];
    size_t n_codes = all_codes(codes);
    (void)state;
    for (size_t c = 0; c < n_codes; c++)
        for (unsigned width = 1; width <= 4; width *= 2)
            for (size_t n = 0; n < 5000; n += n < 200 ? 1 : 977) {
                unsigned shift = (unsigned)(any() % 5);
                unsigned char *a = any_bytes(n * width + 8);
                unsigned char *b = stepped(a, n * width + 8, any() % 2 ? 1 : width,
                                           (double[]){0.003, 0.03, 0.3, 1}[any() % 4], 1U << any() % 8);
                assert_same_loops(codes[c], a + shift, b + shift, n, width);
                free(a);
                free(b);
            }
}

/* --- the format --- */

/* Written by hand from the head comment: bf16 elements 3 and 5 go up by one, 300 goes down by 2. */
static void test_vector(void **state)
{
    static const unsigned char bytes[26 + WS_DELTA_PAD_BYTES] = {
        0,    0,  0, 0, 3, 0, 0, 0, /* begin, n */
        2,    2,  1, 0,             /* width 2, gaps of 2 bits, changes of 1 */
        2,    0,  0, 0, 2, 0, 0, 0, /* bytes of the patches */
        0x27,                       /* gaps 3, 1, 294, of which the low bits are 2 */
        0x03,                       /* changes 1, 1, 2, of which the low bit is 0 */
        2,    73,                   /* skip 2, high 73: 2 + 73 * 4 = 294 */
        2,    1,                    /* skip 2, high 1: 0 + 1 * 2 = 2 */
    };
    unsigned char out[sizeof(uint16_t) * 400];
    uint16_t a[400], b[400];
    struct work k;
    struct ws_element_widths *w = all_of(2);
    struct ws_error err = {0};
    size_t n;
    uint32_t changed;
    (void)state;
    open_work(&k);
    for (size_t i = 0; i < 400; i++)
        a[i] = b[i] = (uint16_t)(i * 77);
    b[3]++;
    b[5]++;
    b[300] -= 2;
    if (ws_delta_edit_read(k.edit[0], bytes, 26, sizeof(a), &err) < 0)
        fail_msg("%s", err.text);
    assert_int_equal(ws_delta_block_encode(k.coder, (void *)a, (void *)b, sizeof(a), w, 0, out, &n, &changed),
                     0);
    assert_true(n <= 28 && changed == 3);
    (void)ws_delta_edit_apply(k.hasher, (void *)a, NULL, sizeof(a), k.edit, 1);
    assert_memory_equal(a, b, sizeof(a));
    free(w);
    close_work(&k);
}

static void no_change(void *arg, uint32_t byte, unsigned width, uint32_t change)
{
    (void)arg;
    fail_msg("change %u at byte %u, width %u", change, byte, width);
}

/* No segments, and a coder whose first segment does not fit: no pointer leaves the buffer. */
static void test_nothing(void **state)
{
    struct work k;
    struct ws_element_widths *w = widths_of(2, (struct ws_element_width_extent[]){{0, 1}, {5, 2}});
    unsigned char a[8] = {0}, b[8] = {1, 0, 0, 0, 0, 1}, out[16];
    size_t bytes;
    uint32_t changed;
    (void)state;
    open_work(&k);
    ws_delta_edit_each(k.edit[0], no_change, NULL);
    assert_int_equal(ws_delta_edit_read(k.edit[0], out, 0, sizeof(a), NULL), 0);
    ws_delta_edit_each(k.edit[0], no_change, NULL);
    assert_int_equal(ws_delta_edit_apply(k.hasher, a, NULL, sizeof(a), k.edit, 1), ws_hash(a, sizeof(a)));
    assert_int_equal(ws_delta_block_encode(k.coder, a, b, sizeof(a), w, 0, out, &bytes, &changed), -E2BIG);
    assert_int_equal(changed, 2);
    free(w);
    close_work(&k);
}

static void test_damaged(void **state)
{
    struct work k;
    struct ws_element_widths *w = all_of(2);
    size_t len = 20000, bytes;
    uint32_t changed;
    unsigned n_refused = 0;
    (void)state;
    open_work(&k);
    unsigned char *a = any_bytes(len), *b = stepped(a, len, 2, 0.02, 300), *good = calloc(1, len + 8);
    unsigned char *bad = calloc(1, len + 8), *to = malloc(len + 2 * GUARD);
    assert_int_equal(ws_delta_block_encode(k.coder, a, b, len, w, 0, good, &bytes, &changed), 0);
    for (size_t round = 0; round < 30000; round++) {
        size_t n = any() % 3 ? bytes : any() % bytes;
        memcpy(bad, good, bytes);
        for (unsigned i = 0; i <= any() % 3; i++)
            bad[any() % (any() % 4 ? 20 : bytes)] ^= (unsigned char)(1 << any() % 8);
        memset(to, FILL, len + 2 * GUARD);
        if (ws_delta_edit_read(k.edit[0], bad, n, len, NULL) < 0) {
            n_refused++;
            continue;
        }
        (void)ws_delta_edit_apply(k.hasher, to + GUARD, NULL, len, k.edit, 1);
        for (size_t i = 0; i < GUARD; i++)
            assert_true(to[i] == FILL && to[GUARD + len + i] == FILL);
    }
    assert_true(n_refused > 1000);
    free(a);
    free(b);
    free(good);
    free(bad);
    free(to);
    free(w);
    close_work(&k);
}

/* One segment of three one-byte changes, written by hand, with 31 bits of each packed change; then a
 * patch. */
static int read_patched(struct work *k, const unsigned char *patch, unsigned char n)
{
    unsigned char bytes[64 + WS_DELTA_PAD_BYTES] = {
        0, 0, 0,  0, 3, 0, 0, 0, /* begin, n */
        1, 0, 31, 0,             /* width 1, gaps of no bits: 0, 0, 0 */
        0, 0, 0,  0, n, 0, 0, 0, /* bytes of the patches */
        1,                       /* changes 1, 0, 0 in 93 bits */
    };
    memcpy(bytes + 20 + 12, patch, n);
    return ws_delta_edit_read(k->edit[0], bytes, 20 + 12 + n, 3, NULL);
}

static void on_change(void *arg, uint32_t byte, unsigned width, uint32_t change)
{
    assert_int_equal(width, 1);
    ((uint32_t *)arg)[byte] = change;
}

/* A patch beyond the last number, or one whose result exceeds 32 bits, is refused; the largest valid one is
 * accepted. */
static void test_patches_at_the_edge(void **state)
{
    uint32_t changes[3] = {0};
    struct work k;
    (void)state;
    open_work(&k);
    assert_int_equal(read_patched(&k, (const unsigned char[]){2, 1}, 2), 0);
    ws_delta_edit_each(k.edit[0], on_change, changes);
    assert_true(changes[0] == 1 && changes[1] == 0 && changes[2] == 1U << 31);
    assert_int_equal(read_patched(&k, (const unsigned char[]){3, 1}, 2), -EBADMSG);
    assert_int_equal(read_patched(&k, (const unsigned char[]){0, 1, 2, 1}, 4), -EBADMSG);
    assert_int_equal(read_patched(&k, (const unsigned char[]){0, 1, 1, 1}, 4), 0);
    assert_int_equal(read_patched(&k, (const unsigned char[]){0, 2}, 2), -EBADMSG); /* 2 << 31 */
    assert_int_equal(read_patched(&k, (const unsigned char[]){0, 3}, 2), -EBADMSG);
    assert_int_equal(read_patched(&k, (const unsigned char[]){0, 0}, 2), -EBADMSG);
    assert_int_equal(read_patched(&k, (const unsigned char[]){0}, 1), -EBADMSG);
    close_work(&k);
}

/* Overlapping segments, one with more changes than elements fit, and one whose patches end beyond the
 * delta. */
static void test_segments_at_the_edge(void **state)
{
    struct work k;
    struct ws_error err = {0};
    unsigned char two[42 + WS_DELTA_PAD_BYTES] = {
        0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 8, 0, [20] = 5, /* byte 0 */
        1, 0, 0, 0, 1, 0, 0, 0, 1, 0, 8, 0, [41] = 5, /* byte 1 */
    };
    unsigned char one[24 + WS_DELTA_PAD_BYTES] = {
        0, 0, 0, 0, 4, 0, 0, 0, 1, 0, 0, 0, [16] = 2, [20] = 0, 1, /* four changes of no bits, one patch */
    };
    (void)state;
    open_work(&k);
    assert_int_equal(ws_delta_edit_read(k.edit[0], two, 42, 4, &err), 0);
    two[21] = 0;
    assert_int_equal(ws_delta_edit_read(k.edit[0], two, 42, 4, &err), -EBADMSG);
    assert_int_equal(ws_delta_edit_read(k.edit[0], one, 22, 4, &err), 0);
    assert_int_equal(ws_delta_edit_read(k.edit[0], one, 21, 4, &err), -EBADMSG);
    assert_int_equal(ws_delta_edit_read(k.edit[0], one, 20, 4, &err), -EBADMSG);
    assert_int_equal(ws_delta_edit_read(k.edit[0], one, 22, 3, &err), -EBADMSG);
    assert_non_null(strstr(err.text, "a segment lies outside the block")); /* before any allocation */
    close_work(&k);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trips),
        cmocka_unit_test(test_whole_blocks),
        cmocka_unit_test(test_mixed_widths),
        cmocka_unit_test(test_bit_patterns),
        cmocka_unit_test(test_chain),
        cmocka_unit_test(test_all_codes_agree),
        cmocka_unit_test(test_numbers),
        cmocka_unit_test(test_vector),
        cmocka_unit_test(test_nothing),
        cmocka_unit_test(test_damaged),
        cmocka_unit_test(test_patches_at_the_edge),
        cmocka_unit_test(test_segments_at_the_edge),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
