/* Only one agent at a time listens at a path, even if several start at the same moment. */
#include "tests/fixtures/private_folder.h"
#include "transports/ipc/client.h"
#include "transports/ipc/serve.h"
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cmocka.h>

#define STARTERS 4
#define ROUNDS   200

static char path[100];
static const struct ws_catalog_ops ops;
static const struct ws_catalog catalog = {&ops, NULL};

static int start(struct ws_ipc_server **s)
{
    struct ws_error err = {0};
    int rc = ws_ipc_server_new(s, path, (gid_t)-1, &catalog, NULL, NULL, &err);
    return rc;
}

/* As a killed agent leaves it; backlog >= 0: as a stopped one. */
static int left(int backlog)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    memcpy(a.sun_path, path, strlen(path) + 1);
    assert_int_equal(bind(fd, (struct sockaddr *)&a, sizeof(a)), 0);
    assert_int_equal(backlog < 0 ? 0 : listen(fd, backlog), 0);
    return fd;
}

static void assert_nothing_stays(void)
{
    char owner[120];
    snprintf(owner, sizeof(owner), "%s.owner", path);
    assert_int_equal(access(path, F_OK), -1);
    assert_int_equal(access(owner, F_OK), -1);
}

struct crowd {
    atomic_uint here, most, taken, odd;
    pthread_barrier_t go;
};

static void *start_again_and_again(void *arg)
{
    struct crowd *c = arg;
    for (int i = 0; i < ROUNDS; i++) {
        struct ws_ipc_server *s;
        int sock;
        (void)pthread_barrier_wait(&c->go);
        int rc = start(&s);
        if (rc == 0) {
            const unsigned n = atomic_fetch_add(&c->here, 1) + 1;
            if (n > atomic_load(&c->most))
                atomic_store(&c->most, n);
            atomic_fetch_add(&c->taken, 1);
        }
        (void)pthread_barrier_wait(&c->go);
        if (rc == 0 && ws_ipc_connect(path, &sock, NULL) == 0)
            close(sock);
        else if (rc != -EADDRINUSE)
            atomic_fetch_add(&c->odd, 1);
        (void)pthread_barrier_wait(&c->go);
        if (rc == 0) {
            atomic_fetch_sub(&c->here, 1);
            ws_ipc_server_free(s);
        }
    }
    return NULL;
}

static void test_at_once(void **state)
{
    struct crowd c = {0};
    pthread_t threads[STARTERS];
    (void)state;
    close(left(-1));
    assert_int_equal(pthread_barrier_init(&c.go, NULL, STARTERS), 0);
    for (int i = 0; i < STARTERS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, start_again_and_again, &c), 0);
    for (int i = 0; i < STARTERS; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    pthread_barrier_destroy(&c.go);
    assert_int_equal(atomic_load(&c.odd), 0);
    assert_int_equal(atomic_load(&c.most), 1);
    assert_int_equal(atomic_load(&c.taken), ROUNDS);
    assert_nothing_stays();
}

static void test_existing_files(void **state)
{
    struct ws_ipc_server *s, *other;
    (void)state;
    close(left(-1));
    assert_int_equal(start(&s), 0);
    assert_int_equal(start(&other), -EADDRINUSE);
    assert_int_equal(unlink(path), 0); /* removed by another program: the owner still owns it */
    assert_int_equal(start(&other), -EADDRINUSE);
    ws_ipc_server_free(s);
    assert_nothing_stays();
    assert_int_equal(mkdir(path, 0700), 0);
    assert_int_equal(start(&s), -EEXIST);
    assert_int_equal(rmdir(path), 0);
    assert_nothing_stays();
}

/* An agent of 0.1.0 that is stopped, with a full queue, counts as running. */
static void test_a_stopped_agent_keeps_its_socket(void **state)
{
    struct ws_ipc_server *s;
    int socks[8], n = 0, fd = left(0);
    (void)state;
    while (n < 8 && ws_ipc_connect(path, &socks[n], NULL) == 0)
        n++;
    assert_true(n < 8);
    assert_int_equal(start(&s), -EADDRINUSE);
    assert_int_equal(access(path, F_OK), 0);
    while (n > 0)
        close(socks[--n]);
    close(fd);
    assert_int_equal(start(&s), 0);
    ws_ipc_server_free(s);
    assert_nothing_stays();
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_at_once), cmocka_unit_test(test_existing_files),
                                       cmocka_unit_test(test_a_stopped_agent_keeps_its_socket)};
    if (!private_path(path, sizeof(path), "place.sock"))
        return 1;
    return cmocka_run_group_tests_name("place", tests, NULL, NULL);
}
