#include "transports/base/number.h"
#include "transports/base/text.h"
#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
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

void ws_number_size_text(uint64_t bytes, char out[WS_NUMBER_CHARS])
{
    static const char *const units[] = {"B", "kB", "MB", "GB", "TB", "PB", "EB"};
    double value = (double)bytes;
    unsigned unit = 0;
    for (; value >= 999.5; value /= 1000)
        unit++;
    snprintf(out, WS_NUMBER_CHARS,
             unit == 0 || value >= 99.95 ? "%.0f %s"
             : value >= 9.995            ? "%.1f %s"
                                         : "%.2f %s",
             value, units[unit]);
}

void ws_number_time_text(double seconds, char out[WS_NUMBER_CHARS])
{
    const double whole = seconds < 0 ? 0 : seconds < 1e9 ? seconds : 1e9;
    const unsigned minutes = (unsigned)((whole + 0.5) / 60);
    if (whole < 0.9995)
        snprintf(out, WS_NUMBER_CHARS, "%.3f s", whole);
    else if (whole < 9.995)
        snprintf(out, WS_NUMBER_CHARS, "%.2f s", whole);
    else if (whole < 99.95)
        snprintf(out, WS_NUMBER_CHARS, "%.1f s", whole);
    else if (whole < 3599.5)
        snprintf(out, WS_NUMBER_CHARS, "%u min %u s", minutes, (unsigned)(whole + 0.5) % 60);
    else
        snprintf(out, WS_NUMBER_CHARS, "%u h %u min", minutes / 60, minutes % 60);
}
