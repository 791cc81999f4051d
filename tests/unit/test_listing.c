/* Listings as they travel: views are not among the models that a reader of 0.1.0 takes. */
#include "transports/protocol/listing.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static const char *name_at(const json_t *listing, const char *key, size_t i)
{
    return json_string_value(json_object_get(json_array_get(json_object_get(listing, key), i), "name"));
}

static void test_there_and_back(void **state)
{
    json_t *l = json_loads("{\"seq\":3,\"models\":[{\"name\":\"actor\"},{\"name\":\"actor@fp8-block128\"},"
                           "{\"name\":\"actor@0.2\"},{\"name\":\"actor@fp8-channel\"},{\"x\":1}]}",
                           0, NULL);
    (void)state;
    ws_listing_split(l);
    assert_int_equal(json_array_size(json_object_get(l, "models")), 3);
    assert_string_equal(name_at(l, "models", 0), "actor");
    assert_string_equal(name_at(l, "models", 1), "actor@0.2");
    assert_int_equal(json_array_size(json_object_get(l, "views")), 2);
    assert_string_equal(name_at(l, "views", 0), "actor@fp8-block128");
    ws_listing_join(l);
    assert_null(json_object_get(l, "views"));
    assert_int_equal(json_array_size(json_object_get(l, "models")), 5);
    assert_string_equal(name_at(l, "models", 4), "actor@fp8-channel");
    ws_listing_join(l);
    assert_int_equal(json_array_size(json_object_get(l, "models")), 5);
    json_decref(l);
}

/* Of a server, which may be anything. */
static void test_others(void **state)
{
    static const char *const texts[] = {"[]", "{}", "{\"models\":7,\"views\":[]}",
                                        "{\"models\":[],\"views\":{}}"};
    (void)state;
    ws_listing_split(NULL);
    ws_listing_join(NULL);
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        json_t *l = json_loads(texts[i], 0, NULL), *before = json_deep_copy(l);
        ws_listing_split(l);
        ws_listing_join(l);
        assert_true(json_equal(l, before));
        json_decref(l);
        json_decref(before);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_there_and_back),
        cmocka_unit_test(test_others),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
