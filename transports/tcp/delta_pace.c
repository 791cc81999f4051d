#include "transports/tcp/delta_pace.h"
#include "transports/base/clock.h"
#include <stdlib.h>

#define BEGIN_NS     (100 * WS_MS_NS)   /* what is over sooner needs no pace */
#define STILL_NS     (5 * WS_SECOND_NS) /* nobody waits for a part that has not moved for so long */
#define AHEAD_BYTES  (256UL << 10)      /* what the kernel's buffers make of it, ... */
#define AHEAD_PART   16                 /* ... and a part of what was sent */
#define SLOWEST_PART 4 /* a pace is a fourth of what a part had at best at least, half of it at most */

struct ws_delta_race *ws_delta_race_join(struct ws_delta_races *races, const struct ws_delta *delta,
                                         unsigned parts, uint64_t now_ns)
{
    struct ws_delta_race *r = LIST_FIRST(races);
    while (r && (r->delta != delta || r->parts != parts))
        r = LIST_NEXT(r, entry);
    if (!r) {
        r = calloc(1, sizeof(*r) + parts * sizeof(r->part[0]));
        if (!r)
            return NULL;
        r->delta = delta;
        r->parts = parts;
        r->began_ns = now_ns;
        LIST_INSERT_HEAD(races, r, entry);
    }
    r->senders++;
    return r;
}

void ws_delta_race_leave(struct ws_delta_race *r)
{
    if (!r || --r->senders > 0)
        return;
    LIST_REMOVE(r, entry);
    free(r);
}

/* What the last of the parts has sent that race; UINT64_MAX: none does. */
static uint64_t last_of(const struct ws_delta_race *r, uint64_t now_ns)
{
    uint64_t last = UINT64_MAX;
    for (unsigned i = 0; i < r->parts; i++) {
        const struct ws_delta_race_part *p = &r->part[i];
        if (p->moved_ns && now_ns - p->moved_ns < STILL_NS && p->sent < last)
            last = p->sent;
    }
    return last;
}

uint64_t ws_delta_race_move(struct ws_delta_race *r, unsigned part, uint64_t sent, uint64_t now_ns)
{
    struct ws_delta_race_part *mine = &r->part[part];
    const uint64_t elapsed = now_ns - r->began_ns;
    if (sent >= mine->sent) {
        mine->sent = sent;
        mine->moved_ns = now_ns;
    }
    if (elapsed >= BEGIN_NS && sent * 1000 / (elapsed / WS_MS_NS) > mine->fastest)
        mine->fastest = sent * 1000 / (elapsed / WS_MS_NS);
    const uint64_t last = last_of(r, now_ns);
    if (elapsed < BEGIN_NS || last >= sent || sent - last <= AHEAD_BYTES + sent / AHEAD_PART)
        return 0;
    const uint64_t others = last * 1000 / (elapsed / WS_MS_NS);
    const uint64_t least = mine->fastest / SLOWEST_PART + 1, most = mine->fastest / 2 + 1;
    return others < least ? least : others > most ? most : others;
}

void ws_delta_race_finish(struct ws_delta_race *r, unsigned part, uint64_t sent)
{
    if (sent >= r->part[part].sent)
        r->part[part] = (struct ws_delta_race_part){.sent = sent, .fastest = r->part[part].fastest};
}
