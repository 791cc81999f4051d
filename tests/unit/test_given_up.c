/* A trainer on two nodes whose ranks do not all begin an abandoned version: a late rank gets the error once
 * and then continues with the others, on either node; nodes that wrote different versions agree again on the
 * next one. */
#include "backends/trainer/agent/agent.h"
#include "backends/trainer/agent/core/features.h"
#include "backends/trainer/agent/core/leases.h"
#include "backends/trainer/agent/core/models.h"
#include "backends/trainer/agent/group/group.h"
#include "backends/trainer/wsync.h"
#include "tests/fixtures/private_folder.h"
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define N_RANKS 4 /* 0 and 1 on the primary's node, 2 and 3 on the other */
#define N       1000UL
#define LONG_MS 60000

struct rank {
    wsync_publisher *p;
    uint16_t values[N];
    uint64_t version;
    pthread_t thread;
    int rc;
    char why[1024];
};
static struct world {
    char dir[64], sockets[2][128], urls[2][140];
    struct ws_agent *agents[2];
    struct rank ranks[N_RANKS];
} w;

/* --- ranks --- */

static void open_rank(unsigned r, int new_run)
{
    wsync_config c = {.struct_size = sizeof(c),
                      .agent = w.urls[r / 2],
                      .model = "m",
                      .rank = r,
                      .world_size = N_RANKS,
                      .n_threads = 1,
                      .timeout_ms = LONG_MS,
                      .new_run = new_run};
    if (wsync_publisher_open(&c, &w.ranks[r].p))
        fail_msg("%s", wsync_error());
}

static void close_rank(unsigned r)
{
    wsync_close(w.ranks[r].p);
    w.ranks[r].p = NULL;
}

static void *offload_rank(void *arg)
{
    struct rank *k = arg;
    const unsigned r = (unsigned)(k - w.ranks);
    for (size_t i = 0; i < N; i++)
        k->values[i] = (uint16_t)(k->version * 7 + i);
    const wsync_param param = {.name = "trained",
                               .dtype = WSYNC_BF16,
                               .n_dims = 1,
                               .shape = {N_RANKS * N},
                               .data = k->values,
                               .piece = {.kind = WSYNC_RANGE, .start = r * N, .count = N}};
    k->rc = wsync_offload(k->p, &param, 1, k->version);
    snprintf(k->why, sizeof(k->why), "%s", k->rc ? wsync_error() : "");
    return NULL;
}

static int offload(unsigned r, uint64_t version)
{
    w.ranks[r].version = version;
    offload_rank(&w.ranks[r]);
    return w.ranks[r].rc;
}

static void written_by(unsigned r, uint64_t version)
{
    if (offload(r, version))
        fail_msg("rank %u: %s", r, w.ranks[r].why);
}

static void late(unsigned r, uint64_t version, const char *why)
{
    char text[64];
    snprintf(text, sizeof(text), "rank %u came too late with version %u", r, (unsigned)version);
    if (offload(r, version) != -ECANCELED || !strstr(w.ranks[r].why, text) || !strstr(w.ranks[r].why, why))
        fail_msg("rank %u, version %u: %d: %s", r, (unsigned)version, w.ranks[r].rc, w.ranks[r].why);
}

static void begin(unsigned r, uint64_t version)
{
    if (wsync_begin(w.ranks[r].p, version))
        fail_msg("%s", wsync_error());
}

static void give_up(unsigned r, uint64_t version)
{
    begin(r, version);
    assert_int_equal(wsync_abandon(w.ranks[r].p), 0);
}

/* All of them get this result for the version: published (0), or abandoned and why. */
static void all_hear(uint64_t version, int rc, const char *why)
{
    for (unsigned r = 0; r < N_RANKS; r++) {
        const int got = wsync_wait_published(w.ranks[r].p, version, LONG_MS);
        if (got != rc || (rc && !strstr(wsync_error(), why)))
            fail_msg("rank %u, version %u: %d: %s", r, (unsigned)version, got, wsync_error());
        if (rc)
            assert_int_equal(wsync_wait_loaded(w.ranks[r].p, version, NULL, LONG_MS), rc);
    }
}

/* Offloaded by all at once, as the first version of a registration must be. */
static void publish(uint64_t version)
{
    for (unsigned r = 0; r < N_RANKS; r++) {
        w.ranks[r].version = version;
        assert_int_equal(pthread_create(&w.ranks[r].thread, NULL, offload_rank, &w.ranks[r]), 0);
    }
    for (unsigned r = 0; r < N_RANKS; r++)
        pthread_join(w.ranks[r].thread, NULL);
    for (unsigned r = 0; r < N_RANKS; r++)
        if (w.ranks[r].rc)
            fail_msg("rank %u: %s", r, w.ranks[r].why);
    all_hear(version, 0, NULL);
}

/* --- agents --- */

