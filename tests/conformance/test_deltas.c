/* Deltas over every transport, from a memory catalog: complete, in parts, while they grow, given up, removed,
 * of another base; a client that stops and a server that stops; with faults. ipc and dir have none. */
#include "tests/conformance/memory_catalog.h"
#include "tests/fixtures/private_folder.h"
#include "transports/delta/patcher.h"
#include "transports/ipc/serve.h"
#include "transports/tcp/tcp.h"
#include "transports/transport.h"
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#define B     WS_BLOCK_BYTES
#define MODEL "m"
#define LONG  60000 /* ms; bounds, never measurements */

static const uint64_t sizes[] = {2 * B + 12345, 0, 1, B - 1, B, B + 1, 1000};
#define N_FILES   (sizeof(sizes) / sizeof(sizes[0]))
#define N_RECORDS 8 /* of 9 blocks: the byte that is alone in one does not change */

struct world {
    const char *transport, *faults; /* faults NULL: none */
    struct memory_catalog *catalog;
    struct ws_tcp_server *tcp;
    struct ws_ipc_server *ipc;
    char dir[64];
    struct ws_source *source;
    struct ws_lane *lane;
    struct ws_manifest *base, *target;
};

static int64_t now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static struct ws_manifest *get_manifest(struct world *w, uint64_t version)
{
    struct ws_manifest *m = NULL;
    struct ws_error err = {0};
    json_t *models = NULL;
    while (ws_source_models(w->source, NULL, 0, 0, NULL, &models, &err) < 0)
        assert_non_null(w->faults); /* control calls may fail on purpose */
    json_decref(models);
    while (ws_source_manifest(w->source, MODEL, version, NULL, NULL, &m, &err) < 0)
        assert_non_null(w->faults);
    return m;
}

/* Versions 1 and 2; each case offers the delta between them. */
static struct world open_world(void **state)
{
    struct world w = *(const struct world *)*state;
    struct ws_error err = {0};
    char inner[128], url[256];
    assert_true(private_folder(w.dir, sizeof(w.dir), "conf"));
    w.catalog = memory_catalog_new();
    memory_catalog_publish(w.catalog, MODEL, 1, sizes, N_FILES, 1);
    memory_catalog_step(w.catalog, MODEL, 2, 1);
    struct ws_catalog c = memory_catalog_ops(w.catalog);
    if (strcmp(w.transport, "tcp") == 0) {
        struct ws_tcp_server_options o = {.listen = "127.0.0.1:0", .access.insecure = true};
        assert_int_equal(ws_tcp_server_new(&w.tcp, &c, &o, &err), 0);
        snprintf(inner, sizeof(inner), "http://127.0.0.1:%u", ws_tcp_server_port(w.tcp));
    } else {
        char path[96];
        snprintf(path, sizeof(path), "%s/sock", w.dir);
        assert_int_equal(ws_ipc_server_new(&w.ipc, path, (gid_t)-1, &c, NULL, NULL, &err), 0);
        snprintf(inner, sizeof(inner), "unix:%s", path);
    }
    snprintf(url, sizeof(url), "%s%s%s%s", w.faults ? "fault:" : "", w.faults ? w.faults : "",
             w.faults ? ":" : "", inner);
    assert_int_equal(ws_source_open(url, NULL, &w.source, &err), 0);
    w.base = get_manifest(&w, 1);
    w.target = get_manifest(&w, 2);
    assert_int_equal(ws_lane_open(w.source, &w.lane, &err), 0);
    return w;
}

static void close_servers(struct world *w)
{
    ws_tcp_server_free(w->tcp);
    ws_ipc_server_free(w->ipc);
    w->tcp = NULL;
    w->ipc = NULL;
}

static void close_world(struct world *w)
{
    char command[128];
    ws_lane_close(w->lane);
    ws_source_close(w->source);
    close_servers(w);
    memory_catalog_free(w->catalog);
    ws_manifest_free(w->base);
    ws_manifest_free(w->target);
    snprintf(command, sizeof(command), "rm -rf %s", w->dir);
    assert_int_equal(system(command), 0);
}

static struct ws_delta_link link_of(const struct world *w)
{
    struct ws_delta_link l = {.base = ws_version_id_make(1, w->base->lineage),
                              .target = ws_version_id_make(2, w->target->lineage)};
    memcpy(l.base_digest, w->base->digest, sizeof(l.base_digest));
    memcpy(l.target_digest, w->target->digest, sizeof(l.target_digest));
    return l;
}

