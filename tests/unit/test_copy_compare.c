/* Copy and compare, by brute force: random blocks of elements of all widths, in pieces of any size, with each processor's
 * loops. The place has the source's bytes, the hash is theirs, the lines are those that differ, and the record is that of
 * the encoder over both blocks. Line maps; and chains of versions in two and three slots by copy plans, some of them given
 * up. */
#include "backends/trainer/offload/copy_compare.h"
#include "backends/trainer/offload/copy_plan.h"
#include "transports/base/cpu_features.h"
#include "transports/simd/copy.h"
#include "transports/simd/lines_impl.h"
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define ROUNDS   400
#define VERSIONS 120
#define FILES    2
#define SLOTS    3

static uint64_t seed = 0x9E3779B97F4A7C15ULL;

static uint64_t below(uint64_t n)
{
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return (seed >> 11) % n;
}

static void *memory(size_t n)
{
    void *p = aligned_alloc(4096, (n + 8191) / 4096 * 4096);
    assert_non_null(p);
    memset(p, 0xa5, n);
    return p;
}

/* --- lines --- */

static void test_lines(void **state)
{
    unsigned char *a = memory(8192), *b = memory(8192), *dst = memory(8192);
    (void)state;
    for (int round = 0; round < ROUNDS; round++) {
        const size_t off = below(64), n = below(WS_LINE_PAGE_LINES + 1);
        uint64_t expected = 0, some = below(2) ? 0 : (below(1ULL << 32) << 32) ^ below(1ULL << 32);
        for (size_t i = 0; i < 8192; i++)
            a[i] = b[i] = (unsigned char)below(256);
        for (size_t k = below(40); k > 0; k--) {
            const size_t at = below(WS_LINE_PAGE_BYTES);
            b[off + at] ^= (unsigned char)(1 + below(255));
        }
        for (size_t i = 0; i < n; i++)
            expected |= (uint64_t)(memcmp(a + 64 * i, b + off + 64 * i, 64) != 0) << i;
        for (enum ws_vector v = WS_PORTABLE; v <= ws_cpu_vector(NULL); v++) {
            assert_int_equal(ws_lines_codes[v]->differ(a, b + off, n), expected);
            memset(dst, 7, 8192);
            ws_lines_codes[v]->store(dst, b + off, some);
            ws_copy_order();
            for (size_t i = 0; i < 64; i++)
                for (size_t k = 0; k < 64; k++)
                    assert_int_equal(dst[64 * i + k], some >> i & 1 ? b[off + 64 * i + k] : 7);
        }
    }
    free(a);
    free(b);
    free(dst);
}

/* --- one block --- */

static struct ws_element_widths *any_widths(uint64_t from, uint64_t to)
{
    static const unsigned widths[] = {1, 2, 4};
    const size_t n = 1 + below(6);
    struct ws_element_widths *w = malloc(sizeof(*w) + n * sizeof(w->extents[0]));
    assert_non_null(w);
    w->n = n;
    for (size_t i = 0; i < n; i++)
        w->extents[i] = (struct ws_element_width_extent){i == 0 ? 0 : from + (to - from) * i / n + below(8),
                                                         widths[below(5) == 0 ? below(3) : 1]};
    return w;
}

struct blocks {
    unsigned char *src, *base, *old, *to; /* old: what the place holds */
    size_t len;
};

static void any_change(unsigned char *p, size_t len, double share)
{
    const size_t n = (size_t)(share * (double)len);
    for (size_t i = 0; i < n + below(3); i++)
        p[below(len)] ^= (unsigned char)(1 + below(3));
}

static void any_blocks(struct blocks *b)
{
    static const double shares[] = {0, 0.0005, 0.01, 0.05, 0.3, 2};
    b->len = below(4) ? 4096 + below(60000) : 1 + below(5000);
    for (size_t i = 0; i < b->len; i++)
        b->old[i] = (unsigned char)below(256);
    memcpy(b->base, b->old, b->len);
    any_change(b->base, b->len, shares[below(6)]);
    memcpy(b->src, b->base, b->len);
    any_change(b->src, b->len, shares[below(6)]);
    memcpy(b->to, b->old, b->len);
}

