#include "transports/http/acceptor.h"
#include "transports/base/log.h"
#include "transports/base/workers.h"
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#define LOOK_MS  1000
#define SHORT_MS 100 /* between looks whether there are descriptors again */
#define FULL_MS  10  /* whether there is room */

struct ws_acceptor {
    struct ws_acceptor_options o;
    char *name;
    int stop;
    pthread_t thread;
    bool logged_full; /* the thread's */
};

static bool is_short_of_descriptors(int code)
{
    return code == EMFILE || code == ENFILE || code == ENOBUFS || code == ENOMEM;
}

static void log_full(struct ws_acceptor *a, int code)
{
    if (!a->logged_full)
        ws_log(WS_LOG_WARN, a->o.part, "nobody more can connect to %s: %s; raise the limit of open files",
               a->name, strerror(code));
    a->logged_full = true;
}

/* Accepts one connection. 0: the next may be accepted at once; else in so many ms. */
static int accept_one(struct ws_acceptor *a)
{
    if (a->o.has_room && !a->o.has_room(a->o.self))
        return FULL_MS;
    const int sock = accept4(a->o.listener, NULL, NULL, SOCK_CLOEXEC), code = sock < 0 ? errno : 0;
    if (sock >= 0)
        a->o.came(a->o.self, sock);
    if (!is_short_of_descriptors(code))
        return 0;
    log_full(a, code);
    return SHORT_MS;
}

static void *work(void *arg)
{
    struct ws_acceptor *a = arg;
    struct pollfd p[2] = {{.fd = a->stop, .events = POLLIN}, {.fd = a->o.listener, .events = POLLIN}};
    int wait_ms = 0;
    while (!p[0].revents) {
        p[1].revents = 0;
        if (poll(p, wait_ms ? 1 : 2, wait_ms ? wait_ms : LOOK_MS) < 0 && errno != EINTR)
            break;
        if (p[0].revents)
            break;
        if (a->o.looks)
            a->o.looks(a->o.self);
        if (wait_ms || p[1].revents)
            wait_ms = accept_one(a);
    }
    return NULL;
}

static void discard(struct ws_acceptor *a)
{
    if (a->stop >= 0)
        close(a->stop);
    free(a->name);
    free(a);
}

int ws_acceptor_new(struct ws_acceptor **out, const struct ws_acceptor_options *o)
{
    struct ws_acceptor *a = calloc(1, sizeof(*a));
    if (!a)
        return -ENOMEM;
    a->o = *o;
    a->stop = eventfd(0, EFD_CLOEXEC);
    a->name = strdup(o->name);
    const int rc = a->stop < 0 ? -errno : !a->name ? -ENOMEM : ws_thread_start(&a->thread, work, a);
    if (rc < 0)
        discard(a);
    else
        *out = a;
    return rc;
}

void ws_acceptor_free(struct ws_acceptor *a)
{
    if (!a)
        return;
    (void)eventfd_write(a->stop, 1);
    pthread_join(a->thread, NULL);
    discard(a);
}
