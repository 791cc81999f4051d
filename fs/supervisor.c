#include "fs/supervisor.h"
#include "fs/ending.h"
#include "transports/base/clock.h"
#include "transports/base/log.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define DEATHS    3 /* WSYNC_DEATHS says otherwise */
#define MOST      64
#define WITHIN_NS (60 * WS_SECOND_NS)
#define CUT       SIGUSR2 /* a daemon wrote to its end of the pipe: another user's cannot signal */

static int cutting = -1; /* a daemon's end; -1: this process has no supervisor */

struct watch {
    pid_t daemon;
    uint64_t deaths[MOST]; /* when, the last n % MOST */
    size_t n, most;
    bool ends; /* it was told to */
    void (*cut)(void *arg);
    void *arg;
};

static void signals(sigset_t *out)
{
    ws_ending_signals(out);
    sigaddset(out, SIGCHLD);
    sigaddset(out, CUT);
}

/* The daemon's wait status, once it has ended. */
static int wait_for_end(struct watch *w)
{
    sigset_t set;
    int status, signal;
    signals(&set);
    for (;;) {
        const pid_t got = waitpid(w->daemon, &status, WNOHANG);
        if (got == w->daemon)
            return status;
        if (sigwait(&set, &signal) != 0 || signal == SIGCHLD)
            continue;
        if (signal == CUT)
            w->cut(w->arg);
        w->ends = w->ends || signal == SIGTERM || signal == SIGINT || signal == CUT;
        if (signal != CUT)
            (void)kill(w->daemon, signal);
    }
}

static size_t most_deaths(void)
{
    const char *text = getenv("WSYNC_DEATHS");
    const unsigned long n = text ? strtoul(text, NULL, 10) : DEATHS;
    return n < 1 ? 1 : n;
}

static bool died_often(struct watch *w)
{
    const uint64_t now = ws_clock_ns();
    w->deaths[w->n++ % MOST] = now;
    return w->most <= MOST && w->n >= w->most && now - w->deaths[(w->n - w->most) % MOST] < WITHIN_NS;
}

/* 0: another one is to be started. */
static int judge(struct watch *w, int status, const char *what, bool *is_over, struct ws_error *err)
{
    *is_over = true;
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
        return 0;
    if (WIFEXITED(status))
        return ws_error_set(err, EIO, "the daemon of %s has ended with an error, which it named", what);
    const char *how = strsignal(WTERMSIG(status));
    if (w->ends)
        return ws_error_set(err, EINTR, "the daemon of %s was told to end, and died: %s", what, how);
    if (died_often(w))
        return ws_error_set(
            err, EIO,
            "the daemon of %s has died %zu times within %llu s, the last time of: %s; it is unmounted", what,
            w->most, WITHIN_NS / WS_SECOND_NS, how);
    ws_log(WS_LOG_ERROR, "mount", "the daemon has died, and another one takes over at=%s signal=\"%s\"", what,
           how);
    *is_over = false;
    return 0;
}

/* One end signals this process what is written into the other. */
static int pipe_of_daemons(int ends[2])
{
    if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0)
        return -errno;
    if (fcntl(ends[0], F_SETOWN, getpid()) == 0 && fcntl(ends[0], F_SETSIG, CUT) == 0 &&
        fcntl(ends[0], F_SETFL, O_ASYNC | O_NONBLOCK) == 0)
        return 0;
    const int rc = -errno;
    close(ends[0]);
    close(ends[1]);
    return rc;
}

int ws_supervisor_run(struct ws_life *life, const char *what, void (*cut)(void *arg), void *arg,
                      bool *is_daemon, struct ws_error *err)
{
    struct watch w = {.most = most_deaths(), .cut = cut, .arg = arg};
    sigset_t set, before;
    bool is_over = false;
    int ends[2];
    signals(&set);
    *is_daemon = false;
    pthread_sigmask(SIG_BLOCK, &set, &before);
    int rc = pipe_of_daemons(ends);
    if (rc < 0)
        return ws_error_set(err, -rc, "cannot make a pipe for the daemons of %s: %s", what, strerror(-rc));
    while (rc == 0 && !is_over) {
        if (!ws_life_next(life))
            return ws_error_set(err, EAGAIN, "%d daemons of %s have died: mount it anew", WS_LIVES, what);
        w.daemon = fork();
        if (w.daemon < 0)
            return ws_error_set(err, errno, "cannot start a daemon for %s: %s", what, strerror(errno));
        if (w.daemon == 0) {
            close(ends[0]);
            cutting = ends[1];
            *is_daemon = true;
            pthread_sigmask(SIG_SETMASK, &before, NULL);
            return 0;
        }
        (void)prctl(PR_SET_NAME, "wsync-keeps");
        rc = judge(&w, wait_for_end(&w), what, &is_over, err);
    }
    return rc;
}

void ws_supervisor_cut(void)
{
    if (cutting >= 0 && write(cutting, "", 1) != 1)
        ws_log(WS_LOG_DEBUG, "mount", "the supervisor is gone");
}
