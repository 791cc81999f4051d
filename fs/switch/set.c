#include "fs/switch/set.h"
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <string.h>

#define RELEASE_TRIES 60 /* for a draft model that a release names, too: 3 s */
#define RELEASE_MS    50

const struct ws_switch_item *ws_set_find(const struct ws_switch_item *items, size_t n, const char *model)
{
    for (size_t i = 0; i < n; i++)
        if (items[i].version && strcmp(items[i].controller->name, model) == 0)
            return &items[i];
    return NULL;
}

/* No lineage: none is current. */
static struct ws_version_id find_current(struct ws_control *c, const char *model)
{
    struct ws_model *m = ws_store_find(c->store, model);
    struct ws_version *v = m ? ws_model_current(m) : NULL;
    const struct ws_version_id id = v ? ws_version_id(v) : (struct ws_version_id){0};
    if (v)
        ws_version_put(v);
    if (m)
        ws_model_put(m);
    return id;
}

static bool is_same_run(const struct ws_version_id *a, const struct ws_version_id *b)
{
    return strcmp(a->lineage, b->lineage) == 0;
}

/* Is it the draft of the target's run? set.h says what that means. */
static bool is_of_run(struct ws_control *c, const struct ws_switch_item *target, const char *draft,
                      const struct ws_version_id *version)
{
    const struct ws_version_id to = ws_version_id(target->version),
                               now = find_current(c, target->controller->name),
                               draft_now = find_current(c, draft);
    return is_same_run(&to, version) || is_same_run(&to, &now) || !now.lineage[0] ||
           !is_same_run(version, &draft_now);
}

bool ws_set_find_lack(struct ws_control *c, const struct ws_switch_item *items, size_t n,
                      const struct ws_switch_item *of, struct ws_set_lack *out)
{
    const uint64_t number = ws_version_number(of->version);
    bool found = false;
    pthread_mutex_lock(&c->lock);
    for (const struct ws_engine *e = of->controller->engines; e && !found; e = e->next) {
        const struct ws_member *draft = ws_members_draft(&e->members);
        if (!draft || ws_set_find(items, n, draft->model))
            continue;
        const struct ws_version_id *has = &e->draft.id;
        out->has_current = has->lineage[0];
        out->current = has->version;
        out->is_other_run =
            out->has_current && has->version == number && !is_of_run(c, of, draft->model, has);
        found = !out->has_current || has->version != number || out->is_other_run;
        snprintf(out->engine, sizeof(out->engine), "%s", e->name);
        snprintf(out->draft, sizeof(out->draft), "%s", draft->model);
    }
    pthread_mutex_unlock(&c->lock);
    return found;
}

int ws_set_refuse(const struct ws_switch_item *item, const struct ws_set_lack *lack, struct ws_error *err)
{
    const uint64_t number = ws_version_number(item->version);
    char now[64] = "none is loaded";
    if (lack->has_current)
        snprintf(now, sizeof(now), "%" PRIu64 " %sis loaded", lack->current,
                 lack->is_other_run ? "of another run " : "");
    return ws_error_set(
        err, EINVAL,
        "engine %.100s also serves %.100s (draft=), of which %s: add %.100s=N, as in load %.100s=%" PRIu64
        " %.100s=%" PRIu64 " (in the mount's ctl) or a release of both",
        lack->engine, lack->draft, now, lack->draft, item->controller->name, number, lack->draft, number);
}

int ws_set_check(struct ws_control *c, const struct ws_switch_item *items, size_t n, struct ws_error *err)
{
    for (size_t i = 0; i < n; i++) {
        struct ws_set_lack lack;
        struct ws_version *current = ws_model_current(items[i].model);
        const bool moves = current != items[i].version;
        if (current)
            ws_version_put(current);
        if (moves && ws_set_find_lack(c, items, n, &items[i], &lack))
            return ws_set_refuse(&items[i], &lack, err);
    }
    return 0;
}

/* --- following --- */

bool ws_set_is_taken_along(struct ws_control *c, const struct ws_controller *ctl)
{
    bool is = false;
    pthread_mutex_lock(&c->lock);
    for (struct ws_engine_at at = {0}; !is && ws_engine_next_of(c, ctl->name, &at);)
        is = at.member && at.member->role == WS_MEMBER_DRAFT && ws_policy_follows(at.controller->policy) &&
             at.controller->policy != WS_POLICY_FOLLOW_RELEASED;
    pthread_mutex_unlock(&c->lock);
    return is;
}

