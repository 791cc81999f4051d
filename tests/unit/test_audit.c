/* Audits: all ranks that hold a piece hash it, however they hold it, and the hashes are compared; a
 * difference abandons the version and is reported with ranks, tensor and elements; shares are audited in
 * turn, each at most half of an offload. */
#include "backends/trainer/agent/agent.h"
#include "backends/trainer/tensor/audit.h"
#include "backends/trainer/wsync.h"
#include "tests/fixtures/private_folder.h"
#include "tests/fixtures/served.h"
#include "transports/ipc/client.h"
#include "transports/protocol/api.h"
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#define MAX_RANKS 4
#define ROWS      3000UL /* of 1,024: a chunk and a half */
#define COLS      1024UL

/* --- the components --- */

static void put(json_t *params, const char *name, int rows)
{
    json_array_append_new(params,
                          json_pack("{s:s,s:s,s:[ii],s:s,s:[ii],s:[ii]}", "name", name, "dtype", "BF16",
                                    "shape", rows, 1024, "kind", "box", "offset", 0, 0, "size", rows, 1024));
}

struct placed {
    struct ws_registration *regs[MAX_RANKS];
    unsigned n;
    struct ws_replicas replicas;
};

/* All hold a and b; the last one also holds c. silent: a rank without audits. */
static void place(struct placed *p, unsigned n, unsigned silent)
{
    static const struct {
        const char *name;
        int rows;
    } tensors[] = {{"a", 20480}, {"b", 1}, {"c", 2048}};
    struct ws_error err = {0};
    *p = (struct placed){.n = n};
    for (unsigned r = 0; r < n; r++) {
        json_t *params = json_array();
        for (size_t t = 0; t < (r + 1 == n ? 3U : 2U); t++)
            put(params, tensors[t].name, tensors[t].rows);
        json_t *body = json_pack("{s:o}", "params", params);
        if (r != silent)
            json_object_set_new(body, "audit", json_integer(0));
        assert_int_equal(ws_registration_from_json(body, r, &p->regs[r], &err), 0);
        json_decref(body);
    }
    for (size_t t = 0; t < 3; t++) {
        struct ws_entry *entries[MAX_RANKS];
        size_t k = 0;
        for (unsigned r = 0; r < n; r++)
            if (p->regs[r]->n_entries > t)
                entries[k++] = &p->regs[r]->entries[t];
        assert_int_equal(ws_replicas_add(&p->replicas, p->regs, entries, k, &err), 0);
    }
    ws_replicas_finish(&p->replicas, p->regs, n);
    ws_replicas_locate(&p->replicas, p->regs, n, NULL, 0);
}

static void leave(struct placed *p)
{
    for (unsigned r = 0; r < p->n; r++)
        ws_registration_free(p->regs[r]);
    ws_replicas_clear(&p->replicas);
}

static void replicas_are_found(void **state)
{
    struct placed p;
    (void)state;
    place(&p, 3, MAX_RANKS);
    assert_int_equal(p.replicas.n, 2);
    assert_int_equal(p.replicas.bytes, 3 * 2 * 1024 * 20481UL);
    assert_true(p.replicas.first_without_audits >= WS_MAX_RANKS);
    assert_int_equal(p.regs[2]->entries[2].replica, 0);
    assert_int_equal(p.regs[0]->entries[0].replica, p.regs[2]->entries[0].replica);
    assert_string_equal(ws_replicas_find(&p.replicas, p.regs[1]->entries[1].replica)->tensor.name, "b");
    assert_null(ws_replicas_find(&p.replicas, 12345));
    leave(&p);
    place(&p, 2, 1); /* a rank without audits has no replica to compare with */
    assert_int_equal(p.replicas.n, 0);
    assert_int_equal(p.replicas.first_without_audits, 1);
    leave(&p);
}

