/* The slots of a publisher's versions at a real agent in this process: refusals of memory name its users,
 * readers keep their slots, and ranks of 0.1.0 keep mappings that the agent cannot revoke. */
#include "backends/trainer/wsync.h"
#include "tests/fixtures/publishing.h"
#include "transports/ipc/client.h"
#include "transports/memory/region_file.h"
#include "transports/protocol/api.h"
#include "transports/transport.h"
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static void memory_is_refused(void **state)
{
    struct publishing w;
    static struct publishing_model m;
    (void)state;
    publishing_start(&w, 1000);
    wsync_config c = publishing_config(w.url, 0, 1);
    wsync_publisher *p = publishing_open(&c);
    const wsync_param params[] = {publishing_matrix(m.matrix), publishing_flat(m.flat)};
    assert_int_equal(wsync_offload(p, params, 2, 1), -ENOMEM);
    assert_non_null(strstr(wsync_error(), "1000"));
    wsync_close(p);
    publishing_end(&w);
}

/* The refusal names which memory is missing. */
static void memory_has_names(void **state)
{
    struct publishing w;
    struct ws_error err = {0};
    int reader, fds[4]; /* of 0.1.0, which cannot use copies */
    size_t n = 0;
    static struct publishing_model m;
    char pid[64];
    (void)state;
    publishing_start(&w, 3 * sizeof(m) / 2);
    wsync_config c = publishing_config(w.url, 0, 1);
    wsync_publisher *p = publishing_open(&c), *other;
    c.model = "n";
    other = publishing_open(&c);
    publishing_offload(p, 7);
    assert_int_equal(ws_ipc_connect(w.url, &reader, &err), 0);
    if (ws_ipc_call(reader, "GET", "/v1/m/7/map", NULL, NULL, 0, 60000, NULL, fds, 4, &n, &err) < 0)
        fail_msg("%s", err.text);
    const wsync_param params[] = {publishing_matrix(m.matrix), publishing_flat(m.flat)};
    assert_int_equal(wsync_offload(other, params, 2, 1), -ENOMEM);
    assert_non_null(strstr(wsync_error(), "; m has 1 of "));
    snprintf(pid, sizeof(pid), ", version 7 held by ipc pid %d of wsync 0.1.0)", (int)getpid());
    assert_non_null(strstr(wsync_error(), pid));
    while (n > 0)
        close(fds[--n]);
    close(reader);
    wsync_close(other);
    wsync_close(p);
    publishing_end(&w);
}

/* A rank's request as on the wire; its answer is ignored. */
static int raw(int sock, const char *verb, json_t *body, struct ws_error *err)
{
    char path[64];
    int fds[4];
    size_t n = 0;
    json_t *reply = NULL;
    snprintf(path, sizeof(path), "/v1/local/%s", verb);
    int rc = ws_ipc_call(sock, "POST", path, body, NULL, 0, 60000, &reply, fds, 4, &n, err);
    while (n > 0)
        close(fds[--n]);
    json_decref(reply);
    json_decref(body);
    return rc;
}

