/* An engine's condition: every event in every state, and the events that are refused. */
#include "fs/engines/condition.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
// clang-format off
#include <cmocka.h>
// clang-format on

#define OLD  "41@r"
#define NEW  "42@r"
#define PATH "/w/actor/42"

static const struct ws_condition_reports vllm = {.version = true}, sglang = {.version = true, .path = true},
                                         remote = {0};

static struct ws_engine_serving says(const char *version, const char *path, bool paused)
{
    struct ws_engine_serving now = {.paused = paused};
    strcpy(now.version, version);
    strcpy(now.path, path);
    return now;
}

static bool hears(struct ws_condition *c, const char *version, bool paused, const char *current)
{
    struct ws_engine_serving now = says(version, "", paused);
    bool restarted;
    now.reports_paused = c->reports.version && !c->reports.path; /* an older SGLang */
    return ws_condition_answered(c, &now, current, &restarted);
}

/* Serves OLD, which the mount saw it load. */
static void make(struct ws_condition *c, struct ws_condition_reports reports)
{
    const struct ws_engine_serving now = says(OLD, "/w/actor/41", false);
    ws_condition_init(c, reports);
    ws_condition_probed(c, &now);
    ws_condition_added(c, false);
}

/* How far a switch gets with it. */
enum step { BEGUN, ASKED, TOLD, PAUSED, LOADING, UNHEARD, FAILED, LOADED, RUNS, SERVES, N_STEPS };

static void ask(struct ws_condition *c)
{
    const struct ws_engine_serving now = says(c->version, "", c->state == WS_ENGINE_PAUSED);
    ws_condition_queried(c, &now);
}

static void go(struct ws_condition *c, enum step step)
{
    assert_true(ws_condition_begin(c));
    if (step >= ASKED)
        ask(c);
    if (step >= TOLD)
        ws_condition_pause_sent(c);
    if (step >= PAUSED)
        ws_condition_paused(c);
    if (step >= LOADING)
        assert_true(ws_condition_load_begins(c, NEW));
    if (step >= UNHEARD)
        ws_condition_load_ended(c, PATH, step > UNHEARD, step > FAILED);
    if (step >= RUNS)
        assert_true(ws_condition_runs(c));
    if (step >= SERVES)
        assert_true(ws_condition_serves(c));
}

static void check(const struct ws_condition *c, enum ws_engine_state state, enum ws_engine_weights weights,
                  bool left)
{
    if (c->state != state || c->weights != weights || c->abandoned != left)
        fail_msg("%s, weights %d, left %d; not %s, %d, %d", ws_engine_state_name(c->state), c->weights,
                 c->abandoned, ws_engine_state_name(state), weights, left);
}