static void lines_between(uint64_t *out, const unsigned char *a, const unsigned char *b, size_t len)
{
    memset(out, 0, WS_LINE_WORDS * sizeof(*out));
    for (size_t i = 0; i < len; i++)
        if (a[i] != b[i])
            out[i / WS_LINE_PAGE_BYTES] |= (uint64_t)1 << i % WS_LINE_PAGE_BYTES / WS_LINE_BYTES;
}

static void put_in_pieces(struct ws_copy_compare *c, const struct blocks *b)
{
    const size_t most = below(3) ? 5000 : 1 + below(100);
    unsigned char *piece = memory(8192);
    for (size_t at = 0, n; at < b->len; at += n) {
        const size_t off = below(64);
        n = 1 + below(most);
        n = n < b->len - at ? n : b->len - at;
        memcpy(piece + off, b->src + at, n); /* elsewhere: no byte behind a piece is looked at */
        memset(piece + off + n, (int)below(256), 64);
        ws_copy_compare_put(c, piece + off, n);
    }
    free(piece);
}

static void check_block(struct ws_copy_compare *c, struct ws_delta_block_encoder *e, struct ws_hasher *h,
                        struct blocks *b)
{
    static uint64_t stale[WS_LINE_WORDS], changed[WS_LINE_WORDS], expected[WS_LINE_WORDS];
    static unsigned char out[WS_BLOCK_BYTES];
    struct ws_delta_record *record;
    uint32_t n, n_expected;
    size_t bytes;
    any_blocks(b);
    const uint64_t offset = below(3) * WS_BLOCK_BYTES;
    struct ws_element_widths *w = any_widths(offset, offset + b->len);
    const bool by_lines = below(2);
    lines_between(stale, b->old, b->base, b->len);
    memset(changed, 0, sizeof(changed));
    ws_hasher_reset(h);
    ws_copy_compare_begin(c, &(struct ws_copy_compare_block){.to = b->to,
                                                             .base = b->base,
                                                             .len = b->len,
                                                             .widths = w,
                                                             .offset = offset,
                                                             .stale = by_lines ? stale : NULL,
                                                             .changed = changed,
                                                             .hasher = h});
    put_in_pieces(c, b);
    const int rc = ws_copy_compare_end(c, 3, 5, &record, &n);
    ws_copy_order();
    assert_memory_equal(b->to, b->src, b->len);
    assert_int_equal(b->to[b->len], 0xa5);
    assert_int_equal(ws_hasher_digest(h), ws_hash(b->src, b->len));
    lines_between(expected, b->base, b->src, b->len);
    assert_memory_equal(changed, expected, sizeof(changed));
    const int right = ws_delta_block_encode(e, b->base, b->src, b->len, w, offset, out, &bytes, &n_expected);
    assert_int_equal(rc, right);
    if (rc == 0) {
        assert_int_equal(n, n_expected);
        assert_int_equal(record != NULL, bytes > 0);
    }
    if (record) {
        assert_int_equal(record->bytes, bytes);
        assert_memory_equal(record->data, out, bytes);
        assert_int_equal(record->file, 3);
        assert_int_equal(record->block, 5);
    }
    free(record);
    free(w);
}

static void check_blocks(void)
{
    struct ws_copy_compare *c = ws_copy_compare_new();
    struct ws_delta_block_encoder *e = ws_delta_block_encoder_new();
    struct ws_hasher *h = ws_hasher_new();
    assert_true(c && e && h);
    for (int round = 0; round < ROUNDS; round++) {
        struct blocks b = {memory(70000), memory(70000), memory(70000), memory(70000), 0};
        check_block(c, e, h, &b);
        free(b.src);
        free(b.base);
        free(b.old);
        free(b.to);
    }
    ws_copy_compare_free(c);
    ws_delta_block_encoder_free(e);
    ws_hasher_free(h);
}

