/* Fleets and releases with the test's own clock: leases, the two phases, missing mounts. */
#include "backends/trainer/agent/fleet/release.h"
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
// clang-format off
#include <cmocka.h>
// clang-format on

#define S       1000000000UL
#define LEASE_S 15 /* WS_POLL_MS and the grace */

static struct ws_fleet_mount *meet(struct ws_fleet *f, const char *who, uint64_t now)
{
    struct ws_fleet_mount *m;
    struct ws_error err;
    assert_int_equal(ws_fleet_find_or_add(f, "", who, now, &m, &err), 0);
    m->follows = true;
    return m;
}

static const struct ws_version_id one = {1, "r"}, two = {2, "r"}, three = {3, "r"}, other = {2, "q"};

/* As the agent does it, with a state file that is written at once. */
static bool advance(struct ws_release *r, uint64_t now)
{
    const bool changed = ws_release_advance(r, now);
    for (size_t i = 0; i < r->n_items; i++)
        r->items[i].fleet->recorded = r->items[i].fleet->decided;
    return ws_release_commit(r) || changed;
}

static struct ws_release *release_of(struct ws_fleet *f, const struct ws_version_id *to, uint64_t now)
{
    static uint64_t id;
    const struct ws_release_item part = {"actor", f, *to};
    struct ws_release *r = ws_release_new(++id, &part, 1, &(struct ws_release_terms){0}, now + 60 * S);
    assert_non_null(r);
    (void)advance(r, now);
    return r;
}

static void test_phases(void **state)
{
    struct ws_fleet f = {0};
    struct ws_fleet_mount *a = meet(&f, "a:/m", S), *b = meet(&f, "b:/m", S), *idle = meet(&f, "idle:/m", S);
    (void)state;
    idle->follows = false;
    ws_fleet_record_prepared(a, &two); /* of a previous release: it is asked again */
    struct ws_release *r = release_of(&f, &two, S);
    assert_false(advance(r, S));
    assert_int_equal(ws_fleet_mount_progress(&f, a, r->id, &two, S), WS_FLEET_WAITING);
    ws_fleet_record_prepared(a, &two);
    ws_fleet_record_prepared(b, &other); /* the same number of another lineage */
    ws_fleet_record_fetched(b, &two);    /* for another mount's engine: its layout was not compared */
    assert_false(advance(r, 2 * S));
    ws_fleet_record_prepared(b, &two);
    assert_true(advance(r, 2 * S));
    assert_int_equal(r->phase, WS_RELEASE_COMMITTED);
    ws_release_abort(r, "too late");
    assert_int_equal(r->phase, WS_RELEASE_COMMITTED);
    ws_fleet_record_loaded(&f, a, &two);
    assert_false(ws_release_is_finished(r, 2 * S));
    ws_fleet_record_failed(&f, b, &two, 0, "its engine");
    assert_true(ws_release_is_finished(r, 2 * S));
    ws_fleet_record_loaded(&f, b, &two); /* later, after all */
    assert_int_equal(ws_fleet_mount_progress(&f, b, r->id, &two, 2 * S), WS_FLEET_LOADED);
    struct ws_fleet_mount *late = meet(&f, "late:/m", 2 * S);
    assert_false(ws_release_is_finished(r, 2 * S));
    ws_fleet_record_loaded(&f, late, &two);
    assert_true(ws_release_is_finished(r, 2 * S));
    free(r);
    ws_fleet_clear(&f);
}

