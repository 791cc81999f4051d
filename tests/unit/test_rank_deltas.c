/* Records of ranks: the agent adds what a publisher exports; of malformed or hostile input nothing wrong is
 * accepted. Which chains the records form, and what is dropped. */
#include "backends/trainer/agent/core/rank_deltas.h"
#include "backends/trainer/offload/history.h"
#include "transports/delta/encode.h"
#include <errno.h>
#include <fcntl.h>
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

#define N_BLOCKS 5
#define LAST     100000 /* bytes of the last block */
#define SIZE     ((N_BLOCKS - 1) * WS_BLOCK_BYTES + LAST)

/* Two versions of a file of bytes; some bytes of every block differ. */
struct pair {
    unsigned char *bytes[2];
    struct ws_manifest *manifests[2];
    struct ws_delta *delta;
    struct ws_workers *workers;
};

static void set_up(struct pair *p)
{
    struct ws_manifest_file *f;
    p->workers = ws_workers_new(2, 0);
    assert_non_null(p->workers);
    for (unsigned v = 0; v < 2; v++) {
        p->bytes[v] = malloc(SIZE + 8);
        assert_non_null(p->bytes[v]);
        for (size_t i = 0; i < SIZE; i++)
            p->bytes[v][i] = (unsigned char)(i * 7 + i / 1000 + (v && i % 5003 == 17));
        assert_int_equal(ws_manifest_new(&p->manifests[v], "actor", v + 1, "run1", NULL), 0);
        assert_int_equal(ws_manifest_add(p->manifests[v], "file", SIZE, 0, &f, NULL), 0);
        for (size_t b = 0; b < f->n_blocks; b++)
            f->hashes[b] = ws_hash(p->bytes[v] + b * WS_BLOCK_BYTES, ws_manifest_block_bytes(f, b));
        ws_manifest_seal(p->manifests[v]);
    }
}

static void new_delta(struct pair *p)
{
    struct ws_delta_link l = {.base = ws_version_id_make(1, "run1"), .target = ws_version_id_make(2, "run1")};
    ws_delta_put(p->delta);
    memcpy(l.base_digest, p->manifests[0]->digest, sizeof(l.base_digest));
    memcpy(l.target_digest, p->manifests[1]->digest, sizeof(l.target_digest));
    assert_int_equal(ws_delta_new(&p->delta, &l, p->manifests[1], NULL), 0);
}

static void tear_down(struct pair *p)
{
    ws_delta_put(p->delta);
    ws_workers_free(p->workers);
    for (unsigned v = 0; v < 2; v++) {
        free(p->bytes[v]);
        ws_manifest_free(p->manifests[v]);
    }
}

static void make_rest(struct pair *p)
{
    const unsigned char *a[] = {p->bytes[0]}, *b[] = {p->bytes[1]};
    const struct ws_delta_side base = {p->manifests[0], a}, target = {p->manifests[1], b};
    ws_delta_encode(p->delta, &base, &target, 0, UINT64_MAX, p->workers, NULL);
    assert_int_equal(ws_delta_state(p->delta), WS_DELTA_WHOLE);
}

/* A publisher's export of blocks 1, 2 and the last one. */
static void export(struct pair *p, json_t **list, int *fd)
{
    struct ws_history *r = ws_history_new(N_BLOCKS);
    const struct ws_version_id base = ws_version_id_make(1, "run1");
    new_delta(p);
    make_rest(p);
    assert_non_null(r);
    assert_int_equal(ws_history_begin(r, &base, NULL), 0);
    for (uint32_t b = 1; b < N_BLOCKS; b++) {
        const struct ws_delta_record *made = ws_delta_at(p->delta, 0, b);
        if (b == 3)
            continue;
        assert_non_null(made);
        ws_history_record(
            r, b, ws_delta_record_make(0, b, WS_DELTA_EDIT, made->n_changed, made->data, made->bytes, 0),
            p->manifests[0]->files[0].hashes[b]);
    }
    assert_int_equal(ws_history_export(r, list, fd, NULL), 0);
    assert_true(*fd >= 0 && json_array_size(*list) == 3);
    ws_history_free(r);
}

