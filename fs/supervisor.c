#include "fs/supervisor.h"
#include "fs/fuse/packet.h"
#include "fs/supervised.h"
#include "fs/takeover.h"
#include "transports/base/clock.h"
#include "transports/base/deaths.h"
#include "transports/base/end_signals.h"
#include "transports/base/log.h"
#include "transports/base/respawn.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define TRY_MS   20000 /* for another binary to read the options */
#define START_NS (60 * WS_SECOND_NS)
#define IDLE_NS  ((WS_SUPERVISOR_IDLE_MS + 5000) * WS_MS_NS) /* then the daemon hangs */
#define ROUNDS   6                                           /* without an answer */

enum state { STARTS, SERVES, IDLES };

struct watch {
    const struct ws_supervisor_options *options;
    struct ws_kept *kept;
    enum state state;
    uint64_t until_ns; /* of that; 0: for ever */
    int signals;
    struct ws_deaths deaths;
    bool ends;                             /* it was told to */
    char failed[WS_ERROR_TEXT];            /* what the daemon said before it ended */
    uint64_t round_ns;                     /* when the next one is */
    unsigned unanswered;                   /* rounds */
    bool has_answered, is_traced, answers; /* in this round; ...; at all: it has come so far in its start */
    int client, binary;                    /* of a takeover that waits for the daemon */
    struct ws_kept_regions regions;
    char release[WS_RELEASE_CHARS + 1];
};

static void keep(struct ws_kept *k, enum ws_kept_fd which, int fd)
{
    if (k->fds[which] >= 0)
        close(k->fds[which]);
    k->fds[which] = fd;
}

static void signals(sigset_t *out)
{
    ws_end_signals(out);
    sigaddset(out, SIGCHLD);
}

/* --- a takeover --- */

/* The outcome, for who waits for it. */
static void answer(struct watch *w, int code, const char *text)
{
    ws_takeover_answer(w->kept->fds[WS_KEPT_CLIENT], code, text);
    w->kept->fds[WS_KEPT_CLIENT] = -1;
    keep(w->kept, WS_KEPT_FORMER, -1);
    w->kept->is_undone = false;
}

static void refuse(struct watch *w, int code, const char *text)
{
    ws_takeover_answer(w->client, code, text);
    if (w->binary >= 0)
        close(w->binary);
    w->client = w->binary = -1;
    if (w->state == IDLES)
        w->state = SERVES;
}

/* Would it read the options? */
static int try_binary(const struct watch *w, struct ws_error *err)
{
    int ends[2], status = 0;
    struct ws_error said = {0};
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
        return ws_error_set(err, errno, "cannot make a socket: %s", strerror(errno));
    const pid_t pid = fork();
    if (pid == 0) {
        struct ws_kept k = *w->kept;
        k.is_trial = true;
        k.fds[WS_KEPT_CLIENT] = ends[1];
        (void)ws_error_set(&said, -ws_kept_exec(&k, &w->regions, w->binary), "it cannot be run here");
        (void)!ws_packet_send(ends[1], &said, sizeof(said), -1);
        _exit(1);
    }
    close(ends[1]);
    struct pollfd one = {.fd = ends[0], .events = POLLIN};
    const bool in_time = pid > 0 && poll(&one, 1, TRY_MS) > 0;
    int rc = in_time ? ws_packet_recv(ends[0], &said, sizeof(said), NULL) : -ETIMEDOUT;
    close(ends[0]);
    if (pid > 0) {
        (void)kill(pid, SIGKILL);
        (void)waitpid(pid, &status, 0);
    }
    if (rc < 0)
        return ws_error_set(err, ENOEXEC, "release %s does not run here: %s", w->release,
                            rc == -ETIMEDOUT ? "it did not read the options in 20 s"
                                             : "it ended without a word");
    return said.code ? ws_error_set(err, said.code, "release %s refuses: %.800s", w->release, said.text) : 0;
}

/* The supervisor is another program from here on. */
static void become(struct watch *w)
{
    keep(w->kept, WS_KEPT_FORMER, open("/proc/self/exe", O_PATH | O_CLOEXEC));
    keep(w->kept, WS_KEPT_CLIENT, w->client);
    const int rc = w->kept->fds[WS_KEPT_FORMER] < 0 ? -errno : ws_kept_exec(w->kept, &w->regions, w->binary);
    keep(w->kept, WS_KEPT_FORMER, -1);
    w->kept->fds[WS_KEPT_CLIENT] = -1;
    refuse(w, -rc, strerror(-rc));
}

/* What it was to become would not know. */
static void told_to_end(struct watch *w)
{
    w->ends = true;
    if (w->state == IDLES)
        refuse(w, ESHUTDOWN, "the mount was told to end meanwhile");
}

