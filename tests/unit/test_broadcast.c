/* Contents of a broadcast: runs of blocks in JSON, also hostile ones; buckets that all members compute alike;
 * a communicator's id as text. And which mounts are waited for, may take part, or are refused. */
#include "backends/trainer/agent/broadcast/sender.h"
#include "transports/base/clock.h"
#include "transports/nccl/broadcast_round.h"
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Files of 3 blocks, none, one byte, 300 small files. */
static struct ws_manifest *manifest(void)
{
    struct ws_manifest *m;
    struct ws_manifest_file *f;
    struct ws_error err = {0};
    char name[32];
    assert_int_equal(ws_manifest_new(&m, "actor", 1, "r1", &err), 0);
    assert_int_equal(ws_manifest_add(m, "a", 2 * WS_BLOCK_BYTES + 5, 0, &f, &err), 0);
    assert_int_equal(ws_manifest_add(m, "b", 0, 0, &f, &err), 0);
    assert_int_equal(ws_manifest_add(m, "c", 1, 0, &f, &err), 0);
    for (int i = 0; i < 300; i++) {
        snprintf(name, sizeof(name), "d%03d", i);
        assert_int_equal(ws_manifest_add(m, name, 1000, 0, &f, &err), 0);
    }
    ws_manifest_seal(m);
    return m;
}

static bool all(void *arg, size_t file, size_t block)
{
    (void)arg;
    (void)file;
    (void)block;
    return true;
}

static bool few(void *arg, size_t file, size_t block)
{
    (void)arg;
    return file == 0 ? block != 1 : file == 2;
}

static void test_runs(void **state)
{
    (void)state;
    struct ws_manifest *m = manifest();
    struct ws_block_run *runs, *again;
    size_t n, n_again;
    assert_int_equal(ws_block_runs_new(m, few, NULL, &runs, &n, NULL), 0);
    assert_int_equal(n, 3);
    json_t *list = ws_block_runs_json(runs, n);
    char *text = json_dumps(list, JSON_COMPACT);
    assert_string_equal(text, "[[0,0,1],[0,2,1],[2,0,1]]");
    free(text);
    assert_int_equal(ws_block_runs_from_json(list, m, &again, &n_again, NULL), 0);
    assert_int_equal(n_again, n);
    assert_memory_equal(again, runs, n * sizeof(*runs));
    json_decref(list);
    free(again);
    free(runs);
    assert_int_equal(ws_block_runs_new(m, all, NULL, &runs, &n, NULL), 0);
    assert_int_equal(n, 302);
    assert_int_equal(runs[0].n, 3);
    free(runs);
    ws_manifest_free(m);
}

static void test_hostile_runs(void **state)
{
    (void)state;
    static const char *const bad[] = {"[]",
                                      "{}",
                                      "[7]",
                                      "[[0,0]]",
                                      "[[0,0,0]]",
                                      "[[0,0,4]]",
                                      "[[0,3,1]]",
                                      "[[0,-1,1]]",
                                      "[[0,2,9223372036854775807]]",
                                      "[[1,0,1]]",
                                      "[[303,0,1]]",
                                      "[[0,1,1],[0,0,1]]",
                                      "[[0,0,2],[0,1,1]]",
                                      "[[2,0,1],[0,0,1]]",
                                      "[[0,0,1.0]]",
                                      "[[0,0,1],[0,0,1]]"};
    struct ws_manifest *m = manifest();
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct ws_block_run *runs = NULL;
        struct ws_error err = {0};
        size_t n;
        json_t *list = json_loads(bad[i], 0, NULL);
        assert_non_null(list);
        assert_int_equal(ws_block_runs_from_json(list, m, &runs, &n, &err), -EPROTO);
        assert_null(runs);
        json_decref(list);
    }
    ws_manifest_free(m);
}

static void test_buckets(void **state)
{
    (void)state;
    struct ws_manifest *m = manifest();
    struct ws_block_run *runs;
    struct ws_broadcast_plan p = {.manifest = m, .bucket_bytes = 2 * WS_BLOCK_BYTES};
    static struct ws_broadcast_round r;
    static unsigned seen[303][3];
    size_t n_buckets = 0;
    assert_int_equal(ws_block_runs_new(m, all, NULL, &runs, &p.n_runs, NULL), 0);
    p.runs = runs;
    r = (struct ws_broadcast_round){.plan = &p};
    memset(seen, 0, sizeof(seen));
    for (const struct ws_broadcast_bucket *b; (b = ws_broadcast_round_next(&r)); n_buckets++) {
        size_t end = 0;
        assert_ptr_equal(b, &r.buckets[n_buckets % 2]);
        assert_in_range(b->n, 1, WS_BROADCAST_BUCKET_BLOCKS);
        for (size_t i = 0; i < b->n; i++) {
            const struct ws_broadcast_packed_block *k = &b->blocks[i];
            assert_true(k->at >= end && k->at % 256 == 0);
            assert_int_equal(k->bytes, ws_manifest_block_bytes(&m->files[k->file], k->block));
            end = k->at + k->bytes;
            seen[k->file][k->block]++;
        }
        assert_int_equal(b->bytes, end);
        assert_true(end <= p.bucket_bytes);
    }
    assert_int_equal(n_buckets, 3); /* two whole blocks; as many as there may be; the rest */
    for (size_t f = 0; f < m->n_files; f++)
        for (size_t b = 0; b < m->files[f].n_blocks; b++)
            assert_int_equal(seen[f][b], 1);
    free(runs);
    ws_manifest_free(m);
}