/* The target's run first, where the draft's has that name; else the live one. */
static struct ws_version *find_draft(struct ws_control *c, struct ws_model *draft,
                                     const struct ws_switch_item *target)
{
    const struct ws_version_id to = ws_version_id(target->version);
    struct ws_version *v = ws_version_at(draft, to.version, to.lineage);
    if (v || !(v = ws_version_at(draft, to.version, NULL)))
        return v;
    const struct ws_version_id id = ws_version_id(v);
    if (is_of_run(c, target, ws_model_name(draft), &id))
        return v;
    ws_version_put(v);
    return NULL;
}

bool ws_set_add_drafts(struct ws_control *c, struct ws_switch_item *items, size_t *n)
{
    struct ws_set_lack lack;
    while (ws_set_find_lack(c, items, *n, &items[0], &lack)) {
        struct ws_switch_item one = {.model = *n <= WS_MAX_SET_DRAFTS ? ws_store_find(c->store, lack.draft)
                                                                      : NULL};
        if (one.model)
            one.version = find_draft(c, one.model, &items[0]);
        if (one.version)
            one.controller = ws_controller_get(c, lack.draft);
        if (!one.controller) {
            ws_switch_item_release(&one);
            return false;
        }
        items[(*n)++] = one;
    }
    return true;
}

bool ws_set_waits_for_draft(struct ws_control *c, const struct ws_engine *e)
{
    const struct ws_member *draft = ws_members_draft(&e->members);
    const struct ws_controller *of = draft ? c->controllers : NULL;
    while (of && strcmp(of->name, draft->model) != 0)
        of = of->next;
    return of && of->target.lineage[0] && !of->gone_reported && !find_current(c, draft->model).lineage[0];
}

bool ws_set_lacks_draft(struct ws_control *c, const struct ws_engine *e)
{
    const struct ws_member *draft = ws_members_draft(&e->members);
    const struct ws_version_id now = draft ? find_current(c, draft->model) : (struct ws_version_id){0};
    return now.lineage[0] && e->facts.loads_draft && !ws_version_id_equal(&e->draft.id, &now);
}

size_t ws_set_find_targets(struct ws_control *c, const char *draft,
                           struct ws_controller *out[WS_MAX_SET_DRAFTS])
{
    size_t n = 0;
    pthread_mutex_lock(&c->lock);
    for (struct ws_engine_at at = {0}; n < WS_MAX_SET_DRAFTS && ws_engine_next_of(c, draft, &at);)
        if (at.member && at.member->role == WS_MEMBER_DRAFT && (n == 0 || out[n - 1] != at.controller))
            out[n++] = at.controller;
    pthread_mutex_unlock(&c->lock);
    return n;
}

static bool is_in_release(struct ws_control *c, const char *model, uint64_t release)
{
    bool is = false;
    for (int i = 0; !is && i < RELEASE_TRIES && !atomic_load(&c->stop); i++) {
        struct ws_model *m = ws_store_find(c->store, model);
        struct ws_desired o = {0};
        if (i > 0)
            (void)poll(NULL, 0, RELEASE_MS);
        if (m)
            ws_model_desired(m, &o);
        is = o.release == release || o.released_by == release;
        if (m)
            ws_model_put(m);
    }
    return is;
}

int ws_set_check_release(struct ws_control *c, const struct ws_switch_item *item, uint64_t release,
                         struct ws_error *err)
{
    struct ws_switch_item items[1 + WS_MAX_SET_DRAFTS] = {*item};
    struct ws_set_lack lack;
    for (size_t n = 1; ws_set_find_lack(c, items, n, item, &lack); n++) {
        struct ws_controller *ctl = ws_controller_get(c, lack.draft);
        if (!ctl || n > WS_MAX_SET_DRAFTS || !is_in_release(c, lack.draft, release))
            return ws_set_refuse(item, &lack, err);
        items[n] = (struct ws_switch_item){.controller = ctl,
                                           .version = item->version}; /* it has one: that is all */
    }
    return 0;
}
