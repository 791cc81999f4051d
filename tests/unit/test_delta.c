/* Deltas: made from two versions, sent in parts and pieces, applied in chains; damaged, truncated and foreign
 * streams are refused; a waiter for a growing delta is woken. */
#include "tests/fixtures/delta_stream.h"
#include "transports/delta/encode.h"
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

#define N_FILES   3
#define N_TENSORS 5

static uint64_t seed = 88172645463325252ULL;

static uint64_t any(void)
{
    seed ^= seed << 13;
    seed ^= seed >> 7;
    return seed ^= seed << 17;
}

/* A version in memory: a.safetensors of several blocks and widths, config.json, empty. */
struct version {
    struct ws_manifest *manifest;
    unsigned char *files[N_FILES];
    struct ws_delta_side side;
};

static void describe(struct version *v, uint64_t number, const size_t sizes[N_FILES], uint64_t header)
{
    static const char *const names[N_FILES] = {"a.safetensors", "config.json", "empty"};
    assert_int_equal(ws_manifest_new(&v->manifest, "actor", number, "run1", NULL), 0);
    for (size_t i = 0; i < N_FILES; i++) {
        struct ws_manifest_file *f;
        assert_int_equal(ws_manifest_add(v->manifest, names[i], sizes[i], i ? 0 : header, &f, NULL), 0);
        for (size_t b = 0; b < f->n_blocks; b++)
            f->hashes[b] = ws_hash(v->files[i] + b * WS_BLOCK_BYTES, ws_manifest_block_bytes(f, b));
    }
    ws_manifest_seal(v->manifest);
    v->side = (struct ws_delta_side){v->manifest, (const unsigned char *const *)v->files};
}

static void first_version(struct version *v)
{
    static const enum ws_dtype dtypes[N_TENSORS] = {WS_BF16, WS_F32, WS_U8, WS_BF16, WS_F64};
    struct ws_tensor specs[N_TENSORS];
    static const char *const names[N_TENSORS] = {"a", "b", "c", "d", "e"};
    struct ws_safetensors *st;
    void *header;
    for (size_t i = 0; i < N_TENSORS; i++)
        specs[i] =
            (struct ws_tensor){.name = names[i], .dtype = dtypes[i], .n_dims = 1, .shape = {1500000 + i}};
    assert_int_equal(ws_safetensors_layout(specs, N_TENSORS, NULL, &st, &header, NULL), 0);
    size_t sizes[N_FILES] = {st->file_bytes, 700, 0};
    for (size_t i = 0; i < N_FILES; i++) {
        v->files[i] = malloc(sizes[i] + 8);
        for (size_t at = 0; at < sizes[i]; at += 8)
            memcpy(v->files[i] + at, &(uint64_t){any()}, 8);
    }
    memcpy(v->files[0], header, st->data_begin);
    describe(v, 1, sizes, st->data_begin);
    ws_safetensors_free(st);
    free(header);
}

/* Increments every `every`-th pair of bytes by one, in the first `share` of the file. */
static void next_version(struct version *v, const struct version *before, unsigned every, double share)
{
    size_t sizes[N_FILES];
    for (size_t i = 0; i < N_FILES; i++) {
        const struct ws_manifest_file *f = &before->manifest->files[i];
        sizes[i] = f->size_bytes;
        v->files[i] = malloc(sizes[i] + 8);
        memcpy(v->files[i], before->files[i], sizes[i]);
        for (size_t at = f->header_bytes; i == 0 && at + 2 <= (size_t)((double)sizes[i] * share); at += 2)
            if (any() % every == 0)
                v->files[i][at]++;
    }
    describe(v, before->manifest->version + 1, sizes, before->manifest->files[0].header_bytes);
}

static void free_version(struct version *v)
{
    for (size_t i = 0; i < N_FILES; i++)
        free(v->files[i]);
    ws_manifest_free(v->manifest);
}

