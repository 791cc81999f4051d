#include "fs/ending.h"
#include "transports/base/end_signals.h"
#include "transports/base/log.h"
#include "transports/base/workers.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#define WAKE     SIGUSR1
#define AGAIN_MS 20
#define LOOK_MS  1000 /* where it could not be told whether the mount is there */

struct ws_ending {
    struct ws_ending_options options;
    pthread_t thread;
    int over, signals, mounts; /* mounts -1: unmounting is not seen */
    bool controls;             /* control has not been ended */
};

void ws_ending_block_signals(sigset_t *before)
{
    sigset_t held;
    ws_end_signals(&held);
    pthread_sigmask(SIG_BLOCK, &held, before);
}

static void end_control(struct ws_ending *e, const char *why)
{
    if (!e->controls)
        return;
    e->controls = false;
    ws_log(WS_LOG_INFO, "mount", "control ends: %s", why);
    e->options.end_control(e->options.arg);
}

static bool is_over(const struct ws_ending *e, int wait_ms)
{
    struct pollfd fd = {.fd = e->over, .events = POLLIN};
    return poll(&fd, 1, wait_ms) > 0;
}

/* Of the signals that have come, SIGHUP may only mean that the config is to be read again. */
static bool tells_to_end(const struct ws_ending *e)
{
    struct signalfd_siginfo one;
    bool ends = false, reloads = false;
    while (read(e->signals, &one, sizeof(one)) == (ssize_t)sizeof(one)) {
        const bool reload = one.ssi_signo == SIGHUP && e->options.reload;
        reloads = reloads || reload;
        ends = ends || !reload;
    }
    if (reloads && !ends && e->controls)
        e->options.reload(e->options.arg);
    return ends;
}

static void *watch(void *arg)
{
    struct ws_ending *e = arg;
    struct pollfd fds[3] = {{.fd = e->over, .events = POLLIN},
                            {.fd = e->signals, .events = POLLIN},
                            {.fd = e->mounts, .events = POLLPRI}};
    bool ended = false;
    while (!ended) {
        const int mounted = fds[2].fd >= 0 ? ws_place_is_mounted(e->options.place, e->mounts) : 1;
        if (mounted == 0) {
            end_control(e, "the mount is not at its path any more");
            fds[2].fd = -1;
        }
        if (poll(fds, 3, mounted < 0 ? LOOK_MS : -1) < 0 && errno != EINTR)
            break;
        ended = fds[0].revents || (fds[1].revents && tells_to_end(e));
    }
    if (is_over(e, 0))
        return NULL;
    end_control(e, "the daemon was told to end");
    e->options.end_session(e->options.arg);
    do /* it may look for the end just before it sleeps */
        pthread_kill(e->options.session, WAKE);
    while (!is_over(e, AGAIN_MS));
    return NULL;
}

static void wake(int signal)
{
    (void)signal;
}

static void release(struct ws_ending *e)
{
    const int fds[] = {e->over, e->signals, e->mounts};
    for (size_t i = 0; i < sizeof(fds) / sizeof(fds[0]); i++)
        if (fds[i] >= 0)
            close(fds[i]);
    free(e);
}

int ws_ending_watch(struct ws_ending **out, const struct ws_ending_options *o)
{
    struct ws_ending *e = calloc(1, sizeof(*e));
    const struct sigaction interrupts = {.sa_handler = wake}; /* no SA_RESTART: calls end with EINTR */
    sigset_t held;
    if (!e)
        return -ENOMEM;
    ws_end_signals(&held);
    e->options = *o;
    e->controls = true;
    e->mounts = o->place ? open("/proc/self/mountinfo", O_RDONLY | O_CLOEXEC) : -1;
    e->over = eventfd(0, EFD_CLOEXEC);
    e->signals = signalfd(-1, &held, SFD_CLOEXEC | SFD_NONBLOCK);
    int rc = e->over < 0 || e->signals < 0 || sigaction(WAKE, &interrupts, NULL) != 0
                 ? -errno
                 : ws_thread_start(&e->thread, watch, e);
    if (rc < 0)
        release(e);
    else
        *out = e;
    return rc;
}

void ws_ending_over(struct ws_ending *e)
{
    if (!e)
        return;
    struct signalfd_siginfo one;
    (void)eventfd_write(e->over, 1);
    pthread_join(e->thread, NULL);
    while (read(e->signals, &one, sizeof(one)) == (ssize_t)sizeof(one))
        ; /* they have done their work, and must not end the process once they are unblocked */
    release(e);
}