/* The version is abandoned, with the reason, and the same connection can write the next one. */
static void a_refused_commit_ends_its_version(void **state)
{
    struct publishing w;
    struct ws_error err = {0};
    int sock;
    (void)state;
    publishing_start(&w, 0);
    assert_int_equal(ws_ipc_connect(w.url, &sock, &err), 0);
    json_t *params = json_pack("[{s:s,s:s,s:[i]}]", "name", "a", "dtype", "U8", "shape", 64);
    assert_int_equal(
        raw(sock, "register",
            json_pack("{s:i,s:s,s:s,s:o}", "api", WS_LOCAL_API, "model", "m", "run", "r", "params", params),
            &err),
        0);
    for (int version = 1; version <= 2; version++) {
        assert_int_equal(raw(sock, "begin", json_pack("{s:i,s:s}", "version", version, "run", "r"), &err), 0);
        assert_int_equal(raw(sock, "commit",
                             json_pack("{s:[[i,i,s]]}", "hashes", 0, version == 1 ? 0 : 99,
                                       version == 1 ? "no" : "0123456789abcdef"),
                             &err),
                         -EINVAL);
        assert_non_null(strstr(err.text, "was abandoned: the commit of rank 0 was refused: a block's hash"));
    }
    assert_int_equal(raw(sock, "commit", json_pack("{s:[]}", "hashes"), &err), -EINVAL);
    assert_non_null(strstr(err.text, "nothing is begun"));
    if (raw(sock, "begin", json_pack("{s:i,s:s}", "version", 3, "run", "r"), &err) < 0 ||
        raw(sock, "commit", json_pack("{s:[]}", "hashes"), &err) < 0 ||
        raw(sock, "wait", json_pack("{s:i,s:s,s:s}", "version", 3, "run", "r", "what", "published"), &err) <
            0)
        fail_msg("%s", err.text);
    close(sock);
    publishing_end(&w);
}

/* A rank of 0.1.0 keeps the memory of its slots mapped and cannot release it: readers that support copies get
 * copies, so that the memory is reused; readers of 0.1.0 still get descriptors. */
static void old_ranks_keep_slots(void **state)
{
    struct publishing w;
    struct ws_error err = {0};
    struct ws_source *s;
    struct ws_region *regions[4];
    struct ws_manifest *m;
    struct stat memory[6];
    int sock, old, fds[4];
    size_t n;
    (void)state;
    publishing_start(&w, 0);
    assert_int_equal(ws_ipc_connect(w.url, &sock, &err), 0);
    json_t *params = json_pack("[{s:s,s:s,s:[i]}]", "name", "a", "dtype", "U8", "shape", 64);
    assert_int_equal(
        raw(sock, "register",
            json_pack("{s:i,s:s,s:s,s:o}", "api", WS_LOCAL_API, "model", "m", "run", "r", "params", params),
            &err),
        0);
    assert_int_equal(ws_source_open(w.url, NULL, &s, &err), 0);
    for (int v = 1; v <= 5; v++) {
        json_t *begin = json_pack("{s:i,s:s,s:b}", "version", v, "run", "r", "keep", 1), *reply;
        n = 0;
        if (ws_ipc_call(sock, "POST", "/v1/local/begin", begin, NULL, 0, 60000, &reply, fds, 4, &n, &err))
            fail_msg("%s", err.text);
        json_decref(begin);
        json_decref(reply);
        assert_int_equal(n, 1);
        assert_int_equal(fstat(fds[0], &memory[v]), 0);
        close(fds[0]);
        if (raw(sock, "commit", json_pack("{s:[]}", "hashes"), &err) < 0 ||
            raw(sock, "wait", json_pack("{s:i,s:s,s:s}", "version", v, "run", "r", "what", "published"),
                &err) < 0 ||
            ws_source_manifest(s, "m", (uint64_t)v, NULL, NULL, &m, &err) < 0)
            fail_msg("%s", err.text);
        assert_int_equal(ws_source_map(s, m, regions, &err), -EOPNOTSUPP);
        ws_manifest_free(m);
    }
    for (int v = 3; v <= 5; v++)
        assert_int_equal(memory[v].st_ino, memory[v - 2].st_ino);
    assert_int_equal(ws_ipc_connect(w.url, &old, &err), 0);
    n = 0;
    if (ws_ipc_call(old, "GET", "/v1/m/5/map?run=r", NULL, NULL, 0, 60000, NULL, fds, 4, &n, &err) < 0)
        fail_msg("%s", err.text);
    assert_int_equal(n, 1);
    close(fds[0]);
    close(old);
    ws_source_close(s);
    close(sock);
    publishing_end(&w);
}

/* Mappings that it keeps of slots that were laid out again stop neither the rank, as with an agent of 0.1.0,
 * nor another model. */
