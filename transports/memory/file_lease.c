#include "transports/memory/file_lease.h"
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* The lease lives for microseconds. A process that opens the file just then waits until it is gone, and the kernel
 * sends this one SIGIO, whose default action ends it. So the signal is addressed to this thread alone, blocked
 * here, and consumed. Otherwise it could hit any thread that does not block it. */
int ws_file_lease_try(int fd, int kind)
{
    sigset_t io, before, pending;

    sigemptyset(&io);
    sigaddset(&io, SIGIO);
    pthread_sigmask(SIG_BLOCK, &io, &before);
    sigpending(&pending);
    struct f_owner_ex me = {.type = F_OWNER_TID, .pid = (pid_t)syscall(SYS_gettid)};
    int rc = fcntl(fd, F_SETOWN_EX, &me) == 0 ? 0 : -EPERM;
    if (rc == 0 && fcntl(fd, F_SETLEASE, kind) != 0)
        rc = errno == EAGAIN ? -EBUSY : -EPERM;
    if (rc == 0)
        (void)fcntl(fd, F_SETLEASE, F_UNLCK);
    if (!sigismember(&pending, SIGIO))
        (void)sigtimedwait(&io, NULL, &(struct timespec){0});
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return rc;
}