/* --- a client --- */

struct client {
    struct world *w;
    struct ws_delta_fetch fetch;
    struct ws_delta *got; /* what was received */
    _Atomic size_t n;     /* records */
    size_t stop_after;    /* 0: never */
    int64_t took_ms;
    int rc;
    struct ws_error err;
    pthread_t thread;
    atomic_bool cancel, done;
};

static int on_record(void *arg, struct ws_delta_record *r)
{
    struct client *c = arg;
    assert_int_equal(r->hash == ws_delta_record_hash(r), 1);
    assert_int_equal(ws_delta_add(c->got, r), 0);
    return atomic_fetch_add(&c->n, 1) + 1 == c->stop_after;
}

static int on_any_record(void *arg, struct ws_delta_record *r) /* also of an earlier part */
{
    struct client *c = arg;
    atomic_fetch_add(&c->n, 1);
    int rc = ws_delta_add(c->got, r);
    assert_true(rc == 0 || rc == -EEXIST);
    return 0;
}

static void open_client(struct client *c, struct world *w)
{
    *c = (struct client){.w = w};
    c->fetch = (struct ws_delta_fetch){.model = MODEL,
                                       .link = link_of(w),
                                       .part = 0,
                                       .parts = 1,
                                       .sink.record = on_record,
                                       .sink.arg = c,
                                       .cancel = &c->cancel};
    assert_int_equal(ws_delta_new(&c->got, &c->fetch.link, w->target, NULL), 0);
    c->fetch.n_blocks = ws_delta_blocks(c->got);
}

static void close_client(struct client *c)
{
    ws_delta_put(c->got);
}

static int fetch(struct client *c)
{
    const int64_t begun = now_ms();
    c->err = (struct ws_error){0};
    c->rc = ws_lane_delta(c->w->lane, &c->fetch, &c->err);
    c->took_ms = now_ms() - begun;
    assert_true(c->rc == 0 || c->err.text[0]);
    return c->rc;
}

static void *fetch_thread(void *arg)
{
    struct client *c = arg;
    (void)fetch(c);
    atomic_store(&c->done, true);
    return NULL;
}

static void start(struct client *c)
{
    assert_int_equal(pthread_create(&c->thread, NULL, fetch_thread, c), 0);
}

static void join(struct client *c)
{
    const int64_t end = now_ms() + LONG;
    while (!atomic_load(&c->done) && now_ms() < end)
        usleep(2000);
    if (!atomic_load(&c->done))
        fail_msg("the client still waits");
    pthread_join(c->thread, NULL);
}

static void wait_for_records(struct client *c, size_t n)
{
    const int64_t end = now_ms() + LONG;
    while (atomic_load(&c->n) < n && now_ms() < end)
        usleep(1000);
    if (atomic_load(&c->n) < n)
        fail_msg("%zu records of %zu came", atomic_load(&c->n), n);
}

/* --- checks --- */

static bool same_record(const struct ws_delta_record *a, const struct ws_delta_record *b)
{
    if (!a || !b)
        return a == b;
    return a->kind == b->kind && a->packed == b->packed && a->n_changed == b->n_changed &&
           a->hash == b->hash && a->bytes == b->bytes && memcmp(a->data, b->data, a->bytes) == 0;
}

static void assert_same(const struct ws_delta *a, const struct ws_delta *b, const struct world *w)
{
    for (size_t f = 0; f < w->target->n_files; f++)
        for (size_t i = 0; i < w->target->files[f].n_blocks; i++)
            assert_true(same_record(ws_delta_at(a, f, i), ws_delta_at(b, f, i)));
}

/* The number of the target's blocks that the records do not make from the base. */
static size_t wrong_blocks(const struct world *w, const struct ws_delta *d)
{
    struct ws_patcher *p = ws_patcher_new();
    unsigned char *to = malloc(B);
    size_t wrong = 0;
    for (size_t f = 0; f < w->target->n_files; f++) {
        const unsigned char *from = memory_catalog_bytes(w->catalog, MODEL, 1, f);
        for (size_t i = 0; i < w->target->files[f].n_blocks; i++) {
            const struct ws_delta_record *r = ws_delta_at(d, f, i);
            uint64_t hash = 0;
            int rc = ws_patcher_block(p, to, from + i * B, ws_manifest_block_bytes(&w->target->files[f], i),
                                      &r, 1, &hash, NULL);
            assert_true(rc == 0 || rc == -EBADMSG);
            wrong += rc < 0 || hash != w->target->files[f].hashes[i];
        }
    }
    free(to);
    ws_patcher_free(p);
    return wrong;
}

