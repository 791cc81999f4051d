/* Local tokens: the files, and what is sent to whom. */
#include "tests/fixtures/listening.h"
#include "tests/fixtures/private_folder.h"
#include "transports/access/local_token.h"
#include "transports/tcp/headers.h"
#include <curl/curl.h>
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <sys/stat.h>

#include <cmocka.h>

#define CHECK(what)                                                                                          \
    do {                                                                                                     \
        if (!(what)) {                                                                                       \
            fprintf(stderr, "line %d: %s\n", __LINE__, #what);                                               \
            _exit(1);                                                                                        \
        }                                                                                                    \
    } while (0)

#define STRANGER 64987 /* an account whose folder in /tmp no other test has */

static char runtime[200];

/* Runs a test in a child of another account, whose runtime folder is `runtime`. As root alone: root's place is
 * /run/wsync, which tests leave alone. */
static void as_nobody(void (*test)(void))
{
    int status = -1;
    if (geteuid() != 0)
        skip();
    assert_true(private_folder(runtime, sizeof(runtime), "runtime"));
    assert_int_equal(chown(runtime, STRANGER, STRANGER), 0);
    setenv("XDG_RUNTIME_DIR", runtime, 1);
    const pid_t child = fork_as(STRANGER);
    if (child == 0) {
        test();
        _exit(0);
    }
    assert_true(child > 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

struct served {
    int fd, held;
    unsigned port;
    char url[40], path[WS_LOCAL_TOKEN_PATH];
    struct ws_token_hash hash;
};

static void serve(struct served *s)
{
    struct ws_error err = {0};
    s->port = 0;
    s->fd = listen_at("127.0.0.1", &s->port);
    CHECK(s->fd >= 0);
    snprintf(s->url, sizeof(s->url), "http://127.0.0.1:%u", s->port);
    s->held = ws_local_token_make(s->port, s->path, &s->hash, &err);
    CHECK(s->held >= 0);
}

static bool finds(const struct served *s)
{
    char secret[WS_TOKEN_SECRET_CHARS + 1];
    struct ws_token_hash hash;
    uid_t owner;
    if (!ws_local_token_find(s->url, secret, &owner))
        return false;
    ws_token_hash(secret, &hash);
    return owner == geteuid() && ws_token_hash_equal(&hash, &s->hash);
}

static void made_and_found(void)
{
    struct served s, again;
    struct stat st;
    char expected[WS_LOCAL_TOKEN_PATH];
    serve(&s);
    snprintf(expected, sizeof(expected), "%s/wsync/%u.token", runtime, s.port);
    CHECK(strcmp(s.path, expected) == 0 && finds(&s));
    CHECK(stat(s.path, &st) == 0 && (st.st_mode & 07777) == 0600);
    again = s;
    close(s.held); /* as of a server that was killed */
    again.held = ws_local_token_make(s.port, again.path, &again.hash, NULL);
    CHECK(again.held >= 0);
    CHECK(ws_token_hash_equal(&s.hash, &again.hash)); /* mounts go on over a restart */
    close(s.fd);
    CHECK(!finds(&s)); /* nothing listens there */
}

/* Each is read by nobody, and the next server makes a new one in its place. */
static void files_that_are_no_tokens(void)
{
    static const char *const texts[] = {"", "wsync_short\n",
                                        "wsync_aaaaaaaaaaaaaaaaaaaa aaaaaaaaaaaaaaaaaaaaaa\n"};
    struct served s;
    char other[WS_LOCAL_TOKEN_PATH + 8];
    for (unsigned kind = 0; kind < 7; kind++) {
        serve(&s);
        snprintf(other, sizeof(other), "%s.there", s.path);
        if (kind == 0)
            CHECK(chmod(s.path, 0640) == 0);
        else if (kind == 1)
            CHECK(chmod(s.path, 0604) == 0);
        else if (kind == 2)
            CHECK(rename(s.path, other) == 0 && symlink(other, s.path) == 0);
        else if (kind == 3)
            CHECK(unlink(s.path) == 0 && mkfifo(s.path, 0600) == 0);
        else {
            const int fd = open(s.path, O_WRONLY | O_TRUNC | O_CLOEXEC);
            const char *text = texts[kind - 4];
            CHECK(write(fd, text, strlen(text)) == (ssize_t)strlen(text));
            close(fd);
        }
        if (finds(&s)) {
            fprintf(stderr, "kind %u is found\n", kind);
            _exit(1);
        }
        const struct ws_token_hash before = s.hash;
        close(s.held);
        s.held = ws_local_token_make(s.port, s.path, &s.hash, NULL);
        CHECK(s.held >= 0);
        CHECK(!ws_token_hash_equal(&before, &s.hash) && finds(&s));
        close(s.fd);
    }
}

static void folders_that_others_may_write(void)
{
    struct served s;
    struct ws_error err = {0};
    char folder[WS_LOCAL_TOKEN_PATH], moved[WS_LOCAL_TOKEN_PATH + 8];
    serve(&s);
    CHECK(ws_local_folder(folder, &err) == 0);
    for (mode_t mode = 0722; mode <= 0777; mode += 055) {
        CHECK(chmod(folder, mode) == 0);
        CHECK(!finds(&s));
        CHECK(ws_local_token_make(s.port, s.path, &s.hash, &err) == -EPERM && strstr(err.text, folder));
    }
    CHECK(chmod(folder, 0700) == 0 && finds(&s));
    snprintf(moved, sizeof(moved), "%s.moved", folder);
    CHECK(rename(folder, moved) == 0 && symlink(moved, folder) == 0);
    CHECK(!finds(&s) && ws_local_folder(folder, &err) == -EPERM);
}

static void without_a_runtime_folder(void)
{
    char folder[WS_LOCAL_TOKEN_PATH];
    struct ws_error err = {0};
    setenv("XDG_RUNTIME_DIR", "relative", 1);
    if (mkdir("/tmp/wsync-64987", 0700) != 0)
        return; /* another test has it */
    CHECK(ws_local_folder(folder, &err) == 0 && strcmp(folder, "/tmp/wsync-64987") == 0);
    struct served s;
    serve(&s);
    CHECK(finds(&s));
    unlink(s.path);
    rmdir(folder);
}

static void gone_with_the_last_server(void)
{
    struct served s, other;
    char moved[WS_LOCAL_TOKEN_PATH + 8];
    serve(&s);
    other = s; /* one of 127.0.0.2 */
    other.held = ws_local_token_make(s.port, other.path, &other.hash, NULL);
    CHECK(other.held >= 0 && ws_token_hash_equal(&s.hash, &other.hash));
    ws_local_token_end(s.path, s.held);
    CHECK(finds(&other));
    ws_local_token_end(other.path, other.held);
    CHECK(access(s.path, F_OK) != 0 && !finds(&s));
    s.held = ws_local_token_make(s.port, s.path, &s.hash, NULL); /* another file has its name by now */
    CHECK(s.held >= 0 && !ws_token_hash_equal(&s.hash, &other.hash));
    snprintf(moved, sizeof(moved), "%s.moved", s.path);
    CHECK(rename(s.path, moved) == 0);
    other.held = ws_local_token_make(s.port, other.path, &other.hash, NULL);
    CHECK(other.held >= 0);
    ws_local_token_end(s.path, s.held);
    CHECK(finds(&other) && access(moved, F_OK) == 0);
    ws_local_token_end(other.path, other.held);
}

static bool sends(struct ws_tcp_headers *h)
{
    return ws_tcp_headers_now(h) != NULL;
}

static void sent_only_while_its_server_listens(void)
{
    struct served s;
    struct ws_tcp_headers h = {0};
    serve(&s);
    CHECK(ws_tcp_headers_init(&h, s.url, NULL, NULL, NULL) == 0);
    CHECK(sends(&h) && strncmp(ws_tcp_headers_now(&h)->data, "Authorization: Bearer wsync_", 28) == 0);
    close(s.fd);
    CHECK(!sends(&h));
    s.fd = listen_at("127.0.0.1", &s.port);
    CHECK(s.fd >= 0 && sends(&h));
    ws_tcp_headers_destroy(&h);
}

static void a_token_is_made_and_found(void **state)
{
    (void)state;
    as_nobody(made_and_found);
}

static void a_token_goes_with_the_last_server(void **state)
{
    (void)state;
    as_nobody(gone_with_the_last_server);
}

static void bad_files_are_not_read(void **state)
{
    (void)state;
    as_nobody(files_that_are_no_tokens);
}

static void bad_folders_are_not_used(void **state)
{
    (void)state;
    as_nobody(folders_that_others_may_write);
}

static void the_folder_in_tmp(void **state)
{
    (void)state;
    as_nobody(without_a_runtime_folder);
}

static void no_listener_no_token(void **state)
{
    (void)state;
    as_nobody(sent_only_while_its_server_listens);
}

/* The port is another account's, and root has a token of it, of an earlier server. */
static void roots_token_is_not_sent_to_another_account(void **state)
{
    char path[WS_LOCAL_TOKEN_PATH], secret[WS_TOKEN_SECRET_CHARS + 1], url[40];
    struct ws_token_hash hash;
    struct ws_error err = {0};
    struct ws_tcp_headers h = {0};
    unsigned port = 0;
    uid_t owner;
    (void)state;
    if (geteuid() != 0)
        skip();
    const int own = listen_at("127.0.0.1", &port);
    snprintf(url, sizeof(url), "http://127.0.0.1:%u", port);
    const int held = ws_local_token_make(port, path, &hash, &err);
    assert_true(held >= 0);
    assert_true(ws_local_token_find(url, secret, &owner));
    assert_int_equal(ws_tcp_headers_init(&h, url, NULL, NULL, NULL), 0);
    const bool was_sent = sends(&h);
    close(own);
    const pid_t child = listener_of(STRANGER, "127.0.0.1", &port);
    const bool found = ws_local_token_find(url, secret, &owner), is_sent = sends(&h);
    end_child(child);
    ws_local_token_end(path, held);
    ws_tcp_headers_destroy(&h);
    assert_int_equal(access(path, F_OK), -1);
    assert_true(was_sent);
    assert_true(child > 0);
    assert_false(found);
    assert_false(is_sent);
}

/* Root mounts another account's agent: it reads that account's file, and only if it is that account's. */
static void root_finds_another_accounts_token(void **state)
{
    char secret[WS_TOKEN_SECRET_CHARS + 1], url[40], path[WS_LOCAL_TOKEN_PATH];
    unsigned port = 0;
    uid_t owner;
    (void)state;
    if (geteuid() != 0 || mkdir("/tmp/wsync-64987", 0700) != 0)
        skip();
    const pid_t child = listener_of(STRANGER, "127.0.0.1", &port);
    snprintf(url, sizeof(url), "http://127.0.0.1:%u", port);
    snprintf(path, sizeof(path), "/tmp/wsync-64987/%u.token", port);
    const int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    ws_token_secret_new(secret);
    const bool written = write(fd, secret, WS_TOKEN_SECRET_CHARS) == WS_TOKEN_SECRET_CHARS;
    const bool of_root = ws_local_token_find(url, secret, &owner);
    const bool given =
        fchown(fd, STRANGER, STRANGER) == 0 && chown("/tmp/wsync-64987", STRANGER, STRANGER) == 0;
    const bool of_nobody = ws_local_token_find(url, secret, &owner);
    close(fd);
    unlink(path);
    rmdir("/tmp/wsync-64987");
    end_child(child);
    assert_true(child > 0 && written && given);
    assert_false(of_root);
    assert_true(of_nobody);
    assert_int_equal(owner, STRANGER);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_token_is_made_and_found),
        cmocka_unit_test(a_token_goes_with_the_last_server),
        cmocka_unit_test(bad_files_are_not_read),
        cmocka_unit_test(bad_folders_are_not_used),
        cmocka_unit_test(the_folder_in_tmp),
        cmocka_unit_test(no_listener_no_token),
        cmocka_unit_test(roots_token_is_not_sent_to_another_account),
        cmocka_unit_test(root_finds_another_accounts_token),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