static void undo(struct watch *w, const char *why)
{
    struct ws_kept *k = w->kept;
    k->is_undone = true;
    snprintf(k->why, sizeof(k->why), "%s", why);
    ws_log(WS_LOG_ERROR, "mount", "the takeover is undone: %s", why);
    const int rc = ws_kept_exec(k, &w->regions, k->fds[WS_KEPT_FORMER]);
    ws_log(WS_LOG_ERROR, "mount", "it cannot be undone: %s", strerror(-rc));
    answer(w, EIO, why);
}

static void hear(struct watch *w)
{
    struct ws_error err = {0};
    int client, binary;
    char release[WS_RELEASE_CHARS + 1];
    if (ws_takeover_accept(w->kept->fds[WS_KEPT_SOCKET], &client, &binary, release) < 0)
        return;
    w->client = client;
    w->binary = binary;
    memcpy(w->release, release, sizeof(release));
    const int rc = try_binary(w, &err);
    if (rc < 0) {
        refuse(w, -rc, err.text);
        return;
    }
    w->state = IDLES;
    w->until_ns = ws_clock_ns() + IDLE_NS;
    ws_word_send(w->kept->fds[WS_KEPT_CHANNEL], WS_WORD_IDLE, "", -1);
}

/* --- what the daemon says --- */

static void listen_to(struct watch *w)
{
    struct ws_word word;
    struct ws_kept *k = w->kept;
    int fd;
    const int rc = ws_packet_recv(k->fds[WS_KEPT_CHANNEL], &word, sizeof(word), &fd);
    if (rc == -EAGAIN)
        return;
    if (rc < 0) {
        keep(k, WS_KEPT_CHANNEL, -1); /* it has ended, or will have an answer to nothing */
        return;
    }
    word.text[sizeof(word.text) - 1] = 0;
    if (word.kind == WS_WORD_KEEP)
        ws_kept_regions_add(&w->regions, word.text, fd);
    else if (fd >= 0)
        close(fd);
    if (word.kind == WS_WORD_LIVES)
        w->has_answered = w->answers = true;
    if (word.kind == WS_WORD_FORGET)
        ws_kept_regions_forget(&w->regions, word.text);
    if (word.kind == WS_WORD_CUT) {
        told_to_end(w);
        w->options->cut(w->options->arg);
    } else if (word.kind == WS_WORD_FAILED) {
        snprintf(w->failed, sizeof(w->failed), "%s", word.text);
    } else if (word.kind == WS_WORD_READY && w->state == STARTS) {
        char text[WS_ERROR_TEXT];
        snprintf(text, sizeof(text), "release %s%s%s", WS_VERSION,
                 k->is_undone ? " serves on: " : " serves it now", k->is_undone ? k->why : "");
        w->state = SERVES;
        answer(w, k->is_undone ? EIO : 0, text);
    } else if (word.kind == WS_WORD_IDLE && w->state == IDLES && k->daemon > 0) {
        become(w);
    } else if (word.kind == WS_WORD_BUSY && w->state == IDLES) {
        refuse(w, EBUSY,
               "a command, or a switch, has run in it for 30 s: wait for that, or cancel it, and call again");
    }
}

static bool is_traced(pid_t pid)
{
    char path[48], line[128];
    long tracer = 0;
    snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
    FILE *f = fopen(path, "re");
    while (f && fgets(line, sizeof(line), f))
        if (strncmp(line, "TracerPid:", 10) == 0) {
            tracer = strtol(line + 10, NULL, 10);
            break;
        }
    if (f)
        fclose(f);
    return tracer != 0;
}

static void ask(struct watch *w, uint64_t now)
{
    const struct ws_supervisor_options *o = w->options;
    w->round_ns = now + o->hung_s * WS_SECOND_NS / ROUNDS;
    const bool counts = w->answers && !w->ends && w->state != IDLES; /* there it waits for commands */
    w->unanswered = w->has_answered || !counts ? 0 : w->unanswered + 1;
    w->has_answered = false;
    if (w->unanswered >= ROUNDS && is_traced(w->kept->daemon)) {
        if (!w->is_traced)
            ws_log(WS_LOG_WARN, "mount",
                   "the daemon does not answer, and is left alone, as a debugger has it at=%s", o->what);
        w->is_traced = true;
    } else if (w->unanswered >= ROUNDS) {
        ws_log(WS_LOG_ERROR, "mount", "the daemon has not answered for %u s, and is killed at=%s", o->hung_s,
               o->what);
        w->unanswered = 0;
        (void)kill(w->kept->daemon, SIGKILL);
        return;
    }
    ws_word_send(w->kept->fds[WS_KEPT_CHANNEL], WS_WORD_LIVES, "", -1);
}

/* --- the daemon's life --- */

