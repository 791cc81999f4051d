/* The guard arms a jump for one range of addresses on one thread. SIGBUS of a page fault is delivered
 * to the faulting thread itself, in the middle of the copy, where no lock is held and nothing is
 * owned: so jumping out of it is safe. */
#include "backends/engine/reference/sigbus_guard.h"
#include "transports/simd/copy.h"
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

struct guard {
    volatile bool armed; /* the handler interrupts its own thread only */
    uintptr_t begin, end;
    sigjmp_buf back;
};
static _Thread_local struct guard guard;
static struct sigaction before; /* written before the handler is there, read by it */

static void on_sigbus(int signal_number, siginfo_t *info, void *context)
{
    uintptr_t at = (uintptr_t)info->si_addr;

    (void)context;
    if (guard.armed && at >= guard.begin && at < guard.end) {
        guard.armed = false;
        siglongjmp(guard.back, 1);
    }
    /* Not ours: the access is repeated under the handler that was there before. */
    sigaction(signal_number, &before, NULL);
}

void ws_sigbus_guard_install(void)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    struct sigaction now, ours = {.sa_sigaction = on_sigbus, .sa_flags = SA_SIGINFO};

    pthread_mutex_lock(&lock);
    sigaction(SIGBUS, NULL, &now);
    if (!(now.sa_flags & SA_SIGINFO) || now.sa_sigaction != on_sigbus) {
        before = now;
        sigemptyset(&ours.sa_mask);
        sigaction(SIGBUS, &ours, NULL);
    }
    pthread_mutex_unlock(&lock);
}

int ws_sigbus_guard_copy(void *dst, const void *src, size_t n)
{
    guard.begin = (uintptr_t)src;
    guard.end = guard.begin + n;
    if (sigsetjmp(guard.back, 1))
        return -EIO;
    guard.armed = true;
    ws_copy(dst, src, n);
    guard.armed = false;
    return 0;
}
