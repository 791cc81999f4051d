/* Members of engines: what adapters= and draft= may say; and adapters' names, of which each stands for one version for ever. */
#include "fs/engines/adapters.h"
#include "fs/engines/members.h"
#include <errno.h>
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define LENGTH(a) (sizeof(a) / sizeof((a)[0]))

static void test_parse(void **state)
{
    struct ws_members m;
    struct ws_error err = {0};
    (void)state;
    assert_int_equal(ws_members_parse(NULL, NULL, &m, &err), 0);
    assert_int_equal(m.n, 0);
    assert_int_equal(ws_members_parse("lora,sft:3", "draft@fp8-block128", &m, &err), 0);
    assert_int_equal(m.n, 3);
    assert_int_equal(ws_members_find(&m, "lora")->keep, WS_ADAPTERS_KEPT);
    assert_int_equal(ws_members_find(&m, "sft")->keep, 3);
    assert_int_equal(ws_members_find(&m, "sft")->role, WS_MEMBER_ADAPTER);
    assert_string_equal(ws_members_draft(&m)->model, "draft@fp8-block128");
    assert_null(ws_members_find(&m, "lora2"));
    assert_int_equal(ws_members_parse("lora:16", NULL, &m, &err), 0);
    assert_null(ws_members_draft(&m));
}

static void test_refused(void **state)
{
    static const struct {
        const char *adapters, *draft, *word;
    } cases[] = {
        {"lora:0", NULL, "1 to 16"}, {"lora:17", NULL, "1 to 16"},     {"lora:x", NULL, "1 to 16"},
        {"lora:", NULL, "1 to 16"},  {"", NULL, "cannot be a model"},  {"lora,", NULL, "cannot be a model"},
        {"a/b", NULL, "cannot be"},  {"lora,lora:3", NULL, "twice"},   {"lora", "lora", "twice"},
        {NULL, "..", "draft="},      {"a,b,c,d,e,f,g,h,i", NULL, "8"}, {"ctl", NULL, "cannot be a model"},
    };
    struct ws_members m;
    char big[2 * WS_MAX_NAME];
    (void)state;
    for (size_t i = 0; i < LENGTH(cases); i++) {
        struct ws_error err = {0};
        assert_int_equal(ws_members_parse(cases[i].adapters, cases[i].draft, &m, &err), -EINVAL);
        if (!strstr(err.text, cases[i].word))
            fail_msg("case %zu: %s", i, err.text);
    }
    for (size_t n = WS_ADAPTER_MODEL_BYTES; n < sizeof(big); n++) {
        struct ws_error err = {0};
        memset(big, 'm', n);
        big[n] = 0;
        assert_int_equal(ws_members_parse(big, NULL, &m, &err), n <= WS_ADAPTER_MODEL_BYTES ? 0 : -EINVAL);
    }
}

static const char *name_of(const struct ws_adapters *a, uint64_t version, const char *run)
{
    static ws_adapter_name name;
    const struct ws_version_id id = ws_version_id_make(version, run);
    ws_adapters_name(a, "lora", &id, name);
    return name;
}

static bool own(struct ws_adapters *a, uint64_t version, const char *run)
{
    const struct ws_version_id id = ws_version_id_make(version, run);
    return ws_adapters_own(a, &id);
}

/* An engine lists the name, with a path, and has the mount at /wsync. */
static bool saw(struct ws_adapters *a, const char *name, const char *path)
{
    struct ws_version_id from = {0};
    const bool may_be_own = ws_adapters_path_is_own(path, "/wsync", "lora", &from) || !path[0];
    return ws_adapters_saw(a, "lora", name, may_be_own ? &from : NULL);
}

static void test_own_paths(void **state)
{
    static const char *const others[] = {"",
                                         "/",
                                         "/wsync",
                                         "/wsync/lora/30",
                                         "/wsync/lora/30@",
                                         "/wsync/lora/30@a/b",
                                         "/wsync/lora/30@R/",
                                         "/wsync/lora/030@R",
                                         "/wsync/lora/@R",
                                         "/wsync/alora/30@R",
                                         "/wsync2/lora/30@R",
                                         "/a/wsync/lora/30@R",
                                         "30@R"};
    struct ws_version_id id;
    (void)state;
    assert_true(ws_adapters_path_is_own("/wsync/lora/30@R", "/wsync", "lora", &id));
    assert_true(id.version == 30 && strcmp(id.lineage, "R") == 0);
    for (size_t i = 0; i < LENGTH(others); i++)
        if (ws_adapters_path_is_own(others[i], "/wsync", "lora", &id))
            fail_msg("'%s' is the mount's", others[i]);
}

