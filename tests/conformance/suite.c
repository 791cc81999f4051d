#include "tests/conformance/suite.h"
#include "tests/fixtures/unwatched.h"
#include "transports/protocol/api.h"
#include "transports/simd/copy.h"
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

#define B WS_BLOCK_BYTES

static struct world make(void **state)
{
    return *(const struct world *)*state;
}

/* --- helpers --- */

int64_t now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

struct ws_manifest *get_manifest(struct world *w, unsigned version)
{
    struct ws_error err = {0};
    struct ws_manifest *m = NULL;
    json_t *models = NULL;
    for (int tries = 0; tries < 50; tries++) {
        if (!models && ws_source_models(w->source, NULL, 0, 0, NULL, &models, &err))
            continue;
        if (ws_source_manifest(w->source, WORLD_MODEL, version, NULL, NULL, &m, &err) == 0)
            break;
    }
    json_decref(models);
    if (!m)
        fail_msg("no manifest: %s", err.text);
    return m;
}

int on_block(void *arg, size_t block, uint64_t hash)
{
    struct arrival *a = arg;
    assert_true(block < a->file->n_blocks);
    /* the reported hash is that of the stored bytes, unless the transport lies on purpose */
    if (hash == a->file->hashes[block]) {
        if (ws_hash(a->dst + block * B, ws_manifest_block_bytes(a->file, block)) == hash)
            a->good[block]++;
        else
            a->bad += 1000; /* a right hash over wrong bytes, which must never happen */
    } else {
        a->bad++;
    }
    return a->stop_after && --a->stop_after == 0;
}

/* Fetches a file until every block was right once; bounded. */
static void fetch_whole(struct world *w, const struct ws_manifest *m, size_t file)
{
    const struct ws_manifest_file *f = &m->files[file];
    struct arrival a = {.file = f, .dst = malloc(f->size_bytes + 1)};
    struct ws_lane *lane = NULL;
    struct ws_error err = {0};
    _Atomic(uint64_t) came = 0; /* used by a mount to compare its sources */
    if (f->n_blocks == 0) {
        free(a.dst);
        return;
    }
    assert_int_equal(ws_lane_open(w->source, &lane, &err), 0);
    for (int tries = 0; tries < 400; tries++) {
        size_t first = 0, n = 0;
        while (first < f->n_blocks && a.good[first])
            first++;
        if (first == f->n_blocks)
            break;
        while (first + n < f->n_blocks && !a.good[first + n]) /* a good one could come anew, and wrong */
            n++;
        struct ws_fetch q = {.manifest = m,
                             .file = file,
                             .first = first,
                             .n = n,
                             .dst = a.dst,
                             .block = on_block,
                             .arg = &a,
                             .came = &came};
        int rc = ws_lane_fetch(lane, &q, &err);
        if (!w->faults)
            assert_int_equal(rc, 0);
    }
    if (!w->faults)
        assert_int_equal(came, f->size_bytes);
    for (size_t i = 0; i < f->n_blocks; i++)
        assert_true(a.good[i] > 0);
    assert_true(a.bad < 1000);
    if (!w->faults)
        assert_int_equal(a.bad, 0);
    for (size_t i = 0; i < f->n_blocks; i++)
        assert_int_equal(ws_hash(a.dst + i * B, ws_manifest_block_bytes(f, i)), f->hashes[i]);
    ws_lane_close(lane);
    free(a.dst);
}

/* --- cases --- */

void lists_models(void **state)
{
    struct world w = make(state);
    world_open(&w, NULL);
    world_publish(&w, 1, 1);
    world_publish(&w, 2, 2);
    struct ws_manifest *m = get_manifest(&w, 2);
    assert_string_equal(m->model, WORLD_MODEL);
    assert_int_equal(m->version, 2);
    ws_manifest_free(m);
    json_t *models;
    struct ws_error err = {0};
    int rc = -1;
    for (int i = 0; rc && i < 50; i++)
        rc = ws_source_models(w.source, NULL, 0, 0, NULL, &models, &err);
    assert_int_equal(rc, 0);
    const json_t *one = json_array_get(json_object_get(models, "models"), 0);
    assert_string_equal(json_string_value(json_object_get(one, "name")), WORLD_MODEL);
    assert_int_equal(json_integer_value(json_object_get(one, "newest")), 2);
    assert_int_equal(json_array_size(json_object_get(one, "versions")), 2);
    json_decref(models);
    world_close(&w);
}

static void *publish_soon(void *arg)
{
    struct world *w = arg;
    usleep(200000);
    world_publish(w, 7, 7);
    return NULL;
}

