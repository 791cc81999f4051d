/* Grammar: what may be written into a control file, and what is refused with a reason. */
#include "fs/engines/grammar.h"
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define LENGTH(a) (sizeof(a) / sizeof((a)[0]))

static struct ws_error err;
static struct ws_command c;

static int parse(enum ws_scope scope, const char *text)
{
    err = (struct ws_error){0};
    return ws_command_parse(scope, text, strlen(text), &c, &err);
}

static void test_words(void **state)
{
    static const struct {
        const char *text;
        size_t n;
        const char *words[4];
    } cases[] = {
        {"load 13", 2, {"load", "13"}},
        {"load 13\n", 2, {"load", "13"}},
        {"\t load\t\t13  \n", 2, {"load", "13"}},
        {"a \"b c\" d", 3, {"a", "b c", "d"}},
        {"prefix=\"/a b\"/c x", 2, {"prefix=/a b/c", "x"}},
        {"\"say \\\"hi\\\"\" \"back\\\\slash\" \"\\n\"", 3, {"say \"hi\"", "back\\slash", "\\n"}},
        {"C:\\path", 1, {"C:\\path"}},
        {"\"\"", 1, {""}},
        {"m\xC3\xB6"
         "del",
         1,
         {"m\xC3\xB6"
          "del"}},
    };
    struct ws_words w;

    (void)state;
    for (size_t i = 0; i < LENGTH(cases); i++) {
        assert_int_equal(ws_words_parse(cases[i].text, strlen(cases[i].text), &w, &err), 0);
        assert_int_equal(w.n, cases[i].n);
        for (size_t k = 0; k < w.n; k++)
            assert_string_equal(w.word[k], cases[i].words[k]);
    }
}

/* What is quoted is one word, and the same one. */
static void test_quoted_words(void **state)
{
    static const char *const texts[] = {
        "", "m", "a b", "say \"hi\"", "back\\slash\\", "k=\"v\"", "dir:/a b\t/\\\""};
    struct ws_words w;

    (void)state;
    for (size_t i = 0; i < LENGTH(texts); i++) {
        char line[64] = "";
        FILE *f = fmemopen(line, sizeof(line), "w");
        assert_non_null(f);
        ws_words_quote(f, texts[i]);
        fputs(" x", f);
        fclose(f);
        assert_int_equal(ws_words_parse(line, strlen(line), &w, &err), 0);
        assert_int_equal(w.n, 2);
        assert_string_equal(w.word[0], texts[i]);
    }
}

static void test_bad_words(void **state)
{
    static const char *const bad[] = {
        "",
        "\n",
        "   ",
        "load 1\nload 2",
        "load 1\n\n",
        "load \x01",
        "load \x7f",
        "load \xff",
        "load \xC3",
        "load \"1",
        "load 1\r\n",
        "\"",
        "load \xED\xA0\x80",
    };
    char big[WS_MAX_COMMAND + 2], many[3 * WS_MAX_WORDS + 3];
    struct ws_words w;

    (void)state;
    for (size_t i = 0; i < LENGTH(bad); i++) {
        err = (struct ws_error){0};
        if (ws_words_parse(bad[i], strlen(bad[i]), &w, &err) != -EINVAL || !err.text[0])
            fail_msg("'%s' was taken", bad[i]);
    }
    assert_int_equal(ws_words_parse("load \0 1", 8, &w, &err), -EINVAL);
    memset(big, 'x', sizeof(big));
    assert_int_equal(ws_words_parse(big, WS_MAX_COMMAND + 1, &w, &err), -EINVAL);
    assert_int_equal(ws_words_parse(big, WS_MAX_COMMAND, &w, &err), 0);
    assert_int_equal(strlen(w.word[0]), WS_MAX_COMMAND);
    big[WS_MAX_COMMAND] = '\n';
    assert_int_equal(ws_words_parse(big, WS_MAX_COMMAND + 1, &w, &err), 0);
    for (size_t i = 0; i < sizeof(many); i++)
        many[i] = i % 2 ? ' ' : 'w';
    assert_int_equal(ws_words_parse(many, 2 * WS_MAX_WORDS, &w, &err), 0);
    assert_int_equal(w.n, WS_MAX_WORDS);
    assert_int_equal(ws_words_parse(many, 2 * WS_MAX_WORDS + 1, &w, &err), -EINVAL);
}