/* The processor's loops are chosen once a process. */
static void test_blocks(void **state)
{
    static const char *const codes[] = {"portable", "avx2", "avx512"};
    (void)state;
    for (size_t i = 0; i <= (size_t)ws_cpu_vector(NULL); i++) {
        const pid_t child = fork();
        int status;
        if (child == 0) {
            setenv("WSYNC_COPY", codes[i], 1);
            setenv("WSYNC_DELTA", codes[i], 1);
            seed += i;
            check_blocks();
            _exit(strcmp(ws_lines_code(), codes[i]) != 0);
        }
        assert_true(child > 0);
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_int_equal(status, 0);
    }
}

/* More than an eighth of a block's bytes in changes: no record, and all else is right. */
static void test_dense(void **state)
{
    struct ws_copy_compare *c = ws_copy_compare_new();
    struct ws_hasher *h = ws_hasher_new();
    struct ws_element_widths *w = ws_element_widths_new(NULL);
    unsigned char *src = memory(WS_BLOCK_BYTES), *base = memory(WS_BLOCK_BYTES), *to = memory(WS_BLOCK_BYTES);
    static uint64_t changed[WS_LINE_WORDS];
    struct ws_delta_record *record = NULL;
    uint32_t n;
    (void)state;
    for (size_t i = 0; i < WS_BLOCK_BYTES; i += 2)
        src[i] ^= 1;
    assert_true(c && h && w);
    ws_copy_compare_begin(
        c, &(struct ws_copy_compare_block){
               .to = to, .base = base, .len = WS_BLOCK_BYTES, .widths = w, .changed = changed, .hasher = h});
    ws_copy_compare_put(c, src, WS_BLOCK_BYTES);
    assert_int_equal(ws_copy_compare_end(c, 0, 0, &record, &n), -E2BIG);
    ws_copy_order();
    assert_null(record);
    assert_memory_equal(to, src, WS_BLOCK_BYTES);
    assert_int_equal(ws_hasher_digest(h), ws_hash(src, WS_BLOCK_BYTES));
    for (size_t i = 0; i < WS_LINE_WORDS; i++)
        assert_int_equal(changed[i], UINT64_MAX);
    ws_copy_compare_free(c);
    ws_hasher_free(h);
    free(w);
    free(src);
    free(base);
    free(to);
}

/* --- line maps --- */

static struct ws_version_bytes version_bytes(uint64_t version, const char *run, char digest)
{
    struct ws_version_bytes v = {.id = ws_version_id_make(version, run)};
    memset(v.digest, digest, WS_DIGEST_CHARS);
    return v;
}

static void add_version(struct ws_line_map *m, const struct ws_version_bytes *base,
                        const struct ws_version_bytes *slot, size_t line,
                        const struct ws_version_bytes *target)
{
    assert_int_equal(ws_line_map_begin(m, base, slot), 0);
    uint64_t *words = ws_line_map_words(m, 0);
    assert_non_null(words);
    words[line / 64] |= (uint64_t)1 << line % 64;
    ws_line_map_record(m, 0);
    if (target)
        ws_line_map_commit(m, &target->id);
}