static void test_reports(void **state)
{
    static const struct {
        enum ws_engine_state from;
        const char *says, *current;
        bool paused;
        enum ws_engine_state to;
    } cases[] = {
        {WS_ENGINE_UNKNOWN, OLD, OLD, false, WS_ENGINE_SERVING},
        {WS_ENGINE_UNKNOWN, OLD, NEW, false, WS_ENGINE_STALE},
        {WS_ENGINE_UNKNOWN, OLD, NULL, false, WS_ENGINE_SERVING},
        {WS_ENGINE_UNKNOWN, OLD, NULL, true, WS_ENGINE_PAUSED},
        {WS_ENGINE_UNKNOWN, OLD, OLD, true, WS_ENGINE_PAUSED},
        {WS_ENGINE_SERVING, OLD, OLD, false, WS_ENGINE_SERVING},
        {WS_ENGINE_SERVING, OLD, NEW, false, WS_ENGINE_STALE},
        {WS_ENGINE_SERVING, OLD, OLD, true, WS_ENGINE_PAUSED},
        {WS_ENGINE_SERVING, OLD, NEW, true, WS_ENGINE_STALE},
        {WS_ENGINE_STALE, OLD, OLD, false, WS_ENGINE_SERVING},
        {WS_ENGINE_STALE, OLD, NEW, false, WS_ENGINE_STALE},
        {WS_ENGINE_PAUSED, OLD, OLD, false, WS_ENGINE_SERVING},
        {WS_ENGINE_PAUSED, OLD, NEW, true, WS_ENGINE_PAUSED},
        {WS_ENGINE_PAUSED, OLD, NEW, false, WS_ENGINE_STALE},
        {WS_ENGINE_PAUSED, OLD, NULL, true, WS_ENGINE_PAUSED},
        {WS_ENGINE_PAUSED, OLD, NULL, false, WS_ENGINE_SERVING},
    };
    struct ws_condition c;
    bool lost;
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        make(&c, vllm);
        c.state = cases[i].from;
        assert_true(hears(&c, cases[i].says, cases[i].paused, cases[i].current));
        check(&c, cases[i].to, WS_WEIGHTS_SOUND, false);
        assert_true(ws_condition_silent(&c, "gone", &lost) && lost);
        assert_true(ws_condition_silent(&c, "still gone", &lost) && !lost);
        check(&c, WS_ENGINE_UNKNOWN, WS_WEIGHTS_SOUND, false);
        assert_string_equal(c.error, "gone");
        assert_true(
            hears(&c, NEW, false, OLD)); /* it is there again: that it was silent is no news any more */
        check(&c, WS_ENGINE_STALE, WS_WEIGHTS_SOUND, false);
        assert_string_equal(c.error, "");
    }
    make(&c, remote); /* the version of an engine that does not report one is the recorded one */
    assert_true(hears(&c, "", false, NEW));
    check(&c, WS_ENGINE_SERVING, WS_WEIGHTS_SOUND, false);
    assert_true(ws_condition_silent(&c, "gone", &lost) && hears(&c, "", false, NEW));
    check(&c, WS_ENGINE_STALE, WS_WEIGHTS_SOUND, false);
    assert_true(ws_condition_reported(&c, NEW));
    check(&c, WS_ENGINE_SERVING, WS_WEIGHTS_SOUND, false);
    assert_string_equal(c.version, NEW);
}

static void test_restarted(void **state)
{
    const struct ws_engine_serving now = says("default", "", false);
    struct ws_condition c;
    bool restarted = false;
    (void)state;
    make(&c, vllm);
    assert_true(ws_condition_names_another(&c, &now) && ws_condition_answered(&c, &now, OLD, &restarted));
    assert_true(restarted && !c.path[0]); /* it no longer serves what the mount saw it load */
    make(&c, sglang);
    assert_true(ws_condition_answered(&c, &now, OLD, &restarted) && restarted && c.path[0]);
    make(&c, remote);
    assert_true(ws_condition_answered(&c, &now, OLD, &restarted) && !restarted && c.path[0]);
}

static void test_switch(void **state)
{
    static const enum ws_engine_state seen[N_STEPS] = {
        [BEGUN] = WS_ENGINE_SERVING,  [ASKED] = WS_ENGINE_SERVING,   [TOLD] = WS_ENGINE_SERVING,
        [PAUSED] = WS_ENGINE_PAUSED,  [LOADING] = WS_ENGINE_LOADING, [UNHEARD] = WS_ENGINE_LOADING,
        [FAILED] = WS_ENGINE_LOADING, [LOADED] = WS_ENGINE_LOADING,  [RUNS] = WS_ENGINE_LOADING,
        [SERVES] = WS_ENGINE_SERVING};
    struct ws_condition c;
    (void)state;
    for (enum step s = BEGUN; s < N_STEPS; s++) {
        make(&c, vllm);
        go(&c, s);
        assert_int_equal(c.state, seen[s]);
        assert_true(
            ws_condition_is_uncertain(&c)); /* also a serving one: others may fail, and it is rolled back */
        assert_int_equal(ws_condition_is_broken(&c), s == FAILED);
        assert_int_equal(ws_condition_was_told_to_load(&c), s >= FAILED);
        assert_int_equal(ws_condition_has_changed(&c), s >= TOLD);
        assert_int_equal(ws_condition_was_resumed(&c), s >= RUNS);
        assert_int_equal(ws_condition_may_run(&c), s != FAILED);
        assert_int_equal(ws_condition_may_run_on(&c), s >= TOLD && s <= UNHEARD);
        assert_string_equal(c.version, s >= FAILED ? NEW : OLD);
        assert_string_equal(ws_condition_version(&c), s >= LOADING ? NEW : OLD);
        assert_string_equal(c.path, s >= LOADED ? PATH : s == FAILED ? "" : "/w/actor/41");
        if (s >= ASKED) {
            assert_string_equal(c.back_version, OLD);
            assert_string_equal(c.back_path, "/w/actor/41");
        }
    }
    ws_condition_over(&c, true);
    check(&c, WS_ENGINE_SERVING, WS_WEIGHTS_SOUND, false);
    assert_false(ws_condition_is_uncertain(&c) || ws_condition_is_behind(&c) || ws_condition_has_changed(&c));
}

