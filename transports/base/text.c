/* Text from outside. Tensor names, file names and replies of peers end up in log lines, in last_error
 * and in JSON: a newline there forges a line, and one byte that is no UTF-8 makes the JSON library
 * refuse the whole reply. So every sentence passes through here once, where it is made. */
#include "transports/base/text.h"
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

size_t ws_utf8_length(const char *s, size_t n)
{
    const unsigned char *p = (const unsigned char *)s;
    size_t length;
    unsigned long c, least;

    if (n == 0)
        return 0;
    if (p[0] < 0x80)
        return 1;
    if (p[0] >= 0xC2 && p[0] <= 0xDF) {
        length = 2, c = p[0] & 0x1F, least = 0x80;
    } else if (p[0] >= 0xE0 && p[0] <= 0xEF) {
        length = 3, c = p[0] & 0x0F, least = 0x800;
    } else if (p[0] >= 0xF0 && p[0] <= 0xF4) {
        length = 4, c = p[0] & 0x07, least = 0x10000;
    } else {
        return 0;
    }
    if (length > n)
        return 0;
    for (size_t i = 1; i < length; i++) {
        if ((p[i] & 0xC0) != 0x80)
            return 0;
        c = c << 6 | (p[i] & 0x3F);
    }
    if (c < least || c > 0x10FFFF || (c >= 0xD800 && c <= 0xDFFF))
        return 0;
    return length;
}

/* U+200E, U+200F, U+202A to U+202E, U+2066 to U+2069: they make a terminal show a text in another order. */
static bool turns_text(const char *s)
{
    const unsigned char *p = (const unsigned char *)s;
    return p[0] == 0xE2 &&
           ((p[1] == 0x80 && (p[2] == 0x8E || p[2] == 0x8F || (p[2] >= 0xAA && p[2] <= 0xAE))) ||
            (p[1] == 0x81 && p[2] >= 0xA6 && p[2] <= 0xA9));
}

void ws_text_clean(char *text)
{
    size_t left = strlen(text);
    size_t step;

    for (char *p = text; left > 0; p += step, left -= step) {
        unsigned char c = (unsigned char)*p;
        step = ws_utf8_length(p, left);
        if (step == 0 || c < ' ' || c == 0x7F) {
            *p = (c >= '\t' && c <= '\r') ? ' ' : '?';
            step = 1;
        } else if (step == 3 && turns_text(p)) {
            memset(p, '?', 3);
        }
    }
}

int ws_text_digits(const char **at, uint64_t *out)
{
    char *end;
    if (**at < '0' || **at > '9')
        return -EINVAL;
    errno = 0;
    *out = strtoull(*at, &end, 10);
    *at = end;
    return errno ? -EINVAL : 0;
}

int ws_text_u64(const char *text, uint64_t *out)
{
    return ws_text_digits(&text, out) || *text ? -EINVAL : 0;
}

/* The value of a hex digit, and 1 more; 0: it is none. A table, since which digit comes next cannot be predicted. */
static const unsigned char digit_values[256] = {
    ['0'] = 1, ['1'] = 2,  ['2'] = 3,  ['3'] = 4,  ['4'] = 5,  ['5'] = 6,  ['6'] = 7,  ['7'] = 8,
    ['8'] = 9, ['9'] = 10, ['a'] = 11, ['b'] = 12, ['c'] = 13, ['d'] = 14, ['e'] = 15, ['f'] = 16,
};

int ws_text_hash(const char *text, uint64_t *out)
{
    uint64_t value = 0;
    for (size_t i = 0; i < WS_HASH_DIGITS; i++) {
        const unsigned digit = text ? digit_values[(unsigned char)text[i]] : 0;
        if (digit == 0)
            return -EINVAL;
        value = value << 4 | (digit - 1);
    }
    if (text[WS_HASH_DIGITS])
        return -EINVAL;
    *out = value;
    return 0;
}

void ws_text_put_hash(uint64_t hash, char out[WS_HASH_DIGITS])
{
    for (size_t i = WS_HASH_DIGITS; i-- > 0; hash >>= 4)
        out[i] = "0123456789abcdef"[hash & 15];
}

int ws_text_random(char *out, size_t n)
{
    static const char digits[] = "0123456789abcdef";
    for (size_t i = 0; i < n; i++) {
        unsigned char byte;
        if (getrandom(&byte, 1, 0) != 1)
            return -EIO;
        out[2 * i] = digits[byte >> 4];
        out[2 * i + 1] = digits[byte & 15];
    }
    out[2 * n] = '\0';
    return 0;
}