static void test_line_map(void **state)
{
    static uint64_t out[WS_LINE_WORDS];
    struct ws_line_map *m = ws_line_map_new(2);
    struct ws_version_bytes v[10], none = {0};
    (void)state;
    assert_non_null(m);
    for (unsigned i = 0; i < 10; i++)
        v[i] = version_bytes(i, "run", (char)('0' + i));
    assert_int_equal(ws_line_map_stale(m, 0, out), -ENODATA); /* nothing is begun */
    assert_null(ws_line_map_words(m, 0));
    add_version(m, &v[1], &none, 100, &v[2]);
    assert_int_equal(ws_line_map_begin(m, &v[2], &v[1]), 0);
    assert_int_equal(ws_line_map_stale(m, 0, out), 1);
    assert_int_equal(out[1], (uint64_t)1 << 36);
    assert_int_equal(ws_line_map_stale(m, 1, out), -ENODATA); /* that block was not compared */
    /* A version that is not committed leaves nothing; a slot that holds something else is not known. */
    add_version(m, &v[2], &v[1], 5, NULL);
    assert_int_equal(ws_line_map_begin(m, &v[2], &none), 0);
    assert_int_equal(ws_line_map_stale(m, 0, out), -ENODATA);
    const struct ws_version_bytes other_run = version_bytes(1, "other", '1'),
                                  other_bytes = version_bytes(1, "run", 'x');
    assert_int_equal(ws_line_map_begin(m, &v[2], &other_run), 0);
    assert_int_equal(ws_line_map_stale(m, 0, out), -ENODATA);
    assert_int_equal(ws_line_map_begin(m, &v[2], &other_bytes), 0);
    assert_int_equal(ws_line_map_stale(m, 0, out), -ENODATA);
    /* Several versions between: all their lines. A block of which one is not known: none. */
    add_version(m, &v[2], &v[1], 5, &v[3]);
    add_version(m, &v[3], &v[1], 5000, &v[4]);
    assert_int_equal(ws_line_map_begin(m, &v[4], &v[1]), 0);
    assert_int_equal(ws_line_map_stale(m, 0, out), 3);
    assert_int_equal(ws_line_map_begin(m, &v[4], &v[3]), 0);
    assert_int_equal(ws_line_map_stale(m, 0, out), 1);
    assert_non_null(ws_line_map_words(m, 0)); /* begun and not recorded */
    ws_line_map_commit(m, &v[5].id);
    assert_int_equal(ws_line_map_begin(m, &v[5], &v[3]), 0);
    assert_int_equal(ws_line_map_stale(m, 0, out), -ENODATA);
    /* From another base than the version that was committed last: all are dropped. */
    assert_int_equal(ws_line_map_begin(m, &v[7], &v[5]), 0);
    ws_line_map_commit(m, &v[8].id);
    assert_int_equal(ws_line_map_begin(m, &v[8], &v[5]), 0);
    assert_int_equal(ws_line_map_stale(m, 0, out), -ENODATA);
    assert_int_equal(ws_line_map_begin(m, &none, &v[8]), 0);
    assert_int_equal(ws_line_map_stale(m, 0, out), -ENODATA);
    assert_null(ws_line_map_words(m, 0));
    ws_line_map_free(m);
}

/* --- versions by plans --- */

#define COLUMNS 700UL
#define ROWS    9000UL

struct world {
    struct ws_copy_plan *plan;
    struct ws_workers *workers;
    struct ws_copy_plan_compare compare;
    uint64_t sizes[FILES];
    size_t first_block[FILES], n_blocks;
    struct ws_element_widths *widths[FILES];
    unsigned char *slots[SLOTS][FILES], *sources[4];
    size_t source_bytes[4];
    struct ws_version_bytes holds[SLOTS], newest;
    unsigned newest_slot, n_slots;
    uint64_t *hashes, *next;
    bool *hashed;
};

/* A file of a matrix in columns from two sources and a vector from a third that is converted; one of bytes that lie at an
 * odd address. */
static void add_pieces(struct world *w)
{
    const uint64_t shape[2] = {ROWS, COLUMNS}, n = 3000001;
    const int64_t one = 1;
    for (unsigned k = 0; k < 2; k++) {
        const uint64_t columns = k ? 400 : 300, offset[2] = {0, k ? 300 : 0}, size[2] = {ROWS, columns};
        const int64_t strides[2] = {(int64_t)columns, 1};
        const struct ws_box box = {.n_dims = 2,
                                   .shape = shape,
                                   .offset = offset,
                                   .size = size,
                                   .src_strides = strides,
                                   .element_bytes = 2};
        w->source_bytes[k] = 2 * ROWS * columns;
        assert_int_equal(ws_copy_plan_add(w->plan, 0, 0, &box, k, NULL), 0);
    }
    const struct ws_box flat = {.n_dims = 1,
                                .shape = &n,
                                .offset = (const uint64_t[]){0},
                                .size = &n,
                                .src_strides = &one,
                                .element_bytes = 2,
                                .conversion = WS_F32_TO_BF16};
    w->source_bytes[2] = 4 * n;
    assert_int_equal(ws_copy_plan_add(w->plan, 0, 2 * ROWS * COLUMNS, &flat, 2, NULL), 0);
    w->sizes[0] = 2 * ROWS * COLUMNS + 2 * n;
    w->sizes[1] = w->source_bytes[3] = 2 * WS_BLOCK_BYTES + 4321;
    assert_int_equal(ws_copy_plan_add_bytes(w->plan, 1, 0, w->sizes[1], 3, NULL), 0);
    assert_int_equal(ws_copy_plan_compile(w->plan, w->sizes, FILES, NULL), 0);
}