static size_t offers_of(struct world *w, uint64_t version, struct ws_delta_entry out[WS_MAX_DELTA_ENTRIES])
{
    struct ws_version_id id = ws_version_id_make(version, w->target->lineage);
    struct ws_error err = {0};
    size_t n = 0;
    while (ws_source_deltas(w->source, MODEL, &id, NULL, out, &n, &err) < 0)
        assert_non_null(w->faults);
    return n;
}

/* --- cases --- */

static void moves_a_whole_one(void **state)
{
    struct world w = open_world(state);
    struct ws_delta_entry offers[WS_MAX_DELTA_ENTRIES];
    struct ws_delta_stats f;
    struct client c;
    assert_int_equal(offers_of(&w, 2, offers), 0);
    struct ws_delta *d = memory_catalog_whole_delta(w.catalog, MODEL, 2, 1);
    assert_int_equal(offers_of(&w, 1, offers), 0);
    assert_int_equal(offers_of(&w, 2, offers), 1);
    ws_delta_stats(d, &f);
    assert_int_equal(offers[0].stats.state, WS_DELTA_WHOLE);
    assert_true(offers[0].stats.bytes == f.bytes && offers[0].stats.n_changed == f.n_changed);
    assert_true(offers[0].n_blocks == ws_delta_blocks(d));
    assert_int_equal(f.n_records, N_RECORDS);
    struct ws_delta_link l = link_of(&w);
    assert_memory_equal(&offers[0].link, &l, sizeof(l));
    open_client(&c, &w);
    c.fetch.level = 2;
    assert_int_equal(fetch(&c), 0);
    assert_same(d, c.got, &w);
    assert_int_equal(wrong_blocks(&w, c.got), 0);
    assert_int_equal(memory_catalog_level(w.catalog), 2);
    close_client(&c);
    close_world(&w);
}

static void moves_parts(void **state)
{
    struct world w = open_world(state);
    struct client c;
    size_t before = 0;
    struct ws_delta *d = memory_catalog_whole_delta(w.catalog, MODEL, 2, 1);
    open_client(&c, &w);
    c.fetch.parts = 3;
    for (c.fetch.part = 0; c.fetch.part < 3; c.fetch.part++) {
        assert_int_equal(fetch(&c), 0);
        assert_true(atomic_load(&c.n) > before && atomic_load(&c.n) <= before + ws_delta_blocks(d) / 3 + 1);
        before = atomic_load(&c.n);
    }
    assert_int_equal(before, N_RECORDS);
    assert_same(d, c.got, &w);
    close_client(&c);
    open_client(&c, &w);
    c.fetch.parts = 64; /* more parts than blocks: an empty stream is one too */
    c.fetch.part = 63;
    assert_int_equal(fetch(&c), 0);
    assert_int_equal(atomic_load(&c.n), 0);
    close_client(&c);
    close_world(&w);
}

/* Adds block i of a whole delta to the one that grows. */
static void add(struct ws_delta *growing, const struct ws_delta *whole, size_t i)
{
    size_t at = 0;
    const struct ws_delta_record *r = NULL;
    for (size_t k = 0; k <= i; k++)
        r = ws_delta_next(whole, &at, 0, 1);
    assert_non_null(r);
    struct ws_delta_record *copy = ws_delta_record_new(r->bytes);
    memcpy(copy, r, sizeof(*r) + r->bytes);
    assert_int_equal(ws_delta_add(growing, copy), 0);
}

/* A delta like `whole`; the catalog knows only the growing one. */
static struct ws_delta *begin(struct world *w, struct ws_delta **whole)
{
    *whole = ws_delta_get(memory_catalog_whole_delta(w->catalog, MODEL, 2, 1));
    memory_catalog_drop_deltas(w->catalog);
    return memory_catalog_delta(w->catalog, MODEL, 2, 1);
}

