#include "transports/base/clock.h"
#include <time.h>

static uint64_t read_clock(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (uint64_t)t.tv_sec * WS_SECOND_NS + (uint64_t)t.tv_nsec;
}

uint64_t ws_clock_ns(void)
{
    return read_clock(CLOCK_MONOTONIC);
}

uint64_t ws_clock_ms(void)
{
    return ws_clock_ns() / WS_MS_NS;
}

uint64_t ws_clock_day_ns(void)
{
    return read_clock(CLOCK_REALTIME);
}

void ws_cond_init(pthread_cond_t *c)
{
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(c, &attr);
    pthread_condattr_destroy(&attr);
}

int ws_cond_wait_until(pthread_cond_t *c, pthread_mutex_t *lock, uint64_t ns)
{
    const struct timespec t = {(time_t)(ns / WS_SECOND_NS), (long)(ns % WS_SECOND_NS)};
    return pthread_cond_timedwait(c, lock, &t);
}