/* Each chunk is in one share of a round, and a share is at most half of the offload, or one chunk. */
static void shares_rotate(void **state)
{
    const uint64_t offload = 2 * 1024 * (20480 + 1 + 2048UL);
    struct placed p;
    (void)state;
    place(&p, 3, MAX_RANKS);
    const uint64_t n = (2 * p.replicas.bytes + offload - 1) / offload;
    unsigned seen[2][16] = {0};
    for (uint64_t turn = 0; turn < n; turn++) {
        const struct ws_replica_window w = ws_replicas_window_turn(&p.replicas, offload, turn);
        uint64_t hashed = 0;
        for (size_t i = 0; i < p.replicas.n; i++) {
            const struct ws_replica *r = &p.replicas.list[i];
            uint64_t first, k = ws_replica_chunks(r, &w, &first);
            for (uint64_t c = first; c < first + k; c++)
                seen[i][c]++;
            hashed += 3 * (k * WS_BLOCK_BYTES < r->bytes ? k * WS_BLOCK_BYTES : r->bytes);
        }
        assert_true(hashed > 0 && hashed <= offload / 2 + 3 * WS_BLOCK_BYTES);
    }
    for (size_t i = 0; i < 2; i++)
        for (uint64_t c = 0; c < (p.replicas.list[i].bytes + WS_BLOCK_BYTES - 1) / WS_BLOCK_BYTES; c++)
            assert_int_equal(seen[i][c], 1);
    const struct ws_replica_window all = ws_replicas_window_all(&p.replicas);
    for (size_t i = 0; i < 2; i++) {
        uint64_t first;
        assert_int_equal(ws_replica_chunks(&p.replicas.list[i], &all, &first),
                         (p.replicas.list[i].bytes + WS_BLOCK_BYTES - 1) / WS_BLOCK_BYTES);
        assert_int_equal(first, 0);
    }
    leave(&p);
}

static void say(struct ws_audit *a, const struct placed *p, unsigned rank, size_t entry, uint64_t chunk,
                uint64_t hash)
{
    const struct ws_audit_hash h = {p->regs[rank]->entries[entry].replica, chunk, hash, rank, 1};
    assert_int_equal(ws_audit_add(a, &h, 1, NULL), 0);
}

static void differences_are_named(void **state)
{
    struct placed p;
    struct ws_audit a = {0};
    struct ws_audit_result found;
    (void)state;
    place(&p, 3, MAX_RANKS);
    const struct ws_replica_window all = ws_replicas_window_all(&p.replicas);
    for (unsigned r = 3; r-- > 0;) {
        say(&a, &p, r, 1, 0, 7);
        for (uint64_t c = 0; c < 10; c++)
            say(&a, &p, r, 0, c, c);
    }
    ws_audit_compare(&a, &p.replicas, &all, false, &found);
    assert_int_equal(found.compared, 11);
    assert_int_equal(found.different, 0);
    assert_int_equal(found.incomplete, 0);
    assert_string_equal(found.text, "");
    for (size_t i = 0; i < a.len; i++)
        if (a.ptr[i].rank == 1 && a.ptr[i].chunk == 3)
            a.ptr[i].hash ^= 1;
    ws_audit_compare(&a, &p.replicas, &all, false, &found);
    assert_int_equal(found.different, 1);
    assert_string_equal(found.text, "elements 6291456 to 8388607 of a differ between rank 1 and rank 0, 2");
    a.len--; /* the last one in order: a rank sent nothing */
    ws_audit_compare(&a, &p.replicas, &all, false, &found);
    assert_int_equal(found.incomplete, 1);
    ws_audit_reset(&a);
    ws_audit_compare(&a, &p.replicas, &all, false, &found);
    assert_int_equal(found.incomplete, 11);
    assert_non_null(strstr(found.text, "of 3 ranks"));
    leave(&p);
}