static void over_time(struct watch *w)
{
    w->until_ns = 0;
    if (w->state == IDLES) {
        become(w);
        return;
    }
    snprintf(w->failed, sizeof(w->failed), "its daemon was not ready after %llu s", START_NS / WS_SECOND_NS);
    (void)kill(w->kept->daemon, SIGKILL);
}

static void pass_on(struct watch *w)
{
    struct signalfd_siginfo one;
    while (read(w->signals, &one, sizeof(one)) == (ssize_t)sizeof(one)) {
        const int signal = (int)one.ssi_signo;
        if (signal == SIGTERM || signal == SIGINT) {
            told_to_end(w);
            ws_log(WS_LOG_INFO, "mount", "told to end at=%s by=%u", w->options->what, one.ssi_pid);
        }
        if (signal != SIGCHLD)
            (void)kill(w->kept->daemon, signal);
    }
}

static int ms_until(uint64_t ns, uint64_t now)
{
    return ns <= now ? 0 : (int)((ns - now) / WS_MS_NS) + 1;
}

/* The daemon's wait status, once it has ended. */
static int wait_for_end(struct watch *w)
{
    struct ws_kept *k = w->kept;
    int status;
    while (waitpid(k->daemon, &status, WNOHANG) != k->daemon) {
        const uint64_t now = ws_clock_ns();
        const bool asks = w->options->hung_s > 0;
        const bool hears = w->state == SERVES && !w->ends; /* else who connects waits */
        int wait = -1;
        if (w->state != SERVES && w->until_ns)
            wait = ms_until(w->until_ns, now);
        if (asks && (wait < 0 || ms_until(w->round_ns, now) < wait))
            wait = ms_until(w->round_ns, now);
        struct pollfd fds[] = {{.fd = w->signals, .events = POLLIN},
                               {.fd = k->fds[WS_KEPT_CHANNEL], .events = POLLIN},
                               {.fd = hears ? k->fds[WS_KEPT_SOCKET] : -1, .events = POLLIN}};
        if (poll(fds, 3, wait) < 0)
            continue;
        if (fds[0].revents)
            pass_on(w);
        if (fds[1].revents)
            listen_to(w);
        if (fds[2].revents && !w->ends)
            hear(w);
        if (w->state != SERVES && w->until_ns && ws_clock_ns() >= w->until_ns)
            over_time(w);
        if (asks && ws_clock_ns() >= w->round_ns)
            ask(w, ws_clock_ns());
    }
    k->daemon = 0; /* its number may be another process's by now */
    struct pollfd last_words = {.fd = k->fds[WS_KEPT_CHANNEL], .events = POLLIN};
    while (k->fds[WS_KEPT_CHANNEL] >= 0 && poll(&last_words, 1, 0) > 0)
        listen_to(w);
    return status;
}

/* How the daemon has ended, for people. */
static void describe_end(const struct watch *w, int status, char how[WS_ERROR_TEXT])
{
    if (w->failed[0])
        snprintf(how, WS_ERROR_TEXT, "%s", w->failed);
    else if (WIFEXITED(status))
        snprintf(how, WS_ERROR_TEXT, "exit status %d", WEXITSTATUS(status));
    else
        snprintf(how, WS_ERROR_TEXT, "%s", strsignal(WTERMSIG(status)));
}

/* Another one is to be started, but where too many have died. */
static int count_death(struct watch *w, const char *how, struct ws_error *err)
{
    const struct timespec wait = {.tv_sec = 1};
    const char *what = w->options->what;
    ws_deaths_add(&w->deaths);
    if (ws_deaths_were(&w->deaths, w->deaths.most))
        return ws_deaths_error(&w->deaths, what, how, "it is unmounted", err);
    if (ws_deaths_were(&w->deaths, w->deaths.most - 1))
        ws_kept_regions_close(&w->regions);
    ws_log(WS_LOG_ERROR, "mount", "the daemon has died, and another one takes over at=%s why=\"%s\"", what,
           how);
    if (w->failed[0]) /* what it lacked may be there then */
        (void)nanosleep(&wait, NULL);
    return 0;
}

/* 0, and not *is_over: another one is to be started. */
static int judge(struct watch *w, int status, bool *is_over, struct ws_error *err)
{
    const char *what = w->options->what;
    char how[WS_ERROR_TEXT];
    describe_end(w, status, how);
    *is_over = WIFEXITED(status) && WEXITSTATUS(status) == 0;
    if (*is_over)
        return 0;
    if (w->state == IDLES)
        refuse(w, EAGAIN, "its daemon has died meanwhile; call again");
    if (w->ends) {
        *is_over = true;
        return ws_error_set(err, EINTR, "the daemon of %s was told to end, and died: %.800s", what, how);
    }
    if (w->kept->fds[WS_KEPT_FORMER] >= 0) {
        char why[WS_ERROR_TEXT];
        snprintf(why, sizeof(why), "the daemon of release %s did not come up: %.800s", WS_VERSION, how);
        undo(w, why);
        return 0;
    }
    if (WIFEXITED(status) && !w->failed[0]) {
        *is_over = true;
        return ws_error_set(err, EIO, "the daemon of %s has ended with an error, which it named", what);
    }
    return count_death(w, how, err);
}