static void test_aborts(void **state)
{
    struct ws_fleet f = {0};
    struct ws_fleet_mount *a = meet(&f, "a:/m", S);
    (void)state;
    struct ws_release *r = release_of(&f, &two, S);
    ws_fleet_record_failed(&f, a, &two, r->id, "a tensor is missing");
    assert_true(advance(r, S));
    assert_int_equal(r->phase, WS_RELEASE_ABORTED);
    assert_non_null(strstr(r->why, "a:/m cannot take actor/2: a tensor is missing"));
    assert_true(ws_release_is_finished(r, S));
    const uint64_t before = r->id;
    free(r);
    r = release_of(&f, &two, S); /* asked again: the earlier failure is forgotten */
    assert_int_equal(r->phase, WS_RELEASE_PREPARING);
    ws_fleet_record_failed(&f, a, &two, before, "late"); /* of the release before, which it was still at */
    assert_false(advance(r, S));
    assert_int_equal(r->phase, WS_RELEASE_PREPARING);
    ws_fleet_extend_lease(&f, "", "a:/m", 61 * S, 0);
    assert_true(advance(r, 62 * S));
    assert_non_null(strstr(r->why, "a:/m had not prepared it in time"));
    free(r);
    r = release_of(&f, &two, S);
    ws_fleet_record_failed(&f, a, &two, r->id, "its disk");
    ws_fleet_record_failed(&f, a, &two, before, "late"); /* does not hide what this one failed for */
    assert_true(advance(r, S));
    assert_non_null(strstr(r->why, "its disk"));
    free(r);
    f.release = before + 9; /* committed with a quorum, meanwhile */
    f.released = two;
    f.quarantines = true;
    ws_fleet_record_failed(&f, a, &two, before, "late");
    assert_int_equal(a->quarantined_by, 0);
    ws_fleet_record_failed(&f, a, &two, f.release, "its engine");
    assert_int_equal(a->quarantined_by, f.release);
    ws_fleet_clear(&f);
}

static void test_leases(void **state)
{
    struct ws_fleet f = {0};
    struct ws_fleet_mount *a = meet(&f, "a:/m", S), *b = meet(&f, "b:/m", S);
    (void)state;
    struct ws_release *r = release_of(&f, &two, S);
    ws_fleet_record_prepared(a, &two);
    ws_fleet_extend_lease(&f, "", "a:/m", 10 * S, 10000);
    const uint64_t lease_ns = a->lease_ns;
    ws_fleet_extend_lease(&f, "", "a:/m", 2 * S, 0); /* a late poll does not shorten a lease */
    assert_true(a->lease_ns == lease_ns);
    ws_fleet_extend_lease(&f, "", "nobody", 10 * S, 10000);
    assert_false(advance(r, (LEASE_S + 1) * S));
    assert_true(advance(r, (LEASE_S + 1) * S + 1)); /* b is silent: it continues without b */
    assert_int_equal(r->phase, WS_RELEASE_COMMITTED);
    assert_int_equal(ws_fleet_mount_progress(&f, b, r->id, &two, 20 * S), WS_FLEET_SILENT);
    ws_fleet_record_loaded(&f, a, &two);
    assert_true(ws_release_is_finished(r, 20 * S));
    (void)meet(&f, "b:/m", 21 * S); /* it is back, and still preparing */
    assert_false(ws_release_is_finished(r, 21 * S));
    ws_fleet_commit(&f, r->id + 100, &three, false);
    assert_true(ws_release_is_superseded(r) && ws_release_is_finished(r, 21 * S));
    free(r);
    r = release_of(&f, &three, 100 * S); /* all are silent, or the agent is cut off: no commit */
    assert_false(advance(r, 101 * S));
    assert_int_equal(r->phase, WS_RELEASE_PREPARING);
    assert_true(advance(r, 161 * S));
    assert_non_null(strstr(r->why, "and all others are not heard of"));
    free(r);
    assert_int_equal(f.n, 2);
    ws_fleet_expire(&f, 1000 * S);
    assert_int_equal(f.n, 0);
    r = release_of(&f, &two, S); /* there are no mounts: committed at once */
    assert_int_equal(r->phase, WS_RELEASE_COMMITTED);
    free(r);
}