static void test_ids(void **state)
{
    (void)state;
    unsigned char id[WS_NCCL_ID_BYTES], again[WS_NCCL_ID_BYTES];
    char text[WS_NCCL_ID_TEXT], release[WS_NCCL_RELEASE_TEXT];
    for (size_t i = 0; i < sizeof(id); i++)
        id[i] = (unsigned char)(i * 7 + 200);
    ws_nccl_id_format(id, text);
    assert_int_equal(strlen(text), 2 * WS_NCCL_ID_BYTES);
    assert_int_equal(ws_nccl_id_parse(text, again), 0);
    assert_memory_equal(id, again, sizeof(id));
    text[3] = 'g';
    assert_int_equal(ws_nccl_id_parse(text, again), -EPROTO);
    text[3] = 0;
    assert_int_equal(ws_nccl_id_parse(text, again), -EPROTO);
    assert_int_equal(ws_nccl_id_parse(NULL, again), -EPROTO);
    ws_nccl_release_format(22803, release);
    assert_string_equal(release, "2.28.3");
    ws_nccl_release_format(0, release);
    assert_string_equal(release, "0.0.0");
}

#define HOUR_NS (3600 * 1000 * WS_MS_NS)

static struct ws_sender_joiner joiner(const char *who, uint64_t version)
{
    struct ws_sender_joiner j = {.model = (char *)(uintptr_t) "actor", .mount_id = (char *)(uintptr_t)who};
    j.version = ws_version_id_make(version, "r1");
    snprintf(j.digest, sizeof(j.digest), "%032x", (unsigned)version);
    return j;
}

/* Two mounts are known, one of them joins: the other is waited for while its lease runs, and no longer. */
static void test_mounts_that_are_waited_for(void **state)
{
    (void)state;
    struct ws_fleet_mount b = {.mount_id = (char *)(uintptr_t) "b:/wsync"};
    struct ws_fleet_mount a = {.next = &b, .mount_id = (char *)(uintptr_t) "a:/wsync"};
    struct ws_agent_model m = {.name = (char *)(uintptr_t) "actor", .fleet = {.mounts = &a, .n = 2}};
    struct ws_agent *agent = calloc(1, sizeof(*agent));
    struct ws_sender_joiner first = joiner("a:/wsync", 1), second = joiner("b:/wsync", 1);
    struct ws_sender all = {.waiting = &first};
    assert_non_null(agent);
    agent->models = &m;
    a.lease_ns = b.lease_ns = ws_clock_ns() + HOUR_NS;
    assert_false(ws_sender_all_joined(agent, &all));
    b.lease_ns = 1;
    assert_true(ws_sender_all_joined(agent, &all));
    b.lease_ns = a.lease_ns;
    first.next = &second;
    assert_true(ws_sender_all_joined(agent, &all));
    second = joiner("b:/wsync", 2); /* another version, lineage or content belongs to another round */
    assert_false(ws_sender_all_joined(agent, &all));
    second = joiner("b:/wsync", 1);
    second.version = ws_version_id_make(1, "r2");
    assert_false(ws_sender_all_joined(agent, &all));
    second = joiner("b:/wsync", 1);
    second.digest[0] = 'f';
    assert_false(ws_sender_all_joined(agent, &all));
    a.lease_ns = b.lease_ns = 1; /* no mount is known: others may come */
    assert_false(ws_sender_all_joined(agent, &all));
    agent->models = NULL;
    assert_false(ws_sender_all_joined(agent, &all));
    free(agent);
}

/* As the agent keeps a joiner: its list frees it. */
static struct ws_sender_joiner *waiting(struct ws_sender *all, const char *who, const char *uuid,
                                        uint64_t version)
{
    struct ws_sender_joiner *j = calloc(1, sizeof(*j)), **end = &all->waiting;
    assert_non_null(j);
    *j = joiner(who, version);
    j->model = strdup("actor");
    j->mount_id = strdup(who);
    snprintf(j->uuid, sizeof(j->uuid), "%s", uuid);
    while (*end)
        end = &(*end)->next;
    *end = j;
    return j;
}

