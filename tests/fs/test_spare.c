/* A version that is fetched while it is written: an agent in this process, a rank that speaks with it as on the wire, and a store. Whatever
 * the rank says early, and whatever becomes of the version, its bytes are the agent's, and the spare's memory comes back. */
#include "backends/trainer/agent/agent.h"
#include "fs/pull/shown_delta.h"
#include "fs/store/state.h"
#include "tests/fixtures/private_folder.h"
#include "tests/fs/opened_store.h"
#include "transports/delta/encode.h"
#include "transports/ipc/client.h"
#include "transports/protocol/api.h"
#include "transports/simd/copy.h"
#include "transports/transport.h"
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define N_BLOCKS 4
#define BYTES    (N_BLOCKS * WS_BLOCK_BYTES - 65536) /* of the tensor; its file has a header, too */
#define FILE_MAX (N_BLOCKS * WS_BLOCK_BYTES)

static struct trainer {
    char dir[64], socket[128], url[140], http[64];
    struct ws_agent *agent;
} trainer;

/* A rank by itself, and what its model's one file holds. */
struct rank {
    const char *model, *run;
    int sock;
    size_t size, header;
    unsigned char *file; /* the slot's, mapped; NULL: no version is begun */
    unsigned char *base, *bytes;
};

static json_t *call(struct rank *r, const char *verb, json_t *body, int in, int *fds, size_t *n)
{
    struct ws_error err = {0};
    json_t *reply = NULL;
    char path[64];
    size_t none = 0;
    int ignored[4];
    snprintf(path, sizeof(path), "/v1/local/%s", verb);
    if (ws_ipc_call(r->sock, "POST", path, body, &in, in >= 0, LONG_MS, &reply, fds ? fds : ignored, 4,
                    n ? n : &none, &err))
        fail_msg("%s: %s", verb, err.text);
    while (none > 0)
        close(ignored[--none]);
    json_decref(body);
    return reply;
}

static void rank_open(struct rank *r, const char *model, const char *run)
{
    struct ws_error err = {0};
    *r = (struct rank){.model = model, .run = run};
    assert_ok(ws_ipc_connect(trainer.url, &r->sock, &err), &err);
    json_t *params = json_pack("[{s:s,s:s,s:[i]}]", "name", "a", "dtype", "U8", "shape", (int)BYTES);
    json_t *reply = call(r, "register",
                         json_pack("{s:i,s:s,s:s,s:b,s:o}", "api", WS_LOCAL_API, "model", model, "run", run,
                                   "new_run", 1, "params", params),
                         -1, NULL, NULL);
    const json_t *file = json_array_get(json_object_get(reply, "files"), 0);
    r->size = (size_t)json_integer_value(json_object_get(file, "bytes"));
    r->header = (size_t)json_integer_value(json_object_get(file, "header_bytes"));
    assert_true(r->size > BYTES && r->size <= FILE_MAX && r->header + BYTES == r->size);
    json_decref(reply);
    r->base = calloc(1, FILE_MAX);
    r->bytes = calloc(1, FILE_MAX);
    assert_true(r->base && r->bytes);
}

static void rank_close(struct rank *r)
{
    if (r->file)
        munmap(r->file, r->size);
    close(r->sock);
    free(r->base);
    free(r->bytes);
}

/* Begins a version. Returns whether the agent takes its records early. */
static bool begin(struct rank *r, int version)
{
    int fds[4] = {-1, -1, -1, -1};
    size_t n = 0;
    json_t *reply =
        call(r, "begin", json_pack("{s:i,s:s,s:s}", "version", version, "run", r->run, "compare", "taken"),
             -1, fds, &n);
    assert_true(n >= 1);
    r->file = mmap(NULL, r->size, PROT_READ | PROT_WRITE, MAP_SHARED, fds[0], 0);
    assert_true(r->file != MAP_FAILED);
    memcpy(r->base, r->bytes, r->size);
    memcpy(r->bytes, r->file, r->header);
    while (n > 0)
        close(fds[--n]);
    const bool takes = json_is_true(json_object_get(reply, "records"));
    json_decref(reply);
    return takes;
}

