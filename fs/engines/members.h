/* Members: the models beside its target that an engine serves, as it was added: a draft model (draft=MODEL), and
 * adapters (adapters=MODEL[:K],...), of each of which it keeps K versions loaded. They are other models of the mount, and
 * need not be known yet. Pure. */
#ifndef WS_FS_ENGINES_MEMBERS_H
#define WS_FS_ENGINES_MEMBERS_H
#include "transports/base/error.h"
#include "transports/base/limits.h"
#include <stddef.h>

#define WS_MAX_ENGINE_MEMBERS 8
#define WS_ADAPTERS_KEPT      2 /* where K is not given */
#define WS_MAX_ADAPTERS_KEPT  16
#define WS_ADAPTER_MODEL_BYTES                                                                               \
    100 /* of an adapter's model: with number and run it becomes a name of the engine */

enum ws_member_role { WS_MEMBER_TARGET, WS_MEMBER_DRAFT, WS_MEMBER_ADAPTER };
struct ws_member {
    enum ws_member_role role;
    unsigned keep; /* of an adapter: the current version counts */
    char model[WS_MAX_NAME + 1];
};
struct ws_members {
    size_t n;
    struct ws_member items[WS_MAX_ENGINE_MEMBERS];
};
/* The values of both options; NULL: not given. -EINVAL. */
WS_MUST_USE int ws_members_parse(const char *adapters, const char *draft, struct ws_members *out,
                                 struct ws_error *err);
/* NULL: none is of that model. */
const struct ws_member *ws_members_find(const struct ws_members *m, const char *model);
/* NULL: there is no draft model. */
const struct ws_member *ws_members_draft(const struct ws_members *m);

#endif