static void test_names(void **state)
{
    struct ws_adapters a = {0};
    (void)state;
    assert_string_equal(name_of(&a, 7, "R"), "lora@7@R"); /* nothing says that the number is free */
    assert_true(own(&a, 7, "R"));
    assert_false(own(&a, 7, "R"));
    assert_string_equal(name_of(&a, 7, "R"), "lora@7");
    assert_string_equal(name_of(&a, 7, "S"), "lora@7@S");
    assert_false(own(&a, 7, "S"));
    assert_true(own(&a, 9, "R"));
    assert_false(own(&a, 8, "S")); /* between two of R's */
    assert_true(own(&a, 10, "S"));
    assert_string_equal(name_of(&a, 10, "S"), "lora@10");
    assert_false(own(&a, 11, "R")); /* S has 10: R's numbers end before it */
    assert_string_equal(name_of(&a, 11, "R"), "lora@11@R");
    assert_string_equal(name_of(&a, 9, "R"), "lora@9"); /* a name once given stays */
    assert_true(own(&a, 3, "R"));
    for (int i = 0; i < 2 * WS_ADAPTER_RUNS; i++) {
        char run[8];
        snprintf(run, sizeof(run), "T%d", i);
        assert_int_equal(own(&a, 100 + (uint64_t)i, run), i < WS_ADAPTER_RUNS - 2);
    }
    assert_string_equal(name_of(&a, 115, "T15"), "lora@115@T15");
}

static void test_strays(void **state)
{
    struct ws_adapters a = {0};
    (void)state;
    assert_true(own(&a, 7, "R") && own(&a, 9, "R"));
    assert_false(saw(&a, "lora@7", "/wsync/lora/7@R"));
    assert_false(saw(&a, "lora@7", "")); /* the engine does not say */
    assert_false(saw(&a, "lora@8@S", "/own"));
    assert_false(saw(&a, "other@8", "/own"));
    assert_string_equal(name_of(&a, 8, "R"), "lora@8"); /* no engine was told it yet */
    assert_true(saw(&a, "lora@8", "/own"));
    assert_false(saw(&a, "lora@8", "/own")); /* it is known */
    assert_string_equal(name_of(&a, 8, "R"), "lora@8@R");
    assert_true(saw(&a, "lora@7", "/elsewhere/lora/7@R")); /* another mount's */
    assert_string_equal(name_of(&a, 7, "R"), "lora@7@R");
    assert_true(saw(&a, "lora@9", "/wsync/lora/9@S"));
    assert_true(saw(&a, "lora@20", "")); /* no run has the number */
    assert_true(own(&a, 21, "R"));
    assert_string_equal(name_of(&a, 20, "R"), "lora@20@R");
    for (uint64_t i = 0; i < 2 * WS_ADAPTER_STRAYS; i++) {
        char name[32];
        snprintf(name, sizeof(name), "lora@%" PRIu64, 100 + 10 * i);
        (void)saw(&a, name, "/own");
    }
    assert_int_equal(a.n_strays, WS_ADAPTER_STRAYS);
    assert_true(own(&a, 500, "R"));
    for (uint64_t i = 0; i < 2 * WS_ADAPTER_STRAYS; i++) {
        char name[32];
        snprintf(name, sizeof(name), "lora@%" PRIu64 "@R", 100 + 10 * i);
        assert_string_equal(name_of(&a, 100 + 10 * i, "R"), name);
    }
    assert_string_equal(name_of(&a, 9, "R"), "lora@9@R");
}

/* What a mount has loaded whose settings are lost. */
static void test_own_without_settings(void **state)
{
    struct ws_adapters a = {0};
    (void)state;
    assert_false(saw(&a, "lora@7", "/wsync/lora/7@R"));
    assert_string_equal(name_of(&a, 7, "R"), "lora@7");
    assert_string_equal(name_of(&a, 7, "S"), "lora@7@S");
    assert_true(saw(&a, "lora@7", "/wsync/lora/7@S"));
    assert_string_equal(name_of(&a, 7, "R"), "lora@7@R");
}

