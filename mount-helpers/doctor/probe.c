#include "mount-helpers/doctor/probe.h"
#include "transports/base/clock.h"
#include "transports/base/vector.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define PIECE   4096
#define ENDS_MS 1000 /* for a process that was killed; one that the kernel keeps is left behind */

WS_VECTOR(said, char);

/* A line of JSON for each that is said: in whole, since it is shorter than what a pipe takes at once. */
static void tell(struct doctor *d, const char *line)
{
    if (write(d->out, line, strlen(line)) < 0)
        _exit(1);
}

static void say_told(struct doctor *d, const char *line)
{
    json_t *o = json_loads(line, 0, NULL);
    const char *name = json_string_value(json_object_get(o, "name")),
               *text = json_string_value(json_object_get(o, "text"));
    if (name && text)
        doctor_say(d, (enum doctor_state)json_integer_value(json_object_get(o, "state")), name, "%s", text);
    json_decref(o);
}

/* Says the lines that are whole, and keeps the rest. */
static void say_lines(struct doctor *d, struct said *s)
{
    size_t begin = 0;
    for (size_t i = 0; i < s->len; i++) {
        if (s->ptr[i] != '\n')
            continue;
        s->ptr[i] = 0;
        say_told(d, s->ptr + begin);
        begin = i + 1;
    }
    if (begin > 0)
        memmove(s->ptr, s->ptr + begin, s->len - begin);
    s->len -= begin;
}

/* Until its end; false: it has not ended in time. */
static bool listen_to(struct doctor *d, int in, uint64_t end_ms)
{
    struct said s = {0};
    struct pollfd fd = {.fd = in, .events = POLLIN};
    ssize_t n = 1;
    while (n > 0) {
        const uint64_t now = ws_clock_ms();
        const int rc = poll(&fd, 1, now < end_ms ? (int)(end_ms - now) : 0);
        if (rc < 0 && errno == EINTR)
            continue;
        if (rc <= 0 || said_reserve(&s, PIECE) < 0)
            break;
        n = read(in, s.ptr + s.len, PIECE);
        s.len += n > 0 ? (size_t)n : 0;
        say_lines(d, &s);
    }
    said_reset(&s);
    return n <= 0;
}

/* Its exit status; 0 where it does not end. */
static int end_of(pid_t pid)
{
    int status = 0;
    for (const uint64_t end = ws_clock_ms() + ENDS_MS; ws_clock_ms() < end; (void)poll(NULL, 0, 10))
        if (waitpid(pid, &status, WNOHANG) != 0)
            return status;
    return 0;
}

static void judge(struct doctor *d, const struct doctor_probe *p, unsigned seconds, bool ended, int status)
{
    const enum doctor_state late = p->is_broken ? DOCTOR_BROKEN : DOCTOR_NOTE;
    if (!ended)
        doctor_say(d, late, p->name, "%s: the look at it was ended after %u s, and may lack something",
                   p->what, seconds);
    else if (WIFSIGNALED(status))
        doctor_say(d, DOCTOR_BROKEN, p->name, "%s: the look at it crashed (signal %d)", p->what,
                   WTERMSIG(status));
}

static unsigned seconds_left(const struct doctor *d)
{
    const uint64_t now = ws_clock_ms();
    return now < d->end_ms ? (unsigned)((d->end_ms - now + 999) / 1000) : 0;
}

void doctor_probe(struct doctor *d, const struct doctor_probe *p)
{
    const unsigned left = seconds_left(d), seconds = p->seconds < left ? p->seconds : left;
    int pipes[2];
    if (seconds == 0) {
        doctor_say(d, DOCTOR_NOTE, p->name, "%s: not looked at, since the time is over; --timeout gives more",
                   p->what);
        return;
    }
    fflush(stdout);
    const pid_t pid = pipe2(pipes, O_CLOEXEC) == 0 ? fork() : -2;
    if (pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(pipes[0]);
        d->out = pipes[1];
        d->tell = tell;
        p->run(d, p->arg);
        _exit(0);
    }
    if (pid > -2)
        close(pipes[1]);
    if (pid < 0) {
        doctor_say(d, DOCTOR_NOTE, p->name, "%s: not looked at: %s", p->what, strerror(errno));
    } else {
        const bool ended = listen_to(d, pipes[0], ws_clock_ms() + seconds * 1000ULL);
        if (!ended)
            (void)kill(pid, SIGKILL);
        judge(d, p, seconds, ended, end_of(pid));
    }
    if (pid > -2)
        close(pipes[0]);
}