/* From each step to each end. */
static void test_ends(void **state)
{
    struct ws_condition c;
    (void)state;
    for (int ending = 0; ending < 2; ending++)
        for (enum step s = BEGUN; s < N_STEPS; s++) {
            const bool paused = s >= TOLD && s < RUNS;
            make(&c, vllm);
            go(&c, s);
            ws_condition_given_up(&c, NULL, "why");
            ws_condition_over(&c, ending);
            check(&c,
                  s == FAILED   ? WS_ENGINE_BROKEN
                  : s == LOADED ? WS_ENGINE_PAUSED
                                : WS_ENGINE_UNKNOWN,
                  s == FAILED ? WS_WEIGHTS_LOST : WS_WEIGHTS_SOUND, paused || (ending && s >= RUNS));
            assert_string_equal(c.error, "why");

            for (int answers = 0; answers < 2; answers++) {
                make(&c, vllm);
                go(&c, s);
                ws_condition_not_back(&c, answers, "why");
                ws_condition_over(&c, ending);
                check(&c,
                      !answers      ? WS_ENGINE_UNKNOWN
                      : s == FAILED ? WS_ENGINE_BROKEN
                                    : WS_ENGINE_PAUSED,
                      s == FAILED ? WS_WEIGHTS_LOST : WS_WEIGHTS_SOUND,
                      (paused && (!answers || s != FAILED)) || (ending && s >= TOLD));
            }
            if (s == FAILED || s < PAUSED) /* the event does not apply to them */
                continue;
            make(&c, vllm);
            go(&c, s);
            ws_condition_brought_back(&c, OLD);
            ws_condition_over(&c, ending);
            check(&c, WS_ENGINE_SERVING, WS_WEIGHTS_SOUND, false);
            assert_string_equal(c.version, OLD);
        }
}

static void test_rollback_target(void **state)
{
    struct ws_condition c;
    (void)state;
    make(&c, sglang);
    go(&c, SERVES);
    ws_condition_pause_sent(&c);
    ws_condition_paused(&c);
    assert_true(ws_condition_load_begins(&c, c.back_version));
    ws_condition_load_ended(&c, c.back_path, true, false);
    assert_false(ws_condition_may_run(&c) || ws_condition_runs(&c));
    assert_true(ws_condition_load_begins(&c, c.back_version));
    ws_condition_load_ended(&c, c.back_path, false, false); /* not received: it has the same as before */
    assert_false(ws_condition_runs(&c));
    assert_true(ws_condition_load_begins(&c, c.back_version));
    ws_condition_load_ended(&c, c.back_path, true, true);
    assert_true(ws_condition_runs(&c));
    ws_condition_brought_back(&c, NEW); /* at once, not only at the reconciler's next query */
    check(&c, WS_ENGINE_STALE, WS_WEIGHTS_LOADED, false);
    ws_condition_over(&c, true);
    check(&c, WS_ENGINE_STALE, WS_WEIGHTS_SOUND, false);
    assert_string_equal(c.version, OLD);
    assert_string_equal(c.path, "/w/actor/41");

    make(&c, sglang);
    go(&c, PAUSED);
    ws_condition_brought_back(&c, NULL); /* nothing is current, so nothing is stale */
    check(&c, WS_ENGINE_SERVING, WS_WEIGHTS_SOUND, false);
    make(&c, remote);
    go(&c, PAUSED);
    ws_condition_brought_back(&c, NEW); /* it does not report it */
    check(&c, WS_ENGINE_SERVING, WS_WEIGHTS_SOUND, false);
    const struct ws_engine_serving nothing = says("", "", false);
    make(&c, remote);
    go(&c, BEGUN);
    ws_condition_queried(&c, &nothing); /* likewise: rolled back to the version that it was left with */
    assert_string_equal(c.back_version, OLD);

    make(&c, vllm);
    c.path[0] = 0;
    go(&c, ASKED);
    ws_condition_path_found(&c, "/w/actor/41");
    assert_string_equal(c.back_path, "/w/actor/41");
}