void long_poll_wakes(void **state)
{
    struct world w = make(state);
    struct ws_error err = {0};
    json_t *models;
    world_open(&w, NULL);
    world_publish(&w, 1, 1);
    int rc = -1;
    for (int i = 0; rc && i < 50; i++)
        rc = ws_source_models(w.source, NULL, 0, 0, NULL, &models, &err);
    assert_int_equal(rc, 0);
    uint64_t seq = (uint64_t)json_integer_value(json_object_get(models, "seq"));
    json_decref(models);
    /* nothing new: it times out with the same state */
    int64_t start = now_ms();
    rc = ws_source_models(w.source, NULL, seq, 300, NULL, &models, &err);
    if (rc == 0) {
        assert_int_equal(json_integer_value(json_object_get(models, "seq")), seq);
        assert_true(now_ms() - start >= 250);
        json_decref(models);
    } else {
        assert_non_null(w.faults);
    }
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, publish_soon, &w), 0);
    rc = -1;
    for (int i = 0; i < 50; i++) {
        rc = ws_source_models(w.source, NULL, seq, 20000, NULL, &models, &err);
        if (rc == 0 && (uint64_t)json_integer_value(json_object_get(models, "seq")) > seq)
            break;
        if (rc == 0)
            json_decref(models);
        rc = -1;
    }
    pthread_join(thread, NULL);
    assert_int_equal(rc, 0);
    const json_t *one = json_array_get(json_object_get(models, "models"), 0);
    assert_int_equal(json_integer_value(json_object_get(one, "newest")), 7);
    json_decref(models);
    world_close(&w);
}

void cancel_ends_a_poll(void **state)
{
    struct world w = make(state);
    struct ws_error err = {0};
    atomic_bool cancel = true;
    json_t *models = NULL;
    world_open(&w, NULL);
    world_publish(&w, 1, 1);
    int64_t start = now_ms();
    if (ws_source_models(w.source, NULL, 1000, 60000, &cancel, &models, &err) == 0)
        json_decref(models);
    assert_true(now_ms() - start < 30000);
    world_close(&w);
}

void moves_every_byte(void **state)
{
    struct world w = make(state);
    world_open(&w, NULL);
    world_publish(&w, 3, 5);
    struct ws_manifest *m = get_manifest(&w, 3);
    for (size_t i = 0; i < m->n_files; i++)
        fetch_whole(&w, m, i);
    ws_manifest_free(m);
    world_close(&w);
}

void moves_one_block(void **state)
{
    struct world w = make(state);
    struct ws_error err = {0};
    world_open(&w, NULL);
    world_publish(&w, 3, 5);
    struct ws_manifest *m = get_manifest(&w, 3);
    const struct ws_manifest_file *f = &m->files[0];
    assert_true(f->n_blocks == 3);
    struct arrival a = {.file = f, .dst = calloc(1, f->size_bytes + B)};
    memset(a.dst, 0xEE, f->size_bytes + B);
    struct ws_lane *lane;
    assert_int_equal(ws_lane_open(w.source, &lane, &err), 0);
    struct ws_fetch q = {
        .manifest = m, .file = 0, .first = 1, .n = 1, .dst = a.dst, .block = on_block, .arg = &a};
    for (int i = 0; i < 100 && !a.good[1]; i++)
        (void)!ws_lane_fetch(lane, &q, &err);
    assert_true(a.good[1] && !a.good[0] && !a.good[2]);
    for (size_t i = 0; i < B; i++) { /* nothing else was written */
        assert_int_equal(a.dst[i], 0xEE);
        assert_int_equal(a.dst[2 * B + i], 0xEE);
    }
    ws_lane_close(lane);
    free(a.dst);
    ws_manifest_free(m);
    world_close(&w);
}

/* A fetch whose blocks do not lie in memory as they do in their file. */
struct scattered {
    const struct ws_manifest_file *file;
    unsigned char *buffer;
    unsigned char *stored; /* the file, as its pieces came; NULL: no piece is taken */
    uint64_t pieces_end;   /* of the pieces of this block */
    bool good[MAX_BLOCKS];
};

static void on_piece(void *arg, struct ws_hasher *h, uint64_t at, const unsigned char *bytes, size_t n)
{
    struct scattered *s = arg;
    assert_true(n > 0 && at + n <= s->file->size_bytes && (at % B == 0 || at == s->pieces_end));
    memcpy(s->stored + at, bytes, n);
    ws_hasher_add(h, bytes, n);
    s->pieces_end = at + n;
}

