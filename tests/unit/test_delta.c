/* Deltas: made from two versions, sent in parts and pieces, applied in chains; damaged, truncated and foreign
 * streams are refused; a waiter for a growing delta is woken. */
#include "tests/fixtures/delta_stream.h"
#include "tests/fixtures/delta_versions.h"
#include "transports/delta/patcher.h"
#include "transports/delta/stream.h"
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

/* A block that is patched on its way from one place to another. */
struct elsewhere {
    const unsigned char *from;
    unsigned char *to;
    size_t loaded, stored;
};

static void load(void *arg, size_t at, size_t n, unsigned char *to)
{
    struct elsewhere *e = arg;
    assert_int_equal(at, e->loaded);
    memcpy(to, e->from + at, n);
    e->loaded += n;
}

static void store(void *arg, size_t at, size_t n, const unsigned char *from)
{
    struct elsewhere *e = arg;
    assert_int_equal(at, e->stored);
    memcpy(e->to + at, from, n);
    e->stored += n;
}

/* A block that lies in runs, with other bytes between them. */
struct spread {
    unsigned char *memory;
    struct ws_delta_run *runs;
    size_t n, run, at; /* runs; which bytes are patched next */
};
#define BETWEEN 40
#define LEAST   50
#define FILL    0xa5
static unsigned n_runs[2]; /* chains whose changes could not be made in runs, and could */

static struct spread spread_out(const unsigned char *from, size_t len, size_t step)
{
    const size_t most_runs = len / LEAST + 1;
    struct spread s = {.memory = malloc(len + (most_runs + 1) * BETWEEN),
                       .runs = calloc(most_runs, sizeof(*s.runs))};
    assert_true(s.memory && s.runs);
    unsigned char *to = s.memory;
    for (size_t at = 0, n; at < len; at += n) {
        const size_t most = step * (LEAST + delta_any() % (delta_any() % 8 ? 400 : 20000));
        n = most < len - at ? most : len - at;
        memset(to, FILL, BETWEEN);
        memcpy(to + BETWEEN, from + at, n);
        s.runs[s.n++] = (struct ws_delta_run){.place = to + BETWEEN, .n = n};
        to += BETWEEN + n;
    }
    memset(to, FILL, BETWEEN);
    return s;
}

static void assert_lies(const struct spread *s, const unsigned char *right, size_t len)
{
    const unsigned char *to = s->memory;
    size_t at = 0;
    for (size_t r = 0; r <= s->n; r++) {
        for (size_t i = 0; i < BETWEEN; i++)
            assert_int_equal(to[i], FILL);
        if (r == s->n)
            break;
        assert_memory_equal(s->runs[r].place, right + at, s->runs[r].n);
        at += s->runs[r].n;
        to = s->runs[r].place + s->runs[r].n;
    }
    assert_int_equal(at, len);
}

static void run_patched(void *arg, size_t run, size_t at, size_t n)
{
    struct spread *s = arg;
    const struct ws_delta_run *r = &s->runs[run];
    assert_int_equal(run, s->run);
    assert_int_equal(at, s->at);
    assert_true(at + n == r->n || (uintptr_t)(r->place + at + n) % WS_SUM_BYTES == 0);
    s->run += at + n == r->n;
    s->at = at + n == r->n ? 0 : at + n;
}

/* Returns whether the chain's changes could be made in runs of multiples of `step` bytes. */
static bool assert_patches_runs(struct ws_patcher *p, const unsigned char *base, const unsigned char *target,
                                size_t len, const struct ws_delta_record *const *records, size_t n,
                                size_t step)
{
    struct spread s = spread_out(base, len, step);
    const struct ws_delta_runs runs = {.runs = s.runs, .n = s.n, .patched = run_patched, .arg = &s};
    uint64_t hash;
    const int rc = ws_patcher_block_runs(p, &runs, len, records, n, &hash, NULL);
    assert_true(rc == 0 || rc == -EXDEV);
    assert_lies(&s, rc == 0 ? target : base, len);
    assert_int_equal(s.run, rc == 0 ? s.n : 0);
    if (rc == 0)
        assert_int_equal(hash, ws_hash(target, len));
    free(s.memory);
    free(s.runs);
    return rc == 0;
}

