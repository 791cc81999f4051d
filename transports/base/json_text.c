#include "transports/base/json_text.h"
#include "transports/base/text.h"
#include <stdlib.h>
#include <string.h>

json_t *ws_json_text(const char *text)
{
    static const char strange[] = "\xef\xbf\xbd"; /* U+FFFD */
    if (!text)
        return json_null();
    size_t left = strlen(text), n = 0;
    char *out = malloc(3 * left + 1);
    while (out && left) {
        size_t good = ws_utf8_length(text, left), len = good ? good : 3, step = good ? good : 1;
        memcpy(out + n, good ? text : strange, len);
        n += len;
        text += step;
        left -= step;
    }
    json_t *string = out ? json_stringn(out, n) : NULL;
    free(out);
    return string;
}
