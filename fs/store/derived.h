/* Derived: quantised views that this mount makes itself (-o derive=MODEL@RECIPE). A view is a model beside the one that
 * it is made of, with the same versions and lineages: a version of it exists while the source's is offered or here, or
 * while its own bytes are. pull/derive.h makes one when it is asked for.
 *
 * A source that has made the same view (an agent, a mount) is asked for it instead, once it lists the digest: whoever
 * has not made it yet lists none, so that mounts that could all make it never wait for each other. Who makes the same
 * view of the same source makes the same bytes, so a digest that differs is two sources that disagree. */
#ifndef WS_FS_STORE_DERIVED_H
#define WS_FS_STORE_DERIVED_H
#include "fs/store/events.h"
#include "fs/store/state.h"
#include "transports/quant/recipe.h"
#include "transports/quant/select.h"

/* A view that this mount makes. Never changes once the first source is added. */
struct ws_derived_view {
    char *view, *source; /* models' names */
    const struct ws_recipe *recipe;
    struct ws_select_options options; /* its strings are this struct's */
};

/* These before the first source is added. view: "MODEL@RECIPE". -EINVAL: it is none, or there is no such recipe;
 * -EEXIST: it is made already; -E2BIG: there are WS_MAX_DERIVED. */
WS_MUST_USE int ws_derived_add(struct ws_store *s, const char *view, struct ws_error *err);
/* What select.h's options say. text: "[MODEL@RECIPE=]PATTERN", of one view or of all that were added. -EINVAL: that view is
 * not made here, or ws_select_check_pattern refuses it. */
WS_MUST_USE int ws_derived_ignore(struct ws_store *s, const char *text, struct ws_error *err);
void ws_derived_any_family(struct ws_store *s); /* of all that were added */
/* Is it such a view's name? Pure; the errors are ws_derived_add's. */
WS_MUST_USE int ws_derived_check(const char *view, struct ws_error *err);
void ws_derived_free(struct ws_store *s);

/* All others with store->lock. */

/* The view of that name; NULL: this mount does not make it. */
const struct ws_derived_view *ws_derived_find(const struct ws_store *s, const char *model);
/* The version that this one can be made of, not counted: the source's of the same number and lineage, which is here or
 * offered. NULL: it is no view that is made here, or there is none. */
struct ws_version *ws_derived_source(const struct ws_version *v);
/* Is it to be made here? Not where a source that is up has made it, nor where something of it has come from one. */
bool ws_version_comes_derived(const struct ws_version *v);
/* After listings have changed: views have the versions that can be made. */
void ws_derived_reconcile(struct ws_store *s, struct ws_store_events *ev);
/* After the versions of m were judged (ws_model_reconcile): those of its views are. */
void ws_derived_follow(struct ws_model *m, struct ws_store_events *ev);

#endif
