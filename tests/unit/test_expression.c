/* Expressions of operators: what they match, and those that the C library could not take in any time or memory. */
#include "transports/base/expression.h"
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct ws_error err;

static void refuse(const char *text, const char *why)
{
    regex_t e;
    int rc = ws_expression_compile(text, &e, &err);
    if (rc != -EINVAL || !strstr(err.text, why))
        fail_msg("%.60s: %d %s", text, rc, rc < 0 ? err.text : "");
}

static void expect(const char *text, const char *name, bool matches)
{
    regex_t e;
    if (ws_expression_compile(text, &e, &err) < 0)
        fail_msg("%.60s: %s", text, err.text);
    if (ws_expression_matches(&e, name) != matches)
        fail_msg("%.60s and %.60s", text, name);
    regfree(&e);
}

static void test_matches(void **state)
{
    (void)state;
    expect("model\\.layers\\.[0-9]+\\.(self_attn|mlp)\\..*", "model.layers.7.mlp.up_proj", true);
    expect("b", "ab", false); /* from the begin */
    expect("(a|a)*b", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", false);
    expect("(model|language_model)?\\.?layers(\\.[0-9]+)*(\\.[a-z_]*w)?", "model.layers.0.1.w", true);
    expect("(((x+)+)+)+y", "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx", false);
    expect("(.{1,30}){1,30}", "abc", true);
    expect("[](){9}[:alpha:]+*{99}{9}]*\\(\\[\\{", "(]{(", false); /* in brackets they stand for themselves */
    expect("[]+{99}{99}{99}[:digit:]]{2}\\+\\{99", "9]+{99", true);
    expect("\\.{2}", "..", true);
}

static void test_refused(void **state)
{
    char text[WS_EXPRESSION_CHARS + 2];

    (void)state;
    refuse("(", "is no regular expression");
    refuse("[", "is no regular expression");
    refuse("a\\", "is no regular expression");
    refuse("(a*)*b", "repeats what may be empty");
    refuse("(((((((((.*)+)+)+)+)+)+)+)+)", "repeats what may be empty");
    refuse("(a?){3}", "repeats what may be empty");
    refuse("(a{0,3})?", "repeats what may be empty");
    refuse("a{,3}*", "repeats what may be empty");
    refuse("a**", "repeats what may be empty");
    refuse("(a|b*|c)+", "repeats what may be empty");
    refuse("(ab*|)+", "repeats what may be empty");
    refuse("(^)*a", "repeats what may be empty");
    refuse("(\\b)*a", "repeats what may be empty");
    refuse("(b|(a*$))+", "repeats what may be empty");
    refuse("(){30000}", "repeats what may be empty");
    refuse("(|){30000}", "repeats what may be empty");
    refuse("(a)\\2", "refers to a group (\\2)");
    refuse("(.{1,200}){1,200}", "is too large");
    refuse("((a{0,99}b){0,99})", "is too large");
    refuse("(a{1000}){2}{0}", "is too large"); /* it is written out before it is left out */
    refuse("a{30}{30}{30}", "is too large");
    refuse("[]]{2000}", "is too large");
    refuse("\\{{2000}", "is too large");
    refuse("a{,2000}", "is too large");
    refuse("a{2000,}", "is too large");
    /* a group that is repeated 2^k times */
    for (size_t i = 0; i < 40; i++)
        text[i] = '(';
    text[40] = 'x';
    for (size_t i = 0; i < 80; i += 2)
        memcpy(text + 41 + i, ")+", 2);
    text[121] = '\0';
    refuse(text, "is too large");
    memset(text, '(', sizeof(text) - 2);
    text[sizeof(text) - 2] = '\0';
    refuse(text, "is no regular expression");
    memset(text, 'a', sizeof(text) - 1);
    text[sizeof(text) - 1] = '\0';
    refuse(text, "has more than 1024 characters");
    text[sizeof(text) - 2] = '\0';
    expect(text, "b", false);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_matches), cmocka_unit_test(test_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