static void old_ranks_change_layouts(void **state)
{
    enum { SLOT = 4 << 20 };
    struct publishing w;
    struct ws_error err = {0};
    struct ws_region *kept[7] = {0};
    int sock, fds[4];
    (void)state;
    publishing_start(&w, 5 * SLOT / 2);
    assert_int_equal(ws_ipc_connect(w.url, &sock, &err), 0);
    for (int v = 1; v <= 6; v++) {
        json_t *params =
            json_pack("[{s:s,s:s,s:[i]}]", "name", v < 4 ? "a" : "b", "dtype", "U8", "shape", SLOT - 65536);
        json_t *begin = json_pack("{s:i,s:s,s:b}", "version", v, "run", "r", "keep", 1), *reply;
        struct stat st;
        size_t n = 0;
        if (raw(sock, "register",
                json_pack("{s:i,s:s,s:s,s:o}", "api", WS_LOCAL_API, "model", "m", "run", "r", "params",
                          params),
                &err) ||
            ws_ipc_call(sock, "POST", "/v1/local/begin", begin, NULL, 0, 60000, &reply, fds, 4, &n, &err))
            fail_msg("version %d: %s", v, err.text);
        json_decref(begin);
        json_decref(reply);
        assert_int_equal(n, 1);
        assert_int_equal(fstat(fds[0], &st), 0);
        if (ws_region_import(&kept[v], fds[0], (uint64_t)st.st_size, true, &err) ||
            raw(sock, "commit", json_pack("{s:[]}", "hashes"), &err) ||
            raw(sock, "wait", json_pack("{s:i,s:s,s:s}", "version", v, "run", "r", "what", "published"),
                &err))
            fail_msg("version %d: %s", v, err.text);
    }
    wsync_config c = publishing_config(w.url, 0, 1);
    c.model = "n";
    wsync_publisher *other = publishing_open(&c);
    publishing_offload(other, 1);
    wsync_close(other);
    for (int v = 1; v <= 6; v++)
        ws_region_free(kept[v]);
    close(sock);
    publishing_end(&w);
}

struct onlooker {
    const char *url;
    atomic_bool stop;
};

static void *look(void *arg)
{
    struct onlooker *o = arg;
    struct ws_error err = {0};
    int sock = -1;
    if (ws_ipc_connect(o->url, &sock, &err) < 0)
        return NULL;
    while (!atomic_load(&o->stop))
        if (ws_ipc_call(sock, "GET", "/v1/status", NULL, NULL, 0, 60000, NULL, NULL, 0, NULL, &err) < 0)
            break;
    close(sock);
    return NULL;
}

/* The slots are inspected while one after the other is laid out again. */
static void slots_are_inspected(void **state)
{
    struct publishing w;
    struct ws_error err = {0};
    struct onlooker o = {0};
    pthread_t thread;
    int sock;
    (void)state;
    publishing_start(&w, 0);
    o.url = w.url;
    assert_int_equal(pthread_create(&thread, NULL, look, &o), 0);
    assert_int_equal(ws_ipc_connect(w.url, &sock, &err), 0);
    for (int v = 1; v <= 8; v++) {
        json_t *params = json_pack("[{s:s,s:s,s:[i]}]", "name", v % 3 ? "a" : "b", "dtype", "U8", "shape",
                                   (v % 3 + 1) << 20);
        if (raw(sock, "register",
                json_pack("{s:i,s:s,s:s,s:o}", "api", WS_LOCAL_API, "model", "m", "run", "r", "params",
                          params),
                &err) ||
            raw(sock, "begin", json_pack("{s:i,s:s}", "version", v, "run", "r"), &err) ||
            raw(sock, "commit", json_pack("{s:[]}", "hashes"), &err) ||
            raw(sock, "wait", json_pack("{s:i,s:s,s:s}", "version", v, "run", "r", "what", "published"),
                &err))
            fail_msg("version %d: %s", v, err.text);
    }
    atomic_store(&o.stop, true);
    pthread_join(thread, NULL);
    close(sock);
    publishing_end(&w);
}

