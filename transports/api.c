/* The HTTP API's paths and statuses, shared by the carriers tcp and ipc. */
#include "transports/catalog.h"
#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEFAULT_POLL_MS 30000
#define LONGEST_POLL_MS 120000

static const struct {
    int code;
    unsigned status;
} statuses[] = {
    {EINVAL, 400},    {EACCES, 401}, {EPERM, 403},        {ENOENT, 404}, {EOPNOTSUPP, 405},
    {ETIMEDOUT, 408}, {EBUSY, 409},  {EEXIST, 409},       {ESTALE, 410}, {E2BIG, 413},
    {ERANGE, 416},    {EAGAIN, 503}, {EHOSTUNREACH, 502}, {EIO, 500},
};

unsigned ws_http_status(int negative_errno)
{
    if (negative_errno >= 0)
        return 200;
    for (size_t i = 0; i < sizeof(statuses) / sizeof(statuses[0]); i++)
        if (statuses[i].code == -negative_errno)
            return statuses[i].status;
    return 500;
}

int ws_errno_of_http(unsigned status)
{
    if (status >= 200 && status < 300)
        return 0;
    for (size_t i = 0; i < sizeof(statuses) / sizeof(statuses[0]); i++)
        if (statuses[i].status == status)
            return statuses[i].code;
    return status >= 500 ? EIO : EPROTO;
}

/* Copies one path component, percent-decoded. Advances *at past it and its slash. */
static int take_component(const char **at, char *out, size_t cap)
{
    size_t n = 0;
    const char *p = *at;
    while (*p && *p != '/') {
        unsigned c = (unsigned char)*p++;
        if (c == '%') {
            unsigned value;
            if (!isxdigit((unsigned char)p[0]) || !isxdigit((unsigned char)p[1]) ||
                sscanf(p, "%2x", &value) != 1)
                return -EINVAL;
            c = value;
            p += 2;
        }
        if (c == 0 || n + 1 >= cap)
            return -EINVAL;
        out[n++] = (char)c;
    }
    out[n] = 0;
    *at = *p == '/' ? p + 1 : p;
    return n ? 0 : -EINVAL;
}

static int parse_number(const char *text, uint64_t *out)
{
    char *end;
    errno = 0;
    *out = strtoull(text, &end, 10);
    return errno || end == text || *end || !isdigit((unsigned char)text[0]) ? -EINVAL : 0;
}

/* Value of a key in a query "a=1&b=2"; 0 when found, -ENOENT, -EINVAL when it does not fit. */
static int query_value(const char *query, const char *key, char *out, size_t cap)
{
    size_t k = strlen(key);
    for (const char *p = query; p && *p;) {
        size_t n = strcspn(p, "&");
        if (n > k && strncmp(p, key, k) == 0 && p[k] == '=') {
            if (n - k - 1 >= cap)
                return -EINVAL;
            memcpy(out, p + k + 1, n - k - 1);
            out[n - k - 1] = 0;
            return 0;
        }
        p += n + (p[n] == '&');
    }
    return -ENOENT;
}

static int parse_poll(const char *query, struct ws_api_request *out)
{
    char text[32];
    uint64_t timeout = DEFAULT_POLL_MS;
    out->kind = WS_API_EVENTS;
    int rc = query_value(query, "since", text, sizeof(text));
    if (rc == -EINVAL || (rc == 0 && parse_number(text, &out->since)))
        return -EINVAL;
    rc = query_value(query, "timeout_ms", text, sizeof(text));
    if (rc == -EINVAL || (rc == 0 && parse_number(text, &timeout)))
        return -EINVAL;
    out->timeout_ms = timeout > LONGEST_POLL_MS ? LONGEST_POLL_MS : (unsigned)timeout;
    return 0;
}

static int parse_version_path(const char *at, const char *query, struct ws_api_request *out)
{
    char what[32], number[32];
    if (take_component(&at, number, sizeof(number)) || parse_number(number, &out->version) ||
        take_component(&at, what, sizeof(what)))
        return 0; /* not ours: OTHER */
    if (strcmp(what, "manifest") == 0 && *at == 0)
        out->kind = WS_API_MANIFEST;
    else if (strcmp(what, "files") == 0)
        out->kind = WS_API_FILE;
    else
        return 0;
    if (out->kind == WS_API_FILE &&
        (take_component(&at, out->file, sizeof(out->file)) || *at || !ws_name_is_safe(out->file)))
        return -EINVAL;
    return query_value(query, "run", out->run, sizeof(out->run)) == -EINVAL ? -EINVAL : 0;
}

int ws_api_parse(const char *path, const char *query, struct ws_api_request *out, struct ws_error *err)
{
    const char *at = path;
    int rc = 0;
    *out = (struct ws_api_request){.kind = WS_API_OTHER};
    if (strcmp(path, "/v1/models") == 0) {
        out->kind = WS_API_MODELS;
    } else if (strcmp(path, "/v1/events") == 0) {
        rc = parse_poll(query, out);
    } else if (strncmp(at, "/v1/", 4) == 0) {
        at += 4;
        if (take_component(&at, out->model, sizeof(out->model)) == 0 && ws_name_is_safe(out->model))
            rc = strcmp(at, "events") == 0 ? parse_poll(query, out) : parse_version_path(at, query, out);
    }
    if (rc)
        return ws_error_set(err, EINVAL, "the path or query of the request '%.200s' is malformed", path);
    return 0;
}