static void test_commands(void **state)
{
    static const struct {
        enum ws_scope scope;
        const char *text;
        enum ws_verb verb;
        size_t n_args;
        bool force, async;
    } cases[] = {
        {WS_SCOPE_MODEL, "load 13", WS_VERB_LOAD, 1, false, false},
        {WS_SCOPE_MODEL, "load latest force-layout async", WS_VERB_LOAD, 1, true, true},
        {WS_SCOPE_MODEL, "pull latest async\n", WS_VERB_PULL, 1, false, true},
        {WS_SCOPE_MODEL, "drop 1", WS_VERB_DROP, 1, false, false},
        {WS_SCOPE_MODEL, "pin 1@run", WS_VERB_PIN, 1, false, false},
        {WS_SCOPE_MODEL, "unpin 1", WS_VERB_UNPIN, 1, false, false},
        {WS_SCOPE_MODEL, "verify 1", WS_VERB_VERIFY, 1, false, false},
        {WS_SCOPE_MODEL, "engine add e1 sglang http://h:1", WS_VERB_ENGINE_ADD, 3, false, false},
        {WS_SCOPE_MODEL, "engine remove e1", WS_VERB_ENGINE_REMOVE, 1, false, false},
        {WS_SCOPE_MODEL, "strategy ipc,tcp", WS_VERB_STRATEGY, 1, false, false},
        {WS_SCOPE_MODEL, "learn end", WS_VERB_LEARN, 1, false, false},
        {WS_SCOPE_ROOT, "add actor dir:/a=b", WS_VERB_ADD, 2, false, false},
        {WS_SCOPE_ROOT, "remove actor", WS_VERB_REMOVE, 1, false, false},
        {WS_SCOPE_ROOT, "load a=1 b=2 async", WS_VERB_LOAD_ALL, 2, false, true},
        {WS_SCOPE_VERSION, "13\n", WS_VERB_LOAD, 1, false, false},
        {WS_SCOPE_VERSION, "previous force-layout", WS_VERB_LOAD, 1, true, false},
        {WS_SCOPE_POLICY, "follow\n", WS_VERB_POLICY, 1, false, false},
    };

    (void)state;
    for (size_t i = 0; i < LENGTH(cases); i++) {
        if (parse(cases[i].scope, cases[i].text))
            fail_msg("'%s': %s", cases[i].text, err.text);
        assert_int_equal(c.verb, cases[i].verb);
        assert_int_equal(c.n_args, cases[i].n_args);
        assert_int_equal(c.force_layout, cases[i].force);
        assert_int_equal(c.async, cases[i].async);
    }
}

static void test_options(void **state)
{
    (void)state;
    assert_int_equal(parse(WS_SCOPE_MODEL, "engine add e1 sglang http://h:1 prefix=\"/a b\" pause=abort "
                                           "timeout=5 token-file=/f=1"),
                     0);
    assert_string_equal(c.args[0], "e1");
    assert_string_equal(c.args[2], "http://h:1");
    assert_string_equal(c.options[WS_OPTION_PREFIX], "/a b");
    assert_string_equal(c.options[WS_OPTION_PAUSE], "abort");
    assert_string_equal(c.options[WS_OPTION_TIMEOUT], "5");
    assert_string_equal(c.options[WS_OPTION_TOKEN_FILE], "/f=1");
    assert_null(c.options[WS_OPTION_POLICY]);
    assert_int_equal(parse(WS_SCOPE_ROOT, "add m http://h:1 policy=follow"), 0);
    assert_string_equal(c.options[WS_OPTION_POLICY], "follow");
}