static void open_world(struct world *w)
{
    static const unsigned widths[FILES] = {2, 1};
    *w = (struct world){.workers = ws_workers_new(2, 0), .n_slots = 2 + (unsigned)below(2)};
    assert_non_null(w->workers);
    assert_int_equal(ws_copy_plan_new(&w->plan, NULL), 0);
    add_pieces(w);
    for (unsigned f = 0; f < FILES; f++) {
        w->first_block[f] = w->n_blocks;
        w->n_blocks += (w->sizes[f] + WS_BLOCK_BYTES - 1) / WS_BLOCK_BYTES;
        w->widths[f] = ws_element_widths_new(NULL);
        assert_non_null(w->widths[f]);
        w->widths[f]->extents[0].width = widths[f];
        for (unsigned s = 0; s < SLOTS; s++)
            w->slots[s][f] = memory(w->sizes[f]);
    }
    for (unsigned k = 0; k < 4; k++) {
        w->sources[k] = memory(w->source_bytes[k] + 64);
        for (size_t i = 0; i < w->source_bytes[k]; i += 4) {
            const float x = (float)below(1000) / 7;
            memcpy(w->sources[k] + i, &x, 4);
        }
    }
    w->hashes = calloc(w->n_blocks, sizeof(*w->hashes));
    w->next = calloc(w->n_blocks, sizeof(*w->next));
    w->hashed = calloc(w->n_blocks, sizeof(*w->hashed));
    w->compare.lines = ws_line_map_new(w->n_blocks);
    w->compare.history = ws_history_new(w->n_blocks);
    w->compare.scratch = ws_copy_plan_compare_new(2);
    w->compare.widths = w->widths;
    w->compare.first_block = w->first_block;
    w->compare.base_hashes = w->hashes;
    w->compare.hashes = w->next;
    w->compare.base_hashed = w->hashed;
    w->compare.check_every = 1;
    assert_true(w->hashes && w->next && w->hashed && w->compare.lines && w->compare.history &&
                w->compare.scratch);
}

static void close_world(struct world *w)
{
    ws_copy_plan_free(w->plan);
    ws_workers_free(w->workers);
    ws_line_map_free(w->compare.lines);
    ws_history_free(w->compare.history);
    ws_copy_plan_compare_free(w->compare.scratch);
    for (unsigned f = 0; f < FILES; f++) {
        free(w->widths[f]);
        for (unsigned s = 0; s < SLOTS; s++)
            free(w->slots[s][f]);
    }
    for (unsigned k = 0; k < 4; k++)
        free(w->sources[k]);
    free(w->hashes);
    free(w->next);
    free(w->hashed);
}

static void step(struct world *w)
{
    static const double shares[] = {0.0001, 0.003, 0.01, 0.02, 0.2};
    const double share = shares[below(5)];
    for (unsigned k = 0; k < 4; k++) {
        const size_t n = below(8) ? (size_t)(share * (double)w->source_bytes[k] / 2) : 0;
        for (size_t i = 0; i < n; i++)
            w->sources[k][below(w->source_bytes[k] / 4) * 4 + (k == 2 ? 2 : below(4))] ^= 1;
    }
}