/* Two nodes with two ranks each; all hold the same tensors. */
static void nodes_exchange_audits(void **state)
{
    static const unsigned node_of[] = {0, 0, 1, 1};
    struct placed p;
    struct ws_audit there = {0}, here = {0};
    struct ws_audit_result found;
    (void)state;
    place(&p, 4, MAX_RANKS);
    ws_replicas_locate(&p.replicas, p.regs, 4, node_of, 0);
    const struct ws_replica_window all = ws_replicas_window_all(&p.replicas);
    for (unsigned r = 0; r < 4; r++)
        say(r < 2 ? &here : &there, &p, r, 1, 0, 0xfedcba9876543210);
    json_t *said = ws_audit_to_json(&there, &p.replicas), *bad;
    assert_int_equal(json_array_size(said), 1);
    assert_int_equal(ws_audit_from_json(&here, said, NULL), 0);
    ws_audit_compare(&here, &p.replicas, &all, true, &found);
    assert_int_equal(found.compared, 1);
    assert_int_equal(found.different, 0);
    assert_int_equal(found.incomplete, 10); /* the other tensor */
    ws_audit_compare(&here, &p.replicas, &all, false, &found);
    assert_int_equal(found.incomplete, 0);
    here.ptr[here.len - 1].hash++;
    ws_audit_compare(&here, &p.replicas, &all, true, &found);
    assert_string_equal(found.text, "elements 0 to 1023 of b differ between rank 2 and 1 more and rank 0, 1");
    static const char *const wrong[] = {"[[\"0\",0,\"0000000000000001\",0,1]]",
                                        "[[\"0000000000000001\",0,\"000000000000000g\",0,1]]",
                                        "[[\"0000000000000001\",-1,\"0000000000000001\",0,1]]",
                                        "[[\"0000000000000001\",0,\"0000000000000001\",0,0]]",
                                        "[[\"0000000000000001\",0,\"0000000000000001\",1000000000,1]]",
                                        "[7]"};
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        bad = json_loads(wrong[i], 0, NULL);
        assert_int_equal(ws_audit_from_json(&here, bad, NULL), -EINVAL);
        json_decref(bad);
    }
    json_decref(said);
    ws_audit_reset(&here);
    ws_audit_reset(&there);
    leave(&p);
}

/* --- ranks --- */

struct rank {
    pthread_t thread;
    wsync_publisher *p;
    wsync_param params[4];
    size_t n;
    float *values;       /* elements of "w", [ROWS][COLS], in each rank's own layout */
    uint16_t *halves;    /* elements of "w" in rank 0's layout */
    uint16_t flat[4000]; /* of "flat" */
    uint64_t version;
    int rc;
    char text[1024];
    bool found; /* its replica of "w" was found */
};
static struct world {
    char dir[64], socket[128], url[140];
    struct ws_agent *agent, *second; /* second: rank 2's, if the trainer spans nodes */
    struct rank ranks[3];
} w;

static uint16_t bf16(uint64_t i)
{
    return (uint16_t)(0x3f80 + i % 97);
}

static float f32(uint64_t i)
{
    const uint32_t bits = (uint32_t)bf16(i) << 16;
    float f;
    memcpy(&f, &bits, sizeof(f));
    return f;
}

/* "w": rank 0 holds it as in the file, rank 1 as floats, rank 2 as transposed floats. "flat": two ranges, the
 * first held by ranks 0 and 2, the second by 1 and 2. */
static void hold(unsigned r)
{
    struct rank *k = &w.ranks[r];
    k->values = calloc(ROWS * COLS, sizeof(float));
    k->halves = calloc(ROWS * COLS, sizeof(uint16_t));
    assert_true(k->values && k->halves);
    for (uint64_t i = 0; i < ROWS; i++)
        for (uint64_t j = 0; j < COLS; j++) {
            k->values[r == 2 ? j * ROWS + i : i * COLS + j] = f32(i * COLS + j);
            k->halves[i * COLS + j] = bf16(i * COLS + j);
        }
    for (size_t i = 0; i < 4000; i++)
        k->flat[i] = bf16(3 * i);
    k->params[0] = (wsync_param){.name = "w",
                                 .dtype = WSYNC_BF16,
                                 .n_dims = 2,
                                 .shape = {ROWS, COLS},
                                 .data = r ? (void *)k->values : k->halves,
                                 .converts = r > 0,
                                 .data_dtype = WSYNC_F32};
    if (r == 2)
        k->params[0].piece = (wsync_piece){.kind = WSYNC_BOX, .size = {ROWS, COLS}, .strides = {1, ROWS}};
    k->n = 1;
    for (unsigned half = 0; half < 2; half++)
        if (r == half || r == 2)
            k->params[k->n++] = (wsync_param){
                .name = "flat",
                .dtype = WSYNC_BF16,
                .n_dims = 1,
                .shape = {4000},
                .data = k->flat + 1500 * half,
                .piece = {.kind = WSYNC_RANGE, .start = 1500 * half, .count = half ? 2500 : 1500}};
}