static void comes_while_it_grows(void **state)
{
    struct world w = open_world(state);
    struct ws_delta_entry offers[WS_MAX_DELTA_ENTRIES];
    struct ws_delta *whole, *d = begin(&w, &whole);
    struct client c;
    open_client(&c, &w);
    start(&c);
    for (size_t i = 0; i < N_RECORDS; i++) { /* each one is received before the next exists */
        add(d, whole, i);
        wait_for_records(&c, i + 1);
        assert_false(atomic_load(&c.done));
    }
    assert_int_equal(offers_of(&w, 2, offers), 1);
    assert_int_equal(offers[0].stats.state, WS_DELTA_GROWING);
    ws_delta_end(d, WS_DELTA_WHOLE);
    join(&c);
    assert_int_equal(c.rc, 0);
    assert_same(whole, c.got, &w);
    close_client(&c);
    ws_delta_put(whole);
    close_world(&w);
}

static void given_up(void **state)
{
    struct world w = open_world(state);
    struct ws_delta_entry offers[WS_MAX_DELTA_ENTRIES];
    struct ws_delta *whole, *d = begin(&w, &whole);
    struct client c;
    open_client(&c, &w);
    start(&c);
    add(d, whole, 0);
    add(d, whole, 3);
    wait_for_records(&c, 2);
    ws_delta_end(d, WS_DELTA_GIVEN_UP);
    join(&c);
    assert_int_equal(c.rc, -ENODATA);
    assert_same(d, c.got, &w);
    assert_int_equal(wrong_blocks(&w, c.got), N_RECORDS - 2);
    close_client(&c);
    open_client(&c, &w); /* and once more, after it is complete */
    assert_int_equal(offers_of(&w, 2, offers), 1);
    assert_int_equal(offers[0].stats.state, WS_DELTA_GIVEN_UP);
    assert_int_equal(fetch(&c), -ENODATA);
    assert_int_equal(atomic_load(&c.n), 2);
    close_client(&c);
    ws_delta_put(whole);
    close_world(&w);
}

static int count_head(void *arg, uint64_t bytes, struct ws_error *err)
{
    (void)bytes, (void)err;
    atomic_fetch_add((atomic_uint *)arg, 1);
    return 0;
}

static int no_record(void *arg, struct ws_delta_record *r)
{
    (void)arg;
    free(r);
    return 0;
}

/* The sender passes a record on while it comes, and its own source fails: that is said, and is no connection that broke. */
static void given_up_in_a_record(void **state)
{
    struct world w = open_world(state);
    struct ws_delta *whole, *d = begin(&w, &whole);
    struct client c;
    size_t at = 0;
    atomic_uint n_heads = 0;
    const struct ws_delta_record *r = ws_delta_next(whole, &at, 0, 1);
    struct ws_delta_record *copy = ws_delta_record_new(r->bytes);
    memcpy(copy, r, sizeof(*r) + r->bytes);
    struct ws_delta_coming *coming = ws_delta_coming_begin(d, &copy);
    assert_non_null(coming);
    (void)usleep(10000); /* what comes faster waits for the whole record */
    ws_delta_coming_fill(d, coming, r->bytes / 2);
    open_client(&c, &w);
    c.fetch.sink = (struct ws_delta_stream_sink){.admit = count_head, .record = no_record, .arg = &n_heads};
    start(&c);
    for (const int64_t end = now_ms() + LONG; atomic_load(&n_heads) == 0 && now_ms() < end;)
        usleep(1000);
    assert_int_equal(atomic_load(&n_heads), 1);
    ws_delta_end(d, WS_DELTA_GIVEN_UP);
    ws_delta_coming_leave(d, coming, false);
    join(&c);
    if (c.rc != -ESTALE || !strstr(c.err.text, "gave up a record"))
        fail_msg("%d: %s", c.rc, c.err.text);
    close_client(&c);
    open_client(&c, &w); /* the lane can still be used, and the stream has a word for it between records */
    assert_int_equal(fetch(&c), -ENODATA);
    close_client(&c);
    ws_delta_put(whole);
    close_world(&w);
}

