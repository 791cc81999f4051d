#include "transports/protocol/pace.h"

static void check_stall(struct ws_pace *p, uint64_t since_ns, uint64_t now_ns)
{
    if (since_ns == 0 || now_ns < since_ns + WS_STALL_NS)
        return;
    atomic_fetch_add(&p->n_stalls, 1);
    atomic_fetch_add(&p->stalled_ns, now_ns - since_ns);
}

void ws_pace_begin(struct ws_pace *p)
{
    atomic_store(&p->first_ns, 0);
    atomic_store(&p->last_ns, 0);
    atomic_store(&p->stalled_ns, 0);
    atomic_store(&p->n_stalls, 0);
}

void ws_pace_note(struct ws_pace *p, uint64_t now_ns)
{
    uint64_t none = 0;

    (void)atomic_compare_exchange_strong(&p->first_ns, &none, now_ns);
    check_stall(p, atomic_exchange(&p->last_ns, now_ns), now_ns);
}

void ws_pace_end(struct ws_pace *p, uint64_t now_ns)
{
    check_stall(p, atomic_load(&p->last_ns), now_ns);
}