/* A rank that keeps nothing mapped is neither waited for nor named as a reason for slots that it never
 * had. */
static void ranks_that_keep_nothing(void **state)
{
    enum { SLOT = 4 << 20 };
    struct publishing w;
    struct ws_error err = {0};
    struct ws_region *kept = NULL;
    int sock[2], fds[4], rc = 0;
    (void)state;
    publishing_start(&w, 5 * SLOT / 2);
    for (int r = 1; r >= 0; r--) { /* the other one's registration is answered once this one is there, too */
        json_t *params = json_pack("[{s:s,s:s,s:[i]}]", "name", r ? "b" : "a", "dtype", "U8", "shape",
                                   r ? 64 : SLOT - 65536);
        json_t *body = json_pack("{s:i,s:s,s:s,s:i,s:i,s:o}", "api", WS_LOCAL_API, "model", "m", "run", "r",
                                 "rank", r, "world_size", 2, "params", params);
        if (ws_ipc_connect(w.url, &sock[r], &err) ||
            ws_ipc_request_send(sock[r], "POST", "/v1/local/register", body, NULL, 0, &err))
            fail_msg("%s", err.text);
        json_decref(body);
    }
    for (int r = 0; r < 2; r++)
        if (ws_ipc_reply_recv(sock[r], 60000, NULL, NULL, 0, NULL, &err))
            fail_msg("%s", err.text);
    for (int v = 1; v <= 3; v++) {
        json_t *begin = json_pack("{s:i,s:s,s:b,s:[],s:i}", "version", v, "run", "r", "keep", 1, "kept",
                                  "timeout_ms", v == 3 ? 500 : 60000);
        struct stat st;
        size_t n = 0;
        rc = ws_ipc_call(sock[0], "POST", "/v1/local/begin", begin, NULL, 0, 60000, NULL, fds, 4, &n, &err);
        json_decref(begin);
        if (v == 3)
            break;
        if (rc < 0 ||
            raw(sock[1], "begin", json_pack("{s:i,s:s,s:[]}", "version", v, "run", "r", "kept"), &err))
            fail_msg("version %d: %s", v, err.text);
        assert_int_equal(n, 1);
        assert_int_equal(fstat(fds[0], &st), 0);
        if (v == 1)
            assert_int_equal(ws_region_import(&kept, fds[0], (uint64_t)st.st_size, true, &err), 0);
        else
            close(fds[0]);
        for (int r = 0; r < 2; r++)
            if (raw(sock[r], "commit", json_pack("{s:[]}", "hashes"), &err))
                fail_msg("version %d: %s", v, err.text);
        if (raw(sock[0], "wait", json_pack("{s:i,s:s,s:s}", "version", v, "run", "r", "what", "published"),
                &err))
            fail_msg("version %d: %s", v, err.text);
        if (v == 2) { /* a reader has the first one: its slot will be another one */
            size_t got = 0;
            int reader;
            if (ws_ipc_connect(w.url, &reader, &err) || ws_ipc_call(reader, "GET", "/v1/m/1/map?run=r", NULL,
                                                                    NULL, 0, 60000, NULL, fds, 4, &got, &err))
                fail_msg("%s", err.text);
            assert_int_equal(got, 1);
            close(fds[0]);
            close(reader);
        }
    }
    if (ws_region_file_used() > 0) { /* else it does not show that rank 0 still has version 1's memory */
        assert_int_equal(rc, -ENOMEM);
        assert_non_null(strstr(err.text, "still held by readers"));
        assert_null(strstr(err.text, "or by rank"));
    }
    ws_region_free(kept);
    for (int r = 0; r < 2; r++)
        close(sock[r]);
    publishing_end(&w);
}