static void test_given_up_with_a_version(void **state)
{
    struct ws_condition c;
    (void)state;
    make(&c, vllm);
    go(&c, FAILED);
    ws_condition_given_up(&c, "default", "why");
    assert_string_equal(c.version, "default");
    make(&c, vllm);
    go(&c, UNHEARD); /* it never received 42, and is not shown as serving it */
    ws_condition_given_up(&c, NULL, "why");
    assert_string_equal(ws_condition_version(&c), OLD);
    ws_condition_over(&c, false);
    assert_true(hears(&c, OLD, true, NEW) && c.path[0]); /* nor is its rollback target forgotten */
}

/* What the previous daemon knew. */
static void test_read(void **state)
{
    struct ws_condition c;
    (void)state;
    ws_condition_init(&c, sglang);
    ws_condition_restore_broken(&c);
    check(&c, WS_ENGINE_UNKNOWN, WS_WEIGHTS_LOST, false);
    assert_true(ws_condition_is_broken(&c) && !ws_condition_is_uncertain(&c));
    assert_true(hears(&c, OLD, false, OLD));
    check(&c, WS_ENGINE_BROKEN, WS_WEIGHTS_LOST, false); /* whatever it reports */
    go(&c, PAUSED);
    assert_false(ws_condition_may_run(&c) || ws_condition_may_run_on(&c) || ws_condition_runs(&c));
    ws_condition_not_back(&c, false, "why");
    ws_condition_over(&c, false);
    check(&c, WS_ENGINE_UNKNOWN, WS_WEIGHTS_LOST, true);
    go(&c, SERVES);
    ws_condition_over(&c, false);
    check(&c, WS_ENGINE_SERVING, WS_WEIGHTS_SOUND, false);

    ws_condition_init(&c, vllm);
    ws_condition_restore_broken(&c);
    assert_true(hears(&c, OLD, true, OLD));
    check(&c, WS_ENGINE_BROKEN, WS_WEIGHTS_LOST, false);
    assert_false(ws_condition_is_uncertain(&c));
    assert_true(hears(&c, OLD, false, OLD)); /* restarted, or resumed without a load: it is reconciled */
    check(&c, WS_ENGINE_BROKEN, WS_WEIGHTS_LOST, true);
    go(&c, SERVES);
    ws_condition_over(&c, false);
    check(&c, WS_ENGINE_SERVING, WS_WEIGHTS_SOUND, false);

    ws_condition_init(&c, sglang);
    ws_condition_restore_uncertain(&c);
    assert_true(ws_condition_is_uncertain(&c) && hears(&c, OLD, false, OLD));
    check(&c, WS_ENGINE_PAUSED, WS_WEIGHTS_SOUND, true); /* it cannot report that it is not */
    go(&c, PAUSED);
    assert_false(ws_condition_may_run(&c) || ws_condition_runs(&c));
    ws_condition_brought_back(&c, OLD);
    check(&c, WS_ENGINE_PAUSED, WS_WEIGHTS_SOUND, true);
    ws_condition_over(&c, false);
    go(&c, SERVES);
    check(&c, WS_ENGINE_SERVING, WS_WEIGHTS_LOADED, false);

    ws_condition_init(&c, vllm);
    ws_condition_restore_uncertain(&c);
    assert_true(hears(&c, OLD, false, OLD));
    check(&c, WS_ENGINE_SERVING, WS_WEIGHTS_SOUND, true);
    assert_true(ws_condition_is_behind(&c)); /* half a load, or an old cache */
}

/* Abandoned, and says that it runs: a switch that fails before the load is not why it stops. */
static void test_abandoned_that_runs(void **state)
{
    struct ws_condition c;
    (void)state;
    for (int runs = 0; runs < 2; runs++) {
        struct ws_engine_serving now = says(OLD, "", !runs);
        now.reports_paused = true;
        make(&c, vllm);
        ws_condition_restore_uncertain(&c);
        assert_true(ws_condition_begin(&c));
        ws_condition_queried(&c, &now);
        ws_condition_pause_sent(&c);
        ws_condition_paused(&c);
        assert_int_equal(ws_condition_may_run(&c), runs);
        assert_int_equal(ws_condition_runs(&c), runs);
        ws_condition_brought_back(&c, OLD);
        ws_condition_over(&c, false);
        check(&c, runs ? WS_ENGINE_SERVING : WS_ENGINE_PAUSED, WS_WEIGHTS_SOUND, true);
        assert_true(ws_condition_begin(&c)); /* which holds for that switch alone */
        assert_false(ws_condition_may_run(&c));
    }
}

