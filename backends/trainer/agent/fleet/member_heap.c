#include "backends/trainer/agent/fleet/member_heap.h"

static void put(struct ws_member_heap *h, size_t at, size_t member)
{
    h->members[at] = member;
    h->place[member] = at;
}

static void move_up(struct ws_member_heap *h, size_t at, size_t member)
{
    while (at > 0 && h->is_better(h->arg, member, h->members[(at - 1) / 2])) {
        put(h, at, h->members[(at - 1) / 2]);
        at = (at - 1) / 2;
    }
    put(h, at, member);
}

static void move_down(struct ws_member_heap *h, size_t at, size_t member)
{
    for (size_t next; (next = 2 * at + 1) < h->n; at = next) {
        if (next + 1 < h->n && h->is_better(h->arg, h->members[next + 1], h->members[next]))
            next++;
        if (!h->is_better(h->arg, h->members[next], member))
            break;
        put(h, at, h->members[next]);
    }
    put(h, at, member);
}

void ws_member_heap_add(struct ws_member_heap *h, size_t member)
{
    move_up(h, h->n++, member);
}

void ws_member_heap_worse(struct ws_member_heap *h, size_t member)
{
    move_down(h, h->place[member], member);
}

void ws_member_heap_remove(struct ws_member_heap *h, size_t member)
{
    const size_t at = h->place[member], last = h->members[--h->n];

    if (last == member)
        return;
    put(h, at, last);
    move_up(h, at, last);
    move_down(h, h->place[last], last);
}
