#include "fs/switch/goal.h"
#include "fs/switch/settings.h"

/* No writer of the settings is between two models. */
static void lock(struct ws_control *c)
{
    pthread_mutex_lock(&c->saving);
    pthread_mutex_lock(&c->lock);
}

static void unlock(struct ws_control *c)
{
    pthread_mutex_unlock(&c->lock);
    pthread_mutex_unlock(&c->saving);
}

/* With the locks. */
static void go_forward(struct ws_switch_run *r)
{
    for (size_t i = 0; i < r->n_items; i++) {
        struct ws_controller *ctl = r->items[i].controller;
        ctl->target = ws_version_id(r->items[i].version);
        ctl->goes_forward = true;
    }
}

void ws_goal_begin(struct ws_switch_run *r)
{
    bool forward = false;
    lock(r->control);
    for (size_t i = 0; i < r->n_items; i++) {
        struct ws_switch_item *p = &r->items[i];
        struct ws_version *current = ws_model_current(p->model);
        p->before = p->controller->target;
        p->is_first = !current && !p->before.lineage[0];
        forward = forward || p->is_first;
        if (current)
            ws_version_put(current);
    }
    if (forward)
        go_forward(r);
    unlock(r->control);
}

void ws_goal_commit(struct ws_switch_run *r)
{
    if (r->n_items < 2)
        return;
    lock(r->control);
    go_forward(r);
    unlock(r->control);
    ws_settings_save(r->control);
}

/* Has the mount's end left an engine in it that no version before can be loaded into? */
static bool is_left(const struct ws_switch_run *r)
{
    for (size_t i = 0; atomic_load(&r->control->stop) && i < r->n; i++)
        for (size_t k = 0; r->engines[i].not_back && k < r->n_items; k++)
            if (r->items[k].is_first && ws_engine_step_is_of(&r->engines[i], &r->items[k]))
                return true;
    return false;
}

void ws_goal_drop(struct ws_switch_run *r)
{
    const bool left = is_left(r);
    lock(r->control);
    for (size_t i = 0; !left && i < r->n_items; i++) {
        r->items[i].controller->target = r->items[i].before;
        r->items[i].controller->goes_forward = false;
    }
    for (size_t i = 0; left && i < r->n; i++)
        ws_condition_restore_uncertain(&r->engines[i].engine->condition);
    unlock(r->control);
}