/* A way back that failed is still the way back, by the version's own name. */
static void test_label_of_a_failed_load(void **state)
{
    const struct ws_engine_serving now = says("loading " OLD, "/w/actor/41", true);
    struct ws_condition c;
    (void)state;
    make(&c, sglang);
    ws_condition_restore_broken(&c);
    assert_true(ws_condition_begin(&c));
    ws_condition_queried(&c, &now);
    assert_string_equal(c.back_version, OLD);
}

/* A switch is undone, and the way back fails: what it served before stays the way back, until it is restarted. */
static void test_way_back_is_kept(void **state)
{
    struct ws_engine_serving now = says(NEW, PATH, true);
    struct ws_condition c;
    (void)state;
    for (int again = 0; again < 2; again++) {
        make(&c, again ? sglang : vllm);
        go(&c, FAILED);
        ws_condition_not_back(&c, true, "why");
        ws_condition_over(&c, false);
        check(&c, WS_ENGINE_BROKEN, WS_WEIGHTS_LOST, false);
        now.paused = true;
        assert_true(ws_condition_begin(&c));
        ws_condition_queried(&c, &now);
        assert_string_equal(c.back_version, OLD);
        assert_string_equal(c.back_path, "/w/actor/41");
        ws_condition_over(&c, false);
        now.paused = false;
        assert_true(ws_condition_begin(&c));
        ws_condition_queried(&c, &now);
        assert_string_equal(c.back_version, NEW);
        assert_string_equal(c.back_path, PATH);
    }
    make(&c, vllm); /* the others have 42 now, and it is not for this engine to go back to 41 */
    go(&c, FAILED);
    ws_condition_given_up(&c, NULL, "why");
    ws_condition_over(&c, false);
    now = says(OLD, "", true);
    assert_true(ws_condition_begin(&c));
    ws_condition_queried(&c, &now);
    assert_string_equal(c.back_path, "");
}

static void test_path(void **state)
{
    struct ws_condition c;
    (void)state;
    make(&c, vllm);
    assert_false(ws_condition_lacks_path(&c));
    go(&c, FAILED);
    assert_true(ws_condition_lacks_path(&c));
    make(&c, sglang); /* it reports it */
    go(&c, FAILED);
    assert_false(ws_condition_lacks_path(&c));
    make(&c, remote); /* nothing would be gained, and the recorded version would be lost */
    go(&c, FAILED);
    assert_false(ws_condition_lacks_path(&c));
}

static void test_sleep(void **state)
{
    struct ws_engine_serving now = says(OLD, "", true);
    struct ws_condition c;
    (void)state;
    make(&c, vllm);
    assert_true(ws_condition_begin(&c));
    now.sleeping = true;
    ws_condition_queried(&c, &now);
    assert_true(c.sleeping && c.sleep_known && !c.was_running);
    ws_condition_pause_sent(&c);
    ws_condition_paused(&c);
    assert_false(ws_condition_may_run_on(&c)); /* it stays asleep */
    ws_condition_brought_back(&c, OLD);
    ws_condition_over(&c, false);
    assert_true(ws_condition_begin(&c));
    now.sleeping = false;
    now.sleep_unknown = true;
    ws_condition_queried(&c, &now);
    assert_true(c.sleeping); /* as in its last report */
    ws_condition_pause_sent(&c);
    assert_true(ws_condition_runs(&c) && !c.sleeping);

    make(&c, sglang); /* which reports that it sleeps, and not that it is paused */
    now = says(OLD, "", false);
    now.sleeping = true;
    go(&c, BEGUN);
    ws_condition_queried(&c, &now);
    ws_condition_pause_sent(&c);
    assert_true(c.was_running && !ws_condition_may_run_on(&c));
}

