/* Numbers of settings and of JSON: what is none is refused, also where only a bit is too much. */
#include "transports/base/number.h"
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static void test_size(void **state)
{
    static const struct {
        const char *text;
        uint64_t bytes;
    } good[] = {{"0", 0},
                {"4096", 4096},
                {"512M", 512UL << 20},
                {"80g", 80UL << 30},
                {"16777215T", 16777215UL << 40}};
    static const char *const bad[] = {"",    "M",    "-1", " 1",        "1 M",
                                      "1MB", "1.5G", "1P", "16777216T", "18446744073709551616"};
    uint64_t bytes;
    (void)state;
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        assert_int_equal(ws_number_size(good[i].text, &bytes), 0);
        assert_int_equal(bytes, good[i].bytes);
    }
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        assert_int_equal(ws_number_size(bad[i], &bytes), -EINVAL);
}

static void test_size_text(void **state)
{
    static const struct {
        uint64_t bytes;
        const char *text;
    } cases[] = {{0, "0 B"},         {999, "999 B"},      {1000, "1.00 kB"},       {1194, "1.19 kB"},
                 {9994, "9.99 kB"},  {9996, "10.0 kB"},   {99949, "99.9 kB"},      {99951, "100 kB"},
                 {999499, "999 kB"}, {999501, "1.00 MB"}, {80UL << 30, "85.9 GB"}, {UINT64_MAX, "18.4 EB"}};
    char text[WS_NUMBER_CHARS];
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        ws_number_size_text(cases[i].bytes, text);
        assert_string_equal(text, cases[i].text);
    }
}

static void test_time_text(void **state)
{
    static const struct {
        double seconds;
        const char *text;
    } cases[] = {{-1, "0.000 s"},           {0, "0.000 s"},        {0.0424, "0.042 s"},
                 {0.9996, "1.00 s"},        {9.994, "9.99 s"},     {9.996, "10.0 s"},
                 {99.94, "99.9 s"},         {99.96, "1 min 40 s"}, {119.6, "2 min 0 s"},
                 {3599, "59 min 59 s"},     {3599.6, "1 h 0 min"}, {7512, "2 h 5 min"},
                 {1e300, "277777 h 46 min"}};
    char text[WS_NUMBER_CHARS];
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        ws_number_time_text(cases[i].seconds, text);
        assert_string_equal(text, cases[i].text);
    }
}

static void test_json(void **state)
{
    json_t *values = json_pack("[I,i,f,s,b,o]", (json_int_t)INT64_MAX, -1, 1.0, "1", 1, ws_number_hash(0xAB)),
           *one;
    uint64_t n = 7;
    size_t i;
    (void)state;
    assert_string_equal(json_string_value(json_array_get(values, 5)), "00000000000000ab");
    json_array_foreach(values, i, one)
    {
        assert_int_equal(ws_number_read(one, &n), i == 0 ? 0 : -EINVAL);
        assert_int_equal(n, INT64_MAX); /* unchanged */
    }
    assert_int_equal(ws_number_read(NULL, &n), -EINVAL);
    json_decref(values);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_size), cmocka_unit_test(test_size_text),
                                       cmocka_unit_test(test_time_text), cmocka_unit_test(test_json)};
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests_name("number", tests, NULL, NULL);
}
