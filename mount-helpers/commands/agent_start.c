#include "mount-helpers/commands/agent_start.h"
#include "transports/base/end_signals.h"
#include "transports/base/log.h"
#include "transports/base/workers.h"
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#define SAY_MS 4000

static void say(struct agent_start *s)
{
    const char *archive = atomic_load(&s->shared.waits_for);
    if (archive)
        ws_log(
            WS_LOG_WARN, "agent",
            "not started yet: the archive %s has not answered for %d s; it is waited for, a signal ends that",
            archive, SAY_MS / 1000);
}

static void *watch(void *arg)
{
    struct agent_start *s = arg;
    sigset_t set;
    ws_end_signals(&set);
    const int signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    struct pollfd fds[] = {{.fd = s->over, .events = POLLIN}, {.fd = signals, .events = POLLIN}};
    int n;
    for (int wait_ms = SAY_MS; (n = poll(fds, 2, wait_ms)) <= 0; wait_ms = -1) {
        if (n == 0)
            say(s);
    }
    struct signalfd_siginfo info;
    if (fds[1].revents && read(signals, &info, sizeof(info)) == (ssize_t)sizeof(info)) {
        s->signal = (int)info.ssi_signo;
        atomic_store(&s->shared.stop, true);
    }
    if (signals >= 0)
        close(signals);
    return NULL;
}

int agent_start_begin(struct agent_start *s, struct ws_error *err)
{
    *s = (struct agent_start){.over = eventfd(0, EFD_CLOEXEC)};
    if (s->over < 0)
        return ws_error_set(err, errno, "cannot start the agent: %s", strerror(errno));
    if (ws_thread_start(&s->thread, watch, s) < 0) {
        close(s->over);
        return ws_error_set(err, EAGAIN, "cannot start the agent's threads");
    }
    return 0;
}

int agent_start_end(struct agent_start *s)
{
    const eventfd_t one = 1;
    (void)eventfd_write(s->over, one);
    pthread_join(s->thread, NULL);
    close(s->over);
    atomic_store(&s->shared.stop, false); /* what ends the archive takes requests, too */
    return s->signal;
}