static void test_exported(void **state)
{
    struct pair p = {0};
    struct ws_rank_deltas *r, *other;
    unsigned char all[N_BLOCKS], *hashed[] = {all};
    json_t *list;
    int fd;
    (void)state;
    set_up(&p);
    export(&p, &list, &fd);
    struct ws_delta *own = ws_delta_get(p.delta);
    memset(all, 1, sizeof(all));
    assert_int_equal(ws_rank_deltas_read(&r, list, fd, NULL), 0);
    assert_int_equal(ws_rank_deltas_read(&other, list, fd, NULL), 0);
    close(fd);
    assert_int_equal(ws_rank_deltas_check(r, p.manifests[1], hashed, NULL), 0);
    all[2] = 0; /* of no rank */
    assert_int_equal(ws_rank_deltas_check(r, p.manifests[1], hashed, NULL), -EINVAL);
    new_delta(&p);
    assert_int_equal(ws_rank_deltas_add(r, p.delta, p.manifests[0], p.manifests[1], 0, UINT64_MAX, p.workers),
                     3);
    make_rest(&p);
    for (size_t b = 0; b < N_BLOCKS; b++) {
        const struct ws_delta_record *x = ws_delta_at(own, 0, b), *y = ws_delta_at(p.delta, 0, b);
        assert_true(x->hash == y->hash && x->bytes == y->bytes);
        assert_memory_equal(x->data, y->data, x->bytes);
    }
    /* twice the same; too many bytes; another base */
    r = ws_rank_deltas_join(r, other);
    new_delta(&p);
    assert_int_equal(ws_rank_deltas_add(r, p.delta, p.manifests[0], p.manifests[1], 1, UINT64_MAX, p.workers),
                     3);
    new_delta(&p);
    assert_int_equal(ws_rank_deltas_add(r, p.delta, p.manifests[0], p.manifests[1], 0, 0, p.workers), 0);
    p.manifests[0]->files[0].hashes[2]++;
    new_delta(&p);
    assert_int_equal(ws_rank_deltas_add(r, p.delta, p.manifests[0], p.manifests[1], 0, UINT64_MAX, p.workers),
                     2);
    assert_null(ws_delta_at(p.delta, 0, 2));
    ws_rank_deltas_free(r);
    ws_delta_put(own);
    json_decref(list);
    tear_down(&p);
}

