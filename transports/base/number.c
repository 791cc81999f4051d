#include "transports/base/number.h"
#include "transports/base/text.h"
#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <string.h>

int ws_number_read(const json_t *value, uint64_t *out)
{
    if (!json_is_integer(value) || json_integer_value(value) < 0)
        return -EINVAL;
    *out = (uint64_t)json_integer_value(value);
    return 0;
}

json_t *ws_number_hash(uint64_t hash)
{
    return json_sprintf("%016" PRIx64, hash);
}

int ws_number_size(const char *text, uint64_t *out)
{
    static const char units[] = "KMGT";
    if (ws_text_digits(&text, out) < 0)
        return -EINVAL;
    const char *unit = *text ? strchr(units, toupper((unsigned char)*text)) : NULL;
    const unsigned shift = unit ? 10 * (unsigned)(unit - units + 1) : 0;
    if ((*text && (!unit || text[1])) || (*out << shift) >> shift != *out)
        return -EINVAL;
    *out <<= shift;
    return 0;
}