/* What each file is to be. */
static void expect(const struct world *w, unsigned char **out)
{
    const unsigned char *const sources[4] = {w->sources[0], w->sources[1], w->sources[2], w->sources[3] + 1};
    struct ws_block_hashes hashes = {0};
    const struct ws_copy_plan_run run = {
        .data = out, .sources = (const void *const *)sources, .hashes = &hashes};
    assert_int_equal(ws_copy_plan_run(w->plan, &run, w->workers, NULL), 0);
    ws_block_hashes_reset(&hashes);
}

static void check_record(const struct world *w, const unsigned char *const *base, unsigned char *const *right,
                         unsigned f, size_t b)
{
    static unsigned char out[WS_BLOCK_BYTES];
    static struct ws_delta_block_encoder *e;
    const struct ws_delta_record *chain[WS_MAX_DELTA_CHAIN];
    const uint64_t at = b * WS_BLOCK_BYTES, left = w->sizes[f] - at;
    const size_t len = left < WS_BLOCK_BYTES ? left : WS_BLOCK_BYTES;
    size_t bytes;
    uint32_t n;
    if (!e)
        e = ws_delta_block_encoder_new();
    assert_non_null(e);
    const int rc =
        ws_delta_block_encode(e, base[f] + at, right[f] + at, len, w->widths[f], at, out, &bytes, &n);
    if (!ws_history_chain(w->compare.history, w->first_block[f] + b, 1, chain)) {
        assert_true(rc < 0 || n > WS_BLOCK_BYTES / 8);
        return;
    }
    assert_int_equal(rc, 0);
    assert_int_equal(chain[0] != NULL, bytes > 0);
    if (chain[0]) {
        assert_int_equal(chain[0]->bytes, bytes);
        assert_memory_equal(chain[0]->data, out, bytes);
    }
}

/* Writes the next version into a slot; committed, or given up somewhere. Returns how many blocks went by lines. */
static size_t one_version(struct world *w, uint64_t version, bool compares)
{
    unsigned char *right[FILES] = {memory(w->sizes[0]), memory(w->sizes[1])};
    const unsigned char *const sources[4] = {w->sources[0], w->sources[1], w->sources[2], w->sources[3] + 1},
                               *base[FILES] = {w->slots[w->newest_slot][0], w->slots[w->newest_slot][1]};
    struct ws_block_hashes hashes = {0};
    unsigned s = (w->newest_slot + 1 + (unsigned)below(w->n_slots - 1)) % w->n_slots;
    const struct ws_version_bytes held = w->holds[s];
    const bool given_up = below(6) == 0;
    w->holds[s] = (struct ws_version_bytes){0};
    w->compare.base = base;
    w->compare.n_lines = w->compare.n_whole = w->compare.wrong = 0;
    if (compares) {
        assert_int_equal(ws_history_begin(w->compare.history, &w->newest.id, NULL), 0);
        assert_int_equal(ws_line_map_begin(w->compare.lines, &w->newest, &held), 0);
    }
    const struct ws_copy_plan_run run = {.data = w->slots[s],
                                         .sources = (const void *const *)sources,
                                         .compare = compares ? &w->compare : NULL,
                                         .hashes = &hashes};
    assert_int_equal(ws_copy_plan_run(w->plan, &run, w->workers, NULL), 0);
    expect(w, right);
    assert_int_equal(w->compare.wrong, 0);
    assert_int_equal(hashes.len, w->n_blocks);
    for (unsigned f = 0; f < FILES; f++)
        assert_memory_equal(w->slots[s][f], right[f], w->sizes[f]);
    for (size_t i = 0; i < hashes.len; i++) {
        const struct ws_block_hash *h = &hashes.ptr[i];
        const uint64_t at = h->block * WS_BLOCK_BYTES, left = w->sizes[h->file] - at;
        assert_int_equal(h->hash,
                         ws_hash(right[h->file] + at, left < WS_BLOCK_BYTES ? left : WS_BLOCK_BYTES));
        w->next[w->first_block[h->file] + h->block] = h->hash;
        if (compares && w->hashed[0] && below(10) == 0)
            check_record(w, base, right, (unsigned)h->file, h->block);
    }
    if (given_up) { /* its rank ended somewhere: what the slot holds is not known */
        for (unsigned f = 0; f < FILES; f++)
            memset(w->slots[s][f] + below(w->sizes[f]), 0x77, 1);
    } else {
        w->newest = w->holds[s] = version_bytes(version, "run", (char)('a' + version % 26));
        w->newest_slot = s;
        memcpy(w->hashes, w->next, w->n_blocks * sizeof(*w->hashes));
        memset(w->hashed, 1, w->n_blocks * sizeof(*w->hashed));
        if (compares) {
            ws_line_map_commit(w->compare.lines, &w->newest.id);
            ws_history_commit(w->compare.history, &w->newest.id, 0, 0);
        } else {
            ws_line_map_drop(w->compare.lines);
        }
    }
    ws_block_hashes_reset(&hashes);
    free(right[0]);
    free(right[1]);
    return w->compare.n_lines;
}