/* One byte of 61 is of `content`. */
static void fill(struct rank *r, unsigned content)
{
    for (size_t i = 0; i < BYTES; i++)
        r->bytes[r->header + i] =
            (unsigned char)(i * 7 + (i >> 9) + (i % 61 == content % 61 ? content + 1 : 0));
    memcpy(r->file, r->bytes, r->size);
}

static size_t block_bytes(const struct rank *r, size_t block)
{
    const size_t left = r->size - block * WS_BLOCK_BYTES;
    return left < WS_BLOCK_BYTES ? left : WS_BLOCK_BYTES;
}

static json_t *hashes_of(const struct rank *r, size_t first, size_t end)
{
    json_t *list = json_array();
    char text[17];
    for (size_t b = first; b < end; b++) {
        snprintf(text, sizeof(text), "%016lx", ws_hash(r->bytes + b * WS_BLOCK_BYTES, block_bytes(r, b)));
        json_array_append_new(list, json_pack("[i,I,s]", 0, (json_int_t)b, text));
    }
    return list;
}

static struct ws_manifest *manifest_of(const struct rank *r, const unsigned char *bytes, uint64_t version)
{
    struct ws_manifest *m;
    struct ws_manifest_file *f;
    assert_int_equal(ws_manifest_new(&m, r->model, version, r->run, NULL), 0);
    assert_int_equal(ws_manifest_add(m, "model.safetensors", r->size, 0, &f, NULL), 0);
    for (size_t b = 0; b < f->n_blocks; b++)
        f->hashes[b] = ws_hash(bytes + b * WS_BLOCK_BYTES, block_bytes(r, b));
    ws_manifest_seal(m);
    return m;
}

/* What changed in these blocks, from the version before to what `bytes` hold now. */
static int records_of(const struct rank *r, size_t first, size_t end, json_t *body)
{
    const unsigned char *was[] = {r->base}, *is[] = {r->bytes};
    struct ws_manifest *a = manifest_of(r, r->base, 1), *b = manifest_of(r, r->bytes, 2);
    const struct ws_delta_side base = {a, was}, target = {b, is};
    struct ws_delta_comparer *c = ws_delta_comparer_new(&base, &target, 0, 1);
    const int fd = memfd_create("records", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    json_t *list = json_array();
    json_int_t at = 0;
    char text[17];
    assert_true(c && fd >= 0);
    for (size_t i = first; i < end; i++) {
        struct ws_delta_record *d = ws_delta_comparer_block(c, 0, i, 0);
        assert_true(d && d->kind == WS_DELTA_EDIT && !d->packed);
        assert_int_equal(write(fd, d->data, d->bytes), d->bytes);
        snprintf(text, sizeof(text), "%016lx", a->files[0].hashes[i]);
        json_array_append_new(list,
                              json_pack("[i,I,I,I,s]", 0, (json_int_t)i, at, (json_int_t)d->bytes, text));
        at += d->bytes;
        free(d);
    }
    assert_int_equal(write(fd, "\0\0\0\0\0\0\0", 8), 8);
    assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE), 0);
    json_object_set_new(body, "records", list);
    ws_delta_comparer_free(c);
    ws_manifest_free(a);
    ws_manifest_free(b);
    return fd;
}

static void give(struct rank *r, size_t first, size_t end)
{
    json_t *body = json_pack("{s:o}", "hashes", hashes_of(r, first, end));
    const int fd = records_of(r, first, end, body);
    json_decref(call(r, "records", body, fd, NULL, NULL));
    close(fd);
}

static void commit(struct rank *r, int version)
{
    assert_int_equal(msync(r->file, r->size, MS_SYNC), 0);
    munmap(r->file, r->size);
    r->file = NULL;
    json_decref(call(r, "commit", json_pack("{s:o}", "hashes", hashes_of(r, 0, N_BLOCKS)), -1, NULL, NULL));
    json_decref(call(r, "wait",
                     json_pack("{s:i,s:s,s:s}", "version", version, "run", r->run, "what", "published"), -1,
                     NULL, NULL));
}

