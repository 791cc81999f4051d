/* Peers: a socket that another account put there, or serves, is refused before anything is sent. */
#include "tests/fixtures/listening.h"
#include "tests/fixtures/private_folder.h"
#include "transports/ipc/client.h"
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <cmocka.h>

static char folder[80], path[100];

static int listen_here(void)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    memcpy(at.sun_path, path, strlen(path) + 1);
    return fd >= 0 && bind(fd, (struct sockaddr *)&at, sizeof(at)) == 0 && chmod(path, 0666) == 0 &&
                   listen(fd, 8) == 0
               ? fd
               : -1;
}

/* A child of that account that serves the socket, or -1. */
static pid_t agent_of(uid_t uid)
{
    int ends[2];
    char said = 0;
    assert_int_equal(pipe(ends), 0);
    unlink(path);
    const pid_t child = fork_as(uid);
    if (child == 0) {
        if (listen_here() >= 0 && write(ends[1], "x", 1) == 1)
            pause();
        _exit(0);
    }
    close(ends[1]);
    const bool ok = read(ends[0], &said, 1) == 1;
    close(ends[0]);
    assert_true(ok);
    return child;
}

static int set_up(void **state)
{
    (void)state;
    unsetenv(WS_AGENT_USER_VARIABLE);
    if (!private_folder(folder, sizeof(folder), "peer"))
        return -1;
    snprintf(path, sizeof(path), "%s/agent.sock", folder);
    return 0;
}

static int try_it(const struct ws_ipc_account *named, struct ws_error *err)
{
    int sock = -1;
    *err = (struct ws_error){0};
    const int rc = ws_ipc_connect_to(path, named, &sock, err);
    if (rc == 0)
        close(sock);
    return rc;
}

static void an_own_agent_is_trusted(void **state)
{
    struct ws_error err;
    (void)state;
    const int fd = listen_here();
    assert_true(fd >= 0);
    assert_int_equal(try_it(NULL, &err), 0);
    close(fd);
    unlink(path);
    assert_int_equal(try_it(NULL, &err), -ENOENT);
}

static void another_accounts_agent_has_to_be_named(void **state)
{
    const struct ws_ipc_account nobody = {true, NOBODY}, other = {true, 4242};
    struct ws_error err;
    (void)state;
    if (geteuid() != 0)
        skip();
    assert_int_equal(chmod(folder, 01777), 0);
    const pid_t child = agent_of(NOBODY);
    assert_int_equal(try_it(NULL, &err), -EPERM);
    assert_non_null(strstr(err.text, path));
    assert_non_null(strstr(err.text, "is run by nobody"));
    assert_non_null(strstr(err.text, "WSYNC_AGENT_USER=nobody"));
    assert_int_equal(try_it(&other, &err), -EPERM);
    assert_int_equal(try_it(&nobody, &err), 0);
    setenv(WS_AGENT_USER_VARIABLE, "nobody", 1);
    assert_int_equal(try_it(NULL, &err), 0);
    setenv(WS_AGENT_USER_VARIABLE, "65534", 1);
    assert_int_equal(try_it(NULL, &err), 0);
    setenv(WS_AGENT_USER_VARIABLE, "0", 1);
    assert_int_equal(try_it(NULL, &err), -EPERM);
    setenv(WS_AGENT_USER_VARIABLE, "no such account", 1);
    assert_int_equal(try_it(NULL, &err), -EINVAL);
    unsetenv(WS_AGENT_USER_VARIABLE);
    end_child(child);
}

static void anothers_folder_is_refused_before_connecting(void **state)
{
    const struct ws_ipc_account nobody = {true, NOBODY};
    struct ws_error err;
    char link[120];
    (void)state;
    if (geteuid() != 0)
        skip();
    const int fd = listen_here();
    assert_int_equal(chown(folder, NOBODY, NOBODY), 0);
    assert_int_equal(try_it(NULL, &err), -EPERM);
    assert_non_null(strstr(err.text, "belongs to nobody"));
    assert_int_equal(try_it(&nobody, &err), 0);
    assert_int_equal(chown(folder, 0, 0), 0);
    assert_int_equal(chmod(folder, 0777), 0);
    assert_int_equal(try_it(NULL, &err), -EPERM);
    assert_int_equal(chmod(folder, 01777), 0);
    assert_int_equal(try_it(NULL, &err), 0);
    assert_int_equal(chmod(folder, 0770), 0); /* what a member of the group puts there runs as that member */
    assert_int_equal(try_it(NULL, &err), 0);
    snprintf(link, sizeof(link), "%s.link", folder);
    assert_int_equal(symlink(folder, link), 0);
    assert_int_equal(lchown(link, NOBODY, NOBODY), 0);
    snprintf(path, sizeof(path), "%s/agent.sock", link);
    assert_int_equal(try_it(NULL, &err), -EPERM); /* whoever owns the link says which folder it is */
    close(fd);
}

static void an_unprivileged_client_trusts_root(void **state)
{
    int status = -1;
    (void)state;
    if (geteuid() != 0)
        skip();
    assert_int_equal(chmod(folder, 0755), 0);
    const int fd = listen_here();
    const pid_t child = fork_as(NOBODY);
    if (child == 0) {
        struct ws_error err;
        _exit(try_it(NULL, &err) == 0 ? 0 : 1);
    }
    waitpid(child, &status, 0);
    assert_int_equal(status, 0);
    close(fd);
}

static void names_of_accounts(void **state)
{
    static const char *const bad[] = {"", "no such account", "-1", "4294967295", "4294967296", "1x"};
    struct ws_ipc_account a;
    (void)state;
    assert_int_equal(ws_ipc_account_parse("root", &a, NULL), 0);
    assert_true(a.is_named && a.uid == 0);
    assert_int_equal(ws_ipc_account_parse("4242", &a, NULL), 0);
    assert_int_equal(a.uid, 4242);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        assert_int_equal(ws_ipc_account_parse(bad[i], &a, NULL), -EINVAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(an_own_agent_is_trusted, set_up),
        cmocka_unit_test_setup(another_accounts_agent_has_to_be_named, set_up),
        cmocka_unit_test_setup(anothers_folder_is_refused_before_connecting, set_up),
        cmocka_unit_test_setup(an_unprivileged_client_trusts_root, set_up),
        cmocka_unit_test(names_of_accounts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
