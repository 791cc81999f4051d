/* Catching up: one run of all steps for each engine, which holds up no other (catch_up.h). */
#include "fs/switch/catch_up.h"
#include "fs/switch/claim.h"
#include "fs/switch/drive.h"
#include "fs/switch/engine_query.h"
#include "fs/switch/set.h"
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define HOLD_S 60 /* for engines to be paused that a release has left behind */

/* What engines are brought to: the current version of their model, and those of their draft models. Their adapters follow
 * from a load of the target, and from the reconciler's look. */
struct aim {
    struct ws_switch_item *items; /* the target's first */
    size_t n;
};

static void add_draft(struct ws_control *c, struct aim *a, const char *model)
{
    struct ws_switch_item *p = &a->items[a->n];
    for (size_t i = 0; i < a->n; i++)
        if (strcmp(a->items[i].controller->name, model) == 0)
            return;
    p->controller = ws_controller_get(c, model);
    p->model = p->controller ? ws_store_find(c->store, model) : NULL;
    a->n += p->model != NULL;
}

/* The target's, or the first of a draft; NULL: none is current. */
static struct ws_version *first_version(const struct aim *a)
{
    struct ws_version *v = NULL;
    for (size_t i = 0; !v && i < a->n; i++)
        v = a->items[i].version;
    return v;
}

static int find_aim(struct ws_control *c, struct ws_controller *ctl, struct ws_model *m, struct aim *out,
                    struct ws_error *err)
{
    size_t n = 0;
    struct ws_engine **all = ws_engine_get_all(c, ctl, false, &n);
    *out = (struct aim){.items = all ? calloc(n + 1, sizeof(*out->items)) : NULL};
    if (out->items)
        out->items[out->n++] = (struct ws_switch_item){.controller = ctl, .model = ws_model_get(m)};
    for (size_t i = 0; out->items && i < n; i++) {
        const struct ws_member *draft = ws_members_draft(&all[i]->members);
        if (draft)
            add_draft(c, out, draft->model);
    }
    if (all)
        ws_engine_put_all(c, all, n);
    return out->items ? 0 : ws_error_set(err, ENOMEM, "no memory for a switch");
}

static void free_aim(struct aim *a)
{
    for (size_t i = 0; i < a->n; i++)
        ws_switch_item_release(&a->items[i]);
    free(a->items);
}

/* The versions that are current, held as by a switch. No switch moves them any more. Where none of the target is, its engines
 * keep what they have of it. */
static int hold_aim(struct aim *a, struct ws_error *err)
{
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < a->n; i++) {
        struct ws_switch_item *p = &a->items[i];
        p->version = ws_model_current(p->model);
        rc = p->version ? ws_version_begin_switch(p->version, err) : 0;
        if (rc < 0) {
            ws_version_put(p->version);
            p->version = NULL;
        } else if (p->version) {
            ws_model_turn_back(p->model);
        }
    }
    return rc == 0 && !first_version(a)
               ? ws_error_set(err, ENOENT, "%s has no current version", ws_model_name(a->items[0].model))
               : rc;
}

/* A set comes whole: an engine is not brought along with its target alone while the draft's version is on its way. */
static int check_drafts(struct ws_control *c, const struct ws_controller *ctl, const char *const *names,
                        size_t n, struct ws_error *err)
{
    int rc = 0;
    pthread_mutex_lock(&c->lock);
    for (const struct ws_engine *e = ctl->engines; rc == 0 && e; e = e->next)
        for (size_t i = 0; rc == 0 && i < n; i++)
            if (strcmp(e->name, names[i]) == 0 && ws_set_waits_for_draft(c, e))
                rc = ws_error_set(err, EAGAIN,
                                  "the version of %.100s, which was current before this daemon, is on its "
                                  "way here: engine %s is brought along with it",
                                  ws_members_draft(&e->members)->model, e->name);
    pthread_mutex_unlock(&c->lock);
    return rc;
}

static void end_aim(struct aim *a)
{
    for (size_t i = 0; i < a->n; i++)
        if (a->items[i].version)
            ws_version_end_switch(a->items[i].version);
}

static int catch_up(struct ws_switch_run *r, struct aim *a, const char *const *names, size_t n,
                    struct ws_error *err)
{
    size_t failed = 0;
    int rc = ws_switch_check_kinds(a->items, 1, err);
    for (size_t i = 0; rc == 0 && i < a->n; i++)
        if (a->items[i].version)
            rc = ws_switch_run_pull(r, a->items[i].version, WS_PRIORITY_SWITCH, err);
    if (rc == 0)
        rc = ws_switch_collect(r, a->items, a->n, names, n, err);
    if (rc == 0 && r->n == 0)
        rc = ws_error_set(err, ENOENT, "%s has no engine '%s'", a->items[0].controller->name, names[0]);
    if (rc == 0) {
        ws_engine_step_begin(r);
        failed = ws_engine_step_each(r, 0, ws_switch_is_going, ws_switch_drive_one);
        ws_engine_step_over(r);
    }
    if (failed > 0) {
        const struct ws_switch_engine *se = ws_switch_first_lost(r);
        rc = ws_error_set(err, se->err.code ? se->err.code : EREMOTEIO,
                          "engine %s (%s) could not be brought to version %s: %.800s", se->engine->name,
                          se->engine->url, se->to_version, se->err.text);
    }
    return rc;
}