/* Applying the chain's records to base gives target, for every block. */
static void assert_patches(const struct delta_version *base, const struct delta_version *target,
                           struct ws_delta *const *chain, size_t n)
{
    struct ws_patcher *p = ws_patcher_new();
    for (size_t i = 0; i < DELTA_FILES; i++) {
        const struct ws_manifest_file *f = &target->manifest->files[i];
        for (size_t b = 0; b < f->n_blocks; b++) {
            const struct ws_delta_record *records[WS_MAX_DELTA_CHAIN];
            size_t len = ws_manifest_block_bytes(f, b), at = b * WS_BLOCK_BYTES;
            unsigned char *to = malloc(len);
            uint64_t hash;
            for (size_t c = 0; c < n; c++)
                records[c] = ws_delta_at(chain[c], i, b);
            assert_int_equal(ws_patcher_block(p, to, base->files[i] + at, len, records, n, &hash, NULL), 0);
            assert_memory_equal(to, target->files[i] + at, len);
            assert_int_equal(hash, f->hashes[b]);
            memcpy(to, base->files[i] + at, len);
            assert_int_equal(ws_patcher_block(p, to, NULL, len, records, n, &hash, NULL), 0);
            assert_int_equal(hash, f->hashes[b]);
            memset(to, 0, len);
            struct elsewhere e = {.from = base->files[i] + at, .to = to};
            const struct ws_delta_flow flow = {.load = load, .store = store, .arg = &e};
            assert_int_equal(ws_patcher_block_by(p, &flow, len, records, n, &hash, NULL), 0);
            assert_memory_equal(to, target->files[i] + at, len);
            assert_int_equal(hash, f->hashes[b]);
            assert_int_equal(e.stored, len);
            for (size_t step = 1; step <= 64; step *= 64)
                n_runs[assert_patches_runs(p, base->files[i] + at, target->files[i] + at, len, records, n,
                                           step)]++;
            free(to);
        }
    }
    ws_patcher_free(p);
}

/* Sends a delta in parts, each in pieces of all sizes, to an empty delta. */
static struct ws_delta *send(struct ws_delta *d, const struct delta_version *target, unsigned parts,
                             size_t most)
{
    struct ws_delta *out;
    assert_int_equal(ws_delta_new(&out, ws_delta_link(d), target->manifest, NULL), 0);
    for (unsigned part = 0; part < parts; part++) {
        struct ws_delta_stream_writer w;
        struct ws_delta_stream_reader *r =
            ws_delta_stream_reader_new(ws_delta_link(d), ws_delta_blocks(d),
                                       &(struct ws_delta_stream_sink){.record = delta_take, .arg = out});
        unsigned char *piece = malloc(most);
        uint64_t bytes = 0;
        ssize_t n;
        bool whole;
        struct ws_error err = {0};
        assert_int_equal(ws_delta_stream_writer_init(&w, d, part, parts), 0);
        while ((n = ws_delta_stream_write(&w, piece, 1 + delta_any() % most)) > 0) {
            bytes += (uint64_t)n;
            if (ws_delta_stream_read(r, piece, (size_t)n, &err) < 0)
                fail_msg("%s", err.text);
        }
        assert_int_equal(n, -1);
        assert_true(ws_delta_stream_reader_ended(r, &whole) && whole);
        assert_int_equal(bytes, ws_delta_stream_bytes(d, part, parts));
        assert_true(ws_delta_stream_read(r, "x", 1, &err) == -EBADMSG);
        ws_delta_stream_writer_free(&w);
        ws_delta_stream_reader_free(r);
        free(piece);
    }
    ws_delta_end(out, WS_DELTA_WHOLE);
    return out;
}

static void test_made_sent_applied(void **state)
{
    struct delta_version v[3];
    struct ws_delta_stats f;
    (void)state;
    delta_first_version(&v[0]);
    delta_next_version(&v[1], &v[0], 100, 0.5);
    delta_next_version(&v[2], &v[1], 1, 0.2);
    for (int level = 0; level <= 3; level += 3) {
        struct ws_delta *one = delta_of(&v[0], &v[1], level), *two = delta_of(&v[1], &v[2], level);
        ws_delta_stats(one, &f);
        assert_true(f.n_records < ws_delta_blocks(one) && f.n_records >= ws_delta_blocks(one) / 2 - 1);
        assert_true(f.bytes < v[0].manifest->total_bytes / 50 && f.n_blocks_whole == 0);
        print_message("level %d: %lu bytes for %lu changes\n", level, f.bytes, f.n_changed);
        struct ws_delta *sent = send(one, &v[1], 3, 1000), *again = send(two, &v[2], 1, 3000000);
        assert_patches(&v[0], &v[1], &sent, 1);
        assert_patches(&v[0], &v[2], (struct ws_delta *const[]){sent, again}, 2);
        assert_true(n_runs[false] > 0 && n_runs[true] > 0);
        ws_delta_put(one);
        ws_delta_put(two);
        ws_delta_put(sent);
        ws_delta_put(again);
    }
    for (size_t i = 0; i < 3; i++)
        delta_free_version(&v[i]);
}

