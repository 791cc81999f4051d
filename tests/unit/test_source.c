/* A source's answers are compared with the request: manifests of other versions, and agents that share the
 * memory of another version, or less of it. */
#include "tests/fixtures/private_folder.h"
#include "transports/format/manifest.h"
#include "transports/ipc/frame.h"
#include "transports/memory/region.h"
#include "transports/simd/copy.h"
#include "transports/transport.h"
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
#include <sys/un.h>
#include <unistd.h>

#include <cmocka.h>

#define N_FILES 3
#define BYTES   100000UL

static struct ws_error err;

/* Its files are full of this byte. */
static struct ws_manifest *manifest_of(const char *model, uint64_t version, const char *run, int byte)
{
    struct ws_manifest *m;
    unsigned char *bytes = malloc(BYTES);
    assert_non_null(bytes);
    memset(bytes, byte, BYTES);
    assert_int_equal(ws_manifest_new(&m, model, version, run, &err), 0);
    for (size_t i = 0; i < N_FILES; i++) {
        struct ws_manifest_file *f;
        char name[16];
        snprintf(name, sizeof(name), "file%zu", i);
        assert_int_equal(ws_manifest_add(m, name, BYTES, 0, &f, &err), 0);
        f->hashes[0] = ws_hash(bytes, BYTES);
    }
    ws_manifest_seal(m);
    free(bytes);
    return m;
}

/* --- manifests --- */

static struct ws_version_id sent;
static const char *sent_model;

static int send_manifest(struct ws_source *s, const char *model, uint64_t version, const char *run,
                         const atomic_bool *cancel, struct ws_manifest **out, struct ws_error *e)
{
    (void)s, (void)model, (void)version, (void)run, (void)cancel, (void)e;
    *out = manifest_of(sent_model, sent.version, sent.lineage, 1);
    return 0;
}

static void assert_sent(const char *model, uint64_t version, const char *run, int rc)
{
    static const struct ws_transport_ops ops = {.manifest = send_manifest};
    struct ws_source s = {.ops = &ops, .url = (char *)(uintptr_t) "x:"};
    struct ws_manifest *m;
    sent_model = model;
    sent = ws_version_id_make(version, run);
    assert_int_equal(ws_source_manifest(&s, "actor", 7, "r1", NULL, &m, &err), rc);
    assert_int_equal(m == NULL, rc < 0);
    ws_manifest_free(m);
}

static void test_manifests(void **state)
{
    (void)state;
    assert_sent("actor", 7, "r1", 0);
    assert_sent("critic", 7, "r1", -EPROTO);
    assert_sent("actor", 8, "r1", -EPROTO);
    assert_sent("actor", 7, "r2", -EPROTO);
    assert_non_null(strstr(err.text, "actor/7 and sent the manifest of actor/7 run r2"));
}

/* --- an agent that shares memory --- */

struct agent {
    int listener;
    char path[64], url[80];
    struct ws_manifest *by_version[3]; /* the version that it announces */
    struct ws_region *regions[3];      /* and its memory: the same for every file */
    atomic_size_t n_fds;               /* that it sends */
    pthread_t thread;
};

static void answer(struct agent *a, int sock, const json_t *request)
{
    int fds[N_FILES];
    char *text, *rest = NULL;
    size_t n;
    const char *path = json_string_value(json_object_get(request, "path"));
    const char *number = path && strncmp(path, "/v1/actor/", 10) == 0 ? path + 10 : "";
    const unsigned long version = strtoul(number, &rest, 10);
    if (rest == number || strcmp(rest, "/map") != 0 || version > 2)
        abort();
    for (size_t i = 0; i < a->n_fds; i++)
        if (ws_region_open(a->regions[version], WS_REGION_COPY, &fds[i], NULL) < 0)
            abort();
    if (ws_manifest_to_json(a->by_version[version], &text, &n, NULL) < 0)
        abort();
    json_t *reply = json_pack("{s:i,s:o}", "status", 200, "body", json_loads(text, 0, NULL));
    (void)!ws_frame_send(sock, reply, fds, a->n_fds, 10000, NULL);
    json_decref(reply);
    free(text);
    for (size_t i = 0; i < a->n_fds; i++)
        close(fds[i]);
}

static void *serve(void *arg)
{
    struct agent *a = arg;
    for (int sock; (sock = accept(a->listener, NULL, NULL)) >= 0; close(sock)) {
        json_t *request = NULL;
        size_t n = 0;
        while (ws_frame_recv(sock, 60000, &request, NULL, 0, &n, NULL) == 0) {
            answer(a, sock, request);
            json_decref(request);
        }
    }
    return NULL;
}

