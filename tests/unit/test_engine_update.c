/* One update of one engine: which calls are made, in which order, and which answers count, whatever fails.
 * The engine is a table of functions that record their calls. */
#include "backends/engine/update.h"
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

struct failure {
    const char *call; /* NULL: no more failures */
    int code;
};

static struct {
    char version[64], path[64]; /* what it serves, and reports */
    bool sleeping, labels;
    bool forgets;                /* a resume restarts it */
    const struct failure *fails; /* what fails next */
    char calls[256];
} engine;

static struct ws_error err;

/* Records the call; returns the code of the failure that is due. */
static int called(const char *name, const char *what)
{
    const size_t n = strlen(engine.calls);
    snprintf(engine.calls + n, sizeof(engine.calls) - n, "%s%s%s%s", n ? " " : "", name, *what ? "=" : "",
             what);
    if (!engine.fails || !engine.fails->call || strcmp(engine.fails->call, name) != 0)
        return 0;
    return engine.fails++->code;
}

static int serving(const struct ws_engine_target *t, struct ws_engine_serving *out, struct ws_error *e)
{
    (void)t;
    (void)e;
    *out = (struct ws_engine_serving){.sleeping = engine.sleeping};
    snprintf(out->version, sizeof(out->version), "%s", engine.version);
    snprintf(out->path, sizeof(out->path), "%s", engine.path);
    return 0;
}

static int probe(const struct ws_engine_target *t, struct ws_engine_facts *facts,
                 struct ws_engine_serving *out, struct ws_error *e)
{
    *facts = (struct ws_engine_facts){.known = true, .labels = engine.labels};
    return serving(t, out, e);
}

/* -EPROTO: it has no such route, and has done nothing. */
static int pause_it(const struct ws_engine_target *t, struct ws_error *e)
{
    const int rc = called("pause", "");
    (void)e;
    *t->acted = rc != -EHOSTUNREACH && rc != -EACCES && rc != -EPROTO;
    return rc;
}

static int label(const struct ws_engine_target *t, const char *version, struct ws_error *e)
{
    (void)t;
    (void)e;
    snprintf(engine.version, sizeof(engine.version), "%s", version);
    return called("label", strncmp(version, "wsync-", 6) == 0 || strncmp(version, "loading", 7) == 0
                               ? "other"
                               : version);
}

static int load(const struct ws_engine_target *t, const char *path, const char *version, struct ws_error *e)
{
    (void)t;
    (void)e;
    int rc = called("load", path);
    if (rc == 0) {
        snprintf(engine.version, sizeof(engine.version), "%s", version);
        snprintf(engine.path, sizeof(engine.path), "%s", path);
    }
    return rc;
}

static int flush(const struct ws_engine_target *t, struct ws_error *e)
{
    (void)t;
    (void)e;
    return called("flush", "");
}

static int resume(const struct ws_engine_target *t, struct ws_error *e)
{
    (void)t;
    (void)e;
    if (engine.forgets)
        snprintf(engine.version, sizeof(engine.version), "somebody else's");
    return called("resume", "");
}

static const struct ws_engine_ops ops = {.kind = "fake",
                                         .reports_path = true,
                                         .reports_version = true,
                                         .probe = probe,
                                         .pause = pause_it,
                                         .label = label,
                                         .load = load,
                                         .flush = flush,
                                         .resume = resume,
                                         .serving = serving};

/* The engine serves version 1 of /one: update to a version of /two. */
static int update(const char *version, const struct failure *fails, const char *calls)
{
    const struct ws_engine_target t = {.url = "http://e", .timeout_ms = 1000};
    snprintf(engine.version, sizeof(engine.version), "1");
    snprintf(engine.path, sizeof(engine.path), "/one");
    engine.calls[0] = 0;
    engine.fails = fails;
    err = (struct ws_error){0};
    const int rc = ws_engine_update(&ops, &t, "/two", version, NULL, &err);
    assert_string_equal(engine.calls, calls);
    return rc;
}

#define FAILS(...) ((const struct failure[]){__VA_ARGS__, {NULL, 0}})

static void assert_said(const char *words)
{
    if (!strstr(err.text, words))
        fail_msg("'%s' is not in: %s", words, err.text);
}

static int fresh(void **state)
{
    (void)state;
    memset(&engine, 0, sizeof(engine));
    return 0;
}

static void test_good(void **state)
{
    (void)state;
    assert_int_equal(update("2", NULL, "pause load=/two flush resume"), 0);
    assert_string_equal(engine.version, "2");
    engine.labels = true;
    assert_int_equal(update("2", NULL, "pause load=/two flush resume"), 0);
    /* It already reports the version, which would prove nothing: it gets another name meanwhile. */
    assert_int_equal(update("1", NULL, "pause load=/two flush resume label=1"), 0);
    assert_string_equal(engine.version, "1");
}

/* It may be paused or may have loaded: the old weights are loaded back and its caches flushed before it
 * runs. */
static void test_back(void **state)
{
    (void)state;
    assert_int_equal(update("2", FAILS({"pause", -ETIMEDOUT}), "pause resume"), -ETIMEDOUT);
    assert_said("it serves what it did before");
    assert_int_equal(
        update("2", FAILS({"load", -EREMOTEIO}), "pause load=/two label=other load=/one flush resume"),
        -EREMOTEIO);
    assert_said("it serves what it did before");
    assert_string_equal(engine.version, "1");
    assert_int_equal(
        update("2", FAILS({"flush", -EREMOTEIO}), "pause load=/two flush load=/one flush resume"),
        -EREMOTEIO);
    assert_said("it serves what it did before");
    assert_string_equal(engine.path, "/one");
}

static void test_never_told(void **state)
{
    (void)state;
    assert_int_equal(update("2", FAILS({"pause", -EHOSTUNREACH}), "pause"), -EHOSTUNREACH);
    assert_int_equal(update("2", FAILS({"pause", -EPROTO}), "pause"), -EPROTO);
    assert_int_equal(update("2", FAILS({"load", -EHOSTUNREACH}), "pause load=/two resume"), -EHOSTUNREACH);
    assert_said("it serves what it did before");
    engine.sleeping = true;
    assert_int_equal(update("2", FAILS({"load", -EAGAIN}), "pause load=/two"), -EAGAIN);
    assert_said("it sleeps on");
}

/* Without the old weights, or with caches of the new ones, it must not run. */
static void test_not_back(void **state)
{
    (void)state;
    assert_int_equal(update("2", FAILS({"load", -EREMOTEIO}, {"load", -EHOSTUNREACH}),
                            "pause load=/two label=other load=/one"),
                     -EREMOTEIO);
    assert_said("left paused");
    assert_int_equal(update("2", FAILS({"flush", -EREMOTEIO}, {"flush", -EREMOTEIO}, {"flush", -EREMOTEIO}),
                            "pause load=/two flush load=/one flush label=other load=/one flush"),
                     -EREMOTEIO);
    assert_said("left paused");
}

/* It reports another version after the resume. */
static void test_another_afterwards(void **state)
{
    (void)state;
    engine.forgets = true;
    assert_int_equal(update("2", NULL, "pause load=/two flush resume"), -EREMOTEIO);
    assert_int_equal(
        update("2", FAILS({"load", -EREMOTEIO}), "pause load=/two label=other load=/one flush resume"),
        -EREMOTEIO);
    assert_said("could not be resumed");
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup(name, fresh)
    const struct CMUnitTest tests[] = {
        TEST(test_good),
        TEST(test_back),
        TEST(test_never_told),
        TEST(test_not_back),
        TEST(test_another_afterwards),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