static void test_versions(void **state)
{
    size_t by_lines = 0, whole = 0;
    (void)state;
    for (int k = 0; k < 2; k++) {
        struct world w;
        open_world(&w);
        w.n_slots = 2 + (unsigned)k;
        for (uint64_t v = 1; v <= VERSIONS / 2; v++) {
            step(&w);
            by_lines += one_version(&w, v, below(10) > 0);
            whole += w.compare.n_whole;
        }
        close_world(&w);
    }
    assert_true(by_lines > 50 && whole > 50); /* both do occur */
}

/* A slot that does not hold what the map says: the block that is read back is written again. */
static void test_wrong_slot(void **state)
{
    struct world w;
    (void)state;
    open_world(&w);
    w.n_slots = 2;
    uint64_t v = 1;
    while (one_version(&w, v++, true) == 0 && v < 100)
        ;
    assert_true(v < 100);
    for (int tries = 0; tries < 50; tries++) {
        unsigned s = 1 - w.newest_slot;
        if (!w.holds[s].id.lineage[0]) {
            (void)one_version(&w, v++, true);
            continue;
        }
        for (unsigned f = 0; f < FILES; f++) /* in every line */
            for (size_t i = 0; i < w.sizes[f]; i += 64)
                w.slots[s][f][i] ^= 0x55;
        struct ws_block_hashes hashes = {0};
        const unsigned char *const sources[4] = {w.sources[0], w.sources[1], w.sources[2], w.sources[3] + 1},
                                   *base[FILES] = {w.slots[w.newest_slot][0], w.slots[w.newest_slot][1]};
        w.compare.base = base;
        w.compare.n_lines = w.compare.wrong = 0;
        assert_int_equal(ws_history_begin(w.compare.history, &w.newest.id, NULL), 0);
        assert_int_equal(ws_line_map_begin(w.compare.lines, &w.newest, &w.holds[s]), 0);
        const struct ws_copy_plan_run run = {.data = w.slots[s],
                                             .sources = (const void *const *)sources,
                                             .compare = &w.compare,
                                             .hashes = &hashes};
        assert_int_equal(ws_copy_plan_run(w.plan, &run, w.workers, NULL), 0);
        if (w.compare.n_lines > 0) {
            assert_int_equal(w.compare.wrong, w.compare.n_lines);
            for (size_t i = 0; i < hashes.len; i++) {
                const struct ws_block_hash *h = &hashes.ptr[i];
                const uint64_t at = h->block * WS_BLOCK_BYTES, left = w.sizes[h->file] - at;
                assert_int_equal(h->hash, ws_hash(w.slots[s][h->file] + at,
                                                  left < WS_BLOCK_BYTES ? left : WS_BLOCK_BYTES));
            }
            tries = 100;
        }
        ws_block_hashes_reset(&hashes);
    }
    assert_true(w.compare.wrong > 0);
    close_world(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lines),    cmocka_unit_test(test_blocks),   cmocka_unit_test(test_dense),
        cmocka_unit_test(test_line_map), cmocka_unit_test(test_versions), cmocka_unit_test(test_wrong_slot),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