/* Version 1 is published. */
static void start(void)
{
    struct ws_error err = {0};
    char http[64];
    w = (struct world){0};
    assert_true(private_folder(w.dir, sizeof(w.dir), "given_up"));
    for (unsigned i = 0; i < 2; i++) {
        snprintf(w.sockets[i], sizeof(w.sockets[i]), "%s/%u", w.dir, i);
        snprintf(w.urls[i], sizeof(w.urls[i]), "unix:%s", w.sockets[i]);
        struct ws_agent_options o = {.tcp.listen = "127.0.0.1:0",
                                     .tcp.access = {.insecure = true, .nodes = true},
                                     .socket = w.sockets[i],
                                     .socket_gid = (gid_t)-1,
                                     .n_threads = 1,
                                     .max_slots = 2,
                                     .primary = i ? http : NULL};
        if (ws_agent_new(&w.agents[i], &o, &err))
            fail_msg("%s", err.text);
        snprintf(http, sizeof(http), "http://127.0.0.1:%u", ws_agent_port(w.agents[0]));
    }
    for (unsigned r = 0; r < N_RANKS; r++)
        open_rank(r, 0);
    publish(1);
}

static void end(void)
{
    for (unsigned r = 0; r < N_RANKS; r++)
        close_rank(r);
    ws_agent_free(w.agents[1]);
    ws_agent_free(w.agents[0]);
    (void)rmdir(w.dir);
}

static bool is_preparing(const struct ws_agent_model *m)
{
    return m->preparing;
}

static bool lacks_a_rank(const struct ws_agent_model *m)
{
    return m->n_registered == 1;
}

static bool all_are_gone(const struct ws_agent_model *m)
{
    return m->n_registered + m->group->n_remotes == 0;
}

static void wait_until(bool (*is)(const struct ws_agent_model *m))
{
    struct ws_agent *a = w.agents[0];
    bool now = false;
    for (unsigned ms = 0; !now; ms++) {
        assert_true(ms < LONG_MS);
        usleep(1000);
        pthread_mutex_lock(&a->lock);
        now = is(ws_agent_model_find(a, "m"));
        pthread_mutex_unlock(&a->lock);
    }
}

/* --- the tests --- */

static void late_ranks_get_the_error(void **state)
{
    (void)state;
    start();
    give_up(0, 2); /* on the primary's node */
    for (unsigned r = 1; r < N_RANKS; r++)
        late(r, 2, "rank 0 gave it up");
    all_hear(2, -ECANCELED, "rank 0 gave it up");
    publish(3);
    give_up(3, 4); /* on the other node; its mate's begin asks the primary, which knows of it by then */
    late(2, 4, "rank 3 gave it up");
    late(0, 4, "rank 3 gave it up");
    late(1, 4, "rank 3 gave it up");
    all_hear(4, -ECANCELED, "rank 3 gave it up");
    publish(5);
    end();
}

/* A rank that got the error does not wait for the one that has ended; a replacement is not late. */
static void a_rank_that_ended_comes_back(void **state)
{
    (void)state;
    start();
    begin(0, 2);
    close_rank(0);
    wait_until(lacks_a_rank);
    for (unsigned r = 1; r < N_RANKS; r++)
        late(r, 2, "rank 0");
    open_rank(0, 0);
    publish(2);
    end();
}

static void it_may_be_written_again(void **state)
{
    (void)state;
    start();
    give_up(0, 2);
    written_by(0, 2);
    for (unsigned r = 1; r < N_RANKS; r++) {
        late(r, 2, "rank 0 gave it up");
        written_by(r, 2);
    }
    all_hear(2, 0, NULL);
    end();
}

/* It has the same numbers. */
static void another_lineage_is_unaffected(void **state)
{
    (void)state;
    start();
    give_up(1, 2);
    for (unsigned r = 0; r < N_RANKS; r++)
        close_rank(r);
    wait_until(all_are_gone);
    for (unsigned r = 0; r < N_RANKS; r++)
        open_rank(r, 1);
    publish(1);
    publish(2);
    end();
}

static void a_node_that_is_behind_catches_up(void **state)
{
    (void)state;
    start();
    for (unsigned ahead = 0; ahead < 2; ahead++) { /* either node */
        const uint64_t version = 2 + 4 * ahead;
        for (unsigned r = 0; r < N_RANKS; r++)
            written_by(r, version + (r / 2 == ahead));
        for (unsigned r = 0; r < N_RANKS; r++) {
            assert_int_equal(wsync_wait_published(w.ranks[r].p, version + (r / 2 == ahead), LONG_MS),
                             -ECANCELED);
            assert_non_null(strstr(wsync_error(), "the nodes wrote different versions"));
        }
        for (unsigned r = 2 - 2 * ahead; r < 4 - 2 * ahead; r++)
            late(r, version + 1, "the nodes wrote different versions");
        publish(version + 2);
    }
    end();
}

