/* Errors for people: the sentence is formatted where the cause is known, cut to one clean line, and
 * carried up by value. Nothing here allocates, so that running out of memory can be reported too.
 * (Names in parentheses, because error.h covers them with macros for the static analyzer.) */
#include "transports/base/error.h"
#include "transports/base/text.h"
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Higher than any errno of Linux on any architecture (MIPS's EDQUOT is 1133). */
#define LAST_ERRNO 1200

/* Two names of one number: the C library knows a number by one of them only. */
static const struct {
    const char *name;
    int code;
} aliases[] = {
    {"EWOULDBLOCK", EWOULDBLOCK},
    {"EOPNOTSUPP", EOPNOTSUPP},
    {"ENOTSUP", ENOTSUP},
    {"EDEADLOCK", EDEADLOCK},
};

int(ws_error_set)(struct ws_error *err, int code, const char *format, ...)
{
    va_list args;

    /* A library that failed without an errno must not turn into a success here. */
    if (code <= 0)
        code = EIO;
    if (!err)
        return -code;
    err->code = code;
    va_start(args, format);
    if (vsnprintf(err->text, sizeof(err->text), format, args) < 0)
        err->text[0] = '\0';
    va_end(args);
    ws_text_clean(err->text);
    return -code;
}

int(ws_error_prefix)(struct ws_error *err, const char *format, ...)
{
    char old[WS_ERROR_TEXT];
    va_list args;
    int used;
    size_t room;

    if (!err)
        return -EIO;
    if (err->code <= 0)
        err->code = EIO;
    memcpy(old, err->text, sizeof(old));
    va_start(args, format);
    used = vsnprintf(err->text, sizeof(err->text), format, args);
    va_end(args);
    if (used < 0)
        used = 0;
    if ((size_t)used < sizeof(err->text)) {
        room = sizeof(err->text) - (size_t)used;
        if (snprintf(err->text + used, room, ": %s", old) < 0)
            err->text[used] = '\0';
    }
    ws_text_clean(err->text);
    return -err->code;
}

const char *ws_errno_name(int code)
{
    const char *name = code > 0 ? strerrorname_np(code) : NULL;

    return name ? name : "E?";
}

int ws_errno_from_name(const char *name)
{
    for (size_t i = 0; i < sizeof(aliases) / sizeof(aliases[0]); i++) {
        if (strcmp(aliases[i].name, name) == 0)
            return aliases[i].code;
    }
    for (int code = 1; code <= LAST_ERRNO; code++) {
        const char *known = strerrorname_np(code);
        if (known && strcmp(known, name) == 0)
            return code;
    }
    return 0;
}
