/* beside others */
/* timeout: 240, takes: 61 */
/* A listing of an archive that is older than the one before is believed only where it stays for a minute: not where the newer one
 * was there again in between. It waits for that minute. */
#include "tests/fixtures/private_folder.h"
#include "transports/dir/archive_listing.h"
#include "transports/transport.h"
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define OLDER_MS 60000

static char dir[256];

static const char *path(const char *name)
{
    static char paths[4][512];
    static unsigned n;
    char *out = paths[n++ % 4];
    snprintf(out, sizeof(paths[0]), "%s/%s", dir, name);
    return out;
}

static void put(const char *name, unsigned seq)
{
    FILE *f = fopen(path(name), "w");
    assert_non_null(f);
    fprintf(f, "{\"seq\":%u,\"static\":true,\"models\":[]}", seq);
    assert_int_equal(fclose(f), 0);
}

/* The very file, as a store that shows a listing again has it. */
static void show(const char *name)
{
    assert_int_equal(link(path(name), path("v1/next")), 0);
    assert_int_equal(rename(path("v1/next"), path("v1/models")), 0);
}

static uint64_t seq_of(struct ws_source *s)
{
    struct ws_error err = {0};
    json_t *listing = NULL;
    if (ws_source_models(s, NULL, 0, 0, NULL, &listing, &err) < 0)
        fail_msg("%s", err.text);
    const uint64_t seq = (uint64_t)json_integer_value(json_object_get(listing, "seq"));
    json_decref(listing);
    return seq;
}

static void an_older_listing_is_believed_when_it_stays(void **state)
{
    const struct ws_source_options options = {0};
    struct ws_source *s;
    char url[300];
    (void)state;
    assert_true(private_folder(dir, sizeof(dir), "older"));
    assert_int_equal(mkdir(path("v1"), 0700), 0);
    put("old", 5);
    put("new", 10);
    show("new");
    snprintf(url, sizeof(url), "dir:%s", dir);
    assert_int_equal(ws_source_open(url, &options, &s, NULL), 0);
    assert_int_equal(seq_of(s), 10);
    show("old");
    assert_int_equal(seq_of(s), 10);
    show("new");
    assert_int_equal(seq_of(s), 10);
    (void)poll(NULL, 0, OLDER_MS + 500);
    show("old");
    assert_int_equal(seq_of(s), 10);
    ws_source_close(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(an_older_listing_is_believed_when_it_stays)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