static void expect_bytes(const unsigned char *file, uint64_t bytes, uint64_t version)
{
    struct ws_error err = {0};
    struct ws_safetensors *st;
    struct publishing_model *want = malloc(sizeof(*want));
    publishing_fill(want, version);
    assert_int_equal(ws_safetensors_parse(file, bytes, bytes, &st, &err), 0);
    assert_memory_equal(file + ws_safetensors_find(st, "flat")->begin, want->flat, sizeof(want->flat));
    ws_safetensors_free(st);
    free(want);
}

/* Readers that keep what they got cannot be forced to release it. Two versions are lent to readers that
 * support copies, and the trainer continues; a reader of 0.1.0 gets what it requests, and is named if it
 * stops the trainer. */
static void readers_hold_slots(void **state)
{
    struct publishing w;
    struct ws_error err = {0};
    struct ws_source *s;
    struct ws_region *regions[6][4] = {{0}};
    struct ws_manifest *m[6];
    static struct publishing_model content;
    char name[64];
    int old, fds[4];
    size_t n = 0;
    (void)state;
    publishing_start(&w, 0);
    wsync_config c = publishing_config(w.url, 0, 1);
    c.timeout_ms = 300;
    wsync_publisher *p = publishing_open(&c);
    assert_int_equal(ws_source_open(w.url, NULL, &s, &err), 0);
    for (uint64_t v = 1; v < 6; v++) {
        publishing_offload(p, v);
        assert_int_equal(ws_source_manifest(s, "m", v, NULL, NULL, &m[v], &err), 0);
        assert_int_equal(ws_source_map(s, m[v], regions[v], &err), v <= 2 ? 0 : -EOPNOTSUPP);
        if (v > 2)
            assert_non_null(strstr(err.text, "of 4 slots (agent --slots) readers may keep 2"));
    }
    wsync_version_files *copy; /* by a reader that supports both */
    int fd;
    uint64_t bytes;
    if (wsync_open_version(w.url, "m", 5, &copy) || !wsync_version_file(copy, 0, &fd, &bytes))
        fail_msg("%s", wsync_error());
    void *data = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
    assert_true(data != MAP_FAILED);
    assert_int_equal(ws_ipc_connect(w.url, &old, &err), 0);
    if (ws_ipc_call(old, "GET", "/v1/m/5/map", NULL, NULL, 0, 60000, NULL, fds, 4, &n, &err) < 0)
        fail_msg("%s", err.text);
    publishing_offload(p, 6);
    const wsync_param params[] = {publishing_matrix(content.matrix), publishing_flat(content.flat)};
    assert_int_equal(wsync_offload(p, params, 2, 7), -EBUSY);
    snprintf(name, sizeof(name), "version 5 (served) is held by ipc pid %d of wsync 0.1.0", (int)getpid());
    assert_non_null(strstr(wsync_error(), name));
    assert_non_null(strstr(wsync_error(), "'drop N'"));
    while (n > 0)
        close(fds[--n]);
    close(old);
    publishing_offload(p, 7);
    publishing_expect(w.http, 7);
    expect_bytes(data, bytes, 5);
    assert_int_equal(munmap(data, bytes), 0);
    wsync_close_version(copy);
    for (uint64_t v = 1; v < 6; v++) { /* and the lent versions keep their bytes */
        if (v <= 2)
            expect_bytes(ws_region_data(regions[v][0]), m[v]->files[0].size_bytes, v);
        ws_region_free(regions[v][0]);
        ws_manifest_free(m[v]);
    }
    ws_source_close(s);
    wsync_close(p);
    publishing_end(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_is_refused),
        cmocka_unit_test(memory_has_names),
        cmocka_unit_test(a_refused_commit_ends_its_version),
        cmocka_unit_test(old_ranks_keep_slots),
        cmocka_unit_test(old_ranks_change_layouts),
        cmocka_unit_test(slots_are_inspected),
        cmocka_unit_test(ranks_that_keep_nothing),
        cmocka_unit_test(readers_hold_slots),
    };
    return cmocka_run_group_tests_name("publisher_slots", tests, NULL, NULL);
}
