/* Pace: when the bytes of a pull came: the first ones, and for how long none did. Threads of the pull count together, without a
 * lock. Times are of the monotonic clock. */
#ifndef WS_TRANSPORTS_PROTOCOL_PACE_H
#define WS_TRANSPORTS_PROTOCOL_PACE_H
#include <stdatomic.h>
#include <stdint.h>

#define WS_STALL_NS 1000000000UL /* so long without a byte is a stall */

/* Zeroed: none came. */
struct ws_pace {
    _Atomic(uint64_t) first_ns, last_ns; /* 0: none came */
    _Atomic(uint64_t) stalled_ns;        /* of all stalls */
    atomic_uint n_stalls;
};
void ws_pace_begin(struct ws_pace *p); /* another pull; no thread counts */
void ws_pace_note(struct ws_pace *p, uint64_t now_ns);
/* The pull has ended: the time since the last byte may be a stall, too. */
void ws_pace_end(struct ws_pace *p, uint64_t now_ns);

#endif