static void test_bad_commands(void **state)
{
    static const struct {
        enum ws_scope scope;
        const char *text;
    } bad[] = {
        {WS_SCOPE_MODEL, "lod 13"},
        {WS_SCOPE_MODEL, "load"},
        {WS_SCOPE_MODEL, "load 13 14"},
        {WS_SCOPE_MODEL, "load 13 async force-layout"},
        {WS_SCOPE_MODEL, "load 13 async async"},
        {WS_SCOPE_MODEL, "drop 13 async"},
        {WS_SCOPE_MODEL, "drop 13 force-layout"},
        {WS_SCOPE_MODEL, "engine"},
        {WS_SCOPE_MODEL, "engine list"},
        {WS_SCOPE_MODEL, "engine add e1"},
        {WS_SCOPE_MODEL, "engine add e1 sglang http://h:1 colour=red"},
        {WS_SCOPE_MODEL, "engine add e1 sglang http://h:1 pause=a pause=b"},
        {WS_SCOPE_MODEL, "engine add e1 sglang http://h:1 policy=pull"},
        {WS_SCOPE_MODEL, "add actor dir:/x"},
        {WS_SCOPE_ROOT, "pull 13"},
        {WS_SCOPE_ROOT, "load"},
        {WS_SCOPE_ROOT, "add actor"},
        {WS_SCOPE_VERSION, "13 14"},
        {WS_SCOPE_POLICY, "pull follow"},
        {WS_SCOPE_POLICY, "follow every=2 every=3"},
        {WS_SCOPE_MODEL, "loaded"},
        {WS_SCOPE_MODEL, "strategy"},
        {WS_SCOPE_MODEL, "learn"},
        {WS_SCOPE_MODEL, "strategy ipc tcp"},
        {WS_SCOPE_POLICY, ""},
    };

    (void)state;
    for (size_t i = 0; i < LENGTH(bad); i++) {
        if (parse(bad[i].scope, bad[i].text) != -EINVAL || !err.text[0])
            fail_msg("'%s' was taken", bad[i].text);
    }
}

static void test_usage(void **state)
{
    const char *usage, *meaning;
    size_t n = 0;

    (void)state;
    while (ws_command_usage(WS_SCOPE_MODEL, n, &usage, &meaning)) {
        assert_true(usage[0] && meaning[0]);
        n++;
    }
    assert_int_equal(n, 17);
    assert_true(ws_command_usage(WS_SCOPE_ROOT, 2, &usage, &meaning));
    assert_false(ws_command_usage(WS_SCOPE_ROOT, 3, &usage, &meaning));
}

static void test_split(void **state)
{
    char good[] = "a=b=13@run", no[] = "13", empty[] = "=13", open[] = "a=";
    char *value;

    (void)state;
    assert_int_equal(ws_word_split(good, &value, &err), 0);
    assert_string_equal(good, "a=b");
    assert_string_equal(value, "13@run");
    assert_int_equal(ws_word_split(no, &value, &err), -EINVAL);
    assert_int_equal(ws_word_split(empty, &value, &err), -EINVAL);
    assert_int_equal(ws_word_split(open, &value, &err), -EINVAL);
}

static void test_numbers(void **state)
{
    uint64_t n;

    (void)state;
    assert_int_equal(ws_word_number("0", 10, &n), 0);
    assert_int_equal(ws_word_number("18446744073709551615", UINT64_MAX, &n), 0);
    assert_true(n == UINT64_MAX);
    assert_int_equal(ws_word_number("18446744073709551616", UINT64_MAX, &n), -ERANGE);
    assert_int_equal(ws_word_number("11", 10, &n), -ERANGE);
    assert_int_equal(ws_word_number("", 10, &n), -EINVAL);
    assert_int_equal(ws_word_number("-1", 10, &n), -EINVAL);
    assert_int_equal(ws_word_number("+1", 10, &n), -EINVAL);
    assert_int_equal(ws_word_number("1e3", 10, &n), -EINVAL);
    assert_int_equal(ws_word_number(" 1", 10, &n), -EINVAL);
}