static struct ws_delta_link link_of(const struct version *base, const struct version *target)
{
    struct ws_delta_link l = {.base = ws_version_id_make(base->manifest->version, base->manifest->lineage),
                              .target =
                                  ws_version_id_make(target->manifest->version, target->manifest->lineage)};
    memcpy(l.base_digest, base->manifest->digest, sizeof(l.base_digest));
    memcpy(l.target_digest, target->manifest->digest, sizeof(l.target_digest));
    return l;
}

static struct ws_delta *delta_of(const struct version *base, const struct version *target, int level)
{
    struct ws_delta_link l = link_of(base, target);
    struct ws_delta *d;
    struct ws_workers *w = ws_workers_new(2, 0);
    assert_int_equal(ws_delta_new(&d, &l, target->manifest, NULL), 0);
    ws_delta_encode(d, &base->side, &target->side, level, UINT64_MAX, w, NULL);
    ws_workers_free(w);
    assert_int_equal(ws_delta_state(d), WS_DELTA_WHOLE);
    return d;
}

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
        const size_t most = step * (LEAST + any() % (any() % 8 ? 400 : 20000));
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
static void assert_patches(const struct version *base, const struct version *target,
                           struct ws_delta *const *chain, size_t n)
{
    struct ws_patcher *p = ws_patcher_new();
    for (size_t i = 0; i < N_FILES; i++) {
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

static int take(void *arg, struct ws_delta_record *r)
{
    return ws_delta_add(arg, r);
}

/* Sends a delta in parts, each in pieces of all sizes, to an empty delta. */
static struct ws_delta *send(struct ws_delta *d, const struct version *target, unsigned parts, size_t most)
{
    struct ws_delta *out;
    assert_int_equal(ws_delta_new(&out, ws_delta_link(d), target->manifest, NULL), 0);
    for (unsigned part = 0; part < parts; part++) {
        struct ws_delta_stream_writer w;
        struct ws_delta_stream_reader *r = ws_delta_stream_reader_new(
            ws_delta_link(d), ws_delta_blocks(d), &(struct ws_delta_stream_sink){.record = take, .arg = out});
        unsigned char *piece = malloc(most);
        uint64_t bytes = 0;
        ssize_t n;
        bool whole;
        struct ws_error err = {0};
        assert_int_equal(ws_delta_stream_writer_init(&w, d, part, parts), 0);
        while ((n = ws_delta_stream_write(&w, piece, 1 + any() % most)) > 0) {
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
    struct version v[3];
    struct ws_delta_stats f;
    (void)state;
    first_version(&v[0]);
    next_version(&v[1], &v[0], 100, 0.5);
    next_version(&v[2], &v[1], 1, 0.2);
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
        free_version(&v[i]);
}

/* Nothing in common: the delta contains every block whole, and the chain needs nothing of the base. */
static void test_other_content(void **state)
{
    struct version a, b;
    struct ws_delta_stats f;
    (void)state;
    first_version(&a);
    first_version(&b);
    b.manifest->version = 2;
    struct ws_delta *d = delta_of(&a, &b, 1);
    ws_delta_stats(d, &f);
    assert_true(f.n_blocks_whole + 1 >= f.n_records);
    assert_patches(&a, &b, &d, 1);
    ws_delta_put(d);
    free_version(&a);
    free_version(&b);
}

static void test_given_up(void **state)
{
    struct version a, b;
    struct ws_delta *d;
    struct ws_workers *w = ws_workers_new(2, 0);
    atomic_bool stop = true;
    (void)state;
    first_version(&a);
    next_version(&b, &a, 10, 1);
    struct ws_delta_link l = link_of(&a, &b);
    assert_int_equal(ws_delta_new(&d, &l, b.manifest, NULL), 0);
    ws_delta_encode(d, &a.side, &b.side, 0, UINT64_MAX, w, &stop);
    assert_int_equal(ws_delta_state(d), WS_DELTA_GIVEN_UP);
    ws_delta_put(d);
    assert_int_equal(ws_delta_new(&d, &l, b.manifest, NULL), 0);
    ws_delta_encode(d, &a.side, &b.side, 0, 300000, w, NULL); /* too large */
    assert_int_equal(ws_delta_state(d), WS_DELTA_GIVEN_UP);
    struct ws_delta_stream_reader *r = ws_delta_stream_reader_new(
        &l, ws_delta_blocks(d), &(struct ws_delta_stream_sink){.record = take, .arg = NULL});
    ws_delta_stream_reader_free(r);
    ws_delta_put(d);
    ws_workers_free(w);
    free_version(&a);
    free_version(&b);
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
    struct version a, b;
    static unsigned char raw[4096], room[2 * sizeof(raw) + WS_DELTA_PAD_BYTES];
    unsigned char head[WS_DELTA_RECORD_BYTES];
    size_t n;
    (void)state;
    struct ws_delta_record *r = ws_delta_record_make(0, 0, WS_DELTA_BLOCK, 0, raw, sizeof(raw), 1);
    assert_true(r && r->packed);
    assert_ptr_equal(ws_delta_record_raw(r, room), room);
    r->raw_bytes++;
    assert_null(ws_delta_record_raw(r, room));
    first_version(&a);
    next_version(&b, &a, 1000, 1);
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
    free_version(&a);
    free_version(&b);
}

static void test_damaged(void **state)
{
    struct version a, b;
    (void)state;
    first_version(&a);
    next_version(&b, &a, 1000, 1);
    struct ws_delta *d = delta_of(&a, &b, 0);
    size_t n;
    unsigned char *bytes = delta_stream(d, &n);
    for (unsigned round = 0; round < 400; round++) {
        struct ws_delta_stream_reader *r =
            ws_delta_stream_reader_new(ws_delta_link(d), ws_delta_blocks(d),
                                       &(struct ws_delta_stream_sink){.record = drop, .arg = NULL});
        size_t at = round < 240 ? round : any() % n, cut = any() % 2 ? n : any() % n;
        bool whole;
        bytes[at] ^= (unsigned char)(1 << any() % 8);
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
    free_version(&a);
    free_version(&b);
}

/* Any change of the stream's end is detected, except whether it was given up. */
static void test_end(void **state)
{
    struct version a, b;
    (void)state;
    first_version(&a);
    next_version(&b, &a, 1000, 1);
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
    free_version(&a);
    free_version(&b);
}

static void count(void *arg)
{
    ++*(atomic_uint *)arg;
}

/* A record that goes on from delta to delta while it comes: in by a stream's reader, out by another's writer. */
struct passage {
    struct version base, target;
    struct ws_delta *made, *passed;
    unsigned char *stream; /* of the made one */
    size_t n_bytes;
    struct ws_delta_stream_reader *reader;
    struct ws_delta_stream_writer writer;
    unsigned char *out;
    size_t n_out;
};

static int take_new(void *arg, struct ws_delta_record *r)
{
    const int rc = ws_delta_add(arg, r);
    return rc == -EEXIST ? 0 : rc;
}

static struct ws_delta *passed_on(void *arg, uint32_t file, uint32_t block)
{
    (void)file;
    (void)block;
    return arg;
}

static void connect(struct passage *p)
{
    const struct ws_delta_stream_sink sink = {.record = take_new, .grows = passed_on, .arg = p->passed};
    p->reader = ws_delta_stream_reader_new(ws_delta_link(p->made), ws_delta_blocks(p->made), &sink);
    assert_non_null(p->reader);
}

static void begin_passage(struct passage *p)
{
    ssize_t n;
    *p = (struct passage){0};
    first_version(&p->base);
    next_version(&p->target, &p->base, 3, 1);
    p->made = delta_of(&p->base, &p->target, 0);
    assert_int_equal(ws_delta_new(&p->passed, ws_delta_link(p->made), p->target.manifest, NULL), 0);
    const size_t all = ws_delta_stream_bytes(p->made, 0, 1);
    p->stream = malloc(all);
    p->out = malloc(all + 1);
    assert_int_equal(ws_delta_stream_writer_init(&p->writer, p->made, 0, 1), 0);
    while ((n = ws_delta_stream_write(&p->writer, p->stream + p->n_bytes, all - p->n_bytes)) > 0)
        p->n_bytes += (size_t)n;
    assert_int_equal(p->n_bytes, all);
    ws_delta_stream_writer_free(&p->writer);
    assert_int_equal(ws_delta_stream_writer_init(&p->writer, p->passed, 0, 1), 0);
    connect(p);
}

static void end_passage(struct passage *p)
{
    ws_delta_stream_reader_free(p->reader);
    ws_delta_stream_writer_free(&p->writer);
    ws_delta_put(p->passed);
    ws_delta_put(p->made);
    free(p->stream);
    free(p->out);
    free_version(&p->base);
    free_version(&p->target);
}

static int bring(struct passage *p, size_t from, size_t end)
{
    struct ws_error err = {0};
    (void)usleep(10000); /* what comes faster waits for the whole record */
    return ws_delta_stream_read(p->reader, p->stream + from, end - from, &err);
}

/* Sends what is there. */
static ssize_t pass_on(struct passage *p)
{
    ssize_t n;
    while ((n = ws_delta_stream_write(&p->writer, p->out + p->n_out, p->n_bytes + 1 - p->n_out)) > 0)
        p->n_out += (size_t)n;
    return n;
}

static void test_passed_on(void **state)
{
    struct passage p;
    atomic_uint told = 0;
    struct ws_delta_waiter w = {.notify = count, .arg = &told};
    const size_t first = WS_DELTA_HEAD_BYTES + WS_DELTA_RECORD_BYTES;
    (void)state;
    begin_passage(&p);
    const size_t record = ws_delta_next(p.made, &(size_t){0}, 0, 1)->bytes, half = first + record / 2;
    assert_int_equal(bring(&p, 0, first), 0);
    assert_int_equal(pass_on(&p), 0);
    assert_int_equal(p.n_out, WS_DELTA_HEAD_BYTES); /* of a record that has no data yet not even its head */
    assert_true(ws_delta_wait(p.passed, p.writer.next, 0, 1, &w));
    assert_int_equal(bring(&p, first, half), 0);
    assert_int_equal(told, 1);
    assert_int_equal(pass_on(&p), 0);
    assert_int_equal(p.n_out, half);
    assert_null(ws_delta_next(p.passed, &(size_t){0}, 0, 1)); /* it is no record of the delta yet */
    w.coming = p.writer.coming;
    w.sent = p.writer.data_at;
    assert_true(ws_delta_wait(p.passed, p.writer.next, 0, 1, &w));
    ws_delta_stream_reader_free(p.reader); /* the connection breaks; the next one begins anew */
    connect(&p);
    assert_int_equal(bring(&p, 0, half - 10), 0);
    assert_int_equal(told, 1);
    assert_int_equal(bring(&p, half - 10, first + record - 1), 0);
    assert_int_equal(told, 2);
    assert_int_equal(pass_on(&p), 0);
    assert_int_equal(p.n_out, first + record - 1);
    assert_int_equal(bring(&p, first + record - 1, p.n_bytes), 0);
    ws_delta_end(p.passed, WS_DELTA_WHOLE);
    assert_int_equal(pass_on(&p), -1);
    assert_int_equal(p.n_out, p.n_bytes);
    assert_memory_equal(p.out, p.stream, p.n_bytes);
    end_passage(&p);
}

static void test_passed_on_damaged(void **state)
{
    const size_t first = WS_DELTA_HEAD_BYTES + WS_DELTA_RECORD_BYTES;
    (void)state;
    for (unsigned given_up = 0; given_up < 2; given_up++) {
        struct passage p;
        begin_passage(&p);
        const size_t record = ws_delta_next(p.made, &(size_t){0}, 0, 1)->bytes;
        p.stream[first] ^= 1;
        assert_int_equal(bring(&p, 0, first), 0);
        assert_int_equal(bring(&p, first, first + record - 1), 0);
        assert_int_equal(pass_on(&p), 0);
        if (given_up) { /* the connection broke, and nobody tries again */
            ws_delta_stream_reader_free(p.reader);
            p.reader = NULL;
            assert_int_equal(pass_on(&p), 0);
            ws_delta_end(p.passed, WS_DELTA_GIVEN_UP);
        } else {
            assert_int_equal(bring(&p, first + record - 1, p.n_bytes), -EBADMSG);
        }
        assert_int_equal(pass_on(&p), -2);
        assert_true(p.n_out < first + record); /* nobody gets it whole */
        end_passage(&p);
    }
}

/* A source that sends one block by two connections at once: one of them is in time, and neither record is lost or kept. */
static void test_passed_on_twice(void **state)
{
    const size_t first = WS_DELTA_HEAD_BYTES + WS_DELTA_RECORD_BYTES;
    (void)state;
    for (unsigned first_wins = 0; first_wins < 2; first_wins++) {
        struct passage p;
        begin_passage(&p);
        const size_t record = ws_delta_next(p.made, &(size_t){0}, 0, 1)->bytes;
        struct ws_delta_stream_reader *one = p.reader;
        assert_int_equal(bring(&p, 0, first), 0);
        assert_int_equal(bring(&p, first, first + record / 2), 0);
        assert_int_equal(pass_on(&p), 0);
        connect(&p);
        struct ws_delta_stream_reader *two = p.reader;
        assert_int_equal(bring(&p, 0, first + record / 2), 0);
        p.reader = first_wins ? one : two;
        assert_int_equal(bring(&p, first + record / 2, p.n_bytes), 0);
        ws_delta_end_part(p.passed, 0, 1);
        p.reader = first_wins ? two : one;
        if (first_wins) {
            assert_int_equal(pass_on(&p), -1);
            assert_memory_equal(p.out, p.stream, p.n_bytes);
        }
        assert_int_equal(bring(&p, first + record / 2, first + record), 0);
        if (!first_wins)
            assert_int_equal(pass_on(&p), -2); /* what it was sending is not to be had */
        assert_non_null(ws_delta_next(p.passed, &(size_t){0}, 0, 1));
        ws_delta_stream_reader_free(first_wins ? one : two);
        end_passage(&p);
    }
}

/* A record that waits for its turn behind one that comes is sent once. */
static void test_passed_on_in_turn(void **state)
{
    struct passage p;
    struct ws_delta *got;
    const size_t first = WS_DELTA_HEAD_BYTES + WS_DELTA_RECORD_BYTES;
    struct ws_error err = {0};
    (void)state;
    begin_passage(&p);
    size_t at = 0;
    const struct ws_delta_record *one = ws_delta_next(p.made, &at, 0, 1),
                                 *two = ws_delta_next(p.made, &at, 0, 1);
    struct ws_delta_record *copy = ws_delta_record_new(two->bytes);
    memcpy(copy, two, sizeof(*two) + two->bytes);
    assert_int_equal(bring(&p, 0, first), 0);
    assert_int_equal(bring(&p, first, first + one->bytes / 2), 0);
    assert_int_equal(pass_on(&p), 0);
    assert_int_equal(ws_delta_add(p.passed, copy), 0);
    assert_int_equal(pass_on(&p), 0);
    assert_int_equal(p.n_out, first + one->bytes / 2);
    assert_int_equal(bring(&p, first + one->bytes / 2, p.n_bytes), 0);
    ws_delta_end(p.passed, WS_DELTA_WHOLE);
    assert_int_equal(pass_on(&p), -1);
    assert_int_equal(p.n_out, p.n_bytes);
    assert_int_equal(ws_delta_new(&got, ws_delta_link(p.made), p.target.manifest, NULL), 0);
    struct ws_delta_stream_reader *r =
        ws_delta_stream_reader_new(ws_delta_link(p.made), ws_delta_blocks(p.made),
                                   &(struct ws_delta_stream_sink){.record = take, .arg = got});
    if (ws_delta_stream_read(r, p.out, p.n_out, &err) < 0)
        fail_msg("%s", err.text);
    struct ws_delta_stats f, made;
    ws_delta_stats(got, &f);
    ws_delta_stats(p.made, &made);
    assert_int_equal(f.n_records, made.n_records);
    assert_int_equal(f.bytes, made.bytes);
    ws_delta_stream_reader_free(r);
    ws_delta_put(got);
    end_passage(&p);
}

/* The data of a record is all there a moment before the record has ended: a sender that looks in between goes on to the next one. */
static void test_passed_on_while_it_ends(void **state)
{
    struct passage p;
    const size_t first = WS_DELTA_HEAD_BYTES + WS_DELTA_RECORD_BYTES;
    struct ws_delta_record head;
    (void)state;
    begin_passage(&p);
    const struct ws_delta_record *one = ws_delta_next(p.made, &(size_t){0}, 0, 1);
    assert_int_equal(bring(&p, 0, first), 0);
    assert_int_equal(bring(&p, first, first + one->bytes / 2), 0);
    assert_int_equal(pass_on(&p), 0);
    head = *one;
    head.block = one->block ? 0 : 1;
    head.bytes = 100;
    struct ws_delta_record *brief = ws_delta_record_new(head.bytes);
    memcpy(brief, &head, sizeof(head));
    memset(brief->data, 0, head.bytes);
    assert_int_equal(ws_delta_add(p.passed, brief), 0);
    struct ws_delta_coming *c = p.writer.coming;
    assert_non_null(c);
    memcpy(c->record->data, one->data, one->bytes);
    const size_t here = atomic_exchange(&c->here, one->bytes);
    const size_t rest = first + one->bytes + WS_DELTA_RECORD_BYTES + head.bytes - p.n_out;
    assert_int_equal(ws_delta_stream_write(&p.writer, p.out + p.n_out, rest), rest);
    assert_memory_equal(p.out + first, one->data, one->bytes);
    assert_int_equal(p.out[first + one->bytes + 20], head.bytes);
    atomic_store(&c->here, here);
    end_passage(&p);
}

/* A source brings wrong bytes of a record, and breaks: the next source, whose bytes are right, brings the whole. */
static void test_passed_on_after_damage(void **state)
{
    const size_t first = WS_DELTA_HEAD_BYTES + WS_DELTA_RECORD_BYTES;
    (void)state;
    for (unsigned sends = 0; sends < 2; sends++) {
        struct passage p;
        begin_passage(&p);
        const size_t record = ws_delta_next(p.made, &(size_t){0}, 0, 1)->bytes, wrong = first + record / 4;
        p.stream[wrong] ^= 1;
        assert_int_equal(bring(&p, 0, first), 0);
        assert_int_equal(bring(&p, first, first + record / 2), 0);
        if (sends)
            assert_int_equal(pass_on(&p), 0);
        ws_delta_stream_reader_free(p.reader);
        p.stream[wrong] ^= 1;
        connect(&p);
        assert_int_equal(bring(&p, 0, wrong - 5), 0);
        assert_int_equal(bring(&p, wrong - 5, p.n_bytes), 0);
        ws_delta_end(p.passed, WS_DELTA_WHOLE);
        assert_int_equal(pass_on(&p), sends ? -2 : -1); /* who was sent wrong bytes asks anew */
        if (!sends)
            assert_memory_equal(p.out, p.stream, p.n_bytes);
        end_passage(&p);
    }
}

static void test_watched(void **state)
{
    struct version a;
    struct ws_delta *d;
    atomic_uint told = 0;
    struct ws_delta_waiter w = {.notify = count, .arg = &told};
    size_t i = 0;
    (void)state;
    first_version(&a);
    struct ws_delta_link l = link_of(&a, &a);
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
    free_version(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_made_sent_applied),
        cmocka_unit_test(test_other_content),
        cmocka_unit_test(test_given_up),
        cmocka_unit_test(test_passed_on),
        cmocka_unit_test(test_passed_on_damaged),
        cmocka_unit_test(test_passed_on_in_turn),
        cmocka_unit_test(test_passed_on_twice),
        cmocka_unit_test(test_passed_on_after_damage),
        cmocka_unit_test(test_passed_on_while_it_ends),
        cmocka_unit_test(test_damaged),
        cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_end),
        cmocka_unit_test(test_watched),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