static void start_over(bool nodes, int audit, int warns)
{
    struct ws_error err = {0};
    char http[64], second[128], second_url[140];
    w = (struct world){0};
    assert_true(private_folder(w.dir, sizeof(w.dir), "audit"));
    snprintf(w.socket, sizeof(w.socket), "%s/sock", w.dir);
    snprintf(w.url, sizeof(w.url), "unix:%s", w.socket);
    struct ws_agent_options o = {.tcp.listen = "127.0.0.1:0",
                                 .tcp.access = {.insecure = true, .nodes = true},
                                 .socket = w.socket,
                                 .socket_gid = (gid_t)-1};
    if (ws_agent_new(&w.agent, &o, &err))
        fail_msg("%s", err.text);
    snprintf(http, sizeof(http), "http://127.0.0.1:%u", ws_agent_port(w.agent));
    snprintf(second, sizeof(second), "%s/second", w.dir);
    snprintf(second_url, sizeof(second_url), "unix:%s", second);
    o.primary = http;
    o.socket = second;
    if (nodes && ws_agent_new(&w.second, &o, &err))
        fail_msg("%s", err.text);
    for (unsigned r = 0; r < 3; r++) {
        wsync_config c = {.struct_size = sizeof(c),
                          .agent = nodes && r == 2 ? second_url : w.url,
                          .model = "m",
                          .rank = r,
                          .world_size = 3,
                          .n_threads = 2,
                          .timeout_ms = 60000,
                          .audit = audit,
                          .audit_warns = warns};
        hold(r);
        if (wsync_publisher_open(&c, &w.ranks[r].p))
            fail_msg("%s", wsync_error());
    }
}

static void start(int audit, int warns)
{
    start_over(false, audit, warns);
}

static void end(void)
{
    for (unsigned r = 0; r < 3; r++) {
        wsync_close(w.ranks[r].p);
        free(w.ranks[r].values);
        free(w.ranks[r].halves);
    }
    ws_agent_free(w.second);
    ws_agent_free(w.agent);
    (void)rmdir(w.dir);
}

static void *offload_rank(void *arg)
{
    struct rank *k = arg;
    k->rc = wsync_offload(k->p, k->params, k->n, k->version);
    snprintf(k->text, sizeof(k->text), "%s", k->rc ? wsync_error() : "");
    return NULL;
}

/* Like a trainer's loop: five versions, whatever happens to each. A rank that registers again waits for the
 * others, which do so with their next version. */
static void *offload_on(void *arg)
{
    struct rank *k = arg;
    for (unsigned i = 0; i < 5; i++, k->version++) {
        offload_rank(k);
        k->found = k->found || strstr(k->text, "of w differ between rank 1 and rank 0, 2");
    }
    return NULL;
}

static void run_all(void *(*what)(void *), uint64_t version)
{
    for (unsigned r = 0; r < 3; r++) {
        w.ranks[r].version = version;
        assert_int_equal(pthread_create(&w.ranks[r].thread, NULL, what, &w.ranks[r]), 0);
    }
    for (unsigned r = 0; r < 3; r++)
        pthread_join(w.ranks[r].thread, NULL);
}

/* Returns true if the version was published; false if it was refused, with all of the words in every rank's
 * error. */