static void gone_or_another(void **state)
{
    struct world w = open_world(state);
    struct client c;
    (void)memory_catalog_whole_delta(w.catalog, MODEL, 2, 1);
    open_client(&c, &w);
    c.fetch.link.base.version = 77; /* a version that does not exist */
    assert_int_equal(fetch(&c), -ENOENT);
    c.fetch.link = link_of(&w);
    c.fetch.model = "other";
    assert_int_equal(fetch(&c), -ENOENT);
    c.fetch.model = MODEL;
    c.fetch.link.base_digest[5] ^= 1; /* of a base with this number, but other bytes */
    assert_int_equal(fetch(&c), -EBADMSG);
    c.fetch.link = link_of(&w);
    c.fetch.n_blocks++;
    assert_int_equal(fetch(&c), -EBADMSG);
    c.fetch.n_blocks--;
    memory_catalog_drop_deltas(w.catalog);
    assert_int_equal(fetch(&c), -ENOENT);
    assert_int_equal(atomic_load(&c.n), 0);
    (void)memory_catalog_whole_delta(w.catalog, MODEL, 2, 1);
    assert_int_equal(fetch(&c), 0); /* the lane can still be used */
    assert_int_equal(wrong_blocks(&w, c.got), 0);
    close_client(&c);
    close_world(&w);
}

/* The version's bytes are gone, its deltas are not. */
static void outlives_its_version(void **state)
{
    struct world w = open_world(state);
    struct client c;
    (void)memory_catalog_whole_delta(w.catalog, MODEL, 2, 1);
    memory_catalog_revoke(w.catalog, MODEL, 2, false);
    open_client(&c, &w);
    assert_int_equal(fetch(&c), 0);
    assert_int_equal(wrong_blocks(&w, c.got), 0);
    close_client(&c);
    close_world(&w);
}

static void record_can_stop(void **state)
{
    struct world w = open_world(state);
    struct client c;
    struct ws_delta *d = memory_catalog_whole_delta(w.catalog, MODEL, 2, 1);
    open_client(&c, &w);
    c.stop_after = 3;
    assert_int_equal(fetch(&c), -ECANCELED);
    assert_int_equal(atomic_load(&c.n), 3);
    close_client(&c);
    open_client(&c, &w);
    assert_int_equal(fetch(&c), 0);
    assert_same(d, c.got, &w);
    close_client(&c);
    close_world(&w);
}

static void cancelled_in_the_middle(void **state)
{
    struct world w = open_world(state);
    struct ws_delta *whole, *d = begin(&w, &whole);
    struct client c;
    for (unsigned records = 0; records < 3; records++) { /* also one that received nothing */
        open_client(&c, &w);
        if (records > 0)
            add(d, whole, records - 1);
        start(&c);
        wait_for_records(&c, records);
        if (records == 0)
            usleep(100000); /* so that it waits in its request */
        const int64_t at = now_ms();
        atomic_store(&c.cancel, true);
        join(&c);
        assert_int_equal(c.rc, -ECANCELED);
        assert_true(now_ms() - at < 30000);
        close_client(&c);
    }
    for (size_t i = 2; i < N_RECORDS; i++)
        add(d, whole, i); /* for connections that no longer exist */
    ws_delta_end(d, WS_DELTA_WHOLE);
    open_client(&c, &w);
    assert_int_equal(fetch(&c), 0);
    assert_same(whole, c.got, &w);
    close_client(&c);
    ws_delta_put(whole);
    close_world(&w);
}

/* Several clients wait for growing deltas, in parts, when the server ends: they are told soon, and it does
 * end. */
static void server_stops_in_the_middle(void **state)
{
    enum { N = 4 };
    struct world w = open_world(state);
    struct ws_delta *whole, *d = begin(&w, &whole);
    struct client c[N];
    struct ws_lane *lanes[N];
    struct world views[N];
    add(d, whole, 0);
    for (size_t i = 0; i < N; i++) {
        struct ws_error err = {0};
        assert_int_equal(ws_lane_open(w.source, &lanes[i], &err), 0);
        views[i] = w;
        views[i].lane = lanes[i];
        open_client(&c[i], &views[i]);
        start(&c[i]);
    }
    for (size_t i = 0; i < N; i++)
        wait_for_records(&c[i], 1);
    const int64_t at = now_ms();
    close_servers(&w);
    assert_true(now_ms() - at < 30000);
    for (size_t i = 0; i < N; i++) {
        join(&c[i]);
        assert_true(ws_source_is_away(c[i].rc));
        close_client(&c[i]);
        ws_lane_close(lanes[i]);
    }
    ws_delta_end(d, WS_DELTA_GIVEN_UP); /* it notifies no waiter any more */
    ws_delta_put(whole);
    close_world(&w);
}

