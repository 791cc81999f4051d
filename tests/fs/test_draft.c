/* Draft: what is known of an engine's draft model, by what its process says, and over the end of a daemon. */
#include "fs/engines/draft.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define LENGTH(a) (sizeof(a) / sizeof((a)[0]))

static struct ws_draft loaded(const char *process, bool is_kept)
{
    const struct ws_version_id id = ws_version_id_make(42, "run");
    struct ws_draft d;
    ws_draft_loaded(&d, &id, process);
    d.is_kept = is_kept;
    return d;
}

/* A process that is named decides; else what the engine names of its target, which a daemon before may not have seen. */
static void test_seen(void **state)
{
    static const struct {
        const char *was, *is;
        bool is_kept, restarted, is_current, known;
    } cases[] = {
        {"1.5e+09", "1.5e+09", false, true, false, true},
        {"1.5e+09", "1.6e+09", false, false, true, false},
        {"1.5e+09", "1.5e+09", true, true, false, true},
        {"1.5e+09", "1.6e+09", true, false, true, false},
        {"", "1.6e+09", false, false, false, true},
        {"", "1.6e+09", false, true, false, false},
        {"1.5e+09", "", true, true, true, true},
        {"1.5e+09", "", true, true, false, false},
        {"", "", true, false, false, false},
        {"", "", false, false, false, true},
    };
    (void)state;
    for (size_t i = 0; i < LENGTH(cases); i++) {
        struct ws_draft d = loaded(cases[i].was, cases[i].is_kept);
        ws_draft_seen(&d, cases[i].is, cases[i].restarted, cases[i].is_current);
        assert_int_equal(d.id.lineage[0] != 0, cases[i].known);
        assert_false(d.is_kept);
    }
}

static void test_line(void **state)
{
    static const char *const processes[] = {"", "1.795753321990000e+09"};
    (void)state;
    for (size_t i = 0; i < LENGTH(processes); i++) {
        struct ws_draft d = loaded(processes[i], false), back;
        char line[WS_DRAFT_LINE_BYTES + 8] = "", text[WS_VERSION_ID_TEXT];
        FILE *f = fmemopen(line, sizeof(line), "w");
        ws_draft_print(&d, "a", f);
        fclose(f);
        line[strcspn(line, "\n")] = 0;
        assert_memory_equal(line, WS_DRAFT_WORD "a ", strlen(WS_DRAFT_WORD) + 2);
        assert_true(ws_draft_read(&back, line + strlen(WS_DRAFT_WORD) + 2));
        assert_true(ws_version_id_equal(&back.id, &d.id) && back.is_kept);
        assert_string_equal(back.process, processes[i]);
        assert_string_equal(ws_draft_text(&back, text), "42@run");
        ws_draft_forget(&back);
        assert_string_equal(ws_draft_text(&back, text), "unknown");
    }
}

static void test_malformed(void **state)
{
    static const char *const lines[] = {"",
                                        "42",
                                        "42 ",
                                        "x run",
                                        "42 run ",
                                        "42  run",
                                        "99999999999999999999 run",
                                        "42 a-lineage-of-more-than-thirty-two-characters",
                                        "42 run 12345678901234567890123456789012"};
    struct ws_draft d;
    (void)state;
    for (size_t i = 0; i < LENGTH(lines); i++)
        assert_false(ws_draft_read(&d, lines[i]));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_seen), cmocka_unit_test(test_line),
                                       cmocka_unit_test(test_malformed)};
    return cmocka_run_group_tests_name("draft", tests, NULL, NULL);
}