/* Nothing in common: the delta contains every block whole, and the chain needs nothing of the base. */
static void test_other_content(void **state)
{
    struct delta_version a, b;
    struct ws_delta_stats f;
    (void)state;
    delta_first_version(&a);
    delta_first_version(&b);
    b.manifest->version = 2;
    struct ws_delta *d = delta_of(&a, &b, 1);
    ws_delta_stats(d, &f);
    assert_true(f.n_blocks_whole + 1 >= f.n_records);
    assert_patches(&a, &b, &d, 1);
    ws_delta_put(d);
    delta_free_version(&a);
    delta_free_version(&b);
}

static void test_given_up(void **state)
{
    struct delta_version a, b;
    struct ws_delta *d;
    struct ws_workers *w = ws_workers_new(2, 0);
    atomic_bool stop = true;
    (void)state;
    delta_first_version(&a);
    delta_next_version(&b, &a, 10, 1);
    struct ws_delta_link l = delta_link_of(&a, &b);
    assert_int_equal(ws_delta_new(&d, &l, b.manifest, NULL), 0);
    ws_delta_encode(d, &a.side, &b.side, 0, UINT64_MAX, w, &stop);
    assert_int_equal(ws_delta_state(d), WS_DELTA_GIVEN_UP);
    ws_delta_put(d);
    assert_int_equal(ws_delta_new(&d, &l, b.manifest, NULL), 0);
    ws_delta_encode(d, &a.side, &b.side, 0, 300000, w, NULL); /* too large */
    assert_int_equal(ws_delta_state(d), WS_DELTA_GIVEN_UP);
    struct ws_delta_stream_reader *r = ws_delta_stream_reader_new(
        &l, ws_delta_blocks(d), &(struct ws_delta_stream_sink){.record = delta_take, .arg = NULL});
    ws_delta_stream_reader_free(r);
    ws_delta_put(d);
    ws_workers_free(w);
    delta_free_version(&a);
    delta_free_version(&b);
}

static int drop(void *arg, struct ws_delta_record *r)
{
    (void)arg;
    free(r);
    return 0;
}

/* A record that claims to be longer than a block, or than its unpacked data. */
static void test_sizes(void **state)
{
    struct delta_version a, b;
    static unsigned char raw[4096], room[2 * sizeof(raw) + WS_DELTA_PAD_BYTES];
    unsigned char head[WS_DELTA_RECORD_BYTES];
    size_t n;
    (void)state;
    struct ws_delta_record *r = ws_delta_record_make(0, 0, WS_DELTA_BLOCK, 0, raw, sizeof(raw), 1);
    assert_true(r && r->packed);
    assert_ptr_equal(ws_delta_record_raw(r, room), room);
    r->raw_bytes++;
    assert_null(ws_delta_record_raw(r, room));
    delta_first_version(&a);
    delta_next_version(&b, &a, 1000, 1);
    struct ws_delta *d = delta_of(&a, &b, 0);
    unsigned char *bytes = delta_stream(d, &n);
    for (unsigned over = 0; over < 2; over++) {
        struct ws_delta_stream_reader *reader =
            ws_delta_stream_reader_new(ws_delta_link(d), ws_delta_blocks(d),
                                       &(struct ws_delta_stream_sink){.record = drop, .arg = NULL});
        assert_int_equal(ws_delta_stream_read(reader, bytes, WS_DELTA_HEAD_BYTES, NULL), 0);
        r->raw_bytes = WS_BLOCK_BYTES + over;
        ws_delta_stream_record_head(r, head);
        assert_int_equal(ws_delta_stream_read(reader, head, sizeof(head), NULL), over ? -EBADMSG : 0);
        ws_delta_stream_reader_free(reader);
    }
    free(r);
    free(bytes);
    ws_delta_put(d);
    delta_free_version(&a);
    delta_free_version(&b);
}

static void test_damaged(void **state)
{
    struct delta_version a, b;
    (void)state;
    delta_first_version(&a);
    delta_next_version(&b, &a, 1000, 1);
    struct ws_delta *d = delta_of(&a, &b, 0);
    size_t n;
    unsigned char *bytes = delta_stream(d, &n);
    for (unsigned round = 0; round < 400; round++) {
        struct ws_delta_stream_reader *r =
            ws_delta_stream_reader_new(ws_delta_link(d), ws_delta_blocks(d),
                                       &(struct ws_delta_stream_sink){.record = drop, .arg = NULL});
        size_t at = round < 240 ? round : delta_any() % n, cut = delta_any() % 2 ? n : delta_any() % n;
        bool whole;
        bytes[at] ^= (unsigned char)(1 << delta_any() % 8);
        int rc = ws_delta_stream_read(r, bytes, cut, NULL);
        assert_true(rc == -EBADMSG || !ws_delta_stream_reader_ended(r, &whole));
        ws_delta_stream_reader_free(r);
        free(bytes);
        bytes = delta_stream(d, &n);
    }
    struct ws_delta_link other = *ws_delta_link(d);
    other.base_digest[3] ^= 1; /* made from another base */
    struct ws_delta_stream_reader *r = ws_delta_stream_reader_new(
        &other, ws_delta_blocks(d), &(struct ws_delta_stream_sink){.record = drop, .arg = NULL});
    assert_int_equal(ws_delta_stream_read(r, bytes, n, NULL), -EBADMSG);
    ws_delta_stream_reader_free(r);
    free(bytes);
    ws_delta_put(d);
    delta_free_version(&a);
    delta_free_version(&b);
}