/* Returns in both. */
static int start(struct watch *w, bool *is_daemon, struct ws_error *err)
{
    struct ws_kept *k = w->kept;
    const char *what = w->options->what;
    int ends[2];
    if (!ws_life_next(w->options->life))
        return ws_error_set(err, EAGAIN, "%d daemons of %s have died: mount it anew", WS_LIVES, what);
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
        return ws_error_set(err, errno, "cannot make a socket for a daemon of %s: %s", what, strerror(errno));
    k->daemon = ws_respawn_fork();
    if (k->daemon < 0)
        return ws_error_set(err, errno, "cannot start a daemon for %s: %s", what, strerror(errno));
    *is_daemon = k->daemon == 0;
    close(ends[*is_daemon ? 0 : 1]);
    if (*is_daemon) {
        ws_supervised_begin(ends[1], ws_life_number(w->options->life) > 0, &w->regions);
        return 0;
    }
    (void)fcntl(ends[0], F_SETFL, O_NONBLOCK);
    keep(k, WS_KEPT_CHANNEL, ends[0]);
    (void)prctl(PR_SET_NAME, "wsync-keeps");
    w->state = STARTS;
    w->until_ns = k->fds[WS_KEPT_FORMER] >= 0 ? ws_clock_ns() + START_NS : 0;
    w->answers = w->is_traced = false;
    w->failed[0] = 0;
    return 0;
}

/* A daemon of the binary that this process was before. */
static void succeed(struct watch *w)
{
    struct ws_kept *k = w->kept;
    w->state = SERVES;
    if (k->is_undone) {
        keep(k, WS_KEPT_FORMER, -1);
        if (k->daemon > 0)
            answer(w, EIO, k->why);
    } else if (k->daemon > 0) {
        (void)kill(k->daemon, SIGKILL);
        (void)waitpid(k->daemon, NULL, 0);
        k->daemon = 0;
    }
}

/* What is the supervisor's alone. */
static void leave(struct watch *w)
{
    static const enum ws_kept_fd own[] = {WS_KEPT_SOCKET, WS_KEPT_CHANNEL, WS_KEPT_CLIENT, WS_KEPT_FORMER};
    for (size_t i = 0; i < sizeof(own) / sizeof(own[0]); i++)
        keep(w->kept, own[i], -1);
    close(w->signals);
}

int ws_supervisor_run(const struct ws_supervisor_options *o, bool *is_daemon, struct ws_error *err)
{
    struct ws_kept *k = o->kept;
    struct watch w = {.options = o, .kept = k, .client = -1, .binary = -1, .regions = ws_kept_take_regions()};
    sigset_t set, before;
    char name[16]; /* of PR_GET_NAME */
    bool is_over = false;
    int rc = 0;
    ws_deaths_init(&w.deaths);
    signals(&set);
    (void)prctl(PR_GET_NAME, name);
    *is_daemon = false;
    pthread_sigmask(SIG_BLOCK, &set, &before);
    w.signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    if (w.signals < 0)
        return ws_error_set(err, errno, "cannot watch a daemon of %s: %s", o->what, strerror(errno));
    if (k->fds[WS_KEPT_SOCKET] < 0 && k->dev &&
        (k->fds[WS_KEPT_SOCKET] = ws_takeover_listen(k->dev, &k->socket_ino)) < 0)
        ws_log(WS_LOG_INFO, "mount", "no other binary will be able to go on with it at=%s: no socket: %s",
               o->what, strerror(-k->fds[WS_KEPT_SOCKET]));
    succeed(&w);
    while (rc == 0 && !is_over && !*is_daemon) {
        if (k->daemon == 0)
            rc = start(&w, is_daemon, err);
        if (rc == 0 && !*is_daemon) {
            const int status = wait_for_end(&w);
            rc = judge(&w, status, &is_over, err);
        }
    }
    if (!*is_daemon) {
        refuse(&w, ESHUTDOWN, "the mount has ended meanwhile");
        answer(&w, ESHUTDOWN, "the mount has ended meanwhile");
        ws_kept_regions_close(&w.regions);
    }
    leave(&w);
    if (*is_daemon) {
        (void)prctl(PR_SET_NAME, name);
        pthread_sigmask(SIG_SETMASK, &before, NULL);
    } else if (k->dev) {
        ws_takeover_unlisten(k->dev, k->socket_ino);
    }
    return rc;
}
