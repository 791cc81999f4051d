#include "transports/base/number.h"
#include <inttypes.h>

json_t *ws_number_hash(uint64_t hash)
{
    return json_sprintf("%016" PRIx64, hash);
}