static void there_are_none(void **state)
{
    struct world w = open_world(state);
    struct ws_delta_entry offers[WS_MAX_DELTA_ENTRIES];
    struct client c;
    (void)memory_catalog_whole_delta(w.catalog, MODEL, 2, 1);
    assert_int_equal(offers_of(&w, 2, offers), 0);
    open_client(&c, &w);
    assert_int_equal(fetch(&c), -ENOENT);
    close_client(&c);
    close_world(&w);
}

static void a_folder_has_none(void **state)
{
    char dir[64], url[96];
    struct ws_delta_entry offers[WS_MAX_DELTA_ENTRIES];
    struct ws_source *s;
    struct ws_lane *lane;
    struct ws_version_id id = ws_version_id_make(2, "r");
    struct client c = {0};
    size_t n = 7;
    (void)state;
    assert_true(private_folder(dir, sizeof(dir), "conf"));
    snprintf(url, sizeof(url), "dir:%s", dir);
    assert_int_equal(ws_source_open(url, NULL, &s, NULL), 0);
    assert_int_equal(ws_source_deltas(s, MODEL, &id, NULL, offers, &n, NULL), 0);
    assert_int_equal(n, 0);
    assert_int_equal(ws_lane_open(s, &lane, NULL), 0);
    struct ws_delta_fetch f = {.model = MODEL, .parts = 1, .sink.record = on_record, .sink.arg = &c};
    assert_int_equal(ws_lane_delta(lane, &f, &c.err), -ENOENT);
    assert_true(c.err.text[0]);
    ws_lane_close(lane);
    ws_source_close(s);
    assert_int_equal(rmdir(dir), 0);
}

/* Records that are wrong, missing, or duplicated: the manifest's hashes detect it, and another request
 * succeeds in the end. */
static void faults_are_told_by_hashes(void **state)
{
    struct world w = open_world(state);
    struct client c;
    (void)memory_catalog_whole_delta(w.catalog, MODEL, 2, 1);
    size_t best = SIZE_MAX, n_errors = 0, n_wrong = 0;
    for (unsigned tries = 0; tries < 2000 && best > 0; tries++) {
        open_client(&c, &w);
        c.fetch.sink.record = on_any_record;
        int rc = fetch(&c);
        assert_true(rc == 0 || ws_source_is_away(rc));
        n_errors += rc != 0;
        const size_t wrong = wrong_blocks(&w, c.got);
        n_wrong += rc == 0 && wrong > 0;
        best = wrong < best ? wrong : best;
        close_client(&c);
    }
    assert_int_equal(best, 0);
    print_message("%zu cut, %zu with wrong or missing records\n", n_errors, n_wrong);
    close_world(&w);
}

static struct world tcp = {.transport = "tcp"}, ipc = {.transport = "ipc"};
static struct world through = {.transport = "tcp", .faults = "seed=5,delay=1"};
static struct world faulty = {.transport = "tcp", .faults = "seed=4,cut=10,flip=10,lie=10,fail=20"};

#define CASES(world)                                                                                         \
    {"moves a whole one: " #world, moves_a_whole_one, NULL, NULL, &world},                                   \
        {"moves parts: " #world, moves_parts, NULL, NULL, &world},                                           \
        {"comes while it grows: " #world, comes_while_it_grows, NULL, NULL, &world},                         \
        {"given up: " #world, given_up, NULL, NULL, &world},                                                 \
        {"given up in a record: " #world, given_up_in_a_record, NULL, NULL, &world},                         \
        {"gone or another: " #world, gone_or_another, NULL, NULL, &world},                                   \
        {"outlives its version: " #world, outlives_its_version, NULL, NULL, &world},                         \
        {"record can stop: " #world, record_can_stop, NULL, NULL, &world},                                   \
        {"cancelled in the middle: " #world, cancelled_in_the_middle, NULL, NULL, &world},                   \
    {                                                                                                        \
        "server stops in the middle: " #world, server_stops_in_the_middle, NULL, NULL, &world                \
    }

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASES(tcp),
        CASES(through),
        {"there are none: ipc", there_are_none, NULL, NULL, &ipc},
        cmocka_unit_test(a_folder_has_none),
        {"faults are told by hashes", faults_are_told_by_hashes, NULL, NULL, &faulty},
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