static bool is_preparing(struct ws_control *c, const struct ws_controller *ctl, struct ws_error *err)
{
    pthread_mutex_lock(&c->lock);
    const bool is = ctl->preparing > 0;
    pthread_mutex_unlock(&c->lock);
    if (is)
        (void)ws_error_set(
            err, EBUSY,
            "the one copy of %s becomes a version that is being released: its engines are brought "
            "along after that",
            ctl->name);
    return is;
}

int ws_switch_catch_up(struct ws_control *c, struct ws_controller *ctl, struct ws_model *m,
                       const char *const *names, size_t n, bool wakes, int *results, struct ws_error *err)
{
    const struct ws_switch_options o = {0};
    struct aim aim;
    bool waits;
    int rc = find_aim(c, ctl, m, &aim, err);
    if (rc < 0)
        return rc;
    struct ws_switch_run r = {.control = c,
                              .options = &o,
                              .deadline_ns = ws_switch_deadline(&o),
                              .items = aim.items,
                              .n_items = aim.n,
                              .own_only = true,
                              .loads_whole = true,
                              .leaves_asleep = !wakes};
    rc = ws_switch_claim(c, aim.items, aim.n, true, &waits, err);
    if (rc == 0 && is_preparing(c, ctl, err)) {
        ws_switch_claim_release(c, aim.items, aim.n, false, false);
        rc = -EBUSY;
    } else if (rc == 0) { /* no switch moves current any more */
        rc = hold_aim(&aim, err);
        if (rc == 0)
            rc = check_drafts(c, ctl, names, n, err);
        if (rc == 0)
            rc = catch_up(&r, &aim, names, n, err);
        end_aim(&aim);
        ws_switch_claim_release(c, aim.items, aim.n, false, rc == 0);
    }
    for (size_t i = 0; i < n; i++) {
        int one = r.n == 0 ? rc : -ENOENT;
        for (size_t k = 0; k < r.n; k++)
            if (strcmp(r.engines[k].engine->name, names[i]) == 0)
                one = r.engines[k].rc;
        if (results)
            results[i] = one;
        if (first_version(&aim))
            ws_controller_event(c, ctl, "caught-up model=%s engine=%s version=%" PRIu64 " result=%s",
                                ctl->name, names[i], ws_version_number(first_version(&aim)),
                                one < 0 ? ws_errno_name(-one) : "ok");
    }
    free(r.selected);
    free(r.engines);
    free_aim(&aim);
    return rc;
}

/* --- quarantine --- */

static int hold_one(struct ws_switch_engine *se)
{
    int rc = ws_engine_step_query(se);
    if (rc == 0)
        rc = ws_engine_step_pause(se);
    if (rc < 0)
        ws_engine_step_give_up(se, se->err.text);
    else
        ws_engine_step_held(se);
    return rc;
}

int ws_switch_hold(struct ws_control *c, struct ws_controller *ctl, struct ws_model *m, const char *why,
                   struct ws_error *err)
{
    const struct ws_switch_options o = {.deadline_s = HOLD_S};
    struct ws_switch_item item = {.controller = ctl, .model = m};
    struct ws_switch_run r = {.control = c,
                              .options = &o,
                              .deadline_ns = ws_switch_deadline(&o),
                              .items = &item,
                              .n_items = 1,
                              .own_only = true};
    bool waits;
    size_t failed = 0;
    int rc = ws_switch_claim(c, &item, 1, true, &waits, err);
    if (rc < 0)
        return rc;
    item.version = ws_model_current(m);
    rc = item.version ? ws_version_begin_switch(item.version, err)
                      : ws_error_set(err, ENOENT, "%s has no current version", ws_model_name(m));
    if (rc == 0) {
        rc = ws_switch_collect(&r, &item, 1, NULL, 0, err);
        if (rc == 0 && r.n == 0)
            rc = ws_error_set(err, ENOENT, "%s has no engine", ctl->name);
        if (rc == 0) {
            ws_engine_step_begin(&r);
            failed = ws_engine_step_each(&r, 0, ws_switch_is_going, hold_one);
            ws_engine_step_over(&r);
        }
        ws_version_end_switch(item.version);
    }
    if (rc == 0 && failed > 0) {
        const struct ws_switch_engine *se = ws_switch_first_lost(&r);
        rc = ws_error_set(err, se->err.code ? se->err.code : EREMOTEIO,
                          "engine %s (%s) could not be held: %.800s", se->engine->name, se->engine->url,
                          se->err.text);
    }
    if (r.n > 0)
        ws_controller_event(c, ctl, "quarantined model=%s version=%" PRIu64 " engines=%zu why=\"%s\"",
                            ctl->name, ws_version_number(item.version), r.n - failed, why);
    ws_switch_claim_release(c, &item, 1, false,
                            false); /* what is to be tried again is so as seldom as before */
    free(r.selected);
    free(r.engines);
    if (item.version)
        ws_version_put(item.version);
    return rc;
}
