/* Needs: which models this mount has only in part (-o need=), and what of them (transports/format/need.h).
 *
 * Of such a model the source's versions are those of a hidden model "MODEL@0.1", as if a trainer on one node had all of each in
 * one part (node_parts.h): it is polled, pulled and patched under the name that the source has for it. MODEL's version is
 * what is needed of that part, laid out anew (transports/format/subset.h), in memory of its own size. So all that holds
 * for versions in parts holds for these; the part only has blocks that do not come, and counts as whole without them. */
#ifndef WS_FS_STORE_NEEDS_H
#define WS_FS_STORE_NEEDS_H
#include "transports/format/need.h"

struct ws_store;
struct ws_model;

/* A model of which this mount has only what is needed. Never changes once the first source is added. */
struct ws_store_need {
    char *model;          /* NULL: all models that are not views, and that no other names */
    struct ws_need *need; /* NULL: what is learned (learned.h), "learn" in the place of patterns */
};

/* Of an option, text: "[MODEL=]PATTERN;...". *pattern: where its patterns begin. -EINVAL, -E2BIG: what ws_need_parse says; or
 * MODEL is no model's name, or a view's; or learn stands beside patterns. */
WS_MUST_USE int ws_needs_check(const char *text, struct ws_error *err);
/* The same, and has the store need it; before the first source is added. -EEXIST: the model has one; -E2BIG: there are
 * WS_MAX_NEEDS. */
WS_MUST_USE int ws_needs_add(struct ws_store *s, const char *text, struct ws_error *err);
void ws_needs_free(struct ws_store *s);
/* Of the model of that name; NULL: all of it is needed, or what is learned. */
const struct ws_need *ws_needs_find(const struct ws_store *s, const char *model);
bool ws_needs_learns(const struct ws_store *s, const char *model); /* is it what is learned? */

#endif