/* 2, then 1 and 2 again while the engine still loads 1. */
static void there_and_back(struct ws_fleet *f, struct ws_release *out[2], uint64_t *answered)
{
    struct ws_fleet_mount *m = meet(f, "a:/m", S);
    const struct ws_version_id *const to[] = {&two, &one, &two};
    for (size_t i = 0; i < 3; i++) {
        struct ws_release *r = release_of(f, to[i], S);
        assert_int_equal(r->phase, WS_RELEASE_PREPARING);
        ws_fleet_record_prepared(m, to[i]);
        assert_true(advance(r, S));
        if (i > 0) {
            out[i - 1] = r;
            continue;
        }
        assert_false(ws_release_is_finished(r, S));
        ws_fleet_record_loaded(f, m, &two);
        if (answered) {
            *answered = r->id;
            ws_fleet_record_presence(f, m, &two, answered);
        }
        assert_true(ws_release_is_finished(r, S));
        free(r);
    }
}

static void test_there_and_back(void **state)
{
    struct ws_fleet f = {0};
    struct ws_release *r[2];
    uint64_t answered = 0;
    (void)state;
    there_and_back(&f, r, &answered);
    struct ws_fleet_mount *m = f.mounts;
    assert_true(ws_release_is_superseded(r[0]) && !ws_release_is_superseded(r[1]));
    assert_int_equal(ws_fleet_mount_progress(&f, m, r[1]->id, &two, S), WS_FLEET_PREPARED);
    assert_false(ws_fleet_serves(&f, &two, "all", S, NULL, 0) || ws_fleet_serves(&f, &two, "a", S, NULL, 0));
    ws_fleet_record_presence(&f, m, &two, &answered); /* of the previous release: another engine was added */
    assert_false(ws_release_is_finished(r[1], S));
    ws_fleet_record_loaded(&f, m, &one);
    ws_fleet_record_presence(&f, m, &one, &r[0]->id);
    assert_false(ws_release_is_finished(r[1], S));
    ws_fleet_record_loaded(&f, m, &two);
    assert_false(ws_release_is_finished(r[1], S));
    ws_fleet_record_presence(&f, m, &two, &r[1]->id);
    assert_true(ws_release_is_finished(r[1], S) && ws_fleet_serves(&f, &two, "all", S, NULL, 0));
    free(r[0]);
    free(r[1]);
    ws_fleet_clear(&f);
}

/* Mounts of wsync 0.1.0 name no release, and report nothing if they have nothing to do. */
static void test_old_mounts(void **state)
{
    struct ws_fleet f = {0};
    struct ws_release *r[2];
    (void)state;
    there_and_back(&f, r, NULL);
    struct ws_fleet_mount *m = f.mounts;
    assert_false(ws_release_is_finished(r[1], S) || ws_fleet_serves(&f, &two, "all", S, NULL, 0));
    ws_fleet_record_presence(&f, m, &two, NULL); /* may be released while it loads */
    assert_false(ws_release_is_finished(r[1], S));
    ws_fleet_record_loaded(&f, m, &one);
    assert_false(ws_release_is_finished(r[1], S));
    ws_fleet_record_loaded(&f, m, &two);
    assert_true(ws_release_is_finished(r[1], S) && ws_fleet_serves(&f, &two, "all", S, NULL, 0));
    free(r[0]);
    r[0] = release_of(&f, &two, S); /* which it serves: it does not report again */
    ws_fleet_record_prepared(m, &two);
    assert_true(advance(r[0], S) && ws_release_is_finished(r[0], S));
    assert_int_equal(ws_fleet_mount_progress(&f, m, r[0]->id, &two, S), WS_FLEET_LOADED);
    struct ws_fleet_mount *late = meet(&f, "b:/m", S);
    ws_fleet_record_presence(&f, late, &two, NULL);
    assert_true(ws_release_is_finished(r[0], S));
    ws_fleet_record_presence(&f, late, &one, NULL);
    assert_false(ws_release_is_finished(r[0], S));
    ws_fleet_record_failed(&f, late, &two, r[0]->id, "its engine");
    assert_true(ws_release_is_finished(r[0], S));
    free(r[0]);
    free(r[1]);
    r[0] = release_of(&f, &one, S); /* back: the mount that failed may just be trying 2 again */
    ws_fleet_record_prepared(m, &one);
    ws_fleet_record_prepared(late, &one);
    assert_true(advance(r[0], S));
    ws_fleet_record_loaded(&f, m, &one);
    assert_false(ws_release_is_finished(r[0], S));
    ws_fleet_record_loaded(&f, late, &one);
    assert_true(ws_release_is_finished(r[0], S));
    free(r[0]);
    ws_fleet_clear(&f);
}