static int on_scattered(void *arg, size_t block, uint64_t hash)
{
    struct scattered *s = arg;
    const size_t n = ws_manifest_block_bytes(s->file, block);
    const bool by_pieces = s->stored && s->pieces_end == block * B + n;
    s->good[block] = s->good[block] || (hash == s->file->hashes[block] &&
                                        ws_hash(by_pieces ? s->stored + block * B : s->buffer, n) == hash);
    s->pieces_end = 0;
    return 0;
}

void blocks_go_elsewhere(void **state)
{
    struct world w = make(state);
    struct ws_error err = {0};
    world_open(&w, NULL);
    world_publish(&w, 3, 5);
    struct ws_manifest *m = get_manifest(&w, 3);
    struct ws_lane *lane;
    assert_int_equal(ws_lane_open(w.source, &lane, &err), 0);
    for (int by_pieces = 0; by_pieces < 2; by_pieces++) {
        struct scattered s = {.file = &m->files[0], .buffer = malloc(B)};
        s.stored = by_pieces ? malloc(s.file->size_bytes) : NULL;
        size_t first = 0;
        for (int tries = 0; tries < 400 && first < s.file->n_blocks; tries++) {
            struct ws_fetch q = {.manifest = m,
                                 .file = 0,
                                 .first = first,
                                 .n = s.file->n_blocks - first,
                                 .dst = s.buffer,
                                 .one_block = true,
                                 .store = by_pieces ? on_piece : NULL,
                                 .block = on_scattered,
                                 .arg = &s};
            s.pieces_end = 0;
            (void)!ws_lane_fetch(lane, &q, &err);
            while (first < s.file->n_blocks && s.good[first])
                first++;
        }
        assert_int_equal(first, s.file->n_blocks);
        free(s.stored);
        free(s.buffer);
    }
    ws_lane_close(lane);
    ws_manifest_free(m);
    world_close(&w);
}

void block_can_stop(void **state)
{
    struct world w = make(state);
    struct ws_error err = {0};
    world_open(&w, NULL);
    world_publish(&w, 3, 5);
    struct ws_manifest *m = get_manifest(&w, 3);
    struct arrival a = {.file = &m->files[0], .dst = malloc(m->files[0].size_bytes), .stop_after = 1};
    struct ws_lane *lane;
    assert_int_equal(ws_lane_open(w.source, &lane, &err), 0);
    struct ws_fetch q = {
        .manifest = m, .file = 0, .first = 0, .n = 3, .dst = a.dst, .block = on_block, .arg = &a};
    assert_true(ws_lane_fetch(lane, &q, &err) < 0);
    assert_true(a.good[0] + a.good[1] + a.good[2] + a.bad <= 1);
    a.stop_after = 0;
    /* the lane can still be used */
    for (int i = 0; i < 200 && !(a.good[0] && a.good[1] && a.good[2]); i++)
        (void)!ws_lane_fetch(lane, &q, &err);
    assert_true(a.good[0] && a.good[1] && a.good[2]);
    ws_lane_close(lane);
    free(a.dst);
    ws_manifest_free(m);
    world_close(&w);
}

void unknown_is_not_there(void **state)
{
    struct world w = make(state);
    struct ws_error err = {0};
    struct ws_manifest *m = NULL;
    if (w.faults)
        skip();
    world_open(&w, NULL);
    world_publish(&w, 1, 1);
    assert_int_equal(ws_source_manifest(w.source, WORLD_MODEL, 99, NULL, NULL, &m, &err), -ENOENT);
    assert_int_equal(ws_source_manifest(w.source, "other", 1, NULL, NULL, &m, &err), -ENOENT);
    assert_true(strlen(err.text) > 3);
    world_close(&w);
}

void maps_or_says_that_it_cannot(void **state)
{
    struct world w = make(state);
    struct ws_error err = {0};
    struct ws_region *regions[8] = {0};
    world_open(&w, NULL);
    world_publish(&w, 4, 4);
    struct ws_manifest *m = get_manifest(&w, 4);
    int rc = -1;
    for (int i = 0; i < 50 && rc != 0 && rc != -ENOTSUP; i++)
        rc = ws_source_map(w.source, m, regions, &err);
    if (strcmp(w.transport, "ipc") != 0) {
        assert_int_equal(rc, -ENOTSUP);
    } else {
        assert_int_equal(rc, 0);
        assert_int_equal(memory_catalog_leases(w.catalog), 1);
        for (size_t i = 0; i < m->n_files; i++) {
            if (m->files[i].size_bytes == 0) {
                assert_null(regions[i]);
                continue;
            }
            assert_memory_equal(ws_region_data(regions[i]),
                                memory_catalog_bytes(w.catalog, WORLD_MODEL, 4, i), m->files[i].size_bytes);
            assert_true(pwrite(ws_region_fd(regions[i]), "x", 1, 0) < 0); /* read-only */
            ws_region_free(regions[i]);
        }
        ws_source_unmap(w.source, WORLD_MODEL, 4, m->lineage);
        assert_int_equal(memory_catalog_leases(w.catalog), 0);
    }
    ws_manifest_free(m);
    world_close(&w);
}

