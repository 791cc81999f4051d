#include "backends/trainer/agent/fleet/machine.h"
#include "backends/trainer/agent/fleet/said.h"

static const char *const texts[] = {"wsync", "kernel", "source", "source_error", NULL};
static const char *const numbers[] = {"memory", "memory_free", "cache",           "used", "link",
                                      "mtu",    "rtt_us",      "certificate_end", NULL};

#define DAY_MS 86400000LL /* a clock that is further off is as wrong as that */

static void put_clock(json_t *out, const json_t *now, uint64_t day_ns)
{
    long long ms;
    if (!json_is_integer(now) || json_integer_value(now) <= 0)
        return;
    ms = json_integer_value(now) / 1000 - (long long)(day_ns / 1000000);
    ms = ms > DAY_MS ? DAY_MS : ms < -DAY_MS ? -DAY_MS : ms;
    json_object_set_new(out, "clock_ms", json_integer(ms));
}

json_t *ws_machine_take(const json_t *said, uint64_t day_ns)
{
    json_t *out = ws_said_take(said, texts, numbers);
    if (out)
        put_clock(out, json_object_get(said, "now_us"), day_ns);
    return out;
}
