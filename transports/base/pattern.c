#include "transports/base/pattern.h"
#include "transports/base/name.h"
#include "transports/base/text.h"
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define MAX_DIGITS 20 /* of 64 bits */
#define NAME       "{name}"

/* What parse has read so far. */
struct reader {
    const char *text, *at, *model;
    struct ws_pattern *out;
    char *to; /* before or after */
    size_t n; /* of it */
};

static bool append(struct reader *r, const char *bytes, size_t n)
{
    if (r->n + n > WS_MAX_NAME)
        return false;
    memcpy(r->to + r->n, bytes, n);
    r->n += n;
    r->to[r->n] = '\0';
    return true;
}

/* "{N}" or "{N:0Wd}": Python's. */
static bool read_number(struct reader *r)
{
    uint64_t width = 1;
    const char *at = r->at + 2;

    if (!r->out->is_constant)
        return false; /* there is one */
    if (*at == ':') {
        at++;
        if (*at++ != '0' || ws_text_digits(&at, &width) < 0 || *at++ != 'd' || width < 1 ||
            width > MAX_DIGITS)
            return false;
    }
    if (*at++ != '}')
        return false;
    r->out->is_constant = false;
    r->out->digits = (unsigned)width;
    r->to = r->out->after;
    r->n = 0;
    r->at = at;
    return true;
}

static bool read_some(struct reader *r)
{
    if (strncmp(r->at, NAME, strlen(NAME)) == 0) {
        r->at += strlen(NAME);
        return append(r, r->model, strlen(r->model));
    }
    if (strncmp(r->at, "{N", 2) == 0)
        return read_number(r);
    const size_t n = strcspn(r->at, "{}");
    const char *begin = r->at;
    r->at += n;
    return n > 0 && append(r, begin, n);
}

int ws_pattern_parse(const char *text, const char *model, struct ws_pattern *out, struct ws_error *err)
{
    struct reader r = {.text = text, .at = text, .model = model, .out = out, .to = out->before};
    char longest[WS_MAX_NAME + 1];
    bool ok = text[0] != '\0';

    *out = (struct ws_pattern){.is_constant = true};
    while (ok && *r.at)
        ok = read_some(&r);
    if (ok && strlen(out->before) + strlen(out->after) + (out->is_constant ? 0 : MAX_DIGITS) > WS_MAX_NAME)
        ok = false;
    if (ok) {
        ws_pattern_name(out, UINT64_MAX, longest);
        ok = ws_name_is_safe(longest);
    }
    return ok ? 0 : ws_error_set(err, EINVAL, "'%.100s' is no pattern of names: " WS_PATTERN_RULE, text);
}

void ws_pattern_name(const struct ws_pattern *p, uint64_t number, char out[WS_MAX_NAME + 1])
{
    char digits[MAX_DIGITS + 1] = "";

    if (!p->is_constant)
        snprintf(digits, sizeof(digits), "%0*" PRIu64, (int)p->digits, number);
    /* parse has seen that the longest one fits */
    snprintf(out, WS_MAX_NAME + 1, "%.*s%s%.*s", WS_MAX_NAME, p->before, digits, WS_MAX_NAME, p->after);
}

bool ws_pattern_match(const struct ws_pattern *p, const char *name, uint64_t *number)
{
    const size_t before = strlen(p->before);
    char own[WS_MAX_NAME + 1];
    const char *at = name + before;
    uint64_t n = 0;

    if (p->is_constant)
        return strcmp(name, p->before) == 0;
    if (strncmp(name, p->before, before) != 0 || ws_text_digits(&at, &n) < 0)
        return false;
    ws_pattern_name(p, n, own);
    if (strcmp(own, name) != 0)
        return false;
    *number = n;
    return true;
}