/* Put to sleep by another program, with or without a current version, and woken again. */
static void test_asleep(void **state)
{
    struct ws_engine_serving now = says(OLD, "", true), awake = says(OLD, "", false);
    struct ws_condition c;
    bool restarted;
    (void)state;
    now.reports_paused = awake.reports_paused = now.sleeping = true;
    make(&c, vllm);
    assert_true(ws_condition_answered(&c, &now, OLD, &restarted) && ws_condition_is_asleep(&c));
    assert_non_null(strstr(c.error, "it sleeps"));
    assert_false(ws_condition_may_be_patched(&c) || ws_condition_answers(&c));
    now.sleeping = false;
    now.sleep_unknown = true;
    assert_true(ws_condition_answered(&c, &now, OLD, &restarted) && ws_condition_is_asleep(&c));
    assert_true(ws_condition_answered(&c, &awake, OLD, &restarted) && !ws_condition_is_asleep(&c));
    check(&c, WS_ENGINE_SERVING, WS_WEIGHTS_SOUND, false);
    assert_string_equal(c.error, "");
    now.sleeping = true;
    now.sleep_unknown = false;
    assert_true(ws_condition_answered(&c, &now, OLD, &restarted));
    go(&c, PAUSED);
    ws_condition_over(&c, true); /* a daemon that ends leaves it in a switch: the next one brings it along */
    assert_false(ws_condition_is_asleep(&c));
    make(&c, vllm);
    ws_condition_restore_broken(&c);
    assert_true(ws_condition_answered(&c, &now, OLD, &restarted));
    assert_false(ws_condition_is_asleep(&c));
    check(&c, WS_ENGINE_BROKEN, WS_WEIGHTS_LOST, false);
}

/* Awake without a switch after a sleep in which it loses its weights: they are lost, unless somebody loaded others, or it
 * keeps them; also where only the state file knows that it slept. */
static void test_woken_without_weights(void **state)
{
    struct ws_condition_reports loses = vllm;
    struct ws_condition c;
    struct ws_engine_serving asleep = says(OLD, "", true), awake = says(OLD, "", false),
                             other = says(NEW, "", false);
    bool restarted;
    (void)state;
    loses.loses_asleep = true;
    asleep.sleeping = asleep.reports_paused = awake.reports_paused = other.reports_paused = true;
    make(&c, loses);
    assert_true(ws_condition_answered(&c, &asleep, OLD, &restarted) && ws_condition_loses_asleep(&c));
    assert_true(ws_condition_answered(&c, &awake, OLD, &restarted));
    check(&c, WS_ENGINE_BROKEN, WS_WEIGHTS_LOST, true);
    assert_non_null(strstr(c.error, "woken without a load"));
    assert_false(ws_condition_loses_asleep(&c) || ws_condition_is_asleep(&c));
    assert_true(ws_condition_begin(&c)); /* the way back is a whole load of what it had */
    ws_condition_queried(&c, &awake);
    assert_false(ws_condition_may_run(&c) || ws_condition_may_run_on(&c) || ws_condition_may_be_patched(&c));
    assert_string_equal(c.back_path, "/w/actor/41");
    make(&c, loses);
    assert_true(ws_condition_answered(&c, &asleep, OLD, &restarted));
    assert_true(ws_condition_answered(&c, &other, NEW, &restarted));
    check(&c, WS_ENGINE_SERVING, WS_WEIGHTS_SOUND, false);
    make(&c, vllm);
    assert_true(ws_condition_answered(&c, &asleep, OLD, &restarted) && !ws_condition_loses_asleep(&c));
    assert_true(ws_condition_answered(&c, &awake, OLD, &restarted));
    check(&c, WS_ENGINE_SERVING, WS_WEIGHTS_SOUND, false);
    ws_condition_init(&c, loses); /* of the next daemon */
    ws_condition_restore_asleep(&c);
    assert_true(ws_condition_answered(&c, &awake, OLD, &restarted));
    check(&c, WS_ENGINE_BROKEN, WS_WEIGHTS_LOST, true);
    make(&c, loses);
    assert_true(ws_condition_answered(&c, &asleep, OLD, &restarted) && ws_condition_begin(&c));
    ws_condition_queried(&c, &awake); /* it was woken just before the switch */
    assert_int_equal(c.weights, WS_WEIGHTS_LOST);
}

