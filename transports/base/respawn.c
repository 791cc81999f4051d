#include "transports/base/respawn.h"
#include "transports/base/deaths.h"
#include "transports/base/end_signals.h"
#include "transports/base/log.h"
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define FORK_TRIES 300
#define FORK_NS    (WS_SECOND_NS / 5) /* between two */

struct watch {
    const struct ws_respawn *what;
    int signals; /* a descriptor of them */
    pid_t daemon;
    struct ws_deaths deaths;
    bool ends; /* it was told to */
};

static void signals(sigset_t *out)
{
    ws_end_signals(out);
    sigaddset(out, SIGCHLD);
}

static void pass_on(struct watch *w, int signal)
{
    if (signal == SIGCHLD)
        return;
    w->ends = w->ends || signal == SIGTERM || signal == SIGINT;
    (void)kill(w->daemon, signal);
}

/* The daemon's wait status, once it has ended. What it has sent before is received. */
static int wait_for_end(struct watch *w)
{
    struct pollfd fds[] = {{.fd = w->signals, .events = POLLIN}, {.fd = w->what->messages, .events = POLLIN}};
    struct signalfd_siginfo info;
    int status;
    for (;;) {
        const pid_t got = waitpid(w->daemon, &status, WNOHANG);
        w->what->receive(w->what->arg);
        if (got == w->daemon)
            return status;
        if (poll(fds, 2, -1) > 0 && fds[0].revents &&
            read(w->signals, &info, sizeof(info)) == (ssize_t)sizeof(info))
            pass_on(w, (int)info.ssi_signo);
    }
}

/* A first daemon that ends with an error has named it. One after a death had started before as it was: what it lacks may be there soon, as a
 * port, or a file that is being written. */
static bool may_start_again(struct watch *w, int status)
{
    const struct timespec wait = {.tv_sec = 1};
    if (!WIFEXITED(status))
        return true;
    return w->deaths.n > 0 && !w->ends && nanosleep(&wait, NULL) == 0;
}

/* 0: another one is to be started. */
static int judge(struct watch *w, int status, bool *is_over, struct ws_error *err)
{
    const char *name = w->what->name;
    char how[64];
    *is_over = true;
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
        return 0;
    if (!may_start_again(w, status))
        return ws_error_set(err, EIO, "the daemon of %s has ended with an error, which it named", name);
    if (WIFEXITED(status))
        snprintf(how, sizeof(how), "exit status %d", WEXITSTATUS(status));
    else
        snprintf(how, sizeof(how), "%s", strsignal(WTERMSIG(status)));
    if (w->ends)
        return ws_error_set(err, EINTR, "the daemon of %s was told to end, and died: %s", name, how);
    ws_deaths_add(&w->deaths);
    if (ws_deaths_were(&w->deaths, w->deaths.most))
        return ws_deaths_error(&w->deaths, name, how, w->what->at_end, err);
    ws_log(WS_LOG_ERROR, w->what->component,
           "the daemon has died, and another one takes over at=%s why=\"%s\"", name, how);
    *is_over = false;
    return 0;
}

pid_t ws_respawn_fork(void)
{
    const struct timespec wait = {.tv_nsec = FORK_NS};
    pid_t pid = fork();
    for (int i = 1; pid < 0 && (errno == EAGAIN || errno == ENOMEM) && i < FORK_TRIES; i++) {
        (void)nanosleep(&wait, NULL);
        pid = fork();
    }
    return pid;
}

/* In each daemon and in the supervisor as ws_respawn_run. */
static int supervise(struct watch *w, bool *is_daemon, struct ws_error *err)
{
    bool is_over = false;
    int rc = 0;
    while (rc == 0 && !is_over) {
        w->daemon = ws_respawn_fork();
        if (w->daemon < 0)
            return ws_error_set(err, errno, "cannot start a daemon for %s: %s", w->what->name,
                                strerror(errno));
        *is_daemon = w->daemon == 0;
        if (*is_daemon)
            return 0;
        (void)prctl(PR_SET_NAME, "wsync-keeps");
        rc = judge(w, wait_for_end(w), &is_over, err);
    }
    return rc;
}

int ws_respawn_run(const struct ws_respawn *what, bool *is_daemon, struct ws_error *err)
{
    struct watch w = {.what = what};
    sigset_t set, before;
    ws_deaths_init(&w.deaths);
    signals(&set);
    *is_daemon = false;
    w.signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    if (w.signals < 0)
        return ws_error_set(err, errno, "cannot supervise %s: %s", what->name, strerror(errno));
    pthread_sigmask(SIG_BLOCK, &set, &before);
    const int rc = supervise(&w, is_daemon, err);
    close(w.signals);
    if (*is_daemon)
        pthread_sigmask(SIG_SETMASK, &before, NULL);
    return rc;
}