static void publish(struct rank *r, int version, unsigned content)
{
    (void)begin(r, version);
    fill(r, content);
    commit(r, version);
}

/* --- the store --- */

static struct ws_version *pull_and_compare(const struct rank *r, const char *name)
{
    struct ws_version *v = NULL;
    wait_until((v = find_now(store, r->model, name)) && strcmp(info_of(v).lineage, r->run) == 0);
    pull(v);
    const struct ws_manifest *m = ws_version_manifest(v, NULL);
    const struct ws_manifest_file *f = ws_manifest_find(m, "model.safetensors");
    assert_true(f && f->size_bytes == r->size);
    assert_memory_equal(ws_region_data(ws_version_region(v, (size_t)(f - m->files))), r->bytes, r->size);
    return v;
}

static bool was_early(struct ws_version *v)
{
    return strstr(info_of(v).how, "patched while it was written") != NULL;
}

static void expect(const struct rank *r, const char *name)
{
    ws_version_put(pull_and_compare(r, name));
}

static bool has_spare(const char *model)
{
    struct ws_model *m = ws_store_find(store, model);
    assert_non_null(m);
    pthread_mutex_lock(&store->lock);
    const bool has = m->spare != NULL;
    pthread_mutex_unlock(&store->lock);
    ws_model_put(m);
    return has;
}

/* So many records' bytes came: those of the step from base to bytes. */
static uint64_t moved(void)
{
    return atomic_load(&store->moved_bytes);
}

static int take_record(void *arg, struct ws_delta_record *r)
{
    (void)arg;
    free(r);
    return 0;
}

/* As a reader that takes deltas: where there is one, the agent takes records early. */
static void take_delta(const struct ws_version *base, struct ws_version *target)
{
    const struct ws_manifest *m = ws_version_manifest(target, NULL);
    struct ws_delta_fetch f = {.model = m->model,
                               .link = ws_delta_link_between(atomic_load(&base->manifest), m),
                               .parts = 1,
                               .sink.record = take_record};
    struct ws_error err = {0};
    struct ws_source *s;
    struct ws_lane *lane;
    for (size_t i = 0; i < m->n_files; i++)
        f.n_blocks += m->files[i].n_blocks;
    assert_ok(ws_source_open(trainer.http, NULL, &s, &err), &err);
    assert_ok(ws_lane_open(s, &lane, &err), &err);
    assert_ok(ws_lane_delta(lane, &f, &err), &err);
    ws_lane_close(lane);
    ws_source_close(s);
}

static void two_versions(struct rank *r)
{
    struct ws_version *first, *second;
    publish(r, 1, 1);
    first = pull_and_compare(r, "1");
    publish(r, 2, 2);
    second = pull_and_compare(r, "2");
    take_delta(first, second);
    ws_version_put(first);
    ws_version_put(second);
}

static void start_agent(void)
{
    struct ws_error err = {0};
    assert_true(private_folder(trainer.dir, sizeof(trainer.dir), "spare"));
    snprintf(trainer.socket, sizeof(trainer.socket), "%s/sock", trainer.dir);
    snprintf(trainer.url, sizeof(trainer.url), "unix:%s", trainer.socket);
    const struct ws_agent_options o = {.tcp.listen = "127.0.0.1:0",
                                       .tcp.access.insecure = true,
                                       .socket = trainer.socket,
                                       .socket_gid = (gid_t)-1,
                                       .n_threads = 2,
                                       .delta_cache_bytes = WS_DELTA_CACHE_BY_SIZE};
    assert_ok(ws_agent_new(&trainer.agent, &o, &err), &err);
    snprintf(trainer.http, sizeof(trainer.http), "http://127.0.0.1:%u", ws_agent_port(trainer.agent));
}

static int set_up(void **state)
{
    struct ws_store_options options = {.cache_bytes = 1UL << 30,
                                       .delta_cache_bytes = 256UL << 20,
                                       .deadline_ms = 5000,
                                       .threads = 2,
                                       .provisional = WS_PROVISIONAL_ON};
    (void)state;
    start_agent();
    store = store_with(&options);
    add_source(store, trainer.http, NULL);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    ws_store_free(store);
    store = NULL;
    ws_agent_free(trainer.agent);
    (void)rmdir(trainer.dir);
    return 0;
}

