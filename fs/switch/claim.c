/* Claim: one at a time for each model (claim.h). */
#include "fs/switch/claim.h"
#include "fs/switch/adapter_steps.h"
#include "fs/switch/set.h"
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* Under the lock. */
static void claim_one(struct ws_controller *ctl, const void *claimant, bool catching_up, bool is_lent)
{
    ctl->switching = true;
    ctl->generation++;
    ctl->catching_up = catching_up;
    ctl->is_lent = is_lent;
    ctl->claimant = claimant;
    atomic_store(&ctl->cancel, false);
}

/* Under the lock: whose engines another switch has, of those that the items need. *waits: it ends by itself, and soon:
 * the reconciler has them, or a switch of another model that they serve. */
static const struct ws_controller *find_busy(struct ws_control *c, const struct ws_switch_item *items,
                                             size_t n, bool *waits)
{
    for (size_t i = 0; i < n; i++) {
        const struct ws_controller *own = items[i].controller;
        *waits = own->catching_up || own->is_lent;
        if (own->switching)
            return own;
        *waits = true;
        for (struct ws_engine_at at = {0}; ws_engine_next_of(c, own->name, &at);)
            if (at.controller->switching)
                return at.controller;
    }
    return NULL;
}

int ws_switch_claim(struct ws_control *c, struct ws_switch_item *items, size_t n, bool catching_up,
                    bool *waits, struct ws_error *err)
{
    int rc = 0;
    pthread_mutex_lock(&c->lock);
    const struct ws_controller *busy = find_busy(c, items, n, waits);
    if (busy)
        rc = ws_error_set(err, EBUSY, "a switch of %s is running already; add wait to wait for its end",
                          busy->name);
    for (size_t i = 0; !busy && i < n; i++)
        for (struct ws_engine_at at = {0}; ws_engine_next_of(c, items[i].controller->name, &at);)
            claim_one(at.controller, items, catching_up, true);
    for (size_t i = 0; !busy && i < n; i++)
        claim_one(items[i].controller, items, catching_up, false);
    pthread_mutex_unlock(&c->lock);
    return rc;
}

void ws_switch_claim_release(struct ws_control *c, struct ws_switch_item *items, size_t n, bool counts,
                             bool ok)
{
    pthread_mutex_lock(&c->lock);
    for (struct ws_controller *ctl = c->controllers; ctl; ctl = ctl->next) {
        if (ctl->claimant != items)
            continue;
        ctl->switching = ctl->is_lent = false;
        ctl->claimant = NULL;
        ctl->generation++;
        atomic_store(&ctl->cancel, false); /* it must not end what is staged next */
    }
    for (size_t i = 0; i < n; i++) {
        if (ok)
            ws_backoff_reset(&items[i].controller->follow_backoff);
        if (counts && ok) {
            items[i].controller->target.lineage[0] = 0; /* the former current version is not needed */
            items[i].controller->goes_forward = false;
            items[i].controller->switches_ok++;
            ws_controller_clear_error(items[i].controller, "load");
        } else if (counts) {
            items[i].controller->switches_failed++;
        }
    }
    pthread_mutex_unlock(&c->lock);
}

int ws_switch_check_kinds(const struct ws_switch_item *items, size_t n, struct ws_error *err)
{
    for (size_t i = 0; i < n; i++)
        if (ws_controller_is_external(items[i].controller))
            return ws_error_set(err, EOPNOTSUPP,
                                "the engines of %s are external: stage %" PRIu64
                                ", let their framework load it, then write loaded %" PRIu64 " to ctl",
                                items[i].controller->name, ws_version_number(items[i].version),
                                ws_version_number(items[i].version));
    return 0;
}

static bool is_named(const struct ws_engine *e, const char *const *names, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(e->name, names[i]) == 0)
            return true;
    return names == NULL;
}

/* What the switch does with the engine. False: nothing. */
static bool choose_parts(struct ws_switch_engine *se)
{
    const struct ws_switch_run *r = se->run;
    const struct ws_members *members = &se->engine->members;
    se->target = ws_set_find(r->items, r->n_items, se->controller->name);
    for (size_t i = 0; i < members->n; i++) {
        const struct ws_member *m = &members->items[i];
        const struct ws_switch_item *item = ws_set_find(r->items, r->n_items, m->model);
        if (m->role == WS_MEMBER_DRAFT)
            se->draft = item;
        else
            se->adapters[se->n_adapters++] = (struct ws_switch_adapter){.member = m, .item = item};
    }
    return ws_engine_step_pauses(se) || ws_adapter_step_moves(se);
}

static int fill(struct ws_switch_engine *se, struct ws_error *err)
{
    const struct ws_switch_item *first = se->target ? se->target : se->draft;
    for (size_t i = 0; i < se->n_adapters; i++) {
        struct ws_switch_adapter *a = &se->adapters[i];
        if (!(a->controller = ws_controller_get(se->run->control, a->member->model)))
            return ws_error_set(err, ENOMEM, "no memory for a switch");
        first = first ? first : a->item;
    }
    const struct ws_version_id id = ws_version_id(first->version);
    ws_engine_step_path(se, first->model, first->version, se->to_path);
    snprintf(se->to_version, sizeof(se->to_version), "%" PRIu64, id.version);
    ws_version_id_text(&id, se->to_version_id);
    return 0;
}

/* Those of one controller; engines of a claimed one neither come nor go. */
static void collect_of(struct ws_switch_run *r, struct ws_controller *ctl, const char *const *names,
                       size_t n_names)
{
    for (struct ws_engine *e = ctl->engines; e; e = e->next) {
        struct ws_switch_engine *se = &r->engines[r->n];
        *se = (struct ws_switch_engine){.run = r, .controller = ctl, .engine = e};
        r->n += is_named(e, names, n_names) && choose_parts(se);
    }
}

int ws_switch_collect(struct ws_switch_run *r, struct ws_switch_item *items, size_t n,
                      const char *const *names, size_t n_names, struct ws_error *err)
{
    struct ws_control *c = r->control;
    size_t total = 1;
    int rc = 0;
    r->n = 0;
    r->items = items;
    r->n_items = n;
    pthread_mutex_lock(&c->lock);
    for (const struct ws_controller *ctl = c->controllers; ctl; ctl = ctl->next)
        total += ctl->claimant == items ? ctl->n_engines : 0;
    r->engines = calloc(total, sizeof(*r->engines));
    r->selected = calloc(total, sizeof(*r->selected));
    for (struct ws_controller *ctl = c->controllers; r->engines && r->selected && ctl; ctl = ctl->next)
        if (ctl->claimant == items && (!r->own_only || ctl == items[0].controller))
            collect_of(r, ctl, names, n_names);
    pthread_mutex_unlock(&c->lock);
    if (!r->engines || !r->selected)
        return ws_error_set(err, ENOMEM, "no memory for a switch of %zu engines", total);
    for (size_t i = 0; rc == 0 && i < r->n; i++)
        rc = fill(&r->engines[i], err);
    return rc;
}