static void test_refused(void **state)
{
    struct ws_condition c, before;
    bool restarted, lost;
    (void)state;
    for (enum step s = BEGUN; s < N_STEPS; s++) {
        const struct ws_engine_serving now = says("43@r", "/w", true);
        make(&c, vllm);
        go(&c, s);
        before = c;
        assert_false(ws_condition_begin(&c));
        assert_false(ws_condition_answered(&c, &now, OLD, &restarted) || restarted);
        assert_false(ws_condition_silent(&c, "why", &lost) || lost);
        assert_false(ws_condition_reported(&c, NEW));
        assert_false(ws_condition_drifted(&c, "why"));
        if (s < TOLD || s >= RUNS) {
            assert_false(ws_condition_load_begins(&c, NEW));
            assert_false(ws_condition_runs(&c));
        }
        if (s != RUNS && s != SERVES)
            assert_false(ws_condition_serves(&c));
        assert_memory_equal(&c, &before, sizeof(c));
    }
    make(&c, vllm);
    before = c;
    assert_false(ws_condition_load_begins(&c, NEW) || ws_condition_runs(&c) || ws_condition_serves(&c));
    assert_memory_equal(&c, &before, sizeof(c));
    make(&c, vllm);
    go(&c, FAILED);
    before = c;
    assert_false(ws_condition_runs(&c) || ws_condition_serves(&c));
    assert_memory_equal(&c, &before, sizeof(c));
}

/* An undo is a load of what it held before: done, it serves that; not known to be done, it is broken. */
static void test_undone(void **state)
{
    struct ws_condition c;
    (void)state;
    for (enum step s = FAILED; s <= SERVES; s++) { /* not known to be put, or put, or served already */
        make(&c, vllm);
        assert_true(ws_condition_may_be_patched(&c));
        go(&c, s);
        if (s >= RUNS) {
            ws_condition_pause_sent(&c);
            ws_condition_paused(&c);
        }
        assert_true(ws_condition_load_begins(&c, OLD));
        ws_condition_load_ended(&c, "/w/actor/41@r", true, true);
        assert_true(ws_condition_runs(&c));
        ws_condition_brought_back(&c, OLD);
        check(&c, WS_ENGINE_SERVING, WS_WEIGHTS_LOADED, false);
        assert_string_equal(c.version, OLD);
        assert_string_equal(c.path, "/w/actor/41@r");
        ws_condition_over(&c, false);
        check(&c, WS_ENGINE_SERVING, WS_WEIGHTS_SOUND, false);
        assert_true(ws_condition_may_be_patched(&c));
        go(&c, FAILED);
        assert_true(ws_condition_load_begins(&c, OLD));
        ws_condition_load_ended(&c, "/w/actor/41@r", true, false);
        assert_false(ws_condition_may_run(&c));
        ws_condition_not_back(&c, true, "why");
        ws_condition_over(&c, false);
        check(&c, WS_ENGINE_BROKEN, WS_WEIGHTS_LOST, false);
        assert_false(ws_condition_may_be_patched(&c));
    }
    make(&c, vllm);
    ws_condition_restore_uncertain(&c);
    assert_false(ws_condition_may_be_patched(&c));
    make(&c, vllm);
    c.sleeping = true;
    assert_false(ws_condition_may_be_patched(&c));
}

static void test_drifted(void **state)
{
    struct ws_condition c;
    (void)state;
    make(&c, vllm);
    assert_true(ws_condition_drifted(&c, "a bit"));
    check(&c, WS_ENGINE_BROKEN, WS_WEIGHTS_LOST, true);
    assert_string_equal(c.error, "a bit");
    assert_true(ws_condition_is_uncertain(&c) && ws_condition_is_broken(&c) && ws_condition_is_behind(&c));
    assert_false(ws_condition_drifted(&c, "again"));
    assert_true(hears(&c, OLD, false, OLD)); /* it says that it serves */
    check(&c, WS_ENGINE_BROKEN, WS_WEIGHTS_LOST, true);
    go(&c, SERVES);
    ws_condition_over(&c, false);
    check(&c, WS_ENGINE_SERVING, WS_WEIGHTS_SOUND, false);
}

