#include "transports/http/fields.h"
#include "transports/base/text.h"
#include <errno.h>
#include <string.h>

int ws_http_range(const char *text, uint64_t size, uint64_t *begin, uint64_t *end)
{
    uint64_t a, b;
    *begin = 0;
    *end = size;
    if (!text || strncmp(text, "bytes=", 6) != 0 || strchr(text, ','))
        return 0;
    text += 6;
    if (*text == '-') {
        text++;
        if (ws_text_digits(&text, &a) || *text)
            return 0;
        if (a == 0 || size == 0)
            return -ERANGE;
        *begin = a < size ? size - a : 0;
        return 1;
    }
    if (ws_text_digits(&text, &a) || *text++ != '-')
        return 0;
    if (*text == 0)
        b = UINT64_MAX;
    else if (ws_text_digits(&text, &b) || *text || b < a)
        return 0;
    if (a >= size)
        return -ERANGE;
    *begin = a;
    *end = b < size ? b + 1 : size;
    return 1;
}

bool ws_http_names_tag(const char *text, const char *tag)
{
    size_t n = strlen(tag);
    while (text && *text) {
        text += strspn(text, " \t,");
        if (*text == '*')
            return true;
        if (strncmp(text, "W/", 2) == 0)
            text += 2;
        if (strncmp(text, tag, n) == 0 && strchr(" \t,", text[n])) /* the end too */
            return true;
        if (*text == '"' && strchr(text + 1, '"'))
            text = strchr(text + 1, '"') + 1; /* a tag may have commas */
        text += strcspn(text, ",");
    }
    return false;
}