static void test_show(void **state)
{
    static const struct {
        const char *text, *shown;
    } cases[] = {
        {"load 13\n", "load 13"},
        {"add m http://user:pa55@host:1/x", "add m http://***@host:1/x"},
        {"add m http://u:p@a@host,https://v:w@other", "add m http://***@host,https://***@other"},
        {"engine add a vllm user:KEY@host:1 cache=keep", "engine add a vllm ***@host:1 cache=keep"},
        {"engine add a vllm http://h:1/?key=KEY cache=keep", "engine add a vllm http://h:1/?*** cache=keep"},
        {"engine add a remote http://h:1 load=POST:/l?x=y:{\"p\":\"{path}\"} pause=POST:/p?mode=a:b@c",
         "engine add a remote http://h:1 load=POST:/l?x=y:{\"p\":\"{path}\"} pause=POST:/p?mode=a:b@c"},
        {"engine add a vllm h:1?key=KEY", "engine add a vllm h:1?***"},
        {"engine add a vllm http://h:1/#KEY token=KEY", "engine add a vllm http://h:1/#*** token=***"},
        {"engine add a vllm http://h:1 api-key=KEY token-file=/f",
         "engine add a vllm http://h:1 api-key=*** token-file=/f"},
        {"engine add a remote http://h:1 load=\"POST:/l:{\\\"a\\\": \\\"x:y?z\\\", \\\"b\\\": "
         "\\\"token=c\\\"}\"",
         "engine add a remote http://h:1 load=\"POST:/l:{\\\"a\\\": \\\"x:y?z\\\", \\\"b\\\": "
         "\\\"token=c\\\"}\""},
        {"load 42@8d2f", "load 42@8d2f"},
        {"add m http://a@host", "add m http://*@host"},
        {"add m http://host/@x", "add m http://host/@x"},
        {"two\nlines\x01", "two lines?"},
    };
    char shown[WS_MAX_COMMAND + 1], big[WS_MAX_COMMAND + 100];

    (void)state;
    for (size_t i = 0; i < LENGTH(cases); i++) {
        ws_command_show(cases[i].text, strlen(cases[i].text), shown);
        assert_string_equal(shown, cases[i].shown);
    }
    memset(big, 'x', sizeof(big));
    ws_command_show(big, sizeof(big), shown);
    assert_int_equal(strlen(shown), WS_MAX_COMMAND);
    ws_command_show("a\0b", 3, shown);
    assert_string_equal(shown, "a?b");
    ws_command_show("", 0, shown);
    assert_string_equal(shown, "");
}

/* What is kept of a command says the same words, whatever stood between quotes. */
static void test_join(void **state)
{
    static const char *const lines[] = {
        "engine add e sglang http://h:1",
        "engine add e sglang http://h:1 \"prefix=/w key=b\" \"group=x token-file=/f load-format=auto\"",
        "a \"\" \"=\" b=\"\" \"b=\\\"c\" b=\\ \"\\\\ \" \"\\n\" \"\\\"\" a\"b c=d=\"e =\\\"",
        "engine add r remote http://h:1 load=POST:/l:{\"path\":\"{path}\"} \"flush=POST:/f:{\\\"a\\\": 1}\"",
    };
    struct ws_words *w = calloc(2, sizeof(*w));
    char line[WS_MAX_COMMAND + 1];

    (void)state;
    assert_non_null(w);
    for (size_t i = 0; i < LENGTH(lines); i++) {
        assert_int_equal(ws_words_parse(lines[i], strlen(lines[i]), &w[0], &err), 0);
        assert_int_equal(ws_words_join(&w[0], line, &err), 0);
        assert_int_equal(ws_words_parse(line, strlen(line), &w[1], &err), 0);
        assert_int_equal(w[0].n, w[1].n);
        for (size_t k = 0; k < w[0].n; k++)
            assert_string_equal(w[0].word[k], w[1].word[k]);
    }
    memset(line, 'x', WS_MAX_COMMAND);
    assert_int_equal(ws_words_parse(line, WS_MAX_COMMAND, &w[0], &err), 0);
    assert_int_equal(ws_words_join(&w[0], line, &err), 0);
    assert_int_equal(strlen(line), WS_MAX_COMMAND);
    w[0].word[w[0].n++] = w[0].word[0];
    assert_int_equal(ws_words_join(&w[0], line, &err), -E2BIG);
    free(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_words),     cmocka_unit_test(test_quoted_words),
        cmocka_unit_test(test_bad_words), cmocka_unit_test(test_commands),
        cmocka_unit_test(test_options),   cmocka_unit_test(test_bad_commands),
        cmocka_unit_test(test_usage),     cmocka_unit_test(test_split),
        cmocka_unit_test(test_numbers),   cmocka_unit_test(test_show),
        cmocka_unit_test(test_join),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests_name("grammar", tests, NULL, NULL);
}
