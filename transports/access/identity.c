#include "transports/access/identity.h"
#include <ctype.h>
#include <errno.h>
#include <fnmatch.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static bool is_reserved(const char *text, size_t n)
{
    static const char *const names[] = {WS_IDENTITY_ANYBODY, WS_IDENTITY_SHARED, WS_IDENTITY_LOCAL},
                             *const prefixes[] = {WS_IDENTITY_CERT, WS_IDENTITY_UID};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (strlen(names[i]) == n && memcmp(names[i], text, n) == 0)
            return true;
    for (size_t i = 0; i < sizeof(prefixes) / sizeof(prefixes[0]); i++)
        if (strlen(prefixes[i]) <= n && memcmp(prefixes[i], text, strlen(prefixes[i])) == 0)
            return true;
    return false;
}

static bool is_one_of(const char *set, char c)
{
    return c && strchr(set, c);
}

bool ws_identity_is_name(const char *text, size_t n)
{
    if (n == 0 || n > WS_IDENTITY_CHARS || !isalnum((unsigned char)text[0]) || is_reserved(text, n))
        return false;
    for (size_t i = 0; i < n; i++)
        if (!isalnum((unsigned char)text[i]) && !is_one_of("._-@:/+", text[i]))
            return false;
    return true;
}

bool ws_identity_are_models(const char *text, size_t n)
{
    if (n == 0 || n > WS_MODELS_CHARS || text[0] == ',' || text[n - 1] == ',')
        return false;
    for (size_t i = 0; i < n; i++)
        if (!isalnum((unsigned char)text[i]) && !is_one_of("._-@*,", text[i]))
            return false;
    return !memmem(text, n, ",,", 2);
}

bool ws_identity_has_all_models(const struct ws_identity *i)
{
    return !i->models[0];
}

bool ws_identity_may_use(const struct ws_identity *i, const char *model)
{
    char base[WS_MAX_NAME + 1], patterns[WS_MODELS_CHARS + 1], *rest;
    if (ws_identity_has_all_models(i))
        return true;
    snprintf(base, sizeof(base), "%.*s", (int)strcspn(model, "@"), model);
    snprintf(patterns, sizeof(patterns), "%s", i->models);
    for (const char *p = strtok_r(patterns, ",", &rest); p; p = strtok_r(NULL, ",", &rest))
        if (fnmatch(p, model, 0) == 0 || fnmatch(p, base, 0) == 0)
            return true;
    return false;
}

const char *ws_identity_owner(const struct ws_identity *i)
{
    return i->is_shared ? "" : i->name;
}

void ws_identity_of_uid(uid_t uid, struct ws_identity *out)
{
    const bool own = uid == 0 || uid == geteuid();
    *out = (struct ws_identity){.is_shared = true,
                                .roles = own ? WS_ROLES_ALL : WS_ROLES_OF_CLIENTS | WS_ROLE_PUBLISH};
    snprintf(out->name, sizeof(out->name), WS_IDENTITY_UID "%u", (unsigned)uid);
}

int ws_identity_check(const struct ws_identity *i, unsigned role, const char *model, const char *what,
                      struct ws_error *err)
{
    char roles[WS_ROLES_TEXT];
    if (role == WS_ROLE_OPEN)
        return 0;
    if (!i->name[0])
        return ws_error_set(err, EACCES, "%.200s asks for the role %s, and nothing says who this is", what,
                            ws_role_name(role));
    if (!(i->roles & role))
        return ws_error_set(
            err, EPERM,
            "%.200s asks for the role %s; %s has %s: an operator adds roles in the tokens file "
            "(wsync token add)",
            what, ws_role_name(role), i->name, ws_roles_print(i->roles, roles));
    if (model && !ws_identity_has_all_models(i) && (!model[0] || !ws_identity_may_use(i, model)))
        return ws_error_set(err, EPERM, "%.200s is not for %s, which may use %s only", what, i->name,
                            i->models);
    return 0;
}
