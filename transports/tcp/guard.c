#include "transports/tcp/guard.h"
#include "transports/base/clock.h"
#include <errno.h>

#define FLOOR_BYTES_S 1024UL /* a transfer below this is kept open by its peer, not served */

/* Reports progress if the bytes since the last report came at no less than the floor. */
static void report_progress(struct ws_tcp_guard *g, uint64_t now, uint64_t bytes)
{
    const uint64_t more = bytes - g->reported_bytes;
    if (g->reported_ns == 0)
        g->reported_ns = now;
    if (more < FLOOR_BYTES_S || more < (now - g->reported_ns) / WS_MS_NS * FLOOR_BYTES_S / 1000)
        return;
    g->reported_ns = now;
    g->reported_bytes = bytes;
    ws_pace_note(g->pace, now);
}

int ws_tcp_guard_look(void *arg, curl_off_t total, curl_off_t received, curl_off_t c, curl_off_t d)
{
    struct ws_tcp_guard *g = arg;
    const uint64_t now = ws_clock_ns(), bytes = (uint64_t)received;
    (void)total;
    (void)c;
    (void)d;
    if (g->cancel && atomic_load(g->cancel))
        return 1;
    if (g->pace)
        report_progress(g, now, bytes);
    if (!g->owed || g->stall_ns == 0 || g->since_ns == 0) {
        g->since_ns = now;
        g->since_bytes = bytes;
    } else if (now - g->since_ns >= g->stall_ns) {
        const uint64_t more = bytes - g->since_bytes;
        g->trickles = more > 0 && more < g->stall_ns / WS_MS_NS * FLOOR_BYTES_S / 1000;
        g->since_ns = now;
        g->since_bytes = bytes;
    }
    return g->trickles;
}

int ws_tcp_trickled(const char *url, const char *what, struct ws_error *err)
{
    return ws_error_set(err, ETIMEDOUT, "%s sends %s at less than %lu bytes a second", url, what,
                        FLOOR_BYTES_S);
}
