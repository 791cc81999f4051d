/* Figures: sizes, rates, clocks, secrets and signals for the subcommands. */
#include "mount-helpers/cli/cli.h"
#include "transports/access/bearer.h"
#include "transports/base/end_signals.h"
#include "transports/base/number.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#define SECRET_WAIT_MS 60000 /* for a command in <(...) that prompts the operator */

static char *turn(void)
{
    static _Thread_local char buffers[4][WS_NUMBER_CHARS + 8];
    static _Thread_local unsigned next;
    return buffers[next++ % 4];
}

const char *cli_size(uint64_t bytes)
{
    char *out = turn();
    ws_number_size_text(bytes, out);
    return out;
}

const char *cli_time(double seconds)
{
    char *out = turn();
    ws_number_time_text(seconds, out);
    return out;
}

const char *cli_rate(uint64_t bytes, double seconds)
{
    char *out = turn();
    if (seconds < 1e-9)
        seconds = 1e-9;
    char size[WS_NUMBER_CHARS];
    ws_number_size_text((uint64_t)((double)bytes / seconds), size);
    snprintf(out, WS_NUMBER_CHARS + 8, "%s/s", size);
    return out;
}

double cli_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

char *cli_read_token(const char *path)
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    struct ws_error err;
    char *token;
    if (fd < 0)
        exit(cli_fail("cannot read the token file %s: %s; its first line is the token: any secret that agent "
                      "and clients share, such as `openssl rand -hex 32` prints",
                      path, strerror(errno)));
    if (ws_token_read_fd(fd, path, SECRET_WAIT_MS, &token, &err) < 0)
        exit(cli_fail("%s", err.text));
    return token;
}

void cli_block_signals(void)
{
    sigset_t set;
    ws_end_signals(&set);
    sigprocmask(SIG_BLOCK, &set, NULL);
    signal(SIGPIPE, SIG_IGN);
}

int cli_wait_signal(void)
{
    sigset_t set;
    int sig;
    ws_end_signals(&set);
    while (sigwait(&set, &sig))
        ;
    return sig;
}

void cli_allow_descriptors(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == limit.rlim_max)
        return;
    limit.rlim_cur = limit.rlim_max;
    (void)setrlimit(RLIMIT_NOFILE, &limit);
}
