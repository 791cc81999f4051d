/* A folder as a source while it cannot be read: the known versions stay known, and the error is reported. */
#include "transports/transport.h"
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

/* File systems may fail this way while another process renames entries of a folder. */
static bool each_twice;
static const char *unreadable; /* the error of a folder that cannot be read at all */

static bool is_unreadable(DIR *d)
{
    char link[64], path[4096];
    snprintf(link, sizeof(link), "/proc/self/fd/%d", dirfd(d));
    const ssize_t n = unreadable ? readlink(link, path, sizeof(path)) : -1;
    const size_t k = unreadable ? strlen(unreadable) : 0;
    return n >= (ssize_t)k && k > 0 && memcmp(path + n - k, unreadable, k) == 0;
}

struct dirent *readdir(DIR *d)
{
    static struct dirent last;
    static const DIR *once; /* where the error came last */
    struct dirent *(*next)(DIR *) = (struct dirent * (*)(DIR *)) dlsym(RTLD_NEXT, "readdir");
    if (is_unreadable(d)) {
        errno = EIO;
        return NULL;
    }
    if (each_twice && once == d) {
        once = NULL;
        return &last;
    }
    struct dirent *e = next(d);
    once = e ? d : NULL;
    if (e)
        last = *e;
    return e;
}

static time_t ahead; /* of the clock */

time_t time(time_t *out)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_REALTIME, &now);
    if (out)
        *out = now.tv_sec + ahead;
    return now.tv_sec + ahead;
}

struct world {
    char root[200], away[220];
    struct ws_source *source;
};

/* Version 7 of the model m: one tensor of four bytes. */
static void write_checkpoint(const char *root)
{
    static const char header[] = "{\"t\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}";
    const uint64_t n = sizeof(header) - 1;
    char path[256];
    snprintf(path, sizeof(path), "%s/m", root);
    assert_int_equal(mkdir(path, 0755), 0);
    snprintf(path, sizeof(path), "%s/m/7", root);
    assert_int_equal(mkdir(path, 0755), 0);
    snprintf(path, sizeof(path), "%s/m/7/model.safetensors", root);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(&n, 1, sizeof(n), f), sizeof(n));
    assert_int_equal(fwrite(header, 1, n, f), n);
    assert_int_equal(fwrite("abcd", 1, 4, f), 4);
    assert_int_equal(fclose(f), 0);
}

static int open_world(void **state)
{
    static struct world w;
    const char *base = getenv("TESTDIR");
    char url[256];
    snprintf(w.root, sizeof(w.root), "%.150s/dir.XXXXXX", base ? base : "/tmp");
    if (!mkdtemp(w.root))
        return -1;
    snprintf(w.away, sizeof(w.away), "%s.away", w.root);
    snprintf(url, sizeof(url), "dir:%s", w.root);
    write_checkpoint(w.root);
    *state = &w;
    return ws_source_open(url, NULL, &w.source, NULL);
}

static int close_world(void **state)
{
    const struct world *w = *state;
    char path[256];
    static const char *const names[] = {"/m/7/model.safetensors", "/m/7", "/m", ""};
    ws_source_close(w->source);
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        snprintf(path, sizeof(path), "%s%s", w->root, names[i]);
        (void)remove(path);
    }
    return 0;
}

/* As text, which the caller frees. */
static char *listing(const struct world *w)
{
    json_t *list = NULL;
    struct ws_error err;
    assert_int_equal(ws_source_models(w->source, NULL, 0, 0, NULL, &list, &err), 0);
    char *text = json_dumps(list, JSON_COMPACT | JSON_SORT_KEYS);
    json_decref(list);
    assert_non_null(text);
    return text;
}

/* The list contains its digest from now on. */
static char *known(const struct world *w)
{
    struct ws_manifest *m = NULL;
    assert_int_equal(ws_source_manifest(w->source, "m", 7, NULL, NULL, &m, NULL), 0);
    char *text = listing(w);
    assert_non_null(strstr(text, m->digest));
    ws_manifest_free(m);
    return text;
}

static void assert_is_listed(const struct world *w, char *before)
{
    char *now = listing(w);
    assert_string_equal(now, before);
    free(now);
    free(before);
}

static void a_folder_that_is_away_has_not_lost_its_versions(void **state)
{
    const struct world *w = *state;
    char *before = known(w);
    assert_int_equal(rename(w->root, w->away), 0);
    for (int i = 0; i < 2; i++) {
        json_t *list = NULL;
        struct ws_error err;
        assert_int_equal(ws_source_models(w->source, NULL, 0, 0, NULL, &list, &err), -ESTALE);
        assert_null(list);
        assert_non_null(strstr(err.text, "cannot look at "));
    }
    assert_int_equal(rename(w->away, w->root), 0);
    assert_is_listed(w, before);
}

/* Overwrites in place, with the same length, which the folder does not show: the hashed bytes are gone. */
static void a_file_that_was_written_to_is_hashed_again(void **state)
{
    const struct world *w = *state;
    char path[256], *before = known(w), *now;
    struct stat was, is;
    struct ws_manifest *m = NULL;
    snprintf(path, sizeof(path), "%s/m/7/model.safetensors", w->root);
    assert_int_equal(stat(path, &was), 0);
    do { /* until the file system's clock has advanced */
        const int fd = open(path, O_WRONLY | O_CLOEXEC);
        assert_true(fd >= 0);
        assert_int_equal(pwrite(fd, "x", 1, was.st_size - 1), 1);
        close(fd);
        assert_int_equal(stat(path, &is), 0);
    } while (is.st_ctim.tv_sec == was.st_ctim.tv_sec && is.st_ctim.tv_nsec == was.st_ctim.tv_nsec);
    now = listing(w);
    assert_non_null(strstr(now, "\"digest\":\"\""));
    assert_string_not_equal(now, before);
    free(now);
    assert_int_equal(ws_source_manifest(w->source, "m", 7, NULL, NULL, &m, NULL), 0);
    assert_null(strstr(before, m->digest));
    ws_manifest_free(m);
    free(before);
}

