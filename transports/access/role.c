#include "transports/access/role.h"
#include <errno.h>
#include <string.h>

static const struct {
    unsigned role;
    const char *name;
} table[] = {{WS_ROLE_OPEN, "open"},       {WS_ROLE_READ, "read"},       {WS_ROLE_REPORT, "report"},
             {WS_ROLE_RELEASE, "release"}, {WS_ROLE_PUBLISH, "publish"}, {WS_ROLE_NODE, "node"},
             {WS_ROLE_ADMIN, "admin"}};
#define N_ROLES (sizeof(table) / sizeof(table[0]))

const char *ws_role_name(unsigned role)
{
    for (size_t i = 0; i < N_ROLES; i++)
        if (table[i].role == role)
            return table[i].name;
    return "";
}

char *ws_roles_print(unsigned roles, char out[WS_ROLES_TEXT])
{
    char *at = out;
    for (size_t i = 0; i < N_ROLES; i++)
        if (roles & table[i].role)
            at = stpcpy(stpcpy(at, at == out ? "" : ","), table[i].name);
    if (at == out)
        (void)stpcpy(out, "none");
    return out;
}

static unsigned find(const char *word, size_t n)
{
    for (size_t i = 0; i < N_ROLES; i++)
        if (table[i].role != WS_ROLE_OPEN && strlen(table[i].name) == n &&
            memcmp(table[i].name, word, n) == 0)
            return table[i].role;
    return 0;
}

int ws_roles_parse(const char *text, size_t n, unsigned *roles, struct ws_error *err)
{
    *roles = 0;
    for (size_t at = 0; at <= n;) {
        const char *comma = memchr(text + at, ',', n - at);
        const size_t length = comma ? (size_t)(comma - text) - at : n - at;
        const unsigned role = find(text + at, length);
        if (!role)
            return ws_error_set(err, EINVAL,
                                "'%.*s' is no role; there are read, report, release, publish, node and admin",
                                (int)(length < 40 ? length : 40), text + at);
        *roles |= role;
        at += length + 1;
    }
    return 0;
}