/* The primary's node waits for a slot with the version that the other node abandons. */
static void given_up_while_it_is_prepared(void **state)
{
    struct ws_error err = {0};
    struct ws_lease *lease;
    (void)state;
    start();
    publish(2);
    if (ws_agent_lease_acquire(w.agents[0], "m@0.2", 1, NULL, "a reader", NULL, NULL, &lease, &err))
        fail_msg("%s", err.text);
    w.ranks[0].version = 3;
    assert_int_equal(pthread_create(&w.ranks[0].thread, NULL, offload_rank, &w.ranks[0]), 0);
    wait_until(is_preparing);
    give_up(3, 3);
    late(2, 3, "rank 3 gave it up");
    ws_agent_lease_release(w.agents[0], lease);
    pthread_join(w.ranks[0].thread, NULL);
    assert_int_equal(w.ranks[0].rc, -ECANCELED);
    assert_non_null(strstr(w.ranks[0].why, "rank 3 gave it up"));
    late(1, 3, "rank 3 gave it up");
    publish(4);
    end();
}

/* The other node abandons a version while the primary's answer is on its way, which knows only of an older
 * one. */
static void an_older_answer_undoes_nothing(void **state)
{
    struct ws_agent *primary, *other;
    struct ws_agent_model *m;
    bool asked = false;
    (void)state;
    start();
    primary = w.agents[0];
    other = w.agents[1];
    give_up(3, 2);
    for (unsigned r = 0; r < 3; r++)
        late(2 - r, 2, "rank 3 gave it up");
    publish(3);
    begin(3, 4);
    pthread_mutex_lock(&primary->lock); /* it does not answer */
    pthread_mutex_lock(&other->lock);
    m = ws_agent_model_find(other, "m");
    ws_group_wake(other, m);
    for (unsigned ms = 0; !asked; ms++) {
        assert_true(ms < LONG_MS);
        pthread_mutex_unlock(&other->lock);
        usleep(1000);
        pthread_mutex_lock(&other->lock);
        asked = !m->group->send_now;
    }
    pthread_mutex_unlock(&primary->lock);
    ws_agent_model_abandon(other, m, "rank 3 gave it up");
    pthread_mutex_unlock(&other->lock);
    assert_int_equal(wsync_abandon(w.ranks[3].p), 0);
    for (unsigned r = 0; r < 3; r++) /* rank 2 first, whose begin asks the primary */
        late(2 - r, 4, "rank 3 gave it up");
    all_hear(4, -ECANCELED, "rank 3 gave it up");
    publish(5);
    end();
}

/* A node hashes an abandoned version to its end, while others continue and abandon the next one. */
static void a_late_end_undoes_nothing(void **state)
{
    struct ws_agent_model *m;
    struct ws_version_id next;
    (void)state;
    start();
    publish(2);
    pthread_mutex_lock(&w.agents[0]->lock);
    m = ws_agent_model_find(w.agents[0], "m");
    next = ws_version_id_make(4, m->group_lineage);
    ws_group_given_up(m, &next, m->group->round + 1);
    m->given_up = ws_version_id_make(3, m->group_lineage);
    m->n_begun = 2;
    m->group->abandon_pending = true;
    ws_features_discarded(w.agents[0], m);
    m->n_begun = 0;
    assert_true(ws_version_id_equal(&m->group->given_up, &next));
    pthread_mutex_unlock(&w.agents[0]->lock);
    end();
}

/* A reason so long that it is cut, inside a character, where the nodes prefix it with their names. */
static void a_long_reason_is_reported(void **state)
{
    static const char letter[] = "\xE2\x82\xAC"; /* a euro sign */
    char why[1024] = "";
    (void)state;
    start();
    begin(3, 2);
    while (strlen(why) + sizeof(letter) <= sizeof(why))
        strcat(why, letter);
    pthread_mutex_lock(&w.agents[1]->lock);
    ws_agent_model_abandon(w.agents[1], ws_agent_model_find(w.agents[1], "m"), why);
    pthread_mutex_unlock(&w.agents[1]->lock);
    assert_int_equal(wsync_abandon(w.ranks[3].p), 0);
    for (unsigned r = 0; r < 3; r++)
        late(2 - r, 2, letter);
    publish(3);
    end();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(late_ranks_get_the_error),         cmocka_unit_test(a_rank_that_ended_comes_back),
        cmocka_unit_test(it_may_be_written_again),          cmocka_unit_test(another_lineage_is_unaffected),
        cmocka_unit_test(a_node_that_is_behind_catches_up), cmocka_unit_test(given_up_while_it_is_prepared),
        cmocka_unit_test(an_older_answer_undoes_nothing),   cmocka_unit_test(a_late_end_undoes_nothing),
        cmocka_unit_test(a_long_reason_is_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