static void test_strays_are_read(void **state)
{
    static const char *const bad[] = {"", "1", "1 ", "2 1", "1 2 3", "a 2", " 1 2"};
    struct ws_adapters a = {0};
    (void)state;
    for (size_t i = 0; i < LENGTH(bad); i++)
        if (ws_adapters_read_stray(&a, bad[i]))
            fail_msg("'%s' was taken", bad[i]);
    assert_true(ws_adapters_read_stray(&a, "3 5"));
    assert_true(own(&a, 2, "R") && own(&a, 6, "R"));
    assert_string_equal(name_of(&a, 4, "R"), "lora@4@R");
    assert_string_equal(name_of(&a, 6, "R"), "lora@6");
}

/* No two versions of any runs, loaded in any order, ever have one name; and none has two. */
static void test_names_are_unique(void **state)
{
    enum { RUNS = 12, NUMBERS = 24 };
    static ws_adapter_name names[RUNS][NUMBERS];
    struct ws_adapters a = {0};
    (void)state;
    srand(18);
    memset(names, 0, sizeof(names));
    for (int step = 0; step < 2000; step++) {
        const int r = rand() % RUNS, n = rand() % NUMBERS;
        char run[8];
        snprintf(run, sizeof(run), "R%d", r);
        (void)own(&a, (uint64_t)n, run);
        const char *name = name_of(&a, (uint64_t)n, run);
        if (names[r][n][0])
            assert_string_equal(names[r][n], name);
        strcpy(names[r][n], name);
    }
    for (int i = 0; i < RUNS * NUMBERS; i++)
        for (int k = 0; k < i; k++)
            if (names[i / NUMBERS][i % NUMBERS][0])
                assert_string_not_equal(names[i / NUMBERS][i % NUMBERS], names[k / NUMBERS][k % NUMBERS]);
}

static void test_runs_are_read(void **state)
{
    static const char *const bad[] = {"",        "R",     "R 1",   "R 1 ",  "R 2 1",
                                      "R 1 2 3", "R a 2", "R 3 9", "S 4 4", " 1 2"};
    struct ws_adapters a = {0};
    (void)state;
    assert_true(ws_adapters_read_run(&a, "R 1 5"));
    for (size_t i = 0; i < LENGTH(bad); i++)
        if (ws_adapters_read_run(&a, bad[i]))
            fail_msg("'%s' was taken", bad[i]);
    assert_true(ws_adapters_read_run(&a, "S 6 6"));
    assert_string_equal(name_of(&a, 6, "S"), "lora@6");
    assert_string_equal(name_of(&a, 5, "S"), "lora@5@S");
}

static void test_names_of_a_model(void **state)
{
    (void)state;
    assert_true(ws_adapters_is_name_of("lora@7", "lora"));
    assert_true(ws_adapters_is_name_of("lora@7@R", "lora"));
    assert_false(ws_adapters_is_name_of("lora", "lora"));
    assert_false(ws_adapters_is_name_of("lora@x", "lora"));
    assert_false(ws_adapters_is_name_of("lora@7x", "lora"));
    assert_false(ws_adapters_is_name_of("lora2@7", "lora"));
    assert_false(ws_adapters_is_name_of("sql-lora", "lora"));
}

static void test_lists(void **state)
{
    char *list = NULL;
    (void)state;
    assert_false(ws_adapter_list_has(list, "a@1"));
    assert_int_equal(ws_adapter_list_add(&list, "a@1"), 0);
    assert_int_equal(ws_adapter_list_add(&list, "a@10"), 0);
    assert_int_equal(ws_adapter_list_add(&list, "a@1"), 0);
    assert_int_equal(ws_adapter_list_add(&list, "b@1"), 0);
    assert_string_equal(list, "a@1,a@10,b@1");
    assert_true(ws_adapter_list_has(list, "a@10"));
    assert_false(ws_adapter_list_has(list, "a@"));
    ws_adapter_list_remove(list, "a@10");
    assert_string_equal(list, "a@1,b@1");
    ws_adapter_list_remove(list, "b@1");
    assert_string_equal(list, "a@1");
    ws_adapter_list_remove(list, "b@1");
    ws_adapter_list_remove(list, "a@1");
    assert_string_equal(list, "");
    assert_int_equal(ws_adapter_list_add(&list, "c@1"), 0);
    assert_string_equal(list, "c@1");
    free(list);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parse),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_own_paths),
        cmocka_unit_test(test_names_are_unique),
        cmocka_unit_test(test_runs_are_read),
        cmocka_unit_test(test_names_of_a_model),
        cmocka_unit_test(test_lists),
        cmocka_unit_test(test_strays),
        cmocka_unit_test(test_strays_are_read),
        cmocka_unit_test(test_own_without_settings),
    };
    return cmocka_run_group_tests_name("members", tests, NULL, NULL);
}
