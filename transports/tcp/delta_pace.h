/* Delta pace: keeps the parts of a delta that leave by one link at the same place. Where mounts pass parts on as stripes, each sends its
 * stripe to several others, at a share of its own link. A link that several connections share is divided as it comes, often one to
 * three; the part that was late then arrives faster than it can be passed on. So the kernel paces the connections of parts that are
 * ahead, and the late one takes what they leave.
 *
 * A race is of one delta in one division. Guarded by its owner's lock. */
#ifndef WS_TRANSPORTS_TCP_DELTA_PACE_H
#define WS_TRANSPORTS_TCP_DELTA_PACE_H
#include <stdint.h>
#include <sys/queue.h>

struct ws_delta;

struct ws_delta_race {
    LIST_ENTRY(ws_delta_race) entry;
    const struct ws_delta *delta; /* held by those who send it */
    unsigned parts, senders;
    uint64_t began_ns;
    struct ws_delta_race_part { /* the foremost sender of each part */
        uint64_t sent;          /* bytes */
        uint64_t fastest;       /* its highest average so far, bytes a second */
        uint64_t moved_ns;      /* 0: it does not race: it has not begun, or is at its end */
    } part[];
};
LIST_HEAD(ws_delta_races, ws_delta_race);

/* A sender of one of so many parts. NULL: no memory; it runs unpaced. */
struct ws_delta_race *ws_delta_race_join(struct ws_delta_races *races, const struct ws_delta *delta,
                                         unsigned parts, uint64_t now_ns);
void ws_delta_race_leave(struct ws_delta_race *race); /* NULL is fine; the last sender frees it */
/* A sender of a part has sent so many bytes. Returns the bytes a second that it may send from now on; 0: any number. */
uint64_t ws_delta_race_move(struct ws_delta_race *race, unsigned part, uint64_t sent, uint64_t now_ns);
/* It has sent all: nobody waits for that part. */
void ws_delta_race_finish(struct ws_delta_race *race, unsigned part, uint64_t sent);

#endif
