#include "fs/fuse/broker.h"
#include "fs/fuse/backing.h"
#include "fs/fuse/outside.h"
#include "fs/fuse/packet.h"
#include "transports/base/clock.h"
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define SILENT_S 5
#define END_MS   1000

enum call { CALL_OPEN, CALL_CLOSE, CALL_DETACH };
struct request {
    enum call call;
    int id;
};

struct ws_broker {
    pid_t pid;
    int sock;
    bool lost; /* guarded by lock: a late answer would be taken for another's */
    pthread_mutex_t lock;
};

/* --- its process: system calls only, as other threads of the parent may have held any lock --- */

/* Descriptors of the broker. */
enum { CONNECTION = 3, SOCK, N_FDS };

static int answer_to(const struct request *r, int fd, const struct ws_place *place)
{
    switch (r->call) {
    case CALL_OPEN:
        return ws_backing_open_by(CONNECTION, fd);
    case CALL_CLOSE:
        ws_backing_close_by(CONNECTION, r->id);
        return 0;
    case CALL_DETACH:
        return ws_place_detach(place);
    }
    return -EINVAL;
}

/* It ends with the mount, or else its descriptor would keep the connection, and who waits for the daemon, though that has given its own
 * up. */
static void serve(const struct ws_place *mounted)
{
    struct ws_place place = *mounted;
    struct request r;
    int fd;
    place.connection = CONNECTION;
    while (ws_packet_recv(SOCK, &r, sizeof(r), &fd) == 0) {
        const int rc = answer_to(&r, fd, &place);
        if (fd >= 0)
            close(fd);
        if (ws_packet_send(SOCK, &rc, sizeof(rc), -1) < 0 || r.call == CALL_DETACH)
            return;
    }
}

static void run(int connection, int sock, const struct ws_place *place, const struct ws_run_as *who)
{
    static const int ignored[] = {SIGTERM, SIGINT, SIGHUP, SIGPIPE,
                                  SIGQUIT}; /* the daemon's end is its end */
    for (size_t i = 0; i < sizeof(ignored) / sizeof(ignored[0]); i++)
        (void)signal(ignored[i], SIG_IGN);
    (void)setsid();
    (void)prctl(PR_SET_NAME, "wsync-broker");
    /* Away from where they go, first. */
    const int c = fcntl(connection, F_DUPFD, N_FDS), s = fcntl(sock, F_DUPFD, N_FDS);
    if (c < 0 || s < 0 || dup2(c, CONNECTION) < 0 || dup2(s, SOCK) < 0 || ws_outside_close_from(N_FDS) < 0 ||
        ws_run_as_keep(who, 1ULL << CAP_SYS_ADMIN) < 0)
        return;
    const int ready = 0;
    if (ws_packet_send(SOCK, &ready, sizeof(ready), -1) == 0)
        serve(place);
}

/* --- the daemon's side --- */

static int read_answer(struct ws_broker *b)
{
    int rc = 0;
    b->lost = ws_packet_recv(b->sock, &rc, sizeof(rc), NULL) < 0;
    return b->lost ? -EPIPE : rc;
}

static int call(struct ws_broker *b, enum call what, int id, int fd)
{
    const struct request r = {what, id};
    pthread_mutex_lock(&b->lock);
    int rc = -EPIPE;
    if (!b->lost && ws_packet_send(b->sock, &r, sizeof(r), fd) == 0)
        rc = read_answer(b);
    else
        b->lost = true;
    pthread_mutex_unlock(&b->lock);
    return rc;
}

int ws_broker_start(struct ws_broker **out, int connection, const struct ws_place *place,
                    const struct ws_run_as *who, struct ws_error *err)
{
    const struct timeval silent = {.tv_sec = SILENT_S};
    struct ws_broker *b = calloc(1, sizeof(*b));
    int socks[2];
    if (!b)
        return ws_error_set(err, ENOMEM, "no memory for a broker");
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, socks) != 0 || (b->pid = fork()) < 0) {
        free(b);
        return ws_error_set(err, errno, "cannot start the process that keeps CAP_SYS_ADMIN: %s",
                            strerror(errno));
    }
    if (b->pid == 0) {
        run(connection, socks[1], place, who);
        _exit(1);
    }
    close(socks[1]);
    b->sock = socks[0];
    pthread_mutex_init(&b->lock, NULL);
    (void)setsockopt(b->sock, SOL_SOCKET, SO_RCVTIMEO, &silent, sizeof(silent));
    (void)setsockopt(b->sock, SOL_SOCKET, SO_SNDTIMEO, &silent, sizeof(silent));
    if (read_answer(b) < 0) {
        ws_broker_free(b);
        return ws_error_set(err, EPERM,
                            "the process that is to keep CAP_SYS_ADMIN as the user %s could not become that",
                            who->name);
    }
    *out = b;
    return 0;
}

int ws_broker_backing_open(struct ws_broker *b, int fd)
{
    const int id = call(b, CALL_OPEN, 0, fd);
    return id != 0 ? id : -EIO;
}

void ws_broker_backing_close(struct ws_broker *b, int id)
{
    (void)call(b, CALL_CLOSE, id, -1);
}

int ws_broker_detach(struct ws_broker *b)
{
    return call(b, CALL_DETACH, 0, -1);
}

void ws_broker_free(struct ws_broker *b)
{
    const struct timespec wait = {.tv_nsec = WS_MS_NS};
    if (!b)
        return;
    close(b->sock);
    for (int ms = 0; ms < END_MS && waitpid(b->pid, NULL, WNOHANG) == 0; ms++)
        (void)nanosleep(&wait, NULL);
    pthread_mutex_destroy(&b->lock);
    free(b);
}