static void test_models(void **state)
{
    struct ws_fleet actor = {0}, critic = {0};
    struct ws_fleet_mount *a = meet(&actor, "a:/m", S), *c = meet(&critic, "a:/m", S);
    const struct ws_release_item parts[] = {{"actor", &actor, two}, {"critic", &critic, three}};
    struct ws_release *r = ws_release_new(7, parts, 2, &(struct ws_release_terms){0}, 60 * S);
    (void)state;
    assert_true(ws_release_has_model(r, "critic") && !ws_release_has_model(r, "reward"));
    ws_fleet_record_prepared(a, &two);
    assert_false(advance(r, S));
    ws_fleet_record_prepared(c, &three);
    assert_true(advance(r, S));
    json_t *order = ws_release_desired_json(r, "critic"), *whole = ws_release_json(r, S);
    assert_int_equal(json_integer_value(json_object_get(order, "version")), 3);
    assert_string_equal(json_string_value(json_object_get(order, "phase")), "committed");
    assert_int_equal(json_array_size(json_object_get(whole, "mounts")), 2);
    json_decref(order);
    json_decref(whole);
    free(r);
    ws_fleet_clear(&actor);
    ws_fleet_clear(&critic);
}

static void test_serves(void **state)
{
    struct ws_fleet f = {0};
    struct ws_fleet_mount *a = meet(&f, "a:/m", S), *b = meet(&f, "b:/m", S), *c = meet(&f, "c:/m", S);
    char text[256] = "";
    (void)state;
    c->follows = false; /* has neither policy nor engines: not one of all */
    assert_false(ws_fleet_serves(&f, &two, "all", S, text, sizeof(text)));
    assert_non_null(strstr(text, "a:/m does not serve it, nor do 1 more"));
    ws_fleet_record_loaded(&f, a, &two);
    ws_fleet_record_loaded(&f, b, &other);
    assert_false(ws_fleet_serves(&f, &two, "all", S, text, sizeof(text)));
    assert_non_null(strstr(text, "b:/m does not"));
    assert_true(ws_fleet_serves(&f, &two, "1", S, NULL, 0));
    assert_false(ws_fleet_serves(&f, &two, "2", S, text, sizeof(text)));
    assert_non_null(strstr(text, "1 of 2 mounts serve it"));
    assert_true(ws_fleet_serves(&f, &two, "a", S, NULL, 0) && ws_fleet_serves(&f, &two, "a:/m", S, NULL, 0));
    assert_false(ws_fleet_serves(&f, &two, "a:/", S, NULL, 0) ||
                 ws_fleet_serves(&f, &two, "nobody", S, NULL, 0));
    ws_fleet_record_loaded(&f, b, &three); /* a later one of the run */
    assert_true(ws_fleet_serves(&f, &two, "all", S, NULL, 0));
    ws_fleet_record_presence(&f, b, NULL, NULL);
    assert_true(ws_fleet_serves(&f, &two, "a", S, NULL, 0));
    ws_fleet_extend_lease(&f, "", "a:/m", 90 * S, 0);
    assert_true(ws_fleet_serves(&f, &two, "all", 91 * S, NULL, 0)); /* b is silent */
    struct ws_fleet none = {0};
    assert_false(ws_fleet_serves(&none, &two, "all", S, NULL, 0));
    ws_fleet_clear(&f);
}