/* Those that want the same as the first, one per device, in their order. */
static void test_mounts_that_take_part(void **state)
{
    struct ws_sender all = {0};
    (void)state;
    (void)waiting(&all, "a:/wsync", "GPU-1", 7);
    (void)waiting(&all, "b:/wsync", "GPU-2", 8);
    (void)waiting(&all, "c:/wsync", "GPU-1", 7);
    (void)waiting(&all, "d:/wsync", "GPU-3", 7);
    ws_sender_select_members(&all);
    assert_string_equal(all.members->mount_id, "a:/wsync");
    assert_int_equal(all.members->rank, 1);
    assert_string_equal(all.members->next->mount_id, "d:/wsync");
    assert_int_equal(all.members->next->rank, 2);
    assert_null(all.members->next->next);
    assert_string_equal(all.waiting->mount_id, "b:/wsync");
    assert_string_equal(all.waiting->next->mount_id, "c:/wsync");
    assert_null(all.waiting->next->next);
    ws_sender_joiners_free(&all.members);
    ws_sender_joiners_free(&all.waiting);
}

static void test_mounts_that_left(void **state)
{
    const uint64_t now = 10 * HOUR_NS;
    struct ws_sender all = {0};
    (void)state;
    waiting(&all, "a:/wsync", "GPU-1", 1)->asked_ns = now - HOUR_NS;
    waiting(&all, "b:/wsync", "GPU-2", 1)->asked_ns = now - 1000 * WS_MS_NS;
    ws_sender_expire(&all, now);
    assert_string_equal(all.waiting->mount_id, "b:/wsync");
    assert_null(all.waiting->next);
    ws_sender_joiners_free(&all.waiting);
}

static int ask_for(struct ws_agent *a, const char *digest, int release, const char *uuid, json_t **reply,
                   struct ws_error *err)
{
    static const struct ws_api_request q = {
        .model = "actor", .has_version = true, .version = 1, .verb = "broadcast"};
    json_t *body = json_pack("{s:s,s:s,s:i,s:s,s:s}", "mount", "a:/wsync", "uuid", uuid, "nccl", release,
                             "digest", digest, "wants", "all");
    *reply = NULL;
    const struct ws_identity who = {.name = "anonymous", .is_shared = true};
    const struct ws_agent_request r = {.who = &who, .method = "POST", .q = &q, .body = body};
    int rc = ws_sender_route(a, &r, reply, err);
    json_decref(body);
    return rc;
}

/* A mount may join if it wants the same bytes, with this NCCL release, on another device. */
static void test_mounts_that_may_join(void **state)
{
    struct ws_agent *a = calloc(1, sizeof(*a));
    struct ws_sender all = {.runs = true, .uuid = "GPU-0"};
    struct ws_slot slot = {.state = WS_SLOT_SERVED, .version = 1, .lineage = "r1", .manifest = manifest()};
    struct ws_agent_model m = {.name = (char *)(uintptr_t) "actor",
                               .lineage = "r1",
                               .has_published = true,
                               .newest = 1,
                               .slots = {&slot},
                               .n_slots = 1};
    const char *digest = slot.manifest->digest;
    struct ws_error err;
    char other[33];
    json_t *reply;
    (void)state;
    assert_non_null(a);
    pthread_mutex_init(&a->lock, NULL);
    pthread_cond_init(&a->changed, NULL);
    a->models = &m;
    a->feature_state[WS_FEATURE_broadcast] = &all;
    snprintf(other, sizeof(other), "%s", digest);
    other[0] = other[0] == 'f' ? '0' : 'f';
    const int release = ws_nccl_release();
    assert_int_equal(ask_for(a, other, release, "GPU-1", &reply, &err), -ESTALE);
    assert_int_equal(ask_for(a, digest, release + 1, "GPU-1", &reply, &err), -EOPNOTSUPP);
    assert_non_null(strstr(err.text, "NCCL of one release"));
    assert_int_equal(ask_for(a, digest, release, "GPU-0", &reply, &err), -EOPNOTSUPP);
    assert_non_null(strstr(err.text, "from this very GPU"));
    assert_null(all.waiting);
    assert_int_equal(ask_for(a, digest, release, "GPU-1", &reply, &err), 0);
    assert_int_equal(all.waiting->ticket, json_integer_value(json_object_get(reply, "ticket")));
    assert_int_equal(slot.n_leases, 0);
    json_decref(reply);
    ws_sender_joiners_free(&all.waiting);
    ws_manifest_free(slot.manifest);
    pthread_mutex_destroy(&a->lock);
    pthread_cond_destroy(&a->changed);
    free(a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_runs),
        cmocka_unit_test(test_hostile_runs),
        cmocka_unit_test(test_buckets),
        cmocka_unit_test(test_ids),
        cmocka_unit_test(test_mounts_that_are_waited_for),
        cmocka_unit_test(test_mounts_that_take_part),
        cmocka_unit_test(test_mounts_that_left),
        cmocka_unit_test(test_mounts_that_may_join),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
