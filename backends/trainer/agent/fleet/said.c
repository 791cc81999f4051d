#include "backends/trainer/agent/fleet/said.h"
#include "transports/base/text.h"
#include <stdio.h>

json_t *ws_said_take(const json_t *said, const char *const *texts, const char *const *numbers)
{
    json_t *out = json_is_object(said) ? json_object() : NULL;
    char text[WS_SAID_TEXT + 1];
    for (const char *const *key = texts; out && *key; key++) {
        const json_t *value = json_object_get(said, *key);
        if (!json_is_string(value))
            continue;
        snprintf(text, sizeof(text), "%s", json_string_value(value));
        ws_text_clean(text);
        json_object_set_new(out, *key, json_string(text));
    }
    for (const char *const *key = numbers; out && *key; key++) {
        const json_t *value = json_object_get(said, *key);
        if (json_is_integer(value) && json_integer_value(value) > 0)
            json_object_set_new(out, *key, json_integer(json_integer_value(value)));
    }
    return out;
}

json_t *ws_said_take_came(const json_t *said)
{
    static const char *const texts[] = {"how", "strategy", "why_not", NULL};
    static const char *const numbers[] = {"bytes", "moved", "took_us", "loaded_us", NULL};
    return ws_said_take(said, texts, numbers);
}

json_t *ws_said_take_error(const json_t *said)
{
    static const char *const texts[] = {"command", "errno", "message", NULL};
    static const char *const numbers[] = {"at_us", NULL};
    return ws_said_take(said, texts, numbers);
}