/* n descriptors are left: for the folder itself, or also for some of its entries. */
static void look_with(const struct world *w, unsigned n)
{
    struct rlimit limit, less;
    json_t *list = NULL;
    struct ws_error err;
    const int next = open("/", O_RDONLY | O_CLOEXEC);
    assert_true(next >= 0);
    close(next);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    less = limit;
    less.rlim_cur = (rlim_t)next + n;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &less), 0);
    const int rc = ws_source_models(w->source, NULL, 0, 0, NULL, &list, &err);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    assert_int_equal(rc, rc == 0 ? 0 : -EMFILE);
    assert_int_equal(json_array_size(json_object_get(list, "models")), rc == 0);
    json_decref(list);
}

static void without_descriptors_nothing_is_lost(void **state)
{
    const struct world *w = *state;
    char *before = known(w);
    for (unsigned n = 0; n < 16; n++)
        look_with(w, n);
    assert_is_listed(w, before);
}

/* What is logged while the folder is listed three times. */
static void listed_text(const struct world *w, char text[4096])
{
    const int log = memfd_create("log", MFD_CLOEXEC), was = dup(STDERR_FILENO);
    assert_true(dup2(log, STDERR_FILENO) >= 0);
    for (int i = 0; i < 3; i++)
        free(listing(w));
    assert_true(dup2(was, STDERR_FILENO) >= 0);
    const ssize_t n = pread(log, text, 4095, 0);
    assert_true(n >= 0);
    text[n] = 0;
    close(log);
    close(was);
}

static void assert_said_once(const char *text, const char *why)
{
    const char *said = strstr(text, "warn dir left out: ");
    assert_non_null(said);
    assert_non_null(strstr(said, "/m/7"));
    assert_non_null(strstr(said, why));
    assert_null(strstr(said + strlen("warn dir left out: "), "left out: "));
}

/* It is not taken for a version that never existed. */
static void an_unreadable_version_is_logged_once(void **state)
{
    char text[4096];
    unreadable = "/m/7";
    listed_text(*state, text);
    unreadable = NULL;
    assert_said_once(text, strerror(EIO));
}

/* A file that is cut short may be one that is being written; later it is not. */
static void a_damaged_version_is_logged_once_its_writer_is_gone(void **state)
{
    const struct world *w = *state;
    char text[4096], path[256];
    snprintf(path, sizeof(path), "%s/m/7/model.safetensors", w->root);
    assert_int_equal(truncate(path, 70), 0);
    listed_text(w, text);
    assert_null(strstr(text, "left out: "));
    ahead = 100;
    listed_text(w, text);
    ahead = 0;
    assert_said_once(text, "model.safetensors");
}

static void an_entry_that_comes_twice_is_listed_once(void **state)
{
    const struct world *w = *state;
    char *before = known(w);
    each_twice = true;
    for (int i = 0; i < 3; i++)
        free(listing(w));
    assert_is_listed(w, before);
    each_twice = false;
}

/* A number that JSON cannot have would make the list unreadable for all models. */
static void a_folder_with_too_large_a_number_is_no_version(void **state)
{
    const struct world *w = *state;
    char from[256], to[256], *before = listing(w);
    snprintf(from, sizeof(from), "%s/m/7", w->root);
    snprintf(to, sizeof(to), "%s/m/9223372036854775808", w->root);
    assert_non_null(strstr(before, "\"version\":7"));
    free(before);
    assert_int_equal(rename(from, to), 0);
    char *after = listing(w);
    assert_null(strstr(after, "\"version\""));
    free(after);
    assert_int_equal(rename(to, from), 0);
}

static void hashing_stops_when_it_is_cancelled(void **state)
{
    const struct world *w = *state;
    struct ws_manifest *m = NULL;
    struct ws_error err;
    atomic_bool cancel = true;
    free(listing(w));
    assert_int_equal(ws_source_manifest(w->source, "m", 7, NULL, &cancel, &m, &err), -ECANCELED);
    cancel = false;
    if (ws_source_manifest(w->source, "m", 7, NULL, &cancel, &m, &err) < 0)
        fail_msg("%s", err.text);
    ws_manifest_free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_folder_that_is_away_has_not_lost_its_versions, open_world,
                                        close_world),
        cmocka_unit_test_setup_teardown(a_folder_with_too_large_a_number_is_no_version, open_world,
                                        close_world),
        cmocka_unit_test_setup_teardown(hashing_stops_when_it_is_cancelled, open_world, close_world),
        cmocka_unit_test_setup_teardown(an_entry_that_comes_twice_is_listed_once, open_world, close_world),
        cmocka_unit_test_setup_teardown(a_damaged_version_is_logged_once_its_writer_is_gone, open_world,
                                        close_world),
        cmocka_unit_test_setup_teardown(an_unreadable_version_is_logged_once, open_world, close_world),
        cmocka_unit_test_setup_teardown(without_descriptors_nothing_is_lost, open_world, close_world),
        cmocka_unit_test_setup_teardown(a_file_that_was_written_to_is_hashed_again, open_world, close_world),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
