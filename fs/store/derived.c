#include "fs/store/derived.h"
#include "fs/store/listing.h"
#include "fs/store/model.h"
#include "fs/store/node_parts.h"
#include "fs/store/offers.h"
#include "fs/store/poller.h"
#include "fs/store/version.h"
#include "transports/base/name.h"
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* --- what is to be made --- */

int ws_derived_check(const char *view, struct ws_error *err)
{
    const struct ws_recipe *recipe;
    const char *name;

    if (!ws_name_is_view(view, NULL, &name))
        return ws_error_set(err, EINVAL,
                            "'%.100s' is no quantised view: write MODEL@RECIPE, as actor@fp8-block128", view);
    return ws_recipe_find(name, &recipe, err);
}

int ws_derived_add(struct ws_store *s, const char *view, struct ws_error *err)
{
    char base[WS_MAX_NAME + 1];
    const char *recipe;
    int rc = ws_derived_check(view, err);

    if (rc < 0)
        return rc;
    if (!s->derived && !(s->derived = calloc(WS_MAX_DERIVED, sizeof(*s->derived))))
        return ws_error_set(err, ENOMEM, "no memory for the view %s", view);
    if (ws_derived_find(s, view))
        return ws_error_set(err, EEXIST, "%s is named twice", view);
    if (s->n_derived == WS_MAX_DERIVED)
        return ws_error_set(err, E2BIG, "a mount makes %d quantised views at most", WS_MAX_DERIVED);
    (void)ws_name_is_view(view, base, &recipe);
    struct ws_derived_view *d = &s->derived[s->n_derived];
    rc = ws_recipe_find(recipe, &d->recipe, err);
    d->view = strdup(view);
    d->source = strdup(base);
    s->n_derived++;
    if (rc == 0 && !(d->view && d->source))
        rc = ws_error_set(err, ENOMEM, "no memory for the view %s", view);
    return rc;
}

static int add_pattern(struct ws_derived_view *d, const char *pattern, struct ws_error *err)
{
    const size_t n = d->options.n_ignore;
    const char **all = realloc((void *)(uintptr_t)d->options.ignore, (n + 1) * sizeof(*all));

    if (all)
        d->options.ignore = all;
    if (!all || !(all[n] = strdup(pattern)))
        return ws_error_set(err, ENOMEM, "no memory for a pattern of %s", d->view);
    d->options.n_ignore++;
    return 0;
}

int ws_derived_ignore(struct ws_store *s, const char *text, struct ws_error *err)
{
    const size_t n = strcspn(text, "=");
    char view[WS_MAX_NAME + 1] = "";
    const char *pattern = text;

    if (n < sizeof(view) && text[n] == '=') {
        memcpy(view, text, n);
        view[n] = '\0';
    }
    if (ws_name_is_view(view, NULL, NULL)) {
        pattern += n + 1;
        if (!ws_derived_find(s, view))
            return ws_error_set(err, EINVAL, "a pattern is for %s, which derive= does not name", view);
    } else {
        view[0] = '\0';
    }
    int rc = ws_select_check_pattern(pattern, err);
    for (size_t i = 0; i < s->n_derived && rc == 0; i++)
        if (!view[0] || strcmp(s->derived[i].view, view) == 0)
            rc = add_pattern(&s->derived[i], pattern, err);
    return rc;
}

void ws_derived_any_family(struct ws_store *s)
{
    for (size_t i = 0; i < s->n_derived; i++)
        s->derived[i].options.any_family = true;
}

void ws_derived_free(struct ws_store *s)
{
    for (size_t i = 0; i < s->n_derived; i++) {
        struct ws_derived_view *d = &s->derived[i];
        for (size_t k = 0; k < d->options.n_ignore; k++)
            free((char *)(uintptr_t)d->options.ignore[k]);
        free((void *)(uintptr_t)d->options.ignore);
        free(d->view);
        free(d->source);
    }
    free(s->derived);
}

const struct ws_derived_view *ws_derived_find(const struct ws_store *s, const char *model)
{
    for (size_t i = 0; i < s->n_derived; i++)
        if (strcmp(s->derived[i].view, model) == 0)
            return &s->derived[i];
    return NULL;
}

/* --- versions --- */

/* Can a view be made of it? */
static bool is_there(const struct ws_version *source)
{
    return ws_version_is_offered(source) || ws_version_is_complete(source);
}

struct ws_version *ws_derived_source(const struct ws_version *v)
{
    const struct ws_derived_view *d = v->model->derived;
    struct ws_model *source = d ? ws_model_lookup(v->store, d->source) : NULL;
    struct ws_version *w = source ? ws_version_lookup(source, v->number, v->lineage) : NULL;

    return w && is_there(w) ? w : NULL;
}

/* Has a source that is up made it? Where versions have to be signed, what was made here of a signed one is as good, and a
 * mount that made it has no key. */
static bool is_made_elsewhere(const struct ws_version *v)
{
    if (ws_version_must_be_signed(v))
        return false;
    for (const struct ws_offer *o = v->offers; o; o = o->next) {
        const struct ws_poller *p = v->store->pollers[o->index];
        if (p && p->up && o->digest[0] && (v->sources & ws_bit(o->index)))
            return true;
    }
    return false;
}

bool ws_version_comes_derived(const struct ws_version *v)
{
    return v->model->derived && !ws_version_is_complete(v) && !ws_version_has_bytes(v) &&
           !is_made_elsewhere(v) && ws_derived_source(v);
}

/* One that is not made yet has no size; it is as old as what it is made of. */
static void add_version(struct ws_model *view, const struct ws_version *w, struct ws_store_events *ev)
{
    struct ws_version *v = ws_version_lookup(view, w->number, w->lineage);

    if (v || (!ws_version_is_live(w) && !ws_version_is_complete(w)))
        return;
    v = ws_version_new(view, w->number, w->lineage);
    if (!v)
        return;
    v->created_ns = w->created_ns;
    v->known_ns = ws_clock_ns();
    ws_store_events_add(ev, WS_VERSION_KNOWN, view, v);
}

static void reconcile(struct ws_store *s, const struct ws_derived_view *d, struct ws_store_events *ev)
{
    struct ws_model *source = ws_model_lookup(s, d->source);
    struct ws_model *view = ws_model_lookup(s, d->view);

    for (struct ws_version *w = source ? source->versions : NULL; w; w = w->next) {
        if (!is_there(w) || (!view && ws_listing_is_removed(s, d->view)))
            continue;
        view = view ? view : ws_model_add(s, d->view, ev);
        if (!view)
            return;
        ws_model_resolve_lineage(view);
        add_version(view, w, ev);
    }
    if (view)
        ws_store_events_add(ev, WS_MODEL_OFFERS, view, NULL);
}

void ws_derived_reconcile(struct ws_store *s, struct ws_store_events *ev)
{
    for (size_t i = 0; i < s->n_derived; i++)
        reconcile(s, &s->derived[i], ev);
}

void ws_derived_follow(struct ws_model *m, struct ws_store_events *ev)
{
    for (size_t i = 0; i < m->store->n_derived; i++) {
        struct ws_model *view = strcmp(m->store->derived[i].source, m->name) == 0
                                    ? ws_model_lookup(m->store, m->store->derived[i].view)
                                    : NULL;
        if (view)
            ws_model_reconcile(view, ev);
    }
}