static int file_of(const void *bytes, size_t n, int seals)
{
    int fd = memfd_create("records", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    assert_true(fd >= 0 && write(fd, bytes, n) == (ssize_t)n);
    assert_int_equal(fcntl(fd, F_ADD_SEALS, seals), 0);
    return fd;
}

#define ALL_SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE)

static int read_text(const char *text, int fd)
{
    struct ws_rank_deltas *r;
    struct ws_error err = {0};
    json_t *list = json_loads(text, JSON_DECODE_ANY, NULL);
    int rc = ws_rank_deltas_read(&r, list, fd, &err);
    json_decref(list);
    if (rc == 0)
        ws_rank_deltas_free(r);
    else
        assert_true(err.text[0]);
    return rc;
}

static void test_hostile_lists(void **state)
{
    static const char *const wrong[] = {
        "{}",
        "7",
        "[7]",
        "[[]]",
        "[[0,0,0,10]]",
        "[[0,0,0,10,7]]",
        "[[0,0,0,10,\"00\"]]",
        "[[0,0,0,10,\"000000000000000g\"]]",
        "[[0,0,0,0,\"0000000000000000\"]]",
        "[[0,0,0,93,\"0000000000000000\"]]", /* not followed by zeros */
        "[[0,0,83,10,\"0000000000000000\"]]",
        "[[0,0,-1,10,\"0000000000000000\"]]",
        "[[0,0,9223372036854775807,10,\"0000000000000000\"]]",
        "[[0,0,0,4294967296,\"0000000000000000\"]]",
        "[[-1,0,0,10,\"0000000000000000\"]]",
        "[[4294967296,0,0,10,\"0000000000000000\"]]",
        "[[0,1.5,0,10,\"0000000000000000\"]]",
        "[[0,0,\"0\",10,\"0000000000000000\"]]",
    };
    unsigned char bytes[100] = {0};
    int fd = file_of(bytes, sizeof(bytes), ALL_SEALS), open_fd = file_of(bytes, sizeof(bytes), F_SEAL_SHRINK),
        small = file_of(bytes, 7, ALL_SEALS), pipes[2];
    (void)state;
    assert_int_equal(read_text("[]", fd), 0);
    assert_int_equal(read_text("[[0,0,82,10,\"0123456789abcdef\"]]", fd), 0);
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
        assert_int_equal(read_text(wrong[i], fd), -EINVAL);
    assert_int_equal(read_text("[]", open_fd), -EINVAL);
    assert_int_equal(read_text("[]", small), -EINVAL);
    assert_int_equal(pipe(pipes), 0);
    assert_int_equal(read_text("[]", pipes[0]), -EINVAL);
    const int all[] = {fd, open_fd, small, pipes[0], pipes[1]};
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        close(all[i]);
}

/* Well-formed lists of invalid records, or of blocks that do not exist. */
static void test_hostile_records(void **state)
{
    struct pair p = {0};
    struct ws_rank_deltas *r;
    unsigned char all[N_BLOCKS], *hashed[] = {all}, bytes[4000];
    char text[200];
    (void)state;
    set_up(&p);
    memset(all, 1, sizeof(all));
    for (size_t i = 0; i < sizeof(bytes); i++)
        bytes[i] = (unsigned char)(i * 31);
    int fd = file_of(bytes, sizeof(bytes), ALL_SEALS);
    for (unsigned file = 0; file < 2; file++) {
        for (unsigned block = 0; block < N_BLOCKS + 2; block++) {
            snprintf(text, sizeof(text), "[[%u,%u,%u,%u,\"%016llx\"]]", file, block, block * 100, 3000U,
                     (unsigned long long)p.manifests[0]->files[0].hashes[block % N_BLOCKS]);
            json_t *list = json_loads(text, 0, NULL);
            assert_int_equal(ws_rank_deltas_read(&r, list, fd, NULL), 0);
            json_decref(list);
            const bool is_there = file == 0 && block < N_BLOCKS;
            assert_int_equal(ws_rank_deltas_check(r, p.manifests[1], hashed, NULL), is_there ? 0 : -EINVAL);
            new_delta(&p);
            if (is_there) {
                assert_int_equal(
                    ws_rank_deltas_add(r, p.delta, p.manifests[0], p.manifests[1], 0, UINT64_MAX, p.workers),
                    0);
                make_rest(&p);
                assert_non_null(ws_delta_at(p.delta, 0, block));
            }
            ws_rank_deltas_free(r);
        }
    }
    close(fd);
    tear_down(&p);
}

static struct ws_delta_record *any_record(uint32_t block, uint32_t bytes)
{
    unsigned char *raw = calloc(bytes, 1);
    struct ws_delta_record *r = ws_delta_record_make(0, block, WS_DELTA_EDIT, 1, raw, bytes, 0);
    free(raw);
    assert_non_null(r);
    return r;
}

static void test_chains(void **state)
{
    const struct ws_delta_record *chain[WS_MAX_DELTA_CHAIN];
    struct ws_version_id ids[20];
    struct ws_history *r = ws_history_new(3);
    (void)state;
    assert_non_null(r);
    for (unsigned i = 0; i < 20; i++)
        ids[i] = ws_version_id_make(i, "r");
    /* Block 0 changes each time, block 1 never, block 2 is unknown at the third. */
    for (unsigned v = 1; v < 12; v++) {
        assert_int_equal(ws_history_begin(r, &ids[v - 1], NULL), 0);
        ws_history_record(r, 0, any_record(0, v), 0);
        ws_history_record(r, 1, NULL, 0);
        if (v != 3)
            ws_history_record(r, 2, any_record(2, v), 0);
        assert_int_equal(ws_history_length_from(r, &ids[v]), 0);
        const size_t reach = v < 4 ? v : 4;
        for (size_t back = 1; back <= v; back++)
            assert_int_equal(ws_history_length_from(r, &ids[v - back]), back <= reach ? back : 0);
        assert_true(ws_history_chain(r, 0, reach, chain));
        for (size_t i = 0; i < reach; i++)
            assert_int_equal(chain[i]->bytes, v - reach + 1 + i);
        assert_true(ws_history_chain(r, 1, reach, chain) && !chain[0] && !chain[reach - 1]);
        assert_int_equal(ws_history_chain(r, 2, reach, chain), v < 3 || v > 6);
        assert_int_equal(ws_history_is_complete(r, 2, reach), v <= 3 || v > 6);
        ws_history_commit(r, &ids[v], 3, UINT64_MAX);
    }
    /* A version that is not committed is dropped; so is everything if a version is made from another base. */
    assert_int_equal(ws_history_begin(r, &ids[11], NULL), 0);
    ws_history_record(r, 0, any_record(0, 1), 0);
    assert_int_equal(ws_history_begin(r, &ids[11], NULL), 0);
    assert_int_equal(ws_history_length_from(r, &ids[11]), 1);
    assert_int_equal(ws_history_length_from(r, &ids[9]), 3);
    assert_false(ws_history_chain(r, 0, 1, chain));
    assert_int_equal(ws_history_begin(r, &ids[15], NULL), 0);
    assert_int_equal(ws_history_length_from(r, &ids[11]), 0);
    ws_history_record(r, 0, any_record(0, 1000), 0);
    ws_history_commit(r, &ids[16], 3, 999); /* too many bytes */
    assert_int_equal(ws_history_begin(r, &ids[16], NULL), 0);
    assert_int_equal(ws_history_length_from(r, &ids[15]), 0);
    assert_int_equal(ws_history_begin(r, &(struct ws_version_id){0}, NULL), 0); /* of no version */
    ws_history_record(r, 0, any_record(0, 5), 0);
    assert_int_equal(ws_history_length_from(r, &(struct ws_version_id){0}), 0);
    ws_history_commit(r, &ids[17], 3, 999);
    ws_history_free(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exported),
        cmocka_unit_test(test_hostile_lists),
        cmocka_unit_test(test_hostile_records),
        cmocka_unit_test(test_chains),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