/* Any change of the stream's end is detected, except whether it was given up. */
static void test_end(void **state)
{
    struct delta_version a, b;
    (void)state;
    delta_first_version(&a);
    delta_next_version(&b, &a, 1000, 1);
    struct ws_delta *d = delta_of(&a, &b, 0);
    size_t n;
    unsigned char *bytes = delta_stream(d, &n);
    for (size_t bit = 0; bit < 8 * WS_DELTA_RECORD_BYTES; bit++) {
        struct ws_delta_stream_reader *r =
            ws_delta_stream_reader_new(ws_delta_link(d), ws_delta_blocks(d),
                                       &(struct ws_delta_stream_sink){.record = drop, .arg = NULL});
        unsigned char *at = bytes + n - WS_DELTA_RECORD_BYTES + bit / 8;
        bool whole = false;
        *at ^= (unsigned char)(1 << bit % 8);
        int rc = ws_delta_stream_read(r, bytes, n, NULL);
        const bool ended = ws_delta_stream_reader_ended(r, &whole);
        *at ^= (unsigned char)(1 << bit % 8);
        assert_int_equal(ended, bit == 8 * 4);
        assert_true(!whole && (rc == 0) == ended);
        ws_delta_stream_reader_free(r);
    }
    free(bytes);
    ws_delta_put(d);
    delta_free_version(&a);
    delta_free_version(&b);
}

static void test_watched(void **state)
{
    struct delta_version a;
    struct ws_delta *d;
    atomic_uint told = 0;
    struct ws_delta_waiter w = {.notify = delta_notified, .arg = &told};
    size_t i = 0;
    (void)state;
    delta_first_version(&a);
    struct ws_delta_link l = delta_link_of(&a, &a);
    assert_int_equal(ws_delta_new(&d, &l, a.manifest, NULL), 0);
    assert_true(ws_delta_wait(d, 0, 0, 1, &w));
    assert_int_equal(ws_delta_add(d, ws_delta_record_make(0, 1, WS_DELTA_EDIT, 1, (void *)"x", 1, 0)), 0);
    assert_int_equal(told, 1);
    assert_false(ws_delta_wait(d, 0, 0, 1, &w)); /* it is in the set already */
    assert_non_null(ws_delta_next(d, &i, 0, 1));
    assert_null(ws_delta_next(d, &i, 0, 1));
    assert_true(ws_delta_wait(d, 1, 0, 1, &w));
    ws_delta_wait_cancel(d, &w);
    assert_int_equal(ws_delta_add(d, ws_delta_record_make(0, 1, WS_DELTA_EDIT, 1, (void *)"x", 1, 0)),
                     -EEXIST);
    assert_int_equal(ws_delta_add(d, ws_delta_record_make(7, 1, WS_DELTA_EDIT, 1, (void *)"x", 1, 0)),
                     -EINVAL);
    assert_int_equal(ws_delta_add(d, ws_delta_record_make(0, 999, WS_DELTA_EDIT, 1, (void *)"x", 1, 0)),
                     -EINVAL);
    assert_int_equal(told, 1);
    assert_true(ws_delta_wait(d, 1, 1, 4, &w));
    ws_delta_end_part(d, 1, 4); /* one of four parts is whole, the others grow on */
    assert_int_equal(told, 2);
    told = 1;
    assert_false(ws_delta_wait(d, 1, 1, 4, &w));
    assert_int_equal(ws_delta_part_state(d, 1, 4), WS_DELTA_WHOLE);
    assert_int_equal(ws_delta_part_state(d, 2, 4), WS_DELTA_GROWING);
    assert_int_equal(ws_delta_part_state(d, 1, 2), WS_DELTA_GROWING); /* of another division */
    assert_int_equal(ws_delta_state(d), WS_DELTA_GROWING);
    assert_true(ws_delta_wait(d, 1, 0, 1, &w));
    assert_false(ws_delta_wait_ended(d, 1));
    ws_delta_end(d, WS_DELTA_GIVEN_UP);
    assert_true(ws_delta_wait_ended(d, 1));
    assert_int_equal(told, 2);
    assert_false(ws_delta_wait(d, 1, 0, 1, &w));
    ws_delta_put(d);
    delta_free_version(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_made_sent_applied),
        cmocka_unit_test(test_other_content),
        cmocka_unit_test(test_given_up),
        cmocka_unit_test(test_damaged),
        cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_end),
        cmocka_unit_test(test_watched),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
