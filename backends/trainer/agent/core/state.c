/* State: waiting for a change, and announcing one. */
#include "backends/trainer/agent/core/state.h"
#include "backends/trainer/agent/core/features.h"
#include "transports/base/clock.h"
#include <errno.h>

bool ws_agent_wait(struct ws_agent *a, uint64_t deadline_ns)
{
    if (atomic_load(&a->stop))
        return false;
    return ws_cond_wait_until(&a->changed, &a->lock, deadline_ns) != ETIMEDOUT;
}

void ws_agent_announce(struct ws_agent *a)
{
    struct ws_tcp_server *tcp = atomic_load(&a->tcp);
    atomic_fetch_add(&a->seq, 1);
    if (tcp)
        ws_tcp_server_wake(tcp);
    pthread_mutex_lock(&a->lock); /* the socket's server goes first, while requests by TCP still announce */
    struct ws_ipc_server *ipc = atomic_load(&a->ipc);
    if (ipc)
        ws_ipc_server_wake(ipc);
    ws_features_announced(a);
    pthread_mutex_unlock(&a->lock);
}