static struct ws_release *release_on(struct ws_fleet *f, uint64_t min_engines, unsigned quorum_permille)
{
    static uint64_t id = 1000;
    const struct ws_release_item part = {"actor", f, two};
    const struct ws_release_terms terms = {min_engines, quorum_permille};
    struct ws_release *r = ws_release_new(++id, &part, 1, &terms, 60 * S);
    assert_non_null(r);
    return r;
}

static void test_min_engines(void **state)
{
    struct ws_fleet f = {0};
    struct ws_fleet_mount *a = meet(&f, "a:/m", S);
    (void)state;
    a->engines = 3;
    struct ws_release *r = release_on(&f, 4, 0);
    ws_fleet_record_prepared(a, &two);
    assert_false(advance(r, 2 * S)); /* an engine may still come */
    a->engines = 4;
    assert_true(advance(r, 3 * S));
    assert_int_equal(r->phase, WS_RELEASE_COMMITTED);
    free(r);
    r = release_on(&f, 5, 0);
    ws_fleet_record_prepared(a, &two);
    ws_fleet_extend_lease(&f, "", "a:/m", 61 * S, 0);
    assert_true(advance(r, 61 * S));
    assert_non_null(strstr(r->why, "4 engines are at the mounts that have prepared it, and 5 are asked for"));
    free(r);
    ws_fleet_clear(&f);
}

static void test_quorum(void **state)
{
    struct ws_fleet f = {0};
    struct ws_fleet_mount *a = meet(&f, "a:/m", S), *b = meet(&f, "b:/m", S), *c = meet(&f, "c:/m", S);
    (void)state;
    a->engines = 8;
    b->engines = c->engines = 1;
    struct ws_release *r = release_on(&f, 0, 850);
    ws_fleet_record_prepared(a, &two);
    ws_fleet_record_failed(&f, c, &two, 0, "its disk");
    assert_false(advance(r, 2 * S)); /* b has not answered, and 8 of 10 engines are too few */
    ws_fleet_record_prepared(b, &two);
    assert_true(advance(r, 3 * S));
    assert_int_equal(r->phase, WS_RELEASE_COMMITTED);
    assert_true(f.quarantines && c->quarantined_by == r->id && !a->quarantined_by && !b->quarantined_by);
    ws_fleet_record_loaded(&f, a, &two);
    assert_false(ws_release_is_finished(r, 3 * S));
    ws_fleet_record_loaded(&f, b, &two);
    assert_true(ws_release_is_finished(r, 3 * S));
    free(r);
    r = release_on(&f, 0, 950); /* the failed one is 10 %: no waiting for the deadline */
    ws_fleet_record_failed(&f, c, &two, 0, "its disk");
    assert_true(advance(r, 4 * S));
    assert_non_null(strstr(r->why, "c:/m cannot take actor/2: its disk"));
    free(r);
    a->engines = b->engines = c->engines = 0;
    r = release_on(&f, 0, 900); /* of mounts, and one has not answered in time */
    ws_fleet_record_prepared(a, &two);
    ws_fleet_record_prepared(b, &two);
    ws_fleet_extend_lease(&f, "", "a:/m", 61 * S, 0);
    ws_fleet_extend_lease(&f, "", "b:/m", 61 * S, 0);
    ws_fleet_extend_lease(&f, "", "c:/m", 61 * S, 0);
    assert_false(advance(r, 59 * S));
    assert_true(advance(r, 61 * S));
    assert_non_null(strstr(r->why, "2 of 3 mounts had prepared it in time, and 3 are asked for (quorum)"));
    free(r);
    ws_fleet_clear(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_phases),     cmocka_unit_test(test_aborts),
        cmocka_unit_test(test_leases),     cmocka_unit_test(test_there_and_back),
        cmocka_unit_test(test_old_mounts), cmocka_unit_test(test_models),
        cmocka_unit_test(test_serves),     cmocka_unit_test(test_min_engines),
        cmocka_unit_test(test_quorum)};
    return cmocka_run_group_tests_name("release", tests, NULL, NULL);
}
