#include "transports/s3/xml.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *begin_of(const char *text, const char *name, bool *is_empty)
{
    const size_t n = strlen(name);
    for (const char *p = text; (p = strchr(p, '<')); p++) {
        if (strncmp(p + 1, name, n) != 0 || !p[1 + n] || !strchr("> /", p[1 + n]))
            continue;
        const char *close = strchr(p, '>');
        if (!close)
            return NULL;
        *is_empty = close[-1] == '/';
        return close + 1;
    }
    return NULL;
}

bool ws_s3_xml_has(const char *text, const char *name)
{
    bool is_empty;
    return begin_of(text, name, &is_empty) != NULL;
}

static size_t decode_entity(const char *p, size_t n, char *out)
{
    static const struct {
        const char *code;
        char is;
    } known[] = {{"&lt;", '<'}, {"&gt;", '>'}, {"&amp;", '&'}, {"&quot;", '"'}, {"&apos;", '\''}};
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        const size_t length = strlen(known[i].code);
        if (length <= n && strncmp(p, known[i].code, length) == 0) {
            *out = known[i].is;
            return length;
        }
    }
    char *end = NULL;
    const bool is_hex = n > 3 && p[1] == '#' && p[2] == 'x';
    const long code = n > 3 && p[1] == '#' ? strtol(p + (is_hex ? 3 : 2), &end, is_hex ? 16 : 10) : 0;
    if (code > 0 && code < 128 && end && *end == ';' && (size_t)(end - p) < n) {
        *out = (char)code;
        return (size_t)(end - p) + 1;
    }
    *out = *p;
    return 1;
}

bool ws_s3_xml_next(const char **at, const char *end, const char *name, char *out, size_t room)
{
    char close[80];
    bool is_empty;
    const char *from = begin_of(*at, name, &is_empty), *to = from;
    size_t n = 0;
    snprintf(close, sizeof(close), "</%s>", name);
    if (from && !is_empty)
        to = strstr(from, close);
    if (!from || !to || (end && to > end))
        return false;
    for (const char *p = from; p < to;) {
        if (n + 1 >= room)
            return false;
        p += *p == '&' ? decode_entity(p, (size_t)(to - p), &out[n]) : (out[n] = *p, 1);
        n++;
    }
    out[n] = 0;
    *at = is_empty ? to : to + strlen(close);
    return true;
}

bool ws_s3_xml_get(const char *text, const char *name, char *out, size_t room)
{
    out[0] = 0;
    if (ws_s3_xml_next(&text, NULL, name, out, room))
        return true;
    out[0] = 0;
    return false;
}

static int digit(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                  : -1;
}

bool ws_s3_xml_decode_url(char *text)
{
    char *out = text;
    for (const char *p = text; *p; p++, out++) {
        *out = *p == '+' ? ' ' : *p;
        if (*p != '%')
            continue;
        const int high = digit(p[1]), low = high < 0 ? -1 : digit(p[2]);
        if (low < 0 || (high == 0 && low == 0))
            return false;
        *out = (char)(16 * high + low);
        p += 2;
    }
    *out = 0;
    return true;
}
