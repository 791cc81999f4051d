#include "transports/tcp/manifest_text.h"
#include "transports/delta/delta.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool ws_tcp_any_grows(const json_t *deltas)
{
    const char *growing = ws_delta_state_name(WS_DELTA_GROWING);
    const json_t *one;
    size_t i;
    json_array_foreach(deltas, i, one)
    {
        if (strcmp(json_string_value(json_object_get(one, "state")), growing) == 0)
            return true;
    }
    return false;
}

/* The length of the text before `end`, or before its last bracket where it ends otherwise. */
static size_t without(const char *text, size_t len, const char *end)
{
    size_t n = strlen(end);
    return len >= n && memcmp(text + len - n, end, n) == 0 ? len - n : len - 1;
}

char *ws_tcp_manifest_text(const struct ws_lease *lease, const json_t *deltas, size_t *n)
{
    char *own = NULL, *list = deltas ? json_dumps(deltas, JSON_COMPACT) : strdup("[]"), *text = NULL;
    const char *whole = lease->manifest_json, *end = "," WS_MANIFEST_NO_DELTAS "}";
    size_t len = lease->manifest_json_bytes;
    int bytes = -1;
    if (list && !whole && ws_manifest_to_json(lease->manifest, &own, &len, NULL) == 0)
        whole = own;
    if (list && whole)
        bytes = asprintf(&text, "%.*s,\"deltas\":%s}", (int)without(whole, len, end), whole, list);
    free(list);
    free(own);
    *n = bytes > 0 ? (size_t)bytes : 0;
    return bytes > 0 ? text : NULL;
}