/* A pause without an answer may take effect at any time, until another one is answered. */
static void test_unanswered(void **state)
{
    const struct ws_condition_reports kinds[] = {vllm, sglang};
    struct ws_condition c;
    (void)state;
    for (int tells = 0; tells < 2; tells++) {
        const enum ws_engine_state seen = tells ? WS_ENGINE_SERVING : WS_ENGINE_PAUSED;
        make(&c, kinds[!tells]);
        go(&c, TOLD);
        assert_true(ws_condition_may_be_paused_yet(&c) && ws_condition_runs(&c));
        ws_condition_not_back(&c, true, "why");
        ws_condition_over(&c, false);
        check(&c, WS_ENGINE_PAUSED, WS_WEIGHTS_SOUND, false);
        assert_true(ws_condition_is_behind(&c) && ws_condition_is_uncertain(&c));
        assert_true(hears(&c, OLD, false, OLD));
        check(&c, seen, WS_WEIGHTS_SOUND, false);
        assert_true(ws_condition_is_behind(&c) && ws_condition_is_uncertain(&c));

        assert_true(ws_condition_begin(&c)); /* not again, and it keeps running */
        ask(&c);
        ws_condition_pause_sent(&c);
        assert_true(ws_condition_may_run_on(&c) && ws_condition_runs(&c));
        ws_condition_given_up(&c, NULL, "why");
        ws_condition_over(&c, false);
        assert_true(hears(&c, OLD, false, OLD));
        check(&c, seen, WS_WEIGHTS_SOUND, false);

        assert_true(ws_condition_begin(&c)); /* in the end */
        ask(&c);
        ws_condition_pause_sent(&c);
        ws_condition_paused(&c);
        assert_true(!ws_condition_may_be_paused_yet(&c) && ws_condition_runs(&c));
        ws_condition_brought_back(&c, OLD);
        ws_condition_over(&c, false);
        assert_true(hears(&c, OLD, false, OLD));
        check(&c, WS_ENGINE_SERVING, WS_WEIGHTS_SOUND, false);
        assert_false(ws_condition_is_behind(&c) || ws_condition_is_uncertain(&c));
        assert_true(hears(&c, OLD, true, OLD)); /* it was overtaken, and takes effect after all */
        check(&c, WS_ENGINE_PAUSED, WS_WEIGHTS_SOUND, true);
    }
    make(&c,
         vllm); /* paused in vain before a rollback of which it has half: it runs, on no version's weights */
    go(&c, SERVES);
    ws_condition_pause_sent(&c);
    assert_true(ws_condition_load_begins(&c, OLD));
    ws_condition_load_ended(&c, PATH, true, false);
    ws_condition_not_back(&c, true, "why");
    ws_condition_over(&c, false);
    assert_true(hears(&c, OLD, false, OLD));
    check(&c, WS_ENGINE_BROKEN, WS_WEIGHTS_LOST, true);
}

static void test_failed_steps(void **state)
{
    struct ws_condition c;
    (void)state;
    make(&c, vllm);
    go(&c, BEGUN);
    ws_condition_failed(&c, "no answer");
    ws_condition_over(&c, true);
    check(&c, WS_ENGINE_UNKNOWN, WS_WEIGHTS_SOUND, false);
    assert_string_equal(c.error, "no answer");
    make(&c, vllm);
    go(&c, LOADED);
    ws_condition_resume_failed(&c, "why");
    check(&c, WS_ENGINE_PAUSED, WS_WEIGHTS_LOADED, false);
    make(&c, vllm);
    go(&c, RUNS);
    ws_condition_resume_failed(&c, "another answers");
    check(&c, WS_ENGINE_UNKNOWN, WS_WEIGHTS_LOADED, false);
    make(&c, vllm);
    go(&c, TOLD); /* the answer to its pause was lost: it keeps running */
    ws_condition_failed(&c, "no answer");
    assert_true(ws_condition_may_run_on(&c) && ws_condition_runs(&c) && !ws_condition_has_changed(&c));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reports),
        cmocka_unit_test(test_restarted),
        cmocka_unit_test(test_switch),
        cmocka_unit_test(test_ends),
        cmocka_unit_test(test_rollback_target),
        cmocka_unit_test(test_given_up_with_a_version),
        cmocka_unit_test(test_read),
        cmocka_unit_test(test_abandoned_that_runs),
        cmocka_unit_test(test_way_back_is_kept),
        cmocka_unit_test(test_path),
        cmocka_unit_test(test_label_of_a_failed_load),
        cmocka_unit_test(test_sleep),
        cmocka_unit_test(test_asleep),
        cmocka_unit_test(test_woken_without_weights),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_undone),
        cmocka_unit_test(test_drifted),
        cmocka_unit_test(test_unanswered),
        cmocka_unit_test(test_failed_steps),
    };
    return cmocka_run_group_tests_name("condition", tests, NULL, NULL);
}
