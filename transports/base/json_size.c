#include "transports/base/json_size.h"
#include "transports/base/limits.h"

#define MAX_DEPTH                                                                                            \
    64 /* jansson goes 2,048 levels down on the caller's stack, and frees what it made as deep */

/* Of jansson's, with malloc's heads: an object with its first buckets, a list with its first places, a pair of an
 * object, and a value in a list that is doubled as it grows. */
#define OBJECT_BYTES 448U
#define LIST_BYTES   144U
#define PAIR_BYTES   128U
#define VALUE_BYTES  72U

bool ws_json_is_modest(const char *text, size_t n)
{
    bool quoted = false;
    size_t depth = 0, bytes = n; /* of all strings */
    for (size_t i = 0; i < n; i++) {
        const char c = text[i];
        if (c == '"')
            quoted = !quoted;
        else if (quoted)
            i += c == '\\';
        else if (c == '{' || c == '[') {
            depth++;
            bytes += c == '{' ? OBJECT_BYTES : LIST_BYTES;
        } else if ((c == '}' || c == ']') && depth > 0)
            depth--;
        else if (c == ':' || c == ',')
            bytes += c == ':' ? PAIR_BYTES : VALUE_BYTES;
        if (depth > MAX_DEPTH || bytes > WS_MAX_JSON_BYTES)
            return false;
    }
    return true;
}