/* --- tests --- */

static void is_patched_early(void **state)
{
    struct rank r;
    bool early = false;
    char name[8];
    (void)state;
    rank_open(&r, "m", "r");
    two_versions(&r);
    for (int version = 3; !early && version < 9; version++) { /* on a busy machine records may come late */
        const uint64_t before = moved();
        if (!begin(&r, version))
            continue;
        fill(&r, (unsigned)version);
        give(&r, 0, N_BLOCKS);
        wait_until(has_spare("m") && moved() > before);
        snprintf(name, sizeof(name), "%d", version);
        assert_false(has_version(store, "m", name)); /* nobody sees it */
        commit(&r, version);
        struct ws_version *v = pull_and_compare(&r, name);
        early = was_early(v);
        ws_version_put(v);
    }
    assert_true(early);
    wait_until(!has_spare("m"));
    rank_close(&r);
}

static size_t shown_deltas(const char *model)
{
    struct ws_model *m = ws_store_find(store, model);
    assert_non_null(m);
    pthread_mutex_lock(&store->lock);
    const size_t n = m->shown.n;
    pthread_mutex_unlock(&store->lock);
    ws_model_put(m);
    return n;
}

/* What made the version is what engines that are patched to it ask for: both versions are not compared for that. */
static void leaves_its_delta(void **state)
{
    struct ws_error err = {0};
    struct rank r;
    bool whole = false;
    (void)state;
    rank_open(&r, "m", "r");
    two_versions(&r);
    struct ws_version *base = pull_and_compare(&r, "2");
    for (int version = 3; !whole && version < 20; version++) { /* on a busy machine records may come late */
        const uint64_t before = moved();
        char name[8];
        const bool takes = begin(&r, version);
        fill(&r, (unsigned)version);
        if (takes) {
            give(&r, 0, N_BLOCKS);
            wait_until(has_spare("m") && moved() > before);
        }
        commit(&r, version);
        snprintf(name, sizeof(name), "%d", version);
        struct ws_version *v = pull_and_compare(&r, name);
        whole = was_early(v) && !strstr(info_of(v).how, "the rest whole");
        if (whole) {
            struct ws_delta *d;
            assert_ok(ws_shown_delta_get(&d, base, v, &err), &err);
            assert_int_equal(shown_deltas("m"), 0); /* none was made */
            ws_delta_put(d);
        }
        ws_version_put(base);
        base = v;
    }
    assert_true(whole);
    ws_version_put(base);
    rank_close(&r);
}

/* The same twice; then blocks are written again after their records were given, and the commit has their new hashes; records that
 * make other bytes than the hashes say. */
static void a_rank_changes_its_mind(void **state)
{
    struct rank r;
    (void)state;
    rank_open(&r, "m", "r");
    two_versions(&r);
    assert_true(begin(&r, 3));
    fill(&r, 3);
    give(&r, 0, N_BLOCKS);
    give(&r, 0, N_BLOCKS);
    give(&r, 1, 2);
    wait_until(has_spare("m"));
    fill(&r, 33);
    give(&r, 0, 2);
    commit(&r, 3);
    expect(&r, "3");

    assert_true(begin(&r, 4));
    fill(&r, 4);
    give(&r, 0, N_BLOCKS);
    wait_until(has_spare("m"));
    memcpy(r.bytes + r.header, r.base + r.header, BYTES / 2); /* some blocks are as before after all */
    memcpy(r.file, r.bytes, r.size);
    commit(&r, 4);
    expect(&r, "4");

    assert_true(begin(&r, 5));
    fill(&r, 5);
    json_t *body = json_pack("{s:o}", "hashes", hashes_of(&r, 0, N_BLOCKS));
    fill(&r, 55);
    const int fd = records_of(&r, 0, N_BLOCKS, body);
    fill(&r, 5);
    json_decref(call(&r, "records", body, fd, NULL, NULL));
    close(fd);
    wait_until(has_spare("m"));
    commit(&r, 5);
    expect(&r, "5");
    publish(&r, 6, 6); /* by the deltas that are kept of it */
    expect(&r, "6");
    rank_close(&r);
}

