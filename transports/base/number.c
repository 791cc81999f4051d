#include "transports/base/number.h"
#include <errno.h>
#include <inttypes.h>

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