static void start(struct agent *a)
{
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    *a = (struct agent){.n_fds = N_FILES};
    assert_true(private_path(a->path, sizeof(a->path), "source"));
    snprintf(a->url, sizeof(a->url), "unix:%s", a->path);
    for (int v = 1; v <= 2; v++) {
        a->by_version[v] = manifest_of("actor", (uint64_t)v, "r1", v);
        assert_int_equal(ws_region_new(&a->regions[v], BYTES, &err), 0);
        memset(ws_region_data(a->regions[v]), v, BYTES);
    }
    snprintf(to.sun_path, sizeof(to.sun_path), "%s", a->path);
    (void)unlink(a->path);
    a->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(a->listener, (struct sockaddr *)&to, sizeof(to)), 0);
    assert_int_equal(listen(a->listener, 4), 0);
    assert_int_equal(pthread_create(&a->thread, NULL, serve, a), 0);
}

static void stop(struct agent *a)
{
    (void)shutdown(a->listener, SHUT_RDWR);
    pthread_join(a->thread, NULL);
    close(a->listener);
    (void)unlink(a->path);
    for (int v = 1; v <= 2; v++) {
        ws_manifest_free(a->by_version[v]);
        ws_region_free(a->regions[v]);
    }
}

static void free_all(struct ws_region **regions)
{
    for (size_t i = 0; i < N_FILES; i++) {
        ws_region_free(regions[i]);
        regions[i] = NULL;
    }
}

static void test_maps(void **state)
{
    struct ws_region *regions[N_FILES] = {0};
    struct ws_source *s;
    struct agent a;
    (void)state;
    start(&a);
    struct ws_manifest *m = manifest_of("actor", 1, "r1", 1), *old = manifest_of("actor", 1, "r1", 9);
    assert_int_equal(ws_source_open(a.url, NULL, &s, &err), 0);
    assert_int_equal(ws_source_map(s, m, regions, &err), 0);
    assert_int_equal(ws_region_data(regions[2])[BYTES - 1], 1);
    free_all(regions);
    assert_int_equal(ws_source_map(s, old, regions, &err), -ESTALE); /* the same name with other bytes */
    assert_non_null(strstr(err.text, "another one by now"));
    a.n_fds = N_FILES - 1;
    assert_int_equal(ws_source_map(s, m, regions, &err), -EPROTO);
    assert_non_null(strstr(err.text, "too few"));
    for (size_t i = 0; i < N_FILES; i++)
        assert_null(regions[i]);
    ws_source_close(s);
    ws_manifest_free(m);
    ws_manifest_free(old);
    stop(&a);
}

static int take_hash(void *arg, size_t block, uint64_t hash)
{
    (void)block;
    *(uint64_t *)arg = hash;
    return 0;
}

/* One lane, several versions in turn. */
static void test_lane(void **state)
{
    unsigned char *dst = malloc(BYTES);
    struct ws_source *s;
    struct ws_lane *lane;
    struct agent a;
    (void)state;
    assert_non_null(dst);
    start(&a);
    assert_int_equal(ws_source_open(a.url, NULL, &s, &err), 0);
    assert_int_equal(ws_lane_open(s, &lane, &err), 0);
    for (int i = 0; i < 4; i++) {
        const int v = 1 + i % 2;
        uint64_t hash = 0;
        struct ws_fetch f = {
            .manifest = a.by_version[v], .file = 1, .n = 1, .dst = dst, .block = take_hash, .arg = &hash};
        assert_int_equal(ws_lane_fetch(lane, &f, &err), 0);
        assert_int_equal(dst[BYTES / 2], v);
        assert_int_equal(hash, a.by_version[v]->files[1].hashes[0]);
    }
    struct ws_manifest *old = manifest_of("actor", 1, "r1", 9);
    uint64_t hash = 0;
    struct ws_fetch f = {.manifest = old, .file = 1, .n = 1, .dst = dst, .block = take_hash, .arg = &hash};
    assert_int_equal(ws_lane_fetch(lane, &f, &err), -ESTALE);
    assert_int_equal(hash, 0);
    ws_manifest_free(old);
    ws_lane_close(lane);
    ws_source_close(s);
    stop(&a);
    free(dst);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_manifests),
        cmocka_unit_test(test_maps),
        cmocka_unit_test(test_lane),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