static bool offload(uint64_t version, const char *const *words)
{
    unsigned n_refused = 0, n_published = 0;
    run_all(offload_rank, version);
    for (unsigned r = 0; r < 3; r++) {
        int rc = wsync_wait_published(w.ranks[r].p, version, 60000);
        n_published += rc == 0;
        for (; rc < 0 && words && *words; words++)
            if (!strstr(wsync_error(), *words))
                fail_msg("'%s' is not in: %s", *words, wsync_error());
        if (w.ranks[r].rc < 0) {
            assert_int_equal(w.ranks[r].rc, -ECANCELED);
            n_refused++;
        }
    }
    if (n_published == 0)
        assert_true(n_refused == 1 || w.second); /* the last to commit; over nodes any that had not yet */
    else
        assert_int_equal(n_published, 3);
    return n_published == 3;
}

#define WORDS(...) ((const char *const[]){__VA_ARGS__, NULL})

static void equal_ones_are_published(void **state)
{
    uint64_t n;
    struct ws_error err = {0};
    (void)state;
    start(1, 0);
    for (uint64_t v = 1; v <= 3; v++)
        assert_true(offload(v, NULL));
    unsigned char *file = served_file(w.url, "m", 3, &n, &err);
    if (!file)
        fail_msg("%s", err.text);
    free(file);
    end();
}

static void diverged_ones_are_refused(void **state)
{
    (void)state;
    start(0, 0);
    w.ranks[2].values[5 * ROWS + 2999] += 1; /* row 2999, column 5: in the second chunk */
    assert_false(offload(
        1, WORDS("replicas differ", "of w differ between rank 2 and rank 0, 1", "2097152 to 3071999")));
    w.ranks[2].values[5 * ROWS + 2999] = f32(2999 * COLS + 5);
    w.ranks[1].flat[2000]++; /* the second range begins at 1500 */
    assert_false(offload(2, WORDS("differ between rank", "elements 1500 to 3999 of flat")));
    w.ranks[1].flat[2000]--;
    assert_true(offload(3, NULL));
    w.ranks[1].flat[2000]++; /* later ones are not checked */
    assert_true(offload(4, NULL));
    end();
}

static void audits_may_warn_or_be_off(void **state)
{
    (void)state;
    start(0, 1);
    w.ranks[1].values[7] += 1;
    assert_true(offload(1, NULL));
    end();
    start(WSYNC_NO_AUDIT, 0);
    w.ranks[1].values[7] += 1;
    assert_true(offload(1, NULL));
    end();
}

/* A share of every second version is audited: a divergence is found within one round of shares. */
static void later_ones_are_audited(void **state)
{
    uint64_t v = 1;
    unsigned n_refused = 0;
    (void)state;
    start(2, 0);
    assert_true(offload(v++, NULL));
    w.ranks[1].values[7] += 1;
    for (; v < 40 && n_refused == 0; v++)
        if (!offload(v, WORDS("of w differ between rank 1 and rank 0, 2")))
            n_refused++;
    assert_int_equal(n_refused, 1);
    assert_false(offload(v++, WORDS("replicas differ"))); /* not published: the same share again */
    w.ranks[1].values[7] = f32(7);
    assert_true(offload(v, NULL));
    end();
}

/* A rank restarts with an additional tensor: the first version that all offload afterwards is audited
 * completely. A version that the others had begun before is abandoned for that reason. */
static void a_registration_is_audited(void **state)
{
    (void)state;
    start(0, 0);
    assert_true(offload(1, NULL));
    w.ranks[1].values[7] += 1;
    assert_true(offload(2, NULL));
    static const uint16_t more[3] = {1, 2, 3};
    w.ranks[0].params[w.ranks[0].n++] =
        (wsync_param){.name = "more", .dtype = WSYNC_BF16, .n_dims = 1, .shape = {3}, .data = more};
    bool found = false;
    run_all(offload_on, 3);
    for (unsigned r = 0; r < 3; r++)
        found = found || w.ranks[r].found;
    assert_true(found);
    end();
}

