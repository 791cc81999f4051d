/* Clocks: one that only goes forward, for deadlines and durations, and the time of day, for what others read.
 * Thread safe. */
#ifndef WS_TRANSPORTS_BASE_CLOCK_H
#define WS_TRANSPORTS_BASE_CLOCK_H
#include <pthread.h>
#include <stdint.h>

#define WS_SECOND_NS 1000000000ULL
#define WS_MS_NS     1000000ULL

uint64_t ws_clock_ns(void); /* only goes forward (CLOCK_MONOTONIC) */
uint64_t ws_clock_ms(void);
uint64_t ws_clock_day_ns(void); /* since 1970 (CLOCK_REALTIME); it may be set back */

/* A condition whose timed waits go by the first clock. */
void ws_cond_init(pthread_cond_t *c);
/* pthread_cond_timedwait until ws_clock_ns() is there: 0, ETIMEDOUT. */
int ws_cond_wait_until(pthread_cond_t *c, pthread_mutex_t *lock, uint64_t ns);

#endif