void reports_arrive(void **state)
{
    struct world w = make(state);
    struct ws_error err = {0};
    json_t *body = json_pack("{s:s,s:b}", "host", "h", "ok", 1), *reply = NULL;
    char path[WS_API_PATH_BYTES];
    world_open(&w, NULL);
    world_publish(&w, 1, 1);
    int rc = -1;
    ws_api_version_path(path, "loaded", WORLD_MODEL, 1, NULL, "testrun");
    for (int i = 0; rc && rc != -ENOTSUP && i < 50; i++)
        rc = ws_source_call(w.source, "POST", path, body, &reply, &err);
    assert_int_equal(rc, w.catalog ? 0 : -ENOTSUP); /* a folder does not listen */
    json_decref(reply);
    if (w.catalog)
        assert_true(memory_catalog_reports(w.catalog) >= 1);
    json_decref(body);
    world_close(&w);
}

/* --- events during a transfer --- */

struct slow {
    struct world *w;
    struct arrival arrival;
    const struct ws_manifest *m;
    int rc;
    size_t seen;
};

static int slow_block(void *arg, size_t block, uint64_t hash)
{
    struct slow *s = arg;
    if (s->seen++ == 0) {
        if (s->w->catalog)
            memory_catalog_revoke(s->w->catalog, WORLD_MODEL, 5, true);
        usleep(50000);
    }
    return on_block(&s->arrival, block, hash);
}

void revoked_in_the_middle(void **state)
{
    struct world w = make(state);
    struct ws_error err = {0};
    if (w.faults || (strcmp(w.transport, "tcp") != 0 && strcmp(w.transport, "ucx") != 0))
        skip(); /* others do not support revocable leases */
    world_open(&w, NULL);
    uint64_t big[] = {10 * B};
    memory_catalog_publish(w.catalog, WORLD_MODEL, 5, big, 1, 5);
    struct ws_manifest *m = get_manifest(&w, 5);
    struct slow s = {.w = &w, .m = m, .arrival = {.file = &m->files[0], .dst = malloc(big[0])}};
    struct ws_lane *lane;
    assert_int_equal(ws_lane_open(w.source, &lane, &err), 0);
    struct ws_fetch q = {
        .manifest = m, .file = 0, .first = 0, .n = 10, .dst = s.arrival.dst, .block = slow_block, .arg = &s};
    assert_true(ws_lane_fetch(lane, &q, &err) < 0 || s.arrival.bad > 0);
    assert_true(s.arrival.bad < 1000);
    assert_int_equal(ws_lane_fetch(lane, &q, &err), -ESTALE); /* 410 */
    ws_lane_close(lane);
    for (int i = 0; i < 1000 && memory_catalog_leases(w.catalog); i++)
        usleep(10000);
    assert_int_equal(memory_catalog_leases(w.catalog), 0);
    free(s.arrival.dst);
    ws_manifest_free(m);
    world_close(&w);
}

void server_dies_between(void **state)
{
    struct world w = make(state);
    struct ws_error err = {0};
    if (w.faults || !make(state).transport || strcmp(w.transport, "dir") == 0)
        skip();
    world_open(&w, NULL);
    world_publish(&w, 1, 1);
    struct ws_manifest *m = get_manifest(&w, 1);
    struct arrival a = {.file = &m->files[0], .dst = malloc(m->files[0].size_bytes)};
    struct ws_lane *lane;
    assert_int_equal(ws_lane_open(w.source, &lane, &err), 0);
    world_close_servers(&w);
    struct ws_fetch q = {
        .manifest = m, .file = 0, .first = 0, .n = 3, .dst = a.dst, .block = on_block, .arg = &a};
    int64_t start = now_ms();
    assert_true(ws_lane_fetch(lane, &q, &err) < 0);
    assert_true(now_ms() - start < 30000);
    assert_true(strlen(err.text) > 10);
    json_t *models;
    assert_true(ws_source_models(w.source, NULL, 0, 0, NULL, &models, &err) < 0);
    ws_lane_close(lane);
    free(a.dst);
    ws_manifest_free(m);
    world_close(&w);
}