/* Ranks 0 and 1 on one node, 2 on another: differences that show only between the nodes. */
static void nodes_are_compared(void **state)
{
    (void)state;
    start_over(true, 0, 0);
    w.ranks[2].values[5 * ROWS + 2999] += 1;
    assert_false(offload(
        1, WORDS("replicas differ", "elements 2097152 to 3071999 of w differ between rank 2 and rank 0")));
    w.ranks[2].values[5 * ROWS + 2999] = f32(2999 * COLS + 5);
    w.ranks[0].halves[9]++; /* of one node's ranks */
    assert_false(offload(2, WORDS("replicas differ", "of w differ between rank")));
    w.ranks[0].halves[9]--;
    assert_true(offload(3, NULL));
    w.ranks[2].values[0] += 1; /* later ones are not checked */
    assert_true(offload(4, NULL));
    end();
}

/* --- an older library --- */

static json_t *call(int sock, const char *verb, json_t *body)
{
    struct ws_error err = {0};
    char path[64];
    int fds[8];
    size_t n = 0;
    json_t *reply = NULL;
    snprintf(path, sizeof(path), "/v1/local/%s", verb);
    if (ws_ipc_call(sock, "POST", path, body, NULL, 0, 60000, &reply, fds, 8, &n, &err) < 0)
        fail_msg("%s: %s", verb, err.text);
    while (n > 0)
        close(fds[--n]);
    json_decref(body);
    return reply;
}

static void *register_raw(void *arg)
{
    const int *sock = arg;
    json_t *params = json_array();
    put(params, "a", 4);
    json_decref(call(*sock, "register",
                     json_pack("{s:i,s:s,s:i,s:i,s:o}", "api", WS_LOCAL_API, "model", "old", "rank", 1,
                               "world_size", 2, "params", params)));
    return NULL;
}

/* One rank's library has no audits: the other rank is not asked for any, and the version is published. */
static void an_old_library_publishes_without_audits(void **state)
{
    struct ws_error err = {0};
    static uint16_t values[4 * 1024];
    pthread_t thread;
    int sock;
    (void)state;
    start(0, 0);
    assert_int_equal(ws_ipc_connect(w.url, &sock, &err), 0);
    assert_int_equal(pthread_create(&thread, NULL, register_raw, &sock), 0);
    wsync_config c = {.struct_size = offsetof(wsync_config, audit), /* with the structure's old size */
                      .agent = w.url,
                      .model = "old",
                      .world_size = 2,
                      .timeout_ms = 60000};
    const wsync_param param = {
        .name = "a", .dtype = WSYNC_BF16, .n_dims = 2, .shape = {4, 1024}, .data = values};
    wsync_publisher *p;
    assert_int_equal(wsync_publisher_open(&c, &p), 0);
    if (wsync_register(p, &param, 1) < 0)
        fail_msg("%s", wsync_error());
    pthread_join(thread, NULL);
    json_t *begun = call(sock, "begin", json_pack("{s:i,s:s}", "version", 1, "run", wsync_run(p)));
    assert_int_equal(json_array_size(json_object_get(begun, "audit")), 0);
    json_decref(begun);
    if (wsync_offload(p, &param, 1, 1) < 0)
        fail_msg("%s", wsync_error());
    json_decref(call(sock, "commit", json_pack("{s:[]}", "hashes")));
    if (wsync_wait_published(p, 1, 60000) < 0)
        fail_msg("%s", wsync_error());
    wsync_close(p);
    close(sock);
    end();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(replicas_are_found),
        cmocka_unit_test(shares_rotate),
        cmocka_unit_test(differences_are_named),
        cmocka_unit_test(nodes_exchange_audits),
        cmocka_unit_test(equal_ones_are_published),
        cmocka_unit_test(diverged_ones_are_refused),
        cmocka_unit_test(audits_may_warn_or_be_off),
        cmocka_unit_test(later_ones_are_audited),
        cmocka_unit_test(a_registration_is_audited),
        cmocka_unit_test(nodes_are_compared),
        cmocka_unit_test(an_old_library_publishes_without_audits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