/* A version is given up while a spare is made of it, and another run has the same number. */
static void another_run_has_its_number(void **state)
{
    struct rank r, other;
    (void)state;
    rank_open(&r, "m", "r");
    two_versions(&r);
    const uint64_t before = moved();
    assert_true(begin(&r, 3));
    fill(&r, 3);
    give(&r, 0, N_BLOCKS);
    wait_until(has_spare("m") && moved() > before);
    rank_close(&r);
    rank_open(&other, "m", "another");
    publish(&other, 3, 30);
    expect(&other, "3");
    publish(&other, 4, 31);
    expect(&other, "4");
    rank_close(&other);
}

/* Two models at once; one's version is abandoned, the other's is published. */
static void two_models(void **state)
{
    struct rank r[2];
    (void)state;
    for (int i = 0; i < 2; i++) {
        rank_open(&r[i], i ? "n" : "m", "r");
        two_versions(&r[i]);
    }
    for (int i = 0; i < 2; i++) {
        assert_true(begin(&r[i], 3));
        fill(&r[i], 3 + (unsigned)i * 20);
        give(&r[i], 0, N_BLOCKS);
    }
    wait_until(has_spare("m") && has_spare("n"));
    json_decref(call(&r[0], "abandon", json_object(), -1, NULL, NULL));
    munmap(r[0].file, r[0].size);
    commit(&r[1], 3);
    expect(&r[1], "3");
    publish(&r[0], 4, 4);
    expect(&r[0], "4");
    for (int i = 0; i < 2; i++)
        rank_close(&r[i]);
}

/* Versions follow each other faster than a mount takes them. */
static void quickly(void **state)
{
    struct rank r;
    char name[8];
    (void)state;
    rank_open(&r, "m", "r");
    two_versions(&r);
    for (int version = 3; version < 12; version++) {
        if (begin(&r, version)) {
            fill(&r, (unsigned)version);
            give(&r, 0, (size_t)version % N_BLOCKS + 1);
        } else {
            fill(&r, (unsigned)version);
        }
        commit(&r, version);
        snprintf(name, sizeof(name), "%d", version);
        if (version % 3 == 2)
            expect(&r, name);
    }
    rank_close(&r);
}

/* A spare is being made, and its rank says nothing more. */
static void begin_silently(struct rank *r)
{
    rank_open(r, "m", "r");
    two_versions(r);
    const uint64_t before = moved();
    assert_true(begin(r, 3));
    fill(r, 3);
    give(r, 0, 2);
    wait_until(has_spare("m") && moved() > before);
}

static void its_model_is_removed(void **state)
{
    struct ws_error err = {0};
    struct rank r;
    (void)state;
    begin_silently(&r);
    assert_ok(ws_store_remove(store, "m", &err), &err);
    wait_until(stats_of(store).used_bytes == 0);
    rank_close(&r);
}

static void its_source_is_removed(void **state)
{
    struct ws_error err = {0};
    struct rank r;
    (void)state;
    assert_ok(ws_store_add(store, trainer.http, "m", NULL, &err), &err);
    begin_silently(&r);
    ws_store_remove_source(store, "m", trainer.http);
    wait_until(!has_spare("m"));
    rank_close(&r);
}

static void its_store_stops(void **state)
{
    struct rank r;
    (void)state;
    begin_silently(&r);
    ws_store_stop(store);
    pthread_mutex_lock(&store->lock);
    assert_int_equal(store->n_pulls, 0);
    pthread_mutex_unlock(&store->lock);
    rank_close(&r);
}

#define SPARE_TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        SPARE_TEST(is_patched_early),
        SPARE_TEST(leaves_its_delta),
        SPARE_TEST(a_rank_changes_its_mind),
        SPARE_TEST(another_run_has_its_number),
        SPARE_TEST(two_models),
        SPARE_TEST(quickly),
        SPARE_TEST(its_model_is_removed),
        SPARE_TEST(its_source_is_removed),
        SPARE_TEST(its_store_stops),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
