#include "backends/trainer/agent/fleet/machine.h"
#include "transports/base/text.h"
#include <stdio.h>

static const char *const texts[] = {"wsync", "kernel", "source", "source_error", NULL};
static const char *const numbers[] = {"memory", "memory_free", "cache", "used", "link", "mtu", NULL};

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
    json_t *out = json_is_object(said) ? json_object() : NULL;
    char text[WS_MACHINE_TEXT + 1];
    if (!out)
        return NULL;
    for (const char *const *key = texts; *key; key++) {
        const json_t *value = json_object_get(said, *key);
        if (!json_is_string(value))
            continue;
        snprintf(text, sizeof(text), "%s", json_string_value(value));
        ws_text_clean(text);
        json_object_set_new(out, *key, json_string(text));
    }
    for (const char *const *key = numbers; *key; key++) {
        const json_t *value = json_object_get(said, *key);
        if (json_is_integer(value) && json_integer_value(value) > 0)
            json_object_set_new(out, *key, json_integer(json_integer_value(value)));
    }
    put_clock(out, json_object_get(said, "now_us"), day_ns);
    return out;
}
