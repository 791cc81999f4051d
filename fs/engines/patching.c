#include "fs/engines/patching.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>

static const char *const names[] = {"auto", "patch", "whole"};

const char *ws_update_name(enum ws_update u)
{
    return names[u];
}

static int parse(const char *word, enum ws_update *out, struct ws_error *err)
{
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (!word || strcmp(word, names[i]) == 0) {
            *out = (enum ws_update)i;
            return 0;
        }
    return ws_error_set(err, EINVAL, "update=%.100s: it is auto, patch or whole", word);
}

int ws_patching_init(struct ws_patching *p, const struct ws_engine_ops *ops, const struct ws_command *q,
                     struct ws_error *err)
{
    const char *const *o = q->options;
    *p = (struct ws_patching){0};
    int rc = parse(o[WS_OPTION_UPDATE], &p->update, err);
    if (rc == 0)
        rc = ws_command_seconds(q, WS_OPTION_VERIFY, 0, &p->verify_s, err);
    if (rc == 0 && p->verify_s && p->update == WS_UPDATE_WHOLE)
        rc = ws_error_set(err, EINVAL,
                          "verify= compares weights that were patched, and with update=whole none are");
    if (rc == 0 && p->update == WS_UPDATE_PATCH && ops == &ws_engine_remote && !o[WS_OPTION_PATCH])
        rc = ws_error_set(err, EINVAL,
                          "update=patch: an engine of kind remote is told how by patch=METHOD:/PATH[:BODY]");
    return rc;
}

void ws_patching_patched(struct ws_patching *p)
{
    p->is_known = p->is_patched = true;
    p->why[0] = 0;
    p->patched++;
    p->verify_at_ns = 0;
}

void ws_patching_whole(struct ws_patching *p, const char *why)
{
    p->is_known = true;
    p->is_patched = false;
    snprintf(p->why, sizeof(p->why), "%s", why);
    p->whole++;
    p->verify_at_ns = 0;
}

bool ws_patching_is_shown(const struct ws_patching *p)
{
    return p->update != WS_UPDATE_AUTO || p->is_known;
}
